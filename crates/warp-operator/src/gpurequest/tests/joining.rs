//! A machine that joins by what it was given: its certificate, its token, the test of its GPUs.

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use warp_api::cloudprovider::BootstrapType;
use warp_cloud::join::token_id;

use super::*;

const MACHINE: &str = "warp-cluster1-u1-1";
// For another machine's name: what counts here is the order of things.
const OTHERS: &str = include_str!("../../joining/other.csr");
const SERVER: &str = "https://203.0.113.7:6443";

fn joins() -> Vec<Arc<CloudProvider>> {
    let spec = json!({"type": "lambda", "bootstrap": {"type": "kubeadm", "server": SERVER}});
    vec![provider(
        "cloud",
        &spec,
        &[offer("H100-80GB", 1, "us-east-1", "3.00", None)],
    )]
}

fn bought() -> GPURequest {
    let mut it = request(&json!({}));
    it.status = Some(written(&plan(&it, &seen(joins()), at(0))));
    let pending = machine(State::Pending);
    let now = with(sight(2, Some(&pending)), None, false);
    it.status = Some(written(&plan(&it, &now, at(2))));
    it
}

/// A request for a certificate as the API server shows it.
fn certificate(name: &str, by: &str) -> CertificateSigningRequest {
    serde_json::from_value(json!({
        "metadata": {"name": name, "resourceVersion": "5"},
        "spec": {
            "request": "bm9uc2Vuc2U=", "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "username": by, "groups": ["system:bootstrappers"],
            "usages": ["digital signature", "client auth"],
        },
    }))
    .expect("a request for a certificate")
}

fn asking(asked: &[CertificateSigningRequest]) -> Seen {
    let mut seen = with(sight(9, Some(&machine(State::Running))), None, false);
    seen.open[0].certificates = Sight {
        asked: Some(at(9)),
        there: Some(as_json(&asked)),
        ..Sight::default()
    };
    seen
}

fn notes(plan: &Plan) -> Vec<&str> {
    let notes = plan.actions.iter().filter_map(|action| match action {
        Action::Note(note) => Some(note.reason.as_str()),
        _ => None,
    });
    notes.collect()
}

#[test]
fn how_it_joins_is_written_with_the_intent_and_no_token_is() {
    let it = bought();
    let attempt = &it.status.as_ref().expect("a status").attempts[0];
    assert_eq!(
        attempt.bootstrap.map(BootstrapType::as_str),
        Some("kubeadm")
    );
    let pass = plan(&it, &asking(&[]), at(30));
    assert!(calls(&pass).contains(&&What::LookUp), "{pass:?}");
}

#[test]
fn a_certificate_that_is_not_the_machines_own_is_left_alone_and_told_once() {
    let mut it = bought();
    let mut others = certificate("others", &format!("system:bootstrap:{}", token_id(MACHINE)));
    others.spec.request = k8s_openapi::ByteString(OTHERS.as_bytes().to_vec());
    let strange = certificate("strange", "mallory");
    let seen = asking(&[others, strange]);
    let pass = plan(&it, &seen, at(9));
    let told = notes(&pass);
    let ignored = told
        .iter()
        .filter(|reason| **reason == "CertificateIgnored");
    assert_eq!(ignored.count(), 2, "{told:?}");
    assert!(
        !pass
            .actions
            .iter()
            .any(|action| matches!(action, Action::Sub { .. }))
    );
    it.status = Some(written(&pass));
    let attempt = &it.status.as_ref().expect("a status").attempts[0];
    assert_eq!(attempt.ignored_certificates, ["others", "strange"]);
    assert_eq!(attempt.certificate_request, None);
    assert!(!notes(&plan(&it, &seen, at(10))).contains(&"CertificateIgnored"));
}

#[test]
fn the_machines_own_certificate_is_written_down_then_approved_once() {
    let mut it = bought();
    let own = own_request(MACHINE);
    let seen = asking(std::slice::from_ref(&own));
    let first = plan(&it, &seen, at(9));
    assert!(
        !first
            .actions
            .iter()
            .any(|action| matches!(action, Action::Sub { .. }))
    );
    it.status = Some(written(&first));
    let second = plan(&it, &seen, at(10));
    let approved = second.actions.iter().find_map(|action| match action {
        Action::Sub {
            sub, key, object, ..
        } => Some((*sub, key.name.to_string(), object.clone())),
        _ => None,
    });
    let (sub, name, object) = approved.expect("an approval");
    assert_eq!((sub, &*name), ("approval", "own"));
    assert_eq!(object["status"]["conditions"][0]["type"], "Approved");
    assert_eq!(object["metadata"]["resourceVersion"], "5");
    it.status = Some(written(&second));
    let third = plan(&it, &seen, at(11));
    assert!(
        !third
            .actions
            .iter()
            .any(|action| matches!(action, Action::Sub { .. }))
    );
}

/// The machine's own request.
fn own_request(machine: &str) -> CertificateSigningRequest {
    let mut own = certificate("own", &format!("system:bootstrap:{}", token_id(machine)));
    own.spec.request = k8s_openapi::ByteString(include_str!("own.csr").as_bytes().to_vec());
    own
}

fn starting(test: Option<&str>) -> Node {
    let mut node = ready_node();
    node.spec = serde_json::from_value(json!({
        "taints": [{"key": "kept", "effect": "NoSchedule"}, {"key": "gpu.warp.dev/starting", "effect": "NoSchedule"}],
    }))
    .expect("a spec");
    let said = test.map(|said| [("gpu.warp.dev/gpu-test".to_owned(), said.to_owned())].into());
    node.metadata.annotations = said;
    node
}

#[test]
fn a_node_takes_work_only_when_its_gpus_were_tested() {
    let it = bought();
    let running = machine(State::Running);
    let with_node = |node| with(sight(9, Some(&running)), Some(node), false);
    let waits = plan(&it, &with_node(starting(None)), at(9));
    assert_eq!(written(&waits).phase, RequestPhase::Joining);
    let passed = plan(&it, &with_node(starting(Some("passed"))), at(9));
    let patch = passed.actions.iter().find_map(|action| match action {
        Action::Patch { patch, .. } => patch.pointer("/spec/taints").cloned(),
        _ => None,
    });
    assert_eq!(
        patch,
        Some(json!([{"key": "kept", "effect": "NoSchedule"}]))
    );
    let broken = plan(
        &it,
        &with_node(starting(Some("failed: 3 of 8 GPUs answer"))),
        at(9),
    );
    let attempt = &written(&broken).attempts[0];
    assert_eq!(attempt.ending.as_deref(), Some("GpuTestFailed"));
    assert_eq!(
        attempt.reason.as_deref(),
        Some("failed: 3 of 8 GPUs answer")
    );
}

#[test]
fn a_machine_rented_for_a_workload_is_closed_to_others_once_its_gpus_show() {
    let mut it = bought();
    it.metadata.owner_references = Some(vec![
        serde_json::from_value(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "name": "w", "uid": "w1",
            "controller": true,
        }))
        .expect("an owner"),
    ]);
    let running = machine(State::Running);
    let put = |node: Node| {
        let pass = plan(
            &it,
            &with(sight(9, Some(&running)), Some(node), false),
            at(9),
        );
        let mut patches = pass.actions.iter().filter_map(|action| match action {
            Action::Patch { patch, .. } => patch.pointer("/spec/taints").cloned(),
            _ => None,
        });
        patches.next()
    };
    let kept = json!({"key": "kept", "effect": "NoSchedule"});
    let rented = json!({"key": "gpu.warp.dev/rented-for", "effect": "NoSchedule"});
    // What makes its GPUs known is a pod of somebody else.
    assert_eq!(put(starting(Some("passed"))), Some(json!([kept])));
    let mut shows = starting(Some("passed"));
    shows.spec.get_or_insert_default().taints =
        Some(vec![serde_json::from_value(kept.clone()).expect("a taint")]);
    let status = shows.status.get_or_insert_default();
    status.allocatable = Some(
        [(
            "nvidia.com/gpu".to_owned(),
            serde_json::from_value(json!("1")).expect("a count"),
        )]
        .into(),
    );
    assert_eq!(put(shows.clone()), Some(json!([kept, rented])));
    let taints = &mut shows.spec.get_or_insert_default().taints;
    taints
        .get_or_insert_default()
        .push(serde_json::from_value(rented).expect("a taint"));
    assert_eq!(put(shows), None, "once is enough");
}

#[test]
fn an_attempt_ends_only_when_its_token_is_gone() {
    let mut it = bought();
    let refused = Answer::Refused {
        class: Class::NoCapacity,
        words: "sold out".to_owned(),
    };
    let before = with(sight(9, Some(&refused)), None, false);
    let pass = plan(&it, &before, at(9));
    assert!(calls(&pass).contains(&&What::Remove), "{pass:?}");
    assert!(written(&pass).attempts[0].outcome.is_none());
    it.status = Some(written(&pass));
    let mut after = before;
    after.open[0].token = Sight {
        asked: Some(at(10)),
        last_remove: Some(at(10)),
        ..Sight::default()
    };
    let attempt = &written(&plan(&it, &after, at(11))).attempts[0];
    assert!(
        attempt.token_revoked_at.is_some() && attempt.outcome.is_some(),
        "{attempt:?}"
    );
}

#[test]
fn what_a_provider_does_not_allow_or_cannot_do_buys_nothing() {
    for (spec, provider_spec, said) in [
        (
            json!({"userData": "#!/bin/sh"}),
            json!({}),
            "lets no request set userData",
        ),
        (
            json!({"image": "mine"}),
            json!({}),
            "lets no request set image",
        ),
        (
            json!({"bootstrap": {"type": "k3s"}}),
            json!({}),
            "has no virtual machines",
        ),
        (
            json!({"bootstrap": {"type": "k3s"}}),
            json!({"type": "lambda"}),
            "set its spec.bootstrap.server",
        ),
        (
            json!({}),
            json!({"type": "lambda", "bootstrap": {"type": "k3s", "server": SERVER, "powerOffAfter": "soon"}}),
            "powerOffAfter is not a time",
        ),
    ] {
        let offers = [offer("H100-80GB", 1, "us-east-1", "3.00", None)];
        let market = vec![provider("cloud", &provider_spec, &offers)];
        let status = written(&plan(&request(&spec), &seen(market), at(0)));
        assert!(status.attempts.is_empty());
        let (reason, message) = reason(&status);
        assert!(
            reason == "NotAllowed" && message.contains(said),
            "{reason}: {message}"
        );
    }
}
