//! The operations of a resource, as far as clients look at them.

use serde_json::{Map, Value, json};

use super::group_version_kind;
use crate::registry::resource::Resource;

const BODIES: [&str; 3] = [
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];
const PATCHES: [&str; 4] = [
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
];

pub(super) fn add(resource: &Resource, definition: &str, paths: &mut Map<String, Value>) {
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
        definition,
    };
    paths.insert(collection.clone(), builder.collection());
    if resource.namespaced && resource.allows("list") {
        let everywhere = json!({"get": builder.operation("list", &["pretty"], None)});
        paths.insert(format!("{root}/{}", resource.plural), everywhere);
    }
    if !resource.allows("get") {
        return;
    }
    let object = format!("{collection}/{{name}}");
    paths.insert(object.clone(), builder.object());
    for subresource in &resource.subresources {
        let mut operations = Map::new();
        for verb in subresource.verbs() {
            let (method, action) = match *verb {
                "create" => ("post", "connect"),
                "update" => ("put", "put"),
                "patch" => ("patch", "patch"),
                _ => ("get", "get"),
            };
            operations.insert(method.to_owned(), builder.writing(action, method));
        }
        operations.insert("parameters".to_owned(), builder.place(true));
        paths.insert(
            format!("{object}/{}", subresource.name()),
            Value::Object(operations),
        );
    }
}

struct Builder<'a> {
    resource: &'a Resource,
    definition: &'a str,
}

impl Builder<'_> {
    fn collection(&self) -> Value {
        let mut operations = Map::new();
        if self.resource.allows("list") {
            operations.insert("get".to_owned(), self.operation("list", &["pretty"], None));
        }
        if self.resource.allows("create") {
            operations.insert("post".to_owned(), self.writing("post", "post"));
        }
        if self.resource.allows("deletecollection") {
            let delete = self.operation("deletecollection", &["pretty", "dryRun"], None);
            operations.insert("delete".to_owned(), delete);
        }
        operations.insert("parameters".to_owned(), self.place(false));
        Value::Object(operations)
    }

    fn object(&self) -> Value {
        let mut operations = Map::new();
        operations.insert("get".to_owned(), self.operation("get", &["pretty"], None));
        operations.insert("put".to_owned(), self.writing("put", "put"));
        operations.insert("patch".to_owned(), self.writing("patch", "patch"));
        let delete = [
            "pretty",
            "dryRun",
            "gracePeriodSeconds",
            "orphanDependents",
            "propagationPolicy",
        ];
        operations.insert("delete".to_owned(), self.operation("delete", &delete, None));
        operations.insert("parameters".to_owned(), self.place(true));
        Value::Object(operations)
    }

    /// An operation with a body: these take `fieldValidation`, which kubectl looks for.
    fn writing(&self, action: &str, method: &str) -> Value {
        let parameters: &[&str] = match method {
            "patch" => &[
                "pretty",
                "dryRun",
                "fieldManager",
                "fieldValidation",
                "force",
            ],
            "get" => &["pretty"],
            _ => &["pretty", "dryRun", "fieldManager", "fieldValidation"],
        };
        let body = match method {
            "get" => None,
            "patch" => Some(content(&PATCHES, &json!({"type": "object"}))),
            _ => Some(content(&BODIES, &self.reference())),
        };
        self.operation(action, parameters, body)
    }

    fn reference(&self) -> Value {
        json!({"$ref": format!("#/components/schemas/{}", self.definition)})
    }

    fn operation(&self, action: &str, parameters: &[&str], body: Option<Value>) -> Value {
        let parameters: Vec<Value> = parameters
            .iter()
            .map(|name| {
                let kind = match *name {
                    "force" | "orphanDependents" => "boolean",
                    "gracePeriodSeconds" => "integer",
                    _ => "string",
                };
                json!({"in": "query", "name": name, "schema": {"type": kind, "uniqueItems": true}})
            })
            .collect();
        let mut operation = json!({
            "parameters": parameters,
            "responses": {"200": {
                "description": "OK",
                "content": {"application/json": {"schema": self.reference()}},
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

fn content(types: &[&str], schema: &Value) -> Value {
    types
        .iter()
        .map(|name| ((*name).to_owned(), json!({"schema": schema})))
        .collect()
}
