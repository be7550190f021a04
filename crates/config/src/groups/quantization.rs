//! Options of a frozen base in fewer bits (QLoRA).

use burnish_core::{FourBit, Quantization, QuantizeOnLoad, Scheme};

use crate::checks::Checks;
use crate::table::options;

options! {
    /// A frozen base in fewer bits: matrices of blocks, with bitsandbytes' numbers. The embedding, the head and what trains
    /// keep their dtypes.
    QuantizationOptions, "Quantization";
    /// Hold the base in four bits (QLoRA): half a byte a weight, and a scale for every 64.
    Trl load_in_4bit: bool = false;
    /// Hold the base in eight bits: a byte a weight, and a scale for every row.
    Trl load_in_8bit: bool = false;
    /// What four bits stand for: quantiles of a normal distribution, or small floats.
    Trl bnb_4bit_quant_type: FourBit = FourBit::Nf4;
    /// Hold the scales of four-bit blocks in eight bits too (double quantisation).
    Trl use_bnb_nested_quant: bool = false;
    /// Hold the experts of a mixture in fewer bits too, each matrix by itself; without it they stay in the files' dtype, as
    /// in Transformers.
    Burnish quantize_experts: bool = false;
}

impl QuantizationOptions {
    /// How the base rests, where it does so in fewer bits.
    #[must_use]
    pub fn quantization(&self) -> Option<QuantizeOnLoad> {
        let quantization = match (self.load_in_4bit, self.load_in_8bit) {
            (true, _) => {
                Quantization { scheme: self.bnb_4bit_quant_type.scheme(), nested: self.use_bnb_nested_quant }
            }
            (false, true) => Quantization { scheme: Scheme::Int8, nested: false },
            (false, false) => return None,
        };
        Some(QuantizeOnLoad { quantization, experts: self.quantize_experts })
    }

    pub(crate) fn rules(&self, adapter: bool, checks: &mut Checks<'_>) {
        if self.load_in_4bit && self.load_in_8bit {
            checks.conflict("load_in_4bit", "load_in_8bit: true", "take one of the two out");
        }
        let name = if self.load_in_4bit { "load_in_4bit" } else { "load_in_8bit" };
        if self.quantization().is_none() {
            if self.quantize_experts {
                checks.conflict(
                    "quantize_experts",
                    "neither load_in_4bit nor load_in_8bit",
                    "say how many bits",
                );
            }
            return;
        }
        if !adapter {
            checks.conflict(name, "training the whole model", "train an adapter over it: use_peft: true");
        }
    }
}
