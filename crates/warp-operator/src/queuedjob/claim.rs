//! How queued Jobs ask for places: each that waits is a claim for the pods it wants at once, and their places become one
//! change of it. Pure but for reading the caches.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use serde_json::json;
use warp_api::reason;
use warp_api::workload::Priority;
use warp_core::estimate::Features;
use warp_core::random::Fingerprint;
use warp_core::schedule::keep::Ending;
use warp_runtime::cache::Key;
use warp_runtime::pass::Pass;
use warp_runtime::plan::{Action, Note, Plan};

use super::ask::{Ask, ask};
use super::kinds::{KINDS, QueuedKind};
use super::objects::{nodes, place, promise_id, promises, refused_nodes};
use super::observe::{is_patient, pods, priority_of, refusal};
use super::queued::Queued;
use super::standing::{Standing, standing};
use super::{Caches, Running, line_matters};
use crate::context::Context;
use crate::ledger::finished;
use crate::placement::{
    Account, Asks, Claim, Claimant, Claimants, Endings, Heard, Holder, Place, PodClaim, Runner,
    Verdict, Waking,
};
use crate::workload::{providers, started};

/// All queued objects of one kind, as those who ask for places.
#[derive(Debug)]
pub(crate) struct Claims {
    cx: Arc<Context>,
    kind: &'static QueuedKind,
    heard: Heard,
    /// None where nothing is counted.
    unheld: Option<Arc<Mutex<Unheld>>>,
}

/// Those of all kinds that run without having been placed, by controller and key.
type Unheld = BTreeSet<(&'static str, Key)>;

impl Claims {
    /// Claims of every kind, of which the changes are told.
    pub(crate) fn following(cx: &Arc<Context>) -> Vec<Box<dyn Claimants>> {
        let unheld = Arc::<Mutex<Unheld>>::default();
        let each = KINDS.iter().map(|kind| {
            let heard = Heard::default();
            follow(cx, kind, &heard);
            let claims = Self {
                cx: Arc::clone(cx),
                kind,
                heard,
                unheld: Some(Arc::clone(&unheld)),
            };
            Box::new(claims) as Box<dyn Claimants>
        });
        each.collect()
    }

    /// Claims that are read anew whenever they are asked for.
    pub(crate) fn of(cx: &Arc<Context>) -> Vec<Box<dyn Claimants>> {
        let each = KINDS.iter().map(|kind| {
            let claims = Self {
                cx: Arc::clone(cx),
                kind,
                heard: Heard::default(),
                unheld: None,
            };
            Box::new(claims) as Box<dyn Claimants>
        });
        each.collect()
    }

    /// Counts one that runs without having been placed.
    fn counts(&self, key: &Key, unheld: bool) {
        let Some(counted) = &self.unheld else {
            return;
        };
        let mut all = counted.lock();
        let one = (self.kind.controller, key.clone());
        let changed = if unheld {
            all.insert(one)
        } else {
            all.remove(&one)
        };
        if changed {
            self.cx.metrics.unheld(all.len());
        }
    }
}

/// Notes every object of a kind whose account may have changed with an object it is read from.
fn follow(cx: &Context, kind: &'static QueuedKind, heard: &Heard) {
    let noting = heard.clone();
    cx.queued.listen(move |old, new| {
        let found = old.or(new).filter(|one| one.kind.kind == kind.kind);
        noting.note(found.map(|one| Key::in_meta(&one.metadata)));
    });
    let (noting, jobs) = (heard.clone(), Arc::clone(&cx.queued));
    cx.pods.listen(move |old, new| {
        let pods = old.into_iter().chain(new);
        noting.note(pods.filter_map(|pod| jobs.maker_of(kind, pod)));
    });
    let (noting, jobs) = (heard.clone(), Arc::clone(&cx.queued));
    cx.refusals.listen(move |old, new| {
        let events = old.into_iter().chain(new);
        noting.note(events.filter_map(|event| jobs.subject_of(kind, event)));
    });
    let (noting, jobs) = (heard.clone(), Arc::clone(&cx.queued));
    cx.priorities.listen(move |_, _| {
        let all = jobs.all_of(kind);
        noting.note(all.iter().map(|job| Key::in_meta(&job.metadata)));
    });
    let (noting, jobs) = (heard.clone(), Arc::clone(&cx.queued));
    cx.defaults.listen(move |_| {
        let all = jobs.all_of(kind);
        noting.note(all.iter().map(|job| Key::in_meta(&job.metadata)));
    });
}

impl Claimants for Claims {
    fn waking(&self) -> Waking {
        let (queued, kind) = (Arc::clone(&self.cx.queued), self.kind);
        Box::new(move |scheduler| queued.wake(kind, scheduler))
    }

    fn keys(&self) -> Vec<Key> {
        let all = self.cx.queued.all_of(self.kind);
        all.iter().map(|job| Key::in_meta(&job.metadata)).collect()
    }

    fn changed(&self) -> Option<BTreeSet<Key>> {
        self.heard.take()
    }

    fn account(&self, key: &Key, now: Timestamp) -> Option<Account> {
        let cx = &self.cx;
        let job = cx.queued.get(self.kind, key);
        let Some((job, uid)) = job.and_then(|job| Some((Arc::clone(&job), job.uid()?))) else {
            self.counts(key, false);
            return None;
        };
        let pods = pods(cx, &job);
        let stands = standing(&job, &pods);
        let open = !job.over();
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
                let jobs = Some(Arc::clone(&cx.queued));
                if let Some(asking) = Asking::new(jobs, job, asked, now) {
                    account.asks = Asks::Now(Arc::new(asking));
                }
            }
        }
        account.uid = uid;
        Some(account)
    }

    fn holders(&self) -> Vec<Holder> {
        let cx = &self.cx;
        let all = cx.queued.all_of(self.kind).into_iter();
        let held = all.filter_map(|job| holder(&job, &pods(cx, &job), priority_of(cx, &job).ok()?));
        held.collect()
    }
}

/// What a placed Job holds, if it is not over.
pub(crate) fn holder(job: &Queued, pods: &[Arc<Pod>], priority: Priority) -> Option<Holder> {
    if standing(job, pods) != Standing::Placed {
        return None;
    }
    let made = job.meta().creation_timestamp.as_ref();
    let gpus = ask(job).map_or(0, |ask| ask.total_gpus());
    Some(Holder {
        key: Key::of(job),
        works: ends_of(job, pods).into_keys().collect(),
        priority,
        features: Features {
            tenant: job.namespace(),
            gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
            ..Features::default()
        },
        since: job.started.or(made.map(|time| time.0))?,
        longest_seconds: job.longest_seconds,
    })
}

/// When the pods of a Job end, and what it has been promised for others.
pub(crate) fn ends_of(job: &Queued, pods: &[Arc<Pod>]) -> Endings {
    let longest = job.longest_seconds;
    let end = |started: Option<Timestamp>| match (longest, started) {
        (Some(longest), Some(started)) => Ending::By(started.as_second().saturating_add(longest)),
        _ => Ending::Unknown,
    };
    let there = pods
        .iter()
        .filter(|pod| !finished(pod))
        .filter_map(|pod| Some((pod.uid()?, end(started(pod)))));
    let uid = job.uid().unwrap_or_default();
    let places = nodes(job).map_or(0, |nodes| nodes.len());
    let coming = (0..places).map(|at| (promise_id(&uid, at), end(None)));
    there.chain(coming).collect()
}

/// One Job that waits for its places.
#[derive(Debug)]
pub(crate) struct Asking {
    /// Where what has changed since is looked up.
    jobs: Option<Arc<Caches>>,
    job: Arc<Queued>,
    ask: Ask,
    claim: Claim,
}

impl Asking {
    /// None when its spec is wrong.
    pub(crate) fn new(
        jobs: Option<Arc<Caches>>,
        job: Arc<Queued>,
        (priority, patient): (Priority, bool),
        now: Timestamp,
    ) -> Option<Self> {
        let ask = ask(&job).ok()?;
        Some(Self {
            jobs,
            claim: claim(&job, &ask, (priority, patient), now),
            job,
            ask,
        })
    }

    /// The Job as it is known now, unless it has changed in what was decided on: its own pass may have said something
    /// about it meanwhile.
    fn newest(&self) -> Arc<Queued> {
        let newest = self.known();
        let same = |newest: &Arc<Queued>| !line_matters(Some(&self.job), Some(newest));
        newest.filter(same).unwrap_or_else(|| Arc::clone(&self.job))
    }
}

impl Asking {
    fn known(&self) -> Option<Arc<Queued>> {
        let jobs = self.jobs.as_ref()?;
        jobs.get(self.job.kind, &self.claim.key)
    }
}

impl Claimant for Asking {
    fn claim(&self) -> &Claim {
        &self.claim
    }

    fn pod(&self, member: usize, _: &str) -> PodSpec {
        let group = self.ask.of_place(member);
        group.map(|group| group.pod.clone()).unwrap_or_default()
    }

    fn plan(&self, places: &[Place], now: Timestamp) -> Plan {
        let mut plan = Plan::default();
        let newest = self.newest();
        newest.merge(&mut plan, place(&newest, &self.ask, places, now));
        let why = places.first().map_or("", |place| place.why.as_str());
        plan.push(Action::Note(Note {
            about: self.job.about(),
            warning: false,
            reason: reason::EVENT_SCHEDULED.to_owned(),
            action: Some("Place"),
            message: format!("{why}; it is resumed there"),
        }));
        plan
    }

    fn still_waits(&self, plan: &mut Plan) {
        // As long as it shows the same to the API server, what was decided holds.
        let generation = json!(self.job.meta().generation);
        let decisive = [("/metadata/generation", generation)];
        self.job.only_if_shows(plan, &decisive);
    }

    fn pass(&self, correlation: String) -> Pass {
        self.job.pass(correlation)
    }

    fn is_made(&self) -> bool {
        let job = self.known();
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
                "the API server refused the change that resumes it at its place: {message}; correct it or the namespace's policy"
            ),
        }
    }
}

fn claim(job: &Queued, ask: &Ask, (priority, patient): (Priority, bool), now: Timestamp) -> Claim {
    let uid = job.uid().unwrap_or_default();
    let generation = job.meta().generation.unwrap_or_default();
    let resource: Arc<str> = Arc::from(ask.resource);
    let pods = ask.groups.iter().flat_map(|group| {
        let pod = PodClaim {
            gpus: group.gpus.clone(),
            resource: Some(Arc::clone(&resource)),
            meta: group.meta.clone(),
            spec: group.without_gpus(ask.resource),
        };
        std::iter::repeat_n(pod, group.pods)
    });
    Claim {
        controller: job.kind.controller,
        key: Key::of(job),
        dice: Fingerprint::default().text(&uid).signed(generation).get(),
        uid,
        generation,
        version: job.resource_version().unwrap_or_default(),
        created: job.creation_timestamp().map(|time| time.0),
        priority,
        asked_priority: priority,
        patient,
        max_runtime_seconds: job.longest_seconds,
        serves: false,
        saved_seconds: 0,
        has_run: false,
        saves: false,
        strategy: None,
        providers: providers(job),
        shown_since: None,
        avoided: refused_nodes(job, now)
            .into_iter()
            .map(|(node, _)| Arc::from(node))
            .collect(),
        near: None,
        least: ask.pods(),
        pods: pods.collect(),
        makes_job: false,
    }
}
