//! The answer, from what was read. It asks nothing.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use warp_api::workload::Priority;
use warp_api::{GPUWorkload, GPUWorkloadStatus, Phase, reason};
use warp_operator::foresight::{InLine, Look, Outlook};

use super::{Ahead, Evidence, Step, Why, change_steps, help};
use crate::cluster::Target;
use crate::commands::plan;
use crate::workload::{self, Parts, span};

/// Nodes named for one reason before the rest is counted.
const NAMED: usize = 4;
/// Reasons of work that waits for something other than a place.
const OUT_OF_LINE: [&str; 5] = [
    reason::JOB_SUSPENDED,
    reason::CLEANING_UP,
    reason::INVALID_SPEC,
    // There may be room: the API server does not take what would be made of it.
    reason::JOB_REJECTED,
    reason::OPERATOR_FORBIDDEN,
];
/// Changes offered.
const CHANGES: usize = 4;

pub(super) fn tell(
    found: &GPUWorkload,
    parts: &Parts,
    looked: Option<&Look>,
    target: &Target,
    now: Timestamp,
) -> Why {
    let (reason, message) = workload::said(found).unwrap_or((reason::QUEUED, ""));
    let status = found.status.clone().unwrap_or_default();
    let subject = Subject {
        found,
        status: &status,
        message,
        flags: target.flags(),
        target,
        now,
    };
    let mut told = Why {
        workload: found.name_any(),
        namespace: found.namespace().unwrap_or_default(),
        phase: workload::phase(found),
        reason: reason.to_owned(),
        ..Why::default()
    };
    match told.phase {
        Phase::Pending if found.spec.suspend => subject.suspended(&mut told),
        // Not in line: what the operator said is all there is to say.
        Phase::Pending if OUT_OF_LINE.contains(&reason) => subject.stands(&mut told),
        Phase::Pending => match looked {
            Some(looked) => subject.waits(&mut told, looked),
            None => subject.stands(&mut told),
        },
        Phase::Scheduling | Phase::Scheduled => subject.starts(&mut told, parts),
        Phase::Running => subject.runs(&mut told, parts),
        Phase::Succeeded => subject.succeeded(&mut told, parts),
        Phase::Failed => subject.failed(&mut told, parts),
    }
    told.evidence.extend(by_its_tenant(found, &status));
    if told.phase == Phase::Pending && !found.spec.suspend {
        told.estimated_start.clone_from(&status.estimated_start);
        told.expected = expected(&status, now);
    }
    told
}

/// The priority it has though it asked for none.
fn by_its_tenant(found: &GPUWorkload, status: &GPUWorkloadStatus) -> Option<Evidence> {
    let spec = &found.spec;
    let template = spec.pod_template.as_ref().and_then(|it| it.spec.as_ref());
    let class = template.and_then(|pod| pod.priority_class_name.as_ref());
    let class = spec.priority_class_name.as_ref().or(class);
    let said = spec.priority.is_some() || class.is_some() || status.phase?.is_final();
    let word = match status.priority.filter(|_| !said)? {
        Priority::Low => "low",
        Priority::Normal => return None,
        Priority::High => "high",
    };
    Some(Evidence {
        what: "it asks for no priority".to_owned(),
        detail: format!("its tenant's default is {word}"),
    })
}

/// When it starts and what it waits for, as the operator told it last.
fn expected(status: &GPUWorkloadStatus, now: Timestamp) -> Option<String> {
    let waits = status.waiting_for.as_ref();
    let waits = waits.map(|words| format!("waits for {words}"));
    let Some(start) = &status.estimated_start else {
        return waits.map(|waits| format!("It {waits}."));
    };
    let start = format!("Expected to start {}", workload::start(start, now));
    Some(waits.map_or_else(
        || format!("{start}."),
        |waits| format!("{start}; it {waits}."),
    ))
}

/// What every sentence is made of.
struct Subject<'a> {
    found: &'a GPUWorkload,
    status: &'a GPUWorkloadStatus,
    message: &'a str,
    flags: String,
    target: &'a Target,
    now: Timestamp,
}

impl Subject<'_> {
    fn name(&self) -> String {
        self.found.name_any()
    }

    fn step(&self, what: &str, verb: &str) -> Step {
        Step::new(what, format!("warp {verb} {}{}", self.name(), self.flags))
    }

    fn node(&self) -> String {
        let places = self.status.places();
        places.unwrap_or_else(|| "its node".to_owned())
    }

    fn since(&self, then: Timestamp) -> String {
        span(self.now.duration_since(then))
    }

    fn suspended(&self, told: &mut Why) {
        reason::SUSPENDED.clone_into(&mut told.reason);
        told.sentence = format!(
            "{} is suspended: it holds no GPUs and is not in line.",
            self.name()
        );
        told.next.push(self.step("let it go on", "resume"));
    }

    /// It waits, and the whole cluster cannot be looked at.
    fn stands(&self, told: &mut Why) {
        let why = if self.message.is_empty() {
            "the operator has not looked at it yet"
        } else {
            self.message
        };
        told.sentence = format!("{} waits: {why}.", self.name());
    }

    fn waits(&self, told: &mut Why, looked: &Look) {
        told.ahead = ahead(&looked.ahead);
        for job in &looked.jobs_ahead {
            told.evidence.push(Evidence {
                what: "a queued Job is before it".to_owned(),
                detail: format!(
                    "{}/{} ({})",
                    job.job.namespace().unwrap_or_default(),
                    job.job.name_any(),
                    job.ask
                ),
            });
        }
        let retry = self.status.next_retry_time.as_ref().map(|time| time.0);
        if let Some(at) = retry.filter(|at| *at > self.now) {
            told.sentence = format!(
                "{} failed and is tried again in {}: {}.",
                self.name(),
                span(at.duration_since(self.now)),
                self.message
            );
            told.next.push(self.step("read what it printed", "logs"));
            return;
        }
        match &looked.outlook {
            Outlook::Starts(start) => {
                told.sentence = format!(
                    "{} can start now on {}: {}.",
                    self.name(),
                    start.places(),
                    start.why
                );
                let waited = workload::waits_since(self.found).map(|then| self.since(then));
                told.evidence.push(Evidence {
                    what: "in line".to_owned(),
                    detail: format!("for {}", waited.unwrap_or_default()),
                });
                told.next.push(Step::new(
                    "nothing is in its way; should it stay so, ask whether an operator runs",
                    format!("warp doctor{}", self.flags),
                ));
            }
            Outlook::Invalid(problem) => {
                told.sentence = format!("{} cannot be placed as it is: {problem}.", self.name());
            }
            Outlook::Waits { reason, message } => {
                (*reason).clone_into(&mut told.reason);
                // The smallest changes follow as commands: they need not be said twice.
                let message = message
                    .split("; to be placed now: ")
                    .next()
                    .unwrap_or(message);
                told.sentence = format!("{} waits for {}: {message}.", self.name(), looked.ask);
                self.obstacles(told, looked);
                let more = help::steps(self.found, reason, looked, &self.flags);
                told.next.splice(0..0, more);
                if let Some(preempts) = &looked.preempts {
                    told.evidence.push(Evidence {
                        what: "making room".to_owned(),
                        detail: format!("it {}", plan::taking(preempts)),
                    });
                }
                if let Some(rent) = &looked.rent {
                    told.evidence.push(Evidence {
                        what: "renting".to_owned(),
                        detail: rent.message.clone(),
                    });
                }
            }
        }
    }

    /// What is rented for it.
    fn rented(&self, told: &mut Why) {
        let Some(rent) = &self.status.rent else {
            return;
        };
        if let (Some(request), Some(gpu)) = (&rent.request, &rent.gpu) {
            let price = rent.price_per_hour.as_deref().unwrap_or("?");
            told.evidence.push(Evidence {
                what: "rented for it".to_owned(),
                detail: format!("{gpu} for {price} an hour (GPURequest {request})"),
            });
        }
    }

    /// Why no node takes it, who is in the way, and what would help.
    fn obstacles(&self, told: &mut Why, looked: &Look) {
        for one in &looked.evidence {
            let count = one.nodes.len();
            let mut nodes: Vec<String> = one.nodes.iter().take(NAMED).cloned().collect();
            if count > NAMED {
                nodes.push(format!("{} more", count - NAMED));
            }
            let nodes = nodes.join(", ");
            let detail = if one.example == one.reason {
                nodes
            } else {
                format!("{} ({})", nodes, one.example)
            };
            let plural = if count == 1 { "node" } else { "nodes" };
            told.evidence.push(Evidence {
                what: format!("{count} {plural} {}", one.reason),
                detail,
            });
        }
        if let Some(nearest) = &looked.nearest {
            told.held_by = nearest
                .holders
                .iter()
                .take(NAMED)
                .map(|holder| format!("{}/{} on {}", holder.namespace, holder.name, nearest.node))
                .collect();
        }
        let changes = &looked.changes[..looked.changes.len().min(CHANGES)];
        told.next = change_steps(self.found, changes, &self.flags);
        for holder in looked.in_the_way.iter().take(NAMED) {
            let flags = self.target.flags_in(Some(&holder.namespace));
            told.next.push(Step::new(
                format!(
                    "make room: {}/{} holds {} GPUs on {}",
                    holder.namespace, holder.name, holder.gpus, holder.node
                ),
                format!("warp suspend {}{flags}", holder.name),
            ));
        }
    }

    fn starts(&self, told: &mut Why, parts: &Parts) {
        told.sentence = format!(
            "{} is placed on {} and has not started: {}.",
            self.name(),
            self.node(),
            self.message
        );
        chosen(told, parts);
        self.rented(told);
        if let Some(deadline) = &self.status.deadline {
            told.evidence.push(Evidence {
                what: "given up".to_owned(),
                detail: format!("in {}", span(deadline.0.duration_since(self.now))),
            });
        }
        last_warnings(told, parts);
        told.next.push(self.step("follow it", "logs -f"));
    }

    fn runs(&self, told: &mut Why, parts: &Parts) {
        let since = self.status.start_time.as_ref();
        let since = since.map_or_else(String::new, |time| format!(" for {}", self.since(time.0)));
        let members = self.status.ready.as_ref();
        let members = members.map_or_else(String::new, |ready| format!(" with {ready} members"));
        told.sentence = format!("{} runs on {}{members}{since}.", self.name(), self.node());
        chosen(told, parts);
        self.rented(told);
        let tries = self.status.retry_count.unwrap_or(0);
        let moved = self.status.disruptions.unwrap_or(0);
        if tries + moved > 0 {
            told.evidence.push(Evidence {
                what: "tried before".to_owned(),
                detail: format!("{tries} times failed, {moved} times taken off its node"),
            });
        }
        if let Some(last) = &self.status.last_checkpoint {
            told.evidence.push(Evidence {
                what: "saved its work".to_owned(),
                detail: format!("{} ago", self.since(last.time.0)),
            });
        }
        told.next.push(self.step("read what it prints", "logs -f"));
    }

    fn succeeded(&self, told: &mut Why, parts: &Parts) {
        told.sentence = format!(
            "{} finished well{}.",
            self.name(),
            self.ran()
                .map_or_else(String::new, |ran| format!(" after {ran}"))
        );
        chosen(told, parts);
        told.next.push(self.step("read what it printed", "logs"));
        told.next.push(self.step("run it again", "retry"));
    }

    fn failed(&self, told: &mut Why, parts: &Parts) {
        let ran = self.ran();
        let ran = ran.map_or_else(String::new, |ran| format!(" after {ran}"));
        told.sentence = format!("{} failed{ran}: {}.", self.name(), self.message);
        chosen(told, parts);
        for pod in &parts.pods {
            told.evidence.extend(ends(pod));
        }
        last_warnings(told, parts);
        told.next.push(self.step("read what it printed", "logs"));
        told.next
            .push(self.step("see what happened when", "timeline"));
        told.next.push(self.step("run it again", "retry"));
    }

    fn ran(&self) -> Option<String> {
        let start = self.status.start_time.as_ref()?;
        let end = self.status.completion_time.as_ref()?;
        Some(span(end.0.duration_since(start.0)))
    }
}

/// Why its node was chosen.
fn chosen(told: &mut Why, parts: &Parts) {
    if let Some(why) = parts.placement() {
        told.evidence.push(Evidence {
            what: "placed".to_owned(),
            detail: why.to_owned(),
        });
    }
}

fn ahead(line: &[InLine]) -> Vec<Ahead> {
    line.iter()
        .enumerate()
        .map(|(at, one)| Ahead {
            position: at + 1,
            namespace: one.workload.namespace().unwrap_or_default(),
            name: one.workload.name_any(),
            gpus: one.workload.spec.total_gpus(),
            outlook: match &one.outlook {
                Outlook::Starts(start) => format!("starts on {}", start.places()),
                Outlook::Waits { reason, .. } => format!("waits too ({reason})"),
                Outlook::Invalid(_) => "cannot be placed".to_owned(),
            },
        })
        .collect()
}

/// How the containers of a pod ended, where it was not well.
fn ends(pod: &Pod) -> Vec<Evidence> {
    let statuses = pod.status.iter().flat_map(|status| {
        let init = status.init_container_statuses.iter().flatten();
        init.chain(status.container_statuses.iter().flatten())
    });
    statuses
        .filter_map(|status| {
            let ended = status.state.as_ref()?.terminated.as_ref()?;
            if ended.exit_code == 0 {
                return None;
            }
            let reason = ended.reason.as_deref().unwrap_or("Error");
            let mut detail = format!("exit code {} ({reason})", ended.exit_code);
            if let Some(last) = ended
                .message
                .as_deref()
                .and_then(|text| text.trim().lines().last())
            {
                detail = format!("{detail}: {last}");
            }
            Some(Evidence {
                what: format!("{} of {}", status.name, pod.name_any()),
                detail,
            })
        })
        .collect()
}

/// The newest warnings, each reason once.
fn last_warnings(told: &mut Why, parts: &Parts) {
    let mut warnings: Vec<_> = parts
        .events
        .iter()
        .filter(|event| event.type_.as_deref() == Some("Warning"))
        .collect();
    warnings.sort_by_key(|event| {
        let times = event.last_timestamp.as_ref().map(|time| time.0);
        std::cmp::Reverse(times)
    });
    let mut seen = Vec::new();
    for event in warnings {
        let reason = event.reason.clone().unwrap_or_default();
        if seen.len() < NAMED && !seen.contains(&reason) {
            told.evidence.push(Evidence {
                what: format!("warning {reason}"),
                detail: event.message.clone().unwrap_or_default(),
            });
            seen.push(reason);
        }
    }
}
