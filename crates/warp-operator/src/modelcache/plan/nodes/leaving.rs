//! Copies that go from their nodes, and what then goes with them: the nodes' labels, Jobs nobody needs, at last the cache.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use kube::{Resource, ResourceExt};
use serde_json::json;
use warp_api::modelcache::{CopyPhase, NodeCopies, NodeCopy};
use warp_api::{ModelCache, label, reason};
use warp_runtime::plan::{Encoding, Plan, about};

use super::super::job::job_condition;
use super::super::{FINALIZER, Verdict, carried_over, first_of, tell};
use super::{Pass, namespace, same};
use crate::modelcache::objects::content_key;
use crate::modelcache::objects::nodes::{copy_name, drop_name, node_label, removal};
use crate::modelcache::observe::Seen;

impl Pass<'_> {
    /// A copy that is to go: none when it is gone.
    pub(super) fn leave(&mut self, mut copy: NodeCopy, plan: &mut Plan) -> Option<NodeCopy> {
        let node = same(&copy, self.seen)?;
        if copy.phase == CopyPhase::Evicted {
            return None;
        }
        let held = self.seen.siblings.iter().any(|sibling| {
            let path = sibling.spec.nodes.as_ref().map(|copies| &copies.path);
            let status = sibling.status.as_ref();
            let going = sibling.meta().deletion_timestamp.is_some();
            !going
                && path == Some(&self.copies.path)
                && status.is_some_and(|status| {
                    let mut theirs = status.nodes.iter();
                    theirs.any(|one| {
                        let same = one.uid == copy.uid && one.content_key == copy.content_key;
                        same && one.phase != CopyPhase::Evicted
                    })
                })
        });
        if held {
            return None;
        }
        let folder = self.folder(&copy.content_key);
        let users: Vec<String> = self
            .seen
            .mounts
            .iter()
            .filter(|mount| mount.node == copy.name && mount.folder == folder)
            .map(|mount| mount.pod.clone())
            .collect();
        if !users.is_empty() {
            copy.message = Some(format!("it goes when pods {} are gone", first_of(&users)));
            return Some(copy);
        }
        let label = node_label(&namespace(self.cache), &copy.content_key);
        if node.labels().contains_key(&label) {
            plan.patch(
                node,
                Encoding::Merge,
                json!({"metadata": {"labels": {label: null}}}),
            );
            plan.because("its copy goes");
        }
        let fetching = copy_name(self.cache, &copy.name, &copy.content_key);
        let began = copy.phase != CopyPhase::Pending || self.job(&fetching).is_some();
        let image = self.seen.fetcher.image.as_ref()?;
        if !began {
            return None;
        }
        let name = drop_name(self.cache, &copy.name, &copy.content_key);
        let Some(job) = self.job(&name) else {
            // Nobody writes there any more when the fetch is gone.
            if self.job(&fetching).is_none() {
                let at = &*copy.name;
                let what = (&*folder, &*copy.content_key);
                let job = removal(self.cache, (&self.seen.fetcher, image), at, what);
                plan.create_or_find(&job);
            }
            self.needed.push(name);
            copy.phase = CopyPhase::Removing;
            copy.message = None;
            return Some(copy);
        };
        if job_condition(job, "Complete").is_some() {
            // It goes when the status no longer names the copy: a crash in between must not remove it twice.
            self.needed.push(name);
            return None;
        }
        if let Some((_, why, _)) = job_condition(job, "Failed") {
            let message = format!(
                "the copy in {folder} of node {} could not be removed ({why}): remove it by hand",
                copy.name
            );
            plan.note(about(self.cache), true, reason::COPY_LEFT, message);
            self.needed.push(name);
            return None;
        }
        self.needed.push(name);
        copy.phase = CopyPhase::Removing;
        copy.message = None;
        Some(copy)
    }

    /// Nodes carry the label of the content exactly as long as they have it.
    pub(super) fn label(&self, now: &[NodeCopy], plan: &mut Plan) {
        let label = node_label(&namespace(self.cache), &self.key);
        let siblings = self.seen.siblings.iter();
        let theirs = siblings.filter(|one| one.meta().deletion_timestamp.is_none());
        let theirs = theirs.filter_map(|one| one.status.as_ref());
        let theirs: Vec<&NodeCopy> = theirs.flat_map(|status| &status.nodes).collect();
        for node in self.seen.nodes.iter().flatten() {
            let uid = node.uid().unwrap_or_default();
            let has = |copy: &NodeCopy| {
                copy.uid == uid && copy.content_key == self.key && copy.phase == CopyPhase::Ready
            };
            let holds = now.iter().any(has) || theirs.iter().any(|copy| has(copy));
            let labelled = node.labels().get(&label).map(String::as_str);
            let value = match (holds, labelled) {
                (true, Some(label::HELD)) | (false, None) => continue,
                (true, _) => json!(label::HELD),
                (false, Some(_)) => json!(null),
            };
            let label = label.clone();
            plan.patch(
                &**node,
                Encoding::Merge,
                json!({"metadata": {"labels": {label: value}}}),
            );
            plan.because("nodes are labelled with the models they have");
        }
    }

    /// Jobs that nobody needs go; one that brought a copy, when the copy is recorded.
    pub(super) fn tidy(&self, plan: &mut Plan) {
        let unneeded: Vec<&Job> = self
            .jobs()
            .filter(|job| job.meta().deletion_timestamp.is_none())
            .filter(|job| !self.needed.contains(&job.name_any()))
            .collect();
        for job in unneeded {
            plan.delete_version(job);
        }
    }
}

/// A cache that is being deleted: its copies go from their nodes, each when nobody mounts it; it goes with the last.
pub(in crate::modelcache::plan) fn go(
    cache: &ModelCache,
    copies: &NodeCopies,
    seen: &Seen,
    now: Timestamp,
    plan: &mut Plan,
) {
    let before = cache.status.clone().unwrap_or_default();
    let mut after = carried_over(cache, &before, seen, now);
    let mut pass = Pass {
        cache,
        copies,
        seen,
        key: content_key(&cache.spec),
        now,
        needed: Vec::new(),
        nowhere: false,
    };
    let old = std::mem::take(&mut after.nodes);
    if seen.services.is_empty() {
        let left: Vec<NodeCopy> = old
            .into_iter()
            .filter_map(|copy| pass.leave(copy, plan))
            .collect();
        after.nodes = left;
        pass.tidy(plan);
    } else {
        after.nodes = old;
    }
    if after.nodes.is_empty() && seen.services.is_empty() {
        "nobody uses its copies, and they are gone".clone_into(&mut plan.why);
        plan.remove_finalizer(cache, FINALIZER);
        return;
    }
    let services = match seen.services.as_slice() {
        [] => None,
        names => Some(format!(
            "InferenceServices {} no longer name it",
            first_of(names)
        )),
    };
    let pods = match after.users.as_slice() {
        [] => None,
        names => Some(format!(
            "pods {} no longer mount its files",
            first_of(names)
        )),
    };
    let users: Vec<String> = [services, pods].into_iter().flatten().collect();
    let verdict = if users.is_empty() {
        let names: Vec<String> = after.nodes.iter().map(|copy| copy.name.clone()).collect();
        let message = format!(
            "it is deleted when its copies are gone from {}",
            first_of(&names)
        );
        Verdict::new(before.phase, reason::REMOVING, message)
    } else {
        let message = format!(
            "it is deleted when {}; delete them, or wait",
            users.join(" and ")
        );
        Verdict::new(before.phase, reason::IN_USE, message)
    };
    tell(cache, &before, after, &verdict, now, plan);
}
