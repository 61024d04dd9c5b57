//! What the fake cloud has to rent out. The prices have the shape of public price lists and are rounded from them;
//! nobody sells at exactly these.

use rust_decimal::Decimal;

use super::books::Script;
use crate::offer::{Availability, Offer};

/// When the lists were read that the figures are rounded from.
pub const AS_OF: &str = "2026-08";

/// Model, dollars an hour for one GPU, the same as spot, sizes of machines, regions that have it.
type Row = (
    &'static str,
    (i64, u32),
    Option<(i64, u32)>,
    &'static [u32],
    &'static [&'static str],
);

const SMALL: &[u32] = &[1, 2, 4];
const LARGE: &[u32] = &[1, 2, 4, 8];
const EIGHT: &[u32] = &[8];
const ALL: &[&str] = &["us-east-1", "us-west-1", "eu-west-1"];
const US: &[&str] = &["us-east-1", "us-west-1"];
const EAST: &[&str] = &["us-east-1"];

const ROWS: &[Row] = &[
    ("L4", (50, 2), Some((20, 2)), SMALL, ALL),
    ("RTX-4090", (40, 2), Some((20, 2)), SMALL, US),
    ("A40", (45, 2), None, SMALL, EAST),
    ("A10", (75, 2), Some((30, 2)), SMALL, ALL),
    ("L40S", (100, 2), Some((45, 2)), LARGE, ALL),
    ("A6000", (110, 2), None, SMALL, US),
    ("A100-40GB", (130, 2), Some((60, 2)), LARGE, US),
    ("A100-80GB", (160, 2), Some((80, 2)), LARGE, ALL),
    ("H100-80GB", (290, 2), Some((145, 2)), LARGE, ALL),
    ("H200", (450, 2), Some((220, 2)), LARGE, US),
    ("B200", (680, 2), None, EIGHT, EAST),
    ("MI300X", (240, 2), Some((120, 2)), LARGE, EAST),
];

/// What a region costs more than the first, in hundredths.
fn surcharge(region: &str) -> Decimal {
    let hundredths = match region {
        "us-west-1" => 103,
        "eu-west-1" => 110,
        _ => 100,
    };
    Decimal::new(hundredths, 2)
}

pub(super) fn offers(script: &Script) -> Vec<Offer> {
    let mut all = Vec::new();
    for (gpu, price, spot, sizes, regions) in ROWS {
        for region in *regions {
            for gpus in *sizes {
                let whole = |(number, scale): (i64, u32), factor: Decimal| {
                    let each = Decimal::new(number, scale) * surcharge(region) * factor;
                    (each * Decimal::from(*gpus)).round_dp(2)
                };
                let mut offer = Offer {
                    gpu: (*gpu).to_owned(),
                    gpus: *gpus,
                    region: (*region).to_owned(),
                    instance_type: format!("{}x{gpus}", gpu.to_ascii_lowercase()),
                    price: whole(*price, script.price_factor),
                    spot_price: spot
                        .map(|spot| whole(spot, script.price_factor * script.spot_factor)),
                    availability: Availability::High,
                };
                if script.is_sold_out(&offer) {
                    offer.availability = Availability::None;
                }
                all.push(offer);
            }
        }
    }
    all
}
