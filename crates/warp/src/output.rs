//! The only place that prints: tables, errors, machine-readable forms. Results go to standard
//! output, everything about them to standard error.
#![allow(clippy::print_stdout, clippy::print_stderr)]

pub(crate) mod plot;
mod table;

pub(crate) use table::Table;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Prints a result.
pub(crate) fn result(text: &str) {
    println!("{}", text.trim_end_matches('\n'));
}

/// Prints a remark about a result.
pub(crate) fn note(text: &str) {
    eprintln!("{text}");
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
