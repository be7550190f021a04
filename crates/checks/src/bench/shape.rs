//! Shapes of models, as folders with random weights.

use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context as _, Result};
use burnish_core::random::Stream;
use serde_json::{Map, Value, json};

/// A dense model of Qwen3's kind.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Its name.
    pub name: &'static str,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
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

/// Qwen3-0.6B.
pub(super) const SMALL: Shape = Shape {
    name: "Qwen3-0.6B",
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

/// For trying the benchmarks.
pub(super) const TINY: Shape = Shape {
    name: "tiny",
    hidden: 64,
    intermediate: 192,
    layers: 2,
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    vocab: 2048,
    tied: true,
};

impl Shape {
    fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut all = vec![("model.embed_tokens.weight".to_owned(), vec![self.vocab, self.hidden])];
        for layer in 0..self.layers {
            let block = [
                ("input_layernorm", vec![self.hidden]),
                ("self_attn.q_proj", vec![q, self.hidden]),
                ("self_attn.k_proj", vec![kv, self.hidden]),
                ("self_attn.v_proj", vec![kv, self.hidden]),
                ("self_attn.o_proj", vec![self.hidden, q]),
                ("self_attn.q_norm", vec![self.head_dim]),
                ("self_attn.k_norm", vec![self.head_dim]),
                ("post_attention_layernorm", vec![self.hidden]),
                ("mlp.gate_proj", vec![self.intermediate, self.hidden]),
                ("mlp.up_proj", vec![self.intermediate, self.hidden]),
                ("mlp.down_proj", vec![self.hidden, self.intermediate]),
            ];
            all.extend(block.map(|(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape)));
        }
        all.push(("model.norm.weight".to_owned(), vec![self.hidden]));
        if !self.tied {
            all.push(("lm_head.weight".to_owned(), vec![self.vocab, self.hidden]));
        }
        all
    }

    /// Elements of all weights.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.tensors().iter().map(|(_, shape)| shape.iter().product::<usize>()).sum()
    }

    /// Operations of one token of training in rows of `length` tokens: those of the head, not of an embedding beside it.
    /// `frozen` weights get no gradients.
    #[must_use]
    pub fn work(&self, length: usize, frozen: bool) -> f64 {
        let looked_up = if self.tied { 0 } else { self.vocab * self.hidden };
        let weights = (self.elements() - looked_up) as f64;
        let products = if frozen { 4.0 } else { 6.0 };
        products * weights + (12 * self.layers * self.heads * self.head_dim * length) as f64
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
        let config = json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": false,
            "bos_token_id": null, "eos_token_id": 0, "pad_token_id": 0, "dtype": "bfloat16",
            "head_dim": self.head_dim, "hidden_act": "silu", "hidden_size": self.hidden,
            "initializer_range": 0.02, "intermediate_size": self.intermediate,
            "max_position_embeddings": 40960, "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers, "num_key_value_heads": self.kv_heads,
            "rms_norm_eps": 1e-6, "rope_theta": 1_000_000.0, "tie_word_embeddings": self.tied,
            "vocab_size": self.vocab
        });
        std::fs::write(folder.join("config.json"), serde_json::to_string_pretty(&config)?)?;
        let path = folder.join("model.safetensors");
        self.write_weights(&path).with_context(|| format!("cannot write {}", path.display()))
    }

    fn write_weights(&self, path: &Path) -> Result<()> {
        let tensors = self.tensors();
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
        let mut at = 0;
        for (name, shape) in &tensors {
            let end = at + 2 * shape.iter().product::<usize>();
            header.insert(name.clone(), json!({"dtype": "BF16", "shape": shape, "data_offsets": [at, end]}));
            at = end;
        }
        let mut header = serde_json::to_vec(&Value::Object(header))?;
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut file = BufWriter::new(std::fs::File::create(path)?);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        // Numbers that look random: a short block of normals, over and over, from another place for each tensor.
        let stream = Stream::new(1, "weights");
        let normals: Vec<u8> = (0..1 << 16).flat_map(|i| bf16(0.02 * stream.normal(i))).collect();
        let ones = bf16(1.0).repeat(1 << 16);
        for (number, (name, shape)) in tensors.iter().enumerate() {
            let mut left = 2 * shape.iter().product::<usize>();
            let (block, mut from) = match name.contains("norm") {
                true => (&ones, 0),
                false => (&normals, 2 * number * 7919 % normals.len()),
            };
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
