//! The text part of models that also see or hear, when only text is trained: a decoder of one of the other families
//! under other names. Other parts stay in the files as they are.
//!
//! Text has one position in all of M-RoPE's dimensions, so its rotation is the plain one.

use serde_json::{Map, Value, json};

use super::crossed::{glm4v, glm4v_moe};
use super::reader::{Defaults, LLAMA_DEFAULTS, Reader};
use super::{Family, mixtures, qwen};
use crate::ModelError;
use crate::spec::config::ConfigFile;
use crate::spec::names::{self, Inner, LANGUAGE_MODEL, LFM2_VL, LLAMA4_PART, QWEN_VL, TEXT_MODEL};
use crate::spec::{QkNorm, Spec, wrong};

/// How a model of several parts holds its decoder.
struct Whole {
    model_type: &'static str,
    /// The family of `text_config`, by its `model_type` or, without one, this.
    text: Text,
    inner: &'static Inner,
    ties: Ties,
    /// Whether the class applies the text family's cap of logits.
    caps_logits: bool,
}

/// What `text_config` is of.
enum Text {
    /// Any family, this one where it does not say.
    Any(&'static str),
    /// One that only this model has.
    Own(fn(&Reader<'_>) -> Result<Spec, ModelError>),
}

/// What ties the head: `tie_word_embeddings` of the whole, with its default, or also that of the text part.
#[derive(Clone, Copy)]
struct Ties {
    default: bool,
    or_text: bool,
}

const OWN_HEAD: Ties = Ties { default: false, or_text: false };
const TIED: Ties = Ties { default: true, or_text: false };
const EITHER: Ties = Ties { default: false, or_text: true };

const fn whole(model_type: &'static str, text: Text, inner: &'static Inner, ties: Ties) -> Whole {
    Whole { model_type, text, inner, ties, caps_logits: false }
}

/// Every one.
static WHOLES: &[Whole] = &[
    whole("gemma3", Text::Any("gemma3_text"), &LANGUAGE_MODEL, TIED),
    Whole { caps_logits: true, ..whole("gemma3n", Text::Any("gemma3n_text"), &LANGUAGE_MODEL, TIED) },
    Whole { caps_logits: true, ..whole("gemma4", Text::Any("gemma4_text"), &LANGUAGE_MODEL, TIED) },
    Whole {
        caps_logits: true,
        ..whole("gemma4_unified", Text::Any("gemma4_unified_text"), &LANGUAGE_MODEL, TIED)
    },
    whole("llama4", Text::Any("llama4_text"), &LLAMA4_PART, OWN_HEAD),
    whole("mistral3", Text::Any("mistral"), &LANGUAGE_MODEL, TIED),
    whole("qwen2_vl", Text::Own(qwen2_vl), &QWEN_VL, EITHER),
    whole("qwen2_5_vl", Text::Own(qwen2_vl), &QWEN_VL, EITHER),
    whole("qwen3_vl", Text::Own(qwen3_vl), &LANGUAGE_MODEL, OWN_HEAD),
    whole("qwen3_vl_moe", Text::Own(qwen3_vl_moe), &LANGUAGE_MODEL, OWN_HEAD),
    whole("qwen3_5", Text::Any("qwen3_5_text"), &LANGUAGE_MODEL, OWN_HEAD),
    whole("qwen3_5_moe", Text::Any("qwen3_5_moe_text"), &LANGUAGE_MODEL, OWN_HEAD),
    whole("llava", Text::Any("llama"), &LANGUAGE_MODEL, EITHER),
    whole("llava_next", Text::Any("llama"), &LANGUAGE_MODEL, OWN_HEAD),
    whole("llava_onevision", Text::Any("qwen2"), &LANGUAGE_MODEL, EITHER),
    whole("internvl", Text::Any("qwen2"), &LANGUAGE_MODEL, TIED),
    whole("smolvlm", Text::Any("llama"), &TEXT_MODEL, OWN_HEAD),
    whole("idefics3", Text::Any("llama"), &TEXT_MODEL, OWN_HEAD),
    Whole { caps_logits: true, ..whole("granite_docling", Text::Own(granite_docling), &TEXT_MODEL, TIED) },
    whole("glm4v", Text::Own(glm4v), &LANGUAGE_MODEL, EITHER),
    whole("glm4v_moe", Text::Own(glm4v_moe), &LANGUAGE_MODEL, EITHER),
    whole("glm46v", Text::Own(glm4v), &LANGUAGE_MODEL, OWN_HEAD),
    whole("aya_vision", Text::Any("cohere2"), &LANGUAGE_MODEL, TIED),
    whole("cohere2_vision", Text::Any("cohere2"), &LANGUAGE_MODEL, TIED),
    whole("vipllava", Text::Any("llama"), &LANGUAGE_MODEL, OWN_HEAD),
    whole("llava_next_video", Text::Any("llama"), &LANGUAGE_MODEL, EITHER),
    whole("exaone4_5", Text::Any("exaone4"), &LANGUAGE_MODEL, OWN_HEAD),
    whole("lfm2_vl", Text::Any("lfm2"), &LFM2_VL, TIED),
];

/// Sizes that a `text_config` may leave to its class: vocabulary, width, feed-forward, blocks, heads.
const SIZES: [(&str, [u64; 5]); 15] = [
    ("llama", [32_000, 4096, 11_008, 32, 32]),
    ("mistral", [32_000, 4096, 14_336, 32, 32]),
    ("qwen2", [151_936, 4096, 22_016, 32, 32]),
    ("qwen3", [151_936, 4096, 22_016, 32, 32]),
    ("qwen3_5_text", [248_320, 4096, 12_288, 32, 16]),
    ("qwen3_5_moe_text", [248_320, 2048, 512, 40, 16]),
    ("gemma2", [256_000, 2304, 9216, 26, 8]),
    ("gemma3_text", [262_208, 2304, 9216, 26, 8]),
    ("gemma3n_text", [262_400, 2048, 16_384, 35, 8]),
    ("gemma4_text", [262_144, 2304, 9216, 30, 8]),
    ("gemma4_unified_text", [262_144, 2304, 9216, 30, 8]),
    ("llama4_text", [202_048, 5120, 8192, 48, 40]),
    ("cohere2", [256_000, 8192, 22_528, 40, 64]),
    ("exaone4", [102_400, 4096, 16_384, 32, 32]),
    ("lfm2", [65_536, 2560, 12_288, 32, 32]),
];
const SIZE_KEYS: [&str; 5] =
    ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"];

/// The configuration of the text part of a model of several; `None` for any other model.
pub(crate) fn text_config(config: &ConfigFile) -> Option<ConfigFile> {
    let model_type = config.get("model_type").and_then(Value::as_str)?;
    let whole = WHOLES.iter().find(|whole| whole.model_type == model_type)?;
    let mut json = match config.get("text_config").and_then(Value::as_object) {
        Some(text) => text.clone(),
        // The first Qwen VLs have the keys of the text part among their own.
        None if matches!(whole.text, Text::Own(_)) => config.json.clone(),
        None => Map::new(),
    };
    // The first EXAONE 4.5 calls its text part so.
    if json.get("model_type").and_then(Value::as_str) == Some("exaone4_5_text") {
        json.insert("model_type".to_owned(), Value::from("exaone4"));
    }
    // LFM2's word for it.
    json.remove("tie_embedding");
    let own = json.get("tie_word_embeddings").and_then(Value::as_bool);
    let outer = config.get("tie_embedding").or_else(|| config.get("tie_word_embeddings"));
    let outer = outer.and_then(Value::as_bool).unwrap_or(whole.ties.default);
    let tied = outer || whole.ties.or_text && own == Some(true);
    json.insert("tie_word_embeddings".to_owned(), Value::from(tied));
    // What stands on the decoder says the whole.
    json.remove("architectures");
    if let Some(classes) = config.get("architectures") {
        json.insert("architectures".to_owned(), classes.clone());
    }
    if let Text::Any(default) = whole.text {
        let text =
            json.entry("model_type").or_insert_with(|| Value::from(default)).as_str().unwrap_or(default);
        if let Some((_, sizes)) = SIZES.iter().find(|(name, _)| *name == text) {
            for (key, size) in SIZE_KEYS.iter().zip(sizes) {
                json.entry((*key).to_owned()).or_insert_with(|| Value::from(*size));
            }
        }
    }
    Some(ConfigFile { json })
}

/// The decoder of a model of several parts.
pub(super) fn text_part(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let whole = WHOLES.iter().find(|whole| whole.model_type == r.family.model_type());
    let (Some(whole), Some(config)) = (whole, text_config(r.config)) else {
        return Err(wrong("model_type", r.family.model_type(), "a model with a text part"));
    };
    let text = Reader { config: &config, family: r.family };
    let unknown = |got: &str| ModelError::Unsupported {
        key: "text_config.model_type".to_owned(),
        got: got.to_owned(),
        supported: "a family that is computed on its own, whose modules are called as Llama's are",
    };
    let mut spec = match whole.text {
        Text::Own(read) => read(&text)?,
        Text::Any(_) => {
            let named = config.str("model_type")?.unwrap_or_default();
            let family = Family::of(named).filter(|f| !WHOLES.iter().any(|w| w.model_type == f.model_type()));
            (family.ok_or_else(|| unknown(named))?.0.read)(&text)?
        }
    };
    let named = config.str("model_type")?.unwrap_or_default();
    spec.names = spec.names.inside(whole.inner).ok_or_else(|| unknown(named))?;
    // The whole's head is a plain product, whatever the text family's own class does to logits.
    if !whole.caps_logits {
        (spec.logit_scale, spec.logit_softcap) = (1.0, None);
    }
    spec.part = true;
    Ok(spec)
}

/// Granite with other defaults.
fn granite_docling(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    for (key, value) in [
        ("vocab_size", json!(133_800)),
        ("hidden_size", json!(1024)),
        ("intermediate_size", json!(2048)),
        ("num_hidden_layers", json!(28)),
        ("num_attention_heads", json!(16)),
        ("num_key_value_heads", json!(4)),
        ("max_position_embeddings", json!(32_768)),
        ("rms_norm_eps", json!(1e-5)),
        ("pad_token_id", json!(100_256)),
        ("embedding_multiplier", json!(12.0)),
        ("logits_scaling", json!(4.0)),
        ("residual_multiplier", json!(0.263)),
        ("attention_multiplier", json!(0.015_625)),
    ] {
        config.json.entry(key).or_insert(value);
    }
    super::llamas::granite(&Reader { config: &config, family: r.family })
}

fn qwen2_vl(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = plain_rope(r.config);
    let r = Reader { config: &config, family: r.family };
    let defaults = Defaults {
        kv_heads: Some(8),
        reads_head_dim: false,
        max_positions: 32_768,
        norm_eps: 1e-5,
        rope_theta: 1_000_000.0,
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    spec.qkv_bias = true;
    qwen::qwen_windows(&r, &mut spec, 80)?;
    Ok(spec)
}

fn qwen3_vl(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = plain_rope(r.config);
    let r = Reader { config: &config, family: r.family };
    let defaults = Defaults {
        kv_heads: Some(32),
        head_dim: Some(128),
        max_positions: 128_000,
        rope_theta: 500_000.0,
        ..LLAMA_DEFAULTS
    };
    let mut spec = r.spec(&defaults)?;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.qk_norm = Some(QkNorm::PerHead);
    Ok(spec)
}

fn qwen3_vl_moe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = plain_rope(r.config);
    let r = Reader { config: &config, family: r.family };
    let defaults =
        Defaults { kv_heads: Some(16), max_positions: 128_000, rope_theta: 500_000.0, ..LLAMA_DEFAULTS };
    let mut spec = r.spec(&defaults)?;
    spec.names = names::QWEN_VL_MOE;
    let bias = r.bool("attention_bias", false)?;
    (spec.qkv_bias, spec.o_bias) = (bias, bias);
    spec.qk_norm = Some(QkNorm::PerHead);
    mixtures::qwen_mixture(&r, &mut spec, 60, 4, 1408)?;
    Ok(spec)
}

/// The configuration with the rotation that text has: `mrope` is the default one.
pub(super) fn plain_rope(config: &ConfigFile) -> ConfigFile {
    let mut config = config.clone();
    for key in ["rope_parameters", "rope_scaling"] {
        let Some(rope) = config.json.get_mut(key).and_then(Value::as_object_mut) else { continue };
        for kind in ["rope_type", "type"] {
            if rope.get(kind).and_then(Value::as_str) == Some("mrope") {
                rope.insert(kind.to_owned(), Value::from("default"));
            }
        }
    }
    config
}
