//! The operations of a resource, as far as clients look at them.

use serde_json::{Map, Value, json};

use super::definitions::{self, DELETE_OPTIONS, STATUS};
use super::{definition_name, group_version_kind, list_definition_name};
use crate::registry::resource::{Resource, Subresource};

/// What objects are sent and answered as; the last is for built-in kinds only.
const BODIES: [&str; 3] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];
/// What a patch may be; the last is for built-in kinds only: kubectl sends custom resources one that
/// their document lists, and the server refuses.
const PATCHES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];
const LIST: [&str; 11] = [
    "pretty",
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "timeoutSeconds",
    "watch",
];
const DELETE: [&str; 5] = [
    "pretty",
    "dryRun",
    "gracePeriodSeconds",
    "orphanDependents",
    "propagationPolicy",
];

pub(super) fn add(resource: &Resource, paths: &mut Map<String, Value>) {
    let root = if resource.group.is_empty() {
        format!("/api/{}", resource.version)
    } else {
        format!("/apis/{}/{}", resource.group, resource.version)
    };
    let collection = if resource.namespaced {
        format!("{root}/namespaces/{{namespace}}/{}", resource.plural)
    } else {
        format!("{root}/{}", resource.plural)
    };
    let builder = Builder {
        resource,
        definition: definition_name(resource),
    };
    paths.insert(collection.clone(), builder.collection());
    if resource.namespaced && resource.allows("list") {
        let everywhere = json!({"get": builder.list()});
        paths.insert(format!("{root}/{}", resource.plural), everywhere);
    }
    if !resource.allows("get") {
        return;
    }
    let object = format!("{collection}/{{name}}");
    paths.insert(object.clone(), builder.object());
    for subresource in &resource.subresources {
        paths.insert(
            format!("{object}/{}", subresource.name()),
            builder.subresource(subresource),
        );
    }
}

struct Builder<'a> {
    resource: &'a Resource,
    /// The definition of what is sent and answered.
    definition: String,
}

impl Builder<'_> {
    fn collection(&self) -> Value {
        let mut operations = Map::new();
        if self.resource.allows("list") {
            operations.insert("get".to_owned(), self.list());
        }
        if self.resource.allows("create") {
            operations.insert("post".to_owned(), self.writing("post", "post"));
        }
        if self.resource.allows("deletecollection") {
            let mut names = LIST.to_vec();
            if self.resource.custom.is_none() {
                names.extend(&DELETE[1..]);
            }
            let delete = self.operation("deletecollection", &names, STATUS, None);
            operations.insert("delete".to_owned(), delete);
        }
        operations.insert("parameters".to_owned(), self.place(false));
        Value::Object(operations)
    }

    fn list(&self) -> Value {
        let list = list_definition_name(self.resource);
        self.operation("list", &LIST, &list, None)
    }

    fn object(&self) -> Value {
        let get = self.reading();
        let body = content(self.bodies(), &reference(DELETE_OPTIONS));
        let mut delete = self.operation("delete", &DELETE, STATUS, Some(body));
        delete["requestBody"]["required"] = false.into();
        json!({
            "get": get,
            "put": self.writing("put", "put"),
            "patch": self.writing("patch", "patch"),
            "delete": delete,
            "parameters": self.place(true),
        })
    }

    fn subresource(&self, subresource: &Subresource) -> Value {
        let named = |(group, version, kind)| definitions::name(group, version, kind);
        let builder = Builder {
            resource: self.resource,
            definition: subresource
                .kind()
                .and_then(named)
                .unwrap_or_else(|| self.definition.clone()),
        };
        let mut operations = Map::new();
        for verb in subresource.verbs() {
            let (method, operation) = match *verb {
                "create" => ("post", builder.writing("connect", "post")),
                "update" => ("put", builder.writing("put", "put")),
                "patch" => ("patch", builder.writing("patch", "patch")),
                _ => ("get", builder.reading()),
            };
            operations.insert(method.to_owned(), operation);
        }
        operations.insert("parameters".to_owned(), builder.place(true));
        Value::Object(operations)
    }

    fn bodies(&self) -> &'static [&'static str] {
        let custom = self.resource.custom.is_some();
        &BODIES[..if custom { 2 } else { BODIES.len() }]
    }

    fn patches(&self) -> &'static [&'static str] {
        let custom = self.resource.custom.is_some();
        &PATCHES[..if custom { 3 } else { PATCHES.len() }]
    }

    fn reading(&self) -> Value {
        let names: &[&str] = match self.resource.custom {
            Some(_) => &["pretty", "resourceVersion"],
            None => &["pretty"],
        };
        self.operation("get", names, &self.definition, None)
    }

    /// An operation with a body: these take `fieldValidation`, which kubectl looks for.
    fn writing(&self, action: &str, method: &str) -> Value {
        let mut names = vec!["pretty", "dryRun", "fieldManager", "fieldValidation"];
        let body = if method == "patch" {
            names.push("force");
            content(self.patches(), &json!({"type": "object"}))
        } else {
            content(self.bodies(), &reference(&self.definition))
        };
        self.operation(action, &names, &self.definition, Some(body))
    }

    fn operation(
        &self,
        action: &str,
        parameters: &[&str],
        answer: &str,
        body: Option<Value>,
    ) -> Value {
        let parameters: Vec<Value> = parameters
            .iter()
            .map(|name| {
                let kind = match *name {
                    "allowWatchBookmarks"
                    | "force"
                    | "orphanDependents"
                    | "sendInitialEvents"
                    | "watch" => "boolean",
                    "gracePeriodSeconds" | "limit" | "timeoutSeconds" => "integer",
                    _ => "string",
                };
                json!({"in": "query", "name": name, "schema": {"type": kind, "uniqueItems": true}})
            })
            .collect();
        let mut operation = json!({
            "parameters": parameters,
            "responses": {"200": {
                "description": "OK",
                "content": content(self.bodies(), &reference(answer)),
            }},
            "x-kubernetes-action": action,
            "x-kubernetes-group-version-kind": group_version_kind(self.resource),
        });
        if let Some(body) = body {
            operation["requestBody"] = json!({"content": body, "required": true});
        }
        operation
    }

    fn place(&self, named: bool) -> Value {
        let parameter = |name: &str| {
            json!({"in": "path", "name": name, "required": true,
                   "schema": {"type": "string", "uniqueItems": true}})
        };
        let mut list = Vec::new();
        if named {
            list.push(parameter("name"));
        }
        if self.resource.namespaced {
            list.push(parameter("namespace"));
        }
        Value::Array(list)
    }
}

fn reference(definition: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{definition}")})
}

fn content(types: &[&str], schema: &Value) -> Value {
    types
        .iter()
        .map(|name| ((*name).to_owned(), json!({"schema": schema})))
        .collect()
}
