//! Follows a service until it answers, telling every change once.

use std::time::Duration;

use anyhow::{Context as _, bail};
use kube::{Api, ResourceExt};
use tokio::time::Instant;
use warp_api::InferenceService;
use warp_api::inferenceservice::ServicePhase;

use crate::cluster::told;
use crate::output;

/// How often it is looked at.
const PAUSE: Duration = Duration::from_millis(500);

pub(super) async fn until_ready(
    services: &Api<InferenceService>,
    name: &str,
    generation: i64,
    limit: Duration,
) -> anyhow::Result<InferenceService> {
    let started = Instant::now();
    let mut last = String::new();
    loop {
        let service = services
            .get(name)
            .await
            .map_err(told)
            .with_context(|| format!("failed to look at the service {name}"))?;
        let status = service.status.clone().unwrap_or_default();
        let current = status.observed_generation.unwrap_or(0) >= generation;
        let phase = status.phase.filter(|_| current);
        let message = status.message.clone().unwrap_or_default();
        let shown = match phase {
            None => "Accepted: the operator has not looked at it yet".to_owned(),
            Some(phase) => format!("{phase:?}: {}", without_numbers(&message)),
        };
        if shown != last {
            let said = phase.map_or(shown.clone(), |phase| format!("{phase:?}: {message}"));
            output::note(&format!(
                "{:>5.1} s  {said}",
                started.elapsed().as_secs_f64()
            ));
            last = shown;
        }
        match phase {
            Some(ServicePhase::Ready | ServicePhase::Stopped) => return Ok(service),
            Some(ServicePhase::Refused) => {
                bail!("the service {name} cannot be carried out: {message}")
            }
            Some(ServicePhase::Failing) => {
                bail!("the service {name} fails: {message}; `warp logs {name}` shows more")
            }
            _ => {}
        }
        if started.elapsed() > limit {
            bail!(
                "the service {name} does not answer after {} s: {message}; it goes on without us",
                limit.as_secs()
            );
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Seconds that only count up are no news.
fn without_numbers(text: &str) -> String {
    text.chars()
        .filter(|letter| !letter.is_ascii_digit())
        .collect()
}

/// A line that works as it is printed.
pub(super) fn curl(service: &InferenceService) -> String {
    let status = service.status.clone().unwrap_or_default();
    let model = status.model_name.unwrap_or_default();
    let body = serde_json::json!({
        "model": model,
        "messages": [{ "role": "user", "content": "Hello" }],
    });
    let body = body.to_string().replace('\'', "'\\''");
    let address = status.addresses.first().filter(|address| {
        // Others are reachable inside the cluster only.
        address.starts_with("http://127.")
    });
    match address {
        Some(address) => format!("curl -s {address}/chat/completions -d '{body}'"),
        None => format!(
            "kubectl -n {} port-forward svc/{} {port} & curl -s --retry 5 --retry-connrefused http://127.0.0.1:{port}/v1/chat/completions -d '{body}'",
            service.namespace().unwrap_or_default(),
            service.name_any(),
            port = service.spec.port
        ),
    }
}
