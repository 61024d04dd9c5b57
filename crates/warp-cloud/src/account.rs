//! One account at one cloud: who asks, how its machines are set up, and the provider that is opened with it.
//!
//! Secrets are held here and shown to the vendor only.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::sync::Arc;

use http::Uri;
use http::header::AUTHORIZATION;

use crate::Now;
use crate::failure::{Class, Failure};
use crate::http::{Ask, Client, Transport};
use crate::join;
use crate::offer::in_region;
use crate::provider::{Kind, Launch, Provider};

/// The key of the Secret that holds what a machine runs when it starts.
const USER_DATA: &str = "userData";
/// The key of the Secret that replaces the vendor's address.
const ENDPOINT: &str = "endpoint";
/// Letters below which a value is too short to be looked for in a vendor's words.
const TOO_SHORT: usize = 6;

/// A value nobody is told.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Self(value.into())
    }

    /// For the vendor's eyes only.
    pub(crate) fn shown(&self) -> &str {
        &self.0
    }

    /// `words` without this value.
    pub fn out_of(&self, words: &str) -> String {
        let mut words = words.to_owned();
        for line in self.0.lines().map(str::trim) {
            if line.len() >= TOO_SHORT && words.contains(line) {
                words = words.replace(line, "(secret)");
            }
        }
        words
    }
}

/// How the machines of an account are set up. Which cloud reads what is said in `docs/guides/rent.md`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The image machines start from, in the cloud's words.
    pub image: Option<String>,
    /// The name of an SSH key the cloud knows.
    pub ssh_key: Option<String>,
    /// The network or subnet, in the cloud's words.
    pub network: Option<String>,
    /// The security group.
    pub security_group: Option<String>,
    /// The disk in GiB.
    pub disk_gib: Option<u32>,
    /// The project at GCP.
    pub project: Option<String>,
    /// The subscription at Azure.
    pub subscription: Option<String>,
    /// The resource group at Azure.
    pub resource_group: Option<String>,
}

/// Who asks which cloud.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub kind: Kind,
    /// Regions or areas; empty means all, or the cloud's usual one where each has to be asked on its own.
    pub regions: Vec<String>,
    /// The Secret, by its keys.
    pub secrets: BTreeMap<String, Secret>,
    pub settings: Settings,
}

impl Account {
    /// The value of a key the cloud cannot do without.
    pub(crate) fn secret(&self, key: &str) -> Result<&str, Failure> {
        let found = self.secrets.get(key).map(|secret| secret.shown().trim());
        found.filter(|value| !value.is_empty()).ok_or_else(|| {
            let words = format!("the Secret of this account has no value under the key {key}");
            Failure::new(Class::BadCredentials, words)
        })
    }

    /// A request with the account's API key.
    pub(crate) fn bearer(&self, ask: Ask) -> Result<Ask, Failure> {
        let key = self.secret("apiKey")?;
        Ok(ask.header(AUTHORIZATION, format!("Bearer {key}")))
    }

    /// A setting the cloud cannot do without.
    pub(crate) fn setting<'a>(
        value: Option<&'a String>,
        field: &str,
        why: &str,
    ) -> Result<&'a str, Failure> {
        let found = value.map(String::as_str).filter(|value| !value.is_empty());
        found.ok_or_else(|| {
            let words = format!("spec.settings.{field} is missing: {why}");
            Failure::new(Class::Refused, words)
        })
    }

    /// The image of a machine: its own, else the account's.
    pub(crate) fn image<'a>(&'a self, launch: &'a Launch) -> Option<&'a String> {
        launch.image.as_ref().or(self.settings.image.as_ref())
    }

    /// What a machine runs when it starts, with its name in it: what makes it join, what the account wants, what the
    /// request wants.
    pub(crate) fn user_data(&self, launch: &Launch) -> Option<String> {
        let join = launch.join.as_ref().map(|join| join.shown().to_owned());
        let account = self.secrets.get(USER_DATA).map(Secret::shown);
        let own = account.into_iter().chain(launch.user_data.as_deref());
        let own = own.map(|text| text.replace("{{name}}", &launch.name));
        let parts: Vec<String> = join.into_iter().chain(own).collect();
        if parts.is_empty() {
            return None;
        }
        Some(match self.kind {
            // It takes a script and nothing else.
            Kind::Paperspace => parts.join("\n"),
            _ => join::together(&parts),
        })
    }

    /// Refuses to buy what could never join: neither an image of one's own nor something to run at the start.
    pub(crate) fn joins(&self, launch: &Launch) -> Result<(), Failure> {
        if self.image(launch).is_some() || self.user_data(launch).is_some() {
            return Ok(());
        }
        let words = "a machine could never join: say how in spec.bootstrap, put cloud-init under the key userData of \
                     the Secret, or name an image that joins by itself in spec.settings.image";
        Err(Failure::new(Class::Refused, words))
    }

    /// Where the vendor is asked instead of its own address. Keys are sent there: it is encrypted or this machine.
    fn endpoint(&self) -> Result<Option<Uri>, Failure> {
        let Some(text) = self
            .secrets
            .get(ENDPOINT)
            .map(|secret| secret.shown().trim())
        else {
            return Ok(None);
        };
        let refused = || {
            let words = "the key endpoint of the Secret is no https address, nor http on 127.0.0.1";
            Failure::new(Class::Refused, words)
        };
        let uri: Uri = text.parse().map_err(|_| refused())?;
        let safe = match uri.scheme_str() {
            Some("https") => uri.authority().is_some(),
            Some("http") => uri.host() == Some("127.0.0.1"),
            _ => false,
        };
        if safe { Ok(Some(uri)) } else { Err(refused()) }
    }

    /// The regions of `known` this account wants; a name of the cloud's that is not known is taken at its word.
    pub(crate) fn regions_of(&self, known: &[&str], usual: &str) -> Vec<String> {
        if self.regions.is_empty() {
            return vec![usual.to_owned()];
        }
        let mut regions = Vec::new();
        for wanted in &self.regions {
            let found = known.iter().filter(|region| in_region(region, wanted));
            let mut found: Vec<String> = found.map(|region| (*region).to_owned()).collect();
            if found.is_empty() {
                found.push(wanted.clone());
            }
            regions.append(&mut found);
        }
        regions.sort_unstable();
        regions.dedup();
        regions
    }

    pub(crate) fn client(
        &self,
        transport: Arc<dyn Transport>,
        gaps: &[std::time::Duration],
        deadline: std::time::Duration,
    ) -> Result<Client, Failure> {
        let told = self.secrets.iter().filter(|(key, _)| *key != ENDPOINT);
        let secrets = told.map(|(_, secret)| secret.clone()).collect();
        let endpoint = self.endpoint()?;
        Ok(Client::new(transport, endpoint, secrets, gaps, deadline))
    }
}

/// Opens an account. Nothing is asked yet; what is missing is said.
pub fn open(
    account: Account,
    transport: Arc<dyn Transport>,
    now: Now,
) -> Result<Arc<dyn Provider>, Failure> {
    Ok(match account.kind {
        Kind::Fake => {
            let words = "the fake cloud has no account: it is opened with its books";
            return Err(Failure::new(Class::Refused, words));
        }
        Kind::Lambda => Arc::new(crate::lambda::Lambda::open(account, transport)?),
        Kind::Runpod => Arc::new(crate::runpod::Runpod::open(account, transport)?),
        Kind::Vast => Arc::new(crate::vast::Vast::open(account, transport)?),
        Kind::Aws => Arc::new(crate::aws::Aws::open(account, transport, now)?),
        Kind::Gcp => Arc::new(crate::gcp::Gcp::open(account, transport, now)?),
        Kind::Azure => Arc::new(crate::azure::Azure::open(account, transport)?),
        Kind::Paperspace => Arc::new(crate::paperspace::Paperspace::open(account, transport)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(secrets: &[(&str, &str)]) -> Account {
        let secrets = secrets
            .iter()
            .map(|(key, value)| ((*key).to_owned(), Secret::new(*value)));
        Account {
            kind: Kind::Lambda,
            regions: Vec::new(),
            secrets: secrets.collect(),
            settings: Settings::default(),
        }
    }

    #[test]
    fn keys_go_nowhere_unencrypted() {
        for (endpoint, good) in [
            ("https://mirror.example", true),
            ("http://127.0.0.1:8080", true),
            ("http://127.0.0.1.evil.example", false),
            ("http://mirror.example", false),
            ("mirror.example", false),
            ("", false),
        ] {
            let account = account(&[("endpoint", endpoint)]);
            assert_eq!(account.endpoint().is_ok(), good, "{endpoint}");
        }
    }

    fn launch(user_data: Option<&str>, join: Option<&str>) -> Launch {
        let launch = serde_json::json!({
            "name": "m-1", "maxPrice": "1", "owner": "default/a",
            "offer": {"gpu": "L4", "gpus": 1, "region": "r", "instanceType": "t", "price": "1"},
        });
        Launch {
            user_data: user_data.map(str::to_owned),
            join: join.map(Secret::new),
            ..serde_json::from_value(launch).expect("a launch")
        }
    }

    #[test]
    fn what_a_machine_runs_is_said_by_whoever_has_something_to_say() {
        let mut account = account(&[("userData", "#cloud-config\nhostname: {{name}}")]);
        let only = account.user_data(&launch(None, None));
        assert_eq!(only.as_deref(), Some("#cloud-config\nhostname: m-1"));
        let all = account.user_data(&launch(
            Some("#!/bin/sh\necho {{name}}"),
            Some("#cloud-config\njoin"),
        ));
        let all = all.expect("three parts");
        assert!(all.starts_with("Content-Type: multipart/mixed"), "{all}");
        let at = |text: &str| {
            all.find(text)
                .unwrap_or_else(|| panic!("no {text} in {all}"))
        };
        assert!(at("join") < at("hostname: m-1") && at("hostname: m-1") < at("echo m-1"));
        assert_eq!(all.matches("text/cloud-config").count(), 2);
        assert_eq!(all.matches("text/x-shellscript").count(), 1);
        account.secrets.clear();
        assert_eq!(account.user_data(&launch(None, None)), None);
        assert!(account.joins(&launch(None, None)).is_err());
        assert!(account.joins(&launch(None, Some("#cloud-config"))).is_ok());
    }

    #[test]
    fn nothing_secret_is_printed() {
        let account = account(&[("apiKey", "very-secret")]);
        assert!(!format!("{account:?}").contains("very-secret"));
        let words = account.secrets["apiKey"].out_of("the key very-secret is not known");
        assert_eq!(words, "the key (secret) is not known");
    }

    #[test]
    fn areas_become_the_regions_in_them() {
        let mut account = account(&[]);
        let known = ["us-west-1", "us-west-2", "us-east-1"];
        assert_eq!(account.regions_of(&known, "us-east-1"), ["us-east-1"]);
        account.regions = vec!["us-west".to_owned(), "us-new-9".to_owned()];
        let found = account.regions_of(&known, "us-east-1");
        assert_eq!(found, ["us-new-9", "us-west-1", "us-west-2"]);
    }
}
