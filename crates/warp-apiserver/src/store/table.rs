//! The objects of one resource and the ring of their latest changes.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use parking_lot::{RwLock, RwLockReadGuard};
use tokio::sync::watch as signal;

use super::joined::{Joins, Lines, Whole};
use super::watch::{Batch, Cursor, Event, EventKind};
use super::{Progress, RING_EVENTS, Stored, TooOld};

/// Bytes of objects a ring of the usual length may keep alive before it forgets events early; a longer one more.
const RING_BYTES: usize = 32 << 20;
/// Events a ring keeps however large they are.
const RING_FLOOR: usize = 128;

/// The objects of one resource (all its versions).
pub struct Table {
    id: u32,
    name: String,
    inner: RwLock<Inner>,
    signal: signal::Sender<u64>,
    joins: Joins,
    progress: OnceLock<Arc<Progress>>,
}

struct Inner {
    objects: BTreeMap<Arc<str>, Arc<Stored>>,
    ring: VecDeque<Arc<Event>>,
    /// Sequence number of the ring's first event.
    first: u64,
    /// Revision of the newest event that is no longer in the ring, or of the last compaction.
    base: u64,
    /// Revision of the newest event.
    last: u64,
    ring_bytes: usize,
    ring_events: usize,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// Which objects a list wants.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageQuery<'a> {
    pub namespace: Option<&'a str>,
    /// Only keys after this one.
    pub after: Option<&'a str>,
    /// 0 is no limit.
    pub limit: usize,
    /// State at exactly this revision instead of now.
    pub at: Option<u64>,
}

/// A consistent part of a table.
#[derive(Debug)]
pub struct Page {
    pub objects: Vec<Arc<Stored>>,
    pub revision: u64,
    /// Objects after the last one that were not looked at; 0 when the page is the last.
    pub remaining: usize,
}

/// A table nobody can change meanwhile.
pub(super) struct Still<'a>(RwLockReadGuard<'a, Inner>);

impl Still<'_> {
    pub(super) fn objects(&self) -> Vec<Arc<Stored>> {
        self.0.objects.values().cloned().collect()
    }

    /// Revision of the newest change.
    pub(super) fn last(&self) -> u64 {
        self.0.last
    }
}

impl Table {
    pub(super) fn new(
        id: u32,
        name: String,
        objects: Vec<Arc<Stored>>,
        opened: u64,
        ring_events: usize,
    ) -> Self {
        let objects = objects
            .into_iter()
            .map(|object| (Arc::clone(&object.key), object))
            .collect();
        Self {
            id,
            name,
            inner: RwLock::new(Inner {
                objects,
                ring: VecDeque::new(),
                first: 0,
                base: opened,
                last: opened,
                ring_bytes: 0,
                ring_events,
            }),
            signal: signal::channel(0).0,
            joins: Joins::default(),
            progress: OnceLock::new(),
        }
    }

    pub(super) fn follow(&self, progress: Arc<Progress>) {
        let _ = self.progress.set(progress);
    }

    pub(super) fn id(&self) -> u32 {
        self.id
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn len(&self) -> usize {
        self.inner.read().objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn get(&self, key: &str) -> Option<Arc<Stored>> {
        self.inner.read().objects.get(key).cloned()
    }

    /// All objects of a namespace, or of the whole table.
    pub fn all(&self, namespace: Option<&str>) -> Vec<Arc<Stored>> {
        let inner = self.inner.read();
        inner
            .range(namespace, None)
            .map(|(_, object)| Arc::clone(object))
            .collect()
    }

    /// The table as it is until the answer is dropped.
    pub(super) fn still(&self) -> Still<'_> {
        Still(self.inner.read())
    }

    /// Every revision up to the answer is in the table, and none after it.
    ///
    /// Publishing is sequential and needs the table's write lock, so while a read lock is held the
    /// global revision cannot pass an event of this table that has not been applied to it.
    fn revision(&self, inner: &RwLockReadGuard<'_, Inner>) -> u64 {
        let published = self
            .progress
            .get()
            .map_or(0, |progress| progress.published.load(Ordering::Acquire));
        published.max(inner.last)
    }

    /// A page of the table; `keep` is asked for each object in key order.
    pub fn page(
        &self,
        query: PageQuery<'_>,
        mut keep: impl FnMut(&Stored) -> bool,
    ) -> Result<Page, TooOld> {
        let inner = self.inner.read();
        let revision = self.revision(&inner);
        let at = query.at.unwrap_or(revision);
        let changed = inner.changed_since(at)?;
        let mut objects = Vec::new();
        let mut remaining = 0;
        let mut visit = |object: &Arc<Stored>| {
            if query.limit > 0 && objects.len() >= query.limit {
                remaining += 1;
            } else if keep(object) {
                objects.push(Arc::clone(object));
            }
        };
        let mut past = changed
            .range::<str, _>(Inner::bounds(query.namespace, query.after).as_ref())
            .filter_map(|(key, before)| before.as_ref().map(|object| (key, object)))
            .peekable();
        for (key, object) in inner.range(query.namespace, query.after) {
            while let Some((_, before)) = past.next_if(|(past_key, _)| *past_key < key) {
                visit(before);
            }
            match changed.get(key) {
                None => visit(object),
                Some(None) => {}
                Some(Some(before)) => {
                    visit(before);
                    past.next_if(|(past_key, _)| *past_key == key);
                }
            }
        }
        past.for_each(|(_, before)| visit(before));
        Ok(Page {
            objects,
            revision: at,
            remaining,
        })
    }

    /// Events after `revision`.
    pub fn watch_from(self: &Arc<Self>, revision: u64) -> Result<Cursor, TooOld> {
        let inner = self.inner.read();
        if revision < inner.base {
            return Err(TooOld {
                asked: revision,
                oldest: inner.base,
            });
        }
        let skipped = inner
            .ring
            .partition_point(|event| event.revision() <= revision);
        let next = inner.first + skipped as u64;
        Ok(Cursor::new(Arc::clone(self), next, self.signal.subscribe()))
    }

    /// The current state and the events after it.
    pub fn list_and_watch(self: &Arc<Self>, namespace: Option<&str>) -> (Page, Cursor) {
        let inner = self.inner.read();
        let objects = inner
            .range(namespace, None)
            .map(|(_, object)| Arc::clone(object))
            .collect();
        let page = Page {
            objects,
            revision: self.revision(&inner),
            remaining: 0,
        };
        let next = inner.first + inner.ring.len() as u64;
        (
            page,
            Cursor::new(Arc::clone(self), next, self.signal.subscribe()),
        )
    }

    /// Up to `most` events from sequence number `next` on.
    pub(super) fn read(&self, next: u64, most: usize) -> Batch {
        let inner = self.inner.read();
        let Some(offset) = next.checked_sub(inner.first) else {
            return Batch::Lost;
        };
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        if offset >= inner.ring.len() {
            return Batch::Idle(self.revision(&inner));
        }
        Batch::Events(inner.ring.range(offset..).take(most).cloned().collect())
    }

    /// Whether there are events from sequence number `next` on.
    pub(super) fn has_after(&self, next: u64) -> bool {
        let inner = self.inner.read();
        inner.first + inner.ring.len() as u64 > next
    }

    /// Lines of up to `most` events from sequence number `next` on, and the number after them.
    pub(super) fn lines(&self, whole: &Whole, next: u64, most: usize) -> Option<(Lines, u64)> {
        if let Some(found) = self.joins.find(whole, next) {
            return Some(found);
        }
        let inner = self.inner.read();
        let offset = usize::try_from(next.checked_sub(inner.first)?).ok()?;
        if offset >= inner.ring.len() {
            return None;
        }
        let events = inner.ring.range(offset..).take(most);
        self.joins.make(whole, next, events.map(AsRef::as_ref))
    }

    /// Makes a change visible to readers; watchers look when it is announced.
    pub(super) fn apply(&self, event: &Arc<Event>) {
        let mut inner = self.inner.write();
        let object = &event.object;
        match event.kind {
            EventKind::Deleted => {
                inner.objects.remove(&object.key);
            }
            EventKind::Added | EventKind::Modified => {
                inner
                    .objects
                    .insert(Arc::clone(&object.key), Arc::clone(object));
            }
        }
        inner.remember(Arc::clone(event));
        // Before the lock goes: whoever reads this revision here may ask for it anywhere.
        if let Some(progress) = self.progress.get() {
            progress
                .published
                .store(event.revision(), Ordering::Release);
        }
    }

    /// Forgets the changes up to `revision`.
    pub(super) fn forget(&self, revision: u64) {
        let mut inner = self.inner.write();
        while inner
            .ring
            .front()
            .is_some_and(|event| event.revision() <= revision)
        {
            inner.forget_oldest();
        }
        inner.base = inner.base.max(revision);
        inner.ring.shrink_to_fit();
    }

    /// Wakes the watchers: there are events up to `revision`.
    pub(super) fn announce(&self, revision: u64) {
        self.signal.send_replace(revision);
    }

    /// How many watchers there are.
    pub(super) fn watchers(&self) -> usize {
        self.signal.receiver_count()
    }

    /// Whether `revision` can still be watched from.
    pub fn oldest(&self) -> u64 {
        self.inner.read().base
    }

    /// Whether a change since the table was opened is no longer remembered.
    pub fn has_forgotten(&self) -> bool {
        self.inner.read().first > 0
    }
}

/// Bounds of a scan, owned so that they can be handed to `range`.
struct Bounds(Bound<String>, Bound<String>);

impl Bounds {
    fn as_ref(&self) -> (Bound<&str>, Bound<&str>) {
        fn inner(bound: &Bound<String>) -> Bound<&str> {
            match bound {
                Bound::Included(key) => Bound::Included(key),
                Bound::Excluded(key) => Bound::Excluded(key),
                Bound::Unbounded => Bound::Unbounded,
            }
        }
        (inner(&self.0), inner(&self.1))
    }

    fn is_empty(&self) -> bool {
        match (&self.0, &self.1) {
            (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to)) => from >= to,
            _ => false,
        }
    }
}

impl Inner {
    fn bounds(namespace: Option<&str>, after: Option<&str>) -> Bounds {
        // '0' is the byte after '/': the end of a namespace's keys.
        let (mut from, to) = match namespace {
            Some(namespace) => (
                Bound::Included(format!("{namespace}/")),
                Bound::Excluded(format!("{namespace}0")),
            ),
            None => (Bound::Unbounded, Bound::Unbounded),
        };
        if let Some(after) = after {
            let later = match &from {
                Bound::Included(start) => after >= start.as_str(),
                _ => true,
            };
            if later {
                from = Bound::Excluded(after.to_owned());
            }
        }
        let bounds = Bounds(from, to);
        if bounds.is_empty() {
            // An empty scan that every map accepts.
            return Bounds(
                Bound::Included(String::new()),
                Bound::Excluded(String::new()),
            );
        }
        bounds
    }

    fn range(
        &self,
        namespace: Option<&str>,
        after: Option<&str>,
    ) -> std::collections::btree_map::Range<'_, Arc<str>, Arc<Stored>> {
        self.objects
            .range::<str, _>(Self::bounds(namespace, after).as_ref())
    }

    /// For every key changed after `revision`: what it was then.
    fn changed_since(
        &self,
        revision: u64,
    ) -> Result<BTreeMap<Arc<str>, Option<Arc<Stored>>>, TooOld> {
        if revision < self.base {
            return Err(TooOld {
                asked: revision,
                oldest: self.base,
            });
        }
        let mut changed = BTreeMap::new();
        let from = self
            .ring
            .partition_point(|event| event.revision() <= revision);
        for event in self.ring.range(from..) {
            changed
                .entry(Arc::clone(&event.object.key))
                .or_insert_with(|| event.previous.clone());
        }
        Ok(changed)
    }

    fn remember(&mut self, event: Arc<Event>) {
        self.last = event.revision();
        self.ring_bytes += event.weight();
        self.ring.push_back(event);
        let most_bytes = RING_BYTES * (self.ring_events / RING_EVENTS).max(1);
        while self.ring.len() > self.ring_events
            || (self.ring_bytes > most_bytes && self.ring.len() > RING_FLOOR)
        {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.ring.pop_front() {
            self.first += 1;
            self.base = self.base.max(oldest.revision());
            self.ring_bytes -= oldest.weight();
        }
    }
}
