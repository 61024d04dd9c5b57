//! A Kubernetes-compatible API server as a library.

pub mod admission;
pub mod clock;
pub mod codec;
pub mod hooks;
pub mod kinds;
pub mod patch;
pub mod registry;
pub mod schema;
pub mod store;
