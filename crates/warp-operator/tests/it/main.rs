//! Warp's operator on a running cluster.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "every function here is part of a test"
)]

mod e2e;
mod estimates;
mod events;
mod faults;
mod fit;
mod walks;
