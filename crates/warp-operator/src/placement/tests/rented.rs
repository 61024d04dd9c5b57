//! A node that was rented for one workload is not anybody's before that.

use super::*;

fn rented_for(first: &Arc<GPUWorkload>) -> Rented {
    let request = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest",
        "metadata": {"name": "r", "namespace": "default", "ownerReferences": [{
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "name": "first",
            "uid": first.metadata.uid, "controller": true,
        }]},
        "spec": {"gpuType": "H100"},
        "status": {"attempts": [{
            "number": 1, "machine": "rented", "provider": "fake", "gpu": "H100-80GB", "gpus": 8, "region": "r",
            "instanceType": "t", "price": "2.90", "priceLimit": "3", "intendedAt": "2026-11-15T12:00:00Z",
        }]},
    });
    let request = Arc::new(serde_json::from_value(request).unwrap());
    let rents = |request: &_| crate::workload::rents(request, |_| Some(Arc::clone(first)));
    Rented::new(&[request], rents, &[], &[])
}

#[test]
fn others_are_kept_off_and_no_room_is_kept_for_them_there() {
    let first = workload("first", json!({"gpuCount": 8}));
    let other = workload("other", json!({"gpuCount": 1}));
    let nodes = [node("rented", 8, json!({}))];
    let decided = |policy| {
        let mut ledger = ledger::build(&nodes, &[], &[]);
        let claimants = [claimant(&other), claimant(&first)];
        let line = Line::new(policy, now(), Endings::new, Vec::new());
        let (quotas, tenancy, settings) =
            (Quotas::default(), Tenancy::default(), Settings::default());
        let mut desk =
            Desk::new(&claimants, quotas, tenancy, line, &settings).keeping(rented_for(&first));
        let decisions = claimants
            .each_ref()
            .map(|one| desk.decide(&mut ledger, &**one));
        (decisions, desk.line().held().len())
    };
    for policy in [QueuePolicy::Easy, QueuePolicy::Fifo, QueuePolicy::SkipAhead] {
        let (decisions, held) = decided(policy);
        assert_eq!(chosen(&decisions[0]), None, "{policy:?}");
        assert_eq!(
            chosen(&decisions[1]).as_deref(),
            Some("rented"),
            "{policy:?}"
        );
        assert_eq!(held, 0, "{policy:?}");
    }
}
