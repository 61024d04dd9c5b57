//! Which arguments an engine takes: checked before a pod exists, and written once in one order.

use std::collections::BTreeMap;

use warp_api::inferenceservice::EngineKind;

/// What a value must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// `true` or `false`; `false` is written `--no-…`.
    Flag,
    Count,
    /// A number of tokens: 8192, 32k; or `auto`.
    Tokens,
    /// More than 0, at most 1.
    Share,
    Number,
    OneOf(&'static [&'static str]),
    Json,
    Text,
}

/// Arguments of vLLM, as its 0.27 has them.
const VLLM: &[(&str, Value)] = &[
    ("async-scheduling", Value::Flag),
    ("block-size", Value::Count),
    ("calculate-kv-scales", Value::Flag),
    ("chat-template", Value::Text),
    (
        "chat-template-content-format",
        Value::OneOf(&["auto", "openai", "string"]),
    ),
    ("compilation-config", Value::Json),
    ("config-format", Value::OneOf(&["auto", "hf", "mistral"])),
    ("cpu-offload-gb", Value::Number),
    ("decode-context-parallel-size", Value::Count),
    ("disable-access-log-for-endpoints", Value::Text),
    ("disable-custom-all-reduce", Value::Flag),
    ("disable-log-stats", Value::Flag),
    (
        "distributed-executor-backend",
        Value::OneOf(&["mp", "ray", "uni", "external_launcher"]),
    ),
    (
        "dtype",
        Value::OneOf(&["auto", "half", "float16", "bfloat16", "float", "float32"]),
    ),
    ("enable-auto-tool-choice", Value::Flag),
    ("enable-chunked-prefill", Value::Flag),
    ("enable-expert-parallel", Value::Flag),
    ("enable-prefix-caching", Value::Flag),
    ("enable-prompt-tokens-details", Value::Flag),
    ("enable-request-id-headers", Value::Flag),
    ("enable-server-load-tracking", Value::Flag),
    ("enable-sleep-mode", Value::Flag),
    ("enforce-eager", Value::Flag),
    ("generation-config", Value::Text),
    ("gpu-memory-utilization", Value::Share),
    ("hf-overrides", Value::Json),
    (
        "kv-cache-dtype",
        Value::OneOf(&[
            "auto", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "nvfp4", "bfloat16",
        ]),
    ),
    ("kv-cache-memory-bytes", Value::Text),
    ("kv-events-config", Value::Json),
    (
        "kv-offloading-backend",
        Value::OneOf(&["native", "lmcache"]),
    ),
    ("kv-offloading-size", Value::Number),
    ("kv-transfer-config", Value::Json),
    ("limit-mm-per-prompt", Value::Json),
    (
        "load-format",
        Value::OneOf(&[
            "auto",
            "pt",
            "safetensors",
            "runai_streamer",
            "runai_streamer_sharded",
            "tensorizer",
            "sharded_state",
            "dummy",
            "fastsafetensors",
            "gguf",
            "mistral",
            "bitsandbytes",
        ]),
    ),
    ("logits-processors", Value::Text),
    ("long-prefill-token-threshold", Value::Count),
    ("max-cpu-loras", Value::Count),
    ("max-log-len", Value::Count),
    ("max-logprobs", Value::Number),
    (
        "max-lora-rank",
        Value::OneOf(&["1", "8", "16", "32", "64", "128", "256", "320", "512"]),
    ),
    ("max-loras", Value::Count),
    ("max-model-len", Value::Tokens),
    ("max-num-batched-tokens", Value::Tokens),
    ("max-num-partial-prefills", Value::Count),
    ("max-num-seqs", Value::Count),
    ("mm-processor-kwargs", Value::Json),
    (
        "model-impl",
        Value::OneOf(&["auto", "vllm", "transformers", "terratorch"]),
    ),
    ("model-loader-extra-config", Value::Json),
    ("otlp-traces-endpoint", Value::Text),
    ("override-generation-config", Value::Json),
    ("pooler-config", Value::Json),
    (
        "prefix-caching-hash-algo",
        Value::OneOf(&["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]),
    ),
    ("quantization", Value::Text),
    ("reasoning-parser", Value::Text),
    ("response-role", Value::Text),
    ("root-path", Value::Text),
    (
        "runner",
        Value::OneOf(&["auto", "generate", "pooling", "draft"]),
    ),
    (
        "safetensors-load-strategy",
        Value::OneOf(&["lazy", "eager", "prefetch", "torchao"]),
    ),
    ("scheduling-policy", Value::OneOf(&["fcfs", "priority"])),
    ("seed", Value::Number),
    ("speculative-config", Value::Json),
    ("swap-space", Value::Number),
    ("tokenizer", Value::Text),
    (
        "tokenizer-mode",
        Value::OneOf(&["auto", "hf", "slow", "mistral", "custom"]),
    ),
    ("tool-call-parser", Value::Text),
    ("trust-remote-code", Value::Flag),
    (
        "uvicorn-log-level",
        Value::OneOf(&["critical", "debug", "error", "info", "trace", "warning"]),
    ),
];

/// Arguments of `warp engine`.
const SIMULATED: &[(&str, Value)] = &[
    ("block-size", Value::Count),
    ("compile-seconds", Value::Number),
    ("crash-after", Value::Count),
    ("enable-prefix-caching", Value::Flag),
    ("error-every", Value::Count),
    ("fail-load", Value::Flag),
    ("load-seconds", Value::Number),
    ("max-model-len", Value::Tokens),
    ("max-num-batched-tokens", Value::Count),
    ("max-num-seqs", Value::Count),
    ("num-gpu-blocks-override", Value::Count),
    ("prompt-token-us", Value::Number),
    ("request-us", Value::Number),
    ("stall-every", Value::Count),
    ("step-ms", Value::Number),
];

/// Arguments that other fields decide, and which.
const DECIDED: &[(&str, &str)] = &[
    (
        "api-key",
        "engine.env with VLLM_API_KEY from a Secret: arguments can be read by anybody who may read the pod",
    ),
    ("data-parallel-size", "spec.parallelism.data"),
    ("enable-lora", "spec.model.adapters"),
    (
        "host",
        "nothing: the engine listens where the Service leads",
    ),
    ("lora-modules", "spec.model.adapters"),
    ("model", "spec.model"),
    ("pipeline-parallel-size", "spec.parallelism.pipeline"),
    ("port", "spec.port"),
    ("revision", "spec.model.revision"),
    ("served-model-name", "spec.model.name"),
    ("shutdown-timeout", "spec.drain"),
    ("tensor-parallel-size", "spec.parallelism.tensor"),
];

/// Short forms.
const ALIASES: &[(&str, &str)] = &[
    ("tp", "tensor-parallel-size"),
    ("pp", "pipeline-parallel-size"),
    ("dp", "data-parallel-size"),
    ("q", "quantization"),
];

fn table(engine: EngineKind) -> &'static [(&'static str, Value)] {
    match engine {
        EngineKind::Vllm => VLLM,
        EngineKind::Simulated => SIMULATED,
        EngineKind::Custom => &[],
    }
}

/// The words for `args`, in alphabetical order; or why they cannot be.
pub(super) fn words(
    engine: EngineKind,
    args: &BTreeMap<String, String>,
) -> Result<Vec<String>, String> {
    let mut checked: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    for (given, value) in args {
        let name = given.trim_start_matches('-').replace('_', "-");
        let alias = ALIASES.iter().find(|(short, _)| *short == name);
        let name = alias.map_or(name.as_str(), |(_, long)| long);
        if let Some((_, field)) = DECIDED.iter().find(|(decided, _)| *decided == name) {
            return Err(format!("engine.args: {given} is decided by {field}"));
        }
        let Some((name, kind)) = table(engine).iter().find(|(known, _)| *known == name) else {
            return Err(unknown(engine, given, name));
        };
        check(*kind, value).map_err(|why| format!("engine.args: {given} is '{value}', {why}"))?;
        if let Some((_, other)) = checked.insert(name, (value, given)) {
            return Err(format!(
                "engine.args: {other} and {given} are the same argument; keep one"
            ));
        }
    }
    let mut words = Vec::new();
    for (name, (value, _)) in checked {
        let is_flag = table(engine)
            .iter()
            .any(|(known, kind)| *known == name && *kind == Value::Flag);
        match (is_flag, value) {
            (true, "true")
                if engine == EngineKind::Simulated && name == "enable-prefix-caching" => {}
            (true, "true") => words.push(format!("--{name}")),
            // The simulated engine's flags are off unless given.
            (true, _) if engine == EngineKind::Simulated && name == "fail-load" => {}
            (true, _) => words.push(format!("--no-{name}")),
            (false, value) => words.extend([format!("--{name}"), value.to_owned()]),
        }
    }
    Ok(words)
}

fn unknown(engine: EngineKind, given: &str, name: &str) -> String {
    let near = table(engine)
        .iter()
        .map(|(known, _)| (distance(known, name), *known))
        .min()
        .filter(|(distance, _)| *distance <= 3);
    let guess = near.map_or(String::new(), |(_, known)| {
        format!(" (did you mean {known}?)")
    });
    format!(
        "engine.args: {} knows no argument {given}{guess}; correct it, or pass it unchecked in engine.advanced",
        engine.as_str()
    )
}

fn check(kind: Value, value: &str) -> Result<(), String> {
    let good = match kind {
        Value::Flag => matches!(value, "true" | "false"),
        Value::Count => value.parse::<u64>().is_ok_and(|count| count > 0),
        Value::Tokens => {
            let digits = value.trim_end_matches(['k', 'K', 'm', 'M']);
            let tail = value.len() - digits.len() <= 1;
            value == "auto" || (tail && digits.parse::<u64>().is_ok_and(|count| count > 0))
        }
        Value::Share => value
            .parse::<f64>()
            .is_ok_and(|share| share > 0.0 && share <= 1.0),
        Value::Number => value.parse::<f64>().is_ok_and(f64::is_finite),
        Value::OneOf(choices) => choices.contains(&value),
        Value::Json => {
            serde_json::from_str::<serde_json::Value>(value).is_ok_and(|value| value.is_object())
        }
        Value::Text => !value.is_empty(),
    };
    if good {
        return Ok(());
    }
    Err(match kind {
        Value::Flag => "which is not true or false".to_owned(),
        Value::Count => "which is not a whole number above 0".to_owned(),
        Value::Tokens => "which is not a number of tokens such as 8192 or 32k".to_owned(),
        Value::Share => "which is not more than 0 and at most 1".to_owned(),
        Value::Number => "which is not a number".to_owned(),
        Value::OneOf(choices) => format!("which is not one of {}", choices.join(", ")),
        Value::Json => "which is not a JSON object".to_owned(),
        Value::Text => "which is empty".to_owned(),
    })
}

/// Letters to change, add or leave out to get from one word to the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (index, letter) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], index + 1);
        for (column, other) in to.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = changed.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(engine: EngineKind, args: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let args = args
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        words(engine, &args.collect())
    }

    #[test]
    fn arguments_are_written_in_one_order_and_one_spelling() {
        let args = [
            ("max_num_seqs", "64"),
            ("enable-prefix-caching", "false"),
            ("enforce-eager", "true"),
            ("max-model-len", "32k"),
        ];
        assert_eq!(
            of(EngineKind::Vllm, &args).unwrap().join(" "),
            "--no-enable-prefix-caching --enforce-eager --max-model-len 32k --max-num-seqs 64"
        );
    }

    #[test]
    fn what_cannot_be_is_refused_with_what_to_do() {
        for (args, part) in [
            (vec![("max-modl-len", "1")], "did you mean max-model-len?"),
            (vec![("no-such-thing-at-all", "1")], "engine.advanced"),
            (vec![("port", "1")], "decided by spec.port"),
            (vec![("tp", "2")], "decided by spec.parallelism.tensor"),
            (vec![("dtype", "fp16")], "not one of auto, half"),
            (vec![("gpu-memory-utilization", "1.2")], "at most 1"),
            (vec![("max-model-len", "32kb")], "32k"),
            (vec![("enforce-eager", "yes")], "true or false"),
            (vec![("speculative-config", "{")], "JSON"),
            (vec![("max-num-seqs", "0")], "above 0"),
            (
                vec![("max-num-seqs", "1"), ("max_num_seqs", "2")],
                "same argument",
            ),
        ] {
            let why = of(EngineKind::Vllm, &args).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn every_name_is_known_once() {
        for table in [VLLM, SIMULATED] {
            let names: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
            assert!(names.is_sorted());
            for (decided, _) in DECIDED {
                assert!(!names.contains(decided), "{decided}");
            }
        }
    }
}
