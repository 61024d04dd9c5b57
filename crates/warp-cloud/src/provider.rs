//! What every provider can be asked, and the forms of question and answer.

use std::fmt::Debug;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

use crate::account::Secret;
use crate::failure::{Class, Failure};
use crate::offer::Offer;

/// Which provider: the value of `spec.type` of a CloudProvider.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Fake,
    Lambda,
    Runpod,
    Vast,
    Aws,
    Gcp,
    Azure,
    Paperspace,
}

impl Kind {
    pub const ALL: [Self; 8] = [
        Self::Fake,
        Self::Lambda,
        Self::Runpod,
        Self::Vast,
        Self::Aws,
        Self::Gcp,
        Self::Azure,
        Self::Paperspace,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fake => "fake",
            Self::Lambda => "lambda",
            Self::Runpod => "runpod",
            Self::Vast => "vast",
            Self::Aws => "aws",
            Self::Gcp => "gcp",
            Self::Azure => "azure",
            Self::Paperspace => "paperspace",
        }
    }

    /// The provider of a word.
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }

    /// What it can do and how it must be treated.
    pub fn capabilities(self) -> Capabilities {
        match self {
            Self::Fake => crate::fake::CAPABILITIES,
            Self::Lambda => crate::lambda::CAPABILITIES,
            Self::Runpod => crate::runpod::CAPABILITIES,
            Self::Vast => crate::vast::CAPABILITIES,
            Self::Aws => crate::aws::CAPABILITIES,
            Self::Gcp => crate::gcp::CAPABILITIES,
            Self::Azure => crate::azure::CAPABILITIES,
            Self::Paperspace => crate::paperspace::CAPABILITIES,
        }
    }
}

/// What a provider can do and how it must be treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// It sells machines that it may take back.
    pub spot: bool,
    /// It needs credentials.
    pub credentials: bool,
    /// How long a machine may be missing from its lists after it was bought.
    pub lag: Duration,
    /// The longest one call may take.
    pub call_deadline: Duration,
    /// How long what was seen of a machine holds.
    pub look_every: Duration,
    /// Its machines are whole ones, which cloud-init or a script can make a node of; else containers.
    pub virtual_machines: bool,
}

impl Capabilities {
    /// How long after a launch was sent a machine may still turn up although no answer came: the call itself, then
    /// twice the lag.
    pub fn settle(&self) -> Duration {
        self.call_deadline + self.lag * 2
    }
}

/// What to launch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Launch {
    /// The machine's name, which is also its node's.
    pub name: String,
    /// The offer as it was when it was chosen.
    pub offer: Offer,
    /// As one the provider may take back.
    #[serde(default)]
    pub spot: bool,
    /// The most it may cost an hour; a bid is this much.
    pub max_price: Decimal,
    /// Who wants it, for the provider's own lists: `namespace/name`.
    pub owner: String,
    /// After how many seconds it must be gone whatever happens, where the provider can see to that itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lifetime_seconds: Option<u64>,
    /// The image to start from instead of the account's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What the request wants run at the first start besides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// What makes the machine join. It has a token in it, so it is put in right before the cloud is asked.
    #[serde(skip)]
    pub join: Option<Secret>,
    /// What runs there instead of a machine of one's own, where containers are sold. Its environment may have secrets
    /// in it, so it too is put in right before the cloud is asked.
    #[serde(skip)]
    pub container: Option<Container>,
}

/// One container, as a pod describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    pub image: String,
    /// What replaces the image's entry point; empty where the image has its own.
    pub command: Vec<String>,
    pub args: Vec<String>,
    pub env: Vec<(String, Secret)>,
}

impl Container {
    /// The arguments, for a cloud that leaves an image its entry point.
    pub(crate) fn arguments(&self, cloud: &str) -> Result<&[String], Failure> {
        if self.command.is_empty() {
            return Ok(&self.args);
        }
        let words = format!(
            "{cloud} cannot replace the entry point of an image: take command out and put the program into args"
        );
        Err(Failure::new(Class::Refused, words))
    }

    /// Words as a shell would be given them.
    pub(crate) fn quoted(words: &[String]) -> String {
        let each = words.iter().map(|word| quoted(word));
        each.collect::<Vec<_>>().join(" ")
    }

    /// What was said without the secrets of the environment.
    pub fn out_of(&self, words: &str) -> String {
        let mut words = words.to_owned();
        for (_, value) in &self.env {
            words = value.out_of(&words);
        }
        words
    }
}

/// A word as a shell would be given it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./:=,@%+".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    crate::join::quoted(word)
}

/// How a container ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exit {
    /// Absent where the cloud does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

/// How a machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum State {
    /// Bought, and not usable yet.
    Pending,
    Running,
    /// The provider says that something is wrong with it.
    Degraded,
    /// Taken back by the provider; it may still cost storage.
    Preempted,
    Stopped,
    Terminating,
    /// It will never run.
    Failed,
    /// It costs nothing any more.
    Gone,
}

/// One machine as the provider describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    /// The provider's own name for it.
    pub id: String,
    /// Ours.
    pub name: String,
    pub state: State,
    pub region: String,
    pub instance_type: String,
    #[serde(default)]
    pub spot: bool,
    /// What the provider says it bills an hour, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Decimal>,
    /// Since when the provider bills it, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<Timestamp>,
    /// Until when the provider bills it, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// When the provider takes it back, once it has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_back: Option<Timestamp>,
    /// How its container ended by itself, once it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<Exit>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public_ip: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private_ip: Option<String>,
}

impl Machine {
    /// A machine of which no more is known than that it was bought.
    pub(crate) fn bought(id: String, launch: &Launch) -> Self {
        Self {
            id,
            name: launch.name.clone(),
            state: State::Pending,
            region: launch.offer.region.clone(),
            instance_type: launch.offer.instance_type.clone(),
            spot: launch.spot,
            price: None,
            started: None,
            ended: None,
            taken_back: None,
            exit: None,
            public_ip: None,
            private_ip: None,
        }
    }

    /// Those of `all` whose name begins with `prefix` and that are not gone.
    pub(crate) fn ours(all: &[Self], prefix: &str) -> Vec<Self> {
        let ours = all
            .iter()
            .filter(|machine| machine.name.starts_with(prefix) && machine.state != State::Gone);
        ours.cloned().collect()
    }
}

/// One account at one provider.
pub trait Provider: Debug + Send + Sync {
    fn kind(&self) -> Kind;

    /// Everything it has to rent out, in no particular order.
    fn offers(&self) -> BoxFuture<'_, Result<Vec<Offer>, Failure>>;

    /// Buys one machine. Whoever calls has looked that there is none of this name.
    fn launch<'a>(&'a self, launch: &'a Launch) -> BoxFuture<'a, Result<Machine, Failure>>;

    /// Every machine whose name begins with `prefix` and that is not gone. Where each region is asked on its own, those
    /// of `also` are asked besides the account's: a machine may be where the account looks no longer.
    fn machines<'a>(
        &'a self,
        prefix: &'a str,
        also: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<Machine>, Failure>>;

    /// One machine; none when the provider knows of none or has nothing more to say of it.
    fn status<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Machine>, Failure>>;

    /// Ends one machine. One that is gone is no failure.
    fn terminate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Failure>>;
}
