//! Fetches a model once, verified, and keeps it in the layout of the hub's own cache, so that `huggingface_hub` and
//! engines read it offline.
//!
//! Owns sources, ranges, resumption, verification and publication. It prints nothing, reads no environment and knows
//! no cluster: the binary does that. A model is published whole or not at all, and what is published was hashed as it
//! lies on the disk.

mod azure;
pub mod bundle;
mod checksum;
mod client;
mod digest;
mod error;
mod fetch;
mod folder;
mod google;
mod hub;
mod intact;
mod layout;
mod listing;
mod oci;
mod pace;
mod part;
mod pattern;
mod peer;
mod plain;
mod progress;
mod proof;
mod publish;
mod registry;
mod s3;
mod sign;
mod source;
mod transfer;
mod verified;

pub use azure::{Access as AzureAccess, Azure};
pub use checksum::Checksum;
pub use client::{Client, Limits};
pub use digest::Digest;
pub use error::FetchError;
pub use fetch::{Options, Report, fetch};
pub use google::Google;
pub use google::account::ServiceAccount;
pub use hub::look;
pub use intact::check;
pub use listing::{Listing, Place, RemoteFile, Selection};
pub use progress::{Phase, Progress, State};
pub use registry::{Credentials as RegistryCredentials, Registry};
pub use s3::Store;
pub use sign::Credentials;
pub use source::{Artifact, Bucket, Container, Hub, ListedFile, Source};
