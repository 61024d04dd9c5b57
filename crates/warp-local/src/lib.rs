//! What makes the embedded API behave like a cluster: controllers, a scheduler for ordinary pods, and
//! nodes that run things. It speaks only the Kubernetes API and cannot tell which server answers.

mod background;
pub mod controllers;
pub mod informer;
pub mod node;
pub mod scheduler;
