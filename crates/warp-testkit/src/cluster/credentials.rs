//! Certificates, tokens and kubeconfigs of a cluster in a test.
//!
//! Owns: what the API server is started with and what its clients show. Must not start anything.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};

/// The administrator's token. The API server listens on loopback for the length of one test.
pub(super) const ADMIN_TOKEN: &str = "administrator";

/// The administrator's kubeconfig in a cluster's folder.
pub(super) const ADMIN_KUBECONFIG: &str = "admin.kubeconfig";

/// Every component has a user of its own so that the API server's records tell them apart.
const USERS: [(&str, &str); 4] = [
    (ADMIN_TOKEN, "admin"),
    ("kcm", "kube-controller-manager"),
    ("scheduler", "kube-scheduler"),
    ("kwok", "kwok"),
];

/// How to reach a cluster.
#[derive(Debug)]
pub(super) struct Access {
    url: String,
    authority: PathBuf,
}

/// Writes what the API server needs into `folder`: a certificate authority, a serving certificate
/// for loopback, the key pair of service accounts, and the tokens of the components.
pub(super) fn write_server_files(folder: &Path) -> Result<()> {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority
        .distinguished_name
        .push(DnType::CommonName, "testbed");
    let signing = KeyPair::generate()?;
    let signing_pem = signing.serialize_pem();
    let authority = CertifiedIssuer::self_signed(authority, signing)?;
    let key = KeyPair::generate()?;
    let names = [
        "127.0.0.1",
        "localhost",
        "kubernetes.default.svc",
        "10.0.0.1",
    ];
    let serving = CertificateParams::new(names.map(str::to_owned))?.signed_by(&key, &authority)?;
    let accounts = KeyPair::generate()?;
    let tokens = USERS
        .map(|(token, user)| {
            format!(
                "{token},{user},{user},system:masters
"
            )
        })
        .concat();
    for (name, text) in [
        ("ca.crt", authority.pem()),
        ("ca.key", signing_pem),
        ("server.crt", serving.pem()),
        ("server.key", key.serialize_pem()),
        ("sa.key", accounts.serialize_pem()),
        ("sa.pub", accounts.public_key_pem()),
        ("tokens.csv", tokens),
    ] {
        let path = folder.join(name);
        std::fs::write(&path, text)
            .with_context(|| format!("failed to write '{}'", path.display()))?;
    }
    Ok(())
}

impl Access {
    /// Access to the API server on `port` with the files of [`write_server_files`] in `folder`;
    /// writes a kubeconfig for every component.
    pub(super) fn new(folder: &Path, port: u16) -> Result<Self> {
        let access = Self::at(folder, port);
        for (token, user) in USERS {
            access.write_kubeconfig(&folder.join(format!("{user}.kubeconfig")), token)?;
        }
        Ok(access)
    }

    /// Access to a server that has no components beside it.
    pub(super) fn admin_only(folder: &Path, port: u16) -> Result<Self> {
        let access = Self::at(folder, port);
        access.write_kubeconfig(&folder.join(ADMIN_KUBECONFIG), ADMIN_TOKEN)?;
        Ok(access)
    }

    fn at(folder: &Path, port: u16) -> Self {
        Self {
            url: format!("https://127.0.0.1:{port}"),
            authority: folder.join("ca.crt"),
        }
    }

    fn kubeconfig(&self, token: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testbed", "cluster": {
                "server": self.url, "certificate-authority": self.authority,
            }}],
            "users": [{"name": "testbed", "user": {"token": token}}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": "testbed"}}],
            "current-context": "testbed",
        })
    }

    pub(super) fn write_kubeconfig(&self, path: &Path, token: &str) -> Result<()> {
        let text = serde_json::to_string_pretty(&self.kubeconfig(token))?;
        std::fs::write(path, text).with_context(|| format!("failed to write '{}'", path.display()))
    }

    pub(super) async fn client(&self, token: &str) -> Result<Client> {
        let kubeconfig: Kubeconfig = serde_json::from_value(self.kubeconfig(token))?;
        let mut config =
            Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        // A test that sees an error must see it, and a repeated POST must not hide behind it.
        config.default_retry = false;
        Ok(Client::try_from(config)?)
    }
}
