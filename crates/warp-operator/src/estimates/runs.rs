//! How long finished work has run: for each kind of work the last runs, bounded, as text that survives a restart. What
//! the estimator knows is made from this alone, so a restart forgets nothing that was kept. Pure.

use std::collections::VecDeque;

use jiff::Timestamp;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use warp_api::GPUWorkload;
use warp_core::estimate::{Durations, Features};

use super::is_over;
use crate::workload::features;

/// Runs kept of one kind of work.
const EACH: usize = 32;
/// Kinds of work kept: those seen last.
const KINDS: usize = 200;
/// Characters kept of an image's name.
const LONGEST: usize = 200;

/// One run that has ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Ended {
    /// Whose, for the audit trail.
    pub(super) object: String,
    features: Features,
    seconds: u32,
    at: Timestamp,
    /// It was seen before it ended: nobody has learnt from it yet.
    fresh: bool,
}

impl Ended {
    /// What a change of a workload teaches, if it has ended with it. GPUs are held from the placement on.
    pub(super) fn of(old: Option<&GPUWorkload>, new: Option<&GPUWorkload>) -> Option<Self> {
        let workload = new.filter(|workload| is_over(workload))?;
        if old.is_some_and(is_over) {
            return None;
        }
        let status = workload.status.as_ref()?;
        let begun = status.last_schedule_time.as_ref()?.0;
        let at = status.completion_time.as_ref()?.0;
        let seconds = at.duration_since(begun).as_secs();
        let namespace = workload.namespace().unwrap_or_default();
        Some(Self {
            object: format!("GPUWorkload/{namespace}/{}", workload.name_any()),
            features: features(workload),
            seconds: u32::try_from(seconds).ok()?,
            at,
            fresh: old.is_some(),
        })
    }
}

/// What has been learnt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Runs {
    /// When the last of them ended.
    until: Option<Timestamp>,
    /// The kinds of work, the one seen last at the end.
    kinds: Vec<KindOfWork>,
    /// `until` as it was read: what ended before has been learnt by an earlier process.
    #[serde(skip)]
    known: Option<Timestamp>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct KindOfWork {
    namespace: String,
    model: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    gpus: u32,
    /// Run times, the newest last.
    seconds: VecDeque<u32>,
}

impl KindOfWork {
    fn of(features: &Features) -> Self {
        let image = features.image.as_ref();
        Self {
            namespace: features.tenant.clone().unwrap_or_default(),
            model: features.model.clone().unwrap_or_default(),
            image: image.map(|image| image.chars().take(LONGEST).collect()),
            gpus: features.gpus,
            seconds: VecDeque::new(),
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        (&self.namespace, &self.model, &self.image, self.gpus)
            == (&other.namespace, &other.model, &other.image, other.gpus)
    }

    fn features(&self) -> Features {
        Features {
            tenant: Some(self.namespace.clone()),
            model: Some(self.model.clone()),
            image: self.image.clone(),
            gpus: self.gpus,
        }
    }

    fn bound(&mut self) {
        let over = self.seconds.len().saturating_sub(EACH);
        self.seconds.drain(..over);
    }
}

/// Work as the learnt knows it by.
pub(crate) fn known_by(features: &Features) -> Features {
    KindOfWork::of(features).features()
}

impl Runs {
    /// What was kept; text that cannot be read is as good as none.
    pub(super) fn read(text: &str) -> Self {
        let mut runs = serde_json::from_str::<Self>(text).unwrap_or_else(|error| {
            tracing::warn!(%error, "what was learnt about run times cannot be read and is begun anew");
            Self::default()
        });
        runs.known = runs.until;
        runs.bound();
        runs
    }

    pub(super) fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    fn bound(&mut self) {
        let over = self.kinds.len().saturating_sub(KINDS);
        self.kinds.drain(..over);
        for kind in &mut self.kinds {
            kind.bound();
        }
    }

    /// Takes a run in, unless it is known; whether it was new.
    pub(super) fn learn(&mut self, run: &Ended) -> bool {
        if !run.fresh && self.known.is_some_and(|known| run.at <= known) {
            return false;
        }
        let mut kind = KindOfWork::of(&run.features);
        let found = self.kinds.iter().position(|known| known.is_same(&kind));
        if let Some(found) = found {
            kind = self.kinds.remove(found);
        }
        kind.seconds.push_back(run.seconds);
        self.kinds.push(kind);
        self.until = self.until.max(Some(run.at));
        self.bound();
        true
    }

    /// The same as the estimator reads it.
    pub(super) fn durations(&self) -> Durations {
        let mut durations = Durations::default();
        for kind in &self.kinds {
            let group = durations.group(&kind.features());
            for seconds in &kind.seconds {
                durations.observe(group, f64::from(*seconds));
            }
        }
        durations
    }
}
