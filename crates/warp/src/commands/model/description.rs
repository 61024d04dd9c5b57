//! What sizing needs of a model, `config.json` and the bytes of its weights, from a folder or from the hub. Weights
//! themselves are never read.

use std::io::Read as _;
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
    let described = describe(&folder.display().to_string(), &text, &files)?;
    whole(folder, &files)?;
    Ok(described)
}

/// Refuses weights that are not all here: shards the index names, files cut short, pointers of git-lfs.
fn whole(folder: &Path, files: &[(String, u64)]) -> anyhow::Result<()> {
    let index = folder.join("model.safetensors.index.json");
    if let Ok(text) = std::fs::read_to_string(&index) {
        let index: Value = serde_json::from_str(&text)
            .with_context(|| format!("failed to read {}", index.display()))?;
        let named = index["weight_map"].as_object().into_iter().flatten();
        for (_, shard) in named {
            let shard = shard.as_str().unwrap_or_default();
            if !files.iter().any(|(name, _)| name == shard) {
                bail!(
                    "failed to size {}: its index names {shard}, which is not there",
                    folder.display()
                );
            }
        }
    }
    for (name, length) in files.iter().filter(|(name, _)| is_safetensors(name)) {
        let file = folder.join(name);
        let promised =
            promised_bytes(&file).with_context(|| format!("failed to size {}", file.display()))?;
        if promised != *length {
            bail!(
                "failed to size {}: its header promises {promised} bytes, it has {length}; fetch it again",
                file.display()
            );
        }
    }
    Ok(())
}

/// The longest header of a safetensors file that its own library reads.
const HEADER_LIMIT_BYTES: u64 = 100 << 20;

/// The length a safetensors file says it has: eight bytes with the length of its header, the header, the tensors.
fn promised_bytes(file: &Path) -> anyhow::Result<u64> {
    let mut reader = std::fs::File::open(file)?;
    let mut start = Vec::new();
    reader.by_ref().take(8).read_to_end(&mut start)?;
    if start == b"version " {
        bail!("it is a pointer of git-lfs, not the file itself; run `git lfs pull`");
    }
    let header = <[u8; 8]>::try_from(start)
        .map(u64::from_le_bytes)
        .unwrap_or_default();
    if header == 0 || header > HEADER_LIMIT_BYTES {
        bail!("it is no safetensors file");
    }
    let mut text = Vec::new();
    reader.take(header).read_to_end(&mut text)?;
    let tensors: Value =
        serde_json::from_slice(&text).context("its header cannot be read; fetch it again")?;
    let ends = tensors
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(_, tensor)| tensor["data_offsets"][1].as_u64());
    Ok(ends.max().unwrap_or(0).saturating_add(8 + header))
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
    sum(&|name| name.starts_with("model") && is_safetensors(name))
        .or_else(|| sum(&|name| is_safetensors(name)))
        .or_else(|| sum(&|name| name.starts_with("pytorch_model") && has_ending(name, "bin")))
        .filter(|bytes| *bytes > 0)
}

fn has_ending(name: &str, ending: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|found| found == ending)
}

fn is_safetensors(name: &str) -> bool {
    has_ending(name, "safetensors")
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
