//! The life of a CustomResourceDefinition: names accepted, established, served, withdrawn, and
//! the removal of its objects before it goes.

mod served;

use std::sync::Arc;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use served::{serve, versions};

use crate::http::Api;
use crate::patch::managed;
use crate::store::{Batch, EventKind, Stored};

pub(crate) const TABLE: &str = "customresourcedefinitions.apiextensions.k8s.io";
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
const GROUP: &str = "apiextensions.k8s.io";
/// Serves every definition that was established before, then follows their changes.
pub(crate) fn start(api: &Arc<Api>, stop: CancellationToken) {
    let table = api.store.table(TABLE);
    let (page, mut cursor) = table.list_and_watch(None);
    for stored in &page.objects {
        let definition = stored.value();
        if condition(&definition, "Established") == Some("True") {
            serve(api, &definition);
        }
    }
    let api = Arc::clone(api);
    tokio::spawn(async move {
        for stored in page.objects {
            observe(&api, &stored, &stop).await;
        }
        while !stop.is_cancelled() {
            match cursor.read(64) {
                Batch::Events(events) => {
                    for event in events {
                        match event.kind {
                            EventKind::Deleted => withdraw(&api, &event.object.value()),
                            _ => observe(&api, &event.object, &stop).await,
                        }
                    }
                }
                Batch::Idle(_) => {
                    tokio::select! {
                        () = cursor.changed() => {}
                        () = stop.cancelled() => {}
                    }
                }
                Batch::Lost => {
                    // Too many changes at once: start over from the present state.
                    let (page, fresh) = table.list_and_watch(None);
                    cursor = fresh;
                    withdraw_missing(&api, &page.objects);
                    for stored in page.objects {
                        observe(&api, &stored, &stop).await;
                    }
                }
            }
        }
    });
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn condition<'a>(definition: &'a Value, kind: &str) -> Option<&'a str> {
    definition["status"]["conditions"]
        .as_array()?
        .iter()
        .find(|condition| condition["type"] == *kind)?["status"]
        .as_str()
}

fn withdraw(api: &Api, definition: &Value) {
    let group = text(definition, "/spec/group");
    let plural = text(definition, "/spec/names/plural");
    api.registry.replace_custom(group, plural, Vec::new());
}

/// Withdraws what is served without a definition.
fn withdraw_missing(api: &Api, present: &[Arc<Stored>]) {
    for entry in api.registry.served().entries() {
        let resource = &entry.resource;
        let name = super::resource::qualified(&resource.plural, &resource.group);
        if resource.custom.is_some() && !present.iter().any(|stored| *stored.key == *name) {
            api.registry
                .replace_custom(&resource.group, &resource.plural, Vec::new());
        }
    }
}

async fn observe(api: &Arc<Api>, stored: &Arc<Stored>, stop: &CancellationToken) {
    // An older event may arrive after newer writes: always judge the present state.
    let Some(current) = api.store.latest(&api.store.table(TABLE), &stored.key) else {
        return;
    };
    let definition = current.value();
    if definition["metadata"]["deletionTimestamp"].is_string() {
        let group = text(&definition, "/spec/group");
        let plural = text(&definition, "/spec/names/plural");
        api.registry.refuse_creates(group, plural);
        let cleaning = definition["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|list| list.iter().any(|name| name == CLEANUP));
        if cleaning && api.begin_cleanup(&current.key) {
            let (api, key, stop) = (Arc::clone(api), Arc::clone(&current.key), stop.clone());
            tokio::spawn(async move {
                tokio::select! {
                    () = clean_up(&api, &key) => {}
                    () = stop.cancelled() => {}
                }
                api.end_cleanup(&key);
            });
        }
        return;
    }
    let accepted = accept(api, &definition);
    let status = next_status(api, &definition, &accepted);
    if condition(&with_status(&definition, &status), "Established") == Some("True") {
        serve(api, &definition);
    }
    if status != definition["status"] {
        write_status(api, &current.key, |definition| {
            let accepted = accept(api, definition);
            next_status(api, definition, &accepted)
        })
        .await;
    }
}

fn with_status(definition: &Value, status: &Value) -> Value {
    json!({"spec": definition["spec"], "status": status})
}

/// Which names clash with another accepted definition of the group: reason and message.
fn accept(api: &Api, definition: &Value) -> Result<(), (&'static str, String)> {
    let group = text(definition, "/spec/group");
    let own = text(definition, "/metadata/name");
    let names = &definition["spec"]["names"];
    let mut taken_resources = Vec::new();
    let mut taken_kinds = Vec::new();
    for other in api.store.table(TABLE).all(None) {
        if other.name() == own {
            continue;
        }
        let other = other.value();
        if text(&other, "/spec/group") != group {
            continue;
        }
        let accepted = &other["status"]["acceptedNames"];
        for name in ["plural", "singular"] {
            taken_resources.extend(accepted[name].as_str().map(str::to_owned));
        }
        taken_resources.extend(strings(&accepted["shortNames"]));
        for name in ["kind", "listKind"] {
            taken_kinds.extend(accepted[name].as_str().map(str::to_owned));
        }
    }
    let used = |taken: &[String], name: &str| taken.iter().any(|known| known == name);
    let clash = |name: &str| format!("\"{name}\" is already in use");
    for (field, reason, taken) in [
        ("plural", "PluralConflict", &taken_resources),
        ("singular", "SingularConflict", &taken_resources),
        ("kind", "KindConflict", &taken_kinds),
        ("listKind", "ListKindConflict", &taken_kinds),
    ] {
        let name = names[field].as_str().unwrap_or_default();
        if !name.is_empty() && used(taken, name) {
            return Err((reason, clash(name)));
        }
    }
    for name in strings(&names["shortNames"]) {
        if used(&taken_resources, &name) {
            return Err(("ShortNamesConflict", clash(&name)));
        }
    }
    Ok(())
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

/// The status the definition should have.
fn next_status(
    api: &Api,
    definition: &Value,
    accepted: &Result<(), (&'static str, String)>,
) -> Value {
    let mut status = match &definition["status"] {
        Value::Object(status) => Value::Object(status.clone()),
        _ => json!({}),
    };
    let now = api.clock.now_text();
    match accepted {
        Ok(()) => {
            status["acceptedNames"] = definition["spec"]["names"].clone();
            set(
                &mut status,
                "NamesAccepted",
                true,
                "NoConflicts",
                "no conflicts found",
                &now,
            );
            if condition(&json!({"status": status}), "Established") != Some("True") {
                set(
                    &mut status,
                    "Established",
                    true,
                    "InitialNamesAccepted",
                    "the initial names have been accepted",
                    &now,
                );
            }
        }
        Err((reason, message)) => {
            set(&mut status, "NamesAccepted", false, reason, message, &now);
            if condition(&json!({"status": status}), "Established") != Some("True") {
                set(
                    &mut status,
                    "Established",
                    false,
                    "NotAccepted",
                    "not all names are accepted",
                    &now,
                );
            }
            if !status["acceptedNames"].is_object() {
                status["acceptedNames"] = json!({"plural": "", "kind": ""});
            }
        }
    }
    approval(definition, &mut status, &now);
    let storage = versions(definition)
        .iter()
        .find(|version| version["storage"] == true)
        .map(|version| version["name"].clone());
    let mut stored = status["storedVersions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    if let Some(storage) = storage.filter(|storage| !stored.contains(storage)) {
        stored.push(storage);
    }
    status["storedVersions"] = Value::Array(stored);
    status
}

/// Groups under Kubernetes' own domains say who approved them.
fn approval(definition: &Value, status: &mut Value, now: &str) {
    const KIND: &str = "KubernetesAPIApprovalPolicyConformant";
    let group = text(definition, "/spec/group");
    if !(group.ends_with(".k8s.io") || group.ends_with(".kubernetes.io")) {
        return;
    }
    let by = definition["metadata"]["annotations"]["api-approved.kubernetes.io"].as_str();
    match by {
        Some(by) if by.starts_with("http") => {
            let message = format!("approved in {by}");
            set(status, KIND, true, "ApprovedAnnotation", &message, now);
        }
        Some(by) => {
            let message = format!(
                "not approved: \"{by}\" - api-approved.kubernetes.io annotation must have a parseable URL or a string starting with \"unapproved\""
            );
            set(status, KIND, false, "UnapprovedAnnotation", &message, now);
        }
        None => {}
    }
}

fn set(status: &mut Value, kind: &str, truth: bool, reason: &str, message: &str, now: &str) {
    let truth = if truth { "True" } else { "False" };
    if !status["conditions"].is_array() {
        status["conditions"] = json!([]);
    }
    let Some(list) = status["conditions"].as_array_mut() else {
        return;
    };
    let mut fresh = json!({
        "type": kind,
        "status": truth,
        "lastTransitionTime": now,
        "reason": reason,
        "message": message,
    });
    match list.iter_mut().find(|known| known["type"] == *kind) {
        Some(known) => {
            if known["status"] == truth {
                fresh["lastTransitionTime"] = known["lastTransitionTime"].clone();
            }
            *known = fresh;
        }
        None => list.push(fresh),
    }
}

/// Writes a new status until it is the present one.
async fn write_status(api: &Api, key: &str, next: impl Fn(&Value) -> Value) {
    let table = api.store.table(TABLE);
    let Some(entry) = api
        .registry
        .served()
        .kind(GROUP, "CustomResourceDefinition")
        .cloned()
    else {
        return;
    };
    while let Some(current) = api.store.latest(&table, key) {
        let old = current.value();
        let mut new = old.clone();
        new["status"] = next(&old);
        if new["status"] == old["status"] {
            return;
        }
        let now = api.clock.now_text();
        let writer = managed::Writer {
            manager: "kube-apiserver",
            api_version: entry.api_version(),
            group: GROUP,
            kind: "CustomResourceDefinition",
            subresource: "status",
            now: &now,
            custom: false,
            schema: &entry.resource.schema,
            reset: &[&["spec"]],
        };
        managed::update(Some(&old), &mut new, &writer);
        let draft = entry.draft(key, &new);
        match api.store.update(&table, draft, current.revision).await {
            Err(crate::store::WriteError::Changed) => {}
            Ok(_) | Err(_) => return,
        }
    }
}

/// Deletes every object of a definition, then lets the definition go.
async fn clean_up(api: &Arc<Api>, key: &Arc<str>) {
    let table = api.store.table(TABLE);
    let Some(current) = api.store.latest(&table, key) else {
        return;
    };
    let definition = current.value();
    let now = api.clock.now_text();
    write_status(api, key, |definition| {
        let mut status = definition["status"].clone();
        set(
            &mut status,
            "Terminating",
            true,
            "InstanceDeletionInProgress",
            "CustomResource deletion is in progress",
            &now,
        );
        status
    })
    .await;
    let group = text(&definition, "/spec/group");
    let plural = text(&definition, "/spec/names/plural");
    let objects = api.store.table(&super::resource::qualified(plural, group));
    loop {
        let (page, mut cursor) = objects.list_and_watch(None);
        if page.objects.is_empty() {
            break;
        }
        let entry = {
            let served = api.registry.served();
            served
                .entries()
                .iter()
                .find(|entry| Arc::ptr_eq(&entry.table, &objects))
                .cloned()
        };
        for stored in &page.objects {
            match &entry {
                Some(entry) => api.delete_instance(entry, stored).await,
                // Not served any more: nobody can finalize it.
                None => {
                    let _ = api
                        .store
                        .delete(&objects, stored.redraft(), stored.revision)
                        .await;
                }
            }
        }
        if !objects.is_empty() {
            cursor.changed().await;
        }
    }
    // Creates were refused before the first object went; one that was already on its way may have
    // arrived since, and nobody could see it any more.
    api.registry.replace_custom(group, plural, Vec::new());
    for stored in objects.all(None) {
        let _ = api
            .store
            .delete(&objects, stored.redraft(), stored.revision)
            .await;
    }
    release(api, key).await;
}

async fn release(api: &Api, key: &str) {
    let table = api.store.table(TABLE);
    let Some(entry) = api
        .registry
        .served()
        .kind(GROUP, "CustomResourceDefinition")
        .cloned()
    else {
        return;
    };
    while let Some(current) = api.store.latest(&table, key) {
        let mut definition = current.value();
        if let Some(list) = definition
            .pointer_mut("/metadata/finalizers")
            .and_then(Value::as_array_mut)
        {
            list.retain(|name| name != CLEANUP);
        }
        let rest = definition["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|l| !l.is_empty());
        let draft = entry.draft(key, &definition);
        let done = if rest {
            api.store.update(&table, draft, current.revision).await
        } else {
            api.store.delete(&table, draft, current.revision).await
        };
        if !matches!(done, Err(crate::store::WriteError::Changed)) {
            return;
        }
    }
}
