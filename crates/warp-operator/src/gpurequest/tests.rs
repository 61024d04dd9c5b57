//! A request from its first pass to its last, decided without a cluster: what is written, when the cloud is called, and
//! that neither happens in the wrong order.

mod budgets;
mod callers;
mod containers;
mod joining;
mod losses;
mod notices;
mod together;

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};
use warp_api::gpurequest::RequestPhase;
use warp_api::{CloudProvider, GPURequest, GPURequestStatus};
use warp_cloud::{Class, Decimal, Kind, Machine, Mark, State};
use warp_runtime::outside::Sight;
use warp_runtime::plan::{Action, Plan, What, as_json};

use super::FINALIZER;
use super::observe::{Open, Seen};
use super::plan::plan;
use crate::cloudprovider::calls::Answer;

const SETTLE: Duration = Duration::from_secs(130);

fn at(seconds: i64) -> Timestamp {
    let start: Timestamp = "2026-11-16T12:00:00Z".parse().expect("a time");
    start + SignedDuration::from_secs(seconds)
}

fn request(spec: &Value) -> GPURequest {
    let mut object = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest",
        "metadata": {
            "name": "r", "namespace": "default", "uid": "u1", "generation": 3, "resourceVersion": "7",
            "finalizers": [FINALIZER],
        },
        "spec": {"gpuType": "H100"},
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    serde_json::from_value(object).expect("a request")
}

fn offer(gpu: &str, gpus: u32, region: &str, price: &str, spot: Option<&str>) -> Value {
    json!({
        "gpu": gpu, "gpus": gpus, "region": region, "instanceType": format!("{gpu}x{gpus}").to_lowercase(),
        "price": price, "spotPrice": spot, "availability": "high",
    })
}

fn provider(name: &str, spec: &Value, offers: &[Value]) -> Arc<CloudProvider> {
    let mut object = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "CloudProvider",
        "metadata": {"name": name}, "spec": {"type": "fake"},
        "status": {
            "offers": offers,
            "conditions": [{"type": "Ready", "status": "True", "reason": "OffersKnown", "message": "",
                "lastTransitionTime": "2026-11-16T12:00:00Z"}],
        },
    });
    for (key, value) in spec.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    Arc::new(serde_json::from_value(object).expect("a provider"))
}

fn market() -> Vec<Arc<CloudProvider>> {
    let offers = [
        offer("H100-80GB", 1, "us-east-1", "3.00", Some("1.50")),
        offer("H100-80GB", 1, "eu-west-1", "2.80", None),
        offer("H100-80GB", 8, "us-east-1", "24.00", None),
        offer("L4", 1, "us-east-1", "0.50", None),
    ];
    vec![provider("cloud", &json!({}), &offers)]
}

fn seen(providers: Vec<Arc<CloudProvider>>) -> Seen {
    Seen {
        providers,
        mark: Some(Mark::of_cluster("cluster1")),
        home: "warp-system".to_owned(),
        process: "one@1".to_owned(),
        ..Seen::default()
    }
}

fn written(plan: &Plan) -> GPURequestStatus {
    let status = plan.actions.iter().find_map(|action| match action {
        Action::Status(status) => Some(status.after.clone()),
        _ => None,
    });
    serde_json::from_value(status.expect("a status is written")).expect("a request's status")
}

fn reason(status: &GPURequestStatus) -> (&str, &str) {
    (&status.conditions[0].reason, &status.conditions[0].message)
}

/// A request whose attempt is written, `at(0)`.
fn intended(spec: &Value) -> GPURequest {
    let mut it = request(spec);
    it.status = Some(written(&plan(&it, &seen(market()), at(0))));
    it
}

fn sight(asked: i64, there: Option<&Answer>) -> Sight {
    Sight {
        asked: Some(at(asked)),
        there: there.map(as_json),
        settle: SETTLE,
        max_age: Duration::from_secs(20),
        process_began: Some(at(-100)),
        ..Sight::default()
    }
}

fn with(sight: Sight, node: Option<Node>, used: bool) -> Seen {
    Seen {
        open: vec![Open {
            number: 1,
            kind: Kind::Fake,
            sight,
            settle: SETTLE,
            ownerless: false,
            node: node.map(Arc::new),
            used,
            pods: Vec::new(),
            others: 0,
            going: Vec::new(),
            own_pod: None,
            tended: Sight::default(),
            token: Sight::default(),
            certificates: Sight::default(),
        }],
        ..seen(market())
    }
}

fn machine(state: State) -> Answer {
    Answer::Machine(Machine {
        id: "m-1".to_owned(),
        name: "warp-cluster1-u1-1".to_owned(),
        state,
        region: "eu-west-1".to_owned(),
        instance_type: "h100-80gbx1".to_owned(),
        spot: false,
        price: Some(Decimal::new(280, 2)),
        started: Some(at(1)),
        ended: (state == State::Gone).then(|| at(3601)),
        taken_back: None,
        exit: None,
        public_ip: None,
        private_ip: None,
    })
}

fn ready_node() -> Node {
    serde_json::from_value(json!({
        "metadata": {"name": "warp-cluster1-u1-1", "uid": "n1"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }))
    .expect("a node")
}

fn calls(plan: &Plan) -> Vec<&What> {
    plan.calls.iter().map(|call| &call.what).collect()
}

#[test]
fn the_finalizer_comes_first_then_the_intent_and_only_then_a_call() {
    let mut it = request(&json!({"maxPrice": 3}));
    it.metadata.finalizers = None;
    let first = plan(&it, &seen(market()), at(0));
    assert!(matches!(&first.actions[..], [Action::Patch { .. }]) && first.calls.is_empty());
    let it = request(&json!({"maxPrice": 3}));
    let second = plan(&it, &seen(market()), at(0));
    assert!(
        second.calls.is_empty(),
        "nothing is bought in the pass that writes the intent"
    );
    let status = written(&second);
    assert_eq!(status.phase, RequestPhase::Provisioning);
    let attempt = &status.attempts[0];
    assert_eq!(attempt.machine, "warp-cluster1-u1-1");
    assert_eq!(
        (&*attempt.region, &*attempt.price, &*attempt.price_limit),
        ("eu-west-1", "2.80", "3.00")
    );
    let mut it = it;
    it.status = Some(status);
    // The cloud is searched first, and asked to sell only when it has none of that name.
    let never = Sight {
        asked: None,
        ..sight(0, None)
    };
    assert_eq!(
        calls(&plan(&it, &with(never, None, false), at(1))),
        [&What::LookUp]
    );
    let empty = plan(&it, &with(sight(2, None), None, false), at(2));
    let [What::Make(launch)] = calls(&empty)[..] else {
        panic!("{empty:?}");
    };
    assert_eq!(launch["name"], "warp-cluster1-u1-1");
    assert_eq!(launch["maxPrice"], "3.00");
}

#[test]
fn after_a_restart_nothing_is_bought_before_a_lost_answer_could_have_shown() {
    let it = intended(&json!({}));
    let began = Sight {
        process_began: Some(at(50)),
        ..sight(51, None)
    };
    assert!(
        plan(&it, &with(began.clone(), None, false), at(60))
            .calls
            .is_empty()
    );
    let late = Sight {
        asked: Some(at(181)),
        ..began
    };
    assert!(matches!(
        calls(&plan(&it, &with(late, None, false), at(182)))[..],
        [What::Make(_)]
    ));
}

#[test]
fn a_refusal_is_an_attempt_with_the_clouds_words_and_the_next_place_is_tried() {
    let mut it = intended(&json!({}));
    let refused = Answer::Refused {
        class: Class::NoCapacity,
        words: "sold out".to_owned(),
    };
    let status = written(&plan(
        &it,
        &with(sight(2, Some(&refused)), None, false),
        at(2),
    ));
    let attempt = &status.attempts[0];
    assert_eq!(attempt.outcome.as_deref(), Some("NoCapacity"));
    assert_eq!(attempt.reason.as_deref(), Some("sold out"));
    it.status = Some(status);
    let status = written(&plan(&it, &seen(market()), at(3)));
    assert_eq!(status.attempts[1].region, "us-east-1");
    assert_eq!(status.attempts[1].machine, "warp-cluster1-u1-2");
}

#[test]
fn a_machine_is_followed_to_its_node_and_told_what_it_costs() {
    let mut it = intended(&json!({"maxLifetime": "1h", "maxTotalPrice": 28}));
    let booting = plan(
        &it,
        &with(sight(2, Some(&machine(State::Pending))), None, false),
        at(2),
    );
    let status = written(&booting);
    assert_eq!(status.phase, RequestPhase::Booting);
    assert_eq!(status.instance_id.as_deref(), Some("m-1"));
    assert_eq!(
        status.terminates_at.as_ref().map(|time| time.0),
        Some(at(3601))
    );
    it.status = Some(status);
    let running = machine(State::Running);
    let status = written(&plan(
        &it,
        &with(sight(9, Some(&running)), None, false),
        at(9),
    ));
    assert_eq!(status.phase, RequestPhase::Joining);
    it.status = Some(status);
    let status = written(&plan(
        &it,
        &with(sight(9, Some(&running)), Some(ready_node()), true),
        at(12),
    ));
    assert_eq!(status.phase, RequestPhase::Ready);
    assert_eq!(status.conditions[0].status, "True");
    it.status = Some(status);
    let again = plan(
        &it,
        &with(sight(13, Some(&running)), Some(ready_node()), true),
        at(13),
    );
    assert!(again.is_idle(), "a repeated pass writes nothing: {again:?}");
}

/// A request whose node is ready, at `at(12)`.
fn ready(spec: &Value) -> GPURequest {
    let mut it = intended(spec);
    let running = machine(State::Running);
    let now = with(sight(9, Some(&running)), Some(ready_node()), false);
    it.status = Some(written(&plan(&it, &now, at(12))));
    it
}

fn ending(it: &GPURequest, used: bool, now: i64) -> Option<String> {
    let running = machine(State::Running);
    let pass = plan(
        it,
        &with(sight(now, Some(&running)), Some(ready_node()), used),
        at(now),
    );
    let status = pass.actions.iter().find_map(|action| match action {
        Action::Status(status) => Some(status.after.clone()),
        _ => None,
    });
    let status: GPURequestStatus = serde_json::from_value(status?).expect("a status");
    status.attempts[0].ending.clone()
}

#[test]
fn time_money_and_idleness_end_a_machine() {
    let short = ready(&json!({"maxLifetime": "1h"}));
    assert_eq!(ending(&short, true, 3600), None);
    assert_eq!(ending(&short, true, 3601).as_deref(), Some("MaxLifetime"));
    // 2.80 an hour: five hours for 14 dollars, two minutes less.
    let poor = ready(&json!({"maxTotalPrice": 14}));
    assert_eq!(ending(&poor, true, 17_880), None);
    assert_eq!(
        ending(&poor, true, 17_881).as_deref(),
        Some("MaxTotalPrice")
    );
    let idle = ready(&json!({"idleTimeout": "10m"}));
    assert_eq!(ending(&idle, false, 611), None);
    assert_eq!(ending(&idle, true, 613), None, "it is used");
    assert_eq!(ending(&idle, false, 612).as_deref(), Some("IdleTimeout"));
}

#[test]
fn a_spec_that_changes_while_a_machine_is_there_is_told_and_its_limits_hold() {
    let mut it = ready(&json!({"maxLifetime": "1h", "gpuType": "H100"}));
    let running = machine(State::Running);
    let told = |it: &GPURequest| {
        let seen = with(sight(13, Some(&running)), Some(ready_node()), true);
        let status = written(&plan(it, &seen, at(13)));
        assert_eq!(status.phase, RequestPhase::Ready);
        status.message.unwrap_or_default()
    };
    it.spec.gpu_type = Some("A100-80GB".to_owned());
    let said = told(&it);
    assert!(said.contains("asks for 1 x A100-80GB"), "{said}");
    assert!(
        said.contains("delete the request and make another"),
        "{said}"
    );
    // One that cannot be read keeps what it may.
    it.spec.gpu_type = Some("H1000".to_owned());
    let said = told(&it);
    assert!(said.contains("'H1000' is no GPU"), "{said}");
    assert_eq!(ending(&it, true, 3601).as_deref(), Some("MaxLifetime"));
}

#[test]
fn it_goes_only_when_the_cloud_says_gone_and_its_cost_is_written() {
    let mut it = ready(&json!({}));
    it.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        at(3600),
    ));
    let running = machine(State::Running);
    let first = plan(
        &it,
        &with(sight(3600, Some(&running)), Some(ready_node()), true),
        at(3600),
    );
    it.status = Some(written(&first));
    let second = plan(
        &it,
        &with(sight(3600, Some(&running)), Some(ready_node()), true),
        at(3600),
    );
    assert_eq!(calls(&second), [&What::Remove]);
    // A cloud that was told so in this very moment is not told again.
    let told = Sight {
        last_remove: Some(at(3600)),
        ..sight(3600, Some(&machine(State::Terminating)))
    };
    let again = plan(&it, &with(told, Some(ready_node()), true), at(3600));
    assert!(calls(&again).is_empty(), "{again:?}");
    // The cloud still has it: nothing is let go.
    let stays = machine(State::Terminating);
    let third = plan(
        &it,
        &with(sight(3602, Some(&stays)), Some(ready_node()), true),
        at(3602),
    );
    assert!(third.actions.is_empty(), "{third:?}");
    let gone = machine(State::Gone);
    let fourth = plan(
        &it,
        &with(sight(3605, Some(&gone)), Some(ready_node()), true),
        at(3605),
    );
    it.status = Some(written(&fourth));
    let fifth = plan(
        &it,
        &with(sight(3605, Some(&gone)), Some(ready_node()), true),
        at(3605),
    );
    let kinds: Vec<&str> = fifth
        .actions
        .iter()
        .map(|action| match action {
            Action::Create { .. } => "create",
            Action::Patch { .. } => "ledger",
            Action::Delete { .. } => "node",
            Action::Status(_) => "status",
            _ => "other",
        })
        .collect();
    assert_eq!(
        kinds,
        ["create", "ledger", "node", "status"],
        "in this order"
    );
    let status = written(&fifth);
    // One hour at 2.80.
    assert_eq!(status.attempts[0].cost.as_deref(), Some("2.80"));
    it.status = Some(status);
    let last = plan(&it, &seen(market()), at(3606));
    assert!(
        matches!(&last.actions[..], [Action::Patch { .. }]),
        "the finalizer: {last:?}"
    );
}

#[test]
fn one_bought_a_moment_ago_is_ended_by_its_id_although_no_list_shows_it() {
    let mut it = intended(&json!({}));
    let pending = machine(State::Pending);
    it.status = Some(written(&plan(
        &it,
        &with(sight(2, Some(&pending)), None, false),
        at(2),
    )));
    it.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(3)));
    it.status = Some(written(&plan(
        &it,
        &with(sight(3, None), None, false),
        at(4),
    )));
    let hidden = plan(&it, &with(sight(3, None), None, false), at(4));
    assert_eq!(calls(&hidden), [&What::Remove]);
    let asked = plan(&it, &with(sight(5, None), None, false), at(6));
    assert!(
        asked.actions.is_empty() && asked.calls.is_empty(),
        "not let go yet: {asked:?}"
    );
    // Bought at 1, by the cloud's own word.
    assert_eq!(asked.again, Some(at(131)));
}

#[test]
fn what_cannot_be_bought_is_said_with_what_would_help() {
    let sayings = [
        (json!({"gpuType": "Voodoo"}), "InvalidSpec", "Voodoo"),
        (
            json!({"gpuType": "H200-MIG-1g.18gb"}),
            "InvalidSpec",
            "a part of a GPU",
        ),
        (
            json!({"gpuModels": ["MI300X-CPX"]}),
            "InvalidSpec",
            "a part of a GPU",
        ),
        (json!({"maxPrice": -1}), "InvalidSpec", "maxPrice"),
        (json!({"maxLifetime": "soon"}), "InvalidSpec", "maxLifetime"),
        (json!({"maxSpotPrice": 1}), "InvalidSpec", "spotInstance"),
        (json!({"maxPrice": "2.79"}), "PriceTooLow", "2.80"),
        (
            json!({"maxTotalPrice": "0.40"}),
            "PriceTooLow",
            "maxTotalPrice",
        ),
        (json!({"region": "mars"}), "NoOffer", "mars"),
        (json!({"gpuCount": 16}), "NoOffer", "16 x"),
        (json!({"provider": "other"}), "NoProvider", "cloud"),
    ];
    for (spec, expected, word) in sayings {
        let status = written(&plan(&request(&spec), &seen(market()), at(0)));
        let (reason, message) = reason(&status);
        assert_eq!(reason, expected, "{spec}");
        assert!(message.contains(word), "{message}");
        assert!(status.attempts.is_empty());
        assert_eq!(status.observed_generation, Some(3));
    }
    let status = written(&plan(&request(&json!({})), &seen(Vec::new()), at(0)));
    assert_eq!(reason(&status).0, "NoProvider");
}

#[test]
fn regions_are_tried_in_the_order_they_are_preferred() {
    let it = request(&json!({"regionPreference": ["us-east", "eu-west-1"]}));
    let status = written(&plan(&it, &seen(market()), at(0)));
    assert_eq!(
        status.attempts[0].region, "us-east-1",
        "dearer, and preferred"
    );
}

#[test]
fn spot_is_bought_when_cheap_waited_for_and_then_left() {
    let spot = json!({"spotInstance": true, "maxSpotPrice": 2, "maxPrice": 4});
    let status = written(&plan(&request(&spot), &seen(market()), at(0)));
    assert!(status.attempts[0].spot);
    assert_eq!(status.attempts[0].price_limit, "2.00");
    let dear = json!({"spotInstance": true, "maxSpotPrice": 1, "maxPrice": 4, "spotWait": "10m"});
    let mut it = request(&dear);
    let waits = plan(&it, &seen(market()), at(0));
    let status = written(&waits);
    assert_eq!(reason(&status).0, "WaitingForSpot");
    assert_eq!(waits.again, Some(at(600)));
    it.status = Some(status);
    let status = written(&plan(&it, &seen(market()), at(600)));
    assert!(!status.attempts[0].spot, "on demand");
}

#[test]
fn limits_of_a_provider_hold_over_all_requests() {
    let offers = [offer("H100-80GB", 1, "us-east-1", "3.00", None)];
    let limited = provider(
        "cloud",
        &json!({"limits": {"machines": 5, "pricePerHour": 5}}),
        &offers,
    );
    let mut first = request(&json!({}));
    first.status = Some(written(&plan(&first, &seen(vec![limited.clone()]), at(0))));
    let all = Seen {
        requests: vec![Arc::new(first)],
        ..seen(vec![limited])
    };
    let status = written(&plan(&request(&json!({})), &all, at(1)));
    let (reason, message) = reason(&status);
    assert_eq!(reason, "ProviderLimit");
    assert!(message.contains("3.00 of 5 dollars"), "{message}");
}
