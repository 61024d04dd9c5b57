//! How many objects of every kind there are, whatever made them.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::discovery::{Discovery, verbs};
use kube::{Api, Client};
use warp_testkit::until;

use super::PATIENCE;
use super::judge::{median, stretches};

/// Load comes and goes: so many more of a kind may be there by chance.
const CHANCE: usize = 96;
/// So many more of a kind may be there in the end than at the start; a cluster that has just started
/// is still making some of its own.
const STARTING: usize = 8;

type Counts = BTreeMap<String, usize>;

/// Counts of all kinds a server serves.
pub(super) struct Census {
    kinds: Vec<ApiResource>,
    /// How far the soak was, and what there was then.
    taken: Vec<(f64, Counts)>,
}

impl Census {
    /// Asks the server for its kinds and counts once.
    pub(super) async fn of(client: &Client) -> Result<Self> {
        let discovery = Discovery::new(client.clone()).run().await?;
        let kinds = discovery
            .groups()
            .flat_map(kube::discovery::ApiGroup::recommended_resources)
            .filter(|(_, can)| can.supports_operation(verbs::LIST))
            .map(|(kind, _)| kind)
            .collect();
        let mut census = Self {
            kinds,
            taken: Vec::new(),
        };
        census.take(client, 0.0).await?;
        Ok(census)
    }

    pub(super) async fn take(&mut self, client: &Client, progress: f64) -> Result<()> {
        let mut counts = Counts::new();
        for kind in &self.kinds {
            let api: Api<DynamicObject> = Api::all_with(client.clone(), kind);
            // kube-apiserver puts off lists of a kind whose cache it is still filling, as after its CRD came.
            let counting = format!("{} are counted", kind.plural);
            let count = until(&counting, PATIENCE, || async {
                match api.list_metadata(&ListParams::default()).await {
                    Ok(all) => Ok(Some(all.items.len())),
                    Err(kube::Error::Api(put_off)) if put_off.code == 429 => Ok(None),
                    Err(error) => Err(error.into()),
                }
            })
            .await?;
            counts.insert(format!("{}.{}", kind.plural, kind.group), count);
        }
        self.taken.push((progress, counts));
        Ok(())
    }

    fn at(&self, kind: &str) -> Vec<(f64, usize)> {
        let counts = self.taken.iter();
        counts
            .map(|(progress, counts)| (*progress, counts.get(kind).copied().unwrap_or(0)))
            .collect()
    }

    /// No kind grew from one stretch to the next, nor from the start to the end.
    pub(super) fn judge(&self) -> Result<String> {
        let (Some((_, start)), Some((_, end))) = (self.taken.first(), self.taken.last()) else {
            anyhow::bail!("nothing was counted");
        };
        let (mut before_all, mut after_all) = (0, 0);
        for kind in end.keys() {
            let (earlier, later) = stretches(&self.at(kind));
            let (before, after) = (median(earlier), median(later));
            let (before, after) = before
                .zip(after)
                .context("objects were not counted in time")?;
            ensure!(
                after <= before + before / 4 + CHANCE,
                "{kind} become more: {before}, then {after}"
            );
            let (first, last) = (start.get(kind).copied().unwrap_or(0), end[kind]);
            ensure!(
                last <= first + STARTING,
                "{kind} were left: {first} at the start, {last} in the end"
            );
            before_all += before;
            after_all += after;
        }
        Ok(format!(
            "{} kinds, {before_all} objects, then {after_all} ({} at the start, {} in the end)",
            end.len(),
            start.values().sum::<usize>(),
            end.values().sum::<usize>(),
        ))
    }
}
