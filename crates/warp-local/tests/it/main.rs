//! The local engine against running API servers.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test says what went wrong by failing"
)]

mod controllers;
mod faults;
mod node;
mod scheduler;
