//! The families: what each one's `config.json` means, with the defaults of Transformers' classes.
//!
//! A family is an entry of [`FAMILIES`]: its `model_type`, its class and a function that starts from [`Reader::spec`],
//! which is Llama, and says what differs. Keys that change what is computed and are not computed here are refused with
//! [`Reader::only`].

mod cohere_glm;
mod crossed;
mod gemma;
mod gpt;
mod granite;
mod indexed;
mod kimi_linear;
mod layer_normed;
mod lfm;
mod llamas;
mod mamba;
mod minimax;
mod mixtures;
mod multimodal;
mod olmo;
mod qwen;
mod reader;
mod remote;
mod remote_chat;
mod selective_scan;

use cohere_glm::{cohere, cohere_compass, cohere2, glm, glm4};
use crossed::{
    cohere2_moe, exaone_moe, flint, hunyuan_v1_moe, hy_v3, kolibri1, laguna, mellum, mimo_v2_flash, minicpm3,
    mistral4, solar_open, youtu,
};
use gemma::{gemma, gemma2, gemma3, gemma3n, gemma4, gemma4_unified, vaultgemma};
use gpt::{
    biogpt, bloom, codegen, falcon, gpt_bigcode, gpt_neo, gpt_neox, gpt_neox_japanese, gpt2, gptj, mpt,
    openai_gpt, opt, persimmon, xglm,
};
use granite::{granite_swa, granitemoe_swa};
use indexed::{deepseek_v32, glm_moe_dsa};
use kimi_linear::{bailing_hybrid, kimi_linear};
use layer_normed::{modernbert_decoder, phi, stablelm, starcoder2};
use lfm::{lfm2, lfm2_moe, lfm3};
use llamas::{
    apertus, apertus1p5, arcee, cwm, ernie4_5, exaone, exaone4, granite, helium, hunyuan, hyperclovax,
    internlm2, internlm3, iquestcoder, jais2, llama, minicpm, ministral, ministral3, mistral, nanochat,
    nemotron, phi3, seed_oss, smollm3,
};
use mamba::{bamba, falcon_h1, granitemoehybrid, mamba2, nemotron_h};
use minimax::minimax_m3_text;
use mixtures::{
    afmoe, aria_text, axk1, deepseek_v2, deepseek_v3, dots1, ernie4_5_moe, flex_olmo, glm4_moe,
    glm4_moe_lite, gpt_oss, granitemoe, granitemoeshared, llama4, minimax_m2, mixtral, olmoe, phimoe,
    qwen2_moe, qwen3_moe, sarvam_mla, sarvam_moe,
};
pub(crate) use multimodal::text_config;
use multimodal::text_part;
use olmo::{olmo, olmo_hybrid, olmo2, olmo3};
use qwen::{mimo, qwen2, qwen3, qwen3_5, qwen3_5_moe, qwen3_next};
use reader::{MOST_WIDTH, Reader};
use remote::{bailing_moe, bailing_moe_v2, deepseek_v1, nemotron_nas};
use remote_chat::{baichuan, chatglm, qwen as qwen1};
use selective_scan::{falcon_mamba, jamba, mamba};

use crate::ModelError;
use crate::spec::config::ConfigFile;
use crate::spec::{Spec, wrong};

/// A model family, by `model_type`.
#[derive(Clone, Copy)]
pub struct Family(&'static Entry);

/// What is known of a family.
struct Entry {
    model_type: &'static str,
    /// Transformers' classes are called by it: `LlamaForCausalLM`.
    class: &'static str,
    /// What its class of language models ends with.
    head_class: &'static str,
    read: fn(&Reader<'_>) -> Result<Spec, ModelError>,
}

impl Family {
    /// The family of a `model_type`.
    #[must_use]
    pub fn of(model_type: &str) -> Option<Self> {
        FAMILIES.iter().find(|entry| entry.model_type == model_type).map(Self)
    }

    /// Every family.
    pub fn all() -> impl Iterator<Item = Self> {
        FAMILIES.iter().map(Self)
    }

    /// `model_type` of `config.json`.
    #[must_use]
    pub fn model_type(self) -> &'static str {
        self.0.model_type
    }

    /// What Transformers' classes begin with.
    #[must_use]
    pub fn class(self) -> &'static str {
        self.0.class
    }
}

impl Family {
    /// What its class of language models ends with.
    pub(crate) fn head_class(self) -> &'static str {
        self.0.head_class
    }
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.model_type() == other.model_type()
    }
}

impl Eq for Family {}

impl std::fmt::Debug for Family {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.model_type())
    }
}

const fn family(
    model_type: &'static str,
    class: &'static str,
    read: fn(&Reader<'_>) -> Result<Spec, ModelError>,
) -> Entry {
    Entry { model_type, class, head_class: "ForCausalLM", read }
}

/// Every family, in the order of messages.
static FAMILIES: &[Entry] = &[
    family("llama", "Llama", llama),
    family("mistral", "Mistral", mistral),
    family("qwen2", "Qwen2", qwen2),
    family("qwen3", "Qwen3", qwen3),
    family("phi3", "Phi3", phi3),
    family("gemma", "Gemma", gemma),
    family("gemma2", "Gemma2", gemma2),
    family("gemma3_text", "Gemma3", gemma3),
    family("gemma3n_text", "Gemma3n", gemma3n),
    family("gemma4_text", "Gemma4", gemma4),
    family("gemma4_unified_text", "Gemma4Unified", gemma4_unified),
    family("smollm3", "SmolLM3", smollm3),
    family("granite", "Granite", granite),
    family("olmo", "Olmo", olmo),
    family("olmo2", "Olmo2", olmo2),
    family("olmo3", "Olmo3", olmo3),
    family("olmo_hybrid", "OlmoHybrid", olmo_hybrid),
    family("ministral", "Ministral", ministral),
    family("ministral3", "Ministral3", ministral3),
    family("cohere", "Cohere", cohere),
    family("cohere2", "Cohere2", cohere2),
    family("glm", "Glm", glm),
    family("glm4", "Glm4", glm4),
    family("starcoder2", "Starcoder2", starcoder2),
    family("phi", "Phi", phi),
    family("stablelm", "StableLm", stablelm),
    family("modernbert-decoder", "ModernBertDecoder", modernbert_decoder),
    family("nemotron", "Nemotron", nemotron),
    family("gpt_neox", "GPTNeoX", gpt_neox),
    family("internlm2", "InternLM2", internlm2),
    family("internlm3", "Llama", internlm3),
    family("mimo", "MiMo", mimo),
    family("minicpm", "MiniCPM", minicpm),
    family("exaone", "Llama", exaone),
    family("exaone4", "Exaone4", exaone4),
    family("helium", "Helium", helium),
    family("ernie4_5", "Ernie4_5", ernie4_5),
    family("seed_oss", "SeedOss", seed_oss),
    family("hunyuan_v1_dense", "HunYuanDenseV1", hunyuan),
    family("arcee", "Arcee", arcee),
    family("opt", "OPT", opt),
    family("falcon", "Falcon", falcon),
    family("gptj", "GPTJ", gptj),
    family("gpt_neo", "GPTNeo", gpt_neo),
    family("gpt_bigcode", "GPTBigCode", gpt_bigcode),
    Entry { model_type: "gpt2", class: "GPT2", head_class: "LMHeadModel", read: gpt2 },
    Entry { model_type: "openai-gpt", class: "OpenAIGPT", head_class: "LMHeadModel", read: openai_gpt },
    family("bloom", "Bloom", bloom),
    family("mpt", "Mpt", mpt),
    family("persimmon", "Persimmon", persimmon),
    family("biogpt", "BioGpt", biogpt),
    family("vaultgemma", "VaultGemma", vaultgemma),
    family("apertus", "Apertus", apertus),
    family("apertus1p5_text", "Apertus1p5Text", apertus1p5),
    family("codegen", "CodeGen", codegen),
    family("xglm", "XGLM", xglm),
    family("cwm", "Cwm", cwm),
    family("lfm2", "Lfm2", lfm2),
    family("lfm3", "Lfm3", lfm3),
    family("jais2", "Jais2", jais2),
    family("hyperclovax", "HyperCLOVAX", hyperclovax),
    family("iquestcoder", "Llama", iquestcoder),
    family("nanochat", "NanoChat", nanochat),
    family("mixtral", "Mixtral", mixtral),
    family("qwen2_moe", "Qwen2Moe", qwen2_moe),
    family("qwen3_moe", "Qwen3Moe", qwen3_moe),
    family("qwen3_5_text", "Qwen3_5", qwen3_5),
    family("qwen3_next", "Qwen3Next", qwen3_next),
    family("qwen3_5_moe_text", "Qwen3_5Moe", qwen3_5_moe),
    family("olmoe", "Olmoe", olmoe),
    family("granitemoe", "GraniteMoe", granitemoe),
    family("granitemoeshared", "GraniteMoeShared", granitemoeshared),
    family("granitemoehybrid", "GraniteMoeHybrid", granitemoehybrid),
    family("granite_swa", "GraniteSWA", granite_swa),
    family("granitemoe_swa", "GraniteMoeSWA", granitemoe_swa),
    family("hunyuan_v1_moe", "HunYuanMoEV1", hunyuan_v1_moe),
    family("exaone_moe", "ExaoneMoe", exaone_moe),
    family("solar_open", "SolarOpen", solar_open),
    family("mellum", "Mellum", mellum),
    family("hy_v3", "HYV3", hy_v3),
    family("flint", "Flint", flint),
    family("laguna", "Laguna", laguna),
    family("cohere2_moe", "Cohere2Moe", cohere2_moe),
    family("mistral4", "Mistral4", mistral4),
    family("youtu", "Youtu", youtu),
    family("minicpm3", "MiniCPM3", minicpm3),
    family("bamba", "Bamba", bamba),
    family("falcon_h1", "FalconH1", falcon_h1),
    family("nemotron_h", "NemotronH", nemotron_h),
    family("mamba2", "Mamba2", mamba2),
    family("mamba", "Mamba", mamba),
    family("falcon_mamba", "FalconMamba", falcon_mamba),
    family("jamba", "Jamba", jamba),
    family("ernie4_5_moe", "Ernie4_5_Moe", ernie4_5_moe),
    family("phimoe", "Phimoe", phimoe),
    family("minimax_m2", "MiniMaxM2", minimax_m2),
    family("lfm2_moe", "Lfm2Moe", lfm2_moe),
    family("afmoe", "Afmoe", afmoe),
    family("glm4_moe", "Glm4Moe", glm4_moe),
    family("glm4_moe_lite", "Glm4MoeLite", glm4_moe_lite),
    family("dots1", "Dots1", dots1),
    family("flex_olmo", "FlexOlmo", flex_olmo),
    family("gpt_oss", "GptOss", gpt_oss),
    family("llama4_text", "Llama4", llama4),
    family("deepseek_v2", "DeepseekV2", deepseek_v2),
    family("deepseek_v3", "DeepseekV3", deepseek_v3),
    family("kimi_k2", "DeepseekV3", deepseek_v3),
    family("deepseek_v32", "DeepseekV32", deepseek_v32),
    family("glm_moe_dsa", "GlmMoeDsa", glm_moe_dsa),
    family("kimi_linear", "KimiLinear", kimi_linear),
    family("bailing_hybrid", "BailingHybrid", bailing_hybrid),
    family("deepseek", "Deepseek", deepseek_v1),
    family("bailing_moe", "BailingMoe", bailing_moe),
    family("bailing_moe_v2", "BailingMoeV2", bailing_moe_v2),
    family("nemotron-nas", "DeciLM", nemotron_nas),
    family("baichuan", "Baichuan", baichuan),
    Entry { model_type: "chatglm", class: "ChatGLM", head_class: "ForConditionalGeneration", read: chatglm },
    Entry { model_type: "qwen", class: "QWen", head_class: "LMHeadModel", read: qwen1 },
    family("aria_text", "AriaText", aria_text),
    family("sarvam_mla", "DeepseekV3", sarvam_mla),
    family("sarvam_moe", "Glm4Moe", sarvam_moe),
    family("axk1", "AXK1", axk1),
    family("mimo_v2_flash", "MiMoV2Flash", mimo_v2_flash),
    family("minimax_m3_vl_text", "MiniMaxM3VL", minimax_m3_text),
    family("kolibri1", "Kolibri1", kolibri1),
    family("gpt_neox_japanese", "GPTNeoXJapanese", gpt_neox_japanese),
    family("cohere_compass_text", "CohereCompass", cohere_compass),
    family("llama4", "Llama4", text_part),
    family("gemma3", "Gemma3", text_part),
    family("gemma3n", "Gemma3n", text_part),
    family("gemma4", "Gemma4", text_part),
    family("gemma4_unified", "Gemma4Unified", text_part),
    family("mistral3", "Mistral3", text_part),
    family("qwen2_vl", "Qwen2VL", text_part),
    family("qwen2_5_vl", "Qwen2_5_VL", text_part),
    family("qwen3_vl", "Qwen3VL", text_part),
    family("qwen3_vl_moe", "Qwen3VLMoe", text_part),
    family("qwen3_5", "Qwen3_5", text_part),
    family("qwen3_5_moe", "Qwen3_5Moe", text_part),
    family("llava", "Llava", text_part),
    family("llava_next", "LlavaNext", text_part),
    family("llava_onevision", "LlavaOnevision", text_part),
    family("internvl", "InternVL", text_part),
    family("smolvlm", "SmolVLM", text_part),
    family("idefics3", "Idefics3", text_part),
    family("aya_vision", "AyaVision", text_part),
    family("cohere2_vision", "Cohere2Vision", text_part),
    family("vipllava", "VipLlava", text_part),
    family("llava_next_video", "LlavaNextVideo", text_part),
    family("granite_docling", "GraniteDocling", text_part),
    family("glm4v", "Glm4v", text_part),
    family("glm4v_moe", "Glm4vMoe", text_part),
    family("glm46v", "Glm46V", text_part),
    family("exaone4_5", "Exaone4_5_", text_part),
    family("lfm2_vl", "Lfm2Vl", text_part),
    family("lfm3_vl", "Lfm3Vl", text_part),
    family("deepseek_vl", "DeepseekVL", text_part),
    family("deepseek_vl_hybrid", "DeepseekVLHybrid", text_part),
    family("janus", "Janus", text_part),
    family("kimi_k25", "Kimi_K25", text_part),
    family("got_ocr2", "GotOcr2", text_part),
    family("pp_chart2table", "GotOcr2", text_part),
    family("lighton_ocr", "LightOnOcr", text_part),
    family("glm_ocr", "GlmOcr", text_part),
    family("glmga", "Glm46V", text_part),
    family("paddleocr_vl", "PaddleOCRVL", text_part),
    family("qianfan_ocr", "QianfanOCR", text_part),
    family("minicpm_ocr", "MiniCPMOcr", text_part),
    family("minicpmv4_6", "MiniCPMV4_6", text_part),
    family("minicpmv4_7", "MiniCPMV4_7", text_part),
    family("hyperclovax_vision_v2", "HyperCLOVAXVisionV2", text_part),
    family("idefics2", "Idefics2", text_part),
    family("fast_vlm", "FastVlm", text_part),
    family("perception_lm", "PerceptionLM", text_part),
    family("ovis2", "Ovis2", text_part),
    family("video_llama_3", "VideoLlama3", text_part),
    family("video_llava", "VideoLlava", text_part),
    family("fuyu", "Fuyu", text_part),
    family("qwen2_5_omni_thinker", "Qwen2_5OmniThinker", text_part),
    family("qwen3_omni_moe_thinker", "Qwen3OmniMoeThinker", text_part),
    family("qwen2_5_omni", "Qwen2_5Omni", text_part),
    family("qwen3_omni_moe", "Qwen3OmniMoe", text_part),
    family("mllama", "Mllama", text_part),
    family("aria", "Aria", text_part),
    family("phi4_multimodal", "Phi4Multimodal", text_part),
    family("apertus1p5", "Apertus1p5", text_part),
    family("qwen2_audio", "Qwen2Audio", text_part),
    family("qwen3_asr", "Qwen3ASR", text_part),
    family("voxtral", "Voxtral", text_part),
    family("glmasr", "GlmAsr", text_part),
    family("granite_speech", "GraniteSpeech", text_part),
    family("granite_speech_plus", "GraniteSpeechPlus", text_part),
    family("fun_asr_nano", "FunAsrNano", text_part),
    family("moss_transcribe_diarize", "MossTranscribeDiarize", text_part),
    family("omniasr", "OmniASR", text_part),
    family("vibevoice_asr", "VibeVoiceAsr", text_part),
    family("paligemma", "PaliGemma", text_part),
    family("shieldgemma2", "Gemma3", text_part),
    family("granite4_vision", "Granite4Vision", text_part),
    family("muse_glimmer", "MuseGlimmer", text_part),
    family("ernie4_5_vl_moe", "Ernie4_5_VLMoe", text_part),
    family("minimax_m3_vl", "MiniMaxM3Sparse", text_part),
    family("hunyuan_vl", "HunYuanVL", text_part),
    family("cohere_compass", "CohereCompass", text_part),
    family("nemotron_h_omni", "NemotronH_Omni", text_part),
    family("deepseek_ocr2", "DeepseekOcr2", text_part),
    family("internvl_chat", "InternVLChat", text_part),
    family("kimi_vl", "KimiVL", text_part),
    family("llava_llama", "LlavaLlama", text_part),
    family("llava_mistral", "LlavaMistral", text_part),
    family("llava_qwen", "LlavaQwen", text_part),
];

/// The spec of a configuration.
pub(super) fn read(config: &ConfigFile) -> Result<Spec, ModelError> {
    let named = config.str("model_type")?;
    let Some(family) = named.and_then(Family::of) else {
        return Err(ModelError::Family {
            got: named.map_or_else(|| "missing".to_owned(), with_reason),
            supported: Family::all().map(Family::model_type).collect::<Vec<_>>().join(", "),
        });
    };
    let reader = Reader { config, family };
    let spec = (family.0.read)(&reader)?;
    check(&spec)?;
    Ok(spec)
}

/// Well-known models that are something else, and what.
const OTHERS: [(&str, &[&str]); 3] = [
    ("a mixture of experts of a kind that is not computed here", &["dbrx", "minimax"]),
    ("layers with a state", &["rwkv", "recurrent_gemma", "zamba", "zamba2"]),
    ("an encoder and a decoder", &["t5", "mt5", "bart", "mbart", "pegasus", "t5gemma", "whisper"]),
];

/// A `model_type`, with why it is none of these where that is known.
fn with_reason(named: &str) -> String {
    let known = OTHERS.iter().find(|(_, types)| types.contains(&named));
    known.map_or_else(|| named.to_owned(), |(why, _)| format!("{named} ({why})"))
}

/// What every family needs.
fn check(spec: &Spec) -> Result<(), ModelError> {
    if let Some(at) = spec.layers.iter().position(|own| own.sizes.is_some()) {
        let own = (at..spec.layers.len()).map(|at| spec.sizes(at)).collect::<std::collections::BTreeSet<_>>();
        for sizes in own {
            let ropes = spec.layers.iter().enumerate().filter(|(at, _)| spec.sizes(*at) == sizes);
            let ropes = ropes.filter_map(|(_, own)| spec.ropes.get(own.rope?)).cloned().collect();
            check_sizes(&Spec { ropes, layers: Vec::new(), ..spec.with_sizes(sizes) })?;
        }
        return Ok(());
    }
    check_sizes(spec)
}

/// What a spec needs whose blocks are of one kind.
fn check_sizes(spec: &Spec) -> Result<(), ModelError> {
    let Spec { heads, kv_heads, head_dim, .. } = *spec;
    let widths = [
        ("vocab_size", spec.vocab),
        ("hidden_size", spec.hidden),
        ("intermediate_size", spec.intermediate),
        ("head_dim", head_dim),
    ];
    if let Some((key, width)) = widths.into_iter().find(|(_, width)| *width > MOST_WIDTH) {
        return Err(wrong(key, &width.to_string(), "at most 2^40"));
    }
    if !head_dim.is_multiple_of(2) && !spec.ropes.is_empty() {
        return Err(wrong("head_dim", &head_dim.to_string(), "an even number, whose halves rotate"));
    }
    if kv_heads == 0 || heads % kv_heads != 0 {
        return Err(ModelError::Unsupported {
            key: "num_key_value_heads".to_owned(),
            got: format!("{kv_heads} for {heads} heads"),
            supported: "a divisor of num_attention_heads",
        });
    }
    if let Some(rope) = spec.ropes.iter().find(|rope| rope.dim % 2 != 0 || rope.dim > head_dim) {
        return Err(wrong(
            "partial_rotary_factor",
            &format!("{} of {head_dim} dimensions", rope.dim),
            "an even number of a head's dimensions",
        ));
    }
    Ok(())
}
