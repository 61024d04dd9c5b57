//! A serving engine without a model: continuous batching over a paged attention cache, in virtual time.
//!
//! Owns which request is worked on when, what its blocks cost and what is found again of earlier prompts. It has no
//! clock, no text and no network: tokens are numbers, times come in, tokens that are due come out. `warp engine` gives
//! it a clock and an API; simulations give it a virtual one.

mod blocks;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

pub use blocks::{Blocks, Held};
pub use settings::{Pace, Settings};

/// A request as the engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Chosen by the caller, unique among those under way.
    pub id: u64,
    pub prompt: Vec<u32>,
    /// The tokens it will answer with, at least one.
    pub answer: Vec<u32>,
}

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the prompt is empty")]
    Empty,
    #[error(
        "this model's maximum context length is {limit} tokens, but the prompt has {prompt} and {answer} more were asked for"
    )]
    TooLong {
        limit: u64,
        prompt: u64,
        answer: u64,
    },
    #[error("the cache holds {capacity} tokens, but the request needs {needed}")]
    CacheTooSmall { capacity: u64, needed: u64 },
}

/// A token that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    pub id: u64,
    pub at: Duration,
    /// Counted from 0.
    pub index: usize,
    pub last: bool,
    /// With the first token: how it came about.
    pub begun: Option<Begun>,
}

/// How a request got to its first token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    pub queued: Duration,
    pub prefill: Duration,
    /// Tokens of the prompt that were found in the cache.
    pub cached: u64,
}

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub prompt_tokens: u64,
    pub generation_tokens: u64,
    pub prefix_queries: u64,
    pub prefix_hits: u64,
    pub preemptions: u64,
}

#[derive(Clone, Debug)]
struct Sequence {
    ask: Ask,
    arrived: Duration,
    /// When it left the queue first.
    started: Option<Duration>,
    /// Tokens whose keys and values are computed.
    computed: usize,
    /// Tokens of the answer given so far.
    given: usize,
    cached: u64,
    held: Held,
    /// Tokens this step computes.
    scheduled: usize,
}

impl Sequence {
    /// Tokens that exist: the prompt and what was answered.
    fn length(&self) -> usize {
        self.ask.prompt.len() + self.given
    }

    fn token(&self, index: usize) -> u32 {
        let prompt = &self.ask.prompt;
        match index.checked_sub(prompt.len()) {
            None => prompt[index],
            Some(after) => self.ask.answer[after],
        }
    }

    /// Tokens still to compute before the next one of the answer is known.
    fn outstanding(&self) -> usize {
        self.length() - self.computed
    }
}

/// The engine.
#[derive(Clone, Debug)]
pub struct Engine {
    settings: Settings,
    blocks: Blocks,
    waiting: VecDeque<Sequence>,
    running: Vec<Sequence>,
    /// When the step under way ends.
    step_ends: Option<Duration>,
    counts: Counts,
}

impl Engine {
    pub fn new(settings: Settings) -> Self {
        Self {
            blocks: Blocks::new(settings.blocks, settings.prefix_caching),
            settings,
            waiting: VecDeque::new(),
            running: Vec::new(),
            step_ends: None,
            counts: Counts::default(),
        }
    }

    /// Takes a request at `now`.
    pub fn submit(&mut self, ask: Ask, now: Duration) -> Result<(), Refusal> {
        let (prompt, answer) = (ask.prompt.len() as u64, ask.answer.len() as u64);
        if prompt == 0 || answer == 0 {
            return Err(Refusal::Empty);
        }
        let limit = u64::from(self.settings.max_model_len);
        if prompt + answer > limit {
            return Err(Refusal::TooLong {
                limit,
                prompt,
                answer,
            });
        }
        let block = u64::from(self.settings.block_tokens);
        let capacity = u64::from(self.settings.blocks) * block;
        let needed = (prompt + answer).div_ceil(block) * block;
        if needed > capacity {
            return Err(Refusal::CacheTooSmall { capacity, needed });
        }
        self.waiting.push_back(Sequence {
            ask,
            arrived: now,
            started: None,
            computed: 0,
            given: 0,
            cached: 0,
            held: Held::default(),
            scheduled: 0,
        });
        if self.step_ends.is_none() {
            self.begin(now);
        }
        Ok(())
    }

    /// Nobody waits for the request any more.
    pub fn cancel(&mut self, id: u64) {
        self.waiting.retain(|sequence| sequence.ask.id != id);
        if let Some(index) = self.running.iter().position(|one| one.ask.id == id) {
            let gone = self.running.remove(index);
            self.blocks.release(gone.held);
        }
    }

    /// When something happens next by itself.
    pub fn due(&self) -> Option<Duration> {
        self.step_ends
    }

    /// Everything that happens until `now`, in order.
    pub fn advance(&mut self, now: Duration) -> Vec<Token> {
        let mut tokens = Vec::new();
        while let Some(end) = self.step_ends.filter(|end| *end <= now) {
            self.finish(end, &mut tokens);
            self.begin(end);
        }
        tokens
    }

    pub fn running(&self) -> usize {
        self.running.len()
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Share of the cache that requests under way hold, in 0..=1.
    pub fn cache_usage(&self) -> f64 {
        self.blocks.usage()
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Forgets what is kept of earlier prompts.
    pub fn clear_cache(&mut self) {
        self.blocks.clear();
    }

    /// Chooses what the next step computes: what runs goes on first, then what waits begins.
    fn begin(&mut self, now: Duration) {
        let mut budget = self.settings.max_batched_tokens as usize;
        for sequence in &mut self.running {
            sequence.scheduled = 0;
        }
        let mut index = 0;
        while index < self.running.len() && budget > 0 {
            let wanted = self.running[index].outstanding().min(budget);
            if self.make_room(index, wanted) {
                self.running[index].scheduled = wanted;
                budget -= wanted;
                index += 1;
            }
        }
        self.admit(&mut budget, now);
        let tokens: usize = self.running.iter().map(|one| one.scheduled).sum();
        self.step_ends = (tokens > 0).then(|| {
            let decoding = self.running.iter().filter(|one| one.scheduled == 1).count();
            now + self.settings.pace.step(tokens - decoding, decoding)
        });
    }

    /// Gives the sequence at `index` blocks for `more` tokens. When there are none, the youngest makes room and starts
    /// again later. False: it was the youngest itself, and no longer runs.
    fn make_room(&mut self, index: usize, more: usize) -> bool {
        let block = self.settings.block_tokens as usize;
        loop {
            let Some(sequence) = self.running.get_mut(index) else {
                return false;
            };
            let needed = (sequence.computed + more).div_ceil(block);
            if self.blocks.grow(&mut sequence.held, needed) {
                return true;
            }
            let Some(mut youngest) = self.running.pop() else {
                return false;
            };
            self.blocks.release(std::mem::take(&mut youngest.held));
            youngest.computed = 0;
            youngest.scheduled = 0;
            self.counts.preemptions += 1;
            self.waiting.push_front(youngest);
        }
    }

    fn admit(&mut self, budget: &mut usize, now: Duration) {
        let block = self.settings.block_tokens as usize;
        while *budget > 0 && self.running.len() < self.settings.max_sequences as usize {
            let Some(mut next) = self.waiting.pop_front() else {
                return;
            };
            let chain = chain(&next, next.length(), block);
            // The last token is always computed: its output is what the answer comes from.
            let usable = (next.length() - 1) / block;
            let found = self.blocks.find(&chain[..usable.min(chain.len())]);
            let cached = found.len() * block;
            let scheduled = (next.length() - cached).min(*budget);
            let needed = (cached + scheduled).div_ceil(block);
            let Some(held) = self.blocks.take(&found, needed) else {
                self.waiting.push_front(next);
                return;
            };
            if next.started.is_none() {
                next.started = Some(now);
                next.cached = cached as u64;
                self.counts.prefix_queries += next.length() as u64;
                self.counts.prefix_hits += cached as u64;
                self.counts.prompt_tokens += next.ask.prompt.len() as u64;
            }
            next.held = held;
            next.computed = cached;
            next.scheduled = scheduled;
            *budget -= scheduled;
            self.running.push(next);
        }
    }

    /// The step under way ends: full blocks can be found again, and whoever has computed all it knows has a new token.
    fn finish(&mut self, at: Duration, tokens: &mut Vec<Token>) {
        let block = self.settings.block_tokens as usize;
        let mut index = 0;
        while index < self.running.len() {
            let sequence = &mut self.running[index];
            let before = sequence.computed / block;
            sequence.computed += std::mem::take(&mut sequence.scheduled);
            if self.settings.prefix_caching && sequence.computed / block > before {
                let chain = chain(sequence, sequence.computed, block);
                self.blocks.remember(&sequence.held, &chain, before);
            }
            if sequence.outstanding() > 0 {
                index += 1;
                continue;
            }
            let begun = (sequence.given == 0).then(|| {
                let started = sequence.started.unwrap_or(at);
                Begun {
                    queued: started.saturating_sub(sequence.arrived),
                    prefill: at.saturating_sub(started),
                    cached: sequence.cached,
                }
            });
            sequence.given += 1;
            self.counts.generation_tokens += 1;
            let last = sequence.given >= sequence.ask.answer.len();
            tokens.push(Token {
                id: sequence.ask.id,
                at,
                index: sequence.given - 1,
                last,
                begun,
            });
            if last {
                let done = self.running.remove(index);
                self.blocks.release(done.held);
            } else {
                index += 1;
            }
        }
        self.step_ends = None;
    }
}

/// Names of the full blocks of the first `length` tokens. A block's name says everything before it as well.
fn chain(sequence: &Sequence, length: usize, block: usize) -> Vec<u64> {
    let mut name = FNV_OFFSET;
    let mut names = Vec::with_capacity(length / block);
    for index in 0..length / block * block {
        for byte in sequence.token(index).to_le_bytes() {
            name = (name ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
        }
        if (index + 1) % block == 0 {
            names.push(name);
        }
    }
    names
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;
