//! Tables as comma-separated text: named columns, numbered lines, and a list of the rows that could
//! not be read.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;

use crate::output;

/// Rows that could not be used, with their line numbers.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    rows: Vec<(usize, String)>,
}

impl Problems {
    pub(crate) fn add(&mut self, line: usize, problem: impl std::fmt::Display) {
        self.rows.push((line, problem.to_string()));
    }

    /// Stops at the first bad row when strict; otherwise says what was left out.
    pub(crate) fn settle(&self, file: &Path, strict: bool) -> anyhow::Result<()> {
        const SHOWN: usize = 5;
        let Some((line, problem)) = self.rows.first() else {
            return Ok(());
        };
        let file = file.display();
        if strict {
            anyhow::bail!("failed to read {file}, line {line}: {problem}");
        }
        for (line, problem) in self.rows.iter().take(SHOWN) {
            output::note(&format!("warning: {file}, line {line}: {problem}"));
        }
        let count = self.rows.len();
        output::note(&format!(
            "warning: {count} bad row{} of {file} left out; stop at the first one with --strict",
            if count == 1 { "" } else { "s" }
        ));
        Ok(())
    }
}

/// One row: its fields by column name.
#[derive(Debug)]
pub(crate) struct Row<'a> {
    pub(crate) line: usize,
    fields: Vec<String>,
    columns: &'a BTreeMap<String, usize>,
}

impl Row<'_> {
    pub(crate) fn text(&self, column: &str) -> Option<&str> {
        let at = *self.columns.get(column)?;
        self.fields.get(at).map(String::as_str)
    }

    pub(crate) fn number<T: std::str::FromStr>(&self, column: &str) -> Result<T, String> {
        let text = self.text(column).unwrap_or_default().trim();
        text.parse()
            .map_err(|_| format!("{column} is {text:?}, expected a number"))
    }
}

/// Reads a whole table; `read` turns a row into a value or a problem.
pub(crate) fn read<T>(
    file: &Path,
    required: &[&str],
    strict: bool,
    mut read: impl FnMut(&Row<'_>) -> Result<T, String>,
) -> anyhow::Result<Vec<T>> {
    let bytes =
        std::fs::read(file).with_context(|| format!("failed to read {}", file.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = (1..).zip(text.lines());
    let header = lines
        .next()
        .map(|(_, line)| split(line.trim_start_matches('\u{feff}')));
    let header = header.unwrap_or_default();
    let columns: BTreeMap<String, usize> = header
        .iter()
        .enumerate()
        .map(|(at, name)| (name.trim().to_owned(), at))
        .collect();
    if let Some(missing) = required.iter().find(|name| !columns.contains_key(**name)) {
        anyhow::bail!(
            "failed to read {}: no column {missing:?}; expected at least {}",
            file.display(),
            required.join(", ")
        );
    }
    let mut problems = Problems::default();
    let mut values = Vec::new();
    for (line, text) in lines.filter(|(_, text)| !text.trim().is_empty()) {
        let fields = split(text);
        if fields.len() < header.len() {
            let (found, expected) = (fields.len(), header.len());
            problems.add(line, format_args!("{found} fields, expected {expected}"));
            continue;
        }
        match read(&Row {
            line,
            fields,
            columns: &columns,
        }) {
            Ok(value) => values.push(value),
            Err(problem) => problems.add(line, problem),
        }
    }
    problems.settle(file, strict)?;
    if values.is_empty() {
        let why = if text.trim().is_empty() {
            "it is empty"
        } else {
            "no usable row"
        };
        anyhow::bail!("failed to read {}: {why}", file.display());
    }
    Ok(values)
}

/// Splits one line; a field in double quotes may contain commas, and `""` inside it is a quote.
fn split(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut characters = line.trim_end_matches('\r').chars().peekable();
    while let Some(character) = characters.next() {
        let field = fields.last_mut().expect("the list starts with one field");
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => {
                characters.next();
                field.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            _ => field.push(character),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::{read, split};

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    #[test]
    fn quotes_keep_commas_together() {
        assert_eq!(
            split(r#"a,"b,c","say ""hi""",d"#),
            ["a", "b,c", r#"say "hi""#, "d"]
        );
        assert_eq!(split("a,,"), ["a", "", ""]);
    }

    #[test]
    fn bad_rows_are_left_out_or_stop_with_their_line() {
        let file = file("name,n\r\na,1\nb,many\nc\n\nd,4\n");
        let number = |row: &super::Row<'_>| row.number::<u32>("n");
        assert_eq!(read(file.path(), &["n"], false, number).unwrap(), [1, 4]);
        let error = read(file.path(), &["n"], true, number)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("line 3") && error.contains("many"),
            "{error}"
        );
        let error = read(file.path(), &["gpu"], true, number)
            .unwrap_err()
            .to_string();
        assert!(error.contains("no column \"gpu\""), "{error}");
    }
}
