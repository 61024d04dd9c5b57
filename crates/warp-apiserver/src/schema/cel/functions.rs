//! Signatures.
