//! Clouds that rent out GPUs: one trait, one module per provider, and `fake`, a cloud that exists only in its books.
//!
//! Owns how a provider is asked and how its answers are read: offers, machines and failures in one form, money as
//! exact decimals. It decides nothing: what is bought, and when it is given back, is a plan of the operator. It knows
//! no Kubernetes type.

mod account;
mod aws;
mod azure;
mod failure;
pub mod fake;
mod gcp;
mod http;
pub mod join;
mod lambda;
mod name;
mod offer;
mod paperspace;
mod provider;
mod runpod;
mod token;
mod vast;

pub use account::{Account, Secret, Settings, open};
pub use failure::{Class, Failure};
pub use http::{Network, Transport};
pub use name::{Mark, machine_name};
pub use offer::{Availability, Offer, area, in_region, model};
pub use provider::{Capabilities, Container, Exit, Kind, Launch, Machine, Provider, State};
pub use rust_decimal::Decimal;

/// The time of day, as whoever opens a provider tells it.
pub type Now = std::sync::Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>;
