//! The server as its clients see it, and its answers beside those of a real control plane.

mod api;
mod differential;
mod exchange;
mod fuzz;
mod kubectl;
mod recorded;
mod third_party;
