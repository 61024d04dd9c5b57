//! Vast.ai: containers on hosts of many owners, on demand or by bid. Every offer is one machine and sells once. It knows
//! no idempotency key: machines are found by their label, which also says who wants them.
//!
//! A bid that is too low may leave a stopped machine behind a refusal; it is ended at once. A machine that is outbid
//! stops and still costs its disk.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::Method;
use jiff::Timestamp;
use rust_decimal::Decimal;
use rust_decimal::prelude::ToPrimitive;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::account::Account;
use crate::failure::{Class, Failure};
use crate::http::{Again, Ask, Client, Reply, Shared, Transport, escaped, nonsense};
use crate::offer::{Availability, Offer, model};
use crate::provider::{Capabilities, Exit, Kind, Launch, Machine, Provider, State, quoted};

/// See [`Capabilities`].
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    spot: true,
    credentials: true,
    lag: Duration::from_mins(1),
    call_deadline: Duration::from_mins(1),
    look_every: Duration::from_secs(30),
    virtual_machines: false,
};

const BASE: &str = "https://console.vast.ai/api";
/// The vendor wants a distance per kind of request and does not say which.
const GAPS: [Duration; 1] = [Duration::from_millis(1100)];
const DEADLINE: Duration = Duration::from_secs(30);
/// Offers asked for: the cheapest.
const OFFERS: u32 = 1000;
/// Pages of machines that are read; each has 25.
const PAGES: usize = 400;
/// Letters of what a machine runs at its start.
const ONSTART: usize = 4048;
/// GB of a machine's disk unless the settings say otherwise.
const DISK_GB: u32 = 50;

/// One account at Vast.
#[derive(Debug)]
pub(crate) struct Vast {
    account: Account,
    client: Client,
    machines: Shared<Arc<Vec<Machine>>>,
    offers: Shared<Arc<Vec<Offer>>>,
}

#[derive(Deserialize)]
struct Offers {
    offers: Vec<Sold>,
}

#[derive(Deserialize)]
struct Sold {
    id: u64,
    gpu_name: String,
    num_gpus: u32,
    /// MB of one GPU.
    gpu_ram: Decimal,
    dph_total: Decimal,
    min_bid: Option<Decimal>,
    geolocation: Option<String>,
}

#[derive(Deserialize)]
struct Page {
    instances: Vec<Instance>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
struct One {
    instances: Option<Instance>,
}

#[derive(Deserialize)]
struct Instance {
    id: u64,
    label: Option<String>,
    actual_status: Option<String>,
    cur_state: Option<String>,
    #[serde(default)]
    is_bid: bool,
    dph_total: Option<Decimal>,
    start_date: Option<f64>,
    geolocation: Option<String>,
    public_ipaddr: Option<String>,
}

impl Vast {
    pub(crate) fn open(account: Account, transport: Arc<dyn Transport>) -> Result<Self, Failure> {
        account.secret("apiKey")?;
        let client = account.client(transport, &GAPS, DEADLINE)?;
        Ok(Self {
            account,
            client,
            machines: Shared::default(),
            offers: Shared::default(),
        })
    }

    async fn ask(&self, ask: Ask) -> Result<Reply, Failure> {
        self.client.told(&self.account.bearer(ask)?, judge).await
    }

    async fn every(&self) -> Result<Arc<Vec<Machine>>, Failure> {
        let list = || async {
            let mut all = Vec::new();
            let mut url = format!("{BASE}/v1/instances/?limit=25");
            for _ in 0..PAGES {
                let page: Page = self.ask(Ask::get(url)).await?.read()?;
                all.extend(page.instances.into_iter().map(machine));
                let Some(token) = page.next_token.filter(|token| !token.is_empty()) else {
                    return Ok(Arc::new(all));
                };
                let token = escaped(&token);
                url = format!("{BASE}/v1/instances/?limit=25&after_token={token}");
            }
            Err(nonsense(&"the list of machines has no end"))
        };
        self.machines.get(list).await
    }

    async fn list_offers(&self) -> Result<Arc<Vec<Offer>>, Failure> {
        let disk = self.account.settings.disk_gib.unwrap_or(DISK_GB);
        let body = json!({
            "type": "ondemand",
            "limit": OFFERS,
            "verified": {"eq": true},
            "rentable": {"eq": true},
            "rented": {"eq": false},
            "allocated_storage": disk,
        });
        let ask = Ask::new(Method::POST, format!("{BASE}/v0/bundles/")).json(&body);
        let all: Offers = self.ask(ask).await?.read()?;
        Ok(Arc::new(all.offers.iter().filter_map(offer).collect()))
    }

    async fn buy(&self, launch: &Launch) -> Result<Machine, Failure> {
        let settings = &self.account.settings;
        let image = match &launch.container {
            Some(container) => container.image.as_str(),
            None => Account::setting(
                self.account.image(launch),
                "image",
                "Vast starts containers, so it needs an image that joins by itself",
            )?,
        };
        let ask = launch.offer.instance_type.rsplit('-').next();
        let id: u64 = ask.and_then(|id| id.parse().ok()).ok_or_else(|| {
            let words = format!("{} is no offer of Vast's", launch.offer.instance_type);
            Failure::new(Class::Refused, words)
        })?;
        let mut body = json!({
            "image": image,
            "label": format!("{}|{}|{}", launch.name, launch.owner, launch.offer.instance_type),
            "disk": settings.disk_gib.unwrap_or(DISK_GB),
            "runtype": "ssh_direct",
            "target_state": "running",
            "cancel_unavail": true,
            "env": format!("-e WARP_NODE_NAME={}", launch.name),
        });
        if let Some(container) = &launch.container {
            let mut env = format!("-e WARP_NODE_NAME={}", launch.name);
            for (name, value) in &container.env {
                let pair = format!("{name}={}", value.shown());
                env.push_str(" -e ");
                env.push_str(&quoted(&pair));
            }
            body["env"] = env.into();
            body["args"] = json!(container.arguments("Vast")?);
            body["runtype"] = "args".into();
        } else if let Some(text) = self.account.user_data(launch) {
            if text.len() > ONSTART {
                let words = format!("userData is longer than the {ONSTART} letters Vast takes");
                return Err(Failure::new(Class::Refused, words));
            }
            body["onstart"] = text.into();
        }
        if launch.spot {
            // What is bid is what is paid: the price that was offered, not the most it may be.
            let bid = launch.offer.spot_price.unwrap_or(launch.max_price);
            let bid = bid.min(launch.max_price).to_f64().unwrap_or_default();
            body["price"] = bid.into();
        }
        let ask = Ask::new(Method::PUT, format!("{BASE}/v0/asks/{id}/")).json(&body);
        let ask = self.account.bearer(ask.again(Again::WhenUnheard))?;
        let reply = self.client.ask(&ask).await?;
        let answer = reply.value();
        let contract = answer["new_contract"].as_u64().map(|id| id.to_string());
        match contract {
            Some(id) if reply.status.is_success() && answer["success"] != false => {
                Ok(Machine::bought(id, launch))
            }
            Some(id) => {
                // Refused, and there is a machine all the same: it is ended before the refusal is told.
                self.end(&id).await.map_err(|failure| {
                    Failure::new(Class::Transient, format!("{failure} (machine {id})"))
                })?;
                let words = said(&answer);
                Err(self.client.failure(Class::NoCapacity, &words))
            }
            None if reply.status.is_success() => Err(nonsense(&"no new_contract")),
            None => {
                let (class, words) = judge_launch(&reply);
                let words = format!("{} {words}", reply.status.as_u16());
                Err(self.client.failure(class, &words))
            }
        }
    }

    async fn end(&self, id: &str) -> Result<(), Failure> {
        let url = format!("{BASE}/v0/instances/{}/", escaped(id));
        let ask = self.account.bearer(Ask::new(Method::DELETE, url))?;
        self.client.found(&ask, judge).await.map(|_| ())
    }
}

fn said(answer: &Value) -> String {
    let error = answer["error"].as_str().unwrap_or("no reason given");
    format!("{error}: {}", answer["msg"].as_str().unwrap_or_default())
}

fn judge(reply: &Reply) -> (Class, String) {
    let answer = reply.value();
    let error = answer["error"].as_str().unwrap_or_default();
    let class = match error {
        error if error.contains("credit") || error.contains("balance") => Class::NoBalance,
        _ => Class::of_status(reply.status),
    };
    (class, said(&answer))
}

/// An offer that is gone is sold out, not wrong.
fn judge_launch(reply: &Reply) -> (Class, String) {
    let (class, words) = judge(reply);
    let gone = matches!(reply.status.as_u16(), 404 | 410);
    (if gone { Class::NoCapacity } else { class }, words)
}

fn offer(sold: &Sold) -> Option<Offer> {
    // MB, of which a little is kept back.
    let gib = (sold.gpu_ram / Decimal::from(1024)).round().to_u32()?;
    let gpu = model(&sold.gpu_name, Some(gib))?;
    let bid = sold
        .min_bid
        .filter(|bid| *bid > Decimal::ZERO && *bid <= sold.dph_total);
    Some(Offer {
        gpu: gpu.to_owned(),
        gpus: sold.num_gpus,
        region: place(sold.geolocation.as_deref()),
        instance_type: format!("{gpu}-{}", sold.id),
        price: sold.dph_total,
        spot_price: bid,
        availability: Availability::High,
    })
}

/// The country of `Denmark, DK` or `South Korea, KR, AS`.
fn place(text: Option<&str>) -> String {
    let parts = text.unwrap_or_default().split(',').map(str::trim);
    let mut codes = parts.filter(|part| part.len() == 2 && part.chars().all(char::is_uppercase));
    codes.next().unwrap_or("unknown").to_owned()
}

fn machine(instance: Instance) -> Machine {
    let label = instance.label.unwrap_or_default();
    let mut parts = label.split('|');
    let name = parts.next().unwrap_or_default().to_owned();
    let kind = parts.nth(1).unwrap_or_default().to_owned();
    let state = match (
        instance.cur_state.as_deref(),
        instance.actual_status.as_deref(),
    ) {
        (Some("unloaded"), _) => State::Gone,
        (_, None | Some("loading" | "created" | "rebooting")) => State::Pending,
        (_, Some("running")) => State::Running,
        (_, Some("stopped" | "exited")) if instance.is_bid => State::Preempted,
        (_, Some("stopped" | "exited" | "frozen")) => State::Stopped,
        _ => State::Degraded,
    };
    #[expect(clippy::cast_possible_truncation, reason = "whole seconds are enough")]
    let started = instance.start_date.map(|seconds| seconds as i64);
    Machine {
        id: instance.id.to_string(),
        name,
        state,
        region: place(instance.geolocation.as_deref()),
        instance_type: kind,
        spot: instance.is_bid,
        price: instance.dph_total,
        started: started.and_then(|second| Timestamp::from_second(second).ok()),
        ended: None,
        taken_back: None,
        // The vendor says that it ended, and not how.
        exit: (state == State::Stopped).then_some(Exit {
            code: None,
            at: None,
        }),
        public_ip: instance.public_ipaddr,
        private_ip: None,
    }
}

impl Provider for Vast {
    fn kind(&self) -> Kind {
        Kind::Vast
    }

    fn offers(&self) -> BoxFuture<'_, Result<Vec<Offer>, Failure>> {
        Box::pin(async move {
            let all = self.offers.get(|| self.list_offers()).await?;
            Ok(all.to_vec())
        })
    }

    fn launch<'a>(&'a self, launch: &'a Launch) -> BoxFuture<'a, Result<Machine, Failure>> {
        Box::pin(self.buy(launch))
    }

    fn machines<'a>(
        &'a self,
        prefix: &'a str,
        _: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<Machine>, Failure>> {
        Box::pin(async move { Ok(Machine::ours(&self.every().await?, prefix)) })
    }

    fn status<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Machine>, Failure>> {
        Box::pin(async move {
            let all = self.every().await?;
            if let Some(found) = all.iter().find(|machine| machine.id == id) {
                return Ok(Some(found.clone()));
            }
            let ask = Ask::get(format!("{BASE}/v0/instances/{}/", escaped(id)));
            let found = self.client.found(&self.account.bearer(ask)?, judge).await?;
            let found = found.map(|reply| reply.read::<One>()).transpose()?;
            Ok(found.and_then(|one| one.instances).map(machine))
        })
    }

    fn terminate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(self.end(id))
    }
}
