//! Taking back: a claim within the share of its tenant that waits for quota or for room takes the place of work of tenants
//! that borrow. Who goes is `warp-core`'s, proved on copies of fleet and shares. Pure.

use std::sync::Arc;

use warp_api::reason;
use warp_core::fleet::Request;
use warp_core::schedule::reclaim::{Shares, reclaim};

use super::decide::Desk;
use super::evict::{Cause, Room};
use super::request::{base_request, by_provider};
use super::tenancy::Reserved;
use super::{Claim, Decision, Verdict};
use crate::ledger::Ledger;

impl Desk<'_> {
    /// Takes back what is lent of a claim's share, and keeps it for the claim; how much it waits for is kept from borrowers
    /// also where nobody can be asked.
    pub(super) fn take_back(
        &mut self,
        ledger: &Ledger,
        claim: &Claim,
        kept: &[Arc<str>],
        verdict: &Verdict,
    ) -> Option<Decision> {
        if !self.tenancy().lends() {
            return None;
        }
        let promised = self.promised(ledger, claim);
        if let Some((room, share)) = self.room_of_its_own(ledger, claim, kept, &promised) {
            let decision = self.evicting_for(claim, room, &share, verdict);
            self.tenancy_mut().reserve(share);
            return Some(decision);
        }
        if verdict.reason == reason::TENANT_QUOTA_EXCEEDED
            && let Some(first) = promised.into_iter().next()
        {
            self.tenancy_mut().reserve(first);
        }
        None
    }

    /// What its share covers of what a claim accepts.
    fn promised(&self, ledger: &Ledger, claim: &Claim) -> Vec<Reserved> {
        let first = claim.pods.first().map(|pod| base_request(ledger, pod));
        let gpu = first.and_then(|request| request.gpu);
        gpu.map_or_else(Vec::new, |gpu| {
            let namespace = &claim.key.namespace;
            self.tenancy()
                .promised(&ledger.fleet, namespace, &gpu, claim.pods.len())
        })
    }

    /// The cheapest way to the first kind of GPU that can be taken back.
    fn room_of_its_own(
        &mut self,
        ledger: &Ledger,
        claim: &Claim,
        kept: &[Arc<str>],
        promised: &[Reserved],
    ) -> Option<(Room, Reserved)> {
        let first = promised.first().filter(|_| !claim.patient)?;
        let lent = self.lent();
        let (tree, usage) = self.tenancy().seen_by(first.tenant());
        let shares = Shares {
            tree,
            usage: &usage,
        };
        let left_out: Vec<_> = claim.avoided.iter().chain(kept).collect();
        let eligible = |name: &str| !left_out.iter().any(|node| ***node == *name);
        for share in promised {
            let asked = claim.pods.iter().map(|pod| {
                let mut request = base_request(ledger, pod);
                if let Some(gpu) = request.gpu.as_mut() {
                    gpu.models = [Arc::clone(&share.kind().model)].into();
                }
                request
            });
            let asked: Vec<Request> = asked.collect();
            let mut ways = by_provider(ledger, claim, &asked).into_iter();
            let lent_now: Vec<_> = lent.iter().map(|(_, lent)| lent.clone()).collect();
            let found = ways.find_map(|requests| {
                let ask = share.ask();
                reclaim(&ledger.fleet, &requests, shares, ask, &lent_now, &eligible)
            });
            if let Some(found) = found {
                let going = found.victims.iter().map(|at| lent[*at].0);
                let going = self.evictable_mut().takes(going.collect());
                let nodes = found.nodes;
                return Some((Room { nodes, going }, share.clone()));
            }
        }
        None
    }

    fn evicting_for(
        &mut self,
        claim: &Claim,
        room: Room,
        share: &Reserved,
        verdict: &Verdict,
    ) -> Decision {
        let message = format!(
            "{}; tenant {} takes back GPUs it lent: {} goes for it, and it starts on {} as soon as that has ended",
            verdict.message,
            share.tenant(),
            room.names(),
            room.nodes.join(", "),
        );
        self.line().hold(claim, room.nodes.clone());
        room.asked_for(Cause::Share, message)
    }
}
