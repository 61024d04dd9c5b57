// `json!` at the call reads best by value.
#![allow(clippy::needless_pass_by_value)]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::gpu;

const GIB: u64 = 1 << 30;

fn model(config: Value, weights_tenths_gib: u64) -> Model {
    Model {
        architecture: Architecture::read(&config).expect("a config this version can size"),
        weights_bytes: weights_tenths_gib * GIB / 10,
    }
}

fn grouped(layers: u32, heads: u32, kv_heads: u32, hidden: u32) -> Value {
    json!({"model_type": "llama", "num_hidden_layers": layers, "num_attention_heads": heads,
           "num_key_value_heads": kv_heads, "hidden_size": hidden})
}

/// 16 sequences of 8k tokens.
const LOAD: Load = Load {
    context: 8192,
    sequences: 16,
    cache: CacheType::Auto,
    utilization_permille: Load::UTILIZATION_PERMILLE,
};

/// Published configurations, bytes per token and the smallest power of two of devices on twelve memory sizes.
#[test]
fn the_smallest_split_of_known_models_is_found_on_every_memory_size() {
    // Tenths of GiB: T4, L4, CPX_NPS4, A100-40, L40S, MI210, H100, H200, B200, MI300X, MI325X, MI355X.
    let memories = [
        150, 225, 240, 400, 450, 640, 796, 1400, 1790, 1917, 2560, 2880,
    ];
    let deepseek = json!({"model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128,
        "num_key_value_heads": 128, "hidden_size": 7168, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128});
    let cases: [(&str, Value, u64, u64, [u32; 12]); 8] = [
        (
            "Qwen2.5-7B",
            grouped(28, 28, 4, 3584),
            142,
            57_344,
            [2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        ),
        (
            "Llama-3.1-8B",
            grouped(32, 32, 8, 4096),
            150,
            131_072,
            [4, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        ),
        (
            "Qwen3-32B",
            json!({"num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 5120}),
            610,
            262_144,
            [16, 8, 8, 4, 4, 2, 2, 1, 1, 1, 1, 1],
        ),
        (
            "Mixtral-8x7B",
            grouped(32, 32, 8, 4096),
            870,
            131_072,
            [16, 8, 8, 4, 4, 2, 2, 1, 1, 1, 1, 1],
        ),
        (
            "Llama-3.3-70B",
            grouped(80, 64, 8, 8192),
            1314,
            327_680,
            [32, 16, 16, 8, 8, 4, 4, 2, 2, 2, 1, 1],
        ),
        (
            "Llama-3.3-70B fp8",
            grouped(80, 64, 8, 8192),
            661,
            327_680,
            [16, 8, 8, 4, 4, 2, 2, 1, 1, 1, 1, 1],
        ),
        (
            "Llama-3.1-405B",
            grouped(126, 128, 8, 16384),
            7560,
            516_096,
            [0, 0, 0, 32, 32, 32, 16, 8, 8, 8, 4, 4],
        ),
        (
            "DeepSeek-V3 fp8",
            deepseek,
            6410,
            70_272,
            [0, 0, 0, 32, 32, 16, 16, 8, 8, 8, 4, 4],
        ),
    ];
    for (name, config, weights, per_token, splits) in cases {
        let model = model(config, weights);
        assert_eq!(
            model.architecture.cache_bytes_per_token(CacheType::Auto),
            per_token,
            "{name}"
        );
        for (memory, want) in memories.into_iter().zip(splits) {
            let device = Device::known("a device", memory * GIB / 10);
            let found = smallest_tensor_parallel(&model, LOAD, &device, 32);
            assert_eq!(found.unwrap_or(0), want, "{name} on {memory} tenths of GiB");
        }
    }
}

/// Bytes per token worked out by hand: layers × heads × (key + value) × 2 bytes.
#[test]
fn every_family_keeps_what_its_config_says() {
    let window = |full: usize, rest: usize| -> Vec<&str> {
        [
            vec!["full_attention"; full],
            vec!["sliding_attention"; rest],
        ]
        .concat()
    };
    let marks = [vec![0; 9], vec![1; 39]].concat();
    let cases = [
        // 36 × 8 × (128 + 128) × 2
        (
            "qwen3",
            json!({"num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}),
            147_456,
        ),
        // 28 layers of the text tower
        (
            "qwen3_vl",
            json!({"text_config": {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}}),
            114_688,
        ),
        // 12 × 12 heads of 64
        (
            "gpt2",
            json!({"n_layer": 12, "n_head": 12, "n_embd": 768}),
            36_864,
        ),
        // one key and value for all 71 heads
        (
            "falcon",
            json!({"num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544, "multi_query": true}),
            8_192,
        ),
        (
            "falcon-40b",
            json!({"num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8, "hidden_size": 8192, "new_decoder_architecture": true, "multi_query": true}),
            122_880,
        ),
        (
            "chatglm",
            json!({"num_layers": 28, "num_attention_heads": 32, "multi_query_attention": true, "multi_query_group_num": 2, "kv_channels": 128, "hidden_size": 4096}),
            28_672,
        ),
        // windows count while they are not full
        (
            "gpt_oss",
            json!({"num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "layer_types": window(18, 18)}),
            73_728,
        ),
        // 25 × 8 × 512 × 2 of windows, 5 × 2 × 1024 × 2 of full layers
        (
            "gemma4",
            json!({"num_hidden_layers": 30, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "sliding_window": 1024,
                   "global_head_dim": 512, "num_global_key_value_heads": 2, "layer_types": window(5, 25)}),
            225_280,
        ),
        // 9 full layers of 4 heads, 39 windows of 8; keys of 192, values of 128
        (
            "mimo_v2_flash",
            json!({"num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128,
                   "swa_num_key_value_heads": 8, "swa_head_dim": 192, "swa_v_head_dim": 128, "sliding_window": 128,
                   "hybrid_layer_pattern": marks}),
            222_720,
        ),
        // every fourth layer of 40 has 2 heads of 256
        (
            "qwen3_5",
            json!({"num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4}),
            20_480,
        ),
        (
            "nemotron_h",
            json!({"hybrid_override_pattern": "MEM*EMEM*-", "num_attention_heads": 32, "num_key_value_heads": 2, "head_dim": 128}),
            2_048,
        ),
        (
            "jamba",
            json!({"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "attn_layer_period": 8, "attn_layer_offset": 4}),
            16_384,
        ),
        (
            "bamba",
            json!({"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096, "attn_layer_indices": [9, 18, 27]}),
            12_288,
        ),
        // 61 × (512 + 64) × 2, and 132 bytes of index
        (
            "deepseek_v32",
            json!({"num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128, "hidden_size": 7168}),
            78_324,
        ),
        (
            "glm_moe_dsa",
            json!({"num_hidden_layers": 78, "num_attention_heads": 64, "head_dim": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 128}),
            100_152,
        ),
        // 24 of 93 layers
        (
            "kimi_linear",
            json!({"num_hidden_layers": 93, "num_attention_heads": 96, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "hidden_size": 7168,
                   "linear_attn_config": {"kda_layers": (1..=69).collect::<Vec<_>>(), "num_heads": 96, "head_dim": 128, "short_conv_kernel_size": 4}}),
            27_648,
        ),
        // one of two blocks has attention, eight heads to a key
        (
            "nemotron-nas",
            json!({"num_hidden_layers": 2, "num_attention_heads": 64, "hidden_size": 8192, "num_key_value_heads": null,
                   "block_configs": [{"attention": {"no_op": true, "n_heads_in_group": null}}, {"attention": {"no_op": false, "n_heads_in_group": 8}}]}),
            4_096,
        ),
        // its window is not all it keeps: sized as if it kept everything
        (
            "deepseek_v4",
            json!({"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 1, "head_dim": 512, "sliding_window": 128, "compress_ratios": [128, 4]}),
            124_928,
        ),
        (
            "mixtral-8x22b",
            json!({"num_hidden_layers": 56, "num_attention_heads": 48, "num_key_value_heads": 8, "hidden_size": 6144}),
            229_376,
        ),
        (
            "minimax_m2",
            json!({"num_hidden_layers": 62, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128}),
            253_952,
        ),
        (
            "llama4",
            json!({"text_config": {"model_type": "llama4_text", "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192}}),
            196_608,
        ),
    ];
    for (name, config, want) in cases {
        let architecture = Architecture::read(&config).expect(name);
        assert_eq!(
            architecture.cache_bytes_per_token(CacheType::Auto),
            want,
            "{name}"
        );
    }
}

/// What a long sequence takes on one device, in bytes.
fn sequence_bytes(config: Value, context: u64) -> u64 {
    Architecture::read(&config)
        .expect("a config")
        .cache_bytes(CacheType::Auto, context, 1, 1, 1)
}

#[test]
fn a_window_caps_what_a_long_sequence_keeps() {
    let gemma2 = |kind: &str| json!({"model_type": kind, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096});
    let per_layer = 4 * 512 * 2;
    assert_eq!(
        sequence_bytes(gemma2("gemma2"), 65_536),
        per_layer * (65_536 + 4096 + 16)
    );
    assert_eq!(
        sequence_bytes(gemma2("mistral"), 65_536),
        per_layer * 2 * (4096 + 16)
    );
    let mut off = gemma2("qwen2");
    off["use_sliding_window"] = json!(false);
    assert_eq!(sequence_bytes(off, 65_536), per_layer * 2 * 65_536);
}

#[test]
fn a_state_takes_the_same_for_any_length() {
    let config = json!({"num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "linear_attention"],
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_conv_kernel_dim": 4});
    let state = 32 * 128 * 128 * 4 + (2 * 16 * 128 + 32 * 128) * 3 * 2;
    assert_eq!(sequence_bytes(config.clone(), 1024), 4 * state);
    assert_eq!(sequence_bytes(config, 1_048_576), 4 * state);
}

/// A config is anybody's to write: what nobody could hold is said to be too much, and breaks nothing.
#[test]
fn sizes_beyond_all_memory_fit_nowhere() {
    let most = u64::MAX;
    let linear = json!({"num_hidden_layers": 1, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
        "layer_types": ["linear_attention"], "linear_key_head_dim": most, "linear_value_head_dim": most,
        "linear_num_key_heads": most, "linear_num_value_heads": most, "linear_conv_kernel_dim": most});
    assert_eq!(sequence_bytes(linear, 1 << 20), u64::MAX);
    let limit = 1_u64 << 20;
    let wide = json!({"num_hidden_layers": 2, "num_attention_heads": limit, "num_key_value_heads": limit,
        "head_dim": limit});
    assert_eq!(sequence_bytes(wide, 1 << 62), u64::MAX);
}

#[test]
fn a_file_that_is_no_transformer_is_refused_by_the_field_it_lacks() {
    for config in [
        json!({}),
        json!([]),
        json!({"num_hidden_layers": 0}),
        json!({"num_hidden_layers": "12"}),
    ] {
        let error = Architecture::read(&config).expect_err("no layers");
        assert!(error.to_string().contains("num_hidden_layers"), "{error}");
    }
    let error = Architecture::read(&json!({"num_hidden_layers": 12})).expect_err("no heads");
    assert!(error.to_string().contains("num_attention_heads"), "{error}");
    let error = Architecture::read(&json!({"num_hidden_layers": 12, "num_attention_heads": 8}))
        .expect_err("no size");
    assert!(error.to_string().contains("hidden_size"), "{error}");
    let error = Architecture::read(
        &json!({"num_hidden_layers": u64::MAX, "num_attention_heads": 8, "head_dim": 1}),
    );
    assert!(error.is_err(), "more layers than can be");
}

fn device(name: &str) -> Device {
    Device::of(gpu::named(name)[0])
}

#[test]
fn heads_that_do_not_divide_are_told() {
    let model = model(grouped(28, 28, 4, 3584), 142);
    let found = layouts(&model, LOAD, &device("H100-80GB"), 8, 1);
    let eight = found
        .iter()
        .find(|layout| layout.tensor_parallel == 8)
        .expect("eight are considered");
    assert!(
        !eight.fits && eight.reason.contains("28 attention heads"),
        "{}",
        eight.reason
    );
    assert!(
        found[0].fits && found[0].count == 1,
        "the smallest comes first"
    );
}

#[test]
fn machines_without_fast_links_chain_their_devices() {
    let model = model(grouped(32, 32, 8, 4096), 300);
    let first = |name: &str| {
        let found = layouts(&model, LOAD, &device(name), 8, 1);
        let layout = found
            .into_iter()
            .find(|layout| layout.fits)
            .expect("it fits");
        (layout.tensor_parallel, layout.pipeline_parallel)
    };
    assert_eq!(first("A100-40GB"), (2, 1));
    assert_eq!(first("L40S"), (1, 2));
}

#[test]
fn a_model_larger_than_a_machine_takes_several() {
    let model = model(grouped(126, 128, 8, 16384), 7560);
    let found = layouts(&model, LOAD, &device("H100-80GB"), 8, 4);
    let layout = found
        .iter()
        .find(|layout| layout.fits)
        .expect("two machines hold it");
    assert_eq!(
        (
            layout.nodes,
            layout.tensor_parallel,
            layout.pipeline_parallel,
            layout.count
        ),
        (2, 8, 2, 16)
    );
}

#[test]
fn a_device_that_cannot_run_it_says_why() {
    let plain = model(grouped(32, 32, 8, 4096), 150);
    let found = layouts(&plain, LOAD, &device("MI100"), 8, 1);
    assert!(
        found
            .iter()
            .all(|layout| !layout.fits && layout.reason.contains("gfx908")),
        "{found:?}"
    );
    let mut config = grouped(32, 32, 8, 4096);
    config["quantization_config"] = json!({"quant_method": "fp8"});
    let fp8 = model(config, 80);
    let refused = &layouts(&fp8, LOAD, &device("MI210"), 8, 1)[0];
    assert!(
        !refused.fits && refused.reason.contains("FP8"),
        "{}",
        refused.reason
    );
    assert!(layouts(&fp8, LOAD, &device("MI300X"), 8, 1)[0].fits);
}

#[test]
fn advice_names_a_load_that_fits() {
    let model = model(grouped(32, 32, 8, 4096), 150);
    let large = Load {
        context: 32_768,
        sequences: 64,
        ..LOAD
    };
    let layout = &layouts(&model, large, &device("H100-80GB"), 8, 1)[0];
    assert!(!layout.fits, "64 × 32k tokens take 256 GiB");
    let advice = layout.advice.as_deref().expect("fewer sequences fit");
    assert_eq!(
        advice,
        format!(
            "fits with --concurrency {} at this context",
            layout.sequences
        )
    );
    let fewer = Load {
        sequences: layout.sequences,
        ..large
    };
    assert!(layouts(&model, fewer, &device("H100-80GB"), 8, 1)[0].fits);
    let more = Load {
        sequences: layout.sequences + 1,
        ..large
    };
    assert!(!layouts(&model, more, &device("H100-80GB"), 8, 1)[0].fits);
}

proptest! {
    /// More memory, fewer sequences, a shorter context or a smaller cache never make a layout worse.
    #[test]
    fn less_load_and_more_memory_never_hurt(
        layers in 1_u32..100, heads in prop::sample::select(vec![8_u32, 16, 32, 64]), kv in prop::sample::select(vec![1_u32, 2, 4, 8]),
        weights in 1_u64..2000, memory in 10_u64..300, context in 16_u64..200_000, sequences in 1_u64..256,
    ) {
        let model = model(grouped(layers, heads, kv, heads * 128), weights);
        let load = Load { context, sequences, ..LOAD };
        let fits = |load: Load, memory: u64| -> Vec<bool> {
            let device = Device::known("H100", memory * GIB);
            layouts(&model, load, &device, 8, 2).iter().map(|layout| layout.fits).collect()
        };
        let base = fits(load, memory);
        let easier = [
            fits(load, memory + 1),
            fits(Load { sequences: sequences - 1, ..load }, memory),
            fits(Load { context: context - 1, ..load }, memory),
            fits(Load { cache: CacheType::Fp8, ..load }, memory),
        ];
        for other in easier {
            prop_assert!(base.iter().zip(&other).all(|(base, other)| !base || *other));
        }
    }
}
