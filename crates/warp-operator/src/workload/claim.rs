//! How workloads ask for places: each waiting workload is a claim for its pods, and their places become its Job. Pure but
//! for reading the caches.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Pod, PodSpec};
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use warp_api::workload::{TopologyLevels, run_seconds};
use warp_api::{GPUWorkload, Phase, label, reason};
use warp_core::estimate::Features;
use warp_core::random::Fingerprint;
use warp_core::schedule::keep::Ending;
use warp_runtime::cache::{Cache, Key};
use warp_runtime::pass::Pass;
use warp_runtime::plan::Plan;

use super::assess::{Placeable, placeable};
use super::gang::{self, promise_id};
use super::mpi;
use super::objects::{Shell, job_name, shell};
use super::observe::{Seen, class_of, reserves, see};
use super::plan::only_if_lost;
use super::{Class, NAME, Rank, Running, attempt, features, owns, rank};
use crate::context::Context;
use crate::ledger::Promise;
use crate::placement::{
    self, Claim, Claimant, Claimants, Endings, Holder, Open, Place, PodClaim, Runner, Verdict,
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
}

impl Claims {
    pub(crate) fn of(cx: &Arc<Context>) -> Box<dyn Claimants> {
        Box::new(Self { cx: Arc::clone(cx) })
    }
}

impl Claimants for Claims {
    fn open(&self, now: Timestamp) -> Open {
        let (cx, mut open) = (&self.cx, Open::default());
        for workload in cx.workloads.all() {
            let status = workload.status.as_ref();
            if status
                .and_then(|status| status.phase)
                .is_some_and(Phase::is_final)
            {
                continue;
            }
            open.uids.extend(workload.uid());
            let seen = see(cx, &workload);
            match placeable(&workload, status, &seen, &cx.settings, now) {
                Placeable::No | Placeable::From(_) => {}
                Placeable::Held(_) => open.held_back.extend(workload.uid()),
                Placeable::Now => {
                    // One whose spec is wrong is told so by its own pass.
                    let namespace = workload.namespace().unwrap_or_default();
                    let namespace = cx.namespaces.get(&Key::new("", &namespace));
                    let asking = Asking::new(&cx.jobs, workload, seen, now)
                        .map(|asking| asking.within(namespace.as_deref()));
                    open.claimants
                        .extend(asking.map(|asking| Arc::new(asking) as Arc<dyn Claimant>));
                }
            }
        }
        open
    }

    fn promises(&self) -> Vec<Promise> {
        let jobs = self.cx.jobs.all().into_iter();
        let kept = jobs.flat_map(|job| {
            let uid = job.meta().uid.as_deref().unwrap_or_default();
            let kept = promises(&job, &self.cx.pods.by(BY_MAKER, uid));
            let reserved = !kept.is_empty() && reserves(&self.cx, &job);
            if reserved { kept } else { Vec::new() }
        });
        kept.collect()
    }

    fn runners(&self, now: Timestamp) -> Vec<Arc<dyn Runner>> {
        let cx = &self.cx;
        let all = cx.workloads.all();
        let running = all.iter().filter_map(|workload| {
            let uid = workload.uid()?;
            let pods = cx.pods.by(BY_OWNER, &uid);
            if pods.is_empty() {
                return None;
            }
            let jobs = cx.jobs.by(BY_OWNER, &uid);
            Running::of(workload, &jobs, &pods, class_of(cx, workload), now)
        });
        running
            .map(|one| Arc::new(one) as Arc<dyn Runner>)
            .collect()
    }

    fn endings(&self) -> Endings {
        let cx = &self.cx;
        let mut endings = Endings::new();
        for workload in cx.workloads.all() {
            let uid = workload.uid().unwrap_or_default();
            let pods = cx.pods.by(BY_OWNER, &uid);
            let jobs = cx.jobs.by(BY_OWNER, &uid);
            endings.extend(ends_of(&workload, &pods, &jobs));
        }
        endings
    }

    fn holders(&self) -> Vec<Holder> {
        let cx = &self.cx;
        let all = cx.workloads.all();
        let held = all.iter().filter_map(|workload| {
            let uid = workload.uid()?;
            let jobs = cx.jobs.by(BY_OWNER, &uid);
            let class = class_of(cx, workload);
            holder(workload, &cx.pods.by(BY_OWNER, &uid), &jobs, class)
        });
        held.collect()
    }
}

/// What a workload that has a Job holds, if it is not over.
pub(crate) fn holder(
    workload: &GPUWorkload,
    pods: &[Arc<Pod>],
    jobs: &[Arc<Job>],
    class: Option<Class>,
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
        priority: rank(workload, class).unwrap_or_default().priority,
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
        let rank = rank(&workload, seen.class).ok()?;
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

    fn plan(&self, places: &[Place]) -> Plan {
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
fn claim(
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
        patient: rank.patient,
        max_runtime_seconds: workload.spec.max_runtime.as_deref().and_then(run_seconds),
        strategy: workload.spec.scheduling_strategy,
        dice: dice.get(),
        providers: providers(workload),
        avoided: refused_nodes(workload, now),
        // One pod is close to itself wherever it is.
        near: (workload.spec.topology.as_ref())
            .filter(|_| workload.spec.is_gang())
            .map(|topology| levels.level(topology)),
        pods: vec![pod; workload.spec.members() as usize],
        least: workload.spec.least_members() as usize,
        makes_job: true,
    }
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
