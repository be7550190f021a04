//! The model that a policy is compared with.

use std::path::PathBuf;

use crate::checks::{AT_LEAST_1, Checks, MODEL_HINT};
use crate::table::options;

options! {
    /// What the reference says, once and for all.
    PrecomputeOptions, "Reference, scored before";
    /// Score every row with the reference once, before the first step, and keep the result on disk.
    Trl precompute_ref_log_probs: bool = false;
    /// Rows per batch while doing so; by default per_device_train_batch_size.
    Trl precompute_ref_batch_size: Option<usize> = None;
    /// Folder of those results, which any run with the same rows and the same start reads; by default `reference` in
    /// output_dir.
    Burnish precompute_ref_dir: Option<PathBuf> = None;
}

options! {
    /// The reference: the model as it is at the start of the run, or another one.
    ReferenceOptions, "Reference";
    /// Folder of another model to compare with, of the same tokens; by default the model as it is at the start.
    Burnish ref_model_name_or_path: Option<PathBuf> = None;
    /// Move the reference towards the policy from time to time (TR-DPO), when the whole model trains.
    Trl sync_ref_model: bool = false;
    /// How far: the reference becomes (1 - this) reference + this policy.
    Trl ref_model_mixup_alpha: f64 = 0.6;
    /// Optimizer steps from one such move to the next.
    Trl ref_model_sync_steps: usize = 512;
}

impl ReferenceOptions {
    pub(crate) fn rules(&self, adapts: bool, checks: &mut Checks<'_>) {
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

    /// The rules beside a loss whose reference counts by `beta`.
    pub(crate) fn rules_with(&self, beta: f64, checks: &mut Checks<'_>) {
        if self.ref_model_name_or_path.is_some() && beta == 0.0 {
            checks.conflict("ref_model_name_or_path", "beta: 0", "set beta, or take the reference out");
        }
        if self.sync_ref_model && beta == 0.0 {
            checks.conflict(
                "sync_ref_model",
                "beta: 0",
                "there is no reference without beta: set it, or take this out",
            );
        }
    }
}

impl PrecomputeOptions {
    pub(crate) fn rules(&self, reference: &ReferenceOptions, checks: &mut Checks<'_>) {
        checks.range("precompute_ref_batch_size", self.precompute_ref_batch_size != Some(0), AT_LEAST_1);
        if reference.sync_ref_model && self.precompute_ref_log_probs {
            let mend = "a reference that moves cannot be scored once before: keep one of the two";
            checks.conflict("sync_ref_model", "precompute_ref_log_probs: true", mend);
        }
    }
}
