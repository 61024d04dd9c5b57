//! Paths below an object: status, scale, binding, eviction, finalize, token.

use http::Method;
use serde_json::{Value, json};

use super::options::{DeleteOptions, WriteOptions};
use super::write::{Mode, PatchKind, Produced, modify, patch_as, update_as};
use super::{Answer, ResourceCall, connect, delete};
use crate::codec::body;
use crate::codec::status::Status;
use crate::registry::{ScalePaths, Subresource};

pub(super) async fn run(request: &ResourceCall<'_>, name: &str) -> Result<Answer, Status> {
    let resource = &request.entry.resource;
    let Some(sub) = resource.subresource(name).cloned() else {
        if resource.custom.is_some() {
            return Err(Status::not_found(&request.subject()));
        }
        return Err(not_served(&resource.qualified(), name));
    };
    if request.target.name.is_none() || (resource.namespaced && request.target.namespace.is_none())
    {
        return Err(Status::no_such_path());
    }
    match (&sub, request.call.method.clone()) {
        (Subresource::Status, Method::GET) => super::read::get(request),
        (Subresource::Status, Method::PUT) => update_as(request, Mode::Status).await,
        (Subresource::Status, Method::PATCH) => patch_as(request, Mode::Status).await,
        (Subresource::Finalize, Method::PUT) => update_as(request, Mode::Finalize).await,
        (Subresource::Scale(paths), method) => scale(request, paths, &method).await,
        (Subresource::Binding, Method::POST) => bind(request).await,
        (Subresource::Eviction, Method::POST) => evict(request).await,
        (Subresource::Token, Method::POST) => super::token::issue(request),
        (Subresource::Log, Method::GET) => {
            Err(Status::internal("log was not routed to its stream"))
        }
        (Subresource::Exec | Subresource::Attach | Subresource::PortForward, _) => {
            Err(connect::upgrade_required())
        }
        _ => Err(Status::no_such_method()),
    }
}

/// What a cluster may serve and this server does not is refused with the way around it.
fn not_served(resource: &str, name: &str) -> Status {
    let why = match (resource, name) {
        ("pods", "ephemeralcontainers") => {
            "ephemeral containers are not served by the embedded control plane: the containers of a pod are \
             fixed when it is made. Run a command in one of them with `kubectl exec`, or debug a copy of the pod \
             with `kubectl debug POD --copy-to=NAME`"
        }
        ("pods", "resize") => {
            "pods/resize is not served by the embedded control plane: the resources of a pod are fixed when it \
             is made. Delete the pod and make it again with the new resources"
        }
        _ => return Status::no_such_path(),
    };
    Status::not_served(why)
}

/// A value by the dotted path of a definition.
fn at<'a>(object: &'a Value, path: &str) -> &'a Value {
    let mut at = object;
    for step in path.split('.').filter(|step| !step.is_empty()) {
        at = &at[step];
    }
    at
}

fn set_at(object: &mut Value, path: &str, value: Value) {
    let mut at = object;
    for step in path.split('.').filter(|step| !step.is_empty()) {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[step];
    }
    *at = value;
}

/// A label selector in the text form clients put in queries.
fn selector_text(selector: &Value) -> String {
    if let Some(text) = selector.as_str() {
        return text.to_owned();
    }
    // Old kinds select by a plain map of labels.
    let labels = match selector.as_object() {
        Some(map) if map.values().all(Value::is_string) => Some(map),
        _ => selector["matchLabels"].as_object(),
    };
    let mut terms: Vec<String> = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    for expression in selector["matchExpressions"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let key = expression["key"].as_str().unwrap_or_default();
        let mut values: Vec<&str> = expression["values"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        values.sort_unstable();
        terms.push(match expression["operator"].as_str().unwrap_or_default() {
            "In" => format!("{key} in ({})", values.join(",")),
            "NotIn" => format!("{key} notin ({})", values.join(",")),
            "DoesNotExist" => format!("!{key}"),
            _ => key.to_owned(),
        });
    }
    terms.sort();
    terms.join(",")
}

fn scale_of(object: &Value, paths: &ScalePaths) -> Value {
    let meta = &object["metadata"];
    let mut scale = json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": meta["name"],
            "uid": meta["uid"],
            "resourceVersion": meta["resourceVersion"],
            "creationTimestamp": meta["creationTimestamp"],
        },
        "spec": {},
        "status": {"replicas": at(object, &paths.status_replicas).as_i64().unwrap_or(0)},
    });
    if meta["namespace"].is_string() {
        scale["metadata"]["namespace"] = meta["namespace"].clone();
    }
    let replicas = at(object, &paths.spec_replicas).as_i64().unwrap_or(0);
    if replicas != 0 {
        scale["spec"]["replicas"] = replicas.into();
    }
    if let Some(path) = &paths.selector {
        let text = selector_text(at(object, path));
        if !text.is_empty() {
            scale["status"]["selector"] = text.into();
        }
    }
    scale
}

async fn scale(
    request: &ResourceCall<'_>,
    paths: &ScalePaths,
    method: &Method,
) -> Result<Answer, Status> {
    let call = &request.call;
    match *method {
        Method::GET => {
            let stored = request.entry.table.get(&request.key());
            let stored = stored.ok_or_else(|| Status::not_found(&request.subject()))?;
            return Ok(Answer::value(
                200,
                scale_of(&request.entry.read(&stored), paths),
            ));
        }
        Method::PUT | Method::PATCH => {}
        _ => return Err(Status::no_such_method()),
    }
    let strategic = request.entry.resource.custom.is_none();
    let patch = match *method {
        Method::PATCH => Some(PatchKind::of(&call.content_type, strategic)?),
        _ => None,
    };
    let apply = patch == Some(PatchKind::Apply);
    let kind = if patch.is_some() {
        "PatchOptions"
    } else {
        "UpdateOptions"
    };
    let options = WriteOptions::parse(&call.query, &call.user_agent, kind, apply)?;
    let body = match patch {
        Some(kind) => kind.decode(&call.body)?,
        None => body::decode_object(&call.content_type, &call.body)?,
    };
    let schema = crate::schema::Schema::builtin("autoscaling", "v1", "Scale")
        .unwrap_or_else(crate::schema::Schema::anything);
    let sent = body.value;
    let answer = modify(request, &options, Mode::Scale, Vec::new(), &|old, _| {
        let current = scale_of(old, paths);
        let wanted = match patch {
            Some(kind) => kind.apply(&current, &sent, &schema)?,
            None => sent.clone(),
        };
        if let Some(problem) = schema.decode_error(&wanted) {
            return Err(Status::bad_request(format!(
                "Scale in version \"v1\" cannot be handled as a Scale: {problem}"
            )));
        }
        let replicas = wanted["spec"]["replicas"].as_i64().unwrap_or(0);
        if replicas < 0 {
            return Err(negative_replicas(request, replicas));
        }
        let mut object = old.clone();
        for name in ["resourceVersion", "uid"] {
            let sent = &wanted["metadata"][name];
            if sent.as_str().is_some_and(|text| !text.is_empty()) {
                object["metadata"][name] = sent.clone();
            }
        }
        set_at(&mut object, &paths.spec_replicas, replicas.into());
        Ok(Produced {
            object,
            tracked: false,
        })
    })
    .await?;
    let object: Value = match answer.content {
        super::Content::Value(value) => value,
        super::Content::Bytes(bytes) => serde_json::from_slice(&bytes).map_err(Status::internal)?,
    };
    Ok(Answer {
        warnings: answer.warnings,
        ..Answer::value(200, scale_of(&object, paths))
    })
}

fn negative_replicas(request: &ResourceCall<'_>, replicas: i64) -> Status {
    let error = crate::schema::FieldError::invalid(
        &crate::schema::Path::new("spec.replicas"),
        replicas,
        "must be greater than or equal to 0",
    );
    let subject = crate::codec::status::Subject {
        group: "autoscaling",
        resource: "scales",
        kind: "Scale",
        name: request.target.name.as_deref().unwrap_or_default(),
    };
    Status::invalid(&subject, &[error])
}

fn success(code: u16) -> Answer {
    Answer::value(
        code,
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code}),
    )
}

/// Assigns a pod to a node, once.
async fn bind(request: &ResourceCall<'_>) -> Result<Answer, Status> {
    let call = &request.call;
    let options = WriteOptions::parse(&call.query, &call.user_agent, "CreateOptions", false)?;
    let binding = body::decode_object(&call.content_type, &call.body)?.value;
    let target = &binding["target"];
    let node = target["name"].as_str().unwrap_or_default().to_owned();
    if node.is_empty() || !matches!(target["kind"].as_str().unwrap_or(""), "" | "Node") {
        let error =
            crate::schema::FieldError::required(&crate::schema::Path::new("target.name"), "");
        let subject = crate::codec::status::Subject {
            resource: "bindings",
            kind: "Binding",
            ..request.subject()
        };
        return Err(Status::invalid(&subject, &[error]));
    }
    let uid = binding["metadata"]["uid"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let now = request.api.clock.now_text();
    let pod_name = request.target.name.clone().unwrap_or_default();
    let bound = modify(request, &options, Mode::Binding, Vec::new(), &|old, _| {
        let taken = old["spec"]["nodeName"].as_str().unwrap_or_default();
        let refuse = |why: String| {
            Err(Status::conflict(
                &crate::codec::status::Subject {
                    resource: "pods/binding",
                    ..request.subject()
                },
                &why,
            ))
        };
        if old["metadata"]["deletionTimestamp"].is_string() {
            return refuse(format!(
                "pod {pod_name} is being deleted, cannot be assigned to a host"
            ));
        }
        if !taken.is_empty() {
            return refuse(format!(
                "pod {pod_name} is already assigned to node \"{taken}\""
            ));
        }
        if old["spec"]["schedulingGates"]
            .as_array()
            .is_some_and(|gates| !gates.is_empty())
        {
            return refuse(format!(
                "pod {pod_name} has non-empty .spec.schedulingGates"
            ));
        }
        let mut pod = old.clone();
        if !uid.is_empty() {
            pod["metadata"]["uid"] = uid.clone().into();
        }
        pod["spec"]["nodeName"] = node.clone().into();
        for map in ["annotations", "labels"] {
            for (key, value) in binding["metadata"][map].as_object().into_iter().flatten() {
                pod["metadata"][map][key] = value.clone();
            }
        }
        scheduled(&mut pod, &now);
        Ok(Produced {
            object: pod,
            tracked: true,
        })
    })
    .await?;
    Ok(Answer {
        warnings: bound.warnings,
        ..success(201)
    })
}

fn scheduled(pod: &mut Value, now: &str) {
    let condition = json!({
        "type": "PodScheduled", "status": "True", "lastProbeTime": null, "lastTransitionTime": now,
    });
    set_condition(pod, condition);
}

fn set_condition(pod: &mut Value, condition: Value) {
    let kind = condition["type"].clone();
    let conditions = &mut pod["status"]["conditions"];
    match conditions.as_array_mut() {
        Some(list) => match list.iter_mut().find(|known| known["type"] == kind) {
            Some(known) => *known = condition,
            None => list.push(condition),
        },
        None => *conditions = json!([condition]),
    }
}

/// Deletes a pod unless a disruption budget forbids it.
async fn evict(request: &ResourceCall<'_>) -> Result<Answer, Status> {
    let call = &request.call;
    let eviction = body::decode_object(&call.content_type, &call.body)?.value;
    let sent = &eviction["deleteOptions"];
    let options = DeleteOptions::parse(sent.is_object().then_some(sent), &call.query)?;
    let stored = request.entry.table.get(&request.key());
    let stored = stored.ok_or_else(|| Status::not_found(&request.subject()))?;
    let pod = stored.value();
    delete::preconditions(&options, &pod, &request.subject())?;
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    let done = matches!(phase, "Succeeded" | "Failed" | "Pending")
        || pod["metadata"]["deletionTimestamp"].is_string();
    if !done {
        spend_budget(request, &pod, options.dry_run).await?;
    }
    if !options.dry_run {
        say_why(request).await?;
    }
    delete::evict(request, &options).await?;
    Ok(success(201))
}

/// Leaves a note on the pod that it was disrupted on purpose.
async fn say_why(request: &ResourceCall<'_>) -> Result<(), Status> {
    let (store, entry, key) = (&request.api.store, &request.entry, request.key());
    while let Some(current) = store.latest(&entry.table, &key) {
        let mut pod = entry.read(&current);
        let condition = json!({
            "type": "DisruptionTarget",
            "status": "True",
            "lastProbeTime": null,
            "lastTransitionTime": request.api.clock.now_text(),
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        });
        set_condition(&mut pod, condition);
        match store
            .update(&entry.table, entry.draft(&key, &pod), current.revision)
            .await
        {
            Err(crate::store::WriteError::Changed) => {}
            Err(crate::store::WriteError::Gone) | Ok(_) => break,
            Err(error) => return Err(super::write::disk_error(&error)),
        }
    }
    Ok(())
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// Takes one allowed disruption from the pod's budget.
async fn spend_budget(
    request: &ResourceCall<'_>,
    pod: &Value,
    dry_run: bool,
) -> Result<(), Status> {
    let served = request.api.registry.served();
    let Some(entry) = served.kind("policy", "PodDisruptionBudget").cloned() else {
        return Ok(());
    };
    let namespace = request.target.namespace.as_deref();
    let labels = pod["metadata"].get("labels");
    let pod_name = request.target.name.clone().unwrap_or_default();
    loop {
        let mut matching = Vec::new();
        for stored in entry.table.all(namespace) {
            let budget = stored.value();
            if crate::kinds::metadata::selects(budget["spec"].get("selector"), labels) {
                matching.push((stored, budget));
            }
        }
        let (stored, mut budget) = match matching.len() {
            0 => return Ok(()),
            1 => matching.remove(0),
            _ => {
                return Err(Status::internal(
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                ));
            }
        };
        let status = &budget["status"];
        if !is_ready(pod) {
            // A pod that does not count as healthy takes nothing from the budget when it goes.
            let always = budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow";
            let number = |name: &str| status[name].as_i64().unwrap_or(0);
            let (healthy, desired) = (number("currentHealthy"), number("desiredHealthy"));
            if always || (healthy >= desired && desired > 0) {
                return Ok(());
            }
        }
        let allowed = status["disruptionsAllowed"].as_i64().unwrap_or(0);
        let observed = status["observedGeneration"].as_i64().unwrap_or(0);
        let generation = budget["metadata"]["generation"].as_i64().unwrap_or(0);
        if observed < generation || allowed <= 0 {
            return Err(budget_refusal(&budget, observed < generation));
        }
        if dry_run {
            return Ok(());
        }
        let now = request.api.clock.now_text();
        budget["status"]["disruptionsAllowed"] = (allowed - 1).into();
        budget["status"]["disruptedPods"][&pod_name] = now.into();
        let draft = entry.draft(&stored.key, &budget);
        match request
            .api
            .store
            .update(&entry.table, draft, stored.revision)
            .await
        {
            Ok(_) => return Ok(()),
            Err(crate::store::WriteError::Changed | crate::store::WriteError::Gone) => {}
            Err(error) => return Err(super::write::disk_error(&error)),
        }
    }
}

fn budget_refusal(budget: &Value, stale: bool) -> Status {
    let name = budget["metadata"]["name"].as_str().unwrap_or_default();
    let status = &budget["status"];
    let (message, retry) = if stale {
        (
            format!("The disruption budget {name} is still being processed by the server."),
            10,
        )
    } else {
        (
            format!(
                "The disruption budget {name} needs {} healthy pods and has {} currently",
                status["desiredHealthy"].as_i64().unwrap_or(0),
                status["currentHealthy"].as_i64().unwrap_or(0)
            ),
            0,
        )
    };
    let mut refusal = Status::too_many_requests(
        "Cannot evict pod as it would violate the pod's disruption budget.",
        retry,
    );
    let details = refusal.details.get_or_insert_with(|| Box::new(json!({})));
    details["causes"] = json!([{"reason": "DisruptionBudget", "message": message}]);
    refusal
}
