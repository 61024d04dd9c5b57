//! How things look on the wire: bodies in, objects and errors out.

pub mod body;
pub mod negotiate;
pub mod protobuf;
pub mod status;
pub mod table;
