//! `warp patch`: change fields of one object, by a JSON merge patch.

use std::process::ExitCode;

use anyhow::{Context, bail};
use serde_json::Value;

use super::get::wanted;
use crate::cluster::{self, Connection, Kind, Kinds, Target};
use crate::output;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// KIND/NAME or KIND NAME: `warp patch gpuw/train -p '{"spec":{"gpuCount":4}}'`
    #[arg(required = true, value_name = "KIND/NAME")]
    what: Vec<String>,
    /// The fields to change, as JSON; null takes a field away
    #[arg(short, long, value_name = "JSON")]
    patch: String,
    #[command(flatten)]
    target: Target,
    /// Ask the server what would happen, change nothing
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let patch: Value = serde_json::from_str(&args.patch)
        .with_context(|| format!("the patch is not JSON: {}", args.patch))?;
    if !patch.is_object() {
        bail!("the patch must be an object such as {{\"spec\": {{…}}}}");
    }
    cluster::block_on(async move {
        let connection = args.target.connect().await?;
        let kinds = Kinds::discover(&connection.client).await?;
        let asked = wanted(&args.what)?;
        let [(kind, names)] = asked.as_slice() else {
            bail!("name one object: KIND/NAME");
        };
        let [name] = names.as_slice() else {
            bail!("name one object: KIND/NAME");
        };
        let kind = kinds.named(kind)?;
        let before = get(&connection, kind, name).await?;
        let after = send(&connection, kind, name, &patch, args.dry_run).await?;
        let verb = if version(&before) == version(&after) {
            "unchanged"
        } else {
            "patched"
        };
        let suffix = if args.dry_run { " (dry run)" } else { "" };
        output::line(&format!("{}/{name} {verb}{suffix}", kind.label()));
        Ok(ExitCode::SUCCESS)
    })
}

fn version(object: &Value) -> Option<&Value> {
    object.pointer("/metadata/resourceVersion")
}

async fn get(connection: &Connection, kind: &Kind, name: &str) -> anyhow::Result<Value> {
    let path = kind.path(Some(&connection.namespace), Some(name));
    connection
        .client
        .request(http::Request::get(path).body(Vec::new())?)
        .await
        .map_err(cluster::told)
        .with_context(|| format!("failed to read {}/{name}", kind.label()))
}

async fn send(
    connection: &Connection,
    kind: &Kind,
    name: &str,
    patch: &Value,
    dry_run: bool,
) -> anyhow::Result<Value> {
    let path = kind.path(Some(&connection.namespace), Some(name));
    let dry = if dry_run { "&dryRun=All" } else { "" };
    let uri = format!("{path}?fieldManager=warp&fieldValidation=Strict{dry}");
    let request = http::Request::patch(uri)
        .header("Content-Type", "application/merge-patch+json")
        .header("Accept", "application/json")
        .body(serde_json::to_vec(patch)?)?;
    connection
        .client
        .request(request)
        .await
        .map_err(cluster::told)
        .with_context(|| format!("failed to change {}/{name}", kind.label()))
}
