//! What goes wrong and when, as data that prints as one line and parses back.
//!
//! A plan is rules separated by `; `. A rule is `selector#nth[extent]:fault`: of the requests the
//! selector matches, the nth (from 1) meets the fault, and after it as many as the extent says:
//! nothing for that one, `+3` for three in all, `+all` for every further one, `~60s` for all within
//! that time. A selector is a class (`request`, `read`, `write`, `watch`), `verb/resource`,
//! `verb/resource/subresource` or `verb/resource@name`, where `*` matches anything:
//!
//! ```text
//! write#17:crash-after
//! create/jobs#1~60s:403; watch/pods#2:cut=3
//! ```

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::request::{Call, Class};

/// Why a line is no plan.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("failed to read fault rule \"{rule}\": {why}")]
pub struct PlanError {
    rule: String,
    why: &'static str,
}

/// Rules; the first that applies to a request decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub rules: Vec<Rule>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub selector: Selector,
    /// Counted from 1 among the requests the selector matches.
    pub nth: u64,
    pub extent: Extent,
    pub fault: Fault,
}

/// Which requests a rule counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    Class(Class),
    /// Verb, resource and subresource; `None` matches anything, an empty subresource none.
    Path(Option<String>, Option<String>, Option<String>),
    /// Verb, resource and the name of the object itself.
    Named(Option<String>, Option<String>, String),
}

/// How long a rule goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    Count(u64),
    All,
    For(Duration),
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process ends before the request leaves it.
    CrashBefore,
    /// The request is carried out; the process ends before it hears of it.
    CrashAfter,
    /// Answered with this status instead of being carried out.
    Status(u16),
    /// 429, asking to wait for so many seconds.
    RetryAfter(u64),
    /// Carried out and answered with this status all the same.
    Applied(u16),
    /// The connection breaks; with `true` only after the request was carried out.
    Reset(bool),
    /// No answer ever; with `true` the request was carried out.
    Timeout(bool),
    /// Carried out so much later, also when the client has given up by then.
    Delay(Duration),
    /// A read is answered from the state before the last so many recorded writes.
    Stale(u64),
    /// The process stands still: nothing leaves and nothing arrives for so long, and this request leaves
    /// after that. Only its timers run on.
    Pause(Duration),
    /// A watch ends after so many events.
    Cut(u64),
    /// After so many events a watch stays open and says nothing until the server would close it.
    Silence(u64),
    /// A watch says everything twice.
    Duplicate,
    /// A watch leaves out states that were soon followed by another of the same object.
    Merge,
    /// A watch ends with the event that says its version is too old.
    Expire(u64),
}

impl Plan {
    /// One fault at the nth write.
    pub fn at_write(nth: u64, fault: Fault) -> Self {
        Self::one(Selector::Class(Class::Write), nth, fault)
    }

    pub fn one(selector: Selector, nth: u64, fault: Fault) -> Self {
        Self {
            rules: vec![Rule {
                selector,
                nth,
                extent: Extent::Count(1),
                fault,
            }],
        }
    }
}

impl Selector {
    pub fn matches(&self, call: &Call) -> bool {
        let same = |wanted: &Option<String>, have: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == have)
        };
        match self {
            Self::Class(Class::Request) => true,
            Self::Class(class) => *class == call.class,
            Self::Path(verb, resource, sub) => {
                same(verb, call.verb) && same(resource, &call.resource) && same(sub, &call.sub)
            }
            Self::Named(verb, resource, name) => {
                same(verb, call.verb) && same(resource, &call.resource) && *name == call.name
            }
        }
    }
}

impl Fault {
    /// The kind of fault without its number, for tallies.
    pub fn kind(&self) -> String {
        let text = self.to_string();
        match text.split_once('=') {
            Some((kind, _)) => kind.to_owned(),
            None => text,
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, rule) in self.rules.iter().enumerate() {
            if place > 0 {
                out.write_str("; ")?;
            }
            write!(out, "{rule}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}#{}", self.selector, self.nth)?;
        match self.extent {
            Extent::Count(1) => {}
            Extent::Count(count) => write!(out, "+{count}")?,
            Extent::All => out.write_str("+all")?,
            Extent::For(time) => write!(out, "~{}", Length(time))?,
        }
        write!(out, ":{}", self.fault)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |part: &Option<String>| part.clone().unwrap_or_else(|| "*".to_owned());
        match self {
            Self::Class(class) => write!(out, "{class}"),
            Self::Path(verb, resource, sub) => {
                write!(out, "{}/{}", part(verb), part(resource))?;
                match sub.as_deref() {
                    Some("") => Ok(()),
                    _ => write!(out, "/{}", part(sub)),
                }
            }
            Self::Named(verb, resource, name) => {
                write!(out, "{}/{}@{name}", part(verb), part(resource))
            }
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CrashBefore => out.write_str("crash-before"),
            Self::CrashAfter => out.write_str("crash-after"),
            Self::Status(code) => write!(out, "{code}"),
            Self::RetryAfter(seconds) => write!(out, "429={seconds}"),
            Self::Applied(code) => write!(out, "{code}-applied"),
            Self::Reset(false) => out.write_str("reset"),
            Self::Reset(true) => out.write_str("reset-applied"),
            Self::Timeout(false) => out.write_str("timeout"),
            Self::Timeout(true) => out.write_str("timeout-applied"),
            Self::Delay(time) => write!(out, "delay={}", Length(*time)),
            Self::Stale(back) => write!(out, "stale={back}"),
            Self::Pause(time) => write!(out, "pause={}", Length(*time)),
            Self::Cut(after) => write!(out, "cut={after}"),
            Self::Silence(after) => write!(out, "silence={after}"),
            Self::Duplicate => out.write_str("duplicate"),
            Self::Merge => out.write_str("merge"),
            Self::Expire(after) => write!(out, "expire={after}"),
        }
    }
}

/// A length of time in whole milliseconds or seconds.
struct Length(Duration);

impl fmt::Display for Length {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.subsec_millis() == 0 {
            write!(out, "{}s", self.0.as_secs())
        } else {
            write!(out, "{}ms", self.0.as_millis())
        }
    }
}

fn length(text: &str) -> Option<Duration> {
    if let Some(text) = text.strip_suffix("ms") {
        return text.parse().ok().map(Duration::from_millis);
    }
    let text = text.strip_suffix('s')?;
    text.parse().ok().map(Duration::from_secs)
}

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let rules = text
            .split(';')
            .map(str::trim)
            .filter(|rule| !rule.is_empty())
            .map(str::parse)
            .collect::<Result<_, _>>()?;
        Ok(Self { rules })
    }
}

impl FromStr for Rule {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let wrong = |why| PlanError {
            rule: text.to_owned(),
            why,
        };
        let (selector, rest) = text
            .split_once('#')
            .ok_or_else(|| wrong("it has no # and number"))?;
        let (place, fault) = rest
            .split_once(':')
            .ok_or_else(|| wrong("it has no : and fault"))?;
        let at = place.find(['+', '~']).unwrap_or(place.len());
        let (nth, extent) = place.split_at(at);
        let nth = nth
            .parse()
            .ok()
            .filter(|nth| *nth > 0)
            .ok_or_else(|| wrong("the number is none, counted from 1"))?;
        let extent = match (extent.get(..1), extent.get(1..).unwrap_or_default()) {
            (None, _) => Some(Extent::Count(1)),
            (Some("+"), "all") => Some(Extent::All),
            (Some("+"), count) => count.parse().ok().map(Extent::Count),
            (_, time) => length(time).map(Extent::For),
        };
        Ok(Self {
            selector: selector_of(selector).ok_or_else(|| wrong("the selector is not known"))?,
            nth,
            extent: extent.ok_or_else(|| wrong("the extent is neither +count, +all nor ~time"))?,
            fault: fault_of(fault).ok_or_else(|| wrong("the fault is not known"))?,
        })
    }
}

fn selector_of(text: &str) -> Option<Selector> {
    if let Some(class) = Class::of(text) {
        return Some(Selector::Class(class));
    }
    let part = |part: &str| (part != "*").then(|| part.to_owned());
    if let Some((path, name)) = text.split_once('@') {
        let (verb, resource) = path.split_once('/')?;
        let whole = !verb.is_empty() && !resource.is_empty() && !name.is_empty();
        return whole.then(|| Selector::Named(part(verb), part(resource), name.to_owned()));
    }
    let mut parts = text.split('/');
    let (verb, resource) = (parts.next()?, parts.next()?);
    let sub = parts.next().unwrap_or_default();
    let whole = parts.next().is_none() && !verb.is_empty() && !resource.is_empty();
    whole.then(|| Selector::Path(part(verb), part(resource), part(sub)))
}

fn fault_of(text: &str) -> Option<Fault> {
    if let Some((kind, number)) = text.split_once('=') {
        return match kind {
            "delay" => length(number).map(Fault::Delay),
            "pause" => length(number).map(Fault::Pause),
            "429" => number.parse().ok().map(Fault::RetryAfter),
            "stale" => number.parse().ok().map(Fault::Stale),
            "cut" => number.parse().ok().map(Fault::Cut),
            "silence" => number.parse().ok().map(Fault::Silence),
            "expire" => number.parse().ok().map(Fault::Expire),
            _ => None,
        };
    }
    let status = |text: &str| {
        text.parse()
            .ok()
            .filter(|code| (400..600).contains(code) && http::StatusCode::from_u16(*code).is_ok())
    };
    Some(match text {
        "crash-before" => Fault::CrashBefore,
        "crash-after" => Fault::CrashAfter,
        "reset" => Fault::Reset(false),
        "reset-applied" => Fault::Reset(true),
        "timeout" => Fault::Timeout(false),
        "timeout-applied" => Fault::Timeout(true),
        "duplicate" => Fault::Duplicate,
        "merge" => Fault::Merge,
        other => match other.strip_suffix("-applied") {
            Some(code) => Fault::Applied(status(code)?),
            None => Fault::Status(status(other)?),
        },
    })
}
