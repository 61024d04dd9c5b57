//! Behaviour of the built-in kinds.
