//! `warp simulate openb`: reads the trace, runs policies over seeds, prints allocation and
//! fragmentation by arrived load.

mod churn;
mod timings;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use serde::Serialize;
use warp_core::fleet::WHOLE;
use warp_core::schedule::{Policy, PriceWeight};
use warp_core::simulate::openb::{self, Curve, Machine, Pod, Run, Settings, Trace};

use super::{Format, csv};
use crate::output::{self, Table, plot};

#[derive(clap::Args, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "command line flags")]
pub(crate) struct Args {
    /// Node list (columns sn, cpu_milli, memory_mib, gpu, model, optionally price_per_gpu_hour)
    #[arg(long, value_name = "FILE")]
    nodes: PathBuf,
    /// Pod list (columns name, cpu_milli, memory_mib, num_gpu, gpu_milli, optionally gpu_spec)
    #[arg(long, value_name = "FILE")]
    pods: PathBuf,
    /// Policies, compared side by side
    #[arg(
        long = "policy",
        value_delimiter = ',',
        default_value = "warp",
        value_name = "P"
    )]
    policies: Vec<Policy>,
    /// Seeds: one, a list, or a range such as 42-51
    #[arg(long, default_value = "42", value_parser = seeds, value_name = "SEEDS")]
    seeds: Seeds,
    /// Requests to offer, as a multiple of the fleet's GPUs
    #[arg(long, default_value_t = 1.3, value_name = "FACTOR")]
    inflate: f64,
    /// Let policies learn the mix of requests from arrivals instead of being told beforehand
    #[arg(long)]
    no_prior: bool,
    /// GPUs of room for later work that a price of one dollar per GPU-hour counts, for every GPU asked for (`warp` only)
    #[arg(long, default_value_t = PriceWeight::IGNORED, value_name = "WEIGHT")]
    price_weight: PriceWeight,
    /// Stop at the first bad row of an input file
    #[arg(long)]
    strict: bool,
    /// How to print the result
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
    /// Print what any policy could place at most (a linear-programming bound), and stop
    #[arg(long, conflicts_with_all = ["churn", "timings"])]
    bound: bool,
    /// Let requests leave again: offered load as a multiple of the fleet's GPUs
    #[arg(long, value_name = "LOAD", conflicts_with = "timings")]
    churn: Option<f64>,
    /// With --churn: a pod list whose requests take over half-way
    #[arg(long, value_name = "FILE", requires = "churn")]
    shift: Option<PathBuf>,
    /// With --churn: share of the requests for whole GPUs that come as gangs of 2, 4 or 8, all or none
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, requires = "churn")]
    gangs: f64,
    /// With --churn: policies know only what the fleet holds, as in the operator
    #[arg(long, requires = "churn", conflicts_with = "no_prior")]
    live: bool,
    /// Measure decisions on the trace's fleet repeated to these numbers of nodes
    #[arg(long, value_delimiter = ',', value_name = "NODES")]
    timings: Vec<usize>,
    /// Also draw the allocation and fragmentation curves
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

#[derive(Clone, Debug)]
struct Seeds(Vec<u64>);

fn seeds(text: &str) -> Result<Seeds, String> {
    let number = |text: &str| {
        text.trim()
            .parse::<u64>()
            .map_err(|_| format!("{text:?} is no seed; use 42, 42,43 or 42-51"))
    };
    let mut seeds = Vec::new();
    for part in text.split(',') {
        match part.split_once('-') {
            None => seeds.push(number(part)?),
            Some((from, to)) => {
                let (from, to) = (number(from)?, number(to)?);
                if from > to || to - from >= 10_000 {
                    return Err(format!("{part:?} is no range of at most 10000 seeds"));
                }
                seeds.extend(from..=to);
            }
        }
    }
    Ok(Seeds(seeds))
}

/// Loads at which results are reported, in percent of the fleet's GPUs.
const LOADS: [usize; 5] = [90, 95, 100, 110, 130];

#[derive(Serialize)]
struct Report {
    policy: &'static str,
    seeds: Vec<u64>,
    runs: Vec<RunReport>,
    mean: Mean,
    seconds: f64,
    decisions: u64,
    /// US dollars per placed GPU-hour, where the node list has prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    price: Option<f64>,
}

type ByLoad = BTreeMap<Load, f64>;

/// A load in percent: ordered as a number, printed as text, as JSON keys must be.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Load(usize);

impl Serialize for Load {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

#[derive(Serialize)]
struct RunReport {
    seed: u64,
    alloc: ByLoad,
    frag: ByLoad,
}

#[derive(Serialize)]
struct Mean {
    alloc: ByLoad,
    /// For the table; the machine form has it per run.
    #[serde(skip)]
    frag: ByLoad,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        args.inflate.is_finite() && (0.0..=100.0).contains(&args.inflate),
        "--inflate {} is no factor between 0 and 100",
        args.inflate
    );
    let trace = Trace {
        machines: machines(&args.nodes, args.strict)?,
        pods: pods(&args.pods, args.strict)?,
    };
    if args.bound {
        return bound(&trace, args.output);
    }
    if let Some(load) = args.churn {
        return churn::run(&trace, load, args);
    }
    if !args.timings.is_empty() {
        return timings::run(&trace, args);
    }
    let mut reports = Vec::new();
    let mut charts = (Vec::new(), Vec::new());
    for &policy in &args.policies {
        let (report, runs) = simulate(&trace, policy, args);
        charts
            .0
            .push(series(policy, runs.iter().map(|run| &run.allocated)));
        charts
            .1
            .push(series(policy, runs.iter().map(|run| &run.fragmented)));
        reports.push(report);
    }
    if let Some(file) = &args.svg {
        let chart = |title: &str, y: &str, series| plot::Chart {
            title: title.into(),
            x: "arrived load, % of all GPUs".into(),
            y: y.into(),
            series,
        };
        let svg = plot::svg(&[
            chart("Allocation", "allocated, % of all GPUs", charts.0),
            chart("Fragmentation", "fragmented, % of all GPUs", charts.1),
        ]);
        std::fs::write(file, svg).with_context(|| format!("failed to write {}", file.display()))?;
    }
    print(&reports, args.output)?;
    Ok(ExitCode::SUCCESS)
}

/// The bound at full load with every request free to be refused, and at 130 % when what arrived up
/// to 95 % was placed, or as much below that as could have been.
fn bound(trace: &Trace, format: Format) -> anyhow::Result<ExitCode> {
    use openb::bound::{Load as Arrived, bound};
    let free = bound(
        trace,
        Arrived {
            arrived: 1.0,
            declared: 0.0,
        },
    );
    let mut percent = 95_u32;
    let placed = loop {
        let declared = f64::from(percent) / 100.0;
        let placed = bound(
            trace,
            Arrived {
                arrived: 1.3,
                declared,
            },
        );
        // Less than was declared means that not all of it can be placed.
        if placed >= f64::from(percent) || percent == 0 {
            break placed;
        }
        percent -= 5;
    };
    if format == Format::Json {
        output::result(&serde_json::to_string(&serde_json::json!({
            "bound": {"alloc": {"100": free, "130": placed}, "placed_up_to": percent},
        }))?);
    } else {
        let mut table = Table::new(["BOUND", "@100", "@130", "ALL PLACED UP TO"]);
        table.row(vec![
            "any policy".to_owned(),
            format!("{free:.2}"),
            format!("{placed:.2}"),
            format!("{percent}%"),
        ]);
        output::result(&table.to_string());
    }
    Ok(ExitCode::SUCCESS)
}

fn simulate(trace: &Trace, policy: Policy, args: &Args) -> (Report, Vec<Run>) {
    let started = Instant::now();
    let bar = output::progress(args.seeds.0.len() as u64 * 1000);
    let mut runs = Vec::new();
    for (at, &seed) in args.seeds.0.iter().enumerate() {
        bar.set_message(format!("{policy} seed {seed}"));
        let settings = Settings {
            policy: policy.weighing(args.price_weight),
            seed,
            inflate: args.inflate,
            prior: !args.no_prior,
        };
        let run = openb::run(trace, &settings, &mut |done, all| {
            bar.set_position((at * 1000 + done * 1000 / all.max(1)) as u64);
        });
        runs.push(run);
    }
    bar.finish_and_clear();
    let report = Report {
        policy: policy.name(),
        seeds: args.seeds.0.clone(),
        mean: Mean {
            alloc: mean(runs.iter().map(|run| &run.allocated)),
            frag: mean(runs.iter().map(|run| &run.fragmented)),
        },
        decisions: runs.iter().map(|run| run.decisions).sum(),
        seconds: started.elapsed().as_secs_f64(),
        price: price(trace, &runs),
        runs: runs
            .iter()
            .map(|run| RunReport {
                seed: run.seed,
                alloc: at_loads(&run.allocated),
                frag: at_loads(&run.fragmented),
            })
            .collect(),
    };
    (report, runs)
}

fn price(trace: &Trace, runs: &[Run]) -> Option<f64> {
    let mut machines = trace.machines.iter();
    let priced = machines.any(|machine| machine.price_per_gpu_hour_micros.is_some());
    let placed: i64 = runs.iter().map(|run| run.placed_milli).sum();
    let cost: f64 = runs.iter().map(|run| run.cost_per_hour).sum();
    (priced && placed > 0).then(|| cost / (placed as f64 / f64::from(WHOLE)))
}

fn at_loads(curve: &Curve) -> ByLoad {
    LOADS
        .iter()
        .filter_map(|&load| Some((Load(load), curve.at(load)?)))
        .collect()
}

fn mean<'a>(curves: impl Iterator<Item = &'a Curve>) -> ByLoad {
    let curves: Vec<&Curve> = curves.collect();
    let at = |&load: &usize| {
        let values: Vec<f64> = curves.iter().filter_map(|curve| curve.at(load)).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (!values.is_empty()).then_some((Load(load), mean))
    };
    LOADS.iter().filter_map(at).collect()
}

/// The mean curve over all runs.
fn series<'a>(policy: Policy, curves: impl Iterator<Item = &'a Curve>) -> plot::Series {
    let mut sums = BTreeMap::<usize, (f64, f64)>::new();
    for (load, value) in curves.flat_map(Curve::points) {
        let sum = sums.entry(load).or_default();
        *sum = (sum.0 + value, sum.1 + 1.0);
    }
    let points = sums
        .into_iter()
        .map(|(load, (sum, count))| (load as f64, sum / count))
        .collect();
    plot::Series {
        name: policy.name().into(),
        points,
    }
}

fn print(reports: &[Report], format: Format) -> anyhow::Result<()> {
    if format == Format::Json {
        let text = match reports {
            [one] => serde_json::to_string(one)?,
            many => serde_json::to_string(many)?,
        };
        output::result(&text);
        return Ok(());
    }
    let header = [
        "POLICY",
        "@90",
        "@95",
        "@100",
        "@110",
        "@130",
        "FRAG@100",
        "SECONDS",
        "DECISIONS",
    ];
    let priced = reports.iter().any(|report| report.price.is_some());
    let mut header = header.to_vec();
    header.extend(priced.then_some("$/GPU-H"));
    let mut table = Table::new(header);
    for report in reports {
        let percent = |by: &ByLoad, load: usize| {
            by.get(&Load(load))
                .map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
        };
        let mut cells = vec![report.policy.to_owned()];
        cells.extend(LOADS.iter().map(|&load| percent(&report.mean.alloc, load)));
        cells.push(percent(&report.mean.frag, 100));
        cells.push(format!("{:.2}", report.seconds));
        cells.push(report.decisions.to_string());
        cells.extend(report.price.map(|price| format!("{price:.3}")));
        table.row(cells);
    }
    output::result(&table.to_string());
    Ok(())
}

fn machines(file: &Path, strict: bool) -> anyhow::Result<Vec<Machine>> {
    let required = ["sn", "cpu_milli", "memory_mib", "gpu", "model"];
    let mut names = std::collections::BTreeSet::new();
    csv::read(file, &required, strict, |row| {
        let name: Arc<str> = Arc::from(row.text("sn").unwrap_or_default());
        if name.is_empty() || !names.insert(Arc::clone(&name)) {
            return Err(format!("the name {name:?} is empty or was there before"));
        }
        let gpus = row.number("gpu")?;
        if gpus > 1024 {
            return Err(format!("gpu is {gpus}, expected at most 1024"));
        }
        Ok(Machine {
            name,
            cpu_milli: amount(row, "cpu_milli")?,
            memory_mib: amount(row, "memory_mib")?,
            gpus,
            model: Arc::from(row.text("model").unwrap_or_default()),
            price_per_gpu_hour_micros: dollars(row, "price_per_gpu_hour")?,
        })
    })
}

fn pods(file: &Path, strict: bool) -> anyhow::Result<Vec<Pod>> {
    let required = ["name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli"];
    csv::read(file, &required, strict, |row| {
        let (gpus, gpu_milli) = (
            row.number("num_gpu")?,
            row.number::<u32>("gpu_milli")?.min(WHOLE),
        );
        if gpus > 1 && gpu_milli < WHOLE {
            return Err(format!(
                "asks for {gpus} fractions of {gpu_milli}/1000: a fraction is of one GPU"
            ));
        }
        if gpus > 0 && gpu_milli == 0 {
            return Err(format!("asks for {gpus} GPUs of 0/1000 each"));
        }
        let models = row.text("gpu_spec").unwrap_or_default().split('|');
        Ok(Pod {
            name: Arc::from(row.text("name").unwrap_or_default()),
            cpu_milli: amount(row, "cpu_milli")?,
            memory_mib: amount(row, "memory_mib")?,
            gpus,
            gpu_milli,
            models: models
                .filter(|model| !model.is_empty())
                .map(Arc::from)
                .collect(),
        })
    })
}

/// A price in millionths of a dollar; absent where the field is empty or there is no such column.
fn dollars(row: &csv::Row<'_>, column: &str) -> Result<Option<u64>, String> {
    if row.text(column).is_none_or(|text| text.trim().is_empty()) {
        return Ok(None);
    }
    let price = row.number::<f64>(column)?;
    if !(0.0..1e6).contains(&price) {
        return Err(format!(
            "{column} is {price}, expected dollars per GPU-hour"
        ));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked above"
    )]
    Ok(Some((price * 1e6).round() as u64))
}

/// A non-negative amount, small enough that sums over a fleet stay exact.
fn amount(row: &csv::Row<'_>, column: &str) -> Result<i64, String> {
    let value = row.number::<i64>(column)?;
    if (0..=1 << 40).contains(&value) {
        Ok(value)
    } else {
        Err(format!("{column} is {value}"))
    }
}
