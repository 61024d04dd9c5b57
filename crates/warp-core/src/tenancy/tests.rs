use proptest::prelude::*;

use super::*;

fn kind() -> Kind {
    Kind {
        vendor: Arc::from("nvidia"),
        model: Arc::from("H100-80GB"),
    }
}

fn h100() -> Covers {
    Covers::Models(BTreeSet::from([Arc::from("H100-80GB")]))
}

fn tenant(name: &str, parent: Option<&str>, quota: impl Into<Option<Quota>>) -> Tenant {
    Tenant {
        name: Arc::from(name),
        parent: parent.map(Arc::from),
        weight: 1,
        quota: quota
            .into()
            .map(|quota| (h100(), quota))
            .into_iter()
            .collect(),
    }
}

fn nominal(nominal: i64) -> Quota {
    Quota {
        nominal,
        ..Quota::default()
    }
}

fn tree(tenants: Vec<Tenant>) -> Tree {
    let (tree, problems) = Tree::new(tenants);
    assert_eq!(problems, []);
    tree
}

fn using(used: &[(&str, i64)]) -> Usage {
    let mut usage = Usage::default();
    for (tenant, count) in used {
        usage.add(&Arc::from(*tenant), &kind(), *count);
    }
    usage
}

fn asked(tree: &Tree, usage: &Usage, tenant: &str, count: i64) -> Verdict {
    let kind = kind();
    admit(
        tree,
        usage,
        Ask {
            tenant,
            kind: &kind,
            count,
        },
    )
}

fn fits(borrowed: i64) -> Verdict {
    Verdict::Fits { borrowed }
}

/// Two teams of one department.
fn department() -> Tree {
    tree(vec![
        tenant("all", None, None),
        tenant("a", Some("all"), nominal(4)),
        tenant("b", Some("all"), nominal(4)),
    ])
}

#[test]
fn what_one_team_does_not_use_another_borrows() {
    let tree = department();
    assert_eq!(asked(&tree, &using(&[]), "a", 4), fits(0));
    assert_eq!(asked(&tree, &using(&[]), "a", 7), fits(3));
    assert_eq!(asked(&tree, &using(&[("a", 4)]), "a", 4), fits(4));
    assert!(matches!(
        asked(&tree, &using(&[]), "a", 9),
        Verdict::Never { .. }
    ));
}

#[test]
fn a_team_within_its_share_is_told_who_has_to_give_back() {
    let department = tree(vec![
        tenant("all", None, None),
        tenant("a", Some("all"), nominal(4 * GPU)),
        tenant("b", Some("all"), nominal(4 * GPU)),
    ]);
    let usage = using(&[("a", 7 * GPU), ("b", GPU / 4)]);
    let Verdict::Waits { words, reclaim } = asked(&department, &usage, "b", 3 * GPU) else {
        panic!("a uses 7 of 8");
    };
    let back = Reclaim {
        tenant: Arc::from("a"),
        count: 2 * GPU + GPU / 4,
    };
    assert_eq!(reclaim, [back]);
    assert_eq!(
        words,
        "tenant b uses 0.25 of its 4 H100-80GB GPUs and 0.75 more are left to it, 3 asked for; a borrows 2.25 of them"
    );
}

#[test]
fn who_would_borrow_asks_nobody_back() {
    let usage = using(&[("a", 7), ("b", 1)]);
    let Verdict::Waits { reclaim, .. } = asked(&department(), &usage, "b", 5) else {
        panic!("nothing is left");
    };
    assert_eq!(reclaim, []);
}

#[test]
fn limits_of_borrowing_and_lending_hold() {
    let limited = |borrow_limit, lend_limit| {
        tree(vec![
            tenant("all", None, None),
            tenant(
                "a",
                Some("all"),
                Some(Quota {
                    nominal: 4,
                    borrow_limit,
                    lend_limit: None,
                }),
            ),
            tenant(
                "b",
                Some("all"),
                Some(Quota {
                    nominal: 4,
                    borrow_limit: None,
                    lend_limit,
                }),
            ),
        ])
    };
    assert_eq!(asked(&limited(Some(1), None), &using(&[]), "a", 5), fits(1));
    assert!(matches!(
        asked(&limited(Some(1), None), &using(&[]), "a", 6),
        Verdict::Never { .. }
    ));
    assert_eq!(asked(&limited(None, Some(2)), &using(&[]), "a", 6), fits(2));
    assert!(matches!(
        asked(&limited(None, Some(2)), &using(&[]), "a", 7),
        Verdict::Never { .. }
    ));
    // What b keeps is always there for it.
    assert_eq!(
        asked(&limited(None, Some(2)), &using(&[("a", 6)]), "b", 2),
        fits(0)
    );
}

#[test]
fn a_line_above_limits_those_below_and_a_line_of_the_vendor_too() {
    let mut company = tenant("company", None, nominal(6));
    company.quota.insert(
        Covers::Vendor(Arc::from("nvidia")),
        Quota {
            nominal: 5,
            ..Quota::default()
        },
    );
    let tree = tree(vec![company, tenant("team", Some("company"), None)]);
    assert_eq!(asked(&tree, &using(&[]), "team", 5), fits(5));
    assert!(matches!(
        asked(&tree, &using(&[]), "team", 6),
        Verdict::Never { .. }
    ));
    assert!(matches!(
        asked(&tree, &using(&[("company", 1)]), "team", 5),
        Verdict::Waits { .. }
    ));
}

#[test]
fn what_no_line_covers_is_not_limited() {
    let tree = department();
    let other = Kind {
        vendor: Arc::from("amd"),
        model: Arc::from("MI300X"),
    };
    let ask = |tenant| Ask {
        tenant,
        kind: &other,
        count: 1000,
    };
    assert_eq!(admit(&tree, &Usage::default(), ask("a")), fits(0));
    assert_eq!(admit(&tree, &Usage::default(), ask("nobody")), fits(0));
}

#[test]
fn a_larger_weight_borrows_more_before_it_is_anothers_turn() {
    let mut tenants = vec![
        tenant("all", None, nominal(8)),
        tenant("heavy", Some("all"), nominal(0)),
        tenant("light", Some("all"), nominal(0)),
    ];
    tenants[1].weight = 3;
    let tree = tree(tenants);
    let mut usage = Usage::default();
    let kind = kind();
    for _ in 0..8 {
        let next = ["light", "heavy"].into_iter().min_by_key(|tenant| {
            let ask = Ask {
                tenant,
                kind: &kind,
                count: 1,
            };
            turn(&tree, &usage, ask)
        });
        usage.add(&Arc::from(next.unwrap()), &kind, 1);
    }
    assert_eq!(usage.of("heavy", &h100()), 6);
    assert_eq!(usage.of("light", &h100()), 2);
}

#[test]
fn parents_that_are_missing_or_lead_in_a_circle_are_said_and_cut_off() {
    let (tree, problems) = Tree::new([
        tenant("a", Some("b"), nominal(1)),
        tenant("b", Some("a"), nominal(1)),
        tenant("c", Some("gone"), nominal(1)),
        tenant("d", None, nominal(1)),
    ]);
    let named: Vec<&str> = problems.iter().map(|problem| &*problem.tenant).collect();
    assert_eq!(named, ["c", "a", "b"]);
    for name in ["a", "b", "c", "d"] {
        assert_eq!(asked(&tree, &using(&[]), name, 1), fits(0), "{name}");
        assert!(matches!(
            asked(&tree, &using(&[]), name, 2),
            Verdict::Never { .. }
        ));
    }
}

/// A random forest: each tenant hangs below an earlier one or stands alone.
fn forests() -> impl Strategy<Value = Tree> {
    let limit = || prop_oneof![2 => Just(None), 1 => (0..6_i64).prop_map(Some)];
    let one = (
        0..8_i64,
        limit(),
        limit(),
        1..4_u32,
        any::<proptest::sample::Index>(),
        any::<bool>(),
    );
    prop::collection::vec(one, 1..7).prop_map(|all| {
        let tenants = all.into_iter().enumerate().map(
            |(at, (nominal, borrow, lend, weight, above, alone))| {
                // No deeper than the tree may be, whatever the draw.
                let parent = (at > 0 && !alone).then(|| format!("t{}", above.index(at)));
                Tenant {
                    weight,
                    ..tenant(
                        &format!("t{at}"),
                        parent.as_deref(),
                        Some(Quota {
                            nominal,
                            borrow_limit: borrow,
                            lend_limit: lend,
                        }),
                    )
                }
            },
        );
        Tree::new(tenants).0
    })
}

/// What may never be, however it came about: a tenant beyond its borrow limit, a tree beyond its quota, and
/// what a tenant does not lend in the hands of others.
fn violations(tree: &Tree, usage: &Usage) -> Vec<String> {
    let covers = h100();
    let line = Line::new(tree, usage, &covers);
    let mut found = Vec::new();
    for at in 0..tree.tenants.len() {
        let left = line.standing(at);
        let below: Vec<usize> = (0..tree.tenants.len())
            .filter(|&other| tree.line_up(other).any(|above| above == at))
            .collect();
        let used: i64 = below
            .iter()
            .map(|&other| usage.of(&tree.tenants[other].name, &covers))
            .sum();
        let quota: i64 = below
            .iter()
            .map(|&other| tree.tenants[other].quota[&covers].nominal)
            .sum();
        let limit = tree.tenants[at].quota[&covers].borrow_limit;
        if tree.parents[at].is_none() && used > quota {
            found.push(format!("tree of {at}: {used} used of {quota}"));
        }
        if let (Some(limit), Some(_)) = (limit, tree.parents[at])
            && used > quota + limit
        {
            found.push(format!(
                "t{at} and below: {used} used of {quota} and {limit} borrowed at most"
            ));
        }
        if left.used < 0 || left.available < 0 {
            found.push(format!("t{at}: {left:?}"));
        }
    }
    found
}

proptest! {
    #[test]
    fn admissions_never_exceed_the_quota_of_any_tree(
        tree in forests(),
        asks in prop::collection::vec((any::<proptest::sample::Index>(), 1..5_i64, any::<bool>()), 0..40),
    ) {
        let mut usage = Usage::default();
        for (who, count, ends) in asks {
            let name = Arc::clone(&tree.tenants[who.index(tree.tenants.len())].name);
            if ends {
                let held = usage.of(&name, &h100());
                usage.add(&name, &kind(), -count.min(held));
            } else if matches!(asked(&tree, &usage, &name, count), Verdict::Fits { .. }) {
                usage.add(&name, &kind(), count);
            }
            prop_assert_eq!(violations(&tree, &usage), Vec::<String>::new());
        }
    }

    #[test]
    fn a_tenant_within_its_share_is_let_in_or_told_enough_to_reclaim(
        tree in forests(),
        asks in prop::collection::vec((any::<proptest::sample::Index>(), 1..5_i64), 0..40),
        who in any::<proptest::sample::Index>(),
    ) {
        let mut usage = Usage::default();
        for (who, count) in asks {
            let name = Arc::clone(&tree.tenants[who.index(tree.tenants.len())].name);
            if matches!(asked(&tree, &usage, &name, count), Verdict::Fits { .. }) {
                usage.add(&name, &kind(), count);
            }
        }
        let tenant = &tree.tenants[who.index(tree.tenants.len())];
        let left = tenant.quota[&h100()].nominal - usage.of(&tenant.name, &h100());
        prop_assume!(left > 0);
        match asked(&tree, &usage, &tenant.name, left) {
            Verdict::Fits { borrowed } => prop_assert_eq!(borrowed, 0),
            Verdict::Never { words } => prop_assert!(false, "within its share: {words}"),
            Verdict::Waits { reclaim, .. } => {
                for back in &reclaim {
                    let of = &tree.tenants[tree.by_name[&back.tenant]];
                    let borrowed = usage.of(&of.name, &h100()) - of.quota[&h100()].nominal;
                    prop_assert!(back.count <= borrowed, "only what is borrowed is asked back");
                }
                for back in reclaim {
                    usage.add(&back.tenant, &kind(), -back.count);
                }
                prop_assert_eq!(asked(&tree, &usage, &tenant.name, left), fits(0));
            }
        }
    }

    #[test]
    fn whoever_waits_could_be_served_were_nobody_else_there(
        tree in forests(),
        who in any::<proptest::sample::Index>(),
        count in 1..30_i64,
    ) {
        let name = &tree.tenants[who.index(tree.tenants.len())].name;
        let alone = asked(&tree, &Usage::default(), name, count);
        let waits = matches!(alone, Verdict::Waits { .. });
        prop_assert!(!waits, "an empty tree makes nobody wait");
    }
}
