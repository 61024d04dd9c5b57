//! What renting costs and saves, replayed: the arrivals of a real cluster at 120 % of an owned fleet over 30 days, with
//! the price lists of real clouds, under three rules. Then the purchases of small cases against an exact solver.
//!
//! `cargo run --release -p warp-cloud --example replay -- JOBS.csv PRICES_FOLDER`; `bench/rent/run` names both.

#![allow(clippy::print_stdout, reason = "figures are what it is run for")]

use std::collections::{BTreeMap, BinaryHeap};
use std::path::Path;

use warp_cloud::{Decimal, model};
use warp_core::purchase::{Kind, cheapest, price};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const DAY: i64 = 86_400;
const DAYS: i64 = 30;
/// Arrivals, as hundredths of what the owned fleet can do.
const LOAD: i64 = 120;
/// GPUs of an owned node, and the most a job may ask for: machines are not rented in groups.
const NODE: u32 = 8;
const GPU: &str = "A100-80GB";
/// As `spec.rent` has them where nothing is said.
const AFTER: i64 = 600;
const IDLE: i64 = 600;
/// From the purchase until a node is ready.
const JOINS: i64 = 180;
/// Prices are in ten-thousandths of a dollar an hour.
const UNIT: f64 = 10_000.0;
/// Those that wait are looked at together.
const TOGETHER: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Job {
    at: i64,
    seconds: i64,
    gpus: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Never,
    /// Each that has waited long enough gets a machine of its own, which goes when it ends.
    OneEach,
    /// Those that have waited long enough buy together; what a machine has left is for others, and it goes when idle.
    Together,
}

/// Days since 1970 of a date, by the calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let shifted = if month <= 2 { year - 1 } else { year };
    let era = shifted.div_euclid(400);
    let of_era = shifted - era * 400;
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn seconds(text: &str) -> Option<i64> {
    let (date, time) = text.split_once(' ')?;
    let mut date = date.split('-').map(|part| part.parse::<i64>().ok());
    let mut time = time.split(':').map(|part| part.parse::<i64>().ok());
    let day = days(date.next()??, date.next()??, date.next()??);
    Some(day * DAY + time.next()?? * 3600 + time.next()?? * 60 + time.next()??)
}

/// The jobs of the busiest 30 days that fit one machine, from second 0 on.
fn jobs(path: &Path) -> Outcome<Vec<Job>> {
    let text = std::fs::read_to_string(path)?;
    let mut all: Vec<Job> = text
        .lines()
        .skip(1)
        .filter_map(|line| {
            let mut parts = line.split(',');
            let at = seconds(parts.next()?)?;
            let seconds: f64 = parts.next()?.parse().ok()?;
            let gpus: u32 = parts.next()?.parse().ok()?;
            #[expect(clippy::cast_possible_truncation, reason = "seconds of a job")]
            let seconds = seconds as i64;
            (seconds > 0 && (1..=NODE).contains(&gpus)).then_some(Job { at, seconds, gpus })
        })
        .collect();
    all.sort_by_key(|job| job.at);
    let work = |from: i64| -> i64 {
        let inside = all
            .iter()
            .filter(|job| (from..from + DAYS * DAY).contains(&job.at));
        inside.map(|job| job.seconds * i64::from(job.gpus)).sum()
    };
    let first = all.first().ok_or("no jobs")?.at / DAY;
    let last = all.last().ok_or("no jobs")?.at / DAY - DAYS;
    let from = (first..=last.max(first))
        .max_by_key(|day| work(day * DAY))
        .unwrap_or(first)
        * DAY;
    let inside = all
        .into_iter()
        .filter(|job| (from..from + DAYS * DAY).contains(&job.at));
    Ok(inside
        .map(|job| Job {
            at: job.at - from,
            ..job
        })
        .collect())
}

/// The fields of a line of a price list, which may be quoted.
fn fields(line: &str) -> Vec<String> {
    let (mut all, mut quoted) = (vec![String::new()], false);
    for letter in line.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(String::new()),
            letter => all.last_mut().expect("a field").push(letter),
        }
    }
    all
}

/// The cheapest machine of each size on demand, over the price lists of clouds with virtual machines, with whose it is.
fn market(folder: &Path) -> Outcome<Vec<(Kind, String)>> {
    let mut best: BTreeMap<u32, (u64, String)> = BTreeMap::new();
    for cloud in ["aws", "azure", "lambda", "paperspace"] {
        let text = std::fs::read_to_string(folder.join(format!("{cloud}-prices.csv")))?;
        let mut lines = text.lines();
        let head = fields(lines.next().unwrap_or_default());
        let column = |name: &str| head.iter().position(|field| field == name);
        let (Some(gpu), Some(count), Some(cost)) = (
            column("AcceleratorName"),
            column("AcceleratorCount"),
            column("Price"),
        ) else {
            continue;
        };
        for line in lines {
            let row = fields(line);
            let text = |at: usize| row.get(at).map(String::as_str).unwrap_or_default();
            if model(text(gpu), None) != Some(GPU) {
                continue;
            }
            let (Ok(gpus), Ok(dollars)) =
                (text(count).parse::<f64>(), text(cost).parse::<Decimal>())
            else {
                continue;
            };
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a count"
            )]
            let gpus = gpus as u32;
            let Ok(ten_thousandths) = u64::try_from((dollars * Decimal::from(10_000)).round())
            else {
                continue;
            };
            if gpus == 0 || ten_thousandths == 0 {
                continue;
            }
            let known = best.entry(gpus).or_insert((u64::MAX, String::new()));
            if ten_thousandths < known.0 {
                *known = (ten_thousandths, cloud.to_owned());
            }
        }
    }
    let kinds = best
        .into_iter()
        .map(|(gpus, (price, cloud))| (Kind { gpus, price }, cloud));
    Ok(kinds.collect())
}

struct Machine {
    free: u32,
    gpus: u32,
    /// Ten-thousandths of a dollar an hour; none for an owned one.
    price: Option<u64>,
    bought: i64,
    ready: i64,
    idle_since: Option<i64>,
    /// The only job it is for.
    own: Option<usize>,
    gone: bool,
}

#[derive(Default)]
struct Figures {
    cost: f64,
    machines: usize,
    rented_gpu_seconds: i64,
    used_gpu_seconds: i64,
    waits: Vec<i64>,
}

fn replay(jobs: &[Job], owned: u32, kinds: &[Kind], rule: Rule) -> Figures {
    let mut machines: Vec<Machine> = (0..owned)
        .map(|_| Machine {
            free: NODE,
            gpus: NODE,
            price: None,
            bought: 0,
            ready: 0,
            idle_since: None,
            own: None,
            gone: false,
        })
        .collect();
    let mut figures = Figures::default();
    let mut queue: Vec<usize> = Vec::new();
    // Places of machines that are gone.
    let mut spare: Vec<usize> = Vec::new();
    let mut counted_on: BTreeMap<usize, usize> = BTreeMap::new();
    // Times at which something may happen; the ends of jobs with where they run.
    let mut times: BinaryHeap<std::cmp::Reverse<i64>> = BinaryHeap::new();
    let mut ends: BinaryHeap<std::cmp::Reverse<(i64, usize, usize)>> = BinaryHeap::new();
    let mut next = 0;
    let mut now = 0;
    loop {
        while let Some(std::cmp::Reverse((at, place, job))) = ends.peek().copied() {
            if at > now {
                break;
            }
            ends.pop();
            let machine = &mut machines[place];
            machine.free += jobs[job].gpus;
            if machine.price.is_some() && machine.free == machine.gpus {
                machine.idle_since = Some(now);
                times.push(std::cmp::Reverse(now + IDLE));
            }
        }
        while next < jobs.len() && jobs[next].at <= now {
            queue.push(next);
            times.push(std::cmp::Reverse(jobs[next].at + AFTER));
            next += 1;
        }
        // In the order they came; whoever fits starts, where it leaves the least free.
        let room = |machines: &[Machine]| {
            let there = machines
                .iter()
                .filter(|machine| !machine.gone && machine.ready <= now);
            there.map(|machine| machine.free).max().unwrap_or(0)
        };
        let mut most = room(&machines);
        queue.retain(|job| {
            let Job { at, seconds, gpus } = jobs[*job];
            if gpus > most {
                return true;
            }
            let fits = |(_, machine): &(usize, &Machine)| {
                let mine = machine.own.is_none_or(|own| own == *job);
                !machine.gone && mine && machine.ready <= now && machine.free >= gpus
            };
            let place = machines.iter().enumerate().filter(fits);
            let place = place.min_by_key(|(at, machine)| {
                (
                    machine.own != Some(*job),
                    machine.price.is_some(),
                    machine.free,
                    *at,
                )
            });
            let Some((place, _)) = place else {
                return true;
            };
            let machine = &mut machines[place];
            machine.free -= gpus;
            machine.idle_since = None;
            if machine.price.is_some() {
                figures.used_gpu_seconds += seconds * i64::from(gpus);
            }
            figures.waits.push(now - at);
            ends.push(std::cmp::Reverse((now + seconds, place, *job)));
            counted_on.remove(job);
            most = room(&machines);
            false
        });
        let due: Vec<usize> = queue
            .iter()
            .copied()
            .filter(|job| jobs[*job].at + AFTER <= now && !counted_on.contains_key(job))
            .collect();
        let mut buy = |machines: &mut Vec<Machine>, kind: Kind, own: Option<usize>| {
            figures.machines += 1;
            times.push(std::cmp::Reverse(now + JOINS));
            let machine = Machine {
                free: kind.gpus,
                gpus: kind.gpus,
                price: Some(kind.price),
                bought: now,
                ready: now + JOINS,
                idle_since: Some(now + JOINS),
                own,
                gone: false,
            };
            times.push(std::cmp::Reverse(now + JOINS + IDLE));
            if let Some(place) = spare.pop() {
                machines[place] = machine;
                return place;
            }
            machines.push(machine);
            machines.len() - 1
        };
        match rule {
            Rule::Never => {}
            Rule::OneEach => {
                for job in due {
                    let fitting = kinds.iter().filter(|kind| kind.gpus >= jobs[job].gpus);
                    if let Some(kind) = fitting.min_by_key(|kind| kind.price) {
                        let place = buy(&mut machines, *kind, Some(job));
                        counted_on.insert(job, place);
                    }
                }
            }
            Rule::Together => {
                for some in due.chunks(TOGETHER) {
                    let wants: Vec<u32> = some.iter().map(|job| jobs[*job].gpus).collect();
                    for bought in cheapest(&wants, kinds).into_iter().flatten() {
                        let place = buy(&mut machines, kinds[bought.kind], None);
                        for at in bought.holds {
                            counted_on.insert(some[at], place);
                        }
                    }
                }
            }
        }
        let there = machines.iter_mut().enumerate();
        for (place, machine) in there.filter(|(_, machine)| !machine.gone) {
            let Some(price) = machine.price else { continue };
            let idle = machine.idle_since.is_some_and(|since| {
                let own = machine.own.is_some() && machine.ready <= now;
                if own {
                    since > machine.ready || now >= since + IDLE
                } else {
                    now >= since + IDLE
                }
            });
            if idle && machine.free == machine.gpus {
                machine.gone = true;
                spare.push(place);
                let time = now - machine.bought;
                figures.rented_gpu_seconds += time * i64::from(machine.gpus);
                #[expect(clippy::cast_precision_loss, reason = "money in a figure")]
                let cost = price as f64 / UNIT * time as f64 / 3600.0;
                figures.cost += cost;
            }
        }
        let coming = [
            jobs.get(next).map(|job| job.at),
            ends.peek().map(|end| end.0.0),
            times.peek().map(|time| time.0),
        ];
        let Some(soon) = coming.into_iter().flatten().min() else {
            return figures;
        };
        while times.peek().is_some_and(|time| time.0 <= soon) {
            times.pop();
        }
        now = soon.max(now);
    }
}

/// Every way to part the wants, by brute force.
fn exact(wants: &[u32], kinds: &[Kind]) -> Option<u64> {
    let all = 1_usize << wants.len();
    let mut best: Vec<Option<u64>> = vec![None; all];
    best[0] = Some(0);
    for set in 1..all {
        let mut part = set;
        while part > 0 {
            let gpus: u32 = (0..wants.len())
                .filter(|at| (part >> at) & 1 == 1)
                .map(|at| wants[at])
                .sum();
            let alone = kinds
                .iter()
                .filter(|kind| kind.gpus >= gpus)
                .map(|kind| kind.price)
                .min();
            let whole = alone.zip(best[set & !part]).map(|(one, rest)| one + rest);
            best[set] = [best[set], whole].into_iter().flatten().min();
            part = (part - 1) & set;
        }
    }
    best[all - 1]
}

fn small_cases(kinds: &[Kind]) {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut chance = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let (mut cases, mut worst, mut alone) = (0, 1.0_f64, 0.0);
    for _ in 0..1000 {
        let count = 1 + chance(8);
        let wants: Vec<u32> = (0..count)
            .map(|_| [1, 1, 1, 2, 2, 4, 8][usize::try_from(chance(7)).unwrap_or(0)])
            .collect();
        // Prices within a fifth of the lists', so that no size is always the best.
        let priced = kinds.iter().map(|kind| Kind {
            price: kind.price * (80 + chance(41)) / 100,
            ..*kind
        });
        let priced: Vec<Kind> = priced.collect();
        let (Some(found), Some(least)) = (cheapest(&wants, &priced), exact(&wants, &priced)) else {
            continue;
        };
        let each = wants.iter().filter_map(|want| {
            let fitting = priced.iter().filter(|kind| kind.gpus >= *want);
            fitting.map(|kind| kind.price).min()
        });
        #[expect(clippy::cast_precision_loss, reason = "a ratio in a figure")]
        let (ratio, own) = (
            price(&found, &priced) as f64 / least as f64,
            each.sum::<u64>() as f64 / least as f64,
        );
        worst = worst.max(ratio);
        alone += own;
        cases += 1;
    }
    println!(
        "small cases: {cases} of up to 8 jobs; the dearest purchase is {worst:.4} of the exact optimum; one machine each is {:.4} of it on average",
        alone / f64::from(cases)
    );
}

fn main() -> Outcome<()> {
    let mut args = std::env::args().skip(1);
    let (jobs_at, prices_at) = (
        args.next().ok_or("name the jobs")?,
        args.next().ok_or("name the folder of the price lists")?,
    );
    let jobs = jobs(Path::new(&jobs_at))?;
    let market = market(Path::new(&prices_at))?;
    let kinds: Vec<Kind> = market.iter().map(|(kind, _)| *kind).collect();
    for (kind, cloud) in &market {
        #[expect(clippy::cast_precision_loss, reason = "money in a figure")]
        let dollars = kind.price as f64 / UNIT;
        println!("{} x {GPU}: {dollars:.2} an hour ({cloud})", kind.gpus);
    }
    let work: i64 = jobs
        .iter()
        .map(|job| job.seconds * i64::from(job.gpus))
        .sum();
    let capacity = work * 100 / LOAD / (DAYS * DAY) / i64::from(NODE);
    let owned = u32::try_from(capacity.max(1))?;
    println!(
        "{} jobs of up to {NODE} GPUs in {DAYS} days, {} GPU-hours, on {owned} owned nodes of {NODE}: {LOAD} % of what they can do",
        jobs.len(),
        work / 3600
    );
    println!(
        "{:<22} {:>12} {:>10} {:>10} {:>10} {:>9} {:>8}",
        "rule", "dollars", "mean wait", "p95 wait", "machines", "GPU-hours", "used"
    );
    for (name, rule) in [
        ("never rent", Rule::Never),
        ("one machine per job", Rule::OneEach),
        ("together (Warp)", Rule::Together),
    ] {
        let mut figures = replay(&jobs, owned, &kinds, rule);
        figures.waits.sort_unstable();
        let count = i64::try_from(figures.waits.len())?.max(1);
        let mean = figures.waits.iter().sum::<i64>() / count;
        let p95 = figures
            .waits
            .get(figures.waits.len() * 95 / 100)
            .copied()
            .unwrap_or(0);
        let used = (figures.used_gpu_seconds * 100).checked_div(figures.rented_gpu_seconds);
        let used = used.map_or_else(|| "-".to_owned(), |used| format!("{used} %"));
        println!(
            "{name:<22} {:>12.0} {:>8} s {:>8} s {:>10} {:>9} {used:>8}",
            figures.cost,
            mean,
            p95,
            figures.machines,
            figures.rented_gpu_seconds / 3600
        );
    }
    small_cases(&kinds);
    Ok(())
}
