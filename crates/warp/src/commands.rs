//! One module per verb: its arguments and what it does with them.

pub(crate) mod apiserver;
pub(crate) mod apply;
pub(crate) mod delete;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod exec;
pub(crate) mod get;
pub(crate) mod install;
pub(crate) mod logs;
pub(crate) mod node;
pub(crate) mod operator;
pub(crate) mod simulate;
pub(crate) mod status;
pub(crate) mod up;
