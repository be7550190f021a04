//! Options of logging.

use std::path::PathBuf;

use crate::choice::Interval;
use crate::setting::{ReportTo, Steps, Verbatim};
use crate::table::options;

options! {
    /// Metrics and progress.
    LoggingOptions, "Logging";
    /// When to log.
    Transformers logging_strategy: Interval = Interval::Steps;
    /// Steps between log lines, or below 1 a share of the run.
    Trl logging_steps: Steps = Steps(10.0);
    /// Log the first step too.
    Transformers logging_first_step: bool = false;
    /// Where metrics go besides metrics.jsonl: tensorboard, mlflow (files in MLFLOW_TRACKING_URI, by default mlruns), wandb (an offline run in WANDB_DIR, by default ./wandb, for `wandb sync`), all (tensorboard) or none.
    Transformers report_to: ReportTo = ReportTo { tensorboard: true, mlflow: false, wandb: false };
    /// Name of the run for a tracker; by default the name of output_dir.
    Transformers run_name: Option<String> = None;
    /// Folder of the TensorBoard events; by default `runs` in output_dir.
    Transformers logging_dir: Option<PathBuf> = None;
    /// Plain lines instead of a progress bar; by default exactly when standard error is not a terminal.
    Transformers disable_tqdm: Option<bool> = None;
    /// Prompt of the sample shown at the end; by default the first row's.
    Burnish sample_prompt: Verbatim = Verbatim(None);
}
