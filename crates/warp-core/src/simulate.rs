//! Replays: what the decision core would have done with a given list of work. Each replay takes
//! plain data and returns plain data; reading files and drawing results belong to the binary.

pub mod queue;
