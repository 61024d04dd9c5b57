//! What came of attempts at each provider, as the status of workloads tells it: how long starts take, how often they come
//! to something, and whether a provider is left alone for a while. A restart reads the same; a workload that is deleted
//! takes along what it told. Pure.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use warp_api::GPUWorkload;
use warp_api::workload::WorkloadAttempt;
use warp_api::{label, reason};
use warp_core::breaker::{Breaker, State};
use warp_core::provider::BEST;

/// Attempts of a provider that are looked at: the latest.
const LATEST: usize = 32;

/// Endings that speak against the nodes: the program had no part in them.
const FAILURES: [&str; 3] = [
    reason::NODE_LOST,
    reason::REFUSED_BY_NODE,
    reason::START_TIMEOUT,
];

/// When, whose (uid and number), and what came of it.
type Entry = (Timestamp, String, i32, Outcome);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// It started, that many seconds after it was placed.
    Started(u64),
    Failed(Failed),
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Failed {
    reason: &'static str,
    placed: Timestamp,
    nodes: Vec<String>,
}

/// All attempts that are told of.
#[derive(Debug, Default)]
pub(crate) struct History {
    /// What came of those that came to anything, by provider, the latest last.
    ended: BTreeMap<String, BTreeSet<Entry>>,
    /// Providers of attempts that have neither started nor ended, with how many there are.
    open: BTreeMap<String, usize>,
    /// What each workload told, to take it back.
    told: BTreeMap<String, Vec<WorkloadAttempt>>,
}

/// How a provider stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) state: State,
    /// Until when it is left alone.
    pub(crate) until: Option<Timestamp>,
    /// Failures in a row, and the last one.
    pub(crate) failures: u32,
    pub(crate) last_failure: Option<&'static str>,
    /// An attempt is on its way.
    pub(crate) trying: bool,
    /// How long a start takes, on average of the latest.
    pub(crate) start_seconds: Option<u64>,
    /// The share of the latest attempts that came to something, in thousandths.
    pub(crate) health: u32,
}

impl Default for Standing {
    fn default() -> Self {
        Self {
            state: State::Closed,
            until: None,
            failures: 0,
            last_failure: None,
            trying: false,
            start_seconds: None,
            health: BEST,
        }
    }
}

impl History {
    /// What these workloads tell.
    pub(crate) fn of<'a>(workloads: impl IntoIterator<Item = &'a GPUWorkload>) -> Self {
        let mut all = Self::default();
        for workload in workloads {
            let uid = workload.metadata.uid.as_deref().unwrap_or_default();
            let status = workload.status.as_ref();
            all.note(uid, status.map_or(&[], |status| &status.recent_attempts));
        }
        all
    }

    /// Takes in what a workload tells now, which is nothing when it is gone.
    pub(crate) fn note(&mut self, uid: &str, attempts: &[WorkloadAttempt]) {
        let before = self.told.get(uid).map_or(&[][..], Vec::as_slice);
        if before == attempts {
            return;
        }
        for old in self.told.remove(uid).into_iter().flatten() {
            match entry(uid, &old) {
                Some(entry) => {
                    if let Some(all) = self.ended.get_mut(&old.provider) {
                        all.remove(&entry);
                    }
                    self.ended.retain(|_, all| !all.is_empty());
                }
                None if is_open(&old) => {
                    if let Some(count) = self.open.get_mut(&old.provider) {
                        *count = count.saturating_sub(1);
                    }
                    self.open.retain(|_, count| *count > 0);
                }
                None => {}
            }
        }
        for new in attempts {
            match entry(uid, new) {
                Some(entry) => {
                    let all = self.ended.entry(new.provider.clone()).or_default();
                    all.insert(entry);
                }
                None if is_open(new) => *self.open.entry(new.provider.clone()).or_default() += 1,
                None => {}
            }
        }
        if !attempts.is_empty() {
            self.told.insert(uid.to_owned(), attempts.to_vec());
        }
    }

    /// How every provider stands that anything is told of.
    pub(crate) fn standings(&self, now: Timestamp) -> BTreeMap<String, Standing> {
        let names = self.ended.keys().chain(self.open.keys());
        names
            .map(|name| (name.clone(), self.standing(name, now)))
            .collect()
    }

    fn standing(&self, provider: &str, now: Timestamp) -> Standing {
        let all = self.ended.get(provider).into_iter().flatten().rev();
        let latest: Vec<&Entry> = all.take(LATEST).collect();
        let breaker = breaker(provider, &latest);
        let starts: Vec<u64> = latest
            .iter()
            .filter_map(|entry| match &entry.3 {
                Outcome::Started(seconds) => Some(*seconds),
                Outcome::Failed(_) => None,
            })
            .collect();
        let mean = starts.iter().sum::<u64>().checked_div(starts.len() as u64);
        // One more that went well: what nobody has tried is not worse than what always worked.
        let share = (starts.len() + 1) * BEST as usize / (latest.len() + 1);
        Standing {
            state: breaker.state(now.as_second()),
            until: breaker
                .until
                .and_then(|until| Timestamp::from_second(until).ok()),
            failures: breaker.failures,
            last_failure: latest.first().and_then(|entry| match &entry.3 {
                Outcome::Failed(failed) => Some(failed.reason),
                Outcome::Started(_) => None,
            }),
            trying: self.open.get(provider).is_some_and(|count| *count > 0),
            start_seconds: mean,
            health: u32::try_from(share).unwrap_or(BEST),
        }
    }
}

/// The breaker after the failures since the last success. A second failure of one node says nothing more of its provider,
/// unless it was tried after the provider had been left alone. Nodes without a provider have nothing in common: where one
/// of them fails, the next one is tried.
fn breaker(provider: &str, latest: &[&Entry]) -> Breaker {
    let mut breaker = Breaker::default();
    if provider == label::PROVIDER_DEFAULT {
        return breaker;
    }
    let failures = latest.iter().map_while(|(at, .., outcome)| match outcome {
        Outcome::Failed(failed) => Some((at, failed)),
        Outcome::Started(_) => None,
    });
    let failures: Vec<_> = failures.collect();
    let mut blamed: BTreeSet<&str> = BTreeSet::new();
    for (at, failed) in failures.into_iter().rev() {
        let mut nodes = failed.nodes.iter();
        let known = nodes.any(|node| blamed.contains(node.as_str()));
        let until = breaker.until;
        let tried_again = until.is_some_and(|until| failed.placed.as_second() >= until);
        if !known || tried_again {
            breaker = breaker.failed(at.as_second());
        }
        blamed.extend(failed.nodes.iter().map(String::as_str));
    }
    breaker
}

/// Whether it is not known yet what comes of it.
fn is_open(attempt: &WorkloadAttempt) -> bool {
    attempt.started_at.is_none() && attempt.ended_at.is_none()
}

/// What came of an attempt. One that never started, by its own fault or by somebody's hand, says nothing of its nodes.
fn entry(uid: &str, attempt: &WorkloadAttempt) -> Option<Entry> {
    let ended = attempt.reason.as_deref();
    let failure = FAILURES.into_iter().find(|failure| ended == Some(*failure));
    let (at, outcome) = match (failure, &attempt.ended_at, &attempt.started_at) {
        (Some(reason), Some(ended), _) => {
            let (placed, nodes) = (attempt.placed_at.0, attempt.nodes.clone());
            let failed = Failed {
                reason,
                placed,
                nodes,
            };
            (ended.0, Outcome::Failed(failed))
        }
        (_, ended, Some(started)) => {
            let took = started.0.duration_since(attempt.placed_at.0).as_secs();
            let took = u64::try_from(took).unwrap_or(0);
            let at = ended.as_ref().map_or(started.0, |ended| ended.0);
            (at, Outcome::Started(took))
        }
        _ => return None,
    };
    Some((at, uid.to_owned(), attempt.number, outcome))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
    }

    fn attempt(
        number: i32,
        placed: i64,
        started: Option<i64>,
        ended: Option<(i64, &str)>,
    ) -> WorkloadAttempt {
        WorkloadAttempt {
            number,
            provider: "cloud".to_owned(),
            nodes: Vec::new(),
            placed_at: Time(at(placed)),
            started_at: started.map(|seconds| Time(at(seconds))),
            ended_at: ended.map(|(seconds, _)| Time(at(seconds))),
            reason: ended.map(|(_, reason)| reason.to_owned()),
        }
    }

    fn standing(history: &History, now: i64) -> Standing {
        history
            .standings(at(now))
            .remove("cloud")
            .unwrap_or_default()
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_start_closes_it() {
        let mut history = History::default();
        history.note(
            "a",
            &[
                attempt(0, 0, Some(5), Some((10, "NodeLost"))),
                attempt(1, 11, None, Some((20, "RefusedByNode"))),
            ],
        );
        let two = standing(&history, 21);
        assert_eq!(
            (two.state, two.failures, two.health),
            (State::Closed, 2, 333)
        );
        history.note("b", &[attempt(0, 0, None, Some((30, "StartTimeout")))]);
        let open = standing(&history, 31);
        assert_eq!(
            (open.state, open.until, open.last_failure),
            (State::Open, Some(at(330)), Some("StartTimeout"))
        );
        assert_eq!(standing(&history, 330).state, State::HalfOpen);
        // One is tried, and what comes of it decides.
        history.note("c", &[attempt(0, 331, None, None)]);
        assert!(standing(&history, 332).trying);
        history.note("c", &[attempt(0, 331, Some(340), None)]);
        let closed = standing(&history, 341);
        assert_eq!((closed.state, closed.trying), (State::Closed, false));
        assert_eq!(closed.start_seconds, Some(9));
    }

    fn lost(node: &str, placed: i64, ended: i64) -> [WorkloadAttempt; 1] {
        let mut lost = attempt(0, placed, Some(placed + 1), Some((ended, "NodeLost")));
        lost.nodes = vec![node.to_owned()];
        [lost]
    }

    #[test]
    fn a_node_that_takes_many_along_is_one_failure_and_three_nodes_are_three() {
        let mut history = History::default();
        for number in 0..10 {
            history.note(&format!("a-{number}"), &lost("one", 0, 100));
        }
        let known = standing(&history, 101);
        assert_eq!((known.state, known.failures), (State::Closed, 1));
        history.note("b", &lost("two", 0, 101));
        assert_eq!(standing(&history, 102).state, State::Closed);
        history.note("c", &lost("three", 0, 102));
        assert_eq!(standing(&history, 103).until, Some(at(402)));
        // What was there before it opened says nothing new; what was tried after it does.
        history.note("d", &lost("one", 90, 300));
        assert_eq!(standing(&history, 301).until, Some(at(402)));
        history.note("e", &lost("one", 403, 410));
        assert_eq!(standing(&history, 411).until, Some(at(1010)));
    }

    #[test]
    fn nodes_without_a_provider_are_never_left_alone_together() {
        let mut history = History::default();
        for (number, node) in ["one", "two", "three", "four"].into_iter().enumerate() {
            let mut told = lost(node, 0, 100);
            label::PROVIDER_DEFAULT.clone_into(&mut told[0].provider);
            history.note(&number.to_string(), &told);
        }
        let standings = history.standings(at(101));
        let known = &standings[label::PROVIDER_DEFAULT];
        assert_eq!((known.state, known.failures), (State::Closed, 0));
    }

    #[test]
    fn what_says_nothing_of_the_nodes_does_not_count() {
        let mut history = History::default();
        history.note(
            "a",
            &[
                attempt(0, 0, None, Some((9, "ImagePullFailed"))),
                attempt(1, 10, Some(12), Some((20, "NonZeroExit"))),
                attempt(2, 21, Some(25), Some((30, "Preempted"))),
            ],
        );
        let known = standing(&history, 31);
        assert_eq!((known.failures, known.health), (0, BEST));
        assert_eq!(known.start_seconds, Some(3));
    }

    #[test]
    fn what_is_told_anew_is_counted_once_and_what_is_gone_not_at_all() {
        let mut history = History::default();
        let three = [0, 1, 2].map(|n| {
            let end = i64::from(n) * 10 + 5;
            attempt(n, i64::from(n) * 10, None, Some((end, "NodeLost")))
        });
        history.note("a", &three[..2]);
        history.note("a", &three[..2]);
        assert_eq!(standing(&history, 16).failures, 2);
        history.note("a", &three);
        assert_eq!(standing(&history, 26).state, State::Open);
        history.note("b", &[attempt(0, 0, None, None)]);
        history.note("b", &[]);
        history.note("a", &[]);
        assert_eq!(standing(&history, 27), Standing::default());
    }
}
