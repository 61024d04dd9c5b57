//! What sizing needs of a model, `config.json` and the bytes of its weights, from a folder or from the hub. Weights
//! themselves are never read.

use std::path::Path;

use anyhow::{Context as _, bail};
use serde_json::Value;
use warp_core::size::{Architecture, Model};

use super::hub;

/// A model and where its description came from.
#[derive(Debug)]
pub(super) struct Description {
    pub(super) model: Model,
    /// The folder, or the repository with its commit.
    pub(super) source: String,
}

/// Larger than any `config.json`.
pub(super) const CONFIG_LIMIT_BYTES: usize = 8 << 20;

/// Reads `name`: a folder, or a repository of the hub as `org/name[@revision]`.
pub(super) fn read(name: &str) -> anyhow::Result<Description> {
    let folder = Path::new(name);
    if folder.is_dir() {
        return in_folder(folder);
    }
    if name.starts_with(['/', '.', '~']) {
        bail!("failed to read model {name}: there is no such folder");
    }
    hub::describe(name)
}

fn in_folder(folder: &Path) -> anyhow::Result<Description> {
    let file = folder.join("config.json");
    let length = std::fs::metadata(&file)
        .with_context(|| {
            format!(
                "failed to read {}: a model's folder has a config.json",
                file.display()
            )
        })?
        .len();
    if length > CONFIG_LIMIT_BYTES as u64 {
        bail!(
            "failed to read {}: it has {length} bytes, which no config.json has",
            file.display()
        );
    }
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("failed to read {}", file.display()))?;
    let mut files = Vec::new();
    for entry in
        std::fs::read_dir(folder).with_context(|| format!("failed to list {}", folder.display()))?
    {
        let entry = entry.with_context(|| format!("failed to list {}", folder.display()))?;
        // Caches of the hub are folders of links: what they lead to counts.
        let length = std::fs::metadata(entry.path()).map_or(0, |target| target.len());
        files.push((entry.file_name().to_string_lossy().into_owned(), length));
    }
    describe(&folder.display().to_string(), &text, &files)
}

/// A model from its configuration and the names and sizes of its files.
pub(super) fn describe(
    source: &str,
    config: &str,
    files: &[(String, u64)],
) -> anyhow::Result<Description> {
    let config: Value = serde_json::from_str(&without_infinities(config))
        .with_context(|| format!("failed to read config.json of {source}"))?;
    let architecture =
        Architecture::read(&config).with_context(|| format!("failed to size {source}"))?;
    let weights_bytes = weights(files)
        .with_context(|| format!("failed to size {source}: it has no .safetensors or .bin files, so nothing tells the size of its weights"))?;
    Ok(Description {
        model: Model {
            architecture,
            weights_bytes,
        },
        source: source.to_owned(),
    })
}

/// Bytes of the weights an engine loads. Some repositories hold them twice (`consolidated.safetensors` beside the
/// shards, or older formats): the shards named `model…` come first, then any safetensors, then PyTorch files.
fn weights(files: &[(String, u64)]) -> Option<u64> {
    let sum = |wanted: &dyn Fn(&str) -> bool| {
        let sizes: Vec<u64> = files
            .iter()
            .filter(|(name, _)| wanted(name))
            .map(|(_, size)| *size)
            .collect();
        (!sizes.is_empty()).then(|| sizes.iter().sum())
    };
    let ends = |name: &str, ending: &str| {
        Path::new(name)
            .extension()
            .is_some_and(|found| found == ending)
    };
    sum(&|name| name.starts_with("model") && ends(name, "safetensors"))
        .or_else(|| sum(&|name| ends(name, "safetensors")))
        .or_else(|| sum(&|name| name.starts_with("pytorch_model") && ends(name, "bin")))
        .filter(|bytes| *bytes > 0)
}

/// Python writes `Infinity` and `NaN`, which are not JSON. None of the fields sizing reads may be one.
fn without_infinities(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    let mut quoted = false;
    while let Some(first) = rest.chars().next() {
        if !quoted
            && let Some(after) = ["-Infinity", "Infinity", "NaN"]
                .iter()
                .find_map(|word| rest.strip_prefix(word))
        {
            clean += "null";
            rest = after;
            continue;
        }
        let mut length = first.len_utf8();
        match first {
            '"' => quoted = !quoted,
            '\\' if quoted => length += rest[length..].chars().next().map_or(0, char::len_utf8),
            _ => {}
        }
        clean += &rest[..length];
        rest = &rest[length..];
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shards_count_and_copies_of_them_do_not() {
        let file = |name: &str, size| (name.to_owned(), size);
        let sharded = [
            file("model-00001-of-00002.safetensors", 10),
            file("model-00002-of-00002.safetensors", 5),
            file("consolidated.safetensors", 15),
            file("pytorch_model.bin", 15),
            file("config.json", 1),
        ];
        assert_eq!(weights(&sharded), Some(15));
        assert_eq!(weights(&sharded[2..]), Some(15));
        assert_eq!(weights(&sharded[3..]), Some(15));
        assert_eq!(weights(&sharded[4..]), None);
    }

    #[test]
    fn infinities_outside_of_text_are_taken_for_nothing() {
        let text = r#"{"a": [0.0, Infinity, -Infinity, NaN], "b": "say \"NaN\" or Infinity"}"#;
        let read: Value = serde_json::from_str(&without_infinities(text)).unwrap();
        assert_eq!(read["a"], serde_json::json!([0.0, null, null, null]));
        assert_eq!(read["b"], "say \"NaN\" or Infinity");
    }
}
