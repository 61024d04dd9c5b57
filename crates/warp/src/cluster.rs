//! Which cluster a verb talks to, and how kinds are found there by the names people use.

pub(crate) mod gpus;
mod kinds;
pub(crate) mod live;
mod manifest;
pub(crate) mod operator;
pub(crate) mod queued;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use k8s_openapi::api::authentication::v1::SelfSubjectReview;
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use warp_api::label;

pub(crate) use kinds::{Kind, Kinds};
pub(crate) use manifest::Manifest;

/// Writes on an object who makes it, as the API server knows them: bills per user go by that. A server that cannot say is
/// asked nothing more.
pub(crate) async fn sign(client: &Client, object: &mut impl ResourceExt) {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let said = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await;
    let user = said.ok().and_then(|said| said.status?.user_info?.username);
    if let Some(user) = user {
        object
            .annotations_mut()
            .insert(label::USER.to_owned(), user);
    }
}

/// The cluster and namespace a verb works in.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Target {
    /// Cluster to talk to [default: $KUBECONFIG, a running `warp up`, ~/.kube/config]
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Data directory of the `warp up` to talk to, whatever $KUBECONFIG says
    #[arg(long, value_name = "DIR", global = true, conflicts_with = "kubeconfig")]
    pub(crate) data: Option<PathBuf>,
    /// Context of the kubeconfig
    #[arg(long, value_name = "NAME", global = true)]
    pub(crate) context: Option<String>,
    /// Namespace [default: the context's]
    #[arg(short, long, value_name = "NAME", global = true)]
    pub(crate) namespace: Option<String>,
}

/// A connection and where it leads.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Target {
    /// The flags a command to paste needs to reach the same cluster and namespace.
    pub(crate) fn flags(&self) -> String {
        self.flags_in(None)
    }

    /// The same for another namespace.
    pub(crate) fn flags_in(&self, namespace: Option<&str>) -> String {
        let path = |path: &PathBuf| quoted(&path.display().to_string());
        let flags = [
            ("-n", namespace.or(self.namespace.as_deref()).map(quoted)),
            ("--data", self.data.as_ref().map(path)),
            ("--kubeconfig", self.kubeconfig.as_ref().map(path)),
            ("--context", self.context.as_deref().map(quoted)),
        ];
        let given = flags
            .into_iter()
            .filter_map(|(flag, value)| Some((flag, value?)));
        given.fold(String::new(), |text, (flag, value)| {
            format!("{text} {flag} {value}")
        })
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<Connection> {
        let (config, source) = self.config().await?;
        let namespace = self
            .namespace
            .clone()
            .unwrap_or_else(|| config.default_namespace.clone());
        let server = config.cluster_url.to_string();
        let client = Client::try_from(config).context("failed to set up the connection")?;
        // One cheap question first: everything after it can then blame the object, not the cluster.
        client.apiserver_version().await.map_err(|error| {
            let refused =
                matches!(&error, kube::Error::Api(status) if matches!(status.code, 401 | 403));
            let what = if refused {
                format!("the cluster at {server} does not accept the credentials of {source}; name another with --kubeconfig")
            } else {
                format!("failed to reach the cluster of {source} at {server}; start one with `warp up`, or name another with --kubeconfig")
            };
            anyhow::Error::from(error).context(what)
        })?;
        Ok(Connection { client, namespace })
    }

    async fn config(&self) -> anyhow::Result<(Config, String)> {
        if let Some(directory) = &self.data {
            let file = directory.join("kubeconfig");
            if !file.exists() {
                bail!(
                    "no Warp runs with the data of {directory}; start one with `warp up --data {directory}`",
                    directory = directory.display()
                );
            }
            let config = from_file(&file, self.context.clone()).await?;
            return Ok((config, file.display().to_string()));
        }
        let told = std::env::var_os("KUBECONFIG").filter(|value| !value.is_empty());
        if let (None, Some(list)) = (&self.kubeconfig, &told)
            && std::env::split_paths(list).count() > 1
        {
            let merged = Kubeconfig::from_env()
                .with_context(|| format!("failed to read KUBECONFIG={}", list.display()))?
                .unwrap_or_default();
            let config = chosen(merged, self.context.clone())
                .await
                .with_context(|| format!("failed to use KUBECONFIG={}", list.display()))?;
            return Ok((config, list.display().to_string()));
        }
        let file = self
            .kubeconfig
            .clone()
            .or_else(|| told.map(PathBuf::from))
            .or_else(|| Some(local_kubeconfig()?).filter(|path| path.exists()))
            .or_else(|| Some(home()?.join(".kube/config")).filter(|path| path.exists()));
        let Some(file) = file else {
            if let Ok(config) = Config::incluster() {
                return Ok((
                    without_retries(config),
                    "this pod's service account".to_owned(),
                ));
            }
            bail!("no cluster: start one here with `warp up`, or name one with --kubeconfig");
        };
        let config = from_file(&file, self.context.clone()).await?;
        Ok((config, file.display().to_string()))
    }
}

/// The settings of one kubeconfig file.
pub(crate) async fn from_file(file: &Path, context: Option<String>) -> anyhow::Result<Config> {
    let what = || format!("failed to read the kubeconfig {}", file.display());
    let text = match Kubeconfig::read_from(file) {
        // Its own words name the file once more.
        Err(kube::config::KubeconfigError::ReadConfig(cause, _)) => Err(cause).with_context(what),
        read => read.with_context(what),
    }?;
    chosen(text, context)
        .await
        .with_context(|| format!("failed to use the kubeconfig {}", file.display()))
}

async fn chosen(file: Kubeconfig, context: Option<String>) -> anyhow::Result<Config> {
    let options = KubeConfigOptions {
        context,
        ..KubeConfigOptions::default()
    };
    let config = Config::from_custom_kubeconfig(file, &options).await?;
    Ok(without_retries(config))
}

/// A person waits for the answer: say what went wrong now instead of trying for minutes.
fn without_retries(mut config: Config) -> Config {
    config.default_retry = false;
    config.connect_timeout = Some(std::time::Duration::from_secs(5));
    config
}

pub(crate) fn home() -> Option<PathBuf> {
    std::env::var_os("HOME")
        .filter(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Where `warp up` keeps its state unless told otherwise.
pub(crate) fn data_directory() -> Option<PathBuf> {
    if let Some(base) = std::env::var_os("XDG_DATA_HOME").filter(|value| !value.is_empty()) {
        return Some(PathBuf::from(base).join("warp"));
    }
    let home = home()?;
    Some(if cfg!(target_os = "macos") {
        home.join("Library/Application Support/warp")
    } else {
        home.join(".local/share/warp")
    })
}

fn local_kubeconfig() -> Option<PathBuf> {
    Some(data_directory()?.join("kubeconfig"))
}

/// A refusal in the server's own words, without the envelope they came in.
pub(crate) fn told(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => {
            let (message, code) = (status.message.clone(), status.code);
            anyhow::Error::new(Refused { message, code })
        }
        other => other.into(),
    }
}

/// A refusal of the server, of which its words are shown.
#[derive(Debug)]
struct Refused {
    message: String,
    code: u16,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refused {}

/// Does it again while the object is changed by others between the look and the write, which the operator does too: a
/// conflict is no answer for a person.
pub(crate) async fn past_conflicts<T>(
    work: impl AsyncFn() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    for _ in 1..LOOKS {
        match work().await {
            Err(error) if is_conflict(&error) => {}
            done => return done,
        }
    }
    work().await
}

/// So often is an object looked at before its changes are the user's to know.
const LOOKS: usize = 20;

fn is_conflict(error: &anyhow::Error) -> bool {
    let mut causes = error.chain();
    causes.any(|cause| matches!(cause.downcast_ref(), Some(Refused { code: 409, .. })))
}

/// A word as a shell takes it for one.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-._/:=@,".contains(letter);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Runs a verb's work to its end.
pub(crate) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    let done = runtime.block_on(work);
    // A read of the terminal cannot be called back: nobody waits for the next key.
    runtime.shutdown_background();
    done
}

/// Query text with everything but the plainest characters escaped.
pub(crate) fn encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.extend([format!("%{byte:02X}")]);
        }
    }
    out
}
