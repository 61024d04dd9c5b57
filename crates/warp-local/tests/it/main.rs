//! The local engine against running API servers.

mod node;
