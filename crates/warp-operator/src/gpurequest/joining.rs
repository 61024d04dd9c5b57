//! How the machine of an attempt becomes a node: its certificate, the end of its token, and the test of its GPUs. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use serde_json::json;
use warp_api::cloudprovider::BootstrapType;
use warp_api::gpurequest::RequestAttempt;
use warp_api::{GPURequest, label, reason};
use warp_cloud::join::{GPU_TEST, STARTING};
use warp_core::gpu::Vendor;
use warp_runtime::cache::Key;
use warp_runtime::plan::{Call, Plan, What, about};

use super::choose::later;
use super::observe::Open;
use crate::joining::{CERTIFICATES, TOKENS, certificate};
use crate::workload::tenant_of;

/// How often it is looked whether a machine asks for its certificate.
const LOOK: SignedDuration = SignedDuration::from_secs(2);
/// How long the end of an attempt waits for that of its token, which dies by itself soon after.
const PATIENCE: SignedDuration = SignedDuration::from_mins(5);
/// Requests of others that are remembered.
const REMEMBERED: usize = 16;

fn taints(node: &Node) -> &[Taint] {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref());
    taints.unwrap_or_default()
}

/// Whether a node's GPUs are not tested yet.
pub(super) fn is_starting(node: &Node) -> bool {
    taints(node).iter().any(|taint| taint.key == STARTING)
}

/// What the test of a node's GPUs found wrong.
pub(super) fn test_failure(node: &Node) -> Option<String> {
    let said = node.annotations().get(GPU_TEST)?;
    (is_starting(node) && said != "passed").then(|| said.chars().take(256).collect())
}

/// Whether the machine of an attempt has a token to join with.
fn joins(attempt: &RequestAttempt) -> bool {
    attempt.bootstrap.is_some_and(BootstrapType::joins)
}

/// What a pass does for a machine that joins or has joined.
pub(super) fn follow(
    plan: &mut Plan,
    attempt: &mut RequestAttempt,
    request: &GPURequest,
    open: &Open,
    now: Timestamp,
) {
    if !joins(attempt) {
        return;
    }
    match open.node.as_deref() {
        Some(node) => {
            revoked(plan, attempt, request, open, now);
            let kept = tenant_of(request).is_some() && shows_gpus(node, attempt.gpus);
            open_to_work(plan, node, kept);
        }
        None if attempt.instance_id.is_some() && attempt.ending.is_none() => {
            certificates(plan, attempt, request, open, now);
        }
        None => {}
    }
}

/// Takes the first taint off a node whose GPUs work, and puts one on that keeps pods of others off a machine that was
/// rented for a workload. What a node needs to show its GPUs is there by then.
fn open_to_work(plan: &mut Plan, node: &Node, kept: bool) {
    let passed = node
        .annotations()
        .get(GPU_TEST)
        .is_some_and(|said| said == "passed");
    let has = taints(node);
    let mut wanted: Vec<Taint> = has.to_vec();
    if passed {
        wanted.retain(|taint| taint.key != STARTING);
    }
    if kept && !wanted.iter().any(|taint| taint.key == label::RENTED_FOR) {
        wanted.push(Taint {
            key: label::RENTED_FOR.to_owned(),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        });
    }
    if wanted != has {
        plan.merge(node, json!({"spec": {"taints": wanted}}));
        plan.because(if is_starting(node) {
            "the GPUs of a rented machine work"
        } else {
            "the machine was rented for one workload"
        });
    }
}

/// Whether a node offers as many GPUs as its machine has.
fn shows_gpus(node: &Node, gpus: u32) -> bool {
    let offered = node
        .status
        .as_ref()
        .and_then(|status| status.allocatable.as_ref());
    let counts = offered
        .into_iter()
        .flatten()
        .filter(|(name, _)| Vendor::of_resource(name).is_some())
        .filter_map(|(_, count)| count.0.parse::<u32>().ok());
    gpus > 0 && counts.sum::<u32>() >= gpus
}

/// Approves the certificate the machine asks for: the first, of its own name, with its own token. Which one that is was
/// written down by a pass before.
fn certificates(
    plan: &mut Plan,
    attempt: &mut RequestAttempt,
    request: &GPURequest,
    open: &Open,
    now: Timestamp,
) {
    if attempt.bootstrap != Some(BootstrapType::Kubeadm) {
        return;
    }
    let sight = &open.certificates;
    let asked = sight.asked.filter(|asked| *asked >= attempt.intended_at.0);
    let due = asked.map_or(now, |asked| later(asked, LOOK));
    if due <= now && !sight.busy {
        plan.calls
            .push(call(CERTIFICATES, request, &attempt.machine, What::LookUp));
    }
    plan.look_again(later(now, LOOK));
    let found = sight.there.clone().filter(|_| asked.is_some());
    let found: Vec<CertificateSigningRequest> = found
        .and_then(|found| serde_json::from_value(found).ok())
        .unwrap_or_default();
    let recorded = attempt.certificate_request.clone();
    for one in &found {
        let name = one.name_any();
        if recorded.as_ref() == Some(&name) {
            if !certificate::is_decided(one) && attempt.certificate_approved_at.is_none() {
                plan.push(certificate::approval(one, &attempt.machine, now));
                plan.because("a rented machine asks for its own certificate");
                attempt.certificate_approved_at = Some(Time(now));
            }
            continue;
        }
        if certificate::is_decided(one) || attempt.ignored_certificates.contains(&name) {
            continue;
        }
        let objection = certificate::objection(one, &attempt.machine);
        if objection.is_none() && attempt.certificate_request.is_none() {
            attempt.certificate_request = Some(name);
            continue;
        }
        let why =
            objection.unwrap_or_else(|| "the machine has asked for another before".to_owned());
        if attempt.ignored_certificates.len() < REMEMBERED {
            let text = format!("CertificateSigningRequest {name} is left alone: {why}");
            plan.note(about(request), true, reason::CERTIFICATE_IGNORED, text);
            attempt.ignored_certificates.push(name);
        }
    }
}

/// Sees to it that an attempt's token is gone; whether it is, or there never was one.
pub(super) fn revoked(
    plan: &mut Plan,
    attempt: &mut RequestAttempt,
    request: &GPURequest,
    open: &Open,
    now: Timestamp,
) -> bool {
    if !joins(attempt) || attempt.token_revoked_at.is_some() {
        return true;
    }
    let sight = &open.token;
    let done = sight
        .last_remove
        .is_some_and(|sent| sight.asked >= Some(sent));
    if done && !sight.busy && sight.failed.is_none() {
        attempt.token_revoked_at = Some(Time(now));
        return true;
    }
    if !sight.busy {
        plan.calls
            .push(call(TOKENS, request, &attempt.machine, What::Remove));
    }
    plan.look_again(later(now, LOOK));
    let since = attempt.ending_since.as_ref().map(|since| since.0);
    since.is_some_and(|since| later(since, PATIENCE) <= now)
}

fn call(outside: &'static str, request: &GPURequest, machine: &str, what: What) -> Call {
    Call {
        outside,
        for_key: Key::of(request),
        name: machine.to_owned(),
        what,
    }
}
