//! What one simulated container does: pull, run, exit, stop, answer probes.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::super::facts::Exit;
use super::super::lifecycle::is_sidecar;
use super::super::spelling;
use super::annotations::{self, PREFIX};
use super::command::{self, Script};

/// Times for pods that say nothing themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Defaults {
    pub pull_time: Duration,
    /// For pods that are not restarted for ever; `None`: they run until stopped.
    pub run_time: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    /// `None`: the pull hangs.
    pub time: Option<Duration>,
    pub error: Option<String>,
    /// The reason a container waits with when the pull failed.
    pub reason: String,
    /// How many tries fail; `None`: all.
    pub failures: Option<u32>,
}

/// How a run ends when nobody stops it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fate {
    /// `None`: it does not.
    pub after: Option<Duration>,
    pub code: i32,
    pub reason: Option<&'static str>,
    /// What the container leaves as its last words.
    pub message: Option<String>,
}

impl Fate {
    pub fn exit(&self, at: Timestamp) -> Exit {
        let mut exit = Exit::with_code(self.code, at);
        if let Some(reason) = self.reason {
            reason.clone_into(&mut exit.reason);
        }
        exit.message.clone_from(&self.message);
        exit
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Behaviour {
    pub pull: Pull,
    fate: Fate,
    /// Only this many runs share that fate when it is a failure; the ones after succeed.
    fail_first: Option<u32>,
    /// How long it takes to end when asked; `None`: it ignores being asked.
    pub stop_time: Option<Duration>,
    /// When startup and readiness probes begin to pass; `None`: never.
    pub ready_after: Option<Duration>,
    /// When liveness probes begin to fail; `None`: never.
    pub live_for: Option<Duration>,
    /// Why the container cannot be built from its description (a missing Secret, say).
    pub config_error: Option<String>,
    /// How long the node keeps the pod before it needs the room; `None`: for good.
    pub evict_after: Option<Duration>,
    pub output: Vec<String>,
}

impl Behaviour {
    /// The fate of the run with this number.
    pub fn fate(&self, attempt: u32) -> Fate {
        match self.fail_first {
            Some(first) if attempt >= first && self.fate.code != 0 => Fate {
                code: 0,
                reason: None,
                ..self.fate.clone()
            },
            _ => self.fate.clone(),
        }
    }
}

struct Settings<'a> {
    pod: &'a BTreeMap<String, String>,
    node: &'a BTreeMap<String, String>,
    container: &'a str,
}

impl Settings<'_> {
    /// The container's own annotation, the pod's, then the node's.
    fn get(&self, name: &str) -> Option<(String, &str)> {
        let general = format!("{PREFIX}{name}");
        let own = format!("{general}.{}", self.container);
        let found = self.pod.get(&own).map(|value| (own, value.as_str()));
        found.or_else(|| {
            let value = self.pod.get(&general).or_else(|| self.node.get(&general))?;
            Some((general, value.as_str()))
        })
    }

    fn read<T>(
        &self,
        name: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        self.get(name)
            .map(|(key, value)| parse(value).map_err(|why| format!("annotation {key}: {why}")))
            .transpose()
    }

    #[expect(clippy::option_option, reason = "not said, and said to be without end")]
    fn duration(&self, name: &str) -> Result<Option<Option<Duration>>, String> {
        self.read(name, annotations::duration)
    }

    fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, String> {
        self.read(name, |value| {
            value
                .parse()
                .map_err(|_| format!("\"{value}\" is not a whole number in range"))
        })
    }
}

/// Puts together what `container` of `pod` does.
pub(super) fn of(
    pod: &Pod,
    container: &str,
    node: &BTreeMap<String, String>,
    defaults: &Defaults,
) -> Result<Behaviour, String> {
    let none = BTreeMap::new();
    let settings = Settings {
        pod: pod.metadata.annotations.as_ref().unwrap_or(&none),
        node,
        container,
    };
    unknown_names(settings.pod)?;
    let failures = settings.number("pull-failures")?;
    let error = settings.get("pull-error").map(|(_, text)| text.to_owned());
    let pull = Pull {
        time: settings
            .duration("pull-time")?
            .unwrap_or(Some(defaults.pull_time)),
        error: error.or_else(|| failures.map(|_: u32| "connection reset by peer".to_owned())),
        reason: settings
            .get("pull-reason")
            .map_or("ErrImagePull", |(_, reason)| reason)
            .to_owned(),
        failures,
    };
    let script = script(pod, container);
    let fate = fate(&settings, pod, script.as_ref(), defaults)?;
    let understood = script.is_some();
    let mut output: Vec<String> = script.map(|script| script.output).unwrap_or_default();
    match settings.get("log") {
        Some((_, text)) => output.extend(text.lines().map(str::to_owned)),
        None if !understood => output.extend(stand_in(pod, container)),
        None => {}
    }
    Ok(Behaviour {
        pull,
        fate,
        fail_first: settings.number("fail-first")?,
        stop_time: settings
            .duration("stop-time")?
            .unwrap_or(Some(Duration::ZERO)),
        ready_after: settings
            .duration("ready-after")?
            .unwrap_or(Some(Duration::ZERO)),
        live_for: settings.duration("live-for")?.unwrap_or(None),
        config_error: settings
            .get("config-error")
            .map(|(_, text)| text.to_owned()),
        evict_after: settings.duration("evict-after")?.unwrap_or(None),
        output,
    })
}

/// A misspelt annotation would otherwise be a simulation that silently does something else.
fn unknown_names(annotations: &BTreeMap<String, String>) -> Result<(), String> {
    for key in annotations.keys() {
        let Some(name) = key.strip_prefix(PREFIX) else {
            continue;
        };
        let name = name.split_once('.').map_or(name, |(name, _)| name);
        if !annotations::NAMES.contains(&name) {
            let hint = spelling::hint(name, annotations::NAMES);
            return Err(format!("annotation {key} is not known{hint}"));
        }
    }
    Ok(())
}

fn fate(
    settings: &Settings<'_>,
    pod: &Pod,
    script: Option<&Script>,
    defaults: &Defaults,
) -> Result<Fate, String> {
    let init = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.init_containers.as_ref())
        .and_then(|init| {
            init.iter()
                .find(|container| container.name == settings.container)
        });
    if let Some(after) = settings.duration("oom-after")? {
        return Ok(Fate {
            after,
            code: 137,
            reason: Some("OOMKilled"),
            message: None,
        });
    }
    if let Some(after) = settings.duration("crash-after")? {
        return Ok(Fate {
            after,
            code: 139,
            reason: None,
            message: None,
        });
    }
    let sidecar = init.is_some_and(is_sidecar);
    let forever = sidecar
        || pod.spec.as_ref().is_none_or(|spec| {
            spec.restart_policy
                .as_deref()
                .is_none_or(|policy| policy == "Always")
        });
    let is_init = init.is_some() && !sidecar;
    let told = if is_init {
        settings.duration("init-time")?
    } else {
        settings.duration("run-time")?
    };
    let after = match (told, script) {
        (Some(told), _) => told,
        (None, Some(script)) => script.lasts,
        (None, None) if is_init => Some(Duration::ZERO),
        (None, None) if forever => None,
        (None, None) => defaults.run_time,
    };
    // An init container fails only when the annotation names it.
    let code = match settings.get("exit-code") {
        Some((key, _)) if !is_init || key.ends_with(&format!(".{}", settings.container)) => {
            settings.number("exit-code")?
        }
        _ => script.map(|script| script.code),
    };
    Ok(Fate {
        after,
        code: code.unwrap_or(0),
        reason: None,
        message: settings
            .get("message")
            .map(|(_, text)| text.to_owned())
            .or_else(|| pretended_fetch(pod, settings.container)),
    })
}

/// The last words of a `warp fetch` here: whoever waits for its report is told that nothing was fetched, not left
/// without one.
fn pretended_fetch(pod: &Pod, container: &str) -> Option<String> {
    let words = words(pod, container)?;
    let reports = words.iter().any(|word| word.starts_with("--report="));
    let fetches = words.first().is_some_and(|verb| verb == "fetch") && reports;
    fetches.then(|| r#"{"simulated":{}}"#.to_owned())
}

fn words(pod: &Pod, container: &str) -> Option<Vec<String>> {
    let spec = pod.spec.as_ref()?;
    let container = super::containers(spec).find(|candidate| candidate.name == container)?;
    let words = container.command.iter().flatten();
    Some(
        words
            .chain(container.args.iter().flatten())
            .cloned()
            .collect(),
    )
}

fn script(pod: &Pod, container: &str) -> Option<Script> {
    command::read(&words(pod, container)?)
}

/// What the log of a command says that nothing here can run: an empty one would look like a fault.
fn stand_in(pod: &Pod, container: &str) -> Option<String> {
    let words = words(pod, container)?;
    if words.is_empty() {
        return Some("simulated: the image's own command would run here".to_owned());
    }
    Some(format!("simulated: would run {}", words.join(" ")))
}
