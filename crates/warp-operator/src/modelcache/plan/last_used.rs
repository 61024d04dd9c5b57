//! When files were last used. Told when use begins and when it ends, and between those once an hour: a cluster in which
//! nothing happens writes nothing else.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use warp_api::ModelCacheStatus;
use warp_api::modelcache::NodeCopy;
use warp_runtime::plan::Plan;

use crate::modelcache::observe::Seen;

/// How old the time may become while somebody uses the files.
const EVERY: SignedDuration = SignedDuration::from_hours(1);

/// When files were last used, by what was told `before`, whether somebody used them then and uses them now, and when the
/// last pod that can still be seen ended.
pub(super) fn told(
    before: Option<&Time>,
    (was, is): (bool, bool),
    ended: Option<Timestamp>,
    now: Timestamp,
) -> Option<Time> {
    let known = before.map(|time| time.0);
    if is {
        let fresh = known.filter(|at| was && now < due(*at));
        return Some(Time(fresh.unwrap_or(now)));
    }
    let ended = ended.filter(|at| known.is_none_or(|known| *at > known));
    // A pod that is gone took the time of its end along.
    let ended = ended.or(was.then_some(now));
    ended.or(known).map(Time)
}

fn due(told: Timestamp) -> Timestamp {
    told.checked_add(EVERY).unwrap_or(Timestamp::MAX)
}

/// Who uses the copy of one node, and when it was last used.
pub(super) fn of_copy(copy: &mut NodeCopy, folder: &str, seen: &Seen, now: Timestamp) {
    let here = |node: &str, mounted: &str| node == copy.name && mounted == folder;
    let users = seen.mounts.iter();
    let users = users.filter(|mount| here(&mount.node, &mount.folder));
    let users = i64::try_from(users.count()).unwrap_or(i64::MAX);
    let ended = seen.past_mounts.iter();
    let ended = ended.filter(|(mount, _)| here(&mount.node, &mount.folder));
    let ended = ended.map(|(_, at)| *at).max();
    let used = (copy.user_count > 0, users > 0);
    copy.last_used = told(copy.last_used.as_ref(), used, ended, now);
    copy.user_count = users;
}

/// Has the cache looked at when a time that was told becomes too old.
pub(super) fn look_again(status: &ModelCacheStatus, plan: &mut Plan) {
    let files = status.last_used.iter();
    let files = files.filter(|_| status.user_count > 0 && status.nodes.is_empty());
    let copies = status.nodes.iter().filter(|copy| copy.user_count > 0);
    let copies = copies.filter_map(|copy| copy.last_used.as_ref());
    if let Some(first) = files.chain(copies).map(|time| due(time.0)).min() {
        plan.look_again(first);
    }
}
