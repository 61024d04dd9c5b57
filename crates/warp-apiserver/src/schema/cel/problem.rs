//! What is wrong with an expression, and where, as Kubernetes prints it: the message, the line and a
//! mark under the place.

use std::fmt::Write as _;

use kube_cel::cel::parser::Parser;

/// Lines longer than this are not quoted.
const LONGEST_QUOTE: usize = 16_384;

/// Something wrong with one node of a parsed expression.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) id: u64,
    pub(super) text: String,
}

/// The problems in the order they stand in the source.
pub(super) fn describe(source: &str, problems: &[Problem]) -> String {
    let places = places(source, problems);
    let mut shown: Vec<(usize, usize, &str)> = places
        .into_iter()
        .zip(problems)
        .map(|((line, column), problem)| (line, column, problem.text.as_str()))
        .collect();
    shown.sort_by_key(|(line, column, _)| (*line, *column));
    join(source, &shown)
}

/// What the parser refused.
pub(super) fn describe_syntax(source: &str, refused: &[(isize, isize, String)]) -> String {
    let shown: Vec<(usize, usize, &str)> = refused
        .iter()
        .map(|(line, column, text)| {
            let at = |number: isize| usize::try_from(number).unwrap_or(1);
            (at(*line), at(*column), text.as_str())
        })
        .collect();
    join(source, &shown)
}

fn join(source: &str, shown: &[(usize, usize, &str)]) -> String {
    let shown: Vec<String> = shown
        .iter()
        .map(|(line, column, text)| quote(source, *line, *column, text))
        .collect();
    shown.join("\n")
}

/// Line and column (both from 1) of every problem's node.
///
/// The parser keeps positions to itself unless it complains: what is appended makes it complain
/// about the end and leaves the numbers of the nodes before as they were.
fn places(source: &str, problems: &[Problem]) -> Vec<(usize, usize)> {
    let parsed = Parser::new()
        .enable_optional_syntax(true)
        .parse(&format!("{source}\n)"));
    let known = parsed.err().and_then(|refused| {
        refused
            .errors
            .into_iter()
            .find_map(|error| error.source_info)
    });
    problems
        .iter()
        .map(|problem| {
            let offset = known
                .as_ref()
                .and_then(|info| info.offset_for(problem.id))
                .map_or(0, |(start, _)| start as usize);
            place(source, offset)
        })
        .collect()
}

fn place(source: &str, offset: usize) -> (usize, usize) {
    let before = source.get(..offset).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |at| at + 1);
    (line, before[start..].chars().count() + 1)
}

fn quote(source: &str, line: usize, column: usize, text: &str) -> String {
    let mut shown = format!("ERROR: <input>:{line}:{column}: {text}");
    let quoted = source.split('\n').nth(line.saturating_sub(1));
    if let Some(quoted) = quoted.filter(|quoted| quoted.len() <= LONGEST_QUOTE) {
        let quoted = quoted.replace('\t', " ");
        let wide = |letter: char| letter.len_utf8() > 1;
        let mark: String = quoted
            .chars()
            .take(column.saturating_sub(1))
            .map(|letter| if wide(letter) { '．' } else { '.' })
            .collect();
        let under = quoted.chars().nth(column.saturating_sub(1));
        let arrow = if under.is_some_and(wide) { '＾' } else { '^' };
        // Writing to a string does not fail.
        let _ = write!(shown, "\n | {quoted}\n | {mark}{arrow}");
    }
    shown
}
