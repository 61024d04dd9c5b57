//! A cloud that exists only in its books: machines are records with times, so a launch costs a write and a boot costs
//! nothing. Its books are kept by whoever opens it, and outlive the process.
//!
//! It is as awkward as the real ones: a launch has no idempotency key, what was bought may be missing from its lists
//! for a while, and `script` in its books makes it refuse, raise prices or forget to end machines.

mod books;
mod market;
#[cfg(test)]
mod tests;

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};

pub use books::{Books, Rented, Runs, Script, Store, Version};
pub use market::AS_OF;

use crate::Now;
use crate::failure::{Class, Failure};
use crate::offer::Offer;
use crate::provider::{Capabilities, Kind, Launch, Machine, Provider, State};

/// See [`Capabilities`].
pub const CAPABILITIES: Capabilities = Capabilities {
    spot: true,
    credentials: false,
    lag: Duration::from_mins(1),
    call_deadline: Duration::from_secs(10),
    look_every: Duration::from_secs(20),
    virtual_machines: false,
};

/// Others may write the books in between this often before it is said.
const TRIES: usize = 20;
/// How long they get to end their writing.
const GIVE_WAY: Duration = Duration::from_millis(50);

/// One account at the fake cloud.
#[derive(Clone)]
pub struct Fake {
    store: Arc<dyn Store>,
    now: Now,
}

impl Debug for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fake").finish_non_exhaustive()
    }
}

impl Fake {
    pub fn new(store: Arc<dyn Store>, now: Now) -> Self {
        Self { store, now }
    }

    async fn open(&self) -> Result<(Books, Version), Failure> {
        let (books, version) = self.store.read().await?;
        if books.script.credentials_refused {
            let words = "401: the key of this account is not valid";
            return Err(Failure::new(Class::BadCredentials, words));
        }
        Ok((books, version))
    }

    /// The books, after those whom the script wants back were told.
    async fn told(&self) -> Result<Books, Failure> {
        let (books, _) = self.open().await?;
        let mut after = books.clone();
        if !after.interrupt(whole_second((self.now)())) {
            return Ok(books);
        }
        self.change(|books, now| {
            books.interrupt(now);
            Ok(books.clone())
        })
        .await
    }

    /// Changes the books; what `change` says. Somebody who wrote in between is heard first.
    async fn change<T>(
        &self,
        change: impl Fn(&mut Books, Timestamp) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        for _ in 0..TRIES {
            let (mut books, version) = self.open().await?;
            let before = books.clone();
            let said = change(&mut books, whole_second((self.now)()))?;
            if books == before || self.store.write(&books, &version).await? {
                return Ok(said);
            }
            tokio::time::sleep(GIVE_WAY).await;
        }
        let words = "the books of the fake cloud are written by others all the time";
        Err(Failure::new(Class::Transient, words))
    }
}

/// Seconds as a span of time.
fn seconds(count: u32) -> SignedDuration {
    SignedDuration::from_secs(i64::from(count))
}

/// The cloud bills by the second and writes its times so.
fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn later(at: Timestamp, count: u32) -> Timestamp {
    at.checked_add(seconds(count)).unwrap_or(Timestamp::MAX)
}

fn launch(books: &mut Books, wanted: &Launch, now: Timestamp) -> Result<Machine, Failure> {
    let offers = market::offers(&books.script);
    let offer = offers.iter().find(|offer| offer.is_same(&wanted.offer));
    let Some(offer) = offer else {
        let words = format!(
            "there is no instance type {} in {}",
            wanted.offer.instance_type, wanted.offer.region
        );
        return Err(Failure::new(Class::Refused, words));
    };
    if books.script.is_sold_out(offer) || books.script.is_refused(offer) {
        let words = format!(
            "insufficient capacity: {} in {}",
            offer.instance_type, offer.region
        );
        return Err(Failure::new(Class::NoCapacity, words));
    }
    if let Some(limit) = books.script.machine_limit
        && books.running(now) >= limit
    {
        let words = format!("quota exceeded: this account may have {limit} machines");
        return Err(Failure::new(Class::Quota, words));
    }
    let Some(price) = offer.price_of(wanted.spot) else {
        let words = format!("{} is not sold as spot", offer.instance_type);
        return Err(Failure::new(Class::Refused, words));
    };
    if wanted.spot && wanted.max_price < price {
        let words = format!(
            "the bid of {} is below the price of {price}",
            wanted.max_price
        );
        return Err(Failure::new(Class::NoCapacity, words));
    }
    let boots = later(now, books.script.boot_seconds);
    let container = wanted.container.as_ref();
    let rented = Rented {
        id: format!("m-{:05}", books.machines.len() + 1),
        name: wanted.name.clone(),
        owner: wanted.owner.clone(),
        gpu: offer.gpu.clone(),
        gpus: offer.gpus,
        region: offer.region.clone(),
        instance_type: offer.instance_type.clone(),
        price: books.script.billed(offer, price),
        spot: wanted.spot,
        launched: now,
        boots,
        ended: None,
        preempted: false,
        notice: None,
        container: container.map(|container| Runs::of(container, boots, &books.script)),
    };
    let machine = rented.machine(now);
    books.machines.push(rented);
    Ok(machine)
}

impl Provider for Fake {
    fn kind(&self) -> Kind {
        Kind::Fake
    }

    fn offers(&self) -> BoxFuture<'_, Result<Vec<Offer>, Failure>> {
        Box::pin(async move {
            let (books, _) = self.open().await?;
            Ok(market::offers(&books.script))
        })
    }

    fn launch<'a>(&'a self, wanted: &'a Launch) -> BoxFuture<'a, Result<Machine, Failure>> {
        Box::pin(self.change(move |books, now| launch(books, wanted, now)))
    }

    fn machines<'a>(
        &'a self,
        prefix: &'a str,
        _: &'a [String],
    ) -> BoxFuture<'a, Result<Vec<Machine>, Failure>> {
        Box::pin(async move {
            let books = self.told().await?;
            let now = (self.now)();
            let all = books.machines.iter();
            let all = all.filter(|rented| rented.name.starts_with(prefix));
            let seen = all.filter(|rented| books.script.shows(rented, now));
            let machines = seen.map(|rented| rented.machine(now));
            Ok(machines
                .filter(|machine| machine.state != State::Gone)
                .collect())
        })
    }

    fn status<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Machine>, Failure>> {
        Box::pin(async move {
            let books = self.told().await?;
            let now = (self.now)();
            let found = books.machines.iter().find(|rented| rented.id == id);
            let found = found.filter(|rented| books.script.shows(rented, now));
            Ok(found.map(|rented| rented.machine(now)))
        })
    }

    fn terminate<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(self.change(move |books, now| {
            let (stop, forgets) = (books.script.stop_seconds, books.script.forgets_terminate);
            let found = books.machines.iter_mut().find(|rented| rented.id == id);
            if let Some(rented) = found
                && (rented.ended.is_none() || rented.notice.is_some())
                && !forgets
            {
                let gone = later(now, stop);
                rented.ended = Some(rented.ended.map_or(gone, |taken| taken.min(gone)));
                rented.notice = None;
            }
            Ok(())
        }))
    }
}
