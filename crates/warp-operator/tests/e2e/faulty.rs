//! Crash points on a real control plane: the operator is a process of its own behind the fault
//! proxy, and a crash is SIGKILL at the chosen write.
//!
//! Each script is played once without faults; every faulty play must end as that one did, break no
//! invariant at any moment on the way and delete nothing by its name alone. A sample in every test run; with `WARP_FAULTS=all` every third fault of every write, and
//! `WARP_FAULTS='real <script> | plan'` repeats one play.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use futures::future::BoxFuture;
use k8s_openapi::api::batch::v1::Job;
use kube::api::ListParams;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use warp_testkit::fault::campaign::EVERY_WRITE;
use warp_testkit::fault::judge::careless;
use warp_testkit::fault::{Faults, Plan, Proxy, Record, Selector, Tally};
use warp_testkit::{Behaviour, Cluster, NodeShape, until, wait_gone};

use super::Used;
use super::chronicle::Chronicle;
use super::operator::Operator;
use super::world::{ACCOUNT, DEADLINE, SYSTEM, Scene, World, retries, spec, with};

type Script = for<'a> fn(&'a Scene<'a>) -> BoxFuture<'a, Result<()>>;

/// What is played. None has two things happen at once, so that a play ends in one way.
const SCRIPTS: [(&str, Script); 3] = [
    ("runs_to_success", |scene| Box::pin(runs_to_success(scene))),
    ("exhausts_its_retries", |scene| {
        Box::pin(exhausts_its_retries(scene))
    }),
    ("is_suspended_and_resumed", |scene| {
        Box::pin(is_suspended_and_resumed(scene))
    }),
];

/// What every test run plays: each kind of write a workload causes, lost in every way. All of these
/// requests are made in every play, however slow the machine.
const SAMPLE: [(&str, &str); 11] = [
    ("runs_to_success", "create/jobs#1:crash-before"),
    ("runs_to_success", "create/jobs#1:crash-after"),
    ("runs_to_success", "patch/gpuworkloads/status#1:crash-after"),
    (
        "runs_to_success",
        "create/jobs#1:504-applied; patch/gpuworkloads/status#1+2:409; watch/jobs#2:expire=1",
    ),
    (
        "runs_to_success",
        "create/jobs#1:reset-applied; patch/gpuworkloads/status#2:500-applied; watch/pods#1:cut=2",
    ),
    (
        "exhausts_its_retries",
        "create/jobs#2:crash-after; patch/gpuworkloads/status#2:reset-applied",
    ),
    ("is_suspended_and_resumed", "delete/jobs#1:crash-after"),
    // What the shipped client repeats by itself, and what it must not.
    (
        "runs_to_success",
        "list/pods#1+2:503; list/jobs#1+3:429=1; list/nodes#1:504; create/jobs#1:429=1; patch/gpuworkloads/status#1:503",
    ),
    // Rights that are taken away for a while.
    (
        "runs_to_success",
        "create/jobs#1~4s:403; patch/gpuworkloads/status#2~2s:403; watch/jobs#1:merge",
    ),
    // A process that stands still, answers that are late or old.
    (
        "runs_to_success",
        "create/jobs#1:pause=2s; patch/gpuworkloads/status#1:delay=1s; watch/pods#1:expire=1; list/pods#2:stale=1",
    ),
    (
        "is_suspended_and_resumed",
        "delete/jobs#1:429=1; create/jobs#2~2s:503; watch/gpuworkloads#1:duplicate",
    ),
];

/// One in so many of all the plans is played when everything is asked for.
const STEP: usize = 3;

/// More requests than twice those of the healthy play and these are a storm.
const SLACK: usize = 120;

async fn runs_to_success(scene: &Scene<'_>) -> Result<()> {
    scene.submit("w", spec(1, &Behaviour::hang())).await?;
    scene.until_phase("w", "Running").await?;
    scene.release("w", &Behaviour::succeed()).await?;
    scene.until_phase("w", "Succeeded").await?;
    Ok(())
}

async fn exhausts_its_retries(scene: &Scene<'_>) -> Result<()> {
    let policy = json!({"retryPolicy": {"maxRetries": 1, "backoffSeconds": 1}});
    let spec = with(spec(1, &Behaviour::exit(3)), policy);
    scene.submit("w", spec).await?;
    scene.until_phase("w", "Failed").await?;
    Ok(())
}

async fn is_suspended_and_resumed(scene: &Scene<'_>) -> Result<()> {
    scene.submit("w", spec(2, &Behaviour::hang())).await?;
    scene.until_phase("w", "Running").await?;
    let pod = scene.live_pod("w").await?.name_any();
    scene.change("w", json!({"suspend": true})).await?;
    scene.until_reason("w", "Suspended").await?;
    wait_gone(&scene.pods(), &pod, DEADLINE).await?;
    scene.change("w", json!({"suspend": false})).await?;
    scene.until_phase("w", "Running").await?;
    scene.release("w", &Behaviour::succeed()).await?;
    scene.until_phase("w", "Succeeded").await?;
    Ok(())
}

/// A cluster, and the rights the operator's requests are sent with.
struct Stage {
    world: World,
    rights: Client,
}

/// What came of one play.
struct Play {
    end: Value,
    records: Vec<Record>,
    tally: Tally,
}

pub(super) async fn crash_points_hold() -> Result<Used> {
    let wanted = std::env::var("WARP_FAULTS").unwrap_or_default();
    let one = match wanted.strip_prefix("real ") {
        Some(one) => {
            let parts = one.split_once('|').context("no plan in WARP_FAULTS")?;
            Some((parts.0.trim(), parts.1.trim()))
        }
        // Other scenarios were asked for.
        None if !wanted.is_empty() && wanted != "all" => return Ok(Used::new()),
        None => None,
    };
    let cluster = Cluster::real().nodes(NodeShape::h100(8), 2).start().await?;
    let world = World::install(cluster, &[]).await?;
    let rights = world.cluster.client_as(SYSTEM, ACCOUNT).await?;
    let stage = Stage { world, rights };
    let (mut played, mut unmet, mut tally) = (0, 0, Tally::new());
    for (name, script) in SCRIPTS {
        let sample = SAMPLE.iter().filter(|(script, _)| *script == name);
        let sample: Vec<String> = match one {
            Some((script, plan)) if script == name => vec![plan.to_owned()],
            Some(_) => continue,
            None => sample.map(|(_, plan)| (*plan).to_owned()).collect(),
        };
        let healthy = stage.play(script, "", None).await.context(name)?;
        let all = if wanted == "all" {
            every_write(&healthy.records)
        } else {
            Vec::new()
        };
        for plan in sample.iter().chain(&all) {
            let play = stage.play(script, plan, Some(&healthy));
            let play = play
                .await
                .with_context(|| format!("WARP_FAULTS='real {name} | {plan}'"))?;
            // How many writes a status takes depends on how soon the cluster acts.
            ensure!(
                all.contains(plan) || !play.tally.is_empty(),
                "no request of {name} met {plan}"
            );
            unmet += usize::from(play.tally.is_empty());
            played += 1;
            for (kind, count) in play.tally {
                *tally.entry(kind).or_default() += count;
            }
        }
    }
    let tally: Vec<String> = tally
        .iter()
        .map(|(kind, n)| format!("{kind} {n}"))
        .collect();
    eprintln!(
        "real control plane: {played} plays under faults, {unmet} of them met none, all ended alike; {}",
        tally.join(", ")
    );
    // The requests of these operators are the proxy's, and their verbs those of the other scenarios.
    Ok(Used::new())
}

/// Every fault of every write of a healthy play, thinned out. Writes are named by what they do, since
/// the order of others may differ from play to play.
fn every_write(records: &[Record]) -> Vec<String> {
    let mut seen: BTreeMap<String, u64> = BTreeMap::new();
    let mut plans = Vec::new();
    for call in records.iter().filter(|record| record.write > 0) {
        let call = &call.call;
        let kind = format!("{}/{}/{}", call.verb, call.resource, call.sub);
        let nth = seen.entry(kind).or_default();
        *nth += 1;
        let selector = Selector::Path(
            Some(call.verb.to_owned()),
            Some(call.resource.clone()),
            Some(call.sub.clone()),
        );
        for fault in EVERY_WRITE {
            plans.push(Plan::one(selector.clone(), *nth, fault).to_string());
        }
    }
    plans.into_iter().step_by(STEP).collect()
}

impl Stage {
    /// Plays a script with the operator behind a proxy, and waits until it has ended as it should.
    async fn play(&self, script: Script, plan: &str, healthy: Option<&Play>) -> Result<Play> {
        let faults = Faults::new(plan.parse::<Plan>()?);
        let proxy = Proxy::start(self.rights.clone(), faults.clone()).await?;
        let scene = self.world.scene("faulty").await?;
        let chronicle = Chronicle::begin(&self.world.client, &scene.namespace).await?;
        let folder = self.world.cluster.folder();
        let kubeconfig = proxy.write_kubeconfig(&folder, &scene.namespace)?;
        let log = folder.join(format!("{}.log", scene.namespace));
        let mut operator = Operator::start(&kubeconfig, &log, &[])?;
        let played = async {
            script(&scene).await?;
            end(&scene, healthy).await
        };
        tokio::pin!(played);
        let ended = loop {
            tokio::select! {
                ended = &mut played => break ended,
                () = faults.crashed() => {
                    // Nothing of the dead process may reach the server once requests pass again.
                    operator.kill()?;
                    faults.revive();
                    operator = Operator::start(&kubeconfig, &log, &[])?;
                }
            }
        };
        let end = ended.with_context(|| operator.log_tail())?;
        operator.kill()?;
        chronicle.judge().await?;
        let records = faults.records();
        let careless = careless(&records);
        ensure!(careless.is_empty(), "{}", careless.join("; "));
        if let Some(healthy) = healthy {
            once(&records, &healthy.records)?;
        }
        Ok(Play {
            end,
            records,
            tally: faults.tally(),
        })
    }
}

/// Nothing was made or deleted more often than without faults, and not much more was asked.
fn once(records: &[Record], healthy: &[Record]) -> Result<()> {
    let carried_out = |records: &[Record], verb: &str| {
        let done = records.iter().filter(|record| {
            record.call.verb == verb
                && record.call.resource == "jobs"
                && record.status.is_some_and(|status| status < 300)
        });
        done.count()
    };
    for verb in ["create", "delete"] {
        let (have, normal) = (carried_out(records, verb), carried_out(healthy, verb));
        ensure!(
            have == normal,
            "{have} times {verb} of a Job was carried out where {normal} do"
        );
    }
    ensure!(
        records.len() <= 2 * healthy.len() + SLACK,
        "a storm: {} requests where {} do",
        records.len(),
        healthy.len()
    );
    Ok(())
}

/// How the workload ended, in a form that two plays can be compared in; waits until it is as in the
/// healthy one.
async fn end(scene: &Scene<'_>, healthy: Option<&Play>) -> Result<Value> {
    let Some(healthy) = healthy else {
        // The workload may be over a moment before its Job says so.
        return until("its Jobs are over", DEADLINE, || async {
            let end = look(scene).await?;
            let mut jobs = end["jobs"].as_array().into_iter().flatten();
            let over = jobs.all(|job| !job[1].is_null());
            Ok(over.then_some(end))
        })
        .await;
    };
    let reached = until("it ended as without faults", DEADLINE, || async {
        let end = look(scene).await?;
        Ok((end == healthy.end).then_some(end))
    });
    match reached.await {
        Ok(end) => Ok(end),
        Err(_) => bail!(
            "ended differently\nwithout: {}\nwith:    {}",
            healthy.end,
            look(scene).await?
        ),
    }
}

async fn look(scene: &Scene<'_>) -> Result<Value> {
    let workload = scene.get("w").await?;
    let status = &workload.data["status"];
    let conditions: Vec<Value> = status["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|condition| json!([condition["type"], condition["status"], condition["reason"]]))
        .collect();
    let jobs: Vec<Value> = scene.jobs_of("w").await?.iter().map(ended).collect();
    let pods = scene.pods().list(&ListParams::default()).await?.items;
    let mut pods: Vec<_> = pods
        .iter()
        .map(|pod| pod.status.as_ref().and_then(|status| status.phase.clone()))
        .collect();
    pods.sort();
    Ok(json!({
        "phase": status["phase"],
        "retries": retries(&workload),
        "current": status["observedGeneration"] == json!(workload.metadata.generation),
        "conditions": conditions,
        "jobs": jobs,
        "pods": pods,
    }))
}

/// Which attempt a Job is and how it ended.
fn ended(job: &Job) -> Value {
    let conditions = job.status.iter().flat_map(|status| &status.conditions);
    let over = conditions.flatten().find(|condition| {
        condition.status == "True" && matches!(condition.type_.as_str(), "Complete" | "Failed")
    });
    json!([
        job.labels().get("gpu.warp.dev/attempt"),
        over.map(|condition| &condition.type_),
    ])
}
