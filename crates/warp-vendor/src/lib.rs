//! For tests only: clouds that judge. Each answers as its vendor's description says, refuses what the description does
//! not allow (path, method, credentials, missing and unknown fields), and can be made sold out, slow, forgetful or
//! wrong.
//!
//! The rules are written by hand from the vendors' descriptions and depend on nothing of ours, so that a mistake of the
//! client is not repeated here. Shipped code must not depend on this crate.

// A blank machine is filled in field by field.
#![allow(clippy::assigning_clones)]

mod aws;
mod azure;
mod brand;
mod form;
mod gcp;
mod lambda;
mod paperspace;
mod runpod;
mod serve;
mod vast;
mod wire;
mod world;

use std::fmt::{self, Debug};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use parking_lot::Mutex;

pub use brand::Brand;
pub use serve::Server;
pub use wire::Recorded;
pub use world::{KEY, Rented, Script, Trouble};

use wire::{Answer, Asked};
use world::World;

/// One cloud, with everything anybody rented from it.
#[derive(Clone)]
pub struct Vendor {
    brand: Brand,
    world: Arc<Mutex<World>>,
}

impl Debug for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Vendor").field(&self.brand).finish()
    }
}

/// What became of a request.
#[derive(Debug)]
pub enum Outcome {
    Answered(Response<Bytes>),
    /// The connection broke; what was asked may have been done.
    HungUp,
    /// The same as the inner one, after a while.
    Later(Duration, Box<Self>),
}

impl Vendor {
    pub fn new(brand: Brand) -> Self {
        Self {
            brand,
            world: Arc::default(),
        }
    }

    pub fn brand(&self) -> Brand {
        self.brand
    }

    /// Changes what the cloud does from now on.
    pub fn script(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.world.lock().script);
    }

    /// The next request whose method and path contain `on` meets `trouble` once.
    pub fn once(&self, on: &'static str, trouble: Trouble) {
        self.world.lock().script.once.push_back((on, trouble));
    }

    /// Somebody else's machine, which is none of ours.
    pub fn foreign(&self, name: &str) {
        self.world.lock().foreign(name);
    }

    /// The cloud takes a machine back.
    pub fn preempt(&self, id: &str) {
        let mut world = self.world.lock();
        let found = world.machines.iter_mut().find(|rented| rented.id == id);
        if let Some(rented) = found {
            rented.preempted = true;
        }
    }

    /// A machine vanishes from all lists.
    pub fn lose(&self, id: &str) {
        self.world.lock().machines.retain(|rented| rented.id != id);
    }

    /// Every machine that was ever rented, in order.
    pub fn machines(&self) -> Vec<Rented> {
        self.world.lock().machines.clone()
    }

    /// Every request and its answer, in order.
    pub fn recorded(&self) -> Vec<Recorded> {
        self.world.lock().recorded.clone()
    }

    /// What the vendor's description does not allow and was asked all the same.
    pub fn complaints(&self) -> Vec<String> {
        self.world.lock().complaints.clone()
    }

    /// Requests that came faster than the vendor allows.
    pub fn too_fast(&self) -> usize {
        self.world.lock().too_fast
    }

    /// Answers one request.
    pub fn answer(&self, request: &Request<Bytes>) -> Outcome {
        let asked = Asked::of(request);
        let mut world = self.world.lock();
        let trouble = world.script.trouble(&asked);
        let outcome = match trouble {
            None => Outcome::Answered(self.judged(&mut world, &asked).into_response()),
            Some(Trouble::Answer {
                status,
                headers,
                body,
            }) => {
                let answer = Answer::raw(status, headers, body.into_bytes());
                Outcome::Answered(answer.into_response())
            }
            Some(Trouble::HangUp) => Outcome::HungUp,
            Some(Trouble::DoneThenHangUp) => {
                let _ = self.judged(&mut world, &asked);
                Outcome::HungUp
            }
            Some(Trouble::DoneThenGarbage) => {
                let _ = self.judged(&mut world, &asked);
                let answer = Answer::raw(200, Vec::new(), b"<html>hello</html>".to_vec());
                Outcome::Answered(answer.into_response())
            }
            Some(Trouble::Slow(time)) => {
                let answer = self.judged(&mut world, &asked).into_response();
                Outcome::Later(time, Box::new(Outcome::Answered(answer)))
            }
        };
        drop(world);
        outcome
    }

    fn judged(&self, world: &mut World, asked: &Asked) -> Answer {
        let answer = self.brand.answer(world, asked);
        world.recorded.push(Recorded::of(asked, &answer));
        answer
    }
}
