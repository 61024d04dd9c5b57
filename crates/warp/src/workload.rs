//! One workload and everything that belongs to it, read for the verbs that tell of it.

use anyhow::{Context, bail};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::core::ObjectMeta;
use kube::{Api, ResourceExt};
use std::sync::Arc;
use warp_api::workload::EstimatedStart;
use warp_api::{GPUWorkload, Phase, label};
use warp_operator::foresight::Queued;

use crate::cluster::live::in_namespace;
use crate::cluster::{Connection, told};

/// Names of the kind that may stand before a workload's.
const KINDS: [&str; 5] = [
    "gpuw",
    "gpuworkload",
    "gpuworkloads",
    "gpuworkload.gpu.warp.dev",
    "gpuworkloads.gpu.warp.dev",
];

/// A workload's own name, from `NAME` or `gpuw/NAME`.
pub(crate) fn bare(name: &str) -> anyhow::Result<&str> {
    match name.split_once('/') {
        None => Ok(name),
        Some((kind, name)) if KINDS.contains(&kind) => Ok(name),
        Some((kind, _)) => {
            bail!("this verb is about GPUWorkloads, not about {kind}; name one, such as gpuw/train")
        }
    }
}

pub(crate) fn api(connection: &Connection) -> Api<GPUWorkload> {
    Api::namespaced(connection.client.clone(), &connection.namespace)
}

/// The workload of that name.
pub(crate) async fn find(connection: &Connection, name: &str) -> anyhow::Result<GPUWorkload> {
    let name = bare(name)?;
    let found = api(connection)
        .get_opt(name)
        .await
        .map_err(told)
        .with_context(|| format!("failed to look for the workload {name}"))?;
    found.with_context(|| {
        format!(
            "no workload \"{name}\" in namespace {}; `warp get gpuw -A` lists all",
            connection.namespace
        )
    })
}

pub(crate) fn phase(workload: &GPUWorkload) -> Phase {
    let status = workload.status.as_ref();
    status.and_then(|status| status.phase).unwrap_or_default()
}

/// The reason and the sentence of the `Ready` condition.
pub(crate) fn said(workload: &GPUWorkload) -> Option<(&str, &str)> {
    let status = workload.status.as_ref()?;
    let ready = warp_api::condition::find(&status.conditions, warp_api::condition::READY)?;
    Some((&ready.reason, ready.message.trim_end_matches('.')))
}

/// Jobs, pods and Events of one workload. What may not be read is left out.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    pub(crate) jobs: Vec<Arc<Job>>,
    pub(crate) pods: Vec<Arc<Pod>>,
    pub(crate) events: Vec<Arc<Event>>,
    /// Kinds that may not be read.
    pub(crate) hidden: Vec<&'static str>,
}

impl Parts {
    pub(crate) async fn read(
        connection: &Connection,
        workload: &GPUWorkload,
    ) -> anyhow::Result<Self> {
        let uid = workload.uid().unwrap_or_default();
        let own = ListParams::default().labels(&format!("{}={uid}", label::WORKLOAD_UID));
        let mut parts = Self::default();
        let (client, namespace) = (&connection.client, &connection.namespace);
        let jobs = in_namespace(client, namespace, &own).await;
        parts.jobs = parts.allowed("jobs", jobs)?;
        let pods = in_namespace(client, namespace, &own).await;
        parts.pods = parts.allowed("pods", pods)?;
        let events = in_namespace(client, namespace, &ListParams::default()).await;
        let events: Vec<Arc<Event>> = parts.allowed("events", events)?;
        let mut own = vec![uid];
        own.extend(parts.jobs.iter().filter_map(|job| job.uid()));
        own.extend(parts.pods.iter().filter_map(|pod| pod.uid()));
        parts.events = events
            .into_iter()
            .filter(|event| {
                let about = event.involved_object.uid.as_ref();
                about.is_some_and(|uid| own.contains(uid))
            })
            .collect();
        parts
            .jobs
            .sort_by_key(|job| job.creation_timestamp().map(|time| time.0));
        parts
            .pods
            .sort_by_key(|pod| pod.creation_timestamp().map(|time| time.0));
        Ok(parts)
    }

    /// The same of queued work of others: the Job itself where it is one, what belongs to it, and Events of all of them.
    pub(crate) async fn read_of(connection: &Connection, job: &Queued) -> anyhow::Result<Self> {
        let uid = job.uid().unwrap_or_default();
        let mut parts = Self::default();
        let (client, namespace) = (&connection.client, &connection.namespace);
        let everything = ListParams::default();
        let jobs = in_namespace(client, namespace, &everything).await;
        let jobs: Vec<Arc<Job>> = parts.allowed("jobs", jobs)?;
        let belongs = |meta: &ObjectMeta, own: &[String]| {
            let mut owners = meta.owner_references.iter().flatten();
            owners.any(|owner| own.contains(&owner.uid))
        };
        let mut own = vec![uid.clone()];
        parts.jobs = jobs
            .into_iter()
            .filter(|one| one.uid().as_ref() == Some(&uid) || belongs(&one.metadata, &own))
            .collect();
        own.extend(parts.jobs.iter().filter_map(|job| job.uid()));
        let pods = in_namespace(client, namespace, &everything).await;
        let pods: Vec<Arc<Pod>> = parts.allowed("pods", pods)?;
        parts.pods = pods
            .into_iter()
            .filter(|pod| {
                let queued = pod.labels().get(label::QUEUED_UID);
                queued == Some(&uid) || belongs(&pod.metadata, &own)
            })
            .collect();
        own.extend(parts.pods.iter().filter_map(|pod| pod.uid()));
        let events = in_namespace(client, namespace, &everything).await;
        let events: Vec<Arc<Event>> = parts.allowed("events", events)?;
        let about = |event: &Arc<Event>| {
            let uid = event.involved_object.uid.as_ref();
            uid.is_some_and(|uid| own.contains(uid))
        };
        parts.events = events.into_iter().filter(about).collect();
        Ok(parts)
    }

    fn allowed<K>(
        &mut self,
        what: &'static str,
        answer: Result<Vec<Arc<K>>, kube::Error>,
    ) -> anyhow::Result<Vec<Arc<K>>> {
        match answer {
            Ok(found) => Ok(found),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                self.hidden.push(what);
                Ok(Vec::new())
            }
            Err(error) => Err(told(error)).with_context(|| format!("failed to list {what}")),
        }
    }

    /// The newest Job that names why its node was chosen.
    pub(crate) fn placement(&self) -> Option<&str> {
        let mut newest = self.jobs.iter().rev();
        newest.find_map(|job| job.annotations().get(label::PLACEMENT).map(String::as_str))
    }
}

/// A time span as kubectl shows ages.
pub(crate) fn span(span: SignedDuration) -> String {
    let seconds = span.as_secs().max(0);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// How long ago something was.
pub(crate) fn since(then: Timestamp) -> String {
    span(Timestamp::now().duration_since(then))
}

/// A start as people say it: `in 40m (5m to 2h)`, counted from `now`.
pub(crate) fn start(start: &EstimatedStart, now: Timestamp) -> String {
    let away = |time: Timestamp| span(time.duration_since(now));
    format!(
        "in {} ({} to {})",
        away(start.at.0),
        away(start.earliest.0),
        away(start.latest.0)
    )
}

/// When a workload began to wait: it lost its place then, or never had one.
pub(crate) fn waits_since(workload: &GPUWorkload) -> Option<Timestamp> {
    let status = workload.status.as_ref();
    let unplaced = status
        .and_then(|status| {
            warp_api::condition::find(&status.conditions, warp_api::condition::PLACED)
        })
        .filter(|placed| placed.status == "False")
        .map(|placed| placed.last_transition_time.0);
    unplaced.or_else(|| workload.creation_timestamp().map(|time| time.0))
}

/// Dollars of a price in millionths.
pub(crate) fn dollars(micros: u64) -> String {
    let cents = (micros + 5_000) / 10_000;
    format!("${}.{:02}", cents / 100, cents % 100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_carry_its_kind_and_no_other() {
        assert_eq!(bare("train").unwrap(), "train");
        assert_eq!(bare("gpuw/train").unwrap(), "train");
        let told = bare("pod/train").unwrap_err().to_string();
        assert!(told.contains("not about pod"), "{told}");
    }

    #[test]
    fn spans_and_prices_are_short() {
        let secs = SignedDuration::from_secs;
        let told = [5, 119, 120, 7_199, 7_200, 172_800].map(|count| span(secs(count)));
        assert_eq!(told, ["5s", "119s", "2m", "119m", "2h", "2d"]);
        assert_eq!(span(secs(-3)), "0s");
        assert_eq!(dollars(2_500_000), "$2.50");
        assert_eq!(dollars(999_999), "$1.00");
    }

    #[test]
    fn a_start_is_told_with_its_band_and_never_in_the_past() {
        let now: Timestamp = "2026-11-15T12:00:00Z".parse().unwrap();
        let time = |minutes: i64| {
            let at = now + SignedDuration::from_mins(minutes);
            k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at)
        };
        let expected = EstimatedStart {
            at: time(40),
            earliest: time(-2),
            latest: time(150),
        };
        assert_eq!(start(&expected, now), "in 40m (0s to 2h)");
    }
}
