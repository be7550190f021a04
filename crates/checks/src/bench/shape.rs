//! Shapes of models, as folders with random weights.

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context as _, Result};
use burnish_core::random::Stream;
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A model's sizes.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Its name.
    pub name: &'static str,
    /// What its blocks are made of.
    pub kind: Kind,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP, or of one expert.
    pub intermediate: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Whether embedding and head are one table.
    pub tied: bool,
}

/// What the blocks of a model are made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Qwen3's.
    Dense,
    /// Qwen3-MoE's: `experts` of which a token has `used`.
    Mixture { experts: usize, used: usize },
    /// gpt-oss': such a mixture in MXFP4, attention with sinks, through a window in every second block.
    Mxfp4 { experts: usize, used: usize },
    /// Qwen3.5's: three gated delta rules of `heads` heads of `width` before each attention.
    Delta { heads: usize, width: usize },
}

/// Qwen3-0.6B.
pub(super) const SMALL: Shape = Shape {
    name: "Qwen3-0.6B",
    kind: Kind::Dense,
    hidden: 1024,
    intermediate: 3072,
    layers: 28,
    heads: 16,
    kv_heads: 8,
    head_dim: 128,
    vocab: 151_936,
    tied: true,
};

/// Qwen3-1.7B.
pub(super) const MIDDLE: Shape = Shape { name: "Qwen3-1.7B", hidden: 2048, intermediate: 6144, ..SMALL };

/// Qwen3-4B.
pub(super) const LARGE: Shape =
    Shape { name: "Qwen3-4B", hidden: 2560, intermediate: 9728, layers: 36, heads: 32, ..SMALL };

/// Qwen3-8B.
pub(super) const LARGEST: Shape =
    Shape { name: "Qwen3-8B", hidden: 4096, intermediate: 12288, tied: false, ..LARGE };

/// Qwen3-30B-A3B.
pub(super) const MIXTURE: Shape = Shape {
    name: "Qwen3-30B-A3B",
    kind: Kind::Mixture { experts: 128, used: 8 },
    hidden: 2048,
    intermediate: 768,
    layers: 48,
    heads: 32,
    kv_heads: 4,
    tied: false,
    ..SMALL
};

/// A quarter of its blocks, which is soon written and loaded.
pub(super) const MIXTURE_IN_PART: Shape = Shape { name: "Qwen3-MoE of 12 layers", layers: 12, ..MIXTURE };

/// gpt-oss-20b.
pub(super) const MXFP4: Shape = Shape {
    name: "gpt-oss-20b",
    kind: Kind::Mxfp4 { experts: 32, used: 4 },
    hidden: 2880,
    intermediate: 2880,
    layers: 24,
    heads: 64,
    kv_heads: 8,
    head_dim: 64,
    vocab: 201_088,
    tied: false,
};

/// The text part of Qwen3.5-0.8B.
pub(super) const DELTA: Shape = Shape {
    name: "Qwen3.5-0.8B",
    kind: Kind::Delta { heads: 16, width: 128 },
    hidden: 1024,
    intermediate: 3584,
    layers: 24,
    heads: 8,
    kv_heads: 2,
    head_dim: 256,
    vocab: 248_320,
    tied: true,
};

/// For trying the benchmarks.
pub(super) const TINY: Shape = Shape {
    name: "tiny",
    kind: Kind::Dense,
    hidden: 64,
    intermediate: 192,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    vocab: 2048,
    tied: true,
};

/// The model folder that was asked for last, so that one shape is written once for the benchmarks that follow each other.
pub(super) struct Written {
    /// Blocks of each, in place of its own number.
    pub(super) layers: Option<usize>,
    pub(super) last: Option<(&'static str, TempDir)>,
}

impl Written {
    /// The folder of a shape's model, with the tokenizer of another model's folder.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub(super) fn folder(&mut self, shape: &Shape, tokenizer: &Path) -> Result<&Path> {
        // Another shape's folder goes before this one's is written.
        let last = match self.last.take().filter(|(name, _)| *name == shape.name) {
            Some(last) => last,
            None => {
                let folder = tempfile::tempdir()?;
                let shape = Shape { layers: self.layers.unwrap_or(shape.layers), ..*shape };
                shape.write(folder.path(), tokenizer)?;
                (shape.name, folder)
            }
        };
        Ok(self.last.insert(last).1.path())
    }
}

/// What a tensor is filled with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fill {
    /// Normals of 0.02.
    Normals,
    Ones,
    /// Two elements of four bits a byte.
    Codes,
    /// Exponents of blocks of such elements.
    Scales,
}

impl Fill {
    /// Its dtype in a file, and bytes of an element.
    fn dtype(self) -> (&'static str, usize) {
        match self {
            Self::Normals | Self::Ones => ("BF16", 2),
            Self::Codes | Self::Scales => ("U8", 1),
        }
    }
}

struct Tensor {
    name: String,
    shape: Vec<usize>,
    fill: Fill,
    /// The share of it that a token is multiplied by.
    share: f64,
}

impl Tensor {
    fn elements(&self) -> usize {
        self.shape.iter().product::<usize>() * if self.fill == Fill::Codes { 2 } else { 1 }
    }

    fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.fill.dtype().1
    }
}

impl Shape {
    /// Whether a block attends; otherwise it has a delta rule.
    fn attends(&self, layer: usize) -> bool {
        !matches!(self.kind, Kind::Delta { .. }) || layer % 4 == 3
    }

    /// A block's token mixer.
    fn mixer(&self, layer: usize) -> Vec<(String, Vec<usize>)> {
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        if let Kind::Delta { heads, width } = self.kind
            && !self.attends(layer)
        {
            let values = heads * width;
            let all = [
                ("in_proj_qkv.weight", vec![3 * values, self.hidden]),
                ("in_proj_z.weight", vec![values, self.hidden]),
                ("in_proj_a.weight", vec![heads, self.hidden]),
                ("in_proj_b.weight", vec![heads, self.hidden]),
                ("out_proj.weight", vec![self.hidden, values]),
                ("conv1d.weight", vec![3 * values, 1, 4]),
                ("norm.weight", vec![width]),
                ("A_log", vec![heads]),
                ("dt_bias", vec![heads]),
            ];
            return all.map(|(name, shape)| (format!("linear_attn.{name}"), shape)).into();
        }
        // Qwen3.5's queries bring gates.
        let queries = if matches!(self.kind, Kind::Delta { .. }) { 2 * q } else { q };
        let mut all = vec![
            ("q_proj.weight", vec![queries, self.hidden]),
            ("k_proj.weight", vec![kv, self.hidden]),
            ("v_proj.weight", vec![kv, self.hidden]),
            ("o_proj.weight", vec![self.hidden, q]),
        ];
        all.extend(match self.kind {
            Kind::Mxfp4 { .. } => vec![
                ("q_proj.bias", vec![q]),
                ("k_proj.bias", vec![kv]),
                ("v_proj.bias", vec![kv]),
                ("o_proj.bias", vec![self.hidden]),
                ("sinks", vec![self.heads]),
            ],
            _ => vec![("q_norm.weight", vec![self.head_dim]), ("k_norm.weight", vec![self.head_dim])],
        });
        all.into_iter().map(|(name, shape)| (format!("self_attn.{name}"), shape)).collect()
    }

    /// A block's MLP.
    fn mlp(&self) -> Vec<Tensor> {
        let (hidden, width) = (self.hidden, self.intermediate);
        let tensor = |name: String, shape: Vec<usize>, fill, share| Tensor {
            name: format!("mlp.{name}"),
            shape,
            fill,
            share,
        };
        let swiglu = |of: &str, share| {
            let all = [("gate", [width, hidden]), ("up", [width, hidden]), ("down", [hidden, width])];
            all.map(|(name, shape)| {
                tensor(format!("{of}{name}_proj.weight"), shape.into(), Fill::Normals, share)
            })
        };
        match self.kind {
            Kind::Dense | Kind::Delta { .. } => swiglu("", 1.0).into(),
            Kind::Mixture { experts, used } => {
                let share = used as f64 / experts as f64;
                let router = tensor("gate.weight".to_owned(), vec![experts, hidden], Fill::Normals, 1.0);
                let each = (0..experts).flat_map(|expert| swiglu(&format!("experts.{expert}."), share));
                std::iter::once(router).chain(each).collect()
            }
            Kind::Mxfp4 { experts, used } => {
                let share = used as f64 / experts as f64;
                let mut all = vec![
                    tensor("router.weight".to_owned(), vec![experts, hidden], Fill::Normals, 1.0),
                    tensor("router.bias".to_owned(), vec![experts], Fill::Normals, 0.0),
                ];
                for (name, rows, columns) in
                    [("gate_up_proj", 2 * width, hidden), ("down_proj", hidden, width)]
                {
                    let blocks = columns / 32;
                    all.extend([
                        tensor(
                            format!("experts.{name}_blocks"),
                            vec![experts, rows, blocks, 16],
                            Fill::Codes,
                            share,
                        ),
                        tensor(
                            format!("experts.{name}_scales"),
                            vec![experts, rows, blocks],
                            Fill::Scales,
                            0.0,
                        ),
                        tensor(format!("experts.{name}_bias"), vec![experts, rows], Fill::Normals, 0.0),
                    ]);
                }
                all
            }
        }
    }

    fn tensors(&self) -> Vec<Tensor> {
        let filled = |name: String, shape: Vec<usize>| {
            let fill = if name.contains("norm") { Fill::Ones } else { Fill::Normals };
            Tensor { name, shape, fill, share: 1.0 }
        };
        let table = |name: &str, share| Tensor {
            name: name.to_owned(),
            shape: vec![self.vocab, self.hidden],
            fill: Fill::Normals,
            share,
        };
        // A table is read by the head; what is looked up is not multiplied.
        let mut all = vec![table("model.embed_tokens.weight", if self.tied { 1.0 } else { 0.0 })];
        for layer in 0..self.layers {
            let norms = ["input_layernorm.weight", "post_attention_layernorm.weight"];
            let norms = norms.map(|name| filled(name.to_owned(), vec![self.hidden]));
            let mixer = self.mixer(layer).into_iter().map(|(name, shape)| filled(name, shape));
            let block = norms.into_iter().chain(mixer).chain(self.mlp());
            all.extend(
                block
                    .map(|tensor| Tensor { name: format!("model.layers.{layer}.{}", tensor.name), ..tensor }),
            );
        }
        all.push(filled("model.norm.weight".to_owned(), vec![self.hidden]));
        if !self.tied {
            all.push(table("lm_head.weight", 1.0));
        }
        all
    }

    /// Operations of one token of training in rows of `length` tokens: those of the weights that it is multiplied by, and
    /// attention's. `frozen` weights get no gradients. A delta rule's reads and writes of its state are counted once
    /// forward and twice backward.
    #[must_use]
    pub fn work(&self, length: usize, frozen: bool) -> f64 {
        let weights: f64 = self.tensors().iter().map(|tensor| tensor.share * tensor.elements() as f64).sum();
        let products = if frozen { 4.0 } else { 6.0 };
        let attending = (0..self.layers).filter(|&layer| self.attends(layer)).count();
        let rules = match self.kind {
            Kind::Delta { heads, width } => 18 * (self.layers - attending) * heads * width * width,
            _ => 0,
        };
        products * weights + (12 * attending * self.heads * self.head_dim * length + rules) as f64
    }

    fn config(&self) -> Value {
        let mut config = json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false,
            "bos_token_id": null, "eos_token_id": 0, "pad_token_id": 0, "dtype": "bfloat16",
            "head_dim": self.head_dim, "hidden_act": "silu", "hidden_size": self.hidden,
            "initializer_range": 0.02, "intermediate_size": self.intermediate,
            "max_position_embeddings": 40960, "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers, "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "tie_word_embeddings": self.tied,
            "vocab_size": self.vocab
        });
        let more = match self.kind {
            Kind::Dense => json!({}),
            Kind::Mixture { experts, used } => json!({
                "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": experts,
                "num_experts_per_tok": used, "moe_intermediate_size": self.intermediate, "norm_topk_prob": true,
                "decoder_sparse_step": 1, "mlp_only_layers": [],
            }),
            Kind::Mxfp4 { experts, used } => json!({
                "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": true,
                "num_local_experts": experts, "num_experts_per_tok": used, "sliding_window": 128,
                "rms_norm_eps": 1e-5, "swiglu_limit": 7.0,
                "layer_types": (0..self.layers).map(|layer| match layer % 2 {
                    0 => "sliding_attention",
                    _ => "full_attention",
                }).collect::<Vec<_>>(),
                "rope_parameters": {
                    "rope_type": "yarn", "rope_theta": 150_000.0, "factor": 32.0, "beta_fast": 32.0,
                    "beta_slow": 1.0, "original_max_position_embeddings": 4096, "truncate": false,
                },
                "quantization_config": {
                    "quant_method": "mxfp4",
                    "modules_to_not_convert": [
                        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
                    ],
                },
            }),
            Kind::Delta { heads, width } => json!({
                "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text",
                "linear_num_key_heads": heads, "linear_num_value_heads": heads, "linear_key_head_dim": width,
                "linear_value_head_dim": width, "linear_conv_kernel_dim": 4,
                "layer_types": (0..self.layers).map(|layer| match self.attends(layer) {
                    true => "full_attention",
                    false => "linear_attention",
                }).collect::<Vec<_>>(),
                "rope_parameters": {
                    "rope_type": "default", "rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25,
                },
            }),
        };
        if let (Value::Object(config), Value::Object(more)) = (&mut config, more) {
            config.extend(more);
        }
        config
    }

    /// Writes a model folder with random bf16 weights; the tokenizer is that of `tokenizer`, another model's folder.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn write(&self, folder: &Path, tokenizer: &Path) -> Result<()> {
        std::fs::create_dir_all(folder)?;
        for file in ["tokenizer.json", "tokenizer_config.json"] {
            std::fs::copy(tokenizer.join(file), folder.join(file))
                .with_context(|| format!("cannot copy {}", tokenizer.join(file).display()))?;
        }
        let config = self.config();
        std::fs::write(folder.join("config.json"), serde_json::to_string_pretty(&config)?)?;
        let path = folder.join("model.safetensors");
        self.write_weights(&path).with_context(|| format!("cannot write {}", path.display()))
    }

    fn write_weights(&self, path: &Path) -> Result<()> {
        let tensors = self.tensors();
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
        let mut at = 0;
        for tensor in &tensors {
            let end = at + tensor.bytes();
            let entry =
                json!({"dtype": tensor.fill.dtype().0, "shape": tensor.shape, "data_offsets": [at, end]});
            header.insert(tensor.name.clone(), entry);
            at = end;
        }
        let mut header = serde_json::to_vec(&Value::Object(header))?;
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut file = BufWriter::new(std::fs::File::create(path)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        // Numbers that look random: a short block of them, over and over, from another place for each tensor.
        let stream = Stream::new(1, "weights");
        let normals: Vec<u8> = (0..1 << 16).flat_map(|i| bf16(0.02 * stream.normal(i))).collect();
        let ones = bf16(1.0).repeat(1 << 16);
        // Exponents about that of 2^-7, which elements of up to six are multiplied by.
        let scales: Vec<u8> =
            (0..1 << 16).map(|i| 118 + (stream.normal(i).abs() * 2.0).min(4.0) as u8).collect();
        for (number, tensor) in tensors.iter().enumerate() {
            let block = match tensor.fill {
                Fill::Normals | Fill::Codes => &normals,
                Fill::Ones => &ones,
                Fill::Scales => &scales,
            };
            let mut from = 2 * number * 7919 % block.len();
            let mut left = tensor.bytes();
            while left > 0 {
                let part = &block[from..block.len().min(from + left)];
                file.write_all(part)?;
                left -= part.len();
                from = 0;
            }
        }
        file.flush()?;
        Ok(())
    }
}

/// The nearest bf16 towards zero, as bytes.
fn bf16(value: f32) -> [u8; 2] {
    let [_, _, low, high] = value.to_le_bytes();
    [low, high]
}
