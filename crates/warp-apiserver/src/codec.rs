//! How things look on the wire: bodies in, objects and errors out.

pub mod protobuf;
pub mod table;
