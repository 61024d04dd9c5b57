//! Moving: running work that saves what it does goes to another place where a gang that waits starts by that. Off unless the
//! operator is told to. Who moves is `warp-core`'s, proved on a copy of the fleet before anybody is asked; here running work
//! becomes what may move. Pure.

use std::sync::Arc;

use warp_core::fleet::{Expression, Node, Request};
use warp_core::schedule::defragment::{Movable, defragment};

use super::decide::{Decision, Desk};
use super::evict::Room;
use super::request::{base_request, by_provider, elsewhere, on_one_of, require};
use super::{Cause, Claim, Verdict};
use crate::ledger::{Ledger, provider_of};

/// Gangs that others are moved for are looked for this often in one pass.
pub(super) const SEARCHES: usize = 2;
/// Running work that is looked at for one gang.
const MOST: usize = 64;

impl Desk<'_> {
    /// Has running work moved for a gang that fits nowhere, and keeps its nodes for it.
    pub(super) fn move_others(
        &mut self,
        ledger: &Ledger,
        claim: &Claim,
        asked: &[Request],
        verdict: &Verdict,
    ) -> Option<Decision> {
        if claim.pods.len() < 2 || claim.patient {
            return None;
        }
        // One that others are moved for by now is not given up because of those in front: they would come back.
        if !self.line().moves_for(claim) {
            self.searches = self.searches.checked_sub(1)?;
        }
        let tenancy = self.tenancy();
        let preemptible = |namespace: &str| tenancy.preemptible(namespace);
        let found = self.evictable().movable(claim, &preemptible, MOST);
        let (mut places, mut movable) = (Vec::new(), Vec::new());
        for (at, victim, own) in found {
            let node = victim.works.first().and_then(|work| node_of(ledger, work));
            let pod = own.pods.first();
            if let Some((node, pod)) = node.zip(pod) {
                let mut request = base_request(ledger, pod);
                let kept = self.off_limits_again(ledger, &own);
                if !kept.is_empty() {
                    require(&mut request, None, Some(&elsewhere(&kept)));
                }
                require(&mut request, None, Some(&like(ledger, node)));
                movable.push(Movable { victim, request });
                places.push(at);
            }
        }
        let left_out = self.off_limits_to_evict(ledger, claim);
        let eligible = |name: &str| !left_out.iter().any(|node| **node == *name);
        let asked = by_provider(ledger, claim, asked);
        let mut asked = asked.iter();
        let moves =
            asked.find_map(|asked| defragment(&ledger.fleet, asked, &movable, &eligible))?;
        let moved = moves.moved.iter().map(|at| places[*at]).collect();
        let room = Room {
            going: self.evictable_mut().takes(moved),
            nodes: moves.nodes,
        };
        let message = format!(
            "{}; it starts on {} as soon as {} have been moved elsewhere",
            verdict.message,
            room.nodes.join(", "),
            room.names()
        );
        self.line().hold_moving(claim, room.nodes.clone());
        Some(room.asked_for(Cause::Move, message))
    }
}

/// The node work is on.
fn node_of<'a>(ledger: &'a Ledger, work: &str) -> Option<&'a Node> {
    let fleet = &ledger.fleet;
    let found = fleet.find(&fleet.work(work)?.node)?;
    fleet.node(found).map(|node| &**node)
}

/// Nodes of the same provider with the same GPUs: what moves costs and counts as before.
fn like(ledger: &Ledger, node: &Node) -> Expression {
    let kinds = |node: &Node| -> Vec<(Arc<str>, Arc<str>)> {
        let pools = node.gpus.iter();
        pools
            .map(|pool| (Arc::clone(&pool.resource), Arc::clone(&pool.model)))
            .collect()
    };
    let own = kinds(node);
    let nodes = ledger.fleet.nodes().map(|(_, other)| other);
    let alike =
        nodes.filter(|other| provider_of(other) == provider_of(node) && kinds(other) == own);
    on_one_of(alike.map(|other| Arc::clone(&other.name)).collect())
}
