//! A container at a cloud as a node: what is bought when, what its pod is told, and that neither outlives the other.

use k8s_openapi::api::core::v1::Pod;
use warp_cloud::Exit;
use warp_runtime::plan::Kind as Objects;

use super::*;
use crate::containers::{Bound, Tended};

const NODE: &str = "warp-cluster1-u1-1";

fn clouds() -> Vec<Arc<CloudProvider>> {
    let offers = [
        offer("H100-80GB", 1, "us-east-1", "3.00", Some("1.50")),
        offer("H100-80GB", 1, "eu-west-1", "2.80", None),
    ];
    let spec = json!({"bootstrap": {"type": "container"}});
    vec![provider("cloud", &spec, &offers)]
}

fn pod(name: &str, more: &Value) -> Arc<Pod> {
    let mut object = json!({
        "metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}"), "resourceVersion": "3",
            "creationTimestamp": "2026-11-16T12:00:05Z"},
        "spec": {"nodeName": NODE, "containers": [{"name": "train"}]},
        "status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "True"}]},
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        object[key] = value.clone();
    }
    Arc::new(serde_json::from_value(object).expect("a pod"))
}

fn node() -> Node {
    let has = json!({"cpu": "8", "memory": "32Gi", "pods": "1", "nvidia.com/gpu": "1"});
    serde_json::from_value(json!({
        "metadata": {"name": NODE, "uid": "n1"},
        "status": {"allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .expect("a node")
}

/// The node is there and has just said so; `pods` are on it.
fn kept(asked: i64, answer: Option<&Answer>, pods: &[Arc<Pod>], own: Option<&Arc<Pod>>) -> Seen {
    let mut seen = with(sight(asked, answer), Some(node()), !pods.is_empty());
    seen.providers = clouds();
    let open = &mut seen.open[0];
    open.pods = pods.to_vec();
    open.own_pod = own.cloned();
    open.tended = Sight {
        asked: Some(at(asked)),
        there: Some(as_json(&Tended {
            uid: Some("uid-p".to_owned()),
            pod: Some(Bound {
                container: "train".to_owned(),
                image: "train:1".to_owned(),
                finished: false,
                going: false,
            }),
        })),
        ..Sight::default()
    };
    seen
}

/// A request whose node waits for a pod, since `at(0)`.
fn waiting(spec: &Value) -> GPURequest {
    let mut it = request(spec);
    let mut first = seen(clouds());
    first.providers = clouds();
    it.status = Some(written(&plan(&it, &first, at(0))));
    it
}

/// One whose pod `p` was bound and written down at `at(10)`.
fn bound(spec: &Value) -> GPURequest {
    let mut it = waiting(spec);
    let pass = plan(&it, &kept(10, None, &[pod("p", &json!({}))], None), at(10));
    assert!(
        pass.calls.is_empty(),
        "nothing is asked for before the pod is written down"
    );
    it.status = Some(written(&pass));
    it
}

/// A pass, with what it writes taken into the request.
fn step(it: &mut GPURequest, seen: &Seen, second: i64) -> Plan {
    let pass = plan(it, seen, at(second));
    let writes = |action: &Action| matches!(action, Action::Status(_));
    if pass.actions.iter().any(writes) {
        it.status = Some(written(&pass));
    }
    pass
}

fn told(plan: &Plan) -> Vec<(&str, &Value)> {
    let each = plan.actions.iter().filter_map(|action| match action {
        Action::Patch {
            kind,
            key,
            sub: Some("status"),
            patch,
            ..
        } if *kind == Objects::of::<Pod>() => Some((&*key.name, &patch["status"])),
        _ => None,
    });
    each.collect()
}

fn makes(plan: &Plan) -> bool {
    plan.calls
        .iter()
        .any(|call| matches!(call.what, What::Make(_)) && call.outside == "fake")
}

fn asks_cloud(plan: &Plan) -> bool {
    plan.calls.iter().any(|call| call.outside == "fake")
}

fn exited(code: Option<i32>) -> Answer {
    let Answer::Machine(mut it) = machine(State::Stopped) else {
        unreachable!("a machine");
    };
    it.exit = Some(Exit {
        code,
        at: Some(at(500)),
    });
    Answer::Machine(it)
}

#[test]
fn a_node_is_kept_and_nothing_is_bought_while_no_pod_is_bound() {
    let it = waiting(&json!({}));
    let status = it.status.clone().expect("a status");
    assert!(status.attempts[0].is_container(), "{status:?}");
    let mut bare = kept(1, None, &[], None);
    bare.open[0].node = None;
    let pass = plan(&it, &bare, at(1));
    let made = pass.actions.iter().find_map(|action| match action {
        Action::Create { object, .. } if object["kind"] != "ConfigMap" => Some(object),
        _ => None,
    });
    let made = made.expect("a node");
    assert_eq!(made["metadata"]["name"], NODE);
    assert_eq!(made["spec"]["providerID"], format!("warp://fake/{NODE}"));
    assert_eq!(made["spec"]["taints"][0]["key"], "gpu.warp.dev/container");
    assert_eq!(
        made["metadata"]["labels"]["gpu.warp.dev/gpu-hour-price"],
        "2.8"
    );
    assert!(!asks_cloud(&pass), "{:?}", pass.calls);
    let pass = plan(&it, &kept(1, None, &[], None), at(2));
    let said = written(&pass);
    assert_eq!(
        (said.phase, reason(&said).0),
        (RequestPhase::Ready, "NodeReady")
    );
    assert!(!asks_cloud(&pass));
    let mut it = it;
    it.status = Some(said);
    // Ten seconds later it says again that it lives, and the cloud is still not asked.
    let pass = plan(&it, &kept(1, None, &[], None), at(12));
    assert!(!asks_cloud(&pass) && pass.actions.is_empty(), "{pass:?}");
    assert_eq!(pass.calls[0].outside, "container-nodes");
}

#[test]
fn a_container_is_bought_when_a_pod_is_bound_and_for_no_other_pod() {
    let it = bound(&json!({}));
    let status = it.status.clone().expect("a status");
    let own = status.attempts[0].pod.clone().expect("a pod");
    assert_eq!(
        (&*own.namespace, &*own.name, &*own.uid),
        ("team", "p", "uid-p")
    );
    let p = pod("p", &json!({}));
    let never = kept(5, None, std::slice::from_ref(&p), Some(&p));
    assert_eq!(
        calls(&plan(&it, &never, at(11)))[..1],
        [&What::LookUp],
        "looked up first"
    );
    let none = plan(
        &it,
        &kept(12, None, std::slice::from_ref(&p), Some(&p)),
        at(12),
    );
    assert!(makes(&none) && none.premises.len() == 1, "{none:?}");
    // Another that somebody bound there by hand is told so.
    let other = pod("q", &json!({}));
    let pass = plan(&it, &kept(12, None, &[p.clone(), other], Some(&p)), at(12));
    let said = told(&pass);
    assert_eq!(
        (said[0].0, &said[0].1["phase"], &said[0].1["reason"]),
        ("q", &json!("Failed"), &json!("ContainerLost"))
    );
}

#[test]
fn its_pod_says_that_it_runs_and_how_it_ended() {
    let mut it = bound(&json!({}));
    let p = pod("p", &json!({}));
    let running = machine(State::Running);
    let pass = plan(
        &it,
        &kept(20, Some(&running), std::slice::from_ref(&p), Some(&p)),
        at(20),
    );
    let said = told(&pass);
    assert_eq!((said[0].0, &said[0].1["phase"]), ("p", &json!("Running")));
    assert_eq!(said[0].1["containerStatuses"][0]["image"], "train:1");
    assert_eq!(
        said[0].1["conditions"][0]["type"], "PodScheduled",
        "what others say stays"
    );
    it.status = Some(written(&pass));
    for (code, phase, reason) in [
        (Some(0), "Succeeded", Value::Null),
        (Some(3), "Failed", Value::Null),
        (None, "Failed", json!("ExitUnknown")),
    ] {
        let p = pod("p", &json!({"status": {"phase": "Running"}}));
        let pass = plan(
            &it,
            &kept(500, Some(&exited(code)), std::slice::from_ref(&p), Some(&p)),
            at(501),
        );
        let (_, said) = told(&pass)[0];
        assert_eq!(
            (&said["phase"], &said["reason"]),
            (&json!(phase), &reason),
            "{code:?}"
        );
        assert_eq!(
            said["containerStatuses"][0]["state"]["terminated"]["exitCode"],
            code.unwrap_or(255)
        );
        let after = written(&pass);
        assert_eq!(
            after.attempts[0].ending.as_deref(),
            Some("PodEnded"),
            "the container is given back"
        );
    }
}

#[test]
fn a_pod_that_the_cloud_does_not_take_is_told_why_and_nothing_is_bought() {
    for (class, reason, disrupted, outcome) in [
        (
            Class::Refused,
            "ContainerRefused",
            false,
            "ContainerRefused",
        ),
        (Class::NoCapacity, "ContainerLost", true, "NoCapacity"),
        (Class::PriceChanged, "ContainerLost", true, "PriceChanged"),
    ] {
        let mut it = bound(&json!({}));
        let p = pod("p", &json!({}));
        let answer = Answer::Refused {
            class,
            words: "no volume data".to_owned(),
        };
        let pass = plan(
            &it,
            &kept(20, Some(&answer), std::slice::from_ref(&p), Some(&p)),
            at(20),
        );
        let (_, said) = told(&pass)[0];
        assert_eq!(
            (&said["phase"], &said["reason"]),
            (&json!("Failed"), &json!(reason))
        );
        assert!(
            said["message"]
                .as_str()
                .is_some_and(|text| text.contains("no volume data"))
        );
        let conditions = said["conditions"].to_string();
        assert_eq!(
            conditions.contains("DisruptionTarget"),
            disrupted,
            "{class:?}"
        );
        assert!(!asks_cloud(&pass));
        // Once that is written the attempt is over, and its node goes.
        let over = pod("p", &json!({"status": {"phase": "Failed"}}));
        let pass = plan(&it, &kept(20, Some(&answer), &[], Some(&over)), at(21));
        let after = written(&pass);
        assert_eq!(after.attempts[0].outcome.as_deref(), Some(outcome));
        assert!(
            pass.actions
                .iter()
                .any(|action| matches!(action, Action::Delete { .. }))
        );
        it.status = Some(after);
        // What a pod asks for wrongly says nothing of the offer: the next one may have it.
        let next = Seen {
            providers: clouds(),
            ..seen(clouds())
        };
        let next = written(&plan(&it, &next, at(22)));
        let region = if class == Class::Refused {
            "eu-west-1"
        } else {
            "us-east-1"
        };
        assert_eq!(next.attempts[1].region, region, "{class:?}");
    }
}

#[test]
fn a_pod_that_goes_takes_its_container_with_it_and_is_let_go_when_that_is_gone() {
    let mut it = bound(&json!({}));
    let p = pod("p", &json!({"status": {"phase": "Running"}}));
    let running = machine(State::Running);
    let there = kept(20, Some(&running), std::slice::from_ref(&p), Some(&p));
    step(&mut it, &there, 20);
    let deleted = json!({"metadata": {"name": "p", "namespace": "team", "uid": "uid-p", "resourceVersion": "4",
        "deletionTimestamp": "2026-11-16T12:01:00Z", "deletionGracePeriodSeconds": 30}, "status": {"phase": "Running"}});
    let p = pod("p", &deleted);
    let pass = plan(
        &it,
        &kept(60, Some(&running), std::slice::from_ref(&p), Some(&p)),
        at(61),
    );
    it.status = Some(written(&pass));
    let pass = plan(
        &it,
        &kept(62, Some(&running), std::slice::from_ref(&p), Some(&p)),
        at(62),
    );
    assert!(
        pass.calls.iter().any(|call| call.what == What::Remove),
        "{pass:?}"
    );
    // While the cloud has it the pod stays as it is.
    assert!(told(&pass).is_empty());
    let gone = machine(State::Gone);
    let mut said = Vec::new();
    for second in 63..70 {
        let seen = kept(second, Some(&gone), std::slice::from_ref(&p), Some(&p));
        let pass = step(&mut it, &seen, second);
        said.extend(told(&pass).iter().map(|(_, said)| said["phase"].clone()));
    }
    assert!(said.contains(&json!("Failed")), "{said:?}");
    let mut over = deleted;
    over["status"]["phase"] = json!("Failed");
    let over = pod("p", &over);
    let pass = plan(&it, &kept(70, Some(&gone), &[], Some(&over)), at(70));
    let removes = pass.actions.iter().any(|action| {
        matches!(action, Action::Delete { kind, options, .. }
            if *kind == Objects::of::<Pod>() && options.grace_seconds == Some(0))
    });
    assert!(removes, "{:?}", pass.actions);
    let mut last = kept(71, Some(&gone), &[], None);
    last.open[0].tended.there = Some(as_json(&Tended {
        uid: Some("uid-p".to_owned()),
        pod: None,
    }));
    let after = written(&plan(&it, &last, at(71)));
    assert_eq!(after.attempts[0].outcome.as_deref(), Some("PodEnded"));
}

#[test]
fn a_pod_that_is_only_missing_from_a_cache_is_not_taken_for_gone() {
    let it = bound(&json!({}));
    let running = machine(State::Running);
    let pass = plan(&it, &kept(20, Some(&running), &[], None), at(20));
    assert_eq!(written(&pass).attempts[0].ending, None);
    let mut gone = kept(20, Some(&running), &[], None);
    gone.open[0].tended.there = Some(as_json(&Tended {
        uid: Some("uid-p".to_owned()),
        pod: None,
    }));
    let pass = plan(&it, &gone, at(20));
    assert_eq!(
        written(&pass).attempts[0].ending.as_deref(),
        Some("PodEnded")
    );
    // What was looked for before the pod was written down says nothing of it.
    gone.open[0].tended.there = Some(as_json(&Tended::default()));
    let pass = plan(&it, &gone, at(20));
    assert_eq!(written(&pass).attempts[0].ending, None);
}

#[test]
fn a_node_goes_when_its_offer_does_and_another_takes_its_place() {
    let mut it = waiting(&json!({}));
    let mut dear = kept(5, None, &[], None);
    let offers = [
        offer("H100-80GB", 1, "us-east-1", "3.00", None),
        offer("H100-80GB", 1, "eu-west-1", "9.00", None),
    ];
    let market = vec![provider(
        "cloud",
        &json!({"bootstrap": {"type": "container"}}),
        &offers,
    )];
    dear.providers.clone_from(&market);
    let pass = plan(&it, &dear, at(5));
    let after = written(&pass);
    assert_eq!(after.attempts[0].outcome.as_deref(), Some("OfferGone"));
    assert!(!asks_cloud(&pass));
    it.status = Some(after);
    let next = written(&plan(&it, &seen(market), at(6)));
    assert_eq!(
        (&*next.attempts[1].region, &*next.attempts[1].price),
        ("us-east-1", "3.00")
    );
}

#[test]
fn a_node_nobody_uses_is_given_back_without_a_bill() {
    let mut it = waiting(&json!({"idleTimeout": "10m"}));
    it.status = Some(written(&plan(&it, &kept(1, None, &[], None), at(2))));
    let pass = plan(&it, &kept(700, None, &[], None), at(701));
    let after = written(&pass);
    assert_eq!(after.attempts[0].outcome.as_deref(), Some("IdleTimeout"));
    assert_eq!(after.attempts[0].cost, None);
    assert!(!asks_cloud(&pass));
    it.status = Some(after);
    let last = written(&plan(&it, &seen(clouds()), at(702)));
    assert_eq!(last.phase, RequestPhase::Ended);
}

#[test]
fn what_cannot_be_a_container_is_not_rented_one() {
    let it = request(&json!({}));
    let mut unfit = seen(clouds());
    unfit.unfit = Some("a cloud's container has no volume data".to_owned());
    let said = written(&plan(&it, &unfit, at(0)));
    assert_eq!(reason(&said).0, "NotAllowed");
    assert!(reason(&said).1.contains("volume data"), "{said:?}");
    let said = written(&plan(
        &request(&json!({"image": "i"})),
        &seen(clouds()),
        at(0),
    ));
    assert_eq!(reason(&said).0, "NotAllowed");
    let spot = request(&json!({"spotInstance": true}));
    let said = written(&plan(&spot, &seen(clouds()), at(0)));
    assert_eq!(reason(&said).0, "SpotNotSold");
    let machines = vec![provider(
        "vms",
        &json!({"type": "lambda", "credentials": {"secretName": "s"}}),
        &[],
    )];
    let asks = request(&json!({"bootstrap": {"type": "container"}}));
    let said = written(&plan(&asks, &seen(machines), at(0)));
    assert!(reason(&said).1.contains("sells no containers"), "{said:?}");
}

#[test]
fn a_pod_whose_container_the_cloud_loses_did_nothing_wrong() {
    let mut it = bound(&json!({}));
    let p = pod("p", &json!({"status": {"phase": "Running"}}));
    let running = machine(State::Running);
    let there = kept(20, Some(&running), std::slice::from_ref(&p), Some(&p));
    step(&mut it, &there, 20);
    let gone = machine(State::Gone);
    let mut said = Vec::new();
    for second in 3700..3706 {
        let seen = kept(second, Some(&gone), std::slice::from_ref(&p), Some(&p));
        let pass = step(&mut it, &seen, second);
        said.extend(told(&pass).iter().map(|(_, said)| said.to_string()));
    }
    assert_eq!(
        it.status
            .as_ref()
            .and_then(|status| status.attempts[0].ending.as_deref()),
        Some("MachineLost")
    );
    assert!(
        said.iter()
            .any(|text| text.contains("DisruptionTarget") && text.contains("ContainerLost")),
        "{said:?}"
    );
}

#[test]
fn money_is_reserved_for_a_pod_that_may_come() {
    let it = waiting(&json!({"maxLifetime": "2h"}));
    let machines = super::super::money::machines(&it, Some("team"), at(7200));
    assert_eq!(machines.len(), 1);
    let day = crate::budget::Period::day(at(7200));
    // It may come this moment: two hours of it, whenever the node was made.
    assert_eq!(
        machines[0].to_come(day, at(7200)),
        machines[0].price * Decimal::TWO
    );
}

#[test]
fn containers_that_never_run_are_given_up_after_five_whatever_their_nodes_were() {
    let mut it = bound(&json!({}));
    let p = pod("p", &json!({}));
    let pulls = machine(State::Pending);
    step(
        &mut it,
        &kept(20, Some(&pulls), std::slice::from_ref(&p), Some(&p)),
        20,
    );
    let status = it.status.clone().expect("a status");
    assert_eq!(status.attempts[0].ready_at, None, "its node is no proof");
    let late = kept(1300, Some(&pulls), std::slice::from_ref(&p), Some(&p));
    step(&mut it, &late, 1301);
    let mut status = it.status.clone().expect("a status");
    assert_eq!(status.attempts[0].ending.as_deref(), Some("NeverRan"));
    let mut over = status.attempts[0].clone();
    over.outcome = Some("NeverRan".to_owned());
    over.ended_at = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(
        1310,
    )));
    over.cost = Some("1.00".to_owned());
    status.attempts = vec![over; 5];
    status.attempt_count = 5;
    it.status = Some(status);
    let said = written(&plan(&it, &seen(clouds()), at(1400)));
    assert_eq!(
        (said.phase, reason(&said).0),
        (RequestPhase::Failed, "AttemptsExhausted")
    );
}

#[test]
fn a_node_that_waits_ends_with_the_time_of_its_request() {
    let mut it = waiting(&json!({"maxLifetime": "1h"}));
    let mut status = it.status.clone().expect("a status");
    let mut first = status.attempts[0].clone();
    first.instance_id = Some("m-0".to_owned());
    first.billed_from = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
    first.billed_until = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(
        600,
    )));
    first.outcome = Some("PodEnded".to_owned());
    first.cost = Some("0.50".to_owned());
    first.number = 0;
    status.attempts.insert(0, first);
    it.status = Some(status);
    let pass = step(&mut it, &kept(700, None, &[], None), 700);
    assert!(
        pass.again.is_some_and(|again| again <= at(3600)),
        "{pass:?}"
    );
    let pass = step(&mut it, &kept(3600, None, &[], None), 3600);
    let status = it.status.clone().expect("a status");
    assert_eq!(status.attempts[1].outcome.as_deref(), Some("MaxLifetime"));
    assert!(!asks_cloud(&pass), "nothing is bought to be ended at once");
}

#[test]
fn pods_that_are_to_go_and_are_no_container_are_let_go() {
    let it = waiting(&json!({}));
    let gone = json!({"metadata": {"name": "d", "namespace": "kube-system", "uid": "uid-d", "resourceVersion": "4",
        "deletionTimestamp": "2026-11-16T12:01:00Z", "deletionGracePeriodSeconds": 30}});
    let gone = pod("d", &gone);
    let mut seen = kept(1, None, std::slice::from_ref(&gone), None);
    seen.open[0].going = vec![gone];
    let removed = |plan: &Plan| -> Vec<String> {
        let each = plan.actions.iter().filter_map(|action| match action {
            Action::Delete {
                kind, key, options, ..
            } if *kind == Objects::of::<Pod>() && options.grace_seconds == Some(0) => {
                Some(key.name.to_string())
            }
            _ => None,
        });
        each.collect()
    };
    let pass = plan(&it, &seen, at(2));
    assert_eq!(removed(&pass), ["d"]);
    assert_eq!(written(&pass).attempts[0].pod, None, "it becomes nothing");
    // The container's own pod goes when the cloud has let go of it.
    let own = bound(&json!({}));
    let leaving = json!({"metadata": {"name": "p", "namespace": "team", "uid": "uid-p", "resourceVersion": "4",
        "deletionTimestamp": "2026-11-16T12:01:00Z", "deletionGracePeriodSeconds": 30}, "status": {"phase": "Running"}});
    let p = pod("p", &leaving);
    let running = machine(State::Running);
    let mut seen = kept(60, Some(&running), std::slice::from_ref(&p), Some(&p));
    seen.open[0].going = vec![p];
    assert_eq!(removed(&plan(&own, &seen, at(61))), [""; 0]);
}

#[test]
fn what_it_cost_is_entered_once_while_its_pod_is_looked_for() {
    let mut it = bound(&json!({}));
    let p = pod("p", &json!({"status": {"phase": "Running"}}));
    let running = machine(State::Running);
    let there = kept(20, Some(&running), std::slice::from_ref(&p), Some(&p));
    step(&mut it, &there, 20);
    let gone = machine(State::Gone);
    let mut entered = 0;
    let mut looked = false;
    for second in 3700..3720 {
        // The pod is in no cache, and what was last seen of it is old.
        let mut seen = kept(second, Some(&gone), &[], None);
        seen.open[0].tended.asked = Some(at(3690));
        seen.open[0].node = None;
        let pass = step(&mut it, &seen, second);
        let ledger = |action: &&Action| {
            matches!(action, Action::Patch { kind, .. }
                if *kind == Objects::of::<k8s_openapi::api::core::v1::ConfigMap>())
        };
        entered += pass.actions.iter().filter(ledger).count();
        looked |= pass.actions.is_empty()
            && pass
                .calls
                .iter()
                .any(|call| call.outside == "container-nodes");
    }
    assert_eq!(entered, 1);
    assert!(looked, "the pod is looked for");
}

#[test]
fn many_containers_leave_a_sum_and_are_spread_over_the_ledger() {
    let mut it = waiting(&json!({"maxLifetime": "48h"}));
    let mut status = it.status.clone().expect("a status");
    let open = status.attempts.remove(0);
    let mut names = std::collections::BTreeSet::new();
    for number in 1..=40_u32 {
        let from = at(i64::from(number) * 100);
        let mut one = open.clone();
        one.number = number;
        one.machine = format!("warp-cluster1-u1-{number}");
        one.instance_id = Some(format!("m-{number}"));
        one.billed_from = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(from));
        one.billed_until = one.billed_from.clone();
        one.outcome = Some("PodEnded".to_owned());
        one.cost = Some("0.25".to_owned());
        let mut entry = Plan::default();
        super::super::costs::enter(&mut entry, "warp-system", &it, &one);
        names.extend(entry.actions.iter().filter_map(|action| match action {
            Action::Patch { key, .. } => Some(key.name.to_string()),
            _ => None,
        }));
        status.attempts.push(one);
    }
    status.attempt_count = 40;
    it.status = Some(status);
    assert!(names.len() > 8, "{names:?}");
    assert!(
        names.iter().all(|name| name.starts_with("costs-2026-11.")),
        "{names:?}"
    );
    let after = written(&plan(&it, &seen(clouds()), at(5000)));
    let kept = after.attempts.iter().filter(|one| one.outcome.is_some());
    assert_eq!(kept.count(), 32);
    let earlier = &after.earlier[0];
    assert_eq!((earlier.count, &*earlier.spent), (8, "2.00"));
    assert_eq!(after.first_billed().map(|from| from.0), Some(at(100)));
    let spent = super::super::costs::of_request(&after, |_| false, |_| at(5000));
    assert_eq!(spent, Decimal::TEN);
}
