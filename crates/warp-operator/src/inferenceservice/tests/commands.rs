//! Command lines of vLLM, for every example and for random specs. Here they must render; `make test-vllm` has them
//! written to a file (`WARP_VLLM_COMMANDS`) and shows them to vLLM's own parser, which must accept every one.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use warp_core::random::Random;

use super::*;
use crate::inferenceservice::arguments::{AT_ODDS, NEEDED, VLLM, Value as Given};

const RANDOM_SPECS: u64 = 1000;

#[test]
fn every_example_and_every_random_spec_has_a_command_line() {
    let mut lines: Vec<Value> = examples();
    assert!(lines.len() >= 4, "examples of vLLM: {lines:?}");
    let seen = everything();
    for seed in 0..RANDOM_SPECS {
        let mut random = Random::new(seed);
        let spec = random_spec(&mut random);
        let it = service(spec.clone());
        let made = plan(&it, &seen, now());
        assert!(
            applied(&made, "Deployment").is_some(),
            "{spec}: {:?}",
            written(&made).message
        );
        lines.push(line(&format!("random spec {seed}"), &made));
    }
    if let Ok(path) = std::env::var("WARP_VLLM_COMMANDS") {
        let mut file = std::fs::File::create(path).expect("a file for the command lines");
        for line in &lines {
            writeln!(file, "{line}").expect("room for the command lines");
        }
    }
}

/// What the engine is started with: in vLLM's own image, and on a node without images.
fn line(from: &str, plan: &Plan) -> Value {
    let deployment = applied(plan, "Deployment").expect("a Deployment");
    let template = &deployment["spec"]["template"];
    let entry = &template["metadata"]["annotations"]["process.gpu.warp.dev/command.engine"];
    let entry: Vec<String> =
        serde_json::from_str(entry.as_str().expect("a command")).expect("a list of words");
    let args = &template["spec"]["containers"][0]["args"];
    json!({ "from": from, "args": args, "process": entry })
}

/// A fleet with everything a spec may name.
fn everything() -> Seen {
    let cache = serde_json::from_value(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "ModelCache",
        "metadata": { "name": "cached", "namespace": "ns", "generation": 1 },
        "spec": { "source": { "huggingface": { "repository": "org/tiny" } } },
        "status": {
            "observedGeneration": 1, "phase": "Ready", "volume": "cached-model",
            "path": "/models/models--org--tiny/snapshots/1",
        },
    }));
    let amd = json!({ "amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM" });
    Seen {
        cache: Some(Arc::new(cache.expect("a cache"))),
        ..fleet(&[h100("a", 16), node("b", "amd.com/gpu", 16, &amd)], &[])
    }
}

/// The services of the examples and guides that vLLM serves.
fn examples() -> Vec<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = std::fs::read_dir(root.join("deploy/examples")).expect("examples");
    let mut files: Vec<_> = folder.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    let mut lines = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("an example");
        for (number, document) in text.split("\n---").enumerate() {
            let document: Value = serde_saphyr::from_str(document).expect("a manifest");
            let vllm = document["spec"]["engine"]["type"]
                .as_str()
                .unwrap_or("vllm")
                == "vllm";
            if document["kind"] != "InferenceService" || !vllm {
                continue;
            }
            let it = service(document["spec"].clone());
            let made = plan(&it, &everything(), now());
            let name = file.file_name().expect("a name").to_string_lossy();
            assert!(
                applied(&made, "Deployment").is_some(),
                "{name}: {:?}",
                written(&made).message
            );
            lines.push(line(&format!("{name} {number}"), &made));
        }
    }
    lines
}

fn one_of<'a, T>(random: &mut Random, all: &'a [T]) -> &'a T {
    &all[random.below(all.len())]
}

/// A spec that the rules of the kind accept, any field of which may be there or not.
fn random_spec(random: &mut Random) -> Value {
    let mut spec = json!({ "model": random_model(random), "engine": {} });
    let (tensor, pipeline, data) = *one_of(random, &[(1, 1, 1), (2, 1, 1), (8, 2, 1), (2, 2, 4)]);
    match random.below(4) {
        0 => spec["gpuCount"] = json!(random.below(9)),
        1 => {
            spec["parallelism"] = json!({ "tensor": tensor, "pipeline": pipeline, "data": data });
        }
        2 => spec["gpu"] = json!({ "vendor": "amd" }),
        _ => {}
    }
    if random.below(3) == 0 {
        spec["port"] = json!(1 + random.below(65_535));
    }
    if random.below(3) == 0 {
        spec["drain"] = json!(one_of(random, &["0s", "1s", "90s", "1h30m"]));
    }
    spec["engine"]["args"] = json!(random_args(random));
    spec
}

/// Some of vLLM's arguments, each with a value of its kind and in any spelling.
fn random_args(random: &mut Random) -> BTreeMap<String, String> {
    let mut chosen: BTreeMap<&str, String> = BTreeMap::new();
    for _ in 0..random.below(9) {
        let (name, kind) = *one_of(random, VLLM);
        let values = samples(name, kind);
        chosen.insert(name, one_of(random, &values).clone());
    }
    for (name, other) in NEEDED {
        if chosen.get(name).is_some_and(|value| value == "true") {
            let other_kind = VLLM.iter().find(|(known, _)| known == other);
            let (_, kind) = other_kind.expect("known");
            chosen.insert(other, samples(other, *kind)[0].clone());
        }
    }
    for (name, other) in AT_ODDS {
        if chosen.contains_key(name) {
            chosen.remove(other);
        }
    }
    let spelt = chosen.into_iter().map(|(name, value)| {
        let name = match random.below(3) {
            0 => name.replace('-', "_"),
            1 => format!("--{name}"),
            _ => name.to_owned(),
        };
        (name, value)
    });
    spelt.collect()
}

/// Values that our own check takes, the first of them one that turns something on.
fn samples(name: &str, kind: Given) -> Vec<String> {
    let all: Vec<&str> = match (name, kind) {
        (_, Given::Flag | Given::Switch | Given::OnUnlessOff) => vec!["true", "false"],
        // It is looked for on the disk unless it is a template itself.
        ("chat-template", _) => vec!["{{ messages }}"],
        ("speculative-config", _) => {
            vec![r#"{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}"#]
        }
        ("kv-transfer-config", _) => {
            vec![r#"{"kv_connector": "NixlConnector", "kv_role": "kv_both"}"#]
        }
        ("limit-mm-per-prompt", _) => vec![r#"{"image": 2}"#, "{}"],
        ("hf-overrides", _) => vec![r#"{"rope_theta": 1000000}"#, "{}"],
        (_, Given::Json) => vec!["{}"],
        (_, Given::Count) => vec!["1", "16", "2048"],
        (_, Given::Natural) => vec!["0", "7", "4096"],
        (_, Given::Whole) => vec!["-1", "0", "42"],
        (_, Given::Amount) => vec!["8192", "32k", "4G", "1M"],
        (_, Given::AmountOrAuto) => vec!["auto", "8192", "32k", "1M"],
        (_, Given::Share) => vec!["0.05", "0.9", "1"],
        (_, Given::Number) => vec!["0", "0.5", "4"],
        (_, Given::OneOf(choices)) => choices.to_vec(),
        (_, Given::Text) => vec!["word", "two words", "-dash", "a/b:c", "{brace}"],
        (_, Given::Texts) => vec!["one", "one,two , three"],
        (_, Given::Counts) => vec!["1", "1,2,4, 8"],
    };
    all.into_iter().map(str::to_owned).collect()
}

fn random_model(random: &mut Random) -> Value {
    let mut model = match random.below(4) {
        0 => json!({ "cache": "cached" }),
        1 => json!({ "source": "pvc://claim/folder" }),
        2 => json!({ "source": "Qwen/Qwen3-32B" }),
        _ => json!({ "source": "hf://org/name" }),
    };
    let cached = model["cache"].is_string();
    if !cached && random.below(2) == 0 {
        model["revision"] = json!(one_of(random, &["main", "0123abcd", "refs/pr/1"]));
    }
    if random.below(2) == 0 {
        model["name"] = json!(one_of(random, &["chat", "Qwen3", "a/b:c"]));
    }
    let adapters: Vec<Value> = (0..random.below(4))
        .map(|number| {
            let source = if cached {
                "/models/adapter"
            } else {
                "hf://org/adapter"
            };
            json!({ "name": format!("adapter-{number}"), "source": source })
        })
        .collect();
    if !adapters.is_empty() {
        model["adapters"] = json!(adapters);
    }
    model
}
