//! The shipped CRDs and their rules, without a server.

#![allow(clippy::panic, reason = "a test says what went wrong by failing")]

mod cel;
mod clouds;
mod golden;
mod inferenceservice;
mod kinds;
mod modelcache;
mod tenant;
