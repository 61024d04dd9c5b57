//! The roles and bindings every server begins with, and what has to change for stored ones to be like them.
//!
//! Pure: `default-roles.yaml` is the data, the server does the writing at its start. Whoever does not
//! want an object touched annotates it with `rbac.authorization.kubernetes.io/autoupdate: "false"`.

use serde_json::{Map, Value, json};

use super::rbac::{GROUP, Rule, uncovered};

const DATA: &str = include_str!("default-roles.yaml");
const AUTO_UPDATE: &str = "rbac.authorization.kubernetes.io/autoupdate";
const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";

fn texts<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a str> {
    let items = value[name].as_array().into_iter().flatten();
    items.filter_map(Value::as_str)
}

fn object(kind: &str, described: &Value) -> Value {
    let mut labels = Map::new();
    labels.insert("kubernetes.io/bootstrapping".into(), "rbac-defaults".into());
    for to in texts(described, "aggregateTo") {
        labels.insert(format!("{AGGREGATE}{to}"), "true".into());
    }
    json!({
        "apiVersion": format!("{GROUP}/v1"),
        "kind": kind,
        "metadata": {
            "name": described["name"],
            "labels": labels,
            "annotations": {AUTO_UPDATE: "true"},
        },
    })
}

fn role(described: &Value) -> Value {
    let mut role = object("ClusterRole", described);
    let selectors: Vec<Value> = texts(described, "gathers")
        .map(|from| json!({"matchLabels": {format!("{AGGREGATE}{from}"): "true"}}))
        .collect();
    if selectors.is_empty() {
        role["rules"] = described["rules"].clone();
    } else {
        role["aggregationRule"] = json!({"clusterRoleSelectors": selectors});
    }
    role
}

fn binding(described: &Value) -> Value {
    let mut binding = object("ClusterRoleBinding", described);
    binding["roleRef"] =
        json!({"apiGroup": GROUP, "kind": "ClusterRole", "name": described["role"]});
    let of = |kind: &'static str, list: &'static str| {
        let subject = move |name| json!({"apiGroup": GROUP, "kind": kind, "name": name});
        texts(described, list).map(subject)
    };
    let subjects: Vec<Value> = of("User", "users").chain(of("Group", "groups")).collect();
    if !subjects.is_empty() {
        binding["subjects"] = subjects.into();
    }
    binding
}

/// Every default object, roles first. Empty if the data could not be read, which a test rules out.
pub(crate) fn objects() -> Vec<Value> {
    let data: Value = serde_saphyr::from_str(DATA).unwrap_or_default();
    let list = |name: &str| data[name].as_array().cloned().unwrap_or_default();
    let roles = list("clusterRoles");
    let bindings = list("clusterRoleBindings");
    let roles = roles.iter().map(role);
    roles.chain(bindings.iter().map(binding)).collect()
}

/// Whether somebody wants it to stay as it is.
pub(crate) fn is_left_alone(stored: &Value) -> bool {
    stored["metadata"]["annotations"][AUTO_UPDATE] == "false"
}

/// The stored object as it should be, if that differs: what is missing is added, nothing is taken away.
pub(crate) fn changed(stored: &Value, wanted: &Value) -> Option<Value> {
    if is_left_alone(stored) || stored["roleRef"] != wanted["roleRef"] {
        return None;
    }
    let mut new = stored.clone();
    for map in ["annotations", "labels"] {
        for (name, value) in wanted["metadata"][map].as_object().into_iter().flatten() {
            let kept = &mut new["metadata"][map][name];
            if kept.is_null() {
                *kept = value.clone();
            }
        }
    }
    if wanted["kind"] == "ClusterRole" {
        let missing = uncovered(&Rule::all(stored), &Rule::all(wanted));
        add(&mut new, "rules", missing.iter().map(Rule::write).collect());
        gather(&mut new, stored, wanted);
    } else {
        let known = stored["subjects"].as_array().cloned().unwrap_or_default();
        let missing = wanted["subjects"].as_array().into_iter().flatten();
        let missing = missing.filter(|subject| !known.contains(subject));
        add(&mut new, "subjects", missing.cloned().collect());
    }
    (new != *stored).then_some(new)
}

fn add(object: &mut Value, list: &str, more: Vec<Value>) {
    if more.is_empty() {
        return;
    }
    match object[list].as_array_mut() {
        Some(known) => known.extend(more),
        None => object[list] = more.into(),
    }
}

fn gather(new: &mut Value, stored: &Value, wanted: &Value) {
    let selectors = |role: &Value| {
        let rule = &role["aggregationRule"]["clusterRoleSelectors"];
        rule.as_array().cloned().unwrap_or_default()
    };
    let (known, wanted) = (selectors(stored), selectors(wanted));
    if wanted.is_empty() {
        if let Some(map) = new.as_object_mut() {
            map.shift_remove("aggregationRule");
        }
        return;
    }
    let missing: Vec<Value> = wanted
        .into_iter()
        .filter(|selector| !known.contains(selector))
        .collect();
    if !missing.is_empty() {
        let all: Vec<Value> = known.into_iter().chain(missing).collect();
        new["aggregationRule"] = json!({"clusterRoleSelectors": all});
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Value {
        let mut all = objects().into_iter();
        all.find(|object| object["metadata"]["name"] == name)
            .unwrap()
    }

    #[test]
    fn what_was_taken_from_a_default_role_comes_back_and_what_was_added_stays() {
        let wanted = named("system:basic-user");
        assert_eq!(changed(&wanted, &wanted), None);
        let own = json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]});
        let mut stored = wanted.clone();
        stored["rules"] = json!([own]);
        let new = changed(&stored, &wanted).unwrap();
        assert_eq!(new["rules"][0], own);
        assert!(uncovered(&Rule::all(&new), &Rule::all(&wanted)).is_empty());
        stored["metadata"]["annotations"][AUTO_UPDATE] = "false".into();
        assert_eq!(changed(&stored, &wanted), None);
    }

    #[test]
    fn bindings_and_gathered_roles_get_back_what_they_lack() {
        let wanted = named("system:public-info-viewer");
        let wanted = objects()
            .into_iter()
            .find(|o| o["kind"] == "ClusterRoleBinding" && o["metadata"] == wanted["metadata"])
            .unwrap();
        let mut stored = wanted.clone();
        stored["subjects"].as_array_mut().unwrap().remove(0);
        let new = changed(&stored, &wanted).unwrap();
        assert_eq!(new["subjects"].as_array().unwrap().len(), 2);
        let wanted = named("view");
        let mut stored = wanted.clone();
        // Filled meanwhile: that is no difference.
        stored["rules"] = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
        assert_eq!(changed(&stored, &wanted), None);
        stored
            .as_object_mut()
            .unwrap()
            .shift_remove("aggregationRule");
        let new = changed(&stored, &wanted).unwrap();
        assert_eq!(new["aggregationRule"], wanted["aggregationRule"]);
    }
}
