//! `warp delete`: by manifest or by kind and name, waiting until the objects are gone.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::apply::{path, resolve};
use super::get::wanted;
use crate::cluster::{self, Connection, Kinds, Manifest, Target, encode};
use crate::output;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// KIND NAME… or KIND/NAME…
    #[arg(
        required_unless_present = "files",
        conflicts_with = "files",
        value_name = "KIND[/NAME]"
    )]
    what: Vec<String>,
    /// Delete the objects of a file, folder or - for standard input
    #[arg(short, long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    target: Target,
    /// Every object with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Every object of the kind in the namespace
    #[arg(long)]
    all: bool,
    /// Seconds to give what runs before it is ended; 0 ends it now
    #[arg(long, value_name = "SECONDS")]
    grace_period: Option<u32>,
    /// Return at once instead of waiting until the objects are gone
    #[arg(long)]
    no_wait: bool,
    /// It is fine if an object does not exist
    #[arg(long)]
    ignore_not_found: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(delete(args))
}

/// One object: its path and what to call it.
struct Doomed {
    path: String,
    label: String,
    uid: Option<String>,
}

async fn delete(args: Args) -> anyhow::Result<ExitCode> {
    // Before asking anybody: a file that cannot be read needs no cluster to say so.
    let manifests = if args.files.is_empty() {
        None
    } else {
        Some(Manifest::read(&args.files)?)
    };
    let connection = args.target.connect().await?;
    let kinds = Kinds::discover(&connection.client).await?;
    let doomed = if let Some(manifests) = manifests {
        let mut doomed = Vec::new();
        for manifest in manifests {
            let manifest = &manifest?;
            let kind = resolve(manifest, &kinds)?;
            doomed.push(Doomed {
                path: path(&connection, &args.target, kind, manifest)?,
                label: format!("{}/{}", kind.label(), manifest.name()?),
                uid: None,
            });
        }
        // Backwards: what was applied last depends on what was applied first.
        doomed.reverse();
        doomed
    } else {
        by_name(&args, &connection, &kinds).await?
    };
    let mut failed = false;
    let mut waiting = Vec::new();
    for mut object in doomed {
        match delete_one(&args, &connection, &object).await {
            Ok(Some(uid)) => {
                object.uid = Some(uid);
                output::line(&format!("{} deleted", object.label));
                waiting.push(object);
            }
            Ok(None) => output::note(&format!("{} was not there", object.label)),
            Err(error) => {
                output::error(&error);
                failed = true;
            }
        }
    }
    if !args.no_wait {
        for object in &waiting {
            wait_gone(&connection, object).await?;
        }
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

async fn by_name(
    args: &Args,
    connection: &Connection,
    kinds: &Kinds,
) -> anyhow::Result<Vec<Doomed>> {
    let mut doomed = Vec::new();
    for (kind, names) in wanted(&args.what)? {
        let kind = kinds.named(&kind)?;
        let mut names = names;
        if !names.is_empty() && (args.all || args.selector.is_some()) {
            bail!(
                "name the {}, or say --all or --selector, not both",
                kind.plural
            );
        }
        if names.is_empty() {
            if !args.all && args.selector.is_none() {
                bail!(
                    "which {}? name them, or say --all or --selector",
                    kind.plural
                );
            }
            let selector = args.selector.as_deref().unwrap_or_default();
            let path = kind.path(Some(&connection.namespace), None);
            let request = http::Request::get(format!("{path}?labelSelector={}", encode(selector)))
                .body(Vec::new())?;
            let list: Value = connection
                .client
                .request(request)
                .await
                .map_err(cluster::told)
                .with_context(|| format!("failed to list {}", kind.plural))?;
            names = list
                .get("items")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(|item| Some(item.pointer("/metadata/name")?.as_str()?.to_owned()))
                .collect();
            if names.is_empty() {
                output::note(&format!("no {} to delete", kind.plural));
            }
        }
        doomed.extend(names.iter().map(|name| Doomed {
            path: kind.path(Some(&connection.namespace), Some(name)),
            label: format!("{}/{name}", kind.label()),
            uid: None,
        }));
    }
    Ok(doomed)
}

async fn delete_one(
    args: &Args,
    connection: &Connection,
    object: &Doomed,
) -> anyhow::Result<Option<String>> {
    let mut options =
        json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
    if let Some(seconds) = args.grace_period {
        options["gracePeriodSeconds"] = json!(seconds);
    }
    let request = http::Request::delete(&object.path)
        .header("Content-Type", "application/json")
        .body(serde_json::to_vec(&options)?)?;
    match connection.client.request::<Value>(request).await {
        Ok(answer) => {
            let uid = answer
                .pointer("/metadata/uid")
                .or_else(|| answer.pointer("/details/uid"));
            let uid = uid.and_then(Value::as_str).unwrap_or_default();
            Ok(Some(uid.to_owned()))
        }
        Err(kube::Error::Api(status)) if status.is_not_found() && args.ignore_not_found => Ok(None),
        Err(error) => {
            Err(cluster::told(error)).with_context(|| format!("failed to delete {}", object.label))
        }
    }
}

/// Until the object is gone, or another one has its name.
async fn wait_gone(connection: &Connection, object: &Doomed) -> anyhow::Result<()> {
    let mut pause = Duration::from_millis(20);
    loop {
        let request = http::Request::get(&object.path).body(Vec::new())?;
        match connection.client.request::<Value>(request).await {
            Ok(found) => {
                let uid = found.pointer("/metadata/uid").and_then(Value::as_str);
                if uid != object.uid.as_deref() {
                    return Ok(());
                }
            }
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
            Err(error) => {
                return Err(cluster::told(error))
                    .with_context(|| format!("failed to watch {} go", object.label));
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            _ = tokio::signal::ctrl_c() => bail!("{} is still being deleted; it goes on without this command", object.label),
        }
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}
