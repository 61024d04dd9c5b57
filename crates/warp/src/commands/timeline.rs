//! `warp timeline`: what happened to a workload, when, and who did it. Told from what the API still
//! knows: what the status remembers, Events, Jobs, pods, and who wrote which fields.

use std::collections::BTreeSet;
use std::process::ExitCode;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ContainerStatus, Event, Pod};
use kube::ResourceExt;
use serde::Serialize;
use serde_json::Value;
use warp_api::GPUWorkload;

use warp_api::label;
use warp_operator::foresight::Queued;

use super::others;
use crate::cluster::{self, Target};
use crate::output::{self, Table};
use crate::workload::{self, Parts};

const OPERATOR: &str = "warp-operator";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The workload, or queued work of others as job/NAME, jobset/NAME, pytorchjob/NAME and so on
    name: String,
    #[command(flatten)]
    target: Target,
    /// How to print the result
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Table,
    /// With what caused it and the id of the pass, by which the operator's log tells the rest
    Wide,
    Json,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Entry {
    at: Timestamp,
    /// Who did it, as far as the API says.
    actor: String,
    /// What it happened to.
    object: String,
    what: String,
    /// Who had last written the spec by then.
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<String>,
    /// The operator's pass that did it.
    #[serde(skip_serializing_if = "Option::is_none")]
    correlation: Option<String>,
    /// Which comes first of what happened within one second: causes before what tells of them.
    #[serde(skip)]
    step: Step,
}

/// What leads to what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Asked,
    Placed,
    Pod,
    Bound,
    Started,
    Ended,
    Told,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(async move {
        let connection = args.target.connect().await?;
        let job = others::find(&connection, &args.name).await?;
        let (entries, parts) = if let Some(job) = job {
            let parts = Parts::read_of(&connection, &job).await?;
            (timeline_of_job(&job, &parts), parts)
        } else {
            let found = workload::find(&connection, &args.name).await?;
            let parts = Parts::read(&connection, &found).await?;
            (timeline(&found, &parts), parts)
        };
        if !parts.hidden.is_empty() {
            output::note(&format!(
                "you may not list {} in namespace {}: what they tell is missing",
                parts.hidden.join(", "),
                connection.namespace
            ));
        }
        if args.output == Format::Json {
            output::line(&serde_json::to_string_pretty(&entries)?);
            return Ok(ExitCode::SUCCESS);
        }
        output::text(&table(&entries, args.output == Format::Wide).render(true));
        Ok(ExitCode::SUCCESS)
    })
}

fn table(entries: &[Entry], wide: bool) -> Table {
    let mut heads = vec!["TIME", "AFTER", "ACTOR", "OBJECT"];
    if wide {
        heads.extend(["CAUSE", "CORRELATION"]);
    }
    heads.push("WHAT");
    let mut table = Table::new(heads);
    let first = entries.first().map(|entry| entry.at);
    for entry in entries {
        let after = first.map(|first| workload::span(entry.at.duration_since(first)));
        let mut row = vec![
            entry.at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            after.unwrap_or_default(),
            entry.actor.clone(),
            entry.object.clone(),
        ];
        if wide {
            row.extend(
                [&entry.cause, &entry.correlation].map(|text| text.clone().unwrap_or_default()),
            );
        }
        row.push(entry.what.replace('\n', " "));
        table.row(row);
    }
    table
}

/// Everything known, the earliest first.
fn timeline(found: &GPUWorkload, parts: &Parts) -> Vec<Entry> {
    let mut log = Log::default();
    log.workload(found);
    for job in &parts.jobs {
        log.job(job);
    }
    for pod in &parts.pods {
        log.pod(pod);
    }
    let remembered: BTreeSet<&str> = (found.status.iter())
        .flat_map(|status| &status.timeline)
        .map(|entry| entry.message.as_str())
        .collect();
    for event in &parts.events {
        // What the status remembers is told once.
        let own = event.involved_object.uid == found.uid();
        let message = event.message.as_deref().unwrap_or_default();
        if !(own && remembered.contains(message)) {
            log.event(event);
        }
    }
    log.in_order()
}

/// The same of queued work of others: what the queue wrote on it, its pods, and Events.
fn timeline_of_job(job: &Queued, parts: &Parts) -> Vec<Entry> {
    let mut log = Log::default();
    let object = job.title();
    let created = job.creation_timestamp().map(|time| time.0);
    let mut writers = job.metadata.managed_fields.iter().flatten();
    let maker = writers.find_map(|entry| entry.manager.clone());
    let maker = maker.as_deref().unwrap_or("unknown");
    log.add(Step::Asked, created, maker, &object, "created");
    let said = |name: &str| job.annotations().get(name);
    let time = |name: &str| said(name).and_then(|at| at.parse().ok());
    log.add(
        Step::Asked,
        time(label::QUEUED_AT),
        OPERATOR,
        &object,
        "joined the queue",
    );
    let why = said(label::PLACEMENT).map_or_else(String::new, |why| format!(": {why}"));
    log.add(
        Step::Placed,
        time(label::PLACED_AT),
        OPERATOR,
        &object,
        format!("placed{why}"),
    );
    for made in &parts.jobs {
        log.conditions(made);
    }
    for pod in &parts.pods {
        log.pod(pod);
    }
    for event in &parts.events {
        log.event(event);
    }
    let going = job.metadata.deletion_timestamp.as_ref().map(|time| time.0);
    log.add(Step::Told, going, "unknown", &object, "deletion asked for");
    log.in_order()
}

#[derive(Default)]
struct Log(Vec<Entry>);

impl Log {
    fn in_order(self) -> Vec<Entry> {
        let mut entries = self.0;
        // The API's times are whole seconds, those of Events are not.
        entries.sort_by_key(|entry| (entry.at.as_second(), entry.step, entry.at));
        entries.dedup();
        entries
    }

    fn add(
        &mut self,
        step: Step,
        at: Option<Timestamp>,
        actor: &str,
        object: &str,
        what: impl Into<String>,
    ) {
        if let Some(at) = at {
            self.0.push(Entry {
                at,
                actor: actor.to_owned(),
                object: object.to_owned(),
                what: what.into(),
                cause: None,
                correlation: None,
                step,
            });
        }
    }

    fn workload(&mut self, found: &GPUWorkload) {
        let object = format!("gpuw/{}", found.name_any());
        let created = found.creation_timestamp().map(|time| time.0);
        let mut writers: Vec<_> = found
            .managed_fields()
            .iter()
            .filter(|entry| entry.subresource.as_deref().unwrap_or_default().is_empty())
            .collect();
        writers.sort_by_key(|entry| entry.time.as_ref().map(|time| time.0));
        let name = |manager: &Option<String>| manager.clone().unwrap_or_default();
        let maker = writers.first().map(|entry| name(&entry.manager));
        self.add(
            Step::Asked,
            created,
            maker.as_deref().unwrap_or("unknown"),
            &object,
            "created",
        );
        for entry in writers {
            let at = entry.time.as_ref().map(|time| time.0);
            if at > created {
                let fields = entry
                    .fields_v1
                    .as_ref()
                    .map(|fields| spec_fields(&fields.0));
                let fields = fields.unwrap_or_default().join(", ");
                self.add(
                    Step::Asked,
                    at,
                    &name(&entry.manager),
                    &object,
                    format!("last wrote {fields}"),
                );
            }
        }
        let status = found.status.clone().unwrap_or_default();
        let remembered = status.timeline.iter().map(|entry| Entry {
            at: entry.time.0,
            actor: entry.actor.clone(),
            object: object.clone(),
            what: format!("{}: {}", entry.reason, entry.message),
            cause: Some(entry.cause.clone()),
            correlation: Some(entry.correlation.clone()),
            step: Step::Told,
        });
        self.0.extend(remembered);
        // Conditions tell only their last change, and the timeline has that.
        let conditions = status
            .conditions
            .iter()
            .filter(|_| status.timeline.is_empty());
        for condition in conditions {
            self.add(
                Step::Told,
                Some(condition.last_transition_time.0),
                OPERATOR,
                &object,
                format!(
                    "{} became {} ({}): {}",
                    condition.type_, condition.status, condition.reason, condition.message
                ),
            );
        }
        let going = found
            .metadata
            .deletion_timestamp
            .as_ref()
            .map(|time| time.0);
        self.add(Step::Told, going, "unknown", &object, "deletion asked for");
    }

    fn job(&mut self, job: &Job) {
        let object = format!("job/{}", job.name_any());
        let created = job.creation_timestamp().map(|time| time.0);
        let why = job.annotations().get(warp_api::label::PLACEMENT);
        let why = why.map_or_else(String::new, |why| format!(": {why}"));
        self.add(
            Step::Placed,
            created,
            OPERATOR,
            &object,
            format!("created{why}"),
        );
        self.conditions(job);
    }

    fn conditions(&mut self, job: &Job) {
        let object = format!("job/{}", job.name_any());
        for condition in job
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
        {
            let at = condition.last_transition_time.as_ref().map(|time| time.0);
            let message = condition.message.clone().unwrap_or_default();
            let reason = condition.reason.clone().unwrap_or_default();
            self.add(
                Step::Told,
                at,
                "job-controller",
                &object,
                spaced(&[&condition.type_, &reason, &message]),
            );
        }
    }

    fn pod(&mut self, pod: &Pod) {
        let object = format!("pod/{}", pod.name_any());
        let created = pod.creation_timestamp().map(|time| time.0);
        self.add(Step::Pod, created, "job-controller", &object, "created");
        let Some(status) = &pod.status else {
            return;
        };
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        for condition in status.conditions.iter().flatten() {
            if condition.type_ == "PodScheduled" && condition.status == "True" {
                let at = condition.last_transition_time.as_ref().map(|time| time.0);
                let node = node.unwrap_or("a node");
                self.add(
                    Step::Bound,
                    at,
                    "scheduler",
                    &object,
                    format!("bound to {node}"),
                );
            }
        }
        let actor = node.map_or_else(|| "node".to_owned(), |node| format!("node {node}"));
        let containers = status.init_container_statuses.iter().flatten();
        for container in containers.chain(status.container_statuses.iter().flatten()) {
            self.container(container, &actor, &object);
        }
    }

    fn container(&mut self, container: &ContainerStatus, actor: &str, object: &str) {
        let name = &container.name;
        let states = [&container.last_state, &container.state];
        for state in states.into_iter().flatten() {
            if let Some(running) = &state.running {
                let at = running.started_at.as_ref().map(|time| time.0);
                self.add(
                    Step::Started,
                    at,
                    actor,
                    object,
                    format!("container {name} started"),
                );
            }
            if let Some(ended) = &state.terminated {
                let started = ended.started_at.as_ref().map(|time| time.0);
                self.add(
                    Step::Started,
                    started,
                    actor,
                    object,
                    format!("container {name} started"),
                );
                let at = ended.finished_at.as_ref().map(|time| time.0);
                let reason = ended.reason.as_deref().unwrap_or_default();
                self.add(
                    Step::Ended,
                    at,
                    actor,
                    object,
                    format!("container {name} ended with {} {reason}", ended.exit_code),
                );
            }
        }
    }

    fn event(&mut self, event: &Event) {
        let about = &event.involved_object;
        let kind = match about.kind.as_deref().unwrap_or_default() {
            "GPUWorkload" => "gpuw".to_owned(),
            kind => kind.to_lowercase(),
        };
        let object = format!("{kind}/{}", about.name.as_deref().unwrap_or_default());
        let source = event
            .source
            .as_ref()
            .and_then(|source| source.component.clone());
        let actor = event
            .reporting_component
            .clone()
            .filter(|name| !name.is_empty())
            .or(source)
            .unwrap_or_else(|| "unknown".to_owned());
        let at = event
            .last_timestamp
            .as_ref()
            .or(event.first_timestamp.as_ref())
            .map(|time| time.0)
            .or_else(|| event.event_time.as_ref().map(|time| time.0))
            .or_else(|| event.creation_timestamp().map(|time| time.0));
        let times = event.count.filter(|count| *count > 1);
        let times = times.map_or_else(String::new, |count| format!(" ({count} times)"));
        let reason = event.reason.clone().unwrap_or_default();
        let message = event.message.clone().unwrap_or_default();
        self.add(
            Step::Told,
            at,
            &actor,
            &object,
            format!("{reason}: {message}{times}"),
        );
    }
}

/// The parts that say something, with spaces between.
fn spaced(parts: &[&str]) -> String {
    let said: Vec<&str> = parts
        .iter()
        .copied()
        .filter(|part| !part.is_empty())
        .collect();
    said.join(" ")
}

/// The fields of the spec, labels and annotations a writer owns.
fn spec_fields(fields: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let children = |value: &Value| -> Vec<String> {
        let keys = value
            .as_object()
            .into_iter()
            .flat_map(serde_json::Map::keys);
        keys.filter_map(|key| key.strip_prefix("f:").map(str::to_owned))
            .collect()
    };
    if let Some(spec) = fields.get("f:spec") {
        found.extend(
            children(spec)
                .into_iter()
                .map(|field| format!("spec.{field}")),
        );
    }
    if let Some(meta) = fields.get("f:metadata") {
        found.extend(
            children(meta)
                .into_iter()
                .map(|field| format!("metadata.{field}")),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    #[test]
    fn what_the_status_remembers_is_told_once_with_its_cause_and_pass() {
        let found: GPUWorkload = serde_json::from_value(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
            "metadata": {"name": "train", "uid": "u", "creationTimestamp": "2026-11-16T10:00:00Z"},
            "spec": {"modelName": "m", "gpuCount": 1, "image": "i"},
            "status": {
                "conditions": [{"type": "Ready", "status": "True", "reason": "Running", "message": "runs",
                    "lastTransitionTime": "2026-11-16T10:00:09Z"}],
                "timeline": [
                    {"time": "2026-11-16T10:00:01Z", "actor": "warp-workload", "cause": "anna", "reason": "Placed",
                        "message": "placed on node a", "correlation": "one-1"},
                    {"time": "2026-11-16T10:00:09Z", "actor": "warp-workload", "cause": "anna", "reason": "Running",
                        "message": "runs", "correlation": "one-2"}],
            },
        }))
        .unwrap();
        let event = |message: &str| -> Event {
            serde_json::from_value(json!({
                "metadata": {}, "involvedObject": {"kind": "GPUWorkload", "name": "train", "uid": "u"},
                "reason": "Scheduled", "message": message, "lastTimestamp": "2026-11-16T10:00:02Z",
                "reportingComponent": "warp-operator",
            }))
            .unwrap()
        };
        let parts = Parts {
            events: vec![
                event("placed on node a").into(),
                event("something else").into(),
            ],
            ..Parts::default()
        };
        let told = timeline(&found, &parts);
        let what: Vec<&str> = told.iter().map(|entry| entry.what.as_str()).collect();
        assert_eq!(
            what,
            [
                "created",
                "Placed: placed on node a",
                "Scheduled: something else",
                "Running: runs",
            ]
        );
        assert_eq!(told[1].cause.as_deref(), Some("anna"));
        let wide = table(&told, true).render(true);
        assert!(
            wide.contains("CORRELATION") && wide.contains("one-2"),
            "{wide}"
        );
    }

    #[test]
    fn everything_is_in_the_order_it_happened_with_its_actor() {
        let found: GPUWorkload = serde_json::from_value(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
            "metadata": {"name": "train", "creationTimestamp": "2026-11-16T10:00:00Z", "managedFields": [
                {"manager": "anna", "operation": "Apply", "time": "2026-11-16T10:00:00Z", "fieldsV1": {"f:spec": {"f:image": {}}}},
                {"manager": "warp", "operation": "Update", "time": "2026-11-16T10:00:30Z", "fieldsV1": {"f:spec": {"f:suspend": {}}}},
                {"manager": "warp-workload", "operation": "Apply", "subresource": "status", "time": "2026-11-16T10:00:40Z"}]},
            "spec": {"modelName": "m", "gpuCount": 1, "image": "i"},
            "status": {"conditions": [{"type": "Ready", "status": "False", "reason": "Queued", "message": "m",
                "lastTransitionTime": "2026-11-16T10:00:01Z"}]},
        }))
        .unwrap();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "train-0-x", "creationTimestamp": "2026-11-16T10:00:05Z"},
            "spec": {"nodeName": "a", "containers": []},
            "status": {"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": {"exitCode": 3, "reason": "Error", "startedAt": "2026-11-16T10:00:06Z", "finishedAt": "2026-11-16T10:00:20Z"}}}]},
        }))
        .unwrap();
        let parts = Parts {
            pods: vec![Arc::new(pod)],
            ..Parts::default()
        };
        let told: Vec<(String, String)> = timeline(&found, &parts)
            .into_iter()
            .map(|entry| (entry.actor, entry.what))
            .collect();
        let told: Vec<(&str, &str)> = told
            .iter()
            .map(|(actor, what)| (actor.as_str(), what.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                ("anna", "created"),
                ("warp-operator", "Ready became False (Queued): m"),
                ("job-controller", "created"),
                ("node a", "container c started"),
                ("node a", "container c ended with 3 Error"),
                ("warp", "last wrote spec.suspend"),
            ]
        );
    }
}
