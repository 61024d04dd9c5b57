//! What work has used of the cluster's own machines, and what that is worth: attempts of workloads that the API still
//! knows, each from its start to its end, at the price of a GPU-hour. Reads, and decides nothing.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use warp_api::{GPUWorkload, Tenant, label};
use warp_cloud::Decimal;
use warp_core::gpu::{self, Vendor};

use super::{By, Line, hours};
use crate::cluster::told;

/// The ConfigMap with the price of a GPU-hour by model, in the operator's namespace.
pub(super) const PRICES: &str = "gpu-hour-prices";
/// Its key for models it does not name.
const ANY: &str = "default";
/// On the nodes of rented machines.
const RENTED: &str = "gpu.warp.dev/rented";

/// GPUs of one node that one attempt of a workload has or had.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Usage {
    namespace: String,
    workload: String,
    user: Option<String>,
    tenant: Option<String>,
    node: String,
    gpu: String,
    gpus: Decimal,
    /// Dollars for one GPU and hour; none where nobody has said.
    price: Option<Decimal>,
    from: Timestamp,
    until: Option<Timestamp>,
}

impl Usage {
    pub(super) fn gpu_hours(&self, now: Timestamp) -> Decimal {
        let until = self.until.unwrap_or(now);
        (hours(self.from, until) * self.gpus).round_dp(3)
    }

    pub(super) fn is_priced(&self) -> bool {
        self.price.is_some()
    }

    pub(super) fn line(&self, by: By, now: Timestamp) -> Line {
        let none = || "-".to_owned();
        let until = self.until.unwrap_or(now);
        let worth = hours(self.from, until) * self.gpus * self.price.unwrap_or_default();
        Line {
            name: match by {
                By::Machine => self.node.clone(),
                By::Request => none(),
                By::Workload => format!("{}/{}", self.namespace, self.workload),
                By::Namespace => self.namespace.clone(),
                By::Tenant => self.tenant.clone().unwrap_or_else(none),
                By::User => self.user.clone().unwrap_or_else(none),
                By::Provider => "owned".to_owned(),
                By::Gpu => self.gpu.clone(),
            },
            machine: self.node.clone(),
            running: self.until.is_none(),
            gpu_hours: self.gpu_hours(now),
            cost: worth.round_dp(4),
        }
    }
}

/// What the cluster knows that usage follows from.
#[derive(Debug, Default)]
struct World {
    jobs: Vec<Job>,
    workloads: Vec<GPUWorkload>,
    tenants: Vec<Tenant>,
    nodes: Vec<Node>,
    prices: BTreeMap<String, String>,
}

/// Reads all of it. `rented` are the machines of the ledger: they are billed there.
pub(super) async fn read(
    client: &Client,
    home: &str,
    rented: &BTreeSet<String>,
) -> anyhow::Result<Vec<Usage>> {
    let jobs: Api<Job> = Api::all(client.clone());
    let workloads: Api<GPUWorkload> = Api::all(client.clone());
    let tenants: Api<Tenant> = Api::all(client.clone());
    let nodes: Api<Node> = Api::all(client.clone());
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), home);
    let all = ListParams::default();
    let ours = ListParams::default().labels(label::WORKLOAD);
    let what = |what: &'static str| move || format!("failed to list {what}");
    let prices = maps.get_opt(PRICES).await.map_err(told);
    let prices = prices.with_context(|| format!("failed to read ConfigMap {home}/{PRICES}"))?;
    let world = World {
        jobs: jobs
            .list(&ours)
            .await
            .map_err(told)
            .with_context(what("Jobs"))?
            .items,
        workloads: workloads
            .list(&all)
            .await
            .map_err(told)
            .with_context(what("workloads"))?
            .items,
        tenants: tenants
            .list(&all)
            .await
            .map_err(told)
            .with_context(what("tenants"))?
            .items,
        nodes: nodes
            .list(&all)
            .await
            .map_err(told)
            .with_context(what("nodes"))?
            .items,
        prices: prices.and_then(|map| map.data).unwrap_or_default(),
    };
    usages(&world, rented)
}

fn usages(world: &World, rented: &BTreeSet<String>) -> anyhow::Result<Vec<Usage>> {
    let mut prices = BTreeMap::new();
    for (model, text) in &world.prices {
        let price: Decimal = text.trim().parse().ok().with_context(|| {
            format!(
                "'{text}' of {model} in ConfigMap {PRICES} is no price: write dollars such as 2.10"
            )
        })?;
        let names: Vec<String> = gpu::named(model)
            .iter()
            .map(|known| known.name.to_owned())
            .collect();
        if names.is_empty() {
            prices.insert(model.clone(), price);
        }
        prices.extend(names.into_iter().map(|name| (name, price)));
    }
    let nodes: BTreeMap<String, &Node> = world
        .nodes
        .iter()
        .map(|node| (node.name_any(), node))
        .collect();
    let makers: BTreeMap<String, &GPUWorkload> = world
        .workloads
        .iter()
        .filter_map(|one| Some((one.uid()?, one)))
        .collect();
    let mut owners: BTreeMap<&str, String> = BTreeMap::new();
    for tenant in &world.tenants {
        for namespace in tenant.status.iter().flat_map(|status| &status.namespaces) {
            owners.insert(namespace, tenant.name_any());
        }
    }
    let mut all = Vec::new();
    for job in &world.jobs {
        let Some((from, until)) = times(job) else {
            continue;
        };
        let (Some((resource, units)), Some(workload)) =
            (asked(job), job.labels().get(label::WORKLOAD))
        else {
            continue;
        };
        let uid = job.labels().get(label::WORKLOAD_UID);
        let maker = uid.and_then(|uid| makers.get(uid));
        let namespace = job.namespace().unwrap_or_default();
        for (name, pods) in places(job) {
            let node = nodes.get(&name).copied();
            let hired = node
                .is_some_and(|node| node.labels().get(RENTED).is_some_and(|said| said == "true"));
            if hired || rented.contains(&name) {
                continue;
            }
            let (model, share) = node.map_or((None, Decimal::ONE), |node| device(node, &resource));
            let labelled =
                node.and_then(|node| node.labels().get(label::GPU_HOUR_PRICE)?.parse().ok());
            let listed = model
                .as_ref()
                .and_then(|model| prices.get(model))
                .or(prices.get(ANY));
            all.push(Usage {
                namespace: namespace.clone(),
                workload: workload.clone(),
                user: maker.and_then(|one| one.annotations().get(label::USER).cloned()),
                tenant: owners.get(namespace.as_str()).cloned(),
                node: name,
                gpu: model.unwrap_or_else(|| "-".to_owned()),
                gpus: Decimal::from(units * pods) * share,
                price: labelled.or(listed.copied()),
                from,
                until,
            });
        }
    }
    Ok(all)
}

/// When an attempt began, and when it ended if it did.
fn times(job: &Job) -> Option<(Timestamp, Option<Timestamp>)> {
    let status = job.status.as_ref()?;
    let from = status.start_time.as_ref()?.0;
    let over = status.conditions.iter().flatten().find(|said| {
        matches!(said.type_.as_str(), "Failed" | "Complete" | "Suspended") && said.status == "True"
    });
    let over = over.and_then(|said| said.last_transition_time.as_ref());
    let until = status.completion_time.as_ref().or(over).map(|at| at.0);
    Some((from, until))
}

/// The GPU resource each pod of a Job asks for, and how many.
fn asked(job: &Job) -> Option<(String, u64)> {
    let pod = job.spec.as_ref()?.template.spec.as_ref()?;
    let limits = pod
        .containers
        .iter()
        .filter_map(|one| one.resources.as_ref()?.limits.as_ref());
    let mut gpus = limits
        .flatten()
        .filter(|(name, _)| Vendor::of_resource(name).is_some());
    let (name, count) = gpus.next()?;
    Some((name.clone(), count.0.parse().ok()?))
}

/// The nodes of an attempt, each with how many pods it has there.
fn places(job: &Job) -> BTreeMap<String, u64> {
    let said = job.annotations();
    let text = said.get(label::NODES).or_else(|| said.get(label::NODE));
    let mut places = BTreeMap::new();
    let names = text.iter().flat_map(|text| text.split(','));
    for name in names.filter(|name| !name.is_empty()) {
        *places.entry(name.to_owned()).or_default() += 1;
    }
    places
}

/// The model behind a resource of a node, and which part of a GPU one unit is.
fn device(node: &Node, resource: &str) -> (Option<String>, Decimal) {
    let status = node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    let counts: BTreeMap<String, u64> = allocatable
        .into_iter()
        .flatten()
        .filter_map(|(name, count)| Some((name.clone(), count.0.parse().ok()?)))
        .collect();
    let devices = gpu::read(node.labels(), &counts).devices;
    let Some(device) = devices
        .into_iter()
        .find(|device| device.resource == resource)
    else {
        return (None, Decimal::ONE);
    };
    let model = device.models.first().map(|model| model.name.to_owned());
    (
        model.or(device.product),
        Decimal::new(i64::from(device.milli), 3),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn world() -> World {
        let job = |name: &str, uid: &str, node: Value, until: Value| {
            json!({"metadata": {"name": name, "namespace": "team",
                "labels": {"gpu.warp.dev/workload": name, "gpu.warp.dev/workload-uid": uid}, "annotations": node},
                "spec": {"template": {"spec": {"containers": [
                    {"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}}},
                "status": {"startTime": "2026-11-17T10:00:00Z", "completionTime": until}})
        };
        let node = |name: &str, product: &str, more: Value| {
            let mut labels =
                json!({"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": "8"});
            for (key, value) in more.as_object().into_iter().flatten() {
                labels[key] = value.clone();
            }
            json!({"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}})
        };
        let one = json!({"gpu.warp.dev/node": "a"});
        let both = json!({"gpu.warp.dev/nodes": "a,b,b"});
        let hired = json!({"gpu.warp.dev/node": "hired"});
        let workload = |name: &str, uid: &str, user: Value| {
            json!({"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
                "metadata": {"name": name, "namespace": "team", "uid": uid, "annotations": user},
                "spec": {"modelName": "m", "gpuCount": 2}})
        };

        World {
            jobs: serde_json::from_value(json!([
                job("solo", "1", one, json!("2026-11-17T11:30:00Z")),
                job("gang", "2", both, Value::Null),
                job("away", "3", hired, Value::Null),
            ]))
            .unwrap(),
            workloads: serde_json::from_value(json!([
                workload("solo", "1", json!({"gpu.warp.dev/user": "ada"})),
                workload("gang", "2", Value::Null),
            ]))
            .unwrap(),
            tenants: serde_json::from_value(
                json!([{"apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant",
                "metadata": {"name": "research"}, "spec": {"namespaces": {"names": ["team"]}},
                "status": {"namespaces": ["team"]}}]),
            )
            .unwrap(),
            nodes: serde_json::from_value(json!([
                node(
                    "a",
                    "NVIDIA-H100-80GB-HBM3",
                    json!({"gpu.warp.dev/gpu-hour-price": "2"})
                ),
                node("b", "NVIDIA-L4", json!({})),
                node("hired", "NVIDIA-L4", json!({"gpu.warp.dev/rented": "true"})),
            ]))
            .unwrap(),
            prices: BTreeMap::from([("L4".to_owned(), "0.50".to_owned())]),
        }
    }

    #[test]
    fn an_attempt_costs_its_gpus_for_its_time_at_the_price_of_its_nodes() {
        let now = "2026-11-17T12:00:00Z".parse().unwrap();
        let all = usages(&world(), &BTreeSet::new()).unwrap();
        let cost = |by: By| {
            let mut sums: BTreeMap<String, Decimal> = BTreeMap::new();
            for usage in &all {
                let line = usage.line(by, now);
                *sums.entry(line.name).or_default() += line.cost;
            }
            let each = sums
                .iter()
                .map(|(name, cost)| format!("{name} {}", cost.normalize()));
            each.collect::<Vec<_>>()
        };
        // An hour and a half on two H100; two hours on two H100 and four L4; what is rented is billed elsewhere.
        assert_eq!(cost(By::Workload), ["team/gang 12", "team/solo 6"]);
        assert_eq!(cost(By::User), ["- 12", "ada 6"]);
        assert_eq!(cost(By::Tenant), ["research 18"]);
        assert_eq!(cost(By::Gpu), ["H100-80GB 14", "L4 4"]);
        assert_eq!(cost(By::Provider), ["owned 18"]);
    }

    #[test]
    fn what_nobody_has_priced_is_told_apart_and_a_price_that_is_none_is_said() {
        let mut world = world();
        world.prices.clear();
        let all = usages(&world, &BTreeSet::new()).unwrap();
        let unpriced: Vec<_> = all
            .iter()
            .filter(|one| !one.is_priced())
            .map(|one| one.node.as_str())
            .collect();
        assert_eq!(unpriced, ["b"]);
        world.prices.insert(ANY.to_owned(), "1".to_owned());
        assert!(
            usages(&world, &BTreeSet::new())
                .unwrap()
                .iter()
                .all(Usage::is_priced)
        );
        world.prices.insert("H100".to_owned(), "cheap".to_owned());
        let problem = usages(&world, &BTreeSet::new()).unwrap_err().to_string();
        assert!(problem.contains("'cheap' of H100"), "{problem}");
    }
}
