//! `TrainerOptions` and `RunOptions`: the option groups that all training commands share.

use crate::checks::Checks;
use crate::command::Command;
use crate::groups::{
    LoggingOptions, LoraOptions, ModelOptions, MuonOptions, PreparationOptions, QuantizationOptions,
    RankOptions, ReferenceOptions, SourceOptions, TrainingOptions,
};

/// The options of a run, whatever is trained.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunOptions {
    /// The model.
    pub model: ModelOptions,
    /// How its base rests.
    pub quantization: QuantizationOptions,
    /// The rows.
    pub data: SourceOptions,
    /// Rows to tokens.
    pub preparation: PreparationOptions,
    /// The adapter.
    pub lora: LoraOptions,
    /// The loop.
    pub training: TrainingOptions,
    /// The optimizer of matrices.
    pub muon: MuonOptions,
    /// The ranks.
    pub ranks: RankOptions,
    /// Metrics and progress.
    pub logging: LoggingOptions,
    /// The model that log-ratios are taken against, for the losses that have one.
    pub reference: Option<ReferenceOptions>,
}

impl RunOptions {
    /// Whether an adapter trains, fresh or from a folder.
    #[must_use]
    pub fn trains_adapter(&self) -> bool {
        self.lora.use_peft || self.model.adapter_name_or_path.is_some()
    }

    /// The rules of every trainer.
    pub(crate) fn rules(&self, checks: &mut Checks<'_>) {
        self.model.rules(checks);
        self.data.rules(&self.training, checks);
        self.preparation.rules(checks);
        self.lora.rules(&self.model, checks);
        if self.training.random_weights && self.trains_adapter() {
            checks.conflict(
                "random_weights",
                "training an adapter",
                "train the whole model first: use_peft: false",
            );
        }
        self.ranks.rules(&self.model, &self.training, checks);
        self.quantization.rules(self.trains_adapter(), checks);
        self.lora.rules_of_loftq(&self.quantization, checks);
        self.training.rules(&self.logging, checks);
        self.muon.rules(&self.training, checks);
    }

    /// The rules of trainers whose loss is divided by pairs or completions, which are those of all ranks.
    pub(crate) fn rules_by_rows(&self, checks: &mut Checks<'_>) {
        self.rules(checks);
        if self.reference.as_ref().is_some_and(|reference| reference.ref_model_name_or_path.is_some()) {
            self.lora
                .starts_without_loss("ref_model_name_or_path, whose log-probabilities come later", checks);
        }
    }
}

/// A command that trains.
pub trait TrainerOptions: Command + Clone {
    /// What it has in common with the others.
    fn run_options(&self) -> RunOptions;

    /// The options that differ from their defaults, in reading order.
    fn changed(&self) -> Vec<(String, String)> {
        let defaults = Self::default().values();
        let pairs = self.values().into_iter().zip(defaults);
        let changed = pairs.filter(|(now, then)| now != then);
        changed.map(|((name, raw), _)| (name.to_owned(), raw.to_string())).collect()
    }
}

/// Declares a command that trains: between model and rows before, and adapter, loop and ranks after, the groups of its own.
/// `reference` names the field of the model that it takes log-ratios against, if it does.
macro_rules! trainer {
    (
        $(#[doc = $doc:literal])+
        $command:ident, $name:literal, $about:literal,
        $(default { $($group_field:ident.$option:ident: $value:expr),+ $(,)? },)?
        $(against $reference:ident,)? {
            $($(#[doc = $field_doc:literal])+ $field:ident: $group:ty,)+
        }
    ) => {
        $crate::command::command! {
            $(#[doc = $doc])+
            $command, $name, $about, needs ["model_name_or_path", "dataset_name"],
            $(default { $($group_field.$option: $value),+ },)? {
                /// The model.
                model: $crate::groups::ModelOptions,
                /// How its base rests.
                quantization: $crate::groups::QuantizationOptions,
                /// The rows.
                data: $crate::groups::SourceOptions,
                $($(#[doc = $field_doc])+ $field: $group,)+
                /// The adapter.
                lora: $crate::groups::LoraOptions,
                /// The loop.
                training: $crate::groups::TrainingOptions,
                /// The optimizer of matrices.
                muon: $crate::groups::MuonOptions,
                /// The ranks.
                ranks: $crate::groups::RankOptions,
                /// Metrics and progress.
                logging: $crate::groups::LoggingOptions,
            }
        }

        impl $crate::trainer::TrainerOptions for $command {
            fn run_options(&self) -> $crate::trainer::RunOptions {
                let Self {
                    model, quantization, data, preparation, lora, training, muon, ranks, logging, ..
                } = self.clone();
                let preparation = preparation.into();
                let reference = None$(.or_else(|| Some(self.$reference.clone())))?;
                $crate::trainer::RunOptions {
                    model, quantization, data, preparation, lora, training, muon, ranks, logging, reference,
                }
            }
        }
    };
}

pub(crate) use trainer;
