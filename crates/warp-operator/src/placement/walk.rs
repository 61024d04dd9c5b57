//! One walk along the line: everybody in order, each seeing the ones before it. Claims of one shape are looked at once on
//! each ground. Nothing is written here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use warp_api::Tenant;
use warp_core::fleet::{Fleet, Request};
use warp_core::random::Fingerprint;
use warp_core::schedule::fit::Filter;

use super::decide::work_id;
use super::memo::{Ground, Own};
use super::roll::{News as Told, Waiting};
use super::{
    Cause, Claimant, Decision, Desk, Evictable, Held, Line, Place, Quotas, Runner, State, Tenancy,
    Turn, Verdict, by_share,
};
use crate::context::Context;
use crate::ledger::Books;

/// For whom, who goes, and why.
type Eviction = (Arc<dyn Claimant>, Vec<Arc<dyn Runner>>, Cause);

/// What a pass found to be done.
#[derive(Debug, Default)]
pub(super) struct Decided {
    pub(super) places: Vec<(Turn, Arc<dyn Claimant>, Vec<Place>)>,
    pub(super) evictions: Vec<Eviction>,
    pub(super) news: Vec<News>,
    /// Those that wait, and for which reasons.
    pub(super) waiting: usize,
    pub(super) reasons: BTreeMap<&'static str, usize>,
    /// Nothing is to be done as long as nothing changes.
    pub(super) leaves_nothing: bool,
}

/// Something to tell to one that waits.
#[derive(Debug)]
pub(super) struct News {
    pub(super) turn: Turn,
    pub(super) claimant: Arc<dyn Claimant>,
    pub(super) verdict: Arc<Verdict>,
    pub(super) position: usize,
}

/// Tells a state that only this pass knows from those the books know.
const TENTATIVE: u64 = 1 << 63;

/// The walk of one pass.
pub(super) struct Walk<'a> {
    cx: &'a Context,
    state: &'a mut State,
    tenants: &'a [Arc<Tenant>],
    now: Timestamp,
}

impl<'a> Walk<'a> {
    pub(super) fn over(
        cx: &'a Context,
        state: &'a mut State,
        tenants: &'a [Arc<Tenant>],
        now: Timestamp,
    ) -> Self {
        Self {
            cx,
            state,
            tenants,
            now,
        }
    }

    pub(super) fn run(self) -> Decided {
        let Self {
            cx,
            state,
            tenants,
            now,
        } = self;
        let State {
            roll,
            books,
            memo,
            held,
            rented,
            bought,
            providers,
            ..
        } = state;
        let quotas = Quotas::new(cx.quotas.all(), books.promises());
        let tenancy = Tenancy::new(tenants, &cx.namespaces.all(), &books.ledger_mut().fleet);
        let mut mix = books.mix().clone();
        let structure = books.structure();
        roll.count(&mut mix, books.ledger_mut(), structure);
        // Nobody goes for work of the lowest priority, unless it borrows.
        let evicts = tenancy.lends() || roll.is_urgent() || roll.evictable_share() > 0.0;
        let (runners, evictable) = if evicts {
            (
                roll.runners(),
                roll.eviction_print().wrapping_add(roll.order()),
            )
        } else {
            (Arc::default(), 0)
        };
        let limited =
            |name: &Arc<str>| !rented.is_empty() || tenancy.rules(name) || quotas.limits(name);
        // Where nothing is said of a namespace it is as good as any other such.
        let realms: Vec<usize> = (1..)
            .zip(roll.namespaces())
            .map(|(number, name)| if limited(name) { number } else { 0 })
            .collect();
        let lends = tenancy.lends();
        let state_of_work = (evictable, roll.ends());
        let (mut all, endings) = roll.line();
        let order = lends.then(|| {
            let wanted = all.iter().map(|(_, waiting)| Arc::clone(&waiting.claimant));
            let wanted: Vec<_> = wanted.collect();
            by_share(&wanted, &tenancy, books.ledger_mut())
        });
        let order = order.flatten().unwrap_or_else(|| (0..all.len()).collect());
        // Room that was made for one that does not wait any more is nobody's.
        if held.iter().any(Held::is_made) {
            let claims = all.iter().map(|(_, waiting)| waiting.claimant.claim());
            let waits: BTreeSet<&str> = claims.map(|claim| claim.uid.as_str()).collect();
            held.retain(|held| !held.is_made() || waits.contains(held.uid()));
        }
        let state_of_work = (state_of_work.0.wrapping_add(made(held)), state_of_work.1);
        let line = Line::knowing(cx.settings.queue_policy, now, endings, std::mem::take(held))
            .ordered_by(&cx.order);
        let evictables = Evictable::new(runners, now, cx.settings.min_run_time);
        let mut desk = Desk::new(&[], quotas, tenancy, line, &cx.settings)
            .ordered_by(&cx.order)
            .evicting(evictables)
            .expecting(mix)
            .keeping(rented.clone())
            .keeping_bought(bought.clone())
            .comparing(providers.clone());
        memo.begin();
        let mut decided = Decided {
            leaves_nothing: true,
            ..Decided::default()
        };
        let mut reasons = Reasons::default();
        // Asked once: it takes a lock, and the line may be long.
        let levels = cx.order.evicts();
        let mut ground = ground_of(&desk, books, state_of_work);
        // What is placed in this pass may keep others off its node.
        let mut repelling = books.repelling();
        for at in order {
            let (turn, waiting) = &mut all[at];
            let special = is_repelled(waiting, books, repelling)
                || waiting.is_kept_for
                || !waiting.is_like_others
                || (!rented.is_empty() && rented.is_first(&waiting.claimant.claim().uid))
                || (!bought.is_empty() && waiting.claimant.claim().shown_since.is_some());
            let level = if levels {
                cx.order.level(&*waiting.claimant, now)
            } else {
                0
            };
            let sort = (waiting.shape, realms[waiting.namespace], level);
            let brief = waiting.has_just_heard(now);
            let known = if special {
                let own = waiting.own.as_ref();
                let holds = |own: &&Own| own.ground.is_same(&ground) && (brief || !own.brief);
                own.filter(holds).map(|own| {
                    desk.still_waits(waiting.claimant.claim(), own.reserves.as_ref());
                    Arc::clone(&own.verdict)
                })
            } else {
                memo.get(sort, &ground, brief)
            };
            let verdict = if let Some(verdict) = known {
                verdict
            } else {
                let claimant = Arc::clone(&waiting.claimant);
                desk.set_brief(brief);
                let decision = desk.decide(books.ledger_mut(), &*claimant);
                let still = ground.still(desk.held(), desk.reserved());
                waiting.is_kept_for = !still;
                waiting.own = None;
                match decision {
                    Decision::Place(places) => {
                        for member in 0..places.len() {
                            books.entered(work_id(claimant.claim(), member));
                        }
                        if !waiting.is_like_others {
                            repelling = TENTATIVE | books.epoch();
                        }
                        let turn = Turn::clone(turn);
                        decided.places.push((turn, claimant, places));
                        decided.leaves_nothing = false;
                        ground = ground_of(&desk, books, state_of_work);
                        continue;
                    }
                    Decision::Skip => {
                        decided.leaves_nothing = false;
                        ground = ground_of(&desk, books, state_of_work);
                        continue;
                    }
                    Decision::Evict(going, cause, verdict) => {
                        decided.evictions.push((claimant, going, cause));
                        decided.leaves_nothing = false;
                        Arc::new(verdict)
                    }
                    Decision::Wait(verdict) => {
                        let verdict = Arc::new(verdict);
                        if special || !still {
                            let reserves = desk.reserved().get(ground.reserved.len());
                            waiting.own = Some(Own {
                                ground: Arc::clone(&ground),
                                verdict: Arc::clone(&verdict),
                                brief,
                                reserves: reserves.cloned(),
                            });
                        } else {
                            memo.put(sort, &ground, &verdict, brief);
                        }
                        verdict
                    }
                }
            };
            if !ground.still(desk.held(), desk.reserved()) {
                ground = ground_of(&desk, books, state_of_work);
            }
            decided.waiting += 1;
            reasons.count(verdict.reason);
            let position = decided.waiting;
            match waiting.news((&verdict, brief), position, now) {
                Told::None => {}
                Told::Later => decided.leaves_nothing = false,
                Told::Now => decided.news.push(News {
                    turn: Turn::clone(turn),
                    claimant: Arc::clone(&waiting.claimant),
                    verdict,
                    position,
                }),
            }
        }
        decided.reasons = reasons.sum();
        held.clone_from(desk.held());
        drop(desk);
        books.settle();
        decided
    }
}

/// How many wait for which reason. Neighbours in line mostly have the same, so they are entered together.
#[derive(Default)]
struct Reasons {
    entered: BTreeMap<&'static str, usize>,
    last: &'static str,
    of_last: usize,
}

impl Reasons {
    fn count(&mut self, reason: &'static str) {
        if !std::ptr::eq(self.last, reason) {
            self.enter();
            self.last = reason;
        }
        self.of_last += 1;
    }

    fn enter(&mut self) {
        let count = std::mem::take(&mut self.of_last);
        if count > 0 {
            *self.entered.entry(self.last).or_default() += count;
        }
    }

    fn sum(mut self) -> BTreeMap<&'static str, usize> {
        self.enter();
        self.entered
    }
}

/// Whole GPUs that are allocated, idle on nodes that nothing runs on, and idle beside other work.
pub(super) fn usage(fleet: &Fleet) -> [(&'static str, usize); 3] {
    let (mut allocated, mut idle, mut stranded) = (0, 0, 0);
    for (id, _) in fleet.nodes() {
        let pools = fleet.free(id).into_iter().flat_map(|free| &free.pools);
        let (mut all, mut free) = (0, 0);
        for pool in pools {
            all += pool.cards.len();
            free += pool.idle_cards();
        }
        allocated += all - free;
        if all == free {
            idle += free;
        } else {
            stranded += free;
        }
    }
    [
        ("allocated", allocated),
        ("idle", idle),
        ("stranded", stranded),
    ]
}

/// A number of the room that was made for some.
fn made(held: &[Held]) -> u64 {
    let made = held.iter().filter(|held| held.is_made());
    let print = |print: Fingerprint, held: &Held| {
        let nodes = held.nodes().iter();
        nodes.fold(print.text(held.uid()), |print, node| print.text(node))
    };
    let mut made = made.peekable();
    if made.peek().is_none() {
        return 0;
    }
    made.fold(Fingerprint::default(), print).get()
}

/// What decisions depend on now.
fn ground_of(desk: &Desk<'_>, books: &Books, (evictable, ends): (u64, u64)) -> Arc<Ground> {
    Arc::new(Ground {
        epoch: books.epoch(),
        evictable,
        ends,
        held: Arc::clone(desk.held()),
        reserved: Arc::clone(desk.reserved()),
    })
}

/// Whether a pod that is there or coming keeps a claim off its node: then claims of one shape are not alike. `version` is
/// another when such pods have come or gone.
fn is_repelled(waiting: &mut Waiting, books: &mut Books, version: u64) -> bool {
    if version == 0 {
        return false;
    }
    if let Some((_, repelled)) = waiting.repelled.filter(|(of, _)| *of == version) {
        return repelled;
    }
    let pod = waiting.claimant.claim().pods.first();
    let repelled = pod.is_some_and(|pod| {
        let request = Request {
            namespace: Arc::from(pod.meta.namespace.as_deref().unwrap_or_default()),
            labels: warp_api::pod::labels(pod.meta.labels.as_ref()),
            ..Request::default()
        };
        Filter::new(&books.ledger_mut().fleet, &request).watches_others()
    });
    waiting.repelled = Some((version, repelled));
    repelled
}
