//! The testbed itself: processes that end with their test, and simulated nodes that behave as the
//! suites rely on.

#![allow(clippy::unwrap_used, reason = "every function here is part of a test")]

mod cluster;
mod oracle;
mod process;
mod script;
