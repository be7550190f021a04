//! `OutType`, `Mix`: the types of a file's tensors.

use burnish_core::choices;

use crate::{GgufError, TensorType};

choices! {
    /// What a file's matrices are stored as; vectors and small matrices stay in 32 bits.
    pub enum OutType: "outtype", GgufError {
        /// 32-bit floats.
        F32 = "f32",
        /// Half precision.
        F16 = "f16",
        /// bfloat16.
        Bf16 = "bf16",
        /// Eight bits, a scale for each 32 elements.
        Q8_0 = "q8_0",
        /// Four bits, a scale for each 32 elements; the head in six.
        Q4_0 = "q4_0",
        /// Four bits in groups with scales and minima, and six where it matters most: llama.cpp's usual mix.
        Q4KM = "q4_k_m" | "q4_km",
    }
}

impl OutType {
    /// `general.file_type`.
    #[must_use]
    pub fn file_type(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q8_0 => 7,
            Self::Q4KM => 15,
            Self::Bf16 => 32,
        }
    }

    /// Whether values are held in blocks.
    #[must_use]
    pub fn is_quantized(self) -> bool {
        !matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }

    /// What most matrices are stored as.
    #[must_use]
    pub fn most(self) -> TensorType {
        match self {
            Self::F32 => TensorType::F32,
            Self::F16 => TensorType::F16,
            Self::Bf16 => TensorType::BF16,
            Self::Q8_0 => TensorType::Q8_0,
            Self::Q4_0 => TensorType::Q4_0,
            Self::Q4KM => TensorType::Q4_K,
        }
    }
}

/// What the choice of types depends on beside a tensor's name and shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// What the file's matrices are stored as.
    pub out: OutType,
    /// Blocks.
    pub layers: usize,
    /// Experts of a block; 0 of a dense model.
    pub experts: usize,
    /// Whether the embedding is the head, too.
    pub tied: bool,
    /// Whether it is one of llama.cpp's models of 70 billion parameters: Llama's or Qwen2's of 80 blocks with fewer
    /// key heads than heads.
    pub is_70b: bool,
}

impl Mix {
    /// What a tensor of this name and row-major shape is stored as.
    ///
    /// # Source
    /// llama.cpp: `prepare_tensors` of its converter for floats and `q8_0`; `llama_tensor_get_type` of `llama-quant.cpp`,
    /// without an importance matrix, for the others.
    #[must_use]
    pub fn stored(&self, name: &str, shape: &[usize]) -> TensorType {
        let small = ["_norm.weight", "ffn_gate_inp.weight", "position_embd.weight"];
        let matrix =
            shape.len() > 1 && name.ends_with(".weight") && !small.iter().any(|end| name.ends_with(end));
        if !matrix {
            return TensorType::F32;
        }
        let row = shape.last().copied().unwrap_or(1);
        let wanted = match self.out {
            OutType::Q4_0 | OutType::Q4KM => self.mixed(name, row),
            out => out.most(),
        };
        if row.is_multiple_of(wanted.block()) {
            return wanted;
        }
        // Rows that do not fill blocks of 256 may fill some of 32.
        let shorter = match wanted {
            TensorType::Q4_K => TensorType::Q5_0,
            TensorType::Q6_K => TensorType::Q8_0,
            _ => return TensorType::F16,
        };
        if row.is_multiple_of(shorter.block()) { shorter } else { TensorType::F16 }
    }

    fn mixed(&self, name: &str, row: usize) -> TensorType {
        let most = self.out.most();
        let is = |part: &str| name.contains(part);
        if name == "output.weight" || self.tied && name == "token_embd.weight" {
            let fills = row.is_multiple_of(most.block());
            return if fills { TensorType::Q6_K } else { TensorType::Q8_0 };
        }
        let k_m = self.out == OutType::Q4KM;
        let layer =
            name.strip_prefix("blk.").and_then(|rest| rest.split('.').next()?.parse().ok()).unwrap_or(0);
        let more_bits = k_m && self.more_bits(layer);
        if is("attn_v.weight") || is("attn_qkv.weight") {
            return match most {
                _ if self.experts == 8 => TensorType::Q8_0,
                _ if more_bits => TensorType::Q6_K,
                TensorType::Q4_K if self.is_70b => TensorType::Q5_K,
                most => most,
            };
        }
        if is("attn_k.weight") && self.experts == 8 {
            return TensorType::Q8_0;
        }
        if is("attn_output.weight") && self.experts == 8 && k_m {
            return TensorType::Q5_K;
        }
        if is("ffn_down") && more_bits { TensorType::Q6_K } else { most }
    }

    /// The first and the last eighth of blocks, and every third between.
    fn more_bits(&self, layer: usize) -> bool {
        let eighth = self.layers / 8;
        layer < eighth || layer >= 7 * self.layers / 8 || (layer - eighth) % 3 == 2
    }
}
