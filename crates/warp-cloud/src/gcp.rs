//! Google Compute Engine: virtual machines on demand and spot, with cloud-init. Every launch carries a request id made of
//! its name, so repeating one buys nothing; Google itself ends a machine after `maxRunDuration`.
//!
//! A machine's id here is `zone:name`. Offers are per zone.

mod login;
mod prices;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::Method;
use http::header::AUTHORIZATION;
use jiff::Timestamp;
use parking_lot::Mutex;
use ring::digest;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use self::login::{ServiceAccount, TOKEN_URL};
use crate::Now;
use crate::account::{Account, Secret};
use crate::failure::{Class, Failure};
use crate::http::{Ask, Client, Reply, Transport, escaped, nonsense};
use crate::offer::{Availability, Offer, in_region};
use crate::provider::{Capabilities, Kind, Launch, Machine, Provider, State};
use crate::token::{Issued, Token};

/// See [`Capabilities`].
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    spot: true,
    credentials: true,
    lag: Duration::from_mins(1),
    call_deadline: Duration::from_mins(2),
    look_every: Duration::from_secs(30),
    virtual_machines: true,
};

const BASE: &str = "https://compute.googleapis.com/compute/v1";
const SKUS: &str = "https://cloudbilling.googleapis.com/v1/services/6F81-5844-456A/skus";
const FORM: &str = "application/x-www-form-urlencoded";
const GAPS: [Duration; 1] = [Duration::from_millis(100)];
const DEADLINE: Duration = Duration::from_secs(40);
/// How long prices hold: the catalogue is tens of megabytes.
const PRICES_AGE: Duration = Duration::from_hours(12);
const PAGES: usize = 60;
const DISK_GB: u32 = 100;
/// Letters of a label's value.
const LABEL: usize = 63;
/// Machines with GPUs of their own.
const TYPES: &str = "(name = g2-*) OR (name = a2-*) OR (name = a3-*)";

/// One account at Google.
pub(crate) struct Gcp {
    account: Account,
    client: Client,
    service: Option<ServiceAccount>,
    project: String,
    token: Token,
    now: Now,
    prices: Mutex<Option<(Instant, Arc<prices::Parts>)>>,
}

impl std::fmt::Debug for Gcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gcp")
            .field("project", &self.project)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Zoned {
    items: BTreeMap<String, Zone>,
    next_page_token: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Zone {
    machine_types: Vec<Type>,
    instances: Vec<Instance>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Type {
    name: String,
    guest_cpus: u32,
    memory_mb: u32,
    #[serde(default)]
    accelerators: Vec<Accelerator>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Accelerator {
    guest_accelerator_type: String,
    guest_accelerator_count: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Instance {
    name: String,
    /// Addresses whose last part counts.
    zone: String,
    machine_type: String,
    status: String,
    creation_timestamp: Option<Timestamp>,
    #[serde(default)]
    scheduling: Value,
    #[serde(default)]
    network_interfaces: Vec<Value>,
}

impl Gcp {
    pub(crate) fn open(
        account: Account,
        transport: Arc<dyn Transport>,
        now: Now,
    ) -> Result<Self, Failure> {
        let service = match account.secret("token") {
            Ok(_) => None,
            Err(_) => Some(ServiceAccount::read(account.secret("serviceAccount")?)?),
        };
        let of_key = service
            .as_ref()
            .and_then(|service| service.project_id.as_ref());
        let project = account.settings.project.as_ref().or(of_key);
        let project = Account::setting(project, "project", "Google needs a project")?.to_owned();
        let client = account.client(transport, &GAPS, DEADLINE)?;
        Ok(Self {
            account,
            client,
            service,
            project,
            token: Token::default(),
            now,
            prices: Mutex::default(),
        })
    }

    async fn log_in(&self, service: &ServiceAccount) -> Result<Issued, Failure> {
        let body = format!(
            "grant_type={}&assertion={}",
            escaped("urn:ietf:params:oauth:grant-type:jwt-bearer"),
            service.claim((self.now)())?
        );
        let ask = Ask::new(Method::POST, TOKEN_URL).body(FORM, body);
        self.client.told(&ask, judge_login).await?.read()
    }

    async fn signed(&self, ask: Ask) -> Result<Ask, Failure> {
        let token = match &self.service {
            Some(service) => self.token.get(|| self.log_in(service)).await?,
            None => Secret::new(self.account.secret("token")?),
        };
        Ok(ask.header(AUTHORIZATION, format!("Bearer {}", token.shown())))
    }

    async fn ask(&self, ask: Ask) -> Result<Reply, Failure> {
        self.client.told(&self.signed(ask).await?, judge).await
    }

    /// Everything of one kind in all zones.
    async fn zones(&self, what: &str, filter: &str) -> Result<Vec<(String, Zone)>, Failure> {
        let base = format!(
            "{BASE}/projects/{}/aggregated/{what}?filter={}",
            self.project,
            escaped(filter)
        );
        let (mut all, mut url) = (Vec::new(), base.clone());
        for _ in 0..PAGES {
            let page: Zoned = self.ask(Ask::get(url)).await?.read()?;
            let zones = page.items.into_iter();
            all.extend(zones.filter_map(|(place, zone)| {
                Some((place.strip_prefix("zones/")?.to_owned(), zone))
            }));
            match page.next_page_token.filter(|token| !token.is_empty()) {
                None => return Ok(all),
                Some(token) => url = format!("{base}&pageToken={}", escaped(&token)),
            }
        }
        Err(nonsense(&"the list has no end"))
    }

    async fn parts(&self) -> Result<Arc<prices::Parts>, Failure> {
        if let Some((at, parts)) = &*self.prices.lock()
            && at.elapsed() < PRICES_AGE
        {
            return Ok(Arc::clone(parts));
        }
        let mut parts = prices::Parts::new();
        let mut url = format!("{SKUS}?pageSize=5000");
        for _ in 0..PAGES {
            let page: prices::Page = self.ask(Ask::get(url)).await?.read()?;
            prices::take(&mut parts, &page.skus);
            match page.next_page_token.filter(|token| !token.is_empty()) {
                None => break,
                Some(token) => url = format!("{SKUS}?pageSize=5000&pageToken={}", escaped(&token)),
            }
        }
        let parts = Arc::new(parts);
        *self.prices.lock() = Some((Instant::now(), Arc::clone(&parts)));
        Ok(parts)
    }

    async fn list_offers(&self) -> Result<Vec<Offer>, Failure> {
        let parts = self.parts().await?;
        let mut offers = Vec::new();
        for (zone, sold) in self.zones("machineTypes", TYPES).await? {
            let wanted = &self.account.regions;
            if wanted.is_empty() || wanted.iter().any(|region| in_region(&zone, region)) {
                let found = sold
                    .machine_types
                    .iter()
                    .filter_map(|kind| offer(&parts, &zone, kind));
                offers.extend(found);
            }
        }
        Ok(offers)
    }

    fn body(&self, launch: &Launch) -> Result<Value, Failure> {
        let settings = &self.account.settings;
        let image = Account::setting(self.account.image(launch), "image", "Google needs an image")?;
        let zone = &launch.offer.region;
        let network = settings
            .network
            .as_deref()
            .unwrap_or("global/networks/default");
        let disk = json!({"sourceImage": image, "diskSizeGb": settings.disk_gib.unwrap_or(DISK_GB).to_string()});
        // Machines with GPUs cannot move to another host.
        let mut scheduling = json!({"onHostMaintenance": "TERMINATE", "automaticRestart": false});
        if launch.spot {
            scheduling["provisioningModel"] = "SPOT".into();
        }
        if let Some(seconds) = launch.lifetime_seconds {
            scheduling["maxRunDuration"] = json!({"seconds": seconds.to_string()});
        }
        if launch.spot || launch.lifetime_seconds.is_some() {
            scheduling["instanceTerminationAction"] = "DELETE".into();
        }
        let mut items = Vec::new();
        if let Some(text) = self.account.user_data(launch) {
            items.push(json!({"key": "user-data", "value": text}));
        }
        Ok(json!({
            "name": launch.name,
            "machineType": format!("zones/{zone}/machineTypes/{}", launch.offer.instance_type),
            "disks": [{"boot": true, "autoDelete": true, "initializeParams": disk}],
            "networkInterfaces": [{
                "network": network,
                "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}],
            }],
            "scheduling": scheduling,
            "labels": {"warp": "machine", "warp-owner": label(&launch.owner)},
            "metadata": {"items": items},
        }))
    }

    async fn buy(&self, launch: &Launch) -> Result<Machine, Failure> {
        self.account.joins(launch)?;
        let zone = &launch.offer.region;
        let zones = format!("{BASE}/projects/{}/zones/{}", self.project, escaped(zone));
        let url = format!("{zones}/instances?requestId={}", request_id(&launch.name));
        let body = self.body(launch)?;
        let reply = self
            .client
            .ask(&self.signed(Ask::new(Method::POST, url).json(&body)).await?)
            .await?;
        // A machine of this name is this machine: the name is nobody else's.
        if reply.status != http::StatusCode::CONFLICT {
            self.settled(&zones, reply).await?;
        }
        Ok(Machine::bought(format!("{zone}:{}", launch.name), launch))
    }

    /// Waits for what Google found out about a launch: "sold out" comes after "accepted".
    async fn settled(&self, zones: &str, reply: Reply) -> Result<(), Failure> {
        if !reply.status.is_success() {
            let (class, words) = judge(&reply);
            let words = format!("{} {words}", reply.status.as_u16());
            return Err(self.client.failure(class, &words));
        }
        let mut operation: Value = reply.read()?;
        let name = operation["name"].as_str().unwrap_or_default().to_owned();
        if operation["status"] != "DONE" && !name.is_empty() {
            let url = format!("{zones}/operations/{}/wait", escaped(&name));
            operation = self.ask(Ask::new(Method::POST, url)).await?.read()?;
        }
        let error = &operation["error"]["errors"][0];
        match error["code"].as_str() {
            Some(code) => {
                let message = error["message"].as_str().unwrap_or_default();
                Err(self
                    .client
                    .failure(class(code), &format!("{code}: {message}")))
            }
            None if name.is_empty() => Err(nonsense(&"this is no operation")),
            None => Ok(()),
        }
    }

    /// The address of one machine.
    fn address(&self, id: &str) -> String {
        let (zone, name) = id.split_once(':').unwrap_or(("us-central1-a", id));
        format!(
            "{BASE}/projects/{}/zones/{}/instances/{}",
            self.project,
            escaped(zone),
            escaped(name)
        )
    }
}

/// A request id is a UUID: the sum of the name in its form.
fn request_id(name: &str) -> String {
    let sum = digest::digest(&digest::SHA256, name.as_bytes());
    let mut hex = String::new();
    for byte in &sum.as_ref()[..16] {
        // Writing to a string does not fail.
        let _ = write!(hex, "{byte:02x}");
    }
    format!(
        "{}-{}-4{}-8{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[13..16],
        &hex[17..20],
        &hex[20..]
    )
}

/// Text as a label's value.
fn label(text: &str) -> String {
    let letter = |letter: char| match letter {
        'a'..='z' | '0'..='9' | '-' => letter,
        _ => '_',
    };
    text.to_lowercase()
        .chars()
        .map(letter)
        .take(LABEL)
        .collect()
}

fn offer(parts: &prices::Parts, zone: &str, kind: &Type) -> Option<Offer> {
    let accelerator = kind.accelerators.first()?;
    let family = prices::FAMILIES.iter().find(|(family, gpu, ..)| {
        kind.name.starts_with(family) && accelerator.guest_accelerator_type == *gpu
    })?;
    let (_, _, gpu, rows) = family;
    let (region, _) = zone.rsplit_once('-')?;
    let gpus = accelerator.guest_accelerator_count;
    let size = [kind.guest_cpus, kind.memory_mb, gpus];
    let price = prices::price(parts, *rows, region, false, size)?;
    let spot = prices::price(parts, *rows, region, true, size);
    Some(Offer {
        gpu: (*gpu).to_owned(),
        gpus,
        region: zone.to_owned(),
        instance_type: kind.name.clone(),
        price,
        spot_price: spot.filter(|spot| *spot <= price),
        availability: Availability::Unknown,
    })
}

/// What a code means, of an operation or of a refusal.
fn class(code: &str) -> Class {
    match code {
        "ZONE_RESOURCE_POOL_EXHAUSTED"
        | "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS"
        | "RESOURCE_POOL_EXHAUSTED"
        | "VM_MIN_COUNT_NOT_REACHED"
        | "stockout" => Class::NoCapacity,
        "QUOTA_EXCEEDED" | "quotaExceeded" | "limitExceeded" => Class::Quota,
        "authError"
        | "forbidden"
        | "accessNotConfigured"
        | "required"
        | "insufficientPermissions" => Class::BadCredentials,
        "billingNotEnabled" | "BILLING_DISABLED" | "accountDisabled" => Class::NoBalance,
        "rateLimitExceeded"
        | "userRateLimitExceeded"
        | "backendError"
        | "internalError"
        | "resourceNotReady"
        | "INTERNAL_ERROR"
        | "RATE_LIMIT_EXCEEDED" => Class::Transient,
        _ => Class::Refused,
    }
}

fn judge(reply: &Reply) -> (Class, String) {
    let error = &reply.value()["error"];
    let reason = error["errors"][0]["reason"].as_str();
    let message = error["message"].as_str().unwrap_or_default();
    let class = match reason.map(class) {
        None | Some(Class::Refused) => Class::of_status(reply.status),
        Some(class) => class,
    };
    (class, format!("{}: {message}", reason.unwrap_or("no code")))
}

fn judge_login(reply: &Reply) -> (Class, String) {
    let answer = reply.value();
    let class = match reply.status.as_u16() {
        429 | 500.. => Class::Transient,
        _ => Class::BadCredentials,
    };
    let code = answer["error"].as_str().unwrap_or("no code");
    (
        class,
        format!(
            "{code}: {}",
            answer["error_description"].as_str().unwrap_or_default()
        ),
    )
}

fn last(address: &str) -> String {
    address.rsplit('/').next().unwrap_or_default().to_owned()
}

fn machine(instance: Instance) -> Machine {
    let spot = instance.scheduling["provisioningModel"] == "SPOT";
    let state = match instance.status.as_str() {
        "PROVISIONING" | "STAGING" => State::Pending,
        "RUNNING" => State::Running,
        "STOPPING" | "DEPROVISIONING" => State::Terminating,
        "TERMINATED" if spot => State::Preempted,
        "TERMINATED" | "SUSPENDED" | "SUSPENDING" => State::Stopped,
        _ => State::Degraded,
    };
    let zone = last(&instance.zone);
    let card = instance.network_interfaces.first();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Machine {
        id: format!("{zone}:{}", instance.name),
        name: instance.name,
        state,
        region: zone,
        instance_type: last(&instance.machine_type),
        spot,
        price: None,
        started: instance.creation_timestamp,
        ended: None,
        taken_back: None,
        exit: None,
        public_ip: card.and_then(|card| text(&card["accessConfigs"][0]["natIP"])),
        private_ip: card.and_then(|card| text(&card["networkIP"])),
    }
}

impl Provider for Gcp {
    fn kind(&self) -> Kind {
        Kind::Gcp
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
        Box::pin(async move {
            let found = self
                .zones("instances", &format!("name = {prefix}*"))
                .await?;
            let all = found.into_iter().flat_map(|(_, zone)| zone.instances);
            let all: Vec<Machine> = all.map(machine).collect();
            Ok(Machine::ours(&all, prefix))
        })
    }

    fn status<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Machine>, Failure>> {
        Box::pin(async move {
            let ask = self.signed(Ask::get(self.address(id))).await?;
            let found = self.client.found(&ask, judge).await?;
            found.map(|reply| reply.read().map(machine)).transpose()
        })
    }

    fn terminate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let ask = self
                .signed(Ask::new(Method::DELETE, self.address(id)))
                .await?;
            self.client.found(&ask, judge).await.map(|_| ())
        })
    }
}
