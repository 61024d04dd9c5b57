//! The supervisor of one pod: starts its containers, keeps their output, records their ends, and takes
//! everything that is left with it when it goes. It knows nothing of Kubernetes and asks nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use rustix::process::{
    Pid, Signal, getpid, kill_process, kill_process_group, set_child_subreaper, setsid,
};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, broadcast};

use super::container::closed;
use super::log::{Stream, Writer};
use super::wire::{Ended, Launch, Request, State};
use super::{CONTAINER, input, memory, sweep};
use crate::background;

const SOCKET: &str = "socket";
/// A last word longer than this is cut, as a kubelet cuts it.
const LAST_WORD: u64 = 4096;
const LAST_LINES: usize = 80;
const LAST_LINES_BYTES: usize = 2048;

struct Run {
    state: State,
    launch: Launch,
    /// Keeps its standard input open.
    input: Option<File>,
}

struct Pod {
    folder: PathBuf,
    program: PathBuf,
    runs: Mutex<BTreeMap<(String, u32), Run>>,
    news: broadcast::Sender<State>,
    end: Notify,
    /// Processes of ours that are no containers: not to be reaped as strays.
    hooks: Mutex<BTreeSet<u32>>,
}

/// `__supervise FOLDER`: serves until told to end.
pub fn run(folder: &Path) -> ExitCode {
    // Out of Warp's session: a Ctrl-C there is not meant for the pods.
    setsid().ok();
    // What a container leaves behind becomes our child, so that we can end it.
    set_child_subreaper(Some(getpid())).ok();
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    else {
        return ExitCode::FAILURE;
    };
    match runtime.block_on(supervise(folder)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            std::fs::write(folder.join("supervisor.error"), error.to_string()).ok();
            ExitCode::FAILURE
        }
    }
}

async fn supervise(folder: &Path) -> io::Result<()> {
    let socket = folder.join(SOCKET);
    std::fs::remove_file(&socket).ok();
    std::fs::create_dir_all(folder.join("state"))?;
    std::fs::create_dir_all(folder.join("logs"))?;
    let listener = UnixListener::bind(&socket)?;
    let pod = Arc::new(Pod {
        folder: folder.to_owned(),
        program: std::env::current_exe()?,
        runs: Mutex::default(),
        news: broadcast::channel(1024).0,
        end: Notify::new(),
        hooks: Mutex::default(),
    });
    background::spawn(reap_strays(pod.clone()));
    // Whoever started us waits for this line.
    let mut out = tokio::io::stdout();
    out.write_all(b"ready\n").await?;
    out.flush().await?;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                let pod = pod.clone();
                background::spawn(async move {
                    // A client that goes away is no trouble of ours.
                    serve(pod, stream).await.ok();
                });
            }
            () = pod.end.notified() => break,
        }
    }
    std::fs::remove_file(&socket).ok();
    sweep::end_children().await;
    Ok(())
}

/// What a container leaves behind becomes our child and, once it has ended, ours to bury.
async fn reap_strays(pod: Arc<Pod>) {
    let Ok(mut children) = signal(SignalKind::child()) else {
        return;
    };
    while children.recv().await.is_some() {
        let mut own = pod.hooks.lock().clone();
        own.extend(pod.runs.lock().values().map(|run| run.state.pid));
        sweep::reap_others(&own);
    }
}

async fn serve(pod: Arc<Pod>, stream: UnixStream) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    let mut news = pod.news.subscribe();
    let known: Vec<State> = pod
        .runs
        .lock()
        .values()
        .map(|run| run.state.clone())
        .collect();
    for state in known {
        say(&mut write, &state).await?;
    }
    loop {
        tokio::select! {
            line = lines.next_line() => {
                let Some(line) = line? else { return Ok(()) };
                let Ok(request) = serde_json::from_str(&line) else { continue };
                match request {
                    Request::Start(launch) => start(&pod, *launch),
                    Request::Stop { container, attempt, grace_ms, signal, before, wait_ms } => {
                        let stop = Stop {
                            key: (container, attempt),
                            grace: Duration::from_millis(grace_ms),
                            signal: signal_named(&signal),
                            before,
                            wait: Duration::from_millis(wait_ms),
                        };
                        background::spawn(stop.carry_out(pod.clone()));
                    }
                    Request::CloseInput { container, attempt } => {
                        if let Some(run) = pod.runs.lock().get_mut(&(container, attempt)) {
                            run.input = None;
                        }
                    }
                    Request::End => {
                        end_all(&pod).await;
                        pod.end.notify_one();
                        return Ok(());
                    }
                }
            }
            state = news.recv() => match state {
                Ok(state) => say(&mut write, &state).await?,
                // Missed some: the client connects again and is told everything.
                Err(_) => return Ok(()),
            }
        }
    }
}

async fn say(write: &mut (impl AsyncWriteExt + Unpin), state: &State) -> io::Result<()> {
    let mut line = serde_json::to_vec(state)?;
    line.push(b'\n');
    write.write_all(&line).await
}

/// Starts a run, or repeats what is known of it.
fn start(pod: &Arc<Pod>, launch: Launch) {
    let key = (launch.container.clone(), launch.attempt);
    if let Some(run) = pod.runs.lock().get(&key) {
        pod.news.send(run.state.clone()).ok();
        return;
    }
    let mut state = State {
        container: launch.container.clone(),
        attempt: launch.attempt,
        pid: 0,
        started: Timestamp::now(),
        ended: None,
    };
    let spawned = spawn(pod, &launch);
    match spawned {
        Ok((child, input)) => {
            state.pid = child.id().unwrap_or_default();
            keep(pod, key, state, &launch, input);
            if let (Some(limit), Some(pid)) = (launch.memory, child.id()) {
                background::spawn(memory::watch(pid, limit, memory_mark(pod, &launch)));
            }
            background::spawn(follow(pod.clone(), launch, child));
        }
        Err(error) => {
            state.ended = Some(not_started(format!("failed to start: {error}")));
            keep(pod, key, state, &launch, None);
        }
    }
}

fn keep(pod: &Pod, key: (String, u32), state: State, launch: &Launch, input: Option<File>) {
    write_state(pod, &state);
    let run = Run {
        state: state.clone(),
        launch: launch.clone(),
        input,
    };
    pod.runs.lock().insert(key, run);
    pod.news.send(state).ok();
}

fn failure_file(pod: &Pod, launch: &Launch) -> PathBuf {
    pod.folder
        .join("state")
        .join(format!("{}.{}.failure", launch.container, launch.attempt))
}

/// Exists when a run was ended for using too much memory.
fn memory_mark(pod: &Pod, launch: &Launch) -> PathBuf {
    pod.folder
        .join("state")
        .join(format!("{}.{}.oom", launch.container, launch.attempt))
}

/// The process, and what keeps its standard input open.
fn spawn(pod: &Pod, launch: &Launch) -> io::Result<(tokio::process::Child, Option<File>)> {
    let (stdin, input) = if launch.stdin.is_some() {
        let (read, write) = input::make(&pod.folder, launch)?;
        (read.into(), Some(write))
    } else {
        (Stdio::null(), None)
    };
    let child = Command::new(&pod.program)
        .arg(CONTAINER)
        .arg(failure_file(pod, launch))
        .args(closed(&launch.read_only))
        .args(&launch.groups)
        .arg("--")
        .args(&launch.command)
        .env_clear()
        .envs(&launch.environment)
        .current_dir(&launch.folder)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    Ok((child, input))
}

/// Copies the output until both streams end, then records how the run ended.
async fn follow(pod: Arc<Pod>, launch: Launch, mut child: tokio::process::Child) {
    let writer = Arc::new(Mutex::new(Writer::open(log_file(&pod, &launch))));
    let mut copies = tokio::task::JoinSet::new();
    if let Some(stdout) = child.stdout.take() {
        copies.spawn(copy(stdout, Stream::Stdout, writer.clone()));
    }
    if let Some(stderr) = child.stderr.take() {
        copies.spawn(copy(stderr, Stream::Stderr, writer.clone()));
    }
    let pid = child
        .id()
        .and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let status = child.wait().await;
    // Members of its group go with it; a member that left the group is ended with the pod.
    if let Some(pid) = pid {
        kill_process_group(pid, Signal::KILL).ok();
    }
    // Whoever still holds the pipe open must not keep the end from being recorded.
    tokio::time::timeout(Duration::from_secs(2), async {
        while copies.join_next().await.is_some() {}
    })
    .await
    .ok();
    let ended = ended(&pod, &launch, status);
    let state = {
        let mut runs = pod.runs.lock();
        let Some(run) = runs.get_mut(&(launch.container.clone(), launch.attempt)) else {
            return;
        };
        run.state.ended = Some(ended);
        run.input = None;
        run.state.clone()
    };
    write_state(&pod, &state);
    pod.news.send(state).ok();
}

async fn copy(from: impl tokio::io::AsyncRead + Unpin, stream: Stream, to: Arc<Mutex<Writer>>) {
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        match super::log::read_piece(&mut from, &mut line).await {
            Ok(Some(whole)) => to.lock().write(stream, &line, whole, Timestamp::now()),
            Ok(None) | Err(_) => return,
        }
    }
}

fn not_started(why: String) -> Ended {
    Ended {
        at: Timestamp::now(),
        code: 128,
        signal: None,
        reason: "StartError".to_owned(),
        message: Some(why),
    }
}

fn ended(pod: &Pod, launch: &Launch, status: io::Result<ExitStatus>) -> Ended {
    let failure = failure_file(pod, launch);
    if let Ok(why) = std::fs::read_to_string(&failure) {
        std::fs::remove_file(&failure).ok();
        return not_started(why);
    }
    let status = match status {
        Ok(status) => status,
        Err(error) => return not_started(format!("failed to wait for it: {error}")),
    };
    let signal = status.signal();
    let code = status
        .code()
        .unwrap_or_else(|| 128 + signal.unwrap_or_default());
    let by_kernel = launch
        .groups
        .iter()
        .any(|group| super::cgroup::was_out_of_memory(group));
    let out_of_memory = code == 137 && (by_kernel || memory_mark(pod, launch).exists());
    let reason = match (out_of_memory, code) {
        (true, _) => "OOMKilled",
        (false, 0) => "Completed",
        (false, _) => "Error",
    };
    Ended {
        at: Timestamp::now(),
        code,
        signal,
        reason: reason.to_owned(),
        message: launch
            .last_word
            .as_deref()
            .and_then(last_word)
            .or_else(|| (launch.last_lines && code != 0).then(|| last_lines(pod, launch))?),
    }
}

/// The end of what a container wrote as its last word.
fn last_word(file: &Path) -> Option<String> {
    let mut file = std::fs::File::open(file).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LAST_WORD)))
        .ok()?;
    let mut kept = Vec::new();
    file.take(LAST_WORD).read_to_end(&mut kept).ok()?;
    (!kept.is_empty()).then(|| String::from_utf8_lossy(&kept).into_owned())
}

/// The end of its log, as much of it as a kubelet takes.
fn last_lines(pod: &Pod, launch: &Launch) -> Option<String> {
    let path = log_file(pod, launch);
    let query = super::log::Query {
        tail: Some(LAST_LINES),
        ..super::log::Query::default()
    };
    let (text, _) = super::log::read(&path, &query);
    let kept = &text[text.len().saturating_sub(LAST_LINES_BYTES)..];
    (!kept.is_empty()).then(|| String::from_utf8_lossy(kept).into_owned())
}

fn log_file(pod: &Pod, launch: &Launch) -> PathBuf {
    pod.folder
        .join("logs")
        .join(format!("{}.{}.log", launch.container, launch.attempt))
}

/// The file is whole or absent, never half: it may be all that is left after a crash.
fn write_state(pod: &Pod, state: &State) {
    let folder = pod.folder.join("state");
    let name = State::file_name(&state.container, state.attempt);
    let temporary = folder.join(format!(".{name}"));
    if let Ok(text) = serde_json::to_vec(state) {
        let written = std::fs::write(&temporary, text)
            .and_then(|()| std::fs::rename(&temporary, folder.join(&name)));
        if let Err(error) = written {
            std::fs::write(pod.folder.join("supervisor.error"), error.to_string()).ok();
        }
    }
}

struct Stop {
    key: (String, u32),
    grace: Duration,
    signal: Signal,
    before: Option<Vec<String>>,
    wait: Duration,
}

impl Stop {
    async fn carry_out(self, pod: Arc<Pod>) {
        let Some((pid, launch)) = self.target(&pod) else {
            return;
        };
        let mut news = pod.news.subscribe();
        let ask = async {
            if let Some(command) = &self.before
                && let Some((program, words)) = command.split_first()
            {
                hook(&pod, &launch, program, words).await;
            }
            tokio::time::sleep(self.wait).await;
            // As a kubelet does: its children are the container's own to end, when what they do is done.
            kill_process(pid, self.signal).ok();
            while self.is_live(&pod) {
                if news.recv().await.is_err() {
                    tokio::task::yield_now().await;
                }
            }
        };
        if tokio::time::timeout(self.grace, ask).await.is_err() && self.is_live(&pod) {
            kill_process_group(pid, Signal::KILL).ok();
        }
    }

    fn is_live(&self, pod: &Pod) -> bool {
        pod.runs
            .lock()
            .get(&self.key)
            .is_some_and(|run| run.state.ended.is_none())
    }

    /// The process to stop, if it still runs.
    fn target(&self, pod: &Pod) -> Option<(Pid, Launch)> {
        let runs = pod.runs.lock();
        let run = runs
            .get(&self.key)
            .filter(|run| run.state.ended.is_none())?;
        Some((pid_of(&run.state)?, run.launch.clone()))
    }
}

/// Runs a command before a container is asked to end; it goes when its time is over.
async fn hook(pod: &Pod, launch: &Launch, program: &str, words: &[String]) {
    let spawned = Command::new(program)
        .args(words)
        .env_clear()
        .envs(&launch.environment)
        .current_dir(&launch.folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .kill_on_drop(true)
        .spawn();
    let Ok(mut child) = spawned else { return };
    let pid = child.id().unwrap_or_default();
    pod.hooks.lock().insert(pid);
    child.wait().await.ok();
    pod.hooks.lock().remove(&pid);
}

fn pid_of(state: &State) -> Option<Pid> {
    Pid::from_raw(i32::try_from(state.pid).ok()?)
}

async fn end_all(pod: &Arc<Pod>) {
    let mut news = pod.news.subscribe();
    let live: Vec<Pid> = pod
        .runs
        .lock()
        .values()
        .filter(|run| run.state.ended.is_none())
        .filter_map(|run| pid_of(&run.state))
        .collect();
    for pid in live {
        kill_process_group(pid, Signal::KILL).ok();
    }
    let all_ended = async {
        while pod
            .runs
            .lock()
            .values()
            .any(|run| run.state.ended.is_none())
        {
            if news.recv().await.is_err() {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(5), all_ended)
        .await
        .ok();
}

/// Signals by the names Kubernetes gives them; anything else means the usual one.
fn signal_named(name: &str) -> Signal {
    match name {
        "SIGINT" => Signal::INT,
        "SIGQUIT" => Signal::QUIT,
        "SIGHUP" => Signal::HUP,
        "SIGKILL" => Signal::KILL,
        "SIGUSR1" => Signal::USR1,
        "SIGUSR2" => Signal::USR2,
        _ => Signal::TERM,
    }
}
