//! What to do about a gang that fits nowhere, and about what a tenant does not let its work have.

use kube::ResourceExt;
use serde_json::{Value, json};
use warp_api::workload::{Priority, run_seconds};
use warp_api::{GPUWorkload, Tenant, reason};
use warp_core::gpu::Vendor;
use warp_operator::foresight::{GangChanges, Look};

use super::Step;
use crate::cluster::quoted;

/// A step that changes the workload.
fn patch(found: &GPUWorkload, flags: &str, what: String, patch: &Value) -> Step {
    let name = found.name_any();
    let patch = quoted(&patch.to_string());
    Step::new(what, format!("warp patch gpuw/{name}{flags} -p {patch}"))
}

/// Changes that were tried and let a gang start now.
pub(super) fn gang(found: &GPUWorkload, changes: GangChanges, flags: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    if changes.apart {
        steps.push(patch(
            found,
            flags,
            "let its members be anywhere".to_owned(),
            &json!({"spec": {"topology": null}}),
        ));
    }
    if let Some(members) = changes.members {
        steps.push(patch(
            found,
            flags,
            format!(
                "start with {members} of its {} members",
                found.spec.members()
            ),
            &json!({"spec": {"minReplicas": null, "replicas": members}}),
        ));
    }
    steps
}

/// What helps where its tenant is in the way.
pub(super) fn tenant(
    found: &GPUWorkload,
    said: &str,
    tenant: Option<&Tenant>,
    flags: &str,
) -> Vec<Step> {
    let list = |what: &str| Step::new(what, format!("warp tenant list{flags}"));
    let Some(tenant) = tenant else {
        return vec![list("see whose namespace it is")];
    };
    let name = tenant.name_any();
    match said {
        reason::TENANT_SUSPENDED => vec![Step::new(
            format!("let tenant {name} go on"),
            format!("warp tenant resume {name}{flags}"),
        )],
        reason::TENANT_QUOTA_EXCEEDED => vec![list(&format!(
            "see what tenant {name} has and uses; it goes on when some of it is given back"
        ))],
        _ => {
            let mut steps = forbidden(found, tenant, flags);
            steps.push(list(&format!("see what tenant {name} may have")));
            steps
        }
    }
}

/// Changes to what a tenant allows.
fn forbidden(found: &GPUWorkload, tenant: &Tenant, flags: &str) -> Vec<Step> {
    let (spec, own) = (&tenant.spec, &found.spec);
    let mut steps = Vec::new();
    let status = found.status.as_ref();
    let priority = own
        .priority
        .or_else(|| status?.priority)
        .unwrap_or_default();
    if let Some(may) = spec
        .priorities
        .first()
        .filter(|_| !spec.priorities.contains(&priority))
    {
        let word = match may {
            Priority::Low => "low",
            Priority::Normal => "normal",
            Priority::High => "high",
        };
        let change = json!({"spec": {"priority": word, "priorityClassName": null}});
        steps.push(patch(
            found,
            flags,
            format!("ask for priority {word}"),
            &change,
        ));
    }
    if let Some(longest) = &spec.max_runtime {
        let seconds = |text: &String| run_seconds(text);
        let limit = seconds(longest);
        let runs = own.max_runtime.as_ref().and_then(seconds);
        if limit.is_some_and(|limit| runs.is_none_or(|runs| runs > limit)) {
            let change = json!({"spec": {"maxRuntime": longest}});
            steps.push(patch(
                found,
                flags,
                format!("run for {longest} at most"),
                &change,
            ));
        }
    }
    if let Some(model) = other_model(found, tenant).filter(|_| steps.is_empty()) {
        let change = json!({"spec": {"gpu": {"models": [model]}}});
        steps.push(patch(found, flags, format!("ask for {model}"), &change));
    }
    steps
}

/// A model its tenant may have, where it names none of those. A vendor that is allowed is no model one can ask for.
fn other_model<'a>(found: &GPUWorkload, tenant: &'a Tenant) -> Option<&'a str> {
    let allowed = &tenant.spec.allowed_models;
    let asked = found.spec.gpu.iter().flat_map(|gpu| &gpu.models);
    let is = |one: &str, other: &str| one.eq_ignore_ascii_case(other);
    let mut asked = asked.map(String::as_str);
    if asked.any(|model| allowed.iter().any(|may| is(may, model))) {
        return None;
    }
    let is_vendor = |name: &str| {
        let mut vendors = Vendor::ALL.into_iter();
        vendors.any(|vendor| is(vendor.as_str(), name))
    };
    let mut models = allowed.iter().map(String::as_str);
    models.find(|name| !is_vendor(name))
}

/// Reasons for which a tenant is in the way.
pub(super) fn is_of_tenant(said: &str) -> bool {
    [
        reason::TENANT_SUSPENDED,
        reason::TENANT_QUOTA_EXCEEDED,
        reason::TENANT_FORBIDS,
    ]
    .contains(&said)
}

/// The steps for what was looked at.
pub(super) fn steps(found: &GPUWorkload, said: &str, looked: &Look, flags: &str) -> Vec<Step> {
    if is_of_tenant(said) {
        return tenant(found, said, looked.tenant.as_deref(), flags);
    }
    let mut steps = gang(found, looked.gang, flags);
    if steps.is_empty() && found.spec.is_gang() {
        let what = "no smaller gang would start now: see who is before it and what runs";
        steps.push(Step::new(what, format!("warp queue{flags}")));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gang_of(members: i32) -> GPUWorkload {
        serde_json::from_value(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload", "metadata": {"name": "train"},
            "spec": {"modelName": "m", "gpuCount": 8, "image": "i", "replicas": members},
        }))
        .unwrap()
    }

    fn team(spec: &Value) -> Tenant {
        serde_json::from_value(json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "team"}, "spec": spec,
        }))
        .unwrap()
    }

    fn commands(steps: &[Step]) -> Vec<&str> {
        let each = steps.iter().filter_map(|step| step.command.as_deref());
        each.collect()
    }

    #[test]
    fn a_gang_is_told_what_was_tried_and_fits() {
        let changes = GangChanges {
            members: Some(3),
            apart: true,
        };
        let steps = gang(&gang_of(4), changes, " -n a");
        assert_eq!(steps[1].what, "start with 3 of its 4 members");
        assert_eq!(
            commands(&steps),
            [
                r#"warp patch gpuw/train -n a -p '{"spec":{"topology":null}}'"#,
                r#"warp patch gpuw/train -n a -p '{"spec":{"minReplicas":null,"replicas":3}}'"#,
            ]
        );
    }

    #[test]
    fn what_a_tenant_refuses_has_a_next_step() {
        let found = gang_of(2);
        let limits = team(&json!({"namespaces": {}, "maxRuntime": "8h", "priorities": ["low"]}));
        let steps = tenant(&found, reason::TENANT_FORBIDS, Some(&limits), "");
        assert_eq!(
            commands(&steps),
            [
                r#"warp patch gpuw/train -p '{"spec":{"priority":"low","priorityClassName":null}}'"#,
                r#"warp patch gpuw/train -p '{"spec":{"maxRuntime":"8h"}}'"#,
                "warp tenant list",
            ]
        );
        let models = team(&json!({"namespaces": {}, "allowedModels": ["L4"]}));
        let steps = tenant(&found, reason::TENANT_FORBIDS, Some(&models), "");
        assert_eq!(steps[0].what, "ask for L4");
        // One that can be asked for, and none where the model is not what is refused.
        let several = team(&json!({"namespaces": {}, "allowedModels": ["AMD", "H100", "L4"]}));
        let steps = tenant(&found, reason::TENANT_FORBIDS, Some(&several), "");
        assert_eq!(steps[0].what, "ask for H100");
        let mut named = found.clone();
        named.spec.gpu = serde_json::from_value(json!({"models": ["h100"]})).unwrap();
        let steps = tenant(&named, reason::TENANT_FORBIDS, Some(&several), "");
        assert_eq!(commands(&steps), ["warp tenant list"]);
        let steps = tenant(&found, reason::TENANT_SUSPENDED, Some(&models), "");
        assert_eq!(commands(&steps), ["warp tenant resume team"]);
        let steps = tenant(&found, reason::TENANT_QUOTA_EXCEEDED, None, "");
        assert_eq!(commands(&steps), ["warp tenant list"]);
    }
}
