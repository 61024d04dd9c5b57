//! The shipped CRDs and their rules, without a server.

#![allow(clippy::panic, reason = "a test says what went wrong by failing")]

mod cel;
mod golden;
mod kinds;
mod tenant;
