//! What work gets from its tenant where it does not say.

use std::sync::Arc;

use serde_json::json;
use warp_api::Tenant;
use warp_api::workload::Priority;

use super::super::defaults::by_namespace;
use super::{namespace, tenant};

fn saying(name: &str, namespaces: &serde_json::Value, priority: Option<Priority>) -> Arc<Tenant> {
    let mut made = tenant(name, namespaces);
    made.spec.defaults = priority.map(|priority| warp_api::tenant::TenantDefaults {
        priority: Some(priority),
        ..Default::default()
    });
    Arc::new(made)
}

#[test]
fn a_namespace_has_what_its_only_tenant_says() {
    let spaces = [
        namespace("a", &json!({"team": "red"})),
        namespace("b", &json!({"team": "red"})),
        namespace("c", &json!({})),
    ];
    let red = json!({"selector": {"matchLabels": {"team": "red"}}});
    let mut gone = (*saying("gone", &json!({"names": ["a"]}), None)).clone();
    gone.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        super::now(),
    ));
    let tenants = [
        saying("red", &red, Some(Priority::Low)),
        saying("other", &json!({"names": ["b"]}), None),
        Arc::new(gone),
    ];
    let found = by_namespace(&tenants, &spaces);
    let of = |name: &str| found.get(name).and_then(|owner| owner.defaults.priority);
    assert_eq!(of("a"), Some(Priority::Low));
    assert_eq!(of("b"), None, "two claim it");
    assert_eq!(of("c"), None, "nobody's");
}
