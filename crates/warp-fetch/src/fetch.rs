//! A whole fetch: list, select, check the room, transfer, publish, report.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::azure::{self, Azure, Caller};
use crate::client::{Client, Limits};
use crate::digest::Digest;
use crate::error::FetchError;
use crate::google::account::Tokens;
use crate::google::{self, Google};
use crate::layout::Layout;
use crate::listing::{Listing, RemoteFile, Selection, content_digest};
use crate::progress::{Phase, Progress};
use crate::proof::Proof;
use crate::registry::{Login, Registry};
use crate::s3::{self, Store};
use crate::sign::Signer;
use crate::source::Source;
use crate::transfer::{Patience, Transfer, comes_in_ranges, known_by, part_name};
use crate::verified::{Manifest, Verified, is_trusted, manifests};
use crate::{folder, hub, oci, part, peer, plain, publish};

/// Files from this size on fill the connections by themselves: few of them are worked on at once.
const LARGE_BYTES: u64 = 64 << 20;
const LARGE_AT_ONCE: usize = 2;

/// What to fetch, from where, to where.
#[derive(Clone, Debug)]
pub struct Options {
    pub source: Source,
    /// The cache: the folder that holds `models--ORG--NAME`.
    pub to: PathBuf,
    /// The name it is published under (`org/name`), instead of the source's own.
    pub name: Option<String>,
    /// The hub or a mirror of it.
    pub endpoint: String,
    pub token: Option<String>,
    /// Shown to the place of an address and to nobody it redirects to.
    pub address_token: Option<String>,
    /// Where buckets are.
    pub store: Store,
    /// How registries are asked.
    pub registry: Registry,
    /// How Google Cloud Storage is asked.
    pub google: Google,
    /// How Azure Blob Storage is asked.
    pub azure: Azure,
    pub selection: Selection,
    pub limits: Limits,
    /// Machines nearby that share models as a hub does: what they have of a repository of the hub is taken from them. What
    /// it is and whether it may be had, the hub says.
    pub peers: Vec<String>,
}

/// What was published.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub name: String,
    pub revision: String,
    pub commit: String,
    /// One digest over names, sizes and digests of all files.
    pub digest: String,
    /// The snapshot's folder below the cache.
    pub path: String,
    pub files: u64,
    /// Of those, the ones whose content was compared with a digest or checksum of the source; the others are complete.
    #[serde(default)]
    pub verified: u64,
    pub bytes: u64,
    /// Bytes that came over the network or were copied in this run.
    pub bytes_fetched: u64,
    pub milliseconds: u64,
}

/// Fetches a model and publishes it. Whatever ends it early, what came is kept for the next try, and what was published
/// before stays.
pub async fn fetch(options: Options, progress: Arc<Progress>) -> Result<Report, FetchError> {
    let started = Instant::now();
    let client = client(&options)?;
    progress.enter(Phase::Listing);
    let listing = patiently(&client, &options, &progress).await?;
    let mut listing = options.selection.of(listing)?;
    if let Source::Hub(hub) = &options.source {
        peer::prefer(&client, &options.peers, hub, &mut listing).await;
    }
    if let Some(name) = &options.name {
        listing.name.clone_from(name);
    }
    let total: u64 = listing.files.iter().map(|file| file.size).sum();
    progress.expect(listing.files.len() as u64, total, listing.commit.as_deref());
    if let Some(limit) = options.limits.most_bytes.filter(|limit| total > *limit) {
        return Err(FetchError::TooLarge { total, limit });
    }
    let layout = Layout::make(&options.to, &listing.name)?;
    let _lock = layout.lock(|| progress.enter(Phase::Waiting)).await?;
    let known = manifests(&layout);
    tidy(&layout, &listing.files);
    check_room(&layout, &known, &listing.files)?;
    progress.enter(Phase::Fetching);
    let transfer = Arc::new(Transfer {
        client,
        layout: layout.clone(),
        progress: Arc::clone(&progress),
        connections: Arc::new(Semaphore::new(options.limits.connections.max(1))),
        known,
        turns: Mutex::default(),
    });
    let files = transfer_all(&transfer, &listing.files).await?;
    progress.enter(Phase::Publishing);
    let told = |file: &&RemoteFile| file.digest.is_some() || file.checksum.is_some();
    let verified = listing.files.iter().filter(told).count() as u64;
    let manifest = manifest(listing, files);
    let published = manifest.clone();
    let folder = layout.folder.clone();
    tokio::task::spawn_blocking(move || publish::publish(&layout, &published))
        .await
        .map_err(|_| FetchError::Ended)??;
    progress.enter(Phase::Done);
    Ok(Report {
        path: format!("{folder}/snapshots/{}", manifest.commit),
        files: manifest.files.len() as u64,
        verified,
        bytes: manifest.files.iter().map(|file| file.size).sum(),
        name: manifest.name,
        revision: manifest.revision,
        commit: manifest.commit,
        digest: manifest.digest,
        bytes_fetched: progress.state().bytes_fetched,
        milliseconds: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
    })
}

/// A client that shows each secret to the place it is for.
fn client(options: &Options) -> Result<Client, FetchError> {
    let token = |token: &Option<String>| token.clone().map(Proof::Token);
    let (home, proof) = match &options.source {
        Source::Hub(_) => (options.endpoint.clone(), token(&options.token)),
        Source::Address { address, .. } => (address.clone(), token(&options.address_token)),
        Source::Addresses { base, .. } => (base.clone(), token(&options.address_token)),
        Source::Folder(_) => (String::new(), None),
        Source::Bucket(_) => {
            let credentials = options.store.credentials.clone();
            let signer = credentials.map(|credentials| Signer {
                credentials,
                region: options.store.region.clone(),
            });
            (options.store.address(), signer.map(Proof::Signed))
        }
        Source::Artifact(artifact) => {
            let login = Login::new(options.registry.login.clone());
            let home = options.registry.home(artifact);
            (home, Some(Proof::Registry(login)))
        }
        Source::Google(_) => {
            let account = options.google.account.clone();
            let tokens = account.map(Tokens::new);
            (options.google.address(), tokens.map(Proof::Google))
        }
        Source::Azure(container) => {
            let caller = Caller {
                account: container.account.clone(),
                access: options.azure.access.clone(),
            };
            let home = options.azure.address(&container.account);
            (home, Some(Proof::Azure(caller)))
        }
    };
    Client::with(&home, proof, options.limits)
}

/// The source's list of files, asked for until it comes or there is no use.
async fn patiently(
    client: &Client,
    options: &Options,
    progress: &Progress,
) -> Result<Listing, FetchError> {
    let mut patience = Patience::new();
    loop {
        let listed = match &options.source {
            Source::Hub(hub) => hub::list(client, &options.endpoint, hub).await,
            Source::Address { address, sha256 } => {
                plain::list(client, address, sha256.as_deref()).await
            }
            Source::Addresses { base, files } => plain::list_all(client, base, files).await,
            Source::Folder(path) => folder::list(path),
            Source::Bucket(bucket) => s3::list(client, &options.store, bucket).await,
            Source::Artifact(artifact) => oci::list(client, &options.registry, artifact).await,
            Source::Google(bucket) => google::list(client, &options.google, bucket).await,
            Source::Azure(container) => azure::list(client, &options.azure, container).await,
        };
        match listed {
            Ok(listing) => {
                progress.trouble(None);
                return Ok(listing);
            }
            Err(error) => {
                patience
                    .after(error, "the list of files", client, progress)
                    .await?;
            }
        }
    }
}

/// Removes what earlier fetches of other content left unfinished: nobody will go on with it.
fn tidy(layout: &Layout, files: &[RemoteFile]) {
    let wanted: BTreeSet<String> = files.iter().map(part_name).collect();
    let entries = std::fs::read_dir(layout.parts());
    for entry in entries.into_iter().flatten().filter_map(Result::ok) {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let content = name.split('.').next().unwrap_or_default();
        if !wanted.contains(content) && std::fs::remove_file(entry.path()).is_err() {
            tracing::debug!(file = %name, "failed to remove what another fetch left");
        }
    }
}

/// Refuses to begin what cannot end for want of room.
fn check_room(layout: &Layout, known: &[Manifest], files: &[RemoteFile]) -> Result<(), FetchError> {
    let needed: u64 = files
        .iter()
        .map(|file| still_needed(layout, known, file))
        .sum();
    let free = layout.free()?;
    if needed <= free {
        return Ok(());
    }
    Err(FetchError::NoRoom {
        folder: layout.repository().to_owned(),
        free,
        needed,
    })
}

fn still_needed(layout: &Layout, known: &[Manifest], file: &RemoteFile) -> u64 {
    let there = file.digest.is_some_and(|digest: Digest| {
        let blob = layout.blob(&digest.hex());
        is_trusted(layout, known, &digest, file.size)
            || std::fs::metadata(blob).is_ok_and(|facts| facts.len() == file.size)
    });
    if there {
        return 0;
    }
    if !comes_in_ranges(file) {
        return file.size;
    }
    let path = layout.parts().join(part_name(file));
    let left = part::left(&path, file.size, &known_by(file));
    file.size.saturating_sub(left)
}

async fn transfer_all(
    transfer: &Arc<Transfer>,
    files: &[RemoteFile],
) -> Result<Vec<Verified>, FetchError> {
    let small = Arc::new(Semaphore::new(transfer.client.limits.connections.max(1)));
    let large = Arc::new(Semaphore::new(LARGE_AT_ONCE));
    let mut tasks = JoinSet::new();
    for file in files.iter().cloned() {
        let transfer = Arc::clone(transfer);
        let turn = if file.size >= LARGE_BYTES {
            &large
        } else {
            &small
        };
        let turn = Arc::clone(turn);
        tasks.spawn(async move {
            let _turn = turn.acquire().await.map_err(|_| FetchError::Ended)?;
            transfer.obtain(&file).await
        });
    }
    let mut verified = Vec::with_capacity(files.len());
    while let Some(done) = tasks.join_next().await {
        verified.push(done.map_err(|_| FetchError::Ended)??);
    }
    verified.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(verified)
}

fn manifest(listing: Listing, files: Vec<Verified>) -> Manifest {
    let content: Vec<(String, u64, String)> = files
        .iter()
        .map(|file| (file.path.clone(), file.size, file.digest.clone()))
        .collect();
    let digest = content_digest(&content);
    // Where a source has no commits, the content is one.
    let hex = digest.trim_start_matches("sha256:");
    let commit = listing.commit.unwrap_or_else(|| hex[..40].to_owned());
    Manifest {
        name: listing.name,
        revision: listing.revision,
        commit,
        digest,
        files,
    }
}
