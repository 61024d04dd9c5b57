//! Gangs: several members, all or none, close together if asked.
//!
//! Levels are tried from the preferred one outwards, up to the required one (or to "anywhere" when
//! none is required); inside a level, domains are tried from the one with least to spare. Members
//! are placed one after another on a copy of the fleet, largest first, by the planner's strategy,
//! and taken back when one does not fit. If that fails in a domain, a second attempt packs by best
//! fit. Both attempts are greedy: for equal members of whole cards they find a place whenever there
//! is one; for members of different shapes a place that only a search would find can be missed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::planner::{Placement, Planner, Scope};
use super::strategy::Policy;
use crate::explain::Explanation;
use crate::fleet::{Fleet, Level, NodeId, Request, WorkState};

/// What must start together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gang {
    pub name: Arc<str>,
    pub members: Vec<Member>,
    /// The widest level the gang may spread over.
    pub required: Option<Level>,
    /// The level tried first.
    pub preferred: Option<Level>,
}

/// `count` equal members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub request: Arc<Request>,
    pub count: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct GangPlacement {
    /// The level whose single domain holds the whole gang; `None` = anywhere.
    pub level: Option<Level>,
    pub members: Vec<PlacedMember>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct PlacedMember {
    /// Which of the gang's members.
    pub member: usize,
    pub placement: Placement,
}

/// Why a gang fits nowhere: the attempt that came furthest.
#[derive(Clone, Debug, PartialEq)]
pub struct GangRefusal {
    pub gang: Arc<str>,
    pub members: usize,
    pub placed: usize,
    pub level: Option<Level>,
    /// Why the next member did not fit, with the others in place.
    pub next: Option<Box<Explanation>>,
    /// A wider level at which the gang would fit now.
    pub wider: Option<Option<Level>>,
}

impl fmt::Display for GangRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            members, placed, ..
        } = self;
        match self.level {
            Some(level) => write!(f, "{placed} of {members} members fit one {level}")?,
            None => write!(f, "{placed} of {members} members fit")?,
        }
        if let Some(next) = &self.next {
            write!(f, "; for the next one {next}")?;
        }
        match self.wider {
            Some(Some(level)) => write!(f, "; all fit one {level}: require level {level}"),
            Some(None) => write!(f, "; all fit the fleet: drop the required level"),
            None => Ok(()),
        }
    }
}

impl Gang {
    fn size(&self) -> usize {
        self.members
            .iter()
            .map(|member| member.count as usize)
            .sum()
    }

    /// The levels to try, in order; `None` is the whole fleet.
    fn levels(&self) -> Vec<Option<Level>> {
        let all = [Level::Host, Level::Rack, Level::Block];
        let widest = self.required.unwrap_or(Level::Block);
        let start = self.preferred.unwrap_or(widest).min(widest);
        if self.required.is_none() && self.preferred.is_none() {
            return vec![None];
        }
        let inside = all
            .into_iter()
            .filter(|&level| level >= start && level <= widest)
            .map(Some);
        inside
            .chain(self.required.is_none().then_some(None))
            .collect()
    }

    /// Members by falling size: large ones are the hardest to place.
    fn order(&self) -> Vec<usize> {
        let size = |&at: &usize| {
            let request = &self.members[at].request;
            let milli = request
                .gpu
                .as_ref()
                .map_or(0, crate::fleet::GpuRequest::total_milli);
            (
                milli,
                request.resources.cpu_milli,
                request.resources.memory_bytes,
            )
        };
        let mut kinds: Vec<_> = (0..self.members.len()).collect();
        kinds.sort_by_key(|at| std::cmp::Reverse(size(at)));
        let repeat = |at: usize| std::iter::repeat_n(at, self.members[at].count as usize);
        kinds.into_iter().flat_map(repeat).collect()
    }

    fn milli(&self) -> i64 {
        let of = |member: &Member| {
            let each = member
                .request
                .gpu
                .as_ref()
                .map_or(0, crate::fleet::GpuRequest::total_milli);
            i64::try_from(each)
                .unwrap_or(i64::MAX)
                .saturating_mul(i64::from(member.count))
        };
        self.members.iter().map(of).fold(0, i64::saturating_add)
    }
}

impl Planner {
    /// Places every member of a gang, or none.
    pub fn place_gang(&mut self, fleet: &Fleet, gang: &Gang) -> Result<GangPlacement, GangRefusal> {
        let order = gang.order();
        let mut attempt = Attempt {
            gang,
            order: &order,
            scratch: fleet.clone(),
            tried: false,
            furthest: None,
        };
        for level in gang.levels() {
            if let Some(members) = attempt.at_level(self, level) {
                let placed = GangPlacement { level, members };
                debug_assert_eq!(crate::check::gang(fleet, gang, &placed), []);
                return Ok(placed);
            }
        }
        let wider = gang.required.and_then(|required| {
            let outside = [Some(Level::Rack), Some(Level::Block), None].into_iter();
            let mut wider = outside.filter(|level| level.is_none_or(|level| level > required));
            wider.find(|&level| attempt.at_level(self, level).is_some())
        });
        let furthest = attempt.furthest.take();
        let level = gang
            .required
            .or(furthest.as_ref().and_then(|furthest| furthest.level));
        Err(GangRefusal {
            gang: Arc::clone(&gang.name),
            members: gang.size(),
            placed: furthest.as_ref().map_or(0, |furthest| furthest.placed),
            level: level.filter(|_| gang.required.is_some()),
            next: furthest.map(|furthest| Box::new(furthest.next)),
            wider,
        })
    }
}

struct Attempt<'a> {
    gang: &'a Gang,
    order: &'a [usize],
    scratch: Fleet,
    tried: bool,
    furthest: Option<Furthest>,
}

struct Furthest {
    placed: usize,
    level: Option<Level>,
    next: Explanation,
}

impl Attempt<'_> {
    fn at_level(
        &mut self,
        planner: &mut Planner,
        level: Option<Level>,
    ) -> Option<Vec<PlacedMember>> {
        let Some(level) = level else {
            return self.inside(planner, None, Scope::All);
        };
        for nodes in self.domains(level) {
            if let Some(placed) = self.inside(planner, Some(level), Scope::Only(&nodes)) {
                return Some(placed);
            }
        }
        None
    }

    /// The domains that have enough free GPU, tightest first.
    fn domains(&self, level: Level) -> Vec<Vec<NodeId>> {
        let mut domains = BTreeMap::<_, (i64, Vec<NodeId>)>::new();
        for (id, node) in self.scratch.nodes() {
            let (milli, nodes) = domains.entry(node.domain(level)).or_default();
            let pools = self
                .scratch
                .free(id)
                .map(|free| free.pools.as_slice())
                .unwrap_or_default();
            *milli += pools.iter().map(crate::fleet::PoolFree::milli).sum::<i64>();
            nodes.push(id);
        }
        let mut domains: Vec<_> = domains.into_values().collect();
        domains.sort_by_key(|(milli, _)| *milli);
        // The largest is tried even when it has too little, to learn how far the gang would come.
        let needed = self.gang.milli();
        let largest = domains.len().saturating_sub(1);
        let from = domains
            .partition_point(|(milli, _)| *milli < needed)
            .min(largest);
        domains.drain(..from);
        domains.into_iter().map(|(_, nodes)| nodes).collect()
    }

    fn inside(
        &mut self,
        planner: &mut Planner,
        level: Option<Level>,
        scope: Scope<'_>,
    ) -> Option<Vec<PlacedMember>> {
        if let Some(placed) = self.greedy(planner, level, scope) {
            return Some(placed);
        }
        let mut packer = Planner::new(Policy::BestFit, 0);
        self.greedy(&mut packer, level, scope)
    }

    /// Places one member after another on the copy, and takes them all back at the end.
    fn greedy(
        &mut self,
        planner: &mut Planner,
        level: Option<Level>,
        scope: Scope<'_>,
    ) -> Option<Vec<PlacedMember>> {
        // Members arrive once, however many attempts are made.
        let first = !std::mem::replace(&mut self.tried, true);
        let mut placed = Vec::new();
        let mut bound: Vec<Arc<str>> = Vec::new();
        for &member in self.order {
            let request = &self.gang.members[member].request;
            let Some(placement) = planner.decide(&self.scratch, request, scope, first) else {
                self.came(bound.len(), level, request, scope);
                break;
            };
            let id: Arc<str> = Arc::from(format!("{}/{}", self.gang.name, bound.len()));
            let work = placement.work(Arc::clone(&id), Arc::clone(request), 0, WorkState::Reserved);
            if self.scratch.bind(work).is_err() {
                break;
            }
            bound.push(id);
            placed.push(PlacedMember { member, placement });
        }
        for id in &bound {
            self.scratch.release(id);
        }
        (placed.len() == self.order.len()).then_some(placed)
    }

    /// Remembers the attempt that placed most members.
    fn came(&mut self, placed: usize, level: Option<Level>, request: &Request, scope: Scope<'_>) {
        if self
            .furthest
            .as_ref()
            .is_none_or(|furthest| placed > furthest.placed)
        {
            let next = Explanation::within(&self.scratch, request, scope);
            self.furthest = Some(Furthest {
                placed,
                level,
                next,
            });
        }
    }
}
