//! `warp backup`: everything a Warp keeps in one file, whether it runs or not.

use std::fs::File;
use std::io::{BufReader, BufWriter, IsTerminal, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, bail};
use futures::AsyncReadExt;
use kube::Client;
use warp_apiserver::store::{self, Head, Store, StoreOptions};

use super::up::instance::Instance;
use crate::{cluster, output};

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Where to write it; - is standard output
    file: PathBuf,
    /// The data directory `warp up` or `warp apiserver` was given
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let instance = Instance::at(args.data)?;
    if !instance.has_state() {
        bail!(
            "there is nothing to back up in {}; say which data directory with --data",
            instance.folder.display()
        );
    }
    let printed = args.file.as_os_str() == "-";
    if printed && std::io::stdout().is_terminal() {
        bail!("a backup is nothing to read; name a file, or send standard output elsewhere");
    }
    let replaces = !printed && replaces(&args.file)?;
    // Whole or not at all: a backup that was there before stays until there is a better one.
    let part = if printed {
        instance.backup()
    } else {
        let mut part = args.file.clone().into_os_string();
        part.push(".part");
        part.into()
    };
    let taken = cluster::block_on(take(&instance, &part)).and_then(|()| deliver(&args.file, &part));
    if taken.is_err() || printed {
        std::fs::remove_file(&part).ok();
    }
    let head = taken?;
    output::note(&format!(
        "{} objects as of revision {}{}; certificates, tokens and volumes are no part of it",
        head.objects,
        head.revision,
        if printed {
            String::new()
        } else {
            let instead = if replaces {
                ", instead of the earlier backup there"
            } else {
                ""
            };
            format!(" are in {}{instead}", args.file.display())
        }
    ));
    Ok(ExitCode::SUCCESS)
}

/// Whether a backup is there already, which a newer one may replace. Anything else is not ours to overwrite.
fn replaces(file: &Path) -> anyhow::Result<bool> {
    let failed = || format!("failed to look at {}", file.display());
    let found = match File::open(file) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error).with_context(failed),
    };
    let meta = found.metadata().with_context(failed)?;
    if meta.is_file() && meta.len() == 0 {
        return Ok(false);
    }
    if meta.is_file() && store::begins_as_backup(found).with_context(failed)? {
        return Ok(true);
    }
    bail!(
        "{} is there and is no backup: it is left as it is; name another file",
        file.display()
    )
}

/// Writes the backup to `part`: what a server that runs says, or what is stored.
async fn take(instance: &Instance, part: &Path) -> anyhow::Result<()> {
    let failed = || format!("failed to write {}", part.display());
    let file = File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(part)
        .with_context(failed)?;
    // It holds every Secret.
    file.set_permissions(std::fs::Permissions::from_mode(0o600))
        .with_context(failed)?;
    let mut file = BufWriter::new(file);
    if let Some(client) = running(instance).await {
        let request = http::Request::get("/backup").body(Vec::new())?;
        let answer = client.request_stream(request).await;
        let mut answer = std::pin::pin!(answer.map_err(cluster::told)?);
        let mut piece = vec![0; 64 << 10];
        loop {
            let count = answer
                .read(&mut piece)
                .await
                .context("the connection ended before the backup did")?;
            if count == 0 {
                break;
            }
            file.write_all(&piece[..count]).with_context(failed)?;
        }
    } else {
        let _lock = instance.lock()?.with_context(|| {
            format!(
                "the data directory {} is in use by a Warp that does not answer",
                instance.folder.display()
            )
        })?;
        let stored = Store::open(&StoreOptions {
            path: Some(instance.database()),
            ..StoreOptions::default()
        })?;
        let chunks = stored.snapshot().into_chunks(SystemTime::now());
        for chunk in chunks {
            file.write_all(&chunk).with_context(failed)?;
        }
        stored.close().await;
    }
    file.into_inner()
        .map_err(std::io::IntoInnerError::into_error)
        .and_then(|file| file.sync_all())
        .with_context(failed)
}

/// A client of the server that runs with this data, if one does.
async fn running(instance: &Instance) -> Option<Client> {
    let config = cluster::from_file(&instance.kubeconfig(), None)
        .await
        .ok()?;
    let client = Client::try_from(config).ok()?;
    // An address that somebody else has by now does not prove itself by our certificate.
    client.apiserver_version().await.ok()?;
    Some(client)
}

/// Checks the whole backup and puts it where it is wanted.
fn deliver(file: &Path, part: &Path) -> anyhow::Result<Head> {
    let open = || File::open(part).with_context(|| format!("failed to read {}", part.display()));
    let head = store::verify(BufReader::new(open()?))?;
    if file.as_os_str() == "-" {
        let mut out = std::io::stdout().lock();
        std::io::copy(&mut open()?, &mut out)
            .and_then(|_| out.flush())
            .context("failed to write the backup to standard output")?;
    } else {
        std::fs::rename(part, file)
            .with_context(|| format!("failed to write {}", file.display()))?;
    }
    Ok(head)
}
