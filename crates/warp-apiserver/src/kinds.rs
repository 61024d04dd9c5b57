//! The built-in kinds: one descriptor each.
//!
//! A kind is defaulting, validation, immutable fields and columns; serving it is the same for all.
//! Custom resources are not here (see `schema`), and nothing here reads the store.

pub mod metadata;
mod quantity;

pub use quantity::{Quantity, QuantityError};

use serde_json::Value;

use crate::registry::resource::Resource;

/// Every built-in resource served.
pub fn builtin() -> Vec<Resource> {
    Vec::new()
}

/// Objects a fresh server holds.
pub fn initial_objects() -> Vec<Value> {
    Vec::new()
}
