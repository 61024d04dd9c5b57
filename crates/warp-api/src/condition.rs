//! Condition types and the one way conditions are set.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// First on every kind: the object does what it was asked to do.
pub const READY: &str = "Ready";
/// GPUWorkload: a node is chosen.
pub const PLACED: &str = "Placed";
/// InferenceService: the spec can be carried out.
pub const ACCEPTED: &str = "Accepted";
/// InferenceService: the autoscaler of others that its spec names chooses the number of copies.
pub const HANDED_OVER: &str = "HandedOver";
/// GPUWorkload: it finished well. `Unknown` until it is finished.
pub const SUCCEEDED: &str = "Succeeded";

/// Tenant: no limit of its budget is reached.
pub const WITHIN_BUDGET: &str = "WithinBudget";
/// Tenant: its owners have their rights and its namespaces are shut off as asked.
pub const ISOLATED: &str = "Isolated";

/// One condition as a plan states it, without times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub kind: &'static str,
    pub status: &'static str,
    pub reason: &'static str,
    pub message: String,
}

/// The list that follows from `old` when `states` hold at `now`, in the order of `states`. A
/// transition time changes only when the status does; conditions of other writers stay, last.
pub fn next(
    old: &[Condition],
    states: &[State],
    generation: i64,
    now: Timestamp,
) -> Vec<Condition> {
    let ours = states.iter().map(|state| {
        let same = old
            .iter()
            .find(|have| have.type_ == state.kind && have.status == state.status);
        Condition {
            type_: state.kind.to_owned(),
            status: state.status.to_owned(),
            reason: state.reason.to_owned(),
            message: state.message.clone(),
            observed_generation: Some(generation),
            last_transition_time: same.map_or(Time(now), |have| have.last_transition_time.clone()),
        }
    });
    let others = old
        .iter()
        .filter(|have| states.iter().all(|state| state.kind != have.type_));
    ours.chain(others.cloned()).collect()
}

/// The condition of a type, if it is set.
pub fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(status: &'static str, reason: &'static str) -> State {
        State {
            kind: READY,
            status,
            reason,
            message: String::new(),
        }
    }

    #[test]
    fn transition_time_moves_with_the_status_only() {
        let at = |second| Timestamp::from_second(second).expect("small number");
        let first = next(&[], &[state("False", "A")], 1, at(10));
        let second = next(&first, &[state("False", "B")], 2, at(20));
        assert_eq!(second[0].last_transition_time.0, at(10));
        assert_eq!(
            (second[0].reason.as_str(), second[0].observed_generation),
            ("B", Some(2))
        );
        let third = next(&second, &[state("True", "C")], 2, at(30));
        assert_eq!(third[0].last_transition_time.0, at(30));
    }

    #[test]
    fn conditions_of_others_are_kept() {
        let foreign = Condition {
            type_: "Theirs".to_owned(),
            status: "True".to_owned(),
            reason: "X".to_owned(),
            message: String::new(),
            observed_generation: None,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        };
        let all = next(
            std::slice::from_ref(&foreign),
            &[state("True", "A")],
            1,
            Timestamp::UNIX_EPOCH,
        );
        assert_eq!(all[0].type_, READY);
        assert_eq!(all[1], foreign);
    }
}
