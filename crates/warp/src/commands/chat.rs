//! `warp chat`: talk to a service from the terminal.

use std::io::{BufRead as _, IsTerminal as _};
use std::process::ExitCode;

use anyhow::Context as _;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use super::serve::reach::{Events, Reach, refusal};
use crate::cluster::{self, Target};
use crate::output;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The InferenceService
    name: String,
    /// What to say; without it every line of standard input is said in turn
    message: Vec<String>,
    /// What the model is told before anything else
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Longest answer in tokens
    #[arg(long, value_name = "N")]
    max_tokens: Option<u64>,
    /// Ask for this name instead of the service's own, such as an adapter's
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    #[command(flatten)]
    target: Target,
}

pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    cluster::block_on(chat(args))
}

async fn chat(args: Args) -> anyhow::Result<ExitCode> {
    let connection = args.target.connect().await?;
    let reach = Reach::find(&connection, &args.name).await?;
    let model = args.model.clone().unwrap_or_else(|| reach.model.clone());
    let mut messages: Vec<Value> = args
        .system
        .iter()
        .map(|text| json!({ "role": "system", "content": text }))
        .collect();
    if !args.message.is_empty() {
        let text = args.message.join(" ");
        say(&reach, &args, &model, &mut messages, &text).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let asked = std::io::stdin().is_terminal();
    if asked {
        output::note(&format!("{model}: say something; Ctrl-D ends it"));
    }
    loop {
        let line = tokio::task::spawn_blocking(|| {
            let mut line = String::new();
            let count = std::io::stdin().lock().read_line(&mut line)?;
            std::io::Result::Ok((count > 0).then_some(line))
        });
        let line = tokio::select! {
            line = line => line.context("failed to read")?.context("failed to read what you say")?,
            _ = tokio::signal::ctrl_c() => None,
        };
        let Some(line) = line else {
            return Ok(ExitCode::SUCCESS);
        };
        if !line.trim().is_empty() {
            say(&reach, &args, &model, &mut messages, line.trim()).await?;
        }
    }
}

/// Says one thing and prints the answer as it comes.
async fn say(
    reach: &Reach,
    args: &Args,
    model: &str,
    messages: &mut Vec<Value>,
    text: &str,
) -> anyhow::Result<()> {
    messages.push(json!({ "role": "user", "content": text }));
    let mut body = json!({ "model": model, "messages": messages, "stream": true });
    if let Some(most) = args.max_tokens {
        body["max_tokens"] = json!(most);
    }
    let mut sender = reach.connect().await?;
    let answer = sender
        .send_request(reach.request(&body)?)
        .await
        .context("the engine does not answer")?;
    if !answer.status().is_success() {
        return Err(refusal(answer).await);
    }
    let mut answer = answer.into_body();
    let mut events = Events::default();
    let mut whole = String::new();
    while let Some(frame) = answer.frame().await {
        let frame = frame.context("the answer broke off")?;
        for event in events.take(frame.data_ref().map_or(&[][..], |bytes| bytes)) {
            let value: Value = serde_json::from_str(&event).unwrap_or_default();
            if let Some(piece) = value["choices"][0]["delta"]["content"].as_str() {
                whole += piece;
                output::text(piece);
            }
        }
    }
    output::text("\n");
    messages.push(json!({ "role": "assistant", "content": whole }));
    Ok(())
}
