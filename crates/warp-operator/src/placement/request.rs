//! What claims ask for as requests of the core: of which GPUs, at which provider, on which nodes. Pure.

use std::sync::Arc;

use warp_api::label;
use warp_api::workload::GpuAsk;
use warp_core::fleet::{Expression, GpuRequest, NodeTerm, Operator, Request};

use super::gang::alternatives;
use super::{Claim, PodClaim};
use crate::ledger::{Ledger, model_name};

/// What the pods of a claim ask for, in every way it may be met: at each provider, in each place its topology allows.
pub(super) fn by_provider(ledger: &Ledger, claim: &Claim, asked: &[Request]) -> Vec<Vec<Request>> {
    let at = |provider: &Option<String>| -> Vec<Vec<Request>> {
        let requests = asked.iter();
        let here = requests.map(|request| restricted(request, named(provider.as_deref())));
        alternatives(ledger, claim, here.collect())
    };
    claim.providers.iter().flat_map(at).collect()
}

/// On none of these nodes.
pub(crate) fn elsewhere(nodes: &[Arc<str>]) -> Expression {
    named_nodes(Operator::NotIn, nodes.to_vec())
}

/// On one of these nodes.
pub(super) fn on_one_of(nodes: Vec<Arc<str>>) -> Expression {
    named_nodes(Operator::In, nodes)
}

fn named_nodes(operator: Operator, values: Vec<Arc<str>>) -> Expression {
    Expression {
        key: Arc::from("metadata.name"),
        operator,
        values,
    }
}

/// The request without its provider: the pod's own and the GPUs asked for.
pub(crate) fn base_request(ledger: &Ledger, pod: &PodClaim) -> Request {
    let mut request = ledger.request(&pod.meta, &pod.spec);
    let mut gpu = gpu_request(ledger, &pod.gpus);
    gpu.resource.clone_from(&pod.resource);
    request.gpu = Some(gpu);
    // Models of the fleet do not tell forms apart; the nodes' product labels do. Nor can a request say which it must not be.
    let excludes = || ledger.devices().any(|device| pod.gpus.excludes(device));
    if pod.gpus.states_form() || excludes() {
        let meeting = ledger.gpus.iter().filter(|(_, gpus)| {
            let mut devices = gpus.devices.iter();
            devices.any(|device| pod.gpus.met_by(device))
        });
        let names = meeting.map(|(name, _)| Arc::from(name.as_str()));
        require(&mut request, None, Some(&on_one_of(names.collect())));
    }
    request
}

/// Models the fleet has that meet the ask, mixed groups included; where it has none, the ones asked
/// for, so that the explanation names them.
pub(super) fn gpu_request(ledger: &Ledger, ask: &GpuAsk) -> GpuRequest {
    let mut gpu = ask.request();
    if !ask.names.is_empty() {
        let meeting = ledger.devices().filter(|device| ask.met_by(device));
        gpu.models = meeting
            .map(|device| Arc::from(model_name(device)))
            .collect();
        if gpu.models.is_empty() {
            gpu.models = ask.model_names().into_iter().map(Arc::from).collect();
        }
    }
    gpu
}

/// A provider as its nodes name it; none where any will do.
pub(super) fn named(provider: Option<&str>) -> Option<&str> {
    provider.filter(|name| *name != label::PROVIDER_ANY)
}

pub(super) fn restricted(base: &Request, provider: Option<&str>) -> Request {
    let mut request = base.clone();
    if let Some(provider) = provider {
        let here = Expression::new(label::PROVIDER, Operator::In, &[provider]);
        require(&mut request, Some(&here), None);
    }
    request
}

/// Adds a requirement to every alternative of the node affinity.
pub(crate) fn require(
    request: &mut Request,
    label: Option<&Expression>,
    node: Option<&Expression>,
) {
    let terms = request
        .constraints
        .node_affinity
        .get_or_insert_with(|| vec![NodeTerm::default()]);
    for term in terms {
        term.match_expressions.extend(label.cloned());
        term.match_fields.extend(node.cloned());
    }
}
