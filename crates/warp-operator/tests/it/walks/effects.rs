//! What may change while a workload runs takes the effect its rule promises and no other, and taken back it
//! leaves everything as it was.
//!
//! Every value of every free leaf has a workload of its own that runs: it is edited, edited back, edited
//! again, and then what the field is about happens to it.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use warp_core::random::Random;
use warp_testkit::fault::world::World;

use super::leaves::{self, Leaf};
use super::trouble;
use super::walker::User;
use super::{Covered, FREE, base, compare};

const SHORTLY: Duration = Duration::from_secs(30);

/// What an edit does to a workload that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// Nothing, for now.
    None,
    /// It stops and gives its GPUs back.
    Stops,
    /// Its Job gets so many seconds.
    Limit(i64),
    /// It has run for too long already.
    Ends,
}

struct Trial {
    user: User,
    leaf: Leaf,
    value: Value,
    plain: Value,
    effect: Effect,
}

/// A workload that runs, as the API server has it.
struct Before {
    spec: Value,
    jobs: Vec<(String, Value)>,
    pods: Vec<compare::PodUids>,
    template: Value,
}

impl Trial {
    fn new(number: usize, leaf: &Leaf, value: Value) -> Self {
        let effect = match (leaf.path.as_str(), value.as_str()) {
            ("suspend", _) if value == true => Effect::Stops,
            ("maxRuntime", Some("90m" | "1h30m")) => Effect::Limit(5400),
            ("maxRuntime", Some("7s")) => Effect::Ends,
            _ => Effect::None,
        };
        Self {
            user: User::new(format!("t-{number}")),
            leaf: leaf.clone(),
            value,
            plain: base(number % 2 == 1),
            effect,
        }
    }

    fn edited(&self, spec: &Value) -> Value {
        leaves::with(spec, &self.leaf, self.value.clone())
    }

    async fn before(&self, world: &World) -> Result<Before> {
        let object = self.user.running(world).await?;
        Ok(Before {
            spec: object["spec"].clone(),
            jobs: compare::jobs(world, &self.user.namespace).await?,
            pods: compare::pods(world, &self.user.namespace).await?,
            template: compare::of(world, &self.user.namespace).await?.job(),
        })
    }

    /// After the edit.
    async fn changed(&self, world: &World, before: &Before) -> Result<()> {
        let object = self
            .user
            .observed(world, &self.edited(&before.spec))
            .await?;
        let status = &object["status"];
        let reason = &status["conditions"][0]["reason"];
        let jobs = compare::jobs(world, &self.user.namespace).await?;
        let pods = compare::pods(world, &self.user.namespace).await?;
        let mut expected = before.jobs.clone();
        match self.effect {
            Effect::Stops => {
                ensure!(
                    jobs.is_empty() && pods.is_empty(),
                    "suspended, it has {jobs:?} and {pods:?}"
                );
                ensure!(
                    status["phase"] == "Pending" && reason == "Suspended",
                    "suspended, it is {status}"
                );
                // Nothing of it runs: everything may be changed, and taken back.
                let mut other = object["spec"].clone();
                other["gpuCount"] = json!(2);
                let answer = self.user.replace(world, &other).await?;
                ensure!(answer.accepted(), "suspended: {answer:?}");
                return Ok(());
            }
            Effect::Ends => {
                ensure!(
                    status["phase"] == "Failed" && reason == "MaxRuntimeExceeded",
                    "it is {status}"
                );
                return Ok(());
            }
            Effect::Limit(seconds) => {
                for (_, spec) in &mut expected {
                    spec["activeDeadlineSeconds"] = json!(seconds);
                }
            }
            Effect::None => {}
        }
        ensure!(pods == before.pods, "the edit touched what runs");
        ensure!(jobs == expected, "the Job is {jobs:?}, not {expected:?}");
        ensure!(status["phase"] == "Running", "it is {status}");
        Ok(())
    }

    /// After it was taken back.
    async fn back(&self, world: &World, before: &Before) -> Result<()> {
        let object = self.user.observed(world, &before.spec).await?;
        let status = &object["status"];
        let reason = &status["conditions"][0]["reason"];
        match self.effect {
            Effect::Ends => {
                ensure!(reason == "MaxRuntimeExceeded", "what has ended is {status}");
            }
            Effect::Stops => {
                ensure!(
                    reason == "Running" && status["retryCount"] == 0,
                    "resumed, it is {status}"
                );
                trouble::pod_of(world, &self.user).await?;
                let template = compare::of(world, &self.user.namespace).await?.job();
                ensure!(
                    template == before.template,
                    "resumed, its Job is {template}, not {}",
                    before.template
                );
            }
            Effect::Limit(_) | Effect::None => {
                let jobs = compare::jobs(world, &self.user.namespace).await?;
                let pods = compare::pods(world, &self.user.namespace).await?;
                ensure!(
                    jobs == before.jobs && pods == before.pods && reason == "Running",
                    "taken back, it is {status} with {jobs:?}"
                );
            }
        }
        Ok(())
    }

    /// Makes happen what the field is about.
    async fn provoke(&self, world: &World, random: &mut Random) -> Result<()> {
        let number = self.value.as_i64().unwrap_or_default();
        let manifest = self.user.manifest("walk", &Value::Null);
        let pod = match self.effect {
            Effect::None => trouble::pod_of(world, &self.user).await?,
            _ => return Ok(()),
        };
        match self.leaf.path.as_str() {
            "ttlSecondsAfterFinished" => {
                trouble::finish(world, &pod).await?;
                // Nobody waits here for what is kept for years.
                let kept = number > 60;
                let ended = |object: Option<&Value>| match object {
                    Some(object) => kept && object["status"]["phase"] == "Succeeded",
                    None => !kept,
                };
                world.until(&manifest, "kept for so long", ended).await
            }
            "retryPolicy.maxRetries" if number == 0 => {
                trouble::fail(world, &pod, random).await?;
                let failed = |object: Option<&Value>| {
                    object.is_some_and(|object| object["status"]["phase"] == "Failed")
                };
                world.until(&manifest, "failed", failed).await
            }
            "retryPolicy.onMemberFailure" if self.value == "fail" => {
                trouble::exit(world, &pod).await?;
                let failed = |object: Option<&Value>| {
                    object.is_some_and(|object| {
                        object["status"]["phase"] == "Failed"
                            && object["status"]["retryCount"].as_i64().unwrap_or(0) == 0
                    })
                };
                world.until(&manifest, "failed", failed).await
            }
            "retryPolicy.backoffSeconds" => {
                trouble::fail(world, &pod, random).await?;
                let waits = |object: Option<&Value>| {
                    object.is_some_and(|object| said_wait(object).is_some())
                };
                world.until(&manifest, "waiting", waits).await?;
                let wait = said_wait(&self.user.get(world).await?).unwrap_or_default();
                let least = number.clamp(1, 300);
                ensure!(
                    (least..=least + least / 10).contains(&wait),
                    "it waits for {wait} s"
                );
                trouble::until_running(world, &self.user, 1).await
            }
            "suspend" => Ok(()),
            _ => {
                trouble::fail(world, &pod, random).await?;
                trouble::until_running(world, &self.user, 1).await
            }
        }
    }
}

/// The seconds in "retry 1 of 3 in 5 s".
fn said_wait(object: &Value) -> Option<i64> {
    let ready = &object["status"]["conditions"][0];
    if ready["reason"] != "RetryBackoff" {
        return None;
    }
    let said = ready["message"].as_str()?.rsplit(" in ").next()?;
    said.strip_suffix(" s")?.parse().ok()
}

/// Every value of every free leaf.
pub(crate) async fn all(
    world: &World,
    leaves: &[Leaf],
    random: &mut Random,
    covered: &mut Covered,
) -> Result<()> {
    let free = leaves.iter().filter(|leaf| FREE.contains(&leaf.field()));
    let values = free.flat_map(|leaf| leaf.allowed().into_iter().map(move |value| (leaf, value)));
    let trials: Vec<Trial> = values
        .enumerate()
        .map(|(number, (leaf, value))| Trial::new(number, leaf, value))
        .collect();
    for trial in &trials {
        User::arrives(world, trial.user.namespace.clone()).await?;
        let answer = trial.user.create(world, &trial.plain).await?;
        ensure!(answer.accepted(), "{}: {answer:?}", trial.user.namespace);
    }
    world.settled(SHORTLY).await?;
    let mut befores = Vec::new();
    for trial in &trials {
        befores.push(trial.before(world).await?);
    }
    let about = |trial: &Trial| format!("{} = {} after placement", trial.leaf.path, trial.value);
    for (trial, before) in trials.iter().zip(&befores) {
        covered.steps += 1;
        let answer = trial
            .user
            .replace(world, &trial.edited(&before.spec))
            .await?;
        ensure!(answer.accepted(), "{}: {answer:?}", about(trial));
    }
    world.settled(SHORTLY).await?;
    for (trial, before) in trials.iter().zip(&befores) {
        let changed = trial.changed(world, before).await;
        changed.with_context(|| about(trial))?;
    }
    for (trial, before) in trials.iter().zip(&befores) {
        covered.steps += 1;
        let answer = trial.user.replace(world, &before.spec).await?;
        ensure!(answer.accepted(), "{} and back: {answer:?}", about(trial));
    }
    world.settled(SHORTLY).await?;
    for (trial, before) in trials.iter().zip(&befores) {
        let back = trial.back(world, before).await;
        back.with_context(|| format!("{} and back", about(trial)))?;
    }
    for trial in &trials {
        covered.steps += 1;
        let answer = trial
            .user
            .replace(world, &trial.edited(&trial.plain))
            .await?;
        ensure!(answer.accepted(), "{} again: {answer:?}", about(trial));
    }
    world.pass(SHORTLY).await;
    for trial in &trials {
        let provoked = trial.provoke(world, random).await;
        provoked.with_context(|| about(trial))?;
        covered.placed.insert(trial.leaf.path.clone());
    }
    Ok(())
}
