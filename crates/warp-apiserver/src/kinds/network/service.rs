//! Service.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Value, json};

use crate::kinds::checks::{Errors, named, one_of, one_of_if_set, port, port_number};
use crate::kinds::fields::{at, list, number, text};
use crate::kinds::pod::spec::ip_address;
use crate::kinds::{Described, columns, describe, keep_status, metadata, typed};
use crate::registry::name;
use crate::registry::resource::{SelectableField, Strategy, Subresource};
use crate::schema::{FieldError, Path};

pub(super) fn service() -> Described {
    let with = columns::with;
    describe("", "v1", "Service", "services")
        .short("svc")
        .category("all")
        .subresources([Subresource::Status])
        .columns(vec![
            columns::name(),
            with("Type", "string", 0, |o, _| json!(text(o, "spec.type"))),
            with("Cluster-IP", "string", 0, |o, _| {
                columns::none_if_empty(
                    list(o, "spec.clusterIPs")
                        .first()
                        .and_then(Value::as_str)
                        .unwrap_or(""),
                )
            }),
            with("External-IP", "string", 0, |o, _| {
                json!(external_address(o))
            }),
            with("Port(s)", "string", 0, |o, _| {
                columns::none_if_empty(&ports_text(o))
            }),
            columns::age(),
            with("Selector", "string", 1, |o, _| {
                json!(columns::labels_text(o, "spec.selector"))
            }),
        ])
        .selectable([
            SelectableField::new("spec.clusterIP"),
            SelectableField::new("spec.type"),
        ])
        .strategy(Strategy {
            default: |object| typed::round_trip("core.Service", object),
            prepare_create: |object| {
                object["status"] = json!({"loadBalancer": {}});
            },
            prepare_update: |object, old| {
                keep_addresses(object, old);
                keep_status(object, old);
            },
            validate: validate_service,
            validate_update: |new, old| {
                let mut errors = Vec::new();
                let kept = text(old, "spec.type") != "ExternalName"
                    && text(new, "spec.type") != "ExternalName";
                let (after, before) = (list(new, "spec.clusterIPs"), list(old, "spec.clusterIPs"));
                if kept && !before.is_empty() && after.first() != before.first() {
                    let path = Path::new("spec.clusterIPs").index(0);
                    let value = at(new, "spec.clusterIPs").cloned().unwrap_or_default();
                    errors.push(FieldError::invalid(&path, value, "may not change once set"));
                }
                errors
            },
            validate_name: name::label_1035,
            return_deleted: true,
            ..Strategy::default()
        })
}

/// An update that does not mention the allocated addresses keeps them.
fn keep_addresses(object: &mut Value, old: &Value) {
    if text(object, "spec.type") == "ExternalName" || text(old, "spec.type") == "ExternalName" {
        return;
    }
    for name in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
        let path = format!("spec.{name}");
        if at(object, &path).is_none()
            && let Some(value) = at(old, &path)
        {
            object["spec"][name] = value.clone();
        }
    }
    if text(object, "spec.type") == "ClusterIP" {
        return;
    }
    let before = list(old, "spec.ports").to_vec();
    let ports = object
        .pointer_mut("/spec/ports")
        .and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        let same = before.iter().find(|old| {
            old.get("port") == port.get("port") && old.get("protocol") == port.get("protocol")
        });
        if let (None, Some(number)) = (
            port.get("nodePort"),
            same.and_then(|old| old.get("nodePort")),
        ) {
            port.insert("nodePort".to_owned(), number.clone());
        }
    }
}

fn external_address(service: &Value) -> String {
    let external: Vec<&str> = list(service, "spec.externalIPs")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    match text(service, "spec.type") {
        "ClusterIP" | "NodePort" if external.is_empty() => "<none>".to_owned(),
        "ClusterIP" | "NodePort" => external.join(","),
        "LoadBalancer" => {
            let mut all = balancer_addresses(service);
            all.extend(external.into_iter().map(str::to_owned));
            if all.is_empty() {
                "<pending>".to_owned()
            } else {
                all.join(",")
            }
        }
        "ExternalName" => text(service, "spec.externalName").to_owned(),
        _ => "<unknown>".to_owned(),
    }
}

pub(super) fn balancer_addresses(object: &Value) -> Vec<String> {
    let found: BTreeSet<String> = list(object, "status.loadBalancer.ingress")
        .iter()
        .map(|entry| match text(entry, "ip") {
            "" => text(entry, "hostname"),
            ip => ip,
        })
        .filter(|address| !address.is_empty())
        .map(str::to_owned)
        .collect();
    found.into_iter().collect()
}

fn ports_text(service: &Value) -> String {
    let ports: Vec<String> = list(service, "spec.ports")
        .iter()
        .map(|port| {
            let (outer, protocol) = (number(port, "port").unwrap_or(0), text(port, "protocol"));
            match number(port, "nodePort").unwrap_or(0) {
                0 => format!("{outer}/{protocol}"),
                node => format!("{outer}:{node}/{protocol}"),
            }
        })
        .collect();
    ports.join(",")
}

fn validate_service(service: &Value) -> Errors {
    let mut errors = Vec::new();
    let path = Path::new("spec");
    let spec = service.get("spec").unwrap_or(&Value::Null);
    let kind = text(spec, "type");
    let headless = text(spec, "clusterIP") == "None";
    let ports = list(spec, "ports");
    if ports.is_empty() && !headless && kind != "ExternalName" {
        errors.push(FieldError::required(&path.child("ports"), ""));
    }
    match kind {
        "LoadBalancer" | "NodePort" if headless => {
            let detail = format!("may not be set to 'None' for {kind} services");
            errors.push(FieldError::invalid(
                &path.child("clusterIPs").index(0),
                "None",
                detail,
            ));
        }
        "ExternalName" => {
            let target = text(spec, "externalName").trim_end_matches('.');
            if target.is_empty() {
                errors.push(FieldError::required(&path.child("externalName"), ""));
            } else {
                named(
                    metadata::subdomain(target),
                    target,
                    &path.child("externalName"),
                    &mut errors,
                );
            }
            if !text(spec, "clusterIP").is_empty() {
                let detail = "may not be set for ExternalName services";
                errors.push(FieldError::forbidden(&path.child("clusterIPs"), detail));
            }
        }
        _ => {}
    }
    service_ports(ports, kind, &path.child("ports"), &mut errors);
    metadata::labels(spec.get("selector"), &path.child("selector"), &mut errors);
    one_of(
        spec,
        "sessionAffinity",
        &["ClientIP", "None"],
        &path,
        &mut errors,
    );
    let kinds = ["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"];
    one_of(spec, "type", &kinds, &path, &mut errors);
    for (index, address) in list(spec, "externalIPs").iter().enumerate() {
        let path = path.child("externalIPs").index(index);
        ip_address(address.as_str().unwrap_or_default(), &path, &mut errors);
    }
    let address = text(spec, "clusterIP");
    if !address.is_empty() && address != "None" {
        ip_address(address, &path.child("clusterIPs").index(0), &mut errors);
    }
    let policies = ["Cluster", "Local"];
    for name in ["externalTrafficPolicy", "internalTrafficPolicy"] {
        one_of_if_set(spec, name, &policies, &path, &mut errors);
    }
    errors
}

fn service_ports(ports: &[Value], kind: &str, path: &Path, errors: &mut Errors) {
    let mut names = HashSet::new();
    let mut numbers = HashSet::new();
    for (index, value) in ports.iter().enumerate() {
        let path = path.index(index);
        let name = text(value, "name");
        if name.is_empty() {
            if ports.len() > 1 {
                errors.push(FieldError::required(&path.child("name"), ""));
            }
        } else {
            named(
                metadata::dns1123_label(name),
                name,
                &path.child("name"),
                errors,
            );
            if !names.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
        let outer = number(value, "port").unwrap_or(0);
        port_number(outer, &path.child("port"), errors);
        one_of(value, "protocol", &["SCTP", "TCP", "UDP"], &path, errors);
        port(value.get("targetPort"), &path.child("targetPort"), errors);
        if kind == "ClusterIP" && number(value, "nodePort").is_some_and(|number| number != 0) {
            let detail = "may not be used when `type` is 'ClusterIP'";
            errors.push(FieldError::forbidden(&path.child("nodePort"), detail));
        }
        if !numbers.insert((text(value, "protocol"), outer)) {
            let key = json!({
                "Name": "", "Protocol": text(value, "protocol"), "AppProtocol": null,
                "Port": outer, "TargetPort": 0, "NodePort": 0,
            });
            errors.push(FieldError::duplicate(&path, key));
        }
    }
}

/// Whether a service wants an address of its own.
pub(crate) fn wants_address(service: &Value) -> bool {
    text(service, "spec.type") != "ExternalName" && text(service, "spec.clusterIP").is_empty()
}
