// `json!` at the call reads best by value.
#![allow(clippy::needless_pass_by_value)]

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn node(name: &str, gpus: u32) -> Node {
    let allocatable = json!({"cpu": "64", "pods": "110", "nvidia.com/gpu": gpus.to_string()});
    let node = json!({"metadata": {"name": name}, "status": {"allocatable": allocatable}});
    serde_json::from_value(node).unwrap()
}

fn pod(name: &str, uid: &str, node: Option<&str>, phase: &str) -> Pod {
    let limits = json!({"nvidia.com/gpu": "1"});
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "team", "uid": uid},
        "spec": {"nodeName": node, "containers": [{"name": "main", "resources": {"limits": limits}}]},
        "status": {"phase": phase},
    }))
    .unwrap()
}

fn promise(owner: &str, node: &str) -> Promise {
    let terms =
        json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]);
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}});
    let limits = json!({"nvidia.com/gpu": "2"});
    let spec = json!({"affinity": affinity, "containers": [{"name": "main", "resources": {"limits": limits}}]});
    Promise {
        owner: owner.to_owned(),
        meta: kube::core::ObjectMeta::default(),
        spec: serde_json::from_value(spec).unwrap(),
        counted: false,
    }
}

fn namespace(name: &str, team: &str) -> Namespace {
    serde_json::from_value(json!({"metadata": {"name": name, "labels": {"team": team}}})).unwrap()
}

#[derive(Clone, Debug)]
enum Event {
    Node(u8, u32),
    NodeGone(u8),
    Pod(u8, u8, Option<u8>, bool),
    PodGone(u8),
    Namespace(u8, bool),
    NamespaceGone(u8),
    Promise(u8, u8),
    PromiseKept(u8),
    Look,
}

fn event() -> impl Strategy<Value = Event> {
    let few = 0..4_u8;
    prop_oneof![
        (few.clone(), 0..9_u32).prop_map(|(node, gpus)| Event::Node(node, gpus)),
        few.clone().prop_map(Event::NodeGone),
        (
            few.clone(),
            few.clone(),
            proptest::option::of(few.clone()),
            any::<bool>()
        )
            .prop_map(|(name, uid, node, ended)| Event::Pod(name, uid, node, ended)),
        few.clone().prop_map(Event::PodGone),
        (few.clone(), any::<bool>()).prop_map(|(name, red)| Event::Namespace(name, red)),
        few.clone().prop_map(Event::NamespaceGone),
        (few.clone(), few.clone()).prop_map(|(owner, node)| Event::Promise(owner, node)),
        few.prop_map(Event::PromiseKept),
        Just(Event::Look),
    ]
}

proptest! {
    /// The comparison is the books' own, after every look.
    #[test]
    fn whatever_happens_the_kept_ledger_is_the_one_built_from_nothing(
        events in proptest::collection::vec(event(), 1..60),
    ) {
        let sources = Sources {
            nodes: Cache::new(&[]),
            pods: Cache::new(&[]),
            namespaces: Cache::new(&[]),
        };
        let mut books = Books::new(sources.clone());
        let mut promises: BTreeMap<u8, Promise> = BTreeMap::new();
        for event in events.into_iter().chain([Event::Look]) {
            match event {
                Event::Node(name, gpus) => sources.nodes.put(node(&format!("n{name}"), gpus)),
                Event::NodeGone(name) => sources.nodes.remove(&node(&format!("n{name}"), 0)),
                Event::Pod(name, uid, node, ended) => {
                    let node = node.map(|node| format!("n{node}"));
                    let phase = if ended { "Succeeded" } else { "Running" };
                    // Two pods never share a uid.
                    let uid = format!("u{name}-{uid}");
                    sources.pods.put(pod(&format!("p{name}"), &uid, node.as_deref(), phase));
                }
                Event::PodGone(name) => sources.pods.remove(&pod(&format!("p{name}"), "", None, "")),
                Event::Namespace(name, red) => {
                    let team = if red { "red" } else { "blue" };
                    sources.namespaces.put(namespace(&format!("s{name}"), team));
                }
                Event::NamespaceGone(name) => {
                    sources.namespaces.remove(&namespace(&format!("s{name}"), ""));
                }
                Event::Promise(owner, node) => {
                    promises.insert(owner, promise(&format!("o{owner}"), &format!("n{node}")));
                }
                Event::PromiseKept(owner) => {
                    promises.remove(&owner);
                }
                Event::Look => {
                    let all: Vec<Promise> = promises.values().cloned().collect();
                    books.catch_up(&all);
                }
            }
        }
    }
}

#[test]
fn what_nothing_changed_leaves_the_epoch_and_what_changed_does_not() {
    let sources = Sources {
        nodes: Cache::new(&[]),
        pods: Cache::new(&[]),
        namespaces: Cache::new(&[]),
    };
    let mut books = Books::new(sources.clone());
    sources.nodes.put(node("a", 8));
    books.catch_up(&[promise("o", "a")]);
    let before = books.epoch();
    books.catch_up(&[promise("o", "a")]);
    assert_eq!(books.epoch(), before);
    sources.pods.put(pod("p", "u", Some("a"), "Running"));
    books.catch_up(&[promise("o", "a")]);
    assert!(books.epoch() > before);
}

#[test]
fn what_is_heard_without_end_is_read_anew() {
    let sources = Sources {
        nodes: Cache::new(&[]),
        pods: Cache::new(&[]),
        namespaces: Cache::new(&[]),
    };
    let mut books = Books::new(sources.clone());
    sources.nodes.put(node("a", 8));
    for number in 0..=MOST_NOTED {
        let passing = pod(
            &format!("p{number}"),
            &format!("u{number}"),
            Some("a"),
            "Running",
        );
        sources.pods.put(passing.clone());
        sources.pods.remove(&passing);
    }
    sources.pods.put(pod("last", "last", Some("a"), "Running"));
    assert!(books.noted.lock().pods.len() < MOST_NOTED);
    books.catch_up(&[]);
    let held: Vec<_> = books.ledger.fleet.works().map(|work| &*work.id).collect();
    assert_eq!(held, ["last"]);
}
