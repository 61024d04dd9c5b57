//! What is said of renting for work that waits, before anything is rented.

use super::*;

fn selling(gpus: u32, price: &str) -> Arc<CloudProvider> {
    let object = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "CloudProvider", "metadata": {"name": "cloud"},
        "spec": {"type": "fake"},
        "status": {
            "offers": [{"gpu": "H100-80GB", "gpus": gpus, "region": "north", "instanceType": "t", "price": price,
                "availability": "high"}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "OffersKnown", "message": "",
                "lastTransitionTime": "2026-11-15T11:00:00Z"}]},
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

fn cluster(gpus: u32, price: &str) -> Cluster {
    Cluster {
        nodes: vec![node("a", 1)],
        clouds: Some(vec![selling(gpus, price)]),
        ..Cluster::default()
    }
}

fn asks(rent: &Value) -> Arc<GPUWorkload> {
    let mut spec = json!({"gpuCount": 2, "gpu": {"models": ["H100"]}, "rent": {"maxPrice": 7.5}});
    for (field, value) in rent.as_object().into_iter().flatten() {
        spec["rent"][field] = value.clone();
    }
    workload("train", 0, &spec)
}

fn rent(cluster: &Cluster, workload: &GPUWorkload) -> Renting {
    seen(cluster, workload).rent.expect("it rents")
}

#[test]
fn what_would_be_rented_is_said_with_its_price_and_when() {
    let said = rent(&cluster(2, "5.80"), &asks(&json!({})));
    assert_eq!(
        said.message,
        "rented for it after 10m unless room comes free: 2 x H100-80GB from cloud in north for 5.80 an hour (spec.rent.maxPrice 7.5)"
    );
    assert_eq!(said.price_per_hour.as_deref(), Some("5.80"));
    assert_eq!(
        said.at,
        Some(Timestamp::from_second(1_790_001_600).unwrap())
    );
    let said = rent(&cluster(2, "5.80"), &asks(&json!({"after": "0s"})));
    assert!(
        said.message.starts_with("rented for it at once"),
        "{said:?}"
    );
}

#[test]
fn nothing_is_said_of_renting_by_work_that_starts_or_does_not_rent() {
    let mut roomy = cluster(2, "5.80");
    roomy.nodes = vec![node("a", 8)];
    assert_eq!(seen(&roomy, &asks(&json!({}))).rent, None);
    let plain = workload("plain", 0, &json!({"gpuCount": 2}));
    assert_eq!(seen(&cluster(2, "5.80"), &plain).rent, None);
}

#[test]
fn a_price_too_low_nothing_sold_and_a_budget_are_said_before_it_waits_for_them() {
    let dear = rent(&cluster(2, "9.10"), &asks(&json!({})));
    assert_eq!(dear.reason, Some(reason::PRICE_TOO_LOW));
    assert!(
        dear.message.contains("at 9.10 an hour, above maxPrice 7.5"),
        "{dear:?}"
    );
    let none = rent(&cluster(1, "2"), &asks(&json!({})));
    assert_eq!(none.reason, Some(reason::NO_OFFER));
    let mut poor = cluster(2, "5.80");
    let tenant = json!({"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "team"},
        "spec": {"namespaces": {"names": ["default"]}, "budget": {"perHour": 5}}});
    poor.tenants = vec![Arc::new(serde_json::from_value(tenant).unwrap())];
    let namespace = json!({"metadata": {"name": "default"}});
    poor.namespaces = vec![Arc::new(serde_json::from_value(namespace).unwrap())];
    let held = rent(&poor, &asks(&json!({})));
    assert_eq!(held.reason, Some(reason::BUDGET_REACHED));
    assert!(
        held.message
            .contains("tenant team may rent for 5.00 an hour"),
        "{held:?}"
    );
}

#[test]
fn machines_of_a_gang_are_priced_together() {
    let spec = json!({"gpuCount": 8, "replicas": 3, "gpu": {"models": ["H100"]},
        "rent": {"maxPrice": 70, "after": "0s"}});
    let said = rent(&cluster(8, "20"), &workload("train", 0, &spec));
    assert_eq!(said.price_per_hour.as_deref(), Some("60.00"));
    assert!(
        said.message
            .contains("3 machines, all or none, for 60.00 an hour"),
        "{said:?}"
    );
    let dear = rent(&cluster(8, "30"), &workload("train", 0, &spec));
    assert!(
        dear.message
            .contains("cost 90 an hour, above spec.rent.maxPrice 70"),
        "{dear:?}"
    );
}

#[test]
fn what_is_being_rented_is_told_as_the_operator_tells_it() {
    let mut waits = (*asks(&json!({}))).clone();
    waits.status = serde_json::from_value(json!({"phase": "Pending", "rent": {
        "waitingSince": "2026-09-21T10:00:00Z", "request": "r", "requests": 1, "gpu": "2 x H100-80GB",
        "pricePerHour": "5.80", "message": "GPURequest r rents a machine for it: m-1 starts"}}))
    .unwrap();
    let said = rent(&cluster(2, "5.80"), &waits);
    assert_eq!(
        said.message,
        "GPURequest r rents a machine for it: m-1 starts (2 x H100-80GB for 5.80 an hour)"
    );
}

#[test]
fn who_may_not_read_clouds_is_told_the_limit_alone() {
    let blind = Cluster {
        clouds: None,
        ..cluster(2, "5.80")
    };
    let said = rent(&blind, &asks(&json!({})));
    assert!(said.message.contains("for at most 7.5 an hour"), "{said:?}");
    assert_eq!(said.reason, None);
}

/// One that waits, with a request for it that says this.
fn asked_already(rent: &Value, status: &Value) -> (Cluster, GPUWorkload) {
    let mut waits = (*asks(rent)).clone();
    waits.status = serde_json::from_value(json!({"phase": "Pending", "rent": {
        "waitingSince": "2026-09-21T10:00:00Z", "request": "r", "requests": 1,
        "message": "GPURequest r rents a machine for it: nothing is sold so cheap"}}))
    .unwrap();
    let request = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest",
        "metadata": {"name": "r", "namespace": "default", "uid": "r-uid", "ownerReferences": [{
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "name": "train",
            "uid": waits.uid(), "controller": true}]},
        "spec": {"gpuModels": ["H100"], "gpuCount": 2, "maxPrice": 7.5, "spotInstance": false, "idleTimeout": "10m"},
        "status": status,
    });
    let cluster = Cluster {
        requests: vec![Arc::new(serde_json::from_value(request).unwrap())],
        ..cluster(2, "9.10")
    };
    (cluster, waits)
}

#[test]
fn a_changed_limit_is_foretold_also_while_a_request_of_it_is_there() {
    let nothing = json!({"phase": "Pending"});
    let (unchanged, waits) = asked_already(&json!({}), &nothing);
    let said = rent(&unchanged, &waits);
    assert!(
        said.message.contains("nothing is sold so cheap"),
        "{said:?}"
    );
    let (cluster, waits) = asked_already(&json!({"maxPrice": 10}), &nothing);
    let said = rent(&cluster, &waits);
    assert_eq!(
        said.message,
        "GPURequest r, which bought nothing yet, would then buy at once: 2 x H100-80GB from cloud in north for 9.10 an hour (spec.rent.maxPrice 10)"
    );
    assert_eq!(said.price_per_hour.as_deref(), Some("9.10"));
    let (cluster, waits) = asked_already(&json!({"maxPrice": 8}), &nothing);
    let said = rent(&cluster, &waits);
    assert_eq!(said.reason, Some(reason::PRICE_TOO_LOW), "{said:?}");
    assert!(said.message.contains("above maxPrice 8"), "{said:?}");
}

#[test]
fn a_request_that_has_bought_keeps_its_machine_and_is_told_the_new_limit() {
    let bought = json!({"phase": "Provisioning", "attempts": [{"machine": "m-1", "provider": "cloud",
        "number": 1, "gpu": "H100-80GB", "gpus": 2, "region": "north", "instanceType": "t",
        "price": "7.00", "priceLimit": "7.5", "intendedAt": "2026-09-21T10:00:00Z"}]});
    let (cluster, waits) = asked_already(&json!({"maxPrice": 10}), &bought);
    let said = rent(&cluster, &waits);
    assert!(
        said.message.ends_with("it is told what spec.rent says now"),
        "{said:?}"
    );
}

#[test]
fn a_request_of_work_that_rents_no_more_is_said_to_be_taken_back() {
    let (cluster, mut waits) = asked_already(&json!({}), &json!({"phase": "Pending"}));
    waits.spec.rent = None;
    let said = rent(&cluster, &waits);
    assert_eq!(
        said.message,
        "nothing is rented for it any more: GPURequest r is taken back"
    );
}
