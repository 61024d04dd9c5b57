//! Nodes: which are lost, what taints follow from their state, and which pods must leave because of a taint.

pub(crate) mod eviction;
pub(crate) mod lifecycle;
#[cfg(test)]
mod tests;
