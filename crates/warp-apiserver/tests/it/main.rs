//! Behaviour of the API server from outside.

mod cases;
