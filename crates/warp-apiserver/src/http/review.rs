//! Questions to the server: who am I, may I, may they, what may I do, whose token is this.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::options::WriteOptions;
use super::write::{Mode, decode, writer};
use super::{Answer, ResourceCall, selector, token};
use crate::auth::User;
use crate::auth::rbac::{Action, On};
use crate::codec::body;
use crate::codec::negotiate::View;
use crate::codec::status::{Status, Subject};
use crate::patch::managed;
use crate::registry::Review;
use crate::schema::{FieldError, Path};

pub(super) fn answer(request: &ResourceCall<'_>, review: Review) -> Result<Answer, Status> {
    let call = &request.call;
    if matches!(call.form.view, View::Table(_)) {
        return Err(Status::not_acceptable());
    }
    let options = WriteOptions::parse(&call.query, &call.user_agent, "CreateOptions", false)?;
    let mut warnings = Vec::new();
    let sent = body::decode_object(&call.content_type, &call.body)?;
    let mut object = decode(request, sent, options.validation, &mut warnings)?;
    if review == Review::LocalSubjectAccess {
        in_place(request, &mut object)?;
    }
    let now = request.api.clock.now_text();
    let track = |object: &mut Value| {
        managed::update(None, object, &writer(request, &options, &now, Mode::Main));
    };
    match review {
        Review::SelfSubject => {
            object["metadata"]["creationTimestamp"] = now.as_str().into();
            object["status"] = json!({"userInfo": token::user_info(&call.user)});
        }
        Review::Token => {
            track(&mut object);
            object["status"] = token::review(request, &object);
        }
        Review::SelfSubjectAccess => {
            track(&mut object);
            check(request, &object, review)?;
            object["status"] = access(request, &object, &call.user);
        }
        Review::SubjectAccess | Review::LocalSubjectAccess => {
            track(&mut object);
            check(request, &object, review)?;
            let user = asked_about(&object["spec"]);
            object["status"] = access(request, &object, &user);
        }
        Review::SelfSubjectRules => {
            let namespace = object["spec"]["namespace"].as_str().unwrap_or_default();
            if namespace.is_empty() {
                return Err(Status::bad_request("no namespace on request"));
            }
            let status = rules(request, namespace);
            object["metadata"] = json!({});
            object["spec"] = json!({});
            object["status"] = status;
        }
    }
    Ok(Answer {
        warnings,
        ..Answer::value(201, object)
    })
}

/// A question about a namespace is asked in it.
fn in_place(request: &ResourceCall<'_>, object: &mut Value) -> Result<(), Status> {
    let here = request.target.namespace.as_deref().unwrap_or_default();
    let meta = &mut object["metadata"];
    let sent = meta["namespace"].as_str().unwrap_or_default();
    if !sent.is_empty() && sent != here {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    meta["namespace"] = here.into();
    Ok(())
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn texts(list: &Value) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The user a question is about.
fn asked_about(spec: &Value) -> User {
    let extra = spec["extra"].as_object().into_iter().flatten();
    User {
        name: text(spec, "user").to_owned(),
        groups: texts(&spec["groups"]),
        uid: text(spec, "uid").to_owned(),
        extra: extra
            .map(|(name, values)| (name.clone(), texts(values)))
            .collect::<BTreeMap<_, _>>(),
    }
}

/// What cannot be asked.
fn check(request: &ResourceCall<'_>, object: &Value, review: Review) -> Result<(), Status> {
    let spec = &object["spec"];
    let path = Path::new("spec");
    let mut errors = Vec::new();
    let resource = spec["resourceAttributes"].is_object();
    let plain = spec["nonResourceAttributes"].is_object();
    if resource && plain {
        let detail = "cannot be specified in combination with resourceAttributes";
        let path = path.child("nonResourceAttributes");
        let value = spec["nonResourceAttributes"].clone();
        errors.push(FieldError::invalid(&path, value, detail));
    }
    if !resource && !plain {
        let detail = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        let path = path.child("resourceAttributes");
        errors.push(FieldError::invalid(&path, Value::Null, detail));
    }
    if review != Review::SelfSubjectAccess
        && text(spec, "user").is_empty()
        && texts(&spec["groups"]).is_empty()
    {
        let detail = "at least one of user or group must be specified";
        errors.push(FieldError::invalid(&path.child("user"), "", detail));
    }
    for name in ["fieldSelector", "labelSelector"] {
        let path = Path::new("spec.resourceAttributes").child(name);
        check_selector(&spec["resourceAttributes"][name], &path, &mut errors);
    }
    check_metadata(object, review, &mut errors);
    if review == Review::LocalSubjectAccess {
        let asked = text(&spec["resourceAttributes"], "namespace");
        if resource && asked != text(&object["metadata"], "namespace") {
            let path = Path::new("spec.resourceAttributes.namespace");
            errors.push(FieldError::invalid(
                &path,
                asked,
                "must match metadata.namespace",
            ));
        }
        if plain {
            let value = spec["nonResourceAttributes"].clone();
            let path = Path::new("spec.nonResourceAttributes");
            let detail = "disallowed on this kind of request";
            errors.push(FieldError::invalid(&path, value, detail));
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    // A real server does not know the kind here.
    let subject = Subject {
        group: &request.entry.resource.group,
        resource: "",
        kind: "",
        name: "",
    };
    Err(Status::invalid(&subject, &errors))
}

fn check_selector(selector: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    if !selector.is_object() {
        return;
    }
    let raw = text(selector, "rawSelector");
    let listed = selector["requirements"]
        .as_array()
        .is_some_and(|list| !list.is_empty());
    if !raw.is_empty() && listed {
        let detail = "may not specified at the same time as requirements";
        errors.push(FieldError::invalid(&path.child("rawSelector"), raw, detail));
    }
    if raw.is_empty() && !listed {
        let detail = format!("when {path} is specified, requirements or rawSelector is required");
        errors.push(FieldError::required(&path.child("requirements"), &detail));
    }
}

fn check_metadata(object: &Value, review: Review, errors: &mut Vec<FieldError>) {
    let meta = object["metadata"].as_object();
    let local = review == Review::LocalSubjectAccess;
    let more = meta.into_iter().flatten().any(|(name, value)| {
        let empty = value.is_null() || value == "" || value == &json!({}) || value == &json!([]);
        !empty && name != "managedFields" && !(local && name == "namespace")
    });
    if more {
        let detail = if local {
            "must be empty except for namespace"
        } else {
            "must be empty"
        };
        let value = object["metadata"].clone();
        errors.push(FieldError::invalid(&Path::new("metadata"), value, detail));
    }
}

/// Whether a user may do what the question is about.
fn access(request: &ResourceCall<'_>, object: &Value, user: &User) -> Value {
    let spec = &object["spec"];
    let asked = &spec["resourceAttributes"];
    let action = if asked.is_object() {
        Action::Resource(On {
            verb: text(asked, "verb"),
            group: text(asked, "group"),
            resource: text(asked, "resource"),
            subresource: text(asked, "subresource"),
            namespace: text(asked, "namespace"),
            name: text(asked, "name"),
        })
    } else {
        let asked = &spec["nonResourceAttributes"];
        Action::Path {
            verb: text(asked, "verb"),
            path: text(asked, "path"),
        }
    };
    let verdict = request.api.authorizer.judge(user, &action);
    let mut status = json!({"allowed": verdict.allowed});
    if !verdict.reason.is_empty() {
        status["reason"] = verdict.reason.into();
    }
    // Roles know nothing of selectors: one that cannot be read is told, and changes nothing.
    let unread = [
        ("fieldSelector", selector::can_be_fields as fn(&str) -> bool),
        ("labelSelector", selector::can_be_labels),
    ];
    let complaints: Vec<String> = unread
        .into_iter()
        .filter(|(name, can_be)| !can_be(text(&asked[name], "rawSelector")))
        .map(|(name, _)| format!("spec.resourceAttributes.{name} ignored due to parse error"))
        .collect();
    if !complaints.is_empty() {
        status["evaluationError"] = complaints.join("; ").into();
    }
    status
}

/// Everything the asking user may do in a namespace.
fn rules(request: &ResourceCall<'_>, namespace: &str) -> Value {
    let user = &request.call.user;
    let (rules, problem) = request
        .api
        .authorizer
        .with(|policy| policy.rules_of(user, namespace));
    let mut resources = Vec::new();
    let mut paths = Vec::new();
    for rule in &rules {
        let mut told = rule.write();
        if !rule.resources.is_empty() {
            let mut on = told.clone();
            if let Some(map) = on.as_object_mut() {
                map.shift_remove("nonResourceURLs");
            }
            resources.push(on);
        }
        if !rule.urls.is_empty() {
            if let Some(map) = told.as_object_mut() {
                map.retain(|name, _| matches!(name.as_str(), "verbs" | "nonResourceURLs"));
            }
            paths.push(told);
        }
    }
    let mut status = json!({
        "resourceRules": resources, "nonResourceRules": paths, "incomplete": false,
    });
    if let Some(problem) = problem {
        status["evaluationError"] = problem.into();
    }
    status
}
