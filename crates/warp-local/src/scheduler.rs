//! Places ordinary pods on nodes.
