//! The local engine against running API servers.

mod controllers;
mod node;
