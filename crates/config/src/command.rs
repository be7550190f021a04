//! Commands: which groups they have, which options they need, and how they are read.

use std::collections::BTreeMap;

use crate::check::Checks;
use crate::choice::Sampling;
use crate::fault::{ConfigError, Fault, Origin};
use crate::foreign;
use crate::groups::{
    BatchOptions, ConvertTargetOptions, DeviceOptions, DpoLossOptions, GenerationOptions, GrpoLossOptions,
    InferenceRankOptions, InputOptions, KtoLossOptions, LoggingOptions, LoraOptions, MergeTargetOptions,
    ModelOptions, MuonOptions, PackingOptions, PrecomputeOptions, PreferenceRowOptions, PreparationOptions,
    PromptOptions, PromptRowOptions, RankOptions, ReferenceOptions, RewardFunctionOptions, RewardLossOptions,
    RewardRowOptions, RlooLossOptions, RolloutOptions, SourceOptions, SupervisedOptions, TrainingOptions,
    WinRateTargetOptions,
};
use crate::help;
use crate::raw::Raw;
use crate::source::{self, Written};
use crate::table::{Entry, Mismatch, OptionGroup};

/// The options of one command.
pub trait Command: Default {
    /// The word after `burnish`.
    const NAME: &'static str;
    /// What it does, in one sentence.
    const ABOUT: &'static str;
    /// Options without which it cannot run.
    const REQUIRED: &'static [&'static str];

    /// The groups with their options, in reading order.
    fn groups() -> Vec<(&'static str, Vec<Entry>)>;

    /// Sets one option; `None` if the command has none of this name.
    fn set(&mut self, name: &str, raw: &Raw) -> Option<Result<(), Mismatch>>;

    /// The present values, in reading order.
    fn values(&self) -> Vec<(&'static str, Raw)>;

    /// Looks for values out of range and for options that contradict each other.
    fn check(&self, checks: &mut Checks<'_>);

    /// Every option, in reading order.
    #[must_use]
    fn entries() -> Vec<Entry> {
        Self::groups().into_iter().flat_map(|(_, entries)| entries).collect()
    }

    /// The text of `--help`.
    #[must_use]
    fn help() -> String {
        help::text::<Self>()
    }

    /// Reads the words after the command's name, and the file that `--config` names.
    ///
    /// # Errors
    /// Everything that is wrong, at once: see [`Fault`].
    fn parse<S: Into<String>>(words: impl IntoIterator<Item = S>) -> Result<Invocation<Self>, ConfigError> {
        let words: Vec<String> = words.into_iter().map(Into::into).collect();
        parse(&words, Self::REQUIRED)
    }

    /// As [`Self::parse`], to plan a run rather than to run it: only the model has to be there.
    ///
    /// # Errors
    /// As there.
    fn parse_to_plan<S: Into<String>>(
        words: impl IntoIterator<Item = S>,
    ) -> Result<Invocation<Self>, ConfigError> {
        let words: Vec<String> = words.into_iter().map(Into::into).collect();
        parse(&words, PlanOptions::REQUIRED)
    }
}

/// What the command line asks for.
#[derive(Debug)]
pub enum Invocation<C> {
    /// Run the command.
    Run(Resolved<C>),
    /// Print this text to standard output and stop.
    Help(String),
}

impl<C> Invocation<C> {
    /// The options, unless help was asked for.
    #[must_use]
    pub fn run(self) -> Option<Resolved<C>> {
        match self {
            Self::Run(resolved) => Some(resolved),
            Self::Help(_) => None,
        }
    }
}

/// Options with all sources applied: defaults, then the file, then flags.
#[derive(Debug)]
pub struct Resolved<C> {
    /// The options.
    pub options: C,
    /// The options that were written somewhere, and where.
    pub given: BTreeMap<&'static str, Origin>,
    /// What the user should know: accepted values that do less than they may seem to.
    pub notes: Vec<String>,
}

impl<C: Command> Resolved<C> {
    /// Every option and its value, as JSON: the record of a run.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Map<String, serde_json::Value> {
        self.options.values().iter().map(|(name, raw)| ((*name).to_owned(), raw.into())).collect()
    }

    /// The options that were written somewhere, in reading order, as plain text: for people.
    #[must_use]
    pub fn written(&self) -> Vec<(String, String)> {
        let values = self.options.values();
        let given = values.iter().filter(|(name, _)| self.given.contains_key(name));
        given.map(|(name, raw)| ((*name).to_owned(), raw.plain())).collect()
    }
}

fn parse<C: Command>(words: &[String], required: &[&str]) -> Result<Invocation<C>, ConfigError> {
    let entries = C::entries();
    let mut faults = Vec::new();
    let flags = source::flags(words, &entries, &mut faults);
    if flags.help {
        return Ok(Invocation::Help(C::help()));
    }
    let mut written = Vec::new();
    if let Some(path) = &flags.config {
        written = source::file(path, &mut faults);
    }
    written.extend(flags.written);

    let mut options = C::default();
    let mut given = BTreeMap::new();
    for Written { name, raw, origin } in &written {
        let meant = source::canonical(name);
        if let Some(entry) = entries.iter().find(|entry| entry.name == meant) {
            match options.set(entry.name, raw) {
                Some(Ok(())) => {
                    given.insert(entry.name, origin.clone());
                }
                Some(Err(Mismatch { expected })) => faults.push(Fault::Type {
                    origin: origin.clone(),
                    name: entry.name,
                    expected,
                    got: raw.to_string(),
                }),
                None => unreachable!("invariant: every entry of a command can be set"),
            }
        } else if let Some((name, foreign)) = foreign::find(meant) {
            if !foreign.takes(raw) {
                faults.push(Fault::Refused {
                    origin: origin.clone(),
                    name,
                    got: raw.to_string(),
                    reason: foreign.reason,
                });
            }
        } else if let Some((name, of)) = elsewhere(meant) {
            faults.push(Fault::Elsewhere { origin: origin.clone(), name, of, command: C::NAME });
        } else {
            faults.push(Fault::Unknown {
                origin: origin.clone(),
                name: name.clone(),
                nearest: nearest(meant, &entries),
            });
        }
    }

    let mut notes = Vec::new();
    let values = options.values();
    let mut checks = Checks::new(&given, &values, &mut faults, &mut notes);
    for name in required {
        checks.required(name, &entries);
    }
    options.check(&mut checks);
    if faults.is_empty() {
        Ok(Invocation::Run(Resolved { options, given, notes }))
    } else {
        Err(ConfigError { command: C::NAME, faults })
    }
}

/// The commands that do have an option of this name.
fn elsewhere(name: &str) -> Option<(&'static str, Vec<&'static str>)> {
    let mut found = None;
    let mut of = Vec::new();
    for (command, entries) in COMMANDS.iter().map(|command| (command.name, (command.entries)())) {
        if let Some(entry) = entries.iter().find(|entry| entry.name == name) {
            found = Some(entry.name);
            of.push(command);
        }
    }
    Some((found?, of))
}

/// The command whose name is most like this word, if one is.
#[must_use]
pub fn nearest_command(word: &str) -> Option<&'static str> {
    let alike = COMMANDS.iter().map(|command| (strsim::jaro_winkler(command.name, word), command.name));
    alike.filter(|(alike, _)| *alike > 0.7).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// The option whose name is most like this one, if any is.
fn nearest(name: &str, entries: &[Entry]) -> Option<&'static str> {
    let own = entries.iter().map(|entry| entry.name).chain(std::iter::once("config"));
    let best = |names: &mut dyn Iterator<Item = &'static str>, at_least: f64| {
        names
            .map(|known| (likeness(known, name), known))
            .filter(|(alike, _)| *alike >= at_least)
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .map(|(_, known)| known)
    };
    // An option that burnish refuses is worth naming only when it is clearly the one that was meant.
    best(&mut own.into_iter(), 0.8).or_else(|| {
        best(&mut foreign::FOREIGN.iter().flat_map(|foreign| foreign.names.iter().copied()), 0.95)
    })
}

/// From 0 to 1: how likely someone who wrote `name` meant `known`.
fn likeness(known: &str, name: &str) -> f64 {
    let sorted = |text: &str| {
        let mut words: Vec<&str> = text.split('_').collect();
        words.sort_unstable();
        words.join("_")
    };
    // The same words in another order are as good as the same word, and some of its words nearly so.
    let part = name.len() > 3 && name.split('_').all(|word| known.split('_').any(|other| other == word));
    strsim::jaro_winkler(known, name)
        .max(strsim::normalized_damerau_levenshtein(&sorted(known), &sorted(name)))
        .max(if part { 0.85 } else { 0.0 })
}

/// A command, as data.
#[derive(Clone, Copy, Debug)]
pub struct CommandInfo {
    /// The word after `burnish`.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Its options.
    pub entries: fn() -> Vec<Entry>,
    /// Its page of the reference, in Markdown.
    pub reference: fn() -> String,
}

/// Declares a command: the groups it is made of.
macro_rules! commands {
    ($(
        $(#[doc = $doc:literal])+
        $command:ident, $name:literal, $about:literal, needs $required:expr,
        $(default { $($group_field:ident.$option:ident: $value:expr),+ $(,)? },)? {
            $($(#[doc = $field_doc:literal])+ $field:ident: $group:ident,)+
        }
    )+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, Debug, PartialEq)]
            pub struct $command {
                $($(#[doc = $field_doc])+ pub $field: $group,)+
            }

            impl Default for $command {
                fn default() -> Self {
                    #[allow(unused_mut, reason = "not every command has defaults of its own")]
                    let mut options = Self { $($field: $group::default(),)+ };
                    $($(options.$group_field.$option = $value;)+)?
                    options
                }
            }

            impl Command for $command {
                const NAME: &'static str = $name;
                const ABOUT: &'static str = $about;
                const REQUIRED: &'static [&'static str] = &$required;

                fn groups() -> Vec<(&'static str, Vec<Entry>)> {
                    let mut groups = vec![$(($group::TITLE, $group::entries())),+];
                    let mut values = Self::default().values().into_iter();
                    // A command may have other defaults than the group.
                    for entry in groups.iter_mut().flat_map(|(_, entries)| entries) {
                        entry.default = values.next().map_or(Raw::Null, |(_, raw)| raw);
                    }
                    groups
                }

                fn set(&mut self, name: &str, raw: &Raw) -> Option<Result<(), Mismatch>> {
                    $(if let Some(result) = self.$field.set(name, raw) {
                        return Some(result);
                    })+
                    None
                }

                fn values(&self) -> Vec<(&'static str, Raw)> {
                    let mut values = Vec::new();
                    $(values.extend(self.$field.values());)+
                    values
                }

                fn check(&self, checks: &mut Checks<'_>) {
                    self.conflicts(checks);
                }
            }
        )+

        /// Every command, in the order of `burnish --help`.
        pub const COMMANDS: &[CommandInfo] = &[$(CommandInfo {
            name: $name,
            about: $about,
            entries: $command::entries,
            reference: help::reference::<$command>,
        }),+];
    };
}

commands! {
    /// Options of `burnish sft`.
    SftOptions, "sft", "Fine-tune a language model on text, prompts with completions, or conversations",
    needs ["model_name_or_path", "dataset_name"], {
        /// The model.
        model: ModelOptions,
        /// The rows.
        data: SourceOptions,
        /// Rows to tokens.
        preparation: PreparationOptions,
        /// Rows to batches.
        packing: PackingOptions,
        /// The loss.
        loss: SupervisedOptions,
        /// The adapter.
        lora: LoraOptions,
        /// The loop.
        training: TrainingOptions,
        /// The optimizer of matrices.
        muon: MuonOptions,
        /// The ranks.
        ranks: RankOptions,
        /// Metrics and progress.
        logging: LoggingOptions,
    }

    /// Options of `burnish dpo`.
    DpoOptions, "dpo", "Teach a model to prefer chosen completions over rejected ones (direct preference optimisation)",
    needs ["model_name_or_path", "dataset_name"],
    default { training.learning_rate: 1e-6 }, {
        /// The model.
        model: ModelOptions,
        /// The rows.
        data: SourceOptions,
        /// Rows to tokens.
        preparation: PreferenceRowOptions,
        /// The loss.
        loss: DpoLossOptions,
        /// What the model is compared with.
        reference: ReferenceOptions,
        /// What the reference says, once and for all.
        precompute: PrecomputeOptions,
        /// The adapter.
        lora: LoraOptions,
        /// The loop.
        training: TrainingOptions,
        /// The optimizer of matrices.
        muon: MuonOptions,
        /// The ranks.
        ranks: RankOptions,
        /// Metrics and progress.
        logging: LoggingOptions,
    }

    /// Options of `burnish kto`.
    KtoOptions, "kto", "Teach a model from completions that are marked desirable or not (Kahneman-Tversky optimisation)",
    needs ["model_name_or_path", "dataset_name"],
    default { training.learning_rate: 1e-6, training.train_sampling_strategy: Sampling::Sequential }, {
        /// The model.
        model: ModelOptions,
        /// The rows.
        data: SourceOptions,
        /// Rows to tokens.
        preparation: PreferenceRowOptions,
        /// The loss.
        loss: KtoLossOptions,
        /// What the model is compared with.
        reference: ReferenceOptions,
        /// What the reference says, once and for all.
        precompute: PrecomputeOptions,
        /// The adapter.
        lora: LoraOptions,
        /// The loop.
        training: TrainingOptions,
        /// The optimizer of matrices.
        muon: MuonOptions,
        /// The ranks.
        ranks: RankOptions,
        /// Metrics and progress.
        logging: LoggingOptions,
    }

    /// Options of `burnish reward`.
    RewardOptions, "reward", "Train a reward model: a head that scores chosen texts above rejected ones",
    needs ["model_name_or_path", "dataset_name"],
    default { training.learning_rate: 1e-4 }, {
        /// The model.
        model: ModelOptions,
        /// The rows.
        data: SourceOptions,
        /// Rows to tokens.
        preparation: RewardRowOptions,
        /// The loss.
        loss: RewardLossOptions,
        /// The adapter.
        lora: LoraOptions,
        /// The loop.
        training: TrainingOptions,
        /// The optimizer of matrices.
        muon: MuonOptions,
        /// The ranks.
        ranks: RankOptions,
        /// Metrics and progress.
        logging: LoggingOptions,
    }

    /// Options of `burnish grpo`.
    GrpoOptions, "grpo", "Teach a model by rewards of its own completions, compared within groups (group relative policy optimisation)",
    needs ["model_name_or_path", "dataset_name"],
    default { training.learning_rate: 1e-6, data.shuffle_dataset: true }, {
        /// The model.
        model: ModelOptions,
        /// The prompts.
        data: SourceOptions,
        /// Rows to tokens.
        preparation: PromptRowOptions,
        /// Prompts to completions.
        rollouts: RolloutOptions,
        /// What completions are worth.
        rewards: RewardFunctionOptions,
        /// The loss.
        loss: GrpoLossOptions,
        /// What the model is compared with.
        reference: ReferenceOptions,
        /// The adapter.
        lora: LoraOptions,
        /// The loop.
        training: TrainingOptions,
        /// The optimizer of matrices.
        muon: MuonOptions,
        /// The ranks.
        ranks: RankOptions,
        /// Metrics and progress.
        logging: LoggingOptions,
    }

    /// Options of `burnish rloo`.
    RlooOptions, "rloo", "Teach a model by rewards of its own completions (REINFORCE leave-one-out)",
    needs ["model_name_or_path", "dataset_name"],
    default { training.learning_rate: 1e-6, data.shuffle_dataset: true, rollouts.num_generations: 2 }, {
        /// The model.
        model: ModelOptions,
        /// The prompts.
        data: SourceOptions,
        /// Rows to tokens.
        preparation: PromptRowOptions,
        /// Prompts to completions.
        rollouts: RolloutOptions,
        /// What completions are worth.
        rewards: RewardFunctionOptions,
        /// The loss.
        loss: RlooLossOptions,
        /// What the model is compared with.
        reference: ReferenceOptions,
        /// The adapter.
        lora: LoraOptions,
        /// The loop.
        training: TrainingOptions,
        /// The optimizer of matrices.
        muon: MuonOptions,
        /// The ranks.
        ranks: RankOptions,
        /// Metrics and progress.
        logging: LoggingOptions,
    }

    /// Options of `burnish generate`.
    GenerateOptions, "generate", "Continue a prompt, or every prompt of a file",
    needs ["model_name_or_path"], {
        /// The model.
        model: ModelOptions,
        /// The prompts.
        prompts: PromptOptions,
        /// The choice of tokens.
        generation: GenerationOptions,
        /// The ranks.
        ranks: InferenceRankOptions,
    }

    /// Options of `burnish score`.
    ScoreOptions, "score", "Write each row's log-probability under a model, or its score by a reward model",
    needs ["model_name_or_path", "dataset_name"], {
        /// The model.
        model: ModelOptions,
        /// The rows.
        input: InputOptions,
        /// Rows to tokens.
        preparation: PreparationOptions,
        /// Batches.
        batches: BatchOptions,
        /// The ranks.
        ranks: InferenceRankOptions,
    }

    /// Options of `burnish eval`.
    EvalOptions, "eval", "Evaluate a model: loss, perplexity, token accuracy and entropy over a data set",
    needs ["model_name_or_path", "dataset_name"], {
        /// The model.
        model: ModelOptions,
        /// The rows.
        input: InputOptions,
        /// Rows to tokens.
        preparation: PreparationOptions,
        /// Rows to batches.
        packing: PackingOptions,
        /// Batches.
        batches: BatchOptions,
        /// The ranks.
        ranks: InferenceRankOptions,
    }

    /// Options of `burnish win-rate`.
    WinRateOptions, "win-rate", "Say how often a model's completions score higher than those of another",
    needs ["model_name_or_path", "dataset_name"], {
        /// The model.
        model: ModelOptions,
        /// What it is compared with, and on which prompts.
        target: WinRateTargetOptions,
        /// What scores completions.
        rewards: RewardFunctionOptions,
        /// The choice of tokens.
        generation: GenerationOptions,
        /// The ranks.
        ranks: InferenceRankOptions,
    }

    /// Options of `burnish plan`.
    PlanOptions, "plan", "Say what a fine-tuning run will hold and send on each rank, without running it",
    needs ["model_name_or_path"], {
        /// The model.
        model: ModelOptions,
        /// The rows.
        data: SourceOptions,
        /// Rows to tokens.
        preparation: PreparationOptions,
        /// Rows to batches.
        packing: PackingOptions,
        /// The loss.
        loss: SupervisedOptions,
        /// The adapter.
        lora: LoraOptions,
        /// The loop.
        training: TrainingOptions,
        /// The optimizer of matrices.
        muon: MuonOptions,
        /// The ranks.
        ranks: RankOptions,
        /// Metrics and progress.
        logging: LoggingOptions,
    }

    /// Options of `burnish merge`.
    MergeOptions, "merge", "Merge an adapter into its base model and write a full model folder",
    needs ["model_name_or_path", "adapter_name_or_path", "output_dir"], {
        /// What is read and written.
        merge: MergeTargetOptions,
    }

    /// Options of `burnish convert`.
    ConvertOptions, "convert", "Export a checkpoint to a Hugging Face model folder or a PEFT adapter folder",
    needs ["checkpoint"], {
        /// What is read and written.
        convert: ConvertTargetOptions,
    }

    /// Options of `burnish doctor`.
    DoctorOptions, "doctor", "Say what this machine has of what each device and transport needs, and try one",
    needs [], {
        /// What is tried.
        device: DeviceOptions,
    }
}
