//! Rents one machine for real and gives it back: the core of the conformance suite with somebody's own money.
//!
//! `cargo run -p warp-cloud --example rent -- PROVIDER CAP`: CAP is in dollars an hour, and without one nothing starts.
//! Secrets and settings come from `WARP_CLOUD_<key>`. The machine is ended whatever happens after it was bought.

#![allow(clippy::print_stdout, reason = "it tells what it does")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use warp_cloud::{
    Account, Availability, Decimal, Kind, Launch, Machine, Network, Offer, Provider, Secret,
    Settings, State, open,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const KEYS: [&str; 11] = [
    "apiKey",
    "accessKeyId",
    "secretAccessKey",
    "sessionToken",
    "serviceAccount",
    "token",
    "tenantId",
    "clientId",
    "clientSecret",
    "userData",
    "endpoint",
];
/// Looks at the machine, twenty seconds apart.
const LOOKS: u32 = 45;
const BETWEEN: Duration = Duration::from_secs(20);

fn said(name: &str) -> Option<String> {
    let value = std::env::var(format!("WARP_CLOUD_{name}")).ok();
    value.filter(|value| !value.is_empty())
}

fn account(kind: Kind) -> Account {
    let secrets = KEYS.iter().filter_map(|key| {
        let value = said(key)?;
        Some(((*key).to_owned(), Secret::new(value)))
    });
    let secrets: BTreeMap<String, Secret> = secrets.collect();
    let regions = said("regions").unwrap_or_default();
    let regions = regions.split(',').filter(|region| !region.is_empty());
    Account {
        kind,
        regions: regions.map(str::to_owned).collect(),
        secrets,
        settings: Settings {
            image: said("image"),
            ssh_key: said("sshKey"),
            network: said("network"),
            security_group: said("securityGroup"),
            disk_gib: said("diskGiB").and_then(|size| size.parse().ok()),
            project: said("project"),
            subscription: said("subscription"),
            resource_group: said("resourceGroup"),
        },
    }
}

fn cheapest(mut offers: Vec<Offer>, cap: Decimal) -> Option<Offer> {
    offers.retain(|offer| {
        offer.nonsense().is_none() && offer.price <= cap && offer.availability != Availability::None
    });
    offers.into_iter().min_by_key(|offer| offer.price)
}

/// Follows the machine until it is in a state that `holds`.
async fn until(
    cloud: &dyn Provider,
    id: &str,
    holds: impl Fn(Option<State>) -> bool,
) -> Outcome<Option<Machine>> {
    for _ in 0..LOOKS {
        let seen = cloud.status(id).await?;
        let state = seen.as_ref().map(|machine| machine.state);
        println!("  {state:?}");
        if holds(state) {
            return Ok(seen);
        }
        tokio::time::sleep(BETWEEN).await;
    }
    Err("it took too long".into())
}

async fn follow(cloud: &dyn Provider, bought: &Machine) -> Outcome<()> {
    until(cloud, &bought.id, |state| state == Some(State::Running)).await?;
    let listed = cloud.machines("warp-testcloud-", &[]).await?;
    let found = listed.iter().filter(|machine| machine.id == bought.id);
    match found.count() {
        1 => Ok(()),
        count => Err(format!("the list has it {count} times").into()),
    }
}

/// Ends what may have been bought although no answer came; the launch has failed either way.
async fn forget(cloud: &dyn Provider, name: &str, certain: bool) -> Outcome<()> {
    if !certain {
        println!("its answer was lost: looking for {name} until it would have shown");
        tokio::time::sleep(cloud.kind().capabilities().settle()).await;
        for machine in cloud.machines(name, &[]).await? {
            println!("ending {}", machine.id);
            cloud.terminate(&machine.id).await?;
        }
    }
    Err("nothing was rented".into())
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args().skip(1);
    let kind = arguments.next().unwrap_or_default();
    let kind = Kind::of(&kind).filter(|kind| kind.capabilities().credentials);
    let kind = kind.ok_or(
        "PROVIDER names no real cloud: lambda, runpod, vast, aws, gcp, azure or paperspace",
    )?;
    let cap = arguments.next().and_then(|cap| cap.parse::<Decimal>().ok());
    let cap = cap.filter(|cap| *cap > Decimal::ZERO);
    let cap = cap.ok_or("CAP is missing: the most a machine may cost, in dollars an hour")?;
    let network = Arc::new(Network::new()?);
    let cloud = open(account(kind), network, Arc::new(jiff::Timestamp::now))?;
    let offers = cloud.offers().await?;
    println!("{} offers", offers.len());
    let offer = cheapest(offers, cap).ok_or("nothing is offered within CAP")?;
    println!(
        "{} x {} in {} for {} an hour",
        offer.gpus, offer.gpu, offer.region, offer.price
    );
    let launch = Launch {
        name: format!("warp-testcloud-{}-1", jiff::Timestamp::now().as_second()),
        offer,
        spot: false,
        max_price: cap,
        owner: "test/cloud".to_owned(),
        lifetime_seconds: Some(3600),
        image: None,
        user_data: None,
        join: None,
        container: None,
    };
    let bought = match cloud.launch(&launch).await {
        Ok(bought) => bought,
        Err(failure) => {
            println!("{}: {failure}", failure.class.as_str());
            return forget(cloud.as_ref(), &launch.name, failure.class.is_definite()).await;
        }
    };
    println!("bought {}", bought.id);
    let followed = follow(cloud.as_ref(), &bought).await;
    cloud.terminate(&bought.id).await?;
    let gone = |state: Option<State>| state.is_none_or(|state| state == State::Gone);
    until(cloud.as_ref(), &bought.id, gone).await?;
    cloud.terminate(&bought.id).await?;
    println!("gone");
    followed
}
