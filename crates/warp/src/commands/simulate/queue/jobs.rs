//! Reads a job list: CSV by its header, JSON as an array or one object per line. Rows that make no
//! sense are reported with their line.

use std::path::Path;

use anyhow::Context as _;
use serde_json::{Map, Value};
use warp_core::simulate::queue::Submission;
use warp_core::simulate::queue::row::submission;

use super::super::csv::{self, Problems};

pub(super) fn read(file: &Path, strict: bool) -> anyhow::Result<Vec<Submission>> {
    let begins = |text: &str| {
        text.trim_start_matches('\u{feff}')
            .trim_start()
            .starts_with(['[', '{'])
    };
    let bytes =
        std::fs::read(file).with_context(|| format!("failed to read {}", file.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    if begins(&text) {
        return read_json(file, &text, strict);
    }
    csv::read(file, &[], strict, |row| {
        let field = |name: &str| {
            let text = row.text(name).map(str::trim);
            text.filter(|text| !text.is_empty()).map(str::to_owned)
        };
        submission(row.line, &field)
    })
}

fn read_json(file: &Path, text: &str, strict: bool) -> anyhow::Result<Vec<Submission>> {
    let mut problems = Problems::default();
    let mut jobs = Vec::new();
    for (line, part) in elements(text) {
        let object = serde_json::from_str::<Map<String, Value>>(part);
        let job = match object {
            Ok(object) => submission(line, &|name| object.get(name).and_then(plain)),
            Err(error) => Err(format!("not a JSON object: {error}")),
        };
        match job {
            Ok(job) => jobs.push(job),
            Err(problem) => problems.add(line, problem),
        }
    }
    problems.settle(file, strict)?;
    if jobs.is_empty() {
        anyhow::bail!("failed to read {}: no usable row", file.display());
    }
    Ok(jobs)
}

/// A value as the text a CSV field would have; lists are joined with `|`.
fn plain(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()).filter(|text| !text.trim().is_empty()),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().filter_map(plain).collect();
            (!items.is_empty()).then(|| items.join("|"))
        }
        other => Some(other.to_string()),
    }
}

/// The elements of a JSON array, or of objects one after the other, each with the line it begins
/// on. One that is cut short or garbled costs only itself.
fn elements(text: &str) -> Vec<(usize, &str)> {
    let inside = text.trim_start_matches('\u{feff}').trim_start();
    let list = inside.starts_with('[');
    let mut found = Vec::new();
    let (mut line, mut depth) = (1, 0_usize);
    let (mut begin, mut begin_line) = (None, 1);
    let (mut quoted, mut escaped) = (false, false);
    for (at, letter) in text.char_indices() {
        let outside = depth == 0 || (list && depth == 1);
        match letter {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            '{' | '[' if !quoted => depth += 1,
            '}' | ']' if !quoted => depth = depth.saturating_sub(1),
            _ => {}
        }
        let separator =
            matches!(letter, ',' | '[' | ']') || letter.is_whitespace() || letter == '\u{feff}';
        if begin.is_none() && outside && !separator {
            (begin, begin_line) = (Some(at), line);
        }
        let closed = !quoted && (depth == 0 || (list && depth == 1));
        if let Some(start) = begin
            && closed
            && matches!(letter, '}' | ',' | '\n' | ']')
        {
            let end = if letter == '}' { at + 1 } else { at };
            found.push((begin_line, text[start..end].trim()));
            begin = None;
        }
        if letter == '\n' {
            line += 1;
        }
    }
    if let Some(start) = begin {
        found.push((begin_line, text[start..].trim()));
    }
    found.retain(|(_, part)| !part.is_empty());
    found
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use warp_core::queue::Shape;

    use super::read;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    const CSV: &str = "timestamp,duration,num_gpus,gpu_time,cluster\n\
        2017-10-09 07:01:55,66.0,1,66.0,11cb48\n\
        2017-10-09 07:61:55,66.0,1,66.0,11cb48\n\
        2017-10-09 07:02:55,long,1,66.0,11cb48\n\
        2017-10-09 07:03:55,60,0,0,11cb48\n\
        2017-10-09 07:04:55,60,16\n\
        2017-10-09 07:05:55,60,16,960,6214e9\n";

    #[test]
    fn philly_columns_are_known_and_bad_rows_left_out() {
        let jobs = read(file(CSV).path(), false).unwrap();
        assert_eq!(jobs.iter().map(|job| job.line).collect::<Vec<_>>(), [2, 7]);
        assert_eq!(jobs[1].shape, Shape::Gpus(16));
        assert_eq!(jobs[1].tenant.as_deref(), Some("6214e9"));
        assert!((jobs[1].submit - jobs[0].submit - 240.0).abs() < 1e-9);
    }

    #[test]
    fn strict_stops_at_the_first_bad_row_with_its_line() {
        let error = read(file(CSV).path(), true).unwrap_err().to_string();
        assert!(
            error.contains("line 3") && error.contains("07:61:55"),
            "{error}"
        );
    }

    #[test]
    fn json_arrays_and_lines_say_the_same_as_csv() {
        let array = "[\n {\"submit\": 0, \"duration\": 60, \"gpus\": 2,\n  \"gpu_types\": [\"A100\", \"H100\"]},\n \
                     {\"submit\": 5, \"gpus\": 2},\n 17,\n {\"submit\": 9, \"duration\": 1.5, \"gpus\": 1, \"members\": 4}\n]\n";
        let jobs = read(file(array).path(), false).unwrap();
        assert_eq!(jobs.iter().map(|job| job.line).collect::<Vec<_>>(), [2, 6]);
        assert_eq!(jobs[0].types, ["A100", "H100"]);
        assert_eq!(jobs[1].shape, Shape::Members { count: 4, gpus: 1 });
        let error = read(file(array).path(), true).unwrap_err().to_string();
        assert!(
            error.contains("line 4") && error.contains("duration"),
            "{error}"
        );
        let lines = "{\"submit\":0,\"duration\":60,\"gpus\":2}\n{broken\n{\"submit\":1,\"duration\":1,\"gpus\":1}\n";
        let error = read(file(lines).path(), true).unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }

    #[test]
    fn a_list_without_a_usable_row_is_refused() {
        let error = read(file("").path(), false).unwrap_err().to_string();
        assert!(error.contains("it is empty"), "{error}");
        for text in ["a,b\n1,2\n", "[]", "[{}]"] {
            let error = read(file(text).path(), false).unwrap_err().to_string();
            assert!(error.contains("no usable row"), "{text:?}: {error}");
        }
    }
}
