//! A cluster with Warp installed, and what a scenario does in it.
//!
//! Owns: installing, namespaces, submitting workloads, waiting for what they become, and reading
//! what exists. Must not know which scenario it serves, nor which engine runs the cluster.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
};
use kube::runtime::wait::Condition;
use kube::runtime::wait::conditions::is_crd_established;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use warp_testkit::audit::{Request, service_account};
use warp_testkit::{Behaviour, Cluster, Engine, until, wait_for, wait_gone};

use super::operator::{Operator, binary};

/// Namespace and service account of the shipped manifests.
pub(super) const SYSTEM: &str = "warp-system";
pub(super) const ACCOUNT: &str = "warp-operator";

pub(super) use warp_testkit::PATIENCE as DEADLINE;

/// Label on Jobs and pods: the workload they belong to.
const WORKLOAD: &str = "gpu.warp.dev/workload";

/// What Kubernetes has and the embedded engine does not (`docs/reference/embedded.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feature {
    /// Admission webhooks: nothing calls out of the embedded engine.
    Webhooks,
}

/// A cluster with Warp's CRDs, role and service account.
pub(super) struct World {
    pub(super) cluster: Cluster,
    pub(super) client: Client,
    operator_kubeconfig: PathBuf,
    operators: AtomicUsize,
}

impl World {
    /// Installs Warp as a user does: what `warp install --print` writes, through kubectl.
    pub(super) async fn install(cluster: Cluster, arguments: &[&str]) -> Result<Self> {
        let manifests = manifests(arguments).await?;
        cluster
            .kubectl()
            .run_with(&["apply", "-f", "-"], &manifests)
            .await?;
        let client = cluster.client().await?;
        let definitions = Api::<CustomResourceDefinition>::all(client.clone());
        for entry in warp_api::kinds::KINDS {
            let name = format!("{}.{}", entry.plural, warp_api::GROUP);
            wait_for(&definitions, &name, "established", DEADLINE, |crd| {
                is_crd_established().matches_object(crd)
            })
            .await?;
        }
        // A server that has just learnt a kind may answer that it is still filling its cache.
        let workloads: Api<DynamicObject> = Api::all_with(client.clone(), &workload_resource());
        until("workloads can be listed", DEADLINE, || async {
            let listed = workloads.list_metadata(&ListParams::default()).await;
            Ok(listed.ok().map(drop))
        })
        .await?;
        let operator_kubeconfig = cluster.kubeconfig_as(SYSTEM, ACCOUNT).await?;
        Ok(Self {
            cluster,
            client,
            operator_kubeconfig,
            operators: AtomicUsize::new(0),
        })
    }

    /// Whether this world's engine has what only some have.
    pub(super) fn has(&self, feature: Feature) -> bool {
        match (self.cluster.engine(), feature) {
            (Engine::Real, _) => true,
            (Engine::Embedded, Feature::Webhooks) => false,
        }
    }

    /// Starts an operator with the rights of the shipped role.
    pub(super) fn operator(&self, arguments: &[&str]) -> Result<Operator> {
        let number = self.operators.fetch_add(1, Ordering::Relaxed);
        let log = self.cluster.folder().join(format!("operator-{number}.log"));
        Operator::start(&self.operator_kubeconfig, &log, arguments)
    }

    /// A namespace of its own for a scenario.
    pub(super) async fn scene(&self, purpose: &str) -> Result<Scene<'_>> {
        let namespace = self.cluster.namespace(purpose).await?;
        Ok(Scene {
            world: self,
            namespace,
        })
    }

    /// A namespace that exists already.
    pub(super) fn scene_in(&self, namespace: &str) -> Scene<'_> {
        Scene {
            world: self,
            namespace: namespace.to_owned(),
        }
    }

    /// What the operator has asked the API server for so far.
    pub(super) async fn requests(&self) -> Result<Vec<Request>> {
        let user = service_account(SYSTEM, ACCOUNT);
        let mut requests = self.cluster.audit().await?;
        requests.retain(|request| request.user == user);
        Ok(requests)
    }
}

/// What `warp install --print` writes.
pub(super) async fn manifests(arguments: &[&str]) -> Result<String> {
    let output = tokio::process::Command::new(binary()?)
        .args(["install", "--print"])
        .args(arguments)
        .output()
        .await?;
    ensure!(
        output.status.success(),
        "failed to print the manifests: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// The API resource of GPUWorkloads, as any client sees it: without Warp's own types.
pub(super) fn workload_resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("gpu.warp.dev", "v1alpha1", "GPUWorkload");
    ApiResource::from_gvk_with_plural(&kind, "gpuworkloads")
}

/// The simple form of a spec: one container that behaves as told. It names its GPU, so that no strategy
/// puts it on a node that another scenario needs.
pub(super) fn spec(gpus: u32, behaviour: &Behaviour) -> Value {
    json!({
        "modelName": "scenario",
        "gpuCount": gpus,
        "gpu": {"models": ["H100"]},
        "image": "registry.example/scenario:1",
        "env": behaviour.env(),
        "retryPolicy": {"maxRetries": 2, "backoffSeconds": 1},
    })
}

/// `base` with the fields of `more` put over it.
pub(super) fn with(mut base: Value, more: Value) -> Value {
    merge(&mut base, more);
    base
}

fn merge(base: &mut Value, more: Value) {
    match (base, more) {
        (Value::Object(base), Value::Object(more)) => {
            for (key, value) in more {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, more) => *base = more,
    }
}

/// A text field of an object, or "".
pub(super) fn text<'a>(object: &'a DynamicObject, pointer: &str) -> &'a str {
    object
        .data
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

pub(super) fn phase(object: &DynamicObject) -> &str {
    text(object, "/status/phase")
}

pub(super) fn retries(object: &DynamicObject) -> i64 {
    object
        .data
        .pointer("/status/retryCount")
        .and_then(Value::as_i64)
        .unwrap_or_default()
}

/// A field of a condition, or "".
pub(super) fn condition<'a>(object: &'a DynamicObject, kind: &str, field: &str) -> &'a str {
    object
        .data
        .pointer("/status/conditions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == kind)
        .and_then(|condition| condition[field].as_str())
        .unwrap_or_default()
}

pub(super) fn reason(object: &DynamicObject) -> &str {
    condition(object, "Ready", "reason")
}

pub(super) fn message(object: &DynamicObject) -> &str {
    condition(object, "Ready", "message")
}

/// A scenario's own namespace.
pub(super) struct Scene<'a> {
    pub(super) world: &'a World,
    pub(super) namespace: String,
}

impl Scene<'_> {
    pub(super) fn workloads(&self) -> Api<DynamicObject> {
        Api::namespaced_with(
            self.world.client.clone(),
            &self.namespace,
            &workload_resource(),
        )
    }

    pub(super) fn jobs(&self) -> Api<Job> {
        Api::namespaced(self.world.client.clone(), &self.namespace)
    }

    pub(super) fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.world.client.clone(), &self.namespace)
    }

    pub(super) async fn submit(&self, name: &str, spec: Value) -> Result<DynamicObject> {
        self.submit_with(json!({"name": name}), spec).await
    }

    pub(super) async fn submit_with(&self, metadata: Value, spec: Value) -> Result<DynamicObject> {
        let object = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1",
            "kind": "GPUWorkload",
            "metadata": metadata,
            "spec": spec,
        });
        // As kubectl does it: a misspelled field of a scenario is an error, not a silent default.
        let path = format!("{}?fieldValidation=Strict", self.workloads().resource_url());
        let request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(serde_json::to_vec(&object)?)?;
        Ok(self.world.client.request(request).await?)
    }

    /// Changes fields of a workload's spec.
    pub(super) async fn change(&self, name: &str, spec: Value) -> Result<DynamicObject> {
        let patch = json!({"spec": spec});
        let patched = self
            .workloads()
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(patched)
    }

    pub(super) async fn get(&self, name: &str) -> Result<DynamicObject> {
        Ok(self.workloads().get(name).await?)
    }

    pub(super) async fn delete(&self, name: &str) -> Result<()> {
        self.workloads()
            .delete(name, &DeleteParams::default())
            .await?;
        Ok(())
    }

    /// Waits until the workload is as told and gives it as it then was.
    pub(super) async fn until(
        &self,
        name: &str,
        what: &str,
        condition: impl Fn(&DynamicObject) -> bool + Send + Sync,
    ) -> Result<DynamicObject> {
        let seen = wait_for(&self.workloads(), name, what, DEADLINE, |object| {
            object.is_some_and(&condition)
        })
        .await
        .with_context(|| format!("in namespace '{}'", self.namespace))?;
        seen.context("a workload that was there is missing")
    }

    pub(super) async fn until_phase(&self, name: &str, wanted: &str) -> Result<DynamicObject> {
        self.until(name, wanted, |object| phase(object) == wanted)
            .await
    }

    pub(super) async fn until_reason(&self, name: &str, wanted: &str) -> Result<DynamicObject> {
        self.until(name, wanted, |object| reason(object) == wanted)
            .await
    }

    pub(super) async fn jobs_of(&self, workload: &str) -> Result<Vec<Job>> {
        let list = ListParams::default().labels(&format!("{WORKLOAD}={workload}"));
        let mut jobs = self.jobs().list(&list).await?.items;
        jobs.sort_by_key(ResourceExt::name_any);
        Ok(jobs)
    }

    pub(super) async fn pods_of(&self, workload: &str) -> Result<Vec<Pod>> {
        let list = ListParams::default().labels(&format!("{WORKLOAD}={workload}"));
        Ok(self.pods().list(&list).await?.items)
    }

    /// The pod of the attempt that is going on.
    pub(super) async fn live_pod(&self, workload: &str) -> Result<Pod> {
        let what = format!("'{workload}' has a live pod");
        until(&what, DEADLINE, || async {
            let pods = self.pods_of(workload).await?;
            Ok(pods.into_iter().find(is_live))
        })
        .await
    }

    /// Makes the live pod of a workload go on as told.
    pub(super) async fn release(&self, workload: &str, behaviour: &Behaviour) -> Result<()> {
        let pod = self.live_pod(workload).await?;
        let patch = json!({"metadata": {"annotations": behaviour.annotations()}});
        self.pods()
            .patch(
                &pod.name_any(),
                &PatchParams::default(),
                &Patch::Merge(patch),
            )
            .await?;
        Ok(())
    }

    /// Waits until nothing a workload of this namespace owned is left.
    pub(super) async fn until_empty(&self) -> Result<()> {
        for name in names(&self.workloads().list(&ListParams::default()).await?.items) {
            wait_gone(&self.workloads(), &name, DEADLINE).await?;
        }
        for name in names(&self.jobs().list(&ListParams::default()).await?.items) {
            wait_gone(&self.jobs(), &name, DEADLINE).await?;
        }
        for name in names(&self.pods().list(&ListParams::default()).await?.items) {
            wait_gone(&self.pods(), &name, DEADLINE).await?;
        }
        let left = self.jobs().list(&ListParams::default()).await?.items;
        ensure!(left.is_empty(), "left behind: {:?}", names(&left));
        Ok(())
    }

    /// What the operator has asked for in this namespace so far.
    pub(super) async fn requests(&self) -> Result<Vec<Request>> {
        let mut requests = self.world.requests().await?;
        requests.retain(|request| request.namespace == self.namespace);
        Ok(requests)
    }

    /// A small workload of its own that runs to its end: whatever the operator had to do before it
    /// saw this one is done by then.
    pub(super) async fn canary(&self, name: &str) -> Result<()> {
        self.submit(name, spec(1, &Behaviour::succeed())).await?;
        self.until_phase(name, "Succeeded").await?;
        Ok(())
    }
}

fn names<K: kube::Resource>(objects: &[K]) -> Vec<String> {
    objects.iter().map(ResourceExt::name_any).collect()
}

/// A pod that may still run.
pub(super) fn is_live(pod: &Pod) -> bool {
    let ended = pod
        .status
        .as_ref()
        .and_then(|status| status.phase.as_deref())
        .is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"));
    !ended && pod.metadata.deletion_timestamp.is_none()
}
