//! How rented machines become nodes: the token each joins with, what it is told at its first start, and the certificates
//! asked for with such tokens.
//!
//! Owns the calls to the API server for that. Which certificate is approved is decided in `joining/certificate.rs`, pure;
//! when a token goes is a plan of the GPURequest controller. No token is ever told in a status, a log or an Event.

pub(crate) mod certificate;
mod subject;

use std::collections::BTreeMap;
use std::fmt::{self, Debug};
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;
use warp_api::CloudProvider;
use warp_api::cloudprovider::{BootstrapType, CloudProviderBootstrap};
use warp_api::gpurequest::RequestAttempt;
use warp_api::workload::run_seconds;
use warp_cloud::join::{Join, JoinToken, Way, token_id};
use warp_cloud::{Class, Decimal, Failure, Launch};
use warp_runtime::outside::{External, Limits, OutsideError};
use warp_runtime::plan::as_json;

use crate::audit;

/// What plans call the tokens and the certificates of machines by.
pub(crate) const TOKENS: &str = "join-tokens";
pub(crate) const CERTIFICATES: &str = "join-certificates";
/// Where Kubernetes looks for tokens.
const SYSTEM: &str = "kube-system";
/// The Secret of this operator's own namespace that tokens are made from.
const KEY: &str = "warp-join-key";
/// How long a token is good for, whatever becomes of the machine: somewhat longer than one may take to join.
const TOKEN_LASTS: SignedDuration = SignedDuration::from_mins(40);
/// Who a token makes its bearer, besides a bootstrapper. kubeadm's own group would have certificates approved without us.
const KUBEADM_GROUP: &str = "system:bootstrappers:warp";
const K3S_GROUP: &str = "system:bootstrappers:k3s:default-node-token";
/// How long a machine stays on without its cluster where nothing is said.
const ALONE_SECONDS: u32 = 30 * 60;
/// How much later than `maxLifetime` the machine powers itself off: it may have been bought a while after it was decided.
const SWITCH_SLACK: SignedDuration = SignedDuration::from_mins(20);
/// The oldest minor version whose kubeadm reads what machines are given.
const OLDEST_KUBEADM: u32 = 31;

/// How long a machine of an account stays on without its cluster.
pub(crate) fn alone_seconds(bootstrap: &CloudProviderBootstrap) -> Option<u32> {
    match &bootstrap.power_off_after {
        None => Some(ALONE_SECONDS),
        Some(text) => run_seconds(text).and_then(|seconds| u32::try_from(seconds).ok()),
    }
}

/// The way a type of bootstrap goes; none where the machine joins by itself.
pub(crate) fn way(kind: BootstrapType) -> Option<Way> {
    Way::of(kind.as_str())
}

/// The name of a machine's token as the API knows it.
fn secret_name(id: &str) -> String {
    format!("bootstrap-token-{id}")
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Joining {
    pub(crate) client: Client,
    pub(crate) home: String,
}

impl Debug for Joining {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joining").finish_non_exhaustive()
    }
}

impl Joining {
    /// What the machine of an attempt is given to join with; none where it joins by itself. The token is there when
    /// this says so.
    pub(crate) async fn user_data(
        &self,
        provider: &CloudProvider,
        launch: &Launch,
        attempt: &RequestAttempt,
        now: Timestamp,
    ) -> Result<Option<warp_cloud::Secret>, Failure> {
        let Some(way) = attempt.bootstrap.and_then(way) else {
            return Ok(None);
        };
        let refused = |words: String| Failure::new(Class::Refused, words);
        let name = provider.name_any();
        let said = provider.spec.bootstrap.clone().unwrap_or_default();
        let server = said
            .server
            .clone()
            .ok_or_else(|| refused(format!("CloudProvider {name} has no spec.bootstrap.server")))?;
        let alone_seconds = alone_seconds(&said)
            .ok_or_else(|| refused("spec.bootstrap.powerOffAfter is no time".to_owned()))?;
        let version = self.version(way, &said).await?;
        let authority = self.authority().await?;
        let token = JoinToken::of(&self.key().await?, &attempt.machine);
        let (namespace, request) = launch.owner.split_once('/').unwrap_or_default();
        let price: Decimal = attempt.price.parse().unwrap_or_default();
        let each = price / Decimal::from(attempt.gpus.max(1));
        let join = Join {
            way,
            cloud: warp_cloud::Kind::of(provider.spec.kind.as_str())
                .ok_or_else(|| refused("an unknown cloud".to_owned()))?,
            name: attempt.machine.clone(),
            gpu: attempt.gpu.clone(),
            gpus: attempt.gpus,
            region: attempt.region.clone(),
            instance_type: attempt.instance_type.clone(),
            gpu_hour_price: each.round_dp(4).normalize().to_string(),
            spot: attempt.spot,
            request: (namespace.to_owned(), request.to_owned()),
            server,
            authority,
            token: token.clone(),
            version,
            setup: said.script.clone(),
            power_off_at: power_off_at(launch, attempt),
            alone_seconds,
        };
        self.write(way, &token, &attempt.machine, now).await?;
        Ok(Some(join.user_data()))
    }

    /// The version a machine installs where its image has none.
    async fn version(&self, way: Way, said: &CloudProviderBootstrap) -> Result<String, Failure> {
        let version = if let Some(version) = &said.version {
            version.clone()
        } else {
            let asked = self.client.apiserver_version().await;
            asked
                .map_err(|error| failure("the API server's version", &error))?
                .git_version
        };
        if way == Way::K3s {
            return Ok(version);
        }
        let minor = version.strip_prefix("v1.").and_then(|rest| {
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse::<u32>().ok()
        });
        if minor.is_none_or(|minor| minor < OLDEST_KUBEADM) {
            let words = format!(
                "kubeadm joins from v1.{OLDEST_KUBEADM} on; the version is {version}: set spec.bootstrap.version"
            );
            return Err(Failure::new(Class::Refused, words));
        }
        Ok(version.split('+').next().unwrap_or_default().to_owned())
    }

    /// Who vouches for the API server: what every pod of this cluster is told.
    async fn authority(&self) -> Result<String, Failure> {
        const NAME: &str = "kube-root-ca.crt";
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.home);
        let found = maps
            .get_opt(NAME)
            .await
            .map_err(|error| failure(NAME, &error))?;
        let text = found.and_then(|map| map.data?.remove("ca.crt"));
        text.filter(|text| text.contains("BEGIN CERTIFICATE")).ok_or_else(|| {
            let words = format!("there is no certificate in ConfigMap {}/{NAME}: machines could not tell this cluster from another", self.home);
            Failure::new(Class::Refused, words)
        })
    }

    /// The key all tokens are made from, made when it is first needed.
    async fn key(&self) -> Result<Vec<u8>, Failure> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.home);
        for _ in 0..2 {
            let found = secrets
                .get_opt(KEY)
                .await
                .map_err(|error| failure(KEY, &error))?;
            if let Some(key) = found.and_then(|found| found.data?.remove("key")) {
                return Ok(key.0);
            }
            let key: [u8; 32] = ring::rand::generate(&ring::rand::SystemRandom::new())
                .map_err(|_| Failure::new(Class::Transient, "no randomness"))?
                .expose();
            let object = Secret {
                metadata: ObjectMeta {
                    name: Some(KEY.to_owned()),
                    ..ObjectMeta::default()
                },
                data: Some(BTreeMap::from([(
                    "key".to_owned(),
                    ByteString(key.to_vec()),
                )])),
                ..Secret::default()
            };
            match secrets.create(&PostParams::default(), &object).await {
                Ok(_) => record("create", KEY, "tokens of rented machines are made from it"),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(failure(KEY, &error)),
            }
        }
        Err(Failure::new(
            Class::Transient,
            "the key of tokens comes and goes",
        ))
    }

    /// Makes a token known to the API server. One of that name is this one: it follows from the machine's name.
    async fn write(
        &self,
        way: Way,
        token: &JoinToken,
        machine: &str,
        now: Timestamp,
    ) -> Result<(), Failure> {
        let name = secret_name(token.id());
        let ends = now.checked_add(TOKEN_LASTS).unwrap_or(Timestamp::MAX);
        let group = match way {
            Way::Kubeadm => KUBEADM_GROUP,
            Way::K3s => K3S_GROUP,
        };
        let data = [
            ("description", format!("joins the rented machine {machine}")),
            ("token-id", token.id().to_owned()),
            ("token-secret", token.secret().to_owned()),
            (
                "expiration",
                ends.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            ),
            ("usage-bootstrap-authentication", "true".to_owned()),
            ("auth-extra-groups", group.to_owned()),
        ];
        let object = Secret {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                ..ObjectMeta::default()
            },
            type_: Some("bootstrap.kubernetes.io/token".to_owned()),
            string_data: Some(data.map(|(key, value)| (key.to_owned(), value)).into()),
            ..Secret::default()
        };
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), SYSTEM);
        match secrets.create(&PostParams::default(), &object).await {
            Ok(_) => record("create", &name, "a rented machine joins with it"),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(failure("a token of kube-system", &error)),
        }
        Ok(())
    }

    /// Deletes the token of a machine.
    async fn revoke(&self, machine: &str) -> Result<(), kube::Error> {
        let name = secret_name(&token_id(machine));
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), SYSTEM);
        match secrets.delete(&name, &DeleteParams::default()).await {
            Ok(_) => record("delete", &name, "the machine it was for needs it no more"),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The requests for certificates that are about a machine: made with its token, or in its name.
    async fn certificates(
        &self,
        machine: &str,
    ) -> Result<Vec<CertificateSigningRequest>, kube::Error> {
        let all: Api<CertificateSigningRequest> = Api::all(self.client.clone());
        let signer = format!("spec.signerName={}", certificate::SIGNER);
        let found = all.list(&ListParams::default().fields(&signer)).await?;
        let about = |request: &CertificateSigningRequest| certificate::is_about(request, machine);
        Ok(found.items.into_iter().filter(about).collect())
    }
}

/// When a machine powers itself off whatever happens.
fn power_off_at(launch: &Launch, attempt: &RequestAttempt) -> Option<Timestamp> {
    let seconds = i64::try_from(launch.lifetime_seconds?).ok()?;
    let lasts = SignedDuration::from_secs(seconds) + SWITCH_SLACK;
    attempt.intended_at.0.checked_add(lasts).ok()
}

/// Why the API server did not do it. Its words carry no secret.
fn failure(what: &str, error: &kube::Error) -> Failure {
    match error {
        kube::Error::Api(status) if status.code == 403 => {
            let words = format!(
                "machines cannot be joined without more rights (deploy/joining): {what}: {error}"
            );
            Failure::new(Class::Refused, words)
        }
        _ => Failure::new(Class::Transient, format!("{what}: {error}")),
    }
}

/// Like every write of this process, it is in the audit trail.
fn record(verb: &'static str, name: &str, why: &str) {
    tracing::info!(
        target: audit::TARGET,
        object = %format_args!("Secret/{name}"),
        generation = 0,
        cause = "",
        manager = "warp-joining",
        verb,
        what = %format_args!("secret {name}"),
        why,
        correlation = "joining",
    );
}

fn outside(error: &kube::Error) -> OutsideError {
    OutsideError {
        message: error.to_string(),
        is_refusal: matches!(error, kube::Error::Api(status) if status.code == 403),
    }
}

fn refused<T>(words: &str) -> BoxFuture<'static, Result<T, OutsideError>>
where
    T: Send + 'static,
{
    let error = OutsideError {
        message: words.to_owned(),
        is_refusal: true,
    };
    Box::pin(async move { Err(error) })
}

/// The tokens of machines, by the machine's name. They are made with the machine and only ended here.
#[derive(Debug)]
pub(crate) struct Tokens(pub(crate) Joining);

impl External for Tokens {
    fn limits(&self) -> Limits {
        Limits {
            call_deadline: Duration::from_secs(30),
            settle: Duration::ZERO,
            max_age: Duration::from_mins(1),
            retry: Duration::from_secs(10),
        }
    }

    /// Nobody may read tokens: that one is gone is known from having ended it.
    fn look_up<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Option<Value>, OutsideError>> {
        Box::pin(async move { Ok(None) })
    }

    fn make<'a>(&'a self, _: &'a str, _: &'a Value) -> BoxFuture<'a, Result<Value, OutsideError>> {
        refused("a token is made with its machine")
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), OutsideError>> {
        Box::pin(async move { self.0.revoke(name).await.map_err(|error| outside(&error)) })
    }
}

/// What certificates are asked for, by the machine's name. They are approved by plans.
#[derive(Debug)]
pub(crate) struct Certificates(pub(crate) Joining);

impl External for Certificates {
    fn limits(&self) -> Limits {
        Limits {
            call_deadline: Duration::from_secs(30),
            settle: Duration::ZERO,
            max_age: Duration::from_secs(2),
            retry: Duration::from_secs(10),
        }
    }

    fn look_up<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Value>, OutsideError>> {
        Box::pin(async move {
            let found = self.0.certificates(name).await;
            Ok(Some(as_json(&found.map_err(|error| outside(&error))?)))
        })
    }

    fn make<'a>(&'a self, _: &'a str, _: &'a Value) -> BoxFuture<'a, Result<Value, OutsideError>> {
        refused("certificates are asked for by machines")
    }

    fn remove<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), OutsideError>> {
        refused("certificates are not taken back")
    }
}
