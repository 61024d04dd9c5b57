//! Changes that would let a gang start now. Pure: whether one does is asked of the caller.

use warp_api::GPUWorkload;

/// Changes of a gang, each tried on the snapshot, that would let it start now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GangChanges {
    /// The most members that fit, where that is fewer than it has.
    pub members: Option<i32>,
    /// All of them fit where they need not be close together.
    pub apart: bool,
}

/// What would let a gang start now; `starts` tries a change.
pub(super) fn changes(own: &GPUWorkload, starts: impl Fn(GPUWorkload) -> bool) -> GangChanges {
    let with = |change: &dyn Fn(&mut GPUWorkload)| {
        let mut changed = own.clone();
        change(&mut changed);
        starts(changed)
    };
    let fits = |members: i32| {
        with(&|changed| {
            changed.spec.replicas = Some(members);
            changed.spec.min_replicas = None;
        })
    };
    // Fits, and does not; a gang has two members at least.
    let all = i32::try_from(own.spec.members()).unwrap_or(i32::MAX);
    let (mut most, mut too_many) = (1, all);
    while too_many - most > 1 {
        let middle = most.midpoint(too_many);
        if fits(middle) {
            most = middle;
        } else {
            too_many = middle;
        }
    }
    GangChanges {
        members: (most > 1 || fits(1)).then_some(most),
        apart: own.spec.topology.is_some() && with(&|changed| changed.spec.topology = None),
    }
}
