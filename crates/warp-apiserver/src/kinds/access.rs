//! Access: RBAC objects, autoscalers (stored only), and the questions about identity and rights.

use serde_json::{Value, json};

use super::checks::{Errors, immutable, named, required};
use super::fields::{at, list, number, text};
use super::{Described, columns, describe, empty_status, keep_status, metadata, typed};
use crate::registry::name;
use crate::registry::resource::{Column, Review, Strategy, Subresource};
use crate::schema::{FieldError, Path};

const RBAC: &str = "rbac.authorization.k8s.io";

pub(super) fn descriptors() -> Vec<Described> {
    vec![
        role("Role", "roles", true),
        role("ClusterRole", "clusterroles", false),
        binding("RoleBinding", "rolebindings", true),
        binding("ClusterRoleBinding", "clusterrolebindings", false),
        autoscaler(),
        review(
            "authentication.k8s.io",
            "TokenReview",
            "tokenreviews",
            Review::Token,
        ),
        review(
            "authentication.k8s.io",
            "SelfSubjectReview",
            "selfsubjectreviews",
            Review::SelfSubject,
        ),
        review(
            "authorization.k8s.io",
            "SelfSubjectAccessReview",
            "selfsubjectaccessreviews",
            Review::SelfSubjectAccess,
        ),
        review(
            "authorization.k8s.io",
            "SelfSubjectRulesReview",
            "selfsubjectrulesreviews",
            Review::SelfSubjectRules,
        ),
        review(
            "authorization.k8s.io",
            "SubjectAccessReview",
            "subjectaccessreviews",
            Review::SubjectAccess,
        ),
        describe(
            "authorization.k8s.io",
            "v1",
            "LocalSubjectAccessReview",
            "localsubjectaccessreviews",
        )
        .review(Review::LocalSubjectAccess),
    ]
}

fn review(group: &str, kind: &str, plural: &str, review: Review) -> Described {
    describe(group, "v1", kind, plural).cluster().review(review)
}

fn role(kind: &str, plural: &str, namespaced: bool) -> Described {
    let described = describe(RBAC, "v1", kind, plural)
        .columns(vec![columns::name(), columns::created_at()])
        .strategy(Strategy {
            default: if namespaced {
                |object| typed::round_trip("rbac.Role", object)
            } else {
                |object| typed::round_trip("rbac.ClusterRole", object)
            },
            validate: if namespaced {
                |object| rules(object, true)
            } else {
                |object| {
                    let mut errors = rules(object, false);
                    errors.extend(aggregation(object));
                    errors
                }
            },
            validate_name: name::path_segment,
            ..Strategy::default()
        });
    if namespaced {
        described
    } else {
        described.cluster()
    }
}

fn rules(object: &Value, namespaced: bool) -> Errors {
    let mut errors = Vec::new();
    for (index, rule) in list(object, "rules").iter().enumerate() {
        let path = Path::new("rules").index(index);
        if list(rule, "verbs").is_empty() {
            let detail = "verbs must contain at least one value";
            errors.push(FieldError::required(&path.child("verbs"), detail));
        }
        if !list(rule, "nonResourceURLs").is_empty() {
            if namespaced {
                let value = rule.get("nonResourceURLs").cloned().unwrap_or_default();
                let detail = "namespaced rules cannot apply to non-resource URLs";
                errors.push(FieldError::invalid(
                    &path.child("nonResourceURLs"),
                    value,
                    detail,
                ));
            }
            continue;
        }
        if list(rule, "apiGroups").is_empty() {
            let detail = "resource rules must supply at least one api group";
            errors.push(FieldError::required(&path.child("apiGroups"), detail));
        }
        if list(rule, "resources").is_empty() {
            let detail = "resource rules must supply at least one resource";
            errors.push(FieldError::required(&path.child("resources"), detail));
        }
    }
    errors
}

fn aggregation(object: &Value) -> Errors {
    let mut errors = Vec::new();
    if at(object, "aggregationRule").is_none_or(Value::is_null) {
        return errors;
    }
    let path = Path::new("aggregationRule").child("clusterRoleSelectors");
    let selectors = list(object, "aggregationRule.clusterRoleSelectors");
    if selectors.is_empty() {
        let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        errors.push(FieldError::required(&path, detail));
    }
    for (index, selector) in selectors.iter().enumerate() {
        metadata::label_selector(selector, &path.index(index), &mut errors);
    }
    errors
}

fn binding(kind: &str, plural: &str, namespaced: bool) -> Described {
    let described = describe(RBAC, "v1", kind, plural)
        .columns(binding_columns())
        .strategy(Strategy {
            default: if namespaced {
                |object| typed::round_trip("rbac.RoleBinding", object)
            } else {
                |object| typed::round_trip("rbac.ClusterRoleBinding", object)
            },
            validate: if namespaced {
                |object| validate_binding(object, true)
            } else {
                |object| validate_binding(object, false)
            },
            validate_update: |new, old| {
                let mut errors = Vec::new();
                if at(new, "roleRef") != at(old, "roleRef") {
                    let part = |name: &str| text(new, &format!("roleRef.{name}")).to_owned();
                    let value = json!({
                        "APIGroup": part("apiGroup"), "Kind": part("kind"), "Name": part("name"),
                    });
                    let detail = "cannot change roleRef";
                    let path = Path::new("roleRef");
                    errors.push(FieldError::invalid(&path, value, detail).as_struct());
                }
                errors
            },
            validate_name: name::path_segment,
            ..Strategy::default()
        });
    if namespaced {
        described
    } else {
        described.cluster()
    }
}

fn subjects(object: &Value, kind: &str) -> String {
    list(object, "subjects")
        .iter()
        .filter(|subject| text(subject, "kind") == kind)
        .map(|subject| match (kind, text(subject, "namespace")) {
            ("ServiceAccount", namespace) if !namespace.is_empty() => {
                format!("{namespace}/{}", text(subject, "name"))
            }
            _ => text(subject, "name").to_owned(),
        })
        .collect::<Vec<_>>()
        .join(", ")
}

fn binding_columns() -> Vec<Column> {
    let with = columns::with;
    vec![
        columns::name(),
        with("Role", "string", 0, |o, _| {
            json!(format!(
                "{}/{}",
                text(o, "roleRef.kind"),
                text(o, "roleRef.name")
            ))
        }),
        columns::age(),
        with("Users", "string", 1, |o, _| json!(subjects(o, "User"))),
        with("Groups", "string", 1, |o, _| json!(subjects(o, "Group"))),
        with("ServiceAccounts", "string", 1, |o, _| {
            json!(subjects(o, "ServiceAccount"))
        }),
    ]
}

fn validate_binding(object: &Value, namespaced: bool) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("roleRef");
    let group = text(object, "roleRef.apiGroup");
    if group != RBAC {
        errors.push(FieldError::not_supported(
            &path.child("apiGroup"),
            group,
            &[RBAC],
        ));
    }
    let kinds: &[&str] = if namespaced {
        &["Role", "ClusterRole"]
    } else {
        &["ClusterRole"]
    };
    let kind = text(object, "roleRef.kind");
    if !kinds.contains(&kind) {
        errors.push(FieldError::not_supported(&path.child("kind"), kind, kinds));
    }
    let name = text(object, "roleRef.name");
    required(name, &path.child("name"), &mut errors);
    named(
        name::path_segment(name),
        name,
        &path.child("name"),
        &mut errors,
    );
    for (index, subject) in list(object, "subjects").iter().enumerate() {
        let path = Path::new("subjects").index(index);
        let name = text(subject, "name");
        required(name, &path.child("name"), &mut errors);
        match text(subject, "kind") {
            "ServiceAccount" => {
                if !name.is_empty() {
                    named(
                        metadata::subdomain(name),
                        name,
                        &path.child("name"),
                        &mut errors,
                    );
                }
                if !namespaced {
                    required(
                        text(subject, "namespace"),
                        &path.child("namespace"),
                        &mut errors,
                    );
                }
            }
            "User" | "Group" => {}
            other => {
                let kinds = ["ServiceAccount", "User", "Group"];
                errors.push(FieldError::not_supported(
                    &path.child("kind"),
                    other,
                    &kinds,
                ));
            }
        }
    }
    errors
}

fn autoscaler() -> Described {
    let with = columns::with;
    describe(
        "autoscaling",
        "v2",
        "HorizontalPodAutoscaler",
        "horizontalpodautoscalers",
    )
    .short("hpa")
    .category("all")
    .stored_only()
    .subresources([Subresource::Status])
    .columns(vec![
        columns::name(),
        with("Reference", "string", 0, |o, _| {
            let target = "spec.scaleTargetRef";
            json!(format!(
                "{}/{}",
                text(o, &format!("{target}.kind")),
                text(o, &format!("{target}.name"))
            ))
        }),
        with("Targets", "string", 0, |o, _| json!(targets(o))),
        with("MinPods", "string", 0, |o, _| {
            json!(number(o, "spec.minReplicas").map_or("<unset>".to_owned(), |n| n.to_string()))
        }),
        with("MaxPods", "integer", 0, |o, _| {
            json!(number(o, "spec.maxReplicas").unwrap_or(0))
        }),
        with("Replicas", "integer", 0, |o, _| {
            json!(number(o, "status.currentReplicas").unwrap_or(0))
        }),
        columns::age(),
    ])
    .strategy(Strategy {
        default: |object| typed::round_trip("autoscaling.HorizontalPodAutoscaler", object),
        prepare_create: |object| {
            empty_status(object);
            typed::round_trip("autoscaling.HorizontalPodAutoscaler", object);
        },
        prepare_update: keep_status,
        validate: |object| {
            let mut errors = Vec::new();
            let path = Path::new("spec");
            let (least, most) = (
                number(object, "spec.minReplicas").unwrap_or(1),
                number(object, "spec.maxReplicas").unwrap_or(0),
            );
            if least < 1 {
                let detail = "must be greater than or equal to 1";
                errors.push(FieldError::invalid(
                    &path.child("minReplicas"),
                    least,
                    detail,
                ));
            }
            if most < 1 {
                let detail = "must be greater than 0";
                errors.push(FieldError::invalid(
                    &path.child("maxReplicas"),
                    most,
                    detail,
                ));
            }
            if most < least {
                let detail = "must be greater than or equal to `minReplicas`";
                errors.push(FieldError::invalid(
                    &path.child("maxReplicas"),
                    most,
                    detail,
                ));
            }
            for name in ["kind", "name"] {
                let value = text(object, &format!("spec.scaleTargetRef.{name}"));
                required(
                    value,
                    &path.child("scaleTargetRef").child(name),
                    &mut errors,
                );
            }
            let version = text(object, "spec.scaleTargetRef.apiVersion");
            if !version.contains('/') && version != "v1" {
                let path = path.child("scaleTargetRef").child("apiVersion");
                let detail = "apiVersion must specify API group";
                errors.push(FieldError::invalid(&path, version, detail));
            }
            errors
        },
        validate_update: |new, old| {
            let mut errors = Vec::new();
            immutable(new, old, "metadata.uid", &mut errors);
            errors
        },
        ..Strategy::default()
    })
}

fn targets(object: &Value) -> String {
    let parts: Vec<String> = list(object, "spec.metrics")
        .iter()
        .filter(|metric| text(metric, "type") == "Resource")
        .map(|metric| {
            let name = text(metric, "resource.name");
            match number(metric, "resource.target.averageUtilization") {
                Some(percent) => format!("{name}: <unknown>/{percent}%"),
                None => format!(
                    "{name}: <unknown>/{}",
                    text(metric, "resource.target.averageValue")
                ),
            }
        })
        .collect();
    if parts.is_empty() {
        "<none>".to_owned()
    } else {
        parts.join(", ")
    }
}
