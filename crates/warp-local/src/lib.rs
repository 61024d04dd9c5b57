//! What makes the embedded API behave like a cluster: controllers, a scheduler for ordinary pods, and
//! nodes that run things. It speaks only the Kubernetes API and cannot tell which server answers.

pub mod node;
