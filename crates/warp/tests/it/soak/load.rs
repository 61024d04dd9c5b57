//! What users do all day.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, ensure};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::{Interval, MissedTickBehavior};
use warp_core::random::Random;
use warp_testkit::Behaviour;

/// Workloads there are at once, at most.
const MOST: usize = 24;
/// Time between two deeds of the users.
const PACE: Duration = Duration::from_millis(150);

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
    random: Random,
    /// No faster than people are, whatever the machine can do; nothing is waited for.
    pace: Interval,
    number: u64,
    deeds: BTreeMap<&'static str, u64>,
    ended: BTreeSet<String>,
    /// Deeds that were refused or found nobody.
    failed: u64,
}

impl Load {
    pub(super) fn new(random: Random) -> Self {
        let mut pace = tokio::time::interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            random,
            pace,
            number: 0,
            deeds: BTreeMap::new(),
            ended: BTreeSet::new(),
            failed: 0,
        }
    }

    /// One deed. What it is about may be gone by then, and the engine down: users go on.
    pub(super) async fn step(&mut self, client: &Client) {
        self.pace.tick().await;
        if self.deed(client).await.is_err() {
            self.failed += 1;
        }
    }

    async fn deed(&mut self, client: &Client) -> Result<()> {
        let api = workloads(client);
        let all = api.list(&ListParams::default()).await?.items;
        let (ended, open): (Vec<_>, Vec<_>) = all.iter().partition(|one| {
            let phase = one.data["status"]["phase"].as_str();
            matches!(phase, Some("Succeeded" | "Failed"))
        });
        self.ended
            .extend(ended.into_iter().map(ResourceExt::name_any));
        let choice = self.random.below(10);
        if open.len() < MOST && (choice < 6 || open.is_empty()) {
            return self.submit(&api).await;
        }
        let Some(one) = open.get(self.random.below(open.len())) else {
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
                json!({"priority": (["low", "high"])[usize::from(self.random.below(2) == 0)]}),
            ),
            _ => (
                "given a limit",
                json!({"maxRuntime": format!("{}s", 60 + self.random.below(600))}),
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
        let time = 500 + self.random.below(5_000) as u64;
        let fails = self.random.below(4) == 0;
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
                "modelName": "soak", "gpuCount": 1 + self.random.below(4), "image": "registry.example/soak:1",
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

    /// The workloads there are, each with what it says.
    pub(super) async fn left(&self, client: &Client) -> Result<Vec<String>> {
        let all = workloads(client).list(&ListParams::default()).await?.items;
        let each = all.iter().map(|one| {
            let status = &one.data["status"];
            let (phase, message) = (&status["phase"], &status["message"]);
            let going = one.metadata.deletion_timestamp.is_some();
            format!("{}: {phase} {message}, deleted: {going}", one.name_any())
        });
        Ok(each.collect())
    }

    /// What was done, if it was enough to mean anything.
    pub(super) fn judge(&self) -> Result<String> {
        let done: u64 = self.deeds.values().sum();
        ensure!(
            !self.ended.is_empty(),
            "no workload ended: the soak soaked nothing"
        );
        ensure!(
            self.failed * 4 <= done,
            "{} of {done} deeds failed: the users could do little",
            self.failed
        );
        let deeds: Vec<String> = self
            .deeds
            .iter()
            .map(|(deed, count)| format!("{count} {deed}"))
            .collect();
        Ok(format!(
            "{} ({} failed, {} seen ended)",
            deeds.join(", "),
            self.failed,
            self.ended.len()
        ))
    }
}
