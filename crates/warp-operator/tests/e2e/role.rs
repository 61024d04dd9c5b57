//! The shipped role is exactly what the operator uses.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use warp_testkit::audit::Action;
use warp_testkit::{Behaviour, Cluster, Engine, NodeShape, until, wait_gone};

use super::Used;
use super::world::{DEADLINE, World, manifests, retries, spec, with};
use super::{modelcache, others, queued};

/// What the operator of a world has done; being refused anything is an error.
pub(super) async fn used(world: &World) -> Result<Used> {
    let requests = world.requests().await?;
    let refused: Vec<_> = requests.iter().filter(|r| r.code == 403).collect();
    // While a namespace is being deleted the API server forbids creating in it; that is no matter
    // of roles, and no scenario of a world that is asked here does it.
    ensure!(refused.is_empty(), "the role lacks: {refused:#?}");
    // An apply that makes an object is a patch to whoever asks and a creation to whoever allows it.
    let made = requests
        .iter()
        .filter(|request| request.action.verb == "patch" && request.code == 201)
        .map(|request| Action {
            verb: "create".to_owned(),
            ..request.action.clone()
        });
    let made: Vec<Action> = made.collect();
    let actions = requests
        .into_iter()
        .map(|request| request.action)
        .chain(made);
    Ok(actions
        .filter(|action| !action.resource.is_empty())
        .collect())
}

/// Lets tenants be shut off, to the operator and to the role that is printed for it.
pub(super) const ISOLATE: &str = "--isolate-tenants";
/// Lets copies of models be kept on nodes, likewise.
pub(super) const NODE_COPIES: &str = "--node-copies";
/// Lets work that waits be shown to autoscalers, likewise.
pub(super) const SHOW_PENDING: &str = "--show-pending";
/// Lets autoscalers of others be told how to scale services, likewise.
pub(super) const AUTOSCALERS: &str = "--autoscalers";
/// Asked when a binding is made and never requested by itself: the audit log cannot show it.
const BIND: &str = "bind";

/// Both ways: nothing is granted that the whole suite did not need.
pub(super) async fn equals_what_was_used(used: &Used) -> Result<()> {
    let apart = [ISOLATE, NODE_COPIES, SHOW_PENDING, AUTOSCALERS];
    let mut granted = granted(&manifests(&apart).await?)?;
    granted.retain(|action| action.verb != BIND);
    compare(&granted, used)
}

fn compare(granted: &Used, used: &Used) -> Result<()> {
    let unused: Vec<&Action> = granted.difference(used).collect();
    let missing: Vec<&Action> = used.difference(granted).collect();
    ensure!(
        unused.is_empty() && missing.is_empty(),
        "granted and never used: {unused:#?}\nused without a rule: {missing:#?}"
    );
    Ok(())
}

/// Every rule of the operator's Roles and ClusterRoles in a stream of YAML documents.
pub(super) fn granted(manifests: &str) -> Result<Used> {
    let mut granted = Used::new();
    for document in manifests.split("\n---") {
        if document.trim().is_empty() {
            continue;
        }
        let object: Value =
            serde_saphyr::from_str(document).context("failed to parse what was printed")?;
        let component = &object["metadata"]["labels"]["app.kubernetes.io/component"];
        if !matches!(object["kind"].as_str(), Some("Role" | "ClusterRole"))
            || component != "operator"
        {
            continue;
        }
        let texts = |value: &Value| -> Vec<String> {
            let list = value.as_array().into_iter().flatten();
            list.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        for rule in object["rules"].as_array().context("a role without rules")? {
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for verb in texts(&rule["verbs"]) {
                        granted.insert(Action {
                            group: group.clone(),
                            resource: resource.clone(),
                            verb,
                        });
                    }
                }
            }
        }
    }
    ensure!(!granted.is_empty(), "no role is printed");
    Ok(granted)
}

/// The variant for one namespace: its roles are judged by what is done there.
pub(super) async fn namespaced_role(engine: Engine) -> Result<Used> {
    let cluster = Cluster::on(engine)
        .audited()
        .nodes(NodeShape::h100(8), 1)
        .start()
        .await?;
    let own = cluster.namespace("own").await?;
    let install = ["--namespaced", own.as_str()];
    let world = World::install(cluster, &install).await?;
    others::install(&world).await?;
    let foreign = world.scene("foreign").await?;
    foreign
        .submit("ignored", spec(1, &Behaviour::succeed()))
        .await?;
    let flag = format!("--namespace={own}");
    let operator = world.operator(&["--leader-elect", &flag, "--min-run-time=1s"])?;
    let scene = world.scene_in(&own);
    scene
        .canary("works")
        .await
        .with_context(|| operator.log_tail())?;
    scene.submit("fails", spec(1, &Behaviour::exit(1))).await?;
    let object = scene.until_phase("fails", "Failed").await?;
    ensure!(retries(&object) == 2);
    scene.submit("stops", spec(1, &Behaviour::hang())).await?;
    scene.until_phase("stops", "Running").await?;
    scene.change("stops", json!({"maxRuntime": "1h"})).await?;
    until("the limit has reached the Job", DEADLINE, || async {
        let jobs = scene.jobs_of("stops").await?;
        let limit = jobs[0]
            .spec
            .as_ref()
            .and_then(|spec| spec.active_deadline_seconds);
        Ok((limit == Some(3600)).then_some(()))
    })
    .await?;
    // Twice: the second time, the Event that tells it is counted up and not made.
    for _ in 0..2 {
        scene.change("stops", json!({"suspend": true})).await?;
        scene.until_reason("stops", "Suspended").await?;
        scene.change("stops", json!({"suspend": false})).await?;
        scene.until_phase("stops", "Running").await?;
    }
    scene
        .submit(
            "goes",
            with(
                spec(1, &Behaviour::succeed()),
                json!({"ttlSecondsAfterFinished": 1}),
            ),
        )
        .await?;
    wait_gone(&scene.workloads(), "goes", DEADLINE).await?;
    let mpi = json!({"replicas": 2, "mpi": {}, "command": ["mpirun", "train"]});
    let gang = with(spec(1, &Behaviour::succeed()), mpi);
    scene.submit("gang", gang).await?;
    scene.until_phase("gang", "Succeeded").await?;
    // The only node is full of work that lets itself be evicted.
    let low = with(spec(8, &Behaviour::hang()), json!({"priority": "low"}));
    scene.submit("low", low).await?;
    scene.change("stops", json!({"suspend": true})).await?;
    scene.until_phase("low", "Running").await?;
    let high = with(spec(8, &Behaviour::succeed()), json!({"priority": "high"}));
    scene.submit("high", high).await?;
    scene.until_phase("high", "Succeeded").await?;
    scene.delete("low").await?;
    queued::is_placed_and_evicted(&scene).await?;
    others::are_placed(&scene, ("NVIDIA-H100-80GB-HBM3", 4)).await?;
    modelcache::waits_and_goes(&world, &scene).await?;
    ensure!(
        foreign.get("ignored").await?.data.get("status").is_none(),
        "a workload of another namespace was touched"
    );
    compare(&granted(&manifests(&install).await?)?, &used(&world).await?)?;
    // These verbs are another role's; the suite's judgement does not need them.
    Ok(Used::new())
}
