//! What users do all day.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use warp_testkit::Behaviour;

/// Workloads there are at once, at most.
const MOST: usize = 24;
/// Time between two deeds of the users.
const PACE: Duration = Duration::from_millis(150);

/// Numbers that repeat.
#[derive(Clone, Debug)]
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % limit.max(1)
    }
}

pub(super) fn workloads(client: &Client) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("gpu.warp.dev", "v1alpha1", "GPUWorkload");
    Api::namespaced_with(
        client.clone(),
        "default",
        &ApiResource::from_gvk_with_plural(&kind, "gpuworkloads"),
    )
}

/// The users.
pub(super) struct Load {
    dice: Dice,
    number: u64,
    deeds: BTreeMap<&'static str, u64>,
    ended: std::collections::BTreeSet<String>,
}

impl Load {
    pub(super) fn new(dice: Dice) -> Self {
        Self {
            dice,
            number: 0,
            deeds: BTreeMap::new(),
            ended: std::collections::BTreeSet::new(),
        }
    }

    /// One deed.
    pub(super) async fn step(&mut self, client: &Client) -> Result<()> {
        tokio::time::sleep(PACE).await;
        let api = workloads(client);
        let all = api.list(&ListParams::default()).await?.items;
        for one in &all {
            if matches!(
                one.data["status"]["phase"].as_str(),
                Some("Succeeded" | "Failed")
            ) {
                self.ended.insert(one.name_any());
            }
        }
        let open: Vec<&DynamicObject> = all
            .iter()
            .filter(|one| {
                !matches!(
                    one.data["status"]["phase"].as_str(),
                    Some("Succeeded" | "Failed")
                )
            })
            .collect();
        let choice = self.dice.below(10);
        if open.len() < MOST && (choice < 6 || open.is_empty()) {
            return self.submit(&api).await;
        }
        let place = self.dice.below(open.len() as u64);
        let Some(one) = usize::try_from(place)
            .ok()
            .and_then(|place| open.get(place))
        else {
            return Ok(());
        };
        let name = one.name_any();
        let (deed, patch) = match choice {
            6 => {
                *self.deeds.entry("deleted").or_default() += 1;
                api.delete(&name, &DeleteParams::default()).await?;
                return Ok(());
            }
            7 => {
                let suspended = one.data["spec"]["suspend"] == true;
                ("suspended or resumed", json!({"suspend": !suspended}))
            }
            8 => (
                "reprioritised",
                json!({"priority": (["low", "high"])[usize::from(self.dice.below(2) == 0)]}),
            ),
            _ => (
                "given a limit",
                json!({"maxRuntime": format!("{}s", 60 + self.dice.below(600))}),
            ),
        };
        *self.deeds.entry(deed).or_default() += 1;
        api.patch(
            &name,
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": patch})),
        )
        .await?;
        Ok(())
    }

    async fn submit(&mut self, api: &Api<DynamicObject>) -> Result<()> {
        self.number += 1;
        let time = 500 + self.dice.below(5_000);
        let fails = self.dice.below(4) == 0;
        // Simulated nodes of `warp up` read the command, those of the control plane the environment.
        let behaviour = if fails {
            Behaviour::exit(3)
        } else {
            Behaviour::succeed()
        };
        let behaviour = behaviour.run_for(Duration::from_millis(time));
        let script = format!(
            "sleep {}; exit {}",
            time.div_ceil(1000),
            if fails { 3 } else { 0 }
        );
        let object = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
            "metadata": {"name": format!("soak-{}", self.number)},
            "spec": {
                "modelName": "soak", "gpuCount": 1 + self.dice.below(4), "image": "registry.example/soak:1",
                "command": ["sh", "-c", script], "env": behaviour.env(),
                "retryPolicy": {"maxRetries": 1, "backoffSeconds": 1}, "ttlSecondsAfterFinished": 3,
            },
        });
        *self.deeds.entry("submitted").or_default() += 1;
        api.create(&PostParams::default(), &serde_json::from_value(object)?)
            .await?;
        Ok(())
    }

    /// Lets everything end: resumes what is suspended and deletes what hangs in between.
    pub(super) async fn finish(&self, client: &Client) -> Result<Option<()>> {
        let api = workloads(client);
        let all = api.list(&ListParams::default()).await?.items;
        for one in &all {
            if one.data["spec"]["suspend"] == true {
                let patch = Patch::Merge(json!({"spec": {"suspend": false}}));
                let _ = api
                    .patch(&one.name_any(), &PatchParams::default(), &patch)
                    .await;
            }
        }
        Ok(all.is_empty().then_some(()))
    }

    pub(super) fn ended(&self) -> usize {
        self.ended.len()
    }

    pub(super) fn figures(&self) -> String {
        let deeds: Vec<String> = self
            .deeds
            .iter()
            .map(|(deed, count)| format!("{count} {deed}"))
            .collect();
        format!("{} ({} seen ended)", deeds.join(", "), self.ended.len())
    }
}
