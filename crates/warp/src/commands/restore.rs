//! `warp restore`: a backup in the place of what a data directory holds.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use warp_apiserver::store::{self, RestoreError};

use super::up::instance::Instance;
use crate::output;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// What `warp backup` wrote; - is standard input
    file: PathBuf,
    /// The data directory to restore into [default: the user's data directory]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Put what the directory holds aside
    #[arg(long)]
    replace: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let instance = Instance::at(args.data)?;
    let place = instance.folder.display();
    if let Some(note) = instance.running()? {
        bail!(
            "Warp runs with the data of {place} (process {}); stop it first with `warp down --data {place}`",
            note.pid
        );
    }
    let piped = args.file.as_os_str() == "-";
    let open = || {
        File::open(&args.file)
            .map(BufReader::new)
            .with_context(|| format!("failed to read {}", args.file.display()))
    };
    let of = || format!("failed to restore {}", args.file.display());
    if !piped {
        store::verify(open()?).with_context(of)?;
    }
    instance.create()?;
    let Some(_lock) = instance.lock()? else {
        bail!(
            "the data directory {place} is in use by another Warp; `warp status --data {place}` shows it"
        );
    };
    let database = instance.database();
    let restored = if piped {
        store::restore(&database, std::io::stdin().lock(), args.replace)
    } else {
        store::restore(&database, open()?, args.replace)
    };
    let restored = match restored {
        Err(RestoreError::Occupied(_)) => bail!(
            "{place} holds data; say --replace to put that aside, or restore into another directory with --data"
        ),
        Err(RestoreError::InUse(_)) => bail!(
            "{place} is in use by a `warp apiserver`, or by something else that has its database open; end that first"
        ),
        other => other.with_context(of)?,
    };
    if let Some(aside) = restored.aside {
        output::note(&format!(
            "what was stored is now in {}; remove it when nobody needs it any more",
            aside.display()
        ));
    }
    let taken = jiff::Timestamp::try_from(restored.head.taken).map_or_else(
        |_| "a time that is not known".to_owned(),
        |taken| format!("{taken:.0}"),
    );
    output::note(&format!(
        "restored {} objects as of {taken} (revision {}) into {place}; start it with `warp up --data {place}`",
        restored.head.objects, restored.head.revision
    ));
    Ok(ExitCode::SUCCESS)
}
