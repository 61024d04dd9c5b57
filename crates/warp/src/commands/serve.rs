//! `warp serve`: from the name of a model to an address that answers, with the plan shown before anything is made.

mod change;
pub(crate) mod fleet;
mod layout;
pub(crate) mod reach;
mod wait;

use std::io::{BufRead as _, IsTerminal as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use warp_api::{InferenceService, label};

use self::fleet::Fleet;
use self::layout::Chosen;
use crate::cluster::{self, Target, told};
use crate::output;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// A model of the hub (`ORG/NAME[@REVISION]`), a volume (pvc://CLAIM/FOLDER), or any name for the simulated engine
    #[arg(value_name = "MODEL")]
    model: String,
    /// Name of the service [default: from the model's]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// GPU to serve on, such as MI300X or H100 [default: the cluster's GPUs that need the fewest]
    #[arg(long, value_name = "MODEL")]
    gpu: Option<String>,
    /// GPUs of one copy [default: as many as the model needs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=16))]
    gpus: Option<u32>,
    /// Copies
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1000))]
    replicas: u32,
    /// What serves it [default: vLLM, and the simulated engine where all nodes that could serve are simulated]
    #[arg(long, value_enum)]
    engine: Option<Engine>,
    /// Tokens of one sequence, prompt and answer
    #[arg(long, default_value = "8k", value_name = "TOKENS", value_parser = super::model::tokens)]
    max_context: u64,
    /// Sequences of that length at once, for the choice of GPUs
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: u32,
    /// An argument of the engine, as NAME=VALUE; repeatable
    #[arg(long = "arg", value_name = "NAME=VALUE", value_parser = pair)]
    engine_arguments: Vec<(String, String)>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Print the manifest and make nothing
    #[arg(long)]
    dry_run: bool,
    /// Give up waiting after this long
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = super::duration)]
    timeout: Duration,
    #[command(flatten)]
    target: Target,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Vllm,
    Simulated,
}

fn pair(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .ok_or_else(|| format!("'{text}' is not an argument such as max-model-len=32k"))
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<ExitCode> {
    let connection = args.target.connect().await?;
    let fleet = Fleet::read(&connection.client).await?;
    let (engine, why) = fleet.engine(args.engine, args.gpu.as_deref());
    let chosen = layout::choose(&args, engine, &fleet)?;
    let manifest = manifest(&args, engine, &chosen)?;
    let name = manifest["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    output::note(&why);
    for line in &chosen.told {
        output::note(line);
    }
    let services: Api<InferenceService> =
        Api::namespaced(connection.client.clone(), &connection.namespace);
    // Whoever agrees to what is told of a service that is there has its fields, whoever wrote them.
    let params = PatchParams::apply("warp-serve").force();
    let changes = change::of(&services, &name, &manifest, &params).await?;
    if let Some(changes) = &changes {
        let namespace = &connection.namespace;
        output::note(&match changes.len() {
            0 => format!(
                "the service {name} in namespace {namespace} exists already, as it is asked for"
            ),
            _ => format!(
                "the service {name} in namespace {namespace} exists already; this changes it:"
            ),
        });
        for change in changes {
            output::note(&format!("  {change}"));
        }
    }
    if args.dry_run {
        output::result(&serde_json::to_string_pretty(&manifest)?);
        return Ok(ExitCode::SUCCESS);
    }
    output::note(&format!(
        "service {name} in namespace {}: {} × {} on {}",
        connection.namespace,
        args.replicas,
        args.model,
        chosen.describe()
    ));
    let as_asked = changes.as_ref().is_some_and(Vec::is_empty);
    if !as_asked && !args.yes && !agreed()? {
        output::note(match changes {
            Some(_) => "nothing was changed",
            None => "nothing was made",
        });
        return Ok(ExitCode::FAILURE);
    }
    let applied = services
        .patch(&name, &params, &Patch::Apply(&manifest))
        .await
        .map_err(told)
        .with_context(|| format!("failed to make the service {name}"))?;
    let generation = applied.metadata.generation.unwrap_or_default();
    let ready = tokio::select! {
        ready = wait::until_ready(&services, &name, generation, args.timeout) => ready?,
        _ = tokio::signal::ctrl_c() => {
            output::note(&format!("the service goes on without us: `warp get isvc {name}` shows it, `warp delete isvc {name}` ends it"));
            return Ok(ExitCode::FAILURE);
        }
    };
    output::line(&wait::curl(&ready));
    output::note(&format!(
        "talk to it with `warp chat {name}`; measure it with `warp bench {name}`; end it with `warp delete isvc {name}`"
    ));
    Ok(ExitCode::SUCCESS)
}

fn manifest(args: &Args, engine: Engine, chosen: &Chosen) -> anyhow::Result<Value> {
    let (source, revision) = match args.model.split_once('@') {
        Some((source, revision)) => (source, Some(revision)),
        None => (args.model.as_str(), None),
    };
    let name = match &args.name {
        Some(name) => name.clone(),
        None => name_of(source)
            .with_context(|| format!("no name can be made from {source}; give one with --name"))?,
    };
    let arguments: serde_json::Map<String, Value> = args
        .engine_arguments
        .iter()
        .map(|(name, value)| (name.clone(), json!(value)))
        .collect();
    let mut spec = json!({
        "model": { "source": source },
        "gpuCount": chosen.gpus,
        "replicas": args.replicas,
    });
    if let Some(revision) = revision {
        spec["model"]["revision"] = json!(revision);
    }
    if engine == Engine::Simulated {
        spec["engine"]["type"] = json!("simulated");
    }
    if !arguments.is_empty() {
        spec["engine"]["args"] = Value::Object(arguments);
    }
    if chosen.gpus > 0 {
        spec["gpu"] = json!({ "vendor": chosen.vendor });
        if let Some(model) = &chosen.model {
            spec["gpu"]["models"] = json!([model]);
        }
        spec["parallelism"] = json!({ "tensor": chosen.tensor, "pipeline": chosen.pipeline });
    }
    let mut metadata = json!({ "name": name });
    if let Some(tokens) = chosen.cache_tokens {
        // What its engine reports once it runs is compared with it.
        metadata["annotations"] = json!({ label::ESTIMATED_CACHE: tokens.to_string() });
    }
    Ok(json!({
        "apiVersion": "gpu.warp.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": metadata,
        "spec": spec,
    }))
}

/// `Qwen/Qwen2.5-7B-Instruct` becomes `qwen2-5-7b-instruct`.
fn name_of(source: &str) -> Option<String> {
    let last = source.rsplit('/').find(|part| !part.is_empty())?;
    let mut name = String::new();
    for letter in last.to_lowercase().chars() {
        let fits = letter.is_ascii_alphanumeric();
        if fits && !(name.is_empty() && letter.is_ascii_digit()) {
            name.push(letter);
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    name.truncate(50);
    let name = name.trim_end_matches('-').to_owned();
    (!name.is_empty()).then_some(name)
}

fn agreed() -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!("nobody can be asked here; say --yes to go on, or --dry-run to only look");
    }
    output::note("go on? [y/N]");
    let mut answer = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut answer)
        .context("failed to read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_services_name_is_made_from_the_models() {
        let cases = [
            ("Qwen/Qwen2.5-7B-Instruct", Some("qwen2-5-7b-instruct")),
            ("demo", Some("demo")),
            ("org/01-ai__Yi", Some("ai-yi")),
            ("pvc://weights/llama-3/", Some("llama-3")),
            ("///", None),
        ];
        for (source, expected) in cases {
            assert_eq!(name_of(source).as_deref(), expected, "{source}");
        }
    }
}
