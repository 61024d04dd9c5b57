//! Services get an address. Nothing here routes to it, but names resolve to it and objects that
//! were written on a real cluster keep their shape.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::{Admission, AdmissionRequest, Operation, ReadState, Refusal, Warnings};
use crate::kinds::fields::{list, number, text};
use crate::kinds::wants_address;
use crate::schema::{FieldError, Path};

/// `10.96.0.0/12`, as kubeadm has it, from the eleventh address on.
const FIRST: u32 = 0x0A60_000A;
const LAST: u32 = 0x0A6F_FFFE;
const NODE_PORTS: std::ops::RangeInclusive<i64> = 30000..=32767;

pub(super) struct Addresses;

impl Admission for Addresses {
    fn admit(
        &self,
        request: &mut AdmissionRequest<'_>,
        state: &dyn ReadState,
    ) -> Result<Warnings, Refusal> {
        if !request.is(Operation::Create, "services") && !request.is(Operation::Update, "services")
        {
            return Ok(Warnings::new());
        }
        let kind = text(request.object, "spec.type").to_owned();
        if kind == "ExternalName" {
            return Ok(Warnings::new());
        }
        let kept = request.old.map_or("", |old| text(old, "spec.clusterIP"));
        let others = || {
            let all = state.list("services", None).into_iter();
            all.filter(|other| {
                text(other, "metadata.name") != request.name
                    || Some(text(other, "metadata.namespace")) != request.namespace
            })
            .collect::<Vec<Value>>()
        };
        let others = if kept.is_empty() || kind != "ClusterIP" {
            others()
        } else {
            Vec::new()
        };
        if wants_address(request.object) {
            let address = if kept.is_empty() {
                let taken: HashSet<&str> = others
                    .iter()
                    .map(|other| text(other, "spec.clusterIP"))
                    .collect();
                free_address(&taken, request.namespace.unwrap_or_default(), request.name)
                    .ok_or_else(|| Refusal::forbidden("no address is left for another service"))?
            } else {
                kept.to_owned()
            };
            request.object["spec"]["clusterIP"] = json!(address);
        }
        let address = text(request.object, "spec.clusterIP").to_owned();
        let named = !matches!(address.as_str(), "" | "None") && address != kept;
        if named
            && others
                .iter()
                .any(|other| text(other, "spec.clusterIP") == address)
        {
            let why = format!("failed to allocate IP {address}: provided IP is already allocated");
            let path = Path::new("spec.clusterIPs");
            return Err(Refusal::Invalid(vec![FieldError::invalid(
                &path,
                json!([address]),
                why,
            )]));
        }
        let spec = &mut request.object["spec"];
        spec["clusterIPs"] = json!([address]);
        if spec.get("ipFamilies").is_none() {
            let family = if address.contains(':') {
                "IPv6"
            } else {
                "IPv4"
            };
            spec["ipFamilies"] = json!([family]);
        }
        if spec.get("ipFamilyPolicy").is_none() {
            spec["ipFamilyPolicy"] = json!("SingleStack");
        }
        if matches!(kind.as_str(), "NodePort" | "LoadBalancer") {
            node_ports(spec, &others)?;
        }
        Ok(Warnings::new())
    }
}

/// The first free address from a place the name decides, so that it is the same next time.
fn free_address(taken: &HashSet<&str>, namespace: &str, name: &str) -> Option<String> {
    let span = LAST - FIRST + 1;
    let start = format!("{namespace}/{name}")
        .bytes()
        .fold(2_166_136_261u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(16_777_619)
        });
    (0..span)
        .map(|step| std::net::Ipv4Addr::from(FIRST + (start.wrapping_add(step)) % span).to_string())
        .find(|address| !taken.contains(address.as_str()))
}

fn node_ports(spec: &mut Value, others: &[Value]) -> Result<(), Refusal> {
    let mut taken: HashSet<i64> = others
        .iter()
        .flat_map(|other| list(other, "spec.ports").to_vec())
        .filter_map(|port| number(&port, "nodePort"))
        .filter(|port| *port != 0)
        .collect();
    let own = list(spec, "ports").to_vec();
    let named = own.iter().map(|port| number(port, "nodePort").unwrap_or(0));
    let clashes: Vec<FieldError> = named
        .clone()
        .enumerate()
        .filter(|(_, port)| taken.contains(port))
        .map(|(position, port)| {
            let path = Path::new("spec.ports").index(position).child("nodePort");
            FieldError::invalid(&path, port, "provided port is already allocated")
        })
        .collect();
    if !clashes.is_empty() {
        return Err(Refusal::Invalid(clashes));
    }
    taken.extend(named);
    let ports = spec.get_mut("ports").and_then(Value::as_array_mut);
    for port in ports.into_iter().flatten().filter_map(Value::as_object_mut) {
        if port.get("nodePort").and_then(Value::as_i64).unwrap_or(0) != 0 {
            continue;
        }
        let free = NODE_PORTS
            .clone()
            .find(|number| !taken.contains(number))
            .ok_or_else(|| Refusal::forbidden("no node port is left for another service"))?;
        taken.insert(free);
        port.insert("nodePort".to_owned(), json!(free));
    }
    Ok(())
}
