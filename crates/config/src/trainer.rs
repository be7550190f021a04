//! What the commands that train have in common.

use crate::command::{Command, DpoOptions, GrpoOptions, KtoOptions, RewardOptions, RlooOptions, SftOptions};
use crate::groups::{
    LoggingOptions, LoraOptions, ModelOptions, MuonOptions, PreparationOptions, RankOptions,
    ReferenceOptions, SourceOptions, TrainingOptions,
};

/// The options of a run, whatever is trained.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunOptions {
    /// The model.
    pub model: ModelOptions,
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
    /// What the model is compared with, if it is.
    pub reference: Option<ReferenceOptions>,
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

macro_rules! trainers {
    ($($command:ident: $preparation:ident $(, $reference:ident)?;)+) => {$(
        impl TrainerOptions for $command {
            fn run_options(&self) -> RunOptions {
                let Self { model, data, preparation, lora, training, muon, ranks, logging, .. } = self.clone();
                let preparation = $preparation(preparation);
                let reference = None$(.or_else(|| Some(self.$reference.clone())))?;
                RunOptions { model, data, preparation, lora, training, muon, ranks, logging, reference }
            }
        }
    )+};
}

fn as_it_is(preparation: PreparationOptions) -> PreparationOptions {
    preparation
}

fn of_preferences(preparation: crate::groups::PreferenceRowOptions) -> PreparationOptions {
    preparation.preparation()
}

fn of_rewards(preparation: crate::groups::RewardRowOptions) -> PreparationOptions {
    preparation.preparation()
}

fn of_prompts(preparation: crate::groups::PromptRowOptions) -> PreparationOptions {
    preparation.preparation()
}

trainers! {
    SftOptions: as_it_is;
    DpoOptions: of_preferences, reference;
    KtoOptions: of_preferences, reference;
    RewardOptions: of_rewards;
    GrpoOptions: of_prompts, reference;
    RlooOptions: of_prompts, reference;
}
