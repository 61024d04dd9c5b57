//! Job lists before they are run: the busiest stretch of a long list, and replicas with the same
//! days in another order.

use crate::estimate::dice::Dice;

use super::Submission;

const DAY: f64 = 86_400.0;

/// The `days` consecutive days (counted from the first submission) with the most GPU-time asked
/// for, in order of submission. The whole list if it is not longer.
pub fn busiest(jobs: &[Submission], days: u32) -> Vec<Submission> {
    let sorted = in_order(jobs);
    let (Some(first), Some(last)) = (sorted.first(), sorted.last()) else { return sorted };
    let (begin, span) = (first.submit, f64::from(days) * DAY);
    let mut best = (f64::NEG_INFINITY, 0, sorted.len());
    let mut from = begin;
    while from + span <= last.submit.max(begin + span) {
        let start = sorted.partition_point(|job| job.submit < from);
        let stop = sorted.partition_point(|job| job.submit < from + span);
        let asked =
            sorted[start..stop].iter().map(|j| j.duration * f64::from(j.shape.gpus())).sum();
        if asked > best.0 {
            best = (asked, start, stop);
        }
        from += DAY;
    }
    sorted[best.1..best.2].to_vec()
}

/// The list in order of submission; equal times keep the order of the file.
pub fn in_order(jobs: &[Submission]) -> Vec<Submission> {
    let mut sorted = jobs.to_vec();
    sorted.sort_by(|a, b| a.submit.total_cmp(&b.submit).then(a.line.cmp(&b.line)));
    sorted
}

/// The same days in a random order: each day's jobs keep their time of day.
pub fn shuffle_days(jobs: &[Submission], seed: u64) -> Vec<Submission> {
    let Some(begin) = jobs.iter().map(|j| j.submit).min_by(f64::total_cmp) else {
        return Vec::new();
    };
    let day_of = |job: &Submission| super::report::whole((job.submit - begin) / DAY);
    let days = jobs.iter().map(day_of).max().unwrap_or(0) + 1;
    let mut order: Vec<usize> = (0..days).collect();
    Dice::new(seed).shuffle(&mut order);
    let mut moved = jobs.to_vec();
    for job in &mut moved {
        let day = day_of(job);
        job.submit += (order[day] as f64 - day as f64) * DAY;
    }
    in_order(&moved)
}
