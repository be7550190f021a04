//! Ranges and contradictions, found before anything is loaded.

mod online;
mod preferences;
mod rewards;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use crate::choice::{
    Interval, LoraInit, ModelDtype, MuonVariant, Optimizer, PackingStrategy, ReduceWhen, SaveInterval,
};
use crate::command::{
    ConvertOptions, DoctorOptions, EvalOptions, GenerateOptions, MergeOptions, PlanOptions, ScoreOptions,
    SftOptions,
};
use crate::fault::{Fault, Origin};
use crate::groups::{
    GenerationOptions, InferenceRankOptions, LoggingOptions, LoraOptions, ModelOptions, MuonOptions,
    PackingOptions, PreparationOptions, RankOptions, SourceOptions, TrainingOptions,
};
use crate::raw::Raw;
use crate::setting::Resume;
use crate::table::{Entry, OptionGroup};
use crate::trainer::{RunOptions, TrainerOptions};

/// Where a command's checks put what they find.
#[derive(Debug)]
pub struct Checks<'a> {
    given: &'a BTreeMap<&'static str, Origin>,
    values: &'a [(&'static str, Raw)],
    faults: &'a mut Vec<Fault>,
    notes: &'a mut Vec<String>,
}

impl<'a> Checks<'a> {
    pub(crate) fn new(
        given: &'a BTreeMap<&'static str, Origin>,
        values: &'a [(&'static str, Raw)],
        faults: &'a mut Vec<Fault>,
        notes: &'a mut Vec<String>,
    ) -> Self {
        Self { given, values, faults, notes }
    }

    /// Whether the option was written somewhere.
    #[must_use]
    pub fn is_given(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    fn origin(&self, name: &str) -> Origin {
        self.given.get(name).cloned().unwrap_or(Origin::Default)
    }

    fn value(&self, name: &str) -> String {
        self.values
            .iter()
            .find(|(known, _)| *known == name)
            .map_or_else(String::new, |(_, raw)| raw.to_string())
    }

    /// A fault unless the value is in range.
    pub fn range(&mut self, name: &'static str, holds: bool, expected: &'static str) {
        if !holds {
            self.faults.push(Fault::Range {
                origin: self.origin(name),
                name,
                expected,
                got: self.value(name),
            });
        }
    }

    /// A fault that two options contradict each other.
    pub fn conflict(&mut self, name: &'static str, with: impl Display, mend: &'static str) {
        let (origin, got, with) = (self.origin(name), self.value(name), with.to_string());
        self.faults.push(Fault::Conflict { origin, name, got, with, mend });
    }

    /// Something the user should know that is no fault.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// A fault unless the option has a value. An option whose value was refused is not reported again.
    pub(crate) fn required(&mut self, name: &str, entries: &[Entry]) {
        let set = self.values.iter().any(|(known, raw)| *known == name && *raw != Raw::Null);
        let refused = self
            .faults
            .iter()
            .any(|fault| matches!(fault, Fault::Type { name: known, .. } if *known == name));
        if let (false, false, Some(entry)) = (set, refused, entries.iter().find(|entry| entry.name == name)) {
            self.faults
                .push(Fault::Required { name: entry.name, doc: entry.doc.trim_end_matches('.').to_owned() });
        }
    }

    fn folder(&mut self, name: &'static str, path: &Path, hint: &'static str) {
        if !path.as_os_str().is_empty() && !path.is_dir() {
            let origin = self.origin(name);
            self.faults.push(Fault::NotFound { origin, name, what: "folder", path: path.to_owned(), hint });
        }
    }

    fn rows(&mut self, name: &'static str, path: &str) {
        if !path.is_empty() && !path.contains(['*', '?', '[', '{']) && !Path::new(path).exists() {
            let hint = "; burnish reads local files: download the data set first, as JSONL";
            let origin = self.origin(name);
            self.faults.push(Fault::NotFound {
                origin,
                name,
                what: "file or folder",
                path: path.into(),
                hint,
            });
        }
    }
}

const MODEL_HINT: &str =
    "; burnish reads local folders: download the model first, for instance with `hf download`";
const AT_LEAST_1: &str = "a whole number that is at least 1";

impl ModelOptions {
    fn ranges(&self, checks: &mut Checks<'_>) {
        checks.folder("model_name_or_path", &self.model_name_or_path, MODEL_HINT);
        if let Some(adapter) = &self.adapter_name_or_path {
            checks.folder("adapter_name_or_path", adapter, "");
        }
        checks.range("threads", self.threads != Some(0), AT_LEAST_1);
    }
}

impl PreparationOptions {
    fn ranges(&self, checks: &mut Checks<'_>) {
        checks.range("max_length", self.max_length.is_none_or(|n| n >= 2), "null or at least 2 tokens");
        if self.completion_only_loss == Some(true) && self.assistant_only_loss {
            checks.note("completion_only_loss and assistant_only_loss are both set: a token trains when both allow it");
        }
        if let Some(path) = &self.chat_template_path
            && !path.exists()
        {
            let origin = checks.origin("chat_template_path");
            let what = "template file or tokenizer folder";
            let name = "chat_template_path";
            checks.faults.push(Fault::NotFound { origin, name, what, path: path.clone(), hint: "" });
        }
    }
}

impl PackingOptions {
    fn conflicts(&self, max_length: Option<usize>, checks: &mut Checks<'_>) {
        if self.packing && max_length.is_none() {
            checks.conflict(
                "packing",
                "max_length: null",
                "set max_length, the length that rows are packed to",
            );
        }
        if self.padding_free && !self.packing && max_length.is_some() {
            let mend = "set packing: true, or max_length: null when no row is too long";
            checks.conflict(
                "padding_free",
                format!("max_length: {} without packing", checks.value("max_length")),
                mend,
            );
        }
        if self.padding_free && self.packing && self.packing_strategy == PackingStrategy::Wrapped {
            checks.note(
                "padding_free has no effect with packing_strategy: wrapped, whose rows have no padding",
            );
        }
    }
}

impl LoraOptions {
    fn conflicts(&self, model: &ModelOptions, checks: &mut Checks<'_>) {
        checks.range("lora_r", self.lora_r >= 1, AT_LEAST_1);
        checks.range("lora_alpha", self.lora_alpha > 0.0 && self.lora_alpha.is_finite(), "a number above 0");
        checks.range("lora_dropout", (0.0..1.0).contains(&self.lora_dropout), "a number from 0 to below 1");
        checks.range(
            "rank_pattern",
            self.rank_pattern.values().all(|r| *r >= 1),
            "ranks that are at least 1",
        );
        if self.init_lora_weights == LoraInit::Orthogonal && !self.lora_r.is_multiple_of(2) {
            checks.conflict("init_lora_weights", format!("lora_r: {}", self.lora_r), "set an even lora_r");
        }
        if !self.layers_pattern.is_empty() && self.layers_to_transform.is_empty() {
            checks.conflict(
                "layers_pattern",
                "an empty layers_to_transform",
                "name the layers in layers_to_transform",
            );
        }
        const OWN: &[&str] = &[
            "lora_r",
            "lora_alpha",
            "lora_dropout",
            "lora_target_modules",
            "lora_modules_to_save",
            "use_rslora",
            "use_dora",
            "bias",
            "init_lora_weights",
            "exclude_modules",
            "rank_pattern",
            "alpha_pattern",
            "layers_to_transform",
            "layers_pattern",
        ];
        for name in OWN.iter().copied().filter(|name| checks.is_given(name)).collect::<Vec<_>>() {
            if let Some(adapter) = &model.adapter_name_or_path {
                let with = format!("adapter_name_or_path: {:?}", adapter.display().to_string());
                checks.conflict(
                    name,
                    with,
                    "an existing adapter keeps its own settings: take one of the two out",
                );
            } else if !self.use_peft && !checks.is_given("use_peft") {
                let mend =
                    "add use_peft: true to train an adapter, or use_peft: false to train the whole model";
                checks.conflict(name, "training the whole model", mend);
            }
        }
    }
}

impl TrainingOptions {
    fn conflicts(&self, logging: &LoggingOptions, checks: &mut Checks<'_>) {
        checks.range("per_device_train_batch_size", self.per_device_train_batch_size >= 1, AT_LEAST_1);
        checks.range("per_device_eval_batch_size", self.per_device_eval_batch_size >= 1, AT_LEAST_1);
        checks.range("gradient_accumulation_steps", self.gradient_accumulation_steps >= 1, AT_LEAST_1);
        let at_least_0 = |value: f64| value >= 0.0 && value.is_finite();
        checks.range("learning_rate", at_least_0(self.learning_rate), "a number that is at least 0");
        checks.range("weight_decay", at_least_0(self.weight_decay), "a number that is at least 0");
        checks.range("max_grad_norm", self.max_grad_norm >= 0.0, "a number that is at least 0");
        let beta = "a number from 0 to below 1";
        checks.range("adam_beta1", (0.0..1.0).contains(&self.adam_beta1), beta);
        checks.range("adam_beta2", (0.0..1.0).contains(&self.adam_beta2), beta);
        checks.range(
            "adam_epsilon",
            self.adam_epsilon > 0.0 && self.adam_epsilon.is_finite(),
            "a number above 0",
        );
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
        if self.bf16 {
            checks.note(
                "bf16: products are computed in the dtype that weights are held in; set dtype: bfloat16 (on a GPU bf16 products over float32 masters; on the CPU half the memory, and float32 arithmetic)",
            );
        }
        self.evaluation(logging, checks);
        self.checkpoints(logging, checks);
    }

    fn evaluation(&self, logging: &LoggingOptions, checks: &mut Checks<'_>) {
        let every = "above 0 with this strategy";
        let zero_eval = self.eval_steps.is_some_and(|steps| steps.0 == 0.0);
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
            let mend = "take overwrite_output_dir out to go on from the checkpoint that is there";
            checks.conflict("resume_from_checkpoint", "overwrite_output_dir: true", mend);
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

impl GenerationOptions {
    fn conflicts(&self, checks: &mut Checks<'_>) {
        checks.range("max_new_tokens", self.max_new_tokens != Some(0), AT_LEAST_1);
        let positive = |value: Option<f64>| value.is_none_or(|v| v > 0.0 && v.is_finite());
        let sampling_off = self.do_sample == Some(false);
        checks.range(
            "temperature",
            positive(self.temperature),
            "a number above 0; for no sampling, do_sample: false",
        );
        checks.range("repetition_penalty", positive(self.repetition_penalty), "a number above 0");
        checks.range(
            "top_p",
            self.top_p.is_none_or(|p| p > 0.0 && p <= 1.0),
            "a number above 0 and at most 1",
        );
        checks.range("min_p", self.min_p.is_none_or(|p| (0.0..=1.0).contains(&p)), "a number from 0 to 1");
        if let (Some(min), Some(max)) = (self.min_new_tokens, self.max_new_tokens)
            && min > max
        {
            checks.conflict("min_new_tokens", format!("max_new_tokens: {max}"), "raise max_new_tokens");
        }
        if sampling_off {
            for name in ["temperature", "top_k", "top_p", "min_p"] {
                if checks.is_given(name) {
                    checks.conflict(name, "do_sample: false", "set do_sample: true, or take it out");
                }
            }
        }
    }
}

/// Ranks in whole groups that share layers.
fn launched(nproc: usize, tp_size: usize, checks: &mut Checks<'_>) {
    checks.range("nproc", nproc >= 1, AT_LEAST_1);
    checks.range("tp_size", tp_size >= 1, AT_LEAST_1);
    if nproc > 1 && !nproc.is_multiple_of(tp_size.max(1)) {
        let with = format!("nproc: {}", nproc);
        checks.conflict(
            "tp_size",
            with,
            "make nproc a multiple of tp_size: each group of tp_size ranks holds one model",
        );
    }
}

fn waiting(ddp_timeout: f64, checks: &mut Checks<'_>) {
    let finite = ddp_timeout > 0.0 && ddp_timeout.is_finite();
    checks.range("ddp_timeout", finite, "a number of seconds above 0");
}

impl InferenceRankOptions {
    fn ranges(&self, checks: &mut Checks<'_>) {
        launched(self.nproc, self.tp_size, checks);
        waiting(self.ddp_timeout, checks);
    }
}

impl RankOptions {
    fn conflicts(&self, model: &ModelOptions, training: &TrainingOptions, checks: &mut Checks<'_>) {
        launched(self.nproc, self.tp_size, checks);
        checks.range("global_batch_size", self.global_batch_size != Some(0), AT_LEAST_1);
        checks.range("reduce_bucket_size", self.reduce_bucket_size >= 1, AT_LEAST_1);
        waiting(self.ddp_timeout, checks);
        if self.global_batch_size.is_some() && checks.is_given("gradient_accumulation_steps") {
            checks.conflict(
                "global_batch_size",
                "gradient_accumulation_steps",
                "keep one of the two: the accumulation follows from the global batch and the number of ranks",
            );
        }
        if self.zero_stage.0 < 2 && self.zero_reduce == ReduceWhen::MicroBatch {
            checks.conflict(
                "zero_reduce",
                format!("zero_stage: {}", self.zero_stage.0),
                "stages 0 and 1 keep whole gradients, so summing them more often saves nothing: leave it out",
            );
        }
        if training.fp16 && training.bf16 {
            checks.conflict("fp16", "bf16: true", "keep one of the two");
        }
        if training.fp16 && checks.is_given("dtype") && model.dtype != ModelDtype::Float16 {
            let with = format!("dtype: {}", model.dtype);
            checks.conflict("fp16", with, "fp16 holds trained matrices in float16: leave dtype out");
        }
    }
}

impl MuonOptions {
    fn conflicts(&self, training: &TrainingOptions, checks: &mut Checks<'_>) {
        let rate = |value: Option<f64>| value.is_none_or(|v| v >= 0.0 && v.is_finite());
        checks.range("muon_lr", rate(self.muon_lr), "a number that is at least 0");
        checks.range("adam_lr", rate(self.adam_lr), "a number that is at least 0");
        let beta = "a number from 0 to below 1";
        checks.range("muon_momentum", (0.0..1.0).contains(&self.muon_momentum), beta);
        checks.range("muon_beta2", (0.0..1.0).contains(&self.muon_beta2), beta);
        let clip = self.muon_qk_clip.is_none_or(|v| v > 0.0 && v.is_finite());
        checks.range("muon_qk_clip", clip, "a number above 0");
        checks.range("muon_ns_steps", (1..=100).contains(&self.muon_ns_steps), "from 1 to 100");
        if training.optim != Optimizer::Muon {
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
        if beta2 && self.muon_variant == MuonVariant::Muon {
            checks.conflict(
                "muon_beta2",
                "muon_variant: muon",
                "plain Muon has no second moment: take it out",
            );
        }
    }
}

impl SourceOptions {
    fn conflicts(&self, training: &TrainingOptions, checks: &mut Checks<'_>) {
        checks.rows("dataset_name", &self.dataset_name);
        if let Some(rows) = &self.eval_dataset_name {
            checks.rows("eval_dataset_name", rows);
        }
        let rows = Path::new(&self.dataset_name);
        // A folder may hold a test split; whether it does is found when it is read.
        let no_rows = self.eval_dataset_name.is_none() && self.test_split_size.is_none() && !rows.is_dir();
        if let Some(size) = self.test_split_size {
            let share_or_count = size > 0.0 && size.is_finite() && (size < 1.0 || size.fract() == 0.0);
            checks.range(
                "test_split_size",
                share_or_count,
                "a share between 0 and 1, or a whole number of rows",
            );
            if self.eval_dataset_name.is_some() {
                checks.conflict("test_split_size", "eval_dataset_name", "keep one of the two");
            }
        }
        if training.eval_strategy != Interval::No && no_rows && !self.dataset_name.is_empty() {
            let with = format!("dataset_name: {:?}, which has no splits", self.dataset_name);
            checks.conflict(
                "eval_strategy",
                with,
                "name the rows to evaluate on in eval_dataset_name, or hold some out with test_split_size",
            );
        }
    }
}

/// What every trainer checks.
fn trains(options: &RunOptions, checks: &mut Checks<'_>) {
    options.model.ranges(checks);
    options.data.conflicts(&options.training, checks);
    options.preparation.ranges(checks);
    options.lora.conflicts(&options.model, checks);
    let adapts = options.lora.use_peft || options.model.adapter_name_or_path.is_some();
    if options.training.random_weights && adapts {
        checks.conflict(
            "random_weights",
            "training an adapter",
            "train the whole model first: use_peft: false",
        );
    }
    options.ranks.conflicts(&options.model, &options.training, checks);
    options.training.conflicts(&options.logging, checks);
    options.muon.conflicts(&options.training, checks);
}

impl SftOptions {
    pub(crate) fn conflicts(&self, checks: &mut Checks<'_>) {
        trains(&self.run_options(), checks);
        self.packing.conflicts(self.preparation.max_length, checks);
    }
}

/// What trainers check that divide by pairs or completions, which are those of all ranks.
fn divides_by_rows(training: &TrainingOptions, checks: &mut Checks<'_>) {
    if !training.average_tokens_across_devices {
        checks.conflict(
            "average_tokens_across_devices",
            "a loss over rows, which is always that of all ranks",
            "take it out",
        );
    }
}

impl GenerateOptions {
    pub(crate) fn conflicts(&self, checks: &mut Checks<'_>) {
        self.model.ranges(checks);
        match (&self.prompts.prompt.0, &self.prompts.dataset_name) {
            (None, None) => checks.faults.push(Fault::Required {
                name: "prompt",
                doc: "the text to continue, or --dataset_name with a file of prompts".into(),
            }),
            (Some(_), Some(rows)) => {
                checks.conflict("prompt", format!("dataset_name: {rows:?}"), "keep one of the two");
            }
            (None, Some(rows)) => {
                checks.rows("dataset_name", rows);
            }
            (Some(_), None) => {}
        }
        let batch = self.prompts.per_device_eval_batch_size;
        checks.range("per_device_eval_batch_size", batch >= 1, AT_LEAST_1);
        self.generation.conflicts(checks);
        self.ranks.ranges(checks);
        if self.prompts.prompt.0.is_some() && self.ranks.nproc > self.ranks.tp_size {
            checks.note("one prompt takes tp_size ranks; the others have nothing to do");
        }
    }
}

impl ScoreOptions {
    pub(crate) fn conflicts(&self, checks: &mut Checks<'_>) {
        self.model.ranges(checks);
        checks.rows("dataset_name", &self.input.dataset_name);
        self.preparation.ranges(checks);
        checks.range("per_device_eval_batch_size", self.batches.per_device_eval_batch_size >= 1, AT_LEAST_1);
        self.ranks.ranges(checks);
    }
}

impl EvalOptions {
    pub(crate) fn conflicts(&self, checks: &mut Checks<'_>) {
        self.model.ranges(checks);
        checks.rows("dataset_name", &self.input.dataset_name);
        self.preparation.ranges(checks);
        self.packing.conflicts(self.preparation.max_length, checks);
        checks.range("per_device_eval_batch_size", self.batches.per_device_eval_batch_size >= 1, AT_LEAST_1);
        self.ranks.ranges(checks);
    }
}

impl ConvertOptions {
    pub(crate) fn conflicts(&self, checks: &mut Checks<'_>) {
        checks.folder("checkpoint", &self.convert.checkpoint, "");
        if self.convert.output_dir.as_ref() == Some(&self.convert.checkpoint) {
            checks.conflict("output_dir", "the checkpoint", "name another folder for the export");
        }
    }
}

impl DoctorOptions {
    /// Whatever is asked for is looked for.
    #[allow(clippy::unused_self, reason = "every command has checks")]
    pub(crate) fn conflicts(&self, _: &mut Checks<'_>) {}
}

impl MergeOptions {
    pub(crate) fn conflicts(&self, checks: &mut Checks<'_>) {
        checks.folder("model_name_or_path", &self.merge.model_name_or_path, MODEL_HINT);
        checks.folder("adapter_name_or_path", &self.merge.adapter_name_or_path, "");
        checks.range("threads", self.merge.threads != Some(0), AT_LEAST_1);
        let output = &self.merge.output_dir;
        let sources = [&self.merge.model_name_or_path, &self.merge.adapter_name_or_path];
        if !output.as_os_str().is_empty() && sources.contains(&output) {
            checks.conflict(
                "output_dir",
                "a folder that is read",
                "name another folder for the merged model",
            );
        }
    }
}

impl PlanOptions {
    pub(crate) fn conflicts(&self, checks: &mut Checks<'_>) {
        self.model.ranges(checks);
        self.lora.conflicts(&self.model, checks);
        self.ranks.conflicts(&self.model, &self.training, checks);
        self.muon.conflicts(&self.training, checks);
    }
}
