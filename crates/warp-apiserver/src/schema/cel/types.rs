//! The types of expressions.

/// A CEL type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Type {
    Dyn,
    Bool,
    String,
}
