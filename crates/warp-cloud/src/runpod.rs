//! RunPod, REST v2: containers on demand. It sells no spot and knows no idempotency key: pods are found by their name.
//! A pod starts from an image and gets no cloud-init, so the image has to join by itself.
//!
//! Its own rule for creating: 422 never again, 400 the next candidate, 402 no money, 429 wait, 5xx again.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::Method;
use jiff::Timestamp;
use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::json;

use crate::account::Account;
use crate::failure::{Class, Failure};
use crate::http::{Again, Ask, Client, Reply, Shared, Transport, escaped};
use crate::offer::{Availability, Offer, model};
use crate::provider::{Capabilities, Container, Exit, Kind, Launch, Machine, Provider, State};

/// See [`Capabilities`].
pub(crate) const CAPABILITIES: Capabilities = Capabilities {
    spot: false,
    credentials: true,
    lag: Duration::from_mins(1),
    call_deadline: Duration::from_mins(1),
    look_every: Duration::from_secs(30),
    virtual_machines: false,
};

const BASE: &str = "https://api.runpod.io/v2";
/// Sixty a minute are allowed.
const GAPS: [Duration; 1] = [Duration::from_secs(1)];
const DEADLINE: Duration = Duration::from_secs(30);
/// Sizes of machines that are offered, as far as the vendor has that many.
const COUNTS: [u32; 4] = [1, 2, 4, 8];
/// GB of a pod's disk unless the settings say otherwise.
const DISK_GB: u32 = 50;

/// One account at RunPod.
#[derive(Debug)]
pub(crate) struct Runpod {
    account: Account,
    client: Client,
    machines: Shared<Arc<Vec<Machine>>>,
    offers: Shared<Arc<Vec<Offer>>>,
}

#[derive(Deserialize)]
struct Catalogue {
    gpus: Vec<Gpu>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Gpu {
    id: String,
    memory: u32,
    secure: bool,
    price: Prices,
    max_count: Counts,
    #[serde(default)]
    data_centers: Vec<DataCenter>,
}

#[derive(Deserialize)]
struct Prices {
    secure: Decimal,
}

#[derive(Deserialize)]
struct Counts {
    secure: u32,
}

#[derive(Deserialize)]
struct DataCenter {
    id: String,
    availability: String,
}

#[derive(Deserialize)]
struct Pods {
    pods: Vec<Pod>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Pod {
    id: String,
    name: String,
    status: String,
    gpu: Option<Asked>,
    data_center_id: Option<String>,
    cost: Option<Decimal>,
    created_at: Option<Timestamp>,
    ssh: Option<Ssh>,
}

#[derive(Deserialize)]
struct Asked {
    id: String,
}

#[derive(Deserialize)]
struct Ssh {
    direct: Option<Direct>,
}

#[derive(Deserialize)]
struct Direct {
    host: Option<String>,
}

impl Runpod {
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
            let all: Pods = self.ask(Ask::get(format!("{BASE}/pods"))).await?.read()?;
            Ok(Arc::new(all.pods.into_iter().map(machine).collect()))
        };
        self.machines.get(list).await
    }

    async fn list_offers(&self) -> Result<Arc<Vec<Offer>>, Failure> {
        let url = format!("{BASE}/catalog/gpus?include=AVAILABILITY&product=POD&cloud=SECURE");
        let all: Catalogue = self.ask(Ask::get(url)).await?.read()?;
        Ok(Arc::new(all.gpus.iter().flat_map(offers).collect()))
    }

    async fn buy(&self, launch: &Launch) -> Result<Machine, Failure> {
        if launch.spot {
            return Err(Failure::new(
                Class::Refused,
                "RunPod sells no spot machines",
            ));
        }
        let settings = &self.account.settings;
        let mut env = json!({"WARP_NODE_NAME": launch.name, "WARP_OWNER": launch.owner});
        let (image, args) = if let Some(container) = &launch.container {
            for (name, value) in &container.env {
                env[name] = value.shown().into();
            }
            let args = Container::quoted(container.arguments("RunPod")?);
            (container.image.as_str(), Some(args))
        } else {
            if let Some(text) = self.account.user_data(launch) {
                env["WARP_USER_DATA"] = text.into();
            }
            let image = Account::setting(
                self.account.image(launch),
                "image",
                "RunPod starts containers, so it needs an image that joins by itself",
            )?;
            (image, None)
        };
        let mut body = json!({
            "name": launch.name,
            "image": image,
            "cloud": "SECURE",
            "gpu": {"id": launch.offer.instance_type, "count": launch.offer.gpus},
            "dataCenterIds": [launch.offer.region],
            "disk": settings.disk_gib.unwrap_or(DISK_GB),
            "env": env,
        });
        if let Some(args) = args.filter(|args| !args.is_empty()) {
            body["args"] = args.into();
        }
        let ask = Ask::new(Method::POST, format!("{BASE}/pods")).json(&body);
        let ask = self.account.bearer(ask.again(Again::WhenUnheard))?;
        let reply = self.client.told(&ask, judge_create).await?;
        Ok(machine(reply.read()?))
    }
}

fn words(reply: &Reply) -> String {
    let problem = reply.value();
    let errors = problem["errors"].as_array().into_iter().flatten();
    let errors: Vec<&str> = errors.filter_map(|error| error.as_str()).collect();
    let title = problem["title"].as_str().unwrap_or("no reason given");
    let detail = problem["detail"].as_str().unwrap_or_default();
    format!("{title}: {detail} {}", errors.join("; "))
}

fn judge(reply: &Reply) -> (Class, String) {
    (Class::of_status(reply.status), words(reply))
}

/// The vendor's table for creating: it has no code for "sold out".
fn judge_create(reply: &Reply) -> (Class, String) {
    let class = match reply.status.as_u16() {
        400 => Class::NoCapacity,
        403 => Class::Refused,
        _ => Class::of_status(reply.status),
    };
    (class, words(reply))
}

/// One offer per data centre and size.
fn offers(gpu: &Gpu) -> Vec<Offer> {
    let Some(name) = model(&gpu.id, Some(gpu.memory)).filter(|_| gpu.secure) else {
        return Vec::new();
    };
    let counts = COUNTS
        .into_iter()
        .filter(|count| *count <= gpu.max_count.secure);
    let places = |count: u32| {
        let offer = move |place: &DataCenter| Offer {
            gpu: name.to_owned(),
            gpus: count,
            region: place.id.clone(),
            instance_type: gpu.id.clone(),
            price: gpu.price.secure * Decimal::from(count),
            spot_price: None,
            availability: availability(&place.availability, count),
        };
        gpu.data_centers.iter().map(offer)
    };
    counts.flat_map(places).collect()
}

/// The vendor says it for machines with one GPU.
fn availability(word: &str, count: u32) -> Availability {
    match word {
        "NONE" => Availability::None,
        _ if count > 1 => Availability::Unknown,
        "LOW" => Availability::Low,
        "MEDIUM" => Availability::Medium,
        "HIGH" => Availability::High,
        _ => Availability::Unknown,
    }
}

fn machine(pod: Pod) -> Machine {
    let state = match pod.status.as_str() {
        "PROVISIONING" | "STARTING" => State::Pending,
        "RUNNING" => State::Running,
        "EXITED" => State::Stopped,
        "ERROR" => State::Failed,
        "TERMINATED" => State::Gone,
        _ => State::Degraded,
    };
    let direct = pod.ssh.and_then(|ssh| ssh.direct);
    Machine {
        id: pod.id,
        name: pod.name,
        state,
        region: pod.data_center_id.unwrap_or_default(),
        instance_type: pod.gpu.map(|gpu| gpu.id).unwrap_or_default(),
        spot: false,
        price: pod.cost.filter(|cost| *cost > Decimal::ZERO),
        started: pod.created_at,
        ended: None,
        taken_back: None,
        // The vendor says that it ended, and not how.
        exit: (state == State::Stopped).then_some(Exit {
            code: None,
            at: None,
        }),
        public_ip: direct.and_then(|direct| direct.host),
        private_ip: None,
    }
}

impl Provider for Runpod {
    fn kind(&self) -> Kind {
        Kind::Runpod
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
            let ask = Ask::get(format!("{BASE}/pods/{}", escaped(id)));
            let found = self.client.found(&self.account.bearer(ask)?, judge).await?;
            found.map(|reply| reply.read().map(machine)).transpose()
        })
    }

    fn terminate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let url = format!("{BASE}/pods/{}", escaped(id));
            let ask = self.account.bearer(Ask::new(Method::DELETE, url))?;
            self.client.found(&ask, judge).await.map(|_| ())
        })
    }
}
