//! One provider opened against the judge of its vendor.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use warp_cloud::{
    Account, Decimal, Kind, Launch, Offer, Provider, Secret, Settings, Transport, open,
};
use warp_vendor::{Brand, Outcome, Vendor};

/// What the judges accept; it must never be told.
pub(crate) const KEY: &str = "key-of-the-tests-0001";
pub(crate) const MARK: &str = "warp-5f0c2a9e-";
pub(crate) const OWNER: &str = "team/h100";
pub(crate) const USER_DATA: &str =
    "#cloud-config\nruncmd: [join, --as, '{{name}}', --token, hush-hush]\n";

/// The judge in place of the network.
#[derive(Debug)]
struct InProcess(Vendor);

impl Transport for InProcess {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'_, Result<Response<Bytes>, String>> {
        let mut outcome = self.0.answer(&request);
        Box::pin(async move {
            loop {
                match outcome {
                    Outcome::Answered(response) => return Ok(response),
                    Outcome::HungUp => return Err("the connection broke".to_owned()),
                    Outcome::Later(time, inner) => {
                        tokio::time::sleep(time).await;
                        outcome = *inner;
                    }
                }
            }
        })
    }
}

pub(crate) struct Stand {
    pub(crate) brand: Brand,
    pub(crate) vendor: Vendor,
    pub(crate) provider: Arc<dyn Provider>,
}

pub(crate) fn kind(brand: Brand) -> Kind {
    Kind::of(brand.as_str()).expect("every brand is a kind")
}

/// An account the judge of `brand` knows.
pub(crate) fn account(brand: Brand) -> Account {
    let text = str::to_owned;
    let keys: &[(&str, &str)] = match brand {
        Brand::Aws => &[("accessKeyId", "AKIDOFTHETESTS"), ("secretAccessKey", KEY)],
        Brand::Gcp => &[("token", KEY)],
        Brand::Azure => &[
            ("tenantId", "tenant-of-the-tests"),
            ("clientId", "client-of-the-tests"),
            ("clientSecret", KEY),
        ],
        _ => &[("apiKey", KEY)],
    };
    let mut secrets: BTreeMap<String, Secret> = keys
        .iter()
        .map(|(key, value)| (text(key), Secret::new(*value)))
        .collect();
    secrets.insert(text("userData"), Secret::new(USER_DATA));
    let settings = Settings {
        image: (brand != Brand::Lambda).then(|| text("example-image")),
        ssh_key: Some(text("warp")),
        network: Some(text("network")),
        project: Some(text("project-of-the-tests")),
        subscription: Some(text("sub")),
        resource_group: Some(text("warp")),
        ..Settings::default()
    };
    Account {
        kind: kind(brand),
        regions: Vec::new(),
        secrets,
        settings,
    }
}

impl Stand {
    pub(crate) fn new(brand: Brand) -> Self {
        Self::with(brand, account(brand))
    }

    pub(crate) fn with(brand: Brand, account: Account) -> Self {
        let vendor = Vendor::new(brand);
        let transport = Arc::new(InProcess(vendor.clone()));
        let provider =
            open(account, transport, Arc::new(jiff::Timestamp::now)).expect("an account");
        Self {
            brand,
            vendor,
            provider,
        }
    }

    /// Another account at the same vendor.
    pub(crate) fn again(&self, account: Account) -> Arc<dyn Provider> {
        let transport = Arc::new(InProcess(self.vendor.clone()));
        open(account, transport, Arc::new(jiff::Timestamp::now)).expect("an account")
    }

    pub(crate) fn every() -> Vec<Self> {
        Brand::ALL.into_iter().map(Self::new).collect()
    }

    /// The cheapest offer that can be had.
    pub(crate) async fn cheapest(&self) -> Offer {
        let mut offers = self.provider.offers().await.expect("offers");
        offers.retain(|offer| offer.availability != warp_cloud::Availability::None);
        offers.sort_by_key(|offer| offer.price);
        offers.first().expect("something to buy").clone()
    }

    pub(crate) async fn launch(&self, number: u32) -> Launch {
        let offer = self.cheapest().await;
        Launch {
            name: format!("{MARK}0b7a1c7e-8d0e-4f43-9d0f-0a4b6f9f2d11-{number}"),
            max_price: offer.price * Decimal::TWO,
            offer,
            spot: false,
            owner: OWNER.to_owned(),
            lifetime_seconds: Some(7200),
            image: None,
            user_data: None,
            join: None,
            container: None,
        }
    }

    /// Whether nothing was asked that the vendor's description does not allow, or faster than it allows.
    pub(crate) fn judged(&self) {
        let brand = self.brand;
        assert_eq!(self.vendor.complaints(), Vec::<String>::new(), "{brand:?}");
        assert_eq!(self.vendor.too_fast(), 0, "{brand:?} was asked too fast");
    }
}
