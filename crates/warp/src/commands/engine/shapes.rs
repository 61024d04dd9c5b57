//! OpenAI's requests and errors as JSON. Fields that only a real model could honour (temperature and its like) are
//! accepted and have no effect, as every client sends some.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
pub(super) struct Chat {
    pub(super) model: String,
    pub(super) messages: Vec<Message>,
    #[serde(default)]
    pub(super) tools: Vec<Value>,
    #[serde(default)]
    pub(super) tool_choice: Option<Value>,
    pub(super) max_completion_tokens: Option<u64>,
    #[serde(flatten)]
    pub(super) sampling: Sampling,
}

#[derive(Debug, Deserialize)]
pub(super) struct Completion {
    pub(super) model: String,
    pub(super) prompt: Value,
    #[serde(default)]
    pub(super) echo: bool,
    #[serde(flatten)]
    pub(super) sampling: Sampling,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct Sampling {
    pub(super) max_tokens: Option<u64>,
    #[serde(default)]
    pub(super) min_tokens: u64,
    #[serde(default)]
    pub(super) ignore_eos: bool,
    #[serde(default)]
    pub(super) stop: Value,
    pub(super) n: Option<u64>,
    #[serde(default)]
    pub(super) stream: Option<bool>,
    #[serde(default)]
    pub(super) stream_options: Option<StreamOptions>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct StreamOptions {
    #[serde(default)]
    pub(super) include_usage: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct Message {
    pub(super) role: String,
    #[serde(default)]
    content: Value,
}

#[derive(Debug, Deserialize)]
pub(super) struct Embedding {
    pub(super) model: String,
    pub(super) input: Value,
    pub(super) encoding_format: Option<String>,
    pub(super) dimensions: Option<usize>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Adapter {
    pub(super) lora_name: String,
    #[serde(default)]
    pub(super) lora_path: String,
}

impl Message {
    /// The words of a message, whichever way they were sent.
    pub(super) fn text(&self) -> String {
        match &self.content {
            Value::String(text) => text.clone(),
            Value::Array(parts) => {
                let texts = parts.iter().filter_map(|part| part["text"].as_str());
                texts.collect::<Vec<_>>().join("\n")
            }
            _ => String::new(),
        }
    }
}

impl Sampling {
    /// Where the answer ends before its time.
    pub(super) fn stops(&self) -> Vec<String> {
        match &self.stop {
            Value::String(stop) => vec![stop.clone()],
            Value::Array(stops) => stops
                .iter()
                .filter_map(|stop| stop.as_str().map(str::to_owned))
                .collect(),
            _ => Vec::new(),
        }
    }

    pub(super) fn streams(&self) -> bool {
        self.stream.unwrap_or(false)
    }

    pub(super) fn includes_usage(&self) -> bool {
        self.stream_options
            .as_ref()
            .is_some_and(|options| options.include_usage)
    }
}

/// An error as OpenAI's clients read one.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<&'static str>,
    message: String,
}

impl Problem {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            code: None,
            param: None,
            message: message.into(),
        }
    }

    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    pub(super) fn about(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    pub(super) fn too_long(message: impl Into<String>) -> Self {
        Self {
            code: Some("context_length_exceeded"),
            ..Self::bad(message).about("messages")
        }
    }

    pub(super) fn no_model(name: &str) -> Self {
        Self {
            code: Some("model_not_found"),
            param: Some("model"),
            ..Self::new(
                StatusCode::NOT_FOUND,
                "invalid_request_error",
                format!("The model `{name}` does not exist."),
            )
        }
    }

    pub(super) fn no_route(path: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "invalid_request_error",
            format!("Unknown request URL: {path}"),
        )
    }

    pub(super) fn no_key() -> Self {
        Self {
            code: Some("invalid_api_key"),
            ..Self::new(
                StatusCode::UNAUTHORIZED,
                "invalid_request_error",
                "Incorrect API key provided.",
            )
        }
    }

    pub(super) fn ending() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "server_error",
            "The engine is shutting down; try another replica.",
        )
    }

    pub(super) fn asleep() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "server_error",
            "The engine is asleep; POST /wake_up first.",
        )
    }

    pub(super) fn asked_for() -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "server_error",
            "An error, as --error-every asks.",
        )
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        });
        (self.status, Json(body)).into_response()
    }
}
