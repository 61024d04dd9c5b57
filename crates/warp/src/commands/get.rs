//! `warp get`: objects as the server tabulates them, or as they are.

use std::process::ExitCode;

use anyhow::{Context, bail};
use futures::{AsyncBufReadExt, TryStreamExt};
use kube::Client;
use serde_json::Value;

use crate::cluster::{self, Connection, Kind, Kinds, Target, encode};
use crate::output::{self, Table};

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// KIND, KIND NAME… or KIND/NAME: `warp get gpuw`, `warp get pods train`, `warp get node/a`
    #[arg(required_unless_present = "kinds", value_name = "KIND[/NAME]")]
    what: Vec<String>,
    #[command(flatten)]
    target: Target,
    /// Every namespace
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Only objects with these labels
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
    /// Keep printing changes
    #[arg(short, long)]
    watch: bool,
    /// List the kinds the cluster serves
    #[arg(long)]
    kinds: bool,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Table,
    Wide,
    Json,
    Yaml,
    Name,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(get(args))
}

async fn get(args: Args) -> anyhow::Result<ExitCode> {
    let connection = args.target.connect().await?;
    let kinds = Kinds::discover(&connection.client).await?;
    if args.kinds {
        list_kinds(&kinds);
        return Ok(ExitCode::SUCCESS);
    }
    let wanted = wanted(&args.what)?;
    let mut code = ExitCode::SUCCESS;
    for (index, (kind, names)) in wanted.iter().enumerate() {
        let kind = kinds.named(kind)?;
        if index > 0 && matches!(args.output, Format::Table | Format::Wide) {
            output::line("");
        }
        if !show(&args, &connection, kind, names).await? {
            code = ExitCode::FAILURE;
        }
    }
    Ok(code)
}

/// Kinds and the names asked for under each; no names means all.
pub(crate) fn wanted(words: &[String]) -> anyhow::Result<Vec<(String, Vec<String>)>> {
    let Some((first, rest)) = words.split_first() else {
        return Ok(Vec::new());
    };
    if first.contains('/') {
        return words
            .iter()
            .map(|word| match word.split_once('/') {
                Some((kind, name)) if !name.is_empty() => {
                    Ok((kind.to_owned(), vec![name.to_owned()]))
                }
                _ => bail!("\"{word}\" is not KIND/NAME"),
            })
            .collect();
    }
    Ok(first
        .split(',')
        .map(|kind| (kind.to_owned(), rest.to_vec()))
        .collect())
}

fn list_kinds(kinds: &Kinds) {
    let mut table = Table::new(["KIND", "GROUP", "VERSION", "NAMESPACED"]);
    for kind in kinds.iter() {
        table.row([
            kind.plural.clone(),
            kind.group.clone(),
            kind.version.clone(),
            kind.namespaced.to_string(),
        ]);
    }
    output::text(&table.render(true));
}

async fn show(
    args: &Args,
    connection: &Connection,
    kind: &Kind,
    names: &[String],
) -> anyhow::Result<bool> {
    let namespace = (!args.all_namespaces).then_some(connection.namespace.as_str());
    let mut paths = vec![kind.path(namespace, None)];
    if !names.is_empty() {
        if args.all_namespaces {
            bail!("a name needs one namespace: leave out -A");
        }
        paths = names
            .iter()
            .map(|name| kind.path(namespace, Some(name)))
            .collect();
    }
    let mut whole = true;
    let mut last = Value::Null;
    for (index, path) in paths.iter().enumerate() {
        let fetched = fetch(args, &connection.client, path).await;
        match fetched {
            Ok(answer) => {
                print(args, kind, &answer, index == 0)?;
                last = answer;
            }
            Err(error) if names.len() > 1 => {
                output::error(&error);
                whole = false;
            }
            Err(error) => return Err(error),
        }
    }
    if args.watch {
        let [path] = paths.as_slice() else {
            bail!("one kind or one object can be watched at a time");
        };
        watch(args, &connection.client, kind, path, names.first(), &last).await?;
    }
    Ok(whole)
}

fn is_table(args: &Args) -> bool {
    matches!(args.output, Format::Table | Format::Wide)
}

fn request(args: &Args, path: &str, more: &str) -> anyhow::Result<http::Request<Vec<u8>>> {
    let mut query = String::new();
    if let Some(selector) = &args.selector {
        query.extend(["labelSelector=", &encode(selector)]);
    }
    if !more.is_empty() {
        query += if query.is_empty() { "" } else { "&" };
        query += more;
    }
    let uri = if query.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{query}")
    };
    let accept = if is_table(args) {
        TABLE
    } else {
        "application/json"
    };
    Ok(http::Request::get(uri)
        .header("Accept", accept)
        .body(Vec::new())?)
}

async fn fetch(args: &Args, client: &Client, path: &str) -> anyhow::Result<Value> {
    client
        .request(request(args, path, "")?)
        .await
        .map_err(cluster::told)
}

fn print(args: &Args, kind: &Kind, answer: &Value, header: bool) -> anyhow::Result<()> {
    match args.output {
        Format::Table | Format::Wide => {
            let table = Table::from_server(
                answer,
                args.output == Format::Wide,
                args.all_namespaces && kind.namespaced,
            );
            if table.is_empty() && !args.watch {
                let place = if args.all_namespaces || !kind.namespaced {
                    ""
                } else {
                    " in this namespace"
                };
                output::note(&format!("no {}{place}", kind.plural));
            } else {
                output::text(&table.render(header));
            }
        }
        Format::Name => {
            for object in objects(answer) {
                let name = object
                    .pointer("/metadata/name")
                    .and_then(Value::as_str)
                    .unwrap_or_default();
                output::line(&format!("{}/{name}", kind.label()));
            }
        }
        Format::Json => {
            let text = serde_json::to_string_pretty(&without_bookkeeping(answer))?;
            output::line(&text);
        }
        Format::Yaml => {
            let text = serde_saphyr::to_string(&without_bookkeeping(answer))
                .context("failed to write YAML")?;
            output::text(&text);
        }
    }
    Ok(())
}

fn objects(answer: &Value) -> Vec<&Value> {
    match answer.get("items").and_then(Value::as_array) {
        Some(items) => items.iter().collect(),
        None => vec![answer],
    }
}

/// Field ownership is for machines; people read the rest.
fn without_bookkeeping(answer: &Value) -> Value {
    let mut answer = answer.clone();
    let strip = |object: &mut Value| {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("managedFields");
        }
    };
    match answer.get_mut("items").and_then(Value::as_array_mut) {
        Some(items) => items.iter_mut().for_each(strip),
        None => strip(&mut answer),
    }
    answer
}

/// What is said when nothing more is heard.
const BROKE_OFF: &str = "the watch broke off; `warp status` says whether the server still runs, then run the command again";

/// Prints changes from the version of `answer` on, until interrupted.
async fn watch(
    args: &Args,
    client: &Client,
    kind: &Kind,
    path: &str,
    name: Option<&String>,
    answer: &Value,
) -> anyhow::Result<()> {
    let version = |answer: &Value| {
        answer
            .pointer("/metadata/resourceVersion")
            .and_then(Value::as_str)
            .map(str::to_owned)
    };
    let mut from = version(answer).unwrap_or_else(|| "0".to_owned());
    // Servers name the columns once.
    let columns = answer.get("columnDefinitions").cloned();
    let collection = match name {
        Some(_) => path
            .rsplit_once('/')
            .map_or(path, |(collection, _)| collection),
        None => path,
    };
    let field = name
        .map(|name| format!("&fieldSelector=metadata.name%3D{}", encode(name)))
        .unwrap_or_default();
    loop {
        let request = request(
            args,
            collection,
            &format!("watch=true&resourceVersion={from}{field}"),
        )?;
        let stream = client
            .request_stream(request)
            .await
            .map_err(cluster::told)
            .context(BROKE_OFF)?;
        let mut lines = stream.lines();
        loop {
            let line = tokio::select! {
                line = lines.try_next() => line.context(BROKE_OFF)?,
                _ = tokio::signal::ctrl_c() => return Ok(()),
            };
            // A server ends every watch after a while; it goes on where it was.
            let Some(line) = line else { break };
            let mut event: Value = serde_json::from_str(&line)
                .context("the server sent something that is no event")?;
            if event.get("type").and_then(Value::as_str) == Some("ERROR") {
                let message = event
                    .pointer("/object/message")
                    .and_then(Value::as_str)
                    .unwrap_or("unknown error");
                bail!("the watch ended: {message}; run the command again");
            }
            let Some(object) = event.get_mut("object") else {
                continue;
            };
            let newest = version(object).or_else(|| version(object.pointer("/rows/0/object")?));
            from = newest.unwrap_or(from);
            if let Some(columns) = &columns
                && object
                    .get("columnDefinitions")
                    .is_none_or(|told| told.as_array().is_none_or(Vec::is_empty))
            {
                object["columnDefinitions"] = columns.clone();
            }
            print(args, kind, object, false)?;
        }
    }
}
