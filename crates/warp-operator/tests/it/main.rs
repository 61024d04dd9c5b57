//! Warp's operator in virtual time and beside a real control plane. The end-to-end suite is `tests/e2e`.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "every function here is part of a test"
)]

mod estimates;
mod events;
mod faults;
mod fit;
mod invariants;
mod walks;
