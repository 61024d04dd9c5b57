use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::schedule::tests::build::{busy, node, whole};
use crate::tenancy::{Covers, GPU, Quota, Tenant};

fn t4() -> Kind {
    Kind {
        vendor: Arc::from("nvidia"),
        model: Arc::from("T4"),
    }
}

/// Tenants of one tree by name and nominal share.
fn tree(nominal: &[(&str, i64)]) -> Tree {
    let line = Covers::Vendor(Arc::from("nvidia"));
    let tenant = |name: &str, parent: Option<&str>, nominal: i64| Tenant {
        name: Arc::from(name),
        parent: parent.map(Arc::from),
        weight: 1,
        quota: BTreeMap::from([(
            line.clone(),
            Quota {
                nominal: nominal * GPU,
                ..Quota::default()
            },
        )]),
    };
    let all = nominal
        .iter()
        .map(|(name, nominal)| tenant(name, Some("all"), *nominal));
    let (tree, problems) = Tree::new(all.chain([tenant("all", None, 0)]));
    assert!(problems.is_empty());
    tree
}

/// Work on the fleet: whose, on which node, how many GPUs, what is lost with it.
type Held<'a> = (&'a str, &'a str, u32, u64);

struct Scene {
    fleet: Fleet,
    usage: Usage,
    lent: Vec<Lent>,
}

fn scene(nodes: &[&str], held: &[Held<'_>]) -> Scene {
    let names: Vec<String> = (0..held.len()).map(|at| format!("w{at}")).collect();
    let work: Vec<(&str, &str, u32)> = names
        .iter()
        .zip(held)
        .map(|(name, (_, on, gpus, _))| (name.as_str(), *on, *gpus))
        .collect();
    let nodes: Vec<_> = nodes.iter().map(|name| node(name)).collect();
    let mut usage = Usage::default();
    let lent = names
        .iter()
        .zip(held)
        .map(|(name, (tenant, _, gpus, lost))| {
            usage.add(&Arc::from(*tenant), &t4(), i64::from(*gpus) * GPU);
            Lent {
                tenant: Arc::from(*tenant),
                victim: Victim {
                    works: vec![Arc::from(name.as_str())],
                    priority: 0,
                    lost_gpu_seconds: *lost,
                },
            }
        });
    let lent = lent.collect();
    Scene {
        fleet: busy(&nodes, &work),
        usage,
        lent,
    }
}

impl Scene {
    fn asked(&self, tree: &Tree, tenant: &str, gpus: u32) -> Option<Vec<usize>> {
        let kind = t4();
        let ask = Ask {
            tenant,
            kind: &kind,
            count: i64::from(gpus) * GPU,
        };
        let shares = Shares {
            tree,
            usage: &self.usage,
        };
        let requests = [whole(gpus)];
        let found = reclaim(&self.fleet, &requests, shares, ask, &self.lent, &|_| true);
        found.map(|found| found.victims)
    }
}

#[test]
fn the_borrower_that_loses_least_gives_back_and_no_more_than_must() {
    let tree = tree(&[("a", 4), ("b", 4)]);
    let held = [
        ("b", "x", 2, 900),
        ("b", "x", 2, 50),
        ("b", "y", 2, 10),
        ("b", "y", 2, 700),
    ];
    let scene = scene(&["x", "y"], &held);
    assert_eq!(scene.asked(&tree, "a", 2), Some(vec![2]));
    // Four on one node: both of the node where that costs least.
    assert_eq!(scene.asked(&tree, "a", 4), Some(vec![2, 3]));
}

#[test]
fn nobody_gives_back_to_who_borrows_itself_or_is_of_another_tree() {
    let held = [("b", "x", 4, 0), ("b", "y", 4, 0)];
    let scene = scene(&["x", "y"], &held);
    let small = tree(&[("a", 1), ("b", 7)]);
    assert_eq!(scene.asked(&small, "a", 2), None, "it would borrow");
    assert_eq!(scene.asked(&small, "a", 1), Some(vec![0]));
    let alone = tree(&[("b", 8)]);
    assert_eq!(
        scene.asked(&alone, "a", 1),
        None,
        "nothing is promised to it"
    );
}

#[test]
fn who_is_within_its_own_share_keeps_it() {
    let tree = tree(&[("a", 4), ("b", 4), ("c", 0)]);
    let held = [("b", "x", 4, 0), ("c", "y", 4, 9_000)];
    let scene = scene(&["x", "y"], &held);
    assert_eq!(
        scene.asked(&tree, "a", 4),
        Some(vec![1]),
        "whatever it loses"
    );
}

#[test]
fn where_only_the_share_is_used_up_room_is_left_alone() {
    // Twelve GPUs, eight of which are anybody's share.
    let tree = tree(&[("a", 4), ("b", 4)]);
    let held = [("b", "x", 4, 5), ("b", "y", 4, 3)];
    let scene = scene(&["x", "y", "z"], &held);
    assert_eq!(scene.asked(&tree, "a", 4), Some(vec![1]));
}

#[test]
fn nobody_goes_where_that_would_not_be_enough() {
    let tree = tree(&[("a", 4), ("b", 4)]);
    let held = [("b", "x", 4, 0), ("b", "y", 4, 0)];
    let mut scene = scene(&["x", "y"], &held);
    scene.lent.clear();
    assert_eq!(scene.asked(&tree, "a", 4), None);
}

proptest! {
    /// Whatever runs: victims are of tenants that borrowed until the last of them went, the claim is admitted and fits once
    /// they are gone, and with any one of them still there it is not.
    #[test]
    fn a_plan_respects_the_shares_is_enough_and_names_nobody_in_vain(
        nominal in prop::collection::vec(0..8_i64, 3),
        held in prop::collection::vec((0..3_usize, 0..4_usize, 1..5_u32, 0..50_u64), 0..12),
        gpus in 1..5_u32,
    ) {
        let names = ["a", "b", "c"];
        let shares: Vec<(&str, i64)> = names.into_iter().zip(nominal).collect();
        let tree = tree(&shares);
        let nodes = ["w", "x", "y", "z"];
        let mut free = [4_u32; 4];
        let mut placed: Vec<Held<'_>> = Vec::new();
        for (tenant, on, asked, lost) in held {
            if free[on] >= asked {
                free[on] -= asked;
                placed.push((names[tenant], nodes[on], asked, lost));
            }
        }
        let scene = scene(&nodes, &placed);
        let Some(victims) = scene.asked(&tree, "a", gpus) else { return Ok(()) };
        let kind = t4();
        let ask = Ask { tenant: "a", kind: &kind, count: i64::from(gpus) * GPU };
        prop_assert!(is_entitled(&tree, &scene.usage, ask));
        let enough = |gone: &[usize]| {
            let (mut usage, mut fleet) = (scene.usage.clone(), scene.fleet.clone());
            for at in gone {
                usage.add(&Arc::from(placed[*at].0), &kind, -i64::from(placed[*at].2) * GPU);
                fleet.release(&scene.lent[*at].victim.works[0]).unwrap();
            }
            let fits = Planner::new(Policy::BestFit, 0).choose(&fleet, &whole(gpus)).is_some();
            fits && matches!(admit(&tree, &usage, ask), Verdict::Fits { borrowed: 0 })
        };
        prop_assert!(enough(&victims));
        for stays in &victims {
            let others: Vec<usize> = victims.iter().copied().filter(|at| at != stays).collect();
            prop_assert!(!enough(&others));
        }
        for tenant in ["b", "c"] {
            let theirs = victims.iter().filter(|at| placed[**at].0 == tenant);
            let theirs: Vec<i64> = theirs.map(|at| i64::from(placed[*at].2)).collect();
            let used: i64 = placed.iter().filter(|one| one.0 == tenant).map(|one| i64::from(one.2)).sum();
            let promised = shares.iter().find(|(name, _)| *name == tenant).unwrap().1;
            // Work goes whole, so a tenant may end below its share; before the last and largest went it had more.
            if let Some(largest) = theirs.iter().max() {
                prop_assert!(used - theirs.iter().sum::<i64>() + largest > promised);
            }
        }
        prop_assert!(victims.iter().all(|at| placed[*at].0 != "a"));
    }
}
