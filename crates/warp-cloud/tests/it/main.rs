//! Every provider against a cloud that judges: one suite for all of them, in virtual time and without a network.

mod conformance;
mod description;
mod errors;
mod join;
mod network;
mod schema;
mod stand;
