//! Autoscalers of others that choose how many copies a service has (`scaling.by`): what each is told, what is taken back,
//! and what the service says of it. They write `spec.replicas` through the service's scale; the operator makes it so. Pure.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use warp_api::inferenceservice::{EngineKind, Scaling, ScalingBy, ScalingMetric};
use warp_api::workload::run_seconds;
use warp_api::{InferenceService, condition, reason};
use warp_runtime::cache::Key;
use warp_runtime::plan::{Action, Kind, Plan, is_controlled_by};
use warp_runtime::reconcile::{Reconcile, Refusal};

use super::InferenceServices;
use super::objects;
use super::observe::Seen;

/// The label of a service's pods as Prometheus writes it, and as the external metrics are asked for.
const SERIES_LABEL: &str = "gpu_warp_dev_inference_service";

/// KEDA's object, as far as it is ours.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct ScaledObject {
    #[serde(default)]
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
}

impl Resource for ScaledObject {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "ScaledObject".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "keda.sh".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1alpha1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "scaledobjects".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// What is known of autoscalers for one service; none: the operator has no right to tell any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Autoscalers {
    pub(crate) hpa: Option<Arc<HorizontalPodAutoscaler>>,
    pub(crate) scaled: Option<Arc<ScaledObject>>,
    /// The cluster has KEDA's kind.
    pub(crate) keda: bool,
}

/// Tells the autoscaler that the spec names, and takes back what another was told.
pub(super) fn tell(plan: &mut Plan, service: &InferenceService, seen: &Seen) {
    let Some(known) = &seen.autoscalers else {
        return;
    };
    let by = named(service);
    if by != ScalingBy::Hpa {
        take_back(plan, service, known.hpa.as_deref());
    }
    if by != ScalingBy::Keda {
        take_back(plan, service, known.scaled.as_deref());
    }
    if obstacle(service, seen).is_some() {
        return;
    }
    let Some(scaling) = &service.spec.scaling else {
        return;
    };
    let (kind, object) = match by {
        ScalingBy::Warp => return,
        ScalingBy::Hpa => (Kind::of::<HorizontalPodAutoscaler>(), hpa(service, scaling)),
        ScalingBy::Keda => (Kind::of::<ScaledObject>(), scaled(service, scaling)),
    };
    plan.push(Action::Apply {
        kind,
        key: Key::of(service),
        manager: InferenceServices::MANAGER,
        object,
    });
}

/// Who chooses the number of copies.
pub(super) fn named(service: &InferenceService) -> ScalingBy {
    let scaling = service.spec.scaling.as_ref();
    scaling.map_or(ScalingBy::Warp, |scaling| scaling.by)
}

fn take_back<K>(plan: &mut Plan, service: &InferenceService, found: Option<&K>)
where
    K: Resource<DynamicType = ()>,
{
    let Some(found) = found else { return };
    let uid = service.uid().unwrap_or_default();
    if is_controlled_by(found, &uid) && found.meta().deletion_timestamp.is_none() {
        plan.delete_version(found);
        plan.because("scaling.by does not name it");
    }
}

/// Why the autoscaler cannot be told.
fn obstacle(service: &InferenceService, seen: &Seen) -> Option<(&'static str, String)> {
    let kept = "the copies are those of spec.replicas";
    let Some(known) = &seen.autoscalers else {
        return Some((
            reason::AUTOSCALERS_NOT_ALLOWED,
            format!(
                "this operator may not tell autoscalers: use scaling.by warp, or have an administrator install it with `warp install --print --autoscalers` or `kubectl apply -k deploy/autoscalers`; until then {kept}"
            ),
        ));
    };
    let uid = service.uid().unwrap_or_default();
    let name = service.name_any();
    let taken = |kind: &str| {
        let message = format!(
            "the {kind} {name} is not this service's: rename one of them, or delete it; until then {kept}"
        );
        Some((reason::NAME_TAKEN, message))
    };
    match named(service) {
        ScalingBy::Warp => None,
        ScalingBy::Hpa => {
            let found = known.hpa.as_deref();
            found
                .filter(|found| !is_controlled_by(*found, &uid))
                .and_then(|_| taken("HorizontalPodAutoscaler"))
        }
        ScalingBy::Keda if !known.keda => Some((
            reason::NO_SUCH_AUTOSCALER,
            format!(
                "the cluster has no ScaledObjects (keda.sh/v1alpha1): install KEDA, or use scaling.by warp or hpa; until then {kept}"
            ),
        )),
        ScalingBy::Keda => {
            let found = known.scaled.as_deref();
            found
                .filter(|found| !is_controlled_by(*found, &uid))
                .and_then(|_| taken("ScaledObject"))
        }
    }
}

/// What the service says of its autoscaler; nothing where it has none.
pub(super) fn told(service: &InferenceService, seen: &Seen) -> Option<condition::State> {
    let by = named(service);
    if by == ScalingBy::Warp {
        return None;
    }
    let state = |status, reason, message| condition::State {
        kind: condition::HANDED_OVER,
        status,
        reason,
        message,
    };
    Some(match obstacle(service, seen) {
        Some((reason, message)) => state("False", reason, message),
        None => state("True", reason::AUTOSCALER_TOLD, who(service)),
    })
}

/// What it says of an autoscaler that the API server did not take; nothing where that is about something else.
pub(super) fn not_told(refused: &Refusal, message: &str) -> Option<condition::State> {
    let kinds = [
        <HorizontalPodAutoscaler as Resource>::kind(&()),
        ScaledObject::kind(&()),
    ];
    kinds
        .contains(&Cow::Borrowed(refused.kind.as_str()))
        .then(|| condition::State {
            kind: condition::HANDED_OVER,
            status: "False",
            reason: reason::OBJECT_REJECTED,
            message: message.to_owned(),
        })
}

/// One sentence about who chooses.
fn who(service: &InferenceService) -> String {
    let what = match named(service) {
        ScalingBy::Warp => return String::new(),
        ScalingBy::Hpa => "HorizontalPodAutoscaler",
        ScalingBy::Keda => "ScaledObject",
    };
    let name = service.name_any();
    format!("the {what} {name} chooses the number of copies")
}

fn target(service: &InferenceService) -> Value {
    json!({
        "apiVersion": InferenceService::api_version(&()),
        "kind": InferenceService::kind(&()),
        "name": service.name_any(),
    })
}

/// Copies go only after they were too many for the window, as with Warp's own scaling.
fn behaviour(scaling: &Scaling) -> Value {
    let window = run_seconds(&scaling.window).unwrap_or(300);
    json!({ "scaleDown": { "stabilizationWindowSeconds": window } })
}

/// Whether the target is what one copy carries; otherwise it is what all of them show alike.
fn is_shared(metric: ScalingMetric) -> bool {
    matches!(metric, ScalingMetric::InFlight | ScalingMetric::Queue)
}

/// What a measure is called in the external metrics API. Whoever serves that has to know it (docs/guides/serve.md).
fn external_name(metric: ScalingMetric) -> &'static str {
    match metric {
        ScalingMetric::InFlight => "warp_requests_in_flight",
        ScalingMetric::Queue => "warp_requests_waiting",
        ScalingMetric::Cache => "warp_cache_percent",
        ScalingMetric::FirstToken => "warp_first_token_milliseconds",
        ScalingMetric::BetweenTokens => "warp_between_tokens_milliseconds",
    }
}

fn hpa(service: &InferenceService, scaling: &Scaling) -> Value {
    let amount = scaling.target.to_string();
    let target_of = if is_shared(scaling.metric) {
        json!({ "type": "AverageValue", "averageValue": amount })
    } else {
        json!({ "type": "Value", "value": amount })
    };
    json!({
        "apiVersion": HorizontalPodAutoscaler::api_version(&()),
        "kind": HorizontalPodAutoscaler::kind(&()),
        "metadata": objects::owned(service),
        "spec": {
            "scaleTargetRef": target(service),
            "minReplicas": scaling.min,
            "maxReplicas": scaling.max,
            "metrics": [{
                "type": "External",
                "external": {
                    "metric": {
                        "name": external_name(scaling.metric),
                        "selector": { "matchLabels": { SERIES_LABEL: service.name_any() } },
                    },
                    "target": target_of,
                },
            }],
            "behavior": behaviour(scaling),
        },
    })
}

fn scaled(service: &InferenceService, scaling: &Scaling) -> Value {
    let kind = if is_shared(scaling.metric) {
        "AverageValue"
    } else {
        "Value"
    };
    json!({
        "apiVersion": ScaledObject::api_version(&()),
        "kind": ScaledObject::kind(&()),
        "metadata": objects::owned(service),
        "spec": {
            "scaleTargetRef": target(service),
            "minReplicaCount": scaling.min,
            "maxReplicaCount": scaling.max,
            "advanced": {
                "horizontalPodAutoscalerConfig": { "behavior": behaviour(scaling) },
            },
            "triggers": [{
                "type": "prometheus",
                "metricType": kind,
                "metadata": {
                    "serverAddress": scaling.prometheus,
                    "query": query(service, scaling.metric),
                    "threshold": scaling.target.to_string(),
                    // No answer is not the same as nothing to do.
                    "ignoreNullValues": "false",
                },
            }],
        },
    })
}

/// What the engines measure themselves, as one number. Series have the pods' namespace and label, as the PodMonitor of
/// `deploy/monitoring` has them written.
fn query(service: &InferenceService, metric: ScalingMetric) -> String {
    let of = format!(
        r#"{{namespace="{}",{SERIES_LABEL}="{}"}}"#,
        service.namespace().unwrap_or_default(),
        service.name_any()
    );
    let is_sglang = service.spec.engine.kind == EngineKind::Sglang;
    let (running, waiting, cache) = if is_sglang {
        (
            "sglang:num_running_reqs",
            "sglang:num_queue_reqs",
            "sglang:token_usage",
        )
    } else {
        (
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
        )
    };
    let engine = if is_sglang { "sglang" } else { "vllm" };
    let nine_of_ten = |what: &str| {
        format!(
            "1000 * histogram_quantile(0.9, sum by (le) (rate({engine}:{what}_seconds_bucket{of}[2m])))"
        )
    };
    match metric {
        ScalingMetric::InFlight => format!("sum({running}{of}) + sum({waiting}{of})"),
        ScalingMetric::Queue => format!("sum({waiting}{of})"),
        ScalingMetric::Cache => format!("100 * avg({cache}{of})"),
        ScalingMetric::FirstToken => nine_of_ten("time_to_first_token"),
        ScalingMetric::BetweenTokens => nine_of_ten("inter_token_latency"),
    }
}
