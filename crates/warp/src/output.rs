//! The only place that prints: tables, errors, machine-readable forms. Results go to standard
//! output, everything about them to standard error.

pub(crate) mod plot;
mod table;

use std::io::Write;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub(crate) use table::Table;

/// Prints a result as it is. A reader that has gone away (`| head`) ends the verb quietly; a result that cannot be written
/// is one the user does not have.
#[expect(
    clippy::exit,
    reason = "a verb that follows something would go on for nobody"
)]
pub(crate) fn text(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            note(&format!("error: failed to write the result: {error}"));
            std::process::exit(1);
        }
    }
}

/// Writes to standard error. Whoever does not listen there still has the verb done.
fn tell(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
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
    tell(&format!("{line}\n"));
}

/// Asks for an answer on the same line.
pub(crate) fn prompt(text: &str) {
    tell(text);
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
    note(&format!("error: {}", words(error)));
}

/// An error and its causes in one line.
pub(crate) fn words(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let answer = match cause.downcast_ref::<kube::Error>() {
            Some(kube::Error::Api(status)) if !status.message.is_empty() => Some(&status.message),
            _ => None,
        };
        let cause = answer.map_or_else(|| plain(&cause.to_string()), Clone::clone);
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        // What lies below an answer is the envelope it came in.
        if answer.is_some() {
            break;
        }
    }
    text
}

/// A library's words as a person would say them: one line, without names of its own parts and pages of
/// its manual.
fn plain(text: &str) -> String {
    let mut text = text.lines().next().unwrap_or_default().to_owned();
    for (theirs, ours) in [
        ("ServiceError: ", ""),
        ("client error (Connect): ", ""),
        (": error: line ", ": line "),
        (
            "received corrupt message of type InvalidContentType",
            "it does not speak TLS",
        ),
    ] {
        text = text.replace(theirs, ours);
    }
    while let Some(start) = text.find("https://docs.rs/") {
        let end = text[start..]
            .find(char::is_whitespace)
            .map_or(text.len(), |length| start + length);
        let kept = text[..start].trim_end().trim_end_matches([':', '(']).len();
        text.replace_range(kept..end, "");
    }
    text
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::words;

    #[test]
    fn an_answer_of_the_server_is_told_once_and_without_its_envelope() {
        let status = kube::core::Status::failure("pods \"x\" not found", "NotFound").with_code(404);
        let error = Err::<(), _>(kube::Error::Api(status.boxed()))
            .context("failed to look for the pod x")
            .unwrap_err();
        assert_eq!(
            words(&error),
            "failed to look for the pod x: pods \"x\" not found"
        );
    }

    #[test]
    fn a_connection_that_failed_is_told_without_the_librarys_parts() {
        let error = anyhow::anyhow!(
            "ServiceError: client error (Connect): tcp connect error: Connection refused (os error 111)"
        );
        assert_eq!(
            words(&error),
            "tcp connect error: Connection refused (os error 111)"
        );
    }

    #[test]
    fn pages_of_a_librarys_manual_are_left_out() {
        let error = anyhow::anyhow!(
            "peer closed connection without sending TLS close_notify: https://docs.rs/rustls/latest/rustls/manual/_03_howto/index.html#unexpected-eof"
        )
        .context("failed to reach the cluster");
        assert_eq!(
            words(&error),
            "failed to reach the cluster: peer closed connection without sending TLS close_notify"
        );
    }
}
