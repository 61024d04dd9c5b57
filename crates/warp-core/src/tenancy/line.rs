//! One line of the quotas over the whole tree: who has what, who borrows, what is left.
//!
//! Every tenant keeps the part of its nominal share it does not lend for itself; the rest of its share, and
//! whatever it and those below it use beyond the kept part, counts at its parent.

use std::sync::Arc;

use super::{Covers, Quota, Reclaim, Standing, Tree, Usage, Verdict, gpus};

/// Parts of one a share is counted in.
const PARTS: i128 = 1_000_000;

pub(super) struct Line<'a> {
    tree: &'a Tree,
    covers: &'a Covers,
    quota: Vec<Quota>,
    /// What each tenant itself uses.
    own: Vec<i64>,
    /// Of a tenant's share and its children's, what is there: theirs as far as they lend it.
    whole: Vec<i64>,
    /// What it and those below it use of `whole`.
    used: Vec<i64>,
}

impl<'a> Line<'a> {
    pub(super) fn new(tree: &'a Tree, usage: &Usage, covers: &'a Covers) -> Self {
        let quota: Vec<Quota> = tree
            .tenants
            .iter()
            .map(|tenant| tenant.quota.get(covers).copied().unwrap_or_default())
            .collect();
        let own: Vec<i64> = tree
            .tenants
            .iter()
            .map(|tenant| usage.of(&tenant.name, covers))
            .collect();
        let mut line = Self {
            tree,
            covers,
            whole: quota.iter().map(|quota| quota.nominal.max(0)).collect(),
            used: own.clone(),
            quota,
            own,
        };
        // Children before parents.
        for &at in tree.order.iter().rev() {
            if let Some(parent) = tree.parents[at] {
                let kept = line.kept(at);
                line.whole[parent] += line.whole[at] - kept;
                line.used[parent] += (line.used[at] - kept).max(0);
            }
        }
        line
    }

    /// The part of its share a tenant never lends. Without a parent there is nobody to lend to.
    fn kept(&self, at: usize) -> i64 {
        let nominal = self.quota[at].nominal.max(0);
        let lent = self.quota[at].lend_limit.unwrap_or(nominal).max(0);
        (nominal - lent).max(0)
    }

    /// How much more a tenant could have now; below 0 when too much is used.
    fn available(&self, at: usize) -> i64 {
        let Some(parent) = self.tree.parents[at] else {
            return self.whole[at] - self.used[at];
        };
        let kept = self.kept(at);
        let own = (kept - self.used[at]).max(0);
        let mut above = self.available(parent);
        if let Some(limit) = self.quota[at].borrow_limit {
            let lent = self.whole[at] - kept;
            let taken = (self.used[at] - kept).max(0);
            above = above.min(lent - taken + limit.max(0));
        }
        own + above
    }

    /// The same line with nobody using anything.
    fn unused(&self) -> Self {
        Self {
            own: vec![0; self.own.len()],
            used: vec![0; self.own.len()],
            quota: self.quota.clone(),
            whole: self.whole.clone(),
            ..*self
        }
    }

    /// The same line with a tenant using less.
    fn without(&self, at: usize, count: i64) -> Self {
        let mut own = self.own.clone();
        own[at] -= count;
        let mut used = own.clone();
        for &at in self.tree.order.iter().rev() {
            if let Some(parent) = self.tree.parents[at] {
                used[parent] += (used[at] - self.kept(at)).max(0);
            }
        }
        Self {
            own,
            used,
            quota: self.quota.clone(),
            whole: self.whole.clone(),
            ..*self
        }
    }

    fn borrowed(&self, at: usize) -> i64 {
        (self.own[at] - self.quota[at].nominal.max(0)).max(0)
    }

    pub(super) fn standing(&self, at: usize) -> Standing {
        Standing {
            nominal: self.quota[at].nominal,
            used: self.own[at],
            borrowed: self.borrowed(at),
            available: self.available(at).max(0),
        }
    }

    pub(super) fn admit(&self, at: usize, count: i64) -> Verdict {
        let available = self.available(at);
        let nominal = self.quota[at].nominal.max(0);
        if count <= available {
            return Verdict::Fits {
                borrowed: (self.own[at] + count - nominal).max(0).min(count),
            };
        }
        let name = &self.tree.tenants[at].name;
        let most = self.unused().available(at);
        if count > most {
            return Verdict::Never {
                words: format!(
                    "tenant {name} can never have {} {} GPUs: {} is all its quota and what it may borrow come to",
                    gpus(count),
                    self.covers,
                    gpus(most)
                ),
            };
        }
        let within = self.own[at] + count <= nominal;
        let reclaim = if within {
            self.reclaim(at, count)
        } else {
            Vec::new()
        };
        let used = self.own[at];
        let left = available.max(0);
        let mut words = format!(
            "tenant {name} uses {} of its {} {} GPUs and {} more are left to it, {} asked for",
            gpus(used),
            gpus(nominal),
            self.covers,
            gpus(left),
            gpus(count)
        );
        if let Some(first) = reclaim.first() {
            words = format!(
                "{words}; {} borrows {} of them",
                first.tenant,
                gpus(first.count)
            );
        }
        Verdict::Waits { words, reclaim }
    }

    /// Who has to give back how much until `count` fits: those who borrow most for their weight first, and
    /// only where it helps.
    fn reclaim(&self, at: usize, count: i64) -> Vec<Reclaim> {
        let mut borrowers: Vec<usize> = (0..self.own.len())
            .filter(|&other| other != at && self.borrowed(other) > 0)
            .collect();
        borrowers.sort_by_key(|&other| std::cmp::Reverse(self.share(other, 0)));
        let mut now = self.without(at, 0);
        let mut found = Vec::new();
        for other in borrowers {
            let missing = count - now.available(at);
            if missing <= 0 {
                break;
            }
            let most = now.borrowed(other);
            // Its first GPUs given back may only fill what its own tenants overdrew.
            let helped = |taken: i64| now.without(other, taken).available(at) - now.available(at);
            let gain = helped(most);
            if gain <= 0 {
                continue;
            }
            // More given back never helps less: halving finds the least that is enough.
            let wanted = missing.min(gain);
            let (mut short, mut taken) = (0, most);
            while taken - short > 1 {
                let middle = short + (taken - short) / 2;
                if helped(middle) >= wanted {
                    taken = middle;
                } else {
                    short = middle;
                }
            }
            now = now.without(other, taken);
            found.push(Reclaim {
                tenant: Arc::clone(&self.tree.tenants[other].name),
                count: taken,
            });
        }
        found
    }

    /// What a tenant would have borrowed with `more`, as a part of what its tree has, for its weight; 0 within
    /// its nominal share.
    pub(super) fn share(&self, at: usize, more: i64) -> u64 {
        let nominal = self.quota[at].nominal.max(0);
        let beyond = (self.own[at] + more - nominal).max(0);
        let root = self.tree.line_up(at).last().unwrap_or(at);
        let weight = i128::from(self.tree.tenants[at].weight.max(1));
        let whole = i128::from(self.whole[root].max(1));
        let share = i128::from(beyond) * PARTS / whole * 100 / weight;
        u64::try_from(share).unwrap_or(u64::MAX)
    }
}
