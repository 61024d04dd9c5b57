//! What serves is kept: on nodes that are closed, under specs that cannot be carried out, and while a copy is replaced.

use jiff::SignedDuration;
use warp_api::reason;
use warp_runtime::reconcile::Refusal;

use super::super::lingering::{self, Left};
use super::super::observe::Waiting;
use super::super::plan::rejected;
use super::placement::{copy, running, strategy, verdict};
use super::*;
use crate::placement::Verdict;

/// A node nobody may be put on.
fn cordoned(node: &Node) -> Arc<Node> {
    let mut node = node.clone();
    node.spec.get_or_insert_default().unschedulable = Some(true);
    Arc::new(node)
}

#[test]
fn a_service_whose_only_node_is_closed_is_served_on_and_stops_when_told() {
    let spec = |more: Value| {
        let mut spec = json!({ "gpu": { "models": ["H100"] } });
        for (name, value) in more.as_object().expect("fields") {
            spec[name] = value.clone();
        }
        service(spec)
    };
    let numbers = json!({ "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1 });
    let serving = Some(deployment(&spec(json!({})), numbers));
    let closed = fleet(&[cordoned(&h100("a", 8))], &[]);
    let lost = fleet(&[], &[]);
    for nodes in [closed, lost] {
        let seen = Seen {
            deployment: serving.clone(),
            ..nodes
        };
        let status = written(&plan(&spec(json!({})), &seen, now()));
        assert_eq!(
            status.phase,
            Some(ServicePhase::Ready),
            "{:?}",
            status.message
        );
        for more in [
            json!({ "replicas": 0 }),
            json!({ "replicas": 0, "port": 9000 }),
        ] {
            let made = plan(&spec(more), &seen, now());
            let after = applied(&made, "Deployment").expect("a Deployment");
            assert_eq!(after["spec"]["replicas"], 0);
        }
    }
    // One that never was is told that there is no such GPU.
    let status = written(&plan(&spec(json!({})), &fleet(&[], &[]), now()));
    assert_eq!(status.conditions[0].reason, "NoSuchGpu");
    let closed = fleet(&[cordoned(&h100("a", 8))], &[]);
    let made = plan(&spec(json!({})), &closed, now());
    assert!(
        applied(&made, "Deployment").is_some(),
        "its copies wait in the line"
    );
}

#[test]
fn what_cannot_be_carried_out_is_stopped_all_the_same() {
    let it = service(json!({}));
    let numbers = json!({ "replicas": 1, "readyReplicas": 1, "updatedReplicas": 1 });
    let seen = Seen {
        deployment: Some(deployment(&it, numbers)),
        ..fleet(&[h100("a", 8)], &[])
    };
    let wrong = |replicas: u32| {
        let args = json!({ "args": { "max-modl-len": "1" } });
        let it = service(json!({ "replicas": replicas, "engine": args }));
        plan(&it, &seen, now())
    };
    assert!(
        applied(&wrong(1), "Deployment").is_none(),
        "what runs is left alone"
    );
    let stopped = applied(&wrong(0), "Deployment").expect("a Deployment");
    assert_eq!(stopped["spec"]["replicas"], 0);
    assert_eq!(
        stopped["spec"]["template"],
        serde_json::to_value(
            &seen
                .deployment
                .as_ref()
                .expect("one")
                .spec
                .as_ref()
                .expect("a spec")
                .template
        )
        .expect("a template"),
        "its pods are those it had"
    );
    assert_eq!(written(&wrong(0)).phase, Some(ServicePhase::Refused));
}

#[test]
fn fewer_copies_are_kept_of_a_spec_that_cannot_be_carried_out() {
    let it = service(json!({ "replicas": 3 }));
    let numbers = json!({ "replicas": 3, "readyReplicas": 3, "updatedReplicas": 3 });
    let before = deployment(&it, numbers);
    let seen = Seen {
        deployment: Some(Arc::clone(&before)),
        ..fleet(&[h100("a", 8)], &[])
    };
    let args = json!({ "args": { "max-modl-len": "1" } });
    for (replicas, kept) in [(2, Some(2)), (3, None), (5, None)] {
        let it = service(json!({ "replicas": replicas, "engine": args }));
        let made = applied(&plan(&it, &seen, now()), "Deployment");
        let made = made.map(|made| made["spec"].clone());
        assert_eq!(
            made.as_ref().map(|made| made["replicas"].clone()),
            kept.map(|kept| json!(kept))
        );
        if let Some(made) = made {
            let spec = serde_json::to_value(&before.spec).expect("a spec");
            assert_eq!(made["template"], spec["template"], "the pods it had");
            assert_eq!(made["strategy"], spec["strategy"], "and no other way");
        }
    }
    let scaled = json!({ "min": 1, "max": 2, "target": 8 });
    let it = service(json!({ "replicas": 3, "engine": args, "scaling": scaled }));
    let made = applied(&plan(&it, &seen, now()), "Deployment").expect("a Deployment");
    assert_eq!(made["spec"]["replicas"], 2);
    // What the API server did not take of a change is no reason to keep all copies.
    let refusal = Refusal {
        kind: "Deployment".to_owned(),
        name: "chat".to_owned(),
        words: "cpu: Invalid value: lots".to_owned(),
        forbidden: false,
    };
    let it = service(json!({ "replicas": 1, "resources": { "requests": { "cpu": "lots" } } }));
    let made = applied(&rejected(&it, &seen, &refusal, now()), "Deployment");
    assert_eq!(made.expect("a Deployment")["spec"]["replicas"], 1);
}

/// A service that has had a place for all of its copies.
fn served(replicas: i32) -> InferenceService {
    let mut it = service(json!({ "replicas": replicas }));
    it.status = Some(InferenceServiceStatus {
        observed_generation: Some(4),
        replicas,
        placed_replicas: replicas,
        ..InferenceServiceStatus::default()
    });
    it
}

#[test]
fn the_place_of_a_copy_that_has_gone_is_kept_until_the_one_that_follows_asks() {
    let (it, at) = (served(2), now());
    let stays = running("chat-77-a", "2026-11-16T11:58:00Z", true);
    let gone = running("chat-77-b", "2026-11-16T11:58:00Z", true);
    let left = [Left::by(&gone, "chat", at).expect("it had a place")];
    let kept = |it: &InferenceService, pods: &[Arc<Pod>], at: Timestamp| {
        lingering::kept(it, pods, |_| true, &left, at).len()
    };
    let born = [Arc::clone(&stays), copy("chat-88-a", json!({}))];
    let untold = lingering::kept(&it, &born, |_| false, &left, at).len();
    assert_eq!(untold, 1, "it is born, and not in line yet");
    let alone = [Arc::clone(&stays)];
    assert_eq!(kept(&it, &alone, at), 1, "nobody follows yet");
    let with = |name: &str, more: Value| vec![Arc::clone(&stays), copy(name, more)];
    assert_eq!(kept(&it, &with("chat-88-a", json!({})), at), 0, "it asks");
    let placed = json!({ "spec": { "nodeName": "b", "schedulingGates": null } });
    assert_eq!(
        kept(&it, &with("chat-88-a", placed), at),
        0,
        "it has a place"
    );
    let going = json!({ "metadata": { "deletionTimestamp": "2026-11-16T11:59:50Z" } });
    assert_eq!(
        kept(&it, &with("chat-88-a", going), at),
        1,
        "it goes itself"
    );
    let later = at + SignedDuration::from_secs(10);
    assert_eq!(kept(&it, &alone, later), 0, "not for ever");
    assert_eq!(kept(&served(1), &alone, at), 0, "no more copies are wanted");
    let mut takeable = served(2);
    takeable.spec.preemptible = Some(true);
    assert_eq!(kept(&takeable, &alone, at), 0, "anybody may take it");
    let mut refused = served(2);
    let status = refused.status.as_mut().expect("a status");
    status.refused_nodes = vec![warp_api::inferenceservice::LeftOutNode {
        name: "a".to_owned(),
        until: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(later),
        message: String::new(),
    }];
    assert_eq!(kept(&refused, &alone, at), 0, "the node did not take it");
}

#[test]
fn only_copies_that_had_a_place_leave_one() {
    let left = |pod: &Pod| Left::by(pod, "chat", now());
    assert!(left(&copy("chat-77-a", json!({}))).is_none(), "it waited");
    let placed = running("chat-77-a", "2026-11-16T11:58:00Z", true);
    assert!(left(&placed).is_some());
    assert!(Left::by(&placed, "other", now()).is_none());
    let ended = copy(
        "chat-77-a",
        json!({ "spec": { "nodeName": "a" }, "status": { "phase": "Failed" } }),
    );
    assert!(left(&ended).is_none(), "it left before");
}

#[test]
fn a_change_that_can_never_be_placed_takes_nothing_from_what_serves() {
    let full = [holder("a", "nvidia.com/gpu", 8)];
    let seen = |waiting: Vec<Waiting>| Seen {
        pods: vec![running("p", "2026-11-16T11:00:00Z", true)],
        waiting,
        ..fleet(&[h100("a", 8)], &full)
    };
    let mut it = service(json!({ "gpuCount": 1 }));
    it.status = Some(InferenceServiceStatus {
        placed_replicas: 1,
        replicas: 1,
        observed_generation: Some(3),
        ..InferenceServiceStatus::default()
    });
    let in_place = strategy(&plan(&it, &seen(Vec::new()), now()));
    assert_eq!(in_place, (json!(0), json!(1)), "nothing is free");
    let never = Waiting {
        verdict: Some(Verdict {
            reason: reason::NEVER_FITS,
            message: "no node has as much memory".to_owned(),
        }),
        ..Waiting::default()
    };
    let kept = strategy(&plan(&it, &seen(vec![never]), now()));
    assert_eq!(kept, (json!(1), json!(0)));
    // Known before any copy was made.
    it.spec.gpu_count = Some(16);
    it.spec.multi_node = Some(serde_json::from_value(json!("never")).expect("a word"));
    let kept = strategy(&plan(&it, &seen(Vec::new()), now()));
    assert_eq!(kept, (json!(1), json!(0)));
}

#[test]
fn copies_that_never_had_a_place_do_not_hold_up_the_others() {
    let mut it = service(json!({ "gpuCount": 8, "replicas": 4 }));
    it.status = Some(InferenceServiceStatus {
        placed_replicas: 2,
        replicas: 4,
        observed_generation: Some(3),
        ..InferenceServiceStatus::default()
    });
    let pods = vec![
        running("p", "2026-11-16T11:00:00Z", true),
        running("q", "2026-11-16T11:00:00Z", true),
    ];
    let full = [
        holder("a", "nvidia.com/gpu", 8),
        holder("b", "nvidia.com/gpu", 8),
    ];
    let seen = Seen {
        pods,
        waiting: vec![verdict(), verdict()],
        ..fleet(&[h100("a", 8), h100("b", 8)], &full)
    };
    let made = strategy(&plan(&it, &seen, now()));
    assert_eq!(made, (json!(0), json!(3)), "one of the two that serve");
}

#[test]
fn what_the_api_server_does_not_take_is_told_and_leaves_what_runs_alone() {
    let refusal = |forbidden: bool| Refusal {
        kind: "Deployment".to_owned(),
        name: "chat".to_owned(),
        words: "cpu: Invalid value: lots".to_owned(),
        forbidden,
    };
    let it = service(json!({ "resources": { "requests": { "cpu": "lots" } } }));
    let seen = fleet(&[h100("a", 8)], &[]);
    let told = rejected(&it, &seen, &refusal(false), now());
    assert!(applied(&told, "Deployment").is_none(), "nothing but words");
    let status = written(&told);
    assert_eq!(status.phase, Some(ServicePhase::Refused));
    assert_eq!(status.observed_generation, Some(4));
    let ready = &status.conditions[0];
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str()),
        ("False", "ObjectRejected")
    );
    assert!(
        ready.message.contains("Invalid value: lots"),
        "{}",
        ready.message
    );
    // A quota or a policy may let it pass later.
    let told = rejected(&it, &seen, &refusal(true), now());
    assert_eq!(written(&told).phase, Some(ServicePhase::Pending));
}
