//! The line among tenants: whoever asks for no more than its tenant's share goes before those who borrow, and among these
//! the tenant goes first that would have borrowed least for its weight. Priority decides within each. Pure.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;

use warp_api::workload::Priority;
use warp_core::fleet::GpuRequest;
use warp_core::tenancy::Turn;

use super::request::gpu_request;
use super::tenancy::Tally;
use super::{Claimant, Tenancy};
use crate::ledger::Ledger;

/// Those who borrow that are put in order by share in one pass; the others follow as they came.
const BORROWERS: usize = 1024;

/// Puts a line that is in order in the order of shares: positions of `wanted`. None where nothing is lent.
pub(crate) fn by_share(
    wanted: &[Arc<dyn Claimant>],
    tenancy: &Tenancy,
    ledger: &Ledger,
) -> Option<Vec<usize>> {
    if !tenancy.lends() {
        return None;
    }
    let mut tally = Tally::new(tenancy);
    let (mut within, mut borrowing) = (Vec::new(), Vec::new());
    // Use only grows here: what was too much for a tenant once stays so.
    let mut too_much: BTreeSet<(Arc<str>, String, usize)> = BTreeSet::new();
    for (at, claimant) in wanted.iter().enumerate() {
        let claim = claimant.claim();
        let Some(pod) = claim.pods.first() else {
            within.push(at);
            continue;
        };
        let pods = claim.pods.len();
        let asked = (Arc::clone(&claim.key.namespace), pod.gpus.describe(), pods);
        if too_much.contains(&asked) {
            borrowing.push(at);
            continue;
        }
        let gpu = gpu_request(ledger, &pod.gpus);
        if tally.is_within(&ledger.fleet, &claim.key.namespace, &gpu, pods) {
            within.push(at);
        } else {
            too_much.insert(asked);
            borrowing.push(at);
        }
    }
    let late = borrowing.split_off(borrowing.len().min(BORROWERS));
    within.extend(shared_out(wanted, &borrowing, tally, ledger));
    within.extend(late);
    Some(within)
}

/// A namespace's next claim: whose turn it is first, by priority, share and place in line.
type Next = Reverse<(Reverse<Priority>, Turn, usize)>;

/// Those who borrow, one after the other, each counted before the next is chosen.
fn shared_out(
    wanted: &[Arc<dyn Claimant>],
    borrowing: &[usize],
    mut tally: Tally<'_>,
    ledger: &Ledger,
) -> Vec<usize> {
    let mut queues: BTreeMap<&str, VecDeque<usize>> = BTreeMap::new();
    for at in borrowing {
        let namespace: &str = &wanted[*at].claim().key.namespace;
        queues.entry(namespace).or_default().push_back(*at);
    }
    let request = |at: usize| -> (GpuRequest, usize) {
        let pods = &wanted[at].claim().pods;
        let first = pods.first().map(|pod| gpu_request(ledger, &pod.gpus));
        (first.unwrap_or_else(|| GpuRequest::whole(0)), pods.len())
    };
    let stand = |tally: &Tally<'_>, at: usize| -> Next {
        let claim = wanted[at].claim();
        let (gpu, pods) = request(at);
        let (turn, _) = tally.turn(&ledger.fleet, &claim.key.namespace, &gpu, pods);
        Reverse((Reverse(claim.priority), turn, at))
    };
    let heads = queues.values().filter_map(|queue| queue.front());
    let mut heap: BinaryHeap<Next> = heads.map(|at| stand(&tally, *at)).collect();
    let mut order = Vec::with_capacity(borrowing.len());
    while let Some(Reverse((priority, turn, at))) = heap.pop() {
        let namespace: &str = &wanted[at].claim().key.namespace;
        // Another namespace of its tenant may have been served since.
        let now = stand(&tally, at);
        if now != Reverse((priority, turn, at)) && heap.peek().is_some_and(|next| *next > now) {
            heap.push(now);
            continue;
        }
        let (gpu, pods) = request(at);
        if let (_, Some(kept)) = tally.turn(&ledger.fleet, namespace, &gpu, pods) {
            tally.count(&kept);
        }
        order.push(at);
        if let Some(queue) = queues.get_mut(namespace) {
            queue.pop_front();
            heap.extend(queue.front().map(|next| stand(&tally, *next)));
        }
    }
    order
}
