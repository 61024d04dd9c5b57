//! Who gives back what is lent, and who goes first among tenants.

use super::*;
use warp_runtime::cache::Key;

use super::evict::Stands;
use crate::placement::{Cause, Evictable, Runner, Runs, by_share};

/// Tenants of one tree, each with a namespace of its name: name, nominal share, weight.
fn tenancy(ledger: &Ledger, shares: &[(&str, i64, i32)]) -> Tenancy {
    let tenant = |name: &str, spec: Value| -> Arc<warp_api::Tenant> {
        let tenant = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant",
            "metadata": {"name": name, "uid": name}, "spec": spec,
        });
        Arc::new(serde_json::from_value(tenant).unwrap())
    };
    let mut tenants = vec![tenant("all", json!({"namespaces": {"names": ["none"]}}))];
    let mut namespaces = Vec::new();
    for (name, nominal, weight) in shares {
        let spec = json!({
            "namespaces": {"names": [name]}, "parent": "all", "weight": weight,
            "quota": [{"gpu": "nvidia", "nominal": nominal}],
        });
        tenants.push(tenant(name, spec));
        let namespace = json!({"metadata": {"name": name}});
        namespaces.push(Arc::new(serde_json::from_value(namespace).unwrap()));
    }
    Tenancy::new(&tenants, &namespaces, &ledger.fleet)
}

fn of(namespace: &str, name: &str, spec: Value) -> Arc<GPUWorkload> {
    let mut one = (*workload(name, spec)).clone();
    one.metadata.namespace = Some(namespace.to_owned());
    Arc::new(one)
}

/// Running work of a namespace: name, GPUs, minutes, whether it may be evicted.
type Ran<'a> = (&'a str, &'a str, u64, i64, Option<bool>);

struct Scene {
    ledger: Ledger,
    runners: Vec<Arc<dyn Runner>>,
}

fn scene(nodes: u32, running: &[Ran<'_>]) -> Scene {
    let nodes: Vec<_> = (0..nodes)
        .map(|at| node(&format!("n{at}"), 4, json!({})))
        .collect();
    let mut ledger = ledger::build(&nodes, &[], &[]);
    let mut runners: Vec<Arc<dyn Runner>> = Vec::new();
    let mut there = Vec::new();
    for (namespace, name, gpus, minutes, preemptible) in running {
        there.push(of(namespace, name, json!({"gpuCount": gpus})));
        let started = Some(crate::clock::after(now(), -60 * minutes));
        runners.push(Arc::new(Stands(Runs {
            key: Key::new(namespace, name),
            works: vec![Arc::from(format!("{name}-uid-0000"))],
            priority: Priority::Normal,
            preemptible: *preemptible,
            gpus: *gpus,
            started,
            unsaved_since: started,
            evicted_for: None,
            saves: false,
            features: warp_core::estimate::Features::default(),
            created: None,
        })));
    }
    let placed = decide(&mut ledger, &there);
    assert!(placed.iter().all(|one| chosen(one).is_some()));
    Scene { ledger, runners }
}

impl Scene {
    fn decide(mut self, shares: &[(&str, i64, i32)], wanted: &[Arc<GPUWorkload>]) -> Vec<Decision> {
        let tenancy = tenancy(&self.ledger, shares);
        let settings = Settings::default();
        let evictable = Evictable::new(self.runners, now(), settings.min_run_time);
        let claimants: Vec<_> = wanted.iter().map(claimant).collect();
        let mut desk = Desk::new(
            &claimants,
            Quotas::default(),
            tenancy,
            skipping(),
            &settings,
        )
        .evicting(evictable);
        let mut decide = |one: &Arc<dyn Claimant>| desk.decide(&mut self.ledger, &**one);
        claimants.iter().map(&mut decide).collect()
    }
}

fn going(decision: &Decision) -> Vec<String> {
    match decision {
        Decision::Evict(going, Cause::Share, _) => {
            going.iter().map(|one| one.runs().key.to_string()).collect()
        }
        _ => Vec::new(),
    }
}

const EQUALS: [(&str, i64, i32); 2] = [("a", 4, 1), ("b", 4, 1)];

#[test]
fn work_within_its_share_takes_back_what_others_borrow() {
    let running = [
        ("b", "old", 4, 90, None),
        ("b", "young", 2, 5, None),
        ("b", "younger", 2, 4, None),
    ];
    let wanted = [of("a", "w", json!({"gpuCount": 2}))];
    let decisions = scene(2, &running).decide(&EQUALS, &wanted);
    assert_eq!(going(&decisions[0]), ["b/younger"], "{decisions:?}");
    let Decision::Evict(_, _, verdict) = &decisions[0] else {
        panic!("{decisions:?}")
    };
    assert_eq!(verdict.reason, reason::PREEMPTING);
    let words = "tenant a takes back GPUs it lent: b/younger goes for it";
    assert!(verdict.message.contains(words), "{}", verdict.message);
    // Whoever would borrow itself waits.
    let wanted = [of("a", "w", json!({"gpuCount": 2, "replicas": 3}))];
    let decisions = scene(2, &running).decide(&EQUALS, &wanted);
    assert_eq!(verdict_of(&decisions[0]), "TenantQuotaExceeded");
}

fn verdict_of(decision: &Decision) -> &'static str {
    match decision {
        Decision::Wait(verdict) | Decision::Evict(_, _, verdict) => verdict.reason,
        _ => "",
    }
}

#[test]
fn who_says_so_and_who_has_just_begun_is_not_asked() {
    let wanted = [of("a", "w", json!({"gpuCount": 4}))];
    for stays in [("b", "x", 4, 90, Some(false)), ("b", "x", 4, 0, None)] {
        let running = [stays, ("b", "y", 4, 90, Some(false))];
        let decisions = scene(2, &running).decide(&EQUALS, &wanted);
        assert_eq!(verdict_of(&decisions[0]), "TenantQuotaExceeded");
    }
}

#[test]
fn what_somebody_waits_for_within_its_share_is_not_lent_again() {
    let running = [
        ("b", "x", 4, 90, Some(false)),
        ("b", "y", 2, 90, Some(false)),
    ];
    let wanted = [
        of("a", "wide", json!({"gpuCount": 4})),
        of("b", "more", json!({"gpuCount": 1})),
        of("a", "small", json!({"gpuCount": 1})),
    ];
    let decisions = scene(2, &running).decide(&EQUALS, &wanted);
    assert_eq!(verdict_of(&decisions[0]), "TenantQuotaExceeded");
    assert_eq!(
        verdict_of(&decisions[1]),
        "TenantQuotaExceeded",
        "{decisions:?}"
    );
    // Of its own it may have what is left.
    assert!(chosen(&decisions[2]).is_some(), "{decisions:?}");
}

#[test]
fn also_room_that_no_quota_lacks_is_taken_back() {
    // More is promised than there is.
    let running = [("b", "x", 4, 90, None), ("b", "y", 4, 80, None)];
    let wanted = [of("a", "w", json!({"gpuCount": 4}))];
    let shares = [("a", 8, 1), ("b", 4, 1)];
    let decisions = scene(2, &running).decide(&shares, &wanted);
    assert_eq!(going(&decisions[0]), ["b/y"], "{decisions:?}");
}

fn order(
    wanted: &[Arc<GPUWorkload>],
    running: &[Ran<'_>],
    shares: &[(&str, i64, i32)],
) -> Vec<String> {
    let scene = scene(4, running);
    let tenancy = tenancy(&scene.ledger, shares);
    let claimants: Vec<_> = wanted.iter().map(claimant).collect();
    let order = by_share(&claimants, &tenancy, &scene.ledger).unwrap();
    let name = |at: usize| claimants[at].claim().key.name.to_string();
    order.into_iter().map(name).collect()
}

#[test]
fn who_borrows_goes_after_who_does_not_and_in_turn_by_weight() {
    let many = |namespace: &str, count: usize| -> Vec<Arc<GPUWorkload>> {
        (0..count)
            .map(|at| of(namespace, &format!("{namespace}{at}"), json!({})))
            .collect()
    };
    let wanted = [many("b", 3), many("a", 2)].concat();
    let shares = [("a", 1, 1), ("b", 1, 1), ("c", 8, 1)];
    assert_eq!(order(&wanted, &[], &shares), ["b0", "a0", "b1", "a1", "b2"]);
    // Twice the weight, twice as much.
    let wanted = [many("b", 6), many("a", 3)].concat();
    let shares = [("a", 0, 1), ("b", 0, 2), ("c", 8, 1)];
    let first: Vec<String> = order(&wanted, &[], &shares).into_iter().take(6).collect();
    let of_b = first.iter().filter(|name| name.starts_with('b')).count();
    assert_eq!(of_b, 4, "{first:?}");
    // Priority decides among those who borrow.
    let mut wanted = vec![of("a", "urgent", json!({"priority": "high"}))];
    wanted.extend(many("b", 1));
    let running = [("a", "x", 4, 9, None)];
    assert_eq!(order(&wanted, &running, &shares), ["urgent", "b0"]);
}

#[test]
fn where_nothing_is_lent_the_line_stays_as_it_is() {
    let claimants = [claimant(&of("a", "w", json!({})))];
    let scene = scene(1, &[]);
    assert_eq!(
        by_share(&claimants, &Tenancy::default(), &scene.ledger),
        None
    );
}
