//! The only place that prints: tables, errors, machine-readable forms. Results go to standard
//! output, everything about them to standard error.
#![allow(clippy::print_stdout, clippy::print_stderr)]

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

/// Something worth knowing that is not the result.
pub(crate) fn note(text: &str) {
    eprintln!("{text}");
}

/// Prints a result as it is. A reader that went away (`| head`) is no error of ours.
pub(crate) fn text(text: &str) {
    use std::io::Write as _;
    let _ = std::io::stdout().write_all(text.as_bytes());
}
