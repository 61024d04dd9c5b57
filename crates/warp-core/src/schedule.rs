//! Where one request goes: which nodes it fits (`fit`), which of them it would rather have (`score`),
//! which of those is best (`strategy`), and a
//! planner that remembers ratings so that a decision costs what changed since the last one. What fits nowhere may be
//! kept room (`keep`), or be made room by work that goes (`evict`), for its tenant's share (`reclaim`), or that is moved
//! elsewhere (`defragment`).

pub mod defragment;
pub mod evict;
pub mod fit;
mod gang;
pub mod keep;
mod memo;
mod mix;
mod planner;
mod reason;
pub mod reclaim;
pub mod score;
pub mod strategy;
#[cfg(test)]
pub(crate) mod tests;

pub use gang::{Gang, GangPlacement, GangRefusal, Member, Near, PlacedMember};
pub use mix::{Class, Mix};
pub use planner::{Placement, Planner, Scope, place};
pub use reason::{Obstacle, Reason};
pub(crate) use reason::{amount, bytes, states_condition};
pub use strategy::{
    Ask, BadPriceWeight, Policy, PriceWeight, Rating, Spot, Strategy, Weighed, Weights,
};
