//! Renting for a workload that waits: what a spec allows, and what a status says of it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::run_seconds;
use crate::price::{self, Price};

/// Seconds a workload waits before a machine is rented for it, where it does not say.
const AFTER: i64 = 600;
/// How long its machine may be idle, where it does not say.
const IDLE: &str = "10m";

/// A machine is rented for the workload when it has waited for room too long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Rent {
    /// Most US dollars an hour for the machine, or for all machines of a gang together, as a number or as text.
    #[schemars(schema_with = "price::schema")]
    pub max_price: Price,
    /// Most US dollars for all machines ever rented for this workload: they are given back before more is spent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "price::schema")]
    pub max_total_price: Option<Price>,
    /// How long the workload waits for room before a machine is rented, such as `30m`; `0s` rents at once. Absent: `10m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 16),
        regex(pattern = r"^([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?$")
    )]
    pub after: Option<String>,
    /// CloudProviders to rent from, by name or type. Empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 63)))]
    pub providers: Vec<String>,
    /// Rent a machine the cloud may take back, where that is sold within `maxPrice`; else one on demand.
    #[serde(default)]
    pub spot: bool,
    /// The machine is given back when no pod has used its GPUs for this long. Absent: `10m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 16),
        regex(pattern = r"^([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?$")
    )]
    pub idle_timeout: Option<String>,
    /// How long the machines of a gang that needs several may take until all of them are ready: then those that came are
    /// given back. Absent: `30m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 16),
        regex(pattern = r"^([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?$")
    )]
    pub within: Option<String>,
}

impl Rent {
    /// Seconds of waiting before a machine is rented.
    pub fn after_seconds(&self) -> i64 {
        let said = self.after.as_deref();
        said.map_or(AFTER, |text| run_seconds(text).unwrap_or(0))
    }

    /// How long the machine may be idle.
    pub fn idle_timeout(&self) -> &str {
        let said = self.idle_timeout.as_deref();
        said.filter(|text| run_seconds(text).is_some())
            .unwrap_or(IDLE)
    }
}

/// What is rented for the workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RentStatus {
    /// Since when it waits for room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_since: Option<Time>,
    /// When a machine is rented, if no room comes free before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rents_at: Option<Time>,
    /// The GPURequest of its machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The GPURequests of a gang's other machines, bought together with that one: all or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<String>,
    /// The GPURequest of another workload whose machine has room for it: nothing is rented meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<String>,
    /// How many times machines were asked for.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub requests: i32,
    /// Where that request is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The GPUs of the machine, such as `8 x H100-80GB`; of several, one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// US dollars an hour for the machine, or for all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<String>,
    /// The workload was placed on the machine.
    #[serde(default)]
    pub used: bool,
    /// US dollars spent on machines that are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent: Option<String>,
    /// How renting stands, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rent(text: serde_json::Value) -> Rent {
        serde_json::from_value(text).expect("a rent")
    }

    #[test]
    fn what_is_not_said_is_ten_minutes_and_nought_is_at_once() {
        let silent = rent(json!({"maxPrice": 3.5}));
        assert_eq!(
            (silent.after_seconds(), silent.idle_timeout()),
            (600, "10m")
        );
        let said = rent(json!({"maxPrice": "3", "after": "0s", "idleTimeout": "1h"}));
        assert_eq!((said.after_seconds(), said.idle_timeout()), (0, "1h"));
    }
}
