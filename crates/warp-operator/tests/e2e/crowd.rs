//! Two hundred workloads at once while other people's pods come and go.
//!
//! Everything that happens is recorded from the API's own watches and judged afterwards in the order
//! of its revisions: what the operator pinned never exceeds a node, and no pod of ours is refused
//! because of where we put it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use warp_testkit::{Behaviour, Cluster, Engine, NodeShape, wait_for};

use super::Used;
use super::role;
use super::world::{DEADLINE, World, retries, spec};

const WORKLOADS: usize = 200;
const NODES: usize = 20;
const GPUS: u32 = 8;

/// How late a watch on a loaded machine may be, the operator's or the scheduler's: what happened to a
/// node's pods within this time may be known to one of them and not to the other.
const LAG: Duration = Duration::from_secs(10);

pub(super) async fn two_hundred_at_once(engine: Engine) -> Result<Used> {
    let cluster = Cluster::on(engine)
        .audited()
        .nodes(NodeShape::h100(GPUS), NODES)
        .start()
        .await?;
    let world = World::install(cluster, &[]).await?;
    let scene = world.scene("crowd").await?;
    let others = world.scene("others").await?;
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let client = world.client.clone();
    let pods = tokio::spawn(record(Api::<Pod>::all(client.clone()), sender.clone()));
    let jobs = tokio::spawn(record(scene.jobs(), sender));
    let operator = world.operator(&[])?;
    for number in 0..WORKLOADS {
        let gpus = [1, 2, 1, 4, 1, 2, 8, 1][number % 8];
        let time = Duration::from_millis(300 + 100 * (number as u64 % 7));
        let work = spec(gpus, &Behaviour::succeed().run_for(time));
        scene.submit(&format!("w{number}"), work).await?;
    }
    let foreign = futures::future::try_join_all((0..4).map(|line| {
        let jobs = others.jobs();
        async move {
            for number in 0..6 {
                let name = format!("f{line}-{number}");
                Box::pin(foreign_job(&jobs, &name, 1 + line % 2)).await?;
            }
            anyhow::Ok(())
        }
    }));
    let finished = async {
        for number in 0..WORKLOADS {
            let object = scene
                .until_phase(&format!("w{number}"), "Succeeded")
                .await?;
            ensure!(retries(&object) == 0, "w{number} used a retry");
        }
        anyhow::Ok(())
    };
    tokio::try_join!(foreign, finished).with_context(|| operator.log_tail())?;
    pods.abort();
    jobs.abort();
    let mut history = Vec::new();
    while let Ok(event) = receiver.try_recv() {
        history.push(event);
    }
    let verdict = judge(history, &scene.namespace);
    let expected = WORKLOADS..=WORKLOADS + verdict.excused;
    ensure!(expected.contains(&verdict.pinned), "{verdict:?}");
    ensure!(verdict.faults.is_empty(), "{:#?}", verdict.faults);
    eprintln!(
        "crowd: {} pinned, most GPUs pinned on a node {}, {} refusals by what came between",
        verdict.pinned, verdict.most, verdict.excused
    );
    role::used(&world).await
}

async fn foreign_job(jobs: &Api<Job>, name: &str, gpus: u32) -> Result<()> {
    let behaviour = Behaviour::succeed().run_for(Duration::from_secs(1));
    let job: Job = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"template": {"spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "main", "image": "foreign:1", "env": behaviour.env(),
                "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}},
            }],
        }}},
    }))?;
    jobs.create(&PostParams::default(), &job).await?;
    wait_for(jobs, name, "complete", DEADLINE, |job| {
        job.and_then(|job| job.status.as_ref())
            .is_some_and(|status| status.succeeded == Some(1))
    })
    .await?;
    Ok(())
}

/// One change of one object, in the order the API server made them.
struct Change {
    revision: u64,
    seen: Instant,
    deleted: bool,
    object: Value,
}

/// Sends every change of a kind from now on, through interruptions of the watch.
async fn record<K>(api: Api<K>, sender: mpsc::UnboundedSender<Change>) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::Serialize + DeserializeOwned,
{
    let list = api.list_metadata(&ListParams::default()).await?;
    let mut version = list.metadata.resource_version.unwrap_or_default();
    loop {
        let mut events = api.watch(&WatchParams::default(), &version).await?.boxed();
        while let Some(event) = events.next().await {
            let (object, deleted) = match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                WatchEvent::Bookmark(mark) => {
                    version = mark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) => anyhow::bail!("{}", status.message),
            };
            version = object.resource_version().unwrap_or_default();
            let mut change = Change {
                revision: version.parse()?,
                seen: Instant::now(),
                deleted,
                object: serde_json::to_value(&object)?,
            };
            change.object["kind"] = json!(K::kind(&()));
            if sender.send(change).is_err() {
                return Ok(());
            }
        }
    }
}

#[derive(Debug, Default)]
struct Verdict {
    /// Jobs made.
    pinned: usize,
    /// Most GPUs pinned on one node at one time.
    most: u32,
    /// Refusals because something happened between our choice and the scheduler's.
    excused: usize,
    faults: Vec<String>,
}

/// A Job of ours, from when it was made until its pod has ended.
struct Pinned {
    node: String,
    gpus: u32,
    made: Instant,
    over: bool,
    /// GPUs of the node that were taken for certain when it was made, itself included.
    certain: u32,
}

/// A pod that is bound and has not ended.
struct Bound {
    node: String,
    gpus: u32,
    since: Instant,
}

fn judge(mut history: Vec<Change>, ours: &str) -> Verdict {
    history.sort_by_key(|change| change.revision);
    let mut verdict = Verdict::default();
    let mut jobs: BTreeMap<String, Pinned> = BTreeMap::new();
    let mut foreign: BTreeMap<String, Bound> = BTreeMap::new();
    let mut refused = BTreeSet::new();
    // When a pod was last bound to a node or ended on it.
    let mut moved: BTreeMap<String, Instant> = BTreeMap::new();
    let mut settled = BTreeSet::new();
    for change in &history {
        let object = &change.object;
        let uid = field(object, "/metadata/uid");
        let node = field(object, "/spec/nodeName");
        let over = change.deleted || has_ended(object);
        if !node.is_empty() && settled.insert((uid.to_owned(), over)) {
            moved.insert(node.to_owned(), change.seen);
        }
        match (
            field(object, "/kind"),
            field(object, "/metadata/namespace") == ours,
        ) {
            ("Job", true) => job_changed(change, &mut jobs, &foreign, &mut verdict),
            ("Pod", true) => {
                let job = field(object, "/metadata/ownerReferences/0/uid");
                let Some(pinned) = jobs.get_mut(job) else {
                    continue;
                };
                if over {
                    pinned.over = true;
                }
                if is_refused(object) && refused.insert(uid.to_owned()) {
                    if pinned.certain > GPUS {
                        verdict.faults.push(format!(
                            "{} was pinned to {} when {} GPUs were taken",
                            field(object, "/metadata/name"),
                            pinned.node,
                            pinned.certain
                        ));
                    } else if came_between(&moved, pinned, change.seen) {
                        verdict.excused += 1;
                    } else {
                        verdict.faults.push(format!(
                            "{} was refused on {} and nothing that happened there explains it: {}",
                            field(object, "/metadata/name"),
                            pinned.node,
                            object["status"]["conditions"]
                        ));
                    }
                }
            }
            ("Pod", false) => foreign_changed(change, &mut foreign),
            _ => {}
        }
    }
    verdict
}

fn job_changed(
    change: &Change,
    jobs: &mut BTreeMap<String, Pinned>,
    foreign: &BTreeMap<String, Bound>,
    verdict: &mut Verdict,
) {
    let object = &change.object;
    let uid = field(object, "/metadata/uid").to_owned();
    if change.deleted {
        jobs.remove(&uid);
        return;
    }
    if jobs.contains_key(&uid) {
        return;
    }
    let template = &object["spec"]["template"]["spec"];
    let node = pinned_node(template);
    let gpus = gpus(template);
    let on_node = |pinned: &&Pinned| pinned.node == node && !pinned.over;
    let taken: u32 = gpus + jobs.values().filter(on_node).map(|p| p.gpus).sum::<u32>();
    let old = |bound: &&Bound| bound.node == node && bound.since + LAG < change.seen;
    let strangers: u32 = foreign.values().filter(old).map(|b| b.gpus).sum();
    verdict.pinned += 1;
    verdict.most = verdict.most.max(taken);
    if node.is_empty() {
        verdict
            .faults
            .push(format!("Job {uid} is pinned to no node"));
    }
    if taken > GPUS {
        let name = field(object, "/metadata/name");
        verdict
            .faults
            .push(format!("{name} makes {taken} GPUs pinned on {node}"));
    }
    let pinned = Pinned {
        node,
        gpus,
        made: change.seen,
        over: false,
        certain: taken + strangers,
    };
    jobs.insert(uid, pinned);
}

fn foreign_changed(change: &Change, foreign: &mut BTreeMap<String, Bound>) {
    let object = &change.object;
    let uid = field(object, "/metadata/uid").to_owned();
    let node = field(object, "/spec/nodeName");
    if change.deleted || has_ended(object) {
        foreign.remove(&uid);
    } else if !node.is_empty() {
        foreign.entry(uid).or_insert_with(|| Bound {
            node: node.to_owned(),
            gpus: gpus(&object["spec"]),
            since: change.seen,
        });
    }
}

/// Whether a pod came to the node or ended there too shortly before the refusal for both the operator
/// and the scheduler to be held to know.
fn came_between(moved: &BTreeMap<String, Instant>, pinned: &Pinned, refused: Instant) -> bool {
    moved
        .get(&pinned.node)
        .is_some_and(|at| *at + LAG >= pinned.made.min(refused))
}

fn field<'a>(object: &'a Value, pointer: &str) -> &'a str {
    let value = object.pointer(pointer);
    value.and_then(Value::as_str).unwrap_or_default()
}

fn gpus(pod: &Value) -> u32 {
    field(pod, "/containers/0/resources/limits/nvidia.com~1gpu")
        .parse()
        .unwrap_or_default()
}

fn pinned_node(pod: &Value) -> String {
    field(
        pod,
        "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution\
         /nodeSelectorTerms/0/matchFields/0/values/0",
    )
    .to_owned()
}

fn has_ended(pod: &Value) -> bool {
    matches!(field(pod, "/status/phase"), "Succeeded" | "Failed")
}

fn is_refused(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| {
        condition["type"] == "PodScheduled"
            && condition["status"] == "False"
            && condition["reason"] == "Unschedulable"
    })
}
