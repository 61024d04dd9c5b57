//! What Google charges: a machine costs the sum of its cores, its memory and its GPUs, each a row of the billing
//! catalogue per region and kind of use. A machine one of whose parts has no price is not offered.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde::Deserialize;

/// Family of machines, its GPU at Google, our name of it, and what its rows begin with: cores, memory, GPU.
pub(super) const FAMILIES: &[(&str, &str, &str, [&str; 3])] = &[
    (
        "g2-",
        "nvidia-l4",
        "L4",
        ["G2 Instance Core", "G2 Instance Ram", "Nvidia L4 GPU"],
    ),
    (
        "a2-",
        "nvidia-tesla-a100",
        "A100-40GB",
        [
            "A2 Instance Core",
            "A2 Instance Ram",
            "Nvidia Tesla A100 GPU",
        ],
    ),
    (
        "a2-",
        "nvidia-a100-80gb",
        "A100-80GB",
        [
            "A2 Instance Core",
            "A2 Instance Ram",
            "Nvidia Tesla A100 80GB GPU",
        ],
    ),
    (
        "a3-",
        "nvidia-h100-80gb",
        "H100-80GB",
        [
            "A3 Instance Core",
            "A3 Instance Ram",
            "Nvidia H100 80GB GPU",
        ],
    ),
];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Page {
    #[serde(default)]
    pub(super) skus: Vec<Sku>,
    pub(super) next_page_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sku {
    description: String,
    category: Category,
    #[serde(default)]
    service_regions: Vec<String>,
    #[serde(default)]
    pricing_info: Vec<Pricing>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Category {
    usage_type: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pricing {
    pricing_expression: Expression,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Expression {
    #[serde(default)]
    tiered_rates: Vec<Rate>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Rate {
    unit_price: Price,
}

#[derive(Deserialize)]
struct Price {
    #[serde(default)]
    units: String,
    #[serde(default)]
    nanos: i64,
}

/// Prices of parts: by what their rows begin with, region, and whether spot.
pub(super) type Parts = BTreeMap<(&'static str, String, bool), Decimal>;

/// Takes the rows of a page that are parts of our machines.
pub(super) fn take(parts: &mut Parts, page: &[Sku]) {
    let wanted: Vec<&'static str> = FAMILIES.iter().flat_map(|(.., rows)| *rows).collect();
    for sku in page {
        let spot = match sku.category.usage_type.as_str() {
            "OnDemand" => false,
            "Preemptible" => true,
            _ => continue,
        };
        let text = sku.description.trim_start_matches("Spot Preemptible ");
        let part = wanted.iter().find(|part| {
            let rest = text.strip_prefix(**part);
            rest.is_some_and(|rest| rest.starts_with(" running in"))
        });
        let rate = sku.pricing_info.last();
        let rate = rate.and_then(|info| info.pricing_expression.tiered_rates.last());
        let (Some(part), Some(rate)) = (part, rate) else {
            continue;
        };
        let units: i64 = rate.unit_price.units.parse().unwrap_or_default();
        let price = Decimal::from(units) + Decimal::new(rate.unit_price.nanos, 9);
        for region in &sku.service_regions {
            parts.insert((*part, region.clone(), spot), price);
        }
    }
}

/// What a machine costs an hour.
pub(super) fn price(
    parts: &Parts,
    rows: [&'static str; 3],
    region: &str,
    spot: bool,
    [cores, mebibytes, gpus]: [u32; 3],
) -> Option<Decimal> {
    let [core, memory, gpu] = rows.map(|row| parts.get(&(row, region.to_owned(), spot)).copied());
    let gibibytes = Decimal::from(mebibytes) / Decimal::from(1024);
    let sum = core? * Decimal::from(cores) + memory? * gibibytes + gpu? * Decimal::from(gpus);
    Some(sum.round_dp(6).normalize())
}
