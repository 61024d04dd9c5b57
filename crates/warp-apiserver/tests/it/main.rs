//! The server as its clients see it, and its answers beside those of a real control plane.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test says what went wrong by failing"
)]

mod api;
mod differential;
mod discovered;
mod exchange;
mod fuzz;
mod history;
mod hostile;
mod intruders;
mod kubectl;
mod page;
mod published;
mod rbac;
mod recorded;
mod safety;
mod third_party;
mod tokens;
