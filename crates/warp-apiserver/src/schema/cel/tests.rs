//! Behaviour of CEL rules.
