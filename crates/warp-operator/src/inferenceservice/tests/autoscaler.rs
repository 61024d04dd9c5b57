//! Services whose copies are counted by an autoscaler of others.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use serde::de::DeserializeOwned;

use super::super::autoscaler::Autoscalers;
use super::super::plan::rejected;
use super::*;

fn scaled_by(by: &str, more: Value) -> InferenceService {
    let mut scaling = json!({ "min": 2, "max": 6, "target": 8, "by": by });
    for (name, value) in more.as_object().into_iter().flatten() {
        scaling[name] = value.clone();
    }
    service(json!({ "replicas": 3, "scaling": scaling }))
}

fn keda() -> InferenceService {
    scaled_by("keda", json!({ "prometheus": "http://prometheus:9090" }))
}

/// What the cluster made of what was applied, with another owner where one is named.
fn made<T: DeserializeOwned>(plan: &Plan, kind: &str, owner: Option<&str>) -> Arc<T> {
    let mut object = applied(plan, kind).expect("an autoscaler");
    object["metadata"]["uid"] = json!("uid-scaler");
    object["metadata"]["resourceVersion"] = json!("1");
    if let Some(owner) = owner {
        object["metadata"]["ownerReferences"][0]["uid"] = json!(owner);
    }
    Arc::new(serde_json::from_value(object).expect("an autoscaler"))
}

fn with(autoscalers: Autoscalers) -> Seen {
    Seen {
        autoscalers: Some(autoscalers),
        ..fleet(&[h100("a", 8)], &[])
    }
}

fn with_keda() -> Seen {
    with(Autoscalers {
        keda: true,
        ..Autoscalers::default()
    })
}

fn deleted(plan: &Plan) -> Vec<String> {
    let deleted = plan.actions.iter().filter_map(|action| match action {
        Action::Delete { kind, key, .. } => Some(format!("{} {}", kind.kind, key.name)),
        _ => None,
    });
    deleted.collect()
}

fn handed_over(plan: &Plan) -> Option<(String, String, String)> {
    let conditions = written(plan).conditions;
    let found = conditions
        .into_iter()
        .find(|one| one.type_ == "HandedOver")?;
    Some((found.status, found.reason, found.message))
}

#[test]
fn an_hpa_is_told_to_scale_the_service_and_its_number_is_carried_out() {
    let it = scaled_by("hpa", json!({ "metric": "queue" }));
    let plan = plan(&it, &with(Autoscalers::default()), now());
    let hpa = applied(&plan, "HorizontalPodAutoscaler").expect("an HPA");
    assert_eq!(hpa["apiVersion"], "autoscaling/v2");
    assert_eq!(hpa["metadata"]["ownerReferences"][0]["uid"], "uid-chat");
    let spec = &hpa["spec"];
    let target = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "InferenceService", "name": "chat",
    });
    assert_eq!(spec["scaleTargetRef"], target);
    assert_eq!(
        (&spec["minReplicas"], &spec["maxReplicas"]),
        (&json!(2), &json!(6))
    );
    let external = &spec["metrics"][0]["external"];
    assert_eq!(external["metric"]["name"], "warp_requests_waiting");
    let of = &external["metric"]["selector"]["matchLabels"];
    assert_eq!(*of, json!({ "gpu_warp_dev_inference_service": "chat" }));
    let each = json!({ "type": "AverageValue", "averageValue": "8" });
    assert_eq!(external["target"], each);
    let window = &spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"];
    assert_eq!(*window, 300);
    // The number is the autoscaler's, whatever the engines say.
    let deployment = applied(&plan, "Deployment").expect("a Deployment");
    assert_eq!(deployment["spec"]["replicas"], 3);
    let (status, reason, message) = handed_over(&plan).expect("it is told");
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("True", "AutoscalerTold")
    );
    assert_eq!(
        message,
        "the HorizontalPodAutoscaler chat chooses the number of copies"
    );
    let slow = scaled_by("hpa", json!({ "metric": "firstToken", "target": 500 }));
    let slow = super::plan(&slow, &with(Autoscalers::default()), now());
    let slow = applied(&slow, "HorizontalPodAutoscaler").expect("an HPA");
    let target = &slow["spec"]["metrics"][0]["external"]["target"];
    assert_eq!(*target, json!({ "type": "Value", "value": "500" }));
}

#[test]
fn copies_beyond_the_limit_are_not_made_though_somebody_scales_by_hand() {
    for by in ["hpa", "keda"] {
        let mut it = scaled_by(by, json!({ "prometheus": "http://prometheus:9090" }));
        it.spec.replicas = 9;
        let plan = plan(&it, &with_keda(), now());
        let deployment = applied(&plan, "Deployment").expect("a Deployment");
        assert_eq!(deployment["spec"]["replicas"], 6, "{by}");
        let status = written(&plan);
        assert_eq!(status.replicas, 6, "{by}");
        let accepted = status.conditions.iter().find(|one| one.type_ == "Accepted");
        let said = &accepted.expect("it is accepted").message;
        assert!(
            said.ends_with("spec.replicas is 9, and spec.scaling.max keeps it at 6"),
            "{said}"
        );
    }
}

#[test]
fn keda_is_told_where_it_is_and_missed_where_it_is_not() {
    let plan = plan(&keda(), &with_keda(), now());
    let scaled = applied(&plan, "ScaledObject").expect("a ScaledObject");
    assert_eq!(scaled["apiVersion"], "keda.sh/v1alpha1");
    let spec = &scaled["spec"];
    assert_eq!(spec["scaleTargetRef"]["kind"], "InferenceService");
    let trigger = &spec["triggers"][0];
    assert_eq!(trigger["metricType"], "AverageValue");
    let of = r#"{namespace="ns",gpu_warp_dev_inference_service="chat"}"#;
    assert_eq!(
        trigger["metadata"],
        json!({
            "serverAddress": "http://prometheus:9090", "threshold": "8", "ignoreNullValues": "false",
            "query": format!("sum(vllm:num_requests_running{of}) + sum(vllm:num_requests_waiting{of})"),
        })
    );
    let without = super::plan(&keda(), &with(Autoscalers::default()), now());
    assert!(applied(&without, "ScaledObject").is_none());
    let (status, reason, message) = handed_over(&without).expect("it is told");
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "NoSuchAutoscaler")
    );
    assert!(message.contains("install KEDA"), "{message}");
    let deployment = applied(&without, "Deployment").expect("it is served all the same");
    assert_eq!(deployment["spec"]["replicas"], 3);
}

#[test]
fn what_another_autoscaler_was_told_is_taken_back() {
    let by_hpa = scaled_by("hpa", json!({}));
    let first = plan(&by_hpa, &with(Autoscalers::default()), now());
    let second = plan(&keda(), &with_keda(), now());
    let seen = |owner: Option<&str>| {
        with(Autoscalers {
            hpa: Some(made::<HorizontalPodAutoscaler>(
                &first,
                "HorizontalPodAutoscaler",
                owner,
            )),
            scaled: Some(made(&second, "ScaledObject", owner)),
            keda: true,
        })
    };
    let hpa = "HorizontalPodAutoscaler chat";
    for (it, expected) in [
        (by_hpa.clone(), vec!["ScaledObject chat"]),
        (keda(), vec![hpa]),
        (scaled_by("warp", json!({})), vec![hpa, "ScaledObject chat"]),
        (service(json!({})), vec![hpa, "ScaledObject chat"]),
    ] {
        assert_eq!(deleted(&plan(&it, &seen(None), now())), expected);
        // Those of somebody else are left alone, and not written over.
        let foreign = plan(&it, &seen(Some("uid-other")), now());
        assert_eq!(deleted(&foreign), [""; 0]);
        for kind in ["HorizontalPodAutoscaler", "ScaledObject"] {
            assert!(applied(&foreign, kind).is_none());
        }
    }
    let taken = handed_over(&plan(&by_hpa, &seen(Some("uid-other")), now()));
    assert_eq!(taken.expect("it is told").1, "NameTaken");
    // Warp counts again: nothing more is said of another.
    let mut back = scaled_by("warp", json!({}));
    back.status = Some(written(&first));
    assert_eq!(handed_over(&plan(&back, &seen(None), now())), None);
}

#[test]
fn without_the_right_to_tell_autoscalers_that_is_said() {
    let plan = plan(
        &scaled_by("hpa", json!({})),
        &fleet(&[h100("a", 8)], &[]),
        now(),
    );
    assert!(applied(&plan, "HorizontalPodAutoscaler").is_none());
    let (status, reason, message) = handed_over(&plan).expect("it is told");
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "AutoscalersNotAllowed")
    );
    assert!(message.contains("--autoscalers"), "{message}");
}

#[test]
fn an_autoscaler_that_the_api_server_does_not_take_is_not_handed_over_to() {
    let mut it = scaled_by("hpa", json!({}));
    let seen = with(Autoscalers::default());
    let refusal = |kind: &str| warp_runtime::reconcile::Refusal {
        kind: kind.to_owned(),
        name: "chat".to_owned(),
        words: "no such right".to_owned(),
        forbidden: true,
    };
    let told = rejected(&it, &seen, &refusal("HorizontalPodAutoscaler"), now());
    let (status, reason, message) = handed_over(&told).expect("it is told");
    assert_eq!(
        (status.as_str(), reason.as_str()),
        ("False", "ObjectRejected")
    );
    assert!(message.contains("no such right"), "{message}");
    assert_eq!(written(&told).conditions[0].type_, "Ready");
    // Said again, it is the same: nothing is written for it.
    it.status = Some(written(&told));
    let later = now() + jiff::SignedDuration::from_mins(1);
    let again = rejected(&it, &seen, &refusal("HorizontalPodAutoscaler"), later);
    assert!(again.actions.is_empty(), "{again:?}");
    // Something else that is not taken says nothing of the autoscaler.
    let other = rejected(&it, &seen, &refusal("Service"), now());
    assert_eq!(handed_over(&other).expect("it is told").0, "True");
}
