//! How queued Jobs ask for places: each that waits is a claim for the pods it wants at once, and their places become one
//! change of it. Pure but for reading the caches.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
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
use super::{NAME, Running, event_key, line_matters};
use crate::context::Context;
use crate::placement::{
    self, Account, Asks, Claim, Claimant, Claimants, Endings, Heard, Holder, Place, PodClaim,
    Runner, Verdict, Waking,
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
    heard: Heard,
    /// Those that run without having been placed.
    unheld: Mutex<BTreeSet<Key>>,
}

impl Claims {
    /// Claims of which the changes are told.
    pub(crate) fn following(cx: &Arc<Context>) -> Box<dyn Claimants> {
        let heard = Heard::default();
        follow(cx, &heard);
        Box::new(Self {
            cx: Arc::clone(cx),
            heard,
            unheld: Mutex::default(),
        })
    }

    /// Counts one that runs without having been placed.
    fn counts(&self, key: &Key, unheld: bool) {
        let mut all = self.unheld.lock();
        let changed = if unheld {
            all.insert(key.clone())
        } else {
            all.remove(key)
        };
        if changed {
            self.cx.metrics.unheld(all.len());
        }
    }
}

/// Notes every Job whose account may have changed with an object it is read from.
fn follow(cx: &Context, heard: &Heard) {
    let noting = heard.clone();
    cx.queued
        .listen(move |old, new| noting.note(old.or(new).map(Key::of)));
    let (noting, jobs) = (heard.clone(), cx.queued.clone());
    cx.pods.listen(move |old, new| {
        let pods = old.into_iter().chain(new);
        noting.note(pods.filter_map(|pod| maker_key(&jobs, pod)));
    });
    let (noting, jobs) = (heard.clone(), cx.queued.clone());
    cx.refusals.listen(move |old, new| {
        let events = old.into_iter().chain(new);
        noting.note(events.filter_map(|event| event_key(&jobs, event)));
    });
    let (noting, jobs) = (heard.clone(), cx.queued.clone());
    cx.priorities.listen(move |_, _| {
        let all = jobs.all();
        noting.note(all.iter().map(|job| Key::of(&**job)));
    });
}

/// The queued Job that made a pod.
fn maker_key(jobs: &Cache<Job>, pod: &Pod) -> Option<Key> {
    let owner = pod.owner_references().first()?;
    let key = Key::new(&pod.namespace()?, &owner.name);
    jobs.get(&key).map(|_| key)
}

impl Claimants for Claims {
    fn waking(&self) -> Waking {
        let queued = self.cx.queued.clone();
        Box::new(move |scheduler| scheduler.watches(&queued, line_matters))
    }

    fn keys(&self) -> Vec<Key> {
        let all = self.cx.queued.all();
        all.iter().map(|job| Key::of(&**job)).collect()
    }

    fn changed(&self) -> Option<BTreeSet<Key>> {
        self.heard.take()
    }

    fn account(&self, key: &Key, now: Timestamp) -> Option<Account> {
        let cx = &self.cx;
        let job = cx.queued.get(key);
        let Some((job, uid)) = job.and_then(|job| Some((Arc::clone(&job), job.uid()?))) else {
            self.counts(key, false);
            return None;
        };
        let pods = pods(cx, &job);
        let stands = standing(&job, &pods);
        let open = !over(&job);
        self.counts(key, open && stands == Standing::Unheld);
        let priority = priority_of(cx, &job);
        // Pods that are refused may never come; others may have the GPUs until they do.
        let reserves = stands == Standing::Placed && refusal(cx, &job).is_none();
        let running = (priority.as_ref().ok()).and_then(|one| Running::of(&job, &pods, *one));
        let mut account = Account {
            open,
            promises: if reserves {
                promises(&job, &pods)
            } else {
                Vec::new()
            },
            endings: if open {
                ends_of(&job, &pods)
            } else {
                Endings::new()
            },
            runner: running.map(|one| Arc::new(one) as Arc<dyn Runner>),
            ..Account::default()
        };
        if open && stands == Standing::Queued {
            let generation = job.meta().generation.unwrap_or_default();
            let held = cx.verdicts.held_until(&uid, generation);
            if let Some(until) = held.filter(|until| *until > now) {
                account.again = Some(until);
                account.asks = Asks::HeldBack;
            } else if let Ok(priority) = priority {
                // One whose spec is wrong is told so by its own pass.
                let refused = refused_nodes(&job, now).into_iter();
                account.again = refused.map(|(_, until)| until).min();
                let asked = (priority, is_patient(cx, &job));
                if let Some(asking) = Asking::new(&cx.queued, job, asked, now) {
                    account.asks = Asks::Now(Arc::new(asking));
                }
            }
        }
        account.uid = uid;
        Some(account)
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
        saved_seconds: 0,
        has_run: false,
        saves: false,
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
