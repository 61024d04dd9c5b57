//! What would be rented for a workload that waits, asked before its time has come: the requests that would be made for it.
//! Pure.

use std::sync::Arc;

use jiff::Timestamp;
use kube::{Resource, ResourceExt};
use warp_api::workload::RentStatus;
use warp_api::{CloudProvider, GPURequest, GPUWorkload};

use super::{CAPACITY, Rented, Waiting, is_unbought, phase};
use crate::clock;

/// What renting would come to.
#[derive(Clone, Debug)]
pub(crate) enum Prospect {
    /// Requests are there for it, or room on the machine of another: this says the operator of them.
    Underway(String),
    /// Another machine would not end its wait.
    Useless,
    /// Nothing is asked for, and why.
    Nothing(String),
    /// These are made at that time, unless room comes free before.
    Asks(Vec<GPURequest>, Timestamp),
    /// These are there, have bought nothing, and are changed to what it asks for now.
    Changes(Vec<GPURequest>),
    /// These are there and have bought already: they are told what it asks for now.
    Tells(Vec<String>, String),
    /// These are there, and it does not rent any more.
    TakesBack(Vec<String>),
}

/// What would be rented for a workload that waits for this reason; none where it does not rent and has not. `requests` and `others` are
/// those of its namespace.
pub(crate) fn foresee(
    workload: &GPUWorkload,
    reason: &str,
    requests: Vec<Arc<GPURequest>>,
    others: &[Arc<GPUWorkload>],
    providers: &[Arc<CloudProvider>],
    now: Timestamp,
) -> Option<Prospect> {
    let status = workload.status.as_ref();
    let state = status
        .and_then(|status| status.rent.clone())
        .unwrap_or_default();
    let Some(rent) = workload.spec.rent.as_ref() else {
        let asked = names(&state);
        return (!asked.is_empty()).then_some(Prospect::TakesBack(asked));
    };
    if !CAPACITY.contains(&reason) {
        return Some(Prospect::Useless);
    }
    let all = requests.clone();
    let found = Rented::of(workload, all, others, providers, now);
    let there = Waiting {
        workload,
        rent,
        rented: &found,
        current: Vec::new(),
        now,
    };
    if let Some(said) = there.underway(&state) {
        return Some(said);
    }
    let since = state.waiting_since.map_or(now, |since| since.0);
    let due = clock::after(since, rent.after_seconds());
    // Who has waited so long would be the one that asks.
    let rented = Rented::of(workload, requests, others, providers, due.max(now));
    if let Some(room) = &rented.beside.room {
        return Some(Prospect::Underway(format!(
            "the machine of GPURequest {room}, rented for another workload of the namespace, has room for it"
        )));
    }
    let waiting = Waiting {
        workload,
        rent,
        rented: &rented,
        current: Vec::new(),
        now,
    };
    let number = state.requests.max(1);
    let asked = match rented.several.as_ref().filter(|_| rented.pack.is_none()) {
        Some(Err(problem)) => Err(problem.clone()),
        Some(Ok(several)) => waiting.requests(several, number),
        None => waiting.request(number).map(|request| vec![request]),
    };
    Some(match asked {
        Err(problem) => Prospect::Nothing(problem),
        Ok(requests) => Prospect::Asks(requests, due.max(now)),
    })
}

/// The requests its status names.
fn names(state: &RentStatus) -> Vec<String> {
    state.request.iter().chain(&state.others).cloned().collect()
}

impl Waiting<'_> {
    /// What becomes of the requests that are there; none where there are none, or others take their place.
    fn underway(&self, state: &RentStatus) -> Option<Prospect> {
        let names = names(state);
        let said = state.message.clone().filter(|_| !names.is_empty())?;
        let all = self.rented.requests.iter().map(|request| &**request);
        let open = all.filter(|one| {
            let going = one.meta().deletion_timestamp.is_some() || phase(one).is_final();
            names.contains(&one.name_any()) && !going
        });
        let open: Vec<&GPURequest> = open.collect();
        let changed: Vec<GPURequest> = match open.as_slice() {
            [only] if state.others.is_empty() => {
                let instead = self.rented.pack.is_none() && self.rented.several.is_some();
                if instead && is_unbought(only) {
                    return None;
                }
                let spec = self.changed(only);
                let with = |spec| GPURequest {
                    spec,
                    ..(*only).clone()
                };
                spec.map(with).into_iter().collect()
            }
            several => {
                let shares = self.shares(several).into_iter();
                let with = shares.map(|(request, share)| {
                    let mut changed = request.clone();
                    changed.spec.max_price = Some(share);
                    changed
                });
                with.collect()
            }
        };
        if changed.is_empty() {
            return Some(Prospect::Underway(said));
        }
        if open.iter().all(|one| is_unbought(one)) {
            return Some(Prospect::Changes(changed));
        }
        let changed = changed.iter().map(ResourceExt::name_any).collect();
        Some(Prospect::Tells(changed, said))
    }
}
