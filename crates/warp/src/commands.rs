//! One module per verb: its arguments and what it does with them.

pub(crate) mod apiserver;
pub(crate) mod install;
pub(crate) mod operator;
pub(crate) mod simulate;
