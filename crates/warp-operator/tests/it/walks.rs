//! Walks over specs: users change their minds, mistype, and take it back, while nodes come and go and
//! the operator dies.
//!
//! Every leaf of the kind's schema has a walker. It begins with a plain workload that cannot be placed
//! yet, tries values its leaf forbids (each must be refused and change nothing), wanders over other
//! leaves and ends with a value its own leaf allows. Then there is room. However it got there, it must
//! end as the same spec does on a fresh cluster without faults; what cannot work must recover when the
//! plain spec is put back; and after placement every leaf is tried once more: accepted or refused as
//! the rules say, without touching what runs. All in virtual time on the embedded engine.
//!
//! `WARP_WALKS=n` walks with n seeds (`make faults` does); each value of a leaf gets its turn.
//! `WARP_WALK_SEED=n` repeats one.

mod compare;
pub(crate) mod hostile;
mod leaves;
mod rest;
mod walker;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use warp_core::random::Random;
use warp_testkit::Faults;
use warp_testkit::fault::world::{Setup, World, virtual_time};
use warp_testkit::fault::{history, judge};

use crate::faults::operator;

use compare::Outcome;
use leaves::Leaf;
use walker::{Answer, Walker};

/// Fields that may change after placement.
const FREE: [&str; 5] = [
    "suspend",
    "maxRuntime",
    "retryPolicy",
    "priority",
    "ttlSecondsAfterFinished",
];
/// Leaves whose value may be refused by a rule beyond the schema: `nodeName` always, a restart policy
/// other than Never.
const RULED: [&str; 2] = [
    "podTemplate.spec.nodeName",
    "podTemplate.spec.restartPolicy",
];
/// Longer than any backoff, shorter than giving up on a start.
const QUIET: Duration = Duration::from_secs(400);
/// Room for every walker; before it there are only nodes without GPUs, which no toleration opens.
const FLEET: &str = "pools:\n- {name: box, count: 24, gpu: H100-80GB, gpus: 8}\n";
const FIRST: &str = "pools:\n- {name: early, count: 3}\n";

fn pick<'a, T>(random: &mut Random, among: &'a [T]) -> &'a T {
    &among[random.below(among.len())]
}

/// A workload nothing is wrong with, in the form that has this leaf.
fn base(leaf: &Leaf) -> Value {
    let mut spec = json!({
        "modelName": "walk", "gpuCount": 1, "suspend": false,
        "retryPolicy": {"maxRetries": 1, "backoffSeconds": 5},
    });
    if leaf.in_template() {
        spec["podTemplate"] =
            json!({"spec": {"containers": [{"name": "gpu-workload", "image": "walk:1"}]}});
    } else {
        spec["image"] = json!("walk:1");
    }
    spec
}

/// What a campaign covered.
#[derive(Debug, Default)]
struct Covered {
    steps: usize,
    allowed: BTreeSet<String>,
    forbidden: BTreeSet<String>,
    placed: BTreeSet<String>,
}

impl Covered {
    fn fields(&self) -> usize {
        let both = self.allowed.intersection(&self.forbidden);
        both.filter(|path| self.placed.contains(*path)).count()
    }
}

#[test]
fn every_field_may_be_changed_taken_back_and_mistyped() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let seeds: Vec<u64> = match (number("WARP_WALK_SEED"), number("WARP_WALKS")) {
        (Some(seed), _) => vec![seed],
        (None, walks) => (1..=walks.unwrap_or(1)).collect(),
    };
    let leaves = leaves::all();
    let mut covered = Covered::default();
    for seed in &seeds {
        let walked = campaign(*seed, &leaves, &mut covered);
        if let Err(error) = walked {
            panic!("WARP_WALK_SEED={seed}: {error:#}");
        }
    }
    eprintln!(
        "spec walks: seeds {}, steps {}, fields covered {} of {}",
        seeds.len(),
        covered.steps,
        covered.fields(),
        leaves.len()
    );
    let missed: Vec<&String> = leaves
        .iter()
        .map(|leaf| &leaf.path)
        .filter(|path| {
            !(covered.allowed.contains(*path)
                && covered.forbidden.contains(*path)
                && covered.placed.contains(*path))
        })
        .collect();
    assert!(missed.is_empty(), "not covered: {missed:?}");
}

/// One seed: the walked world, the fresh one, and what must agree.
fn campaign(seed: u64, leaves: &[Leaf], covered: &mut Covered) -> Result<()> {
    let mut random = Random::new(seed);
    let walkers: Vec<Walker> = leaves
        .iter()
        .enumerate()
        .map(|(number, leaf)| {
            let values = leaf.allowed();
            let turn = usize::try_from(seed).unwrap_or(0) + number;
            Walker {
                namespace: format!("w-{number}"),
                leaf: leaf.clone(),
                goal: leaves::with(&base(leaf), leaf, values[turn % values.len()].clone()),
            }
        })
        .collect();
    let plan = trouble(&mut random);
    let walked = virtual_time(walk(&walkers, leaves, &plan, &mut random, covered))
        .with_context(|| format!("under '{plan}'"))?;
    let fresh = virtual_time(fresh(&walkers))?;
    let mut wrong = Vec::new();
    for walker in &walkers {
        let (have, want) = (walked.get(&walker.namespace), fresh.get(&walker.namespace));
        let (Some(have), Some(want)) = (have, want) else {
            // The API refuses the goal: both worlds have seen so.
            ensure!(
                have.is_none() && want.is_none(),
                "{}: accepted in one world only",
                walker.leaf.path
            );
            continue;
        };
        if let Some(difference) = have.differs(want) {
            wrong.push(format!(
                "{} = {}: {difference}",
                walker.leaf.path,
                walker.value()
            ));
        }
    }
    ensure!(
        wrong.is_empty(),
        "not as on a fresh cluster:\n{}",
        wrong.join("\n")
    );
    Ok(())
}

/// Faults spread over the walk.
fn trouble(random: &mut Random) -> String {
    let faults = [
        "crash-before",
        "crash-after",
        "504-applied",
        "409",
        "500",
        "429",
        "503",
        "reset",
        "reset-applied",
    ];
    let mut rules: Vec<String> = (0..14)
        .map(|number| {
            let at = 1 + number * 45 + random.below(45);
            format!("write#{at}:{}", pick(random, &faults))
        })
        .collect();
    for (kind, fault) in [
        ("pods", "cut=5"),
        ("gpuworkloads", "expire=3"),
        ("jobs", "duplicate"),
    ] {
        rules.push(format!("watch/{kind}#1:{fault}"));
    }
    rules.join("; ")
}

async fn start(fleet: &str, plan: &str, walkers: &[Walker]) -> Result<World> {
    let setup = Setup {
        fleet: fleet.to_owned(),
        part: Some(operator()),
        ..Setup::default()
    };
    let world = World::start(&setup, Faults::new(plan.parse()?)).await?;
    for walker in walkers {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": walker.namespace}});
        world.create(namespace).await?;
    }
    for walker in walkers {
        world.ready(&walker.namespace).await?;
    }
    Ok(world)
}

fn judged(world: &World) -> Result<()> {
    let changes = history::changes(world.server().store(), 0);
    let violations = judge::violations(&changes, world.dawn(), false);
    ensure!(violations.is_empty(), "{}", violations.join("; "));
    ensure!(world.exits() == 0, "the operator ended by itself");
    Ok(())
}

/// Every goal on a cluster that has seen nothing else.
async fn fresh(walkers: &[Walker]) -> Result<BTreeMap<String, Outcome>> {
    let world = start(FLEET, "", walkers).await?;
    for walker in walkers {
        // A goal the API refuses is no goal in either world.
        let _ = walker.create(&world, &walker.goal).await?;
    }
    world.settled(QUIET).await?;
    let refused = compare::refused(&world).await?;
    ensure!(refused.is_empty(), "{}", refused.join("\n"));
    let outcomes = compare::outcomes(&world).await?;
    judged(&world)?;
    Ok(outcomes)
}

/// Every goal reached on the way a careless user takes.
async fn walk(
    walkers: &[Walker],
    leaves: &[Leaf],
    plan: &str,
    random: &mut Random,
    covered: &mut Covered,
) -> Result<BTreeMap<String, Outcome>> {
    let world = start(FIRST, plan, walkers).await?;
    let nodes = walker::Nodes::of(&world).await?;
    nodes.close().await?;
    for (number, walker) in walkers.iter().enumerate() {
        let mut first = base(&walker.leaf);
        first["suspend"] = json!(number % 2 == 0);
        ensure!(walker.create(&world, &first).await? == Answer::Accepted);
        covered.steps += 1;
    }
    for round in 0..2 {
        for walker in walkers {
            wander(&world, walker, leaves, round, random, covered).await?;
        }
        nodes.trouble(round).await?;
        world.pass(Duration::from_secs(3)).await;
    }
    let mut refused = BTreeSet::new();
    for walker in walkers {
        covered.steps += 1;
        covered.allowed.insert(walker.leaf.path.clone());
        if walker.replace(&world, &walker.goal).await? != Answer::Accepted {
            ensure!(
                RULED.contains(&walker.leaf.path.as_str()),
                "{} = {} was refused",
                walker.leaf.path,
                walker.value()
            );
            // It changed nothing, so there is nothing to compare.
            refused.insert(walker.namespace.clone());
        }
    }
    nodes.open().await?;
    world.join(FLEET)?;
    world.settled(QUIET).await?;
    let offered = compare::refused(&world).await?;
    ensure!(offered.is_empty(), "{}", offered.join("\n"));
    let mut outcomes = compare::outcomes(&world).await?;
    outcomes.retain(|namespace, _| !refused.contains(namespace));
    recover(&world, walkers, &refused, covered).await?;
    after_placement(&world, leaves, covered).await?;
    judged(&world)?;
    Ok(outcomes)
}

/// One step of one walker: something forbidden, then something allowed elsewhere.
async fn wander(
    world: &World,
    walker: &Walker,
    leaves: &[Leaf],
    round: usize,
    random: &mut Random,
    covered: &mut Covered,
) -> Result<()> {
    let forbidden = walker.leaf.forbidden();
    let half = forbidden.len().div_ceil(2);
    for value in forbidden.iter().skip(round * half).take(half) {
        covered.steps += 1;
        let spec = leaves::with(&base(&walker.leaf), &walker.leaf, value.clone());
        if walker.replace(world, &spec).await? == Answer::Accepted {
            bail!("{} = {value} was accepted", walker.leaf.path);
        }
        covered.forbidden.insert(walker.leaf.path.clone());
    }
    let alike: Vec<&Leaf> = leaves
        .iter()
        .filter(|leaf| leaf.in_template() == walker.leaf.in_template())
        .collect();
    let leaf = *pick(random, &alike);
    let value = pick(random, &leaf.allowed()).clone();
    let mut spec = leaves::with(&base(leaf), leaf, value);
    if leaf.field() != "suspend" {
        spec["suspend"] = json!(random.below(2) == 0);
    }
    covered.steps += 1;
    let answer = walker.replace(world, &spec).await?;
    ensure!(
        answer == Answer::Accepted || RULED.contains(&leaf.path.as_str()),
        "{}: {answer:?} on the way: {spec}",
        leaf.path
    );
    Ok(())
}

/// Whoever has no place gets one with the plain spec; whoever has one keeps what was placed.
async fn recover(
    world: &World,
    walkers: &[Walker],
    refused: &BTreeSet<String>,
    covered: &mut Covered,
) -> Result<()> {
    let mut back = Vec::new();
    for walker in walkers {
        let before = walker.get(world).await?;
        let placed = before.pointer("/status/lastScheduleTime").is_some();
        let plain = base(&walker.leaf);
        let same = refused.contains(&walker.namespace) || FREE.contains(&walker.leaf.field());
        covered.steps += 1;
        let answer = walker.replace(world, &plain).await?;
        let expected = if placed && !same && walker.goal != plain {
            Answer::Frozen
        } else {
            Answer::Accepted
        };
        // A walker whose last step was refused stands where its wandering ended.
        if !refused.contains(&walker.namespace) {
            ensure!(
                answer == expected,
                "{} = {}: taking it back is {answer:?}, not {expected:?}",
                walker.leaf.path,
                walker.value()
            );
        }
        if !placed && answer == Answer::Accepted {
            back.push(walker);
        }
    }
    world.settled(QUIET).await?;
    for walker in back {
        let after = walker.get(world).await?;
        ensure!(
            after["status"]["phase"] == "Running",
            "{} = {} was taken back and it is {}",
            walker.leaf.path,
            walker.value(),
            after["status"]
        );
    }
    Ok(())
}

/// Every leaf of two workloads that run: what is placed stays as it is.
async fn after_placement(world: &World, leaves: &[Leaf], covered: &mut Covered) -> Result<()> {
    for template in [false, true] {
        let own: Vec<&Leaf> = leaves
            .iter()
            .filter(|leaf| leaf.in_template() == template)
            .collect();
        let name = if template {
            "placed-template"
        } else {
            "placed"
        };
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        world.create(namespace).await?;
        world.ready(name).await?;
        let plain = base(own[0]);
        let walker = Walker {
            namespace: name.to_owned(),
            leaf: own[0].clone(),
            goal: plain.clone(),
        };
        walker.create(world, &plain).await?;
        world.settled(Duration::from_secs(30)).await?;
        let running = compare::pods(world, name).await?;
        ensure!(
            running.len() == 1,
            "{name} does not run: {}",
            walker.get(world).await?
        );
        for leaf in own {
            for value in leaf.allowed() {
                covered.steps += 1;
                let spec = leaves::with(&plain, leaf, value.clone());
                // Stopping it on purpose is the soak's and the fault suite's business.
                if spec == plain || spec["suspend"] == true || spec["maxRuntime"] == "7s" {
                    continue;
                }
                let answer = walker.replace(world, &spec).await?;
                let free = FREE.contains(&leaf.field());
                ensure!(
                    (answer == Answer::Accepted) == free,
                    "{} = {value} after placement: {answer:?}",
                    leaf.path
                );
                if free {
                    world.pass(Duration::from_secs(2)).await;
                    ensure!(walker.replace(world, &plain).await? == Answer::Accepted);
                }
            }
            for value in leaf.forbidden() {
                covered.steps += 1;
                let spec = leaves::with(&plain, leaf, value.clone());
                ensure!(
                    walker.replace(world, &spec).await? != Answer::Accepted,
                    "{} = {value} was accepted after placement",
                    leaf.path
                );
            }
            covered.placed.insert(leaf.path.clone());
        }
        world.settled(Duration::from_secs(30)).await?;
        ensure!(
            compare::pods(world, name).await? == running,
            "{name}: an edit touched what runs"
        );
        let after = walker.get(world).await?;
        ensure!(after["status"]["phase"] == "Running", "{}", after["status"]);
        ensure!(
            after["status"]["observedGeneration"] == after["metadata"]["generation"],
            "{name}: the last edit was not observed"
        );
    }
    Ok(())
}
