//! What an engine's `/metrics` say, under the names vLLM has and had, and those of others. Pure.

use warp_core::scale::Load;

const RUNNING: [&str; 4] = [
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
    "trtllm_num_requests_running",
];
const WAITING: [&str; 4] = [
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "llamacpp:requests_deferred",
    "trtllm_num_requests_waiting",
];
const CACHE: [&str; 5] = [
    "vllm:kv_cache_usage_perc",
    "vllm:gpu_cache_usage_perc",
    "sglang:token_usage",
    "llamacpp:kv_cache_usage_ratio",
    "trtllm_kv_cache_utilization",
];
const GENERATED: [&str; 3] = [
    "vllm:generation_tokens_total",
    "sglang:generation_tokens_total",
    "llamacpp:tokens_predicted_total",
];
const FIRST_TOKEN: [&str; 2] = [
    "vllm:time_to_first_token_seconds_bucket",
    "sglang:time_to_first_token_seconds_bucket",
];
const BETWEEN_TOKENS: [&str; 4] = [
    "vllm:inter_token_latency_seconds_bucket",
    "vllm:time_per_output_token_seconds_bucket",
    "sglang:inter_token_latency_seconds_bucket",
    "sglang:time_per_output_token_seconds_bucket",
];
const CACHE_CONFIG: &str = "vllm:cache_config_info";
const SGLANG_CACHE: [&str; 1] = ["sglang:max_total_num_tokens"];

/// One page.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Page {
    pub(crate) load: Load,
    /// Tokens generated since the engine started.
    pub(crate) generated: Option<f64>,
    /// Tokens its cache holds.
    pub(crate) cache_tokens: Option<u64>,
    pub(crate) first_token: Histogram,
    pub(crate) between_tokens: Histogram,
}

/// Answers so far by how long they took: upper bounds in seconds, each with all that are below it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Histogram(Vec<(f64, f64)>);

/// What a page says; none when it names neither what runs nor what waits.
pub(crate) fn read(page: &str) -> Option<Page> {
    let count = |names: &[&str]| {
        let values = values(page, names);
        (!values.is_empty()).then(|| whole(values.iter().sum()))
    };
    let (running, waiting) = (count(&RUNNING), count(&WAITING));
    if running.is_none() && waiting.is_none() {
        return None;
    }
    let shares = values(page, &CACHE);
    let mean = shares.iter().sum::<f64>() / (shares.len().max(1) as f64);
    let generated = values(page, &GENERATED);
    Some(Page {
        load: Load {
            copies: 1,
            running: running.unwrap_or(0),
            waiting: waiting.unwrap_or(0),
            cache_percent: whole(mean * 100.0),
            ..Load::default()
        },
        generated: (!generated.is_empty()).then(|| generated.iter().sum()),
        cache_tokens: cache_tokens(page).or_else(|| count(&SGLANG_CACHE)),
        first_token: Histogram::read(page, &FIRST_TOKEN),
        between_tokens: Histogram::read(page, &BETWEEN_TOKENS),
    })
}

/// Blocks times tokens of a block, of all engines on the page.
fn cache_tokens(page: &str) -> Option<u64> {
    let engines = lines(page, CACHE_CONFIG).filter_map(|(labels, _)| {
        let number = |name: &str| label(labels, name)?.parse::<u64>().ok();
        let blocks = number("num_gpu_blocks").zip(number("block_size"));
        let tokens = blocks.and_then(|(blocks, tokens)| blocks.checked_mul(tokens));
        tokens.filter(|tokens| *tokens > 0)
    });
    let all: Vec<u64> = engines.collect();
    (!all.is_empty()).then(|| all.iter().fold(0_u64, |sum, one| sum.saturating_add(*one)))
}

impl Histogram {
    fn read(page: &str, names: &[&str]) -> Self {
        let of = |name: &str| {
            let mut buckets: Vec<(f64, f64)> = Vec::new();
            for (labels, value) in lines(page, name) {
                let bound = label(labels, "le").and_then(|bound| bound.parse::<f64>().ok());
                let Some(bound) = bound.filter(|bound| !bound.is_nan()) else {
                    continue;
                };
                // Several engines on one page.
                match buckets
                    .iter_mut()
                    .find(|(known, _)| known.total_cmp(&bound).is_eq())
                {
                    Some((_, count)) => *count += value,
                    None => buckets.push((bound, value)),
                }
            }
            buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
            buckets
        };
        let mut found = names.iter().map(|name| of(name));
        Self(found.find(|found| !found.is_empty()).unwrap_or_default())
    }

    /// What came since `before`; everything, when the engine began anew.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let total = |one: &Self| one.0.last().map_or(0.0, |(_, count)| *count);
        if self.0.len() != before.0.len() || total(self) < total(before) {
            return self.clone();
        }
        let pairs = self.0.iter().zip(&before.0);
        Self(pairs.map(|(now, then)| (now.0, now.1 - then.1)).collect())
    }

    /// Both together, where they have the same bounds.
    pub(crate) fn with(mut self, other: &Self) -> Self {
        if self.0.is_empty() {
            return other.clone();
        }
        for (bound, count) in &other.0 {
            if let Some((_, sum)) = self
                .0
                .iter_mut()
                .find(|(known, _)| known.total_cmp(bound).is_eq())
            {
                *sum += count;
            }
        }
        self
    }

    /// Milliseconds in which nine of ten were done, within their bucket as if they were spread evenly; none when there
    /// were none.
    pub(crate) fn nine_of_ten_ms(&self) -> Option<u64> {
        let total = self.0.last()?.1;
        if total < 1.0 {
            return None;
        }
        let wanted = total * 0.9;
        let (mut below, mut counted) = (0.0, 0.0);
        for (bound, count) in &self.0 {
            if *count >= wanted {
                // Beyond the last bound nothing is known but that.
                let seconds = if bound.is_finite() && *count > counted {
                    below + (bound - below) * (wanted - counted) / (count - counted)
                } else {
                    below
                };
                return Some(whole(seconds * 1000.0));
            }
            (below, counted) = (*bound, *count);
        }
        None
    }
}

/// The values of the first of `names` that the page has.
fn values(page: &str, names: &[&str]) -> Vec<f64> {
    let of = |name: &str| -> Vec<f64> { lines(page, name).map(|(_, value)| value).collect() };
    let mut found = names.iter().map(|name| of(name));
    found.find(|found| !found.is_empty()).unwrap_or_default()
}

/// Labels and value of every line of one name.
fn lines<'a>(page: &'a str, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
    page.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(labelled) => labelled.rsplit_once('}')?,
            None => ("", rest.strip_prefix(' ')?),
        };
        let value: f64 = rest.split_whitespace().next()?.parse().ok()?;
        value.is_finite().then_some((labels, value))
    })
}

/// The value of one label.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let begins = format!("{name}=\"");
    let at = labels
        .match_indices(&begins)
        .find(|(at, _)| *at == 0 || labels[..*at].ends_with(','))?
        .0;
    labels[at + begins.len()..].split('"').next()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to what the type holds"
)]
pub(crate) fn whole(value: f64) -> u64 {
    value.clamp(0.0, 1e15).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(bounds: [u32; 4]) -> Page {
        let [a, b, c, all] = bounds;
        let name = "vllm:time_to_first_token_seconds_bucket{engine=\"0\",le=";
        let text = format!(
            "vllm:num_requests_running 1\n{name}\"0.1\"}} {a}\n{name}\"0.5\"}} {b}\n{name}\"1.0\"}} {c}\n{name}\"+Inf\"}} {all}\n"
        );
        read(&text).unwrap()
    }

    #[test]
    fn nine_of_ten_are_found_in_what_came_since() {
        let (before, now) = (page([100, 100, 100, 100]), page([100, 110, 120, 120]));
        assert_eq!(before.first_token.nine_of_ten_ms(), Some(90));
        let since = now.first_token.since(&before.first_token);
        assert_eq!(since.nine_of_ten_ms(), Some(900));
        assert_eq!(
            now.first_token.since(&now.first_token).nine_of_ten_ms(),
            None
        );
        // An engine that began anew has answered everything it counts since.
        let anew = page([10, 10, 10, 10]);
        let since = anew.first_token.since(&now.first_token);
        assert_eq!(since.nine_of_ten_ms(), Some(90));
        let slow = page([0, 0, 0, 10]).first_token;
        assert_eq!(slow.nine_of_ten_ms(), Some(1000), "at least the last bound");
        assert_eq!(Histogram::default().nine_of_ten_ms(), None);
    }

    #[test]
    fn the_size_of_a_cache_is_blocks_times_tokens() {
        let text = "vllm:num_requests_running 0\nvllm:cache_config_info{block_size=\"128\",hash_block_size=\"None\",num_gpu_blocks=\"8192\"} 1.0\n\
                    vllm:generation_tokens_total{engine=\"0\"} 32.0\nvllm:generation_tokens_created{engine=\"0\"} 1.79e9\n";
        let page = read(text).unwrap();
        assert_eq!(page.cache_tokens, Some(1_048_576));
        assert_eq!(page.generated, Some(32.0));
        let unknown = "vllm:num_requests_running 0\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"None\"} 1\n";
        let page = read(unknown).unwrap();
        assert_eq!((page.cache_tokens, page.generated), (None, None));
    }
}
