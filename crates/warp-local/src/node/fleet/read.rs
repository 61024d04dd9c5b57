//! Reading a fleet file: strict, with the line, the field and the nearest name in every complaint.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;
use warp_core::gpu::{self, Model};

use super::super::complaint::complaint;
use super::super::faults::Fault;
use super::super::simulated::{Defaults, LOST_GPUS, NAMES as POD_NAMES, NODE_LOST};
use super::super::spelling::hint;
use super::parts::{self, Share};
use super::{Fleet, PROVIDER_LABEL, Shape, labels};

/// More than a laptop can hold; a larger number is a typo.
const MOST_NODES: u64 = 50_000;
/// Names listed in a complaint.
const SHOWN: usize = 50;

/// A fleet file that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to read {place}: {what}")]
pub struct FleetError {
    place: String,
    what: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    #[serde(default)]
    defaults: FileDefaults,
    pools: Vec<Pool>,
    #[serde(default)]
    faults: Vec<FileFault>,
}

/// `after: 2m, on: h100-0, lose: gpus, gpus: 0,3, for: 5m`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFault {
    after: String,
    /// A node, or a pool for all of its nodes.
    on: String,
    lose: Option<String>,
    gpus: Option<Amount>,
    /// Annotations for the pods of the node.
    #[serde(default)]
    pods: BTreeMap<String, Amount>,
    r#for: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct FileDefaults {
    pull_time: Option<String>,
    run_time: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Pool {
    name: String,
    #[serde(default = "one")]
    count: u64,
    gpu: Option<String>,
    gpus: Option<u32>,
    /// How its devices are shared.
    share: Option<Share>,
    /// Parts its devices are cut into, by profile, counted for the whole node; `gpus` are left whole.
    #[serde(default)]
    partitions: BTreeMap<String, u32>,
    cpu: Option<Amount>,
    memory: Option<Amount>,
    storage: Option<Amount>,
    pods: Option<Amount>,
    #[serde(default)]
    resources: BTreeMap<String, Amount>,
    zone: Option<String>,
    region: Option<String>,
    provider: Option<String>,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
    #[serde(default)]
    taints: Vec<FileTaint>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileTaint {
    key: String,
    value: Option<String>,
    effect: String,
}

/// `64`, `0.5` or `512Gi`: a number and a text are the same thing here.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Amount {
    Whole(u64),
    Fraction(f64),
    Text(String),
}

impl Amount {
    fn text(&self) -> String {
        match self {
            Self::Whole(number) => number.to_string(),
            Self::Fraction(number) => number.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

fn one() -> u64 {
    1
}

pub(super) fn fleet(text: &str, name: &str) -> Result<Fleet, FleetError> {
    let file: File = serde_saphyr::from_str(text).map_err(|error| explain(&error, text, name))?;
    let at = |field: &str, what: String| FleetError {
        place: match line_of(text, field) {
            Some(line) => format!("{name}, line {line}"),
            None => name.to_owned(),
        },
        what,
    };
    let length = |field: &str, value: Option<&String>| {
        value
            .map(|value| {
                length(value).ok_or_else(|| {
                    at(
                        value,
                        format!(
                            "{field}: \"{value}\" is not a length of time; write 30s, 2m or 1h30m"
                        ),
                    )
                })
            })
            .transpose()
    };
    let defaults = Defaults {
        pull_time: length("pullTime", file.defaults.pull_time.as_ref())?.unwrap_or(Duration::ZERO),
        run_time: length("runTime", file.defaults.run_time.as_ref())?,
    };
    let total = file
        .pools
        .iter()
        .try_fold(0u64, |sum, pool| sum.checked_add(pool.count));
    if total.is_none_or(|total| total > MOST_NODES) {
        return Err(at("count", format!("more than {MOST_NODES} nodes")));
    }
    if total == Some(0) {
        return Err(at(
            "pools",
            "the fleet has no nodes; add a pool with a name".to_owned(),
        ));
    }
    let mut nodes: Vec<Shape> = Vec::new();
    let mut names = std::collections::BTreeSet::new();
    for pool in &file.pools {
        if !names.insert(&pool.name) {
            return Err(at(
                &pool.name,
                format!(
                    "two pools are called \"{}\"; give each its own name",
                    pool.name
                ),
            ));
        }
        pool_nodes(pool, &mut nodes)
            .map_err(|(field, what)| at(&field, format!("pool \"{}\": {what}", pool.name)))?;
    }
    let mut faults = Vec::new();
    for fault in &file.faults {
        let read = read_fault(fault, &file.pools, &nodes);
        faults.push(read.map_err(|(field, what)| at(&field, format!("faults: {what}")))?);
    }
    Ok(Fleet {
        nodes,
        defaults,
        faults,
    })
}

fn read_fault(
    fault: &FileFault,
    pools: &[Pool],
    nodes: &[Shape],
) -> Result<Fault, (String, String)> {
    let time = |field: &str, text: &String| {
        length(text).ok_or_else(|| {
            let what =
                format!("{field}: \"{text}\" is not a length of time; write 30s, 2m or 1h30m");
            (text.clone(), what)
        })
    };
    let hit: Vec<String> = nodes
        .iter()
        .filter(|node| {
            node.name == fault.on
                || node
                    .name
                    .rsplit_once('-')
                    .is_some_and(|(pool, _)| pool == fault.on)
        })
        .map(|node| node.name.clone())
        .collect();
    if hit.is_empty() {
        let known = pools
            .iter()
            .map(|pool| pool.name.as_str())
            .chain(nodes.iter().take(SHOWN).map(|node| node.name.as_str()));
        let what = format!(
            "no node or pool is called \"{}\"{}",
            fault.on,
            hint(&fault.on, known)
        );
        return Err((fault.on.clone(), what));
    }
    let mut set = BTreeMap::new();
    match (fault.lose.as_deref(), &fault.gpus) {
        (Some("node"), None) => drop(set.insert(NODE_LOST.to_owned(), "true".to_owned())),
        (Some("gpus"), numbers) => {
            let numbers = numbers.as_ref().map_or("all".to_owned(), Amount::text);
            set.insert(LOST_GPUS.to_owned(), numbers);
        }
        (None, None) => {}
        (Some(word), _) if word != "node" => {
            let what = format!(
                "lose: \"{word}\" is not known{}",
                hint(word, ["node", "gpus"])
            );
            return Err((word.to_owned(), what));
        }
        _ => return Err(("gpus".to_owned(), "gpus goes with `lose: gpus`".to_owned())),
    }
    for (name, value) in &fault.pods {
        if !POD_NAMES.contains(&name.as_str()) {
            let what = format!("pods: \"{name}\" is not known{}", hint(name, POD_NAMES));
            return Err((name.clone(), what));
        }
        set.insert(name.clone(), value.text());
    }
    if set.is_empty() {
        let what = "says what happens with `lose: node`, `lose: gpus` or `pods: {…}`";
        return Err((
            fault.on.clone(),
            format!("the fault on \"{}\" {what}", fault.on),
        ));
    }
    Ok(Fault {
        after: time("after", &fault.after)?,
        nodes: hit,
        set,
        lasts: fault
            .r#for
            .as_ref()
            .map(|text| time("for", text))
            .transpose()?,
    })
}

/// Adds a pool's nodes; an error names the text to look for in the file.
fn pool_nodes(pool: &Pool, nodes: &mut Vec<Shape>) -> Result<(), (String, String)> {
    if !is_name(&pool.name) {
        let what = "a name has lower-case letters, digits and \"-\", at most 50 of them, and begins and ends with a letter or digit";
        return Err((pool.name.clone(), what.to_owned()));
    }
    let model = pool.gpu.as_deref().map(model).transpose()?;
    let gpus = match (&model, pool.gpus) {
        (Some(_), None) if !pool.partitions.is_empty() => 0,
        (Some(_), count) => count.unwrap_or(8),
        (None, None | Some(0)) => 0,
        (None, Some(_)) => {
            return Err((
                "gpus".to_owned(),
                "gpus is given but not gpu; name the model, for example gpu: L4".to_owned(),
            ));
        }
    };
    let mut capacity = capacity(pool, gpus)?;
    let shown = match model {
        Some(model) => parts::shown(model, gpus, pool.share.as_ref(), &pool.partitions)?,
        None if pool.share.is_none() && pool.partitions.is_empty() => parts::Shown::default(),
        None => {
            let what = "share and partitions are of a gpu; name the model, for example gpu: L4";
            return Err((pool.name.clone(), what.to_owned()));
        }
    };
    capacity.extend(shown.amounts);
    let taints = taints(pool)?;
    for index in 0..pool.count {
        let name = format!("{}-{index}", pool.name);
        let number = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        nodes.push(Shape {
            labels: node_labels(pool, &name, model, gpus, &shown.labels),
            annotations: pool.annotations.clone(),
            taints: taints.clone(),
            capacity: capacity.clone(),
            devices: shown.devices.clone(),
            address: std::net::Ipv4Addr::from(0x0a00_0001 + (number & 0x007f_ffff)).to_string(),
            runtime: "simulated://1".to_owned(),
            provider: provider(pool),
            name,
        });
    }
    Ok(())
}

fn provider(pool: &Pool) -> String {
    pool.provider
        .clone()
        .unwrap_or_else(|| "simulated".to_owned())
}

fn node_labels(
    pool: &Pool,
    name: &str,
    model: Option<&Model>,
    gpus: u32,
    shown: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut labels = model
        .map(|model| labels::of(model, gpus))
        .unwrap_or_default();
    labels.extend(shown.clone());
    let fixed = [
        ("kubernetes.io/hostname", name.to_owned()),
        ("kubernetes.io/os", "linux".to_owned()),
        ("kubernetes.io/arch", "amd64".to_owned()),
        ("node.kubernetes.io/instance-type", pool.name.clone()),
        (PROVIDER_LABEL, provider(pool)),
    ];
    labels.extend(fixed.map(|(key, value)| (key.to_owned(), value)));
    for (key, value) in [
        ("topology.kubernetes.io/zone", &pool.zone),
        ("topology.kubernetes.io/region", &pool.region),
    ] {
        if let Some(value) = value {
            labels.insert(key.to_owned(), value.clone());
        }
    }
    labels.extend(pool.labels.clone());
    labels
}

fn capacity(pool: &Pool, gpus: u32) -> Result<BTreeMap<String, Quantity>, (String, String)> {
    let per_gpu = u64::from(gpus.max(1));
    let given = [
        ("cpu", pool.cpu.clone(), (12 * per_gpu).to_string()),
        ("memory", pool.memory.clone(), format!("{}Gi", 64 * per_gpu)),
        ("ephemeral-storage", pool.storage.clone(), "1Ti".to_owned()),
        ("pods", pool.pods.clone(), "110".to_owned()),
    ];
    let mut capacity = BTreeMap::new();
    for (name, amount, default) in given {
        let text = amount.map_or(default, |amount| amount.text());
        capacity.insert(name.to_owned(), quantity(name, text)?);
    }
    for (name, amount) in &pool.resources {
        capacity.insert(name.clone(), quantity(name, amount.text())?);
    }
    Ok(capacity)
}

fn quantity(field: &str, text: String) -> Result<Quantity, (String, String)> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let suffix = &text[digits.len()..];
    let known = [
        "", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
    ];
    if digits.parse::<f64>().is_ok_and(|number| number >= 0.0) && known.contains(&suffix) {
        return Ok(Quantity(text));
    }
    let what = format!("{field}: \"{text}\" is not an amount; write 8, 500m or 64Gi");
    Err((text, what))
}

fn taints(pool: &Pool) -> Result<Vec<Taint>, (String, String)> {
    const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    pool.taints
        .iter()
        .map(|taint| {
            if !EFFECTS.contains(&taint.effect.as_str()) {
                let what = format!(
                    "taint effect \"{}\" is not known{}",
                    taint.effect,
                    hint(&taint.effect, EFFECTS)
                );
                return Err((taint.effect.clone(), what));
            }
            Ok(Taint {
                key: taint.key.clone(),
                value: taint.value.clone(),
                effect: taint.effect.clone(),
                time_added: None,
            })
        })
        .collect()
}

fn model(name: &str) -> Result<&'static Model, (String, String)> {
    let found = gpu::named(name);
    match found.as_slice() {
        [one] => Ok(one),
        [] => {
            let names = gpu::MODELS.iter().map(|model| model.name);
            Err((
                name.to_owned(),
                format!("gpu \"{name}\" is not known{}", hint(name, names)),
            ))
        }
        several => {
            let names: Vec<&str> = several.iter().map(|model| model.name).collect();
            Err((
                name.to_owned(),
                format!("gpu \"{name}\" may be {}; say which", names.join(" or ")),
            ))
        }
    }
}

fn is_name(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    (1..=50).contains(&text.len())
        && text.bytes().all(|byte| inner(byte) || byte == b'-')
        && text.bytes().next().is_some_and(inner)
        && text.bytes().next_back().is_some_and(inner)
}

fn length(text: &str) -> Option<Duration> {
    Duration::try_from(text.parse::<jiff::SignedDuration>().ok()?).ok()
}

fn explain(error: &serde_saphyr::Error, text: &str, name: &str) -> FleetError {
    let (line, what) = complaint(error, text);
    let place = match line {
        Some(line) => format!("{name}, line {line}"),
        None => name.to_owned(),
    };
    FleetError { place, what }
}

/// The first line that holds `text` as a value or key.
fn line_of(file: &str, text: &str) -> Option<usize> {
    file.lines()
        .position(|line| !line.trim_start().starts_with('#') && line.contains(text))
        .map(|index| index + 1)
}
