//! Objects read from files: YAML or JSON, one or many, from files, folders or standard input.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use serde_json::Value;

/// One object and where it was read.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    pub(crate) source: String,
    pub(crate) object: Value,
}

impl Manifest {
    pub(crate) fn read(files: &[PathBuf]) -> anyhow::Result<Vec<Self>> {
        let mut found = Vec::new();
        for file in files {
            if file.as_os_str() == "-" {
                let mut text = String::new();
                std::io::stdin()
                    .read_to_string(&mut text)
                    .context("failed to read standard input")?;
                parse(&text, "standard input", &mut found)?;
            } else if file.is_dir() {
                for path in manifests_in(file)? {
                    read_file(&path, &mut found)?;
                }
            } else {
                read_file(file, &mut found)?;
            }
        }
        if found.is_empty() {
            bail!("no objects in the files given");
        }
        Ok(found)
    }

    pub(crate) fn field(&self, pointer: &str) -> Option<&str> {
        self.object.pointer(pointer).and_then(Value::as_str)
    }

    pub(crate) fn name(&self) -> anyhow::Result<&str> {
        self.field("/metadata/name")
            .with_context(|| format!("an object in {} has no metadata.name", self.source))
    }
}

fn manifests_in(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("failed to read {}", folder.display()))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry
            .with_context(|| format!("failed to read {}", folder.display()))?
            .path();
        let known = path
            .extension()
            .is_some_and(|end| end == "yaml" || end == "yml" || end == "json");
        // Kustomization files describe other files, they are no objects.
        if known && path.file_stem().is_none_or(|stem| stem != "kustomization") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn read_file(path: &Path, found: &mut Vec<Manifest>) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("failed to read {}", path.display()))?;
    parse(&text, &path.display().to_string(), found)
}

fn parse(text: &str, source: &str, found: &mut Vec<Manifest>) -> anyhow::Result<()> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| {
        let place = error
            .location()
            .map_or_else(String::new, |place| format!(", line {}", place.line()));
        let what = error.without_snippet().to_string();
        let what = what.lines().next().unwrap_or_default();
        anyhow!("failed to read {source}{place}: {what}")
    })?;
    for object in objects {
        add(object, source, found)?;
    }
    Ok(())
}

fn add(object: Value, source: &str, found: &mut Vec<Manifest>) -> anyhow::Result<()> {
    if object.is_null() {
        return Ok(());
    }
    let kind = object.get("kind").and_then(Value::as_str);
    if kind.is_none() || object.get("apiVersion").and_then(Value::as_str).is_none() {
        bail!("an object in {source} has no apiVersion or no kind");
    }
    if kind == Some("List") {
        for item in object
            .get("items")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            add(item.clone(), source, found)?;
        }
        return Ok(());
    }
    found.push(Manifest {
        source: source.to_owned(),
        object,
    });
    Ok(())
}
