//! GPU models an administrator adds: a ConfigMap whose keys are the models' names and whose values are what is known of
//! each. An entry that cannot be used is told and left out; the rest holds.

use std::fmt;

use k8s_openapi::api::core::v1::ConfigMap;
use serde::Deserialize;
use warp_core::gpu::{Architecture, Catalogue, Row};
use warp_core::resources::Quantity;

use crate::workload::GpuVendor;

/// Its name, in the operator's own namespace.
pub const CONFIG_MAP: &str = "warp-gpus";
/// That namespace, where nothing else is said.
pub const NAMESPACE: &str = "warp-system";
/// Entries that are read.
const MOST: usize = 256;

/// One model, under its name.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Entry {
    vendor: GpuVendor,
    /// Of one device, such as `192Gi`.
    memory: String,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    architecture: Option<String>,
    #[serde(default)]
    devices_per_card: Option<u32>,
}

/// An entry that is left out, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadEntry {
    pub name: String,
    pub problem: String,
}

impl fmt::Display for BadEntry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.name, self.problem)
    }
}

/// What is known with this ConfigMap, and what of it could not be used.
pub fn catalogue(map: Option<&ConfigMap>) -> (Catalogue, Vec<BadEntry>) {
    let (mut known, mut bad) = (Catalogue::default(), Vec::new());
    let entries = map.and_then(|map| map.data.as_ref());
    for (number, (name, text)) in entries.into_iter().flatten().enumerate() {
        let added = if number < MOST {
            row(name, text).and_then(|row| known.add(&row))
        } else {
            Err(format!("only the first {MOST} entries are read"))
        };
        bad.extend(added.err().map(|problem| BadEntry {
            name: name.clone(),
            problem,
        }));
    }
    (known, bad)
}

fn row(name: &str, text: &str) -> Result<Row, String> {
    let entry: Entry =
        serde_saphyr::from_str(text).map_err(|error| one_line(&error.to_string()))?;
    let bytes = entry.memory.parse::<Quantity>().and_then(Quantity::value);
    let gib = bytes.ok().and_then(|bytes| u32::try_from(bytes >> 30).ok());
    let Some(memory_gib) = gib else {
        return Err(format!(
            "memory '{}' is not a size such as 192Gi",
            entry.memory
        ));
    };
    let architecture = match &entry.architecture {
        None => None,
        Some(text) => Some(Architecture::named(text).ok_or_else(|| {
            let known: Vec<&str> = Architecture::ALL.iter().map(|one| one.as_str()).collect();
            format!("architecture '{text}' is not one of {}", known.join(", "))
        })?),
    };
    Ok(Row {
        name: name.to_owned(),
        vendor: entry.vendor.into(),
        memory_gib,
        devices_per_card: entry.devices_per_card.unwrap_or(1),
        aliases: entry.aliases,
        architecture,
    })
}

/// The beginning of an error that shows the text it is about.
pub(crate) fn one_line(error: &str) -> String {
    error.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_cannot_be_used_is_told_and_the_rest_is_taken() {
        let map: ConfigMap = serde_json::from_value(json!({"data": {
            "MI980X": "vendor: amd\nmemory: 432Gi\narchitecture: cdna4\naliases: [next]\n",
            "a-typo": "vendor: amd\nmemory: 432Gi\nalias: [x]\n",
            "b-size": "vendor: nvidia\nmemory: lots\n",
            "c-vendor": "vendor: matrox\nmemory: 1Gi\n",
            "d-architecture": "{vendor: intel, memory: 24Gi, architecture: alchemist}",
            "e-taken": "{vendor: amd, memory: 24Gi, aliases: [MI300X]}",
            "f-yaml": "vendor: [",
            "g980": "{vendor: habana, memory: 144Gi, devicesPerCard: 2}",
        }}))
        .unwrap();
        let (known, bad) = catalogue(Some(&map));
        assert_eq!(known.named("next")[0].name, "MI980X");
        assert_eq!(known.named("g980")[0].devices_per_card, 2);
        let bad: Vec<String> = bad.iter().map(ToString::to_string).collect();
        let says = [
            "alias",
            "'lots'",
            "matrox",
            "cdna4",
            "MI300X already",
            "f-yaml: ",
        ];
        assert_eq!(bad.len(), says.len(), "{bad:?}");
        for (bad, says) in bad.iter().zip(says) {
            assert!(bad.contains(says) && !bad.contains('\n'), "{bad}");
        }
        assert_eq!(catalogue(None), (Catalogue::default(), Vec::new()));
    }
}
