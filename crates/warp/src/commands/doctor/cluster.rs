//! What `warp doctor` checks of a cluster: our kinds, the operator and its rights, device plugins and
//! labels. Looks only; what it may not see it says.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use warp_api::gpus::{BadEntry, CONFIG_MAP};
use warp_api::providers;
use warp_core::gpu::{self, Vendor};

use super::{Finding, Verdict, finding};
use crate::cluster::operator::{LABELS, deployments, flag, flags};
use crate::cluster::{Connection, gpus, told};
use crate::commands::{install, operator};
use crate::output;

const INSTALL: &str = "`warp install --print | kubectl apply -f -`";
/// How many names a line shows.
const SHOWN: usize = 3;

/// Everything about the cluster. `own` says that it is a `warp up`, whose operator is part of it.
pub(super) async fn check(connection: &Connection, own: bool) -> Vec<Finding> {
    let client = &connection.client;
    let mut findings = Vec::new();
    for definition in warp_api::crd::all() {
        findings.push(kind(client, &definition).await);
    }
    if own {
        let told = "part of `warp up`; `warp status` shows where its health answers";
        findings.push(finding("operator", Verdict::Fine, told));
    } else {
        findings.extend(operator_of(client).await);
    }
    findings.push(you(connection).await);
    findings.extend(nodes(client).await);
    findings.extend(added_gpus(client).await);
    findings.extend(rules_of_providers(client).await);
    findings
}

/// GPU models an administrator has added, and those of them the operator leaves out.
async fn added_gpus(client: &Client) -> Vec<Finding> {
    let what = "added GPUs";
    match gpus::added(client, &mut Vec::new()).await {
        Ok(added) => said(what, ("models", CONFIG_MAP), added.entries, &added.bad),
        Err(error) => vec![finding(what, Verdict::Less, output::words(&error))],
    }
}

/// What an administrator says of providers, and what of it the operator leaves out.
async fn rules_of_providers(client: &Client) -> Vec<Finding> {
    let what = "providers";
    match gpus::of_providers(client, &mut Vec::new()).await {
        Ok(read) => said(
            what,
            ("entries", providers::CONFIG_MAP),
            read.entries,
            &read.bad,
        ),
        Err(error) => vec![finding(what, Verdict::Less, output::words(&error))],
    }
}

fn said(
    what: &'static str,
    (things, map): (&str, &str),
    entries: usize,
    bad: &[BadEntry],
) -> Vec<Finding> {
    if entries == 0 {
        return Vec::new();
    }
    let used = entries - bad.len();
    let told = format!("{used} of {entries} {things} of ConfigMap {map} are used");
    if bad.is_empty() {
        return vec![finding(what, Verdict::Fine, told)];
    }
    let bad: Vec<String> = bad.iter().map(ToString::to_string).collect();
    let told = format!("{told}; left out: {}", bad.join("; "));
    vec![finding(what, Verdict::Less, told)]
}

/// Whether a kind is served as this Warp knows it.
async fn kind(client: &Client, ours: &Value) -> Finding {
    let name = ours["metadata"]["name"].as_str().unwrap_or_default();
    let what = "kind";
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let found = match api.get_opt(name).await {
        Ok(Some(found)) => serde_json::to_value(found).unwrap_or_default(),
        Ok(None) => {
            let told = format!("{name} is not installed; {INSTALL}");
            return finding(what, Verdict::Wrong, told);
        }
        Err(error) => return unseen(what, name, error),
    };
    let established = found["status"]["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True");
    if !established {
        let told = format!("{name} is installed but not served yet; `kubectl describe crd {name}`");
        return finding(what, Verdict::Wrong, told);
    }
    let versions: Vec<&str> = found["spec"]["versions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|version| version["served"] == true)
        .filter_map(|version| version["name"].as_str())
        .collect();
    for version in ours["spec"]["versions"].as_array().into_iter().flatten() {
        let wanted = version["name"].as_str().unwrap_or_default();
        let theirs = found["spec"]["versions"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|theirs| theirs["name"] == wanted && theirs["served"] == true);
        let Some(theirs) = theirs else {
            let told = format!(
                "{name} serves {}, this Warp speaks {wanted}; install its own kinds: {INSTALL}",
                versions.join(", ")
            );
            return finding(what, Verdict::Wrong, told);
        };
        if let Some(place) = difference(&version["schema"], &theirs["schema"]) {
            let place = place.trim_start_matches(".openAPIV3Schema");
            let told = format!(
                "{name} {wanted} is not this Warp's: it differs at {place}; use the `warp` of the version installed, or install this one's kinds: {INSTALL}"
            );
            return finding(what, Verdict::Wrong, told);
        }
    }
    finding(
        what,
        Verdict::Fine,
        format!("{name} {}", versions.join(", ")),
    )
}

/// Where two schemas first differ.
fn difference(ours: &Value, theirs: &Value) -> Option<String> {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            let absent = Value::Null;
            let mut keys: Vec<&String> = ours.keys().chain(theirs.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            keys.into_iter().find_map(|key| {
                let (one, other) = (ours.get(key), theirs.get(key));
                let inside = difference(one.unwrap_or(&absent), other.unwrap_or(&absent))?;
                let name = key.strip_prefix("properties").map_or(key.as_str(), |_| "");
                Some(if name.is_empty() {
                    inside
                } else {
                    format!(".{name}{inside}")
                })
            })
        }
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => ours
            .iter()
            .zip(theirs)
            .find_map(|(one, other)| difference(one, other)),
        // Numbers may come back in another form: 1 and 1.0.
        (Value::Number(one), Value::Number(other)) if one.as_f64() == other.as_f64() => None,
        (one, other) => (one != other).then(String::new),
    }
}

async fn operator_of(client: &Client) -> Vec<Finding> {
    let what = "operator";
    let deployments = match deployments(client).await {
        Ok(deployments) => deployments,
        Err(error) => return vec![unseen(what, "its Deployment", error)],
    };
    if deployments.is_empty() {
        let told = format!(
            "no Deployment of it in the cluster; {INSTALL}, or run `warp operator` (which cannot be seen from here)"
        );
        return vec![finding(what, Verdict::Wrong, told)];
    }
    let mut findings = Vec::new();
    for deployment in &deployments {
        findings.push(running(deployment));
        findings.push(lease(client, deployment).await);
        findings.push(rights(client, deployment).await);
    }
    findings
}

fn place(deployment: &Deployment) -> (String, String) {
    let namespace = deployment.namespace().unwrap_or_default();
    let name = format!("{namespace}/{}", deployment.name_any());
    (namespace, name)
}

fn running(deployment: &Deployment) -> Finding {
    let (namespace, name) = place(deployment);
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas);
    let ready = deployment
        .status
        .as_ref()
        .and_then(|status| status.ready_replicas)
        .unwrap_or(0);
    let wanted = wanted.unwrap_or(1);
    let told = format!("{name}: {ready} of {wanted} replicas ready");
    match ready {
        0 => finding(
            "operator",
            Verdict::Wrong,
            format!("{told}; `kubectl -n {namespace} describe pods -l {LABELS}` says why"),
        ),
        _ if ready < wanted => finding("operator", Verdict::Less, told),
        _ => finding("operator", Verdict::Fine, told),
    }
}

async fn lease(client: &Client, deployment: &Deployment) -> Finding {
    let what = "lease";
    let (namespace, _) = place(deployment);
    let namespace = flag(deployment, "leader-elect-namespace").unwrap_or(namespace);
    let name = flag(deployment, "leader-elect-lease").unwrap_or_else(|| operator::LEASE.to_owned());
    if !flags(deployment)
        .iter()
        .any(|flag| flag == "--leader-elect")
    {
        let told = "the operator runs without one: it must have one replica only";
        return finding(what, Verdict::Less, told);
    }
    let api: Api<Lease> = Api::namespaced(client.clone(), &namespace);
    let logs = format!("`kubectl -n {namespace} logs -l {LABELS}` says why");
    let spec = match api.get_opt(&name).await {
        Ok(Some(lease)) => lease.spec.unwrap_or_default(),
        Ok(None) => {
            let told = format!("nobody has ever taken {namespace}/{name}; {logs}");
            return finding(what, Verdict::Wrong, told);
        }
        Err(error) => return unseen(what, &format!("{namespace}/{name}"), error),
    };
    let holder = spec.holder_identity.unwrap_or_default();
    let lasts = i64::from(spec.lease_duration_seconds.unwrap_or(15));
    let age = spec
        .renew_time
        .map(|time| jiff::Timestamp::now().duration_since(time.0).as_secs());
    match age {
        _ if holder.is_empty() => finding(
            what,
            Verdict::Wrong,
            format!("{namespace}/{name} is held by nobody; {logs}"),
        ),
        Some(age) if age <= 2 * lasts => finding(
            what,
            Verdict::Fine,
            format!("held by {holder}, renewed {} s ago", age.max(0)),
        ),
        _ => finding(
            what,
            Verdict::Wrong,
            format!(
                "{holder} has not renewed it for {} s, nobody acts; {logs}",
                age.unwrap_or_default()
            ),
        ),
    }
}

/// Whether the operator's account may do what its role of this version says.
async fn rights(client: &Client, deployment: &Deployment) -> Finding {
    let what = "rights";
    let (namespace, _) = place(deployment);
    let pod = deployment
        .spec
        .as_ref()
        .and_then(|spec| spec.template.spec.as_ref());
    let account = pod.and_then(|pod| pod.service_account_name.clone());
    let account = account.unwrap_or_else(|| "default".to_owned());
    let user = format!("system:serviceaccount:{namespace}:{account}");
    let served = flag(deployment, "namespace");
    let needed = match install::needed(&namespace, served.as_deref()) {
        Ok(needed) => needed,
        Err(error) => return finding(what, Verdict::Less, output::words(&error)),
    };
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let mut missing = Vec::new();
    for right in &needed {
        let question = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.clone()),
                groups: Some(vec![
                    "system:serviceaccounts".to_owned(),
                    format!("system:serviceaccounts:{namespace}"),
                    "system:authenticated".to_owned(),
                ]),
                resource_attributes: Some(attributes(
                    &right.group,
                    &right.resource,
                    &right.verb,
                    right.namespace.as_deref(),
                )),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        match api.create(&PostParams::default(), &question).await {
            Ok(answer) if answer.status.as_ref().is_none_or(|status| !status.allowed) => {
                missing.push(format!("{} {}", right.verb, right.resource));
            }
            Ok(_) => {}
            Err(error) => return unseen(what, &format!("what {user} may do"), error),
        }
    }
    if missing.is_empty() {
        let told = format!("{user} may do all {} things it needs to", needed.len());
        return finding(what, Verdict::Fine, told);
    }
    let told = format!("{user} may not {}; {INSTALL}", some(&missing));
    finding(what, Verdict::Wrong, told)
}

fn attributes(
    group: &str,
    resource: &str,
    verb: &str,
    namespace: Option<&str>,
) -> ResourceAttributes {
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, part)) => (resource, Some(part.to_owned())),
        None => (resource, None),
    };
    ResourceAttributes {
        group: Some(group.to_owned()),
        resource: Some(resource.to_owned()),
        subresource,
        verb: Some(verb.to_owned()),
        namespace: namespace.map(str::to_owned),
        ..ResourceAttributes::default()
    }
}

/// What the one who asks may do.
async fn you(connection: &Connection) -> Finding {
    let what = "you";
    let namespace = &connection.namespace;
    let question = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes(
                "gpu.warp.dev",
                "gpuworkloads",
                "create",
                Some(namespace),
            )),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(connection.client.clone());
    match api.create(&PostParams::default(), &question).await {
        Ok(answer) if answer.status.as_ref().is_some_and(|status| status.allowed) => finding(
            what,
            Verdict::Fine,
            format!("may create gpuworkloads in namespace {namespace}"),
        ),
        Ok(_) => finding(
            what,
            Verdict::Less,
            format!(
                "may not create gpuworkloads in namespace {namespace}; ask whoever runs the cluster for a role with it"
            ),
        ),
        Err(error) => unseen(what, "what you may do", error),
    }
}

/// What the nodes have of one vendor.
#[derive(Default)]
struct Seen {
    nodes: usize,
    gpus: u64,
    models: BTreeMap<String, u64>,
    /// Offered, but no label tells the model.
    nameless: Vec<String>,
    /// Labelled, but nothing is offered.
    silent: Vec<String>,
}

async fn nodes(client: &Client) -> Vec<Finding> {
    let api: Api<Node> = Api::all(client.clone());
    let nodes = match api.list(&ListParams::default()).await {
        Ok(nodes) => nodes.items,
        Err(error) => return vec![unseen("node GPUs", "nodes", error)],
    };
    let mut vendors: BTreeMap<Vendor, Seen> = BTreeMap::new();
    for node in &nodes {
        look(node, &mut vendors);
    }
    if vendors.is_empty() {
        let told = format!(
            "none of {} nodes offers any; is a device plugin of NVIDIA, AMD, Intel or Gaudi installed?",
            nodes.len()
        );
        return vec![finding("node GPUs", Verdict::Less, told)];
    }
    vendors
        .into_iter()
        .flat_map(|(vendor, seen)| described(vendor, &seen))
        .collect()
}

fn look(node: &Node, vendors: &mut BTreeMap<Vendor, Seen>) {
    let status = node.status.as_ref();
    let allocatable = status.and_then(|status| status.allocatable.as_ref());
    for vendor in Vendor::ALL {
        let offered: BTreeMap<String, u64> = vendor
            .resources()
            .iter()
            .filter_map(|name| {
                let amount = allocatable?.get(*name)?.0.parse().ok()?;
                Some(((*name).to_owned(), amount))
            })
            .filter(|(_, amount)| *amount > 0)
            .collect();
        // What the labels say does not depend on how many there are.
        let usual = vendor.resources().first().copied().unwrap_or_default();
        let any = BTreeMap::from([(usual.to_owned(), 1)]);
        let told = gpu::read(node.labels(), &any);
        let device = told.devices.first();
        let model = device
            .and_then(|device| device.evidence.as_ref())
            .map(|(_, value)| value.clone());
        if offered.is_empty() && model.is_none() {
            continue;
        }
        let seen = vendors.entry(vendor).or_default();
        if offered.is_empty() {
            seen.silent.push(node.name_any());
            continue;
        }
        let count: u64 = offered.values().sum();
        seen.nodes += 1;
        seen.gpus += count;
        match model {
            Some(model) => *seen.models.entry(model).or_default() += count,
            None => seen.nameless.push(node.name_any()),
        }
    }
}

fn described(vendor: Vendor, seen: &Seen) -> Vec<Finding> {
    let (labeller, plugin) = match vendor {
        Vendor::Nvidia => ("GPU feature discovery", "NVIDIA's device plugin"),
        Vendor::Amd => ("AMD's node labeller", "AMD's device plugin"),
        Vendor::Intel => (
            "node feature discovery with Intel's rules",
            "Intel's GPU plugin",
        ),
        Vendor::Habana => ("Gaudi's feature discovery", "Gaudi's device plugin"),
    };
    let what = format!("{vendor} GPUs");
    let mut findings = Vec::new();
    if seen.nodes > 0 {
        let models: Vec<String> = seen
            .models
            .iter()
            .map(|(model, count)| format!("{count} × {model}"))
            .collect();
        let list = if models.is_empty() {
            "of unknown model".to_owned()
        } else {
            models.join(", ")
        };
        let told = format!("{} on {} nodes: {list}", seen.gpus, seen.nodes);
        findings.push(finding(what.clone(), Verdict::Fine, told));
    }
    if !seen.nameless.is_empty() {
        let told = format!(
            "{}: offered without a label that tells the model; install {labeller}, until then only workloads that ask for no model fit there",
            some(&seen.nameless)
        );
        findings.push(finding(what.clone(), Verdict::Less, told));
    }
    if !seen.silent.is_empty() {
        let told = format!(
            "{}: labelled but nothing is offered; is {plugin} running there, and the driver loaded?",
            some(&seen.silent)
        );
        findings.push(finding(what, Verdict::Less, told));
    }
    findings
}

/// The first few, and how many more there are.
fn some(names: &[String]) -> String {
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// A check that could not be made is said, and is no verdict about the cluster.
fn unseen(what: &str, which: &str, error: kube::Error) -> Finding {
    let why = output::words(&told(error));
    finding(
        what,
        Verdict::Less,
        format!("not checked, {which} cannot be seen: {why}"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::difference;

    #[test]
    fn schemas_differ_where_they_differ() {
        let ours = json!({"properties": {"spec": {"properties": {"gpuCount": {"minimum": 1}}}}});
        let theirs =
            json!({"properties": {"spec": {"properties": {"gpuCount": {"minimum": 1.0}}}}});
        assert_eq!(difference(&ours, &theirs), None);
        let other = json!({"properties": {"spec": {"properties": {"gpuCount": {"minimum": 0}}}}});
        assert_eq!(difference(&ours, &other).unwrap(), ".spec.gpuCount.minimum");
        let less = json!({"properties": {"spec": {"properties": {}}}});
        assert_eq!(difference(&ours, &less).unwrap(), ".spec.gpuCount");
    }
}
