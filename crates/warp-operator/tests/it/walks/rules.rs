//! The kind's rules beyond types and bounds, and specs that break them.
//!
//! Which rules there are is read from the CRD: one that nothing here breaks, and that no frozen field
//! breaks after placement, is reported by the walk as not covered.

use std::sync::LazyLock;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use warp_testkit::fault::world::World;

use super::walker::User;
use super::{Covered, base, compare};

/// The words of every rule of the kind.
pub(crate) static ALL: LazyLock<Vec<String>> = LazyLock::new(|| {
    let definition = warp_api::crd::gpu_workload();
    let mut found = Vec::new();
    gather(warp_api::crd::schema(&definition), &mut found);
    found
});

fn gather(schema: &Value, found: &mut Vec<String>) {
    let rules = schema["x-kubernetes-validations"].as_array();
    let words = rules
        .into_iter()
        .flatten()
        .filter_map(|rule| rule["message"].as_str());
    found.extend(words.map(str::to_owned));
    let below = schema["properties"].as_object();
    for schema in below.into_iter().flatten().map(|(_, schema)| schema) {
        gather(schema, found);
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            gather(&schema[inner], found);
        }
    }
}

/// A spec that breaks a rule, and the beginning of what the rule says.
struct Breach {
    says: &'static str,
    template: bool,
    spec: Value,
}

fn breaches() -> Vec<Breach> {
    let changed = |template: bool, says: &'static str, fields: Value| {
        let mut spec = base(template);
        for (name, value) in fields.as_object().into_iter().flatten() {
            spec[name] = value.clone();
        }
        if let Some(spec) = spec.as_object_mut() {
            spec.retain(|_, value| !value.is_null());
        }
        Breach {
            says,
            template,
            spec,
        }
    };
    let in_pod = |says: &'static str, name: &str, value: &str| {
        let mut breach = changed(true, says, json!({}));
        breach.spec["podTemplate"]["spec"][name] = json!(value);
        breach
    };
    let source = "exactly one of image and podTemplate";
    let belongs = "podSecurityContext belong to image";
    let memory = "minMemory must be a positive quantity";
    let time = "maxRuntime must be a time of at least 1s such as 90m or 1h30m";
    let either = "priority and priorityClassName exclude each other";
    let how = "checkpoint must say how work is saved";
    let grace = "gracePeriod must be a time of at least 1s";
    let period = "period must be a time of at least 1s such as 10m";
    let fewest = "minReplicas is the fewest members a gang starts with";
    let level = "level must be a level of the cluster";
    let pod = "podTemplate needs a spec";
    let node = "nodeName goes around the scheduler";
    let policy = "restartPolicy must be Never";
    let share = "fraction is a share of a GPU";
    let fixed = "fraction and partition exclude each other";
    let isolation = "isolation is for shared GPUs";
    let single = "a share is of one GPU";
    let rented = "rented machines hand out whole GPUs";
    let one = "exactly one of persistentVolumeClaim, emptyDir and hostPath";
    let volume = |sources: Value| {
        let mut volume = json!({"name": "v", "mountPath": "/v"});
        for (name, value) in sources.as_object().into_iter().flatten() {
            volume[name] = value.clone();
        }
        json!({"volumes": [volume]})
    };
    let template = &base(true)["podTemplate"];
    vec![
        changed(false, source, json!({"podTemplate": template})),
        changed(false, source, json!({"image": null})),
        changed(true, source, json!({"podTemplate": null})),
        changed(true, source, json!({"image": "walk:1"})),
        changed(true, belongs, json!({"command": ["walk"]})),
        changed(true, belongs, json!({"args": ["walk"]})),
        changed(true, belongs, json!({"env": [{"name": "A", "value": "1"}]})),
        changed(
            true,
            belongs,
            json!({"resources": {"limits": {"cpu": "1"}}}),
        ),
        changed(true, belongs, volume(json!({"emptyDir": {}}))),
        changed(false, memory, json!({"gpu": {"minMemory": "0"}})),
        changed(false, memory, json!({"gpu": {"minMemory": "-1Gi"}})),
        changed(true, memory, json!({"gpu": {"minMemory": "much"}})),
        changed(false, time, json!({"maxRuntime": "0s"})),
        changed(false, time, json!({"maxRuntime": "999ms"})),
        changed(true, time, json!({"maxRuntime": "-1h"})),
        changed(true, time, json!({"maxRuntime": "long"})),
        changed(
            false,
            either,
            json!({"priority": "low", "priorityClassName": "walk"}),
        ),
        changed(false, how, json!({"checkpoint": {}})),
        changed(true, how, json!({"checkpoint": {"gracePeriod": "2m"}})),
        changed(
            false,
            grace,
            json!({"checkpoint": {"signal": "SIGTERM", "gracePeriod": "0s"}}),
        ),
        changed(true, period, json!({"checkpoint": {"period": "often"}})),
        changed(false, fewest, json!({"minReplicas": 1})),
        changed(true, fewest, json!({"replicas": 2, "minReplicas": 3})),
        changed(
            false,
            level,
            json!({"replicas": 2, "topology": {"level": "the same rack"}}),
        ),
        changed(true, level, json!({"topology": {"level": "rack one"}})),
        changed(
            false,
            share,
            json!({"gpu": {"fraction": "0.5", "sharing": "exclusive"}}),
        ),
        changed(
            true,
            fixed,
            json!({"gpu": {"fraction": "0.5", "partition": "1g.10gb"}}),
        ),
        changed(false, isolation, json!({"gpu": {"isolation": "none"}})),
        changed(
            true,
            isolation,
            json!({"gpu": {"sharing": "exclusive", "isolation": "hardware"}}),
        ),
        changed(
            false,
            single,
            json!({"gpuCount": 2, "gpu": {"sharing": "shared"}}),
        ),
        changed(
            true,
            single,
            json!({"gpuCount": 2, "gpu": {"fraction": "0.5"}}),
        ),
        changed(
            false,
            rented,
            json!({"gpu": {"partition": "1g.10gb"}, "rent": {"maxPrice": "3"}}),
        ),
        changed(true, pod, json!({"podTemplate": {}})),
        changed(
            true,
            pod,
            json!({"podTemplate": {"metadata": {"labels": {"a": "b"}}}}),
        ),
        in_pod(node, "nodeName", "box-1"),
        in_pod(policy, "restartPolicy", "Always"),
        in_pod(policy, "restartPolicy", "OnFailure"),
        changed(false, one, volume(json!({}))),
        changed(
            false,
            one,
            volume(json!({"emptyDir": {}, "hostPath": {"path": "/v"}})),
        ),
        changed(
            false,
            one,
            volume(
                json!({"emptyDir": {}, "hostPath": {"path": "/v"}, "persistentVolumeClaim": {"claimName": "v"}}),
            ),
        ),
    ]
}

/// Users who know no rules: one in each form.
pub(crate) struct Breakers {
    users: [User; 2],
}

impl Breakers {
    /// Nothing they make is made, until they make something right.
    pub(crate) async fn arrive(world: &World, covered: &mut Covered) -> Result<Self> {
        let users = [
            User::arrives(world, "rules").await?,
            User::arrives(world, "rules-template").await?,
        ];
        for Breach {
            says,
            template,
            spec,
        } in breaches()
        {
            covered.steps += 1;
            let answer = users[usize::from(template)].create(world, &spec).await?;
            ensure!(answer.says(says), "made {spec}: {answer:?}, not '{says}'");
            covered.refused(&answer);
        }
        let long = "a".repeat(64);
        let answer = users[0].create_called(&long, world, &base(false)).await?;
        ensure!(answer.says("at most 63 characters"), "{answer:?}");
        covered.refused(&answer);
        for (user, template) in users.iter().zip([false, true]) {
            ensure!(user.create(world, &base(template)).await?.accepted());
            covered.steps += 1;
        }
        Ok(Self { users })
    }

    /// Nothing they change is changed, whether it waits or runs.
    pub(crate) async fn break_all(&self, world: &World, covered: &mut Covered) -> Result<()> {
        let mut before = Vec::new();
        for user in &self.users {
            before.push(compare::pods(world, &user.namespace).await?);
        }
        for Breach {
            says,
            template,
            spec,
        } in breaches()
        {
            covered.steps += 1;
            let answer = self.users[usize::from(template)]
                .replace(world, &spec)
                .await?;
            ensure!(answer.says(says), "put {spec}: {answer:?}, not '{says}'");
        }
        for (user, before) in self.users.iter().zip(before) {
            let after = compare::pods(world, &user.namespace).await?;
            ensure!(after == before, "{}: what runs was touched", user.namespace);
        }
        Ok(())
    }

    /// They run once there is room.
    pub(crate) async fn run(&self, world: &World) -> Result<()> {
        for user in &self.users {
            user.running(world).await?;
        }
        Ok(())
    }
}
