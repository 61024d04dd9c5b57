//! Amazon EC2: virtual machines on demand and spot, with cloud-init. Every launch carries its name as ClientToken, so
//! repeating one buys nothing; a machine that powers itself off is gone.
//!
//! A machine's id here is `region:instance id`: EC2 has to be asked region by region.

mod prices;
mod sign;
mod xml;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::future::BoxFuture;
use http::Method;
use http::header::CONTENT_TYPE;
use parking_lot::Mutex;
use rust_decimal::Decimal;
use tokio::time::Instant;

use self::sign::Signer;
use self::xml::Node;
use crate::Now;
use crate::account::Account;
use crate::failure::{Class, Failure};
use crate::http::{Ask, Client, Reply, Transport, escaped, nonsense};
use crate::offer::Offer;
use crate::provider::{Capabilities, Kind, Launch, Machine, Provider, State};

/// See [`Capabilities`].
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    spot: true,
    credentials: true,
    lag: Duration::from_mins(1),
    call_deadline: Duration::from_mins(2),
    look_every: Duration::from_secs(30),
    virtual_machines: true,
};

const GAPS: [Duration; 2] = [Duration::from_millis(100), Duration::from_millis(600)];
const LAUNCHES: &[usize] = &[1, 0];
const DEADLINE: Duration = Duration::from_secs(30);
const VERSION: &str = "2016-11-15";
const FORM: &str = "application/x-www-form-urlencoded; charset=utf-8";
const JSON: &str = "application/x-amz-json-1.1";
/// The price list is in a few regions only.
const PRICES_REGION: &str = "us-east-1";
/// How long list prices hold; spot prices are asked for every time.
const PRICES_AGE: Duration = Duration::from_hours(1);
/// Pages of anything that are read.
const PAGES: usize = 40;
const USUAL_REGION: &str = "us-east-1";
const REGIONS: &[&str] = &[
    "us-east-1",
    "us-east-2",
    "us-west-1",
    "us-west-2",
    "ca-central-1",
    "eu-central-1",
    "eu-west-1",
    "eu-west-2",
    "eu-west-3",
    "eu-north-1",
    "eu-south-1",
    "ap-northeast-1",
    "ap-northeast-2",
    "ap-south-1",
    "ap-southeast-1",
    "ap-southeast-2",
    "sa-east-1",
    "me-central-1",
];

type Fields = Vec<(String, String)>;
type Listed = BTreeMap<String, (Instant, Vec<Offer>)>;

/// One account at Amazon.
pub(crate) struct Aws {
    account: Account,
    client: Client,
    regions: Vec<String>,
    now: Now,
    /// List prices by region, and when they were asked for.
    listed: Mutex<Listed>,
}

impl std::fmt::Debug for Aws {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Aws")
            .field("regions", &self.regions)
            .finish_non_exhaustive()
    }
}

fn field(name: &str, value: impl Into<String>) -> (String, String) {
    (name.to_owned(), value.into())
}

impl Aws {
    pub(crate) fn open(
        account: Account,
        transport: Arc<dyn Transport>,
        now: Now,
    ) -> Result<Self, Failure> {
        account.secret("accessKeyId")?;
        account.secret("secretAccessKey")?;
        let client = account.client(transport, &GAPS, DEADLINE)?;
        Ok(Self {
            regions: account.regions_of(REGIONS, USUAL_REGION),
            account,
            client,
            now,
            listed: Mutex::default(),
        })
    }

    fn signed(
        &self,
        (service, region): (&str, &str),
        headers: &[(&'static str, &str)],
        body: String,
    ) -> Result<Ask, Failure> {
        let url = match service {
            "ec2" => format!("https://ec2.{region}.amazonaws.com/"),
            _ => format!("https://api.{service}.{region}.amazonaws.com/"),
        };
        let signer = Signer {
            key_id: self.account.secret("accessKeyId")?,
            secret: self.account.secret("secretAccessKey")?,
            session_token: self.account.secret("sessionToken").ok(),
            region,
            service,
        };
        let host = self.client.host(&url);
        let mut ask = Ask::new(Method::POST, url);
        for (name, value) in signer.headers(&host, headers, &body, (self.now)()) {
            if name != CONTENT_TYPE {
                ask = ask.header(name, value);
            }
        }
        let kind = headers.iter().find(|(name, _)| *name == "content-type");
        Ok(ask.body(kind.map_or(FORM, |(_, kind)| kind), body))
    }

    /// Asks EC2 in one region.
    async fn ec2(&self, region: &str, action: &str, fields: Fields) -> Result<Node, Failure> {
        let mut body = format!("Action={action}&Version={VERSION}");
        for (name, value) in fields {
            // Writing to a string does not fail.
            let _ = write!(body, "&{name}={}", escaped(&value));
        }
        let mut ask = self.signed(("ec2", region), &[("content-type", FORM)], body)?;
        if action == "RunInstances" {
            ask = ask.lanes(LAUNCHES);
        }
        let reply = self.client.told(&ask, judge).await?;
        let root =
            Node::read(&String::from_utf8_lossy(&reply.body)).map_err(|why| nonsense(&why))?;
        if root.name() == format!("{action}Response") {
            Ok(root)
        } else {
            Err(nonsense(&format!(
                "{} is no answer to {action}",
                root.name()
            )))
        }
    }

    /// List prices of a region, of this hour.
    async fn list_prices(&self, region: &str) -> Result<Vec<Offer>, Failure> {
        if let Some((at, offers)) = self.listed.lock().get(region)
            && at.elapsed() < PRICES_AGE
        {
            return Ok(offers.clone());
        }
        let headers = [
            ("content-type", JSON),
            ("x-amz-target", "AWSPriceListService.GetProducts"),
        ];
        let (mut offers, mut token) = (Vec::new(), None);
        for _ in 0..PAGES {
            let body = prices::question(region, token.as_deref()).to_string();
            let ask = self.signed(("pricing", PRICES_REGION), &headers, body)?;
            let page: prices::Page = self.client.told(&ask, judge_prices).await?.read()?;
            offers.extend(prices::offers(&page, region));
            token = page.next_token.filter(|token| !token.is_empty());
            if token.is_none() {
                break;
            }
        }
        let now = Instant::now();
        self.listed
            .lock()
            .insert(region.to_owned(), (now, offers.clone()));
        Ok(offers)
    }

    async fn offers_in(&self, region: &str) -> Result<Vec<Offer>, Failure> {
        let mut offers = self.list_prices(region).await?;
        let (mut best, mut token) = (BTreeMap::new(), None::<String>);
        for _ in 0..PAGES {
            let start = (self.now)().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            let mut fields = vec![
                field("StartTime", start),
                field("ProductDescription.1", "Linux/UNIX"),
            ];
            for (number, offer) in offers.iter().enumerate() {
                fields.push(field(
                    &format!("InstanceType.{}", number + 1),
                    &offer.instance_type,
                ));
            }
            fields.extend(token.take().map(|token| field("NextToken", token)));
            let answer = self.ec2(region, "DescribeSpotPriceHistory", fields).await?;
            prices::spot(&answer, &mut best);
            token = answer.at("nextToken").map(str::to_owned);
            if token.is_none() {
                break;
            }
        }
        for offer in &mut offers {
            let spot = best.get(&offer.instance_type).copied();
            offer.spot_price = spot.filter(|spot| *spot > Decimal::ZERO && *spot <= offer.price);
        }
        Ok(offers)
    }

    async fn machines_in(&self, region: &str, filter: Fields) -> Result<Vec<Machine>, Failure> {
        let (mut all, mut token) = (Vec::new(), None::<String>);
        for _ in 0..PAGES {
            let mut fields = filter.clone();
            fields.extend(token.take().map(|token| field("NextToken", token)));
            let answer = self.ec2(region, "DescribeInstances", fields).await?;
            let reservations = answer.items("reservationSet").iter();
            let instances = reservations.flat_map(|reservation| reservation.items("instancesSet"));
            all.extend(instances.filter_map(|instance| machine(instance, region)));
            token = answer.at("nextToken").map(str::to_owned);
            if token.is_none() {
                return Ok(all);
            }
        }
        Err(nonsense(&"the list of machines has no end"))
    }

    async fn buy(&self, launch: &Launch) -> Result<Machine, Failure> {
        self.account.joins(launch)?;
        let settings = &self.account.settings;
        let image = Account::setting(self.account.image(launch), "image", "EC2 needs an AMI")?;
        let mut fields = vec![
            field("ImageId", image),
            field("InstanceType", &launch.offer.instance_type),
            field("MinCount", "1"),
            field("MaxCount", "1"),
            // The same name is the same machine, however often it is asked for.
            field("ClientToken", &launch.name),
            field("InstanceInitiatedShutdownBehavior", "terminate"),
            field("TagSpecification.1.ResourceType", "instance"),
            field("TagSpecification.1.Tag.1.Key", "Name"),
            field("TagSpecification.1.Tag.1.Value", &launch.name),
            field("TagSpecification.1.Tag.2.Key", "warp-owner"),
            field("TagSpecification.1.Tag.2.Value", &launch.owner),
        ];
        if let Some(text) = self.account.user_data(launch) {
            fields.push(field("UserData", STANDARD.encode(text)));
        }
        if let Some(key) = &settings.ssh_key {
            fields.push(field("KeyName", key));
        }
        if let Some(subnet) = &settings.network {
            fields.push(field("SubnetId", subnet));
        }
        if let Some(group) = &settings.security_group {
            fields.push(field("SecurityGroupId.1", group));
        }
        if let Some(size) = settings.disk_gib {
            fields.push(field("BlockDeviceMapping.1.DeviceName", "/dev/sda1"));
            fields.push(field(
                "BlockDeviceMapping.1.Ebs.VolumeSize",
                size.to_string(),
            ));
        }
        if launch.spot {
            let options = "InstanceMarketOptions.SpotOptions";
            fields.push(field("InstanceMarketOptions.MarketType", "spot"));
            fields.push(field(
                &format!("{options}.MaxPrice"),
                launch.max_price.normalize().to_string(),
            ));
            fields.push(field(&format!("{options}.SpotInstanceType"), "one-time"));
            fields.push(field(
                &format!("{options}.InstanceInterruptionBehavior"),
                "terminate",
            ));
        }
        let region = &launch.offer.region;
        let answer = self.ec2(region, "RunInstances", fields).await?;
        let bought = answer.items("instancesSet").first();
        let id = bought.and_then(|instance| instance.at("instanceId"));
        let id = id.ok_or_else(|| nonsense(&"no instance id"))?;
        Ok(Machine::bought(format!("{region}:{id}"), launch))
    }

    /// The region of an id, and the vendor's id.
    fn place<'a>(&'a self, id: &'a str) -> (&'a str, &'a str) {
        id.split_once(':').unwrap_or((&self.regions[0], id))
    }
}

/// The vendor's codes, by what they mean.
const CODES: &[(Class, &[&str])] = &[
    (
        Class::NoCapacity,
        &[
            "InsufficientInstanceCapacity",
            "InsufficientHostCapacity",
            "InsufficientReservedInstanceCapacity",
            "UnfulfillableCapacity",
            "Unsupported",
            "InsufficientFreeAddressesInSubnet",
            "ReservationCapacityExceeded",
            "SpotMaxPriceTooLow",
        ],
    ),
    (
        Class::Quota,
        &[
            "VcpuLimitExceeded",
            "InstanceLimitExceeded",
            "MaxSpotInstanceCountExceeded",
            "MaxFleetCountExceeded",
        ],
    ),
    (
        Class::BadCredentials,
        &[
            "AuthFailure",
            "UnauthorizedOperation",
            "SignatureDoesNotMatch",
            "InvalidClientTokenId",
            "UnrecognizedClientException",
            "MissingAuthenticationToken",
            "ExpiredToken",
            "RequestExpired",
            "OptInRequired",
            "AccessDeniedException",
        ],
    ),
    (Class::NoBalance, &["Blocked", "PendingVerification"]),
    (
        Class::Transient,
        &[
            "RequestLimitExceeded",
            "ThrottlingException",
            "Unavailable",
            "ServiceUnavailable",
            "InternalError",
            "InternalFailure",
        ],
    ),
];

fn class(reply: &Reply, code: &str) -> Class {
    let known = CODES.iter().find(|(_, codes)| codes.contains(&code));
    known.map_or_else(|| Class::of_status(reply.status), |(class, _)| *class)
}

fn judge(reply: &Reply) -> (Class, String) {
    let root = Node::read(&String::from_utf8_lossy(&reply.body)).unwrap_or_default();
    let error = root.items("Errors").first().cloned().unwrap_or_default();
    let code = error.at("Code").unwrap_or("no code");
    let words = format!("{code}: {}", error.at("Message").unwrap_or_default());
    (class(reply, code), words)
}

fn judge_prices(reply: &Reply) -> (Class, String) {
    let answer = reply.value();
    let code = answer["__type"].as_str().unwrap_or("no code");
    let code = code.rsplit('#').next().unwrap_or(code);
    let words = answer["message"].as_str().or(answer["Message"].as_str());
    (
        class(reply, code),
        format!("{code}: {}", words.unwrap_or_default()),
    )
}

/// Whether a failure says that there is no such machine.
fn is_missing(failure: &Failure) -> bool {
    failure.words.contains("InvalidInstanceID.")
}

fn machine(instance: &Node, region: &str) -> Option<Machine> {
    let tags = instance.items("tagSet").iter();
    let mut names = tags.filter(|tag| tag.at("key") == Some("Name"));
    let state = match instance.at("instanceState/name")? {
        "pending" => State::Pending,
        "running" => State::Running,
        "shutting-down" => State::Terminating,
        "terminated" => State::Gone,
        "stopping" | "stopped" => State::Stopped,
        _ => State::Degraded,
    };
    Some(Machine {
        id: format!("{region}:{}", instance.at("instanceId")?),
        name: names
            .next()
            .and_then(|tag| tag.at("value"))
            .unwrap_or_default()
            .to_owned(),
        state,
        region: region.to_owned(),
        instance_type: instance.at("instanceType").unwrap_or_default().to_owned(),
        spot: instance.at("instanceLifecycle") == Some("spot"),
        price: None,
        started: instance.at("launchTime").and_then(|time| time.parse().ok()),
        ended: None,
        taken_back: None,
        exit: None,
        public_ip: instance.at("ipAddress").map(str::to_owned),
        private_ip: instance.at("privateIpAddress").map(str::to_owned),
    })
}

impl Provider for Aws {
    fn kind(&self) -> Kind {
        Kind::Aws
    }

    fn offers(&self) -> BoxFuture<'_, Result<Vec<Offer>, Failure>> {
        Box::pin(async move {
            let mut all = Vec::new();
            for region in &self.regions {
                all.append(&mut self.offers_in(region).await?);
            }
            Ok(all)
        })
    }

    fn launch<'a>(&'a self, launch: &'a Launch) -> BoxFuture<'a, Result<Machine, Failure>> {
        Box::pin(self.buy(launch))
    }

    fn machines<'a>(
        &'a self,
        prefix: &'a str,
        also: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<Machine>, Failure>> {
        Box::pin(async move {
            let mut all = Vec::new();
            let forgotten = also.iter().filter(|region| !self.regions.contains(region));
            let regions: BTreeSet<&String> = self.regions.iter().chain(forgotten).collect();
            for region in regions {
                let filter = vec![
                    field("Filter.1.Name", "tag:Name"),
                    field("Filter.1.Value.1", format!("{prefix}*")),
                ];
                all.append(&mut self.machines_in(region, filter).await?);
            }
            Ok(Machine::ours(&all, prefix))
        })
    }

    fn status<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Machine>, Failure>> {
        Box::pin(async move {
            let (region, instance) = self.place(id);
            let found = self
                .machines_in(region, vec![field("InstanceId.1", instance)])
                .await;
            match found {
                Err(failure) if is_missing(&failure) => Ok(None),
                found => Ok(found?.into_iter().next()),
            }
        })
    }

    fn terminate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let (region, instance) = self.place(id);
            let fields = vec![field("InstanceId.1", instance)];
            match self.ec2(region, "TerminateInstances", fields).await {
                Err(failure) if is_missing(&failure) => Ok(()),
                answer => answer.map(|_| ()),
            }
        })
    }
}
