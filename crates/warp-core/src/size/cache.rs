//! The attention cache: bytes per token, and bytes on one device for a given load and split.

use serde::{Deserialize, Serialize};

use super::architecture::Architecture;
use super::layers::{Layer, product};

/// How a number of the cache is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheType {
    /// 16 bits, as the engines choose by themselves.
    #[default]
    Auto,
    Fp8,
}

impl CacheType {
    fn bytes(self) -> u64 {
        match self {
            Self::Auto => 2,
            Self::Fp8 => 1,
        }
    }
}

/// Tokens the engine hands out at once.
const BLOCK_TOKENS: u64 = 16;

impl Architecture {
    /// Bytes one token takes in all layers that keep it, on a single device.
    pub fn cache_bytes_per_token(&self, cache: CacheType) -> u64 {
        self.layers
            .iter()
            .map(|layer| token_bytes(layer, cache, 1))
            .sum()
    }

    /// Bytes of cache on the fullest device when `sequences` of `context` tokens are under way.
    pub(super) fn cache_bytes(
        &self,
        cache: CacheType,
        context: u64,
        sequences: u64,
        tensor_parallel: u32,
        pipeline_parallel: u32,
    ) -> u64 {
        let layer = |layer: &Layer| {
            let per_token = token_bytes(layer, cache, tensor_parallel);
            let bytes = match *layer {
                Layer::Tokens {
                    window: Some(window),
                    ..
                } => blocks(context.min(window.saturating_add(BLOCK_TOKENS)))
                    .saturating_mul(per_token),
                Layer::Tokens { .. } | Layer::Latent { .. } => {
                    blocks(context).saturating_mul(per_token)
                }
                Layer::State { bytes } => bytes.div_ceil(u64::from(tensor_parallel)),
                Layer::Nothing => 0,
            };
            bytes.saturating_mul(sequences)
        };
        let stages = pipeline_parallel.max(1) as usize;
        let stage = self.layers.len().div_ceil(stages).max(1);
        let sums = self
            .layers
            .chunks(stage)
            .map(|layers| layers.iter().map(layer).fold(0, u64::saturating_add));
        sums.max().unwrap_or(0)
    }
}

/// Bytes one token takes in one layer on one of `tensor_parallel` devices. Fewer heads than devices are copied; a
/// compressed cache is whole on every device.
fn token_bytes(layer: &Layer, cache: CacheType, tensor_parallel: u32) -> u64 {
    match *layer {
        Layer::Tokens { heads, .. } => {
            let count = u64::from(heads.count.div_ceil(tensor_parallel));
            product(&[count, u64::from(heads.dims), cache.bytes()])
        }
        Layer::Latent { dims, index_bytes } => {
            product(&[u64::from(dims), cache.bytes()]).saturating_add(u64::from(index_bytes))
        }
        Layer::State { .. } | Layer::Nothing => 0,
    }
}

fn blocks(tokens: u64) -> u64 {
    tokens.next_multiple_of(BLOCK_TOKENS)
}
