//! Changing objects: the four patch types, and who owns which field afterwards.
//!
//! Pure functions over JSON trees and schemas; nothing here reads the store or the clock.

pub mod fieldset;
pub mod json;
pub mod managed;
pub mod merge;
pub(crate) mod skeleton;
pub mod strategic;
mod typed;
