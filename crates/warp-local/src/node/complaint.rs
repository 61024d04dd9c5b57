//! What is wrong with a YAML file, in words: the line, the field, and what was expected there.
//!
//! Owns: putting the parser's errors into a person's terms. Must not read files.

use serde_saphyr::Error;

use super::spelling::hint;

/// The line and what is wrong there. `text` is what was read.
pub fn complaint(error: &Error, text: &str) -> (Option<usize>, String) {
    let place = error.location();
    let number = |number: u64| usize::try_from(number).unwrap_or(0);
    let line = place.map(|place| number(place.line()));
    let column = place.map_or(0, |place| number(place.column()));
    let said = line.and_then(|line| text.lines().nth(line.checked_sub(1)?));
    let value = said.map_or("", |said| value_at(said, column));
    let path = line.map_or_else(String::new, |line| path_at(text, line, column));
    let about = |what: String| {
        if path.is_empty() {
            what
        } else {
            format!("{path}: {what}")
        }
    };
    let what = match error.without_snippet() {
        Error::SerdeUnknownField {
            field, expected, ..
        } => format!(
            "field \"{field}\" is not known{}",
            hint(field, expected.iter().copied())
        ),
        Error::SerdeMissingField { field, .. } => format!("field \"{field}\" is missing"),
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => about(format!(
            "\"{variant}\" is not known{}",
            hint(variant, expected.iter().copied())
        )),
        Error::InvalidScalar { ty, .. } => about(format!("\"{value}\" is no {}", plain(ty))),
        Error::SerdeInvalidType { expected, .. } | Error::SerdeInvalidValue { expected, .. } => {
            about(format!("\"{value}\" is no {}", plain(expected)))
        }
        other => {
            let text = other.to_string();
            let first = text.lines().next().unwrap_or_default();
            // The place is told once, by whoever names the file.
            let end = first.find(" at line ").unwrap_or(first.len());
            first[..end].to_owned()
        }
    };
    (line, what)
}

/// A type of ours as a person calls it.
fn plain(kind: &str) -> &str {
    match kind {
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "whole number of 0 or more",
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "whole number",
        "f32" | "f64" | "float" => "number",
        "bool" | "boolean" | "a boolean" => "true or false",
        "a sequence" => "list",
        "a map" => "set of fields",
        "a string" => "text",
        other => other
            .strip_prefix("struct ")
            .map_or(other, |_| "set of fields"),
    }
}

/// The text of a value that begins at a column.
fn value_at(line: &str, column: usize) -> &str {
    let start = line
        .char_indices()
        .nth(column.saturating_sub(1))
        .map_or(line.len(), |(at, _)| at);
    let rest = &line[start..];
    let end = rest.find([',', '}', ']', '#']).unwrap_or(rest.len());
    rest[..end].trim().trim_matches(['"', '\''])
}

/// The fields that lead to a place, as far as indentation tells: `pools.gpus`.
fn path_at(text: &str, line: usize, column: usize) -> String {
    let lines: Vec<&str> = text.lines().take(line).collect();
    let Some((last, before)) = lines.split_last() else {
        return String::new();
    };
    let inside: String = last.chars().take(column.saturating_sub(1)).collect();
    let Some(key) = key_of(&inside) else {
        return String::new();
    };
    let mut path = vec![key];
    let mut indent = indent_of(last);
    for line in before.iter().rev() {
        let (line, here) = (line.trim_end(), indent_of(line));
        let item = last.trim_start().starts_with('-');
        if line.is_empty() || line.trim_start().starts_with('#') {
            continue;
        }
        let above =
            here < indent || (here == indent && item && !line.trim_start().starts_with('-'));
        if above && line.ends_with(':') {
            path.extend(key_of(line));
            indent = here;
        }
    }
    path.reverse();
    path.join(".")
}

fn indent_of(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The last `key:` of a piece of a line.
fn key_of(piece: &str) -> Option<String> {
    let (before, _) = piece.rsplit_once(':')?;
    let start = before.rfind(['{', ',', '[']).map_or(0, |at| at + 1);
    let key = before[start..]
        .trim()
        .trim_start_matches("- ")
        .trim()
        .trim_matches(['"', '\'']);
    (!key.is_empty()).then(|| key.to_owned())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::complaint;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[expect(dead_code, reason = "only read")]
        pools: Vec<Pool>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Pool {
        #[expect(dead_code, reason = "only read")]
        name: String,
        #[expect(dead_code, reason = "only read")]
        gpus: u32,
        #[expect(dead_code, reason = "only read")]
        ready: Option<bool>,
    }

    fn told(text: &str) -> (Option<usize>, String) {
        let error = serde_saphyr::from_str::<File>(text).unwrap_err();
        complaint(&error, text)
    }

    #[test]
    fn numbers_that_are_none_are_told_with_their_field() {
        assert_eq!(
            told("pools:\n- name: a\n  gpus: many\n"),
            (
                Some(3),
                "pools.gpus: \"many\" is no whole number of 0 or more".to_owned()
            )
        );
        assert_eq!(
            told("pools:\n- {name: a, gpus: -1}\n"),
            (
                Some(2),
                "pools.gpus: \"-1\" is no whole number of 0 or more".to_owned()
            )
        );
        let (line, what) = told("pools:\n- name: a\n  gpus: 1\n  ready: perhaps\n");
        assert_eq!(line, Some(4));
        assert!(what.contains("true or false"), "{what}");
    }

    #[test]
    fn fields_are_told_with_the_nearest_name() {
        let (line, what) = told("pools:\n- name: a\n  gpuss: 4\n");
        assert_eq!(line, Some(3));
        assert!(what.contains("did you mean \"gpus\"?"), "{what}");
        let (_, what) = told("pools:\n- name: a\n");
        assert_eq!(what, "field \"gpus\" is missing");
    }

    #[test]
    fn the_place_is_not_told_twice() {
        let (line, what) = told("pools:\n- name: a\n gpus: x\n");
        assert!(line.is_some() && !what.contains("line"), "{what}");
    }
}
