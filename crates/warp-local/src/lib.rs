//! What makes the embedded API behave like a cluster: controllers, a scheduler for ordinary pods, and
//! nodes that run things. It speaks only the Kubernetes API and cannot tell which server answers.

pub mod controllers;
pub mod node;
pub mod scheduler;

use warp_runtime::{background, cache as informer};
