//! `Names`: what a family's modules are called in Hugging Face's files.

use burnish_core::{Parameter, Role};

/// Module names of a decoder. Those of blocks stand behind [`Self::layers`] and the block's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// The token embedding.
    pub embed: &'static str,
    /// The norm of embeddings.
    pub embed_norm: &'static str,
    /// The table of learned positions.
    pub positions: &'static str,
    /// The list of blocks.
    pub layers: &'static str,
    /// The norm before attention.
    pub attention_norm: &'static str,
    /// Queries, keys and values.
    pub qkv: QkvNames,
    /// The norms of queries and keys.
    pub qk_norms: [&'static str; 2],
    /// Whether files have those of each head apart, as `{norm}.norms.{head}` (StableLM 2 12B).
    pub qk_norms_apart: bool,
    /// What gates the attention's output, where a layer of its own does.
    pub head_gates: &'static str,
    /// The attention's output.
    pub o: &'static str,
    /// Of blocks with a convolution: what it reads, its kernel, its output.
    pub conv: [&'static str; 3],
    /// Where blocks with a gated delta rule have what that reads.
    pub delta: DeltaNames,
    /// Of blocks with a state space: what it reads, its convolution, the bias and rates of its heads, what passes by them, the
    /// norm of its output, the layer behind it.
    pub ssd: SsdNames,
    /// The norm after attention.
    pub attention_post_norm: &'static str,
    /// The norm before the feed-forward.
    pub mlp_norm: &'static str,
    /// Gate and up.
    pub up: UpNames,
    /// The feed-forward's output.
    pub down: &'static str,
    /// The norm after the feed-forward.
    pub mlp_post_norm: &'static str,
    /// Of blocks with a mixture of experts.
    pub experts: ExpertNames,
    /// Where a layer stands before the head ([`Spec::dense_head`](crate::Spec::dense_head)), the norm behind the blocks and that layer.
    pub dense_head: [&'static str; 2],
    /// The norm before the head.
    pub norm: &'static str,
    /// The head over the vocabulary.
    pub head: &'static str,
    /// How else files may begin the name of a parameter that begins so: (its own, the files').
    pub other_spellings: &'static [(&'static str, &'static str)],
    /// What files may have for parts of names, all in one name: (its own, the files').
    pub other_parts: &'static [(&'static str, &'static str)],
    /// What names of tensors hold that no class of Transformers reads; empty for none.
    pub unread: &'static str,
    /// Whether files keep the blocks' matrices as `[in, out]` (GPT-2's `Conv1D`).
    pub turned: bool,
}

/// Where queries, keys and values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkvNames {
    /// Three matrices.
    Apart([&'static str; 3]),
    /// One matrix: all queries, all keys, all values.
    Packed(&'static str),
    /// One matrix: of each key head its queries, then its key and its value.
    PerGroup(&'static str),
    /// Queries of a latent or of the stream, and keys with values of another latent (DeepSeek).
    OfLatent([&'static str; 2]),
    /// One matrix: of each quarter of the heads all queries, all values, all keys (CodeGen).
    Quarters(&'static str),
}

/// What a gated delta rule reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeltaNames {
    /// Queries, keys and values in one matrix; gates; what each head learns by and what it forgets by (Qwen3.5).
    Apart([&'static str; 4]),
    /// Of each head of keys its query, key, values and gates in one matrix, and what its values learn and forget by in another
    /// (Qwen3-Next).
    PerGroup([&'static str; 2]),
    /// Queries, keys, values, gates, what each head learns by and what it forgets by; of the first three each has a convolution
    /// of its own (OLMo Hybrid).
    ByLayer([&'static str; 6]),
    /// Queries, keys, values, and what each head learns by; the layers of gates, and those of what channels forget by: a narrow one and a
    /// wide one (Kimi Linear), or one alone (Ling 3). Of the first three each has a convolution of its own.
    ByChannel([&'static str; 4], [&'static [&'static str]; 2]),
}

impl DeltaNames {
    /// Its convolutions.
    #[must_use]
    pub fn convolutions(&self) -> &'static [&'static str] {
        match self {
            Self::ByLayer(_) => &["linear_attn.q_conv1d", "linear_attn.k_conv1d", "linear_attn.v_conv1d"],
            Self::ByChannel(..) => &["self_attn.q_conv1d", "self_attn.k_conv1d", "self_attn.v_conv1d"],
            Self::Apart(_) | Self::PerGroup(_) => &["linear_attn.conv1d"],
        }
    }

    /// The norm of its heads.
    #[must_use]
    pub fn norm(&self) -> &'static str {
        match self {
            Self::ByLayer(_) => "linear_attn.o_norm",
            Self::ByChannel(..) => "self_attn.o_norm",
            Self::Apart(_) | Self::PerGroup(_) => "linear_attn.norm",
        }
    }

    /// What its heads forget by: what is added, and the logarithms of their rates.
    #[must_use]
    pub fn rates(&self) -> [&'static str; 2] {
        match self {
            Self::ByChannel(..) => ["self_attn.forget_gate.dt_bias", "self_attn.forget_gate.A_log"],
            _ => ["linear_attn.dt_bias", "linear_attn.A_log"],
        }
    }

    /// The layer behind it.
    #[must_use]
    pub fn output(&self) -> &'static str {
        match self {
            Self::ByLayer(_) => "linear_attn.o_proj",
            Self::ByChannel(..) => "self_attn.o_proj",
            Self::Apart(_) | Self::PerGroup(_) => "linear_attn.out_proj",
        }
    }
}

/// What a state space is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SsdNames {
    /// The layer that it reads.
    pub input: &'static str,
    /// Its convolution.
    pub conv: &'static str,
    /// What is added to its heads' steps.
    pub bias: &'static str,
    /// In Mamba: the layer that makes what steps are made of, and directions in and out; the layer that makes steps; their norms.
    pub selective: ([&'static str; 2], [&'static str; 3]),
    /// The logarithms of their rates.
    pub log_rate: &'static str,
    /// What of their values passes by.
    pub skip: &'static str,
    /// The norm of its output.
    pub norm: &'static str,
    /// The layer behind it.
    pub output: &'static str,
}

/// In Bamba, Granite 4, Falcon-H1 and Jamba.
pub(crate) const SSD_MAMBA: SsdNames = SsdNames {
    input: "mamba.in_proj",
    conv: "mamba.conv1d",
    bias: "mamba.dt_bias",
    selective: (
        ["mamba.x_proj", "mamba.dt_proj"],
        ["mamba.dt_layernorm", "mamba.b_layernorm", "mamba.c_layernorm"],
    ),
    log_rate: "mamba.A_log",
    skip: "mamba.D",
    norm: "mamba.norm",
    output: "mamba.out_proj",
};

/// In Mamba, Mamba-2 and Nemotron-H, whose blocks have one part each.
pub(crate) const SSD_MIXER: SsdNames = SsdNames {
    input: "mixer.in_proj",
    conv: "mixer.conv1d",
    bias: "mixer.dt_bias",
    selective: (
        ["mixer.x_proj", "mixer.dt_proj"],
        ["mixer.dt_layernorm", "mixer.b_layernorm", "mixer.c_layernorm"],
    ),
    log_rate: "mixer.A_log",
    skip: "mixer.D",
    norm: "mixer.norm",
    output: "mixer.out_proj",
};

/// What stands before the activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpNames {
    /// Gate and up.
    Gated([&'static str; 2]),
    /// One matrix: gate, then up.
    Packed(&'static str),
    /// No gate.
    Plain(&'static str),
}

/// What a mixture of experts is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertNames {
    /// The router.
    pub router: &'static str,
    /// Gate and up of all experts.
    pub gate_up: &'static str,
    /// The second layers of all experts.
    pub down: &'static str,
    /// What corrects scores where experts are compared.
    pub correction: &'static str,
    /// Whether files have that as a matrix of one row (ERNIE 4.5).
    pub correction_in_row: bool,
    /// Whether files have experts for pictures behind these, and their corrections below these; and the router `[in, out]` (ERNIE 4.5 VL).
    pub beside_pictures: bool,
    /// The shared expert's gate and up.
    pub shared_up: UpNames,
    /// Its output.
    pub shared_down: &'static str,
    /// What makes the number that multiplies it.
    pub shared_gate: &'static str,
    /// How files have them.
    pub files: ExpertFiles,
    /// Whether the router is a linear layer that PEFT finds among the others (Gemma 4), and no bare parameter.
    pub router_is_linear: bool,
    /// Whether PEFT's adapters on experts (`target_parameters`) stand on the files' `[in, out]` as if that were `[out, in]`
    /// (Llama 4).
    pub adapters_turned: bool,
}

/// How files have the matrices of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertFiles {
    /// As they are here.
    Same,
    /// Each expert's gate (empty for none), up and second layer as modules of their own, behind a prefix and the expert's number.
    Apart {
        /// What stands before the number.
        experts: &'static str,
        /// Gate, up, second layer.
        modules: [&'static str; 3],
        /// What the router is called.
        router: &'static str,
    },
    /// All experts' in one tensor each, under other names: gate and up, second layer, router.
    Together([&'static str; 3]),
    /// As they are here, but `[in, out]` of each expert (gpt-oss, Llama 4).
    Turned,
    /// Either of the two, as the shapes say (Qwen3-VL-MoE: published ones are turned, those that Transformers writes not).
    ByShape,
}

/// Where the text part of a model of several parts lies.
pub(crate) struct Inner {
    embed: &'static str,
    layers: &'static str,
    norm: &'static str,
    head: &'static str,
    other_spellings: &'static [(&'static str, &'static str)],
}

/// Most of them: files of before Transformers 4.52 have the language model whole under `language_model`.
pub(crate) const LANGUAGE_MODEL: Inner = Inner {
    embed: "model.language_model.embed_tokens",
    layers: "model.language_model.layers",
    norm: "model.language_model.norm",
    head: "lm_head",
    other_spellings: &[
        ("model.language_model.", "language_model.model."),
        ("model.language_model.", "language_model."),
        ("lm_head.", "language_model.lm_head."),
    ],
};

/// Qwen's: files have the language model as if it were alone.
pub(crate) const QWEN_VL: Inner =
    Inner { other_spellings: &[("model.language_model.", "model.")], ..LANGUAGE_MODEL };

/// LFM2's.
pub(crate) const LFM2_VL: Inner = Inner { norm: "model.language_model.embedding_norm", ..LANGUAGE_MODEL };

/// Phi-4-multimodal's: under the decoder's own names.
pub(crate) const MODEL: Inner = Inner {
    embed: "model.embed_tokens",
    layers: "model.layers",
    norm: "model.norm",
    other_spellings: &[],
    ..LANGUAGE_MODEL
};

/// Fuyu's, whose decoder is Persimmon's.
pub(crate) const FUYU: Inner = Inner { norm: "model.language_model.final_layernorm", ..LANGUAGE_MODEL };

/// Nemotron Omni's: the language model whole, with its head.
pub(crate) const NEMOTRON_OMNI: Inner = Inner {
    embed: "language_model.model.embeddings",
    layers: "language_model.model.layers",
    norm: "language_model.model.norm_f",
    head: "language_model.lm_head",
    other_spellings: &[("language_model.model.", "language_model.backbone.")],
};

/// Qianfan-OCR's, whose files may have its blocks one part deeper.
pub(crate) const QIANFAN_OCR: Inner = Inner {
    other_spellings: &[
        ("model.language_model.layers.", "language_model.model.encoder.layers."),
        ("model.language_model.", "language_model.model."),
        ("lm_head.", "language_model.lm_head."),
    ],
    ..LANGUAGE_MODEL
};

/// Kimi K2.5's, whose blocks Transformers writes under the name of its tower's.
pub(crate) const KIMI_K25: Inner = Inner {
    other_spellings: &[
        ("model.language_model.layers.", "language_model.model.blocks."),
        ("model.language_model.", "language_model.model."),
        ("lm_head.", "language_model.lm_head."),
    ],
    ..LANGUAGE_MODEL
};

/// Of models that also speak, the part that thinks.
pub(crate) const THINKER: Inner = Inner {
    embed: "thinker.model.language_model.embed_tokens",
    layers: "thinker.model.language_model.layers",
    norm: "thinker.model.language_model.norm",
    head: "thinker.lm_head",
    other_spellings: &[("thinker.model.language_model.", "thinker.model.")],
};

/// Llama 4's: the language model whole, with its head.
pub(crate) const LLAMA4_PART: Inner = Inner {
    embed: "language_model.model.embed_tokens",
    layers: "language_model.model.layers",
    norm: "language_model.model.norm",
    head: "language_model.lm_head",
    other_spellings: &[],
};

/// How else adapters of models of several parts name the text part: as the class of text alone has it (`Qwen3_5ForCausalLM`;
/// before Transformers 4.52 Qwen2-VL's too), and as the others had it before 4.52.
const OF_ADAPTERS: [Inner; 2] = [
    Inner {
        other_spellings: &[
            ("model.", "model.language_model."),
            ("model.", "language_model.model."),
            ("lm_head.", "language_model.lm_head."),
        ],
        ..MODEL
    },
    Inner {
        other_spellings: &[
            ("language_model.model.", "model.language_model."),
            ("language_model.model.", "model."),
            ("language_model.lm_head.", "lm_head."),
        ],
        ..LLAMA4_PART
    },
];

/// SmolVLM's and Idefics'.
pub(crate) const TEXT_MODEL: Inner = Inner {
    embed: "model.text_model.embed_tokens",
    layers: "model.text_model.layers",
    norm: "model.text_model.norm",
    head: "lm_head",
    other_spellings: &[],
};

/// What makes the inputs of each block beside the stream: a table, a layer on the embedding, the norm of what that gives.
pub(crate) const PER_LAYER: [&str; 3] =
    ["embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm"];

/// In the names of what picks the tokens that attention sees.
pub(crate) const INDEXER: &str = ".self_attn.index";

/// Between the stream and those beside it: into them, and out of them. Each of the others has a layer in both lists.
pub(crate) const STREAMS: [&str; 2] = ["altup_projections", "altup_unembed_projections"];

/// Layers between the embedding and the stream, and between the stream and the head.
pub(crate) const PROJECTIONS: [&str; 2] = ["project_in", "project_out"];

/// Most mixtures'.
const QWEN_MOE: ExpertNames = ExpertNames {
    router: "mlp.gate",
    gate_up: "mlp.experts.gate_up_proj",
    down: "mlp.experts.down_proj",
    correction: "mlp.gate.e_score_correction_bias",
    correction_in_row: false,
    beside_pictures: false,
    shared_up: UpNames::Gated(["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"]),
    shared_down: "mlp.shared_expert.down_proj",
    shared_gate: "mlp.shared_expert_gate",
    files: ExpertFiles::Apart {
        experts: "mlp.experts",
        modules: ["gate_proj", "up_proj", "down_proj"],
        router: "mlp.gate",
    },
    router_is_linear: false,
    adapters_turned: false,
};

/// Mixtral's.
pub(crate) const MIXTRAL: Names = Names {
    experts: ExpertNames {
        files: ExpertFiles::Apart {
            experts: "block_sparse_moe.experts",
            modules: ["w1", "w3", "w2"],
            router: "block_sparse_moe.gate",
        },
        ..QWEN_MOE
    },
    ..LLAMA
};

/// GLM-4.5's.
pub(crate) const GLM4_MOE: Names = Names {
    experts: ExpertNames {
        shared_up: UpNames::Gated(["mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"]),
        shared_down: "mlp.shared_experts.down_proj",
        ..QWEN_MOE
    },
    ..LLAMA
};

/// Ling's of before 2.0.
pub(crate) const BAILING_MOE: Names = Names {
    embed: "model.word_embeddings",
    qkv: QkvNames::Packed("attention.query_key_value"),
    o: "attention.dense",
    ..GLM4_MOE
};

/// Ling 2.0's.
pub(crate) const BAILING_MOE_V2: Names = Names {
    qk_norms: ["attention.query_layernorm", "attention.key_layernorm"],
    experts: ExpertNames { correction: "mlp.gate.expert_bias", ..GLM4_MOE.experts },
    ..BAILING_MOE
};

/// Sarvam 30B's.
pub(crate) const SARVAM_MOE: Names = Names { embed: "model.word_embeddings", ..BAILING_MOE_V2 };

/// A.X K1's: DeepSeek's with a norm behind mixtures; published files have it behind the dense feed-forward too, where nothing reads it.
pub(crate) const AXK1: Names = Names {
    mlp_post_norm: "mlp.post_mlp_layernorm",
    other_parts: &[(".mlp.post_mlp_layernorm.", ".post_mlp_layernorm.")],
    unread: ".post_mlp_layernorm.",
    ..DEEPSEEK
};

/// Kimi Linear's: latents without a rotation, and delta rules of channels.
pub(crate) const KIMI_LINEAR: Names = Names {
    delta: DeltaNames::ByChannel(
        ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.b_proj"],
        [
            &["self_attn.g_a_proj", "self_attn.g_b_proj"],
            &["self_attn.forget_gate.f_a_proj", "self_attn.forget_gate.f_b_proj"],
        ],
    ),
    experts: ExpertNames {
        files: ExpertFiles::Apart {
            experts: "block_sparse_moe.experts",
            modules: ["w1", "w3", "w2"],
            router: "block_sparse_moe.gate",
        },
        ..GLM4_MOE.experts
    },
    other_parts: &[(".self_attn.forget_gate.", ".self_attn."), (".mlp.", ".block_sparse_moe.")],
    ..DEEPSEEK_LITE
};

/// Ling 3's: gated latents, and delta rules of channels.
pub(crate) const BAILING_HYBRID: Names = Names {
    delta: DeltaNames::ByChannel(
        ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.b_proj"],
        [&["self_attn.g_proj"], &["self_attn.forget_gate.f_proj"]],
    ),
    head_gates: "self_attn.g_proj",
    other_parts: &[
        (".self_attn.forget_gate.", ".attention."),
        (".self_attn.", ".attention."),
        (".o_proj.", ".dense."),
        ("model.embed_tokens.", "model.word_embeddings."),
        (".e_score_correction_bias", ".expert_bias"),
    ],
    ..DEEPSEEK_LITE
};

/// ERNIE 4.5's mixtures'.
pub(crate) const ERNIE_MOE: Names = Names {
    experts: ExpertNames {
        correction: "mlp.moe_statics.e_score_correction_bias",
        correction_in_row: true,
        ..GLM4_MOE.experts
    },
    unread: "mtp",
    ..LLAMA
};

/// ERNIE 4.5 VL's.
pub(crate) const ERNIE_VL_MOE: Names = Names {
    experts: ExpertNames {
        router: "mlp.text_moe.gate",
        gate_up: "mlp.text_moe.experts.gate_up_proj",
        down: "mlp.text_moe.experts.down_proj",
        correction: "mlp.text_moe.gate.moe_statics.e_score_correction_bias",
        beside_pictures: true,
        files: ExpertFiles::Apart {
            experts: "mlp.experts",
            modules: ["gate_proj", "up_proj", "down_proj"],
            router: "mlp.text_moe.gate",
        },
        ..GLM4_MOE.experts
    },
    other_parts: &[
        (".mlp.text_moe.gate.moe_statics.", ".mlp.moe_statics."),
        (".mlp.text_moe.gate.", ".mlp.gate."),
    ],
    ..LLAMA
};

/// Hy3's.
pub(crate) const HY_V3: Names = Names {
    experts: ExpertNames { correction: "mlp.e_score_correction_bias", ..GLM4_MOE.experts },
    other_parts: &[
        (".mlp.gate.", ".mlp.router.gate."),
        (".mlp.e_score_correction_bias", ".mlp.expert_bias"),
        (".mlp.shared_experts.", ".mlp.shared_mlp."),
    ],
    ..GLM4_MOE
};

/// Laguna's.
pub(crate) const LAGUNA: Names = Names {
    head_gates: "self_attn.g_proj",
    other_parts: &[
        (".mlp.gate.e_score_correction_bias", ".mlp.experts.e_score_correction_bias"),
        (".mlp.shared_experts.", ".mlp.shared_expert."),
    ],
    ..GLM4_MOE
};

/// Flint's.
pub(crate) const FLINT: Names =
    Names { other_parts: &[(".self_attn.sinks", ".self_attn.softmax_offset")], ..LLAMA };

/// MiMo-V2-Flash's.
pub(crate) const MIMO_V2_FLASH: Names = Names {
    other_parts: &[(".self_attn.sinks", ".self_attn.attention_sink_bias")],
    unread: "model.mtp.",
    ..GLM4_MOE
};

/// Kolibri's.
pub(crate) const KOLIBRI: Names = Names {
    attention_post_norm: "post_self_attn_layernorm",
    mlp_post_norm: "post_mlp_layernorm",
    other_parts: &[
        (".post_self_attn_layernorm.", ".post_attn_norm."),
        (".post_mlp_layernorm.", ".post_ffn_norm."),
        (".mlp.gate.e_score_correction_bias", ".moe.router.expert_bias"),
    ],
    ..GLM4_MOE
};

/// HunYuan's mixtures'.
pub(crate) const HUNYUAN_MOE: Names = Names {
    experts: ExpertNames {
        router: "mlp.gate.wg",
        shared_up: UpNames::Gated(["mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj"]),
        shared_down: "mlp.shared_mlp.down_proj",
        files: ExpertFiles::Apart {
            experts: "mlp.experts",
            modules: ["gate_proj", "up_proj", "down_proj"],
            router: "mlp.gate.wg",
        },
        router_is_linear: true,
        ..QWEN_MOE
    },
    ..HUNYUAN
};

/// K-EXAONE's.
pub(crate) const EXAONE_MOE: Names = Names {
    experts: ExpertNames { correction: "mlp.e_score_correction_bias", ..GLM4_MOE.experts },
    unread: "mtp",
    ..GLM4_MOE
};

/// PhiMoE's.
pub(crate) const PHIMOE: Names =
    Names { experts: ExpertNames { router: "mlp.router", ..MIXTRAL.experts }, ..LLAMA };

/// MiniMax-M2's: Mixtral's with a correction.
pub(crate) const MINIMAX_M2: Names = Names {
    experts: ExpertNames { correction: "block_sparse_moe.e_score_correction_bias", ..MIXTRAL.experts },
    ..LLAMA
};

/// MiniMax-M3's.
pub(crate) const MINIMAX_M3: Names = Names {
    experts: ExpertNames {
        files: ExpertFiles::Apart {
            experts: "block_sparse_moe.experts",
            modules: ["w1", "w3", "w2"],
            router: "block_sparse_moe.gate",
        },
        ..GLM4_MOE.experts
    },
    other_parts: &[
        (".mlp.gate.e_score_correction_bias", ".block_sparse_moe.e_score_correction_bias"),
        (".mlp.gate.weight", ".block_sparse_moe.gate.weight"),
        (".mlp.shared_experts.", ".block_sparse_moe.shared_experts."),
    ],
    unread: "mtp.",
    ..LLAMA
};

/// The same as the class of its decoder alone has them.
pub(crate) const MINIMAX_M3_TEXT: Names = Names {
    up: UpNames::Packed("mlp.gate_up_proj"),
    experts: ExpertNames {
        shared_up: UpNames::Packed("mlp.shared_experts.gate_up_proj"),
        files: ExpertFiles::Same,
        ..MINIMAX_M3.experts
    },
    other_parts: &[],
    ..MINIMAX_M3
};

/// LFM2's mixtures'.
pub(crate) const LFM2_MOE: Names = Names {
    experts: ExpertNames {
        router: "feed_forward.gate",
        gate_up: "feed_forward.experts.gate_up_proj",
        down: "feed_forward.experts.down_proj",
        correction: "feed_forward.expert_bias",
        files: ExpertFiles::Apart {
            experts: "feed_forward.experts",
            modules: ["w1", "w3", "w2"],
            router: "feed_forward.gate",
        },
        ..QWEN_MOE
    },
    ..LFM2
};

/// Qwen3.5's, which files may have as a part of a larger model.
pub(crate) const QWEN3_5: Names =
    Names { other_spellings: &[("model.", "model.language_model.")], unread: "mtp.", ..LLAMA };

/// OLMo Hybrid's: norms behind attention, and before delta rules.
pub(crate) const OLMO_HYBRID: Names = Names {
    delta: DeltaNames::ByLayer([
        "linear_attn.q_proj",
        "linear_attn.k_proj",
        "linear_attn.v_proj",
        "linear_attn.g_proj",
        "linear_attn.b_proj",
        "linear_attn.a_proj",
    ]),
    attention_post_norm: "post_attention_layernorm",
    mlp_post_norm: "post_feedforward_layernorm",
    other_parts: &[
        (".input_layernorm.", ".attention_layer_norm."),
        (".post_attention_layernorm.", ".feedforward_layer_norm."),
    ],
    ..LLAMA
};

/// Qwen3-Next's.
pub(crate) const QWEN3_NEXT: Names = Names {
    delta: DeltaNames::PerGroup(["linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"]),
    unread: "mtp.",
    ..LLAMA
};

/// Qwen3-VL's mixtures'.
pub(crate) const QWEN_VL_MOE: Names =
    Names { experts: ExpertNames { files: ExpertFiles::ByShape, ..QWEN_MOE }, ..LLAMA };

/// DeepSeek's.
pub(crate) const DEEPSEEK: Names =
    Names { qkv: QkvNames::OfLatent(["self_attn.q_b_proj", "self_attn.kv_b_proj"]), ..GLM4_MOE };

/// DeepSeek's whose queries come from the stream (DeepSeek-V2-Lite).
pub(crate) const DEEPSEEK_LITE: Names =
    Names { qkv: QkvNames::OfLatent(["self_attn.q_proj", "self_attn.kv_b_proj"]), ..DEEPSEEK };

/// gpt-oss'.
pub(crate) const GPT_OSS: Names =
    Names { experts: ExpertNames { router: "mlp.router", files: ExpertFiles::Turned, ..QWEN_MOE }, ..LLAMA };

/// Aria's.
pub(crate) const ARIA: Names = Names {
    experts: ExpertNames {
        router: "mlp.router",
        shared_up: UpNames::Gated(["mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj"]),
        shared_down: "mlp.shared_experts.down_proj",
        files: ExpertFiles::Turned,
        ..QWEN_MOE
    },
    other_parts: &[
        (".mlp.experts.gate_up_proj", ".mlp.experts.fc1.weight"),
        (".mlp.experts.down_proj", ".mlp.experts.fc2.weight"),
    ],
    ..LLAMA
};

/// Llama 4's.
pub(crate) const LLAMA4: Names = Names {
    up: UpNames::Gated(["feed_forward.gate_proj", "feed_forward.up_proj"]),
    down: "feed_forward.down_proj",
    experts: ExpertNames {
        router: "feed_forward.router",
        gate_up: "feed_forward.experts.gate_up_proj",
        down: "feed_forward.experts.down_proj",
        shared_up: UpNames::Gated([
            "feed_forward.shared_expert.gate_proj",
            "feed_forward.shared_expert.up_proj",
        ]),
        shared_down: "feed_forward.shared_expert.down_proj",
        shared_gate: "",
        files: ExpertFiles::Turned,
        adapters_turned: true,
        ..QWEN_MOE
    },
    ..LLAMA
};

/// Granite's mixtures'.
pub(crate) const GRANITE_MOE: Names = Names {
    experts: ExpertNames {
        router: "block_sparse_moe.router",
        gate_up: "block_sparse_moe.experts.gate_up_proj",
        down: "block_sparse_moe.experts.down_proj",
        files: ExpertFiles::Together([
            "block_sparse_moe.input_linear.weight",
            "block_sparse_moe.output_linear.weight",
            "block_sparse_moe.router.layer.weight",
        ]),
        ..QWEN_MOE
    },
    ..LLAMA
};

/// The same with a feed-forward beside the experts.
pub(crate) const GRANITE_MOE_SHARED: Names = Names {
    experts: ExpertNames {
        shared_up: UpNames::Packed("shared_mlp.input_linear"),
        shared_down: "shared_mlp.output_linear",
        ..GRANITE_MOE.experts
    },
    ..GRANITE_MOE
};

/// Bamba's.
pub(crate) const BAMBA: Names = Names {
    mlp_norm: "pre_ff_layernorm",
    up: UpNames::Gated(["feed_forward.gate_proj", "feed_forward.up_proj"]),
    down: "feed_forward.down_proj",
    norm: "model.final_layernorm",
    ..LLAMA
};

/// Nemotron-H's: blocks of one part each.
pub(crate) const NEMOTRON_H: Names = Names {
    embed: "model.embeddings",
    attention_norm: "norm",
    qkv: QkvNames::Apart(["mixer.q_proj", "mixer.k_proj", "mixer.v_proj"]),
    o: "mixer.o_proj",
    ssd: SSD_MIXER,
    mlp_norm: "norm",
    up: UpNames::Plain("mixer.up_proj"),
    down: "mixer.down_proj",
    norm: "model.norm_f",
    experts: ExpertNames {
        router: "mixer.gate",
        gate_up: "mixer.experts.up_proj",
        down: "mixer.experts.down_proj",
        correction: "mixer.gate.e_score_correction_bias",
        shared_up: UpNames::Plain("mixer.shared_experts.up_proj"),
        shared_down: "mixer.shared_experts.down_proj",
        files: ExpertFiles::Apart {
            experts: "mixer.experts",
            modules: ["", "up_proj", "down_proj"],
            router: "mixer.gate",
        },
        ..QWEN_MOE
    },
    other_spellings: &[("model.", "backbone.")],
    unread: "mtp",
    ..LLAMA
};

/// Jamba's: Bamba's, with mixtures.
pub(crate) const JAMBA: Names = Names {
    experts: ExpertNames {
        router: "feed_forward.router",
        gate_up: "feed_forward.experts.gate_up_proj",
        down: "feed_forward.experts.down_proj",
        files: ExpertFiles::Apart {
            experts: "feed_forward.experts",
            modules: ["gate_proj", "up_proj", "down_proj"],
            router: "feed_forward.router",
        },
        ..QWEN_MOE
    },
    ..BAMBA
};

/// Mamba's and Mamba-2's.
pub(crate) const MAMBA: Names = Names {
    embed: "backbone.embeddings",
    layers: "backbone.layers",
    attention_norm: "norm",
    ssd: SSD_MIXER,
    norm: "backbone.norm_f",
    other_spellings: &[("backbone.embeddings.", "backbone.embedding.")],
    ..LLAMA
};

/// Granite 4's hybrids': a feed-forward in every block, beside experts where there are some.
pub(crate) const GRANITE_HYBRID: Names = Names {
    up: UpNames::Packed("shared_mlp.input_linear"),
    down: "shared_mlp.output_linear",
    ..GRANITE_MOE_SHARED
};

/// Llama's, and most others'.
pub(crate) const LLAMA: Names = Names {
    embed: "model.embed_tokens",
    embed_norm: "",
    positions: "",
    layers: "model.layers",
    attention_norm: "input_layernorm",
    qkv: QkvNames::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    qk_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    qk_norms_apart: false,
    head_gates: "",
    o: "self_attn.o_proj",
    conv: ["", "", ""],
    delta: DeltaNames::Apart([
        "linear_attn.in_proj_qkv",
        "linear_attn.in_proj_z",
        "linear_attn.in_proj_b",
        "linear_attn.in_proj_a",
    ]),
    ssd: SSD_MAMBA,
    attention_post_norm: "",
    mlp_norm: "post_attention_layernorm",
    up: UpNames::Gated(["mlp.gate_proj", "mlp.up_proj"]),
    down: "mlp.down_proj",
    mlp_post_norm: "",
    experts: QWEN_MOE,
    dense_head: ["", ""],
    norm: "model.norm",
    head: "lm_head",
    other_spellings: &[],
    other_parts: &[],
    unread: "",
    turned: false,
};

/// ModernBERT's decoders'.
pub(crate) const MODERNBERT_DECODER: Names = Names {
    embed: "model.embeddings.tok_embeddings",
    embed_norm: "model.embeddings.norm",
    attention_norm: "attn_norm",
    qkv: QkvNames::Apart(["attn.q_proj", "attn.k_proj", "attn.v_proj"]),
    o: "attn.Wo",
    mlp_norm: "mlp_norm",
    up: UpNames::Packed("mlp.Wi"),
    down: "mlp.Wo",
    dense_head: ["model.final_norm", "lm_head.dense"],
    norm: "lm_head.norm",
    head: "decoder",
    ..LLAMA
};

/// StableLM's.
pub(crate) const STABLELM: Names = Names { qk_norms: QK_LAYER_NORMS, qk_norms_apart: true, ..LLAMA };

/// Phi-3's: packed.
pub(crate) const PHI3: Names =
    Names { qkv: QkvNames::Packed("self_attn.qkv_proj"), up: UpNames::Packed("mlp.gate_up_proj"), ..LLAMA };

/// Gemma 2's and 3's: norms before and after.
pub(crate) const GEMMA2: Names = Names {
    attention_post_norm: "post_attention_layernorm",
    mlp_norm: "pre_feedforward_layernorm",
    mlp_post_norm: "post_feedforward_layernorm",
    ..LLAMA
};

/// Muse Glimmer's: Gemma 2's with gates.
pub(crate) const MUSE_GLIMMER: Names = Names { head_gates: "self_attn.gate_proj", ..GEMMA2 };

/// Gemma 3n's, which files may have as a part of a larger model.
pub(crate) const GEMMA3N: Names = Names { other_spellings: &[("model.", "model.language_model.")], ..GEMMA2 };

/// Gemma 4's mixtures': experts beside the feed-forward.
pub(crate) const GEMMA4_MOE: Names = Names {
    experts: ExpertNames {
        router: "router.proj",
        gate_up: "experts.gate_up_proj",
        down: "experts.down_proj",
        files: ExpertFiles::Same,
        router_is_linear: true,
        ..QWEN_MOE
    },
    ..GEMMA2
};

/// GLM's: gate and up packed.
pub(crate) const GLM: Names = Names { up: UpNames::Packed("mlp.gate_up_proj"), ..LLAMA };

/// GLM-4's: norms before and after.
pub(crate) const GLM4: Names =
    Names { attention_post_norm: "post_self_attn_layernorm", mlp_post_norm: "post_mlp_layernorm", ..GLM };

/// Nemotron's and Arcee's: no gate.
pub(crate) const UNGATED: Names = Names { up: UpNames::Plain("mlp.up_proj"), ..LLAMA };

/// nanochat's: no gate.
pub(crate) const NANOCHAT: Names = Names { up: UpNames::Plain("mlp.fc1"), down: "mlp.fc2", ..LLAMA };

/// HyperCLOVA X': norms before and after.
pub(crate) const HYPERCLOVAX: Names =
    Names { attention_post_norm: "post_norm1", mlp_post_norm: "post_norm2", ..LLAMA };

/// StarCoder 2's.
pub(crate) const STARCODER2: Names = Names { up: UpNames::Plain("mlp.c_fc"), down: "mlp.c_proj", ..LLAMA };

/// LayerNorms of queries and keys.
const QK_LAYER_NORMS: [&str; 2] = ["self_attn.q_layernorm", "self_attn.k_layernorm"];

/// Phi-1's and Phi-2's.
pub(crate) const PHI: Names = Names {
    o: "self_attn.dense",
    up: UpNames::Plain("mlp.fc1"),
    down: "mlp.fc2",
    norm: "model.final_layernorm",
    qk_norms: QK_LAYER_NORMS,
    ..LLAMA
};

/// HunYuan's: other names of the norms of queries and keys.
pub(crate) const HUNYUAN: Names =
    Names { qk_norms: ["self_attn.query_layernorm", "self_attn.key_layernorm"], ..LLAMA };

/// GPT-NeoX's.
pub(crate) const GPT_NEOX: Names = Names {
    embed: "gpt_neox.embed_in",
    layers: "gpt_neox.layers",
    qkv: QkvNames::PerGroup("attention.query_key_value"),
    o: "attention.dense",
    up: UpNames::Plain("mlp.dense_h_to_4h"),
    down: "mlp.dense_4h_to_h",
    norm: "gpt_neox.final_layer_norm",
    other_spellings: &[("lm_head.", "embed_out.")],
    ..LLAMA
};

/// GPT-NeoX Japanese's.
pub(crate) const GPT_NEOX_JAPANESE: Names = Names {
    embed: "gpt_neox_japanese.embed_in",
    layers: "gpt_neox_japanese.layers",
    norm: "gpt_neox_japanese.final_layer_norm",
    head: "embed_out",
    other_spellings: &[],
    other_parts: &[(".attention.dense.bias", ".attention.dense_bias")],
    ..GPT_NEOX
};

/// What the GPTs share.
const GPT: Names = Names {
    embed: "transformer.wte",
    positions: "transformer.wpe",
    layers: "transformer.h",
    attention_norm: "ln_1",
    mlp_norm: "ln_2",
    norm: "transformer.ln_f",
    ..LLAMA
};

/// GPT-J's.
pub(crate) const GPTJ: Names = Names {
    qkv: QkvNames::Apart(["attn.q_proj", "attn.k_proj", "attn.v_proj"]),
    o: "attn.out_proj",
    up: UpNames::Plain("mlp.fc_in"),
    down: "mlp.fc_out",
    ..GPT
};

/// CodeGen's.
pub(crate) const CODEGEN: Names = Names { qkv: QkvNames::Quarters("attn.qkv_proj"), ..GPTJ };

/// GPT-Neo's.
pub(crate) const GPT_NEO: Names = Names {
    qkv: QkvNames::Apart(["attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"]),
    o: "attn.attention.out_proj",
    up: UpNames::Plain("mlp.c_fc"),
    down: "mlp.c_proj",
    ..GPT
};

/// StarCoder's, with one key head.
pub(crate) const GPT_BIGCODE: Names = Names {
    qkv: QkvNames::Packed("attn.c_attn"),
    o: "attn.c_proj",
    up: UpNames::Plain("mlp.c_fc"),
    down: "mlp.c_proj",
    ..GPT
};

/// Falcon's, with one key head.
pub(crate) const FALCON: Names = Names {
    embed: "transformer.word_embeddings",
    layers: "transformer.h",
    qkv: QkvNames::Packed("self_attention.query_key_value"),
    o: "self_attention.dense",
    up: UpNames::Plain("mlp.dense_h_to_4h"),
    down: "mlp.dense_4h_to_h",
    norm: "transformer.ln_f",
    ..LLAMA
};

/// GPT-2's, whose matrices are `[in, out]`.
pub(crate) const GPT2: Names = Names { turned: true, ..GPT_BIGCODE };

/// GPT's: norms after the sums.
pub(crate) const OPENAI_GPT: Names = Names {
    embed: "transformer.tokens_embed",
    positions: "transformer.positions_embed",
    attention_norm: "",
    attention_post_norm: "ln_1",
    mlp_norm: "",
    mlp_post_norm: "ln_2",
    ..GPT2
};

/// BLOOM's.
pub(crate) const BLOOM: Names = Names {
    embed_norm: "transformer.word_embeddings_layernorm",
    qkv: QkvNames::PerGroup("self_attention.query_key_value"),
    ..FALCON
};

/// MPT's.
pub(crate) const MPT: Names = Names {
    layers: "transformer.blocks",
    attention_norm: "norm_1",
    qkv: QkvNames::Packed("attn.Wqkv"),
    o: "attn.out_proj",
    mlp_norm: "norm_2",
    up: UpNames::Plain("ffn.up_proj"),
    down: "ffn.down_proj",
    norm: "transformer.norm_f",
    ..GPT
};

/// Persimmon's.
pub(crate) const PERSIMMON: Names = Names {
    qkv: QkvNames::PerGroup("self_attn.query_key_value"),
    qk_norms: QK_LAYER_NORMS,
    o: "self_attn.dense",
    up: UpNames::Plain("mlp.dense_h_to_4h"),
    down: "mlp.dense_4h_to_h",
    norm: "model.final_layernorm",
    ..LLAMA
};

/// VaultGemma's: norms before alone, under Gemma 2's names.
pub(crate) const VAULTGEMMA: Names = Names { mlp_norm: "pre_feedforward_layernorm", ..LLAMA };

/// Apertus's.
pub(crate) const APERTUS: Names =
    Names { attention_norm: "attention_layernorm", mlp_norm: "feedforward_layernorm", ..UNGATED };

/// BioGPT's.
pub(crate) const BIOGPT: Names = Names {
    embed: "biogpt.embed_tokens",
    positions: "biogpt.embed_positions",
    layers: "biogpt.layers",
    norm: "biogpt.layer_norm",
    head: "output_projection",
    ..OPT
};

/// LFM2's.
pub(crate) const LFM2: Names = Names {
    attention_norm: "operator_norm",
    qk_norms: QK_LAYER_NORMS,
    o: "self_attn.out_proj",
    conv: ["conv.in_proj", "conv.conv", "conv.out_proj"],
    mlp_norm: "ffn_norm",
    up: UpNames::Gated(["feed_forward.w1", "feed_forward.w3"]),
    down: "feed_forward.w2",
    norm: "model.embedding_norm",
    ..LLAMA
};

/// LFM3's.
pub(crate) const LFM3: Names = Names {
    qk_norms: LLAMA.qk_norms,
    head_gates: "self_attn.g_proj",
    o: LLAMA.o,
    attention_post_norm: "post_operator_norm",
    mlp_post_norm: "post_ffn_norm",
    other_parts: &[(".self_attn.g_proj.", ".self_attn.gate_proj.")],
    ..LFM2
};

/// AFMoE's.
pub(crate) const AFMOE: Names = Names {
    head_gates: "self_attn.gate_proj",
    attention_post_norm: "post_attention_layernorm",
    mlp_norm: "pre_mlp_layernorm",
    mlp_post_norm: "post_mlp_layernorm",
    experts: ExpertNames {
        router: "mlp.router.gate",
        correction: "mlp.expert_bias",
        files: ExpertFiles::Apart {
            experts: "mlp.experts",
            modules: ["gate_proj", "up_proj", "down_proj"],
            router: "mlp.router.gate",
        },
        router_is_linear: true,
        ..GLM4_MOE.experts
    },
    ..LLAMA
};

/// InternLM 2's.
pub(crate) const INTERNLM2: Names = Names {
    embed: "model.tok_embeddings",
    attention_norm: "attention_norm",
    qkv: QkvNames::PerGroup("attention.wqkv"),
    o: "attention.wo",
    mlp_norm: "ffn_norm",
    up: UpNames::Gated(["feed_forward.w1", "feed_forward.w3"]),
    down: "feed_forward.w2",
    head: "output",
    ..LLAMA
};

/// MiMo's.
pub(crate) const MIMO: Names = Names { unread: "mtp_layers.", ..LLAMA };

/// EXAONE 3's: Llama's, which its files call otherwise.
pub(crate) const EXAONE: Names = Names {
    other_parts: &[
        ("model.embed_tokens.", "transformer.wte."),
        ("model.layers.", "transformer.h."),
        ("model.norm.", "transformer.ln_f."),
        (".self_attn.o_proj.", ".attn.attention.out_proj."),
        (".self_attn.", ".attn.attention."),
        (".input_layernorm.", ".ln_1."),
        (".post_attention_layernorm.", ".ln_2."),
        (".mlp.gate_proj.", ".mlp.c_fc_0."),
        (".mlp.up_proj.", ".mlp.c_fc_1."),
        (".mlp.down_proj.", ".mlp.c_proj."),
    ],
    ..LLAMA
};

/// Baichuan's.
pub(crate) const BAICHUAN: Names = Names { qkv: QkvNames::Packed("self_attn.W_pack"), ..LLAMA };

/// ChatGLM's.
pub(crate) const CHATGLM: Names = Names {
    embed: "transformer.embedding.word_embeddings",
    layers: "transformer.encoder.layers",
    qkv: QkvNames::Packed("self_attention.query_key_value"),
    o: "self_attention.dense",
    up: UpNames::Packed("mlp.dense_h_to_4h"),
    down: "mlp.dense_4h_to_h",
    norm: "transformer.encoder.final_layernorm",
    head: "transformer.output_layer",
    ..LLAMA
};

/// Those of Qwen before 1.5, whose gates come second.
pub(crate) const QWEN: Names = Names {
    qkv: QkvNames::Packed("attn.c_attn"),
    o: "attn.c_proj",
    up: UpNames::Gated(["mlp.w2", "mlp.w1"]),
    down: "mlp.c_proj",
    ..GPT
};

/// XGLM's.
pub(crate) const XGLM: Names = Names {
    embed: "model.embed_tokens",
    positions: "",
    layers: "model.layers",
    norm: "model.layer_norm",
    ..OPT
};

/// OPT's.
pub(crate) const OPT: Names = Names {
    embed: "model.decoder.embed_tokens",
    positions: "model.decoder.embed_positions",
    layers: "model.decoder.layers",
    attention_norm: "self_attn_layer_norm",
    o: "self_attn.out_proj",
    mlp_norm: "final_layer_norm",
    up: UpNames::Plain("fc1"),
    down: "fc2",
    norm: "model.decoder.final_layer_norm",
    ..LLAMA
};

/// OPT-350m's: norms after the sums.
pub(crate) const OPT_AFTER: Names = Names {
    attention_norm: "",
    attention_post_norm: "self_attn_layer_norm",
    mlp_norm: "",
    mlp_post_norm: "final_layer_norm",
    ..OPT
};

impl Names {
    /// A module's name in the block at `layer`.
    #[must_use]
    pub fn in_block(&self, layer: usize, module: &str) -> String {
        format!("{}.{layer}.{module}", self.layers)
    }

    /// What files may call a parameter: its own name, then others.
    pub fn in_files(&self, parameter: &str) -> impl Iterator<Item = String> {
        let other =
            |&(own, theirs): &(&str, &str)| parameter.strip_prefix(own).map(|rest| format!("{theirs}{rest}"));
        let own = std::iter::once(parameter.to_owned());
        let in_parts = |name: String| {
            self.other_parts.iter().fold(name, |name, (own, theirs)| name.replace(own, theirs))
        };
        let spelled = || self.other_spellings.iter().filter_map(other);
        let by_parts = own.clone().chain(spelled()).filter(|_| !self.other_parts.is_empty()).map(in_parts);
        own.chain(self.of_mixture_in_files(parameter)).chain(spelled()).chain(by_parts)
    }

    /// Whether a tensor of the files is the decoder's own, of whichever spelling: in a model of several parts the others
    /// belong to those.
    #[must_use]
    pub fn has(&self, tensor: &str) -> bool {
        let modules = [self.embed, self.embed_norm, self.positions, self.layers, self.norm, self.head];
        let of = |module: &str| self.in_files(&format!("{module}.")).any(|name| tensor.starts_with(&name));
        modules.into_iter().any(|module| !module.is_empty() && of(module))
            || PER_LAYER
                .iter()
                .chain(&PROJECTIONS)
                .chain(&STREAMS)
                .any(|module| of(&self.beside_embed(module)))
    }

    /// Whether a tensor of a block is of the experts for pictures, which stand behind those for text, so many.
    pub(crate) fn is_for_pictures(&self, tensor: &str, experts: usize) -> bool {
        let behind = || {
            let number = tensor.split_once(".mlp.experts.")?.1.split('.').next()?;
            number.parse::<usize>().ok().filter(|number| *number >= experts)
        };
        self.experts.beside_pictures
            && (tensor.contains(".mlp.gate.weight_1")
                || tensor.contains(".mlp.vision_moe.")
                || behind().is_some())
    }

    /// Whether files keep this parameter turned.
    #[must_use]
    pub fn turns(&self, parameter: &Parameter) -> bool {
        self.turned && parameter.role == Role::Matrix
            || self.experts.files == ExpertFiles::Turned && parameter.role == Role::Expert
            || self.experts.beside_pictures
                && parameter.role == Role::Router
                && parameter.name.ends_with(".weight")
    }

    /// A module's name that lies beside the embedding.
    #[must_use]
    pub(crate) fn beside_embed(&self, module: &str) -> String {
        self.embed
            .rsplit_once('.')
            .map_or_else(|| module.to_owned(), |(within, _)| format!("{within}.{module}"))
    }

    /// These names for a decoder whose ends lie in `inner` and are called as Llama's otherwise, the embedding and the norm by the
    /// names that `inner` has; `None` where they are not.
    pub(crate) fn inside(self, inner: &Inner) -> Option<Self> {
        let last = |module: &'static str| module.rsplit('.').next();
        let usual = (last(self.embed), self.layers, last(self.norm), self.head)
            == (last(inner.embed), LLAMA.layers, last(inner.norm), LLAMA.head);
        usual.then_some(Self {
            embed: inner.embed,
            layers: inner.layers,
            norm: inner.norm,
            head: inner.head,
            other_spellings: inner.other_spellings,
            ..self
        })
    }

    /// The names by which an adapter of a model of several parts, with these modules, knows the text part: these, or those of
    /// another class or an earlier one where modules are called as that has them.
    #[must_use]
    pub(crate) fn of_adapter(self, modules: &[&str]) -> Self {
        let last = |module: &'static str| module.rsplit('.').next();
        let other = |inner: &Inner| Self {
            embed: inner.embed,
            layers: inner.layers,
            norm: inner.norm,
            head: inner.head,
            other_spellings: inner.other_spellings,
            ..self
        };
        let calls = |names: &Self| modules.iter().any(|module| names.is_of_text(module));
        let mut others = OF_ADAPTERS.iter().filter(|inner| last(inner.norm) == last(self.norm)).map(other);
        if calls(&self) { self } else { others.find(calls).unwrap_or(self) }
    }

    /// Whether a module is one of the text part, by these names alone.
    fn is_of_text(&self, module: &str) -> bool {
        let within = |of: &str| module.strip_prefix(of).is_some_and(|rest| rest.starts_with('.'));
        [self.embed, self.layers, self.norm].into_iter().any(within)
    }

    /// What a block at `layer` is called.
    #[must_use]
    pub fn block(&self, layer: usize) -> String {
        format!("{}.{layer}", self.layers)
    }
}
