//! Nothing a test starts outlives it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use warp_testkit::{Process, Signal, until};

const OWNER: &str = "WARP_TESTKIT_OWNS_A_PROCESS";

fn sleeper(folder: &std::path::Path) -> Process {
    let mut command = Command::new("sleep");
    command.arg("600");
    Process::start("sleep", &command, &folder.join("log")).unwrap()
}

fn exists(pid: u32) -> bool {
    Command::new("kill")
        .args(["-0", &pid.to_string()])
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .success()
}

async fn ends(pid: u32) {
    until("the process is gone", Duration::from_secs(20), || async {
        Ok((!exists(pid)).then_some(()))
    })
    .await
    .unwrap();
}

#[test]
fn a_dropped_process_is_gone_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let process = sleeper(folder.path());
    let pid = process.pid();
    assert!(exists(pid));
    drop(process);
    assert!(!exists(pid));
}

#[tokio::test]
async fn a_panic_ends_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let process = sleeper(folder.path());
    let pid = process.pid();
    let panicked = tokio::spawn(async move {
        let _owned = process;
        panic!("on purpose");
    })
    .await;
    assert!(panicked.unwrap_err().is_panic());
    ends(pid).await;
}

/// Runs itself once more as the owner of a process, kills that owner, and looks for the process.
#[tokio::test]
async fn a_process_ends_when_its_owner_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    if std::env::var_os(OWNER).is_some() {
        let process = sleeper(folder.path());
        println!("\npid={}", process.pid());
        std::future::pending::<()>().await;
    }
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args([
            "process::a_process_ends_when_its_owner_is_killed",
            "--exact",
        ])
        .arg("--nocapture")
        .env(OWNER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = BufReader::new(owner.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("pid=").map(|pid| pid.parse().unwrap()))
        .unwrap();
    assert!(exists(pid));
    owner.kill().unwrap();
    owner.wait().unwrap();
    ends(pid).await;
}

#[tokio::test]
async fn exit_codes_and_signals_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "echo said; exit 7"]);
    let mut process = Process::start("sh", &command, &folder.path().join("log")).unwrap();
    assert_eq!(process.wait(Duration::from_secs(20)).await.unwrap(), 7);
    assert_eq!(process.log(), "said\n");
    assert!(process.signal(Signal::Kill).is_err());

    let mut process = sleeper(folder.path());
    process.signal(Signal::Stop).unwrap();
    assert!(process.is_running());
    process.signal(Signal::Kill).unwrap();
    assert_eq!(process.wait(Duration::from_secs(20)).await.unwrap(), 137);
}

#[test]
fn a_program_that_does_not_exist_ends_with_127() {
    let folder = tempfile::tempdir().unwrap();
    let command = Command::new("/nonexistent/program");
    let mut process = Process::start("none", &command, &folder.path().join("log")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let code = runtime.block_on(process.wait(Duration::from_secs(20)));
    assert_eq!(code.unwrap(), 127);
}
