//! `warp model plan`: layouts of a model on the GPUs of the catalogue, as a table or as JSON, and what a cluster could do
//! with them now (`live.rs`). The arithmetic is `warp_core::size`.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use serde_json::json;
use warp_core::gpu;
use warp_core::size::{CacheType, Device, Layout, Load, Memory, layouts};

use super::description::{self, Description};
use super::live::{self, Answer};
use crate::cluster::Target;
use crate::commands::simulate::Format;
use crate::output::{self, Table};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// A folder with config.json and weights, or a model of the hub: `ORG/NAME[@REVISION]` ($HF_ENDPOINT, $HF_TOKEN)
    #[arg(value_name = "MODEL")]
    model: String,
    /// Only these GPUs, each with all its layouts [default: every GPU of the catalogue, the smallest layout of each]
    #[arg(long = "gpu", value_name = "NAME", value_delimiter = ',')]
    gpus: Vec<String>,
    /// Tokens of one sequence, prompt and answer: 8192, 32k, 1m
    #[arg(long, default_value = "8k", value_name = "TOKENS", value_parser = tokens)]
    context: u64,
    /// Sequences of that length at once
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: u32,
    /// How the attention cache is stored
    #[arg(long, value_enum, default_value = "auto", value_name = "TYPE")]
    kv_cache_dtype: Cache,
    /// Share of a GPU's memory the engine may take
    #[arg(long, default_value = "0.92", value_name = "SHARE", value_parser = permille)]
    gpu_memory_utilization: u32,
    /// GPUs of one machine [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    gpus_per_node: Option<u32>,
    /// Machines one copy of the model may span [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    nodes: Option<u32>,
    /// Also what a cluster could do now: where it would start, what is in the way, what renting would cost. Without this,
    /// and without --gpu, --gpus-per-node and --nodes, a cluster that answers is asked too
    #[arg(long, conflicts_with = "catalogue")]
    live: bool,
    /// Ask no cluster
    #[arg(long)]
    catalogue: bool,
    /// Cluster to ask [default: $KUBECONFIG, a running `warp up`, ~/.kube/config]
    #[arg(long, value_name = "FILE", conflicts_with = "catalogue")]
    kubeconfig: Option<PathBuf>,
    /// Data directory of the `warp up` to ask, whatever $KUBECONFIG says
    #[arg(long, value_name = "DIR", conflicts_with_all = ["kubeconfig", "catalogue"])]
    data: Option<PathBuf>,
    /// Namespace it would run in [default: the context's]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// How to print the result
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

impl Args {
    /// Which cluster is asked, and whether it must answer; none for a question about the catalogue alone.
    fn cluster(&self) -> Option<(Target, bool)> {
        let must = self.live || self.kubeconfig.is_some() || self.data.is_some();
        let of_catalogue = self.catalogue
            || !self.gpus.is_empty()
            || self.gpus_per_node.is_some()
            || self.nodes.is_some();
        let target = Target {
            kubeconfig: self.kubeconfig.clone(),
            data: self.data.clone(),
            context: None,
            namespace: self.namespace.clone(),
        };
        (must || !of_catalogue).then_some((target, must))
    }
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Cache {
    Auto,
    Fp8,
}

/// 8192, 32k (32 × 1024), 1m.
pub(crate) fn tokens(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.to_lowercase() {
        lower if lower.ends_with('k') => (lower.trim_end_matches('k').to_owned(), 1 << 10),
        lower if lower.ends_with('m') => (lower.trim_end_matches('m').to_owned(), 1 << 20),
        lower => (lower, 1),
    };
    let count = digits
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(unit));
    count
        .filter(|count| (1..=1 << 30).contains(count))
        .ok_or_else(|| format!("'{text}' is not a number of tokens such as 8192, 32k or 1m"))
}

fn permille(text: &str) -> Result<u32, String> {
    let share = text
        .parse::<f64>()
        .ok()
        .filter(|share| *share > 0.0 && *share <= 1.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and 1000"
    )]
    share
        .map(|share| (share * 1000.0).round() as u32)
        .ok_or_else(|| format!("'{text}' is not a share such as 0.92"))
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let devices = devices(&args.gpus)?;
    // First who is asked: a cluster that must answer and does not makes the rest useless.
    let fleet = match args.cluster() {
        Some((target, must)) => live::read(&target, must)?,
        None => None,
    };
    let found = description::read(&args.model)?;
    let allowed = found.model.architecture.max_context;
    if let Some(longest) = allowed.filter(|longest| args.context > *longest) {
        output::note(&format!(
            "note: {} was trained for contexts of {longest} tokens; --context {} asks for more",
            found.source, args.context
        ));
    }
    let cache = match args.kv_cache_dtype {
        Cache::Auto => CacheType::Auto,
        Cache::Fp8 => CacheType::Fp8,
    };
    let load = Load {
        context: args.context,
        sequences: u64::from(args.concurrency),
        cache,
        utilization_permille: args.gpu_memory_utilization,
    };
    let by_device: Vec<Vec<Layout>> = devices
        .iter()
        .map(|device| {
            let (per_node, nodes) = (args.gpus_per_node.unwrap_or(8), args.nodes.unwrap_or(4));
            layouts(&found.model, load, device, per_node, nodes)
        })
        .collect();
    let shown: Vec<&Layout> = if args.gpus.is_empty() {
        by_device
            .iter()
            .filter_map(|layouts| smallest(layouts))
            .collect()
    } else {
        by_device.iter().flatten().collect()
    };
    let best = best(&shown);
    let wanted = |gpu: &str| args.gpus.is_empty() || devices.iter().any(|one| one.name == gpu);
    let answer = fleet.map(|fleet| fleet.answer(&found.model, load, wanted));
    if args.output == Format::Json {
        output::result(&as_json(&found, load, &shown, best, answer.as_ref())?);
    } else {
        output::result(&as_text(&found, load, &shown, best));
        if let Some(answer) = &answer {
            output::result(&answer.as_text());
        }
    }
    let possible = match &answer {
        // Who asks for a cluster wants to know about that one.
        Some(answer) if args.live => answer.is_possible(),
        _ => best.is_some(),
    };
    Ok(if possible {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn devices(names: &[String]) -> anyhow::Result<Vec<Device>> {
    if names.is_empty() {
        return Ok(gpu::MODELS.iter().map(Device::of).collect());
    }
    let mut devices = Vec::new();
    for name in names {
        let models = gpu::named(name);
        if models.is_empty() {
            let known: Vec<&str> = gpu::MODELS.iter().map(|model| model.name).collect();
            bail!("no GPU is called '{name}'; known are {}", known.join(", "));
        }
        devices.extend(models.into_iter().map(Device::of));
    }
    Ok(devices)
}

/// The smallest layout that fits, or the largest that does not.
fn smallest(layouts: &[Layout]) -> Option<&Layout> {
    layouts.iter().find(|layout| layout.fits).or(layouts.last())
}

/// What fits with the least memory bought: without prices, the cheapest guess.
fn best<'a>(layouts: &[&'a Layout]) -> Option<&'a Layout> {
    let bought = |layout: &&Layout| {
        (
            u64::from(layout.count) * layout.memory.usable_bytes,
            layout.count,
        )
    };
    layouts
        .iter()
        .copied()
        .filter(|layout| layout.fits)
        .min_by_key(bought)
}

fn as_json(
    found: &Description,
    load: Load,
    layouts: &[&Layout],
    best: Option<&Layout>,
    live: Option<&Answer>,
) -> anyhow::Result<String> {
    let architecture = &found.model.architecture;
    let chosen = best.map(|best| json!({"gpu": best.gpu, "count": best.count}));
    let mut value = json!({
        "model": found.source,
        "family": architecture.family,
        "quantization": architecture.quantization,
        "weightsBytes": found.model.weights_bytes,
        "kvBytesPerToken": architecture.cache_bytes_per_token(load.cache),
        "context": load.context,
        "concurrency": load.sequences,
        "chosen": chosen,
        "layouts": layouts,
    });
    if let Some(live) = live {
        value["live"] = live.as_json();
    }
    Ok(serde_json::to_string_pretty(&value)?)
}

fn as_text(found: &Description, load: Load, layouts: &[&Layout], best: Option<&Layout>) -> String {
    let architecture = &found.model.architecture;
    let mut text = format!(
        "{}: {}, weights {} GiB{}, {} bytes of cache per token, {} sequences of {} tokens\n\n",
        found.source,
        architecture.family,
        gib(found.model.weights_bytes),
        architecture
            .quantization
            .as_ref()
            .map(|method| format!(" ({method})"))
            .unwrap_or_default(),
        architecture.cache_bytes_per_token(load.cache),
        load.sequences,
        load.context,
    );
    let mut table = Table::new([
        "",
        "GPU",
        "COUNT",
        "TP",
        "PP",
        "NODES",
        "GIB PER GPU",
        "MEMORY",
        "SEQUENCES",
    ]);
    for layout in layouts.iter().filter(|layout| layout.fits) {
        let chosen = best.is_some_and(|best| best == *layout);
        table.row(vec![
            if chosen { "*" } else { "" }.to_owned(),
            layout.gpu.clone(),
            layout.count.to_string(),
            layout.tensor_parallel.to_string(),
            layout.pipeline_parallel.to_string(),
            layout.nodes.to_string(),
            format!(
                "{} of {}",
                gib(layout.memory.needed_bytes()),
                gib(layout.memory.usable_bytes)
            ),
            bar(&layout.memory),
            layout.sequences.to_string(),
        ]);
    }
    if !table.is_empty() {
        text += &table.to_string();
        text += "\nMEMORY: # weights, = cache, + runtime, . free. * takes the least memory of all that fit.\n";
    }
    let others: Vec<&&Layout> = layouts.iter().filter(|layout| !layout.fits).collect();
    if !others.is_empty() {
        text += "\ndo not fit:\n";
    }
    for layout in others {
        let advice = layout
            .advice
            .as_ref()
            .map(|advice| format!("; {advice}"))
            .unwrap_or_default();
        let split = format!(
            "{} × {} (TP {}, PP {})",
            layout.count, layout.gpu, layout.tensor_parallel, layout.pipeline_parallel
        );
        let _ = writeln!(text, "  {split}: {}{advice}", layout.reason);
    }
    text
}

const BAR_CELLS: u16 = 24;

fn bar(memory: &Memory) -> String {
    let cells = |bytes: u64| {
        let exact =
            u128::from(bytes) * u128::from(BAR_CELLS) / u128::from(memory.usable_bytes.max(1));
        usize::try_from(exact).unwrap_or_default()
    };
    let parts = [
        ("#", memory.weights_bytes),
        ("=", memory.cache_bytes),
        ("+", memory.runtime_bytes),
    ];
    let filled: String = parts
        .iter()
        .map(|(mark, bytes)| mark.repeat(cells(*bytes)))
        .collect();
    let free = usize::from(BAR_CELLS).saturating_sub(filled.len());
    format!("[{filled}{}]", ".".repeat(free))
}

fn gib(bytes: u64) -> String {
    let tenths = u128::from(bytes) * 10 / (1 << 30);
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_read_as_people_write_them() {
        assert_eq!(tokens("8192"), Ok(8192));
        assert_eq!(tokens("32K"), Ok(32_768));
        assert_eq!(tokens("1m"), Ok(1_048_576));
        for bad in ["", "0", "k", "-1", "1.5k", "9999999999m", "32kb"] {
            assert!(tokens(bad).is_err(), "{bad}");
        }
    }
}
