//! `warp tenant`: a team's namespaces, made, shown and removed with the rights of whoever asks. What surrounds them, rights
//! and policies, the operator makes from the Tenant.

mod objects;

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;
use warp_api::tenant::{self, OwnersRole, PodSecurity, TenantOwner, TenantQuota, TenantStanding};
use warp_api::{GPURequest, GPUWorkload, InferenceService, Tenant};

use crate::cluster::{self, Target, told};
use crate::output::{self, Table};
use crate::workload;

/// Field manager of what this verb writes.
const MANAGER: &str = "warp-tenant-verb";
/// How long the operator may take before what is missing is told.
const SETTLED: Duration = Duration::from_secs(30);
/// How often what still runs is looked at.
const PAUSE: Duration = Duration::from_millis(500);

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    target: Target,
}

#[derive(clap::Subcommand, Debug)]
enum Action {
    /// Make a tenant, or make it what these flags say: its namespaces, who runs them, how they are shut off
    Create(Create),
    /// Show tenants and what they use
    List,
    /// Place nothing more of a tenant; what runs goes on
    Suspend {
        /// The team
        name: String,
    },
    /// Place what a suspended tenant asks for again
    Resume {
        /// The team
        name: String,
    },
    /// Wait until nothing of a tenant runs, then remove it with the rights and policies made for it
    Remove(Remove),
}

#[derive(clap::Args, Debug)]
struct Create {
    /// The team
    name: String,
    /// A namespace that belongs to it, made if it is not there; may be repeated
    #[arg(long = "of", value_name = "NAMESPACE", required = true)]
    namespaces: Vec<String>,
    /// Who may edit what is in its namespaces: user:NAME, group:NAME or account:NAMESPACE/NAME; may be repeated
    #[arg(long = "owner", value_name = "WHO", value_parser = objects::owner)]
    owners: Vec<TenantOwner>,
    /// What the owners may do in these namespaces: view, edit or admin
    #[arg(long, value_name = "ROLE", value_parser = objects::role)]
    role: Option<OwnersRole>,
    /// Let only pods of the tenant's own namespaces reach its pods
    #[arg(long)]
    isolate_network: bool,
    /// Pod Security level its namespaces enforce
    #[arg(long, value_name = "LEVEL", value_parser = objects::pod_security)]
    pod_security: Option<PodSecurity>,
    /// GPUs it can count on, as GPU=NUMBER with a model or a vendor; may be repeated
    #[arg(long, value_name = "GPU=N", value_parser = objects::quota)]
    quota: Vec<TenantQuota>,
    /// The tenant it shares unused quota with, through which it borrows and lends
    #[arg(long, value_name = "TENANT")]
    parent: Option<String>,
}

#[derive(clap::Args, Debug)]
struct Remove {
    /// The team
    name: String,
    /// Do not wait: fail when something still runs
    #[arg(long)]
    no_wait: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(async move {
        let connection = args.target.connect().await?;
        let client = &connection.client;
        match args.action {
            Action::Create(asked) => create(client, asked).await?,
            Action::List => list(client).await?,
            Action::Suspend { name } => suspend(client, &name, true).await?,
            Action::Resume { name } => suspend(client, &name, false).await?,
            Action::Remove(asked) => remove(client, &asked).await?,
        }
        Ok(ExitCode::SUCCESS)
    })
}

async fn create(client: &Client, asked: Create) -> anyhow::Result<()> {
    let name = asked.name.clone();
    let names: BTreeSet<String> = asked.namespaces.iter().cloned().collect();
    for namespace in &names {
        exists(client, namespace).await?;
    }
    let tenants: Api<Tenant> = Api::all(client.clone());
    let tenant = objects::tenant(asked);
    let applied = tenants
        .patch(
            &name,
            &PatchParams::apply(MANAGER).force(),
            &Patch::Apply(&objects::typed(&tenant)?),
        )
        .await;
    let applied = applied
        .map_err(told)
        .with_context(|| format!("failed to write tenant {name}"))?;
    let generation = applied.metadata.generation.unwrap_or_default();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let done = in_place(&tenants, &name, generation, SETTLED).await?;
    output::line(&format!("tenant {name} has {}", names.join(", ")));
    if let Some(missing) = done {
        output::note(&missing);
    }
    Ok(())
}

/// Makes a namespace that is not there.
async fn exists(client: &Client, name: &str) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    let failed = || format!("failed to make namespace {name}");
    let found = api.get_metadata_opt(name).await.map_err(told);
    if found.with_context(failed)?.is_some() {
        return Ok(());
    }
    let namespace: Namespace = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    match api.create(&PostParams::default(), &namespace).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        made => made.map(drop).map_err(told).with_context(failed),
    }
}

/// Waits until the operator has carried a generation of a tenant out; what it still says is missing after `longest`.
async fn in_place(
    tenants: &Api<Tenant>,
    name: &str,
    generation: i64,
    longest: Duration,
) -> anyhow::Result<Option<String>> {
    let until = tokio::time::Instant::now() + longest;
    loop {
        let found = tenants.get(name).await.map_err(told);
        let found = found.with_context(|| format!("failed to look at tenant {name}"))?;
        let Some(told) = objects::missing(&found, generation) else {
            return Ok(None);
        };
        if tokio::time::Instant::now() >= until {
            return Ok(Some(told));
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            _ = tokio::signal::ctrl_c() => return Ok(Some(told)),
        }
    }
}

/// Takes the Pod Security level of a tenant that goes off its namespace; one that somebody else set stays.
async fn leave(client: &Client, tenant: &str, name: &str) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    let failed = || format!("failed to take the labels off namespace {name}");
    let found = api.get_opt(name).await.map_err(told);
    let Some(found) = found.with_context(failed)? else {
        return Ok(());
    };
    let Some(labels) = tenant::released(tenant, &found) else {
        return Ok(());
    };
    let patch = json!({"metadata": {"uid": found.uid(), "labels": labels}});
    let parameters = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let sent = api.patch(name, &parameters, &Patch::Merge(&patch)).await;
    sent.map(drop).map_err(told).with_context(failed)
}

async fn list(client: &Client) -> anyhow::Result<()> {
    let tenants: Api<Tenant> = Api::all(client.clone());
    let found = tenants.list(&ListParams::default()).await;
    let found = found.map_err(told).context("failed to list tenants")?;
    if found.items.is_empty() {
        output::note("no tenants; `warp tenant create` makes one");
        return Ok(());
    }
    let quotas = bars(&found.items);
    let mut table = Table::new(["NAME", "NAMESPACES", "GPU", "IN USE", "WAITING", "STATE"]);
    for tenant in found {
        let status = tenant.status.clone().unwrap_or_default();
        let state = status.message.clone().unwrap_or_else(|| "well".to_owned());
        let mut rows: Vec<[String; 3]> = status
            .gpus
            .iter()
            .map(|gpus| {
                [
                    gpus.model.clone(),
                    gpus.in_use.to_string(),
                    gpus.waiting.to_string(),
                ]
            })
            .collect();
        if rows.is_empty() {
            rows.push(["-".to_owned(), "0".to_owned(), "0".to_owned()]);
        }
        for (at, [gpu, used, waiting]) in rows.into_iter().enumerate() {
            let once = |text: String| if at == 0 { text } else { String::new() };
            table.row([
                once(tenant.name_any()),
                once(status.namespaces.join(",")),
                gpu,
                used,
                waiting,
                once(state.clone()),
            ]);
        }
    }
    output::text(&table.render(true));
    if let Some(quotas) = quotas {
        output::line("");
        output::text(&quotas.render(true));
    }
    Ok(())
}

/// Where tenants stand under their quotas; nothing where none has one.
pub(crate) fn bars(tenants: &[Tenant]) -> Option<Table> {
    let mut table = Table::new(["TENANT", "GPU", "QUOTA", "LEFT"]);
    for tenant in tenants {
        for standing in tenant.status.iter().flat_map(|status| &status.quota) {
            table.row([
                tenant.name_any(),
                standing.gpu.clone(),
                bar(standing),
                standing.available.to_string(),
            ]);
        }
    }
    (!table.is_empty()).then_some(table)
}

/// `####----  4 of 8, 2 borrowed`.
fn bar(standing: &TenantStanding) -> String {
    const WIDTH: i64 = 20;
    let whole = standing.nominal.max(standing.used).max(1);
    let full = standing.used * WIDTH / whole;
    let bar: String = (0..WIDTH)
        .map(|at| if at < full { '#' } else { '-' })
        .collect();
    let borrowed = match standing.borrowed {
        0 => String::new(),
        count => format!(", {count} borrowed"),
    };
    format!("{bar} {} of {}{borrowed}", standing.used, standing.nominal)
}

async fn suspend(client: &Client, name: &str, suspend: bool) -> anyhow::Result<()> {
    let tenants: Api<Tenant> = Api::all(client.clone());
    let patch = json!({"spec": {"suspend": suspend}});
    let parameters = PatchParams {
        field_manager: Some("warp".to_owned()),
        ..PatchParams::default()
    };
    let changed = tenants
        .patch(name, &parameters, &Patch::Merge(&patch))
        .await;
    changed.map_err(told).with_context(|| {
        let verb = if suspend { "suspend" } else { "resume" };
        format!("failed to {verb} tenant {name}")
    })?;
    output::line(&if suspend {
        format!("tenant {name} suspended: what runs goes on, nothing more is placed")
    } else {
        format!("tenant {name} resumed")
    });
    Ok(())
}

async fn remove(client: &Client, asked: &Remove) -> anyhow::Result<()> {
    let tenants: Api<Tenant> = Api::all(client.clone());
    let name = &asked.name;
    let found = tenants.get_opt(name).await.map_err(told);
    let found = found
        .with_context(|| format!("failed to look for tenant {name}"))?
        .with_context(|| format!("no tenant \"{name}\"; `warp tenant list` shows all"))?;
    let status = found.status.clone().unwrap_or_default();
    let mut namespaces: BTreeSet<String> = status.namespaces.into_iter().collect();
    namespaces.extend(found.spec.namespaces.names.iter().cloned());
    emptied(client, name, &namespaces, !asked.no_wait).await?;
    for namespace in &namespaces {
        leave(client, name, namespace).await?;
    }
    let gone = DeleteParams {
        // Bindings and policies belong to it and go first.
        propagation_policy: Some(PropagationPolicy::Foreground),
        ..DeleteParams::default()
    };
    let removed = tenants.delete(name, &gone).await;
    removed
        .map_err(told)
        .with_context(|| format!("failed to remove tenant {name}"))?;
    output::line(&format!(
        "tenant {name} removed; its namespaces stay: `warp delete namespace` removes one with all that is in it"
    ));
    Ok(())
}

/// Until nothing of the tenant is open any more; says what is.
async fn emptied(
    client: &Client,
    name: &str,
    namespaces: &BTreeSet<String>,
    wait: bool,
) -> anyhow::Result<()> {
    let mut said = String::new();
    loop {
        let mut open = Vec::new();
        for namespace in namespaces {
            let work = all_in::<GPUWorkload>(client, namespace).await?;
            let still = work.iter().filter(|one| !workload::phase(one).is_final());
            open.extend(still.map(|one| format!("{namespace}/{}", one.name_any())));
            let services = all_in::<InferenceService>(client, namespace).await?;
            open.extend(named("service", namespace, &services));
            let machines = all_in::<GPURequest>(client, namespace).await?;
            open.extend(named("rented machine", namespace, &machines));
        }
        if open.is_empty() {
            return Ok(());
        }
        let told = format!("tenant {name} still has {}", open.join(", "));
        if !wait {
            bail!("{told}; `warp cancel` ends a workload, `warp delete` the rest");
        }
        if told != said {
            output::note(&format!("{told}; waiting until they have ended"));
            said = told;
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            _ = tokio::signal::ctrl_c() => bail!("tenant {name} is not removed"),
        }
    }
}

async fn all_in<K>(client: &Client, namespace: &str) -> anyhow::Result<Vec<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let found = api.list(&ListParams::default()).await.map_err(told);
    let found =
        found.with_context(|| format!("failed to list {} of {namespace}", K::plural(&())))?;
    Ok(found.items)
}

fn named<K: ResourceExt>(what: &str, namespace: &str, all: &[K]) -> Vec<String> {
    let each = all
        .iter()
        .map(|one| format!("{what} {namespace}/{}", one.name_any()));
    each.collect()
}
