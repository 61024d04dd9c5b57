//! Service, EndpointSlice, and the stored-only Ingress, IngressClass and NetworkPolicy.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Value, json};

use super::checks::{Errors, immutable, named, one_of, one_of_if_set, port, port_number, required};
use super::fields::{at, list, number, text};
use super::pod::spec::ip_address;
use super::{Described, columns, describe, keep_status, metadata, typed};
use crate::registry::name;
use crate::registry::resource::{SelectableField, Strategy, Subresource};
use crate::schema::{FieldError, Path};

pub(super) fn descriptors() -> Vec<Described> {
    vec![
        service(),
        endpoint_slice(),
        ingress(),
        ingress_class(),
        network_policy(),
    ]
}

fn service() -> Described {
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

fn balancer_addresses(object: &Value) -> Vec<String> {
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

fn shortened(all: &[String], most: usize) -> String {
    if all.is_empty() {
        return "<unset>".to_owned();
    }
    let shown = all[..all.len().min(most)].join(",");
    if all.len() > most {
        format!("{shown} + {} more...", all.len() - most)
    } else {
        shown
    }
}

fn endpoint_slice() -> Described {
    let with = columns::with;
    describe("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
        .columns(vec![
            columns::name(),
            with("AddressType", "string", 0, |o, _| {
                json!(text(o, "addressType"))
            }),
            with("Ports", "string", 0, |o, _| {
                let ports: Vec<String> = list(o, "ports")
                    .iter()
                    .map(|port| match (number(port, "port"), text(port, "name")) {
                        (Some(number), _) => number.to_string(),
                        (None, "") => "*".to_owned(),
                        (None, name) => name.to_owned(),
                    })
                    .collect();
                json!(shortened(&ports, 3))
            }),
            with("Endpoints", "string", 0, |o, _| {
                let addresses: Vec<String> = list(o, "endpoints")
                    .iter()
                    .flat_map(|endpoint| list(endpoint, "addresses"))
                    .filter_map(|address| address.as_str().map(str::to_owned))
                    .collect();
                json!(shortened(&addresses, 3))
            }),
            columns::age(),
        ])
        .strategy(Strategy {
            default: |object| typed::round_trip("discovery.EndpointSlice", object),
            validate: validate_endpoint_slice,
            validate_update: |new, old| {
                let mut errors = Vec::new();
                immutable(new, old, "addressType", &mut errors);
                errors
            },
            generation: true,
            ..Strategy::default()
        })
}

fn validate_endpoint_slice(object: &Value) -> Errors {
    let mut errors = Vec::new();
    one_of(
        object,
        "addressType",
        &["FQDN", "IPv4", "IPv6"],
        &Path::root(),
        &mut errors,
    );
    let endpoints = list(object, "endpoints");
    if endpoints.len() > 1000 {
        let count = i64::try_from(endpoints.len()).unwrap_or(i64::MAX);
        errors.push(FieldError::too_many(&Path::new("endpoints"), count, 1000));
    }
    for (index, endpoint) in endpoints.iter().enumerate() {
        let path = Path::new("endpoints").index(index).child("addresses");
        let addresses = list(endpoint, "addresses");
        if addresses.is_empty() {
            errors.push(FieldError::required(
                &path,
                "must contain at least 1 address",
            ));
        }
        for (place, address) in addresses.iter().enumerate() {
            let address = address.as_str().unwrap_or_default();
            match text(object, "addressType") {
                "FQDN" => named(
                    metadata::subdomain(address),
                    address,
                    &path.index(place),
                    &mut errors,
                ),
                _ => ip_address(address, &path.index(place), &mut errors),
            }
        }
    }
    let mut names = HashSet::new();
    for (index, value) in list(object, "ports").iter().enumerate() {
        let path = Path::new("ports").index(index);
        if !names.insert(text(value, "name")) {
            errors.push(FieldError::duplicate(
                &path.child("name"),
                text(value, "name"),
            ));
        }
        one_of_if_set(
            value,
            "protocol",
            &["SCTP", "TCP", "UDP"],
            &path,
            &mut errors,
        );
        if let Some(number) = number(value, "port") {
            port_number(number, &path.child("port"), &mut errors);
        }
    }
    errors
}

fn ingress() -> Described {
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

fn ingress_class() -> Described {
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

fn network_policy() -> Described {
    describe(
        "networking.k8s.io",
        "v1",
        "NetworkPolicy",
        "networkpolicies",
    )
    .short("netpol")
    .stored_only()
    .columns(vec![
        columns::name(),
        columns::with("Pod-Selector", "string", 0, |o, _| {
            json!(columns::selector_text(o.pointer("/spec/podSelector")))
        }),
        columns::age(),
    ])
    .strategy(Strategy {
        default: |object| typed::round_trip("networking.NetworkPolicy", object),
        prepare_create: |object| {
            if let Some(map) = object.as_object_mut() {
                map.remove("status");
            }
        },
        validate: |object| {
            let mut errors = Vec::new();
            let spec = Path::new("spec");
            if let Some(selector) = at(object, "spec.podSelector") {
                metadata::label_selector(selector, &spec.child("podSelector"), &mut errors);
            }
            for (index, kind) in list(object, "spec.policyTypes").iter().enumerate() {
                let allowed = ["Egress", "Ingress"];
                let kind = kind.as_str().unwrap_or_default();
                if !allowed.contains(&kind) {
                    let path = spec.child("policyTypes").index(index);
                    errors.push(FieldError::not_supported(&path, kind, &allowed));
                }
            }
            errors
        },
        generation: true,
        ..Strategy::default()
    })
}

/// Whether a service wants an address of its own.
pub(crate) fn wants_address(service: &Value) -> bool {
    text(service, "spec.type") != "ExternalName" && text(service, "spec.clusterIP").is_empty()
}
