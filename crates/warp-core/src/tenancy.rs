//! Shares of a fleet: may this tenant have these GPUs now, and if not, why and who would have to give back?
//!
//! Tenants form trees. Each line of a quota covers one kind of GPU and promises a *nominal* number. What a
//! tenant does not use of it, others of its tree may borrow, up to their borrow limit and up to what it lends;
//! a tenant within its nominal share gets it back. It counts and answers: it places and evicts nothing.

mod line;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use line::Line;

/// One GPU. Counts here are thousandths, so that parts and shares of GPUs add up.
pub const GPU: i64 = 1000;

/// So many thousandths as people write them: `2`, `0.25`.
pub fn gpus(milli: i64) -> String {
    let (whole, rest) = (milli / GPU, (milli % GPU).abs());
    if rest == 0 {
        return whole.to_string();
    }
    let sign = if milli < 0 && whole == 0 { "-" } else { "" };
    let rest = format!("{rest:03}");
    format!("{sign}{whole}.{}", rest.trim_end_matches('0'))
}

/// Deepest tree; what hangs lower is cut off and said.
const DEEPEST: usize = 8;

/// One kind of GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    pub vendor: Arc<str>,
    /// Empty where it is not known.
    pub model: Arc<str>,
}

/// What a line of a quota is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Covers {
    /// Every GPU of a vendor.
    Vendor(Arc<str>),
    /// These models, together, whatever the case of their letters.
    Models(BTreeSet<Arc<str>>),
}

impl Covers {
    pub fn covers(&self, kind: &Kind) -> bool {
        match self {
            Self::Vendor(vendor) => *vendor == kind.vendor,
            Self::Models(models) => {
                let mut models = models.iter();
                models.any(|model| model.eq_ignore_ascii_case(&kind.model))
            }
        }
    }
}

impl std::fmt::Display for Covers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Vendor(vendor) => f.write_str(vendor),
            Self::Models(models) => {
                let names: Vec<&str> = models.iter().map(|model| &**model).collect();
                f.write_str(&names.join(" or "))
            }
        }
    }
}

/// A line of a quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Promised, in thousandths of a GPU like every count here.
    pub nominal: i64,
    /// Most it may use beyond them; `None` as far as others lend.
    pub borrow_limit: Option<i64>,
    /// Most it lends of them; `None` all it does not use.
    pub lend_limit: Option<i64>,
}

/// A tenant as quotas see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    pub name: Arc<str>,
    pub parent: Option<Arc<str>>,
    /// Its part of what is borrowed, against others'; at least 1.
    pub weight: u32,
    pub quota: BTreeMap<Covers, Quota>,
}

/// Every tenant, and how they hang together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    tenants: Vec<Tenant>,
    /// By place in `tenants`.
    parents: Vec<Option<usize>>,
    by_name: BTreeMap<Arc<str>, usize>,
    /// Parents before children.
    order: Vec<usize>,
}

/// Something wrong with a tenant's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub tenant: Arc<str>,
    pub what: String,
}

impl Tree {
    /// A tenant whose parent cannot be followed stands alone, and that is said.
    pub fn new(tenants: impl IntoIterator<Item = Tenant>) -> (Self, Vec<Problem>) {
        let tenants: Vec<Tenant> = tenants.into_iter().collect();
        let by_name: BTreeMap<Arc<str>, usize> = tenants
            .iter()
            .enumerate()
            .map(|(at, tenant)| (Arc::clone(&tenant.name), at))
            .collect();
        let mut problems = Vec::new();
        let mut problem = |tenant: &Tenant, what: String| {
            problems.push(Problem {
                tenant: Arc::clone(&tenant.name),
                what,
            });
        };
        let mut parents: Vec<Option<usize>> = Vec::new();
        for tenant in &tenants {
            let parent = tenant.parent.as_ref();
            let found = parent.and_then(|name| by_name.get(name).copied());
            if let (Some(name), None) = (parent, found) {
                problem(
                    tenant,
                    format!("its parent {name} does not exist; create it or correct spec.parent"),
                );
            }
            parents.push(found);
        }
        let reached = |parents: &[Option<usize>], from: usize| {
            let mut at = from;
            for _ in 0..DEEPEST {
                match parents[at] {
                    Some(next) => at = next,
                    None => return true,
                }
            }
            false
        };
        let lost: Vec<usize> = (0..tenants.len())
            .filter(|&at| !reached(&parents, at))
            .collect();
        for at in lost {
            problem(
                &tenants[at],
                format!(
                    "its parents lead in a circle or are more than {DEEPEST}; correct spec.parent"
                ),
            );
            parents[at] = None;
        }
        let depth = |from: usize| std::iter::successors(parents[from], |at| parents[*at]).count();
        let mut order: Vec<usize> = (0..tenants.len()).collect();
        order.sort_by_key(|&at| depth(at));
        let tree = Self {
            tenants,
            parents,
            by_name,
            order,
        };
        (tree, problems)
    }

    pub fn tenant(&self, name: &str) -> Option<&Tenant> {
        self.by_name.get(name).map(|&at| &self.tenants[at])
    }

    /// A tenant and everything it hangs below, itself first.
    fn line_up(&self, at: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(at), |at| self.parents[*at])
    }

    /// The lines that bind a tenant for a kind of GPU: its own and those above it.
    fn binding(&self, at: usize, kind: &Kind) -> BTreeSet<&Covers> {
        let lines = self
            .line_up(at)
            .flat_map(|at| self.tenants[at].quota.keys());
        lines.filter(|line| line.covers(kind)).collect()
    }
}

/// GPUs in use, by tenant and kind. What is promised counts as used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage(BTreeMap<Arc<str>, BTreeMap<Kind, i64>>);

impl Usage {
    /// Forgets what a tenant uses, as if all of it had ended.
    pub fn clear(&mut self, tenant: &str) {
        self.0.remove(tenant);
    }

    /// Adds to what a tenant uses; a negative count gives back.
    pub fn add(&mut self, tenant: &Arc<str>, kind: &Kind, count: i64) {
        let of_tenant = self.0.entry(Arc::clone(tenant)).or_default();
        let used = of_tenant.entry(kind.clone()).or_default();
        *used = used.saturating_add(count).max(0);
    }

    fn of(&self, tenant: &str, line: &Covers) -> i64 {
        let kinds = self.0.get(tenant).into_iter().flatten();
        kinds
            .filter(|(kind, _)| line.covers(kind))
            .map(|(_, count)| *count)
            .sum()
    }
}

/// What a tenant wants.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub tenant: &'a str,
    pub kind: &'a Kind,
    pub count: i64,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may have them; so many of them are borrowed, and may be asked back.
    Fits { borrowed: i64 },
    /// Not now.
    Waits {
        words: String,
        /// Who would have to give back how much for a tenant that asks for no more than its nominal share;
        /// empty when it would borrow itself.
        reclaim: Vec<Reclaim>,
    },
    /// Not even if nobody else used anything.
    Never { words: String },
}

/// GPUs a tenant has borrowed and another may ask back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reclaim {
    pub tenant: Arc<str>,
    pub count: i64,
}

/// May this ask start for this tenant now? A tenant nobody knows, and a kind no line covers, are not limited.
pub fn admit(tree: &Tree, usage: &Usage, ask: Ask<'_>) -> Verdict {
    let Some(&at) = tree.by_name.get(ask.tenant) else {
        return Verdict::Fits { borrowed: 0 };
    };
    let mut borrowed = 0;
    let mut waits = None;
    for covers in tree.binding(at, ask.kind) {
        let line = Line::new(tree, usage, covers);
        match line.admit(at, ask.count) {
            Verdict::Fits { borrowed: here } => borrowed = borrowed.max(here),
            Verdict::Never { words } => return Verdict::Never { words },
            wait @ Verdict::Waits { .. } => waits = waits.or(Some(wait)),
        }
    }
    waits.unwrap_or(Verdict::Fits { borrowed })
}

/// Whether a tenant asks for no more than every line that binds it promises it. A tenant nobody knows, and a kind no line
/// covers, are promised nothing.
pub fn is_entitled(tree: &Tree, usage: &Usage, ask: Ask<'_>) -> bool {
    let Some(&at) = tree.by_name.get(ask.tenant) else {
        return false;
    };
    let lines = tree.binding(at, ask.kind);
    let within = |covers: &&Covers| Line::new(tree, usage, covers).share(at, ask.count) == 0;
    !lines.is_empty() && lines.iter().all(within)
}

/// Whether another tenant of the tree that asks has borrowed GPUs of a kind, under a line that binds who asks.
pub fn borrows(tree: &Tree, usage: &Usage, tenant: &str, ask: Ask<'_>, kind: &Kind) -> bool {
    let found = |name: &str| tree.by_name.get(name).copied();
    let (Some(at), Some(asking)) = (found(tenant), found(ask.tenant)) else {
        return false;
    };
    let root = |at: usize| tree.line_up(at).last();
    let lines = tree.binding(asking, ask.kind).into_iter();
    let mut lines = lines.filter(|covers| covers.covers(kind));
    at != asking
        && root(at) == root(asking)
        && lines.any(|covers| Line::new(tree, usage, covers).standing(at).borrowed > 0)
}

/// Who goes first among tenants: the smaller, the sooner. Asks within the nominal share come before those that
/// borrow; of these, the one whose tenant would have borrowed least for its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Turn(u64);

/// A tenant's turn if it were given what it asks for.
pub fn turn(tree: &Tree, usage: &Usage, ask: Ask<'_>) -> Turn {
    let Some(&at) = tree.by_name.get(ask.tenant) else {
        return Turn(0);
    };
    let share = |covers| Line::new(tree, usage, covers).share(at, ask.count);
    let shares = tree.binding(at, ask.kind).into_iter().map(share);
    Turn(shares.max().unwrap_or(0))
}

/// What a tenant uses, has borrowed and could still have under one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    pub nominal: i64,
    pub used: i64,
    pub borrowed: i64,
    /// More it could have now.
    pub available: i64,
}

/// Where a tenant stands under each line that binds it.
pub fn standing(tree: &Tree, usage: &Usage, tenant: &str) -> Vec<(Covers, Standing)> {
    let Some(&at) = tree.by_name.get(tenant) else {
        return Vec::new();
    };
    let lines: BTreeSet<&Covers> = tree
        .line_up(at)
        .flat_map(|at| tree.tenants[at].quota.keys())
        .collect();
    lines
        .into_iter()
        .map(|covers| (covers.clone(), Line::new(tree, usage, covers).standing(at)))
        .collect()
}
