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
mod data;
mod docs;
mod doctor;
mod image;
mod install;
mod model;
mod operator;
mod process;
mod security;
mod soak;
mod up;
mod user;
mod words;
