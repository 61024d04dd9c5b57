//! Every leaf of two workloads that run, one in each form, while their pods fail and their nodes go and
//! come back: what runs stays as it was placed. What may be changed because nothing of it runs for the moment is
//! changed and taken back, and the next attempt is what it was.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use warp_core::random::Random;
use warp_testkit::fault::world::World;

use super::leaves::{self, Leaf};
use super::trouble::{self, BRIEFLY, NOTICED};
use super::walker::{User, frozen, is_frozen};
use super::{Covered, FREE, base, compare, pick};

/// What happens during one stretch of the walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    None,
    PodFails,
    NodeIsSilent,
    NodeIsLost,
    GpusBreak,
}

const STRETCHES: [Trouble; 5] = [
    Trouble::None,
    Trouble::PodFails,
    Trouble::NodeIsSilent,
    Trouble::NodeIsLost,
    Trouble::GpusBreak,
];

impl Trouble {
    /// Attempts it costs.
    fn costs(self) -> i64 {
        i64::from(matches!(
            self,
            Self::PodFails | Self::NodeIsLost | Self::GpusBreak
        ))
    }
}

struct Placed {
    user: User,
    plain: Value,
    /// The plain spec as the API server has it.
    spec: Value,
    /// What its Job asks for.
    job: Value,
    failures: i64,
}

impl Placed {
    async fn new(world: &World, template: bool) -> Result<Self> {
        let name = if template {
            "placed-template"
        } else {
            "placed"
        };
        let user = User::arrives(world, name).await?;
        let plain = base(template);
        ensure!(user.create(world, &plain).await?.accepted());
        trouble::until_running(world, &user, 0).await?;
        let spec = user.get(world).await?["spec"].clone();
        let job = compare::of(world, name).await?.job();
        Ok(Self {
            user,
            plain,
            spec,
            job,
            failures: 0,
        })
    }

    /// Edits while something goes wrong; then it runs again as it did.
    async fn stretch(
        &mut self,
        world: &World,
        trouble: Trouble,
        leaves: &[&Leaf],
        random: &mut Random,
        covered: &mut Covered,
    ) -> Result<()> {
        let pod = trouble::pod_of(world, &self.user).await?;
        let node = trouble::node_of(&pod).context("a running pod without node")?;
        let before = compare::pods(world, &self.user.namespace).await?;
        match trouble {
            Trouble::None => {}
            Trouble::PodFails => {
                trouble::fail(world, &pod, random).await?;
                world.pass(Duration::from_secs(3)).await;
            }
            Trouble::NodeIsSilent | Trouble::NodeIsLost => {
                trouble::silence(world, node).await?;
                world.pass(NOTICED).await;
            }
            Trouble::GpusBreak => trouble::break_gpus(world, node).await?,
        }
        let mut open = Vec::new();
        for leaf in leaves {
            if self.edit(world, leaf, random, covered).await? {
                open.push(*leaf);
            }
        }
        self.failures += trouble.costs();
        if trouble == Trouble::NodeIsSilent {
            world.pass(BRIEFLY.saturating_sub(NOTICED)).await;
            trouble::heal(world, node).await?;
        }
        trouble::until_running(world, &self.user, self.failures).await?;
        if trouble != Trouble::NodeIsSilent {
            trouble::heal(world, node).await?;
        }
        world.settled(Duration::from_mins(1)).await?;
        self.stands(world).await?;
        ensure!(
            trouble.costs() > 0 || compare::pods(world, &self.user.namespace).await? == before,
            "an edit touched what runs"
        );
        // What could be changed for the moment cannot be now.
        for leaf in open {
            let open = self.edit(world, leaf, random, covered).await?;
            ensure!(!open, "{} may be changed while it runs", leaf.path);
        }
        Ok(())
    }

    /// Every value of a leaf, each answered as the rules say; whether one was taken because nothing ran.
    async fn edit(
        &self,
        world: &World,
        leaf: &Leaf,
        random: &mut Random,
        covered: &mut Covered,
    ) -> Result<bool> {
        let mut open = false;
        let user = &self.user;
        let path = &leaf.path;
        let free = FREE.contains(&leaf.field());
        for value in leaf.allowed() {
            let spec = leaves::with(&self.plain, leaf, value.clone());
            // What stops it or ends it has a trial of its own.
            if spec == self.plain || spec["suspend"] == true || spec["maxRuntime"] == "7s" {
                continue;
            }
            covered.steps += 1;
            let (answer, met) = user.replace_what_is(world, &spec).await?;
            if !free && !is_frozen(&met) {
                ensure!(
                    answer.accepted(),
                    "{path} = {value}: {answer:?} at {}",
                    met["status"]
                );
                let back = user.replace(world, &self.plain).await?;
                ensure!(back.accepted(), "{path} = {value} and back: {back:?}");
                open = true;
            } else if free {
                ensure!(answer.accepted(), "{path} = {value}: {answer:?}");
                world.pass(Duration::from_secs(2)).await;
                ensure!(user.replace(world, &self.plain).await?.accepted());
                let spec = &user.get(world).await?["spec"];
                ensure!(*spec == self.spec, "{path} was taken back and is {spec}");
            } else {
                let words = frozen(leaf.field());
                ensure!(
                    answer.says(&words),
                    "{path} = {value}: {answer:?}, not '{words}'"
                );
                covered.refused(&answer);
            }
        }
        for (value, words) in leaf.ruled() {
            covered.steps += 1;
            let spec = leaves::with(&self.plain, leaf, value.clone());
            let answer = user.replace(world, &spec).await?;
            ensure!(
                answer.says(words),
                "{path} = {value}: {answer:?}, not '{words}'"
            );
        }
        // All of them were tried before placement, and the schema does not look at what is placed.
        let forbidden = leaf.forbidden();
        if !forbidden.is_empty() {
            let value = pick(random, &forbidden);
            covered.steps += 1;
            let spec = leaves::with(&self.plain, leaf, value.clone());
            let answer = user.replace(world, &spec).await?;
            ensure!(!answer.accepted(), "{path} = {value} was accepted");
        }
        if !free {
            covered.placed.insert(path.clone());
        }
        Ok(open)
    }

    async fn stands(&self, world: &World) -> Result<()> {
        self.user.observed(world, &self.spec).await?;
        let job = compare::of(world, &self.user.namespace).await?.job();
        ensure!(job == self.job, "its Job is {job}, not {}", self.job);
        Ok(())
    }
}

pub(crate) async fn all(
    world: &World,
    leaves: &[Leaf],
    random: &mut Random,
    covered: &mut Covered,
) -> Result<()> {
    for template in [false, true] {
        let mut placed = Placed::new(world, template).await?;
        let own: Vec<&Leaf> = leaves
            .iter()
            .filter(|leaf| leaf.in_template() == template)
            .collect();
        let stretches = own.chunks(own.len().div_ceil(STRETCHES.len()));
        for (leaves, trouble) in stretches.zip(STRETCHES) {
            placed
                .stretch(world, trouble, leaves, random, covered)
                .await
                .with_context(|| format!("{} while {trouble:?}", placed.user.namespace))?;
        }
    }
    Ok(())
}
