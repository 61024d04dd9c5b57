use super::*;
use crate::fleet::Constraints;
use crate::schedule::tests::build::{busy, node, whole};

fn movable(name: &str, gpus: u32, lost_gpu_seconds: u64) -> Movable {
    Movable {
        victim: Victim {
            works: vec![Arc::from(name)],
            priority: 0,
            lost_gpu_seconds,
        },
        request: whole(gpus),
    }
}

fn moves(fleet: &Fleet, requests: &[Request], movable: &[Movable]) -> Option<(Vec<usize>, String)> {
    let found = defragment(fleet, requests, movable, &|_| true)?;
    let mut nodes: Vec<&str> = found.nodes.iter().map(|node| &**node).collect();
    nodes.sort_unstable();
    Some((found.moved, nodes.join(" ")))
}

#[test]
fn a_gang_starts_where_the_cheapest_is_moved_from() {
    let nodes = [node("a"), node("b"), node("c")];
    let fleet = busy(&nodes, &[("x", "a", 2), ("y", "b", 2)]);
    let all = [movable("x", 2, 50), movable("y", 2, 10)];
    let gang = [whole(4), whole(4)];
    assert_eq!(
        moves(&fleet, &gang, &all),
        Some((vec![1], "b c".to_owned()))
    );
    assert_eq!(
        moves(&fleet, &gang, &all[..1]),
        Some((vec![0], "a c".to_owned()))
    );
    assert_eq!(moves(&fleet, &gang, &[]), None);
}

#[test]
fn nobody_is_moved_who_would_find_no_place() {
    let nodes = [node("a"), node("b")];
    let fleet = busy(&nodes, &[("x", "a", 2), ("y", "b", 2)]);
    let all = [movable("x", 2, 50), movable("y", 2, 10)];
    assert_eq!(moves(&fleet, &[whole(4), whole(2)], &all), None);
    // One member leaves room for it.
    assert_eq!(
        moves(&fleet, &[whole(4)], &all),
        Some((vec![1], "b".to_owned()))
    );
}

#[test]
fn another_is_moved_where_the_cheapest_has_to_stay() {
    let nodes = [node("a"), node("b"), node("c")];
    let fleet = busy(&nodes, &[("x", "a", 2), ("y", "b", 2)]);
    let mut stays = movable("y", 2, 10);
    stays.request.constraints = Constraints {
        node_name: Some(Arc::from("b")),
        ..Constraints::default()
    };
    let all = [movable("x", 2, 50), stays];
    let gang = [whole(4), whole(4)];
    assert_eq!(
        moves(&fleet, &gang, &all),
        Some((vec![0], "a c".to_owned()))
    );
}
