//! `/v1/embeddings`.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use base64::Engine as _;
use serde_json::{Value, json};

use super::Shared;
use super::generate::{parsed, prompts};
use crate::commands::engine::answer;
use crate::commands::engine::shapes::{Embedding, Problem};

const SIZE: usize = 384;
const LARGEST: usize = 8192;

pub(super) async fn embeddings(
    State(shared): State<Arc<Shared>>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let asked: Embedding = parsed(&body)?;
    shared.knows(&asked.model)?;
    let _under_way = shared.admit().await?;
    let size = asked.dimensions.unwrap_or(SIZE);
    if size == 0 || size > LARGEST {
        return Err(Problem::bad(format!("dimensions must be 1 to {LARGEST}")).about("dimensions"));
    }
    let inputs = prompts(&asked.input).map_err(|problem| problem.about("input"))?;
    let mut data = Vec::new();
    let mut count = 0;
    for (index, tokens) in inputs.iter().enumerate() {
        if tokens.len() as u64 > shared.max_model_len {
            return Err(Problem::too_long(format!(
                "this model's maximum context length is {} tokens, but input {index} has {}",
                shared.max_model_len,
                tokens.len()
            )));
        }
        count += tokens.len();
        let vector = answer::embedding(tokens, size);
        let vector = match asked.encoding_format.as_deref() {
            None | Some("float") => json!(vector),
            Some("base64") => {
                let bytes: Vec<u8> = vector
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect();
                json!(base64::engine::general_purpose::STANDARD.encode(bytes))
            }
            Some(other) => {
                return Err(Problem::bad(format!(
                    "encoding_format '{other}' is not float or base64"
                ))
                .about("encoding_format"));
            }
        };
        data.push(json!({ "object": "embedding", "index": index, "embedding": vector }));
    }
    Ok(Json(json!({
        "object": "list",
        "data": data,
        "model": asked.model,
        "usage": { "prompt_tokens": count, "total_tokens": count },
    })))
}
