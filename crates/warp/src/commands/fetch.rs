//! `warp fetch`: a model into a cache, for people and as the pod of a ModelCache. The work is `warp_fetch`; here are
//! arguments, what is shown meanwhile, and how the result is told.

mod login;
mod page;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};
use warp_fetch::{
    Azure, Credentials, FetchError, Google, Limits, Options, Progress, Registry, Report, Selection,
    Source, Store,
};

use crate::output;
use page::Page;

/// The hub, unless `HF_ENDPOINT` names a mirror.
const ENDPOINT: &str = "https://huggingface.co";
/// Trying again would not help: somebody has to do something first.
const PERMANENT: u8 = 3;
/// What a container may leave behind as its last words is 4096 bytes.
const LAST_WORDS_BYTES: usize = 3000;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// `hf://ORG/NAME[@REVISION]` or `ORG/NAME` ($HF_ENDPOINT, $HF_TOKEN), `https://HOST/FILE[#sha256=HEX]`
    /// ($WARP_HTTP_TOKEN), `oci://REGISTRY/NAME[:TAG|@sha256:HEX]` ($WARP_REGISTRY_USERNAME and $WARP_REGISTRY_PASSWORD,
    /// or what `docker login` has written), `s3://BUCKET/PREFIX` ($AWS_ACCESS_KEY_ID, $AWS_SECRET_ACCESS_KEY,
    /// $AWS_SESSION_TOKEN, $AWS_REGION, $AWS_ENDPOINT_URL), `gs://BUCKET/PREFIX` ($GOOGLE_APPLICATION_CREDENTIALS, a key of a
    /// service account), `az://ACCOUNT/CONTAINER/PREFIX` ($AZURE_STORAGE_KEY or $AZURE_STORAGE_SAS_TOKEN), or a folder
    #[arg(value_name = "SOURCE")]
    source: String,
    /// The cache it goes to, in the layout of the hub's own client [default: $HF_HUB_CACHE, $HF_HOME/hub, ~/.cache/huggingface/hub]
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
    /// A file below an address that is a folder, with its digest if that is known (may be given several times)
    #[arg(long = "file", value_name = "PATH[#sha256=HEX]")]
    files: Vec<String>,
    /// Publish it under this name instead of the source's own
    #[arg(long = "as", value_name = "ORG/NAME", value_parser = name)]
    name: Option<String>,
    /// Only files that match: `*.json`, `original/*` (may be given several times)
    #[arg(long, value_name = "PATTERN")]
    allow: Vec<String>,
    /// No files that match
    #[arg(long, value_name = "PATTERN")]
    ignore: Vec<String>,
    /// Also PyTorch and other weights of a model that has safetensors
    #[arg(long)]
    all_formats: bool,
    /// Requests at once
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    connections: u16,
    /// Bytes a second at most, such as 500K, 100M or 1G
    #[arg(long, value_name = "RATE", value_parser = rate)]
    limit_rate: Option<u64>,
    /// Fetch nothing of a model that has more bytes, such as 500M or 40G
    #[arg(long, value_name = "BYTES", value_parser = rate)]
    max_size: Option<u64>,
    /// A connection that sends nothing for this long is given up and tried again
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = super::duration)]
    stall_timeout: Duration,
    /// A file of which nothing came for this long is given up
    #[arg(long, default_value = "10m", value_name = "TIME", value_parser = super::duration)]
    give_up_after: Duration,
    /// A machine nearby that shares models (`warp model share`): what it has of a model of the hub is taken from there,
    /// verified as ever, and the rest from the hub (may be given several times)
    #[arg(long = "peer", value_name = "ADDRESS")]
    peers: Vec<String>,
    /// Ask a registry without encryption, also where it is not on this machine
    #[arg(long)]
    plain_http: bool,
    /// Publish nothing unless the model in this folder is still what was published
    #[arg(long, value_name = "DIR", hide = true)]
    unchanged: Option<PathBuf>,
    /// A mounted Secret with what the source is to be shown
    #[arg(long, value_name = "DIR", hide = true)]
    credentials: Option<PathBuf>,
    /// How to print the result
    #[arg(short, long, value_enum, default_value = "text")]
    output: Format,
    /// Write the result, or why there is none, to this file too
    #[arg(long, value_name = "FILE", hide = true)]
    report: Option<PathBuf>,
    /// Answer questions about the progress here
    #[arg(long, value_name = "ADDRESS", hide = true)]
    progress_listen: Option<String>,
    /// Whose progress it is: others are not answered
    #[arg(long, value_name = "ID", hide = true, default_value = "")]
    progress_id: String,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

/// 500K, 100M, 1G: powers of 1024.
fn rate(text: &str) -> Result<u64, String> {
    let upper = text.to_uppercase();
    let upper = upper
        .trim_end_matches("IB")
        .trim_end_matches('B')
        .trim_end_matches('I');
    let (digits, unit) = match upper.chars().last() {
        Some('K') => (&upper[..upper.len() - 1], 1 << 10),
        Some('M') => (&upper[..upper.len() - 1], 1 << 20),
        Some('G') => (&upper[..upper.len() - 1], 1 << 30),
        _ => (upper, 1),
    };
    let rate = digits
        .parse::<u64>()
        .ok()
        .and_then(|count| count.checked_mul(unit));
    rate.filter(|rate| *rate > 0)
        .ok_or_else(|| format!("'{text}' is not a number of bytes such as 500K, 100M or 1G"))
}

/// `org/name`, as the hub names models.
fn name(text: &str) -> Result<String, String> {
    let is_part = |part: &str| {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(plain)
    };
    match text.split_once('/') {
        Some((org, name)) if is_part(org) && is_part(name) => Ok(text.to_owned()),
        _ => Err(format!("'{text}' is not a name such as org/name")),
    }
}

fn setting(name: &str) -> Option<String> {
    let value = std::env::var(name).ok()?;
    Some(value.trim().to_owned()).filter(|value| !value.is_empty())
}

/// The hub that is asked.
pub(crate) fn endpoint() -> String {
    setting("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_owned())
}

/// The token that is shown to the hub.
pub(crate) fn token() -> Option<String> {
    setting("HF_TOKEN")
}

/// Where buckets are and who asks, by the names Amazon's own tools use.
fn store() -> Store {
    let credentials = setting("AWS_ACCESS_KEY_ID")
        .zip(setting("AWS_SECRET_ACCESS_KEY"))
        .map(|(key_id, secret)| Credentials {
            key_id,
            secret,
            session_token: setting("AWS_SESSION_TOKEN"),
        });
    let region = setting("AWS_REGION").or_else(|| setting("AWS_DEFAULT_REGION"));
    let usual = Store::default();
    Store {
        endpoint: setting("AWS_ENDPOINT_URL_S3").or_else(|| setting("AWS_ENDPOINT_URL")),
        region: region.unwrap_or(usual.region),
        credentials,
    }
}

/// Where the hub's own client keeps models.
pub(crate) fn cache(given: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(given) = given {
        return Ok(given.clone());
    }
    if let Some(cache) = setting("HF_HUB_CACHE") {
        return Ok(PathBuf::from(cache));
    }
    if let Some(home) = setting("HF_HOME") {
        return Ok(PathBuf::from(home).join("hub"));
    }
    let home = setting("HOME").context("failed to find a cache: name one with --to")?;
    Ok(PathBuf::from(home).join(".cache/huggingface/hub"))
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")?;
    let (report, format) = (args.report.clone(), args.output);
    let to = cache(args.to.as_ref())?;
    let fetched = runtime.block_on(fetch(args, to.clone()));
    // A write to the disk that hangs must not keep a process that has said everything.
    runtime.shutdown_background();
    if let Some(path) = report {
        std::fs::write(&path, last_words(&fetched).to_string())
            .with_context(|| format!("failed to write {}", path.display()))?;
    }
    match fetched {
        Ok(done) => {
            tell(&done, &to, format);
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            let code = if error.is_permanent() { PERMANENT } else { 1 };
            output::error(&anyhow::Error::from(error));
            Ok(ExitCode::from(code))
        }
    }
}

async fn fetch(args: Args, to: PathBuf) -> Result<Report, FetchError> {
    if let Some(folder) = args.unchanged {
        let checked = tokio::task::spawn_blocking(move || warp_fetch::check(&folder)).await;
        checked.map_err(|_| FetchError::Ended)??;
    }
    let source = Source::parse(&args.source)?.with_files(&args.files)?;
    let secret = args.credentials.as_deref();
    let options = Options {
        google: Google {
            endpoint: setting("STORAGE_EMULATOR_HOST"),
            account: login::google(&source, secret)?,
        },
        azure: Azure {
            endpoint: setting("AZURE_STORAGE_ENDPOINT"),
            access: login::azure(&source, secret)?,
        },
        registry: Registry {
            login: login::registry(&source, secret)?,
            plain_http: args.plain_http,
        },
        source,
        to,
        name: args.name,
        endpoint: endpoint(),
        token: token(),
        address_token: setting("WARP_HTTP_TOKEN"),
        store: store(),
        selection: Selection {
            allow: args.allow,
            ignore: args.ignore,
            duplicates: args.all_formats,
        },
        limits: Limits {
            connections: usize::from(args.connections),
            stall: args.stall_timeout,
            patience: args.give_up_after,
            bytes_per_second: args.limit_rate,
            most_bytes: args.max_size,
        },
        peers: args.peers,
    };
    let progress = Arc::new(Progress::default());
    let _page = match &args.progress_listen {
        Some(address) => Page::open(address, &args.progress_id, Arc::clone(&progress)).await,
        None => None,
    };
    let shown = show::start(&args.source, Arc::clone(&progress));
    let mut fetched = warp_fetch::fetch(options.clone(), Arc::clone(&progress)).await;
    if let (Err(error), false) = (&fetched, options.peers.is_empty()) {
        output::note(&format!("without the peers, after: {error}"));
        let alone = Options {
            peers: Vec::new(),
            ..options
        };
        fetched = warp_fetch::fetch(alone, progress).await;
    }
    shown.end();
    fetched
}

/// The result as the operator reads it.
fn last_words(fetched: &Result<Report, FetchError>) -> Value {
    match fetched {
        Ok(report) => json!({ "fetched": report }),
        Err(error) => {
            let mut message = error.to_string();
            if let Some(cause) = std::error::Error::source(error) {
                message = format!("{message}: {cause}");
            }
            if message.len() > LAST_WORDS_BYTES {
                message = message.chars().take(LAST_WORDS_BYTES / 4).collect();
            }
            let total = match error {
                FetchError::TooLarge { total, .. } => Some(*total),
                _ => None,
            };
            json!({ "failed": {
                "reason": error.reason(), "message": message, "permanent": error.is_permanent(), "bytes": total,
            } })
        }
    }
}

fn tell(report: &Report, to: &std::path::Path, format: Format) {
    let path = to.join(&report.path);
    match format {
        Format::Json => {
            let mut value = json!(report);
            value["path"] = json!(path);
            output::result(&serde_json::to_string_pretty(&value).unwrap_or_default());
        }
        Format::Text => {
            output::note(&format!(
                "{} {} at {}: {} files, {}, {}; {} fetched in {}",
                report.name,
                report.revision,
                report.commit,
                report.files,
                show::bytes(report.bytes),
                checked(report),
                show::bytes(report.bytes_fetched),
                show::seconds(report.milliseconds / 1000),
            ));
            output::line(&path.display().to_string());
        }
    }
}

/// How sure it is that the files are what the source has.
fn checked(report: &Report) -> String {
    match report.verified {
        verified if verified >= report.files => "verified".to_owned(),
        0 => "complete (the source has no digests to verify them by)".to_owned(),
        verified => {
            format!(
                "complete, {verified} of them verified (the source has no digests of the others)"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_source_has_a_digest_of_is_called_verified() {
        let report = |verified: u64| {
            let report = json!({ "name": "n", "revision": "r", "commit": "c", "digest": "d", "path": "p",
                "files": 2, "verified": verified, "bytes": 1, "bytesFetched": 1, "milliseconds": 1 });
            checked(&serde_json::from_value(report).unwrap())
        };
        assert_eq!(report(2), "verified");
        assert!(report(0).starts_with("complete (the source has no digests"));
        assert!(report(1).starts_with("complete, 1 of them verified"));
    }

    #[test]
    fn rates_are_read_in_powers_of_1024() {
        assert_eq!(rate("100"), Ok(100));
        assert_eq!(rate("2k"), Ok(2048));
        assert_eq!(rate("3MiB"), Ok(3 << 20));
        assert_eq!(rate("1Gi"), Ok(1 << 30));
        for bad in ["", "0", "K", "-1", "1T", "fast"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_is_an_organisation_and_a_name() {
        assert_eq!(name("org/tiny-1.0"), Ok("org/tiny-1.0".to_owned()));
        for bad in ["tiny", "/tiny", "org/", "org/../x", "a/b/c", "org/.x"] {
            assert!(name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_last_words_fit_into_a_termination_message() {
        let error = FetchError::NoSource("ü".repeat(10_000));
        let words = last_words(&Err(error)).to_string();
        assert!(words.len() < 4096, "{}", words.len());
        let read: Value = serde_json::from_str(&words).unwrap();
        assert_eq!(read["failed"]["reason"], "InvalidSource");
        assert_eq!(read["failed"]["permanent"], true);
    }
}
