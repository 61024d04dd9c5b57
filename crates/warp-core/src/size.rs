//! How many GPUs a model needs: memory for its weights, its attention cache and the runtime, and the ways to split
//! them over devices.
//!
//! Owns the arithmetic and its reasons. It reads no files and asks no hub: `config.json` and the number of bytes of the
//! weights come in, layouts come out. What is free right now is the fleet's affair.

mod architecture;
mod cache;
mod device;
mod layers;
mod layout;

pub use architecture::{Architecture, ConfigError};
pub use cache::CacheType;
pub use device::{Device, Link, Unsupported};
pub use layout::{Layout, Load, Memory, Model, layouts, smallest_tensor_parallel};

#[cfg(test)]
mod tests;
