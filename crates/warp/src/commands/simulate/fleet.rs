//! `warp simulate fleet`: a file with machines and requests; prints where each request would go and
//! why the rest would not fit. A request that does not fit is the exit code too.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, anyhow, bail};
use warp_core::gpu;
use warp_core::schedule::{Policy, PriceWeight};
use warp_core::simulate::fleet::{Outcome, Scenario};

use warp_local::node::complaint::complaint;
use warp_local::node::spelling::nearest;

use super::Format;
use crate::output::{self, Table};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Machines and requests, as YAML or JSON (see docs/concepts/placement.md); the exit code is 1 when
    /// a request does not fit
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Further files with requests, decided after those of the first
    #[arg(long, value_name = "FILE")]
    requests: Vec<PathBuf>,
    /// Policies, compared side by side
    #[arg(
        long = "policy",
        value_delimiter = ',',
        default_value = "warp",
        value_name = "P"
    )]
    policies: Vec<Policy>,
    /// GPUs of room for later work that a price of one dollar per GPU-hour counts, for every GPU asked for (`warp` only)
    #[arg(long, default_value_t = PriceWeight::IGNORED, value_name = "WEIGHT")]
    price_weight: PriceWeight,
    /// Decides between equally good nodes
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// How to print the result
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut scenario = read(&args.file)?;
    for file in &args.requests {
        let more = read(file)?;
        scenario.nodes.extend(more.nodes);
        scenario.requests.extend(more.requests);
    }
    if scenario.nodes.is_empty() {
        bail!(
            "no nodes in {}: there is nothing to place on",
            args.file.display()
        );
    }
    if scenario.requests.is_empty() {
        bail!(
            "no requests in {}: there is nothing to place",
            args.file.display()
        );
    }
    for doubt in doubts(&scenario) {
        output::note(&format!("warning: {doubt}"));
    }
    let mut outcomes = Vec::new();
    for &policy in &args.policies {
        let outcome = scenario.run(policy.weighing(args.price_weight), args.seed);
        outcomes
            .push(outcome.with_context(|| format!("failed to simulate {}", args.file.display()))?);
    }
    if args.output == Format::Json {
        let text = match &outcomes[..] {
            [one] => serde_json::to_string(one)?,
            many => serde_json::to_string(many)?,
        };
        output::result(&text);
    } else {
        output::result(&summary(&outcomes));
        if let [outcome] = &outcomes[..] {
            output::result(&details(outcome));
        }
    }
    let refused = outcomes.iter().map(|outcome| outcome.refused.len()).max();
    match refused.unwrap_or(0) {
        0 => Ok(ExitCode::SUCCESS),
        count => {
            let requests: u32 = scenario.requests.iter().map(|request| request.count).sum();
            let under = match &outcomes[..] {
                [_] => "",
                _ => " under at least one policy",
            };
            output::note(&format!("{count} of {requests} requests do not fit{under}"));
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Names of GPU models nobody knows: nothing is wrong with them here, but they are usually misspelt.
fn doubts(scenario: &Scenario) -> Vec<String> {
    let offered: Vec<&str> = scenario
        .nodes
        .iter()
        .flat_map(|node| &node.gpus)
        .map(|gpus| &*gpus.model)
        .collect();
    let known = || gpu::MODELS.iter().map(|model| model.name);
    let hint = |name: &str, among: Vec<&'static str>| {
        nearest(name, among).map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"))
    };
    let mut doubts = Vec::new();
    for node in &scenario.nodes {
        for gpus in node.gpus.iter().filter(|gpus| !gpus.model.is_empty()) {
            if gpu::named(&gpus.model).is_empty() {
                doubts.push(format!(
                    "node {}: the GPU catalogue knows no model \"{}\"{}",
                    node.name,
                    gpus.model,
                    hint(&gpus.model, known().collect())
                ));
            }
        }
    }
    for request in &scenario.requests {
        let asked = request.gpu.iter().flat_map(|gpu| &gpu.models);
        for model in asked.filter(|model| !offered.contains(&&***model)) {
            let near = nearest(model, offered.iter().copied())
                .map_or_else(String::new, |near| format!("; did you mean \"{near}\"?"));
            doubts.push(format!(
                "request {}: no node of the file has the GPU model \"{model}\"{near}",
                request.name
            ));
        }
    }
    doubts.dedup();
    doubts
}

fn read(file: &PathBuf) -> anyhow::Result<Scenario> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("failed to read {}", file.display()))?;
    if text
        .lines()
        .all(|line| line.trim().is_empty() || line.trim_start().starts_with('#'))
    {
        bail!("{} is empty", file.display());
    }
    serde_saphyr::from_str(&text).map_err(|error| {
        let (line, what) = complaint(&error, &text);
        let place = line.map_or_else(String::new, |line| format!(", line {line}"));
        anyhow!("failed to read {}{place}: {what}", file.display())
    })
}

fn summary(outcomes: &[Outcome]) -> String {
    let mut table = Table::new(["POLICY", "PLACED", "REFUSED", "GPUS USED", "COST/H"]);
    for outcome in outcomes {
        table.row(vec![
            outcome.policy.to_string(),
            outcome.placed.len().to_string(),
            outcome.refused.len().to_string(),
            format!("{:.1}%", outcome.allocated),
            format!("${:.2}", outcome.cost_per_hour),
        ]);
    }
    table.to_string()
}

fn details(outcome: &Outcome) -> String {
    let mut text = String::new();
    if !outcome.placed.is_empty() {
        let mut table = Table::new(["REQUEST", "NODE", "CARDS"]);
        for placed in &outcome.placed {
            let cards: Vec<_> = placed.cards.iter().map(u16::to_string).collect();
            table.row(vec![
                placed.request.to_string(),
                placed.node.to_string(),
                cards.join(","),
            ]);
        }
        let _ = write!(text, "\n{table}");
    }
    for refused in &outcome.refused {
        let _ = writeln!(
            text,
            "\n{} does not fit: {}.",
            refused.request, refused.reason
        );
        for change in &refused.changes {
            let _ = writeln!(text, "  To make it fit now: {change}.");
        }
    }
    text
}
