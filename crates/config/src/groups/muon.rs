//! Muon, and the division of work between it and AdamW.

use crate::choice::{MuonCoefficients, MuonScale, MuonVariant, SlotDtype};
use crate::table::options;

options! {
    /// Muon for weight matrices; embeddings, head, norms, biases and adapters stay with AdamW.
    MuonOptions, "Muon";
    /// The highest learning rate of what Muon trains; by default learning_rate.
    DeepSpeed muon_lr: Option<f64> = None;
    /// The highest learning rate of what AdamW trains in a run with Muon; by default learning_rate.
    DeepSpeed adam_lr: Option<f64> = None;
    /// Decay of the momentum.
    Burnish muon_momentum: f64 = 0.95;
    /// Look ahead by the momentum (Nesterov).
    Burnish muon_nesterov: bool = true;
    /// How an update's size follows a matrix' shape: `match_rms_adamw` 0.2 sqrt(max(out, in)), which takes AdamW's rates;
    /// `original` sqrt(max(1, out / in)); `spectral` sqrt(out / in).
    Burnish muon_scale: MuonScale = MuonScale::MatchRmsAdamw;
    /// What follows orthogonalisation: nothing, a second moment per row (NorMuon) or per element (AdaMuon).
    Burnish muon_variant: MuonVariant = MuonVariant::Muon;
    /// Decay of the second moment of NorMuon and AdaMuon.
    Burnish muon_beta2: f64 = 0.95;
    /// Newton-Schulz iterations.
    Burnish muon_ns_steps: usize = 5;
    /// Their coefficients.
    Burnish muon_ns_coefficients: MuonCoefficients = MuonCoefficients::Quintic;
    /// At rest the momentum is in this type; bfloat16 is rounded stochastically.
    Burnish muon_momentum_dtype: SlotDtype = SlotDtype::Float32;
    /// Orthogonalise each attention head's rows of queries, keys and values by themselves.
    Burnish muon_per_head: bool = false;
    /// QK-Clip: after a step, scale queries and keys of attention heads whose largest logit exceeded this (Kimi K2: 100).
    Burnish muon_qk_clip: Option<f64> = None;
    /// Muon for LoRA's factors too.
    Burnish muon_adapters: bool = false;
}
