//! The answer about an InferenceService: what its status says, in the order in which people ask.

use std::process::ExitCode;

use anyhow::{Context, bail};
use kube::{Api, ResourceExt};
use serde::Serialize;
use warp_api::inferenceservice::{
    AcceleratorStatus, AdapterStatus, CacheSize, ServiceCost, ServiceLoad, ServicePhase,
};
use warp_api::{InferenceService, InferenceServiceStatus, condition, reason};

use super::{Evidence, Step};
use crate::cluster::{Connection, Target, told};
use crate::output::{self, Table};

/// Names of the kind that may stand before a service's.
const KINDS: [&str; 4] = [
    "isvc",
    "inferenceservice",
    "inferenceservices",
    "inferenceservices.gpu.warp.dev",
];

/// The answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Why {
    service: String,
    namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<ServicePhase>,
    reason: String,
    /// One sentence.
    sentence: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    evidence: Vec<Evidence>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    next: Vec<Step>,
}

/// The service a name with its kind in front stands for.
pub(super) async fn find(
    connection: &Connection,
    name: &str,
) -> anyhow::Result<Option<InferenceService>> {
    let Some((kind, bare)) = name.split_once('/') else {
        return Ok(None);
    };
    if !KINDS.contains(&kind) {
        return Ok(None);
    }
    let services: Api<InferenceService> =
        Api::namespaced(connection.client.clone(), &connection.namespace);
    let found = services.get_opt(bare).await.map_err(told);
    let found = found.with_context(|| format!("failed to look for the service {bare}"))?;
    match found {
        Some(found) => Ok(Some(found)),
        None => bail!(
            "no inferenceservice \"{bare}\" in namespace {}",
            connection.namespace
        ),
    }
}

pub(super) fn show(
    service: &InferenceService,
    target: &Target,
    as_json: bool,
) -> anyhow::Result<ExitCode> {
    let why = tell(service, target);
    if as_json {
        output::line(&serde_json::to_string_pretty(&why)?);
        return Ok(ExitCode::SUCCESS);
    }
    output::line(&why.sentence);
    if !why.evidence.is_empty() {
        let mut table = Table::new(["EVIDENCE", ""]);
        for fact in &why.evidence {
            table.row([fact.what.clone(), fact.detail.clone()]);
        }
        output::line("");
        output::text(&table.render(true));
    }
    if !why.next.is_empty() {
        output::line("\nNext:");
        for step in &why.next {
            output::line(&format!("  {}", step.what));
            if let Some(command) = &step.command {
                output::line(&format!("    {command}"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn tell(service: &InferenceService, target: &Target) -> Why {
    let name = service.name_any();
    let status = service.status.clone().unwrap_or_default();
    let ready = condition::find(&status.conditions, condition::READY);
    let reason = ready.map_or("", |ready| ready.reason.as_str()).to_owned();
    let message = match (&status.message, status.observed_generation) {
        (Some(message), seen) if seen == service.metadata.generation => message.clone(),
        (Some(message), _) => {
            format!("{message} (of the spec before: the operator has not seen the new one)")
        }
        (None, _) => {
            "the operator has not looked at it yet: does one run? `warp doctor` tells".to_owned()
        }
    };
    let phase = status
        .phase
        .map_or_else(String::new, |phase| format!(" is {phase:?}"));
    Why {
        sentence: format!("Service {name}{phase}: {message}."),
        evidence: evidence(&status),
        next: next(&name, &reason, target),
        namespace: service.namespace().unwrap_or_default(),
        service: name,
        phase: status.phase,
        reason,
    }
}

fn evidence(status: &InferenceServiceStatus) -> Vec<Evidence> {
    let accepted = condition::find(&status.conditions, condition::ACCEPTED);
    let is_refused = accepted.is_some_and(|found| found.status == "False");
    let start: Vec<String> = status
        .timeline
        .iter()
        .map(|step| match step.seconds {
            0 => step.step.clone(),
            seconds => format!("{} after {seconds} s", step.step),
        })
        .collect();
    let pools = status.accelerators.iter().map(|pool| Evidence {
        what: format!("on {}", pool.name),
        detail: on_pool(pool),
    });
    let facts = [
        (
            "copies",
            Some(format!(
                "{} answer, {} are {}, {} are of the spec as it is",
                status.ready_replicas,
                status.replicas,
                // A spec that is refused wants nothing: what is there stays.
                if is_refused { "there" } else { "wanted" },
                status.updated_replicas
            )),
        ),
        (
            "scaling",
            accepted
                .filter(|found| found.status == "True" && !found.message.is_empty())
                .map(|found| found.message.clone()),
        ),
        ("replacing", status.rollout.clone()),
        ("last start", (!start.is_empty()).then(|| start.join(", "))),
        (
            "load",
            // Not asked and not answered look the same from here; neither is no load.
            Some(status.load.as_ref().map_or("no data".to_owned(), load)),
        ),
        ("pace", status.load.as_ref().map(pace)),
        ("cache", status.cache.as_ref().map(cache)),
        (
            "adapters",
            (!status.adapters.is_empty()).then(|| adapters(&status.adapters)),
        ),
        ("cost", status.cost.as_ref().map(cost)),
        ("address", status.url.clone()),
    ];
    let known = facts
        .into_iter()
        .filter_map(|(what, detail)| Some((what, detail?)));
    let mut known: Vec<Evidence> = known
        .map(|(what, detail)| Evidence {
            what: what.to_owned(),
            detail,
        })
        .collect();
    known.splice(1..1, pools);
    known
}

fn on_pool(pool: &AcceleratorStatus) -> String {
    let gpus = pool.gpus.as_deref();
    let gpus = gpus.map_or(String::new(), |gpus| format!(", each on {gpus}"));
    let why = pool.message.as_deref();
    let why = why.map_or(String::new(), |why| format!("; {why}"));
    format!(
        "{} of {} copies answer{gpus}{why}",
        pool.ready_replicas, pool.replicas
    )
}

fn load(load: &ServiceLoad) -> String {
    format!(
        "{} requests run and {} wait on {} copies, {} % of the cache is in use",
        load.running, load.waiting, load.copies, load.cache_percent
    )
}

fn pace(load: &ServiceLoad) -> String {
    let part = |value: Option<i64>, words: &str| {
        value.map(|value| words.replace("{}", &value.to_string()))
    };
    let parts: Vec<String> = [
        part(load.tokens_per_second, "{} tokens a second"),
        part(load.first_token_ms, "the first token within {} ms"),
        part(load.between_tokens_ms, "the next within {} ms"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() {
        "no data".to_owned()
    } else {
        parts.join(", ")
    }
}

fn adapters(all: &[AdapterStatus]) -> String {
    let told = all.iter().map(|adapter| {
        let state = match adapter.reason.as_str() {
            "Loaded" => "loaded".to_owned(),
            "NotLoaded" => format!("loaded by {} copies only", adapter.copies),
            "NoAnswer" => "not known: no copy has said what it serves".to_owned(),
            _ => "not yet: no copy answers".to_owned(),
        };
        format!("{} {state}", adapter.name)
    });
    told.collect::<Vec<_>>().join(", ")
}

fn cache(size: &CacheSize) -> String {
    let compared = size
        .estimated_tokens
        .zip(size.percent_of_estimate)
        .map_or(String::new(), |(tokens, percent)| {
            format!(", {percent} % of the estimated {tokens}")
        });
    format!("holds {} tokens a copy{compared}", size.tokens)
}

fn cost(cost: &ServiceCost) -> String {
    let tokens = match &cost.per_million_tokens {
        Some(price) => format!("{price} for a million tokens"),
        None => "no tokens to divide it by".to_owned(),
    };
    format!("{} an hour, {tokens}", cost.per_hour)
}

fn next(name: &str, reason: &str, target: &Target) -> Vec<Step> {
    let flags = target.flags();
    let logs = Step::new(
        "read what the copies said",
        format!("warp logs {name}{flags}"),
    );
    match reason {
        reason::COPIES_FAIL | reason::STARTING => vec![logs],
        reason::WAITING_FOR_CAPACITY | reason::NO_SUCH_GPU => vec![Step::new(
            "see which nodes have GPUs, and who holds them",
            format!("warp get nodes{flags}"),
        )],
        reason::WAITING_FOR_MODEL | reason::MODEL_CACHE_FAILED | reason::NO_SUCH_MODEL_CACHE => {
            vec![Step::new(
                "see how far the model is",
                format!("warp get mcache -o wide{flags}"),
            )]
        }
        reason::SERVING => vec![
            Step::new("talk to it", format!("warp chat {name}{flags}")),
            Step::new("measure it", format!("warp bench {name}{flags}")),
        ],
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_refused_spec_are_there_and_not_wanted() {
        let refused = serde_json::json!({
            "replicas": 2, "readyReplicas": 2, "updatedReplicas": 0,
            "conditions": [{ "type": "Accepted", "status": "False", "reason": "InvalidSpec", "message": "no",
                "lastTransitionTime": "2026-11-15T12:00:00Z" }],
        });
        let mut status: InferenceServiceStatus = serde_json::from_value(refused).unwrap();
        let copies = |status: &InferenceServiceStatus| evidence(status)[0].detail.clone();
        assert_eq!(
            copies(&status),
            "2 answer, 2 are there, 0 are of the spec as it is"
        );
        status.conditions.clear();
        status.updated_replicas = 2;
        assert_eq!(
            copies(&status),
            "2 answer, 2 are wanted, 2 are of the spec as it is"
        );
    }

    #[test]
    fn what_is_not_known_is_no_data_and_never_nought() {
        let mut status = InferenceServiceStatus::default();
        let said = |status: &InferenceServiceStatus, what: &str| {
            let all = evidence(status);
            let found = all.into_iter().find(|fact| fact.what == what);
            found.map(|fact| fact.detail)
        };
        assert_eq!(said(&status, "load").as_deref(), Some("no data"));
        assert_eq!(said(&status, "cost"), None);
        status.load = Some(ServiceLoad {
            copies: 1,
            ..ServiceLoad::default()
        });
        assert_eq!(said(&status, "pace").as_deref(), Some("no data"));
        status.load = Some(ServiceLoad {
            tokens_per_second: Some(340),
            first_token_ms: Some(80),
            ..ServiceLoad::default()
        });
        assert_eq!(
            said(&status, "pace").as_deref(),
            Some("340 tokens a second, the first token within 80 ms")
        );
        status.cost = Some(ServiceCost {
            per_hour: "2.49".to_owned(),
            per_million_tokens: None,
        });
        assert_eq!(
            said(&status, "cost").as_deref(),
            Some("2.49 an hour, no tokens to divide it by")
        );
    }
}
