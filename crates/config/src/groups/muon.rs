//! Muon, and the division of work between it and AdamW.

use burnish_core::Compute;
use burnish_ops::{NewtonSchulz, Polynomials};
use burnish_optim::{LearningRates, MomentumDtype, MuonOptions as Muon, OptimizerName, Scale, Variant};

use crate::checks::{ABOVE_0, AT_LEAST_0, Checks, at_least_0};
use crate::groups::TrainingOptions;
use crate::table::{OptionGroup, options};

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
    Burnish muon_scale: Scale = Scale::MatchRmsAdamw;
    /// What follows orthogonalisation: nothing, a second moment per row (NorMuon) or per element (AdaMuon).
    Burnish muon_variant: Variant = Variant::Muon;
    /// Decay of the second moment of NorMuon and AdaMuon.
    Burnish muon_beta2: f64 = 0.95;
    /// Newton-Schulz iterations.
    Burnish muon_ns_steps: usize = 5;
    /// Their coefficients.
    Burnish muon_ns_coefficients: Polynomials = Polynomials::Quintic;
    /// At rest the momentum is in this type; bfloat16 is rounded stochastically.
    Burnish muon_momentum_dtype: MomentumDtype = MomentumDtype::F32;
    /// Orthogonalise each attention head's rows of queries, keys and values by themselves.
    Burnish muon_per_head: bool = false;
    /// QK-Clip: after a step, scale queries and keys of attention heads whose largest logit exceeded this (Kimi K2: 100).
    Burnish muon_qk_clip: Option<f64> = None;
    /// Muon for LoRA's factors too.
    Burnish muon_adapters: bool = false;
}

impl MuonOptions {
    /// Muon's half of the optimizer, if there is one, in a run whose products on the CPU multiply `compute`.
    #[must_use]
    pub fn muon(&self, training: &TrainingOptions, compute: Compute) -> Option<Muon> {
        (training.optim == OptimizerName::Muon).then(|| self.half(training, compute))
    }

    fn half(&self, training: &TrainingOptions, compute: Compute) -> Muon {
        Muon {
            momentum: self.muon_momentum,
            nesterov: self.muon_nesterov,
            weight_decay: training.weight_decay,
            newton_schulz: NewtonSchulz {
                polynomials: self.muon_ns_coefficients,
                steps: self.muon_ns_steps,
                compute,
                ..NewtonSchulz::default()
            },
            scale: self.muon_scale,
            variant: self.muon_variant,
            beta2: self.muon_beta2,
            momentum_dtype: self.muon_momentum_dtype,
            seed: training.seed,
            adapters: self.muon_adapters,
            ..Muon::default()
        }
    }

    /// The highest learning rates of the two halves, which the schedule multiplies.
    #[must_use]
    pub fn peaks(&self, training: &TrainingOptions) -> LearningRates {
        let or = |rate: Option<f64>| rate.unwrap_or(training.learning_rate);
        LearningRates { adam: or(self.adam_lr), muon: or(self.muon_lr) }
    }

    pub(crate) fn rules(&self, training: &TrainingOptions, checks: &mut Checks<'_>) {
        checks.range("muon_lr", self.muon_lr.is_none_or(at_least_0), AT_LEAST_0);
        checks.range("adam_lr", self.adam_lr.is_none_or(at_least_0), AT_LEAST_0);
        checks.owner(self.half(training, Compute::Fp32).faults());
        let clip = self.muon_qk_clip.is_none_or(|v| v > 0.0 && v.is_finite());
        checks.range("muon_qk_clip", clip, ABOVE_0);
        if training.optim != OptimizerName::Muon {
            // A record of another run names them all, with their defaults.
            let default = Self::default().values();
            let changed = self.values().into_iter().zip(default).filter(|(now, then)| now != then);
            let given: Vec<_> = changed.map(|((name, _), _)| name).collect();
            for name in given {
                checks.conflict(
                    name,
                    format!("optim: {}", training.optim),
                    "add optim: muon, or take it out",
                );
            }
        }
        let beta2 = self.muon_beta2.to_bits() != Self::default().muon_beta2.to_bits();
        if beta2 && self.muon_variant == Variant::Muon {
            checks.conflict(
                "muon_beta2",
                "muon_variant: muon",
                "plain Muon has no second moment: take it out",
            );
        }
    }
}
