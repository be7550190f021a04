//! The text part of models that also see or hear, when only text is trained: a decoder of one of the other families
//! under other names. Other parts stay in the files as they are.
//!
//! Text has one position in all of M-RoPE's dimensions, so its rotation is the plain one.

use serde_json::{Map, Value, json};

use super::cohere_glm::cohere_compass;
use super::crossed::{glm4v, glm4v_moe};
use super::gemma::muse_glimmer;
use super::llamas::{llama, mistral};
use super::minimax::minimax_m3;
use super::qwen::qwen2;
use super::reader::{Defaults, LLAMA_DEFAULTS, Reader, renamed, with_defaults};
use super::{Family, mixtures, qwen};
use crate::ModelError;
use crate::spec::config::ConfigFile;
use crate::spec::names::{
    self, FUYU, Inner, KIMI_K25, LANGUAGE_MODEL, LFM2_VL, LLAMA4_PART, MODEL, NEMOTRON_OMNI, QIANFAN_OCR,
    QWEN_VL, TEXT_MODEL, THINKER,
};
use crate::spec::rope::RopeKind;
use crate::spec::{LayerSpec, Pairs, QkNorm, Spec, wrong};

/// How a model of several parts holds its decoder.
struct Whole {
    model_type: &'static str,
    /// The family of `text_config`, by its `model_type` or, without one, this.
    text: Text,
    inner: &'static Inner,
    ties: Ties,
    /// Whether the class applies the text family's cap of logits.
    caps_logits: bool,
    /// The key of the part that has the decoder, where it is a part of a part.
    within: Option<&'static str>,
    /// The key of the decoder's own.
    text_key: &'static str,
}

/// What `text_config` is of.
enum Text {
    /// Any family, this one where it does not say.
    Any(&'static str),
    /// One that only this model has.
    Own(fn(&Reader<'_>) -> Result<Spec, ModelError>),
}

/// What ties the head: `tie_word_embeddings` of the whole or of the text part, each with its default; none does not count.
#[derive(Clone, Copy)]
struct Ties {
    whole: Option<bool>,
    text: Option<bool>,
}

const NEVER: Ties = Ties { whole: None, text: None };
const OWN_HEAD: Ties = Ties { whole: Some(false), text: None };
const TIED: Ties = Ties { whole: Some(true), text: None };
const EITHER: Ties = Ties { whole: Some(false), text: Some(false) };

const fn whole(model_type: &'static str, text: Text, inner: &'static Inner, ties: Ties) -> Whole {
    Whole { model_type, text, inner, ties, caps_logits: false, within: None, text_key: "text_config" }
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
    whole("lfm3_vl", Text::Any("lfm3"), &LFM2_VL, TIED),
    whole("deepseek_vl", Text::Any("llama"), &LANGUAGE_MODEL, TIED),
    whole("deepseek_vl_hybrid", Text::Any("llama"), &LANGUAGE_MODEL, TIED),
    whole("janus", Text::Any("llama"), &LANGUAGE_MODEL, TIED),
    whole("kimi_k25", Text::Any("deepseek_v3"), &KIMI_K25, TIED),
    whole("got_ocr2", Text::Any("qwen2"), &LANGUAGE_MODEL, TIED),
    whole("pp_chart2table", Text::Any("qwen2"), &LANGUAGE_MODEL, TIED),
    whole("lighton_ocr", Text::Any("qwen3"), &LANGUAGE_MODEL, TIED),
    whole("glm_ocr", Text::Own(glm_ocr), &LANGUAGE_MODEL, EITHER),
    whole("glmga", Text::Own(glm4v), &LANGUAGE_MODEL, OWN_HEAD),
    whole("paddleocr_vl", Text::Own(paddleocr_vl), &QWEN_VL, Ties { text: Some(true), ..TIED }),
    whole("qianfan_ocr", Text::Any("qwen3"), &QIANFAN_OCR, OWN_HEAD),
    whole("minicpm_ocr", Text::Any("qwen3_5_text"), &LANGUAGE_MODEL, TIED),
    whole("minicpmv4_6", Text::Any("qwen3_5_text"), &LANGUAGE_MODEL, OWN_HEAD),
    whole("minicpmv4_7", Text::Any("qwen3_5_text"), &LANGUAGE_MODEL, OWN_HEAD),
    whole("hyperclovax_vision_v2", Text::Any("hyperclovax"), &LANGUAGE_MODEL, TIED),
    whole("idefics2", Text::Any("mistral"), &TEXT_MODEL, OWN_HEAD),
    whole("fast_vlm", Text::Any("qwen2"), &LANGUAGE_MODEL, EITHER),
    whole("perception_lm", Text::Any("llama"), &LANGUAGE_MODEL, EITHER),
    whole("ovis2", Text::Any("qwen2"), &LANGUAGE_MODEL, TIED),
    whole("video_llama_3", Text::Any("qwen2"), &LANGUAGE_MODEL, EITHER),
    whole("video_llava", Text::Any("llama"), &LANGUAGE_MODEL, OWN_HEAD),
    whole("fuyu", Text::Any("persimmon"), &FUYU, OWN_HEAD),
    whole("qwen2_5_omni_thinker", Text::Own(qwen2_5_omni), &QWEN_VL, OWN_HEAD),
    whole("qwen3_omni_moe_thinker", Text::Own(qwen3_omni_moe), &QWEN_VL, OWN_HEAD),
    Whole {
        within: Some("thinker_config"),
        ..whole("qwen2_5_omni", Text::Own(qwen2_5_omni), &THINKER, OWN_HEAD)
    },
    Whole {
        within: Some("thinker_config"),
        ..whole("qwen3_omni_moe", Text::Own(qwen3_omni_moe), &THINKER, OWN_HEAD)
    },
    whole("phi4_multimodal", Text::Own(phi4_multimodal), &MODEL, OWN_HEAD),
    whole("aria", Text::Any("aria_text"), &LANGUAGE_MODEL, OWN_HEAD),
    whole("mllama", Text::Own(mllama), &LANGUAGE_MODEL, NEVER),
    whole("apertus1p5", Text::Any("apertus1p5_text"), &LANGUAGE_MODEL, NEVER),
    whole("qwen2_audio", Text::Any("qwen2"), &LANGUAGE_MODEL, NEVER),
    whole("qwen3_asr", Text::Any("qwen3"), &LANGUAGE_MODEL, TIED),
    whole("voxtral", Text::Any("llama"), &LANGUAGE_MODEL, NEVER),
    whole("glmasr", Text::Any("llama"), &LANGUAGE_MODEL, TIED),
    whole("granite_speech", Text::Any("granite"), &LANGUAGE_MODEL, TIED),
    whole("granite_speech_plus", Text::Any("granite"), &LANGUAGE_MODEL, TIED),
    whole("fun_asr_nano", Text::Any("qwen3"), &LANGUAGE_MODEL, TIED),
    whole("moss_transcribe_diarize", Text::Any("qwen3"), &LANGUAGE_MODEL, TIED),
    whole("omniasr", Text::Any("llama"), &LANGUAGE_MODEL, NEVER),
    whole("vibevoice_asr", Text::Any("qwen2"), &LANGUAGE_MODEL, NEVER),
    Whole { caps_logits: true, ..whole("paligemma", Text::Own(paligemma), &LANGUAGE_MODEL, TIED) },
    whole("shieldgemma2", Text::Any("gemma3_text"), &LANGUAGE_MODEL, Ties { text: Some(true), ..OWN_HEAD }),
    Whole {
        caps_logits: true,
        ..whole("granite4_vision", Text::Own(granite4_vision), &LANGUAGE_MODEL, OWN_HEAD)
    },
    Whole { caps_logits: true, ..whole("muse_glimmer", Text::Own(muse_glimmer), &LANGUAGE_MODEL, OWN_HEAD) },
    whole("ernie4_5_vl_moe", Text::Own(ernie4_5_vl_moe), &QWEN_VL, Ties { text: Some(true), ..TIED }),
    whole("minimax_m3_vl", Text::Own(minimax_m3), &LANGUAGE_MODEL, EITHER),
    whole("hunyuan_vl", Text::Own(hunyuan_vl), &QWEN_VL, Ties { text: Some(true), ..TIED }),
    Whole {
        caps_logits: true,
        ..whole("cohere_compass", Text::Own(cohere_compass), &LANGUAGE_MODEL, OWN_HEAD)
    },
    whole(
        "nemotron_h_omni",
        Text::Any("nemotron_h"),
        &NEMOTRON_OMNI,
        Ties { whole: None, text: Some(false) },
    ),
    whole("deepseek_ocr2", Text::Own(deepseek_ocr2), &QWEN_VL, OWN_HEAD),
    // By code of their folders.
    Whole { text_key: "llm_config", ..whole("internvl_chat", Text::Any("qwen2"), &LLAMA4_PART, EITHER) },
    whole("kimi_vl", Text::Any("deepseek_v3"), &LLAMA4_PART, OWN_HEAD),
    whole("llava_llama", Text::Own(llama), &MODEL, OWN_HEAD),
    whole("llava_mistral", Text::Own(mistral), &MODEL, OWN_HEAD),
    whole("llava_qwen", Text::Own(qwen2), &MODEL, OWN_HEAD),
];

/// Sizes that a `text_config` may leave to its class: vocabulary, width, feed-forward, blocks, heads.
const SIZES: [(&str, [u64; 5]); 23] = [
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
    ("lfm3", [128_000, 2048, 7680, 24, 16]),
    ("mistral4", [131_072, 4096, 12_288, 36, 32]),
    ("deepseek_v3", [129_280, 7168, 18_432, 61, 128]),
    ("hyperclovax", [32_000, 4096, 11_008, 32, 32]),
    ("granite", [32_000, 4096, 11_008, 32, 32]),
    ("aria_text", [32_000, 4096, 4096, 32, 32]),
    ("apertus1p5_text", [266_752, 4096, 14_336, 32, 32]),
    ("persimmon", [262_144, 4096, 16_384, 36, 64]),
];
const SIZE_KEYS: [&str; 5] =
    ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"];

/// The configuration of the text part of a model of several; `None` for any other model.
pub(crate) fn text_config(config: &ConfigFile) -> Option<ConfigFile> {
    let model_type = config.get("model_type").and_then(Value::as_str)?;
    let whole = WHOLES.iter().find(|whole| whole.model_type == model_type)?;
    let outer = match whole.within {
        None => &config.json,
        Some(key) => config.get(key).and_then(Value::as_object)?,
    };
    // Nemotron Omni's published files have another key.
    let text = outer.get(whole.text_key).or_else(|| outer.get("llm_config"));
    let mut json = match text.and_then(Value::as_object) {
        Some(text) => text.clone(),
        // The first Qwen VLs have the keys of the text part among their own.
        None if matches!(whole.text, Text::Own(_)) => outer.clone(),
        None => Map::new(),
    };
    for (key, value) in own_defaults(model_type, text.is_some()).as_object().into_iter().flatten() {
        json.entry(key.clone()).or_insert_with(|| value.clone());
    }
    // The first EXAONE 4.5 calls its text part so.
    if json.get("model_type").and_then(Value::as_str) == Some("exaone4_5_text") {
        json.insert("model_type".to_owned(), Value::from("exaone4"));
    }
    // LFM2's word for it.
    json.remove("tie_embedding");
    let own = json.get("tie_word_embeddings").and_then(Value::as_bool);
    let tie =
        outer.get("tie_embedding").or_else(|| outer.get("tie_word_embeddings")).and_then(Value::as_bool);
    let counts = |said: Option<bool>, default: Option<bool>| default.is_some_and(|d| said.unwrap_or(d));
    let tied = counts(tie, whole.ties.whole) || counts(own, whole.ties.text);
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

/// What a whole's class says of its text part, where that does not; or only where nothing is `said` of it.
fn own_defaults(model_type: &str, said: bool) -> Value {
    match model_type {
        "voxtral" => {
            json!({"vocab_size": 131_072, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 30,
            "num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "rope_theta": 1e8,
            "head_dim": 128})
        }
        "glmasr" => {
            json!({"vocab_size": 59_264, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
            "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5})
        }
        "paligemma" if !said => {
            json!({"vocab_size": 257_152, "hidden_size": 2048, "intermediate_size": 16_384, "num_hidden_layers": 18,
            "num_attention_heads": 8, "num_key_value_heads": 1})
        }
        _ => Value::Null,
    }
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

/// GLM-OCR's: that of GLM-4.1V without biases.
fn glm_ocr(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    config.json.remove("model_type");
    let head_dim = config.get("head_dim").cloned();
    let mut spec = glm4v(&Reader { config: &config, family: r.family })?;
    if let Some(head_dim) = head_dim.filter(|dim| dim.as_u64() != Some(spec.head_dim as u64)) {
        return Err(ModelError::Unsupported {
            key: "head_dim".to_owned(),
            got: head_dim.to_string(),
            supported: "hidden_size over num_attention_heads",
        });
    }
    spec.qkv_bias = false;
    Ok(spec)
}

/// Phi-4-multimodal's: Phi-4-mini's.
fn phi4_multimodal(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = with_defaults(
        r.config,
        json!({"vocab_size": 200_064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131_072, "pad_token_id": 199_999}),
    );
    super::llamas::phi3(&Reader { config: &config, family: r.family })
}

/// Llama 3.2 Vision's: Llama's, whose blocks that look at pictures text passes by.
fn mllama(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = with_defaults(
        r.config,
        json!({"vocab_size": 128_256, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 40,
            "num_attention_heads": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "max_position_embeddings": 131_072,
            "rope_theta": 500_000.0, "pad_token_id": 128_004, "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38]}),
    );
    let r = &Reader { config: &config, family: r.family };
    let mut spec = r.spec(&LLAMA_DEFAULTS)?;
    // Those of pictures have no logits.
    spec.embeddings += 8;
    let looking = config.get("cross_attention_layers").unwrap_or(&Value::Null);
    let numbers =
        looking.as_array().and_then(|all| all.iter().map(Value::as_u64).collect::<Option<Vec<_>>>());
    let numbers = numbers
        .ok_or_else(|| wrong("cross_attention_layers", &looking.to_string(), "a list of blocks' numbers"))?;
    for (_, layer) in spec.layers.iter_mut().enumerate().filter(|(at, _)| numbers.contains(&(*at as u64))) {
        *layer = LayerSpec { no_attention: true, no_feed_forward: true, ..LayerSpec::default() };
    }
    Ok(spec)
}

/// PaddleOCR's: ERNIE 4.5 whose halves turn.
fn paddleocr_vl(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = plain_rope(r.config);
    let spec = super::llamas::ernie4_5(&Reader { config: &config, family: r.family })?;
    Ok(Spec { pairs: Pairs::Halves, ..spec })
}

/// The decoder of Qwen2.5-Omni's thinker: Qwen2.5-VL's with other defaults.
fn qwen2_5_omni(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = with_defaults(
        r.config,
        json!({"vocab_size": 152_064, "hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28,
            "num_attention_heads": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "max_window_layers": 28,
            "sliding_window": 32_768}),
    );
    qwen2_vl(&Reader { config: &config, family: r.family })
}

/// The decoder of Qwen3-Omni's thinker: Qwen3-MoE's.
fn qwen3_omni_moe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = with_defaults(
        &plain_rope(r.config),
        json!({"vocab_size": 3584, "hidden_size": 2048, "intermediate_size": 18_944, "num_hidden_layers": 28,
            "num_attention_heads": 28, "num_key_value_heads": 4, "norm_topk_prob": true, "rope_theta": 1e6}),
    );
    mixtures::qwen3_moe(&Reader { config: &config, family: r.family })
}

/// PaliGemma's: Gemma's or Gemma 2's. What sees each other both ways are pictures and the prompts behind them, which are marked as such; text
/// alone is not.
fn paligemma(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = r.config.clone();
    config.json.remove("use_bidirectional_attention");
    let r = &Reader { config: &config, family: r.family };
    match config.str("model_type")?.unwrap_or("gemma") {
        "gemma" => Ok(Spec {
            logit_softcap: r.nullable("final_logit_softcapping", None)?,
            ..super::gemma::gemma(r)?
        }),
        "gemma2" => super::gemma::gemma2(r),
        other => Err(ModelError::Unsupported {
            key: "text_config.model_type".to_owned(),
            got: other.to_owned(),
            supported: "gemma, gemma2",
        }),
    }
}

/// Granite 4 Vision's: Granite.
fn granite4_vision(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = with_defaults(
        r.config,
        json!({"vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
            "num_attention_heads": 32}),
    );
    super::llamas::granite(&Reader { config: &config, family: r.family })
}

/// ERNIE 4.5 VL's: ERNIE 4.5's mixtures, beside experts for pictures.
fn ernie4_5_vl_moe(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let mut config = with_defaults(
        &plain_rope(r.config),
        json!({"vocab_size": 103_424, "hidden_size": 2560, "intermediate_size": 12_288, "num_hidden_layers": 28,
            "num_attention_heads": 20, "moe_intermediate_size": [1536, 512], "pad_token_id": null}),
    );
    // What its class does not read.
    for key in ["moe_layer_interval", "moe_layer_start_index", "moe_layer_end_index"] {
        config.json.remove(key);
    }
    let widths = config.get("moe_intermediate_size").cloned().unwrap_or_default();
    let width = widths.get(0).filter(|_| widths.get(1).is_some()).and_then(Value::as_u64);
    let width = width.ok_or_else(|| {
        wrong("moe_intermediate_size", &widths.to_string(), "two integers: of text and of pictures")
    })?;
    config.json.insert("moe_intermediate_size".to_owned(), width.into());
    let r = &Reader { config: &config, family: r.family };
    let mut spec = mixtures::ernie4_5_moe(r)?;
    if spec.ropes.iter().any(|rope| rope.kind != RopeKind::Default) {
        return Err(ModelError::Unsupported {
            key: "rope_type".to_owned(),
            got: "another".to_owned(),
            supported: "default",
        });
    }
    (spec.names, spec.head_bias) = (names::ERNIE_VL_MOE, false);
    mixtures::typed_blocks(r, &mut spec, 1)?;
    Ok(spec)
}

/// HunYuan-OCR's: HunYuan's, whose keys may have other names.
fn hunyuan_vl(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let own =
        [("head_dim", "attention_head_dim"), ("vocab_size", "org_vocab_size"), ("pad_token_id", "pad_id")];
    let mut config = with_defaults(
        &plain_rope(&renamed(r.config, &own)),
        json!({"vocab_size": 290_943, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
            "num_attention_heads": 32}),
    );
    for key in ["rope_parameters", "rope_scaling"] {
        let Some(rope) = config.json.get_mut(key).and_then(Value::as_object_mut) else { continue };
        for kind in ["rope_type", "type"] {
            if rope.get(kind).and_then(Value::as_str) == Some("xdrope") {
                rope.insert(kind.to_owned(), Value::from("dynamic"));
            }
        }
    }
    super::llamas::hunyuan(&Reader { config: &config, family: r.family })
}

/// DeepSeek-OCR 2's: Llama's attention, DeepSeek-V2's mixtures.
fn deepseek_ocr2(r: &Reader<'_>) -> Result<Spec, ModelError> {
    if r.config.get("mlp_layer_types").is_none() {
        return Err(wrong("mlp_layer_types", "missing", "dense or sparse for each layer"));
    }
    let mut config = with_defaults(
        &renamed(r.config, &[("num_experts", "n_routed_experts")]),
        json!({"vocab_size": 102_400, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
            "num_attention_heads": 32}),
    );
    config.json.remove("head_dim");
    mixtures::deepseek_ocr(&Reader { config: &config, family: r.family })
}

/// Granite with other defaults.
fn granite_docling(r: &Reader<'_>) -> Result<Spec, ModelError> {
    let config = with_defaults(
        r.config,
        json!({
            "vocab_size": 133_800,
            "hidden_size": 1024,
            "intermediate_size": 2048,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32_768,
            "rms_norm_eps": 1e-5,
            "pad_token_id": 100_256,
            "embedding_multiplier": 12.0,
            "logits_scaling": 4.0,
            "residual_multiplier": 0.263,
            "attention_multiplier": 0.015_625,
        }),
    );
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
