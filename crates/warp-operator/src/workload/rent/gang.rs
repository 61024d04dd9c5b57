//! Asking for all machines of a gang that no single one holds, and following them: all come, or none. Pure.

use std::sync::Arc;

use kube::{Resource, ResourceExt};
use serde_json::json;
use warp_api::price::Price;
use warp_api::workload::RentStatus;
use warp_api::{GPURequest, RequestPhase, reason};
use warp_cloud::Decimal;
use warp_runtime::plan::Plan;

use super::{
    DECISIVE, LOOK, Several, TURN, Waiting, attempts, give_up, gpus, is_unbought, name, phase,
    several, slowest, spent,
};
use crate::clock;

impl Waiting<'_> {
    /// What is to be said where one machine was asked for and only several hold the gang: that request is taken back as
    /// soon as they are within the price.
    pub(super) fn instead_of(&self, steps: &mut Plan, request: &GPURequest) -> Option<String> {
        let waits = request.meta().deletion_timestamp.is_none()
            && !phase(request).is_final()
            && is_unbought(request)
            && self.rented.pack.is_none();
        match self.rented.several.as_ref().filter(|_| waits)? {
            Err(problem) => Some(format!("no machines are rented for it: {problem}")),
            Ok(several) => {
                give_up(
                    steps,
                    request,
                    "several machines hold it, and no single one",
                );
                Some(format!(
                    "{} machines are rented for it instead of one",
                    several.count()
                ))
            }
        }
    }

    /// Gives the requests of a set what spec.rent.maxPrice allows now.
    fn allow(&self, steps: &mut Plan, requests: &[&GPURequest]) {
        let shares = self.shares(requests);
        for (request, share) in &shares {
            steps.merge(*request, json!({"spec": {"maxPrice": share}}));
        }
        if !shares.is_empty() {
            steps.because("spec.rent changed");
        }
    }

    /// The share of spec.rent.maxPrice each request of a set is to have, where that is another by now and nothing is bought.
    pub(super) fn shares<'r>(&self, requests: &[&'r GPURequest]) -> Vec<(&'r GPURequest, Price)> {
        let Ok(most) = self.rent.max_price.decimal() else {
            return Vec::new();
        };
        let limit = |one: &GPURequest| one.spec.max_price.as_ref()?.decimal().ok();
        let all: Decimal = requests.iter().filter_map(|one| limit(one)).sum();
        // Shares are rounded down, each by less than a ten-thousandth.
        let rounded = Decimal::new(i64::try_from(requests.len()).unwrap_or(i64::MAX), 4);
        let same = all <= most && most - all < rounded;
        if same || all.is_zero() || !requests.iter().all(|one| is_unbought(one)) {
            return Vec::new();
        }
        let shares = requests.iter().filter_map(|one| Some((*one, limit(one)?)));
        shares
            .map(|(request, own)| (request, several::share(most, own, all)))
            .collect()
    }

    /// What is to be said of the requests of several machines; none when the next ones may be made.
    pub(super) fn after_them(
        &self,
        steps: &mut Plan,
        state: &RentStatus,
        requests: &[&GPURequest],
    ) -> Option<String> {
        let going = |request: &&&GPURequest| request.meta().deletion_timestamp.is_some();
        if let Some(request) = requests.iter().find(going) {
            return Some(format!(
                "GPURequest {} is being deleted",
                request.name_any()
            ));
        }
        let names: Vec<String> = requests.iter().map(|request| request.name_any()).collect();
        let names = names.join(", ");
        let all = state.others.len() + 1;
        if requests.len() < all {
            // Somebody deleted one: what is left of the set holds nobody, and costs.
            for request in requests {
                give_up(steps, request, "another of its set is gone");
            }
            return Some(format!(
                "{} of the {all} GPURequests that rented for it together are gone: {names} are given back, then all are rented again",
                all - requests.len()
            ));
        }
        let says = |request: &GPURequest| {
            let said = request.status.as_ref().and_then(|one| one.message.clone());
            said.unwrap_or_else(|| "it is being looked at".to_owned())
        };
        let open = requests.iter().find(|one| !phase(one).is_final());
        if let Some(open) = open {
            self.allow(steps, requests);
            let slowest = slowest(requests).unwrap_or(open);
            return Some(format!(
                "GPURequests {names} rent {} machines for it together, all or none: {}",
                all,
                says(slowest)
            ));
        }
        let failed = requests
            .iter()
            .find(|one| phase(one) == RequestPhase::Failed && !several::is_incomplete(one));
        if let Some(failed) = failed {
            return Some(format!(
                "no machines could be rented: {}; delete GPURequests {names} to try again",
                says(failed)
            ));
        }
        let idle = |request: &&&GPURequest| {
            let last = attempts(request).last();
            last.and_then(|last| last.outcome.as_deref()) == Some(reason::IDLE_TIMEOUT)
        };
        (requests.iter().all(|one| idle(&one)) && !state.used).then(|| {
            format!(
                "the machines of GPURequests {names} did not hold it and were given back; look at what else it asks for, then delete those requests to rent again"
            )
        })
    }

    /// Asks for all machines of a gang, and says so.
    pub(super) fn rent_several(
        &self,
        steps: &mut Plan,
        state: &mut RentStatus,
        several: &Result<Several, String>,
        number: i32,
    ) -> String {
        let requests = match several {
            Err(problem) => Err(problem.clone()),
            Ok(several) => self.requests(several, number),
        };
        let requests = match requests {
            Ok(requests) => requests,
            Err(problem) => {
                steps.look_again(clock::after(self.now, LOOK));
                return format!("no machines are rented for it: {problem}");
            }
        };
        let set = requests.first().and_then(|one| one.spec.together.as_ref());
        let differs = |made: &&Arc<GPURequest>| {
            let theirs = made.spec.together.as_ref();
            let same = theirs.map(|theirs| &theirs.name) == set.map(|set| &set.name);
            let wanted = requests
                .iter()
                .find(|one| one.name_any() == made.name_any());
            same && wanted.is_none_or(|wanted| wanted.spec != made.spec)
        };
        let left: Vec<_> = self.rented.requests.iter().filter(differs).collect();
        if !left.is_empty() {
            // A part of a set that was being made when this operator ended: prices have moved since.
            for request in left {
                give_up(steps, request, "not all of its set were made");
            }
            steps.look_again(clock::after(self.now, TURN));
            return "what was asked for it before is taken back first".to_owned();
        }
        steps.only_if_shows(self.workload, &DECISIVE);
        for request in &requests {
            steps.create_or_find(request);
        }
        steps.because("it has waited for room long enough to rent");
        let mut names = requests.iter().map(ResourceExt::name_any);
        state.request = names.next();
        state.others = names.collect();
        state.requests = number;
        state.used = false;
        let each: Vec<String> = requests.iter().map(|one| gpus(&one.spec)).collect();
        let price = self.rent.max_price.decimal().unwrap_or_default();
        format!(
            "{} machines ({}) are rented for it together, all or none, for at most {price} an hour: GPURequests {}",
            requests.len(),
            each.join(", "),
            requests
                .iter()
                .map(ResourceExt::name_any)
                .collect::<Vec<_>>()
                .join(", ")
        )
    }

    /// The requests of that number for several machines, or why there can be none.
    pub(super) fn requests(
        &self,
        several: &Several,
        number: i32,
    ) -> Result<Vec<GPURequest>, String> {
        if let Some(closed) = &self.rented.closed {
            return Err(closed.clone());
        }
        let set = name(self.workload, &number.to_string());
        let whole = self.spec(spent(self.others("")))?;
        let within = self.rent.within.as_deref();
        let specs = several.specs(&whole, &set, within).into_iter().enumerate();
        let each = specs.map(|(at, spec)| {
            let own = match at {
                0 => set.clone(),
                more => name(self.workload, &format!("{number}-{}", more + 1)),
            };
            self.named(own, spec)
        });
        Ok(each.collect())
    }
}
