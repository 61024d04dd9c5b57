//! What Amazon sells and for how much: list prices from its price list, spot prices from EC2.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::{Value, json};

use super::xml::Node;
use crate::offer::{Availability, Offer};

/// The model of a family's GPUs. Families with parts of a GPU (g6f) and of other makers' are left out.
const FAMILIES: &[(&str, &str)] = &[
    ("p3", "V100-16GB"),
    ("p3dn", "V100-32GB"),
    ("p4d", "A100-40GB"),
    ("p4de", "A100-80GB"),
    ("p5", "H100-80GB"),
    ("p5e", "H200"),
    ("p5en", "H200"),
    ("p6-b200", "B200"),
    ("p6-b300", "B300"),
    ("g4dn", "T4"),
    ("g5", "A10"),
    ("g5g", "T4"),
    ("g6", "L4"),
    ("gr6", "L4"),
    ("g6e", "L40S"),
    ("g7e", "RTX-PRO-6000"),
];

/// The question for the machines with GPUs of one region.
pub(super) fn question(region: &str, token: Option<&str>) -> Value {
    let filter =
        |field: &str, value: &str| json!({"Type": "TERM_MATCH", "Field": field, "Value": value});
    let mut body = json!({
        "ServiceCode": "AmazonEC2",
        "FormatVersion": "aws_v1",
        "MaxResults": 100,
        "Filters": [
            filter("regionCode", region),
            filter("instanceFamily", "GPU instance"),
            filter("operatingSystem", "Linux"),
            filter("preInstalledSw", "NA"),
            filter("tenancy", "Shared"),
            filter("capacitystatus", "Used"),
            filter("marketoption", "OnDemand"),
        ],
    });
    if let Some(token) = token {
        body["NextToken"] = token.into();
    }
    body
}

/// One page of the price list; every entry is a document of its own.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Page {
    price_list: Vec<String>,
    pub(super) next_token: Option<String>,
}

/// The offers of a page, on demand.
pub(super) fn offers(page: &Page, region: &str) -> Vec<Offer> {
    let entries = page.price_list.iter();
    let entries = entries.filter_map(|text| serde_json::from_str::<Value>(text).ok());
    entries.filter_map(|entry| offer(&entry, region)).collect()
}

fn offer(entry: &Value, region: &str) -> Option<Offer> {
    let attributes = &entry["product"]["attributes"];
    let kind = attributes["instanceType"].as_str()?;
    let (family, _) = kind.split_once('.')?;
    let (_, gpu) = FAMILIES.iter().find(|(known, _)| *known == family)?;
    let gpus = attributes["gpu"].as_str()?.parse().ok()?;
    let terms = entry["terms"]["OnDemand"].as_object()?;
    let prices = terms
        .values()
        .filter_map(|term| term["priceDimensions"].as_object());
    let prices = prices.flat_map(serde_json::Map::values);
    let prices = prices.filter_map(|price| {
        let dollars = price["pricePerUnit"]["USD"]
            .as_str()?
            .parse::<Decimal>()
            .ok()?;
        (dollars > Decimal::ZERO && price["unit"] == "Hrs").then_some(dollars)
    });
    Some(Offer {
        gpu: (*gpu).to_owned(),
        gpus,
        region: region.to_owned(),
        instance_type: kind.to_owned(),
        // Of several the dearest: nobody is surprised upwards.
        price: prices.max()?.normalize(),
        spot_price: None,
        availability: Availability::Unknown,
    })
}

/// The lowest spot price of each type over the zones of a region.
pub(super) fn spot(answer: &Node, best: &mut BTreeMap<String, Decimal>) {
    for item in answer.items("spotPriceHistorySet") {
        let price = item
            .at("spotPrice")
            .and_then(|price| price.parse::<Decimal>().ok());
        if let (Some(kind), Some(price)) = (item.at("instanceType"), price) {
            let price = price.normalize();
            let known = best.entry(kind.to_owned()).or_insert(price);
            *known = price.min(*known);
        }
    }
}
