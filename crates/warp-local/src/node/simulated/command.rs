//! The few commands a simulated container understands, so that the manifests of tutorials and tests
//! behave as they read: `sleep`, `exit`, `true`, `false`, `echo`, joined by `;`, `&&` or lines.

use std::time::Duration;

/// What a command does, when every part of it is understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Script {
    /// `None`: it does not end.
    pub(super) lasts: Option<Duration>,
    pub(super) code: i32,
    pub(super) output: Vec<String>,
}

/// Reads an argument vector. `None` when any part of it is something else.
pub(super) fn read(argv: &[String]) -> Option<Script> {
    let (first, rest) = argv.split_first()?;
    let program = first.rsplit('/').next().unwrap_or(first);
    if matches!(program, "sh" | "bash" | "ash" | "dash") {
        let (script, flags) = rest.split_last()?;
        let is_command = flags
            .last()
            .is_some_and(|flag| flag.starts_with('-') && flag.ends_with('c'));
        return if is_command {
            read_script(script)
        } else {
            None
        };
    }
    let mut script = Script {
        lasts: Some(Duration::ZERO),
        ..Script::default()
    };
    let words: Vec<&str> = std::iter::once(program)
        .chain(rest.iter().map(String::as_str))
        .collect();
    run(&mut script, &words)?;
    Some(script)
}

/// Whether the script goes on after a command.
#[derive(PartialEq)]
enum Next {
    Go,
    End,
}

fn read_script(text: &str) -> Option<Script> {
    let mut script = Script {
        lasts: Some(Duration::ZERO),
        ..Script::default()
    };
    for line in text.split(['\n', ';']) {
        for part in line.split("&&") {
            let words: Vec<&str> = part.split_whitespace().collect();
            if words.is_empty() {
                continue;
            }
            if run(&mut script, &words)? == Next::End {
                return Some(script);
            }
            // `a && b`: b is left out when a failed.
            if script.code != 0 {
                break;
            }
        }
    }
    Some(script)
}

fn run(script: &mut Script, words: &[&str]) -> Option<Next> {
    let (first, rest) = words.split_first()?;
    match (*first, rest) {
        ("true" | ":", []) => script.code = 0,
        ("false", []) => script.code = 1,
        ("exit", [code]) => {
            // As a shell does: only the low eight bits leave the process.
            script.code = code
                .parse::<i64>()
                .ok()
                .map(|code| i32::from(code.to_le_bytes()[0]))?;
            return Some(Next::End);
        }
        ("exit", []) => return Some(Next::End),
        ("sleep", [_, ..]) => {
            let mut total = Some(Duration::ZERO);
            for word in rest {
                total = match (total, length(word)?) {
                    (Some(total), Some(more)) => total.checked_add(more),
                    _ => None,
                };
            }
            script.code = 0;
            script.lasts = match (script.lasts, total) {
                (Some(before), Some(more)) => before.checked_add(more),
                _ => None,
            };
            if script.lasts.is_none() {
                return Some(Next::End);
            }
        }
        ("echo", words) => {
            let text = words.join(" ");
            // Anything the shell would expand or redirect is not ours to guess.
            if text.contains(['$', '`', '>', '|', '<', '*']) {
                return None;
            }
            script.output.push(text.replace(['"', '\''], ""));
            script.code = 0;
        }
        _ => return None,
    }
    Some(Next::Go)
}

/// The outer `None` is "not a length", the inner one "without end".
#[expect(
    clippy::option_option,
    reason = "three outcomes, told apart by the callers' `?`"
)]
fn length(word: &str) -> Option<Option<Duration>> {
    if matches!(word, "infinity" | "inf") {
        return Some(None);
    }
    let digits = word.trim_end_matches(['s', 'm', 'h', 'd']);
    let factor = match &word[digits.len()..] {
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return None,
    };
    let seconds: f64 = digits.parse().ok()?;
    Duration::try_from_secs_f64(seconds * factor).ok().map(Some)
}
