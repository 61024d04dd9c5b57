//! `warp tenant`: a team's namespaces with everything around them, made, shown and removed with the rights of
//! whoever asks.
//!
//! Bindings, network policies and Pod Security labels are written here and not by the operator: its role must
//! not be able to hand out rights.

mod objects;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use warp_api::tenant::{TenantQuota, TenantStanding};
use warp_api::{GPUWorkload, Tenant};

use crate::cluster::{self, Target, told};
use crate::output::{self, Table};
use crate::workload;
use objects::{Owner, PodSecurity, Shape};

/// Field manager of what this verb writes.
const MANAGER: &str = "warp-tenant-verb";
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
    #[arg(long = "owner", value_name = "WHO")]
    owners: Vec<Owner>,
    /// ClusterRole the owners are given in these namespaces
    #[arg(long, default_value = "edit", value_name = "ROLE")]
    role: String,
    /// Let only pods of the tenant's own namespaces reach its pods
    #[arg(long)]
    isolate_network: bool,
    /// Pod Security level its namespaces enforce
    #[arg(long, value_enum, value_name = "LEVEL")]
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
    let shape = Shape {
        name: asked.name,
        namespaces: asked.namespaces.into_iter().collect(),
        owners: asked.owners,
        role: asked.role,
        isolate_network: asked.isolate_network,
        pod_security: asked.pod_security,
        parent: asked.parent,
        quota: asked.quota,
    };
    let before = claimed(client, &shape.name).await?;
    for name in &shape.namespaces {
        apply(client, None, &shape.namespace(name)).await?;
    }
    let tenant: Tenant = apply(client, None, &shape.tenant()).await?;
    for name in &shape.namespaces {
        inside(client, &shape, &tenant, name).await?;
    }
    // What an earlier answer gave and this one does not is taken back.
    for name in before.difference(&shape.namespaces) {
        leave(client, name).await?;
        take_back::<RoleBinding>(client, name, &shape).await?;
        take_back::<NetworkPolicy>(client, name, &shape).await?;
    }
    let names: Vec<&str> = shape.namespaces.iter().map(String::as_str).collect();
    output::line(&format!("tenant {} has {}", shape.name, names.join(", ")));
    Ok(())
}

/// The namespaces a tenant named until now.
async fn claimed(client: &Client, name: &str) -> anyhow::Result<BTreeSet<String>> {
    let tenants: Api<Tenant> = Api::all(client.clone());
    let found = tenants
        .get_opt(name)
        .await
        .map_err(told)
        .with_context(|| format!("failed to look for tenant {name}"))?;
    let names = found.map(|tenant| tenant.spec.namespaces.names);
    Ok(names.unwrap_or_default().into_iter().collect())
}

/// What belongs into one namespace of the tenant, and nothing else of ours.
async fn inside(
    client: &Client,
    shape: &Shape,
    tenant: &Tenant,
    namespace: &str,
) -> anyhow::Result<()> {
    match shape.binding(tenant, namespace) {
        Some(binding) => drop(apply(client, Some(namespace), &binding).await?),
        None => take_back::<RoleBinding>(client, namespace, shape).await?,
    }
    match shape.policy(tenant, namespace) {
        Some(policy) => drop(apply(client, Some(namespace), &policy).await?),
        None => take_back::<NetworkPolicy>(client, namespace, shape).await?,
    }
    Ok(())
}

async fn apply<K>(client: &Client, namespace: Option<&str>, object: &K) -> anyhow::Result<K>
where
    K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + Debug + Scoped,
{
    let api = K::api(client, namespace);
    let name = object.name_any();
    let sent = api
        .patch(
            &name,
            &PatchParams::apply(MANAGER),
            &Patch::Apply(&objects::typed(object)?),
        )
        .await;
    sent.map_err(told).with_context(|| {
        let place = namespace.map_or_else(String::new, |name| format!(" in namespace {name}"));
        format!("failed to write {} {name}{place}", K::kind(&()))
    })
}

/// Removes an object of ours; one somebody else made under the name stays.
async fn take_back<K>(client: &Client, namespace: &str, shape: &Shape) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Scoped,
{
    let api = K::api(client, Some(namespace));
    let name = shape.child_name();
    let found = api.get_opt(&name).await.map_err(told);
    let found = found.with_context(|| format!("failed to look at {} {name}", K::kind(&())))?;
    if let Some(found) = found.filter(|found| shape.made(found)) {
        let gone = api
            .delete(&found.name_any(), &DeleteParams::default())
            .await;
        gone.map_err(told)
            .with_context(|| format!("failed to remove {} {name}", K::kind(&())))?;
    }
    Ok(())
}

/// Takes back what this verb says of a namespace; labels of others stay.
async fn leave(client: &Client, name: &str) -> anyhow::Result<()> {
    let api: Api<Namespace> = Api::all(client.clone());
    let failed = || format!("failed to take the labels off namespace {name}");
    let found = api.get_opt(name).await.map_err(told);
    let Some(found) = found.with_context(failed)? else {
        return Ok(());
    };
    let ours = objects::labels_of(&found, MANAGER);
    if ours.is_empty() {
        return Ok(());
    }
    let none: BTreeMap<String, Option<String>> = ours.into_iter().map(|key| (key, None)).collect();
    let patch = json!({"metadata": {"uid": found.uid(), "labels": none}});
    let parameters = PatchParams {
        field_manager: Some(MANAGER.to_owned()),
        ..PatchParams::default()
    };
    let sent = api.patch(name, &parameters, &Patch::Merge(&patch)).await;
    sent.map(drop).map_err(told).with_context(failed)
}

/// How to reach objects of a kind.
trait Scoped: Sized {
    fn api(client: &Client, namespace: Option<&str>) -> Api<Self>;
}

impl Scoped for Namespace {
    fn api(client: &Client, _: Option<&str>) -> Api<Self> {
        Api::all(client.clone())
    }
}

impl Scoped for Tenant {
    fn api(client: &Client, _: Option<&str>) -> Api<Self> {
        Api::all(client.clone())
    }
}

impl Scoped for RoleBinding {
    fn api(client: &Client, namespace: Option<&str>) -> Api<Self> {
        Api::namespaced(client.clone(), namespace.unwrap_or_default())
    }
}

impl Scoped for NetworkPolicy {
    fn api(client: &Client, namespace: Option<&str>) -> Api<Self> {
        Api::namespaced(client.clone(), namespace.unwrap_or_default())
    }
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
        leave(client, namespace).await?;
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
            let api: Api<GPUWorkload> = Api::namespaced(client.clone(), namespace);
            let found = api.list(&ListParams::default()).await.map_err(told);
            let found =
                found.with_context(|| format!("failed to list workloads of {namespace}"))?;
            let still = found.iter().filter(|one| !workload::phase(one).is_final());
            open.extend(still.map(|one| format!("{namespace}/{}", one.name_any())));
        }
        if open.is_empty() {
            return Ok(());
        }
        let told = format!("tenant {name} still has {}", open.join(", "));
        if !wait {
            bail!("{told}; `warp cancel` ends one");
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
