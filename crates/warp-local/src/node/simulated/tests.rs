//! What annotations and commands mean.

use std::collections::BTreeMap;
use std::time::Duration;

use super::annotations::duration;
use super::behaviour::Defaults;
use super::command::{Script, read};

fn argv(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

#[allow(clippy::unnecessary_wraps, reason = "compared with an Option")]
fn script(lasts: u64, code: i32, output: &[&str]) -> Option<Script> {
    Some(Script {
        lasts: Some(Duration::from_secs(lasts)),
        code,
        output: argv(output),
    })
}

#[test]
fn commands_of_tutorials_are_understood() {
    let cases: [(&[&str], Option<Script>); 13] = [
        (&["sleep", "30"], script(30, 0, &[])),
        (&["/bin/sleep", "1m", "30s"], script(90, 0, &[])),
        (&["true"], script(0, 0, &[])),
        (&["false"], script(0, 1, &[])),
        (&["sh", "-c", "exit 3"], script(0, 3, &[])),
        (&["sh", "-c", "exit 256"], script(0, 0, &[])),
        (
            &["/bin/bash", "-ec", "echo hello; sleep 2 && exit 7"],
            script(2, 7, &["hello"]),
        ),
        (&["sh", "-c", "false && sleep 5"], script(0, 1, &[])),
        (&["sh", "-c", "sleep 5\nexit 1\nsleep 9"], script(5, 1, &[])),
        (&["sh", "-c", "python train.py"], None),
        (&["sh", "-c", "echo $HOME"], None),
        (&["sleep"], None),
        (&[], None),
    ];
    for (words, expected) in cases {
        assert_eq!(read(&argv(words)), expected, "{words:?}");
    }
    let endless = read(&argv(&["sleep", "infinity"])).unwrap();
    assert_eq!(endless.lasts, None);
}

#[test]
fn a_fetch_says_that_it_was_pretended_unless_it_is_told_what_to_say() {
    let said = |arguments: &[&str], annotations: serde_json::Value| {
        let pod = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "a", "annotations": annotations},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "args": arguments}]},
        }))
        .unwrap();
        let (node, defaults) = (BTreeMap::new(), Defaults::default());
        let behaviour = super::behaviour::of(&pod, "c", &node, &defaults).unwrap();
        behaviour.fate(0).message
    };
    let fetch = ["fetch", "--report=/run/warp/report", "--", "org/tiny"];
    let none = serde_json::json!({});
    assert_eq!(
        said(&fetch, none.clone()).as_deref(),
        Some(r#"{"simulated":{}}"#)
    );
    let told = serde_json::json!({"sim.gpu.warp.dev/message": "other"});
    assert_eq!(said(&fetch, told).as_deref(), Some("other"));
    assert_eq!(said(&["fetch", "x"], none.clone()), None);
    assert_eq!(said(&["train", "--report=x"], none), None);
}

#[test]
fn lengths_of_time_are_read_or_refused_with_an_example() {
    assert_eq!(duration("1m30s"), Ok(Some(Duration::from_secs(90))));
    assert_eq!(duration("250ms"), Ok(Some(Duration::from_millis(250))));
    assert_eq!(duration("12"), Ok(Some(Duration::from_secs(12))));
    assert_eq!(duration("forever"), Ok(None));
    for bad in ["", "soon", "-5s", "-1", "1e999"] {
        assert!(duration(bad).is_err(), "{bad}");
    }
}
