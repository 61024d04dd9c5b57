//! What Azure sells and for how much, from its public price list. The list does not say which GPUs a machine has: the
//! table here does.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde::Deserialize;

use crate::http::escaped;
use crate::offer::{Availability, Offer};

pub(super) const BASE: &str = "https://prices.azure.com";

/// Size, model, GPUs. Sizes with a part of a GPU are left out.
const SIZES: &[(&str, &str, u32)] = &[
    ("Standard_NC6s_v3", "V100-16GB", 1),
    ("Standard_NC12s_v3", "V100-16GB", 2),
    ("Standard_NC24s_v3", "V100-16GB", 4),
    ("Standard_ND40rs_v2", "V100-32GB", 8),
    ("Standard_NC4as_T4_v3", "T4", 1),
    ("Standard_NC8as_T4_v3", "T4", 1),
    ("Standard_NC16as_T4_v3", "T4", 1),
    ("Standard_NC64as_T4_v3", "T4", 4),
    ("Standard_NV36ads_A10_v5", "A10", 1),
    ("Standard_NV72ads_A10_v5", "A10", 2),
    ("Standard_NC24ads_A100_v4", "A100-80GB", 1),
    ("Standard_NC48ads_A100_v4", "A100-80GB", 2),
    ("Standard_NC96ads_A100_v4", "A100-80GB", 4),
    ("Standard_ND96asr_v4", "A100-40GB", 8),
    ("Standard_ND96amsr_A100_v4", "A100-80GB", 8),
    ("Standard_NC40ads_H100_v5", "H100-94GB", 1),
    ("Standard_NC80adis_H100_v5", "H100-94GB", 2),
    ("Standard_ND96isr_H100_v5", "H100-80GB", 8),
    ("Standard_ND96isr_H200_v5", "H200", 8),
    ("Standard_ND96isr_MI300X_v5", "MI300X", 8),
];

/// The first page of the machines with GPUs of one region.
pub(super) fn address(region: &str) -> String {
    let filter = format!(
        "serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and armRegionName eq '{region}' \
         and startswith(armSkuName, 'Standard_N')"
    );
    format!("{BASE}/api/retail/prices?$filter={}", escaped(&filter))
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Page {
    pub(super) items: Vec<Row>,
    pub(super) next_page_link: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    currency_code: String,
    retail_price: Decimal,
    arm_region_name: String,
    arm_sku_name: String,
    sku_name: String,
    product_name: String,
    unit_of_measure: String,
}

/// One offer per size and region, with the spot price of the same.
pub(super) fn offers(rows: &[Row]) -> Vec<Offer> {
    let mut spot: BTreeMap<(&str, &str), Decimal> = BTreeMap::new();
    let mut plain: BTreeMap<(&str, &str), Decimal> = BTreeMap::new();
    for row in rows {
        let hourly = row.currency_code == "USD" && row.unit_of_measure == "1 Hour";
        let other = row.product_name.contains("Windows") || row.sku_name.contains("Low Priority");
        if !hourly || other {
            continue;
        }
        let of = if row.sku_name.contains("Spot") {
            &mut spot
        } else {
            &mut plain
        };
        // Of several the dearest: nobody is surprised upwards.
        let known = of
            .entry((row.arm_sku_name.as_str(), row.arm_region_name.as_str()))
            .or_insert(row.retail_price);
        *known = row.retail_price.max(*known);
    }
    let offer = |((size, region), price): (&(&str, &str), &Decimal)| {
        let (_, gpu, gpus) = SIZES.iter().find(|(known, ..)| known == size)?;
        let bid = spot.get(&(*size, *region)).copied();
        Some(Offer {
            gpu: (*gpu).to_owned(),
            gpus: *gpus,
            region: (*region).to_owned(),
            instance_type: (*size).to_owned(),
            price: *price,
            spot_price: bid.filter(|bid| *bid > Decimal::ZERO && bid <= price),
            availability: Availability::Unknown,
        })
    };
    plain.iter().filter_map(offer).collect()
}
