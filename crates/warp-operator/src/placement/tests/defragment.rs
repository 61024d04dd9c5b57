//! Who is moved so that a gang starts.

use super::*;
use warp_core::schedule::keep::Ending;
use warp_runtime::cache::Key;

use crate::placement::{Cause, Evictable, Runner, Runs};

/// Running work that can be placed again.
#[derive(Debug)]
struct Moves(Runs, Claim);

impl Runner for Moves {
    fn runs(&self) -> &Runs {
        &self.0
    }
    fn evict(&self, _: &mut warp_runtime::plan::Plan, _: &Claim, _: Cause) {}
    fn pass(&self, _: String) -> warp_runtime::pass::Pass {
        unreachable!("nothing is carried out here")
    }
    fn asks_again(&self, _: Timestamp) -> Option<Claim> {
        Some(self.1.clone())
    }
}

fn small(name: &str) -> Arc<GPUWorkload> {
    workload(name, json!({"gpuCount": 2}))
}

/// Work with two GPUs that began so many minutes ago and saves what it does.
fn runs(name: &str, minutes: i64) -> Runs {
    let started = Some(crate::clock::after(now(), -60 * minutes));
    Runs {
        key: Key::new("team", name),
        works: vec![Arc::from(format!("{name}-uid-0000"))],
        priority: Priority::Normal,
        preemptible: None,
        gpus: 2,
        started,
        unsaved_since: started,
        evicted_for: None,
        saves: true,
        features: warp_core::estimate::Features::default(),
        created: None,
    }
}

/// Three nodes of four GPUs, two of which have work with two.
fn cut_up() -> Ledger {
    let nodes = ["a", "b", "c"].map(|name| node(name, 4, json!({"host": name})));
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let on = |name: &str, node: &str| {
        let here = json!({"host": node});
        let spec = json!({"nodeSelector": here, "containers": [{"name": "main", "image": "i"}]});
        let asked = json!({"gpuCount": 2, "image": null, "podTemplate": {"spec": spec}});
        workload(name, asked)
    };
    let placed = decide(&mut ledger, &[on("x", "a"), on("y", "b")]);
    assert_eq!(chosen(&placed[0]).as_deref(), Some("a"));
    assert_eq!(chosen(&placed[1]).as_deref(), Some("b"));
    ledger
}

fn pass(
    ledger: &mut Ledger,
    running: &[Runs],
    before: Vec<Held>,
    who: &[&Arc<GPUWorkload>],
    defragment: bool,
) -> (Vec<Decision>, Vec<Held>) {
    let settings = Settings {
        defragment,
        ..Settings::default()
    };
    let endings = || {
        ["x", "y"]
            .map(|name| (format!("{name}-uid-0000"), Ending::Unknown))
            .into()
    };
    let line = Line::new(QueuePolicy::Easy, now(), endings, before);
    let runners = running.iter().map(|runs| {
        let again = asking(&small(&runs.key.name)).claim().clone();
        Arc::new(Moves(runs.clone(), again)) as Arc<dyn Runner>
    });
    let runners: Vec<_> = runners.collect();
    let evictable = Evictable::new(runners, now(), settings.min_run_time);
    let mut desk =
        Desk::new(&[], Quotas::default(), Tenancy::default(), line, &settings).evicting(evictable);
    let each = who.iter().map(|one| desk.decide(ledger, &*claimant(one)));
    let decisions: Vec<Decision> = each.collect();
    (decisions, desk.line().held().to_vec())
}

fn gang() -> Arc<GPUWorkload> {
    workload("gang", json!({"gpuCount": 4, "replicas": 2}))
}

fn going(decision: &Decision) -> Vec<String> {
    let Decision::Evict(going, Cause::Move, _) = decision else {
        return Vec::new();
    };
    let names = going.iter().map(|one| one.runs().key.name.to_string());
    names.collect()
}

#[test]
fn who_loses_least_is_moved_and_goes_elsewhere_while_the_gang_starts() {
    let mut ledger = cut_up();
    let running = [runs("x", 90), runs("y", 5)];
    let (decisions, _) = pass(&mut ledger, &running, Vec::new(), &[&gang()], false);
    assert_eq!(
        verdict(&decisions[0]).0,
        reason::WAITING_FOR_CAPACITY,
        "it is off by default"
    );
    let (decisions, held) = pass(&mut ledger, &running, Vec::new(), &[&gang()], true);
    assert_eq!(going(&decisions[0]), ["y"]);
    let Decision::Evict(_, _, verdict) = &decisions[0] else {
        panic!("{decisions:?}")
    };
    assert!(
        verdict
            .message
            .contains("as soon as team/y have been moved elsewhere"),
        "{}",
        verdict.message
    );
    // It is first in line and does not go back to where it was.
    ledger.fleet.release("y-uid-0000").expect("it ran");
    let line = [&small("y"), &gang()];
    let (decisions, _) = pass(&mut ledger, &running[..1], held, &line, true);
    assert_eq!(chosen(&decisions[0]).as_deref(), Some("a"));
    let Decision::Place(places) = &decisions[1] else {
        panic!("{:?}", decisions[1])
    };
    let mut nodes: Vec<&str> = places.iter().map(|place| place.node.as_str()).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["b", "c"]);
}

#[test]
fn only_work_that_saves_and_lets_itself_be_interrupted_is_moved_and_only_for_gangs() {
    let moved = |change: &dyn Fn(&mut Runs), asks: &Arc<GPUWorkload>| {
        let mut running = [runs("x", 90), runs("y", 90)];
        running.iter_mut().for_each(change);
        let (decisions, _) = pass(&mut cut_up(), &running, Vec::new(), &[asks], true);
        !going(&decisions[0]).is_empty()
    };
    assert!(moved(&|_| {}, &gang()));
    assert!(!moved(&|runs| runs.saves = false, &gang()));
    assert!(!moved(&|runs| runs.preemptible = Some(false), &gang()));
    assert!(!moved(&|runs| runs.priority = Priority::High, &gang()));
    assert!(!moved(&|runs| runs.started = Some(now()), &gang()));
    // Nobody is moved for what fits nowhere after it either.
    let wide = workload("wide", json!({"gpuCount": 4, "replicas": 3}));
    assert!(!moved(&|_| {}, &wide));
    let alone = workload("alone", json!({"gpuCount": 8}));
    assert!(!moved(&|_| {}, &alone));
}

#[test]
fn those_in_front_do_not_undo_what_was_begun_for_a_gang() {
    let mut ledger = cut_up();
    let running = [runs("x", 90), runs("y", 5)];
    let (_, held) = pass(&mut ledger, &running, Vec::new(), &[&gang()], true);
    // Two gangs that nobody can be moved for use up the searches of the next pass.
    let hopeless = |name: &str| {
        let spec =
            json!({"nodeSelector": {"host": "a"}, "containers": [{"name": "main", "image": "i"}]});
        let asked =
            json!({"gpuCount": 4, "replicas": 2, "image": null, "podTemplate": {"spec": spec}});
        workload(name, asked)
    };
    let line = [&hopeless("g1"), &hopeless("g2"), &gang()];
    let (decisions, _) = pass(&mut ledger, &running, held, &line, true);
    assert_eq!(going(&decisions[2]), ["y"], "{:?}", decisions[2]);
}
