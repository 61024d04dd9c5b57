//! Which GPUs of the cluster a model is served on, and why. The arithmetic is `warp_core::size`.

use anyhow::bail;
use warp_core::gpu::Vendor;
use warp_core::size::{CacheType, Device, Layout, Load, layouts};

use super::fleet::{Fleet, Kind};
use super::{Args, Engine};
use crate::commands::model;

/// What was chosen, and what there is to say about it.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) gpus: u32,
    pub(super) vendor: Vendor,
    pub(super) model: Option<String>,
    pub(super) tensor: u32,
    pub(super) pipeline: u32,
    /// Tokens of attention cache a copy is expected to have, where the model could be sized.
    pub(super) cache_tokens: Option<u64>,
    pub(super) told: Vec<String>,
}

impl Chosen {
    pub(super) fn describe(&self) -> String {
        match (self.gpus, &self.model) {
            (0, _) => "no GPU".to_owned(),
            (1, Some(model)) => format!("one {model}"),
            (count, Some(model)) => format!("{count} × {model}"),
            (1, None) => format!("one {} GPU", self.vendor),
            (count, None) => format!("{count} {} GPUs", self.vendor),
        }
    }
}

pub(super) fn choose(args: &Args, engine: Engine, fleet: &Fleet) -> anyhow::Result<Chosen> {
    let candidates = candidates(args, engine, fleet)?;
    let mut told = Vec::new();
    if engine == Engine::Simulated {
        return Ok(plain(args, candidates.first(), told));
    }
    if args.gpus == Some(0) {
        return Ok(plain(args, None, told));
    }
    let described = match model::describe(args.model.trim_start_matches("hf://")) {
        Ok(described) => described,
        Err(error) => {
            told.push(format!(
                "the model cannot be sized, so {} GPU is taken as asked for or one: {}",
                args.gpus.unwrap_or(1),
                crate::output::words(&error)
            ));
            return Ok(plain(args, candidates.first(), told));
        }
    };
    let load = Load {
        context: args.max_context,
        sequences: u64::from(args.concurrency),
        cache: CacheType::Auto,
        utilization_permille: Load::UTILIZATION_PERMILLE,
    };
    let mut fitting: Vec<(&Kind, Layout)> = Vec::new();
    for kind in &candidates {
        let device = Device::of(kind.model);
        let all = layouts(&described, load, &device, kind.per_node, 1);
        let wanted = |layout: &&Layout| args.gpus.is_none_or(|gpus| layout.count == gpus);
        match all.iter().filter(wanted).find(|layout| layout.fits) {
            Some(layout) => fitting.push((kind, layout.clone())),
            None => told.extend(all.iter().rfind(|layout| wanted(layout)).map(|layout| {
                format!(
                    "not on {} × {}: {}",
                    layout.count, layout.gpu, layout.reason
                )
            })),
        }
    }
    let memory = |layout: &Layout| u64::from(layout.count) * layout.memory.usable_bytes;
    let best = fitting
        .iter()
        .min_by_key(|(_, layout)| (memory(layout), layout.count));
    let Some((kind, layout)) = best else {
        bail!(
            "no GPU of the cluster can serve {} with {} sequences of {} tokens: {}",
            args.model,
            args.concurrency,
            args.max_context,
            told.join("; ")
        );
    };
    told.push(format!(
        "{} × {}: {}",
        layout.count, layout.gpu, layout.reason
    ));
    Ok(Chosen {
        gpus: layout.count,
        vendor: kind.vendor,
        model: Some(kind.model.name.to_owned()),
        tensor: layout.tensor_parallel,
        pipeline: layout.pipeline_parallel,
        cache_tokens: layout.sequences.checked_mul(args.max_context),
        told,
    })
}

/// The GPUs that will do, those with the least memory first.
fn candidates(args: &Args, engine: Engine, fleet: &Fleet) -> anyhow::Result<Vec<Kind>> {
    let mut kinds = fleet.kinds.clone();
    if let Some(wanted) = &args.gpu {
        let models = fleet.known.named(wanted);
        kinds.retain(|kind| models.contains(&kind.model));
        if kinds.is_empty() {
            let there: Vec<&str> = fleet.kinds.iter().map(|kind| kind.model.name).collect();
            let there = listed(&there);
            if models.is_empty() {
                bail!("{wanted} is no GPU that is known; those that could serve are {there}");
            }
            bail!("no node that could serve has a GPU called {wanted}; there are {there}");
        }
    }
    // A real engine goes where it runs, as long as there is such a place.
    if engine == Engine::Vllm && kinds.iter().any(|kind| kind.nodes.have_real()) {
        kinds.retain(|kind| kind.nodes.have_real());
    }
    kinds.sort_by_key(|kind| (kind.model.memory_gib, kind.model.name));
    Ok(kinds)
}

fn listed(names: &[&str]) -> String {
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

fn plain(args: &Args, kind: Option<&Kind>, told: Vec<String>) -> Chosen {
    let gpus = match (args.gpus, kind) {
        (Some(gpus), _) => gpus,
        (None, Some(_)) => 1,
        (None, None) => 0,
    };
    Chosen {
        gpus,
        vendor: kind.map_or(Vendor::Nvidia, |kind| kind.vendor),
        // Only what was asked for narrows the choice: nothing is known about the model.
        model: kind
            .filter(|_| args.gpu.is_some())
            .map(|kind| kind.model.name.to_owned()),
        tensor: gpus.max(1),
        pipeline: 1,
        cache_tokens: None,
        told,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Verb {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_gpu_that_is_unknown_or_that_no_node_has_is_refused_whatever_serves() {
        for engine in [Engine::Simulated, Engine::Vllm] {
            for (gpu, why) in [
                ("H2000", "H2000 is no GPU that is known"),
                ("H100", "no node that could serve has a GPU called H100"),
            ] {
                let verb = Verb::parse_from(["serve", "org/x", "--gpu", gpu]);
                let refused = choose(&verb.args, engine, &Fleet::default()).unwrap_err();
                assert!(refused.to_string().starts_with(why), "{refused}");
            }
        }
    }
}
