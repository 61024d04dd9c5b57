//! Departures: requests arrive, run for a random time and leave, at a steady offered load. What does
//! not fit on arrival is refused. Some may come as gangs, which start whole or not at all, and
//! half-way the mix of requests may change.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Trace, fleet, mix};
use crate::fleet::{Fleet, GpuRequest, Request, WHOLE, WorkState};
use crate::random::Random;
use crate::schedule::{Ask, Gang, Member, Mix, Placement, Planner, Weighed};

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub policy: Weighed,
    pub seed: u64,
    /// Offered work, as a multiple of the fleet's GPUs.
    pub load: f64,
    pub knows: Knowledge,
    /// Share of the requests for whole GPUs that come as a gang of two, four or eight.
    pub gangs: f64,
}

/// What a strategy knows of the requests to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knowledge {
    /// What arrived before.
    Arrivals,
    /// The whole list, beforehand.
    Everything,
    /// What the fleet holds: the strategy is made afresh from it all the time, as a live loop does.
    Snapshot,
}

/// Arrivals decided from one snapshot.
const PASS: u64 = 64;

/// Measured after the fleet has filled up (and, with a second list, after the change).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Mean allocation, in percent of all GPUs.
    pub allocated: f64,
    /// Refused work, in percent of the GPU milli asked for.
    pub refused: f64,
    /// The same for requests of two or more GPUs.
    pub refused_multi: f64,
    /// The same for gangs.
    pub refused_gangs: f64,
    pub decisions: u64,
}

const GANGS: [u32; 3] = [2, 4, 8];

/// Replays `trace`; from the middle on, requests come from `then` if there is one.
pub fn run(trace: &Trace, then: Option<&Trace>, settings: &Settings) -> Outcome {
    let fleet = fleet(&trace.machines);
    let capacity = fleet.totals().gpu_milli() as f64;
    let strategy = match settings.knows {
        Knowledge::Everything => {
            let known = mix(&fleet, &trace.pods);
            settings.policy.informed(settings.seed, &fleet, &known)
        }
        Knowledge::Arrivals | Knowledge::Snapshot => settings.policy.strategy(settings.seed),
    };
    let mut random = Random::new(settings.seed);
    let order = random.next_u64();
    let mut replay = Replay {
        planner: Planner::with_strategy(strategy, order),
        fleet,
        leaving: BTreeMap::new(),
        held: 0.0,
    };
    let lists = [trace, then.unwrap_or(trace)].map(|trace| List::new(trace, capacity, settings));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of arrivals"
    )]
    let half = (2.0 * lists[0].life).min(1e7) as u64;
    let mut tally = Tally::default();
    for now in 0..2 * half {
        replay.let_go(now);
        if settings.knows == Knowledge::Snapshot && now % PASS == 0 {
            replay.look_again(settings, order);
        }
        let list = &lists[usize::from(now >= half)];
        let arrival = list.draw(&mut random, settings.gangs);
        let stays = -list.life * (1.0 - random.unit()).ln();
        let held = replay.held;
        let started = replay.start(now, stays, &arrival);
        if now >= half + half / 4 {
            tally.note(&arrival, started, held);
        }
    }
    tally.outcome(capacity, 2 * half)
}

/// What may arrive, and how long it stays on average.
struct List {
    requests: Vec<Arc<Request>>,
    life: f64,
}

/// One or more equal requests that start together.
struct Arrival {
    request: Arc<Request>,
    members: u32,
}

impl Arrival {
    fn milli(&self) -> f64 {
        let each = self.request.gpu.as_ref().map_or(0, GpuRequest::total_milli);
        each as f64 * f64::from(self.members)
    }
}

/// Whether a request may come as a gang.
fn can_gang(request: &Request) -> bool {
    let gpu = request.gpu.as_ref();
    gpu.is_some_and(|gpu| gpu.count > 0 && gpu.milli >= WHOLE)
}

impl List {
    fn new(trace: &Trace, capacity: f64, settings: &Settings) -> Self {
        let requests: Vec<_> = trace
            .pods
            .iter()
            .map(|pod| Arc::new(pod.request()))
            .collect();
        let members = f64::from(GANGS.iter().sum::<u32>()) / GANGS.len() as f64;
        let asked = |request: &Arc<Request>| {
            let each = request.gpu.as_ref().map_or(0, GpuRequest::total_milli) as f64;
            if can_gang(request) {
                each * (1.0 + settings.gangs * (members - 1.0))
            } else {
                each
            }
        };
        let mean = requests.iter().map(asked).sum::<f64>() / (requests.len() as f64).max(1.0);
        // One arrival per unit of time: by Little's law this life time offers the load.
        Self {
            life: settings.load * capacity / mean.max(1.0),
            requests,
        }
    }

    fn draw(&self, random: &mut Random, gangs: f64) -> Arrival {
        let request = &self.requests[random.below(self.requests.len())];
        // No number is drawn without gangs, so that they change nothing where there are none.
        let gang = gangs > 0.0 && can_gang(request) && random.unit() < gangs;
        Arrival {
            request: Arc::clone(request),
            members: if gang {
                GANGS[random.below(GANGS.len())]
            } else {
                1
            },
        }
    }
}

struct Replay {
    fleet: Fleet,
    planner: Planner,
    /// By time of departure.
    leaving: BTreeMap<(u64, u64, usize), Arc<str>>,
    held: f64,
}

impl Replay {
    fn let_go(&mut self, now: u64) {
        while let Some(entry) = self.leaving.first_entry()
            && entry.key().0 <= now
        {
            let work = self.fleet.release(&entry.remove());
            let gpu = work.as_ref().and_then(|work| work.request.gpu.as_ref());
            self.held -= gpu.map_or(0, GpuRequest::total_milli) as f64;
        }
    }

    fn look_again(&mut self, settings: &Settings, order: u64) {
        let mut held = Mix::default();
        for work in self.fleet.works() {
            held.see(&Ask::new(&self.fleet, &work.request));
        }
        let strategy = settings.policy.live(settings.seed, &self.fleet, &held);
        self.planner = Planner::with_strategy(strategy, order);
    }

    /// Starts all of an arrival, if all of it fits.
    fn start(&mut self, now: u64, stays: f64, arrival: &Arrival) -> bool {
        let Some(places) = self.places(arrival) else {
            return false;
        };
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a time"
        )]
        let until = now + 1 + stays as u64;
        for (member, place) in places.iter().enumerate() {
            let id: Arc<str> = Arc::from(format!("{now}/{member}"));
            let request = Arc::clone(&arrival.request);
            let work = place.work(Arc::clone(&id), request, 0, WorkState::Running);
            let bound = self.fleet.bind(work);
            debug_assert_eq!(bound, Ok(()), "a placement names a node of its fleet");
            self.leaving.insert((until, now, member), id);
        }
        self.held += arrival.milli();
        true
    }

    fn places(&mut self, arrival: &Arrival) -> Option<Vec<Placement>> {
        if arrival.members == 1 {
            let place = self.planner.choose(&self.fleet, &arrival.request);
            return place.map(|place| vec![place]);
        }
        let gang = Gang {
            name: Arc::from("gang"),
            members: vec![Member {
                request: Arc::clone(&arrival.request),
                count: arrival.members,
            }],
            ..Gang::default()
        };
        let placed = self.planner.place_gang(&self.fleet, &gang).ok()?;
        let members = placed.members.into_iter();
        Some(members.map(|member| member.placement).collect())
    }
}

/// GPU milli asked for and refused.
#[derive(Default)]
struct Share {
    asked: f64,
    refused: f64,
}

impl Share {
    fn note(&mut self, milli: f64, started: bool) {
        self.asked += milli;
        self.refused += if started { 0.0 } else { milli };
    }

    fn percent(&self) -> f64 {
        100.0 * self.refused / self.asked.max(1.0)
    }
}

#[derive(Default)]
struct Tally {
    all: Share,
    multi: Share,
    gangs: Share,
    held: f64,
    arrivals: u64,
}

impl Tally {
    fn note(&mut self, arrival: &Arrival, started: bool, held: f64) {
        let milli = arrival.milli();
        self.all.note(milli, started);
        if arrival
            .request
            .gpu
            .as_ref()
            .is_some_and(|gpu| gpu.count > 1)
        {
            self.multi.note(milli, started);
        }
        if arrival.members > 1 {
            self.gangs.note(milli, started);
        }
        self.held += held;
        self.arrivals += 1;
    }

    fn outcome(&self, capacity: f64, decisions: u64) -> Outcome {
        Outcome {
            allocated: 100.0 * self.held / (self.arrivals.max(1) as f64) / capacity.max(1.0),
            refused: self.all.percent(),
            refused_multi: self.multi.percent(),
            refused_gangs: self.gangs.percent(),
            decisions,
        }
    }
}
