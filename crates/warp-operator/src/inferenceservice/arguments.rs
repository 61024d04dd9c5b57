//! Which arguments an engine takes: checked before a pod exists, and written once in one order.

mod sglang;
mod vllm;

use std::collections::BTreeMap;

use warp_api::inferenceservice::EngineKind;

pub(super) use sglang::SGLANG;
pub(super) use vllm::VLLM;

/// What a value must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// `true` or `false`; `false` is written `--no-…`.
    Flag,
    /// `true` or `false`; `false` is what it is when it is not written.
    Switch,
    /// `true` or `false`; `true` is what it is when it is not written.
    OnUnlessOff,
    /// Above 0.
    Count,
    /// 0 or above.
    Natural,
    Whole,
    /// A number of tokens or bytes: 8192, 32k, 4G.
    Amount,
    /// An amount, or `auto`.
    AmountOrAuto,
    /// More than 0, at most 1.
    Share,
    Number,
    OneOf(&'static [&'static str]),
    Json,
    Text,
    /// Several, separated by commas.
    Texts,
    /// Several numbers, separated by commas.
    Counts,
}

/// Arguments of `warp engine`.
const SIMULATED: &[(&str, Value)] = &[
    ("block-size", Value::Count),
    ("compile-seconds", Value::Number),
    ("crash-after", Value::Count),
    ("enable-prefix-caching", Value::OnUnlessOff),
    ("error-every", Value::Count),
    ("fail-load", Value::Switch),
    ("load-seconds", Value::Number),
    ("max-model-len", Value::AmountOrAuto),
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
    (
        "admin-api-key",
        "engine.advanced with a name from engine.env: arguments can be read by anybody who may read the pod",
    ),
    ("data-parallel-size", "spec.parallelism.data"),
    (
        "dist-init-addr",
        "nothing: a copy of SGLang runs on one node",
    ),
    ("enable-lora", "spec.model.adapters"),
    ("enable-metrics", "nothing: it is always on"),
    ("headless", "nothing: the leader of a copy answers"),
    (
        "hf-token",
        "engine.env with HF_TOKEN from a Secret: arguments can be read by anybody who may read the pod",
    ),
    (
        "host",
        "nothing: the engine listens where the Service leads",
    ),
    ("lora-modules", "spec.model.adapters"),
    ("lora-paths", "spec.model.adapters"),
    ("model", "spec.model"),
    ("model-path", "spec.model"),
    ("master-addr", "spec.multiNode"),
    ("master-port", "spec.multiNode"),
    ("nnodes", "spec.multiNode"),
    ("node-rank", "spec.multiNode"),
    ("pipeline-parallel-size", "spec.parallelism.pipeline"),
    ("port", "spec.port"),
    ("revision", "spec.model.revision"),
    ("served-model-name", "spec.model.name"),
    ("shutdown-timeout", "spec.drain"),
    ("tensor-parallel-size", "spec.parallelism.tensor"),
];

/// Arguments that vLLM refuses when another is not given with them.
pub(super) const NEEDED: &[(&str, &str)] = &[
    ("enable-auto-tool-choice", "tool-call-parser"),
    ("enable-log-outputs", "enable-log-requests"),
];
/// Arguments that vLLM refuses together.
pub(super) const AT_ODDS: &[(&str, &str)] = &[("enable-per-request-metrics", "disable-log-stats")];

/// Short forms.
const ALIASES: &[(&str, &str)] = &[
    ("dp-size", "data-parallel-size"),
    ("pp-size", "pipeline-parallel-size"),
    ("tp", "tensor-parallel-size"),
    ("tp-size", "tensor-parallel-size"),
    ("pp", "pipeline-parallel-size"),
    ("dp", "data-parallel-size"),
    ("q", "quantization"),
];

fn table(engine: EngineKind) -> &'static [(&'static str, Value)] {
    match engine {
        EngineKind::Vllm => VLLM,
        EngineKind::Sglang => SGLANG,
        EngineKind::Simulated => SIMULATED,
        EngineKind::Custom => &[],
    }
}

/// The words for `args`, in alphabetical order; or why they cannot be. `advanced` comes after them.
pub(super) fn words(
    engine: EngineKind,
    args: &BTreeMap<String, String>,
    advanced: &[String],
) -> Result<Vec<String>, String> {
    let mut checked: BTreeMap<&str, (Value, &str, &str)> = BTreeMap::new();
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
        if let Some((_, _, other)) = checked.insert(name, (*kind, value, given)) {
            return Err(format!(
                "engine.args: {other} and {given} are the same argument; keep one"
            ));
        }
    }
    let on = |name: &str| {
        let found = checked.get(name);
        found.is_some_and(|(_, value, _)| *value != "false")
            || advanced
                .iter()
                .any(|word| word.trim_start_matches('-') == name)
    };
    for (name, other) in NEEDED {
        if on(name) && !on(other) {
            return Err(format!("engine.args: {name} needs {other}: give it too"));
        }
    }
    for (name, other) in AT_ODDS {
        if on(name) && on(other) {
            return Err(format!(
                "engine.args: {name} and {other} exclude each other; keep one"
            ));
        }
    }
    let written = checked.iter();
    Ok(written
        .flat_map(|(name, (kind, value, _))| written_out(name, *kind, value))
        .collect())
}

/// One argument as words.
fn written_out(name: &str, kind: Value, value: &str) -> Vec<String> {
    let flag = format!("--{name}");
    match (kind, value) {
        (Value::Flag | Value::Switch, "true") => vec![flag],
        (Value::Switch, _) | (Value::OnUnlessOff, "true") => Vec::new(),
        (Value::Flag | Value::OnUnlessOff, _) => vec![format!("--no-{name}")],
        (Value::Texts | Value::Counts, value) => {
            let several = value.split(',').map(|one| one.trim().to_owned());
            [flag].into_iter().chain(several).collect()
        }
        // A value with a dash in front would be read as another argument.
        (_, value) if value.starts_with('-') => vec![format!("{flag}={value}")],
        (_, value) => vec![flag, value.to_owned()],
    }
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
    let count = |value: &str| value.parse::<u64>().is_ok_and(|count| count > 0);
    let good = match kind {
        Value::Flag | Value::Switch | Value::OnUnlessOff => matches!(value, "true" | "false"),
        Value::Count => count(value),
        Value::Natural => value.parse::<u64>().is_ok(),
        Value::Whole => value.parse::<i64>().is_ok(),
        Value::Amount => is_amount(value),
        Value::AmountOrAuto => value == "auto" || is_amount(value),
        Value::Share => value
            .parse::<f64>()
            .is_ok_and(|share| share > 0.0 && share <= 1.0),
        Value::Number => value.parse::<f64>().is_ok_and(f64::is_finite),
        Value::OneOf(choices) => choices.contains(&value),
        Value::Json => {
            serde_json::from_str::<serde_json::Value>(value).is_ok_and(|value| value.is_object())
        }
        Value::Text => !value.is_empty(),
        Value::Texts => value.split(',').all(|one| {
            let one = one.trim();
            !one.is_empty() && !one.starts_with('-')
        }),
        Value::Counts => value.split(',').all(|one| count(one.trim())),
    };
    if good {
        return Ok(());
    }
    Err(match kind {
        Value::Flag | Value::Switch | Value::OnUnlessOff => "which is not true or false".to_owned(),
        Value::Count => "which is not a whole number above 0".to_owned(),
        Value::Natural => "which is not a whole number of 0 or above".to_owned(),
        Value::Whole => "which is not a whole number".to_owned(),
        Value::Amount | Value::AmountOrAuto => {
            "which is not an amount such as 8192, 32k or 4G".to_owned()
        }
        Value::Share => "which is not more than 0 and at most 1".to_owned(),
        Value::Number => "which is not a number".to_owned(),
        Value::OneOf(choices) => format!("which is not one of {}", choices.join(", ")),
        Value::Json => "which is not a JSON object".to_owned(),
        Value::Text => "which is empty".to_owned(),
        Value::Texts => "which is not one or more words, separated by commas".to_owned(),
        Value::Counts => {
            "which is not one or more whole numbers above 0, separated by commas".to_owned()
        }
    })
}

/// A number with `k`, `m`, `g` or `t` (thousands) or `K`, `M`, `G` or `T` (powers of 1024) behind it, or nothing.
fn is_amount(value: &str) -> bool {
    let digits = value.trim_end_matches(['k', 'K', 'm', 'M', 'g', 'G', 't', 'T']);
    let tail = value.len() - digits.len() <= 1;
    tail && digits.parse::<u64>().is_ok_and(|count| count > 0)
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
        words(engine, &args.collect(), &[])
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
            (vec![("dtype", "fp16")], "not one of auto, bfloat16"),
            (vec![("gpu-memory-utilization", "1.2")], "at most 1"),
            (vec![("max-model-len", "32kb")], "32k"),
            (vec![("enforce-eager", "yes")], "true or false"),
            (vec![("speculative-config", "{")], "JSON"),
            (vec![("max-num-seqs", "0")], "above 0"),
            (vec![("seed", "1.5")], "not a whole number"),
            (vec![("kv-cache-memory-bytes", "much")], "4G"),
            (vec![("cudagraph-capture-sizes", "1,two")], "commas"),
            (vec![("hf-token", "hf_x")], "HF_TOKEN"),
            (
                vec![("enable-auto-tool-choice", "true")],
                "needs tool-call-parser",
            ),
            (
                vec![
                    ("enable-per-request-metrics", "true"),
                    ("disable-log-stats", "true"),
                ],
                "exclude each other",
            ),
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
    fn a_value_is_never_read_as_another_argument_and_lists_are_several_words() {
        let args = [
            ("seed", "-1"),
            ("cudagraph-capture-sizes", "1, 2,4"),
            ("disable-log-stats", "false"),
        ];
        assert_eq!(
            of(EngineKind::Vllm, &args).unwrap().join(" "),
            "--cudagraph-capture-sizes 1 2 4 --seed=-1"
        );
        let args = BTreeMap::from([("enable-auto-tool-choice".to_owned(), "true".to_owned())]);
        let unchecked = ["--tool-call-parser".to_owned(), "mine".to_owned()];
        assert!(words(EngineKind::Vllm, &args, &unchecked).is_ok());
    }

    #[test]
    fn every_name_is_known_once() {
        for table in [VLLM, SGLANG, SIMULATED] {
            let names: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
            assert!(names.is_sorted());
            for (decided, _) in DECIDED {
                assert!(!names.contains(decided), "{decided}");
            }
        }
    }
}
