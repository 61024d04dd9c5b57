//! Engines other than vLLM, and the adapters of all of them.

use std::collections::BTreeSet;

use super::*;

#[test]
fn sglang_gets_its_own_image_program_and_arguments() {
    let it = service(json!({
        "gpuCount": 4,
        "parallelism": { "tensor": 2, "data": 2 },
        "model": {
            "source": "hf://org/tiny", "revision": "abc",
            "adapters": [{ "name": "sql", "source": "hf://org/sql" }, { "name": "own", "source": "/adapters/own" }],
        },
        "engine": { "type": "sglang", "args": { "context-length": "32768", "disable-radix-cache": "true" } },
    }));
    let made = plan(&it, &fleet(&[h100("a", 8)], &[]), now());
    assert_eq!(
        words(&made),
        "--model-path org/tiny --served-model-name org/tiny --host $(POD_IP) --port 8000 --enable-metrics \
         --revision abc --tensor-parallel-size 2 --data-parallel-size 2 --enable-lora --lora-paths sql=org/sql \
         own=/adapters/own --context-length 32768 --disable-radix-cache"
    );
    let container = container(&made);
    assert_eq!(container["image"], "lmsysorg/sglang:v0.5.9");
    assert_eq!(
        container["command"],
        json!(["python3", "-m", "sglang.launch_server"])
    );
    assert_eq!(container["startupProbe"]["httpGet"]["path"], "/health");
    assert_eq!(container["env"][0]["name"], "POD_IP");
    assert_eq!(container["volumeMounts"][0]["mountPath"], "/dev/shm");
}

#[test]
fn what_sglang_does_not_take_is_refused_before_a_pod_exists() {
    let amd = json!({ "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM" });
    let seen = fleet(&[h100("a", 8), node("b", "amd.com/gpu", 8, &amd)], &[]);
    let said = |spec: Value| {
        let made = plan(&service(spec), &seen, now());
        assert!(applied(&made, "Deployment").is_none());
        written(&made).message.expect("a message")
    };
    for (engine, part) in [
        (
            json!({ "context-lenght": "1" }),
            "did you mean context-length?",
        ),
        (
            json!({ "tp-size": "2" }),
            "decided by spec.parallelism.tensor",
        ),
        (json!({ "model-path": "x" }), "decided by spec.model"),
        (json!({ "mem-fraction-static": "2" }), "at most 1"),
        (json!({ "schedule-policy": "best" }), "not one of lpm"),
        (json!({ "max-model-len": "1" }), "sglang knows no argument"),
    ] {
        let message = said(json!({ "engine": { "type": "sglang", "args": engine } }));
        assert!(message.contains(part), "{message}");
    }
    let vendor = json!({ "engine": { "type": "sglang" }, "gpu": { "vendor": "amd" } });
    let message = said(vendor);
    assert!(
        message.contains("name one for these in engine.image"),
        "{message}"
    );
    let own = json!({
        "engine": { "type": "sglang", "image": "lmsysorg/sglang:v0.5.9-rocm700-mi30x" }, "gpu": { "vendor": "amd" },
    });
    let made = plan(&service(own), &seen, now());
    assert_eq!(container(&made)["resources"]["limits"]["amd.com/gpu"], "1");
}

#[test]
fn an_adapter_is_ready_when_every_copy_that_answers_has_it() {
    let adapters =
        json!([{ "name": "sql", "source": "org/sql" }, { "name": "own", "source": "/own" }]);
    let it = service(json!({ "model": { "source": "hf://org/tiny", "adapters": adapters } }));
    let ready = json!({ "conditions": [
        { "type": "Ready", "status": "True", "lastTransitionTime": "2026-11-16T11:59:41Z" },
    ] });
    let says = |served: &[Option<&[&str]>], pods: Vec<Arc<Pod>>| {
        let set = |names: &[&str]| -> BTreeSet<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        let seen = Seen {
            pods,
            served: served.iter().map(|names| names.map(set)).collect(),
            asks: true,
            ..fleet(&[h100("a", 8)], &[])
        };
        let made = plan(&it, &seen, now());
        let told: Vec<(bool, String, i32)> = written(&made)
            .adapters
            .into_iter()
            .map(|adapter| (adapter.ready, adapter.reason, adapter.copies))
            .collect();
        told
    };
    let one = |ready: bool, reason: &str, copies: i32| (ready, reason.to_owned(), copies);
    assert_eq!(
        says(&[], vec![]),
        [one(false, "NoCopies", 0), one(false, "NoCopies", 0)]
    );
    let pods = vec![pod(ready.clone()), pod(ready)];
    let both: Option<&[&str]> = Some(&["org/tiny", "sql", "own"]);
    assert_eq!(
        says(&[both, both], pods.clone()),
        [one(true, "Loaded", 2), one(true, "Loaded", 2)]
    );
    // One was started again and has not loaded one of them.
    let anew: Option<&[&str]> = Some(&["org/tiny", "sql"]);
    assert_eq!(
        says(&[both, anew], pods.clone()),
        [one(true, "Loaded", 2), one(false, "NotLoaded", 1)]
    );
    assert_eq!(
        says(&[None, None], pods),
        [one(false, "NoAnswer", 0), one(false, "NoAnswer", 0)]
    );
}
