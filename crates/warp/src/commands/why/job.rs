//! The answer about work of others that is queued, a Job or of another kind: from what the operator wrote on it, and from the scheduler's own
//! functions on a snapshot while it waits.

use std::sync::Arc;

use anyhow::{Context, bail};
use jiff::Timestamp;
use kube::{Api, ResourceExt};
use warp_api::{GPUWorkload, Phase, label, reason};
use warp_operator::foresight::{
    End, KINDS, Outlook, Queued, Waiter, everybody, kind_named, outlook_of_job,
};

use super::{Ahead, Evidence, Step, Why};
use crate::cluster::live::Live;
use crate::cluster::{Connection, Target, queued, told};
use crate::output;

/// The queued object a name stands for: `job/NAME`, `pytorchjob/NAME` and so on, or `NAME` where no workload has it.
pub(crate) async fn find(
    connection: &Connection,
    name: &str,
) -> anyhow::Result<Option<Arc<Queued>>> {
    let (client, namespace) = (connection.client.clone(), &connection.namespace);
    let Some((kind, bare)) = name.split_once('/') else {
        let workloads: Api<GPUWorkload> = Api::namespaced(client.clone(), namespace);
        if workloads.get_opt(name).await.map_err(told)?.is_some() {
            return Ok(None);
        }
        for kind in KINDS {
            // Who may not read them hears about workloads.
            let found = queued::get(&client, kind, namespace, name).await;
            if let Some(found) = found.ok().flatten().filter(|one| one.asks() != Some(false)) {
                return Ok(Some(found));
            }
        }
        return Ok(None);
    };
    let Some(kind) = kind_named(kind) else {
        return Ok(None);
    };
    let singular = kind.singular;
    let found = queued::get(&client, kind, namespace, bare).await;
    let found = found.map_err(told);
    let found = found.with_context(|| format!("failed to look for the {singular} {bare}"))?;
    match found {
        Some(found) if found.asks() != Some(false) => Ok(Some(found)),
        Some(_) => bail!(
            "the {singular} {bare} is not queued: give it the label {}=true before it starts",
            label::QUEUE
        ),
        None => bail!("no {singular} \"{bare}\" in namespace {namespace}"),
    }
}

/// Everything there is to say about it.
pub(super) async fn tell(
    connection: &Connection,
    job: &Queued,
    target: &Target,
) -> anyhow::Result<Why> {
    let said = |name: &str| job.annotations().get(name).map(String::as_str);
    let name = job.title();
    let mut why = Why {
        workload: name.clone(),
        namespace: job.namespace().unwrap_or_default(),
        reason: said(label::QUEUE_REASON)
            .unwrap_or(reason::QUEUED)
            .to_owned(),
        phase: Phase::Pending,
        ..Why::default()
    };
    let nodes = said(label::NODES).map(|nodes| {
        let mut nodes: Vec<&str> = nodes.split(',').collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.join(", ")
    });
    if let Some(placement) = said(label::PLACEMENT) {
        why.evidence.push(Evidence {
            what: "chosen".to_owned(),
            detail: placement.to_owned(),
        });
    }
    let own = kubectl(&why.namespace, &name);
    if job.asks().is_none() {
        let said = job.labels().get(label::QUEUE);
        why.sentence = format!(
            "{name} is not queued: its label {} is '{}', and only \"true\" asks for it.",
            label::QUEUE,
            said.map_or("", String::as_str)
        );
    } else if let Some(End::Badly(message)) = &job.end {
        (why.phase, why.sentence) = (Phase::Failed, format!("{name} failed: {message}."));
        why.next
            .push(Step::new("read what it printed", own("logs")));
    } else if job.end == Some(End::Well) {
        (why.phase, why.sentence) = (Phase::Succeeded, format!("{name} finished well."));
        why.next
            .push(Step::new("read what it printed", own("logs")));
    } else if !job.suspended() {
        let ready = job.ready;
        why.phase = if ready > 0 {
            Phase::Running
        } else {
            Phase::Scheduled
        };
        why.sentence = match nodes {
            Some(nodes) if ready > 0 => format!("{name} runs on {nodes}."),
            Some(nodes) => {
                format!("{name} is placed on {nodes}; its pods are being created and started.")
            }
            None => format!(
                "{name} runs without having been placed: it was not suspended when it came, or was resumed by hand."
            ),
        };
        why.next
            .push(Step::new("read what it prints", own("logs -f")));
    } else {
        waits(connection, job, target, &mut why).await?;
    }
    Ok(why)
}

/// A command of kubectl's about it.
fn kubectl(namespace: &str, name: &str) -> impl Fn(&str) -> String + use<> {
    let rest = format!("-n {namespace} {name}");
    move |verb| format!("kubectl {verb} {rest}")
}

/// It is suspended: what keeps it so.
async fn waits(
    connection: &Connection,
    job: &Queued,
    target: &Target,
    why: &mut Why,
) -> anyhow::Result<()> {
    let said = |name: &str| job.annotations().get(name).map(String::as_str);
    let name = why.workload.clone();
    let message = said(label::WAITING_FOR).unwrap_or("the operator has not looked at it yet");
    why.sentence = format!("{name} waits: {}.", message.trim_end_matches('.'));
    if let Some(position) = said(label::QUEUE_POSITION) {
        why.evidence.push(Evidence {
            what: "place in line".to_owned(),
            detail: position.to_owned(),
        });
    }
    why.estimated_start = job.estimated_start();
    why.expected = why.estimated_start.as_ref().map(|start| {
        format!(
            "Expected to start {}.",
            crate::workload::start(start, Timestamp::now())
        )
    });
    let live = match Live::read(&connection.client).await {
        Ok(live) => live,
        Err(error) => {
            why.notes.push(format!(
                "only what the operator said last is shown: {}",
                output::words(&error)
            ));
            return Ok(());
        }
    };
    why.notes.extend(live.caveat());
    let (settings, now) = (&live.settings, Timestamp::now());
    let Some(outlook) = outlook_of_job(&live.cluster, job, settings, now) else {
        return Ok(());
    };
    let line = everybody(&live.cluster, settings, now);
    let ahead = line.iter().take_while(|waiter| match waiter {
        Waiter::Job(other) => other.job.uid() != job.uid(),
        Waiter::Workload(_) => true,
    });
    why.ahead = ahead
        .enumerate()
        .map(|(at, waiter)| ahead_of(at + 1, waiter))
        .collect();
    match outlook {
        Outlook::Starts(start) => {
            why.sentence = format!("{name} can start now on {}: {}.", start.places(), start.why);
            why.next.push(Step::new(
                "nothing is in its way; should it stay so, ask whether an operator runs",
                format!("warp doctor{}", target.flags()),
            ));
        }
        Outlook::Waits { reason, message } => {
            reason.clone_into(&mut why.reason);
            why.sentence = format!("{name} waits: {message}.");
        }
        Outlook::Invalid(problem) => {
            why.sentence = format!("{name} cannot be placed as it is: {problem}.");
        }
    }
    Ok(())
}

/// Somebody before it in line, as its own words have it.
fn ahead_of(position: usize, waiter: &Waiter) -> Ahead {
    match waiter {
        Waiter::Workload(other) => Ahead {
            position,
            namespace: other.namespace().unwrap_or_default(),
            name: other.name_any(),
            gpus: other.spec.total_gpus(),
            outlook: "waits too".to_owned(),
        },
        Waiter::Job(other) => Ahead {
            position,
            namespace: other.job.namespace().unwrap_or_default(),
            name: other.job.title(),
            gpus: i32::try_from(other.gpus).unwrap_or(i32::MAX),
            outlook: "waits too".to_owned(),
        },
    }
}
