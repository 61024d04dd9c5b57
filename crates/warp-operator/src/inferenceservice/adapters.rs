//! Which adapters can be asked for: those declared, beside what the copies that answer say they serve. Engines get them
//! with their arguments, so every start loads them again. Pure.

use std::collections::BTreeSet;

use warp_api::InferenceService;
use warp_api::inferenceservice::AdapterStatus;

use super::assess::is_ready;
use super::observe::Seen;

/// The models and adapters one copy says it serves; none: it has not said.
pub(crate) type Served = Option<BTreeSet<String>>;

pub(super) fn status(service: &InferenceService, seen: &Seen) -> Vec<AdapterStatus> {
    let answer = seen.pods.iter().any(|pod| is_ready(pod));
    let said: Vec<&BTreeSet<String>> = seen.served.iter().flatten().collect();
    let declared = service.spec.model.adapters.iter();
    declared
        .map(|adapter| {
            let with = said.iter().filter(|served| served.contains(&adapter.name));
            let copies = with.count();
            let (ready, reason) = match (answer, said.len()) {
                (false, _) => (false, "NoCopies"),
                (true, 0) => (false, "NoAnswer"),
                (true, all) if copies == all => (true, "Loaded"),
                (true, _) => (false, "NotLoaded"),
            };
            AdapterStatus {
                name: adapter.name.clone(),
                ready,
                reason: reason.to_owned(),
                copies: i32::try_from(copies).unwrap_or(i32::MAX),
            }
        })
        .collect()
}
