//! `warp engine`: a serving engine that speaks OpenAI's API and vLLM's names, without a model.
//!
//! Owns arguments, start, drain and end. What is computed when is `warp-core`'s engine; what is said over HTTP is in
//! `engine/routes.rs`.

mod answer;
mod group;
mod metrics;
mod pump;
mod routes;
mod shapes;
mod words;

use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::net::TcpListener;
use warp_core::engine::{Pace, Settings};

use super::node::terminated;
use crate::output;

const FAREWELL: Duration = Duration::from_millis(200);

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// Name of the model it pretends to serve
    #[arg(long, value_name = "NAME")]
    model: String,
    /// Name clients ask for; more than one may be given [default: the model]
    #[arg(long, value_name = "NAME")]
    served_model_name: Vec<String>,
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Key that clients must send; more than one may be given
    #[arg(
        long,
        value_name = "KEY",
        env = "VLLM_API_KEY",
        hide_env_values = true,
        value_delimiter = ','
    )]
    api_key: Vec<String>,
    /// Longest prompt and answer together, in tokens
    #[arg(long, value_name = "TOKENS", default_value = "8k", value_parser = super::model::tokens)]
    max_model_len: u64,
    /// Requests worked on at once
    #[arg(long, value_name = "COUNT", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    max_num_seqs: u32,
    /// Tokens computed in one step
    #[arg(long, value_name = "TOKENS", default_value_t = 8192, value_parser = clap::value_parser!(u32).range(1..))]
    max_num_batched_tokens: u32,
    /// Tokens in one block of the attention cache
    #[arg(long, value_name = "TOKENS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    block_size: u32,
    /// Blocks of the attention cache
    #[arg(long, value_name = "COUNT", default_value_t = 2048, value_parser = clap::value_parser!(u32).range(1..=16_000_000))]
    num_gpu_blocks_override: u32,
    /// Compute every prompt from its first token
    #[arg(long)]
    no_enable_prefix_caching: bool,
    /// Adapters it begins with, as NAME=PATH
    #[arg(long, value_name = "NAME=PATH", num_args = 1.., value_parser = adapter)]
    lora_modules: Vec<(String, String)>,
    /// Seconds requests under way get when it is asked to end; 0 ends them at once
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    shutdown_timeout: u64,
    #[command(flatten)]
    span: group::Span,
    #[command(flatten)]
    speed: Speed,
    #[command(flatten)]
    trouble: Trouble,
}

/// How fast it pretends to be.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Speed")]
struct Speed {
    /// Milliseconds a step takes at least
    #[arg(long, value_name = "MS", default_value_t = 10.0)]
    step_ms: f64,
    /// Microseconds every token of a prompt adds to a step
    #[arg(long, value_name = "US", default_value_t = 50.0)]
    prompt_token_us: f64,
    /// Microseconds every answering request adds to a step
    #[arg(long, value_name = "US", default_value_t = 100.0)]
    request_us: f64,
    /// Seconds it takes to load the weights; nobody is answered before
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    load_seconds: f64,
    /// Seconds it takes to compile after that
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    compile_seconds: f64,
}

/// What goes wrong on request.
#[derive(clap::Args, Clone, Debug)]
#[command(next_help_heading = "Trouble on request")]
struct Trouble {
    /// Fail while the weights are loaded, as with too little memory
    #[arg(long)]
    fail_load: bool,
    /// End with an error after this many requests
    #[arg(long, value_name = "COUNT")]
    crash_after: Option<u64>,
    /// Answer every n-th request with an error
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    error_every: Option<u64>,
    /// Never answer every n-th request
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    stall_every: Option<u64>,
}

fn adapter(text: &str) -> Result<(String, String), String> {
    text.split_once('=')
        .filter(|(name, path)| !name.is_empty() && !path.is_empty())
        .map(|(name, path)| (name.to_owned(), path.to_owned()))
        .ok_or_else(|| format!("'{text}' is not an adapter such as name=/path"))
}

impl Args {
    fn names(&self) -> Vec<String> {
        if self.served_model_name.is_empty() {
            vec![self.model.clone()]
        } else {
            self.served_model_name.clone()
        }
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        let time = |amount: f64, unit: f64, flag: &str| {
            Duration::try_from_secs_f64(amount * unit)
                .with_context(|| format!("--{flag} {amount} is no time"))
        };
        Ok(Settings {
            block_tokens: self.block_size,
            blocks: self.num_gpu_blocks_override,
            max_sequences: self.max_num_seqs,
            max_batched_tokens: self.max_num_batched_tokens,
            max_model_len: u32::try_from(self.max_model_len)
                .context("--max-model-len is larger than any engine takes")?,
            prefix_caching: !self.no_enable_prefix_caching,
            pace: Pace {
                step: time(self.speed.step_ms, 1e-3, "step-ms")?,
                prompt_token: time(self.speed.prompt_token_us, 1e-6, "prompt-token-us")?,
                decoding_request: time(self.speed.request_us, 1e-6, "request-us")?,
            },
        })
    }
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let settings = args.settings()?;
    crate::cluster::block_on(serve(args, settings))
}

async fn serve(args: Args, settings: Settings) -> anyhow::Result<ExitCode> {
    let mut ended = std::pin::pin!(async {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            () = terminated() => {}
        }
    });
    let mut group = tokio::select! {
        () = &mut ended => return Ok(ExitCode::SUCCESS),
        group = group::join(&args.span, args.host) => group?,
    };
    tokio::select! {
        () = &mut ended => return Ok(ExitCode::SUCCESS),
        left = group.broken() => return Err(left),
        loaded = load(&args) => loaded?,
    }
    if args.span.headless {
        output::note("simulated engine: a worker, which answers nobody but its leader");
        tokio::select! {
            () = ended => return Ok(ExitCode::SUCCESS),
            left = group.broken() => return Err(left),
        }
    }
    // As vLLM: nothing listens before the model can answer, so that a connection is the proof of it.
    let listener = TcpListener::bind((args.host, args.port))
        .await
        .with_context(|| {
            format!(
                "failed to listen on {}:{}; choose another with --host and --port",
                args.host, args.port
            )
        })?;
    let address = listener
        .local_addr()
        .context("failed to read the address listened on")?;
    let engine = Arc::new(routes::Shared::new(&args, settings));
    output::note(&format!(
        "simulated engine: model {} at http://{address}/v1 (no weights, made-up answers)",
        args.names().join(", ")
    ));
    let grace = Duration::from_secs(args.shutdown_timeout);
    let serving = routes::serve(listener, engine.clone());
    tokio::select! {
        () = serving => bail!("the engine stopped listening"),
        left = group.broken() => return Err(left),
        () = engine.crashed() => bail!("ended after {} requests, as --crash-after asks", engine.requests()),
        () = ended => {}
    }
    engine.stop_taking();
    output::note(&format!(
        "asked to end: {} requests under way get {} s",
        engine.under_way(),
        grace.as_secs()
    ));
    if tokio::time::timeout(grace, engine.idle()).await.is_err() {
        output::note(&format!("{} requests are cut off", engine.under_way()));
    }
    // What was answered last gets on its way.
    tokio::time::sleep(FAREWELL).await;
    Ok(ExitCode::SUCCESS)
}

/// What a start takes, told as it goes.
async fn load(args: &Args) -> anyhow::Result<()> {
    let phases = [
        ("loading weights", args.speed.load_seconds),
        ("compiling", args.speed.compile_seconds),
    ];
    for (phase, seconds) in phases {
        let time = Duration::try_from_secs_f64(seconds)
            .with_context(|| format!("{seconds} seconds of {phase} are no time"))?;
        if args.trouble.fail_load {
            bail!(
                "failed to load the weights: out of memory, as --fail-load asks; tried to allocate 2.00 GiB, 1.20 GiB are free"
            );
        }
        if !time.is_zero() {
            output::note(&format!("{phase} takes {seconds} s"));
            tokio::time::sleep(time).await;
        }
    }
    Ok(())
}
