//! A tenant's money: what its namespaces may spend on rented machines, and what they do.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::price::{self, Price};

/// Hundredths of a limit at which a warning is said, where the budget does not say.
const WARN_AT: i32 = 80;

/// Most US dollars for rented machines, each as a number or as text. Every limit that is given holds. What a machine may
/// cost at worst is reserved before it is bought: its price until `maxLifetime` or `maxTotalPrice` ends it, else for as
/// long as it may run. Days and months are those of UTC. A budget of a parent covers everything below it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantBudget {
    /// Most dollars an hour for all machines that are rented at one time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "price::schema")]
    pub per_hour: Option<Price>,
    /// Most dollars a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "price::schema")]
    pub per_day: Option<Price>,
    /// Most dollars a calendar month.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "price::schema")]
    pub per_month: Option<Price>,
    /// Hundredths of a limit at which the tenant says so. Absent: 80.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub warn_at: Option<i32>,
    /// What happens at a limit.
    #[serde(default)]
    pub at_limit: AtLimit,
}

impl TenantBudget {
    /// Hundredths of a limit at which a warning is said.
    pub fn warn_at(&self) -> i32 {
        self.warn_at.unwrap_or(WARN_AT)
    }
}

/// What happens at a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum AtLimit {
    /// Nothing is bought that could pass it, today or later; what runs goes on.
    #[default]
    Hold,
    /// Nothing is bought that could pass it before the day or month is over, and what would pass it is given back before
    /// it does: idle machines first, then those bought last.
    Stop,
}

/// What a tenant has spent and may still spend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BudgetStatus {
    /// Machines rented or being bought.
    #[serde(default)]
    pub machines: i64,
    /// Dollars they cost an hour together.
    pub price_per_hour: String,
    /// Dollars spent since midnight.
    pub spent_today: String,
    /// Dollars that what is rented may still cost today.
    pub reserved_today: String,
    /// Dollars spent since the month began.
    pub spent_this_month: String,
    /// Dollars that what is rented may still cost this month.
    pub reserved_this_month: String,
    /// Up to when what runs is counted: not renewed more often than every five minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub as_of: Option<Time>,
}
