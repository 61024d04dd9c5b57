//! The only place that prints: tables, errors, machine-readable forms. Results go to standard
//! output, everything about them to standard error.
#![allow(clippy::print_stdout, clippy::print_stderr)]

pub(crate) mod plot;
mod table;

use std::io::Write;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(crate) use table::Table;

/// Prints a result as it is. A reader that has gone away (`| head`) ends the verb quietly.
pub(crate) fn text(text: &str) {
    let mut out = std::io::stdout().lock();
    if out
        .write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .is_err()
    {
        // Nobody reads: not even a verb that follows something has anything left to do.
        std::process::exit(0);
    }
}

/// Prints a line of results.
pub(crate) fn line(line: &str) {
    text(&format!("{line}\n"));
}

/// Prints a whole result, with exactly one line end after it.
pub(crate) fn result(result: &str) {
    line(result.trim_end_matches('\n'));
}

/// Says something about the results: progress, notes, what to do next.
pub(crate) fn note(line: &str) {
    eprintln!("{line}");
}

/// A bar on a terminal, nothing elsewhere.
pub(crate) fn progress(total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
    let style =
        ProgressStyle::with_template("{msg:24} {bar:40} {percent:>3}% {elapsed} left {eta}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    bar
}

/// Prints an error with its causes, leaving out a cause that its parent already quotes (kube's
/// errors print their sources themselves).
pub(crate) fn error(error: &anyhow::Error) {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    eprintln!("error: {text}");
}
