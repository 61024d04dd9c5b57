//! Objects read from files: YAML or JSON, one or many, from files, folders or standard input. They are
//! read one after the other, so that a file may hold any number of them.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use serde_json::Value;
use warp_local::node::complaint::complaint;

/// One object and where it was read.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    pub(crate) source: String,
    pub(crate) object: Value,
}

impl Manifest {
    /// The objects of the files, read as they are asked for. Files are looked through first: a mistake
    /// in the last one must not be found after the others were used. Standard input and pipes are read once.
    pub(crate) fn read(files: &[PathBuf]) -> anyhow::Result<Manifests> {
        let mut paths = VecDeque::new();
        for file in files {
            if file.is_dir() {
                paths.extend(manifests_in(file)?);
            } else {
                paths.push_back(file.clone());
            }
        }
        for path in paths.iter().filter(|path| can_be_read_again(path)) {
            for manifest in Manifests::of(VecDeque::from([path.clone()])) {
                manifest?;
            }
        }
        let mut all = Manifests::of(paths);
        let names: Vec<String> = files
            .iter()
            .map(|file| {
                if is_input(file) {
                    "standard input".to_owned()
                } else {
                    file.display().to_string()
                }
            })
            .collect();
        all.nothing = Some(format!("no objects in {}", names.join(", ")));
        Ok(all)
    }

    pub(crate) fn field(&self, pointer: &str) -> Option<&str> {
        self.object.pointer(pointer).and_then(Value::as_str)
    }

    pub(crate) fn name(&self) -> anyhow::Result<&str> {
        self.field("/metadata/name").with_context(|| {
            let kind = self.field("/kind").unwrap_or_default();
            format!("a {kind} in {} has no metadata.name", self.source)
        })
    }
}

fn is_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// A file that is missing counts, so that it is told before anything is done.
fn can_be_read_again(path: &Path) -> bool {
    !is_input(path) && (path.is_file() || !path.exists())
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

/// Objects of files in turn. After an error there are no more.
pub(crate) struct Manifests {
    paths: VecDeque<PathBuf>,
    open: Option<Documents>,
    /// Objects of a List, and of a document of several.
    ready: VecDeque<Manifest>,
    /// What to say when there was none at all.
    nothing: Option<String>,
    over: bool,
}

impl Manifests {
    fn of(paths: VecDeque<PathBuf>) -> Self {
        Self {
            paths,
            open: None,
            ready: VecDeque::new(),
            nothing: None,
            over: false,
        }
    }

    fn advance(&mut self) -> anyhow::Result<Option<Manifest>> {
        loop {
            if let Some(manifest) = self.ready.pop_front() {
                return Ok(Some(manifest));
            }
            let Some(open) = &mut self.open else {
                let Some(path) = self.paths.pop_front() else {
                    return Ok(None);
                };
                self.open = Some(Documents::open(&path)?);
                continue;
            };
            match open.next()? {
                Some(document) => document.parse(&open.source, &mut self.ready)?,
                None => self.open = None,
            }
        }
    }
}

impl Iterator for Manifests {
    type Item = anyhow::Result<Manifest>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let next = self.advance().transpose();
        self.over = !matches!(next, Some(Ok(_)));
        let nothing = self.nothing.take();
        match next {
            None => nothing.map(|nothing| Err(anyhow!(nothing))),
            next => next,
        }
    }
}

/// The documents of one file: what lies between lines that begin with `---`.
struct Documents {
    source: String,
    lines: Box<dyn BufRead + Send>,
    /// Lines read so far.
    line: usize,
    /// What followed the last mark on its own line: `--- {…}`.
    begun: Option<String>,
}

/// One document and the line before it.
struct Document {
    text: String,
    before: usize,
}

impl Documents {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let (source, lines): (String, Box<dyn BufRead + Send>) = if is_input(path) {
            let input = BufReader::new(std::io::stdin());
            ("standard input".to_owned(), Box::new(input))
        } else {
            let source = path.display().to_string();
            let file = File::open(path).with_context(|| format!("failed to read {source}"))?;
            (source, Box::new(BufReader::new(file)))
        };
        Ok(Self {
            source,
            lines,
            line: 0,
            begun: None,
        })
    }

    fn next(&mut self) -> anyhow::Result<Option<Document>> {
        let begun = self.begun.take();
        let mut document = Document {
            before: self.line - usize::from(begun.is_some()),
            text: begun.unwrap_or_default(),
        };
        loop {
            let begin = document.text.len();
            let read = self.lines.read_line(&mut document.text);
            if read.with_context(|| format!("failed to read {}", self.source))? == 0 {
                return Ok((begin > 0).then_some(document));
            }
            self.line += 1;
            // No line inside a document may begin so.
            let rest = document.text[begin..]
                .strip_prefix("---")
                .filter(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
            let Some(rest) = rest else { continue };
            if !rest.trim().is_empty() {
                self.begun = Some(rest.to_owned());
            }
            document.text.truncate(begin);
            return Ok(Some(document));
        }
    }
}

impl Document {
    fn parse(&self, source: &str, found: &mut VecDeque<Manifest>) -> anyhow::Result<()> {
        let failed = |line: Option<usize>, what: String| {
            let place =
                line.map_or_else(String::new, |line| format!(", line {}", self.before + line));
            anyhow!("failed to read {source}{place}: {what}")
        };
        // JSON objects may follow one another without a mark.
        if self.text.trim_start().starts_with('{') {
            let objects = serde_json::Deserializer::from_str(&self.text).into_iter::<Value>();
            let objects: Result<Vec<Value>, _> = objects.collect();
            if let Ok(objects) = objects {
                for object in objects {
                    add(object, source, found)?;
                }
                return Ok(());
            }
        }
        let object: Value = serde_saphyr::from_str(&self.text).or_else(|error| {
            if self
                .text
                .lines()
                .all(|line| line.trim().is_empty() || line.starts_with('#'))
            {
                return Ok(Value::Null);
            }
            let (line, what) = complaint(&error, &self.text);
            Err(failed(line, what))
        })?;
        add(object, source, found)
    }
}

fn add(object: Value, source: &str, found: &mut VecDeque<Manifest>) -> anyhow::Result<()> {
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
    found.push_back(Manifest {
        source: source.to_owned(),
        object,
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::Manifest;

    fn names(text: &str) -> Result<Vec<String>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let read =
            Manifest::read(&[PathBuf::from(file.path())]).map_err(|error| error.to_string())?;
        read.map(|manifest| {
            let manifest = manifest.map_err(|error| error.to_string())?;
            Ok(manifest.name().unwrap().to_owned())
        })
        .collect()
    }

    #[test]
    fn documents_are_read_however_they_are_parted() {
        let map =
            |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\n");
        let json = |name: &str| {
            format!(
                "{{\"apiVersion\": \"v1\", \"kind\": \"ConfigMap\", \"metadata\": {{\"name\": \"{name}\"}}}}\n"
            )
        };
        let (a, b) = (map("a"), map("b"));
        for text in [
            format!("{a}---\n{b}"),
            format!("---\n{a}--- \n{b}---\n"),
            format!("# what\n---\n# nothing\n---\n{a}---\n---\n# nothing\n---\n{b}"),
            format!("{a}--- {}{b}", "# b\n"),
            format!("--- {}--- {}", json("a"), json("b")),
            format!("{}{}", json("a"), json("b")),
            format!("{}---\n{}", json("a"), json("b")),
            format!(
                "{{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{}, {}]}}",
                json("a"),
                json("b")
            ),
        ] {
            assert_eq!(names(&text).unwrap(), ["a", "b"], "{text}");
        }
        // Text may hold the mark where it is not at the beginning of a line.
        let text = format!("{a}data:\n  text: |\n    ---\n    x\n---\n{b}");
        assert_eq!(names(&text).unwrap(), ["a", "b"]);
    }

    #[test]
    fn any_number_of_documents_is_read_and_a_mistake_told_with_its_line() {
        let mut text = String::new();
        for number in 0..3000 {
            text.extend([format!(
                "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m-{number}}}\n"
            )]);
        }
        assert_eq!(names(&text).unwrap().len(), 3000);
        text += "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\n data: x\n";
        let told = names(&text).unwrap_err();
        assert!(told.contains(&format!("line {}", 3000 * 4 + 6)), "{told}");
        assert_eq!(told.matches("line").count(), 1, "{told}");
        assert!(
            names("# nothing\n")
                .unwrap_err()
                .contains("no objects in /")
        );
    }
}
