//! The shipped CRDs and their rules, without a server.

mod cel;
mod golden;
mod kinds;
mod tenant;
