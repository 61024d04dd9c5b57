//! The one thing Warp reads of a workload that is not in its spec: `gpu.warp.dev/provider`, a label or
//! an annotation with the providers it may use.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use warp_core::random::Random;
use warp_testkit::fault::world::World;

use super::walker::User;
use super::{Covered, base, compare, pick};

const NAME: &str = "gpu.warp.dev/provider";

/// Somebody who says where their workload may run.
pub(crate) struct Chooser {
    pub(crate) user: User,
    /// `labels` or `annotations`.
    list: &'static str,
    goal: &'static str,
}

/// One for every value either can have.
pub(crate) fn all() -> Vec<Chooser> {
    let labels = ["simulated", "nowhere", ""];
    let annotations = ["simulated", "nowhere", "", "nowhere, simulated", " ,,"];
    let both = labels
        .map(|goal| ("labels", goal))
        .into_iter()
        .chain(annotations.map(|goal| ("annotations", goal)));
    let chooser = |(number, (list, goal))| Chooser {
        user: User::new(format!("p-{number}")),
        list,
        goal,
    };
    both.enumerate().map(chooser).collect()
}

impl Chooser {
    /// As a field that is covered.
    pub(crate) fn path(&self) -> String {
        format!("metadata.{}[{NAME}]", self.list)
    }

    /// Whether a value names a provider there is, or none at all.
    fn can_run(value: &str) -> bool {
        let mut named = value
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .peekable();
        named.peek().is_none() || named.any(|name| name == "simulated")
    }

    async fn say(&self, world: &World, value: Value, covered: &mut Covered) -> Result<bool> {
        covered.steps += 1;
        let answer = self.user.mark(world, self.list, NAME, &value).await?;
        let seen = if answer.accepted() {
            &mut covered.allowed
        } else {
            &mut covered.forbidden
        };
        seen.insert(self.path());
        Ok(answer.accepted())
    }

    /// Their workload as it is in the end, from the beginning.
    pub(crate) async fn create(&self, world: &World) -> Result<()> {
        let mut manifest = self.user.manifest("walk", &base(false));
        manifest["metadata"][self.list] = json!({NAME: self.goal});
        world.create(manifest).await?;
        Ok(())
    }

    pub(crate) async fn wander(
        &self,
        world: &World,
        random: &mut Random,
        covered: &mut Covered,
    ) -> Result<()> {
        let mut forbidden = vec![json!(7), json!({"walk": "1"}), json!(["walk"])];
        if self.list == "labels" {
            forbidden.extend([json!("a b"), json!("-walk"), json!("a".repeat(64))]);
        }
        for value in forbidden {
            ensure!(
                !self.say(world, value.clone(), covered).await?,
                "{} = {value} was accepted",
                self.path()
            );
        }
        let value = *pick(random, &["simulated", "nowhere", "else", ""]);
        ensure!(self.say(world, json!(value), covered).await?);
        Ok(())
    }

    pub(crate) async fn arrive(&self, world: &World, covered: &mut Covered) -> Result<()> {
        ensure!(
            self.say(world, json!(self.goal), covered).await?,
            "{} = {} was refused",
            self.path(),
            self.goal
        );
        Ok(())
    }

    async fn reason(&self, world: &World) -> Result<String> {
        let object = self.user.get(world).await?;
        let reason = &object["status"]["conditions"][0]["reason"];
        Ok(reason.as_str().unwrap_or_default().to_owned())
    }

    /// It stands where its value says.
    pub(crate) async fn stands(&self, world: &World) -> Result<()> {
        let expected = if Self::can_run(self.goal) {
            "Running"
        } else {
            "NoSuchProvider"
        };
        let reason = self.reason(world).await?;
        ensure!(
            reason == expected,
            "{} = '{}': {reason}, not {expected}",
            self.path(),
            self.goal
        );
        Ok(())
    }

    async fn says_another(&self, world: &World, covered: &mut Covered) -> Result<()> {
        let placed = Self::can_run(self.goal);
        let value = if placed {
            json!("nowhere")
        } else {
            Value::Null
        };
        ensure!(self.say(world, value, covered).await?);
        covered.placed.insert(self.path());
        Ok(())
    }
}

/// Whoever waits gets a place without it; whoever has one keeps it, whatever is said later.
pub(crate) async fn change_after_placement(
    world: &World,
    choosers: &[Chooser],
    covered: &mut Covered,
) -> Result<()> {
    let mut before = Vec::new();
    for chooser in choosers {
        before.push(compare::pods(world, &chooser.user.namespace).await?);
        chooser.says_another(world, covered).await?;
    }
    world.settled(Duration::from_mins(1)).await?;
    for (chooser, before) in choosers.iter().zip(before) {
        let reason = chooser.reason(world).await?;
        let after = compare::pods(world, &chooser.user.namespace).await?;
        let kept = !Chooser::can_run(chooser.goal) || after == before;
        ensure!(
            reason == "Running" && kept,
            "{} = '{}' and then another: {reason}, with {after:?} after {before:?}",
            chooser.path(),
            chooser.goal
        );
    }
    Ok(())
}
