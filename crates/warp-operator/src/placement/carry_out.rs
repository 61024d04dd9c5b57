//! Carries out what a pass has decided: asks who goes to go, makes what was placed, tells those that wait. Chooses nothing.

use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use warp_api::reason;
use warp_runtime::execute::{ExecuteError, status_of};
use warp_runtime::plan::Plan;
use warp_runtime::sweep::Hands;

use super::walk::{Decided, News};
use super::{Cause, Claim, Claimant, NAME, Place, Placement, Runner, Verdict};
use crate::context::Context;

/// Placements carried out at once.
const AT_ONCE: usize = 16;
/// What the executor calls a request that makes an object, or changes one.
const CREATE: &str = "create";
const PATCH: &str = "patch";

impl Placement {
    /// Makes what was placed, then tells those that wait.
    ///
    /// What the others are told of beside a placement that could not be made may be wrong by the next pass, and right
    /// again when it has been made, a write for each of them both times: they hear from that next pass.
    pub(super) async fn carry_out(
        &self,
        hands: &Hands,
        decided: Decided,
        correlation: &str,
        now: Timestamp,
    ) {
        let cx = &*self.cx;
        for (claimant, going, cause) in decided.evictions {
            make_room(cx, hands, &*claimant, (&going, cause), correlation, now).await;
        }
        let failed = AtomicBool::new(false);
        stream::iter(decided.places)
            .for_each_concurrent(AT_ONCE, |(turn, claimant, chosen)| {
                let failed = &failed;
                async move {
                    let outcome = place(cx, hands, &*claimant, &chosen, correlation, now).await;
                    let mut state = self.state.lock();
                    if outcome != Outcome::Made {
                        failed.store(true, atomic::Ordering::Relaxed);
                        // Until when it is held back is known to nobody else.
                        state.roll.outdated(&turn);
                    }
                    if let Some(waiting) = state.roll.at(&turn) {
                        waiting.forget_told();
                    }
                    if let Outcome::NotYet(failures) = outcome {
                        state.kept.keep(&*claimant, &chosen, failures);
                    }
                    drop(state);
                    wake(cx, claimant.claim());
                }
            })
            .await;
        let all_made = !failed.into_inner();
        self.tell(decided.news, all_made, now);
        if !all_made {
            cx.wakes.wake_sweep(NAME);
        }
    }
}

impl Placement {
    /// Tells those that wait. While not all was made only those hear that have heard nothing yet.
    pub(super) fn tell(&self, news: Vec<News>, all_made: bool, now: Timestamp) {
        let cx = &*self.cx;
        let mut state = self.state.lock();
        for News {
            turn,
            claimant,
            verdict,
            position,
        } in news
        {
            let claim = claimant.claim();
            let first = cx.verdicts.get(&claim.uid, claim.generation).is_none();
            if !all_made && !first {
                state.settled = None;
                continue;
            }
            if let Some(waiting) = state.roll.at(&turn) {
                waiting.tell(Arc::clone(&verdict), position, now);
            }
            if cx.verdicts.set(claim, verdict, Some(position), now) {
                wake(cx, claim);
            }
        }
    }
}

/// Asks those that go for a claim to end. Who cannot be asked now is asked by the next pass, if it still has to go then.
async fn make_room(
    cx: &Context,
    hands: &Hands,
    claimant: &dyn Claimant,
    (going, cause): (&[Arc<dyn Runner>], Cause),
    correlation: &str,
    now: Timestamp,
) {
    let claim = claimant.claim();
    for runner in going {
        let mut plan = Plan::default();
        claimant.still_waits(&mut plan);
        runner.evict(&mut plan, claim, cause);
        plan.why = format!("it makes room for {}, {}", claim.key, cause.of_the_other());
        let pass = runner.pass(correlation.to_owned());
        match hands.executor.execute(&pass, plan).await {
            Ok(_) => cx.metrics.evicted(runner.runs().lost_gpu_seconds(now)),
            Err(error) => {
                let object = &runner.runs().key;
                tracing::warn!(%object, %error, "not asked to end for now");
                cx.wakes.wake_sweep(NAME);
            }
        }
    }
}

fn wake(cx: &Context, claim: &Claim) {
    cx.wakes.wake(claim.controller, claim.key.clone());
}

/// What came of a placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// What it makes is there.
    Made,
    /// It is tried again in a moment; how often it failed in a row.
    NotYet(u32),
    /// The API server does not want it as it is.
    Refused,
}

/// Carries a placement out.
async fn place(
    cx: &Context,
    hands: &Hands,
    claimant: &dyn Claimant,
    places: &[Place],
    correlation: &str,
    now: Timestamp,
) -> Outcome {
    let claim = claimant.claim();
    let planned = || {
        let mut plan = claimant.plan(places, now);
        if let Some(first) = places.first() {
            plan.why.clone_from(&first.why);
        }
        plan
    };
    let pass = claimant.pass(correlation.to_owned());
    let mut answer = hands.executor.execute(&pass, planned()).await;
    // A quota that changed in the same moment, or what was said about a Job: whoever waits now loses its place to a lower
    // one.
    let lost_race =
        |error: &ExecuteError| matches!(error.verb, CREATE | PATCH) && error.is_conflict();
    if answer.as_ref().is_err_and(lost_race) {
        answer = hands.executor.execute(&pass, planned()).await;
    }
    match answer {
        Ok(_) if claimant.is_made() => {
            if let Some(first) = places.first() {
                cx.metrics.scheduled(first.strategy);
            }
            if let Some(created) = claim.created {
                let waited = now.duration_since(created);
                let tenant = cx.defaults.tenant_of(&claim.key.namespace);
                cx.metrics
                    .waited(tenant.as_deref(), waited.as_secs_f64().max(0.0));
            }
            cx.verdicts.clear(&claim.uid);
            Outcome::Made
        }
        // It is usually ours and on its way through the watch; one that stays unseen belongs to another.
        Ok(_) => {
            let failures = cx.verdicts.hold_back(claim, now);
            if failures > 1 {
                cx.verdicts.set(claim, claimant.taken(), None, now);
            }
            Outcome::NotYet(failures)
        }
        Err(error) => not_made(cx, claimant, &error, now),
    }
}

/// A placement could not be made. A refusal by the API server is the owner's to know; anything else
/// is ours to try again.
fn not_made(
    cx: &Context,
    claimant: &dyn Claimant,
    error: &ExecuteError,
    now: Timestamp,
) -> Outcome {
    let claim = claimant.claim();
    tracing::warn!(object = %claim.key, %error, "not placed for now");
    // Its own pass sets the alarm for the next try.
    let failures = cx.verdicts.hold_back(claim, now);
    // What an expired token, a namespace that is gone or a conflict answers is not the spec's fault.
    let status = status_of(&error.source).filter(|status| matches!(status.code, 400 | 403 | 422));
    let Some(status) = status else {
        return Outcome::NotYet(failures);
    };
    let changes = matches!(error.verb, CREATE | PATCH);
    let rejected = || changes.then(|| claimant.rejected(&status.message));
    if let Some(verdict) = forbidden(status).or_else(rejected) {
        cx.verdicts.set(claim, verdict, None, now);
    }
    Outcome::Refused
}

/// What a refusal says when it is about the operator's own rights, which admission and quotas also
/// answer with 403.
pub(super) fn forbidden(status: &kube::core::Status) -> Option<Verdict> {
    let own = status.code == 403
        && status.message.contains("User \"")
        && status.message.contains("\" cannot ");
    own.then(|| Verdict {
        reason: reason::OPERATOR_FORBIDDEN,
        message: format!(
            "the operator lacks a right, the workload is not at fault: {}; apply the role that `warp install --print` prints",
            status.message
        ),
    })
}
