use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;

fn pod(name: u8, node: u8, version: u64) -> Pod {
    Pod {
        metadata: ObjectMeta {
            name: Some(format!("p{name}")),
            namespace: Some("ns".to_owned()),
            uid: Some(format!("u{name}")),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            node_name: Some(format!("n{node}")),
            ..PodSpec::default()
        }),
        status: None,
    }
}

fn node_of(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}

#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8),
    Remove(u8),
    Replace(Vec<(u8, u8)>),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..6u8, 0..3u8).prop_map(|(name, node)| Step::Put(name, node)),
        (0..6u8).prop_map(Step::Remove),
        proptest::collection::vec((0..6u8, 0..3u8), 0..6).prop_map(Step::Replace),
    ]
}

proptest! {
    /// Whatever arrives, an index finds exactly the objects a scan would find, and listeners can rebuild the state.
    #[test]
    fn indexes_and_listeners_agree_with_the_objects(steps in proptest::collection::vec(step(), 0..40)) {
        let cache = Cache::new(&[node_of as IndexBy<Pod>]);
        let heard: Arc<Mutex<BTreeMap<Key, Arc<Pod>>>> = Arc::default();
        let hears = heard.clone();
        cache.listen(move |old, new| {
            let mut heard = hears.lock();
            if let Some(old) = old {
                heard.remove(&Key::of(old));
            }
            if let Some(new) = new {
                heard.insert(Key::of(new), Arc::new(new.clone()));
            }
        });
        for (version, step) in (10..).zip(steps) {
            match step {
                Step::Put(name, node) => cache.put(pod(name, node, version)),
                Step::Remove(name) => cache.remove(&pod(name, 0, version)),
                Step::Replace(pods) => {
                    let named: BTreeMap<_, _> = pods.into_iter().collect();
                    let pods = named.into_iter().map(|(name, node)| pod(name, node, version)).collect();
                    cache.replace(pods, Some(&version.to_string()));
                }
            }
            for node in 0..3 {
                let value = format!("n{node}");
                let scanned: Vec<_> = cache.all().into_iter().filter(|pod| node_of(pod).as_ref() == Some(&value)).collect();
                prop_assert_eq!(cache.by(0, &value), scanned);
            }
            let all: Vec<_> = heard.lock().values().cloned().collect();
            prop_assert_eq!(all, cache.all());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_own_write_is_waited_for_by_version_and_a_deletion_by_uid() {
    let cache = Cache::<Pod>::new(&[]);
    cache.replace(vec![pod(1, 0, 5)], Some("7"));
    cache.store().synced().await;
    cache.store().seen(7).await;
    let later = cache.clone();
    let key = Key::new("ns", "p1");
    let (waited, ()) = tokio::join!(
        async {
            cache.store().seen(9).await;
            cache.store().gone(&key, "u1").await;
            cache.get(&key)
        },
        async {
            later.put(pod(2, 0, 8));
            tokio::task::yield_now().await;
            later.put(pod(2, 0, 9));
            tokio::task::yield_now().await;
            later.remove(&pod(1, 0, 10));
        }
    );
    assert_eq!(waited, None);
}

fn node_seen(cache: &Cache<Pod>, name: u8) -> Option<String> {
    node_of(&*cache.get(&Key::new("ns", &format!("p{name}")))?)
}

#[test]
fn an_own_write_is_seen_at_once_and_not_undone_by_older_news() {
    let cache = Cache::<Pod>::new(&[]);
    cache.replace(vec![pod(1, 0, 1)], Some("1"));
    cache.store().take_own(Arc::new(pod(1, 5, 5)));
    assert_eq!(node_seen(&cache, 1).as_deref(), Some("n5"));
    cache.put(pod(1, 3, 3));
    assert_eq!(node_seen(&cache, 1).as_deref(), Some("n5"), "older news");
    cache.put(pod(1, 6, 6));
    assert_eq!(node_seen(&cache, 1).as_deref(), Some("n6"));
}

#[test]
fn an_own_write_the_watch_has_passed_is_not_resurrected() {
    let cache = Cache::<Pod>::new(&[]);
    cache.replace(vec![], Some("1"));
    cache.put(pod(2, 0, 7));
    cache.remove(&pod(2, 0, 8));
    // The answer to the request that made it arrives after the watch has shown its end.
    cache.store().take_own(Arc::new(pod(2, 0, 7)));
    assert_eq!(cache.len(), 0);
}

#[test]
fn a_list_settles_own_writes_up_to_its_version_and_keeps_newer_ones() {
    let cache = Cache::<Pod>::new(&[]);
    cache.replace(vec![pod(1, 0, 1), pod(2, 0, 2)], Some("2"));
    cache.store().take_own(Arc::new(pod(3, 0, 5)));
    cache.store().take_own(Arc::new(pod(4, 0, 9)));
    // The list is of version 7: the third is not in it, so it is gone; the fourth came later.
    cache.replace(vec![pod(1, 1, 4)], Some("7"));
    let left: Vec<_> = cache
        .all()
        .iter()
        .filter_map(|pod| pod.metadata.name.clone())
        .collect();
    assert_eq!(left, ["p1", "p4"]);
}

#[test]
fn an_object_an_own_request_ended_is_not_shown_again_and_its_name_is_free() {
    let cache = Cache::<Pod>::new(&[]);
    cache.replace(vec![pod(1, 0, 1)], Some("1"));
    let key = Key::new("ns", "p1");
    cache.store().take_own_end(&key, "u1");
    assert_eq!(cache.get(&key), None);
    cache.put(pod(1, 0, 2));
    assert_eq!(cache.get(&key), None, "late news of what is gone");
    let mut next = pod(1, 4, 3);
    next.metadata.uid = Some("another".to_owned());
    cache.put(next);
    assert_eq!(node_seen(&cache, 1).as_deref(), Some("n4"));
}

#[test]
fn what_a_cache_does_not_keep_goes_and_what_it_keeps_is_trimmed() {
    let cache = Cache::shaped(Shape::<Pod> {
        keep: |pod| node_of(pod).as_deref() != Some("n9"),
        trim: |pod| pod.metadata.uid = None,
        indexes: &[node_of],
    });
    cache.put(pod(1, 1, 1));
    let kept = cache.by(0, "n1").remove(0);
    assert_eq!(kept.metadata.uid, None);
    cache.put(pod(1, 9, 2));
    assert_eq!(cache.len(), 0);
    cache.store().take_own(Arc::new(pod(2, 9, 3)));
    assert_eq!(cache.len(), 0);
}

#[test]
fn what_an_own_write_has_shown_is_not_told_again_when_the_watch_brings_it() {
    let cache = Cache::<Pod>::new(&[]);
    let told = Arc::new(Mutex::new(0));
    let hears = told.clone();
    cache.listen(move |_, _| *hears.lock() += 1);
    cache.store().take_own(Arc::new(pod(1, 1, 5)));
    assert_eq!(*told.lock(), 1);
    cache.put(pod(1, 1, 5));
    assert_eq!(*told.lock(), 1, "an echo is no news");
    cache.put(pod(1, 2, 6));
    assert_eq!(*told.lock(), 2);
}

#[test]
fn a_list_that_failed_is_no_answer_and_a_kind_that_is_not_there_is_one() {
    let cache = Cache::<Pod>::new(&[]);
    assert!(!cache.is_answered());
    cache.store().set_health(Health::Failing("500".to_owned()));
    assert!(!cache.is_answered(), "there may be any number of them");
    for settled in [Health::Missing, Health::Refused("403".to_owned())] {
        cache.store().set_health(settled);
        assert!(cache.is_answered());
    }
    cache.replace(vec![pod(1, 0, 1)], Some("1"));
    cache.store().set_health(Health::Failing("500".to_owned()));
    assert!(cache.is_answered(), "what was listed is known");
}
