//! What can be chosen of an engine: how much it holds, and how fast it is.

use std::time::Duration;

/// How much an engine holds and takes on at once. Names and defaults are vLLM's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    pub block_tokens: u32,
    /// Blocks of the attention cache.
    pub blocks: u32,
    /// Requests worked on at once.
    pub max_sequences: u32,
    /// Tokens computed in one step.
    pub max_batched_tokens: u32,
    /// Longest prompt and answer together.
    pub max_model_len: u32,
    /// Whether blocks of earlier prompts are found again.
    pub prefix_caching: bool,
    pub pace: Pace,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            block_tokens: 16,
            blocks: 2048,
            max_sequences: 256,
            max_batched_tokens: 8192,
            max_model_len: 8192,
            prefix_caching: true,
            pace: Pace::default(),
        }
    }
}

/// How long a step takes: a constant, and a part for every token of a prompt and every request that decodes. Decoding
/// reads the weights once for all, prompts are computed: that is why one is nearly free and the other is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub step: Duration,
    pub prompt_token: Duration,
    pub decoding_request: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            step: Duration::from_millis(10),
            prompt_token: Duration::from_micros(50),
            decoding_request: Duration::from_micros(100),
        }
    }
}

impl Pace {
    /// No step takes no time: an engine always gets on.
    pub(super) fn step(&self, prompt_tokens: usize, decoding: usize) -> Duration {
        let times = |each: Duration, count: usize| {
            each.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX))
        };
        let all = self
            .step
            .saturating_add(times(self.prompt_token, prompt_tokens))
            .saturating_add(times(self.decoding_request, decoding));
        all.max(Duration::from_micros(1))
    }
}
