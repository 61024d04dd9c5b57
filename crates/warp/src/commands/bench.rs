//! `warp bench`: how fast a service answers under a load that is made here.

mod report;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::report::{Asked, Outcome, Report};
use super::serve::reach::{Events, Reach, refusal};
use super::simulate::Format;
use crate::cluster::{self, Target};
use crate::output;

#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Args {
    /// The InferenceService
    name: String,
    /// Requests in all
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: u32,
    /// Requests under way at once; each is followed by the next (closed loop)
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    concurrency: u32,
    /// Requests begun per second, whether or not earlier ones have ended (open loop)
    #[arg(long, value_name = "RATE", conflicts_with = "concurrency")]
    rate: Option<f64>,
    /// Words of a prompt
    #[arg(long, default_value_t = 128, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    prompt_words: u32,
    /// Words at the beginning of a prompt that all prompts share
    #[arg(long, default_value_t = 0, value_name = "N")]
    shared_words: u32,
    /// Tokens of an answer
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    output_tokens: u32,
    /// A request is good when its first token comes within this many milliseconds
    #[arg(long, value_name = "MS")]
    slo_ttft_ms: Option<f64>,
    /// A request is good when tokens come within this many milliseconds of each other on average
    #[arg(long, value_name = "MS")]
    slo_itl_ms: Option<f64>,
    /// How to print the result
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
    #[command(flatten)]
    target: Target,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args
        .rate
        .is_some_and(|rate| !(rate.is_finite() && rate > 0.0 && rate <= 100_000.0))
    {
        bail!("--rate must be more than 0 and at most 100000");
    }
    cluster::block_on(bench(args))
}

async fn bench(args: Args) -> anyhow::Result<ExitCode> {
    let connection = args.target.connect().await?;
    let reach = Arc::new(Reach::find(&connection, &args.name).await?);
    let bar = output::progress(u64::from(args.requests));
    let started = Instant::now();
    let permits = args.rate.is_none().then(|| {
        Arc::new(Semaphore::new(
            usize::try_from(args.concurrency).unwrap_or(usize::MAX),
        ))
    });
    let mut tasks = tokio::task::JoinSet::new();
    let mut outcomes = Vec::new();
    for number in 0..args.requests {
        let permit = match &permits {
            Some(permits) => Some(permits.clone().acquire_owned().await?),
            None => None,
        };
        if let Some(rate) = args.rate {
            let due = Duration::from_secs_f64(f64::from(number) / rate);
            tokio::time::sleep_until(started + due).await;
        }
        let (reach, body, bar) = (
            reach.clone(),
            body(&args, &reach.model, number),
            bar.clone(),
        );
        tasks.spawn(async move {
            let outcome = one(&reach, &body).await;
            bar.inc(1);
            drop(permit);
            outcome
        });
        while let Some(done) = tasks.try_join_next() {
            outcomes.push(done.context("a request crashed")?);
        }
    }
    while let Some(done) = tasks.join_next().await {
        outcomes.push(done.context("a request crashed")?);
    }
    bar.finish_and_clear();
    let asked = Asked {
        service: args.name.clone(),
        model: reach.model.clone(),
        copies: reach.copies(),
        loop_kind: match args.rate {
            Some(rate) => format!("open, {rate} requests begun per second"),
            None => format!("closed, {} requests at once", args.concurrency),
        },
        slo_ttft_ms: args.slo_ttft_ms,
        slo_itl_ms: args.slo_itl_ms,
    };
    let report = Report::of(&asked, &outcomes, started.elapsed());
    if args.output == Format::Json {
        output::result(&serde_json::to_string_pretty(&report)?);
    } else {
        output::result(&report.table());
    }
    Ok(if report.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

const WORDS: [&str; 16] = [
    "apple", "bridge", "cloud", "doctor", "engine", "forest", "garden", "harbor", "island",
    "jacket", "kitchen", "ladder", "market", "needle", "orange", "pencil",
];

/// A prompt that shares its first words with all others and nothing after them.
fn body(args: &Args, model: &str, number: u32) -> Value {
    let mut text = String::new();
    for index in 0..args.prompt_words {
        let seed = if index < args.shared_words {
            index
        } else {
            number.wrapping_mul(2_654_435_761).wrapping_add(index)
        };
        let word = WORDS[usize::try_from(seed.wrapping_mul(0x9E37_79B1) >> 28).unwrap_or(0)];
        if index == args.shared_words {
            text += &number.to_string();
            text.push(' ');
        }
        text += word;
        text.push(' ');
    }
    json!({
        "model": model,
        "messages": [{ "role": "user", "content": text }],
        "max_tokens": args.output_tokens,
        // Engines that know these answer at full length, so that runs can be compared.
        "ignore_eos": true,
        "min_tokens": args.output_tokens,
        "stream": true,
        "stream_options": { "include_usage": true },
    })
}

async fn one(reach: &Reach, body: &Value) -> Outcome {
    let begun = Instant::now();
    let mut outcome = Outcome::default();
    match follow(reach, body, begun, &mut outcome).await {
        Ok(()) => outcome.whole = Some(begun.elapsed()),
        Err(error) => outcome.error = Some(output::words(&error)),
    }
    outcome
}

async fn follow(
    reach: &Reach,
    body: &Value,
    begun: Instant,
    outcome: &mut Outcome,
) -> anyhow::Result<()> {
    let mut sender = reach.connect().await?;
    let answer = sender
        .send_request(reach.request(body)?)
        .await
        .context("the engine does not answer")?;
    if !answer.status().is_success() {
        return Err(refusal(answer).await);
    }
    let mut answer = answer.into_body();
    let mut events = Events::default();
    let mut last = begun;
    let mut done = false;
    while let Some(frame) = answer.frame().await {
        let frame = frame.context("the answer broke off")?;
        for event in events.take(frame.data_ref().map_or(&[][..], |bytes| bytes)) {
            done |= event == "[DONE]";
            let value: Value = serde_json::from_str(&event).unwrap_or_default();
            if value["choices"][0]["delta"]["content"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
            {
                let now = Instant::now();
                match outcome.first {
                    None => outcome.first = Some(now - begun),
                    Some(_) => outcome.between.push(now - last),
                }
                last = now;
            }
            if let Some(usage) = value["usage"].as_object() {
                let count = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or(0);
                outcome.prompt_tokens = count("prompt_tokens");
                outcome.answer_tokens = count("completion_tokens");
            }
        }
    }
    if !done {
        bail!("the answer broke off before its end");
    }
    Ok(())
}
