//! `/v1/chat/completions` and `/v1/completions`, at once or as a stream.

use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Shared, UnderWay};
use crate::commands::engine::answer::{self, Answer, Finish, Limits};
use crate::commands::engine::pump::Ticket;
use crate::commands::engine::shapes::{Chat, Completion, Problem, Sampling};
use crate::commands::engine::words;

/// Reads a body whatever its content type says, as engines do.
pub(super) fn parsed<T: DeserializeOwned>(body: &Bytes) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|error| Problem::bad(error.to_string()))
}

/// The tokens of each prompt: text, texts, token ids, or lists of those.
pub(super) fn prompts(given: &Value) -> Result<Vec<Vec<u32>>, Problem> {
    let ids = |list: &[Value]| -> Option<Vec<u32>> {
        let id = |value: &Value| u32::try_from(value.as_u64()?).ok();
        list.iter().map(id).collect()
    };
    let read = match given {
        Value::String(text) => Some(vec![words::tokens(text)]),
        Value::Array(list) if list.is_empty() => None,
        Value::Array(list) if list.iter().all(Value::is_u64) => ids(list).map(|ids| vec![ids]),
        Value::Array(list) => list
            .iter()
            .map(|one| match one {
                Value::String(text) => Some(words::tokens(text)),
                Value::Array(inner) => ids(inner),
                _ => None,
            })
            .collect(),
        _ => None,
    };
    read.ok_or_else(|| Problem::bad("it must be a text, a list of texts, or lists of token ids"))
}

/// One answer that is under way.
struct Job {
    form: Form,
    model: String,
    answer: Answer,
    prompt_tokens: usize,
    ticket: Ticket,
    sampling: Sampling,
    under_way: UnderWay,
}

/// How an answer is written.
#[derive(Clone, Debug)]
enum Form {
    Chat { tool: Option<String> },
    Text { echo: String },
}

pub(super) async fn chat(
    State(shared): State<Arc<Shared>>,
    body: Bytes,
) -> Result<Response, Problem> {
    let asked: Chat = parsed(&body)?;
    shared.knows(&asked.model)?;
    if asked.messages.is_empty() {
        return Err(Problem::bad("messages must not be empty").about("messages"));
    }
    let mut prompt = String::new();
    for message in &asked.messages {
        for part in [
            "<|",
            message.role.as_str(),
            "|>\n",
            message.text().as_str(),
            "\n",
        ] {
            prompt += part;
        }
    }
    for tool in &asked.tools {
        prompt += &tool.to_string();
    }
    prompt += "<|assistant|>\n";
    let question = asked
        .messages
        .iter()
        .rfind(|message| message.role == "user")
        .map(super::super::shapes::Message::text)
        .unwrap_or_default();
    let tool = tool_wanted(&asked)?;
    let sampling = Sampling {
        max_tokens: asked.max_completion_tokens.or(asked.sampling.max_tokens),
        ..asked.sampling
    };
    let form = Form::Chat { tool };
    let tokens = words::tokens(&prompt);
    let job = begin(&shared, asked.model, form, tokens, &question, sampling).await?;
    Ok(answered(job).await)
}

/// The tool that must be called, when one must.
fn tool_wanted(asked: &Chat) -> Result<Option<String>, Problem> {
    let named = |tool: &Value| tool["function"]["name"].as_str().map(str::to_owned);
    match &asked.tool_choice {
        Some(Value::String(choice)) if choice == "required" => asked
            .tools
            .first()
            .and_then(named)
            .map(Some)
            .ok_or_else(|| Problem::bad("tool_choice is required, but there are no tools")),
        Some(choice @ Value::Object(_)) => {
            let wanted = named(choice);
            let known = asked.tools.iter().any(|tool| named(tool) == wanted);
            if known {
                Ok(wanted)
            } else {
                Err(
                    Problem::bad("tool_choice names a tool that is not in tools")
                        .about("tool_choice"),
                )
            }
        }
        _ => Ok(None),
    }
}

pub(super) async fn completion(
    State(shared): State<Arc<Shared>>,
    body: Bytes,
) -> Result<Response, Problem> {
    let asked: Completion = parsed(&body)?;
    shared.knows(&asked.model)?;
    let mut all = prompts(&asked.prompt).map_err(|problem| problem.about("prompt"))?;
    if all.len() != 1 {
        return Err(Problem::bad("one prompt at a time").about("prompt"));
    }
    let tokens = all.swap_remove(0);
    let question = match &asked.prompt {
        Value::String(text) => text.clone(),
        Value::Array(list) => list
            .first()
            .and_then(Value::as_str)
            .map_or_else(|| format!("{} tokens", tokens.len()), str::to_owned),
        _ => String::new(),
    };
    let echo = if asked.echo {
        question.clone()
    } else {
        String::new()
    };
    let sampling = Sampling {
        // OpenAI's own default for this path.
        max_tokens: asked.sampling.max_tokens.or(Some(16)),
        ..asked.sampling
    };
    let form = Form::Text { echo };
    let job = begin(&shared, asked.model, form, tokens, &question, sampling).await?;
    Ok(answered(job).await)
}

async fn begin(
    shared: &Arc<Shared>,
    model: String,
    form: Form,
    prompt: Vec<u32>,
    question: &str,
    sampling: Sampling,
) -> Result<Job, Problem> {
    if sampling.n.unwrap_or(1) != 1 {
        return Err(Problem::bad("one answer at a time: n must be 1").about("n"));
    }
    if sampling.max_tokens == Some(0) {
        return Err(Problem::bad("max_tokens must be at least 1").about("max_tokens"));
    }
    let room = shared.max_model_len.saturating_sub(prompt.len() as u64);
    let most = sampling.max_tokens.unwrap_or(room);
    if room == 0 || most > room {
        return Err(Problem::too_long(format!(
            "This model's maximum context length is {} tokens. However, you requested {} in the answer and your prompt contains {}.",
            shared.max_model_len,
            sampling.max_tokens.unwrap_or(1),
            prompt.len()
        )));
    }
    let under_way = shared.admit().await?;
    let stops = sampling.stops();
    let limits = Limits {
        most: usize::try_from(most).unwrap_or(usize::MAX),
        least: usize::try_from(sampling.min_tokens).unwrap_or(usize::MAX),
        ignore_end: sampling.ignore_eos,
        stops: &stops,
    };
    let answer = match &form {
        Form::Chat { tool: Some(_) } => answer::call(),
        _ => answer::to(&model, question, &limits),
    };
    let numbers = answer.pieces.iter().map(|piece| words::token(piece));
    let numbers = numbers.collect();
    let prompt_tokens = prompt.len();
    let ticket = shared
        .pump
        .submit(under_way.number, prompt, numbers)
        .await
        .map_err(|refusal| Problem::too_long(refusal.to_string()))?;
    Ok(Job {
        form,
        model,
        answer,
        prompt_tokens,
        ticket,
        sampling,
        under_way,
    })
}

async fn answered(mut job: Job) -> Response {
    if job.sampling.streams() {
        return stream(job);
    }
    let mut cached = 0;
    let mut count = 0;
    while let Some(token) = job.ticket.tokens.recv().await {
        cached = token.begun.map_or(cached, |begun| begun.cached);
        count += 1;
        if token.last {
            break;
        }
    }
    job.under_way
        .shared
        .metrics
        .finished(job.answer.finish.as_str());
    let text = job.answer.pieces.concat();
    let mut whole = job.envelope(false);
    whole["choices"] = json!([job.form.whole(&text, job.answer.finish, &job.id())]);
    whole["usage"] = usage(job.prompt_tokens, count, cached);
    Json(whole).into_response()
}

fn usage(prompt: usize, answer: usize, cached: u64) -> Value {
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": { "cached_tokens": cached },
    })
}

impl Job {
    fn id(&self) -> String {
        let kind = match self.form {
            Form::Chat { .. } => "chatcmpl",
            Form::Text { .. } => "cmpl",
        };
        format!(
            "{kind}-{}-{}",
            self.under_way.shared.started, self.under_way.number
        )
    }

    fn envelope(&self, chunk: bool) -> Value {
        json!({
            "id": self.id(),
            "object": match (&self.form, chunk) {
                (Form::Chat { .. }, false) => "chat.completion",
                (Form::Chat { .. }, true) => "chat.completion.chunk",
                (Form::Text { .. }, _) => "text_completion",
            },
            "created": self.under_way.shared.started,
            "model": self.model,
        })
    }

    fn event(&self, choices: Value, usage: Option<Value>) -> String {
        let mut chunk = self.envelope(true);
        chunk["choices"] = choices;
        if let Some(usage) = usage {
            chunk["usage"] = usage;
        }
        format!("data: {chunk}\n\n")
    }
}

impl Form {
    fn whole(&self, text: &str, finish: Finish, id: &str) -> Value {
        let finish = finish.as_str();
        match self {
            Self::Chat { tool: Some(tool) } => json!({
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": null,
                    "tool_calls": [{
                        "id": format!("call-{id}"),
                        "type": "function",
                        "function": { "name": tool, "arguments": text },
                    }],
                },
                "logprobs": null,
                "finish_reason": finish,
            }),
            Self::Chat { tool: None } => json!({
                "index": 0,
                "message": { "role": "assistant", "content": text },
                "logprobs": null,
                "finish_reason": finish,
            }),
            Self::Text { echo } => json!({
                "index": 0,
                "text": format!("{echo}{text}"),
                "logprobs": null,
                "finish_reason": finish,
            }),
        }
    }

    /// What comes before the first token.
    fn opening(&self, id: &str) -> Option<Value> {
        match self {
            Self::Chat { tool: None } => Some(json!({ "role": "assistant", "content": "" })),
            Self::Chat { tool: Some(tool) } => Some(json!({
                "role": "assistant",
                "tool_calls": [{
                    "index": 0,
                    "id": format!("call-{id}"),
                    "type": "function",
                    "function": { "name": tool, "arguments": "" },
                }],
            })),
            Self::Text { .. } => None,
        }
    }

    fn piece(&self, piece: &str, first: bool, finish: Option<Finish>) -> Value {
        let finish = finish.map(Finish::as_str);
        let delta = match self {
            Self::Text { echo } => {
                let before = if first { echo.as_str() } else { "" };
                return json!([{
                    "index": 0, "text": format!("{before}{piece}"), "logprobs": null, "finish_reason": finish,
                }]);
            }
            Self::Chat { tool: None } => json!({ "content": piece }),
            Self::Chat { tool: Some(_) } => {
                json!({ "tool_calls": [{ "index": 0, "function": { "arguments": piece } }] })
            }
        };
        json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }])
    }
}

/// Server-sent events, one for every token.
fn stream(job: Job) -> Response {
    let opening = job
        .form
        .opening(&job.id())
        .map(|delta| {
            let choices =
                json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": null }]);
            job.event(choices, None)
        })
        .unwrap_or_default();
    let events = futures::stream::unfold((Some(job), opening, 0_u64), next_event);
    let body = Body::from_stream(events);
    let headers = [
        (
            http::header::CONTENT_TYPE,
            "text/event-stream; charset=utf-8",
        ),
        (http::header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, body).into_response()
}

type Streaming = (Option<Job>, String, u64);

async fn next_event(
    (job, before, cached): Streaming,
) -> Option<(Result<String, std::convert::Infallible>, Streaming)> {
    let mut job = job?;
    let token = job.ticket.tokens.recv().await?;
    let cached = token.begun.map_or(cached, |begun| begun.cached);
    let piece = job
        .answer
        .pieces
        .get(token.index)
        .map_or("", String::as_str);
    let finish = token.last.then_some(job.answer.finish);
    let choices = job.form.piece(piece, token.index == 0, finish);
    let mut text = before + &job.event(choices, None);
    if !token.last {
        return Some((Ok(text), (Some(job), String::new(), cached)));
    }
    job.under_way
        .shared
        .metrics
        .finished(job.answer.finish.as_str());
    if job.sampling.includes_usage() {
        let counted = usage(job.prompt_tokens, job.answer.pieces.len(), cached);
        text += &job.event(json!([]), Some(counted));
    }
    text += "data: [DONE]\n\n";
    Some((Ok(text), (None, String::new(), cached)))
}
