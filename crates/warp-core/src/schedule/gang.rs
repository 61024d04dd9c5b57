//! Gangs: several members, all or none, close together if asked.
//!
//! A gang may be near by a node label: then the label's values are the domains. Else levels are tried from the preferred
//! one outwards, up to the required one (or to "anywhere" when
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
use crate::fleet::{Fleet, Level, Node, NodeId, Request, WorkState};

/// What must start together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gang {
    pub name: Arc<str>,
    pub members: Vec<Member>,
    /// The widest level the gang may spread over.
    pub required: Option<Level>,
    /// The level tried first.
    pub preferred: Option<Level>,
    /// A label whose value all nodes of the gang share; where it is given, the levels are not looked at.
    pub near: Option<Near>,
}

/// Close together by a node label: nodes with the same value are one domain, a node without it is in none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Near {
    pub key: Arc<str>,
    /// In one domain or not at all; else in one domain if that is possible.
    pub required: bool,
    /// Where it is not required: labels tried next, in this order, before the gang may be anywhere.
    pub then: Vec<Arc<str>>,
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
    /// The value of the label of [`Near`] that all nodes of the gang share; `None` = anywhere.
    pub domain: Option<Arc<str>>,
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
    /// The domain of [`Near`] that came furthest, where one was required.
    pub domain: Option<Arc<str>>,
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

/// Where all members of one attempt are.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Span {
    Anywhere,
    Level(Level),
    /// One value of this label.
    Label(Arc<str>),
}

impl Span {
    fn level(&self) -> Option<Level> {
        match self {
            Self::Level(level) => Some(*level),
            Self::Anywhere | Self::Label(_) => None,
        }
    }

    /// The domain a node is in, as a path; none where it is in no domain.
    fn domain(&self, node: &Node) -> Option<(Arc<str>, Arc<str>)> {
        match self {
            Self::Anywhere => None,
            Self::Level(level) => Some(node.domain(*level)),
            Self::Label(key) => Some((Arc::from(""), Arc::clone(node.labels.get(key)?))),
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

    /// What to try, in order.
    fn spans(&self) -> Vec<Span> {
        if let Some(near) = &self.near {
            let then = near.then.iter().filter(|_| !near.required);
            let labels = std::iter::once(&near.key).chain(then);
            let labels = labels.map(|key| Span::Label(Arc::clone(key)));
            let anywhere = (!near.required).then_some(Span::Anywhere);
            return labels.chain(anywhere).collect();
        }
        let all = [Level::Host, Level::Rack, Level::Block];
        let widest = self.required.unwrap_or(Level::Block);
        let start = self.preferred.unwrap_or(widest).min(widest);
        if self.required.is_none() && self.preferred.is_none() {
            return vec![Span::Anywhere];
        }
        let inside = all
            .into_iter()
            .filter(|&level| level >= start && level <= widest)
            .map(Span::Level);
        inside
            .chain(self.required.is_none().then_some(Span::Anywhere))
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
        for span in gang.spans() {
            if let Some((domain, members)) = attempt.across(self, &span) {
                let placed = GangPlacement {
                    level: span.level(),
                    domain: domain.filter(|_| matches!(span, Span::Label(_))),
                    members,
                };
                debug_assert_eq!(crate::check::gang(fleet, gang, &placed), []);
                return Ok(placed);
            }
        }
        let wider = gang.required.and_then(|required| {
            let outside = [Some(Level::Rack), Some(Level::Block), None].into_iter();
            let mut wider = outside.filter(|level| level.is_none_or(|level| level > required));
            wider.find(|&level| {
                let span = level.map_or(Span::Anywhere, Span::Level);
                attempt.across(self, &span).is_some()
            })
        });
        let furthest = attempt.furthest.take();
        let level = gang
            .required
            .or(furthest.as_ref().and_then(|furthest| furthest.level));
        let near = gang.near.as_ref().is_some_and(|near| near.required);
        let domain = furthest.as_ref().and_then(|came| came.domain.clone());
        Err(GangRefusal {
            domain: domain.filter(|_| near),
            gang: Arc::clone(&gang.name),
            members: gang.size(),
            placed: furthest.as_ref().map_or(0, |furthest| furthest.placed),
            level: level.filter(|_| gang.required.is_some()),
            next: furthest.map(|furthest| Box::new(furthest.next)),
            wider,
        })
    }
}

/// The domain that takes a gang, and its members there.
type Found = (Option<Arc<str>>, Vec<PlacedMember>);

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
    domain: Option<Arc<str>>,
    next: Explanation,
}

/// The nodes of one domain.
struct Domain {
    name: Option<Arc<str>>,
    nodes: Vec<NodeId>,
}

impl Attempt<'_> {
    /// The first domain of a span that takes all, and what goes where.
    fn across(&mut self, planner: &mut Planner, span: &Span) -> Option<Found> {
        if *span == Span::Anywhere {
            let placed = self.inside(planner, span, None, Scope::All)?;
            return Some((None, placed));
        }
        for domain in self.domains(span) {
            let scope = Scope::Only(&domain.nodes);
            if let Some(placed) = self.inside(planner, span, domain.name.as_ref(), scope) {
                return Some((domain.name, placed));
            }
        }
        None
    }

    /// The domains that have enough free GPU, tightest first.
    fn domains(&self, span: &Span) -> Vec<Domain> {
        let mut domains = BTreeMap::<_, (i64, Vec<NodeId>)>::new();
        for (id, node) in self.scratch.nodes() {
            let Some(domain) = span.domain(node) else {
                continue;
            };
            let (milli, nodes) = domains.entry(domain).or_default();
            let pools = self
                .scratch
                .free(id)
                .map(|free| free.pools.as_slice())
                .unwrap_or_default();
            *milli += pools.iter().map(crate::fleet::PoolFree::milli).sum::<i64>();
            nodes.push(id);
        }
        let mut domains: Vec<_> = domains.into_iter().collect();
        domains.sort_by_key(|(_, (milli, _))| *milli);
        // The largest is tried even when it has too little, to learn how far the gang would come.
        let needed = self.gang.milli();
        let largest = domains.len().saturating_sub(1);
        let from = domains
            .partition_point(|(_, (milli, _))| *milli < needed)
            .min(largest);
        domains.drain(..from);
        let named = domains.into_iter().map(|((_, name), (_, nodes))| Domain {
            name: Some(name),
            nodes,
        });
        named.collect()
    }

    fn inside(
        &mut self,
        planner: &mut Planner,
        span: &Span,
        domain: Option<&Arc<str>>,
        scope: Scope<'_>,
    ) -> Option<Vec<PlacedMember>> {
        if let Some(placed) = self.greedy(planner, span, domain, scope) {
            return Some(placed);
        }
        let mut packer = Planner::new(Policy::BestFit, 0);
        self.greedy(&mut packer, span, domain, scope)
    }

    /// Places one member after another on the copy, and takes them all back at the end.
    fn greedy(
        &mut self,
        planner: &mut Planner,
        span: &Span,
        domain: Option<&Arc<str>>,
        scope: Scope<'_>,
    ) -> Option<Vec<PlacedMember>> {
        // Members arrive once, however many attempts are made.
        let first = !std::mem::replace(&mut self.tried, true);
        let mut placed = Vec::new();
        let mut bound: Vec<Arc<str>> = Vec::new();
        for &member in self.order {
            let request = &self.gang.members[member].request;
            let Some(placement) = planner.decide(&self.scratch, request, scope, first) else {
                self.came(bound.len(), span, domain, request, scope);
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
    fn came(
        &mut self,
        placed: usize,
        span: &Span,
        domain: Option<&Arc<str>>,
        request: &Request,
        scope: Scope<'_>,
    ) {
        if self
            .furthest
            .as_ref()
            .is_none_or(|furthest| placed > furthest.placed)
        {
            let next = Explanation::within(&self.scratch, request, scope);
            self.furthest = Some(Furthest {
                placed,
                level: span.level(),
                domain: domain.cloned(),
                next,
            });
        }
    }
}
