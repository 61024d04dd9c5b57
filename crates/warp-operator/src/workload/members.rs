//! What the Job and the pods of a gang mean: the worst of what its members say. Pure.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::{Resource, ResourceExt};
use warp_api::workload::fold_nodes;
use warp_api::{GPUWorkload, GPUWorkloadStatus, Phase, reason};

use super::Seen;
use super::assess::{
    Standing, Wait, answers, can_run, lost, past_start, pods_refused, start_deadline, with_pod,
};
use super::failure;
use super::gang::{is_gated, nodes, rank};
use super::pod::{ended, pod_phase, started};
use crate::config::Settings;
use crate::ledger::node_of;

/// A gang's Job that has not completed, and its pods.
pub(super) struct Members<'a> {
    pub(super) workload: &'a GPUWorkload,
    pub(super) job: &'a Job,
    pub(super) pods: &'a [&'a Pod],
    /// How many there should be.
    pub(super) size: usize,
    pub(super) seen: &'a Seen,
    pub(super) settings: &'a Settings,
    pub(super) now: Timestamp,
}

impl Members<'_> {
    /// Where a gang stands whose Job has neither failed nor been suspended. Whatever ends one member ends all: that is
    /// looked for first, so that nothing more is let go.
    pub(super) fn standing(&self) -> Standing {
        if let Some(standing) = self.ending() {
            return standing;
        }
        let standings: Vec<(&Pod, Standing)> = self.each().collect();
        let worst = standings.into_iter().max_by_key(|(_, found)| weight(found));
        if let Some((_, stop @ (Standing::Failed(_) | Standing::Refused { .. }))) = worst {
            return stop;
        }
        let here: BTreeSet<usize> = self.staying().filter_map(rank).collect();
        let mut missing = (0..self.size).filter(|member| !here.contains(member));
        if let Some(first) = missing.next() {
            return self.incomplete(first, 1 + missing.count());
        }
        if self.staying().any(is_gated) {
            return Standing::Gated(self.placed());
        }
        match worst {
            None => Standing::Settling,
            Some((_, Standing::Running { .. })) => Standing::Running {
                since: self.pods.iter().filter_map(|pod| started(pod)).max(),
            },
            Some((pod, Standing::Waiting(wait))) => Standing::Waiting(self.told(pod, &wait)),
            Some((_, other)) => other,
        }
    }

    /// The Job has failed and pods of it still end: what the first cause was is known when they have, unless the node of
    /// one is silent.
    pub(super) fn stopping(&self) -> Standing {
        let silent = self.each().find_map(|(_, found)| match found {
            Standing::Waiting(wait) if wait.reason == reason::NODE_LOST => Some(wait),
            _ => None,
        });
        silent.map_or(Standing::Settling, Standing::Waiting)
    }

    /// What ends the whole gang, if anything has happened that does.
    fn ending(&self) -> Option<Standing> {
        let Self { seen, settings, .. } = *self;
        let answers = |name: &str| answers(name, seen, settings);
        let mut taken = self.pods.iter();
        if let Some(failure) = taken.find_map(|pod| failure::taken_away(pod, &answers)) {
            return Some(Standing::Failed(failure));
        }
        let gone = |pod: &&&Pod| {
            !ended(pod) && node_of(pod).is_some() && !can_run(pod, seen, settings, self.now)
        };
        if let Some(pod) = self.pods.iter().find(gone) {
            return Some(lost(self.workload, Some(self.job), pod, seen, settings));
        }
        // The Job says next that it has failed.
        let failed = |pod: &&Pod| pod_phase(pod) == Some("Failed");
        if self.pods.iter().any(failed) || failure::past_deadline(self.job, self.now) {
            return Some(Standing::Settling);
        }
        None
    }

    /// Pods that are not being deleted, ended ones included.
    fn staying(&self) -> impl Iterator<Item = &Pod> {
        let pods = self.pods.iter().copied();
        pods.filter(|pod| pod.meta().deletion_timestamp.is_none())
    }

    /// Where each member stands that has a pod, is let go and has not ended.
    fn each(&self) -> impl Iterator<Item = (&Pod, Standing)> {
        let nodes = nodes(self.job);
        let open = self.pods.iter().copied();
        let open = open.filter(|pod| !ended(pod) && !is_gated(pod));
        open.map(move |pod| {
            let node = rank(pod).and_then(|rank| nodes.get(rank).copied());
            let node = node.unwrap_or_default();
            let found = with_pod(self.job, pod, node, self.seen, self.settings, self.now);
            (pod, found)
        })
    }

    /// Not all pods are there yet.
    fn incomplete(&self, first: usize, missing: usize) -> Standing {
        let Self {
            job,
            seen,
            settings,
            now,
            ..
        } = *self;
        if let Some(refused) = pods_refused(job, seen, settings, now) {
            return refused;
        }
        if past_start(job, settings, now) {
            let node = nodes(job).get(first).copied().unwrap_or_default();
            return Standing::Refused {
                node: node.to_owned(),
                message: format!("{missing} of its {} pods were never created", self.size),
            };
        }
        Standing::Waiting(self.placed())
    }

    /// What is said from the placement until all pods are bound.
    fn placed(&self) -> Wait {
        Wait {
            phase: Phase::Scheduling,
            reason: reason::PLACED,
            message: format!(
                "placed on {}; its {} pods are being created and bound",
                self.places(),
                self.size
            ),
            deadline: start_deadline(self.job, self.settings),
        }
    }

    /// What one member waits for, said of the gang.
    fn told(&self, pod: &Pod, wait: &Wait) -> Wait {
        let message = match wait.reason {
            reason::PLACED => return self.placed(),
            reason::STARTING => format!(
                "{} of {} members run on {}; the others are being started",
                running(self.pods.iter().copied()),
                self.size,
                self.places()
            ),
            _ => {
                let rank = rank(pod).unwrap_or_default();
                format!("member {rank} ({}): {}", pod.name_any(), wait.message)
            }
        };
        Wait {
            message,
            ..wait.clone()
        }
    }

    fn places(&self) -> String {
        places(self.job)
    }
}

/// The nodes of a gang's Job in words.
pub(super) fn places(job: &Job) -> String {
    let status = GPUWorkloadStatus {
        assigned_nodes: fold_nodes(nodes(job)),
        ..Default::default()
    };
    status.places().unwrap_or_default()
}

/// Pods whose containers run.
pub(super) fn running<'a>(pods: impl Iterator<Item = &'a Pod>) -> usize {
    let runs =
        |pod: &&Pod| pod_phase(pod) == Some("Running") && pod.meta().deletion_timestamp.is_none();
    pods.filter(runs).count()
}

/// The gang is as far as the member that is least far.
fn weight(standing: &Standing) -> u8 {
    match standing {
        Standing::Failed(_) => 6,
        Standing::Refused { .. } => 5,
        Standing::Waiting(wait) => match wait.reason {
            reason::STARTING => 1,
            reason::PLACED => 2,
            reason::NODE_LOST => 4,
            _ => 3,
        },
        _ => 0,
    }
}
