//! Service, EndpointSlice, and the stored-only Ingress, IngressClass and NetworkPolicy.

mod ingress;
mod service;

use std::collections::HashSet;

use serde_json::{Value, json};

use ingress::{ingress, ingress_class};
use service::service;
pub(crate) use service::wants_address;

use super::checks::{Errors, immutable, named, one_of, one_of_if_set, port_number};
use super::fields::{at, list, number, text};
use super::pod::spec::ip_address;
use super::{Described, columns, describe, metadata, typed};
use crate::registry::resource::Strategy;
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
