//! Decisions of one pass, in queue order, each seeing the ones before it. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use warp_api::workload::{GpuAsk, SchedulingStrategy};
use warp_api::{GPUWorkload, label, reason};
use warp_core::fleet::{Expression, GpuRequest, NodeTerm, Operator, Request, WorkState};
use warp_core::gpu;
use warp_core::random::Fingerprint;
use warp_core::schedule::{Ask, Mix, Placement, Planner, Policy};

use super::Verdict;
use super::explain::{explain, fold, hint};
use super::quota::Quotas;
use crate::config::Settings;
use crate::ledger::{Ledger, model_name, provider_of};
use crate::workload::{Place, Shell, attempt, shell};

/// Workloads told the smallest change in one pass: finding it looks at every node many times.
const HINTS: usize = 8;

/// What happens to one workload.
#[derive(Clone, Debug)]
pub(crate) enum Decision {
    Place {
        job: Box<Job>,
        strategy: &'static str,
        why: String,
    },
    Wait(Verdict),
    /// Its spec is wrong; its own pass says so.
    Skip,
}

/// Decides for every workload in order. Placements are entered into the ledger as they are made.
pub(crate) fn all(
    ledger: &mut Ledger,
    wanted: &[Arc<GPUWorkload>],
    quotas: Quotas,
    settings: &Settings,
    now: Timestamp,
) -> Vec<(Arc<GPUWorkload>, Decision)> {
    let shells: Vec<_> = wanted.iter().map(|workload| shell(workload).ok()).collect();
    let asked = wanted.iter().zip(&shells).filter_map(|(workload, shell)| {
        let request = base_request(ledger, workload, shell.as_ref()?);
        Some(Ask::new(&ledger.fleet, &request))
    });
    let mut desk = Desk {
        mix: mix(ledger, asked),
        planners: BTreeMap::new(),
        hints: HINTS,
        quotas,
        settings,
        now,
    };
    let decide = |(workload, shell): (&Arc<GPUWorkload>, &Option<Shell>)| {
        let decision = match shell {
            Some(shell) => one(ledger, &mut desk, workload, shell),
            None => Decision::Skip,
        };
        (Arc::clone(workload), decision)
    };
    wanted.iter().zip(&shells).map(decide).collect()
}

/// What the decisions of one pass share.
struct Desk<'a> {
    /// What is asked for: the queue and what runs already.
    mix: Mix,
    planners: BTreeMap<Policy, Planner>,
    /// Workloads that may still be told the smallest change in this pass.
    hints: usize,
    /// What the namespaces' quotas leave.
    quotas: Quotas,
    settings: &'a Settings,
    now: Timestamp,
}

fn one(
    ledger: &mut Ledger,
    desk: &mut Desk<'_>,
    workload: &GPUWorkload,
    shell: &Shell,
) -> Decision {
    let strategy = workload
        .spec
        .scheduling_strategy
        .unwrap_or(desk.settings.default_strategy);
    let namespace = workload.namespace().unwrap_or_default();
    // The node decides the resource's name where a vendor has several: one that is left will do.
    let possible = shell.ask.vendor.resources().iter();
    let barred = possible.map(|resource| desk.quotas.blocks(&namespace, &shell.pod(resource)));
    let barred: Option<Vec<Verdict>> = barred.collect();
    if let Some(verdict) = barred.and_then(|verdicts| verdicts.into_iter().next()) {
        return Decision::Wait(verdict);
    }
    let base = base_request(ledger, workload, shell);
    let refused = refused_nodes(workload, desk.now);
    let providers = providers(workload);
    let mut tried = Vec::new();
    for provider in &providers {
        let request = restricted(&base, provider.as_deref());
        match choose_elsewhere(ledger, desk, workload, &request, &refused, strategy) {
            Some(placement) => {
                let decision = placed(
                    ledger, workload, shell, request, &placement, strategy, &tried,
                );
                if let Decision::Place { job, .. } = &decision {
                    let pod = job
                        .spec
                        .as_ref()
                        .and_then(|spec| spec.template.spec.as_ref());
                    if let Some(pod) = pod {
                        desk.quotas.promise(&namespace, pod);
                    }
                }
                return decision;
            }
            None => tried.push((
                provider.clone(),
                explain(ledger, &request, &shell.ask, provider.as_deref(), &refused),
            )),
        }
    }
    let mut verdict = fold(tried);
    if verdict.reason == reason::WAITING_FOR_CAPACITY
        && desk.hints > 0
        && let [only] = providers.as_slice()
    {
        desk.hints -= 1;
        let request = restricted(&base, only.as_deref());
        let own = workload.spec.pod_template.as_ref();
        let own = own.and_then(|template| template.spec.as_ref()?.affinity.as_ref());
        let affinity = own.is_some_and(|affinity| affinity.node_affinity.is_some());
        if let Some(hint) = hint(ledger, &request, affinity) {
            verdict.message = format!("{}; {hint}", verdict.message);
        }
    }
    Decision::Wait(verdict)
}

/// The best place that the cluster's scheduler has not refused lately.
fn choose_elsewhere(
    ledger: &Ledger,
    desk: &mut Desk<'_>,
    workload: &GPUWorkload,
    request: &Request,
    refused: &[Arc<str>],
    strategy: SchedulingStrategy,
) -> Option<Placement> {
    if refused.is_empty() {
        return choose(ledger, desk, workload, request, strategy);
    }
    let elsewhere = Expression {
        key: Arc::from("metadata.name"),
        operator: Operator::NotIn,
        values: refused.to_vec(),
    };
    let mut request = request.clone();
    require(&mut request, None, Some(&elsewhere));
    choose(ledger, desk, workload, &request, strategy)
}

fn choose(
    ledger: &Ledger,
    desk: &mut Desk<'_>,
    workload: &GPUWorkload,
    request: &Request,
    strategy: SchedulingStrategy,
) -> Option<Placement> {
    let policy = Policy::from(strategy);
    if policy == Policy::Random {
        // The dice follow from the workload and its attempt: reproducible, and not the same node
        // for everybody.
        let uid = workload.uid().unwrap_or_default();
        let seed = Fingerprint::default()
            .text(&uid)
            .signed(i64::from(attempt(workload)))
            .get();
        return Planner::new(policy, seed).choose(&ledger.fleet, request);
    }
    let Desk {
        planners,
        mix,
        settings,
        ..
    } = desk;
    let fresh = || {
        let weighed = policy.weighing(settings.price_weight);
        Planner::with_strategy(weighed.live(0, &ledger.fleet, mix), 0)
    };
    let planner = planners.entry(policy).or_insert_with(fresh);
    planner.choose(&ledger.fleet, request)
}

/// What waits and what the cluster runs, as the best guess of what it will be asked for next. Read
/// from the snapshot alone, so that a restart changes no decision.
fn mix(ledger: &Ledger, asked: impl Iterator<Item = Ask>) -> Mix {
    let mut mix = Mix::default();
    for ask in asked {
        mix.see(&ask);
    }
    for work in ledger.fleet.works() {
        mix.see(&Ask::new(&ledger.fleet, &work.request));
    }
    mix
}

/// Enters a placement and makes its Job.
fn placed(
    ledger: &mut Ledger,
    workload: &GPUWorkload,
    shell: &Shell,
    request: Request,
    placement: &Placement,
    strategy: SchedulingStrategy,
    tried: &[(Option<String>, Verdict)],
) -> Decision {
    let node = placement.node.to_string();
    let described = ledger.fleet.node(placement.node_id).cloned();
    let pool = placement.gpus.as_ref().map_or(0, |taken| taken.pool);
    let Some(described) = described else {
        return Decision::Skip;
    };
    let Some(resource) = described
        .gpus
        .get(pool)
        .map(|pool| pool.resource.to_string())
    else {
        return Decision::Skip;
    };
    let provider = provider_of(&described).to_owned();
    let mut why = format!(
        "{} chose node {node} of provider {provider}",
        strategy.as_str()
    );
    if strategy == SchedulingStrategy::CostOptimized && !ledger.fleet.totals().priced() {
        let cheap = ledger.fleet.nodes().any(|(_, node)| node.cheap);
        let instead = if cheap {
            "nodes marked cheap and then the emptiest"
        } else {
            "the emptiest"
        };
        why = format!(
            "{why}; no node has a price (label {}), so it went by {instead}",
            gpu::PRICE_LABEL
        );
    }
    for (name, verdict) in tried {
        let name = name.as_deref().unwrap_or_default();
        why = format!(
            "{why}; provider {name} was passed over: {}",
            verdict.message
        );
    }
    let place = Place {
        node: &node,
        resource: &resource,
        evidence: ledger
            .device(&node, &resource)
            .and_then(|device| device.evidence.as_ref()),
        strategy: strategy.as_str(),
        provider: &provider,
        why: &why,
    };
    let job = Box::new(shell.job(workload, attempt(workload), &place));
    let id = Arc::from(workload.uid().unwrap_or_default());
    let work = placement.work(id, Arc::new(request), 0, WorkState::Reserved);
    if let Err(error) = ledger.fleet.bind(work) {
        tracing::error!(error = %error, "a decision was not entered into the ledger");
        return Decision::Skip;
    }
    Decision::Place {
        job,
        strategy: strategy.as_str(),
        why,
    }
}

/// The request without its provider: the pod's own and the GPUs asked for.
fn base_request(ledger: &Ledger, workload: &GPUWorkload, shell: &Shell) -> Request {
    let spec = shell.template.spec.clone().unwrap_or_default();
    // With the labels its pod will carry: spread and anti-affinity may select by them.
    let mut meta = shell.labelled(workload, attempt(workload));
    meta.name = Some(workload.name_any());
    meta.namespace = workload.namespace();
    let mut request = ledger.request(&meta, &spec);
    request.gpu = Some(gpu_request(ledger, &shell.ask));
    // Models of the fleet do not tell forms apart; the nodes' product labels do.
    if shell.ask.states_form() {
        let meeting = ledger.gpus.iter().filter(|(_, gpus)| {
            let mut devices = gpus.devices.iter();
            devices.any(|device| shell.ask.met_by(device))
        });
        let here = Expression {
            key: Arc::from("metadata.name"),
            operator: Operator::In,
            values: meeting.map(|(name, _)| Arc::from(name.as_str())).collect(),
        };
        require(&mut request, None, Some(&here));
    }
    request
}

/// Nodes the cluster's scheduler refused lately.
fn refused_nodes(workload: &GPUWorkload, now: Timestamp) -> Vec<Arc<str>> {
    let refused = workload
        .status
        .iter()
        .flat_map(|status| &status.refused_nodes);
    refused
        .filter(|refused| refused.until.0 > now)
        .map(|refused| Arc::from(refused.name.as_str()))
        .collect()
}

/// Models the fleet has that meet the ask, mixed groups included; where it has none, the ones asked
/// for, so that the explanation names them.
fn gpu_request(ledger: &Ledger, ask: &GpuAsk) -> GpuRequest {
    let mut gpu = GpuRequest::whole(ask.count);
    gpu.vendor = Some(Arc::from(ask.vendor.as_str()));
    gpu.min_memory_bytes = ask.min_memory_mib << 20;
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

/// The providers a workload may use, in order; one `None` when it does not say.
fn providers(workload: &GPUWorkload) -> Vec<Option<String>> {
    let said = workload.labels().get(label::PROVIDER);
    let said = said.or_else(|| workload.annotations().get(label::PROVIDER));
    let names = said.into_iter().flat_map(|list| list.split(','));
    let named: Vec<Option<String>> = names
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .map(|name| Some(name.to_owned()))
        .collect();
    if named.is_empty() { vec![None] } else { named }
}

fn restricted(base: &Request, provider: Option<&str>) -> Request {
    let mut request = base.clone();
    if let Some(provider) = provider {
        let here = Expression::new(label::PROVIDER, Operator::In, &[provider]);
        require(&mut request, Some(&here), None);
    }
    request
}

/// Adds a requirement to every alternative of the node affinity.
fn require(request: &mut Request, label: Option<&Expression>, node: Option<&Expression>) {
    let terms = request
        .constraints
        .node_affinity
        .get_or_insert_with(|| vec![NodeTerm::default()]);
    for term in terms {
        term.match_expressions.extend(label.cloned());
        term.match_fields.extend(node.cloned());
    }
}
