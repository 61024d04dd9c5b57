//! How workloads ask for places: each waiting workload is a claim for its pods, and their places become its Job. Pure but
//! for reading the caches.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, PodSpec};
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use parking_lot::Mutex;
use warp_api::workload::{TopologyLevels, run_seconds};
use warp_api::{GPURequest, GPUWorkload, Phase, label, reason};
use warp_core::estimate::Features;
use warp_core::gpu::Catalogue;
use warp_core::random::Fingerprint;
use warp_core::schedule::keep::Ending;
use warp_runtime::cache::{Cache, Key};
use warp_runtime::pass::Pass;
use warp_runtime::plan::Plan;

use super::assess::{Placeable, placeable, silence_ends};
use super::gang::{self, promise_id};
use super::mpi;
use super::objects::{Shell, job_name, shell};
use super::observe::{Seen, given_to, reserves, see};
use super::plan::only_if_lost;
use super::{
    Given, NAME, Rank, Running, attempt, event_key, features, keys_on, line_matters, of_class,
    of_tenant, over, owner_key, owns, rank, rents,
};
use crate::context::Context;
use crate::ledger::{self, Promise, finished as finished_pod};
use crate::placement::{
    self, Account, Asks, Claim, Claimant, Claimants, Endings, FirstUser, Heard, Holder, Place,
    PodClaim, Runner, Verdict, Waking,
};
use crate::shapes::{BY_MAKER, BY_OWNER};

/// What of a workload decides that a Job is made for it. As long as it shows the same to the API server, what was
/// decided holds: a watch that is behind may hide that it is gone, suspended or further on.
const DECISIVE: [&str; 7] = [
    "/metadata/generation",
    "/metadata/deletionTimestamp",
    "/status/phase",
    "/status/jobName",
    "/status/retryCount",
    "/status/disruptions",
    "/status/refusals",
];

/// All workloads, as those who ask for places.
#[derive(Debug)]
pub(crate) struct Claims {
    cx: Arc<Context>,
    /// Where changes are followed: what was heard.
    heard: Option<Follower>,
}

#[derive(Debug)]
struct Follower {
    heard: Heard,
    /// What names of GPUs meant when claims were last read.
    catalogue: Mutex<Arc<Catalogue>>,
}

impl Claims {
    /// Claims that are read anew whenever they are asked for.
    pub(crate) fn of(cx: &Arc<Context>) -> Box<dyn Claimants> {
        let cx = Arc::clone(cx);
        Box::new(Self { cx, heard: None })
    }

    /// Claims of which the changes are told.
    pub(crate) fn following(cx: &Arc<Context>) -> Box<dyn Claimants> {
        let heard = Heard::default();
        follow(cx, &heard);
        let catalogue = Mutex::new(cx.gpus.catalogue());
        Box::new(Self {
            cx: Arc::clone(cx),
            heard: Some(Follower { heard, catalogue }),
        })
    }
}

/// Notes every workload whose account may have changed with an object it is read from.
fn follow(cx: &Context, heard: &Heard) {
    let noting = heard.clone();
    cx.workloads
        .listen(move |old, new| noting.note(old.or(new).map(Key::of)));
    let noting = heard.clone();
    cx.jobs.listen(move |old, new| {
        noting.note(old.into_iter().chain(new).filter_map(owner_key));
    });
    let (noting, jobs) = (heard.clone(), cx.jobs.clone());
    cx.pods.listen(move |old, new| {
        let made = |pod: &Pod| maker_key(&jobs, pod);
        let both = || old.into_iter().chain(new);
        noting.note(both().filter_map(owner_key));
        noting.note(both().filter_map(made));
    });
    let (noting, jobs) = (heard.clone(), cx.jobs.clone());
    cx.refusals.listen(move |old, new| {
        let events = old.into_iter().chain(new);
        noting.note(events.filter_map(|event| event_key(&jobs, event)));
    });
    let (noting, pods) = (heard.clone(), cx.pods.clone());
    cx.nodes.listen(move |old, new| {
        // How long a node has been silent decides when its pods are given up.
        let answers = |node: Option<&Node>| node.and_then(answering);
        if let Some(node) = new.or(old)
            && (ledger::node_matters(old, new) || answers(old) != answers(new))
        {
            noting.note(keys_on(&pods, node));
        }
    });
    let (noting, all) = (heard.clone(), cx.workloads.clone());
    cx.priorities.listen(move |old, new| {
        if let Some(class) = new.or(old) {
            noting.note(of_class(&all, class));
        }
    });
    let (noting, all) = (heard.clone(), cx.workloads.clone());
    cx.defaults
        .listen(move |namespace| noting.note(of_tenant(&all, namespace)));
    let (noting, all) = (heard.clone(), cx.workloads.clone());
    cx.namespaces.listen(move |old, new| {
        let forbidden = |space: Option<&Namespace>| space.is_some_and(forbids_root);
        if let Some(space) = new.or(old)
            && forbidden(old) != forbidden(new)
        {
            let here = all.in_namespace(&space.name_any());
            noting.note(here.iter().map(|workload| Key::of(&**workload)));
        }
    });
}

/// Whether a node answers, and since when.
fn answering(node: &Node) -> Option<(String, Option<Timestamp>)> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|found| found.type_ == "Ready")?;
    let since = ready.last_transition_time.as_ref().map(|time| time.0);
    Some((ready.status.clone(), since))
}

/// The workload of the Job that made a pod, whatever the pod's labels say.
fn maker_key(jobs: &Cache<Job>, pod: &Pod) -> Option<Key> {
    let owner = pod.owner_references().first()?;
    let job = jobs.get(&Key::new(&pod.namespace()?, &owner.name))?;
    owner_key(&*job)
}

impl Claimants for Claims {
    fn waking(&self) -> Waking {
        let workloads = self.cx.workloads.clone();
        // Whoever leaves the line, or stands elsewhere in it, makes way for others.
        Box::new(move |scheduler| scheduler.watches(&workloads, line_matters))
    }

    fn keys(&self) -> Vec<Key> {
        let all = self.cx.workloads.all();
        all.iter().map(|workload| Key::of(&**workload)).collect()
    }

    fn changed(&self) -> Option<BTreeSet<Key>> {
        let Follower { heard, catalogue } = self.heard.as_ref()?;
        let known = self.cx.gpus.catalogue();
        let renamed = !Arc::ptr_eq(&known, &catalogue.lock());
        *catalogue.lock() = known;
        heard.take().filter(|_| !renamed)
    }

    fn account(&self, key: &Key, now: Timestamp) -> Option<Account> {
        let cx = &self.cx;
        let workload = cx.workloads.get(key)?;
        let uid = workload.uid()?;
        let status = workload.status.as_ref();
        let phase = status.and_then(|status| status.phase);
        let finished = phase.is_some_and(Phase::is_final);
        let seen = see(cx, &workload);
        let kept = seen.jobs.iter().flat_map(|job| {
            let uid = job.meta().uid.as_deref().unwrap_or_default();
            let kept = promises(job, &cx.pods.by(BY_MAKER, uid));
            let reserved = !kept.is_empty() && reserves(cx, job);
            if reserved { kept } else { Vec::new() }
        });
        let promises: Vec<Promise> = kept.collect();
        // What has ended holds nothing that could come free.
        let jobs = seen.jobs.iter().chain(&seen.strays);
        let jobs = jobs.filter(|job| !over(job));
        let pods = seen.pods.iter().filter(|pod| !finished_pod(pod));
        let running = || {
            let known = (seen.given, &seen.catalogue);
            Running::of(&workload, &seen.jobs, &seen.pods, known, now)
        };
        let running = (!seen.pods.is_empty()).then(running).flatten();
        let saves = running.as_ref().and_then(|one| one.saves_at(now));
        let mut account = Account {
            open: !finished,
            asks: Asks::No,
            promises,
            endings: ends_of(&workload, pods, jobs),
            runner: running.map(|one| Arc::new(one) as Arc<dyn Runner>),
            again: silence_ends(&seen, &cx.settings, now)
                .into_iter()
                .chain(saves)
                .min(),
            uid,
        };
        match placeable(&workload, status, &seen, &cx.settings, now) {
            Placeable::No => {}
            Placeable::From(at) => account.again = account.again.into_iter().chain([at]).min(),
            Placeable::Held(until) => {
                account.again = account.again.into_iter().chain([until]).min();
                account.asks = Asks::HeldBack;
            }
            Placeable::Now => {
                let refused = status.iter().flat_map(|status| &status.refused_nodes);
                let passing = refused.map(|one| one.until.0).filter(|until| *until > now);
                account.again = account.again.into_iter().chain(passing).min();
                // One whose spec is wrong is told so by its own pass.
                let namespace = cx.namespaces.get(&Key::new("", &key.namespace));
                if let Some(asking) = Asking::new(&cx.jobs, workload, seen, now) {
                    let asking = asking.within(namespace.as_deref());
                    account.asks = Asks::Now(Arc::new(asking));
                }
            }
        }
        Some(account)
    }

    fn holders(&self) -> Vec<Holder> {
        let cx = &self.cx;
        let all = cx.workloads.all();
        let held = all.iter().filter_map(|workload| {
            let uid = workload.uid()?;
            let jobs = cx.jobs.by(BY_OWNER, &uid);
            let given = given_to(cx, workload);
            holder(workload, &cx.pods.by(BY_OWNER, &uid), &jobs, given)
        });
        held.collect()
    }

    fn rents(&self, request: &GPURequest) -> Option<FirstUser> {
        rents(request, |key| self.cx.workloads.get(key))
    }
}

/// What a workload that has a Job holds, if it is not over.
pub(crate) fn holder(
    workload: &GPUWorkload,
    pods: &[Arc<Pod>],
    jobs: &[Arc<Job>],
    given: Given,
) -> Option<Holder> {
    let phase = workload.status.as_ref().and_then(|status| status.phase);
    let own = jobs.iter().filter(|job| owns(workload, job));
    let begun = own.filter_map(|job| {
        let status = job.status.as_ref();
        let started = status.and_then(|status| status.start_time.as_ref());
        let made = job.meta().creation_timestamp.as_ref();
        started.or(made).map(|time| time.0)
    });
    let since = begun
        .max()
        .filter(|_| !phase.is_some_and(Phase::is_final))?;
    Some(Holder {
        key: Key::of(workload),
        works: ends_of(workload, pods, jobs).into_keys().collect(),
        priority: rank(workload, given).unwrap_or_default().priority,
        features: features(workload),
        since,
        longest_seconds: workload.spec.max_runtime.as_deref().and_then(run_seconds),
    })
}

/// When the pods and Jobs of a workload end, by uid: Jobs hold what their pods will.
pub(crate) fn ends_of<'a>(
    workload: &GPUWorkload,
    pods: impl IntoIterator<Item = &'a Arc<Pod>>,
    jobs: impl IntoIterator<Item = &'a Arc<Job>>,
) -> Endings {
    let longest = workload.spec.max_runtime.as_deref().and_then(run_seconds);
    let end = |started: Option<Timestamp>| match (longest, started) {
        (Some(longest), Some(started)) => Ending::By(started.as_second().saturating_add(longest)),
        _ => Ending::Unknown,
    };
    let here = |meta: &ObjectMeta| meta.namespace == workload.meta().namespace;
    let pods = pods.into_iter().filter(|pod| here(pod.meta()));
    let pods = pods.filter_map(|pod| {
        let status = pod.status.as_ref();
        let started = status.and_then(|status| status.start_time.as_ref());
        Some((pod.uid()?, end(started.map(|time| time.0))))
    });
    let jobs = jobs.into_iter().filter(|job| here(job.meta()));
    let jobs = jobs.flat_map(|job| {
        let uid = job.uid();
        let ids = uid.into_iter().flat_map(|uid| match gang::size(job) {
            None => vec![uid],
            Some(size) => (0..size).map(|member| promise_id(&uid, member)).collect(),
        });
        ids.map(|id| (id, end(None))).collect::<Vec<_>>()
    });
    pods.chain(jobs).collect()
}

/// What a Job has been promised for pods that are not there yet, or of a gang, that do not hold their places yet.
pub(crate) fn promises(job: &Job, pods: &[Arc<Pod>]) -> Vec<Promise> {
    if gang::size(job).is_some() {
        return gang::promises(job, pods);
    }
    let coming = pods.is_empty().then(|| promise(job));
    coming.flatten().into_iter().collect()
}

/// What a Job whose pod is not there yet has been promised.
pub(crate) fn promise(job: &Job) -> Option<Promise> {
    let template = &job.spec.as_ref()?.template;
    let mut meta = template.metadata.clone().unwrap_or_default();
    meta.namespace.clone_from(&job.metadata.namespace);
    meta.name.clone_from(&job.metadata.name);
    Some(Promise {
        owner: job.uid()?,
        meta,
        spec: template.spec.clone()?,
        counted: false,
    })
}

/// One workload that waits for a place.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    jobs: Cache<Job>,
    workload: Arc<GPUWorkload>,
    seen: Seen,
    shell: Shell,
    claim: Claim,
}

impl Asking {
    /// None when its spec is wrong.
    pub(crate) fn new(
        jobs: &Cache<Job>,
        workload: Arc<GPUWorkload>,
        seen: Seen,
        now: Timestamp,
    ) -> Option<Self> {
        let shell = shell(&workload, &seen.catalogue).ok()?;
        let rank = rank(&workload, seen.given).ok()?;
        Some(Self {
            jobs: jobs.clone(),
            claim: claim(&workload, &shell, rank, &seen.levels, now),
            workload,
            seen,
            shell,
        })
    }

    /// The same where pods are held to what their namespace allows.
    fn within(mut self, namespace: Option<&Namespace>) -> Self {
        if namespace.is_some_and(forbids_root) {
            self.shell.without_root(&self.workload.spec);
        }
        self
    }

    /// The Job of an attempt at its places.
    pub(crate) fn job(&self, places: &[Place]) -> Option<Job> {
        let attempt = attempt(&self.workload);
        if self.workload.spec.is_gang() {
            return self.shell.gang_job(&self.workload, attempt, places);
        }
        let place = places.first()?;
        Some(self.shell.job(&self.workload, attempt, place))
    }

    fn job_name(&self) -> String {
        job_name(&self.workload, attempt(&self.workload))
    }
}

/// Whether pods of a namespace have to say that they do not run as root.
fn forbids_root(namespace: &Namespace) -> bool {
    let level = namespace.labels().get("pod-security.kubernetes.io/enforce");
    level.is_some_and(|level| level == "restricted")
}

impl Claimant for Asking {
    fn claim(&self) -> &Claim {
        &self.claim
    }

    fn pod(&self, _: usize, resource: &str) -> PodSpec {
        self.shell.pod(resource)
    }

    fn plan(&self, places: &[Place], _: Timestamp) -> Plan {
        let mut plan = Plan::default();
        self.still_waits(&mut plan);
        if self.workload.spec.is_gang() {
            plan.create_or_find(&gang::service(&self.workload));
        }
        if self.workload.spec.mpi.is_some()
            && let Some(secret) = mpi::secret(&self.workload)
        {
            plan.create_or_find(&secret);
        }
        if let Some(job) = self.job(places) {
            plan.create_or_find(&job);
        }
        plan
    }

    fn still_waits(&self, plan: &mut Plan) {
        only_if_lost(plan, &self.seen);
        plan.only_if_shows(&*self.workload, &DECISIVE);
    }

    fn pass(&self, correlation: String) -> Pass {
        let (component, manager) = (placement::NAME, placement::MANAGER);
        Pass::over(component, manager, &*self.workload, correlation)
    }

    fn is_made(&self) -> bool {
        let key = Key::new(&self.claim.key.namespace, &self.job_name());
        let job = self.jobs.get(&key);
        job.is_some_and(|job| owns(&self.workload, &job))
    }

    fn taken(&self) -> Verdict {
        Verdict {
            reason: reason::JOB_REJECTED,
            message: format!(
                "a Job named {} exists that does not belong to this workload; delete it or rename the workload",
                self.job_name()
            ),
        }
    }

    fn rejected(&self, message: &str) -> Verdict {
        Verdict {
            reason: reason::JOB_REJECTED,
            message: format!(
                "the API server refused the job made from it: {message}; correct the workload or the namespace's policy"
            ),
        }
    }

    fn narrowed(&self, members: usize) -> Option<Arc<dyn Claimant>> {
        let mut narrowed = self.clone();
        narrowed.claim.pods.truncate(members);
        Some(Arc::new(narrowed))
    }

    fn features(&self) -> Features {
        features(&self.workload)
    }
}

/// What a workload asks for.
pub(super) fn claim(
    workload: &GPUWorkload,
    shell: &Shell,
    rank: Rank,
    levels: &TopologyLevels,
    now: Timestamp,
) -> Claim {
    let attempt = attempt(workload);
    let uid = workload.uid().unwrap_or_default();
    let dice = Fingerprint::default().text(&uid).signed(i64::from(attempt));
    let mut meta = shell.labelled(workload, attempt);
    meta.name = Some(workload.name_any());
    meta.namespace = workload.namespace();
    let pod = PodClaim {
        gpus: shell.ask.clone(),
        resource: None,
        meta,
        spec: shell.template.spec.clone().unwrap_or_default(),
    };
    Claim {
        controller: NAME,
        key: Key::of(workload),
        uid,
        generation: workload.meta().generation.unwrap_or_default(),
        version: workload.resource_version().unwrap_or_default(),
        created: workload.creation_timestamp().map(|time| time.0),
        priority: rank.priority,
        asked_priority: rank.priority,
        patient: rank.patient,
        max_runtime_seconds: workload.spec.max_runtime.as_deref().and_then(run_seconds),
        serves: false,
        saved_seconds: saved_seconds(workload),
        has_run: attempt > 0,
        saves: workload.spec.checkpoint.is_some(),
        strategy: workload.spec.scheduling_strategy,
        dice: dice.get(),
        providers: providers(workload),
        avoided: refused_nodes(workload, now),
        shown_since: (workload.status.as_ref())
            .and_then(|status| Some(status.shown.as_ref()?.since.0)),
        // One pod is close to itself wherever it is.
        near: (workload.spec.topology.as_ref())
            .filter(|_| workload.spec.is_gang())
            .map(|topology| levels.level(topology)),
        pods: vec![pod; workload.spec.members() as usize],
        least: workload.spec.least_members() as usize,
        makes_job: true,
    }
}

/// How long its last attempt had run when it last saved its work.
fn saved_seconds(workload: &GPUWorkload) -> i64 {
    let status = workload.status.as_ref();
    let saved = status.and_then(|status| status.last_checkpoint.as_ref());
    let begun = status.and_then(|status| status.last_schedule_time.as_ref());
    let ran = saved
        .zip(begun)
        .map(|(saved, begun)| saved.time.0.duration_since(begun.0));
    ran.map_or(0, |ran| ran.as_secs().max(0))
}

/// Nodes the cluster's scheduler refused lately.
fn refused_nodes(workload: &GPUWorkload, now: Timestamp) -> Vec<Arc<str>> {
    let refused = workload
        .status
        .iter()
        .flat_map(|status| &status.refused_nodes);
    refused
        .filter(|refused| refused.until.0 > now)
        .map(|refused| Arc::from(refused.name.as_str()))
        .collect()
}

/// The providers that an object's labels or annotations let it use, in order; one `None` when they do not say.
pub(crate) fn providers<K: ResourceExt>(object: &K) -> Vec<Option<String>> {
    let said = object.labels().get(label::PROVIDER);
    let said = said.or_else(|| object.annotations().get(label::PROVIDER));
    let names = said.into_iter().flat_map(|list| list.split(','));
    let named: Vec<Option<String>> = names
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(|name| Some(name.to_owned()))
        .collect();
    if named.is_empty() { vec![None] } else { named }
}
