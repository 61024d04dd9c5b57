//! Which cloud: one row each.

use crate::wire::{Answer, Asked};
use crate::world::World;
use crate::{aws, azure, gcp, lambda, paperspace, runpod, vast};

/// The clouds there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Brand {
    Lambda,
    Runpod,
    Vast,
    Aws,
    Gcp,
    Azure,
    Paperspace,
}

impl Brand {
    pub const ALL: [Self; 7] = [
        Self::Lambda,
        Self::Runpod,
        Self::Vast,
        Self::Aws,
        Self::Gcp,
        Self::Azure,
        Self::Paperspace,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lambda => "lambda",
            Self::Runpod => "runpod",
            Self::Vast => "vast",
            Self::Aws => "aws",
            Self::Gcp => "gcp",
            Self::Azure => "azure",
            Self::Paperspace => "paperspace",
        }
    }

    pub(crate) fn answer(self, world: &mut World, asked: &Asked) -> Answer {
        match self {
            Self::Lambda => lambda::answer(world, asked),
            Self::Runpod => runpod::answer(world, asked),
            Self::Vast => vast::answer(world, asked),
            Self::Aws => aws::answer(world, asked),
            Self::Gcp => gcp::answer(world, asked),
            Self::Azure => azure::answer(world, asked),
            Self::Paperspace => paperspace::answer(world, asked),
        }
    }
}

/// What the suites must know about a vendor.
impl Brand {
    /// What the request of a launch contains and no other does.
    pub fn launches(self) -> &'static str {
        match self {
            Self::Lambda => "POST /api/v1/instance-operations/launch",
            Self::Runpod => "POST /v2/pods",
            Self::Vast => "PUT /api/v0/asks/",
            Self::Aws => "Action=RunInstances",
            Self::Gcp => "instances?requestId=",
            Self::Azure => "PUT /subscriptions/",
            Self::Paperspace => "POST /v1/machines",
        }
    }

    /// Whether repeating a launch is known to be the same launch.
    pub fn knows_repetitions(self) -> bool {
        matches!(self, Self::Aws | Self::Gcp | Self::Azure)
    }

    /// Whether "the account may not have more" has an answer of its own.
    pub fn tells_quota(self) -> bool {
        !matches!(self, Self::Runpod | Self::Vast)
    }

    /// Whether "the account has no money" has an answer of its own.
    pub fn tells_balance(self) -> bool {
        true
    }

    /// Whether a machine carries nothing but its name.
    pub fn has_no_marks(self) -> bool {
        self == Self::Paperspace
    }

    /// Whether it can be asked for its prices.
    pub fn tells_prices(self) -> bool {
        self != Self::Paperspace
    }
}
