//! When files were last used, and how seldom that is written.

use jiff::ToSpan;

use super::*;

fn ready_model() -> (ModelCache, Seen) {
    let mut cache = hub();
    cache.status = Some(typed(json!({
        "phase": "Ready", "path": "/models/there", "commit": COMMIT, "contentKey": content_key(&cache.spec),
        "volumeUid": "uid-claim", "volume": "m-model",
    })));
    (cache, with_claim(seen()))
}

fn used(cache: &ModelCache, seen: &Seen, at: Timestamp) -> (ModelCache, Option<Timestamp>) {
    let planned = plan(cache, seen, at);
    let mut next = cache.clone();
    let told = planned.actions.iter().find_map(|action| match action {
        Action::Status(status) => Some(typed(status.after.clone())),
        _ => None,
    });
    next.status = told.or(next.status);
    let time = next.status.as_ref();
    let time = time.and_then(|status| status.last_used.as_ref());
    let time = time.map(|time| time.0);
    (next, time)
}

fn later(minutes: i64) -> Timestamp {
    now() + minutes.minutes()
}

#[test]
fn it_is_now_while_a_pod_mounts_the_files_and_then_when_the_last_one_went() {
    let (cache, mut seen) = ready_model();
    let (cache, never) = used(&cache, &seen, now());
    assert_eq!(never, None);
    seen.users = vec!["chat-1".to_owned()];
    let (cache, begun) = used(&cache, &seen, later(1));
    assert_eq!(begun, Some(later(1)));
    // Not at every look: a cluster in which nothing happens writes nothing.
    let idle = plan(&cache, &seen, later(30));
    assert!(idle.actions.is_empty(), "{idle:?}");
    assert_eq!(idle.again, Some(later(61)));
    let (cache, hourly) = used(&cache, &seen, later(61));
    assert_eq!(hourly, Some(later(61)));
    seen.users.clear();
    let (cache, gone) = used(&cache, &seen, later(70));
    assert_eq!(gone, Some(later(70)));
    let idle = plan(&cache, &seen, later(900));
    assert!(idle.actions.is_empty(), "{idle:?}");
    assert_eq!(idle.again, None);
}

#[test]
fn a_pod_that_ended_unseen_is_told_with_the_time_of_its_end() {
    let (cache, mut seen) = ready_model();
    seen.ended = Some(later(-20));
    let (cache, told) = used(&cache, &seen, now());
    assert_eq!(told, Some(later(-20)));
    seen.users = vec!["chat-1".to_owned()];
    let (cache, _) = used(&cache, &seen, now());
    seen.users.clear();
    // What ended earlier says nothing of the one that went.
    let (cache, told) = used(&cache, &seen, later(5));
    assert_eq!(told, Some(later(5)));
    seen.ended = Some(later(3));
    let (_, told) = used(&cache, &seen, later(9));
    assert_eq!(told, Some(later(5)));
}
