//! What the engine counts, under vLLM's names, so that whatever reads a real engine reads this one.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use parking_lot::Mutex;
use warp_core::engine::{Counts, Engine, Token};

const SECONDS: [f64; 18] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0,
];

#[derive(Debug, Default)]
struct Histogram {
    buckets: [u64; SECONDS.len()],
    count: u64,
    sum: f64,
}

impl Histogram {
    fn observe(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        for (bucket, limit) in self.buckets.iter_mut().zip(SECONDS) {
            if seconds <= limit {
                *bucket += 1;
            }
        }
        self.count += 1;
        self.sum += seconds;
    }
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    waiting: usize,
    usage: f64,
    counts: Counts,
    asleep: bool,
    /// When the last token of a request was given.
    last: BTreeMap<u64, (Duration, Duration)>,
    first_token: Histogram,
    between_tokens: Histogram,
    whole: Histogram,
    queue: Histogram,
    prefill: Histogram,
    finished: BTreeMap<&'static str, u64>,
}

/// The counters of one engine.
#[derive(Debug)]
pub(super) struct Metrics {
    labels: String,
    blocks: u32,
    block_tokens: u32,
    state: Mutex<State>,
}

impl Metrics {
    pub(super) fn new(model: &str, blocks: u32, block_tokens: u32) -> Self {
        let name = model.replace('\\', "\\\\").replace('"', "\\\"");
        Self {
            labels: format!("engine=\"0\",model_name=\"{}\"", name.replace('\n', "\\n")),
            blocks,
            block_tokens,
            state: Mutex::default(),
        }
    }

    pub(super) fn engine_is(&self, engine: &Engine) {
        let mut state = self.state.lock();
        state.running = engine.running();
        state.waiting = engine.waiting();
        state.usage = engine.cache_usage();
        state.counts = engine.counts();
    }

    pub(super) fn token(&self, token: &Token) {
        let mut state = self.state.lock();
        if let Some(begun) = token.begun {
            let arrived = token.at.saturating_sub(begun.queued + begun.prefill);
            state.first_token.observe(begun.queued + begun.prefill);
            state.queue.observe(begun.queued);
            state.prefill.observe(begun.prefill);
            state.last.insert(token.id, (arrived, token.at));
        } else if let Some((arrived, before)) = state.last.get(&token.id).copied() {
            state
                .between_tokens
                .observe(token.at.saturating_sub(before));
            state.last.insert(token.id, (arrived, token.at));
        }
        if token.last
            && let Some((arrived, _)) = state.last.remove(&token.id)
        {
            state.whole.observe(token.at.saturating_sub(arrived));
        }
    }

    pub(super) fn finished(&self, reason: &'static str) {
        *self.state.lock().finished.entry(reason).or_default() += 1;
    }

    /// Nobody waits for it any more.
    pub(super) fn forget(&self, id: u64) {
        self.state.lock().last.remove(&id);
    }

    pub(super) fn asleep(&self, asleep: bool) {
        self.state.lock().asleep = asleep;
    }

    /// The page Prometheus reads.
    pub(super) fn page(&self) -> String {
        let state = self.state.lock();
        let mut page = String::new();
        let labels = &self.labels;
        let gauges = [
            ("num_requests_running", state.running as f64),
            ("num_requests_waiting", state.waiting as f64),
            ("kv_cache_usage_perc", state.usage),
            ("engine_sleep_state", f64::from(u8::from(state.asleep))),
        ];
        for (name, value) in gauges {
            let _ = writeln!(
                page,
                "# TYPE vllm:{name} gauge\nvllm:{name}{{{labels}}} {value}"
            );
        }
        let _ = writeln!(
            page,
            "# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{labels},block_size=\"{}\",num_gpu_blocks=\"{}\"}} 1",
            self.block_tokens, self.blocks
        );
        let counters = [
            ("prompt_tokens", state.counts.prompt_tokens),
            ("generation_tokens", state.counts.generation_tokens),
            ("prefix_cache_queries", state.counts.prefix_queries),
            ("prefix_cache_hits", state.counts.prefix_hits),
            ("num_preemptions", state.counts.preemptions),
        ];
        for (name, value) in counters {
            let _ = writeln!(
                page,
                "# TYPE vllm:{name}_total counter\nvllm:{name}_total{{{labels}}} {value}"
            );
        }
        let _ = writeln!(page, "# TYPE vllm:request_success_total counter");
        for (reason, count) in &state.finished {
            let _ = writeln!(
                page,
                "vllm:request_success_total{{{labels},finished_reason=\"{reason}\"}} {count}"
            );
        }
        let histograms = [
            ("time_to_first_token_seconds", &state.first_token),
            ("inter_token_latency_seconds", &state.between_tokens),
            ("e2e_request_latency_seconds", &state.whole),
            ("request_queue_time_seconds", &state.queue),
            ("request_prefill_time_seconds", &state.prefill),
        ];
        for (name, histogram) in histograms {
            write_histogram(&mut page, name, labels, histogram);
        }
        page
    }
}

fn write_histogram(page: &mut String, name: &str, labels: &str, histogram: &Histogram) {
    let _ = writeln!(page, "# TYPE vllm:{name} histogram");
    for (limit, count) in SECONDS.iter().zip(histogram.buckets) {
        let _ = writeln!(
            page,
            "vllm:{name}_bucket{{{labels},le=\"{limit}\"}} {count}"
        );
    }
    let (count, sum) = (histogram.count, histogram.sum);
    let _ = writeln!(
        page,
        "vllm:{name}_bucket{{{labels},le=\"+Inf\"}} {count}\nvllm:{name}_count{{{labels}}} {count}\nvllm:{name}_sum{{{labels}}} {sum}"
    );
}
