//! What a provider has to rent out, in one form for all of them, and the names of models and places in it.

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use warp_core::gpu;

/// How likely a machine is to be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Availability {
    /// Sold out.
    None,
    Low,
    Medium,
    High,
    /// The provider does not say.
    #[default]
    Unknown,
}

/// One machine one can have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Offer {
    /// The model in the words of the catalogue, such as `H100-80GB`.
    pub gpu: String,
    /// GPUs of the machine.
    pub gpus: u32,
    /// Where, in the provider's words.
    pub region: String,
    /// What to ask the provider for, in its words.
    pub instance_type: String,
    /// US dollars an hour for the whole machine.
    pub price: Decimal,
    /// The same as long as nobody bids more, where the provider sells that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spot_price: Option<Decimal>,
    #[serde(default)]
    pub availability: Availability,
}

impl Offer {
    /// Whether two are the same thing to buy, whatever they cost at the moment.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.instance_type, &self.region, self.gpus)
            == (&other.instance_type, &other.region, other.gpus)
    }

    /// The price, on demand or spot.
    pub fn price_of(&self, spot: bool) -> Option<Decimal> {
        if spot {
            self.spot_price
        } else {
            Some(self.price)
        }
    }

    /// Why the numbers of an offer cannot be right; such an offer is not shown and not bought.
    pub fn nonsense(&self) -> Option<&'static str> {
        if self.price <= Decimal::ZERO {
            return Some("its price is not above zero");
        }
        if self.gpus == 0 {
            return Some("it has no GPU");
        }
        match self.spot_price {
            Some(spot) if spot <= Decimal::ZERO => Some("its spot price is not above zero"),
            Some(spot) if spot > self.price => Some("its spot price is above its price"),
            _ => None,
        }
    }
}

/// The catalogue's name for a model as a provider writes it; `memory_gib` tells sizes of one model apart where the
/// name does not. None when it is unknown or still ambiguous.
pub fn model(text: &str, memory_gib: Option<u32>) -> Option<&'static str> {
    let mut found = gpu::named(text);
    if found.len() > 1
        && let Some(memory) = memory_gib
    {
        // Providers give or take a few: 79 for 80, 141 for 144.
        let near = |model: &&gpu::Model| model.memory_gib.abs_diff(memory) * 100 <= memory * 8;
        found.retain(|model| near(model));
    }
    match found.as_slice() {
        [only] => Some(only.name),
        _ => None,
    }
}

/// The same for a description such as `A100 (40 GB SXM4)` or `NVIDIA A100-SXM4-80GB`, which names its memory itself.
pub(crate) fn described(text: &str) -> Option<&'static str> {
    let (name, rest) = text.split_once('(').unwrap_or((text, ""));
    let memory = rest.split_whitespace().next();
    model(name, memory.and_then(|size| size.parse().ok()))
}

/// Areas by what a region's name begins with or contains, in the order they are tried.
const AREAS: &[(&str, &[&str])] = &[
    (
        "us-west",
        &["us-west", "us-ca-", "us-or-", "us-wa-", "westus"],
    ),
    (
        "us-south",
        &["us-south", "us-tx-", "us-ga-", "us-nc-", "southcentralus"],
    ),
    (
        "us-central",
        &[
            "us-midwest",
            "us-central",
            "us-il-",
            "us-ks-",
            "us-mo-",
            "us-ne-",
            "centralus",
        ],
    ),
    (
        "us-east",
        &["us-east", "us-de-", "us-md-", "us-pa-", "eastus", "ny2"],
    ),
    (
        "canada",
        &["ca-mtl", "ca-central", "canada", "northamerica-northeast"],
    ),
    (
        "eu-north",
        &[
            "eu-north",
            "europe-north",
            "eur-is",
            "eur-no",
            "eu-se",
            "eu-dk",
            "northeurope",
        ],
    ),
    ("eu-south", &["eu-south", "europe-south"]),
    (
        "eu-west",
        &[
            "eu-west",
            "europe-west",
            "eu-fr",
            "eu-nl",
            "westeurope",
            "ams1",
            "uk",
        ],
    ),
    (
        "eu-central",
        &["eu-central", "europe-central", "eu-cz", "eu-ro", "germany"],
    ),
    (
        "asia-pacific",
        &[
            "ap-",
            "asia-",
            "sea-",
            "oc-",
            "australia",
            "southeastasia",
            "japan",
            "india",
        ],
    ),
    ("middle-east", &["me-", "il-"]),
];

/// Areas of the countries where offers are known by their country only.
const COUNTRIES: &[(&str, &[&str])] = &[
    ("canada", &["ca"]),
    (
        "eu-north",
        &["dk", "fi", "is", "no", "se", "ee", "lv", "lt"],
    ),
    ("eu-west", &["be", "fr", "gb", "ie", "lu", "nl"]),
    (
        "eu-central",
        &["at", "bg", "ch", "cz", "de", "hu", "pl", "ro", "sk", "si"],
    ),
    ("eu-south", &["es", "gr", "hr", "it", "pt"]),
    (
        "asia-pacific",
        &[
            "au", "hk", "id", "in", "jp", "kr", "my", "nz", "sg", "th", "tw", "vn",
        ],
    ),
    ("middle-east", &["ae", "il", "qa", "sa", "tr"]),
];

/// The part of the world a provider's region is in, by its name.
pub fn area(region: &str) -> Option<&'static str> {
    let region = region.to_ascii_lowercase();
    if region.len() == 2 {
        let mut found = COUNTRIES
            .iter()
            .filter(|(_, codes)| codes.contains(&region.as_str()));
        return found.next().map(|(area, _)| *area);
    }
    // Paperspace calls a Californian data centre so, which reads like Canada.
    if region == "ca1" {
        return Some("us-west");
    }
    let found = AREAS
        .iter()
        .find(|(_, starts)| starts.iter().any(|start| region.starts_with(start)));
    found.map(|(area, _)| *area)
}

/// Whether `zone` is `region` with a letter: `us-central1-a` of `us-central1`.
fn is_zone_of(zone: &str, region: &str) -> bool {
    let letter = zone
        .strip_prefix(region)
        .and_then(|rest| rest.strip_prefix('-'));
    letter.is_some_and(|letter| {
        letter.len() == 1 && letter.chars().all(|letter| letter.is_ascii_lowercase())
    })
}

/// Whether a provider's region is the one that is wanted: by its own name, or by the area it is in.
pub fn in_region(region: &str, wanted: &str) -> bool {
    region.eq_ignore_ascii_case(wanted)
        || area(region).is_some_and(|area| area == wanted)
        || is_zone_of(region, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_found_by_its_own_name_and_by_its_area() {
        for (region, wanted, same) in [
            ("us-west-1", "us-west-1", true),
            ("us-west-1", "us-west", true),
            ("us-west-2", "us-west-1", false),
            ("US-CA-2", "us-west", true),
            ("CA-MTL-1", "us-west", false),
            ("ca1", "us-west", true),
            ("europe-central-1", "eu-central", true),
            ("EU-RO-1", "eu-central", true),
            ("us-central1-a", "us-central1", true),
            ("us-central1-a", "us-central", true),
            ("us-central10-a", "us-central1", false),
            ("us-east-1", "us-east", true),
            ("DK", "eu-north", true),
            ("CA", "us-west", false),
            ("US", "us-west", false),
            ("somewhere", "somewhere", true),
            ("somewhere", "us-east", false),
        ] {
            assert_eq!(in_region(region, wanted), same, "{region} {wanted}");
        }
    }

    #[test]
    fn a_model_is_read_with_the_help_of_its_memory() {
        assert_eq!(model("NVIDIA H100 80GB HBM3", None), Some("H100-80GB"));
        assert_eq!(model("RTX_4090", None), Some("RTX-4090"));
        assert_eq!(model("A100", None), None);
        assert_eq!(model("A100", Some(79)), Some("A100-80GB"));
        assert_eq!(model("A100 SXM4", Some(40)), Some("A100-40GB"));
        assert_eq!(model("Voodoo 2", None), None);
    }

    #[test]
    fn prices_that_cannot_be_are_nonsense() {
        let good = Offer {
            gpu: "L4".to_owned(),
            gpus: 1,
            region: "r".to_owned(),
            instance_type: "t".to_owned(),
            price: Decimal::new(50, 2),
            spot_price: Some(Decimal::new(20, 2)),
            availability: Availability::High,
        };
        assert_eq!(good.nonsense(), None);
        let free = Offer {
            price: Decimal::ZERO,
            ..good.clone()
        };
        let dear = Offer {
            spot_price: Some(Decimal::ONE),
            ..good.clone()
        };
        let zero = Offer {
            spot_price: Some(Decimal::ZERO),
            ..good.clone()
        };
        let empty = Offer { gpus: 0, ..good };
        for offer in [free, dear, zero, empty] {
            assert!(offer.nonsense().is_some(), "{offer:?}");
        }
    }
}
