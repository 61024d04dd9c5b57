//! Whose a machine is, and which machines belong to nobody. Pure.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use warp_api::GPURequest;
use warp_api::cloudprovider::CloudMachine;
use warp_cloud::{Machine, Mark, State};

use super::observe::Seen;

/// A machine without an owner is ended when this has passed since it was first seen so: longer than any cache is
/// behind, and longer than a request takes to be written.
const GRACE: SignedDuration = SignedDuration::from_mins(5);

/// A list this old says nothing new about what belongs to whom.
const FRESH: SignedDuration = SignedDuration::from_secs(5);

/// The request a machine belongs to: its attempt has the machine's name and, once it is known, its id.
fn owner(requests: &[Arc<GPURequest>], provider: &str, machine: &Machine) -> Option<String> {
    let owns = |request: &&Arc<GPURequest>| {
        let attempts = request.status.iter().flat_map(|status| &status.attempts);
        let mut matching = attempts.filter(|attempt| {
            attempt.provider == provider
                && attempt.machine == machine.name
                && attempt.outcome.is_none()
        });
        matching.any(|attempt| {
            let id = attempt.instance_id.as_ref();
            id.is_none_or(|id| *id == machine.id)
        })
    };
    let found = requests.iter().find(owns)?;
    Some(format!(
        "{}/{}",
        found.namespace().unwrap_or_default(),
        found.name_any()
    ))
}

/// The machines of the cloud with their owners, in the order of their names. `before` is what was said last.
pub(super) fn machines(
    found: &[Machine],
    requests: &[Arc<GPURequest>],
    provider: &str,
    mark: &Mark,
    before: &[CloudMachine],
    (asked, now): (Timestamp, Timestamp),
) -> Vec<CloudMachine> {
    let ours = found.iter().filter(|machine| mark.is_on(&machine.name));
    let mut all: Vec<CloudMachine> = ours
        .filter_map(|machine| {
            let request = owner(requests, provider, machine);
            let known = before.iter().find(|known| known.id == machine.id);
            let since = known.and_then(|known| known.unowned_since.clone());
            // Its request went after the cloud was asked: what the cloud says next counts.
            if request.is_none() && since.is_none() && now.duration_since(asked) > FRESH {
                return None;
            }
            let unowned_since = match request {
                Some(_) => None,
                None => Some(since.unwrap_or(Time(now))),
            };
            Some(CloudMachine {
                id: machine.id.clone(),
                name: machine.name.clone(),
                state: word(machine.state),
                request,
                price: machine.price.map(|price| price.normalize().to_string()),
                unowned_since,
            })
        })
        .collect();
    all.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
    all
}

/// Whether requests know better than the last list: one has a machine that is not in it, or one that is in it belongs
/// to nobody.
pub(super) fn is_behind(provider: &str, seen: &Seen) -> bool {
    let (Some(listed), Some(mark)) = (&seen.listed, &seen.mark) else {
        return false;
    };
    let has = |id: &str| listed.machines.iter().any(|machine| machine.id == id);
    let attempts = seen
        .requests
        .iter()
        .filter_map(|request| request.status.as_ref())
        .flat_map(|status| &status.attempts);
    let mut open =
        attempts.filter(|attempt| attempt.provider == provider && attempt.outcome.is_none());
    let missing = open.any(|attempt| attempt.instance_id.as_ref().is_some_and(|id| !has(id)));
    let ours = listed
        .machines
        .iter()
        .filter(|machine| mark.is_on(&machine.name));
    let mut unowned = ours.filter(|machine| owner(&seen.requests, provider, machine).is_none());
    missing || unowned.next().is_some()
}

/// When a machine without an owner is ended.
pub(super) fn ends_at(machine: &CloudMachine) -> Option<Timestamp> {
    let since = machine.unowned_since.as_ref()?;
    Some(since.0.checked_add(GRACE).unwrap_or(Timestamp::MAX))
}

/// A state as the API writes it.
pub(super) fn word(state: State) -> String {
    let text = serde_json::to_value(state).unwrap_or_default();
    text.as_str().unwrap_or_default().to_owned()
}
