//! The placement protocol of the FGD study (Weng et al., ATC'23) over the "openb" trace: requests
//! arrive in random order, one by one, and never leave; what fits nowhere is dropped.

pub mod bound;
pub mod churn;
mod generate;
pub mod scale;
#[cfg(test)]
mod tests;

pub use generate::generate;

use std::sync::Arc;

use crate::fleet::{
    Cards, Fleet, GpuPool, GpuRequest, KindId, Node, NodeId, Request, WHOLE, WorkState,
};
use crate::random::Random;
use crate::resources::Resources;
use crate::schedule::strategy::Fragmentation;
use crate::schedule::{Ask, Mix, Planner, Strategy, Weighed};

/// One row of the node list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub name: Arc<str>,
    pub cpu_milli: i64,
    pub memory_mib: i64,
    pub gpus: u32,
    pub model: Arc<str>,
    /// US dollars times a million.
    pub price_per_gpu_hour_micros: Option<u64>,
}

/// One row of the pod list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub name: Arc<str>,
    pub cpu_milli: i64,
    pub memory_mib: i64,
    pub gpus: u32,
    /// Thousandths of each GPU.
    pub gpu_milli: u32,
    /// Accepted models; empty accepts all.
    pub models: Vec<Arc<str>>,
}

impl Pod {
    fn total_milli(&self) -> i64 {
        i64::from(self.gpus) * i64::from(self.gpu_milli.min(WHOLE))
    }

    fn request(&self) -> Request {
        let gpu = (self.gpus > 0).then(|| GpuRequest {
            count: self.gpus,
            milli: self.gpu_milli.min(WHOLE),
            models: self.models.iter().cloned().collect(),
            ..GpuRequest::default()
        });
        Request {
            name: Arc::clone(&self.name),
            gpu,
            resources: Resources::new(self.cpu_milli, self.memory_mib << 20),
            ..Request::default()
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub machines: Vec<Machine>,
    pub pods: Vec<Pod>,
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub policy: Weighed,
    pub seed: u64,
    /// Arrivals as a multiple of the fleet's GPUs.
    pub inflate: f64,
    /// Whether the strategy is told the mix of requests beforehand.
    pub prior: bool,
}

/// Means per whole percent of arrived load, in percent of all GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    sums: Vec<(f64, u32)>,
}

impl Curve {
    fn record(&mut self, percent: f64, value: f64) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a percentage"
        )]
        let at = percent.round().clamp(0.0, 10_000.0) as usize;
        if self.sums.len() <= at {
            self.sums.resize(at + 1, (0.0, 0));
        }
        self.sums[at].0 += value;
        self.sums[at].1 += 1;
    }

    /// The mean at a whole percent, if anything arrived there.
    pub fn at(&self, percent: usize) -> Option<f64> {
        let &(sum, count) = self.sums.get(percent)?;
        (count > 0).then(|| sum / f64::from(count))
    }

    pub fn points(&self) -> impl Iterator<Item = (usize, f64)> {
        (0..self.sums.len()).filter_map(|at| Some((at, self.at(at)?)))
    }
}

#[derive(Clone, Debug)]
pub struct Run {
    pub seed: u64,
    pub allocated: Curve,
    pub fragmented: Curve,
    pub decisions: u64,
    pub placed: u64,
    /// Thousandths of GPU placed when everything had arrived.
    pub placed_milli: i64,
    /// US dollars an hour of what was placed, where prices are known.
    pub cost_per_hour: f64,
}

/// The fleet of a node list, empty.
pub fn fleet(machines: &[Machine]) -> Fleet {
    let mut fleet = Fleet::new();
    for machine in machines {
        let cards = Cards::each(machine.gpus as usize);
        fleet.set_node(Node {
            name: Arc::clone(&machine.name),
            allocatable: Resources::new(machine.cpu_milli, machine.memory_mib << 20),
            // The study's nodes have no pod limit.
            pods: i64::MAX / 2,
            gpus: vec![GpuPool::nvidia(&machine.model, 0, cards)],
            price_per_gpu_hour_micros: machine.price_per_gpu_hour_micros,
            ..Node::default()
        });
    }
    fleet
}

/// The mix of the whole pod list: what the study's policies are told beforehand.
pub fn mix(fleet: &Fleet, pods: &[Pod]) -> Mix {
    let mut mix = Mix::default();
    for pod in pods {
        mix.see(&Ask::new(fleet, &pod.request()));
    }
    mix
}

/// The order of arrivals: the list shuffled, then requests drawn from it until the fleet is asked
/// for `inflate` times its GPUs; a list that asks for more is thinned instead.
pub fn arrivals(
    trace: &Trace,
    capacity_milli: i64,
    inflate: f64,
    random: &mut Random,
) -> Vec<usize> {
    let pods = &trace.pods;
    let mut order: Vec<usize> = (0..pods.len()).collect();
    order.sort_by(|&a, &b| pods[a].name.cmp(&pods[b].name));
    random.shuffle(&mut order);
    let mut asked: i64 = pods.iter().map(Pod::total_milli).sum();
    #[expect(
        clippy::cast_possible_truncation,
        reason = "thousandths of a fleet's GPUs"
    )]
    let target = (inflate * capacity_milli as f64) as i64;
    if asked == 0 || inflate <= 0.0 {
        return order;
    }
    if asked > target {
        while asked > target && !order.is_empty() {
            let gone = order.remove(random.below(order.len()));
            asked -= pods[gone].total_milli();
        }
        return order;
    }
    loop {
        let drawn = random.below(pods.len());
        // The study stops by the size of one card, not of the whole request.
        if asked + i64::from(pods[drawn].gpu_milli.min(WHOLE)) > target {
            return order;
        }
        asked += pods[drawn].total_milli();
        order.push(drawn);
    }
}

/// One run with a policy as it ships. `progress` hears how many arrivals are decided, of how many.
pub fn run(trace: &Trace, settings: &Settings, progress: &mut dyn FnMut(usize, usize)) -> Run {
    let fleet = fleet(&trace.machines);
    let mix = mix(&fleet, &trace.pods);
    let strategy = if settings.prior {
        settings.policy.informed(settings.seed, &fleet, &mix)
    } else {
        settings.policy.strategy(settings.seed)
    };
    replay(trace, fleet, &mix, strategy, settings, progress)
}

/// One run with any strategy.
pub fn replay(
    trace: &Trace,
    mut fleet: Fleet,
    mix: &Mix,
    strategy: Box<dyn Strategy>,
    settings: &Settings,
    progress: &mut dyn FnMut(usize, usize),
) -> Run {
    let capacity = fleet.totals().gpu_milli();
    let mut random = Random::new(settings.seed);
    let order = arrivals(trace, capacity, settings.inflate, &mut random);
    let mut planner = Planner::with_strategy(strategy, random.next_u64());
    let requests: Vec<_> = trace
        .pods
        .iter()
        .map(|pod| Arc::new(pod.request()))
        .collect();
    let mut fragments = Fragments::new(&fleet, mix);
    let mut run = Run {
        seed: settings.seed,
        allocated: Curve::default(),
        fragmented: Curve::default(),
        decisions: 0,
        placed: 0,
        placed_milli: 0,
        cost_per_hour: 0.0,
    };
    let percent = |milli: f64| 100.0 * milli / (capacity as f64).max(1.0);
    let mut arrived = 0;
    for (at, &pod) in order.iter().enumerate() {
        arrived += trace.pods[pod].total_milli();
        run.decisions += 1;
        if let Some(placement) = planner.choose(&fleet, &requests[pod]) {
            let id: Arc<str> = Arc::from(format!("{at}"));
            let work = placement.work(id, Arc::clone(&requests[pod]), 0, WorkState::Running);
            let bound = fleet.bind(work);
            debug_assert_eq!(
                bound,
                Ok(()),
                "a placement names a node and cards of its fleet"
            );
            run.placed += 1;
            let milli = trace.pods[pod].total_milli();
            run.placed_milli += milli;
            run.cost_per_hour += price(&fleet, placement.node_id) * milli as f64 / f64::from(WHOLE);
            fragments.changed(&fleet, placement.node_id.index());
        }
        run.allocated
            .record(percent(arrived as f64), percent(run.placed_milli as f64));
        run.fragmented
            .record(percent(arrived as f64), percent(fragments.sum));
        if at % 256 == 0 {
            progress(at, order.len());
        }
    }
    progress(order.len(), order.len());
    run
}

/// US dollars per GPU-hour; 0 where nobody named a price.
fn price(fleet: &Fleet, node: NodeId) -> f64 {
    let micros = fleet
        .node(node)
        .and_then(|node| node.price_per_gpu_hour_micros);
    micros.unwrap_or(0) as f64 / 1e6
}

/// Fragmentation of the whole fleet, kept up to date node by node.
struct Fragments {
    fragmentation: Fragmentation,
    nodes: Vec<f64>,
    sum: f64,
}

impl Fragments {
    fn new(fleet: &Fleet, mix: &Mix) -> Self {
        let mut fragments = Self {
            fragmentation: Fragmentation::new(mix),
            nodes: Vec::new(),
            sum: 0.0,
        };
        fragments.nodes.resize(fleet.len(), 0.0);
        for at in 0..fleet.len() {
            fragments.changed(fleet, at);
        }
        fragments
    }

    fn changed(&mut self, fleet: &Fleet, at: usize) {
        let Some(slot) = fleet.slot_at(at) else {
            return;
        };
        let of = |fragmentation: &mut Fragmentation, kind: KindId, cards: &[i32]| {
            fragmentation.of(kind, slot.free.resources.cpu_milli, cards)
        };
        let pools = slot.free.pools.iter();
        let now = pools
            .map(|pool| of(&mut self.fragmentation, pool.kind, &pool.cards))
            .sum();
        self.sum += now - std::mem::replace(&mut self.nodes[at], now);
    }
}
