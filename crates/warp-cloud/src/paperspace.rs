//! Paperspace: virtual machines on demand. It sells no spot, has no tags and no idempotency key: machines are found by
//! their name. It publishes no description and no prices: the table here is its price list.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::Method;
use jiff::Timestamp;
use parking_lot::Mutex;
use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::account::Account;
use crate::failure::{Class, Failure};
use crate::http::{Again, Ask, Client, Reply, Shared, Transport, escaped, nonsense};
use crate::offer::{Availability, Offer};
use crate::provider::{Capabilities, Kind, Launch, Machine, Provider, State};

/// See [`Capabilities`].
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    spot: false,
    credentials: true,
    lag: Duration::from_mins(1),
    call_deadline: Duration::from_mins(2),
    look_every: Duration::from_secs(30),
    virtual_machines: true,
};

const BASE: &str = "https://api.paperspace.com/v1";
const GAPS: [Duration; 1] = [Duration::from_millis(500)];
const DEADLINE: Duration = Duration::from_secs(40);
/// How long "it is there" holds: every type has to be asked for on its own.
const STOCK_AGE: Duration = Duration::from_mins(5);
const DISK_GB: u32 = 100;
/// Disks there are, in GB.
const DISKS: [u32; 6] = [50, 100, 250, 500, 1000, 2000];
const PAGES: usize = 100;
const HOUR: u64 = 3600;

/// Type, model, GPUs, cents an hour, regions. As published in September 2025.
const TYPES: &[(&str, &str, u32, i64, &[&str])] = &[
    ("A4000", "A4000", 1, 76, &["ny2", "ca1", "ams1"]),
    ("A4000x2", "A4000", 2, 152, &["ny2", "ca1", "ams1"]),
    ("A4000x4", "A4000", 4, 304, &["ny2", "ca1", "ams1"]),
    ("A5000", "A5000", 1, 138, &["ny2", "ca1"]),
    ("A6000", "A6000", 1, 189, &["ny2", "ca1"]),
    ("V100", "V100-16GB", 1, 230, &["ny2", "ams1"]),
    ("V100-32G", "V100-32GB", 1, 230, &["ny2"]),
    ("V100-32Gx2", "V100-32GB", 2, 460, &["ny2"]),
    ("V100-32Gx4", "V100-32GB", 4, 920, &["ny2"]),
    ("A100-80G", "A100-80GB", 1, 318, &["ny2"]),
    ("A100-80Gx8", "A100-80GB", 8, 2544, &["ny2"]),
    ("H100", "H100-80GB", 1, 595, &["ny2"]),
    ("H100x8", "H100-80GB", 8, 4760, &["ny2"]),
];

type Stock = Option<(Instant, Vec<Offer>)>;

/// One account at Paperspace.
#[derive(Debug)]
pub(crate) struct Paperspace {
    account: Account,
    client: Client,
    machines: Shared<Arc<Vec<Machine>>>,
    stock: Mutex<Stock>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    items: Vec<Found>,
    #[serde(default)]
    has_more: bool,
    #[serde(rename = "nextPage")]
    next: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Found {
    id: String,
    name: String,
    state: String,
    machine_type: String,
    region: String,
    public_ip: Option<String>,
    private_ip: Option<String>,
    dt_created: Option<Timestamp>,
}

impl Paperspace {
    pub(crate) fn open(account: Account, transport: Arc<dyn Transport>) -> Result<Self, Failure> {
        account.secret("apiKey")?;
        let client = account.client(transport, &GAPS, DEADLINE)?;
        Ok(Self {
            account,
            client,
            machines: Shared::default(),
            stock: Mutex::default(),
        })
    }

    async fn ask(&self, ask: Ask) -> Result<Reply, Failure> {
        self.client.told(&self.account.bearer(ask)?, judge).await
    }

    async fn every(&self) -> Result<Arc<Vec<Machine>>, Failure> {
        let list = || async {
            let mut all = Vec::new();
            let mut url = format!("{BASE}/machines?limit=100");
            for _ in 0..PAGES {
                let page: Page = self.ask(Ask::get(url)).await?.read()?;
                all.extend(page.items.into_iter().map(machine));
                let Some(next) = page.next.filter(|_| page.has_more) else {
                    return Ok(Arc::new(all));
                };
                url = format!("{BASE}/machines?limit=100&after={}", escaped(&next));
            }
            Err(nonsense(&"the list of machines has no end"))
        };
        self.machines.get(list).await
    }

    /// Whether each type is there is asked for in the account's regions only, and holds for a while.
    async fn list_offers(&self) -> Result<Vec<Offer>, Failure> {
        if let Some((at, offers)) = &*self.stock.lock()
            && at.elapsed() < STOCK_AGE
        {
            return Ok(offers.clone());
        }
        let regions = self.account.regions_of(&["ny2", "ca1", "ams1"], "ny2");
        let mut offers = Vec::new();
        for (kind, gpu, gpus, cents, places) in TYPES {
            for region in places
                .iter()
                .filter(|place| regions.iter().any(|here| here == *place))
            {
                let url = format!("{BASE}/machine-availability?machineType={kind}&region={region}");
                let answer: Value = self.ask(Ask::get(url)).await?.read()?;
                let there = answer["available"].as_bool();
                offers.push(Offer {
                    gpu: (*gpu).to_owned(),
                    gpus: *gpus,
                    region: (*region).to_owned(),
                    instance_type: (*kind).to_owned(),
                    price: Decimal::new(*cents, 2),
                    spot_price: None,
                    availability: match there {
                        Some(true) => Availability::High,
                        Some(false) => Availability::None,
                        None => return Err(nonsense(&"it does not say whether it is available")),
                    },
                });
            }
        }
        *self.stock.lock() = Some((Instant::now(), offers.clone()));
        Ok(offers)
    }

    async fn buy(&self, launch: &Launch) -> Result<Machine, Failure> {
        if launch.spot {
            let words = "Paperspace sells no spot machines";
            return Err(Failure::new(Class::Refused, words));
        }
        let settings = &self.account.settings;
        let template = Account::setting(
            self.account.image(launch),
            "image",
            "Paperspace needs the id of a template",
        )?;
        let wanted = settings.disk_gib.unwrap_or(DISK_GB);
        let disk = DISKS.into_iter().find(|disk| *disk >= wanted);
        let mut body = json!({
            "name": launch.name,
            "machineType": launch.offer.instance_type,
            "templateId": template,
            "region": launch.offer.region,
            "diskSize": disk.unwrap_or(DISKS[DISKS.len() - 1]),
            "publicIpType": "dynamic",
            "startOnCreate": true,
            "emailPassword": false,
        });
        if let Some(network) = &settings.network {
            body["networkId"] = network.as_str().into();
        }
        if let Some(seconds) = launch.lifetime_seconds {
            body["autoShutdownEnabled"] = true.into();
            body["autoShutdownForce"] = true.into();
            body["autoShutdownTimeout"] = seconds.div_ceil(HOUR).into();
        }
        if let Some(script) = self.account.user_data(launch) {
            body["startupScriptId"] = self.script(launch, &script).await?.into();
        }
        let ask = Ask::new(Method::POST, format!("{BASE}/machines")).json(&body);
        let reply = self.ask(ask.again(Again::WhenUnheard)).await?;
        let id = reply.value()["data"]["id"].as_str().map(str::to_owned);
        let id = id.ok_or_else(|| nonsense(&"no machine id"))?;
        Ok(Machine::bought(id, launch))
    }

    /// What the machine runs at its start is stored first. One that is left over costs nothing.
    async fn script(&self, launch: &Launch, script: &str) -> Result<String, Failure> {
        let body = json!({"name": launch.name, "script": script, "isRunOnce": true});
        let ask = Ask::new(Method::POST, format!("{BASE}/startup-scripts")).json(&body);
        // Nothing is bought by it: whatever goes wrong here is certain.
        let reply = self.ask(ask).await.map_err(|failure| match failure.class {
            Class::Transient => Failure::new(Class::NoCapacity, failure.words),
            _ => failure,
        })?;
        let id = reply.value()["id"].as_str().map(str::to_owned);
        id.ok_or_else(|| Failure::new(Class::Refused, "the startup script got no id"))
    }
}

/// The vendor has no table of codes: its words tell what is meant.
fn judge(reply: &Reply) -> (Class, String) {
    let answer = reply.value();
    let code = answer["code"].as_str().unwrap_or("no code");
    let message = answer["message"].as_str().unwrap_or_default();
    let words = message.to_lowercase();
    let has = |parts: &[&str]| parts.iter().any(|part| words.contains(part));
    let class = match reply.status.as_u16() {
        401 | 403 | 429 | 500.. => Class::of_status(reply.status),
        _ if has(&["capacity", "not available", "unavailable", "out of stock"]) => {
            Class::NoCapacity
        }
        _ if has(&["quota", "limit"]) => Class::Quota,
        _ if has(&["payment", "billing", "credit"]) => Class::NoBalance,
        _ => Class::of_status(reply.status),
    };
    (class, format!("{code}: {message}"))
}

fn machine(found: Found) -> Machine {
    let state = match found.state.as_str() {
        "provisioning" | "starting" | "restarting" | "upgrading" => State::Pending,
        "ready" | "serviceready" => State::Running,
        "off" | "stopping" => State::Stopped,
        "failed" => State::Failed,
        _ => State::Degraded,
    };
    let price = TYPES.iter().find(|(kind, ..)| *kind == found.machine_type);
    Machine {
        id: found.id,
        name: found.name,
        state,
        region: found.region,
        instance_type: found.machine_type,
        spot: false,
        price: price.map(|(.., cents, _)| Decimal::new(*cents, 2)),
        started: found.dt_created,
        ended: None,
        taken_back: None,
        exit: None,
        public_ip: found.public_ip,
        private_ip: found.private_ip,
    }
}

impl Provider for Paperspace {
    fn kind(&self) -> Kind {
        Kind::Paperspace
    }

    fn offers(&self) -> BoxFuture<'_, Result<Vec<Offer>, Failure>> {
        Box::pin(self.list_offers())
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
            let ask = Ask::get(format!("{BASE}/machines/{}", escaped(id)));
            let found = self.client.found(&self.account.bearer(ask)?, judge).await?;
            found.map(|reply| reply.read().map(machine)).transpose()
        })
    }

    fn terminate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let url = format!("{BASE}/machines/{}", escaped(id));
            let ask = self.account.bearer(Ask::new(Method::DELETE, url))?;
            self.client.found(&ask, judge).await.map(|_| ())
        })
    }
}
