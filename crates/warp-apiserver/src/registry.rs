//! Which resources are served: descriptors, names, discovery, and the lifecycle of definitions.

pub mod name;
pub mod resource;

pub use resource::{
    Cell, Column, Resource, Review, ScalePaths, SelectableField, Strategy, Subresource,
};
