//! Microsoft Azure: virtual machines on demand and spot, with cloud-init. A machine is made by its name, so making it
//! again is making the same; its disk and its network interface go with it.

mod prices;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::BoxFuture;
use http::Method;
use http::header::AUTHORIZATION;
use jiff::Timestamp;
use parking_lot::Mutex;
use rust_decimal::prelude::ToPrimitive;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::account::Account;
use crate::failure::{Class, Failure};
use crate::http::{Ask, Client, Reply, Transport, escaped, nonsense};
use crate::offer::Offer;
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

const LOGIN: &str = "https://login.microsoftonline.com";
const BASE: &str = "https://management.azure.com";
const VERSION: &str = "2024-07-01";
const NETWORK_VERSION: &str = "2022-11-01";
const FORM: &str = "application/x-www-form-urlencoded";
const GAPS: [Duration; 1] = [Duration::from_millis(200)];
const DEADLINE: Duration = Duration::from_secs(40);
const PRICES_AGE: Duration = Duration::from_mins(10);
const PAGES: usize = 40;
const USUAL_REGION: &str = "eastus";
const REGIONS: &[&str] = &[
    "eastus",
    "eastus2",
    "westus",
    "westus2",
    "westus3",
    "southcentralus",
    "northcentralus",
    "centralus",
    "canadacentral",
    "canadaeast",
    "northeurope",
    "westeurope",
    "uksouth",
    "germanywestcentral",
    "swedencentral",
    "japaneast",
    "southeastasia",
    "australiaeast",
    "centralindia",
];

type Listed = Option<(Instant, Vec<Offer>)>;

/// One account at Azure.
#[derive(Debug)]
pub(crate) struct Azure {
    account: Account,
    client: Client,
    token: Token,
    regions: Vec<String>,
    listed: Mutex<Listed>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    value: Vec<Found>,
    next_link: Option<String>,
}

#[derive(Deserialize)]
struct Found {
    name: String,
    location: String,
    properties: Properties,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Properties {
    hardware_profile: Option<Hardware>,
    provisioning_state: Option<String>,
    priority: Option<String>,
    time_created: Option<Timestamp>,
    instance_view: Option<View>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hardware {
    vm_size: String,
}

#[derive(Deserialize)]
struct View {
    #[serde(default)]
    statuses: Vec<Status>,
}

#[derive(Deserialize)]
struct Status {
    code: String,
}

impl Azure {
    pub(crate) fn open(account: Account, transport: Arc<dyn Transport>) -> Result<Self, Failure> {
        for key in ["tenantId", "clientId", "clientSecret"] {
            account.secret(key)?;
        }
        let client = account.client(transport, &GAPS, DEADLINE)?;
        Ok(Self {
            regions: account.regions_of(REGIONS, USUAL_REGION),
            account,
            client,
            token: Token::default(),
            listed: Mutex::default(),
        })
    }

    async fn log_in(&self) -> Result<Issued, Failure> {
        let tenant = escaped(self.account.secret("tenantId")?);
        let body = format!(
            "grant_type=client_credentials&client_id={}&client_secret={}&scope={}",
            escaped(self.account.secret("clientId")?),
            escaped(self.account.secret("clientSecret")?),
            escaped(&format!("{BASE}/.default")),
        );
        let url = format!("{LOGIN}/{tenant}/oauth2/v2.0/token");
        let ask = Ask::new(Method::POST, url).body(FORM, body);
        self.client.told(&ask, judge_login).await?.read()
    }

    async fn signed(&self, ask: Ask) -> Result<Ask, Failure> {
        let token = self.token.get(|| self.log_in()).await?;
        Ok(ask.header(AUTHORIZATION, format!("Bearer {}", token.shown())))
    }

    /// The address of all machines, or of one.
    fn address(&self, name: &str, more: &str) -> Result<String, Failure> {
        let settings = &self.account.settings;
        let why = "Azure needs to know where machines are made";
        let subscription = Account::setting(settings.subscription.as_ref(), "subscription", why)?;
        let group = Account::setting(settings.resource_group.as_ref(), "resourceGroup", why)?;
        let name = if name.is_empty() {
            String::new()
        } else {
            format!("/{}", escaped(name))
        };
        Ok(format!(
            "{BASE}/subscriptions/{}/resourceGroups/{}/providers/Microsoft.Compute/virtualMachines{name}\
             ?api-version={VERSION}{more}",
            escaped(subscription),
            escaped(group),
        ))
    }

    async fn every(&self) -> Result<Vec<Machine>, Failure> {
        let mut all = Vec::new();
        let mut url = self.address("", "&$expand=instanceView")?;
        for _ in 0..PAGES {
            let ask = self.signed(Ask::get(url)).await?;
            let page: Page = self.client.told(&ask, judge).await?.read()?;
            all.extend(page.value.into_iter().map(machine));
            match page.next_link {
                None => return Ok(all),
                // The token is shown to nobody else.
                Some(next) if next.starts_with(BASE) => url = next,
                Some(_) => return Err(nonsense(&"the next page is somewhere else")),
            }
        }
        Err(nonsense(&"the list of machines has no end"))
    }

    async fn list_offers(&self) -> Result<Vec<Offer>, Failure> {
        // Prices are public: whoever is not let in is told here and not first when it buys.
        self.token.get(|| self.log_in()).await?;
        if let Some((at, offers)) = &*self.listed.lock()
            && at.elapsed() < PRICES_AGE
        {
            return Ok(offers.clone());
        }
        let mut rows = Vec::new();
        for region in &self.regions {
            let mut url = prices::address(region);
            for _ in 0..PAGES {
                let page: prices::Page = self.client.told(&Ask::get(url), judge).await?.read()?;
                rows.extend(page.items);
                match page.next_page_link.filter(|link| !link.is_empty()) {
                    None => break,
                    Some(next) if next.starts_with(prices::BASE) => url = next,
                    Some(_) => return Err(nonsense(&"the next page is somewhere else")),
                }
            }
        }
        let offers = prices::offers(&rows);
        *self.listed.lock() = Some((Instant::now(), offers.clone()));
        Ok(offers)
    }

    fn body(&self, launch: &Launch) -> Result<Value, Failure> {
        let settings = &self.account.settings;
        let image = Account::setting(self.account.image(launch), "image", "Azure needs an image")?;
        let why = "Azure needs the path of a subnet";
        let subnet = Account::setting(settings.network.as_ref(), "network", why)?;
        let why = "Azure needs an SSH public key";
        let key = Account::setting(settings.ssh_key.as_ref(), "sshKey", why)?;
        let ip = json!({"name": "ip", "properties": {"primary": true, "subnet": {"id": subnet}}});
        let card = json!({
            "name": "nic",
            "properties": {"primary": true, "deleteOption": "Delete", "ipConfigurations": [ip]},
        });
        let public = json!({"path": "/home/warp/.ssh/authorized_keys", "keyData": key});
        let mut disk = json!({"createOption": "FromImage", "deleteOption": "Delete"});
        if let Some(size) = settings.disk_gib {
            disk["diskSizeGB"] = size.into();
        }
        let mut properties = json!({
            "hardwareProfile": {"vmSize": launch.offer.instance_type},
            "storageProfile": {"imageReference": {"id": image}, "osDisk": disk},
            "osProfile": {
                "computerName": launch.name,
                "adminUsername": "warp",
                "linuxConfiguration": {
                    "disablePasswordAuthentication": true,
                    "ssh": {"publicKeys": [public]},
                },
            },
            "networkProfile": {
                "networkApiVersion": NETWORK_VERSION,
                "networkInterfaceConfigurations": [card],
            },
        });
        if let Some(text) = self.account.user_data(launch) {
            properties["osProfile"]["customData"] = STANDARD.encode(text).into();
        }
        if launch.spot {
            properties["priority"] = "Spot".into();
            properties["evictionPolicy"] = "Delete".into();
            let most = launch.max_price.to_f64().unwrap_or_default();
            properties["billingProfile"] = json!({"maxPrice": most});
        }
        let tags = json!({"warp": "machine", "warp-owner": launch.owner});
        Ok(json!({"location": launch.offer.region, "tags": tags, "properties": properties}))
    }

    async fn buy(&self, launch: &Launch) -> Result<Machine, Failure> {
        self.account.joins(launch)?;
        let body = self.body(launch)?;
        let ask = Ask::new(Method::PUT, self.address(&launch.name, "")?).json(&body);
        let reply = self.client.told(&self.signed(ask).await?, judge).await?;
        let made: Found = reply.read()?;
        Ok(Machine::bought(made.name, launch))
    }
}

fn judge_login(reply: &Reply) -> (Class, String) {
    let answer = reply.value();
    let code = answer["error"].as_str().unwrap_or("no code");
    let words = answer["error_description"].as_str().unwrap_or_default();
    let class = match reply.status.as_u16() {
        429 | 500.. => Class::Transient,
        _ => Class::BadCredentials,
    };
    (class, format!("{code}: {words}"))
}

fn judge(reply: &Reply) -> (Class, String) {
    let error = &reply.value()["error"];
    let code = error["code"].as_str().unwrap_or("no code");
    let message = error["message"].as_str().unwrap_or_default();
    let class = match code {
        "SkuNotAvailable"
        | "AllocationFailed"
        | "ZonalAllocationFailed"
        | "OverconstrainedAllocationRequest"
        | "OverconstrainedZonalAllocationRequest" => Class::NoCapacity,
        "QuotaExceeded" => Class::Quota,
        // One code for two things: the words tell them apart.
        "OperationNotAllowed" if message.to_lowercase().contains("quota") => Class::Quota,
        "OperationNotAllowed" if message.to_lowercase().contains("price") => Class::NoCapacity,
        "AuthenticationFailed"
        | "AuthorizationFailed"
        | "InvalidAuthenticationToken"
        | "ExpiredAuthenticationToken"
        | "LinkedAuthorizationFailed"
        | "SubscriptionNotFound" => Class::BadCredentials,
        "ReadOnlyDisabledSubscription" | "SubscriptionDisabled" => Class::NoBalance,
        "TooManyRequests" | "InternalServerError" | "Conflict" => Class::Transient,
        _ => Class::of_status(reply.status),
    };
    (class, format!("{code}: {message}"))
}

fn machine(found: Found) -> Machine {
    let properties = found.properties;
    let spot = properties.priority.as_deref() == Some("Spot");
    let view = properties
        .instance_view
        .map(|view| view.statuses)
        .unwrap_or_default();
    let power = view
        .iter()
        .find_map(|status| status.code.strip_prefix("PowerState/"));
    let state = match (properties.provisioning_state.as_deref(), power) {
        (Some("Deleting"), _) => State::Terminating,
        (Some("Failed"), _) => State::Failed,
        (_, Some("running")) => State::Running,
        (_, Some("deallocated" | "deallocating" | "stopped" | "stopping")) if spot => {
            State::Preempted
        }
        (_, Some("deallocated" | "deallocating" | "stopped" | "stopping")) => State::Stopped,
        _ => State::Pending,
    };
    Machine {
        id: found.name.clone(),
        name: found.name,
        state,
        region: found.location,
        instance_type: properties
            .hardware_profile
            .map(|hardware| hardware.vm_size)
            .unwrap_or_default(),
        spot,
        price: None,
        started: properties.time_created,
        ended: None,
        taken_back: None,
        exit: None,
        public_ip: None,
        private_ip: None,
    }
}

impl Provider for Azure {
    fn kind(&self) -> Kind {
        Kind::Azure
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
            let url = self.address(id, "&$expand=instanceView")?;
            let found = self
                .client
                .found(&self.signed(Ask::get(url)).await?, judge)
                .await?;
            found.map(|reply| reply.read().map(machine)).transpose()
        })
    }

    fn terminate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let url = self.address(id, "&forceDeletion=true")?;
            let ask = self.signed(Ask::new(Method::DELETE, url)).await?;
            self.client.found(&ask, judge).await.map(|_| ())
        })
    }
}
