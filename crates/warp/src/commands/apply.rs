//! `warp apply`: server-side apply of manifests, with our own field manager.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use kube::Client;
use serde_json::Value;

use crate::cluster::{self, Connection, Kind, Kinds, Manifest, Target};
use crate::output;

/// A kind whose definition was applied a moment ago is waited for this long.
const NEW_KINDS: Duration = Duration::from_secs(10);
/// API servers read no more of one request, and end the connection of a larger one before they could say why.
const LARGEST: usize = 3 << 20;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// File, folder or - for standard input; repeatable
    #[arg(short, long = "filename", required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    #[command(flatten)]
    target: Target,
    /// Ask the server what would happen, change nothing
    #[arg(long)]
    dry_run: bool,
    /// Take over fields that somebody else owns
    #[arg(long)]
    force_conflicts: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(apply(args))
}

async fn apply(args: Args) -> anyhow::Result<ExitCode> {
    let manifests = Manifest::read(&args.files)?;
    let connection = args.target.connect().await?;
    let mut kinds = Kinds::discover(&connection.client).await?;
    let mut new_kinds = false;
    let mut failed = false;
    for manifest in manifests {
        let manifest = &manifest?;
        let kind = match resolve(manifest, &kinds) {
            Ok(kind) => kind.clone(),
            Err(_) if new_kinds => {
                kinds = rediscover(&connection.client, manifest).await?;
                resolve(manifest, &kinds)?.clone()
            }
            Err(error) => {
                output::error(&error);
                failed = true;
                continue;
            }
        };
        new_kinds |= kind.kind == "CustomResourceDefinition";
        match one(&args, &connection, &kind, manifest).await {
            Ok((name, verb)) => {
                let suffix = if args.dry_run { " (dry run)" } else { "" };
                output::line(&format!("{}/{name} {verb}{suffix}", kind.label()));
            }
            Err(error) => {
                output::error(&error);
                failed = true;
            }
        }
    }
    Ok(if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

pub(crate) fn resolve<'a>(manifest: &Manifest, kinds: &'a Kinds) -> anyhow::Result<&'a Kind> {
    let version = manifest.field("/apiVersion").unwrap_or_default();
    let kind = manifest.field("/kind").unwrap_or_default();
    kinds.of(version, kind).with_context(|| {
        let fix = match kinds.near(kind) {
            Some(near) => format!("did you mean {near}?"),
            None if version.starts_with("gpu.warp.dev/") => {
                "is its definition installed? (`warp install`)".to_owned()
            }
            None => "is its definition installed? (`warp get --kinds` lists what is)".to_owned(),
        };
        format!(
            "{}: the cluster serves no {kind} in {version}; {fix}",
            manifest.source
        )
    })
}

async fn rediscover(client: &Client, manifest: &Manifest) -> anyhow::Result<Kinds> {
    let deadline = tokio::time::Instant::now() + NEW_KINDS;
    loop {
        let kinds = Kinds::discover(client).await?;
        match resolve(manifest, &kinds) {
            Ok(_) => return Ok(kinds),
            Err(error) if tokio::time::Instant::now() > deadline => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// The path of a manifest's object.
pub(crate) fn path(
    connection: &Connection,
    target: &Target,
    kind: &Kind,
    manifest: &Manifest,
) -> anyhow::Result<String> {
    Ok(kind.path(
        Some(namespace(connection, target, kind, manifest)?),
        Some(manifest.name()?),
    ))
}

/// The namespace a manifest's object is in.
fn namespace<'a>(
    connection: &'a Connection,
    target: &Target,
    kind: &Kind,
    manifest: &'a Manifest,
) -> anyhow::Result<&'a str> {
    let own = manifest.field("/metadata/namespace");
    if let (Some(own), Some(asked)) = (own, &target.namespace)
        && own != asked
        && kind.namespaced
    {
        bail!(
            "{}: the object is in namespace {own}, but --namespace says {asked}",
            manifest.source
        );
    }
    Ok(own.unwrap_or(&connection.namespace))
}

/// What is sent of a manifest.
fn body(manifest: &Manifest) -> anyhow::Result<Vec<u8>> {
    let body = serde_json::to_vec(&manifest.object)?;
    if body.len() > LARGEST {
        bail!(
            "{}: the object is {:.1} MiB and a server takes {} MiB at most; keep large data in a volume or a ModelCache and mount that",
            manifest.source,
            body.len() as f64 / f64::from(1 << 20),
            LARGEST >> 20
        );
    }
    Ok(body)
}

/// An object whose name the server makes up: there is nothing to change, a new one is made every time.
async fn make(
    args: &Args,
    connection: &Connection,
    kind: &Kind,
    manifest: &Manifest,
    begin: &str,
) -> anyhow::Result<(String, &'static str)> {
    let namespace = namespace(connection, &args.target, kind, manifest)?;
    let mut uri = kind.path(Some(namespace), None);
    uri += "?fieldManager=warp&fieldValidation=Strict";
    if args.dry_run {
        uri += "&dryRun=All";
    }
    let post = http::Request::post(uri)
        .header("Content-Type", "application/json")
        .body(body(manifest)?)?;
    let made: Value = connection
        .client
        .request(post)
        .await
        .map_err(cluster::told)
        .with_context(|| {
            let (label, source) = (kind.label(), &manifest.source);
            format!("failed to create {label}/{begin}… from {source}")
        })?;
    let name = made.pointer("/metadata/name").and_then(Value::as_str);
    Ok((name.unwrap_or(begin).to_owned(), "created"))
}

/// The name of the object and what became of it.
async fn one(
    args: &Args,
    connection: &Connection,
    kind: &Kind,
    manifest: &Manifest,
) -> anyhow::Result<(String, &'static str)> {
    if let (None, Some(begin)) = (
        manifest.field("/metadata/name"),
        manifest.field("/metadata/generateName"),
    ) {
        return make(args, connection, kind, manifest, begin).await;
    }
    let name = manifest.name()?.to_owned();
    let path = path(connection, &args.target, kind, manifest)?;
    let label = format!("{}/{name}", kind.label());
    let get = http::Request::get(&path).body(Vec::new())?;
    let before = match connection.client.request::<Value>(get).await {
        Ok(object) => Some(own_part(object)),
        Err(kube::Error::Api(status)) if status.is_not_found() => None,
        Err(error) => {
            return Err(cluster::told(error)).with_context(|| format!("failed to read {label}"));
        }
    };
    let mut query = "fieldManager=warp&fieldValidation=Strict".to_owned();
    if args.force_conflicts {
        query += "&force=true";
    }
    if args.dry_run {
        query += "&dryRun=All";
    }
    let patch = http::Request::patch(format!("{path}?{query}"))
        .header("Content-Type", "application/apply-patch+yaml")
        .header("Accept", "application/json")
        .body(body(manifest)?)?;
    let after: Value = match connection.client.request(patch).await {
        Ok(object) => object,
        Err(kube::Error::Api(status)) if status.is_conflict() => bail!(
            "failed to apply {label}: {}; change it where it is owned, or take the fields over with --force-conflicts",
            in_one_line(&status.message)
        ),
        Err(error) => {
            return Err(cluster::told(error))
                .with_context(|| format!("failed to apply {label} from {}", manifest.source));
        }
    };
    let verb = match before {
        None => "created",
        Some(before) if before == own_part(after) => "unchanged",
        Some(_) => "configured",
    };
    Ok((name, verb))
}

/// A list of conflicts as part of a sentence.
fn in_one_line(message: &str) -> String {
    let lines = message.lines().map(str::trim);
    let lines: Vec<&str> = lines.map(|line| line.trim_start_matches("- ")).collect();
    lines.join(" ")
}

/// An object without what others write while one looks: controllers their status, the server its
/// bookkeeping.
fn own_part(mut object: Value) -> Value {
    if let Some(object) = object.as_object_mut() {
        object.remove("status");
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
        metadata.remove("managedFields");
    }
    object
}
