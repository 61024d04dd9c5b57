//! The calls plans may ask for: what an account has (`Inventory`), and one machine by its name (`Machines`). Each has
//! its deadline in the runtime; nothing here decides whether to call.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use warp_cloud::{Class, Failure, Kind, Launch, Machine, Offer, Provider};
use warp_runtime::outside::{External, Limits, OutsideError};
use warp_runtime::plan::as_json;

use super::clouds::Clouds;

/// What an account was found to have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Listed {
    pub(crate) offers: Vec<Offer>,
    pub(crate) machines: Vec<Machine>,
}

/// What came of asking for a machine: the machine, or a refusal after which there is certainly none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every answer is a machine, and few are held at a time"
)]
pub(crate) enum Answer {
    Machine(Machine),
    Refused { class: Class, words: String },
}

/// A failure as the runtime keeps it: the class first, then the provider's words.
fn outside(failure: &Failure) -> OutsideError {
    OutsideError {
        message: format!("{}: {}", failure.class.as_str(), failure.words),
        is_refusal: failure.class.is_definite(),
    }
}

/// What an account has. A name is a provider's, or `provider/machine id`.
#[derive(Debug)]
pub(crate) struct Inventory(pub(crate) Arc<Clouds>);

impl Inventory {
    async fn list(&self, name: &str) -> Result<Option<Value>, Failure> {
        if let Some((provider, id)) = name.split_once('/') {
            let machine = self.0.open(provider).await?.status(id).await?;
            return Ok(machine.map(|machine| as_json(&machine)));
        }
        let cloud = self.0.open(name).await?;
        let Some(mark) = self.0.mark() else {
            let words = "the cluster's identity is not known yet";
            return Err(Failure::new(Class::Transient, words));
        };
        // Machines before offers: what is bought in between is seen next time, never half.
        let also = self.0.places(name);
        let machines = cloud.machines(mark.as_str(), &also).await?;
        let offers = cloud.offers().await?;
        Ok(Some(as_json(&Listed { offers, machines })))
    }

    async fn end(&self, name: &str) -> Result<(), Failure> {
        let Some((provider, id)) = name.split_once('/') else {
            return Err(Failure::new(Class::Refused, "an account cannot be ended"));
        };
        self.0.open(provider).await?.terminate(id).await
    }
}

impl External for Inventory {
    fn limits(&self) -> Limits {
        Limits {
            call_deadline: Duration::from_mins(1),
            settle: Duration::ZERO,
            max_age: Duration::from_mins(2),
            retry: Duration::from_secs(15),
        }
    }

    fn look_up<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Value>, OutsideError>> {
        Box::pin(async move { self.list(name).await.map_err(|failure| outside(&failure)) })
    }

    fn make<'a>(&'a self, _: &'a str, _: &'a Value) -> BoxFuture<'a, Result<Value, OutsideError>> {
        let failure = Failure::new(Class::Refused, "an account is not made");
        Box::pin(async move { Err(outside(&failure)) })
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), OutsideError>> {
        Box::pin(async move { self.end(name).await.map_err(|failure| outside(&failure)) })
    }
}

/// Machines of one kind of provider. A name is `provider/machine name`.
#[derive(Debug)]
pub(crate) struct Machines {
    pub(crate) clouds: Arc<Clouds>,
    pub(crate) kind: Kind,
}

impl Machines {
    async fn split<'a>(
        &self,
        name: &'a str,
    ) -> Result<(Arc<dyn Provider>, &'a str, &'a str), Failure> {
        let (provider, machine) = name.split_once('/').unwrap_or((name, ""));
        Ok((self.clouds.open(provider).await?, provider, machine))
    }

    /// One machine: by the cloud's id where it is recorded, else by its name among all.
    async fn find(&self, name: &str) -> Result<Option<Machine>, Failure> {
        let (cloud, provider, machine) = self.split(name).await?;
        let attempt = self.clouds.attempt(provider, machine);
        let id = attempt.as_ref().and_then(|known| known.instance_id.clone());
        if let Some(id) = id {
            return cloud.status(&id).await;
        }
        let also: Vec<String> = attempt.into_iter().map(|attempt| attempt.region).collect();
        let all = cloud.machines(machine, &also).await?;
        Ok(all.into_iter().find(|found| found.name == machine))
    }

    async fn buy(&self, name: &str, request: &Value) -> Result<Machine, Failure> {
        let (cloud, provider, _) = self.split(name).await?;
        let launch = Launch::deserialize(request).map_err(|error| {
            Failure::new(
                Class::Refused,
                format!("this launch cannot be read: {error}"),
            )
        })?;
        // The price may have moved since the offer was chosen: it is asked for right before it is accepted.
        let offers = cloud.offers().await?;
        let Some(offer) = offers.iter().find(|offer| offer.is_same(&launch.offer)) else {
            let words = format!(
                "{} in {} is no longer offered",
                launch.offer.instance_type, launch.offer.region
            );
            return Err(Failure::new(Class::NoCapacity, words));
        };
        match offer.price_of(launch.spot) {
            Some(price) if price <= launch.max_price => {
                let launch = self.clouds.prepared(provider, launch).await?;
                let bought = cloud.launch(&launch).await;
                // A cloud that repeats what it was given does not tell it to others.
                bought.map_err(|Failure { class, mut words }| {
                    if let Some(join) = &launch.join {
                        words = join.out_of(&words);
                    }
                    if let Some(container) = &launch.container {
                        words = container.out_of(&words);
                    }
                    Failure::new(class, words)
                })
            }
            Some(price) => {
                let words = format!(
                    "it costs {price} an hour now; at most {} was agreed",
                    launch.max_price
                );
                Err(Failure::new(Class::PriceChanged, words))
            }
            None => Err(Failure::new(
                Class::NoCapacity,
                "it is no longer sold as spot",
            )),
        }
    }

    async fn end(&self, name: &str) -> Result<(), Failure> {
        let (cloud, provider, machine) = self.split(name).await?;
        let attempt = self.clouds.attempt(provider, machine);
        let id = match attempt.and_then(|attempt| attempt.instance_id) {
            Some(id) => Some(id),
            None => self.find(name).await?.map(|machine| machine.id),
        };
        match id {
            Some(id) => cloud.terminate(&id).await,
            None => Ok(()),
        }
    }
}

impl External for Machines {
    fn limits(&self) -> Limits {
        let can = self.kind.capabilities();
        Limits {
            call_deadline: can.call_deadline,
            settle: can.settle(),
            max_age: can.look_every,
            retry: Duration::from_secs(10),
        }
    }

    fn look_up<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Value>, OutsideError>> {
        Box::pin(async move {
            let found = self.find(name).await.map_err(|failure| outside(&failure))?;
            Ok(found.map(|machine| as_json(&Answer::Machine(machine))))
        })
    }

    fn make<'a>(
        &'a self,
        name: &'a str,
        request: &'a Value,
    ) -> BoxFuture<'a, Result<Value, OutsideError>> {
        Box::pin(async move {
            match self.buy(name, request).await {
                Ok(machine) => Ok(as_json(&Answer::Machine(machine))),
                // Nothing was bought, for certain: that is a result, not a call to repeat.
                Err(Failure { class, words }) if class.is_definite() => {
                    Ok(as_json(&Answer::Refused { class, words }))
                }
                Err(failure) => Err(outside(&failure)),
            }
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), OutsideError>> {
        Box::pin(async move { self.end(name).await.map_err(|failure| outside(&failure)) })
    }
}
