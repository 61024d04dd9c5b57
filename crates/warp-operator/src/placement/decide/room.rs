//! Room for a claim that fits nowhere: the nodes it may not have, who goes for it, and what is kept for it until its turn.
//! Pure.

use std::sync::Arc;

use warp_api::reason;
use warp_core::fleet::Request;

use super::super::providers::{Closed, off_limits};
use super::super::request::{base_request, by_provider, elsewhere, require};
use super::super::{Cause, Claim, Claimant, Runner, Runs, Verdict};
use super::{Decision, Desk};
use crate::ledger::Ledger;

impl Desk<'_> {
    /// Nodes a claim may not have although it would fit: kept for others, or of a provider that is closed to it.
    pub(super) fn off_limits(&mut self, ledger: &Ledger, claim: &Claim) -> Vec<Arc<str>> {
        self.closed = self.providers.closed(ledger, claim);
        let mut kept = self.line.off_limits(claim);
        kept.extend(self.shut(ledger, claim, &self.closed));
        kept
    }

    /// Nodes that nobody goes from for a claim.
    pub(in super::super) fn off_limits_to_evict(
        &self,
        ledger: &Ledger,
        claim: &Claim,
    ) -> Vec<Arc<str>> {
        let mut kept = self.line.off_limits_to_evict(claim);
        kept.extend(self.shut(ledger, claim, &self.closed));
        kept.extend(claim.avoided.iter().cloned());
        kept
    }

    /// Nodes that work which is placed again may not have.
    pub(in super::super) fn off_limits_again(
        &self,
        ledger: &Ledger,
        claim: &Claim,
    ) -> Vec<Arc<str>> {
        let closed = self.providers.closed(ledger, claim);
        let mut kept = self.line.off_limits(claim);
        kept.extend(self.shut(ledger, claim, &closed));
        kept.extend(claim.avoided.iter().cloned());
        kept
    }

    /// Nodes a claim may not have, whoever waits: rented or bought for others, or of a provider that is closed to it.
    fn shut(&self, ledger: &Ledger, claim: &Claim, closed: &Closed) -> Vec<Arc<str>> {
        let mut shut = self.rented.off_limits(claim);
        shut.extend(self.bought.off_limits(claim));
        shut.extend(off_limits(&ledger.fleet, closed));
        shut
    }

    /// Makes room for a claim by evicting running work, and keeps it for the claim.
    pub(super) fn make_room(
        &mut self,
        ledger: &Ledger,
        claimant: &dyn Claimant,
        asked: &[Request],
        verdict: &Verdict,
    ) -> Option<Decision> {
        let claim = claimant.claim();
        let asked = by_provider(ledger, claim, asked);
        let left_out = self.off_limits_to_evict(ledger, claim);
        let tenancy = &self.tenancy;
        let preemptible = |namespace: &str| tenancy.preemptible(namespace);
        let fleet = &ledger.fleet;
        let now = self.evictable.now();
        let equals = self
            .order
            .and_then(|order| Some((order, order.equals(claimant, now)?)));
        let gives_way =
            equals.map(|(order, equals)| move |runs: &Runs| order.gives_way(runs, equals, now));
        let gives_way = gives_way
            .as_ref()
            .map(|gives_way| gives_way as &dyn Fn(&Runs) -> bool);
        let evictable = &mut self.evictable;
        let room = evictable.make_room(fleet, claim, &asked, &left_out, &preemptible, gives_way)?;
        let equal = |one: &Arc<dyn Runner>| one.runs().priority == claim.priority;
        let (cause, whose) = if room.going.iter().any(equal) {
            (Cause::Rank, "ranked far worse by the queue policy")
        } else {
            (Cause::Priority, "of lower priority")
        };
        let message = format!(
            "{}; it takes the place of {} on {}, {whose}, as soon as that has ended",
            verdict.message,
            room.names(),
            room.nodes.join(", ")
        );
        self.line.hold(claim, room.nodes.clone());
        Some(room.asked_for(cause, message))
    }

    /// Keeps room for a claim whose turn it is; says where.
    pub(super) fn stand_in_line(
        &mut self,
        ledger: &mut Ledger,
        claim: &Claim,
        asked: &[Request],
    ) -> Option<String> {
        let mut asked = by_provider(ledger, claim, asked);
        let shut = self.shut(ledger, claim, &self.closed);
        if !shut.is_empty() {
            // No room is kept where it may not be.
            for request in asked.iter_mut().flatten() {
                require(request, None, Some(&elsewhere(&shut)));
            }
        }
        let nodes = self.line.waits(&mut ledger.fleet, claim, &asked)?;
        Some(match nodes.as_slice() {
            [node] => {
                format!("it is next: node {node} is kept for it until enough work there has ended")
            }
            [first, ..] => format!(
                "it is next: {} nodes ({first} and others) are kept for it until enough work there has ended",
                nodes.len()
            ),
            [] => return None,
        })
    }

    /// Keeps what a claim waits for of its tenant's quota from later work of the tenant, or a stream of small work would
    /// hold wide work up for good.
    pub(super) fn stand_in_line_of_tenant(
        &mut self,
        ledger: &Ledger,
        claim: &Claim,
        verdict: &Verdict,
    ) {
        if verdict.reason != reason::TENANT_QUOTA_EXCEEDED || !self.line.keeps_for(claim) {
            return;
        }
        let first = claim.pods.first().map(|pod| base_request(ledger, pod));
        let Some(gpu) = first.and_then(|request| request.gpu) else {
            return;
        };
        if let Some(kept) = self.tenancy.first_in_line(&ledger.fleet, claim, &gpu) {
            self.tenancy.reserve(kept);
        }
    }
}
