//! The loop: batches, optimizer, schedule, evaluation, checkpoints.

use std::path::PathBuf;

use crate::choice::{Interval, LossType, Optimizer, Sampling, SaveInterval, Scheduler};
use crate::groups::LoggingOptions;
use crate::setting::{Resume, Steps};
use crate::table::options;

options! {
    /// Batches without a loop around them.
    BatchOptions, "Batches";
    /// Rows per batch on each rank.
    Transformers per_device_eval_batch_size: usize = 8;
}

options! {
    /// The loss of supervised fine-tuning.
    SupervisedOptions, "Loss";
    /// The loss; `dft` weights each token by its own probability, `chunked_nll` is `nll`.
    Trl loss_type: LossType = LossType::Nll;
}

options! {
    /// The training loop.
    TrainingOptions, "Training";
    /// Folder for everything the run leaves behind.
    Transformers output_dir: PathBuf = "trainer_output".into();
    /// Write into a folder that holds something other than a run of burnish.
    Burnish overwrite_output_dir: bool = false;
    /// Start from random weights of the shape in the folder's config.json, not from the folder's weights.
    Burnish random_weights: bool = false;
    /// Rows (packed rows, with packing) per micro-batch on each rank.
    Transformers per_device_train_batch_size: usize = 8;
    /// Rows per evaluation batch on each rank.
    Transformers per_device_eval_batch_size: usize = 8;
    /// Micro-batches per optimizer step.
    Transformers gradient_accumulation_steps: usize = 1;
    /// Passes over the data; may be a fraction.
    Transformers num_train_epochs: f64 = 3.0;
    /// Optimizer steps; when positive, this and not num_train_epochs ends the run.
    Transformers max_steps: i64 = -1;
    /// The highest learning rate.
    Trl learning_rate: f64 = 2e-5;
    /// The learning rate's course after warm-up.
    Transformers lr_scheduler_type: Scheduler = Scheduler::Linear;
    /// Steps of linear warm-up from 0, or below 1 their share of the run.
    Transformers warmup_steps: Steps = Steps(0.0);
    /// Share of the run that warms up, as Transformers 4 spelt it; warmup_steps below 1 says the same.
    Transformers warmup_ratio: Option<f64> = None;
    /// AdamW (also written adamw_torch, adamw), Adam, or Muon for weight matrices with AdamW for the rest.
    Transformers optim: Optimizer = Optimizer::AdamW;
    /// Weight decay; norms and biases are left out.
    Transformers weight_decay: f64 = 0.0;
    /// Decay of the first moment.
    Transformers adam_beta1: f64 = 0.9;
    /// Decay of the second moment.
    Transformers adam_beta2: f64 = 0.999;
    /// Added to the root of the second moment.
    Transformers adam_epsilon: f64 = 1e-8;
    /// Gradients are scaled down to this global norm; 0 leaves them.
    Transformers max_grad_norm: f64 = 1.0;
    /// Keep only each block's input and compute the block again in backward: less memory, more arithmetic.
    Trl gradient_checkpointing: bool = true;
    /// Accepted for TRL's sake: products run in the dtype that weights are held in, so `dtype: bfloat16` is what asks for
    /// bfloat16 arithmetic on a GPU; on the CPU arithmetic is float32 either way.
    Transformers bf16: bool = false;
    /// Trained matrices in float16 over float32 masters, with a dynamic loss scale; arithmetic on the CPU is float32.
    Transformers fp16: bool = false;
    /// Seed of everything random.
    Transformers seed: u64 = 42;
    /// Seed of the order of rows; by default `seed`.
    Transformers data_seed: Option<u64> = None;
    /// The order of training rows.
    Transformers train_sampling_strategy: Sampling = Sampling::Random;
    /// Leave out the last batch of an epoch when it is not full.
    Transformers dataloader_drop_last: bool = false;
    /// Divide the loss by the tokens of all ranks rather than of each.
    Transformers average_tokens_across_devices: bool = true;
    /// When to evaluate.
    Transformers eval_strategy: Interval = Interval::No;
    /// Steps between evaluations, or below 1 a share of the run; by default logging_steps.
    Transformers eval_steps: Option<Steps> = None;
    /// When to save a checkpoint.
    Transformers save_strategy: SaveInterval = SaveInterval::Steps;
    /// Steps between checkpoints, or below 1 a share of the run.
    Transformers save_steps: Steps = Steps(500.0);
    /// Keep only this many checkpoints, the newest (and the best, with load_best_model_at_end).
    Transformers save_total_limit: Option<usize> = None;
    /// Leave optimizer state out of checkpoints; such a checkpoint cannot be resumed.
    Transformers save_only_model: bool = false;
    /// End with the best checkpoint instead of the last step.
    Transformers load_best_model_at_end: bool = false;
    /// The evaluation metric that decides which is best; by default the loss.
    Transformers metric_for_best_model: Option<String> = None;
    /// Whether a greater metric is better; by default false exactly when its name ends in `loss`.
    Transformers greater_is_better: Option<bool> = None;
    /// Go on from a checkpoint: true for the newest in output_dir, or its path.
    Transformers resume_from_checkpoint: Resume = Resume::No;
    /// Refuse a checkpoint whose optimizer state has another dtype than this run keeps, instead of converting it.
    Burnish resume_strict: bool = false;
}

impl TrainingOptions {
    /// The seed of the order of rows.
    #[must_use]
    pub fn row_seed(&self) -> u64 {
        self.data_seed.unwrap_or(self.seed)
    }

    /// Warm-up steps in a run of `total` steps.
    #[must_use]
    pub fn warmup_of(&self, total: u64) -> u64 {
        match self.warmup_ratio {
            Some(ratio) if self.warmup_steps.0 == 0.0 => Steps(ratio).of(total),
            _ => self.warmup_steps.of(total),
        }
    }

    /// The number of optimizer steps when `max_steps` fixes it.
    #[must_use]
    pub fn fixed_steps(&self) -> Option<u64> {
        u64::try_from(self.max_steps).ok().filter(|steps| *steps > 0)
    }

    /// Steps between evaluations, with `eval_strategy: steps`.
    #[must_use]
    pub fn eval_interval(&self, logging: &LoggingOptions) -> Steps {
        self.eval_steps.unwrap_or(logging.logging_steps)
    }

    /// The metric that decides which checkpoint is best, with its `eval_` prefix.
    #[must_use]
    pub fn best_metric(&self) -> String {
        let name = self.metric_for_best_model.as_deref().unwrap_or("loss");
        if name.starts_with("eval_") { name.to_owned() } else { format!("eval_{name}") }
    }

    /// Whether a greater [`Self::best_metric`] is better.
    #[must_use]
    pub fn greater_wins(&self) -> bool {
        self.greater_is_better.unwrap_or_else(|| !self.best_metric().ends_with("loss"))
    }
}
