//! Trainers that learn from answers that are better or worse.

use super::{AT_LEAST_1, Checks, MODEL_HINT, divides_by_rows, trains};
use crate::choice::{DpoLoss, FDivergence};
use crate::command::{DpoOptions, KtoOptions, RewardOptions};
use crate::groups::{DpoLossOptions, PrecomputeOptions, ReferenceOptions};
use crate::trainer::TrainerOptions;

impl DpoOptions {
    pub(crate) fn conflicts(&self, checks: &mut Checks<'_>) {
        trains(&self.run_options(), checks);
        divides_by_rows(&self.training, checks);
        self.loss.conflicts(checks);
        self.reference.conflicts(self.lora.use_peft || self.model.adapter_name_or_path.is_some(), checks);
        self.precompute.conflicts(&self.reference, checks);
    }
}

impl DpoLossOptions {
    fn conflicts(&self, checks: &mut Checks<'_>) {
        let has = |loss| self.loss_type.contains(&loss);
        checks.range("beta", self.beta > 0.0 && self.beta.is_finite(), "a number above 0");
        let smoothing = self.label_smoothing;
        checks.range("label_smoothing", (0.0..1.0).contains(&smoothing), "a number from 0 to below 1");
        if has(DpoLoss::ExoPair) && smoothing == 0.0 {
            let mend = "set label_smoothing above 0, whose logarithm it takes; its paper has 1e-3";
            checks.conflict("loss_type", "label_smoothing: 0", mend);
        }
        if has(DpoLoss::Robust) && smoothing >= 0.5 {
            let mend = "set label_smoothing below 0.5: robust divides by 1 - 2 label_smoothing";
            checks.conflict("loss_type", format!("label_smoothing: {smoothing}"), mend);
        }
        if let Some(weights) = &self.loss_weights {
            if weights.len() != self.loss_type.len() {
                let with = format!("loss_type: {}", checks.value("loss_type"));
                checks.conflict("loss_weights", with, "give one weight per loss, or leave loss_weights out");
            }
            checks.range("loss_weights", weights.iter().all(|w| w.is_finite()), "finite numbers");
        }
        let ld_alpha = self.ld_alpha.is_none_or(|a| (0.0..=1.0).contains(&a));
        checks.range("ld_alpha", ld_alpha, "null or a number from 0 to 1");
        checks.range("discopop_tau", self.discopop_tau > 0.0, "a number above 0");
        checks.range("f_alpha_divergence_coef", self.f_alpha_divergence_coef.is_finite(), "a number");
        const SCORED: [DpoLoss; 8] = [
            DpoLoss::Sigmoid,
            DpoLoss::SigmoidNorm,
            DpoLoss::Hinge,
            DpoLoss::Ipo,
            DpoLoss::ExoPair,
            DpoLoss::Robust,
            DpoLoss::Discopop,
            DpoLoss::Sft,
        ];
        if self.f_divergence_type != FDivergence::ReverseKl
            && let Some(loss) = self.loss_type.iter().find(|loss| !SCORED.contains(loss))
        {
            let mend = "use reverse_kl with it, or only sigmoid, sigmoid_norm, hinge, ipo, exo_pair, robust, discopop, sft";
            checks.conflict("f_divergence_type", format!("loss_type: {loss}"), mend);
        }
        if self.use_weighting && (has(DpoLoss::Aot) || has(DpoLoss::AotUnpaired)) {
            checks.conflict(
                "use_weighting",
                "loss_type: aot",
                "these losses take pairs apart: keep one of the two",
            );
        }
    }
}

impl ReferenceOptions {
    pub(super) fn conflicts(&self, adapts: bool, checks: &mut Checks<'_>) {
        checks.range("ref_model_sync_steps", self.ref_model_sync_steps >= 1, AT_LEAST_1);
        if let Some(folder) = &self.ref_model_name_or_path {
            checks.folder("ref_model_name_or_path", folder, MODEL_HINT);
        }
        let alpha = (0.0..=1.0).contains(&self.ref_model_mixup_alpha);
        checks.range("ref_model_mixup_alpha", alpha, "a number from 0 to 1");
        if self.sync_ref_model && adapts {
            let mend = "train the whole model, or leave the reference where it is";
            checks.conflict("sync_ref_model", "training an adapter, whose reference is the base", mend);
        }
    }
}

impl PrecomputeOptions {
    fn conflicts(&self, reference: &ReferenceOptions, checks: &mut Checks<'_>) {
        checks.range("precompute_ref_batch_size", self.precompute_ref_batch_size != Some(0), AT_LEAST_1);
        if reference.sync_ref_model && self.precompute_ref_log_probs {
            let mend = "a reference that moves cannot be scored once before: keep one of the two";
            checks.conflict("sync_ref_model", "precompute_ref_log_probs: true", mend);
        }
    }
}

impl KtoOptions {
    pub(crate) fn conflicts(&self, checks: &mut Checks<'_>) {
        trains(&self.run_options(), checks);
        divides_by_rows(&self.training, checks);
        let loss = &self.loss;
        checks.range("beta", loss.beta > 0.0 && loss.beta.is_finite(), "a number above 0");
        let weight = |w: f64| w >= 0.0 && w.is_finite();
        checks.range("desirable_weight", weight(loss.desirable_weight), "a number that is at least 0");
        checks.range("undesirable_weight", weight(loss.undesirable_weight), "a number that is at least 0");
        self.reference.conflicts(self.lora.use_peft || self.model.adapter_name_or_path.is_some(), checks);
        self.precompute.conflicts(&self.reference, checks);
    }
}

impl RewardOptions {
    pub(crate) fn conflicts(&self, checks: &mut Checks<'_>) {
        trains(&self.run_options(), checks);
        divides_by_rows(&self.training, checks);
        let centre = self.loss.center_rewards_coefficient.is_none_or(|c| c >= 0.0 && c.is_finite());
        checks.range("center_rewards_coefficient", centre, "null or a number that is at least 0");
        if self.logging.sample_prompt.0.is_some() {
            checks.conflict("sample_prompt", "a reward model, which says nothing", "take it out");
        }
    }
}
