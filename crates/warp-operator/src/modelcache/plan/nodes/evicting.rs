//! Copies that make room for others on their node: first the node no longer offers it, then it is removed, if nobody came
//! in between; then it waits for room or for somebody who needs it.

use kube::{Resource, ResourceExt};
use warp_api::modelcache::{CopyPhase, NodeCopy};
use warp_api::{ModelCache, reason};
use warp_runtime::plan::{Plan, about};

use super::super::job::job_condition;
use super::{Pass, Room, namespace, same};
use crate::modelcache::objects::nodes::{copy_name, drop_name, node_label, removal};

impl Pass<'_> {
    /// Why a copy is to go from its node, or is going, if it is: outer none where it stays, inner none where it goes for
    /// no reason that is to be remembered.
    #[expect(clippy::option_option, reason = "whether, and then why")]
    pub(super) fn goes(&self, copy: &NodeCopy, room: &Room) -> Option<Option<String>> {
        if copy.phase == CopyPhase::Removing {
            return Some(copy.message.clone());
        }
        if !matches!(copy.phase, CopyPhase::Ready | CopyPhase::Failed) {
            return None;
        }
        let taken = self.others(copy).find(|(cache, one)| {
            let first = cache.name_any() < self.cache.name_any();
            first && one.phase == CopyPhase::Removing
        });
        let taken = taken.and_then(|(_, one)| one.message.clone());
        room.evicts(&copy.uid).or(taken).map(Some)
    }

    /// The same copy, as other caches of its content have it.
    fn others(&self, copy: &NodeCopy) -> impl Iterator<Item = (&ModelCache, &NodeCopy)> {
        let siblings = self.seen.siblings.iter().map(|one| &**one);
        let siblings = siblings.filter(|one| {
            let path = one.spec.nodes.as_ref().map(|copies| &copies.path);
            one.meta().deletion_timestamp.is_none() && path == Some(&self.copies.path)
        });
        let (uid, key) = (copy.uid.clone(), copy.content_key.clone());
        siblings.flat_map(move |sibling| {
            let (uid, key) = (uid.clone(), key.clone());
            let theirs = sibling.status.iter().flat_map(|status| &status.nodes);
            let theirs = theirs.filter(move |one| one.uid == uid && one.content_key == key);
            theirs.map(move |one| (sibling, one))
        })
    }

    /// The next step of a copy that goes; none when it is gone and not missed.
    pub(super) fn evict(
        &mut self,
        mut copy: NodeCopy,
        why: Option<String>,
        plan: &mut Plan,
    ) -> Option<NodeCopy> {
        let name = drop_name(self.cache, &copy.name, &copy.content_key);
        let job = self.job(&name).cloned();
        let going = copy.phase == CopyPhase::Removing;
        if copy.user_count > 0 && job.is_none() {
            // Somebody came before it was gone.
            (copy.phase, copy.message) = (CopyPhase::Ready, None);
            return Some(copy);
        }
        if !going && job.is_some() {
            // An earlier removal has said everything; its Job goes first.
            return Some(copy);
        }
        let held = |one: &NodeCopy| !matches!(one.phase, CopyPhase::Evicted | CopyPhase::Pending);
        let first = self.others(&copy).filter(|(_, one)| held(one));
        let first = first.map(|(cache, _)| cache.name_any()).min();
        if why.is_some() && first.is_some_and(|first| first < self.cache.name_any()) {
            // One of those that share it removes it.
            return Some(evicted(copy, why));
        }
        if !going {
            let words = why.clone().unwrap_or_default();
            let message = format!("its copy on node {} goes: {words}", copy.name);
            plan.note(about(self.cache), false, reason::EVICTED, message);
            (copy.phase, copy.message) = (CopyPhase::Removing, why);
            return Some(copy);
        }
        let Some(job) = job else {
            self.remove(&copy, &name, plan);
            self.needed.push(name);
            return Some(copy);
        };
        self.needed.push(name.clone());
        if job_condition(&job, "Complete").is_some() {
            return why.is_some().then(|| evicted(copy, why));
        }
        if let Some((_, word, _)) = job_condition(&job, "Failed") {
            copy.message = Some(format!(
                "it could not be removed ({word}): delete Job {name} to try again"
            ));
        }
        Some(copy)
    }

    /// Has a copy removed that the node no longer offers and nobody keeps or writes.
    fn remove(&self, copy: &NodeCopy, name: &str, plan: &mut Plan) {
        let label = node_label(&namespace(self.cache), &copy.content_key);
        let offered = same(copy, self.seen).is_some_and(|node| node.labels().contains_key(&label));
        let kept = self
            .others(copy)
            .any(|(_, one)| one.phase == CopyPhase::Ready);
        let written = copy_name(self.cache, &copy.name, &copy.content_key);
        let Some(image) = &self.seen.fetcher.image else {
            return;
        };
        if offered || kept || self.job(&written).is_some() {
            return;
        }
        let folder = self.folder(&copy.content_key);
        let what = (&*folder, &*copy.content_key);
        let job = removal(self.cache, (&self.seen.fetcher, image), &copy.name, what);
        debug_assert_eq!(job.name_any(), name);
        plan.create_or_find(&job);
    }
}

fn evicted(mut copy: NodeCopy, why: Option<String>) -> NodeCopy {
    (copy.phase, copy.message) = (CopyPhase::Evicted, why);
    (copy.room, copy.fetched_at) = (None, None);
    copy
}
