//! What stops a run.

use std::path::PathBuf;

use burnish_checkpoint::CheckpointError;
use burnish_data::DataError;
use burnish_models::ModelError;
use burnish_ops::OpsError;
use burnish_optim::OptimError;
use burnish_peft::PeftError;
use burnish_report::ReportError;
use burnish_store::StoreError;

/// A run that cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// No parameter trains.
    #[error(
        "nothing to train: the adapter has no trainable parameter; check lora_target_modules and \
         lora_modules_to_save, or drop use_peft"
    )]
    NothingTrains,
    /// The loss is not a number.
    #[error(
        "step {step}: the loss is {loss}; training stopped before the update. {}; lower learning_rate, check the \
         data around these rows, or resume from an earlier checkpoint",
        .checkpoint.as_ref().map_or_else(|| "no checkpoint was saved yet".to_owned(), |c| format!("the last complete checkpoint is {}", c.display()))
    )]
    LossNotFinite {
        /// The optimizer step.
        step: u64,
        /// The loss.
        loss: f64,
        /// The last checkpoint.
        checkpoint: Option<PathBuf>,
    },
    /// A gradient is not a number.
    #[error(
        "step {step}: the gradient norm is {norm} at loss {loss}; training stopped before the update. {}; lower \
         learning_rate or set max_grad_norm",
        .checkpoint.as_ref().map_or_else(|| "no checkpoint was saved yet".to_owned(), |c| format!("the last complete checkpoint is {}", c.display()))
    )]
    GradientNotFinite {
        /// The optimizer step.
        step: u64,
        /// The norm.
        norm: f64,
        /// The loss.
        loss: f64,
        /// The last checkpoint.
        checkpoint: Option<PathBuf>,
    },
    /// A checkpoint of another run.
    #[error(
        "{path}: cannot resume: {what} was {then} when the checkpoint was saved and is {now} now; resume with the \
         same data and options, or start anew in another output_dir"
    )]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// In the checkpoint.
        then: String,
        /// Now.
        now: String,
    },
    /// A checkpoint without training state.
    #[error("{path}: cannot resume: it holds a model but no training state (save_only_model)")]
    NoState {
        /// The checkpoint.
        path: PathBuf,
    },
    /// An option whose file is missing.
    #[error("{option}: {path}: not found")]
    OptionPath {
        /// The option.
        option: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// An evaluation metric that is never computed.
    #[error("metric_for_best_model: there is no metric `{name}`; evaluation gives {available}")]
    UnknownMetric {
        /// What was asked for.
        name: String,
        /// What there is.
        available: String,
    },
    /// Data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Adapter.
    #[error(transparent)]
    Peft(#[from] PeftError),
    /// Optimizer.
    #[error(transparent)]
    Optim(#[from] OptimError),
    /// A tensor operation.
    #[error(transparent)]
    Ops(#[from] OpsError),
    /// Checkpoints.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Files.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Metrics and reports.
    #[error(transparent)]
    Report(#[from] ReportError),
}
