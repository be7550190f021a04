//! `Names`: what a family's modules are called in Hugging Face's files.

/// Module names of a decoder. Those of blocks stand behind [`Self::layers`] and the block's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// The token embedding.
    pub embed: &'static str,
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
    /// The attention's output.
    pub o: &'static str,
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
    /// The norm before the head.
    pub norm: &'static str,
    /// The head over the vocabulary.
    pub head: &'static str,
    /// What files call the head where that is another name (GPT-NeoX).
    pub head_in_files: Option<&'static str>,
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
}

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

/// Llama's, and most others'.
pub(crate) const LLAMA: Names = Names {
    embed: "model.embed_tokens",
    positions: "",
    layers: "model.layers",
    attention_norm: "input_layernorm",
    qkv: QkvNames::Apart(["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
    qk_norms: ["self_attn.q_norm", "self_attn.k_norm"],
    o: "self_attn.o_proj",
    attention_post_norm: "",
    mlp_norm: "post_attention_layernorm",
    up: UpNames::Gated(["mlp.gate_proj", "mlp.up_proj"]),
    down: "mlp.down_proj",
    mlp_post_norm: "",
    norm: "model.norm",
    head: "lm_head",
    head_in_files: None,
};

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

/// GLM's: gate and up packed.
pub(crate) const GLM: Names = Names { up: UpNames::Packed("mlp.gate_up_proj"), ..LLAMA };

/// GLM-4's: norms before and after.
pub(crate) const GLM4: Names =
    Names { attention_post_norm: "post_self_attn_layernorm", mlp_post_norm: "post_mlp_layernorm", ..GLM };

/// Nemotron's and Arcee's: no gate.
pub(crate) const UNGATED: Names = Names { up: UpNames::Plain("mlp.up_proj"), ..LLAMA };

/// StarCoder 2's.
pub(crate) const STARCODER2: Names = Names { up: UpNames::Plain("mlp.c_fc"), down: "mlp.c_proj", ..LLAMA };

/// Phi-1's and Phi-2's.
pub(crate) const PHI: Names = Names {
    o: "self_attn.dense",
    up: UpNames::Plain("mlp.fc1"),
    down: "mlp.fc2",
    norm: "model.final_layernorm",
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
    head_in_files: Some("embed_out"),
    ..LLAMA
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

impl Names {
    /// A module's name in the block at `layer`.
    #[must_use]
    pub fn in_block(&self, layer: usize, module: &str) -> String {
        format!("{}.{layer}.{module}", self.layers)
    }

    /// What files may call a parameter instead of its own name.
    #[must_use]
    pub fn in_files(&self, parameter: &str) -> Option<String> {
        let (head, part) = (self.head_in_files?, parameter.strip_prefix(self.head)?);
        part.starts_with('.').then(|| format!("{head}{part}"))
    }

    /// What a block at `layer` is called.
    #[must_use]
    pub fn block(&self, layer: usize) -> String {
        format!("{}.{layer}", self.layers)
    }
}
