//! Optimizers by the names that Transformers gives them.

use burnish_core::choices;

use crate::OptimError;

choices! {
    /// `optim` of Transformers' `TrainingArguments`.
    #[derive(Default)]
    pub enum OptimizerName: "optim", OptimError {
        /// Adam with decoupled weight decay.
        #[default]
        AdamW = "adamw_torch_fused" | "adamw_torch" | "adamw" | "adamw_hf" | "adamw_apex_fused",
        /// Adam; weight decay is added to the gradient.
        Adam = "adam",
        /// Muon for weight matrices, AdamW for the rest.
        Muon = "muon",
    }
}
