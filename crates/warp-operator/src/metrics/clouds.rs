//! What is rented, what it costs and what does not end: figures that follow from the caches, counted when they are asked for.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use warp_api::{CloudProvider, GPURequest, Tenant, condition, reason};
use warp_cloud::Decimal;

use super::Labels;

type Money = Gauge<f64, std::sync::atomic::AtomicU64>;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Clouds {
    machines: Family<Labels, Gauge>,
    unowned: Family<Labels, Gauge>,
    price: Family<Labels, Money>,
    spent: Family<Labels, Money>,
    attempts: Family<Labels, Counter>,
    ending: Family<Labels, Gauge>,
    refused: Family<Labels, Gauge>,
    budget: Family<Labels, Money>,
}

fn number(amount: Decimal) -> f64 {
    amount.to_string().parse().unwrap_or_default()
}

fn dollars(text: Option<&String>) -> Decimal {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn of(provider: &str) -> Labels {
    vec![("provider", provider.to_owned())]
}

impl Clouds {
    pub(super) fn register(&self, to: &mut Registry) {
        to.register(
            "warp_cloud_machines",
            "Machines with this cluster's mark that a cloud says it has, by its word for their state",
            self.machines.clone(),
        );
        to.register(
            "warp_cloud_unowned_machines",
            "Those that belong to no request",
            self.unowned.clone(),
        );
        to.register(
            "warp_cloud_price_per_hour_dollars",
            "What they cost an hour together",
            self.price.clone(),
        );
        to.register(
            "warp_cloud_spend_dollars",
            "What machines of requests that are there have cost so far",
            self.spent.clone(),
        );
        to.register(
            "warp_cloud_attempts",
            "Attempts to rent a machine that are over, by how they ended",
            self.attempts.clone(),
        );
        to.register(
            "warp_cloud_termination_pending_seconds",
            "For how long the machine that ends slowest has been ending",
            self.ending.clone(),
        );
        to.register(
            "warp_cloud_credentials_refused",
            "1 while a cloud does not let its account in",
            self.refused.clone(),
        );
        to.register(
            "warp_cloud_budget_used_ratio",
            "What is spent of a tenant's budget, by day and month; 1 is all of it",
            self.budget.clone(),
        );
    }

    pub(super) fn attempted(&self, provider: &str, outcome: &str) {
        let mut labels = of(provider);
        labels.push(("outcome", super::snake(outcome)));
        self.attempts.get_or_create(&labels).inc();
    }

    /// Counts everything anew: what is gone is not told any more.
    pub(crate) fn count(
        &self,
        providers: &[Arc<CloudProvider>],
        requests: &[Arc<GPURequest>],
        tenants: &[Arc<Tenant>],
        now: Timestamp,
    ) {
        for family in [&self.machines, &self.unowned, &self.ending, &self.refused] {
            family.clear();
        }
        for family in [&self.price, &self.spent, &self.budget] {
            family.clear();
        }
        for provider in providers {
            self.account(provider);
        }
        for request in requests {
            self.machines_of(request, now);
        }
        for tenant in tenants {
            self.budget_of(tenant);
        }
    }

    fn account(&self, provider: &CloudProvider) {
        let name = provider.name_any();
        let status = provider.status.clone().unwrap_or_default();
        drop(self.ending.get_or_create(&of(&name)));
        drop(self.spent.get_or_create(&of(&name)));
        drop(self.unowned.get_or_create(&of(&name)));
        let price = dollars(status.price_per_hour.as_ref());
        self.price.get_or_create(&of(&name)).set(number(price));
        for machine in &status.machines {
            let mut labels = of(&name);
            labels.push(("state", super::snake(&machine.state)));
            self.machines.get_or_create(&labels).inc();
            if machine.unowned_since.is_some() {
                self.unowned.get_or_create(&of(&name)).inc();
            }
        }
        let ready = condition::find(&status.conditions, condition::READY);
        let refused = ready.is_some_and(|ready| ready.reason == reason::BAD_CREDENTIALS);
        self.refused
            .get_or_create(&of(&name))
            .set(i64::from(refused));
    }

    fn machines_of(&self, request: &GPURequest, now: Timestamp) {
        for earlier in request.status.iter().flat_map(|status| &status.earlier) {
            let cost = crate::gpurequest::cost_of_earlier(earlier);
            let spent = self.spent.get_or_create(&of(&earlier.provider));
            spent.inc_by(number(cost));
        }
        let attempts = request.status.iter().flat_map(|status| &status.attempts);
        for attempt in attempts {
            let labels = of(&attempt.provider);
            let cost = crate::gpurequest::cost_of(attempt, now);
            self.spent.get_or_create(&labels).inc_by(number(cost));
            let Some(since) = &attempt.ending_since else {
                continue;
            };
            if attempt.outcome.is_none() {
                let seconds = now.duration_since(since.0).as_secs();
                let slowest = self.ending.get_or_create(&labels);
                slowest.set(slowest.get().max(seconds));
            }
        }
    }

    fn budget_of(&self, tenant: &Tenant) {
        let Some(budget) = &tenant.spec.budget else {
            return;
        };
        let status = tenant
            .status
            .as_ref()
            .and_then(|status| status.budget.clone());
        let status = status.unwrap_or_default();
        for (period, limit, spent) in [
            ("day", &budget.per_day, &status.spent_today),
            ("month", &budget.per_month, &status.spent_this_month),
        ] {
            let limit = limit.as_ref().and_then(|limit| limit.decimal().ok());
            let Some(limit) = limit.filter(|limit| *limit > Decimal::ZERO) else {
                continue;
            };
            let labels = vec![("tenant", tenant.name_any()), ("period", period.to_owned())];
            let used = dollars(Some(spent)) / limit;
            self.budget
                .get_or_create(&labels)
                .set(number(used.round_dp(4)));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::metrics::Metrics;

    #[expect(
        clippy::needless_pass_by_value,
        reason = "`json!` at the call reads best by value"
    )]
    fn object<T: serde::de::DeserializeOwned>(
        kind: &str,
        spec: serde_json::Value,
        status: serde_json::Value,
    ) -> Arc<T> {
        let object = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": kind, "metadata": {"name": "a", "namespace": "n"},
            "spec": spec, "status": status,
        });
        Arc::new(serde_json::from_value(object).expect("an object"))
    }

    #[test]
    fn what_is_rented_what_it_costs_and_what_does_not_end_is_told() {
        let metrics = Metrics::default();
        let provider: Arc<CloudProvider> = object(
            "CloudProvider",
            json!({"type": "fake"}),
            json!({
                "pricePerHour": "3.50",
                "machines": [
                    {"id": "1", "name": "m-1", "state": "running"},
                    {"id": "2", "name": "m-2", "state": "running", "unownedSince": "2026-11-16T12:00:00Z"},
                ],
                "conditions": [{"type": "Ready", "status": "False", "reason": "BadCredentials", "message": "",
                    "lastTransitionTime": "2026-11-16T12:00:00Z"}],
            }),
        );
        let request: Arc<GPURequest> = object(
            "GPURequest",
            json!({"gpuType": "H100"}),
            json!({"phase": "Terminating", "attempts": [{
                "number": 1, "machine": "m-1", "provider": "a", "gpu": "H100-80GB", "gpus": 1, "region": "r",
                "instanceType": "t", "price": "2.00", "priceLimit": "2.00", "intendedAt": "2026-11-16T12:00:00Z",
                "billedFrom": "2026-11-16T12:00:00Z", "endingSince": "2026-11-16T12:50:00Z", "ending": "Deleted",
            }]}),
        );
        let tenant: Arc<Tenant> = object(
            "Tenant",
            json!({"namespaces": {"names": ["n"]}, "budget": {"perDay": 10}}),
            json!({"budget": {
                "pricePerHour": "0.00", "spentToday": "8.00", "reservedToday": "0.00",
                "spentThisMonth": "8.00", "reservedThisMonth": "0.00",
            }}),
        );
        let now = "2026-11-16T13:00:00Z".parse().expect("a time");
        metrics.follow(move |clouds| {
            let (one, two, three) = (provider.clone(), request.clone(), tenant.clone());
            clouds.count(&[one], &[two], &[three], now);
        });
        metrics.attempted("a", "NoCapacity");
        metrics.render();
        let text = metrics.render();
        for line in [
            "warp_cloud_machines{provider=\"a\",state=\"running\"} 2",
            "warp_cloud_unowned_machines{provider=\"a\"} 1",
            "warp_cloud_price_per_hour_dollars{provider=\"a\"} 3.5",
            "warp_cloud_spend_dollars{provider=\"a\"} 2.0",
            "warp_cloud_attempts_total{provider=\"a\",outcome=\"no_capacity\"} 1",
            "warp_cloud_termination_pending_seconds{provider=\"a\"} 600",
            "warp_cloud_credentials_refused{provider=\"a\"} 1",
            "warp_cloud_budget_used_ratio{tenant=\"a\",period=\"day\"} 0.8",
        ] {
            assert!(text.contains(line), "{line} not in\n{text}");
        }
    }
}
