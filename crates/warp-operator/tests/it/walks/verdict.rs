//! What a walked world is held to besides its end: the fault campaign's invariants, and no storms.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use warp_testkit::fault::world::World;
use warp_testkit::fault::{history, judge};

use crate::invariants::INVARIANTS;

/// Nothing happens for so long at the end of a world: longer than any time after which the operator
/// looks again by itself.
const CALM: Duration = Duration::from_mins(11);
/// Requests in that time: watches are renewed, and some Jobs the API server refuses are tried again.
const AT_REST: usize = 200;
/// What the operator asked of the API server.
pub(crate) struct Load {
    writes: usize,
    requests: usize,
    /// Requests while nothing happened.
    calm: usize,
}

/// Twice what a fresh cluster takes, and something for every step a user took; at rest next to nothing.
pub(crate) fn no_storm(seed: u64, walked: &Load, fresh: &Load, steps: usize) -> Result<()> {
    eprintln!(
        "seed {seed}: {} writes and {} requests of the operator in {steps} steps, a fresh cluster takes {} and {}; at rest {} and {}",
        walked.writes, walked.requests, fresh.writes, fresh.requests, walked.calm, fresh.calm
    );
    let most = |normal: usize| 2 * normal + steps + steps / 2;
    ensure!(
        walked.writes <= most(fresh.writes) && walked.requests <= most(fresh.requests),
        "a storm: {} writes and {} requests",
        walked.writes,
        walked.requests
    );
    ensure!(
        walked.calm.max(fresh.calm) <= AT_REST,
        "a storm when nothing happens: {} requests, {} on a fresh cluster",
        walked.calm,
        fresh.calm
    );
    Ok(())
}

/// What the fault campaign demands of every run too; how much the operator asked for.
pub(crate) async fn judged(world: &World) -> Result<Load> {
    let before = world.faults.records().len();
    world.pass(CALM).await;
    let calm = world.faults.records().len() - before;
    if let Some(last) = world.faults.flood() {
        bail!("a flood of requests; the last: {:?}", last.last());
    }
    let store = world.server().store();
    let records = world.faults.records();
    let mut wrong = judge::violations(
        &history::changes(store, 0),
        world.dawn(),
        false,
        &INVARIANTS,
    );
    wrong.extend(judge::careless(&records));
    wrong.extend(history::incomplete(store));
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));
    ensure!(world.exits() == 0, "the operator ended by itself");
    // Watches are renewed by the clock, one for each cache, whatever a user does: they count while nothing happens.
    let asked = records.iter().filter(|record| record.call.verb != "watch");
    let asked = asked.count();
    Ok(Load {
        writes: records.iter().filter(|record| record.write > 0).count(),
        requests: asked,
        calm,
    })
}
