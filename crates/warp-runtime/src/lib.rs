//! What every controller stands on, Warp's own and those of the embedded engine: caches of what the API server says,
//! queues, the driver that runs passes, plans as plain data, and the one executor that carries plans out.
//!
//! It knows no kind, no GPU and no engine, and depends on no other crate of this repository. It decides nothing: what
//! should happen is a plan made by a controller.

pub mod background;
mod backoff;
pub mod cache;
mod clock;
pub mod connection;
pub mod driver;
pub mod events;
pub mod execute;
mod fingerprint;
mod kind;
pub mod object_memory;
pub mod outside;
pub mod pass;
pub mod plan;
pub mod queue;
pub mod reconcile;
pub mod runtime;
pub mod sweep;

pub use clock::Clock;
