//! The server as its clients see it.

mod api;
mod differential;
mod exchange;
