//! Where a workload stands by the PriorityClass it names.

use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde_json::{Value, json};
use warp_api::tenant::TenantDefaults;
use warp_api::workload::Priority;
use warp_api::{Phase, reason};

use super::super::Seen;
use super::super::objects::shell;
use super::super::rank::{Class, Given, Rank, class_name, rank};
use super::reading::{message, planned, said};
use super::workload;

fn class(value: i32, policy: Option<&str>) -> Class {
    Class::from(&PriorityClass {
        value,
        preemption_policy: policy.map(str::to_owned),
        ..Default::default()
    })
}

fn ranked(spec: Value, class: Option<Class>) -> Result<(Priority, bool), String> {
    let given = Given {
        class,
        ..Given::default()
    };
    let ranked = rank(&workload(spec, json!(null)), given);
    ranked.map(|Rank { priority, patient }| (priority, patient))
}

#[test]
fn the_value_of_its_class_decides_and_never_means_patience() {
    let named = || json!({"priorityClassName": "urgent"});
    for (value, priority) in [
        (1000, Priority::High),
        (0, Priority::Normal),
        (-5, Priority::Low),
    ] {
        let found = ranked(named(), Some(class(value, None)));
        assert_eq!(found, Ok((priority, false)));
    }
    let never = ranked(named(), Some(class(7, Some("Never"))));
    assert_eq!(never, Ok((Priority::High, true)));
    assert_eq!(
        ranked(json!({"priority": "low"}), None),
        Ok((Priority::Low, false))
    );
}

#[test]
fn the_class_of_a_template_counts_where_nothing_else_is_said() {
    let template = json!({"spec": {"priorityClassName": "urgent", "containers": [{"name": "c"}]}});
    let of = |spec: Value| {
        let mut it = workload(spec, json!(null));
        it.spec.image = None;
        it.spec.pod_template = serde_json::from_value(template.clone()).unwrap();
        class_name(&it).map(str::to_owned)
    };
    assert_eq!(of(json!({})).as_deref(), Some("urgent"));
    assert_eq!(of(json!({"priority": "low"})), None, "its own word");
    assert_eq!(
        of(json!({"priorityClassName": "other"})).as_deref(),
        Some("other")
    );
}

#[test]
fn its_pods_get_the_class_and_one_that_is_missing_is_said() {
    let it = workload(json!({"priorityClassName": "urgent"}), json!(null));
    let shell = shell(&it, &warp_core::gpu::Catalogue::default()).unwrap();
    let pod = shell.template.spec.unwrap();
    assert_eq!(pod.priority_class_name.as_deref(), Some("urgent"));
    let plan = planned(&it, &Seen::default());
    assert_eq!(
        said(&plan),
        (Phase::Pending, reason::INVALID_SPEC.to_owned(), false)
    );
    assert!(message(&plan).contains("create it"), "{}", message(&plan));
    let there = Seen {
        given: Given {
            class: Some(class(1, None)),
            ..Given::default()
        },
        ..Seen::default()
    };
    assert!(planned(&it, &there).place, "it asks for a place");
}

#[test]
fn a_tenant_decides_for_work_that_says_no_priority() {
    let given = Given {
        class: Some(class(5, None)),
        defaults: TenantDefaults {
            priority: Some(Priority::Low),
            ..TenantDefaults::default()
        },
    };
    let found = |spec: Value| {
        let it = workload(spec, json!(null));
        let seen = Seen {
            given,
            ..Seen::default()
        };
        let status = planned(&it, &seen).status.expect("a status");
        (status.priority, status.preemptible)
    };
    assert_eq!(found(json!({})), (Some(Priority::Low), Some(true)));
    assert_eq!(
        found(json!({"preemptible": false})),
        (Some(Priority::Low), Some(false))
    );
    for (spec, own) in [
        (json!({"priority": "normal"}), Priority::Normal),
        (json!({"priority": "high"}), Priority::High),
        (json!({"priorityClassName": "urgent"}), Priority::High),
    ] {
        assert_eq!(found(spec), (Some(own), Some(false)));
    }
}

#[test]
fn what_its_tenant_says_of_evictions_is_told() {
    let mut given = Given::default();
    given.defaults.preemptible = Some(true);
    let it = workload(json!({}), json!(null));
    assert!(given.preemptible(&it, Priority::High));
    assert!(!Given::default().preemptible(&it, Priority::Normal));
}
