//! Two models on a node with room for one, with real files: the idle one makes room, the used one does not, and what a pod
//! waits for comes back.

use std::path::PathBuf;

use serde_json::Value;
use warp_testkit::until;

use super::{MIB, World};
use crate::process::Leftovers;
use crate::up::{PATIENCE, Up};

fn told(up: &Up, name: &str) -> Value {
    let text = up.ok(&["get", "modelcache", name, "-o", "json"]);
    let object: Value = serde_json::from_str(&text).unwrap();
    object["status"].clone()
}

async fn eventually(up: &Up, name: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let seen = until(what, PATIENCE, async || {
        let status = told(up, name);
        Ok(holds(&status).then_some(status))
    });
    seen.await.unwrap()
}

fn phase(status: &Value) -> &str {
    status["nodes"][0]["phase"].as_str().unwrap_or_default()
}

/// A pod that reads a model where a node has it, until it is deleted.
fn reader(name: &str, status: &Value) -> String {
    let text = |field: &str| status[field].as_str().unwrap().to_owned();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  restartPolicy: Never\n  \
         terminationGracePeriodSeconds: 1\n  nodeSelector: {{{label}: ready}}\n  \
         containers:\n  - name: e\n    image: local://\n    \
         command: [sh, -c, 'ls \"$1\" && sleep 600', sh, {path}]\n    \
         volumeMounts: [{{name: m, mountPath: /models, readOnly: true}}]\n  \
         volumes: [{{name: m, hostPath: {{path: '{folder}', type: Directory}}}}]\n",
        label = text("nodeLabel"),
        path = text("path"),
        folder = text("folder"),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_copy_makes_room_a_used_one_does_not_and_what_is_waited_for_comes_back() {
    let world = World::new(None, &[MIB]);
    let data = world.folder.path().join("up");
    let _leftovers = Leftovers(&data);
    let up = Up::start(
        &data,
        &["--runtime", "process", "--allow-root", "--ephemeral"],
    )
    .await;
    let kept = world.folder.path().join("kept");
    let file = world.folder.path().join("object.yaml");
    let apply = |text: &str| {
        std::fs::write(&file, text).unwrap();
        up.ok(&["apply", "-f", file.to_str().unwrap()]);
    };
    // Room for one of the two, which are different selections of one model.
    let cache = |name: &str, more: &str| {
        format!(
            "apiVersion: gpu.warp.dev/v1alpha1\nkind: ModelCache\nmetadata: {{name: {name}}}\nspec:\n  \
             nodes: {{path: '{}', quota: 1536Ki}}\n  {more}\n  \
             source:\n    huggingface: {{repository: org/tiny, endpoint: '{}'}}\n",
            kept.display(),
            world.hub.endpoint()
        )
    };
    apply(&cache("whole", "allowPatterns: ['*']"));
    let whole = eventually(&up, "whole", "the first to be there", |status| {
        status["copies"] == "1/1"
    })
    .await;
    let folder = PathBuf::from(whole["folder"].as_str().unwrap());
    assert!(folder.join("models--org--tiny").exists());
    apply(&cache("weights", "allowPatterns: ['*.safetensors']"));
    let weights = eventually(&up, "weights", "the second to be there", |status| {
        status["copies"] == "1/1"
    })
    .await;
    let out = eventually(&up, "whole", "the first to be evicted", |status| {
        phase(status) == "Evicted"
    })
    .await;
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    assert_eq!(out["copies"], "0/1");
    assert_eq!(out["nodes"][0]["bytes"], whole["bytes"]);
    let why = out["nodes"][0]["message"].as_str().unwrap();
    assert_eq!(why, "it made room for ModelCache default/weights");
    // While a pod reads the second, the first waits, although a pod waits for it.
    apply(&reader("user", &weights));
    let used = eventually(&up, "weights", "a pod to use it", |status| {
        status["nodes"][0]["userCount"] == 1
    })
    .await;
    assert!(used["lastUsed"].is_string(), "{used}");
    apply(&reader("engine", &out));
    let waits = eventually(&up, "whole", "it to be waited for", |status| {
        status["conditions"][0]["reason"] == "WaitingForRoom"
    })
    .await;
    let message = waits["message"].as_str().unwrap();
    assert!(
        message.contains("default/weights") && message.contains("in use"),
        "{message}"
    );
    assert_eq!(told(&up, "weights")["copies"], "1/1");
    up.ok(&["delete", "pod", "user"]);
    eventually(&up, "whole", "it to come back", |status| {
        status["copies"] == "1/1"
    })
    .await;
    let gone = told(&up, "weights");
    assert_eq!(phase(&gone), "Evicted", "{gone}");
    until("the pod that waited to read it", PATIENCE, async || {
        let printed = up.warp(&["logs", "engine"]).stdout;
        let printed = String::from_utf8_lossy(&printed).into_owned();
        Ok(printed.contains("config.json").then_some(()))
    })
    .await
    .unwrap();
    up.stop();
}
