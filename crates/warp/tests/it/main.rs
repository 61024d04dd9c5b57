//! Black-box tests of the repository and the binary.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test says what went wrong by failing"
)]

mod apiserver;
mod architecture;
mod checkpoint;
mod data;
mod docs;
mod doctor;
mod fetch;
mod gang;
mod image;
mod install;
mod model;
mod monitoring;
mod operator;
mod process;
mod queue;
mod security;
mod serve;
mod soak;
mod up;
mod user;
mod words;
