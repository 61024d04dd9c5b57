//! A Kubernetes-compatible API server as a library.

pub mod admission;
pub mod codec;
pub mod kinds;
pub mod registry;
pub mod schema;
