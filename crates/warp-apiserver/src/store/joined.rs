//! Lines of consecutive events, put together once for every watcher that wants all of them.
//!
//! Most watchers of a resource stand at the same place and want the same: each would copy the same lines
//! into a chunk of its own. The last few chunks are kept by their place in the ring, which never comes
//! again, so a kept chunk is never wrong.

use std::collections::VecDeque;

use bytes::Bytes;
use parking_lot::Mutex;

use super::Event;
use super::watch::write_line;

/// Chunks kept: watchers of the whole resource and of some namespaces, now and a moment ago.
const KEPT: usize = 8;
/// Bytes after which a chunk takes no more events.
const ENOUGH: usize = 64 << 10;

/// What a watcher wants that takes events as they are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    pub namespace: Option<String>,
    /// The schema its objects must have been written under; any for built-in kinds.
    pub epoch: Option<u64>,
}

/// Lines ready to be sent, and how many.
#[derive(Clone, Debug)]
pub struct Lines {
    pub bytes: Bytes,
    pub count: u64,
}

#[derive(Debug)]
struct Join {
    whole: Whole,
    from: u64,
    to: u64,
    lines: Lines,
}

#[derive(Debug, Default)]
pub(super) struct Joins(Mutex<VecDeque<Join>>);

impl Joins {
    /// The kept chunk that begins at `from`, and where the next one does.
    pub(super) fn find(&self, whole: &Whole, from: u64) -> Option<(Lines, u64)> {
        let kept = self.0.lock();
        let join = kept
            .iter()
            .find(|join| join.from == from && join.whole == *whole)?;
        Some((join.lines.clone(), join.to))
    }

    /// Joins the events, the first of which stands at `from`; `None` when the first has to be shown
    /// otherwise than it is stored.
    pub(super) fn make<'a>(
        &self,
        whole: &Whole,
        from: u64,
        events: impl Iterator<Item = &'a Event>,
    ) -> Option<(Lines, u64)> {
        let mut bytes = Vec::new();
        let (mut to, mut count) = (from, 0);
        for event in events {
            let object = &event.object;
            let plain = whole.epoch.is_none_or(|epoch| epoch == object.epoch);
            if !plain || bytes.len() >= ENOUGH {
                break;
            }
            to += 1;
            let wanted = whole.namespace.as_deref();
            if wanted.is_none_or(|namespace| object.namespace() == Some(namespace)) {
                write_line(event.kind, &object.bytes, &mut bytes);
                count += 1;
            }
        }
        if to == from {
            return None;
        }
        let bytes = Bytes::from(bytes);
        let lines = Lines { bytes, count };
        let join = Join {
            whole: whole.clone(),
            from,
            to,
            lines: lines.clone(),
        };
        let mut kept = self.0.lock();
        if kept.len() == KEPT {
            kept.pop_back();
        }
        kept.push_front(join);
        Some((lines, to))
    }
}
