//! Baichuan, ChatGLM and Qwen of before 1.5, which Transformers runs by code of their folders.

use serde_json::{Value, json};

use super::gpt::unturned;
use super::llamas::llama;
use super::reader::{Defaults, LLAMA_DEFAULTS, Reader, alibi_slopes, output, renamed, with_defaults};
use crate::ModelError;
use crate::spec::rope::{Rope, RopeKind};
use crate::spec::{Output, Pairs, Spec, names, wrong};

/// The width of the Baichuans whose queries and keys turn.
const BAICHUAN_TURNS: usize = 4096;
/// The vocabulary of Baichuan 2.
const BAICHUAN_2: usize = 125_696;

/// Baichuan 1 and 2: Llama, in other widths than 7B's with linear biases in place of a rotation; the second's head has rows of
/// length one.
pub(super) fn baichuan(r: &Reader<'_>) -> Result<Spec, ModelError> {
    no_scaling(r)?;
    refused_unless(r, "rope_theta", 10_000.0, "10000: its code has no other base")?;
    refused_unless(r, "z_loss_weight", 0.0, "0: the loss is that of tokens alone")?;
    let mut config = r.config.clone();
    // Its code has a key head for each query head, and heads that share out the width.
    for key in ["num_key_value_heads", "head_dim"] {
        config.json.remove(key);
    }
    if config.get("max_position_embeddings").is_none()
        && let Some(most) = config.get("model_max_length").cloned()
    {
        config.json.insert("max_position_embeddings".to_owned(), most);
    }
    let config = with_defaults(
        &config,
        json!({"vocab_size": 64_000, "max_position_embeddings": 4096, "pad_token_id": 0}),
    );
    let mut spec = Spec { names: names::BAICHUAN, ..llama(&Reader { config: &config, family: r.family })? };
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (false, false, false);
    let class = config.get("architectures").and_then(|a| a.get(0)).and_then(Value::as_str);
    let first = class.is_some_and(|class| class.starts_with("BaiChuan"));
    if !first && spec.hidden != BAICHUAN_TURNS {
        unturned(&mut spec);
        spec.slopes = alibi_slopes(spec.heads);
    }
    let second = spec.vocab == BAICHUAN_2 || config.get("z_loss_weight").is_some();
    spec.unit_head = second && !first && output(&config)? == Output::Vocabulary;
    if spec.unit_head && spec.tied {
        return Err(ModelError::Unsupported {
            key: "tie_word_embeddings".to_owned(),
            got: "true".to_owned(),
            supported: "false, where the head's rows have length one",
        });
    }
    Ok(spec)
}

/// ChatGLM2, ChatGLM3 and GLM-4 of before Transformers' class: GLM under other names.
pub(super) fn chatglm(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let first = r.bool("position_encoding_2d", false)? || r.config.get("inner_hidden_size").is_some();
    if first {
        return Err(ModelError::Unsupported {
            key: "model_type".to_owned(),
            got: "chatglm of ChatGLM-6B (position_encoding_2d)".to_owned(),
            supported: "ChatGLM2, ChatGLM3 and GLM-4, whose attention is causal throughout",
        });
    }
    for (key, value) in [
        ("rmsnorm", true),
        ("post_layer_norm", true),
        ("original_rope", true),
        ("apply_residual_connection_post_layernorm", false),
        ("add_bias_linear", false),
        ("fp32_residual_connection", false),
        ("prefix_projection", false),
    ] {
        r.only(key, value)?;
    }
    if !r.bool("multi_query_attention", false)? {
        return Err(ModelError::Unsupported {
            key: "multi_query_attention".to_owned(),
            got: "false".to_owned(),
            supported: "true",
        });
    }
    no_scaling(r)?;
    refused_unless(r, "quantization_bit", 0.0, "0: a folder of unquantised weights")?;
    for key in ["pre_seq_len", "vision_config"] {
        if r.config.get(key).is_some() {
            return Err(ModelError::Unsupported {
                key: key.to_owned(),
                got: "given".to_owned(),
                supported: "null: a model of text alone, without a prefix",
            });
        }
    }
    let keys = [
        ("vocab_size", "padded_vocab_size"),
        ("num_hidden_layers", "num_layers"),
        ("intermediate_size", "ffn_hidden_size"),
        ("head_dim", "kv_channels"),
        ("num_key_value_heads", "multi_query_group_num"),
        ("max_position_embeddings", "seq_length"),
    ];
    let defaults = json!({"vocab_size": 65_024, "num_hidden_layers": 28, "intermediate_size": 13_696, "head_dim": 128,
        "num_key_value_heads": 1, "max_position_embeddings": 2048, "hidden_size": 4096, "num_attention_heads": 32});
    let mut config = with_defaults(&renamed(r.config, &keys), defaults);
    let ratio = config.f64("rope_ratio")?.unwrap_or(1.0);
    // ChatGLM2-6B-32K divides positions by it, which its configuration does not say.
    if ratio != 1.0 && ratio != 50.0 && config.usize("vocab_size")? == Some(CHATGLM_3) {
        return Err(ModelError::Unsupported {
            key: "rope_ratio".to_owned(),
            got: ratio.to_string(),
            supported: "1, or 50 (ChatGLM3-6B-32K), in the vocabulary of ChatGLM2 and ChatGLM3",
        });
    }
    config.json.insert("rope_theta".to_owned(), Value::from(10_000.0 * ratio));
    config.json.insert("partial_rotary_factor".to_owned(), Value::from(0.5));
    let defaults = Defaults {
        norm_eps: 1e-5,
        eps_key: "layernorm_epsilon",
        pads: false,
        partial_rotary: Some(0.5),
        ..LLAMA_DEFAULTS
    };
    let r = &Reader { config: &config, family: r.family };
    r.only_word("hidden_act", "silu")?;
    let mut spec = Spec { names: names::CHATGLM, ..r.spec(&defaults)? };
    spec.qkv_bias = r.bool("add_qkv_bias", false)?;
    spec.pairs = Pairs::Neighbours;
    Ok(spec)
}

/// The vocabulary of ChatGLM2 and ChatGLM3.
const CHATGLM_3: usize = 65_024;

/// Qwen of before 1.5: texts beyond `seq_length` tokens are another function where that is said.
pub(super) fn qwen(r: &Reader<'_>) -> Result<Spec, ModelError> {
    r.only("scale_attn_weights", true)?;
    r.only("use_cache_quantization", false)?;
    no_scaling(r)?;
    for key in ["visual", "audio"] {
        if r.config.get(key).is_some() {
            return Err(ModelError::Unsupported {
                key: key.to_owned(),
                got: "given".to_owned(),
                supported: "null: a model of text alone",
            });
        }
    }
    let mut config =
        with_defaults(r.config, json!({"intermediate_size": 22_016, "max_position_embeddings": 8192}));
    for key in ["num_key_value_heads", "partial_rotary_factor"] {
        config.json.remove(key);
    }
    let r = &Reader { config: &config, family: r.family };
    let (width, heads, dim) =
        (r.positive("hidden_size")?, r.positive("num_attention_heads")?, r.positive_or("kv_channels", 128)?);
    if heads.checked_mul(dim) != Some(width) {
        return Err(wrong("kv_channels", &dim.to_string(), "hidden_size over num_attention_heads"));
    }
    let both = r.positive("intermediate_size")?;
    if both % 2 != 0 {
        return Err(wrong("intermediate_size", &both.to_string(), "an even number: gates and the rest"));
    }
    let defaults = Defaults {
        reads_head_dim: false,
        eps_key: "layer_norm_epsilon",
        pads: false,
        rope_theta: config.f64("rotary_emb_base")?.unwrap_or(10_000.0),
        ..LLAMA_DEFAULTS
    };
    r.only_word("hidden_act", "silu")?;
    let mut spec = Spec { names: names::QWEN, intermediate: both / 2, ..r.spec(&defaults)? };
    let part = config.f64("rotary_pct")?.unwrap_or(1.0);
    if !(0.0..=1.0).contains(&part) {
        return Err(wrong("rotary_pct", &part.to_string(), "a part of a head: a number from 0 to 1"));
    }
    let turned = (part * spec.head_dim as f64) as usize;
    spec.ropes = vec![Rope { theta: defaults.rope_theta, dim: turned, kind: RopeKind::Default }];
    let bias = !r.bool("no_bias", true)?;
    (spec.qkv_bias, spec.o_bias, spec.mlp_bias) = (true, bias, bias);
    if r.bool("use_dynamic_ntk", true)? || r.bool("use_logn_attn", true)? {
        let most = r.positive("seq_length")?;
        spec.bounded = Some((most, "seq_length"));
        spec.max_positions = most;
    }
    Ok(spec)
}

/// Refuses what scales a rotation elsewhere.
fn no_scaling(r: &Reader<'_>) -> Result<(), ModelError> {
    for key in ["rope_scaling", "rope_parameters"] {
        if let Some(got) = r.config.get(key) {
            return Err(ModelError::Unsupported {
                key: key.to_owned(),
                got: got.to_string(),
                supported: "null: the code of such folders has none",
            });
        }
    }
    Ok(())
}

/// Refuses a number that is any other than this, which is what absence means.
fn refused_unless(r: &Reader<'_>, key: &str, number: f64, supported: &'static str) -> Result<(), ModelError> {
    match r.config.f64(key)?.filter(|got| *got != number) {
        None => Ok(()),
        Some(got) => Err(ModelError::Unsupported { key: key.to_owned(), got: got.to_string(), supported }),
    }
}
