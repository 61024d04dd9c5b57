//! Definitions of the built-in types.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use k8s_openapi::api::{
    apps, authentication, authorization, autoscaling, batch, coordination, core, discovery, events,
    networking, policy, rbac, scheduling, storage,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions;
use k8s_openapi::apimachinery::pkg::apis::meta;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Value, json};

use crate::registry::resource::Resource;
use crate::schema::{FieldType, ListType, Merge, Schema, definition_facts};

pub(super) const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
pub(super) const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
pub(super) const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
pub(super) const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
const PREFIX: &str = "#/components/schemas/";

type Components = BTreeMap<String, Value>;

/// Makes the definitions of one kind; `false` when it is not a built-in one.
fn generate(generator: &mut SchemaGenerator, group: &str, version: &str, kind: &str) -> bool {
    macro_rules! kinds {
        ($(($group:literal, $version:literal): $module:ident $release:ident { $($kind:ident)* })*) => {
            match (group, version, kind) {
                $($(($group, $version, stringify!($kind)) => {
                    generator.subschema_for::<$module::$release::$kind>();
                    true
                })*)*
                _ => false,
            }
        };
    }
    kinds! {
        ("", "v1"): core v1 {
            Binding ConfigMap Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim
            Pod PodTemplate ReplicationController ResourceQuota Secret Service ServiceAccount
        }
        ("apps", "v1"): apps v1 { ControllerRevision Deployment ReplicaSet StatefulSet }
        ("batch", "v1"): batch v1 { Job }
        ("policy", "v1"): policy v1 { Eviction PodDisruptionBudget }
        ("autoscaling", "v2"): autoscaling v2 { HorizontalPodAutoscaler }
        ("autoscaling", "v1"): autoscaling v1 { Scale }
        ("coordination.k8s.io", "v1"): coordination v1 { Lease }
        ("discovery.k8s.io", "v1"): discovery v1 { EndpointSlice }
        ("events.k8s.io", "v1"): events v1 { Event }
        ("networking.k8s.io", "v1"): networking v1 { Ingress IngressClass NetworkPolicy }
        ("rbac.authorization.k8s.io", "v1"): rbac v1 { ClusterRole ClusterRoleBinding Role RoleBinding }
        ("scheduling.k8s.io", "v1"): scheduling v1 { PriorityClass }
        ("storage.k8s.io", "v1"): storage v1 { StorageClass }
        ("authentication.k8s.io", "v1"): authentication v1 { SelfSubjectReview TokenRequest TokenReview }
        ("authorization.k8s.io", "v1"): authorization v1 {
            LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview
        }
        ("apiextensions.k8s.io", "v1"): apiextensions v1 { CustomResourceDefinition }
    }
}

/// The name of a kind's definition.
pub(super) fn name(group: &str, version: &str, kind: &str) -> Option<String> {
    crate::schema::definition_name(group, version, kind)?;
    Some(match group {
        "" => format!("io.k8s.api.core.{version}.{kind}"),
        "apiextensions.k8s.io" => {
            format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{version}.{kind}")
        }
        group => {
            let short = group.split('.').next().unwrap_or(group);
            format!("io.k8s.api.{short}.{version}.{kind}")
        }
    })
}

/// Adds a built-in kind with everything it refers to.
pub(super) fn add(resource: &Resource, components: &mut Components) {
    add_named(
        &resource.group,
        &resource.version,
        &resource.kind,
        components,
    );
}

pub(super) fn add_named(group: &str, version: &str, kind: &str, components: &mut Components) {
    let Some(name) = name(group, version, kind).filter(|name| !components.contains_key(name))
    else {
        return;
    };
    let mut generator = SchemaSettings::openapi3().into_generator();
    if generate(&mut generator, group, version, kind) {
        collect(&mut generator, components);
    }
    if let Some(definition) = components.get_mut(&name) {
        definition["x-kubernetes-group-version-kind"] =
            json!([{"group": group, "kind": kind, "version": version}]);
    }
}

/// Adds what operations of every kind speak of.
pub(super) fn add_metadata(components: &mut Components) {
    if components.contains_key(DELETE_OPTIONS) {
        return;
    }
    let mut generator = SchemaSettings::openapi3().into_generator();
    generator.subschema_for::<meta::v1::ObjectMeta>();
    generator.subschema_for::<meta::v1::ListMeta>();
    generator.subschema_for::<meta::v1::Status>();
    generator.subschema_for::<meta::v1::DeleteOptions>();
    collect(&mut generator, components);
}

/// A member every object has (`apiVersion`, `kind`, `metadata`), as the library describes it.
pub(super) fn common(member: &str) -> Value {
    static ANY: LazyLock<Value> = LazyLock::new(|| {
        let mut components = Components::new();
        add_named("", "v1", "ConfigMap", &mut components);
        let any = components.remove("io.k8s.api.core.v1.ConfigMap");
        any.unwrap_or_default()
    });
    ANY["properties"][member].clone()
}

/// What the library says about a member of every object's metadata.
pub(crate) fn metadata_text(member: &str) -> String {
    static META: LazyLock<Value> = LazyLock::new(|| {
        let mut components = Components::new();
        add_metadata(&mut components);
        components.remove(OBJECT_META).unwrap_or_default()
    });
    let text = META["properties"][member]["description"].as_str();
    text.unwrap_or_default().to_owned()
}

fn collect(generator: &mut SchemaGenerator, components: &mut Components) {
    for (name, mut schema) in generator.take_definitions(true) {
        complete(&name, &mut schema);
        components.entry(name).or_insert(schema);
    }
}

/// `io.k8s.api.core.v1.Pod` as the table calls it: `core.Pod`.
pub(super) fn table_name(name: &str) -> Option<String> {
    let mut parts = name.rsplit('.');
    let (kind, version, group) = (parts.next()?, parts.next()?, parts.next()?);
    let group = if group == "autoscaling" && version == "v1" {
        "autoscaling1"
    } else {
        group
    };
    Some(format!("{group}.{kind}"))
}

/// Adds the facts the library does not have.
fn complete(name: &str, schema: &mut Value) {
    let facts = table_name(name).and_then(|name| definition_facts(&name));
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    let described = facts.and_then(|facts| Schema::of_definition(facts.name));
    for (name, member) in properties.iter_mut() {
        wrap_reference(member);
        let Some(known) = described.as_ref().and_then(|schema| schema.field(name)) else {
            continue;
        };
        annotate(member, known);
        let field = facts.and_then(|facts| facts.fields.iter().find(|field| field.name == name));
        if let Some(field) = field.filter(|field| !field.enumeration().is_empty()) {
            let names = json!(field.enumeration());
            match field.kind {
                FieldType::List(_) => {
                    if let Some(items) = member.get_mut("items") {
                        items["enum"] = names;
                    }
                }
                _ => member["enum"] = names,
            }
        }
    }
    if described.is_some_and(|schema| schema.node().atomic) {
        schema["x-kubernetes-map-type"] = json!("atomic");
    }
}

/// What stands beside a reference is ignored in this version of OpenAPI, so the reference is
/// wrapped.
fn wrap_reference(member: &mut Value) {
    let Some(map) = member.as_object_mut() else {
        return;
    };
    if let Some(reference) = map.remove("$ref") {
        let reference = reference.as_str().unwrap_or_default().to_owned();
        let reference = match reference.rsplit_once('/') {
            Some((_, name)) => format!("{PREFIX}{name}"),
            None => reference,
        };
        map.insert("allOf".to_owned(), json!([{"$ref": reference}]));
    }
}

fn annotate(member: &mut Value, known: &Schema) {
    let node = &known.0;
    match node.list_type {
        ListType::Map => {
            member["x-kubernetes-list-type"] = json!("map");
            member["x-kubernetes-list-map-keys"] = json!(node.list_keys);
        }
        ListType::Set => member["x-kubernetes-list-type"] = json!("set"),
        ListType::Atomic | ListType::Unset => {
            if node.items.is_some() {
                member["x-kubernetes-list-type"] = json!("atomic");
            }
        }
    }
    let strategy = match &node.merge {
        Merge::Replace => None,
        Merge::Set => Some("merge"),
        Merge::Key(key) => {
            member["x-kubernetes-patch-merge-key"] = json!(key);
            Some("merge")
        }
    };
    if let Some(strategy) = strategy {
        let text = if node.retain_keys {
            format!("{strategy},retainKeys")
        } else {
            strategy.to_owned()
        };
        member["x-kubernetes-patch-strategy"] = json!(text);
    }
    if node.atomic && node.items.is_none() {
        member["x-kubernetes-map-type"] = json!("atomic");
    }
    if let Some(default) = &node.default {
        member["default"] = default.clone();
    }
}
