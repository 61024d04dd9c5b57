//! Walks over specs: users change their minds, mistype, and take it back, while nodes come and go, pods
//! fail and the operator dies.
//!
//! Every leaf of the kind's schema has a walker. It begins with a plain workload that cannot be placed
//! yet, tries values its leaf forbids (each must be refused and change nothing), wanders over other
//! leaves and ends with a value its own leaf allows. Meanwhile neighbours on GPUs nobody else asks for
//! lose pods and nodes. Then there is room; once they run, pods of walkers fail, one of their nodes is
//! silent for a while and another for so long that they start again elsewhere. However it got there, a
//! walker must end as the same spec does on a fresh cluster without faults, having used exactly the
//! attempts that were taken from it; what cannot work must recover when the plain spec is put back; and
//! while it runs every leaf is tried once more: refused in the words of its rule ([`placed`], under
//! trouble), or accepted with the effect the rule promises and none other ([`effects`]). All in virtual
//! time on the embedded engine.
//!
//! `WARP_WALKS=n` walks with n seeds (`make faults` does); each value of a leaf gets its turn.
//! `WARP_WALK_SEED=n` repeats one.

mod compare;
mod effects;
mod hostile;
mod leaves;
mod placed;
mod provider;
mod rest;
mod rules;
mod trouble;
mod verdict;
mod walker;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use warp_core::random::Random;
use warp_testkit::Faults;
use warp_testkit::fault::world::{Setup, World, virtual_time};

use crate::faults::operator;

use compare::Outcome;
use leaves::Leaf;
use provider::Chooser;
use rules::Breakers;
use trouble::{EARLY, Neighbours};
use verdict::{Load, judged, no_storm};
use walker::{Answer, User, Walker, frozen, is_frozen};

/// Fields that may change while it runs.
const FREE: [&str; 8] = [
    "suspend",
    "maxRuntime",
    "retryPolicy",
    "priority",
    "preemptible",
    "whenPending",
    "rent",
    "ttlSecondsAfterFinished",
];
/// Longer than any backoff, shorter than giving up on a start.
const QUIET: Duration = Duration::from_secs(400);
/// Room for every walker.
const FLEET: &str = "pools:\n- {name: box, count: 24, gpu: H100-80GB, gpus: 12}\n";

fn pick<'a, T>(random: &mut Random, among: &'a [T]) -> &'a T {
    &among[random.below(among.len())]
}

/// A workload nothing is wrong with, in the form that is asked for.
fn base(template: bool) -> Value {
    let mut spec = json!({
        "modelName": "walk", "gpuCount": 1, "suspend": false, "gpu": {"models": ["H100"]},
        "retryPolicy": {"maxRetries": 6, "backoffSeconds": 5},
    });
    if template {
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
    /// Fields a value of which was accepted, was refused, and was tried after placement.
    allowed: BTreeSet<String>,
    forbidden: BTreeSet<String>,
    placed: BTreeSet<String>,
    /// Words of rules that refused something.
    rules: BTreeSet<String>,
}

impl Covered {
    /// Remembers which rules an answer names.
    fn refused(&mut self, answer: &Answer) {
        if let Answer::Refused(said) = answer {
            let named = rules::ALL.iter().filter(|rule| said.contains(*rule));
            self.rules.extend(named.cloned());
        }
    }

    fn field(&self, path: &str, settable: bool, refusable: bool) -> bool {
        (self.allowed.contains(path) || !settable)
            && (self.forbidden.contains(path) || !refusable)
            && self.placed.contains(path)
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
    // Which values a field has that are accepted, and that are refused.
    let mut fields: BTreeMap<String, (bool, bool)> = leaves
        .iter()
        .map(|leaf| {
            let refusable = !leaf.forbidden().is_empty() || !leaf.ruled().is_empty();
            (leaf.path.clone(), (!leaf.allowed().is_empty(), refusable))
        })
        .collect();
    let choosers = provider::all();
    let choosers = choosers.iter().map(|one| (one.path(), (true, true)));
    fields.extend(choosers);
    let missed: Vec<&String> = fields
        .iter()
        .filter(|(path, (settable, refusable))| !covered.field(path, *settable, *refusable))
        .map(|(path, _)| path)
        .collect();
    let broken = rules::ALL
        .iter()
        .filter(|rule| covered.rules.contains(*rule))
        .count();
    eprintln!(
        "spec walks: seeds {}, steps {}, fields covered {} of {}, rules broken and named {broken} of {}",
        seeds.len(),
        covered.steps,
        fields.len() - missed.len(),
        fields.len(),
        rules::ALL.len()
    );
    assert!(missed.is_empty(), "not covered: {missed:?}");
    let unbroken: Vec<&String> = rules::ALL
        .iter()
        .filter(|rule| !covered.rules.contains(*rule))
        .collect();
    assert!(unbroken.is_empty(), "rules nobody broke: {unbroken:?}");
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
            let plain = base(leaf.in_template());
            let goal = match values.get(turn % values.len().max(1)) {
                Some(value) => leaves::with(&plain, leaf, value.clone()),
                None => plain,
            };
            Walker {
                user: User::new(format!("w-{number}")),
                leaf: leaf.clone(),
                goal,
            }
        })
        .collect();
    let plan = trouble(&mut random);
    let before = covered.steps;
    let walked = virtual_time(walk(&walkers, leaves, &plan, &mut random, covered))
        .with_context(|| format!("under '{plan}'"))?;
    let fresh = virtual_time(fresh(&walkers))?;
    no_storm(seed, &walked.load, &fresh.load, covered.steps - before)?;
    let mut wrong = Vec::new();
    let about = walkers.iter().map(|walker| {
        let about = format!("{} = {}", walker.leaf.path, walker.value());
        (&walker.user, about)
    });
    let choosers = provider::all();
    let about = about.chain(
        choosers
            .iter()
            .map(|chooser| (&chooser.user, chooser.path())),
    );
    for (user, about) in about {
        let have = walked.outcomes.get(&user.namespace);
        let want = fresh.outcomes.get(&user.namespace);
        let (have, want) = have.zip(want).context("a world without a walker")?;
        let failures = walked.failures.get(&user.namespace);
        if let Some(difference) = have.differs(want, failures.copied().unwrap_or_default()) {
            wrong.push(format!("{about}: {difference}"));
        }
    }
    ensure!(
        wrong.is_empty(),
        "not as on a fresh cluster:\n{}",
        wrong.join("\n")
    );
    Ok(())
}

/// How a world ended.
struct Ended {
    load: Load,
    outcomes: BTreeMap<String, Outcome>,
    /// Attempts that were taken from walkers, by namespace.
    failures: BTreeMap<String, i64>,
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
    let mut rules: Vec<String> = (0..20)
        .map(|number| {
            let at = 1 + number * 90 + random.below(90);
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
        User::arrives(&world, walker.user.namespace.clone()).await?;
    }
    for chooser in provider::all() {
        User::arrives(&world, chooser.user.namespace).await?;
    }
    Ok(world)
}

/// Every goal on a cluster that has seen nothing else.
async fn fresh(walkers: &[Walker]) -> Result<Ended> {
    let world = start(
        &format!("{EARLY}{}", FLEET.trim_start_matches("pools:\n")),
        "",
        walkers,
    )
    .await?;
    for walker in walkers {
        let answer = walker.user.create(&world, &walker.goal).await?;
        ensure!(answer.accepted(), "{}: {answer:?}", walker.leaf.path);
    }
    for chooser in provider::all() {
        chooser.create(&world).await?;
    }
    world.settled(QUIET).await?;
    let refused = compare::refused(&world).await?;
    ensure!(refused.is_empty(), "{}", refused.join("\n"));
    let outcomes = compare::outcomes(&world).await?;
    Ok(Ended {
        load: judged(&world).await?,
        outcomes,
        failures: BTreeMap::new(),
    })
}

/// Every goal reached on the way a careless user takes.
async fn walk(
    walkers: &[Walker],
    leaves: &[Leaf],
    plan: &str,
    random: &mut Random,
    covered: &mut Covered,
) -> Result<Ended> {
    let world = start(EARLY, plan, walkers).await?;
    let choosers = provider::all();
    let (breakers, neighbours) =
        before_placement(&world, walkers, leaves, &choosers, random, covered).await?;
    world.join(FLEET)?;
    world.settled(Duration::from_mins(1)).await?;
    let offered = compare::refused(&world).await?;
    ensure!(offered.is_empty(), "{}", offered.join("\n"));
    let fragile = walkers.iter().filter(|walker| !walker.sturdy(1));
    let fragile = fragile
        .map(|walker| walker.user.namespace.clone())
        .collect();
    let failures = trouble::strike(&world, &fragile, random).await?;
    world.settled(QUIET).await?;
    let outcomes = compare::outcomes(&world).await?;
    for chooser in &choosers {
        chooser.stands(&world).await?;
    }
    neighbours.run(&world).await?;
    breakers.run(&world).await?;
    breakers.break_all(&world, covered).await?;
    recover(&world, walkers, covered).await?;
    provider::change_after_placement(&world, &choosers, covered).await?;
    effects::all(&world, leaves, random, covered).await?;
    placed::all(&world, leaves, random, covered).await?;
    Ok(Ended {
        load: judged(&world).await?,
        outcomes,
        failures,
    })
}

/// Everything that happens before there is room: in the end everybody has their goal.
async fn before_placement(
    world: &World,
    walkers: &[Walker],
    leaves: &[Leaf],
    choosers: &[Chooser],
    random: &mut Random,
    covered: &mut Covered,
) -> Result<(Breakers, Neighbours)> {
    let mut neighbours = Neighbours::move_in(world).await?;
    let breakers = Breakers::arrive(world, covered).await?;
    for (number, walker) in walkers.iter().enumerate() {
        let mut first = base(walker.leaf.in_template());
        first["suspend"] = json!(number % 2 == 0);
        ensure!(walker.user.create(world, &first).await?.accepted());
        covered.steps += 1;
    }
    for chooser in choosers {
        chooser.create(world).await?;
    }
    for round in 0..2 {
        neighbours.trouble(world, random).await?;
        for walker in walkers {
            wander(world, walker, leaves, round, random, covered).await?;
        }
        for chooser in choosers {
            chooser.wander(world, random, covered).await?;
        }
        // A node that is silent is noticed, and by the second round given up.
        world.pass(trouble::NOTICED.saturating_mul(1 + round)).await;
    }
    breakers.break_all(world, covered).await?;
    for walker in walkers {
        covered.steps += 1;
        let answer = walker.user.replace(world, &walker.goal).await?;
        ensure!(
            answer.accepted(),
            "{} = {}: {answer:?}",
            walker.leaf.path,
            walker.value()
        );
        if !walker.leaf.allowed().is_empty() {
            covered.allowed.insert(walker.leaf.path.clone());
        }
    }
    for chooser in choosers {
        chooser.arrive(world, covered).await?;
    }
    neighbours.heal(world).await?;
    Ok((breakers, neighbours))
}

/// One step of one walker: something forbidden, then something allowed elsewhere.
async fn wander(
    world: &World,
    walker: &Walker,
    leaves: &[Leaf],
    round: u32,
    random: &mut Random,
    covered: &mut Covered,
) -> Result<()> {
    let leaf = &walker.leaf;
    let plain = base(leaf.in_template());
    let schema = leaf.forbidden().into_iter().map(|value| (value, ""));
    let forbidden: Vec<(Value, &str)> = schema.chain(leaf.ruled()).collect();
    for (number, (value, words)) in forbidden.into_iter().enumerate() {
        // Half of them in either round.
        if number % 2 != round as usize % 2 {
            continue;
        }
        covered.steps += 1;
        let spec = leaves::with(&plain, leaf, value.clone());
        let answer = walker.user.replace(world, &spec).await?;
        ensure!(answer.says(words), "{} = {value}: {answer:?}", leaf.path);
        covered.forbidden.insert(leaf.path.clone());
    }
    let alike: Vec<&Leaf> = leaves
        .iter()
        .filter(|other| other.in_template() == leaf.in_template())
        .filter(|other| !other.allowed().is_empty())
        .collect();
    let other = *pick(random, &alike);
    let value = pick(random, &other.allowed()).clone();
    let mut spec = leaves::with(&plain, other, value);
    if other.field() != "suspend" {
        spec["suspend"] = json!(random.below(2) == 0);
    }
    covered.steps += 1;
    let answer = walker.user.replace(world, &spec).await?;
    ensure!(
        answer.accepted(),
        "{}: {answer:?} on the way: {spec}",
        other.path
    );
    Ok(())
}

/// Whoever does not run gets a place with the plain spec; whoever runs keeps what was placed.
async fn recover(world: &World, walkers: &[Walker], covered: &mut Covered) -> Result<()> {
    let mut back = Vec::new();
    for walker in walkers {
        let before = walker.user.get(world).await?;
        let ended = matches!(
            before["status"]["phase"].as_str(),
            Some("Succeeded" | "Failed")
        );
        let plain = base(walker.leaf.in_template());
        let field = walker.leaf.field();
        covered.steps += 1;
        let answer = walker.user.replace(world, &plain).await?;
        let kept = is_frozen(&before) && !FREE.contains(&field) && walker.goal != plain;
        let right = if kept {
            answer.says(&frozen(field))
        } else {
            answer.accepted()
        };
        ensure!(
            right,
            "{} = {}: taking it back is {answer:?}",
            walker.leaf.path,
            walker.value()
        );
        if !ended && !kept {
            back.push(walker);
        }
    }
    world.settled(QUIET).await?;
    for walker in back {
        let after = walker.user.get(world).await?;
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
