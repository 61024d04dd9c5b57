//! The server's own secrets: certificate authority, serving certificate, admin token, and the key
//! of service-account tokens. Kept in the data directory, readable by the owner only.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::sums::Sums;

/// Why the server's identity could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("failed to read or write {path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error(
        "failed to read {0}: it is not a P-256 key in PKCS #8 form; remove it to get a new one"
    )]
    Key(&'static str),
    #[error("failed to make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    #[error("failed to read {0}: it is empty; remove it to get a new one")]
    Empty(PathBuf),
    #[error(
        "failed to read {path}: it is not what was written; bring it back from a copy, remove it to get a new one, \
         or remove {sums} if it was changed on purpose"
    )]
    Changed { path: PathBuf, sums: PathBuf },
    #[error("failed to get randomness from the system")]
    Random,
    #[error("failed to set up TLS: {0}")]
    Tls(#[from] rustls::Error),
}

/// Everything the server proves itself and its users with.
pub struct Identity {
    pub(super) token: String,
    pub(super) account_key: String,
    pub(super) hosts: Vec<String>,
    /// The directory that holds the users of this server, if it keeps any.
    pub(super) users: Option<PathBuf>,
    ca: String,
    tls: Arc<rustls::ServerConfig>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

/// Names every server answers for.
const HOSTS: [&str; 7] = [
    "localhost",
    "127.0.0.1",
    "::1",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
];

pub(super) fn at<T>(path: &Path, result: io::Result<T>) -> Result<T, IdentityError> {
    result.map_err(|source| IdentityError::File {
        path: path.to_owned(),
        source,
    })
}

/// Writes a file only its owner can read, whole or not at all.
pub(super) fn write_private(path: &Path, text: &str) -> Result<(), IdentityError> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.part", std::process::id()));
    let beside = PathBuf::from(beside);
    let write = || -> io::Result<()> {
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&beside, path)
    };
    at(path, write())
}

/// Makes a directory only its owner can enter; one that exists keeps its mode.
fn private_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

/// The file's text, made with `fresh` when it is not there.
fn keep(
    kept: &mut Option<(&Path, Sums)>,
    name: &str,
    fresh: impl FnOnce() -> Result<String, IdentityError>,
) -> Result<String, IdentityError> {
    let Some((directory, sums)) = kept else {
        return fresh();
    };
    let path = directory.join(name);
    match fs::read_to_string(&path) {
        Ok(text) if text.trim().is_empty() => Err(IdentityError::Empty(path)),
        Ok(text) => {
            sums.check(&path, name, &text)?;
            Ok(text)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let text = fresh()?;
            write_private(&path, &text)?;
            sums.note(name, &text);
            Ok(text)
        }
        Err(source) => Err(IdentityError::File { path, source }),
    }
}

fn authority() -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name.push(DnType::CommonName, "warp");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

pub(super) fn random_token() -> Result<String, IdentityError> {
    let mut bytes = [0_u8; 32];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes)
        .map_err(|_| IdentityError::Random)?;
    Ok(base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes))
}

impl Identity {
    /// Reads the identity kept in `directory` or makes one; `None` makes one that is not kept.
    /// `names` are further host names or addresses the server answers for.
    pub fn load(directory: Option<&Path>, names: &[String]) -> Result<Self, IdentityError> {
        if let Some(directory) = directory {
            at(directory, private_directory(directory))?;
        }
        let sums = directory.map(Sums::read).transpose()?;
        let mut kept = directory.zip(sums);
        let fresh_key = || Ok(KeyPair::generate()?.serialize_pem());
        let ca_key = KeyPair::from_pem(&keep(&mut kept, "ca.key", fresh_key)?)
            .map_err(|_| IdentityError::Key("ca.key"))?;
        let ca = keep(&mut kept, "ca.crt", || {
            Ok(authority()?.self_signed(&ca_key)?.pem())
        })?;
        let token = keep(&mut kept, "token", random_token)?.trim().to_owned();
        let account_key = keep(&mut kept, "service-account.key", fresh_key)?;
        if let Some((_, sums)) = kept {
            sums.write()?;
        }
        let mut hosts: Vec<String> = HOSTS.iter().map(|host| (*host).to_owned()).collect();
        hosts.extend(names.iter().cloned());
        let tls = serving(&ca_key, &ca, &hosts)?;
        Ok(Self {
            token,
            account_key,
            hosts,
            users: directory.map(Path::to_owned),
            ca,
            tls,
        })
    }

    pub(crate) fn tls(&self) -> Arc<rustls::ServerConfig> {
        Arc::clone(&self.tls)
    }

    /// The authority's certificate.
    pub fn ca(&self) -> &str {
        &self.ca
    }

    /// A kubeconfig for the administrator.
    pub fn kubeconfig(&self, server: &str) -> String {
        kubeconfig(server, &self.ca, &self.token, None)
    }
}

/// A serving certificate is made at every start: only the authority is remembered.
fn serving(
    ca_key: &KeyPair,
    ca: &str,
    hosts: &[String],
) -> Result<Arc<rustls::ServerConfig>, IdentityError> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params
        .distinguished_name
        .push(DnType::CommonName, "warp-apiserver");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    for host in hosts {
        params.subject_alt_names.push(match host.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(host.as_str().try_into()?),
        });
    }
    let authority = authority()?;
    let issuer = Issuer::from_params(&authority, ca_key);
    let certificate = params.signed_by(&key, &issuer)?;
    let mut chain = vec![certificate.der().clone()];
    chain.extend(pem_body(ca).map(CertificateDer::from));
    let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, private)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The bytes between the first pair of PEM lines.
pub(super) fn pem_body(pem: &str) -> Option<Vec<u8>> {
    let body: String = pem
        .lines()
        .skip_while(|line| !line.starts_with("-----BEGIN"))
        .skip(1)
        .take_while(|line| !line.starts_with("-----END"))
        .map(str::trim)
        .collect();
    STANDARD.decode(body).ok().filter(|bytes| !bytes.is_empty())
}

/// A kubeconfig with one cluster, one user and one context, all named `warp`.
pub fn kubeconfig(server: &str, ca: &str, token: &str, namespace: Option<&str>) -> String {
    let ca = STANDARD.encode(ca);
    let namespace = namespace.map(|name| format!("    namespace: {name}\n"));
    let namespace = namespace.unwrap_or_default();
    format!(
        "apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: warp\n  cluster:\n    server: {server}\n    certificate-authority-data: {ca}\n\
         users:\n\
         - name: warp\n  user:\n    token: {token}\n\
         contexts:\n\
         - name: warp\n  context:\n    cluster: warp\n    user: warp\n{namespace}\
         current-context: warp\n"
    )
}

/// Writes a kubeconfig only its owner can read.
pub(crate) fn write_kubeconfig(path: &Path, text: &str) -> Result<(), IdentityError> {
    write_private(path, text)
}
