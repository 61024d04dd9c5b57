//! `warp budget`: what tenants may spend on rented machines, what they have spent, and what is reserved.

use std::process::ExitCode;

use anyhow::Context;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde::Serialize;
use warp_api::price::Price;
use warp_api::tenant::AtLimit;
use warp_api::{Tenant, condition};

use super::offers::Format;
use crate::cluster::{self, Target, told};
use crate::output::{self, Table};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only this tenant
    #[arg(value_name = "TENANT")]
    tenant: Option<String>,
    #[command(flatten)]
    target: Target,
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

/// One tenant with a budget.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    tenant: String,
    machines: i64,
    per_hour: Line,
    today: Line,
    this_month: Line,
    at_limit: AtLimit,
    /// `BudgetKept`, `BudgetWarning`, `BudgetReached`; absent before the operator has looked.
    reason: Option<String>,
    message: Option<String>,
}

/// Dollars under one limit.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    spent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reserved: Option<String>,
    limit: Option<String>,
}

impl Line {
    /// `12.30 + 4.00 of 50.00`, what is reserved behind what is spent.
    fn text(&self) -> String {
        let spent = self.spent.as_deref().unwrap_or("?");
        let reserved = self.reserved.as_deref().filter(|text| *text != "0.00");
        let reserved = reserved.map(|text| format!(" + {text}"));
        let limit = self.limit.as_ref().map(|text| format!(" of {text}"));
        format!(
            "{spent}{}{}",
            reserved.unwrap_or_default(),
            limit.unwrap_or_default()
        )
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(budget(args))
}

async fn budget(args: Args) -> anyhow::Result<ExitCode> {
    let connection = args.target.connect().await?;
    let api: Api<Tenant> = Api::all(connection.client.clone());
    let tenants = if let Some(name) = &args.tenant {
        let found = api.get(name).await.map_err(told);
        vec![found.with_context(|| format!("failed to read tenant {name}"))?]
    } else {
        let found = api.list(&ListParams::default()).await.map_err(told);
        found.context("failed to read the tenants")?.items
    };
    let rows: Vec<Row> = tenants.iter().filter_map(row).collect();
    match args.output {
        Format::Json => output::result(&serde_json::to_string_pretty(&rows)?),
        Format::Table if rows.is_empty() => output::note("no tenant has a budget (spec.budget)"),
        Format::Table => output::text(&table(&rows).render(true)),
    }
    Ok(ExitCode::SUCCESS)
}

fn row(tenant: &Tenant) -> Option<Row> {
    let budget = tenant.spec.budget.as_ref()?;
    let status = tenant.status.as_ref();
    let figures = status.and_then(|status| status.budget.clone());
    let conditions = status.map(|status| status.conditions.as_slice());
    let said = condition::find(conditions.unwrap_or_default(), condition::WITHIN_BUDGET);
    let limit = |price: Option<&Price>| {
        let read = price.map(Price::decimal)?;
        Some(read.map_or_else(|_| "?".to_owned(), |most| format!("{most:.2}")))
    };
    let figure = |of: fn(warp_api::tenant::BudgetStatus) -> String| figures.clone().map(of);
    Some(Row {
        tenant: tenant.name_any(),
        machines: figures.as_ref().map_or(0, |figures| figures.machines),
        per_hour: Line {
            spent: figure(|figures| figures.price_per_hour),
            reserved: None,
            limit: limit(budget.per_hour.as_ref()),
        },
        today: Line {
            spent: figure(|figures| figures.spent_today),
            reserved: figure(|figures| figures.reserved_today),
            limit: limit(budget.per_day.as_ref()),
        },
        this_month: Line {
            spent: figure(|figures| figures.spent_this_month),
            reserved: figure(|figures| figures.reserved_this_month),
            limit: limit(budget.per_month.as_ref()),
        },
        at_limit: budget.at_limit,
        reason: said.map(|said| said.reason.clone()),
        message: said.map(|said| said.message.clone()),
    })
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new([
        "TENANT", "MACHINES", "PER-HOUR", "TODAY", "MONTH", "AT-LIMIT", "STANDS",
    ]);
    for row in rows {
        let at_limit = match row.at_limit {
            AtLimit::Hold => "hold",
            AtLimit::Stop => "stop",
        };
        table.row([
            row.tenant.clone(),
            row.machines.to_string(),
            row.per_hour.text(),
            row.today.text(),
            row.this_month.text(),
            at_limit.to_owned(),
            row.reason.clone().unwrap_or_default(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_reserved_stands_behind_what_is_spent() {
        let tenant = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "vision"},
            "spec": {"namespaces": {"names": ["v"]}, "budget": {"perDay": 50, "perHour": "10.5"}},
            "status": {"budget": {"machines": 2, "pricePerHour": "5.80", "spentToday": "12.30", "reservedToday": "4.00",
                "spentThisMonth": "99.00", "reservedThisMonth": "0.00"}},
        });
        let row = row(&serde_json::from_value(tenant).unwrap()).unwrap();
        assert_eq!(row.today.text(), "12.30 + 4.00 of 50.00");
        assert_eq!(row.per_hour.text(), "5.80 of 10.50");
        assert_eq!(row.this_month.text(), "99.00");
    }

    #[test]
    fn a_tenant_without_a_budget_has_no_row() {
        let tenant = json!({
            "apiVersion": "gpu.warp.dev/v1alpha1", "kind": "Tenant", "metadata": {"name": "vision"},
            "spec": {"namespaces": {"names": ["v"]}},
        });
        assert!(row(&serde_json::from_value(tenant).unwrap()).is_none());
    }
}
