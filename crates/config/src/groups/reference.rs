//! The model that a policy is compared with.

use std::path::PathBuf;

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
