//! Job lists before they are run: the busiest stretch of a long list (what is measured; the rest
//! is warm-up and drain), and replicas with the same days in another order.

use crate::estimate::dice::Dice;
use crate::queue::Seconds;

use super::Submission;

const DAY: f64 = 86_400.0;

/// A stretch of time: from its first moment to before its last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Window {
    pub from: Seconds,
    pub to: Seconds,
}

impl Window {
    pub fn contains(&self, at: Seconds) -> bool {
        self.from <= at && at < self.to
    }
}

/// The `days` consecutive days (counted from the first submission) with the most GPU-time asked
/// for.
pub fn busiest(jobs: &[Submission], days: u32) -> Window {
    let sorted = in_order(jobs);
    let begin = sorted.first().map_or(0.0, |job| job.submit);
    let last = sorted.last().map_or(0.0, |job| job.submit);
    let span = f64::from(days.max(1)) * DAY;
    let mut best = (f64::NEG_INFINITY, begin);
    let mut from = begin;
    while from <= (last - span).max(begin) {
        let start = sorted.partition_point(|job| job.submit < from);
        let stop = sorted.partition_point(|job| job.submit < from + span);
        let gpu_time = |job: &Submission| job.duration * f64::from(job.shape.gpus());
        let asked = sorted[start..stop].iter().map(gpu_time).sum();
        if asked > best.0 {
            best = (asked, from);
        }
        from += DAY;
    }
    Window {
        from: best.1,
        to: best.1 + span,
    }
}

/// Days from the first submission to the last, at least one.
pub fn days(jobs: &[Submission]) -> u32 {
    let times = || jobs.iter().map(|job| job.submit);
    let (Some(first), Some(last)) = (
        times().min_by(f64::total_cmp),
        times().max_by(f64::total_cmp),
    ) else {
        return 1;
    };
    u32::try_from(super::report::whole((last - first) / DAY) + 1).unwrap_or(u32::MAX)
}

/// The list in order of submission; equal times keep the order of the file.
pub fn in_order(jobs: &[Submission]) -> Vec<Submission> {
    let mut sorted = jobs.to_vec();
    sorted.sort_by(|a, b| a.submit.total_cmp(&b.submit).then(a.line.cmp(&b.line)));
    sorted
}

/// The same days in a random order: inside the window each day's jobs keep their time of day,
/// outside it nothing moves.
pub fn shuffle_days(jobs: &[Submission], window: Window, seed: u64) -> Vec<Submission> {
    let day_of = |job: &Submission| super::report::whole((job.submit - window.from) / DAY);
    let inside = || jobs.iter().filter(|job| window.contains(job.submit));
    let days = inside().map(day_of).max().unwrap_or(0) + 1;
    let mut order: Vec<usize> = (0..days).collect();
    Dice::new(seed).shuffle(&mut order);
    let mut moved = jobs.to_vec();
    for job in moved.iter_mut().filter(|job| window.contains(job.submit)) {
        let day = day_of(job);
        job.submit += (order[day] as f64 - day as f64) * DAY;
    }
    in_order(&moved)
}
