//! How long work runs and when it starts. Durations are learnt online from finished work and
//! shared along a hierarchy of features; start times come from replaying the queue forward with
//! the policy that really runs it. Nothing here decides anything: policies ask, the owner of a
//! job reads.

pub mod bursts;
pub mod dice;
pub mod distribution;
pub mod durations;
pub mod start;

pub use bursts::{BurstId, Bursts};
pub use distribution::Distribution;
pub use durations::{Durations, Features, GroupId};
pub use start::{Arrival, Forecaster, History, StartEstimate};
