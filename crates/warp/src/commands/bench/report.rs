//! What a run of requests amounts to.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use crate::output::Table;

/// What was measured.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) service: String,
    pub(super) model: String,
    pub(super) copies: usize,
    pub(super) loop_kind: String,
    pub(super) slo_ttft_ms: Option<f64>,
    pub(super) slo_itl_ms: Option<f64>,
}

/// How one request went.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub(super) first: Option<Duration>,
    pub(super) between: Vec<Duration>,
    /// None: it failed.
    pub(super) whole: Option<Duration>,
    pub(super) prompt_tokens: u64,
    pub(super) answer_tokens: u64,
    pub(super) error: Option<String>,
}

impl Outcome {
    fn mean_between_ms(&self) -> f64 {
        let sum: f64 = self.between.iter().copied().map(ms).sum();
        sum / (self.between.len().max(1) as f64)
    }

    fn is_good(&self, asked: &Asked) -> bool {
        let first = self.first.map_or(f64::INFINITY, ms);
        self.whole.is_some()
            && asked.slo_ttft_ms.is_none_or(|limit| first <= limit)
            && asked
                .slo_itl_ms
                .is_none_or(|limit| self.mean_between_ms() <= limit)
    }
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    service: String,
    model: String,
    copies: usize,
    #[serde(rename = "loop")]
    loop_kind: String,
    requests: usize,
    pub(super) failed: usize,
    seconds: f64,
    requests_per_second: f64,
    prompt_tokens: u64,
    answer_tokens: u64,
    answer_tokens_per_second: f64,
    /// Share of all requests that kept the limits asked for; absent when none were.
    #[serde(skip_serializing_if = "Option::is_none")]
    goodput: Option<f64>,
    time_to_first_token_ms: Spread,
    inter_token_latency_ms: Spread,
    request_ms: Spread,
    /// What went wrong, and how often.
    errors: BTreeMap<String, usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spread {
    mean: f64,
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

impl Spread {
    /// Nearest rank: every figure is one that was measured.
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let rank = |percent: usize| {
            let place = (values.len() * percent).div_ceil(100).max(1) - 1;
            values.get(place).copied().unwrap_or(0.0)
        };
        Self {
            mean: values.iter().sum::<f64>() / (values.len().max(1) as f64),
            p50: rank(50),
            p90: rank(90),
            p99: rank(99),
            max: values.last().copied().unwrap_or(0.0),
        }
    }
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl Report {
    pub(super) fn of(asked: &Asked, outcomes: &[Outcome], took: Duration) -> Self {
        let seconds = took.as_secs_f64().max(1e-9);
        let well = || outcomes.iter().filter(|outcome| outcome.whole.is_some());
        let answer_tokens = well().map(|outcome| outcome.answer_tokens).sum::<u64>();
        let mut errors = BTreeMap::new();
        for error in outcomes.iter().filter_map(|outcome| outcome.error.clone()) {
            *errors.entry(error).or_default() += 1;
        }
        let limits = asked.slo_ttft_ms.is_some() || asked.slo_itl_ms.is_some();
        let good = outcomes
            .iter()
            .filter(|outcome| outcome.is_good(asked))
            .count();
        let between = well().flat_map(|outcome| outcome.between.iter().copied().map(ms));
        Self {
            service: asked.service.clone(),
            model: asked.model.clone(),
            copies: asked.copies,
            loop_kind: asked.loop_kind.clone(),
            requests: outcomes.len(),
            failed: outcomes.len() - well().count(),
            seconds,
            requests_per_second: well().count() as f64 / seconds,
            prompt_tokens: well().map(|outcome| outcome.prompt_tokens).sum(),
            answer_tokens,
            answer_tokens_per_second: answer_tokens as f64 / seconds,
            goodput: limits.then(|| good as f64 / outcomes.len().max(1) as f64),
            time_to_first_token_ms: Spread::of(
                well().filter_map(|outcome| outcome.first.map(ms)).collect(),
            ),
            inter_token_latency_ms: Spread::of(between.collect()),
            request_ms: Spread::of(well().filter_map(|outcome| outcome.whole.map(ms)).collect()),
            errors,
        }
    }

    pub(super) fn table(&self) -> String {
        let mut text = format!(
            "{}: {} on {} copies, {} loop\n{} requests in {:.1} s, {} failed; {:.1} requests/s, {:.1} answer tokens/s\n",
            self.service,
            self.model,
            self.copies,
            self.loop_kind,
            self.requests,
            self.seconds,
            self.failed,
            self.requests_per_second,
            self.answer_tokens_per_second
        );
        if let Some(goodput) = self.goodput {
            let _ = writeln!(text, "{:.1} % within the limits asked for", goodput * 100.0);
        }
        text.push('\n');
        let mut table = Table::new(["MILLISECONDS", "MEAN", "P50", "P90", "P99", "MAX"]);
        for (name, spread) in [
            ("first token", self.time_to_first_token_ms),
            ("between tokens", self.inter_token_latency_ms),
            ("whole request", self.request_ms),
        ] {
            let figure = |value: f64| format!("{value:.1}");
            table.row([
                name.to_owned(),
                figure(spread.mean),
                figure(spread.p50),
                figure(spread.p90),
                figure(spread.p99),
                figure(spread.max),
            ]);
        }
        text += &table.to_string();
        for (error, count) in &self.errors {
            let _ = writeln!(text, "{count} × {error}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_ones_that_were_measured() {
        let spread = Spread::of((1..=100).rev().map(f64::from).collect());
        assert_eq!(
            (spread.p50, spread.p90, spread.p99, spread.max),
            (50.0, 90.0, 99.0, 100.0)
        );
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }

    #[test]
    fn what_failed_counts_as_failed_and_in_no_figure() {
        let asked = Asked {
            service: "s".to_owned(),
            model: "m".to_owned(),
            copies: 1,
            loop_kind: String::new(),
            slo_ttft_ms: Some(10.0),
            slo_itl_ms: None,
        };
        let good = Outcome {
            first: Some(Duration::from_millis(5)),
            between: vec![Duration::from_millis(2)],
            whole: Some(Duration::from_millis(7)),
            prompt_tokens: 3,
            answer_tokens: 2,
            error: None,
        };
        let slow = Outcome {
            first: Some(Duration::from_millis(50)),
            ..good.clone()
        };
        let failed = Outcome {
            error: Some("no".to_owned()),
            ..Outcome::default()
        };
        let report = Report::of(&asked, &[good, slow, failed], Duration::from_secs(1));
        assert_eq!(
            (report.requests, report.failed, report.answer_tokens),
            (3, 1, 4)
        );
        assert!((report.goodput.unwrap() - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(report.errors["no"], 1);
        assert!((report.time_to_first_token_ms.max - 50.0).abs() < 1e-9);
    }
}
