//! What a person sees while a fetch runs: a bar on a terminal, a line now and then elsewhere.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::task::JoinHandle;
use warp_fetch::{Phase, Progress, State};

use crate::output;

const BAR_EVERY: Duration = Duration::from_millis(150);
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Something that is shown until it is ended.
pub(super) struct Shown {
    task: JoinHandle<()>,
    bar: Option<ProgressBar>,
}

impl Shown {
    pub(super) fn end(self) {
        self.task.abort();
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

pub(super) fn start(source: &str, progress: Arc<Progress>) -> Shown {
    if !std::io::stderr().is_terminal() {
        return Shown {
            task: tokio::spawn(lines(source.to_owned(), progress)),
            bar: None,
        };
    }
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:32} {percent:>3}% {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    Shown {
        task: tokio::spawn(draw(bar.clone(), progress)),
        bar: Some(bar),
    }
}

async fn draw(bar: ProgressBar, progress: Arc<Progress>) {
    loop {
        let state = progress.state();
        bar.set_length(state.bytes_total);
        bar.set_position(state.bytes);
        bar.set_message(words(&state));
        tokio::time::sleep(BAR_EVERY).await;
    }
}

async fn lines(source: String, progress: Arc<Progress>) {
    loop {
        tokio::time::sleep(LINE_EVERY).await;
        output::note(&format!("{source}: {}", words(&progress.state())));
    }
}

/// A moment in words.
fn words(state: &State) -> String {
    let mut text = match state.phase {
        Phase::Waiting => "waiting for another fetch of the same model".to_owned(),
        Phase::Listing => "asking for the list of files".to_owned(),
        Phase::Publishing | Phase::Done => "publishing".to_owned(),
        Phase::Fetching => format!(
            "{} of {}, {} of {} files, {}/s{}",
            bytes(state.bytes),
            bytes(state.bytes_total),
            state.files,
            state.files_total,
            bytes(state.bytes_per_second),
            state
                .seconds_left
                .map_or(String::new(), |left| format!(", {} left", seconds(left))),
        ),
    };
    if let Some(trouble) = &state.trouble {
        text = format!("{text}; trying again: {trouble}");
    }
    text
}

/// Bytes for people.
#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
pub(super) fn bytes(count: u64) -> String {
    let mut value = count as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "B" {
                format!("{count} B")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// A length of time for people.
pub(super) fn seconds(count: u64) -> String {
    match count {
        0..60 => format!("{count}s"),
        60..3600 => format!("{}m{:02}s", count / 60, count % 60),
        _ => format!("{}h{:02}m", count / 3600, count % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_said_as_people_say_them() {
        assert_eq!(bytes(17), "17 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(16 << 30), "16.0 GiB");
        assert_eq!(bytes(5 << 40), "5.0 TiB");
        assert_eq!(seconds(59), "59s");
        assert_eq!(seconds(125), "2m05s");
        assert_eq!(seconds(3725), "1h02m");
    }
}
