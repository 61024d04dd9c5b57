//! ResourceQuota and LimitRange.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use serde_json::{Value, json};

use super::checks::{Errors, amount, is_standard_container_resource, named, overcommit_allowed};
use super::fields::{at, entries, list, text};
use super::{
    Described, Quantity, columns, describe, empty_status, keep_status, metadata, resources, typed,
};
use crate::registry::resource::{Strategy, Subresource};
use crate::schema::{FieldError, Path};

pub(super) fn descriptors() -> Vec<Described> {
    vec![quota(), limit_range()]
}

fn quota() -> Described {
    describe("", "v1", "ResourceQuota", "resourcequotas")
        .short("quota")
        .subresources([Subresource::Status])
        .columns(vec![
            columns::name(),
            columns::with("Request", "string", 0, |o, _| json!(usage(o, false))),
            columns::with("Limit", "string", 0, |o, _| json!(usage(o, true))),
            columns::age(),
        ])
        .strategy(Strategy {
            default: |object| typed::round_trip("core.ResourceQuota", object),
            return_deleted: true,
            prepare_create: empty_status,
            prepare_update: keep_status,
            validate: validate_quota,
            validate_update: |new, old| {
                let mut errors = Vec::new();
                if at(new, "spec.scopes") != at(old, "spec.scopes") {
                    let value = at(new, "spec.scopes").cloned().unwrap_or(Value::Null);
                    let path = Path::new("spec.scopes");
                    errors.push(FieldError::invalid(&path, value, "field is immutable"));
                }
                errors
            },
            ..Strategy::default()
        })
}

fn usage(quota: &Value, limits: bool) -> String {
    let hard: BTreeMap<&String, &Value> = entries(quota, "status.hard").collect();
    let used = resources::amounts(at(quota, "status.used"));
    let parts: Vec<String> = hard
        .into_iter()
        .filter(|(name, _)| name.starts_with("limits.") == limits)
        .map(|(name, hard)| {
            let used = used.get(name).copied().unwrap_or(Quantity::ZERO);
            let hard = Quantity::of(hard).unwrap_or(Quantity::ZERO);
            format!("{name}: {used}/{hard}")
        })
        .collect();
    parts.join(", ")
}

const QUOTA_RESOURCES: [&str; 19] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "persistentvolumeclaims",
    "configmaps",
    "services.nodeports",
    "services.loadbalancers",
];
const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
];

/// Whether a quota may name a resource without a domain.
fn is_quota_resource(name: &str) -> bool {
    QUOTA_RESOURCES.contains(&name)
        || name.starts_with("hugepages-")
        || name.starts_with("requests.hugepages-")
}

fn validate_quota(object: &Value) -> Errors {
    let mut errors = Vec::new();
    let spec = Path::new("spec");
    for (name, value) in entries(object, "spec.hard") {
        let path = spec.child("hard").key(name);
        let problems = metadata::qualified_name(name);
        if !problems.is_empty() {
            named(problems, name, &path, &mut errors);
        } else if !name.contains('/') && !is_quota_resource(name) {
            let detail = "must be a standard resource type or fully qualified";
            errors.push(FieldError::invalid(&path, name.as_str(), detail));
            let detail = "must be a standard resource for quota";
            errors.push(FieldError::invalid(&path, name.as_str(), detail));
        }
        amount(name, value, &path, &mut errors);
    }
    scopes(object, &spec, &mut errors);
    scope_selector(object, &spec, &mut errors);
    errors
}

fn scopes(object: &Value, spec: &Path, errors: &mut Errors) {
    let scopes: Vec<&str> = list(object, "spec.scopes")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let path = spec.child("scopes");
    for scope in &scopes {
        if !SCOPES.contains(scope) {
            errors.push(FieldError::invalid(
                &path,
                json!(scopes),
                "unsupported scope",
            ));
        }
        for (name, _) in entries(object, "spec.hard") {
            if is_quota_resource(name) && !scope_fits(scope, name) {
                let detail = "unsupported scope applied to resource";
                errors.push(FieldError::invalid(&path, json!(scopes), detail));
            }
        }
    }
    for pair in [
        ["BestEffort", "NotBestEffort"],
        ["Terminating", "NotTerminating"],
    ] {
        if pair.iter().all(|scope| scopes.contains(scope)) {
            errors.push(FieldError::invalid(
                &path,
                json!(scopes),
                "conflicting scopes",
            ));
        }
    }
}

/// Scopes choose pods, so they only go with what pods use.
fn scope_fits(scope: &str, resource: &str) -> bool {
    match scope {
        "BestEffort" => resource == "pods",
        "VolumeAttributesClass" => {
            matches!(resource, "persistentvolumeclaims" | "requests.storage")
        }
        _ => {
            resource == "pods"
                || matches!(
                    resource,
                    "cpu"
                        | "memory"
                        | "ephemeral-storage"
                        | "requests.cpu"
                        | "requests.memory"
                        | "requests.ephemeral-storage"
                        | "limits.cpu"
                        | "limits.memory"
                        | "limits.ephemeral-storage"
                )
        }
    }
}

fn scope_selector(object: &Value, spec: &Path, errors: &mut Errors) {
    let path = spec.child("scopeSelector").child("matchExpressions");
    for (index, expression) in list(object, "spec.scopeSelector.matchExpressions")
        .iter()
        .enumerate()
    {
        let path = path.index(index);
        let scope = text(expression, "scopeName");
        if !SCOPES.contains(&scope) {
            let detail = "unsupported scope";
            errors.push(FieldError::invalid(&path.child("scopeName"), scope, detail));
        }
        let values = list(expression, "values");
        match text(expression, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                let detail = "must be at least one value when `operator` is 'In' or 'NotIn' for \
                              scope selector";
                errors.push(FieldError::required(&path.child("values"), detail));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for \
                              scope selector";
                let value = Value::Array(values.to_vec());
                errors.push(FieldError::invalid(&path.child("values"), value, detail));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                let detail = "not a valid selector operator";
                errors.push(FieldError::invalid(&path.child("operator"), other, detail));
            }
        }
    }
}

fn limit_range() -> Described {
    describe("", "v1", "LimitRange", "limitranges")
        .short("limits")
        .columns(vec![columns::name(), columns::created_at()])
        .strategy(Strategy {
            default: |object| typed::round_trip("core.LimitRange", object),
            validate: validate_limit_range,
            ..Strategy::default()
        })
}

fn validate_limit_range(object: &Value) -> Errors {
    let mut errors = Vec::new();
    let mut kinds = HashSet::new();
    for (index, limit) in list(object, "spec.limits").iter().enumerate() {
        let path = Path::new("spec.limits").index(index);
        let kind = text(limit, "type");
        let known = ["Container", "Pod", "PersistentVolumeClaim"];
        if !known.contains(&kind) && !kind.contains('/') {
            let detail = "must be a standard limit type or fully qualified";
            errors.push(FieldError::invalid(&path.child("type"), kind, detail));
        }
        if !kinds.insert(kind) {
            errors.push(FieldError::duplicate(&path.child("type"), kind));
        }
        limit_item(limit, kind, &path, &mut errors);
    }
    errors
}

fn limit_item(limit: &Value, kind: &str, path: &Path, errors: &mut Errors) {
    let of = |name: &str| resources::amounts(at(limit, name));
    let (min, max) = (of("min"), of("max"));
    let (mut default, mut request) = (of("default"), of("defaultRequest"));
    let ratio = of("maxLimitRequestRatio");
    if kind == "Pod" {
        for (name, amounts) in [("default", &mut default), ("defaultRequest", &mut request)] {
            if !amounts.is_empty() {
                let detail = "may not be specified when `type` is 'Pod'";
                errors.push(FieldError::forbidden(&path.child(name), detail));
                amounts.clear();
            }
        }
    }
    if kind == "PersistentVolumeClaim"
        && !min.contains_key("storage")
        && !max.contains_key("storage")
    {
        let detail =
            "either minimum or maximum storage value is required, but neither was provided";
        errors.push(FieldError::required(&path.child("limits"), detail));
    }
    let all = [
        ("max", &max),
        ("min", &min),
        ("default", &default),
        ("defaultRequest", &request),
    ];
    let mut names = BTreeSet::new();
    for (member, amounts) in all.into_iter().chain([("maxLimitRequestRatio", &ratio)]) {
        for name in amounts.keys() {
            let path = path.child(member).key(name);
            let fits = match kind {
                "Pod" | "Container" => name.contains('/') || is_standard_container_resource(name),
                _ => true,
            };
            if !fits {
                let detail = "must be a standard resource for containers";
                errors.push(FieldError::invalid(&path, name.as_str(), detail));
            }
            names.insert(name);
        }
    }
    for name in names {
        let at = |member: &str| path.child(member).key(name);
        let mut ordered = |low: Option<&Quantity>,
                           high: Option<&Quantity>,
                           member: &str,
                           shown: bool,
                           words: (&str, &str)| {
            if let (Some(low), Some(high)) = (low, high)
                && low > high
            {
                let detail = format!(
                    "{} value {low} is greater than {} value {high}",
                    words.0, words.1
                );
                let value = if shown { low } else { high };
                errors.push(FieldError::invalid(&at(member), value.canonical(), detail));
            }
        };
        let (min, max) = (min.get(name), max.get(name));
        let (default, request) = (default.get(name), request.get(name));
        ordered(min, max, "min", true, ("min", "max"));
        ordered(
            min,
            request,
            "defaultRequest",
            false,
            ("min", "default request"),
        );
        ordered(
            request,
            max,
            "defaultRequest",
            true,
            ("default request", "max"),
        );
        ordered(
            request,
            default,
            "defaultRequest",
            true,
            ("default request", "default limit"),
        );
        ordered(min, default, "default", true, ("min", "default"));
        ordered(default, max, "default", false, ("default", "max"));
        if let Some(ratio) = ratio
            .get(name)
            .filter(|ratio| **ratio < Quantity::from_whole(1))
        {
            let detail = format!("ratio {ratio} is less than 1");
            errors.push(FieldError::invalid(
                &at("maxLimitRequestRatio"),
                ratio.canonical(),
                detail,
            ));
        }
        if let (Some(default), Some(request)) = (default, request)
            && !overcommit_allowed(name)
            && default != request
        {
            let detail = format!(
                "default value {default} must equal to defaultRequest value {request} in {name}"
            );
            errors.push(FieldError::invalid(
                &at("defaultRequest"),
                request.canonical(),
                detail,
            ));
        }
    }
}
