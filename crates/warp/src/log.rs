//! How verbs that run for long log: what by default, as JSON lines, and their last words.
//!
//! One line is one JSON object whose keys are unique, to the very last: panics and the error a verb ends
//! with are lines like any other.

use std::fmt;

use anyhow::Context as _;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// Says what is logged: `WARP_LOG=debug`, `WARP_LOG=info,warp::audit=info`.
const VARIABLE: &str = "WARP_LOG";
/// Ends and troubles. The audit trail, a record for every write, is for those who ask for it.
pub(crate) const DEFAULT: &str = "info,warp::audit=off";

/// What to log.
pub(crate) fn filter(default: &str) -> anyhow::Result<EnvFilter> {
    let asked = std::env::var(VARIABLE).unwrap_or_default();
    let wanted = if asked.is_empty() { default } else { &asked };
    EnvFilter::try_new(wanted).with_context(|| {
        format!("{VARIABLE}={asked} says no levels such as info or info,warp::audit=info")
    })
}

/// Panics become log lines: a reader of JSON lines must not meet anything else.
pub(crate) fn log_panics() {
    std::panic::set_hook(Box::new(|panic| {
        if !warp_apiserver::store::examining() {
            tracing::error!(target: "warp", panic = %panic, "panicked");
        }
    }));
}

/// A database that is damaged is told of in an error: the panic that found it says nothing more.
pub(crate) fn hush_examiners() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !warp_apiserver::store::examining() {
            usual(panic);
        }
    }));
}

/// One JSON object per event: time, level, target, message, the event's fields, then those of the spans
/// around it that it does not have itself.
pub(crate) struct Lines;

impl<S> FormatEvent<S, JsonFields> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, JsonFields>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let meta = event.metadata();
        let mut line = Line(Map::new());
        let now = format!("{:.6}", jiff::Timestamp::now());
        line.0.insert("timestamp".to_owned(), now.into());
        let level = meta.level().as_str();
        line.0.insert("level".to_owned(), level.into());
        line.0.insert("target".to_owned(), meta.target().into());
        event.record(&mut line);
        let spans = context.event_scope().into_iter().flatten();
        for span in spans {
            let extensions = span.extensions();
            let Some(fields) = extensions.get::<FormattedFields<JsonFields>>() else {
                continue;
            };
            let fields: Map<String, Value> = serde_json::from_str(fields).unwrap_or_default();
            // The innermost comes first and is the nearest.
            for (key, value) in fields {
                line.0.entry(key).or_insert(value);
            }
        }
        writeln!(out, "{}", Value::Object(line.0))
    }
}

/// The fields of an event.
struct Line(Map<String, Value>);

impl Line {
    fn put(&mut self, field: &Field, value: Value) {
        let mut key = field.name().to_owned();
        // What every line has is not replaced by a field of the same name.
        while self.0.contains_key(&key) {
            key.insert_str(0, "field.");
        }
        self.0.insert(key, value);
    }
}

impl Visit for Line {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use serde_json::Value;

    use super::{Lines, log_panics};

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(text)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn lines(work: impl FnOnce()) -> Vec<String> {
        let kept = Kept::default();
        let out = kept.clone();
        let logs = tracing_subscriber::fmt()
            .json()
            .event_format(Lines)
            .with_writer(move || out.clone())
            .finish();
        tracing::subscriber::with_default(logs, work);
        let text = kept.0.lock().unwrap().clone();
        let text = String::from_utf8(text).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn keys_are_unique_whatever_events_and_spans_call_their_fields() {
        let said = lines(|| {
            let outer = tracing::info_span!("reconcile", name = "a", kind = "K", level = "x");
            let _outer = outer.enter();
            let inner = tracing::info_span!("write", name = "b");
            let _inner = inner.enter();
            tracing::info!(name = "c", target = "t", count = 3, "said");
        });
        let [line] = said.as_slice() else {
            panic!("{said:?}");
        };
        for key in ["name", "target", "level", "kind", "message", "timestamp"] {
            assert_eq!(line.matches(&format!("\"{key}\":")).count(), 1, "{line}");
        }
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["name"], "c");
        assert_eq!(line["kind"], "K");
        assert_eq!(line["count"], 3);
        assert_eq!(line["field.target"], "t");
        assert_eq!(line["message"], "said");
    }

    #[test]
    fn a_panic_is_a_line_like_any_other() {
        let said = lines(|| {
            let before = std::panic::take_hook();
            log_panics();
            let ended = std::panic::catch_unwind(|| panic!("two\nlines"));
            std::panic::set_hook(before);
            assert!(ended.is_err());
        });
        let [line] = said.as_slice() else {
            panic!("{said:?}");
        };
        let line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["level"], "ERROR");
        assert!(line["panic"].as_str().unwrap().contains("two\nlines"));
    }
}
