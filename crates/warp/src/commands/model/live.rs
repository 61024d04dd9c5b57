//! What a cluster could do with a model now: the smallest layout on each GPU it has or can rent, where that would start,
//! what is in the way, and what renting would cost. Placement's own functions answer (`warp_operator::foresight`);
//! nothing is made.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};
use warp_api::{CloudProvider, GPUWorkload};
use warp_cloud::Decimal;
use warp_core::gpu;
use warp_core::size::{Device, Layout, Load, Model, layouts};
use warp_operator::foresight::{Outlook, look};

use crate::cluster::live::Live;
use crate::cluster::{self, Target};
use crate::commands::offers;
use crate::commands::serve::fleet;
use crate::output::{self, Table};
use crate::workload::dollars;

/// How long a cluster that need not answer is waited for.
const PATIENCE: Duration = Duration::from_secs(3);
/// The most GPUs of one pod.
const MOST: u32 = 16;

/// What a cluster has now, and what its clouds rent out.
pub(super) struct Fleet {
    live: Live,
    kinds: Vec<fleet::Kind>,
    providers: Vec<CloudProvider>,
    namespace: String,
}

/// Reads the cluster. One that need not answer and does not is none.
pub(super) fn read(target: &Target, must: bool) -> anyhow::Result<Option<Fleet>> {
    let read = cluster::block_on(async {
        let connection = if must {
            target.connect().await?
        } else {
            let answer = tokio::time::timeout(PATIENCE, target.connect()).await;
            answer.context("the cluster does not answer")??
        };
        let live = Live::read(&connection.client).await?;
        let fleet = fleet::Fleet::read(&connection.client).await?;
        // Whoever may not read them, or has none, rents nothing.
        let providers = offers::all(&connection.client).await.unwrap_or_default();
        Ok(Fleet {
            live,
            kinds: fleet.kinds,
            providers,
            namespace: connection.namespace,
        })
    });
    match read {
        Ok(fleet) => Ok(Some(fleet)),
        Err(error) if must => Err(error),
        Err(_) => Ok(None),
    }
}

/// One GPU that will do, or not, and what the cluster could do with it.
struct Choice {
    gpu: String,
    layout: Option<Layout>,
    /// Why no layout on it will do.
    refused: Option<String>,
    /// GPUs the cluster has of it, and those that are idle.
    has: i64,
    idle: i64,
    now: Option<Now>,
    rent: Option<Rent>,
}

/// What placement would do with it now.
struct Now {
    nodes: Vec<String>,
    /// Dollars an hour, where the nodes say so.
    price: Option<String>,
    /// Why it would wait.
    waits: Option<String>,
    /// Work of which each alone, gone, would make room.
    displaces: Vec<String>,
}

impl Now {
    fn starts(&self) -> bool {
        self.waits.is_none()
    }
}

/// The cheapest machine that has enough of them.
struct Rent {
    price: Decimal,
    gpus: u32,
    provider: String,
    region: String,
}

/// Everything the cluster could do, the best first.
pub(super) struct Answer {
    choices: Vec<Choice>,
    caveat: Option<String>,
}

impl Fleet {
    /// Judges every GPU the cluster has or can rent and that is `wanted`.
    pub(super) fn answer(
        &self,
        model: &Model,
        load: Load,
        wanted: impl Fn(&str) -> bool,
    ) -> Answer {
        let owned = self.kinds.iter().map(|kind| kind.model.name);
        let rented = self.offers().filter_map(|(_, offer)| {
            let [model] = gpu::named(&offer.gpu)[..] else {
                return None;
            };
            Some(model.name)
        });
        let names: BTreeSet<&str> = owned.chain(rented).filter(|name| wanted(name)).collect();
        let mut choices: Vec<Choice> = names
            .into_iter()
            .filter_map(|name| self.choice(name, model, load))
            .collect();
        choices.sort_by_key(Choice::rank);
        Answer {
            choices,
            caveat: self.live.caveat(),
        }
    }

    /// What can be rented at the moment.
    fn offers(
        &self,
    ) -> impl Iterator<Item = (&CloudProvider, &warp_api::cloudprovider::CloudOffer)> {
        let open = self.providers.iter();
        let open = open.filter(|provider| offers::closed(provider).is_none());
        open.flat_map(|provider| {
            let offers = provider.status.iter().flat_map(|status| &status.offers);
            offers.map(move |offer| (provider, offer))
        })
        .filter(|(_, offer)| offer.availability != "none")
    }

    fn choice(&self, name: &str, model: &Model, load: Load) -> Option<Choice> {
        let kind = self.kinds.iter().find(|kind| kind.model.name == name);
        let known = gpu::MODELS.iter().find(|known| known.name == name);
        let described = kind.map(|kind| kind.model).or(known)?;
        let device = Device::of(described);
        let largest = self.offers().filter(|(_, offer)| offer.gpu == name);
        let largest = largest.map(|(_, offer)| offer.gpus).max().unwrap_or(0);
        let owned = kind.map_or(0, |kind| kind.per_node);
        // One copy runs on one machine.
        let per_node = owned.max(largest).min(MOST);
        let all = layouts(model, load, &device, per_node, 1);
        let fitting = all.iter().find(|layout| layout.fits).cloned();
        let refused = match (&fitting, all.last()) {
            (None, Some(last)) => Some(format!("{} × {name}: {}", last.count, last.reason)),
            _ => None,
        };
        let mut choice = Choice {
            gpu: name.to_owned(),
            refused,
            has: 0,
            idle: 0,
            now: None,
            rent: None,
            layout: None,
        };
        if let Some(layout) = fitting {
            if owned > 0 {
                self.place(&mut choice, layout.count);
            }
            choice.rent = self.cheapest(name, layout.count);
            choice.layout = Some(layout);
        }
        Some(choice)
    }

    /// Asks placement what it would do with one copy, as a workload that is not there.
    fn place(&self, choice: &mut Choice, count: u32) {
        let asked = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPUWorkload",
            "metadata": {"name": "warp-model-plan", "namespace": self.namespace},
            "spec": {"modelName": "planned", "gpuCount": count, "image": "planned", "gpu": {"models": [choice.gpu]}},
        });
        let now = Timestamp::now();
        let seen = serde_json::from_value::<GPUWorkload>(asked)
            .map_err(|error| error.to_string())
            .and_then(|asked| look(&self.live.cluster, &asked, &self.live.settings, now));
        let seen = match seen {
            Ok(seen) => seen,
            Err(problem) => {
                choice.now = Some(Now::waiting(&problem, Vec::new()));
                return;
            }
        };
        for group in seen.groups.iter().filter(|group| group.gpu == choice.gpu) {
            choice.has += group.gpus;
            choice.idle += group.idle;
        }
        let holders = seen.in_the_way.iter();
        let holders = holders.map(|holder| format!("{}/{}", holder.namespace, holder.name));
        choice.now = Some(match seen.outlook {
            Outlook::Starts(start) => {
                let price = start.price_micros;
                Now {
                    price: price.map(|micros| dollars(micros.saturating_mul(u64::from(count)))),
                    nodes: start.nodes,
                    waits: None,
                    displaces: Vec::new(),
                }
            }
            Outlook::Waits { message, .. } => Now::waiting(&message, holders.collect()),
            Outlook::Invalid(problem) => Now::waiting(&problem, Vec::new()),
        });
    }

    fn cheapest(&self, name: &str, count: u32) -> Option<Rent> {
        let enough = self
            .offers()
            .filter(|(_, offer)| offer.gpu == name && offer.gpus >= count);
        let priced = enough.filter_map(|(provider, offer)| {
            Some(Rent {
                price: offers::decimal(Some(&offer.price))?,
                gpus: offer.gpus,
                provider: provider.name_any(),
                region: offer.region.clone(),
            })
        });
        priced.min_by(|a, b| (a.price, a.gpus, &a.region).cmp(&(b.price, b.gpus, &b.region)))
    }
}

impl Now {
    fn waiting(message: &str, displaces: Vec<String>) -> Self {
        let short = message.split("; to be placed now: ").next();
        Self {
            nodes: Vec::new(),
            price: None,
            waits: Some(short.unwrap_or_default().to_owned()),
            displaces,
        }
    }
}

impl Choice {
    fn starts(&self) -> bool {
        self.now.as_ref().is_some_and(Now::starts)
    }

    /// What starts now comes first, by the memory it takes; then what one other's place is enough for; then what can be
    /// rented, the cheapest first; then what waits; last what does not fit.
    fn rank(&self) -> (u8, Option<Decimal>, u64) {
        let memory = self.layout.as_ref().map_or(u64::MAX, |layout| {
            u64::from(layout.count).saturating_mul(layout.memory.usable_bytes)
        });
        let room = self.now.as_ref();
        let room = room.is_some_and(|now| !now.displaces.is_empty());
        match (&self.layout, &self.rent) {
            (None, _) => (4, None, memory),
            _ if self.starts() => (0, None, memory),
            _ if room => (1, None, memory),
            (_, Some(rent)) => (2, Some(rent.price), memory),
            _ => (3, None, memory),
        }
    }

    fn as_json(&self) -> Value {
        let now = self.now.as_ref().map(|now| {
            json!({"starts": now.starts(), "nodes": now.nodes, "pricePerHour": now.price, "waits": now.waits,
                "displaces": now.displaces})
        });
        let rent = self.rent.as_ref().map(|rent| {
            json!({"pricePerHour": rent.price.to_string(), "gpus": rent.gpus, "provider": rent.provider,
                "region": rent.region})
        });
        json!({"gpu": self.gpu, "count": self.layout.as_ref().map(|layout| layout.count), "layout": self.layout,
            "refused": self.refused, "gpus": self.has, "idle": self.idle, "now": now, "rent": rent})
    }
}

impl Answer {
    /// Whether there is a way to have it: now, by waiting, or by renting.
    pub(super) fn is_possible(&self) -> bool {
        let mut all = self.choices.iter();
        all.any(|choice| choice.layout.is_some())
    }

    fn chosen(&self) -> Option<&Choice> {
        self.choices.first().filter(|one| one.layout.is_some())
    }

    pub(super) fn as_json(&self) -> Value {
        let all: Vec<Value> = self.choices.iter().map(Choice::as_json).collect();
        let chosen = self.chosen().and_then(|choice| {
            let layout = choice.layout.as_ref()?;
            let how = match (&choice.now, &choice.rent) {
                (Some(now), _) if now.starts() => "starts",
                (Some(now), _) if !now.displaces.is_empty() => "displaces",
                (_, Some(_)) => "rents",
                _ => "waits",
            };
            Some(json!({"gpu": layout.gpu, "count": layout.count, "how": how}))
        });
        json!({"chosen": chosen, "choices": all, "leftOut": self.caveat})
    }

    pub(super) fn as_text(&self) -> String {
        if let Some(caveat) = &self.caveat {
            output::note(&format!("note: {caveat}"));
        }
        if self.choices.is_empty() {
            return "\non the cluster, now: it has no GPUs that were asked for, and rents none\n"
                .to_owned();
        }
        let mut text = "\non the cluster, now:\n\n".to_owned();
        let mut table = Table::new(["", "GPU", "COUNT", "TP", "PP", "IDLE", "NOW", "RENT/H"]);
        let chosen = self.chosen().map(|choice| &choice.gpu);
        let fitting = self.choices.iter().filter_map(|choice| {
            let layout = choice.layout.as_ref()?;
            Some((choice, layout))
        });
        for (choice, layout) in fitting.clone() {
            let now = match &choice.now {
                None => "not there".to_owned(),
                Some(now) if now.starts() => {
                    let price = now.price.as_ref();
                    let price = price.map_or(String::new(), |price| format!(", {price} an hour"));
                    format!("starts on {}{price}", now.nodes.join(", "))
                }
                Some(now) if now.displaces.is_empty() => "waits".to_owned(),
                Some(now) => format!("waits; any of {} would make room", now.displaces.join(", ")),
            };
            let rent = choice.rent.as_ref().map_or("-".to_owned(), |rent| {
                format!(
                    "{} ({} × {}, {} {})",
                    rent.price, rent.gpus, choice.gpu, rent.provider, rent.region
                )
            });
            table.row(vec![
                if chosen == Some(&choice.gpu) { "*" } else { "" }.to_owned(),
                choice.gpu.clone(),
                layout.count.to_string(),
                layout.tensor_parallel.to_string(),
                layout.pipeline_parallel.to_string(),
                format!("{}/{}", choice.idle, choice.has),
                now,
                rent,
            ]);
        }
        if !table.is_empty() {
            text += &table.to_string();
        }
        for (choice, layout) in fitting {
            let waits = choice.now.as_ref().and_then(|now| now.waits.as_ref());
            if let Some(message) = waits {
                let _ = writeln!(text, "\n{} × {} waits: {message}", layout.count, choice.gpu);
            }
        }
        let refused: Vec<&String> = self
            .choices
            .iter()
            .filter_map(|choice| choice.refused.as_ref())
            .collect();
        if !refused.is_empty() {
            text += "\ndo not fit on one machine of it:\n";
        }
        for words in refused {
            let _ = writeln!(text, "  {words}");
        }
        text
    }
}
