//! Places of copies that have gone, kept until those that follow them ask. A copy may end in the moment it is asked to, and
//! the one in its place is born a moment later: in between nobody has asked for its GPUs, and whoever waits would get them.
//!
//! Kept for a bounded time and in memory only: after a restart what is free is anybody's. How many places are kept is what
//! the service is missing of those nobody may take from it. Pure but for reading the caches.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kube::ResourceExt;
use kube::core::ObjectMeta;
use parking_lot::Mutex;
use warp_api::InferenceService;
use warp_runtime::cache::{Cache, Key};
use warp_runtime::driver::later;

use super::claim::{refused_nodes, service_of};
use super::copies::{self, is_copy, place};
use super::group;
use crate::context::Context;
use crate::ledger::{Promise, pin};
use crate::placement::{Account, Claimants, Heard, Waking};
use crate::shapes::BY_SERVICE;

/// How long a place is kept: the cluster makes the next copy well within it, or something is wrong with it.
const LINGERS: SignedDuration = SignedDuration::from_secs(10);
/// Places of one service that are remembered at once.
const REMEMBERED: usize = 1024;

/// The place of a pod that has gone.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Left {
    uid: String,
    /// Which copy it was of, where a copy spans nodes.
    copy: Option<u32>,
    node: String,
    meta: ObjectMeta,
    spec: PodSpec,
    until: Timestamp,
}

impl Left {
    /// The place a pod of a service had.
    pub(super) fn by(pod: &Pod, service: &str, now: Timestamp) -> Option<Self> {
        let copy = group::member_of(pod, service).map(|(copy, _)| copy);
        if copy.is_none() && !is_copy(pod, service) {
            return None;
        }
        let node = place(pod)?;
        let mut spec = pod.spec.clone()?;
        // The others of its group may still have requests to end: all of them are placed together.
        let drain = spec.termination_grace_period_seconds.unwrap_or(0);
        let drain = SignedDuration::from_secs(if copy.is_some() { drain } else { 0 });
        spec.node_name = None;
        pin(&mut spec, Some(&node), None);
        Some(Self {
            uid: pod.uid()?,
            copy,
            node,
            meta: pod.metadata.clone(),
            spec,
            until: later(later(now, LINGERS), drain),
        })
    }

    fn promise(&self) -> Promise {
        Promise {
            owner: format!("{}/left", self.uid),
            meta: self.meta.clone(),
            spec: self.spec.clone(),
            counted: false,
        }
    }
}

/// The copies that are in line, as the scheduler was last told, and the services whose copies are told of. Not what the
/// caches show: a copy that has just been born is there before it is its turn, and its place would be anybody's.
#[derive(Clone, Debug, Default)]
pub(super) struct InLine {
    copies: Arc<Mutex<BTreeSet<Key>>>,
    heard: Heard,
}

impl InLine {
    /// Notes whether a copy is in line; whether that is news.
    pub(super) fn set(&self, copy: &Key, asks: bool) -> bool {
        let mut copies = self.copies.lock();
        if asks {
            copies.insert(copy.clone())
        } else {
            copies.remove(copy)
        }
    }

    /// What is kept for a service may be something else.
    pub(super) fn tell(&self, service: Key) {
        self.heard.note([service]);
    }

    fn has(&self, copy: &Pod) -> bool {
        self.copies.lock().contains(&Key::of(copy))
    }
}

/// The places that are kept for copies that are still to ask. `pods` are all of the service, `asks` those in line.
pub(super) fn kept<'a>(
    service: &InferenceService,
    pods: &[Arc<Pod>],
    asks: impl Fn(&Pod) -> bool,
    left: &'a [Left],
    now: Timestamp,
) -> Vec<&'a Left> {
    let name = service.name_any();
    let refused: BTreeSet<&str> = refused_nodes(service, now)
        .map(|node| node.name.as_str())
        .collect();
    let open = left
        .iter()
        .filter(|left| left.until > now && !refused.contains(left.node.as_str()));
    let (of_groups, alone): (Vec<_>, Vec<_>) = open.partition(|left| left.copy.is_some());
    let floor = copies::kept(service, now);
    let mut copies = pods.to_vec();
    copies.retain(|pod| is_copy(pod, &name));
    let asking = copies::waiting(&copies).into_iter();
    let asking = asking.filter(|pod| asks(pod)).count();
    let there = copies::placed(&copies, false) + asking;
    let missing = floor.saturating_sub(there);
    // The last that went first: of those before it others may have followed.
    let alone = alone.into_iter().rev().take(missing);
    // A copy of one pod takes the place of those that spanned nodes.
    let plain = copies.iter().any(|pod| {
        let has_or_asks = (copies::waits(pod) && asks(pod)) || place(pod).is_some();
        has_or_asks && group::member_of(pod, &name).is_none()
    });
    let of_groups = of_groups.into_iter().filter(|left| {
        let copy = left.copy.unwrap_or_default();
        let group = group::of_copy(pods, copy, &name);
        let by_right = usize::try_from(copy).is_ok_and(|copy| copy < floor);
        let asked = group::all_wait(&group) && group.first().is_some_and(|leader| asks(leader));
        let mut places = group.iter().filter_map(|pod| place(pod));
        let has = places.any(|node| node == left.node);
        by_right && !plain && !asked && !has
    });
    alone.chain(of_groups).collect()
}

/// All services, as those whose copies have gone a moment ago: one account for each service.
#[derive(Debug)]
pub(super) struct Lingering {
    cx: Arc<Context>,
    services: Cache<InferenceService>,
    left: Arc<Mutex<BTreeMap<Key, Vec<Left>>>>,
    in_line: InLine,
}

impl Lingering {
    /// To be made before the ledger listens: what has gone from there is known here.
    pub(super) fn following(
        cx: &Arc<Context>,
        services: &Cache<InferenceService>,
        in_line: InLine,
    ) -> Self {
        let heard = in_line.heard.clone();
        let left: Arc<Mutex<BTreeMap<Key, Vec<Left>>>> = Arc::default();
        let (noting, leaving, clock) = (heard.clone(), Arc::clone(&left), cx.clock.clone());
        cx.pods.listen(move |old, new| {
            let gone = old.filter(|old| new.is_none_or(|new| new.uid() != old.uid()));
            let gone = gone.and_then(|pod| Some((service_of(pod)?, pod)));
            if let Some((key, pod)) = gone
                && let Some(place) = Left::by(pod, &key.name, clock.now())
            {
                note(&mut leaving.lock(), key, place, clock.now());
            }
            let of = old.or(new).and_then(service_of);
            noting.note(of.filter(|key| leaving.lock().contains_key(key)));
        });
        let (noting, leaving) = (heard.clone(), Arc::clone(&left));
        services.listen(move |old, new| {
            let key = old.or(new).map(Key::of);
            noting.note(key.filter(|key| leaving.lock().contains_key(key)));
        });
        Self {
            cx: Arc::clone(cx),
            services: services.clone(),
            left,
            in_line,
        }
    }
}

/// Remembers a place, and forgets those that are nobody's any more.
fn note(left: &mut BTreeMap<Key, Vec<Left>>, key: Key, place: Left, now: Timestamp) {
    left.retain(|_, places| {
        places.retain(|place| place.until > now);
        !places.is_empty()
    });
    let places = left.entry(key).or_default();
    if places.len() < REMEMBERED {
        places.push(place);
    }
}

impl Claimants for Lingering {
    fn waking(&self) -> Waking {
        Box::new(|scheduler| scheduler)
    }

    fn keys(&self) -> Vec<Key> {
        self.left.lock().keys().cloned().collect()
    }

    fn changed(&self) -> Option<BTreeSet<Key>> {
        self.in_line.heard.take()
    }

    fn account(&self, key: &Key, now: Timestamp) -> Option<Account> {
        let service = self.services.get(key)?;
        let left = self.left.lock().get(key).cloned()?;
        let pods = self.cx.pods.by(BY_SERVICE, &key.to_string());
        let asks = |pod: &Pod| self.in_line.has(pod);
        let kept = kept(&service, &pods, asks, &left, now);
        let again = kept.iter().map(|left| left.until).min();
        let promises: Vec<Promise> = kept.into_iter().map(Left::promise).collect();
        (!promises.is_empty()).then(|| Account {
            uid: format!("{}/left", service.uid().unwrap_or_default()),
            promises,
            again,
            ..Account::default()
        })
    }

    fn left_behind(&self) -> Vec<Key> {
        self.keys()
    }
}
