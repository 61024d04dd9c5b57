//! Simulations: published protocols, job lists and fleets of the user's own, decided by the same code
//! that decides live. Each takes plain data and returns plain data; reading files and drawing results
//! belong to the binary.

pub mod fleet;
mod linear;
pub mod openb;
pub mod queue;
