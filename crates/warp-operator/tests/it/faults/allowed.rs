//! Ends that differ from the one without faults and that nothing could prevent: which, under which plan, and nothing besides.

use std::collections::BTreeMap;

use warp_testkit::fault::campaign::Allowed;
use warp_testkit::fault::history::Difference;

/// A creation that is on its way while the process stands still may be carried out at any later time, also
/// when its room was given away: no reservation of bounded length prevents that. The cluster's scheduler
/// refuses one of the two; it is taken back and placed again.
const LATE_CREATION: &str = "a Job may be made after its room was given away";

/// An apply has no premise: one that is carried out after its sender has given up makes the object again, also when it was
/// taken back meanwhile. The operator sees it and takes it back once more.
const LATE_APPLY: &str = "an object may be made again after it was taken back";

/// The ends that may differ, each under one plan.
pub(super) const ALLOWED: [Allowed<'_>; 3] = [
    Allowed {
        scenario: "gpuworkload ten_at_once",
        plan: "write#2:pause=120s",
        reason: LATE_CREATION,
        is_all: one_place_was_refused,
    },
    Allowed {
        scenario: "gpuworkload ten_at_once_with_little_room",
        plan: "write#2:pause=120s",
        reason: LATE_CREATION,
        is_all: one_place_was_refused,
    },
    Allowed {
        scenario: "tenant is_shut_off_and_opened",
        plan: "write#2+2:delay=40s",
        reason: LATE_APPLY,
        is_all: was_made_and_taken_back_again,
    },
];

/// Whether one workload, and no other, had one Job and its pod more made and deleted, and remembers the node
/// that was refused.
fn one_place_was_refused(differences: &[Difference]) -> bool {
    let refused = |difference: &Difference| {
        let rest = difference.at.strip_prefix("GPUWorkload ")?;
        rest.strip_suffix("/status/refusedNodes").map(str::to_owned)
    };
    let mut workloads = differences.iter().filter_map(refused);
    let (Some(workload), None) = (workloads.next(), workloads.next()) else {
        return false;
    };
    let one_more = |difference: &Difference| {
        let count = |text: &str| text.parse::<u64>().ok();
        count(&difference.have) == count(&difference.want).map(|count| count + 1)
    };
    let job = format!("{workload}-uid-0");
    let counted = [
        format!("Job {job}/#created"),
        format!("Job {job}/#deleted"),
        format!("Pod {job}-*/#created"),
        format!("Pod {job}-*/#deleted"),
    ];
    let others = differences.iter().filter(|one| refused(one).is_none());
    let others: Vec<&Difference> = others.collect();
    let all = |at: &String| others.iter().any(|one| one.at == *at && one_more(one));
    others.len() == counted.len() && counted.iter().all(all)
}

/// Whether RoleBindings, and nothing else, were made more often, each deleted as often as it was made besides, and at most
/// once for each of the two requests that were late.
fn was_made_and_taken_back_again(differences: &[Difference]) -> bool {
    let more = |one: &Difference| {
        let (have, want) = (one.have.parse::<u64>().ok()?, one.want.parse::<u64>().ok()?);
        have.checked_sub(want).filter(|more| (1..=2).contains(more))
    };
    let of = |kind: &str| {
        let found = differences.iter().filter_map(|one| {
            let object = one.at.strip_prefix("RoleBinding ")?.strip_suffix(kind)?;
            Some((object.to_owned(), more(one)?))
        });
        found.collect::<BTreeMap<_, _>>()
    };
    let (made, deleted) = (of("/#created"), of("/#deleted"));
    !made.is_empty() && made == deleted && differences.len() == made.len() + deleted.len()
}

#[test]
fn only_bindings_that_were_taken_back_again_are_allowed() {
    let seen = [
        difference("RoleBinding default/warp-team/#created", "1", "3"),
        difference("RoleBinding default/warp-team/#deleted", "1", "3"),
    ];
    assert!(was_made_and_taken_back_again(&seen));
    // One is left, more than were late, another kind, and something besides.
    for (place, at, have) in [
        (1, "RoleBinding default/warp-team/#deleted", "2"),
        (0, "RoleBinding default/warp-team/#created", "4"),
        (0, "NetworkPolicy default/warp-team/#created", "3"),
        (1, "RoleBinding default/other/#deleted", "3"),
    ] {
        let mut other = seen.clone();
        other[place] = difference(at, "1", have);
        assert!(!was_made_and_taken_back_again(&other), "{other:?}");
    }
    let besides = difference("Tenant team/status/message", "a", "b");
    let more: Vec<_> = seen.into_iter().chain([besides]).collect();
    assert!(!was_made_and_taken_back_again(&more));
}

#[test]
fn only_one_refused_place_is_allowed_and_nothing_besides() {
    let mut seen = vec![
        difference(
            "GPUWorkload default/w8/status/refusedNodes",
            "nothing",
            "[]",
        ),
        difference("Job default/w8-uid-0/#created", "1", "2"),
        difference("Job default/w8-uid-0/#deleted", "0", "1"),
        difference("Pod default/w8-uid-0-*/#created", "1", "2"),
        difference("Pod default/w8-uid-0-*/#deleted", "0", "1"),
    ];
    assert!(one_place_was_refused(&seen));
    for (place, have) in [(1, "3"), (2, "0"), (4, "2")] {
        let mut other = seen.clone();
        other[place].have = have.to_owned();
        assert!(!one_place_was_refused(&other), "{other:?}");
    }
    assert!(!one_place_was_refused(&seen[1..]));
    seen.push(difference("GPUWorkload default/w8/status/phase", "a", "b"));
    assert!(!one_place_was_refused(&seen));
}

fn difference(at: &str, want: &str, have: &str) -> Difference {
    Difference {
        at: at.to_owned(),
        want: want.to_owned(),
        have: have.to_owned(),
        number: at.contains('#'),
    }
}
