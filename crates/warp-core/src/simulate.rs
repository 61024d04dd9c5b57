//! Simulations: published protocols and fleets of the user's own, decided by the same code that
//! decides live.

pub mod fleet;
mod linear;
pub mod openb;
