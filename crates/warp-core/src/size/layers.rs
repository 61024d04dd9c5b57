//! What each layer of a model keeps while it works: everything it has seen, a window of it, or a state of fixed size.

use serde_json::Value;

use super::architecture::{number, string};

/// What one layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layer {
    /// Keys and values of every token, or of the last `window` tokens only.
    Tokens { heads: Heads, window: Option<u64> },
    /// One compressed vector per token (MLA), and bytes of an index beside it.
    Latent { dims: u32, index_bytes: u32 },
    /// A state of this many bytes per sequence, however long it is (Mamba, linear attention).
    State { bytes: u64 },
    /// Nothing: a layer without attention.
    Nothing,
}

/// Keys and values of one token in one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Heads {
    pub(super) count: u32,
    /// Numbers per head: of the key and of the value.
    pub(super) dims: u32,
}

/// What the layers of a model have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Layers that keep every token.
    pub(super) full: Layer,
    /// Heads of layers that keep a window.
    pub(super) local: Heads,
}

/// How a layer looks back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Full,
    Window(u64),
    State(u64),
    Nothing,
}

/// The `count` layers of a text model, in order.
pub(super) fn of(text: &Value, count: u32, shape: Shape) -> Vec<Layer> {
    let count = count as usize;
    let window = window(text);
    let mut looks = by_pattern(text)
        .or_else(|| by_blocks(text))
        .or_else(|| by_types(text, window))
        .or_else(|| by_lists(text, count, window))
        .or_else(|| by_interval(text, count))
        .or_else(|| by_window(text, count, window))
        .unwrap_or_default();
    looks.resize(count, Look::Full);
    let layer = |look| match look {
        Look::Full => shape.full,
        Look::Window(tokens) => Layer::Tokens {
            heads: shape.local,
            window: Some(tokens),
        },
        Look::State(bytes) => Layer::State { bytes },
        Look::Nothing => Layer::Nothing,
    };
    looks.into_iter().map(layer).collect()
}

/// How many layers there are, where only the words for each tell.
pub(super) fn told(text: &Value) -> Option<u64> {
    let pattern = string(text, "hybrid_override_pattern").map(|pattern| pattern.chars().count());
    let words = || {
        TYPES
            .iter()
            .find_map(|name| Some(text.get(*name)?.as_array()?.len()))
    };
    pattern
        .or_else(words)
        .map(|count| count as u64)
        .filter(|count| *count > 0)
}

/// The window that is really used: Qwen names one and switches it off; DeepSeek V4 keeps more beside its window
/// (compressed tokens), and is sized as if it kept all.
fn window(text: &Value) -> Option<u64> {
    let off = text.get("use_sliding_window").and_then(Value::as_bool) == Some(false);
    if off || text.get("compress_ratios").is_some() {
        return None;
    }
    number(
        text,
        &[
            "sliding_window",
            "sliding_window_size",
            "attention_chunk_size",
        ],
    )
}

const TYPES: [&str; 3] = ["layer_types", "layers_block_type", "attention_layer_types"];

/// `layer_types` and its older names: one word per layer.
fn by_types(text: &Value, window: Option<u64>) -> Option<Vec<Look>> {
    let types = TYPES.iter().find_map(|name| text.get(*name)?.as_array())?;
    let layers = types
        .iter()
        .map(|word| match word.as_str().unwrap_or_default() {
            "sliding_attention" | "chunked_attention" | "local_attention" | "local" => {
                window.map_or(Look::Full, Look::Window)
            }
            "linear_attention" => Look::State(linear_state(text)),
            "mamba" | "mamba2" | "ssm" | "recurrent" | "conv" => Look::State(mamba_state(text)),
            "mlp" | "moe" | "none" => Look::Nothing,
            _ => Look::Full,
        });
    Some(layers.collect())
}

/// Nemotron-H writes a letter per layer: `M` Mamba, `*` attention, `-` feed-forward, `E` experts.
fn by_pattern(text: &Value) -> Option<Vec<Look>> {
    let pattern = string(text, "hybrid_override_pattern")?;
    let layers = pattern.chars().map(|letter| match letter {
        'M' => Look::State(mamba_state(text)),
        '*' => Look::Full,
        _ => Look::Nothing,
    });
    Some(layers.collect())
}

/// Kimi lists the numbers of its layers with linear attention, counted from one; MiMo writes a 1 for each that keeps a
/// window.
fn by_lists(text: &Value, count: usize, window: Option<u64>) -> Option<Vec<Look>> {
    let numbers = |list: &Value| -> Option<Vec<u64>> {
        Some(list.as_array()?.iter().filter_map(Value::as_u64).collect())
    };
    if let Some(marks) = text.get("hybrid_layer_pattern").and_then(numbers) {
        let look = |mark| {
            if mark == 1 {
                window.map_or(Look::Full, Look::Window)
            } else {
                Look::Full
            }
        };
        return Some(marks.into_iter().map(look).collect());
    }
    let linear = text.get("linear_attn_config")?;
    let state = Look::State(delta_state(linear));
    let listed = numbers(linear.get("kda_layers")?)?;
    let look = |place: u64| {
        if listed.contains(&place) {
            state
        } else {
            Look::Full
        }
    };
    Some((1..=count as u64).map(look).collect())
}

/// Models found by architecture search say of every block what it is; some have no attention at all.
fn by_blocks(text: &Value) -> Option<Vec<Look>> {
    let blocks = text.get("block_configs")?.as_array()?;
    let says =
        |attention: &Value, name: &str| attention.get(name).and_then(Value::as_bool) == Some(true);
    let look = |block: &Value| match block.get("attention") {
        Some(attention) if says(attention, "no_op") || says(attention, "replace_with_linear") => {
            Look::Nothing
        }
        _ => Look::Full,
    };
    Some(blocks.iter().map(look).collect())
}

/// Families that name only how often a layer with full attention comes.
fn by_interval(text: &Value, count: usize) -> Option<Vec<Look>> {
    let every = |period: u64, offset: u64, rest: Look| {
        let is_full = move |index: usize| index as u64 % period == offset % period;
        (0..count)
            .map(|index| if is_full(index) { Look::Full } else { rest })
            .collect()
    };
    if let Some(period) = number(text, &["full_attention_interval"]) {
        return Some(every(period, period - 1, Look::State(linear_state(text))));
    }
    if let Some(period) = number(text, &["attn_layer_period"]) {
        let offset = number(text, &["attn_layer_offset"]).unwrap_or(0);
        return Some(every(period, offset, Look::State(mamba_state(text))));
    }
    let indices = text.get("attn_layer_indices")?.as_array()?;
    let full: Vec<u64> = indices.iter().filter_map(Value::as_u64).collect();
    let state = Look::State(mamba_state(text));
    let layer = |index: usize| {
        if full.contains(&(index as u64)) {
            Look::Full
        } else {
            state
        }
    };
    Some((0..count).map(layer).collect())
}

/// A window without a word per layer: on every layer, on all but each n-th, or on every second one.
fn by_window(text: &Value, count: usize, window: Option<u64>) -> Option<Vec<Look>> {
    let local = Look::Window(window?);
    let family = string(text, "model_type").unwrap_or_default();
    let period =
        number(text, &["sliding_window_pattern", "_sliding_window_pattern"]).or(match family {
            "gemma2" => Some(2),
            "gemma3_text" | "gemma3" => Some(6),
            "llama4_text" | "llama4" | "cohere2" => Some(4),
            _ => None,
        });
    let full_first = number(text, &["max_window_layers"]).filter(|_| family.starts_with("qwen"));
    let layer = |index: usize| {
        let place = index as u64 + 1;
        let full = period.is_some_and(|period| place.is_multiple_of(period))
            || full_first.is_some_and(|layers| place <= layers);
        if full { Look::Full } else { local }
    };
    Some((0..count).map(layer).collect())
}

/// States are kept in 32 bits, convolutions in 16.
const STATE_BYTES: u64 = 4;
const CONVOLUTION_BYTES: u64 = 2;

/// A config is anybody's to write: what is beyond all memory is the most there is, and fits nowhere.
pub(super) fn product(factors: &[u64]) -> u64 {
    factors
        .iter()
        .fold(1, |all, factor| u64::saturating_mul(all, *factor))
}

/// Gated delta rule: a matrix per value head, and the last inputs of a short convolution.
fn linear_state(text: &Value) -> u64 {
    let value = |name: &str| number(text, &[name]).unwrap_or(0);
    let (key_dim, value_dim) = (value("linear_key_head_dim"), value("linear_value_head_dim"));
    let (key_heads, value_heads) = (
        value("linear_num_key_heads"),
        value("linear_num_value_heads"),
    );
    let kernel = value("linear_conv_kernel_dim").saturating_sub(1);
    let keys = product(&[2, key_heads, key_dim]);
    let channels = keys.saturating_add(product(&[value_heads, value_dim]));
    let state = product(&[value_heads, key_dim, value_dim, STATE_BYTES]);
    state.saturating_add(product(&[channels, kernel, CONVOLUTION_BYTES]))
}

/// The same for Kimi's, whose keys and values have one size.
fn delta_state(linear: &Value) -> u64 {
    let value = |name: &str| number(linear, &[name]).unwrap_or(0);
    let (heads, dim) = (value("num_heads"), value("head_dim"));
    let kernel = value("short_conv_kernel_size").saturating_sub(1);
    let state = product(&[heads, dim, dim, STATE_BYTES]);
    state.saturating_add(product(&[3, heads, dim, kernel, CONVOLUTION_BYTES]))
}

/// Mamba: a state vector per inner channel, and the last inputs of a short convolution.
fn mamba_state(text: &Value) -> u64 {
    let state = number(text, &["ssm_state_size", "mamba_d_state", "state_size"]).unwrap_or(16);
    let kernel = number(text, &["conv_kernel", "mamba_d_conv"])
        .unwrap_or(4)
        .saturating_sub(1);
    let heads = number(text, &["mamba_num_heads", "mamba_n_heads"]);
    let head_dim = number(text, &["mamba_head_dim", "mamba_d_head"]);
    let inner = match (heads, head_dim) {
        (Some(heads), Some(dim)) => product(&[heads, dim]),
        _ => product(&[
            number(text, &["mamba_expand", "expand"]).unwrap_or(2),
            number(text, &["hidden_size"]).unwrap_or(0),
        ]),
    };
    let groups = number(text, &["n_groups", "mamba_n_groups"]).unwrap_or(0);
    let inputs = inner.saturating_add(product(&[2, groups, state]));
    let states = product(&[inner, state, STATE_BYTES]);
    states.saturating_add(product(&[inputs, kernel, CONVOLUTION_BYTES]))
}
