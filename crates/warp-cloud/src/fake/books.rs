//! The books of the fake cloud: who rented what, since when, at which price; and the script of how it behaves.

use std::fmt::Debug;

use futures::future::BoxFuture;
use jiff::Timestamp;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

use super::later;
use crate::failure::Failure;
use crate::offer::Offer;
use crate::provider::{Container, Exit, Machine, State};

/// Everything the fake cloud knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Books {
    /// Every machine that was ever rented, the oldest first.
    pub machines: Vec<Rented>,
    pub script: Script,
}

/// Which version of the books was read, in the words of whoever keeps them; empty before there are any.
pub type Version = String;

/// Who keeps the books.
pub trait Store: Debug + Send + Sync {
    /// The books and their version; empty books when there are none.
    fn read(&self) -> BoxFuture<'_, Result<(Books, Version), Failure>>;
    /// Keeps `books`, unless somebody wrote them since `version`: then it says false.
    fn write<'a>(
        &'a self,
        books: &'a Books,
        version: &'a Version,
    ) -> BoxFuture<'a, Result<bool, Failure>>;
}

/// One machine in the books.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rented {
    pub id: String,
    pub name: String,
    pub owner: String,
    pub gpu: String,
    pub gpus: u32,
    pub region: String,
    pub instance_type: String,
    /// US dollars an hour, billed by the second from `launched` to `ended`.
    pub price: Decimal,
    #[serde(default)]
    pub spot: bool,
    pub launched: Timestamp,
    /// When it runs.
    pub boots: Timestamp,
    /// When it is gone; in the future while it stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// The cloud took it back.
    #[serde(default)]
    pub preempted: bool,
    /// When the cloud said that it takes it back; it runs until `ended`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<Timestamp>,
    /// What runs there, where it is a container and no machine of one's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Runs>,
}

/// A container in the books: what it is, and how it will end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Runs {
    pub image: String,
    pub command: Vec<String>,
    /// Names alone: values may be secret.
    pub env: Vec<String>,
    /// When it ends by itself; it costs money all the same until it is ended.
    pub exits: Timestamp,
    pub code: i32,
}

impl Runs {
    /// It takes as long as its `sleep` says and ends as its `exit` says; without them, as the script does.
    pub(super) fn of(container: &Container, boots: Timestamp, script: &Script) -> Self {
        let command: Vec<String> = [&container.command, &container.args]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        let text = command.join(" ");
        let words: Vec<&str> = text
            .split(|letter: char| letter.is_whitespace() || ";&".contains(letter))
            .filter(|word| !word.is_empty())
            .collect();
        let number = |name: &str| {
            let mut pairs = words.windows(2).filter(|pair| pair[0] == name);
            pairs.find_map(|pair| pair[1].trim_end_matches('s').parse::<u32>().ok())
        };
        let lasts = number("sleep").unwrap_or(script.run_seconds);
        let code = number("exit").and_then(|code| i32::try_from(code).ok());
        Self {
            image: container.image.clone(),
            command,
            env: container.env.iter().map(|(name, _)| name.clone()).collect(),
            exits: later(boots, lasts),
            code: code.unwrap_or(0),
        }
    }
}

impl Rented {
    pub fn state(&self, now: Timestamp) -> State {
        match self.ended {
            Some(ended) if ended <= now => State::Gone,
            Some(_) if self.notice.is_some() => State::Running,
            Some(_) if self.preempted => State::Preempted,
            Some(_) => State::Terminating,
            None if now < self.boots => State::Pending,
            None if self.exit(now).is_some() => State::Stopped,
            None => State::Running,
        }
    }

    /// How its container ended by itself.
    fn exit(&self, now: Timestamp) -> Option<Exit> {
        let runs = self.container.as_ref()?;
        (runs.exits <= now).then_some(Exit {
            code: Some(runs.code),
            at: Some(runs.exits),
        })
    }

    pub(super) fn machine(&self, now: Timestamp) -> Machine {
        let state = self.state(now);
        Machine {
            id: self.id.clone(),
            name: self.name.clone(),
            state,
            region: self.region.clone(),
            instance_type: self.instance_type.clone(),
            spot: self.spot,
            price: Some(self.price),
            started: Some(self.launched),
            ended: self.ended.filter(|_| state == State::Gone),
            taken_back: self.ended.filter(|_| self.notice.is_some()),
            exit: self.exit(now),
            public_ip: None,
            private_ip: None,
        }
    }

    /// What the cloud bills for it until `now`, to the hundredth of a cent.
    pub fn billed(&self, now: Timestamp) -> Decimal {
        let until = self.ended.map_or(now, |ended| ended.min(now));
        let time = until.duration_since(self.launched).as_secs().max(0);
        (self.price * Decimal::from(time) / Decimal::from(3600)).round_dp(4)
    }
}

impl Books {
    /// Machines that cost money at the moment.
    pub fn running(&self, now: Timestamp) -> usize {
        let all = self.machines.iter();
        all.filter(|rented| rented.state(now) != State::Gone)
            .count()
    }

    /// Tells machines that the script wants back that they go. Whether any was told.
    pub(super) fn interrupt(&mut self, now: Timestamp) -> bool {
        let (wanted, lead) = (self.script.interrupt.clone(), self.script.notice_seconds);
        let taken = |rented: &&mut Rented| {
            let here = format!("{}@{}", rented.instance_type, rented.region);
            let known = [&rented.gpu, &rented.instance_type, &here, &rented.name];
            rented.spot
                && rented.ended.is_none()
                && rented.boots <= now
                && wanted.iter().any(|name| known.contains(&name))
        };
        let mut any = false;
        for rented in self.machines.iter_mut().filter(taken) {
            rented.notice = Some(now);
            rented.preempted = true;
            rented.ended = Some(later(now, lead));
            any = true;
        }
        any
    }

    /// The bill of all of them.
    pub fn bill(&self, now: Timestamp) -> Decimal {
        self.machines.iter().map(|rented| rented.billed(now)).sum()
    }
}

/// How the cloud behaves. Whoever may write the books may change it at any time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Script {
    /// From the launch until a machine runs.
    pub boot_seconds: u32,
    /// From the call until a machine is gone.
    pub stop_seconds: u32,
    /// How long a container runs whose command does not say so by `sleep`.
    pub run_seconds: u32,
    /// For how long a new machine is missing from every answer.
    pub hidden_seconds: u32,
    /// Sold out: models, instance types, or `type@region`.
    pub sold_out: Vec<String>,
    /// Listed as there to be had, and refused when somebody wants it: the same words.
    pub refused: Vec<String>,
    /// Every price is this many times that of the list.
    pub price_factor: Decimal,
    /// Spot prices are this many times those of the list.
    pub spot_factor: Decimal,
    /// What is billed is `billedFactor` times what is listed: models, instance types, or `type@region`.
    pub misbilled: Vec<String>,
    pub billed_factor: Decimal,
    /// Spot machines that run are taken back: models, instance types, `type@region`, or names of machines.
    pub interrupt: Vec<String>,
    /// How long before it takes one back the cloud says so.
    pub notice_seconds: u32,
    /// The account may have this many machines.
    pub machine_limit: Option<usize>,
    /// No call is let in.
    pub credentials_refused: bool,
    /// A call that ends a machine is answered well and does nothing.
    pub forgets_terminate: bool,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            boot_seconds: 5,
            stop_seconds: 2,
            run_seconds: 60,
            hidden_seconds: 0,
            sold_out: Vec::new(),
            refused: Vec::new(),
            price_factor: Decimal::ONE,
            spot_factor: Decimal::ONE,
            misbilled: Vec::new(),
            billed_factor: Decimal::ONE,
            interrupt: Vec::new(),
            notice_seconds: 120,
            machine_limit: None,
            credentials_refused: false,
            forgets_terminate: false,
        }
    }
}

impl Script {
    pub(super) fn is_sold_out(&self, offer: &Offer) -> bool {
        names(&self.sold_out, offer)
    }

    pub(super) fn is_refused(&self, offer: &Offer) -> bool {
        names(&self.refused, offer)
    }

    /// What a machine of this offer is billed at, whatever was listed.
    pub(super) fn billed(&self, offer: &Offer, price: Decimal) -> Decimal {
        if names(&self.misbilled, offer) {
            (price * self.billed_factor).round_dp(2)
        } else {
            price
        }
    }

    pub(super) fn shows(&self, rented: &Rented, now: Timestamp) -> bool {
        now >= later(rented.launched, self.hidden_seconds)
    }
}

/// Whether one of `list` is the offer's model, its type, or its type at its region.
fn names(list: &[String], offer: &Offer) -> bool {
    let here = format!("{}@{}", offer.instance_type, offer.region);
    let known = [&offer.gpu, &offer.instance_type, &here];
    list.iter().any(|name| known.contains(&name))
}
