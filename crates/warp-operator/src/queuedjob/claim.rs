//! How queued Jobs ask for places: each that waits is a claim for the pods it wants at once, and their places become one
//! change of it. Pure but for reading the caches.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::{Resource, ResourceExt};
use warp_api::reason;
use warp_api::workload::Priority;
use warp_core::estimate::Features;
use warp_core::random::Fingerprint;
use warp_core::schedule::keep::Ending;
use warp_runtime::cache::{Cache, Key};
use warp_runtime::pass::Pass;
use warp_runtime::plan::{Action, Note, Plan, about};

use super::ask::{Ask, ask};
use super::objects::{nodes, place, promise_id, promises, refused_nodes};
use super::observe::{is_patient, pods, priority_of, refusal};
use super::standing::{Standing, standing};
use super::{NAME, Running, line_matters};
use crate::context::Context;
use crate::ledger::Promise;
use crate::placement::{
    self, Claim, Claimant, Claimants, Endings, Holder, Open, Place, PodClaim, Runner, Verdict,
};
use crate::workload::{over, providers, started};

/// What of a Job decides that something is done on its behalf. As long as it shows the same to the API server, what was
/// decided holds.
const DECISIVE: [&str; 3] = [
    "/metadata/generation",
    "/metadata/deletionTimestamp",
    "/spec/suspend",
];

/// All queued Jobs, as those who ask for places.
#[derive(Debug)]
pub(crate) struct Claims {
    cx: Arc<Context>,
}

impl Claims {
    pub(crate) fn of(cx: &Arc<Context>) -> Box<dyn Claimants> {
        Box::new(Self { cx: Arc::clone(cx) })
    }
}

impl Claimants for Claims {
    fn open(&self, now: Timestamp) -> Open {
        let (cx, mut open, mut unheld) = (&self.cx, Open::default(), 0);
        for job in cx.queued.all().into_iter().filter(|job| !over(job)) {
            open.uids.extend(job.uid());
            match standing(&job, &pods(cx, &job)) {
                Standing::Unheld => unheld += 1,
                Standing::Queued => {
                    let uid = job.meta().uid.as_deref().unwrap_or_default();
                    let generation = job.meta().generation.unwrap_or_default();
                    let held = cx.verdicts.held_until(uid, generation);
                    if held.is_some_and(|until| until > now) {
                        open.held_back.extend(job.uid());
                        continue;
                    }
                    // One whose spec is wrong is told so by its own pass.
                    let Ok(priority) = priority_of(cx, &job) else {
                        continue;
                    };
                    let patient = is_patient(cx, &job);
                    let asking = Asking::new(&cx.queued, job, (priority, patient), now);
                    let asking = asking.map(|asking| Arc::new(asking) as Arc<dyn Claimant>);
                    open.claimants.extend(asking);
                }
                _ => {}
            }
        }
        cx.metrics.unheld(unheld);
        open
    }

    fn promises(&self) -> Vec<Promise> {
        let cx = &self.cx;
        let placed = cx.queued.all().into_iter();
        let kept = placed.flat_map(|job| {
            let pods = pods(cx, &job);
            // Pods that are refused may never come; others may have the GPUs until they do.
            let reserves = standing(&job, &pods) == Standing::Placed && refusal(cx, &job).is_none();
            if reserves {
                promises(&job, &pods)
            } else {
                Vec::new()
            }
        });
        kept.collect()
    }

    fn runners(&self, _: Timestamp) -> Vec<Arc<dyn Runner>> {
        let cx = &self.cx;
        let all = cx.queued.all().into_iter();
        let running = all.filter_map(|job| {
            let pods = pods(cx, &job);
            Running::of(&job, &pods, priority_of(cx, &job).ok()?)
        });
        running
            .map(|one| Arc::new(one) as Arc<dyn Runner>)
            .collect()
    }

    fn endings(&self) -> Endings {
        let cx = &self.cx;
        let all = cx.queued.all().into_iter();
        all.flat_map(|job| ends_of(&job, &pods(cx, &job))).collect()
    }

    fn holders(&self) -> Vec<Holder> {
        let cx = &self.cx;
        let all = cx.queued.all().into_iter();
        let held = all.filter_map(|job| holder(&job, &pods(cx, &job), priority_of(cx, &job).ok()?));
        held.collect()
    }
}

/// What a placed Job holds, if it is not over.
pub(crate) fn holder(job: &Job, pods: &[Arc<Pod>], priority: Priority) -> Option<Holder> {
    if standing(job, pods) != Standing::Placed {
        return None;
    }
    let status = job.status.as_ref();
    let started = status.and_then(|status| status.start_time.as_ref());
    let made = job.meta().creation_timestamp.as_ref();
    let places = nodes(job).map_or(0, |nodes| nodes.len());
    let each = ask(job).map_or(0, |ask| ask.gpus.count);
    Some(Holder {
        key: Key::of(job),
        works: ends_of(job, pods).into_keys().collect(),
        priority,
        features: Features {
            tenant: job.namespace(),
            gpus: each.saturating_mul(u32::try_from(places).unwrap_or(u32::MAX)),
            ..Features::default()
        },
        since: started.or(made)?.0,
        longest_seconds: longest(job),
    })
}

/// When the pods of a Job end, and what it has been promised for others.
pub(crate) fn ends_of(job: &Job, pods: &[Arc<Pod>]) -> Endings {
    let longest = longest(job);
    let end = |started: Option<Timestamp>| match (longest, started) {
        (Some(longest), Some(started)) => Ending::By(started.as_second().saturating_add(longest)),
        _ => Ending::Unknown,
    };
    let there = pods
        .iter()
        .filter_map(|pod| Some((pod.uid()?, end(started(pod)))));
    let uid = job.uid().unwrap_or_default();
    let places = nodes(job).map_or(0, |nodes| nodes.len());
    let coming = (0..places).map(|at| (promise_id(&uid, at), end(None)));
    there.chain(coming).collect()
}

/// The longest it may run.
fn longest(job: &Job) -> Option<i64> {
    let spec = job.spec.as_ref()?;
    let pod = spec.template.spec.as_ref();
    let of_pod = pod.and_then(|pod| pod.active_deadline_seconds);
    spec.active_deadline_seconds.into_iter().chain(of_pod).min()
}

/// One Job that waits for its places.
#[derive(Debug)]
pub(crate) struct Asking {
    jobs: Cache<Job>,
    job: Arc<Job>,
    ask: Ask,
    claim: Claim,
}

impl Asking {
    /// None when its spec is wrong.
    pub(crate) fn new(
        jobs: &Cache<Job>,
        job: Arc<Job>,
        (priority, patient): (Priority, bool),
        now: Timestamp,
    ) -> Option<Self> {
        let ask = ask(&job).ok()?;
        Some(Self {
            jobs: jobs.clone(),
            claim: claim(&job, &ask, (priority, patient), now),
            job,
            ask,
        })
    }

    /// The Job as it is known now, unless it has changed in what was decided on: its own pass may have said something
    /// about it meanwhile.
    fn newest(&self) -> Arc<Job> {
        let newest = self.jobs.get(&self.claim.key);
        let same = |newest: &Arc<Job>| !line_matters(Some(&self.job), Some(newest));
        newest.filter(same).unwrap_or_else(|| Arc::clone(&self.job))
    }
}

impl Claimant for Asking {
    fn claim(&self) -> &Claim {
        &self.claim
    }

    fn pod(&self, _: usize, _: &str) -> PodSpec {
        self.ask.pod.clone()
    }

    fn plan(&self, places: &[Place]) -> Plan {
        let mut plan = Plan::default();
        plan.merge(&*self.newest(), place(&self.ask.pod, places));
        let why = places.first().map_or("", |place| place.why.as_str());
        plan.push(Action::Note(Note {
            about: about(&*self.job),
            warning: false,
            reason: reason::EVENT_SCHEDULED.to_owned(),
            action: Some("Place"),
            message: format!("{why}; it is resumed there"),
        }));
        plan
    }

    fn still_waits(&self, plan: &mut Plan) {
        plan.only_if_shows(&*self.job, &DECISIVE);
    }

    fn pass(&self, correlation: String) -> Pass {
        let (component, manager) = (placement::NAME, placement::MANAGER);
        Pass::over(component, manager, &*self.job, correlation)
    }

    fn is_made(&self) -> bool {
        let job = self.jobs.get(&self.claim.key);
        job.is_some_and(|job| job.uid() == self.job.uid() && nodes(&job).is_some())
    }

    fn taken(&self) -> Verdict {
        Verdict {
            reason: reason::JOB_REJECTED,
            message: "somebody else changed it while it was being placed; it is tried again"
                .to_owned(),
        }
    }

    fn rejected(&self, message: &str) -> Verdict {
        Verdict {
            reason: reason::JOB_REJECTED,
            message: format!(
                "the API server refused the change that resumes it at its place: {message}; correct the Job or the namespace's policy"
            ),
        }
    }
}

fn claim(job: &Job, ask: &Ask, (priority, patient): (Priority, bool), now: Timestamp) -> Claim {
    let uid = job.uid().unwrap_or_default();
    let generation = job.meta().generation.unwrap_or_default();
    let pod = PodClaim {
        gpus: ask.gpus.clone(),
        resource: Some(Arc::from(ask.resource)),
        meta: ask.meta.clone(),
        spec: ask.without_gpus(),
    };
    Claim {
        controller: NAME,
        key: Key::of(job),
        dice: Fingerprint::default().text(&uid).signed(generation).get(),
        uid,
        generation,
        version: job.resource_version().unwrap_or_default(),
        created: job.creation_timestamp().map(|time| time.0),
        priority,
        patient,
        max_runtime_seconds: longest(job),
        strategy: None,
        providers: providers(job),
        avoided: refused_nodes(job, now)
            .into_iter()
            .map(|(node, _)| Arc::from(node))
            .collect(),
        near: None,
        pods: vec![pod; ask.pods],
        makes_job: false,
    }
}
