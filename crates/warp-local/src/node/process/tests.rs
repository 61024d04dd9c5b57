//! The parts of the process runtime that need no process.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::TryStreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::json;

use super::log::{Query, Stream, Writer, follow, read};
use super::spec::{entry, relocate};

#[test]
fn words_that_name_a_mount_follow_it() {
    let mounts = vec![
        ("/data".to_owned(), PathBuf::from("/p/data")),
        ("/data/deep".to_owned(), PathBuf::from("/q")),
    ];
    let cases = [
        ("/data", "/p/data"),
        ("/data/x", "/p/data/x"),
        ("/database", "/database"),
        ("/data/deep/x", "/q/x"),
        ("--out=/data/x", "--out=/p/data/x"),
        ("key=/data/x", "key=/data/x"),
        ("echo /data/x", "echo /data/x"),
    ];
    for (word, expected) in cases {
        assert_eq!(relocate(word, &mounts), expected, "{word}");
    }
}

#[test]
fn an_image_stands_for_a_command_only_when_somebody_said_so() {
    let pod = |annotations: serde_json::Value| -> Pod {
        serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap()
    };
    let container = |image: &str| Container {
        name: "c".to_owned(),
        image: Some(image.to_owned()),
        ..Container::default()
    };
    let none = pod(json!({}));
    assert_eq!(entry(&none, &container("local://")), Ok(vec![]));
    assert_eq!(
        entry(&none, &container("local:///bin/true")),
        Ok(vec!["/bin/true".to_owned()])
    );
    assert!(
        entry(&none, &container("vllm/vllm-openai"))
            .unwrap_err()
            .contains("local://")
    );
    let told = pod(json!({"process.gpu.warp.dev/command.c": "[\"vllm\", \"serve\"]"}));
    assert_eq!(
        entry(&told, &container("vllm/vllm-openai")),
        Ok(vec!["vllm".to_owned(), "serve".to_owned()])
    );
    let wrong = pod(json!({"process.gpu.warp.dev/command": "vllm serve"}));
    assert!(
        entry(&wrong, &container("x"))
            .unwrap_err()
            .contains("JSON list")
    );
}

/// Whoever follows a log sees every line once and in order, however often the file is put aside.
#[tokio::test]
async fn a_log_is_followed_over_its_rotations() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.0.log");
    let mut writer = Writer::rotating_at(path.clone(), 1000);
    let line = |number: u32| format!("line {number} of a log that is turned over often\n");
    let mut write = |numbers: std::ops::Range<u32>| {
        for number in numbers {
            let text = line(number);
            writer.write(
                Stream::Stdout,
                text.trim_end().as_bytes(),
                true,
                Timestamp::UNIX_EPOCH,
            );
        }
    };
    write(0..7);
    let (first, mark) = read(&path, &Query::default());
    // Turned over between the reading and the following.
    write(7..20);
    let over = Arc::new(AtomicBool::new(false));
    let ended = over.clone();
    let mut rest = Box::pin(follow(path, Query::default(), mark, move || {
        ended.load(Ordering::Relaxed)
    }));
    let mut seen = first;
    for round in 0..20u32 {
        let so_far: String = (0..20 + 20 * round).map(line).collect();
        while seen.len() < so_far.len() {
            seen.extend(rest.try_next().await.unwrap().unwrap());
        }
        assert_eq!(String::from_utf8_lossy(&seen), so_far);
        write(20 + 20 * round..40 + 20 * round);
    }
    over.store(true, Ordering::Relaxed);
    let last: Vec<bytes::Bytes> = rest.try_collect().await.unwrap();
    seen.extend(last.concat());
    let whole: String = (0..420).map(line).collect();
    assert_eq!(String::from_utf8_lossy(&seen), whole);
}

#[test]
fn a_long_line_is_one_line_with_one_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("c.0.log");
    let mut writer = Writer::open(path.clone());
    let at = Timestamp::UNIX_EPOCH;
    writer.write(Stream::Stdout, b"first", true, at);
    writer.write(Stream::Stdout, b"long ", false, at);
    writer.write(Stream::Stdout, b"line", true, at);
    let query = Query {
        timestamps: true,
        tail: Some(1),
        ..Query::default()
    };
    let (text, _) = read(&path, &query);
    assert_eq!(
        String::from_utf8(text).unwrap(),
        "1970-01-01T00:00:00.000000000Z long line\n"
    );
}

#[test]
fn mounts_that_lie_in_each_other_or_lead_out_are_refused_by_name() {
    let pod = |paths: &[&str]| -> Pod {
        let mounts: Vec<_> = paths
            .iter()
            .map(|path| json!({"name": "v", "mountPath": path}))
            .collect();
        serde_json::from_value(
            json!({"spec": {"containers": [{"name": "c", "volumeMounts": mounts}]}}),
        )
        .unwrap()
    };
    let told = |paths: &[&str]| super::admit::unsupported(&pod(paths)).unwrap_or_default();
    assert_eq!(told(&["/data", "/database"]), "");
    assert!(told(&["/data", "/data/tmp"]).contains("/data/tmp lies inside the one at /data"));
    assert!(told(&["/x/../../etc"]).contains("\"..\""));
}

/// Without control groups a run that uses more than it may is still ended.
#[tokio::test]
async fn too_much_memory_is_noticed_without_control_groups() {
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("oom");
    let mut child = tokio::process::Command::new("sh")
        .args(["-c", "head -c 300m /dev/zero | tail | sleep 60"])
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    super::memory::watch(child.id().unwrap(), 32 << 20, mark.clone()).await;
    let status = child.wait().await.unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(9)
    );
    assert!(mark.exists());
}
