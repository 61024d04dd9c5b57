//! Ingress and IngressClass, which are stored only.

use serde_json::{Value, json};

use super::service::balancer_addresses;
use super::shortened;
use crate::kinds::checks::{Errors, immutable, named, one_of_if_set, port_number, required};
use crate::kinds::fields::{at, list, number, text};
use crate::kinds::{Described, columns, describe, keep_status, metadata, typed};
use crate::registry::resource::{Strategy, Subresource};
use crate::schema::{FieldError, Path};

pub(super) fn ingress() -> Described {
    let with = columns::with;
    describe("networking.k8s.io", "v1", "Ingress", "ingresses")
        .short("ing")
        .stored_only()
        .subresources([Subresource::Status])
        .columns(vec![
            columns::name(),
            with("Class", "string", 0, |o, _| {
                columns::none_if_empty(text(o, "spec.ingressClassName"))
            }),
            with("Hosts", "string", 0, |o, _| {
                let hosts: Vec<String> = list(o, "spec.rules")
                    .iter()
                    .map(|rule| text(rule, "host").to_owned())
                    .filter(|host| !host.is_empty())
                    .collect();
                json!(if hosts.is_empty() {
                    "*".to_owned()
                } else {
                    shortened(&hosts, 3)
                })
            }),
            with("Address", "string", 0, |o, _| {
                json!(balancer_addresses(o).join(","))
            }),
            with("Ports", "string", 0, |o, _| {
                json!(if list(o, "spec.tls").is_empty() {
                    "80"
                } else {
                    "80, 443"
                })
            }),
            columns::age(),
        ])
        .strategy(Strategy {
            default: |object| typed::round_trip("networking.Ingress", object),
            prepare_create: |object| object["status"] = json!({"loadBalancer": {}}),
            prepare_update: keep_status,
            validate: validate_ingress,
            generation: true,
            ..Strategy::default()
        })
}

fn validate_ingress(object: &Value) -> Errors {
    let mut errors = Vec::new();
    let spec = Path::new("spec");
    let rules = list(object, "spec.rules");
    let default = at(object, "spec.defaultBackend");
    if rules.is_empty() && default.is_none() {
        let detail = "either `defaultBackend` or `rules` must be specified";
        let value = object.get("spec").cloned().unwrap_or_default();
        errors.push(FieldError::invalid(&spec, value, detail));
    }
    if let Some(backend) = default {
        ingress_backend(backend, &spec.child("defaultBackend"), &mut errors);
    }
    for (index, rule) in rules.iter().enumerate() {
        let path = spec.child("rules").index(index);
        let host = text(rule, "host");
        if !host.is_empty() {
            let plain = host.strip_prefix("*.").unwrap_or(host);
            named(
                metadata::subdomain(plain),
                host,
                &path.child("host"),
                &mut errors,
            );
        }
        let Some(http) = at(rule, "http") else {
            continue;
        };
        let paths = list(http, "paths");
        let path = path.child("http").child("paths");
        if paths.is_empty() {
            errors.push(FieldError::required(&path, ""));
        }
        for (index, entry) in paths.iter().enumerate() {
            let path = path.index(index);
            let kinds = ["Exact", "ImplementationSpecific", "Prefix"];
            if at(entry, "pathType").is_none() {
                let detail = "pathType must be specified";
                errors.push(FieldError::required(&path.child("pathType"), detail));
            }
            one_of_if_set(entry, "pathType", &kinds, &path, &mut errors);
            let target = text(entry, "path");
            if matches!(text(entry, "pathType"), "Exact" | "Prefix") && !target.starts_with('/') {
                let detail = "must be an absolute path";
                errors.push(FieldError::invalid(&path.child("path"), target, detail));
            }
            let backend = entry.get("backend").unwrap_or(&Value::Null);
            ingress_backend(backend, &path.child("backend"), &mut errors);
        }
    }
    errors
}

fn ingress_backend(backend: &Value, path: &Path, errors: &mut Errors) {
    match (at(backend, "service"), at(backend, "resource")) {
        (None, None) => {
            let detail = "resource or service backend is required";
            errors.push(FieldError::invalid(path, "", detail));
        }
        (Some(_), Some(_)) => {
            let detail = "cannot set both resource and service backends";
            errors.push(FieldError::invalid(path, "", detail));
        }
        (Some(service), None) => {
            let path = path.child("service");
            required(text(service, "name"), &path.child("name"), errors);
            let port = path.child("port");
            match (
                text(service, "port.name"),
                number(service, "port.number").unwrap_or(0),
            ) {
                ("", 0) => errors.push(FieldError::required(
                    &port,
                    "port name or number is required",
                )),
                ("", number) => port_number(number, &port.child("number"), errors),
                (_, 0) => {}
                _ => errors.push(FieldError::invalid(
                    &port,
                    backend
                        .pointer("/service/port")
                        .cloned()
                        .unwrap_or_default(),
                    "cannot set both port name & port number",
                )),
            }
        }
        (None, Some(_)) => {}
    }
}

pub(super) fn ingress_class() -> Described {
    let with = columns::with;
    describe("networking.k8s.io", "v1", "IngressClass", "ingressclasses")
        .cluster()
        .stored_only()
        .columns(vec![
            columns::name(),
            with("Controller", "string", 0, |o, _| {
                json!(text(o, "spec.controller"))
            }),
            with("Parameters", "string", 0, |o, _| {
                let Some(parameters) = at(o, "spec.parameters") else {
                    return json!("<none>");
                };
                let (kind, name) = (text(parameters, "kind"), text(parameters, "name"));
                match text(parameters, "apiGroup") {
                    "" => json!(format!("{kind}/{name}")),
                    group => json!(format!("{kind}.{group}/{name}")),
                }
            }),
            columns::age(),
        ])
        .strategy(Strategy {
            default: |object| typed::round_trip("networking.IngressClass", object),
            validate: |object| {
                let mut errors = Vec::new();
                let controller = text(object, "spec.controller");
                required(controller, &Path::new("spec.controller"), &mut errors);
                errors
            },
            validate_update: |new, old| {
                let mut errors = Vec::new();
                immutable(new, old, "spec.controller", &mut errors);
                errors
            },
            generation: true,
            ..Strategy::default()
        })
}
