//! The server as its clients see it, and its answers beside those of a real control plane.

mod api;
mod cases;
mod differential;
mod exchange;
mod recorded;
