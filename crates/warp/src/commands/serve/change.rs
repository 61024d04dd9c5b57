//! What `warp serve` changes of a service that is there already: asked of the API server, which knows what is kept and
//! what is given up.

use anyhow::Context as _;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::Value;
use warp_api::InferenceService;

use crate::cluster::told;

/// What an absent value is called.
const ABSENT: &str = "(not given)";

/// The fields of the service `name` that `manifest` changes; none: there is no such service.
pub(super) async fn of(
    services: &Api<InferenceService>,
    name: &str,
    manifest: &Value,
    params: &PatchParams,
) -> anyhow::Result<Option<Vec<String>>> {
    let before = services.get_opt(name).await.map_err(told);
    let before = before.with_context(|| format!("failed to look for the service {name}"))?;
    let Some(before) = before else {
        return Ok(None);
    };
    let trial = PatchParams {
        dry_run: true,
        ..params.clone()
    };
    let after = services
        .patch(name, &trial, &Patch::Apply(manifest))
        .await
        .map_err(told)
        .with_context(|| format!("failed to change the existing service {name}"))?;
    let (before, after) = (
        serde_json::to_value(&before.spec)?,
        serde_json::to_value(&after.spec)?,
    );
    let mut changes = Vec::new();
    differences("spec", &before, &after, &mut changes);
    Ok(Some(changes))
}

/// Every field that differs, as `spec.replicas: 1 → 2`.
fn differences(path: &str, before: &Value, after: &Value, found: &mut Vec<String>) {
    if before == after {
        return;
    }
    let nothing = serde_json::Map::new();
    let (old, new) = match (before, after) {
        (Value::Object(old), Value::Object(new)) => (old.clone(), new.clone()),
        // A group of fields that comes or goes is told field by field.
        (Value::Null, Value::Object(new)) => (nothing, new.clone()),
        (Value::Object(old), Value::Null) => (old.clone(), nothing),
        _ => {
            found.push(format!("{path}: {} → {}", shown(before), shown(after)));
            return;
        }
    };
    let mut names: Vec<&String> = old.keys().chain(new.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let (old, new) = (old.get(name), new.get(name));
        differences(
            &format!("{path}.{name}"),
            old.unwrap_or(&Value::Null),
            new.unwrap_or(&Value::Null),
            found,
        );
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => ABSENT.to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_field_that_changes_is_told_with_what_it_was_and_will_be() {
        let before = json!({
            "model": { "source": "org/a" }, "replicas": 2, "port": 8000,
            "engine": { "args": { "max-model-len": "8k" } },
        });
        let after = json!({
            "model": { "source": "org/b" }, "replicas": 2, "port": 8000,
            "gpu": { "models": ["H100"] },
        });
        let mut found = Vec::new();
        differences("spec", &before, &after, &mut found);
        assert_eq!(
            found,
            [
                "spec.engine.args.max-model-len: 8k → (not given)",
                r#"spec.gpu.models: (not given) → ["H100"]"#,
                "spec.model.source: org/a → org/b",
            ]
        );
        found.clear();
        differences("spec", &before, &before, &mut found);
        assert!(found.is_empty());
    }
}
