//! Files that a machine nearby has: taken from there instead of from the hub, if they are the same by their digests.

use std::collections::BTreeMap;

use crate::client::Client;
use crate::hub;
use crate::listing::Listing;
use crate::source::Hub;

/// Has every file come from the first of `peers` that has it. One that does not answer, or has something else, changes
/// nothing.
pub(crate) async fn prefer(client: &Client, peers: &[String], hub: &Hub, listing: &mut Listing) {
    let Some(commit) = listing.commit.clone() else {
        return;
    };
    let mut found = BTreeMap::new();
    for peer in peers {
        let wanted = Hub {
            name: hub.name.clone(),
            revision: commit.clone(),
        };
        let Ok(theirs) = hub::list(client, peer, &wanted).await else {
            continue;
        };
        if theirs.commit.as_ref() != Some(&commit) {
            continue;
        }
        for file in theirs.files {
            found.entry(file.path.clone()).or_insert(file);
        }
    }
    for file in &mut listing.files {
        let Some(nearby) = found.remove(&file.path) else {
            continue;
        };
        if nearby.size == file.size && nearby.digest.is_some() && nearby.digest == file.digest {
            file.place = nearby.place;
        }
    }
}
