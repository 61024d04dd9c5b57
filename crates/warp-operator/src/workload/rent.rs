//! Renting for a workload that waits: when a machine is asked for, what the request for it says, and when it is not
//! needed any more. Pure but for reading the caches; what is bought is the GPURequest controller's.
//!
//! A workload has one request at a time, or those of all machines of a gang, under names that follow from the workload and
//! a number. The number is in its status; a request that is made and not yet written down is found again under its name.

mod beside;
mod gang;
mod pack;
mod prospect;
mod several;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};
use warp_api::gpurequest::RequestAttempt;
use warp_api::price::Price;
use warp_api::workload::{GpuAsk, GpuVendor, Rent, RentStatus};
use warp_api::{
    CloudProvider, GPURequest, GPURequestSpec, GPUWorkload, GPUWorkloadStatus, Phase, RequestPhase,
    condition, reason,
};
use warp_cloud::Decimal;
use warp_core::gpu::Vendor;
use warp_runtime::cache::{Cache, Health, Key};
use warp_runtime::plan::{Plan, as_json, is_controlled_by, merge_difference};

pub(crate) use self::beside::Beside;
#[cfg(test)]
pub(super) use self::beside::look;
pub(crate) use self::pack::Pack;
#[cfg(test)]
pub(super) use self::pack::plan as packed;
pub(crate) use self::prospect::{Prospect, foresee};
pub(crate) use self::several::Several;
#[cfg(test)]
pub(super) use self::several::plan as several;
use super::course::Course;
use super::objects::owned_by;
use super::say::note;
use crate::clock;
use crate::context::Context;
use crate::placement::FirstUser;

/// Waits that another machine would end.
pub(super) const CAPACITY: [&str; 6] = [
    reason::WAITING_FOR_CAPACITY,
    reason::NEVER_FITS,
    reason::NO_SUCH_GPU,
    reason::NODES_CORDONED,
    reason::NODES_TAINTED,
    reason::NODES_NOT_READY,
];
/// Waits that pass by themselves: nothing is rented for them, and nothing is given up.
const PASSING: [&str; 8] = [
    reason::QUEUED,
    reason::PREEMPTING,
    reason::RETRY_BACKOFF,
    reason::DISRUPTED,
    reason::CLEANING_UP,
    reason::JOB_DELETED,
    reason::PLACEMENT_REFUSED,
    reason::JOB_REJECTED,
];
/// What of a workload lets a machine be rented for it. A watch that is behind may hide that it is gone or has a place.
const DECISIVE: [&str; 4] = [
    "/metadata/generation",
    "/metadata/deletionTimestamp",
    "/status/phase",
    "/status/jobName",
];
/// A node tells less memory than the data sheet: at least so many hundredths of it.
const REPORTED: u64 = 94;
/// Seconds that each who came before gets to rent first: what it gets may have room.
const TURN: i64 = 2;
/// Seconds after which it is looked again whether another's machine still has room.
const LOOK: i64 = 30;
/// The longest name of a request.
const NAME: usize = 63;

/// What is known about machines rented for one workload.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rented {
    /// Its requests, those that are over too.
    pub(crate) requests: Vec<Arc<GPURequest>>,
    /// Why nothing can be rented at the moment, if nothing can.
    pub(crate) closed: Option<String>,
    /// The first list is still to come: what was said before holds.
    pub(crate) unread: bool,
    /// What others of its namespace rent.
    pub(crate) beside: Beside,
    /// The machine to ask for with others that wait, if one for all of them is as cheap.
    pub(crate) pack: Option<Pack>,
    /// The machines for a gang that no single one holds, or why there are none.
    pub(crate) several: Option<Result<Several, String>>,
    /// Requests that others count on.
    pub(crate) shared: Vec<String>,
}

/// Reads the requests of a workload that rents or has rented.
pub(super) fn see(cx: &Context, workload: &GPUWorkload) -> Rented {
    let said = workload
        .status
        .as_ref()
        .and_then(|status| status.rent.as_ref());
    if workload.spec.rent.is_none() && said.is_none() {
        return Rented::default();
    }
    let Some(cache) = cx.requests.get() else {
        let closed = "this operator serves one namespace and rents nothing; use one of the cluster";
        return Rented {
            closed: Some(closed.to_owned()),
            ..Rented::default()
        };
    };
    let namespace = workload.namespace().unwrap_or_default();
    let requests = cache.in_namespace(&namespace);
    let others = cx.workloads.in_namespace(&namespace);
    let providers = cx.providers.get().map(Cache::all).unwrap_or_default();
    let closed = match cache.health() {
        Health::Current => None,
        health => Some(format!("GPURequests cannot be read: {health}")),
    };
    Rented {
        closed,
        unread: cache.health() == Health::Starting,
        ..Rented::of(workload, requests, &others, &providers, cx.clock.now())
    }
}

impl Rented {
    /// What requests and workloads of its namespace, and what clouds sell, mean to a workload.
    pub(super) fn of(
        workload: &GPUWorkload,
        mut requests: Vec<Arc<GPURequest>>,
        others: &[Arc<GPUWorkload>],
        providers: &[Arc<CloudProvider>],
        now: Timestamp,
    ) -> Self {
        let uid = workload.uid().unwrap_or_default();
        let beside = beside::look(workload, &requests, others, now);
        let pack = pack::plan(workload, others, providers, now);
        let shared = requests.iter().filter(|one| pack::is_shared(one, others));
        let shared = shared.map(|one| one.name_any()).collect();
        requests.retain(|request| is_controlled_by(&**request, &uid));
        Self {
            several: several::plan(workload, &requests, providers),
            requests,
            beside,
            pack,
            shared,
            ..Self::default()
        }
    }
}

/// The workload a request was made for, by its owner reference.
pub(crate) fn tenant_of(request: &GPURequest) -> Option<(Key, String)> {
    let mut owners = request.owner_references().iter();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    let kind = GPUWorkload::kind(&());
    let ours = owner.kind == kind && owner.api_version == GPUWorkload::api_version(&());
    let key = Key::new(&request.namespace()?, &owner.name);
    ours.then(|| (key, owner.uid.clone()))
}

/// The workload a machine is rented for, of those that `find` finds.
pub(crate) fn rents(
    request: &GPURequest,
    find: impl Fn(&Key) -> Option<Arc<GPUWorkload>>,
) -> Option<FirstUser> {
    let (key, uid) = tenant_of(request)?;
    let found = find(&key).filter(|one| one.uid().as_deref() == Some(uid.as_str()));
    let phase = found.and_then(|one| one.status.as_ref()?.phase);
    Some(FirstUser {
        served: phase.is_some_and(|phase| phase != Phase::Pending),
        key,
        uid,
    })
}

/// Adds to a course what renting takes, and to its status how renting stands.
pub(super) fn arrange(
    course: &mut Course,
    workload: &GPUWorkload,
    rented: &Rented,
    now: Timestamp,
) {
    let Some(status) = course.status.as_mut() else {
        return;
    };
    if rented.unread {
        let said = status.rent.as_ref().and_then(|rent| rent.message.clone());
        if let Some(said) = said.filter(|_| status.phase == Some(Phase::Pending)) {
            append(status, &said);
        }
        course.steps.look_again(clock::after(now, 1));
        return;
    }
    let Some(rent) = &workload.spec.rent else {
        if status.rent.take().is_some() {
            for request in rented.requests.iter().filter(|one| !is_used(one, status)) {
                give_up(&mut course.steps, request, "spec.rent was taken out");
            }
        }
        return;
    };
    let mut state = status.rent.clone().unwrap_or_default();
    let named = |request: &&Arc<GPURequest>| {
        let name = request.name_any();
        state.request.as_ref() == Some(&name) || state.others.contains(&name)
    };
    let current: Vec<&GPURequest> = rented
        .requests
        .iter()
        .filter(named)
        .map(|request| &**request)
        .collect();
    describe(&mut state, &current, rented);
    let is_on = |attempt: &RequestAttempt| status.is_on(&attempt.machine);
    state.used |= current.iter().any(|request| attempts(request).any(is_on));
    let ready = condition::find(&status.conditions, condition::READY);
    let said = ready.map(|ready| ready.reason.clone()).unwrap_or_default();
    let waits = status.phase == Some(Phase::Pending);
    if waits && CAPACITY.contains(&said.as_str()) {
        let pass = Waiting {
            workload,
            rent,
            rented,
            current,
            now,
        };
        pass.go_on(&mut course.steps, &mut state);
        if let Some(message) = state.message.clone() {
            append(status, &message);
        }
        let before = status.rent.as_ref().and_then(|rent| rent.request.as_ref());
        let made = state.request.is_some() && state.request.as_ref() != before;
        if made && let Some(message) = &state.message {
            course
                .events
                .push(note(false, reason::RENTING, "Rent", message));
        }
        status.rent = Some(state);
        return;
    }
    state.rents_at = None;
    state.beside = None;
    state.message = None;
    if !(waits && PASSING.contains(&said.as_str())) {
        state.waiting_since = None;
        if current.iter().all(|request| is_unbought(request)) {
            for request in current {
                give_up(
                    &mut course.steps,
                    request,
                    "the workload does not wait for room any more",
                );
            }
        }
    }
    let nothing = RentStatus {
        requests: state.requests,
        ..RentStatus::default()
    };
    status.rent = Some(state).filter(|state| *state != nothing);
}

/// What the requests and those before them say, for the workload's status.
fn describe(state: &mut RentStatus, current: &[&GPURequest], rented: &Rented) {
    let spent = spent(rented.requests.iter().map(|request| &**request));
    state.spent = (!spent.is_zero()).then(|| spent.normalize().to_string());
    let Some(slowest) = slowest(current) else {
        // What cannot be read is not known to be gone.
        if rented.closed.is_none() {
            state.request = None;
            state.others.clear();
        }
        state.phase = None;
        state.gpu = None;
        state.price_per_hour = None;
        return;
    };
    state.phase = Some(phase(slowest).as_str().to_owned());
    let statuses = || current.iter().filter_map(|one| one.status.as_ref());
    let gpus: Vec<String> = statuses().filter_map(|one| one.gpu.clone()).collect();
    state.gpu = (!gpus.is_empty()).then(|| gpus.join(" + "));
    let prices: Vec<String> = statuses()
        .filter_map(|one| one.price_per_hour.clone())
        .collect();
    state.price_per_hour = match prices.as_slice() {
        [] => None,
        [only] => Some(only.clone()),
        several => {
            let each = several
                .iter()
                .filter_map(|price| price.parse::<Decimal>().ok());
            Some(each.sum::<Decimal>().to_string())
        }
    };
}

fn phase(request: &GPURequest) -> RequestPhase {
    let status = request.status.as_ref();
    status.map_or(RequestPhase::Pending, |status| status.phase)
}

/// The request that speaks for all: the first that is on its way, else one that is not over.
fn slowest<'a>(requests: &[&'a GPURequest]) -> Option<&'a GPURequest> {
    let open = || requests.iter().filter(|one| !phase(one).is_final());
    let late = open().find(|one| phase(one) != RequestPhase::Ready);
    late.or_else(|| open().next()).or(requests.first()).copied()
}

fn attempts(request: &GPURequest) -> impl Iterator<Item = &RequestAttempt> {
    request.status.iter().flat_map(|status| &status.attempts)
}

/// Whether a workload is on the machine of a request.
fn is_used(request: &GPURequest, status: &GPUWorkloadStatus) -> bool {
    attempts(request).any(|attempt| status.is_on(&attempt.machine))
}

/// Whether nothing was bought, and nothing may be on its way.
fn is_unbought(request: &GPURequest) -> bool {
    attempts(request).all(|attempt| attempt.outcome.is_some() && attempt.billed_from.is_none())
}

/// Dollars of what is over.
fn spent<'a>(requests: impl Iterator<Item = &'a GPURequest>) -> Decimal {
    let each = requests.filter_map(|request| request.status.as_ref()?.spent.as_ref());
    each.filter_map(|spent| spent.parse::<Decimal>().ok()).sum()
}

fn give_up(steps: &mut Plan, request: &GPURequest, why: &str) {
    if request.meta().deletion_timestamp.is_none() {
        steps.delete_version(request);
        steps.because(why);
    }
}

/// Adds a sentence to what a waiting workload says.
pub(super) fn append(status: &mut GPUWorkloadStatus, more: &str) {
    let Some(said) = status.message.clone() else {
        return;
    };
    let longer = format!("{said}; {more}");
    for condition in &mut status.conditions {
        if condition.message == said {
            condition.message.clone_from(&longer);
        }
    }
    status.message = Some(longer);
}

/// A workload that waits for room.
struct Waiting<'a> {
    workload: &'a GPUWorkload,
    rent: &'a Rent,
    rented: &'a Rented,
    /// The requests its status names that are there.
    current: Vec<&'a GPURequest>,
    now: Timestamp,
}

impl Waiting<'_> {
    fn go_on(&self, steps: &mut Plan, state: &mut RentStatus) {
        let since = state.waiting_since.get_or_insert(Time(self.now)).clone();
        state.rents_at = None;
        state.beside = None;
        let next = state.requests.max(1);
        let after = match self.current.as_slice() {
            [] => None,
            [request] if state.others.is_empty() => Some(match self.instead_of(steps, request) {
                Some(instead) => Some(instead),
                None => self.after_it(steps, state, request),
            }),
            requests => Some(self.after_them(steps, state, requests)),
        };
        let number = match after {
            None => next,
            Some(None) => next + 1,
            Some(Some(message)) => {
                state.message = Some(message);
                return;
            }
        };
        let Beside { room, before } = &self.rented.beside;
        if let Some(request) = room {
            state.beside = Some(request.clone());
            state.message = Some(format!(
                "the machine of GPURequest {request}, rented for another workload of the namespace, has room for it"
            ));
            steps.look_again(clock::after(self.now, LOOK));
            return;
        }
        let due = clock::after(since.0, self.rent.after_seconds());
        let turn = clock::after(due, before.saturating_mul(TURN));
        if self.now >= due && self.now < turn {
            state.rents_at = Some(Time(turn));
            state.message = Some(format!("{before} that came before it rent first"));
            steps.look_again(clock::after(self.now, TURN));
            return;
        }
        if self.now < due {
            state.rents_at = Some(Time(due));
            state.message = Some(format!(
                "a machine is rented for it at {due:.0} unless room comes free"
            ));
            steps.look_again(due);
            return;
        }
        if self.rented.pack.is_none()
            && let Some(several) = &self.rented.several
        {
            state.message = Some(self.rent_several(steps, state, several, number));
            return;
        }
        state.message = Some(match self.request(number) {
            Err(problem) => format!("no machine is rented for it: {problem}"),
            Ok(request) => {
                let name = request.name_any();
                let price = request.spec.max_price.as_ref();
                let price = price
                    .and_then(|price| price.decimal().ok())
                    .unwrap_or_default();
                let gpus = gpus(&request.spec);
                let shared = self.rented.pack.as_ref().map(|pack| pack.shared_by - 1);
                let shared = shared.map(|others| format!(" and {others} that wait with it"));
                steps.only_if_shows(self.workload, &DECISIVE);
                steps.create_or_find(&request);
                steps.because("it has waited for room long enough to rent");
                state.request = Some(name.clone());
                state.others.clear();
                state.requests = number;
                state.used = false;
                format!(
                    "a machine with {gpus} is rented for it{} for at most {price} an hour: GPURequest {name}",
                    shared.unwrap_or_default()
                )
            }
        });
    }

    /// What is to be said of the request that is there; none when the next one may be made.
    fn after_it(
        &self,
        steps: &mut Plan,
        state: &RentStatus,
        request: &GPURequest,
    ) -> Option<String> {
        let name = request.name_any();
        let status = request.status.clone().unwrap_or_default();
        let says = status.message.clone().unwrap_or_default();
        if request.meta().deletion_timestamp.is_some() {
            return Some(format!("GPURequest {name} is being deleted"));
        }
        let last = status.attempts.last();
        let outcome = last.and_then(|last| last.outcome.as_deref());
        match status.phase {
            RequestPhase::Failed => Some(format!(
                "no machine could be rented: {says}; delete GPURequest {name} to try again"
            )),
            // Bought once more it would be idle again.
            RequestPhase::Ended if outcome == Some(reason::IDLE_TIMEOUT) && !state.used => {
                Some(format!(
                    "the machine of GPURequest {name} did not hold it and was given back; look at what else it asks for, then delete that request to rent again"
                ))
            }
            RequestPhase::Ended => None,
            _ => {
                let patch = self.changed(request).and_then(|wanted| {
                    merge_difference(&as_json(&request.spec), &as_json(&wanted))
                });
                if let Some(patch) = patch {
                    steps.merge(request, json!({ "spec": patch }));
                    steps.because("spec.rent changed");
                }
                let said = if says.is_empty() {
                    "it is being looked at".to_owned()
                } else {
                    says
                };
                Some(format!("GPURequest {name} rents a machine for it: {said}"))
            }
        }
    }

    /// What the request that is there is to say instead, where the workload asks for something else by now.
    fn changed(&self, request: &GPURequest) -> Option<GPURequestSpec> {
        let own = self.spec(spent(self.others(&request.name_any()))).ok()?;
        let wanted = self.kept(own, request);
        (wanted != request.spec).then_some(wanted)
    }

    fn others<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a GPURequest> {
        let all = self.rented.requests.iter().map(|request| &**request);
        all.filter(move |request| request.name_any() != name)
    }

    /// The request of that number, or why there can be none.
    fn request(&self, number: i32) -> Result<GPURequest, String> {
        if let Some(closed) = &self.rented.closed {
            return Err(closed.clone());
        }
        let name = name(self.workload, &number.to_string());
        let mut spec = self.spec(spent(self.others(&name)))?;
        if let Some(pack) = &self.rented.pack {
            spec.gpu_count = pack.gpus;
            spec.max_price = Some(Price(Value::String(pack.max_price.to_string())));
        }
        Ok(self.named(name, spec))
    }

    fn named(&self, name: String, spec: GPURequestSpec) -> GPURequest {
        GPURequest {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: self.workload.namespace(),
                owner_references: owned_by(self.workload),
                ..ObjectMeta::default()
            },
            spec,
            status: None,
        }
    }

    /// What the request that is there should say: one that was made for several stays so while it has them, or until
    /// something is bought for it.
    fn kept(&self, mut own: GPURequestSpec, request: &GPURequest) -> GPURequestSpec {
        let shared = self.rented.shared.contains(&request.name_any());
        let made_now = request.status.is_none();
        if request.spec.gpu_count > own.gpu_count && (shared || made_now || !is_unbought(request)) {
            own.gpu_count = request.spec.gpu_count;
            own.max_price.clone_from(&request.spec.max_price);
        }
        own
    }

    /// What a request for one machine that holds the workload says, when so much is spent.
    fn spec(&self, spent: Decimal) -> Result<GPURequestSpec, String> {
        let (spec, rent) = (&self.workload.spec, self.rent);
        let ask = GpuAsk::of(spec).map_err(|bad| bad.0)?;
        if let Some(name) = ask.names.iter().find(|name| name.models.is_empty()) {
            return Err(format!(
                "'{}' in spec.gpu.models is no GPU of the catalogue: name one that clouds sell",
                name.text
            ));
        }
        if ask.states_form() {
            return Err(
                "spec.gpu.models says how the board is built, which clouds do not sell by: name the model alone"
                    .to_owned(),
            );
        }
        let problem =
            |field: &str, problem: String| format!("spec.rent.{field}: {problem}; correct it");
        rent.max_price
            .decimal()
            .map_err(|said| problem("maxPrice", said))?;
        let total = match &rent.max_total_price {
            None => None,
            Some(said) => {
                let most = said.decimal();
                let most = most.map_err(|said| problem("maxTotalPrice", said))?;
                if most <= spent {
                    return Err(format!(
                        "{spent} of spec.rent.maxTotalPrice {most} is spent: raise it"
                    ));
                }
                let left = (most - spent).normalize().to_string();
                Some(if spent.is_zero() {
                    said.clone()
                } else {
                    Price(Value::String(left))
                })
            }
        };
        let gibibytes = (ask.min_memory_mib * 100).div_ceil(REPORTED * 1024);
        Ok(GPURequestSpec {
            providers: rent.providers.clone(),
            gpu_models: ask.names.iter().map(|name| name.text.clone()).collect(),
            gpu_vendor: ask.names.is_empty().then(|| vendor(ask.vendor)),
            min_memory: (gibibytes > 0).then(|| format!("{gibibytes}Gi")),
            // A gang has all its members on one machine: all of them come, or none.
            gpu_count: spec.total_gpus(),
            spot_instance: rent.spot,
            max_price: Some(rent.max_price.clone()),
            max_total_price: total,
            idle_timeout: Some(rent.idle_timeout().to_owned()),
            ..GPURequestSpec::default()
        })
    }
}

/// The GPUs of a request in words.
fn gpus(spec: &GPURequestSpec) -> String {
    let kind = if spec.gpu_models.is_empty() {
        let vendor = spec.gpu_vendor.map(|vendor| Vendor::from(vendor).as_str());
        vendor.unwrap_or("any").to_owned()
    } else {
        spec.gpu_models.join(" or ")
    };
    format!("{} x {kind}", spec.gpu_count)
}

fn vendor(vendor: Vendor) -> GpuVendor {
    match vendor {
        Vendor::Nvidia => GpuVendor::Nvidia,
        Vendor::Amd => GpuVendor::Amd,
        Vendor::Intel => GpuVendor::Intel,
        Vendor::Habana => GpuVendor::Habana,
    }
}

/// The name of a workload's request.
fn name(workload: &GPUWorkload, number: &str) -> String {
    let uid: String = workload.uid().unwrap_or_default().chars().take(8).collect();
    let tail = format!("-{uid}-rent-{number}");
    let head: String = workload
        .name_any()
        .chars()
        .take(NAME.saturating_sub(tail.len()))
        .collect();
    format!("{}{tail}", head.trim_end_matches(['-', '.']))
}
