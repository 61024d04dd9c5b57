//! Room for copies on one disk: which may come, which go for that, and what the others wait for.
//!
//! Copies that are used, needed, pinned or under way are never chosen to go. Of the others those of the lowest priority
//! go first, and among these the one that was used longest ago; none of a higher priority than what comes. What went
//! comes back only into free room, unless it is needed: two copies never take turns by themselves.

use std::cmp::Reverse;

/// Why a copy stays, whoever comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Somebody reads it.
    Used,
    /// Somebody is about to.
    Needed,
    Pinned,
    /// It is being fetched.
    Coming,
    /// It is being fetched, and how much that is, is not known yet: its bytes are all that were free.
    Measuring,
}

/// What lies on the disk, or has been promised room there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub id: String,
    pub bytes: u64,
    pub priority: i32,
    /// In any unit; what was never used counts from when it came.
    pub last_used: i64,
    pub keep: Option<Keep>,
    /// It is being removed.
    pub leaving: bool,
}

/// How urgently a copy is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    /// Somebody waits for it.
    Needed,
    /// It has not been there before.
    New,
    /// It made room for another before.
    Returning,
}

/// A copy that is to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    pub id: String,
    /// None where nobody knows yet.
    pub bytes: Option<u64>,
    pub priority: i32,
    pub call: Call,
    /// Of two that are alike, the earlier one comes first.
    pub since: i64,
}

/// What a copy that is to come is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It may come, with at most so many bytes.
    Come { room: u64 },
    /// Room is being made for it.
    Soon,
    /// Nothing that may go is enough.
    Waits,
    /// Another is being fetched whose size is not known.
    Measured,
    /// It never fits.
    TooLarge,
}

/// Who goes, for whom (nobody, where there is too much already), and what each that is to come is told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub evict: Vec<(String, Option<String>)>,
    pub answers: Vec<(String, Answer)>,
}

impl Decision {
    pub fn answer(&self, id: &str) -> Option<Answer> {
        let found = self.answers.iter().find(|(one, _)| one == id);
        found.map(|(_, answer)| *answer)
    }

    pub fn evicted(&self, id: &str) -> Option<Option<&str>> {
        let found = self.evict.iter().find(|(one, _)| one == id);
        found.map(|(_, cause)| cause.as_deref())
    }
}

/// Room that is left while wants are gone through.
struct Books<'a> {
    quota: u64,
    held: &'a [Held],
    /// Bytes given or promised in this pass.
    promised: u64,
    evict: Vec<(String, Option<String>)>,
}

/// Decides about one disk. Every id is held at most once and wanted at most once, and no id both.
pub fn decide(quota: u64, held: &[Held], wants: &[Want]) -> Decision {
    let mut books = Books {
        quota,
        held,
        promised: 0,
        evict: Vec::new(),
    };
    let excess = books.to_stay().saturating_sub(quota);
    if excess > 0 {
        // The quota was lowered, or two came at once: whatever may go helps, enough or not.
        let (chosen, _) = books.choose(excess, i32::MAX);
        books.evict.extend(chosen.into_iter().map(|id| (id, None)));
    }
    let mut measuring = held.iter().any(|one| one.keep == Some(Keep::Measuring));
    let mut line: Vec<&Want> = wants.iter().collect();
    line.sort_by_key(|want| (Reverse(want.priority), want.call, want.since, &want.id));
    let mut answers = Vec::new();
    for want in line {
        let answer = books.answer(want, measuring);
        measuring |= want.bytes.is_none() && matches!(answer, Answer::Come { .. });
        answers.push((want.id.clone(), answer));
    }
    Decision {
        evict: books.evict,
        answers,
    }
}

impl Books<'_> {
    /// Bytes that are there now, or were promised before.
    fn there(&self) -> u64 {
        self.held.iter().map(|one| one.bytes).sum()
    }

    /// Bytes that are there when everybody has gone who is to go.
    fn to_stay(&self) -> u64 {
        let stays = |one: &&Held| !one.leaving && !self.evict.iter().any(|(id, _)| *id == one.id);
        let stay = self.held.iter().filter(stays);
        stay.map(|one| one.bytes).sum()
    }

    fn answer(&mut self, want: &Want, measuring: bool) -> Answer {
        let free = self.quota.saturating_sub(self.there() + self.promised);
        let Some(bytes) = want.bytes else {
            if measuring {
                return Answer::Measured;
            }
            self.promised += free;
            return Answer::Come { room: free };
        };
        if bytes > self.quota {
            return Answer::TooLarge;
        }
        if bytes <= free {
            self.promised += bytes;
            return Answer::Come { room: bytes };
        }
        let then = self.to_stay() + self.promised + bytes;
        let lacking = then.saturating_sub(self.quota);
        if lacking > 0 {
            if measuring {
                // What lacks is not known before that one's size is.
                return Answer::Measured;
            }
            if want.call == Call::Returning {
                return Answer::Waits;
            }
            let (chosen, enough) = self.choose(lacking, want.priority);
            if !enough {
                return Answer::Waits;
            }
            let cause = Some(want.id.clone());
            let chosen = chosen.into_iter().map(|id| (id, cause.clone()));
            self.evict.extend(chosen);
        }
        self.promised += bytes;
        Answer::Soon
    }

    /// Who goes so that `lacking` bytes come free, of at most this priority, and whether that is enough.
    fn choose(&self, lacking: u64, priority: i32) -> (Vec<String>, bool) {
        let may_go = |one: &&Held| {
            let gone = one.leaving || self.evict.iter().any(|(id, _)| *id == one.id);
            !gone && one.keep.is_none() && one.priority <= priority && one.bytes > 0
        };
        let mut idle: Vec<&Held> = self.held.iter().filter(may_go).collect();
        idle.sort_by_key(|one| (one.priority, one.last_used, &one.id));
        let mut freed = 0;
        let mut chosen = Vec::new();
        for one in idle {
            if freed >= lacking {
                break;
            }
            freed += one.bytes;
            chosen.push(one);
        }
        let enough = freed >= lacking;
        // A large one that went last may make small ones before it unnecessary; the dearest is spared first.
        for at in (0..chosen.len()).rev() {
            if enough && freed - chosen[at].bytes >= lacking {
                freed -= chosen.remove(at).bytes;
            }
        }
        let chosen = chosen.into_iter().map(|one| one.id.clone());
        (chosen.collect(), enough)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn held(id: &str, bytes: u64, priority: i32, last_used: i64) -> Held {
        Held {
            id: id.to_owned(),
            bytes,
            priority,
            last_used,
            keep: None,
            leaving: false,
        }
    }

    fn kept(id: &str, bytes: u64, keep: Keep) -> Held {
        Held {
            keep: Some(keep),
            ..held(id, bytes, 0, 0)
        }
    }

    fn want(id: &str, bytes: impl Into<Option<u64>>, call: Call) -> Want {
        Want {
            id: id.to_owned(),
            bytes: bytes.into(),
            priority: 0,
            call,
            since: 0,
        }
    }

    fn gone(decision: &Decision) -> Vec<&str> {
        decision.evict.iter().map(|(id, _)| id.as_str()).collect()
    }

    #[test]
    fn what_was_used_longest_ago_goes_first_and_the_lowest_priority_before_that() {
        let there = [
            held("old", 40, 1, 1),
            held("new", 40, 0, 9),
            held("mid", 20, 0, 5),
        ];
        let come = [want("x", 20, Call::New)];
        let decision = decide(100, &there, &come);
        assert_eq!(gone(&decision), ["mid"]);
        assert_eq!(decision.evicted("mid"), Some(Some("x")));
        assert_eq!(decision.answer("x"), Some(Answer::Soon));
        // Enough alone, so that what would have gone before it stays.
        let more = decide(100, &there, &[want("x", 40, Call::New)]);
        assert_eq!(gone(&more), ["new"]);
        // A higher priority makes no room for a lower one.
        let most = decide(100, &there, &[want("x", 70, Call::New)]);
        assert_eq!(
            (gone(&most), most.answer("x")),
            (vec![], Some(Answer::Waits))
        );
    }

    #[test]
    fn what_is_used_needed_pinned_or_under_way_stays() {
        for keep in [Keep::Used, Keep::Needed, Keep::Pinned, Keep::Coming] {
            let decision = decide(100, &[kept("a", 80, keep)], &[want("x", 30, Call::Needed)]);
            assert_eq!(decision.evict, []);
            assert_eq!(decision.answer("x"), Some(Answer::Waits));
        }
        let too_much = decide(50, &[kept("a", 80, Keep::Used)], &[]);
        assert_eq!(too_much.evict, []);
    }

    #[test]
    fn what_made_room_comes_back_into_free_room_or_when_it_is_needed() {
        let there = [held("a", 60, 0, 1)];
        let back = |call| decide(100, &there, &[want("x", 60, call)]);
        assert_eq!(back(Call::Returning).answer("x"), Some(Answer::Waits));
        assert_eq!(gone(&back(Call::Needed)), ["a"]);
        let room = decide(120, &there, &[want("x", 60, Call::Returning)]);
        assert_eq!(room.answer("x"), Some(Answer::Come { room: 60 }));
    }

    #[test]
    fn room_that_is_being_made_is_kept_for_whom_it_is_made() {
        let mut going = held("a", 60, 0, 1);
        going.leaving = true;
        let line = [want("big", 90, Call::New), want("small", 30, Call::New)];
        let decision = decide(100, &[going], &line);
        assert_eq!(decision.answer("big"), Some(Answer::Soon));
        assert_eq!(decision.answer("small"), Some(Answer::Waits));
        assert_eq!(decision.evict, []);
    }

    #[test]
    fn a_size_nobody_knows_takes_what_is_free_and_nobody_goes_for_it() {
        let there = [held("a", 60, 0, 1)];
        let line = [want("x", None, Call::New), want("y", 50, Call::New)];
        let decision = decide(100, &there, &line);
        assert_eq!(decision.answer("x"), Some(Answer::Come { room: 40 }));
        assert_eq!(decision.answer("y"), Some(Answer::Measured));
        assert_eq!(decision.evict, []);
        let large = decide(100, &there, &[want("x", 101, Call::Needed)]);
        assert_eq!(large.answer("x"), Some(Answer::TooLarge));
        assert_eq!(large.evict, []);
    }

    #[test]
    fn too_much_goes_as_far_as_it_may() {
        let there = [held("a", 60, 5, 1), held("b", 60, 0, 9)];
        assert_eq!(decide(100, &there, &[]).evict, [("b".to_owned(), None)]);
    }

    fn keeps() -> impl Strategy<Value = Option<Keep>> {
        prop_oneof![
            4 => Just(None),
            1 => Just(Some(Keep::Used)),
            1 => Just(Some(Keep::Needed)),
            1 => Just(Some(Keep::Pinned)),
            1 => Just(Some(Keep::Coming)),
            1 => Just(Some(Keep::Measuring)),
        ]
    }

    fn scene() -> impl Strategy<Value = (u64, Vec<Held>, Vec<Want>)> {
        let one = (0_u64..60, -1_i32..3, 0_i64..5, keeps(), any::<bool>());
        let call = prop_oneof![Just(Call::Needed), Just(Call::New), Just(Call::Returning)];
        let size = prop_oneof![4 => (0_u64..120).prop_map(Some), 1 => Just(None)];
        let want = (size, -1_i32..3, call, 0_i64..3);
        let held = proptest::collection::vec(one, 0..6);
        let wants = proptest::collection::vec(want, 0..4);
        (0_u64..150, held, wants).prop_map(|(quota, held, wants)| {
            let held = held.into_iter().enumerate();
            let held = held.map(|(at, (bytes, priority, last_used, keep, leaving))| Held {
                id: format!("h{at}"),
                bytes,
                priority,
                last_used,
                leaving: leaving && keep.is_none(),
                keep,
            });
            let wants = wants.into_iter().enumerate();
            let wants = wants.map(|(at, (bytes, priority, call, since))| Want {
                id: format!("w{at}"),
                bytes,
                priority,
                call,
                since,
            });
            (quota, held.collect(), wants.collect())
        })
    }

    proptest! {
        #[test]
        fn nobody_goes_who_is_kept_and_nobody_twice((quota, held, wants) in scene()) {
            let decision = decide(quota, &held, &wants);
            let ids: BTreeSet<&str> = gone(&decision).into_iter().collect();
            prop_assert_eq!(ids.len(), decision.evict.len());
            for (id, cause) in &decision.evict {
                let one = held.iter().find(|one| one.id == *id).expect("it was there");
                prop_assert!(one.keep.is_none() && !one.leaving);
                let cause = cause.as_ref().and_then(|id| wants.iter().find(|want| want.id == *id));
                prop_assert!(cause.is_none_or(|want| want.priority >= one.priority && want.call != Call::Returning));
            }
        }

        #[test]
        fn the_quota_is_kept_now_and_when_all_have_gone((quota, held, wants) in scene()) {
            let decision = decide(quota, &held, &wants);
            let there: u64 = held.iter().map(|one| one.bytes).sum();
            let given = |decision: &Decision| -> u64 {
                decision.answers.iter().map(|(_, answer)| match answer {
                    Answer::Come { room } => *room,
                    _ => 0,
                }).sum()
            };
            prop_assert!(given(&decision) == 0 || there + given(&decision) <= quota);
            let stays = held.iter().filter(|one| !one.leaving && decision.evicted(&one.id).is_none());
            let stays: u64 = stays.map(|one| one.bytes).sum();
            let soon: u64 = decision.answers.iter().filter(|(_, answer)| *answer == Answer::Soon)
                .filter_map(|(id, _)| wants.iter().find(|want| want.id == *id)?.bytes).sum();
            prop_assert!(soon == 0 || stays + given(&decision) + soon <= quota);
        }

        #[test]
        fn nobody_goes_who_could_have_stayed((quota, held, wants) in scene()) {
            let decision = decide(quota, &held, &wants);
            let stay: u64 = held.iter().filter(|one| !one.leaving).map(|one| one.bytes).sum();
            for want in &wants {
                let went = decision.evict.iter().filter(|(_, cause)| cause.as_ref() == Some(&want.id));
                let went: Vec<u64> = went.filter_map(|(id, _)| Some(held.iter().find(|one| one.id == *id)?.bytes)).collect();
                // Whoever stays after all keeps somebody from coming.
                let after = held.iter().filter(|one| !one.leaving && decision.evicted(&one.id).is_none());
                let after: u64 = after.map(|one| one.bytes).sum();
                let promised: u64 = decision.answers.iter().filter_map(|(id, answer)| match answer {
                    Answer::Come { room } => Some(*room),
                    Answer::Soon => wants.iter().find(|want| want.id == *id)?.bytes,
                    _ => None,
                }).sum();
                if let [only] = wants.as_slice() && only.id == want.id {
                    for bytes in went {
                        prop_assert!(after + bytes + promised > quota);
                    }
                }
            }
            if wants.is_empty() && stay <= quota {
                prop_assert!(decision.evict.is_empty());
            }
        }

        #[test]
        fn the_order_they_are_named_in_means_nothing((quota, held, wants) in scene()) {
            let decision = decide(quota, &held, &wants);
            let held: Vec<Held> = held.into_iter().rev().collect();
            let wants: Vec<Want> = wants.into_iter().rev().collect();
            prop_assert_eq!(decide(quota, &held, &wants), decision);
        }
    }
}
