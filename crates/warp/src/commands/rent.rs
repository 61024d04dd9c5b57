//! `warp rent`: shows what would be rented, asks, and follows the request until its node is ready.

use std::io::{BufRead, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use futures::{StreamExt, pin_mut};
use kube::api::{ListParams, PostParams};
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use warp_api::gpurequest::RequestPhase;
use warp_api::{CloudProvider, GPURequest};
use warp_cloud::{Decimal, in_region};

use super::offers::{self, Format, decimal};
use crate::cluster::{self, Connection, Target, told};
use crate::output;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The model, such as H100
    gpu: String,
    #[command(flatten)]
    target: Target,
    /// Name of the request [default: the model]
    #[arg(long)]
    name: Option<String>,
    /// GPUs, all in one machine
    #[arg(long, value_name = "GPUS", default_value_t = 1)]
    count: u32,
    /// Most dollars an hour for all of them
    #[arg(long, value_name = "DOLLARS")]
    max_price: Decimal,
    /// Most dollars in all
    #[arg(long, value_name = "DOLLARS")]
    max_total_price: Option<Decimal>,
    /// Give it back after this time at the latest, such as 8h
    #[arg(long, value_name = "TIME", default_value = "8h")]
    max_lifetime: String,
    /// Give it back when nobody has used it for this long, such as 30m
    #[arg(long, value_name = "TIME")]
    idle_timeout: Option<String>,
    /// Region or area, the best first; may be given several times
    #[arg(long)]
    region: Vec<String>,
    /// CloudProvider; may be given several times
    #[arg(long)]
    provider: Vec<String>,
    /// One the cloud may take back, where that is cheap enough
    #[arg(long)]
    spot: bool,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Return when the request is made
    #[arg(long)]
    no_wait: bool,
    /// Give up following after this time; the request goes on
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = super::duration)]
    timeout: Duration,
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(rent(args))
}

async fn rent(args: Args) -> anyhow::Result<ExitCode> {
    offers::models(Some(&args.gpu))?;
    let connection = args.target.connect().await?;
    let providers = offers::all(&connection.client).await?;
    plan(&args, &providers)?;
    if !args.yes && !agreed()? {
        output::note("nothing was rented");
        return Ok(ExitCode::FAILURE);
    }
    let mut request = manifest(&args, &connection)?;
    cluster::sign(&connection.client, &mut request).await;
    let api: Api<GPURequest> = Api::namespaced(connection.client.clone(), &connection.namespace);
    let made = api
        .create(&PostParams::default(), &request)
        .await
        .map_err(told)
        .context("failed to make the request")?;
    let name = made.name_any();
    output::note(&format!("gpurequest/{name} created"));
    if args.no_wait {
        return Ok(ExitCode::SUCCESS);
    }
    let Ok(ended) = tokio::time::timeout(args.timeout, follow(&api, &name)).await else {
        bail!(
            "gpurequest/{name} is not ready after {:?}; it goes on: `warp get gpur {name} -o wide` shows how it stands, `warp delete gpur/{name}` ends it",
            args.timeout
        );
    };
    let request = ended?;
    shown(&args, &request)
}

/// What would be taken at the moment, or why nothing would.
fn plan(args: &Args, providers: &[CloudProvider]) -> anyhow::Result<()> {
    let models = offers::models(Some(&args.gpu))?.unwrap_or_default();
    let mut fitting: Vec<(usize, Decimal, String)> = Vec::new();
    let mut cheapest: Option<Decimal> = None;
    for provider in providers {
        let name = provider.name_any();
        let named = args.provider.is_empty()
            || args
                .provider
                .iter()
                .any(|wanted| *wanted == name || wanted == provider.spec.kind.as_str());
        let offers = provider.status.iter().flat_map(|status| &status.offers);
        for offer in offers.filter(|_| named) {
            let place = args
                .region
                .iter()
                .position(|region| in_region(&offer.region, region));
            let here = args.region.is_empty() || place.is_some();
            let right = models.contains(&offer.gpu.as_str()) && offer.gpus >= args.count;
            let spot = decimal(offer.spot_price.as_deref()).filter(|_| args.spot);
            let price = spot.or_else(|| decimal(Some(&offer.price)));
            let Some(price) = price.filter(|_| here && right && offer.availability != "none")
            else {
                continue;
            };
            cheapest = Some(cheapest.map_or(price, |known| known.min(price)));
            if price <= args.max_price {
                let what = format!(
                    "{} x {} from {name} in {} for {price} dollars an hour",
                    offer.gpus, offer.gpu, offer.region
                );
                fitting.push((place.unwrap_or(0), price, what));
            }
        }
    }
    fitting.sort();
    match (fitting.first(), cheapest) {
        (Some((_, _, what)), _) => {
            output::note(&format!("would rent {what} ({} offers fit)", fitting.len()));
        }
        (None, Some(price)) => output::note(&format!(
            "nothing fits now: the cheapest costs {price} dollars an hour, more than {}; the request would wait",
            args.max_price
        )),
        (None, None) => output::note(
            "nothing like that is offered now (see `warp offers`); the request would wait",
        ),
    }
    let most = args.max_total_price.map_or_else(
        || format!("at most {} dollars an hour", args.max_price),
        |total| {
            format!(
                "at most {} dollars an hour and {total} in all",
                args.max_price
            )
        },
    );
    output::note(&format!(
        "{most}, given back after {} at the latest",
        args.max_lifetime
    ));
    Ok(())
}

/// Asks on a terminal; elsewhere somebody must have agreed before.
fn agreed() -> anyhow::Result<bool> {
    let input = std::io::stdin();
    if !input.is_terminal() {
        bail!("nobody is here to agree: say --yes");
    }
    output::note("rent it? [y/N]");
    let mut line = String::new();
    input
        .lock()
        .read_line(&mut line)
        .context("failed to read the answer")?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

fn manifest(args: &Args, connection: &Connection) -> anyhow::Result<GPURequest> {
    let name = args.name.clone().unwrap_or_else(|| {
        let plain = args.gpu.to_ascii_lowercase();
        plain.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-")
    });
    let mut spec = json!({
        "gpuType": args.gpu,
        "gpuCount": args.count,
        "maxPrice": args.max_price.to_string(),
        "maxLifetime": args.max_lifetime,
        "spotInstance": args.spot,
    });
    if let Some(total) = args.max_total_price {
        spec["maxTotalPrice"] = json!(total.to_string());
    }
    if let Some(idle) = &args.idle_timeout {
        spec["idleTimeout"] = json!(idle);
    }
    if !args.region.is_empty() {
        spec["regionPreference"] = json!(args.region);
    }
    if !args.provider.is_empty() {
        spec["providers"] = json!(args.provider);
    }
    let request = json!({
        "apiVersion": "gpu.warp.dev/v1alpha1",
        "kind": "GPURequest",
        "metadata": {"name": name, "namespace": connection.namespace},
        "spec": spec,
    });
    serde_json::from_value(request).context("failed to write the request")
}

/// Prints what happens until the node is ready or nothing more will.
async fn follow(api: &Api<GPURequest>, name: &str) -> anyhow::Result<GPURequest> {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let events = watcher::watcher(api.clone(), config);
    pin_mut!(events);
    let mut said = String::new();
    let mut tried = 0;
    while let Some(event) = events.next().await {
        let request = match event {
            Ok(Event::Apply(request) | Event::InitApply(request)) => request,
            Ok(Event::Delete(_)) => bail!("gpurequest/{name} was deleted"),
            Ok(Event::Init | Event::InitDone) => continue,
            Err(error) => {
                tracing::debug!(%error, "the watch broke off and goes on");
                continue;
            }
        };
        let Some(status) = &request.status else {
            continue;
        };
        for attempt in &status.attempts {
            if attempt.number <= tried {
                continue;
            }
            if let (Some(outcome), None) = (&attempt.outcome, &attempt.instance_id) {
                let why = attempt.reason.clone().unwrap_or_default();
                output::note(&format!(
                    "  attempt {}: {} in {}: {outcome}: {why}",
                    attempt.number, attempt.provider, attempt.region
                ));
                tried = attempt.number;
            }
        }
        let now = format!(
            "{}: {}",
            status.phase.as_str(),
            status.message.clone().unwrap_or_default()
        );
        if now != said {
            output::note(&now);
            said = now;
        }
        if status.phase == RequestPhase::Ready || status.phase.is_final() {
            return Ok(request);
        }
    }
    bail!("the watch of gpurequest/{name} ended")
}

fn shown(args: &Args, request: &GPURequest) -> anyhow::Result<ExitCode> {
    let status = request.status.clone().unwrap_or_default();
    if args.output == Format::Json {
        let value: Value = serde_json::to_value(request)?;
        output::result(&serde_json::to_string_pretty(&value)?);
    }
    if status.phase != RequestPhase::Ready {
        return Ok(ExitCode::FAILURE);
    }
    let name = request.name_any();
    output::note(&format!(
        "node {} is ready; `warp delete gpur/{name}` gives it back",
        status.node_name.unwrap_or_default()
    ));
    Ok(ExitCode::SUCCESS)
}

/// Every GPURequest of the cluster.
pub(crate) async fn all(client: &kube::Client) -> anyhow::Result<Vec<GPURequest>> {
    let api: Api<GPURequest> = Api::all(client.clone());
    let list = api
        .list(&ListParams::default())
        .await
        .map_err(told)
        .context("failed to list GPURequests")?;
    Ok(list.items)
}
