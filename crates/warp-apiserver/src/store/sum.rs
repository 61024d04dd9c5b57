//! Checksums of what is on disk: what is read back is what was written.

use ring::digest::{Context, Digest, SHA256};

/// Enough to notice damage to one block.
pub(super) fn short(parts: &[&[u8]]) -> u64 {
    let mut quarter = [0; 8];
    quarter.copy_from_slice(&array(&digest(parts))[..8]);
    u64::from_le_bytes(quarter)
}

/// Enough to add up over many rows.
pub(super) fn wide(parts: &[&[u8]]) -> u128 {
    let mut half = [0; 16];
    half.copy_from_slice(&array(&digest(parts))[..16]);
    u128::from_le_bytes(half)
}

fn digest(parts: &[&[u8]]) -> Digest {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(part);
    }
    context.finish()
}

fn array(digest: &Digest) -> &[u8; 32] {
    // SHA-256 has as many.
    digest.as_ref().first_chunk().unwrap_or(&[0; 32])
}
