//! What `config.json` says about a model's memory, in one form for all families.

use serde_json::Value;
use thiserror::Error;

use super::layers::{self, Heads, Layer, Shape};

/// Why a `config.json` cannot be sized.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    #[error(
        "config.json has none of the fields {0}; it does not describe a transformer this version can size"
    )]
    Missing(&'static str),
    #[error("config.json says {field} = {value}, which cannot be")]
    Impossible { field: &'static str, value: u64 },
}

/// The parts of a model that decide how much memory its attention cache takes and how it can be split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Architecture {
    /// `model_type` as the publisher wrote it.
    pub family: String,
    pub(super) layers: Vec<Layer>,
    pub attention_heads: u32,
    pub kv_heads: u32,
    pub head_dim: u32,
    /// The longest context the publisher allows.
    pub max_context: Option<u64>,
    /// `quantization_config.quant_method`, or none for plain weights.
    pub quantization: Option<String>,
    /// Experts per mixture layer; none for dense models.
    pub experts: Option<u32>,
}

/// More layers, heads or dimensions than any model has: a typo, or a file that is something else.
const LIMIT: u64 = 1 << 20;

const TEXT_PARTS: [&str; 5] = [
    "text_config",
    "llm_config",
    "language_config",
    "thinker_config",
    "text_model",
];
const LAYERS: &[&str] = &["num_hidden_layers", "n_layer", "n_layers", "num_layers"];
const LAYER_FIELDS: &str = "num_hidden_layers (n_layer, num_layers)";
const HEADS: &[&str] = &["num_attention_heads", "n_head", "n_heads", "num_heads"];
const KV_HEADS: &[&str] = &[
    "n_head_kv",
    "num_kv_heads",
    "num_key_value_heads",
    "multi_query_group_num",
    "num_attention_groups",
];
const HEAD_DIM: &[&str] = &[
    "head_dim",
    "hidden_size_per_head",
    "attention_head_dim",
    "kv_channels",
];
const HIDDEN: &[&str] = &["hidden_size", "n_embd", "d_model", "model_dim"];
const CONTEXT: &[&str] = &[
    "max_position_embeddings",
    "n_positions",
    "seq_length",
    "max_seq_len",
    "n_ctx",
    "model_max_length",
];
const EXPERTS: &[&str] = &[
    "num_local_experts",
    "n_routed_experts",
    "num_experts",
    "moe_num_experts",
];

impl Architecture {
    /// Reads a `config.json`. Models of several towers are sized by the one that writes text.
    pub fn read(config: &Value) -> Result<Self, ConfigError> {
        let text = text_part(config);
        let count = number(text, LAYERS)
            .or_else(|| layers::told(text))
            .ok_or(ConfigError::Missing(LAYER_FIELDS))?;
        let count = bounded(LAYER_FIELDS, count)?;
        let heads = required(text, HEADS, "num_attention_heads (n_head)")?;
        let kv_heads = kv_heads(text, heads)?;
        let head_dim = if let Some(told) = optional(text, HEAD_DIM)? {
            told
        } else {
            let hidden = required(text, HIDDEN, "head_dim, hidden_size (n_embd, d_model)")?;
            (hidden / heads).max(1)
        };
        let shape = shape(
            text,
            Heads {
                count: kv_heads,
                dims: head_dim,
            },
        )?;
        let quantization = config
            .get("quantization_config")
            .or_else(|| text.get("quantization_config"))
            .and_then(|quantization| quantization.get("quant_method"))
            .and_then(Value::as_str)
            .map(str::to_lowercase);
        Ok(Self {
            family: string(config, "model_type").unwrap_or("unknown").to_owned(),
            layers: layers::of(text, count, shape),
            attention_heads: heads,
            kv_heads,
            head_dim,
            max_context: number(text, CONTEXT),
            quantization,
            experts: optional(text, EXPERTS)?.filter(|experts| *experts > 1),
        })
    }

    /// Layers that keep anything per token or per sequence, and those that do not.
    pub fn layer_count(&self) -> usize {
        self.layers.len()
    }
}

/// The part of the file that describes the text model; a thinker has its text model one level deeper.
fn text_part(config: &Value) -> &Value {
    if number(config, LAYERS)
        .or_else(|| layers::told(config))
        .is_some()
    {
        return config;
    }
    let nested = TEXT_PARTS
        .iter()
        .find_map(|name| config.get(*name).filter(|part| part.is_object()));
    nested.map_or(config, text_part)
}

fn kv_heads(text: &Value, heads: u32) -> Result<u32, ConfigError> {
    // Falcon's first models say it by a switch: all heads share one pair of keys and values.
    let one_for_all = text.get("multi_query").and_then(Value::as_bool) == Some(true)
        && text
            .get("new_decoder_architecture")
            .and_then(Value::as_bool)
            != Some(true);
    // ChatGLM's switch only says that `multi_query_group_num` holds.
    let grouped = text.get("multi_query_attention").and_then(Value::as_bool) != Some(false);
    let names: Vec<&str> = KV_HEADS
        .iter()
        .copied()
        .filter(|name| grouped || *name != "multi_query_group_num")
        .collect();
    Ok(match optional(text, &names)? {
        Some(told) => told.min(heads),
        None if one_for_all => 1,
        None => heads / smallest_group(text).unwrap_or(1).clamp(1, heads),
    })
}

/// Models found by architecture search say per block how many heads share a key; the smallest group needs most.
fn smallest_group(text: &Value) -> Option<u32> {
    let blocks = text.get("block_configs")?.as_array()?;
    let groups = blocks
        .iter()
        .filter_map(|block| number(block.get("attention")?, &["n_heads_in_group"]));
    groups.min().and_then(|group| u32::try_from(group).ok())
}

/// Bytes of one token's entry in the index of sparse attention, beside its numbers: their scale.
const INDEX_SCALE_BYTES: u32 = 4;

/// What layers with full attention and those with a window keep. `heads` has the dimensions of a key.
fn shape(text: &Value, heads: Heads) -> Result<Shape, ConfigError> {
    let value = |name: &'static str| optional(text, &[name]);
    let pair = |count: Option<u32>, key: Option<u32>, value: Option<u32>| {
        let key = key.unwrap_or(heads.dims);
        Heads {
            count: count.unwrap_or(heads.count),
            dims: key.saturating_add(value.unwrap_or(key)),
        }
    };
    let latent = match value("kv_lora_rank")? {
        None => None,
        Some(rank) => Some(Layer::Latent {
            dims: rank.saturating_add(value("qk_rope_head_dim")?.unwrap_or(0)),
            index_bytes: value("index_head_dim")?
                .map_or(0, |dims| dims.saturating_add(INDEX_SCALE_BYTES)),
        }),
    };
    let own_value = value("v_head_dim")?;
    let full = pair(
        value("num_global_key_value_heads")?,
        value("global_head_dim")?,
        own_value,
    );
    let local = pair(
        value("swa_num_key_value_heads")?,
        value("swa_head_dim")?,
        value("swa_v_head_dim")?.or(own_value),
    );
    Ok(Shape {
        full: latent.unwrap_or(Layer::Tokens {
            heads: full,
            window: None,
        }),
        local,
    })
}

/// No number of a configuration that sizing multiplies is larger; what says so is read as this.
const MOST: u64 = 1 << 31;

/// The first of `names` that is a number above zero. A list (one entry per layer) counts by its largest.
pub(super) fn number(text: &Value, names: &[&str]) -> Option<u64> {
    names.iter().find_map(|name| {
        let value = text.get(*name)?;
        let value = match value {
            Value::Array(each) => each.iter().filter_map(Value::as_u64).max(),
            one => one.as_u64(),
        };
        value
            .filter(|value| *value > 0)
            .map(|value| value.min(MOST))
    })
}

pub(super) fn string<'a>(text: &'a Value, name: &str) -> Option<&'a str> {
    text.get(name).and_then(Value::as_str)
}

fn optional(text: &Value, names: &[&str]) -> Result<Option<u32>, ConfigError> {
    number(text, names)
        .map(|value| bounded("a count", value))
        .transpose()
}

fn required(text: &Value, names: &[&str], said: &'static str) -> Result<u32, ConfigError> {
    let value = number(text, names).ok_or(ConfigError::Missing(said))?;
    bounded(said, value)
}

fn bounded(field: &'static str, value: u64) -> Result<u32, ConfigError> {
    u32::try_from(value)
        .ok()
        .filter(|small| u64::from(*small) <= LIMIT)
        .ok_or(ConfigError::Impossible { field, value })
}
