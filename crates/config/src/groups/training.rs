//! The loop: batches, optimizer, schedule, evaluation, checkpoints.

use std::path::PathBuf;

use burnish_data::Order;
use burnish_losses::TokenLoss;
use burnish_optim::{
    AdamWOptions, OptimError, OptimizerName, RuleInputs, Schedule, ScheduleKind, UpdateRule,
};

use crate::checks::{ABOVE_0, AT_LEAST_0, AT_LEAST_1, Checks, at_least_0};
use crate::choice::{HubStrategy, Interval, SaveInterval};
use crate::groups::LoggingOptions;
use crate::setting::{ArgumentList, KeywordArguments, Resume, Steps};
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
    Trl loss_type: TokenLoss = TokenLoss::Nll;
    /// How much of each target is spread evenly over the vocabulary, from 0 to 1; dft does not read it.
    Transformers label_smoothing_factor: f64 = 0.0;
}

impl SupervisedOptions {
    /// Label smoothing as the loss reads it: TRL smooths `nll` alone.
    #[must_use]
    pub fn label_smoothing(&self) -> f64 {
        if self.loss_type == TokenLoss::Nll { self.label_smoothing_factor } else { 0.0 }
    }

    pub(crate) fn rules(&self, checks: &mut Checks<'_>) {
        let share = (0.0..=1.0).contains(&self.label_smoothing_factor);
        checks.range("label_smoothing_factor", share, "a number from 0 to 1");
        if self.label_smoothing_factor != self.label_smoothing() {
            checks.note("label_smoothing_factor has no effect with loss_type: dft, in TRL neither");
        }
    }
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
    /// Take fewer rows per micro-batch where memory is too small for so many; the other options stay, so that steps are
    /// then of fewer rows. On the CPU the plan of the run says how many fit.
    Transformers auto_find_batch_size: bool = false;
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
    Transformers lr_scheduler_type: ScheduleKind = ScheduleKind::Linear;
    /// Arguments of the schedule, as Transformers names them: num_cycles, min_lr, num_decay_steps and so on.
    Transformers lr_scheduler_kwargs: KeywordArguments = KeywordArguments::default();
    /// Steps of linear warm-up from 0, or below 1 their share of the run.
    Transformers warmup_steps: Steps = Steps(0.0);
    /// Share of the run that warms up, as Transformers 4 spelt it; warmup_steps below 1 says the same.
    Transformers warmup_ratio: Option<f64> = None;
    /// The optimizer; muon is Muon for weight matrices with AdamW for the rest, paged names are the same arithmetic.
    Transformers optim: OptimizerName = OptimizerName::AdamW;
    /// Arguments of the optimizer beside adam_beta1, adam_beta2, adam_epsilon and weight_decay, as in momentum=0.9.
    Transformers optim_args: ArgumentList = ArgumentList::default();
    /// LoRA+: the learning rate of LoRA's B (and of trained vectors) is this many times that of A.
    Peft loraplus_lr_ratio: Option<f64> = None;
    /// LoRA+: the learning rate of LoRA's factors on an embedding.
    Peft loraplus_lr_embedding: f64 = 1e-6;
    /// Weight decay; norms and biases are left out.
    Transformers weight_decay: f64 = 0.0;
    /// Decay of the first moment.
    Transformers adam_beta1: f64 = 0.9;
    /// Decay of the second moment.
    Transformers adam_beta2: f64 = 0.999;
    /// Added to the root of the second moment.
    Transformers adam_epsilon: f64 = 1e-8;
    /// Gradients are scaled down to this global norm; 0 and null leave them.
    Transformers max_grad_norm: Option<f64> = Some(1.0);
    /// NEFTune: uniform noise on embeddings in training, at most this over the root of the number of elements of the
    /// sequence's embeddings.
    Transformers neftune_noise_alpha: Option<f64> = None;
    /// What the auxiliary loss that balances experts is multiplied by, where the model is a mixture of experts that has one;
    /// by default what its config.json says (reward, cpo and orpo: 0), and 0 trains without it.
    Trl router_aux_loss_coef: Option<f64> = None;
    /// Keep only each block's input and compute the block again in backward: less memory, more arithmetic.
    Trl gradient_checkpointing: bool = true;
    /// With gradient_checkpointing: keep what attention gave too, so that it is not computed again: the longer rows are, the
    /// faster.
    Burnish keep_attention: bool = false;
    /// Trained matrices in float16 over float32 masters, with a dynamic loss scale; arithmetic on the CPU is float32.
    Transformers fp16: bool = false;
    /// Seed of everything random.
    Transformers seed: u64 = 42;
    /// Seed of the order of rows; by default `seed`.
    Transformers data_seed: Option<u64> = None;
    /// The order of training rows.
    Transformers train_sampling_strategy: Order = Order::Random;
    /// Leave out the last batch of an epoch when it is not full.
    Transformers dataloader_drop_last: bool = false;
    /// Divide the loss by the tokens of all ranks rather than of each. A loss over rows (all but `burnish sft`) is of those of all
    /// ranks, whatever this says.
    Transformers average_tokens_across_devices: bool = true;
    /// When to evaluate.
    Transformers eval_strategy: Interval = Interval::No;
    /// Steps between evaluations, or below 1 a share of the run; by default logging_steps.
    Transformers eval_steps: Option<Steps> = None;
    /// Evaluate before the first step too.
    Transformers eval_on_start: bool = false;
    /// Steps (with eval_strategy: epoch, epochs) before the first evaluation.
    Transformers eval_delay: f64 = 0.0;
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
    /// Upload the model, with the token of HF_TOKEN: as hub_strategy says, and when the run is done all that is in output_dir but
    /// checkpoints.
    Transformers push_to_hub: bool = false;
    /// The repository to upload to; by default one of the token's account with the name of output_dir.
    Transformers hub_model_id: Option<String> = None;
    /// Whether a repository that is made for it is private; by default as the account says.
    Transformers hub_private_repo: Option<bool> = None;
    /// What push_to_hub uploads while training: nothing, the model of every checkpoint, or checkpoints too.
    Transformers hub_strategy: HubStrategy = HubStrategy::EverySave;
    /// Upload every checkpoint, even one that is saved while another is still being uploaded.
    Transformers hub_always_push: bool = false;
    /// The branch to upload to; by default main.
    Transformers hub_revision: Option<String> = None;
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

    /// AdamW's half of the optimizer, or all of it.
    #[must_use]
    pub fn adamw(&self) -> AdamWOptions {
        AdamWOptions {
            beta1: self.adam_beta1,
            beta2: self.adam_beta2,
            eps: self.adam_epsilon,
            weight_decay: self.weight_decay,
            decoupled: self.optim != OptimizerName::Adam,
        }
    }

    /// The optimizer's rule, unless it is AdamW, Adam or Muon.
    #[must_use]
    pub fn rule(&self) -> Option<UpdateRule> {
        self.optim.rule(&self.rule_inputs(&self.adamw())).0
    }

    fn rule_inputs<'a>(&'a self, adam: &'a AdamWOptions) -> RuleInputs<'a> {
        let warmup_steps = if self.warmup_steps.is_share() { 0 } else { self.warmup_steps.of(0) };
        RuleInputs { arguments: &self.optim_args.0, adam, lr: self.learning_rate, warmup_steps }
    }

    /// What LoRA+ multiplies a trained parameter's learning rate by.
    ///
    /// # Source
    /// PEFT 0.21.2, `create_loraplus_optimizer`.
    #[must_use]
    pub fn loraplus_factor(&self, name: &str, dims: usize) -> f64 {
        let Some(ratio) = self.loraplus_lr_ratio else { return 1.0 };
        if name.contains("lora_embedding_") {
            return if self.learning_rate > 0.0 {
                self.loraplus_lr_embedding / self.learning_rate
            } else {
                1.0
            };
        }
        if name.contains("lora_B") || dims == 1 { ratio } else { 1.0 }
    }

    /// The learning rate's course in a run of `total` steps.
    ///
    /// # Errors
    /// If `lr_scheduler_kwargs` are not the schedule's.
    pub fn schedule(&self, total: u64) -> Result<Schedule, OptimError> {
        let (kind, arguments) = (self.lr_scheduler_type, &self.lr_scheduler_kwargs.0);
        Schedule::with(kind, arguments, self.learning_rate, self.warmup_of(total), total)
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

impl TrainingOptions {
    pub(crate) fn rules(&self, logging: &LoggingOptions, checks: &mut Checks<'_>) {
        checks.range("per_device_train_batch_size", self.per_device_train_batch_size >= 1, AT_LEAST_1);
        let evaluates = self.eval_strategy != Interval::No;
        checks.range(
            "per_device_eval_batch_size",
            !evaluates || self.per_device_eval_batch_size >= 1,
            AT_LEAST_1,
        );
        let steps = self.gradient_accumulation_steps;
        checks.range("gradient_accumulation_steps", (1..=1_000_000).contains(&steps), "from 1 to 1000000");
        checks.range("learning_rate", at_least_0(self.learning_rate), AT_LEAST_0);
        checks.range("max_grad_norm", self.max_grad_norm.is_none_or(|norm| norm >= 0.0), AT_LEAST_0);
        checks.owner(self.adamw().faults());
        let noise = self.neftune_noise_alpha.is_none_or(at_least_0);
        checks.range("neftune_noise_alpha", noise, AT_LEAST_0);
        let balance = self.router_aux_loss_coef.is_none_or(at_least_0);
        checks.range("router_aux_loss_coef", balance, AT_LEAST_0);
        let ratio = self.loraplus_lr_ratio.is_none_or(|ratio| ratio > 0.0 && ratio.is_finite());
        checks.range("loraplus_lr_ratio", ratio, ABOVE_0);
        checks.range("loraplus_lr_embedding", at_least_0(self.loraplus_lr_embedding), AT_LEAST_0);
        checks.owner(self.optim.rule(&self.rule_inputs(&self.adamw())).1);
        checks.owner(self.lr_scheduler_type.faults(&self.lr_scheduler_kwargs.0, self.learning_rate));
        if !self.lr_scheduler_type.reads_arguments() && !self.lr_scheduler_kwargs.0.is_empty() {
            checks.note(format!("lr_scheduler_kwargs: {} reads none", self.lr_scheduler_type));
        }
        if self.lr_scheduler_type.is_adaptive() && self.eval_strategy == Interval::No {
            let mend = "set eval_strategy, which gives the metric that the rate follows";
            checks.conflict("lr_scheduler_type", "eval_strategy: no", mend);
        }
        if self.optim.is_schedule_free() && self.warmup_steps.0 > 0.0 && self.warmup_steps.is_share() {
            let with = format!("optim: {}", self.optim);
            checks.conflict("warmup_steps", with, "write a whole number of steps");
        }
        let epochs = self.max_steps > 0 || (self.num_train_epochs > 0.0 && self.num_train_epochs.is_finite());
        checks.range("num_train_epochs", epochs, "a number above 0");
        checks.range(
            "max_steps",
            self.max_steps == -1 || self.max_steps >= 1,
            "at least 1, or -1 for num_train_epochs",
        );
        checks.range("save_total_limit", self.save_total_limit != Some(0), AT_LEAST_1);
        if let Some(ratio) = self.warmup_ratio {
            checks.range("warmup_ratio", (0.0..=1.0).contains(&ratio), "a number from 0 to 1");
            if ratio > 0.0 && self.warmup_steps.0 > 0.0 {
                let with = format!("warmup_steps: {}", checks.value("warmup_steps"));
                checks.conflict(
                    "warmup_ratio",
                    with,
                    "keep one of the two; warmup_steps below 1 is a share too",
                );
            }
        }
        if self.max_steps > 0 && checks.is_given("num_train_epochs") && checks.is_given("max_steps") {
            checks.note(format!(
                "max_steps: {} ends the run; num_train_epochs: {} is not used",
                self.max_steps, self.num_train_epochs
            ));
        }
        if !self.push_to_hub {
            let given =
                ["hub_model_id", "hub_private_repo", "hub_revision", "hub_strategy", "hub_always_push"]
                    .into_iter();
            let given: Vec<&str> = given.filter(|name| checks.says_something(name)).collect();
            if !given.is_empty() {
                checks
                    .note(format!("`{}`: nothing is uploaded without push_to_hub: true", given.join("`, `")));
            }
        }
        self.evaluation(logging, checks);
        self.checkpoints(logging, checks);
    }

    fn evaluation(&self, logging: &LoggingOptions, checks: &mut Checks<'_>) {
        let every = "above 0 with this strategy";
        checks.range("eval_delay", at_least_0(self.eval_delay), AT_LEAST_0);
        checks.range("warmup_steps", at_least_0(self.warmup_steps.0), AT_LEAST_0);
        let zero_eval = self.eval_steps.is_some_and(|steps| steps.0 <= 0.0);
        checks.range("eval_steps", self.eval_strategy != Interval::Steps || !zero_eval, every);
        checks.range(
            "save_steps",
            self.save_strategy != SaveInterval::Steps || self.save_steps.0 > 0.0,
            every,
        );
        checks.range(
            "logging_steps",
            logging.logging_strategy != Interval::Steps || logging.logging_steps.0 > 0.0,
            every,
        );
        if self.eval_strategy == Interval::No {
            if checks.is_given("eval_steps") && self.eval_steps.is_some() {
                checks.note("eval_steps has no effect with eval_strategy: no");
            }
            if self.eval_on_start {
                checks.note("eval_on_start has no effect with eval_strategy: no");
            }
            if checks.is_given("eval_dataset_name") {
                checks.note("eval_dataset_name has no effect with eval_strategy: no");
            }
        }
    }

    fn checkpoints(&self, logging: &LoggingOptions, checks: &mut Checks<'_>) {
        let resumes = self.resume_from_checkpoint != Resume::No;
        if let Resume::From(path) = &self.resume_from_checkpoint {
            checks.folder("resume_from_checkpoint", path, "");
        }
        if resumes && self.overwrite_output_dir && self.resume_from_checkpoint == Resume::Newest {
            checks.note("resume_from_checkpoint: the run goes on from output_dir's newest checkpoint, which overwrite_output_dir leaves alone");
        }
        if self.save_strategy == SaveInterval::Best && self.eval_strategy == Interval::No {
            checks.conflict(
                "save_strategy",
                "eval_strategy: no",
                "set eval_strategy, which decides what is best",
            );
        }
        if !self.load_best_model_at_end {
            return;
        }
        let with = format!("eval_strategy: {} and save_strategy: {}", self.eval_strategy, self.save_strategy);
        match (self.eval_strategy, self.save_strategy) {
            (Interval::No, SaveInterval::Best) => {}
            (Interval::No, _) => {
                checks.conflict(
                    "load_best_model_at_end",
                    with,
                    "set eval_strategy and save_strategy to the same word",
                );
            }
            (_, SaveInterval::Best) | (Interval::Epoch, SaveInterval::Epoch) => {}
            (Interval::Steps, SaveInterval::Steps) => {
                let eval = self.eval_interval(logging);
                // Shares are compared in millionths, as Transformers does.
                let unit = if eval.is_share() { 1e6 } else { 1.0 };
                let multiple = eval.is_share() == self.save_steps.is_share()
                    && eval.0 > 0.0
                    && ((self.save_steps.0 * unit).round() % (eval.0 * unit).round()) == 0.0;
                if !multiple {
                    let with = format!("save_steps: {} and eval_steps: {}", self.save_steps.0, eval.0);
                    checks.conflict(
                        "load_best_model_at_end",
                        with,
                        "make save_steps a multiple of eval_steps",
                    );
                }
            }
            _ => checks.conflict("load_best_model_at_end", with, "set both to the same word"),
        }
    }
}

impl BatchOptions {
    pub(crate) fn rules(&self, checks: &mut Checks<'_>) {
        checks.range("per_device_eval_batch_size", self.per_device_eval_batch_size >= 1, AT_LEAST_1);
    }
}
