//! Whether an account is trusted with another machine, by what came of the last ones. Pure.
//!
//! Attempts are counted into the provider's status as they end, so that deleting a request forgets nothing.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use warp_api::cloudprovider::{CircuitState, CloudCircuit};
use warp_api::gpurequest::RequestAttempt;
use warp_api::{CloudProvider, GPURequest, reason};
use warp_cloud::Class;
use warp_core::breaker::{Breaker, State};

/// Endings that speak against the cloud. Sold out, too many and too dear do not: another offer may be had.
const FAILURES: [&str; 5] = [
    reason::NEVER_RAN,
    reason::NEVER_JOINED,
    reason::GPU_TEST_FAILED,
    reason::MACHINE_LOST,
    reason::PRICE_ABOVE_LIMIT,
];

/// What an attempt says of its cloud, and when it said so.
fn verdict(attempt: &RequestAttempt) -> Option<(Timestamp, Option<&str>)> {
    if let Some(ready) = &attempt.ready_at {
        return Some((ready.0, None));
    }
    let outcome = attempt.outcome.as_deref()?;
    let class = Class::of(outcome);
    let of_account = class.is_some_and(|class| class.is_of_account() && class != Class::Quota);
    let counts = of_account || FAILURES.contains(&outcome);
    counts.then_some((attempt.ended_at.as_ref()?.0, Some(outcome)))
}

fn breaker(circuit: &CloudCircuit) -> Breaker {
    Breaker {
        failures: circuit.failures,
        until: circuit.until.as_ref().map(|until| until.0.as_second()),
    }
}

fn state(circuit: &CloudCircuit, now: Timestamp) -> CircuitState {
    match breaker(circuit).state(now.as_second()) {
        State::Closed => CircuitState::Closed,
        State::Open => CircuitState::Open,
        State::HalfOpen => CircuitState::HalfOpen,
    }
}

/// The circuit after what attempts say that was not counted yet.
pub(super) fn next(
    before: Option<&CloudCircuit>,
    requests: &[Arc<GPURequest>],
    provider: &str,
    now: Timestamp,
) -> Option<CloudCircuit> {
    let mut after = before.cloned().unwrap_or_default();
    let counted = after.counted_until.as_ref().map(|until| until.0);
    let attempts = requests
        .iter()
        .filter_map(|request| request.status.as_ref())
        .flat_map(|status| &status.attempts)
        .filter(|attempt| attempt.provider == provider);
    let mut said: Vec<_> = attempts
        .filter_map(verdict)
        .filter(|(at, _)| counted.is_none_or(|counted| *at > counted))
        .collect();
    said.sort_unstable();
    for (at, failure) in said {
        let mut it = breaker(&after);
        if let Some(failure) = failure {
            it = it.failed(at.as_second());
            after.last_failure = Some(failure.to_owned());
        } else {
            it = it.succeeded();
            after.last_failure = None;
        }
        after.failures = it.failures;
        after.until = it
            .until
            .and_then(|until| Timestamp::from_second(until).ok())
            .map(Time);
        after.counted_until = Some(Time(at));
    }
    after.state = state(&after, now);
    Some(after).filter(|after| *after != CloudCircuit::default())
}

/// Why nothing may be rented from a provider at the moment, and until when; none when it may.
pub(crate) fn objection(
    provider: &CloudProvider,
    name: &str,
    requests: &[Arc<GPURequest>],
    now: Timestamp,
) -> Option<(String, Option<Timestamp>)> {
    let circuit = provider.status.as_ref()?.circuit.as_ref()?;
    let last = circuit.last_failure.as_deref().unwrap_or("a failure");
    let count = circuit.failures;
    let until = circuit.until.as_ref().map(|until| until.0);
    match state(circuit, now) {
        CircuitState::Closed => None,
        CircuitState::Open => {
            let again = until.map(|until| format!("; it is tried again at {until:.0}"));
            let text = format!(
                "the last {count} machines of CloudProvider {name} came to nothing ({last}){}",
                again.unwrap_or_default()
            );
            Some((text, until))
        }
        CircuitState::HalfOpen => {
            let attempts = requests
                .iter()
                .filter_map(|request| request.status.as_ref())
                .flat_map(|status| &status.attempts);
            let mut open = attempts.filter(|attempt| {
                let open = attempt.outcome.is_none() && attempt.ready_at.is_none();
                // The node of a container says nothing of its cloud before that is asked for one.
                let asked = !attempt.is_container() || attempt.pod.is_some();
                attempt.provider == name && open && asked
            });
            let probe = open.next()?;
            let text = format!(
                "the last {count} machines of CloudProvider {name} came to nothing ({last}); {} shows whether the next one does",
                probe.machine
            );
            Some((text, None))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
    }

    fn request(attempts: &[Value]) -> Arc<GPURequest> {
        let attempts = attempts.iter().enumerate().map(|(number, more)| {
            let mut it = json!({
                "number": number + 1, "machine": format!("m-{number}"), "provider": "cloud", "gpu": "L4",
                "gpus": 1, "region": "r", "instanceType": "t", "price": "1", "priceLimit": "1",
                "intendedAt": at(0),
            });
            for (key, value) in more.as_object().into_iter().flatten() {
                it[key] = value.clone();
            }
            it
        });
        let object = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "GPURequest",
            "metadata": {"name": "r", "namespace": "default"}, "spec": {"gpuType": "L4"},
            "status": {"attempts": attempts.collect::<Vec<_>>()},
        });
        Arc::new(serde_json::from_value(object).expect("a request"))
    }

    fn failed(ended: i64, outcome: &str) -> Value {
        json!({"instanceId": "i", "outcome": outcome, "endedAt": at(ended)})
    }

    fn provider(circuit: &CloudCircuit) -> CloudProvider {
        let object = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "CloudProvider", "metadata": {"name": "cloud"},
            "spec": {"type": "fake"}, "status": {"circuit": circuit},
        });
        serde_json::from_value(object).expect("a provider")
    }

    #[test]
    fn machines_that_come_to_nothing_open_it_and_one_that_is_ready_closes_it() {
        let never = |at| failed(at, "NeverJoined");
        let two = [request(&[never(10), never(20)])];
        let closed = next(None, &two, "cloud", at(21)).expect("two failures");
        assert_eq!((closed.state, closed.failures), (CircuitState::Closed, 2));
        // The request that failed is deleted: what it showed is remembered.
        let third = [request(&[failed(30, "BadCredentials")])];
        let open = next(Some(&closed), &third, "cloud", at(31)).expect("three failures");
        assert_eq!((open.state, open.failures), (CircuitState::Open, 3));
        assert_eq!(
            next(Some(&open), &third, "cloud", at(32)),
            Some(open.clone()),
            "counted once"
        );
        let (text, until) = objection(&provider(&open), "cloud", &third, at(32)).expect("open");
        assert!(
            text.contains("BadCredentials") && until == Some(at(330)),
            "{text}"
        );
        // Then one is tried, and no second beside it.
        assert_eq!(objection(&provider(&open), "cloud", &third, at(330)), None);
        let probing = [request(&[json!({})])];
        let (text, _) =
            objection(&provider(&open), "cloud", &probing, at(331)).expect("one at a time");
        assert!(text.contains("m-0"), "{text}");
        let good = [request(&[json!({"instanceId": "i", "readyAt": at(400)})])];
        let after = next(Some(&open), &good, "cloud", at(401)).expect("counted");
        assert_eq!((after.state, after.failures), (CircuitState::Closed, 0));
    }

    #[test]
    fn what_says_nothing_of_the_cloud_does_not_count() {
        let outcomes = [
            "NoCapacity",
            "QuotaExceeded",
            "PriceChanged",
            "Deleted",
            "SpotInterrupted",
        ];
        let all: Vec<Value> = (0..)
            .zip(outcomes)
            .map(|(at, outcome)| failed(at, outcome))
            .collect();
        assert_eq!(next(None, &[request(&all)], "cloud", at(10)), None);
        let others = [
            failed(1, "NeverRan"),
            failed(2, "NeverRan"),
            failed(3, "NeverRan"),
        ];
        assert_eq!(next(None, &[request(&others)], "another", at(10)), None);
    }
}
