//! Behaviour of the schema engine.
