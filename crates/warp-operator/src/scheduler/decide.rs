//! Decisions of one pass, in queue order, each seeing the ones before it. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use warp_api::workload::{GpuAsk, SchedulingStrategy};
use warp_api::{GPUWorkload, label, reason};
use warp_core::fleet::{Expression, GpuRequest, NodeTerm, Operator, Request, WorkState};
use warp_core::random::Fingerprint;
use warp_core::schedule::fit::Filter;
use warp_core::schedule::{Ask, Mix, Placement, Planner, Policy, Reason};

use super::Verdict;
use crate::config::Settings;
use crate::ledger::{self, Ledger, model_name, provider_of};
use crate::workload::{Place, Shell, attempt, shell};

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
    settings: &Settings,
    now: Timestamp,
) -> Vec<(Arc<GPUWorkload>, Decision)> {
    let mut planners = BTreeMap::new();
    let decide = |workload: &Arc<GPUWorkload>| {
        let decision = match shell(workload) {
            Ok(shell) => one(ledger, &mut planners, workload, &shell, settings, now),
            Err(_) => Decision::Skip,
        };
        (Arc::clone(workload), decision)
    };
    wanted.iter().map(decide).collect()
}

fn one(
    ledger: &mut Ledger,
    planners: &mut BTreeMap<Policy, Planner>,
    workload: &GPUWorkload,
    shell: &Shell,
    settings: &Settings,
    now: Timestamp,
) -> Decision {
    let strategy = workload
        .spec
        .scheduling_strategy
        .unwrap_or(settings.default_strategy);
    let base = base_request(ledger, workload, shell, now);
    let providers = providers(workload);
    let mut tried = Vec::new();
    for provider in &providers {
        let request = restricted(&base, provider.as_deref());
        match choose(ledger, planners, workload, &request, strategy) {
            Some(placement) => {
                return placed(
                    ledger, workload, shell, request, &placement, strategy, &tried,
                );
            }
            None => tried.push((
                provider.clone(),
                explain(ledger, &request, &shell.ask, provider.as_deref()),
            )),
        }
    }
    Decision::Wait(fold(tried))
}

fn choose(
    ledger: &Ledger,
    planners: &mut BTreeMap<Policy, Planner>,
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
    let planner = planners.entry(policy).or_insert_with(|| {
        let mix = mix(ledger, request);
        Planner::with_strategy(policy.live(0, &ledger.fleet, &mix), 0)
    });
    planner.choose(&ledger.fleet, request)
}

/// What the cluster runs, as the best guess of what it will be asked for next. Read from the
/// snapshot alone, so that a restart changes no decision.
fn mix(ledger: &Ledger, asked: &Request) -> Mix {
    let mut mix = Mix::default();
    mix.see(&Ask::new(&ledger.fleet, asked));
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

/// The request without its provider: the pod's own, the GPUs asked for, and not the nodes that were
/// refused lately.
fn base_request(ledger: &Ledger, workload: &GPUWorkload, shell: &Shell, now: Timestamp) -> Request {
    let spec = shell.template.spec.clone().unwrap_or_default();
    let mut meta = shell.template.metadata.clone().unwrap_or_default();
    meta.name = Some(workload.name_any());
    meta.namespace = workload.namespace();
    let mut request = ledger::request(&meta, &spec);
    request.gpu = Some(gpu_request(ledger, &shell.ask));
    let refused = workload
        .status
        .iter()
        .flat_map(|status| &status.refused_nodes);
    let refused: Vec<Arc<str>> = refused
        .filter(|refused| refused.until.0 > now)
        .map(|refused| Arc::from(refused.name.as_str()))
        .collect();
    if !refused.is_empty() {
        let elsewhere = Expression {
            key: Arc::from("metadata.name"),
            operator: Operator::NotIn,
            values: refused,
        };
        require(&mut request, None, Some(&elsewhere));
    }
    request
}

/// Models the fleet has that meet the ask, mixed groups included; where it has none, the ones asked
/// for, so that the explanation names them.
fn gpu_request(ledger: &Ledger, ask: &GpuAsk) -> GpuRequest {
    let mut gpu = GpuRequest::whole(ask.count);
    gpu.vendor = Some(Arc::from(ask.vendor.as_str()));
    gpu.min_memory_bytes = ask.min_memory_mib << 20;
    if !ask.models.is_empty() {
        let meeting = ledger.devices().filter(|device| ask.met_by(device));
        gpu.models = meeting
            .map(|device| Arc::from(model_name(device)))
            .collect();
        if gpu.models.is_empty() {
            gpu.models = ask
                .models
                .iter()
                .map(|model| Arc::from(model.name))
                .collect();
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

/// Why a request fits nowhere, as a reason people can act on and one sentence.
fn explain(ledger: &Ledger, request: &Request, ask: &GpuAsk, provider: Option<&str>) -> Verdict {
    let nodes: Vec<_> = ledger
        .fleet
        .nodes()
        .filter(|(_, node)| provider.is_none_or(|provider| provider_of(node) == provider))
        .collect();
    if let (Some(provider), true) = (provider, nodes.is_empty()) {
        let known: BTreeSet<&str> = ledger
            .fleet
            .nodes()
            .map(|(_, node)| provider_of(node))
            .collect();
        let known: Vec<&str> = known.into_iter().collect();
        return Verdict {
            reason: reason::NO_SUCH_PROVIDER,
            message: format!(
                "no node belongs to provider {provider} (the cluster has: {}); label a node {}={provider} or change the workload's",
                known.join(", "),
                label::PROVIDER
            ),
        };
    }
    let largest = nodes
        .iter()
        .filter_map(|(_, node)| ledger.gpus.get(&*node.name))
        .flat_map(|gpus| &gpus.devices)
        .filter(|device| ask.met_by(device))
        .map(|device| device.count)
        .max();
    match largest {
        None => Verdict {
            reason: reason::NO_SUCH_GPU,
            message: format!(
                "no node has {}; the cluster has: {}",
                GpuAsk {
                    count: 1,
                    ..ask.clone()
                }
                .describe(),
                inventory(ledger)
            ),
        },
        Some(largest) if largest < u64::from(ask.count) => Verdict {
            reason: reason::NEVER_FITS,
            message: format!(
                "it asks for {}, but the largest node has {largest}; ask for at most {largest} or add larger nodes",
                ask.describe()
            ),
        },
        Some(_) => by_reasons(ledger, request, &nodes),
    }
}

type NodeEntry<'a> = (warp_core::fleet::NodeId, &'a Arc<warp_core::fleet::Node>);

/// Folds every node's first reason into one sentence.
fn by_reasons(ledger: &Ledger, request: &Request, nodes: &[NodeEntry<'_>]) -> Verdict {
    let filter = Filter::new(&ledger.fleet, request);
    let mut folded: BTreeMap<String, usize> = BTreeMap::new();
    let mut waits = false;
    for (id, _) in nodes {
        let reasons = filter.reasons(*id);
        waits |= reasons.iter().all(passes);
        if let Some(first) = reasons.first() {
            *folded.entry(first.label()).or_default() += 1;
        }
    }
    let mut folded: Vec<(String, usize)> = folded.into_iter().collect();
    folded.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    let list: Vec<String> = folded
        .iter()
        .map(|(label, count)| format!("{count} {label}"))
        .collect();
    let sentence = format!("0 of {} nodes fit: {}", nodes.len(), list.join(", "));
    if waits {
        Verdict {
            reason: reason::WAITING_FOR_CAPACITY,
            message: sentence,
        }
    } else {
        let next = "change what the workload requires or add nodes";
        Verdict {
            reason: reason::NEVER_FITS,
            message: format!("{sentence}; {next}"),
        }
    }
}

/// Whether a reason passes by itself when running work ends.
fn passes(reason: &Reason) -> bool {
    match reason {
        Reason::Insufficient { needed, total, .. } => needed <= total,
        Reason::FewGpus { needed, total, .. } => needed <= total,
        other => other.is_capacity() || matches!(other, Reason::NotReady | Reason::Unschedulable),
    }
}

/// `16 nvidia H100-80GB, 4 nvidia (unknown model)`.
fn inventory(ledger: &Ledger) -> String {
    let mut totals: BTreeMap<String, u64> = BTreeMap::new();
    for device in ledger.devices() {
        let mut name = model_name(device);
        if name.is_empty() {
            "(unknown model)".clone_into(&mut name);
        }
        if device.sharing != warp_core::gpu::Sharing::Exclusive {
            name.push_str(" (shared or sliced)");
        }
        *totals
            .entry(format!("{} {name}", device.vendor))
            .or_default() += device.count;
    }
    if totals.is_empty() {
        return "no GPU at all".to_owned();
    }
    let list: Vec<String> = totals
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    list.join(", ")
}

/// One verdict for all providers tried: the most hopeful reason, every explanation.
fn fold(tried: Vec<(Option<String>, Verdict)>) -> Verdict {
    let hopeful = tried.iter().map(|(_, verdict)| verdict.reason);
    let reason = hopeful
        .clone()
        .find(|reason| *reason == reason::WAITING_FOR_CAPACITY)
        .or_else(|| hopeful.clone().next())
        .unwrap_or(reason::WAITING_FOR_CAPACITY);
    let parts: Vec<String> = tried
        .into_iter()
        .map(|(provider, verdict)| match provider {
            Some(provider) => format!("provider {provider}: {}", verdict.message),
            None => verdict.message,
        })
        .collect();
    Verdict {
        reason,
        message: parts.join("; "),
    }
}
