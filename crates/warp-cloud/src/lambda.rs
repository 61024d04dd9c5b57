//! Lambda Cloud, API 1.10: virtual machines on demand, with cloud-init. It sells no spot and knows no idempotency key:
//! machines are found by their name. One request a second, one launch in twelve.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Method, StatusCode};
use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::json;

use crate::account::Account;
use crate::failure::{Class, Failure};
use crate::http::{Again, Ask, Client, Reply, Shared, Transport, escaped};
use crate::offer::{Availability, Offer, described};
use crate::provider::{Capabilities, Kind, Launch, Machine, Provider, State};

/// See [`Capabilities`].
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    spot: false,
    credentials: true,
    lag: Duration::from_mins(1),
    call_deadline: Duration::from_secs(90),
    look_every: Duration::from_secs(30),
    virtual_machines: true,
};

const BASE: &str = "https://cloud.lambda.ai/api/v1";
/// The vendor's limits with a little distance: what is sent apart may arrive closer together.
const GAPS: [Duration; 2] = [Duration::from_millis(1100), Duration::from_millis(12_500)];
/// The lane of launches, then the lane of everything.
const LAUNCHES: &[usize] = &[1, 0];
const DEADLINE: Duration = Duration::from_secs(40);
/// The key of every machine's tag that names who wants it.
const OWNER_TAG: &str = "warp-owner";
/// Letters of a tag's value.
const TAG_VALUE: usize = 128;

/// One account at Lambda.
#[derive(Debug)]
pub(crate) struct Lambda {
    account: Account,
    client: Client,
    machines: Kept<Machine>,
    offers: Kept<Offer>,
}

/// A list that is shared among those who wait for it.
type Kept<T> = Shared<Arc<Vec<T>>>;

#[derive(Deserialize)]
struct Data<T> {
    data: T,
}

#[derive(Deserialize)]
struct Sold {
    instance_type: Type,
    regions_with_capacity_available: Vec<Named>,
}

#[derive(Deserialize)]
struct Type {
    name: String,
    gpu_description: String,
    price_cents_per_hour: i64,
    specs: Specs,
}

#[derive(Deserialize)]
struct Specs {
    gpus: u32,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

#[derive(Deserialize)]
struct Instance {
    id: String,
    #[serde(default)]
    name: String,
    status: String,
    ip: Option<String>,
    private_ip: Option<String>,
    region: Named,
    #[serde(rename = "instance_type")]
    kind: Type,
}

#[derive(Deserialize)]
struct Launched {
    instance_ids: Vec<String>,
}

impl Lambda {
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
            let reply = self.ask(Ask::get(format!("{BASE}/instances"))).await?;
            let all: Data<Vec<Instance>> = reply.read()?;
            Ok(Arc::new(all.data.into_iter().map(machine).collect()))
        };
        self.machines.get(list).await
    }

    async fn list_offers(&self) -> Result<Arc<Vec<Offer>>, Failure> {
        let reply = self.ask(Ask::get(format!("{BASE}/instance-types"))).await?;
        let all: Data<BTreeMap<String, Sold>> = reply.read()?;
        Ok(Arc::new(all.data.values().flat_map(offers).collect()))
    }

    async fn buy(&self, launch: &Launch) -> Result<Machine, Failure> {
        if launch.spot {
            return Err(Failure::new(
                Class::Refused,
                "Lambda sells no spot machines",
            ));
        }
        self.account.joins(launch)?;
        let settings = &self.account.settings;
        let key = Account::setting(
            settings.ssh_key.as_ref(),
            "sshKey",
            "Lambda wants the name of one SSH key of the account",
        )?;
        let owner: String = launch.owner.chars().take(TAG_VALUE).collect();
        let mut body = json!({
            "region_name": launch.offer.region,
            "instance_type_name": launch.offer.instance_type,
            "ssh_key_names": [key],
            "name": launch.name,
            "hostname": launch.name,
            "tags": [{"key": OWNER_TAG, "value": owner}],
        });
        if let Some(text) = self.account.user_data(launch) {
            body["user_data"] = text.into();
        }
        if let Some(image) = self.account.image(launch) {
            body["image"] = json!({"id": image});
        }
        let url = format!("{BASE}/instance-operations/launch");
        let ask = Ask::new(Method::POST, url)
            .json(&body)
            .lanes(LAUNCHES)
            .again(Again::WhenUnheard);
        let launched: Data<Launched> = self.ask(ask).await?.read()?;
        let id = launched.data.instance_ids.into_iter().next();
        let id = id.ok_or_else(|| crate::http::nonsense(&"no instance id"))?;
        Ok(Machine::bought(id, launch))
    }
}

/// What an answer that is no success means, in the vendor's words.
fn judge(reply: &Reply) -> (Class, String) {
    let error = &reply.value()["error"];
    let code = error["code"].as_str().unwrap_or_default();
    let words = format!(
        "{code}: {} {}",
        error["message"].as_str().unwrap_or("no reason given"),
        error["suggestion"].as_str().unwrap_or_default(),
    );
    (class(reply.status, code), words)
}

/// What a code of the vendor's table means.
fn class(status: StatusCode, code: &str) -> Class {
    match code {
        "instance-operations/launch/insufficient-capacity" => Class::NoCapacity,
        "global/quota-exceeded" => Class::Quota,
        "global/invalid-api-key" | "global/forbidden" => Class::BadCredentials,
        "global/account-inactive" | "global/invalid-address" => Class::NoBalance,
        "global/internal-error" => Class::Transient,
        code if code.starts_with("provider/") => Class::Transient,
        _ => Class::of_status(status),
    }
}

/// One offer per region that has some.
fn offers(sold: &Sold) -> Vec<Offer> {
    let kind = &sold.instance_type;
    let Some(gpu) = described(&kind.gpu_description) else {
        return Vec::new();
    };
    let offer = |region: &Named| Offer {
        gpu: gpu.to_owned(),
        gpus: kind.specs.gpus,
        region: region.name.clone(),
        instance_type: kind.name.clone(),
        price: Decimal::new(kind.price_cents_per_hour, 2),
        spot_price: None,
        availability: Availability::High,
    };
    sold.regions_with_capacity_available
        .iter()
        .map(offer)
        .collect()
}

fn machine(instance: Instance) -> Machine {
    let state = match instance.status.as_str() {
        "booting" => State::Pending,
        "active" => State::Running,
        "preempted" => State::Preempted,
        "terminating" => State::Terminating,
        "terminated" => State::Gone,
        _ => State::Degraded,
    };
    Machine {
        id: instance.id,
        name: instance.name,
        state,
        region: instance.region.name,
        instance_type: instance.kind.name,
        spot: false,
        price: Some(Decimal::new(instance.kind.price_cents_per_hour, 2)),
        started: None,
        ended: None,
        taken_back: None,
        exit: None,
        public_ip: instance.ip,
        private_ip: instance.private_ip,
    }
}

impl Provider for Lambda {
    fn kind(&self) -> Kind {
        Kind::Lambda
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
            // The list says it of all at once; only what it leaves out is asked for on its own.
            let all = self.every().await?;
            if let Some(found) = all.iter().find(|machine| machine.id == id) {
                return Ok(Some(found.clone()));
            }
            let ask = Ask::get(format!("{BASE}/instances/{}", escaped(id)));
            let found = self.client.found(&self.account.bearer(ask)?, judge).await?;
            let Some(reply) = found else {
                return Ok(None);
            };
            let found: Data<Instance> = reply.read()?;
            Ok(Some(machine(found.data)))
        })
    }

    fn terminate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let url = format!("{BASE}/instance-operations/terminate");
            let ask = Ask::new(Method::POST, url).json(&json!({"instance_ids": [id]}));
            let ask = self.account.bearer(ask)?;
            self.client.found(&ask, judge).await.map(|_| ())
        })
    }
}
