//! Which rows, and how they become tokens.

use std::path::PathBuf;

use crate::choice::{PackingStrategy, Truncation};
use crate::setting::PadToMultiple;
use crate::table::options;

options! {
    /// The rows to train on and to evaluate on.
    SourceOptions, "Data";
    /// A JSONL file, a folder of them, or a glob.
    Trl dataset_name: String = String::new();
    /// In a folder, the files named after this are trained on; without any, all that name no other split.
    Trl dataset_train_split: String = "train".into();
    /// In a folder, the files named after this are evaluated on.
    Trl dataset_test_split: String = "test".into();
    /// A JSONL file, folder or glob to evaluate on, instead of dataset_test_split.
    Burnish eval_dataset_name: Option<String> = None;
    /// Hold out this many rows for evaluation, or below 1 this share of them.
    Trl test_split_size: Option<f64> = None;
    /// Shuffle the rows once before packing.
    Trl shuffle_dataset: bool = false;
}

options! {
    /// The rows to score or evaluate.
    InputOptions, "Data";
    /// A JSONL file, a folder of them, or a glob.
    Trl dataset_name: String = String::new();
    /// In a folder, the files named after this; without any, all files.
    Trl dataset_test_split: String = "test".into();
    /// File to write: JSON lines for `score`, one JSON object for `eval`; standard output by default.
    Burnish output_file: Option<PathBuf> = None;
}

options! {
    /// From a row to token ids and a loss mask.
    PreparationOptions, "Preparation";
    /// The column with the text of language modelling rows.
    Trl dataset_text_field: String = "text".into();
    /// Rows are cut to this many tokens; null never cuts.
    Trl max_length: Option<usize> = Some(1024);
    /// Which end of a long row is kept.
    Trl truncation_mode: Truncation = Truncation::KeepStart;
    /// Loss on completions only; by default true exactly when rows have a prompt and a completion.
    Trl completion_only_loss: Option<bool> = None;
    /// Loss on the assistant's turns only (the chat template must mark them with `generation`).
    Trl assistant_only_loss: bool = false;
    /// A .jinja file, or a folder with a tokenizer, whose chat template to use.
    Trl chat_template_path: Option<PathBuf> = None;
    /// The end-of-sequence token; by default the tokenizer's.
    Trl eos_token: Option<String> = None;
    /// The padding token; by default the tokenizer's, then its end-of-sequence token.
    Trl pad_token: Option<String> = None;
}

options! {
    /// From a row with a preference to token ids.
    PreferenceRowOptions, "Preparation";
    /// Prompt and completion together are cut to this many tokens; null never cuts.
    Trl max_length: Option<usize> = Some(1024);
    /// Which end of a long row is kept.
    Trl truncation_mode: Truncation = Truncation::KeepStart;
    /// A .jinja file, or a folder with a tokenizer, whose chat template to use.
    Trl chat_template_path: Option<PathBuf> = None;
    /// The end-of-sequence token; by default the tokenizer's.
    Trl eos_token: Option<String> = None;
    /// The padding token; by default the tokenizer's, then its end-of-sequence token.
    Trl pad_token: Option<String> = None;
    /// Batches never have padding here, whatever this says.
    Trl padding_free: bool = false;
    /// As padding_free.
    Trl pad_to_multiple_of: PadToMultiple = PadToMultiple(None);
}

impl PreferenceRowOptions {
    /// What it shares with the preparation of other rows.
    #[must_use]
    pub fn preparation(&self) -> PreparationOptions {
        let Self { max_length, truncation_mode, chat_template_path, eos_token, pad_token, .. } = self.clone();
        PreparationOptions {
            max_length,
            truncation_mode,
            chat_template_path,
            eos_token,
            pad_token,
            ..PreparationOptions::default()
        }
    }
}

options! {
    /// From a pair of texts to token ids.
    RewardRowOptions, "Preparation";
    /// Pairs with a longer text are left out; null keeps all.
    Trl max_length: Option<usize> = Some(1024);
    /// A .jinja file, or a folder with a tokenizer, whose chat template to use.
    Trl chat_template_path: Option<PathBuf> = None;
    /// The end-of-sequence token; by default the tokenizer's.
    Trl eos_token: Option<String> = None;
    /// The padding token; by default the tokenizer's, then its end-of-sequence token. A text is scored at its last token
    /// that is not this one, as Transformers does.
    Trl pad_token: Option<String> = None;
    /// Batches never have padding here, whatever this says.
    Trl pad_to_multiple_of: PadToMultiple = PadToMultiple(None);
}

impl RewardRowOptions {
    /// What it shares with the preparation of other rows.
    #[must_use]
    pub fn preparation(&self) -> PreparationOptions {
        let Self { max_length, chat_template_path, eos_token, pad_token, .. } = self.clone();
        PreparationOptions {
            max_length,
            chat_template_path,
            eos_token,
            pad_token,
            ..PreparationOptions::default()
        }
    }
}

options! {
    /// From rows to batches.
    PackingOptions, "Packing";
    /// Join rows to fill max_length.
    Trl packing: bool = false;
    /// How rows are joined.
    Trl packing_strategy: PackingStrategy = PackingStrategy::Bfd;
    /// Pack the evaluation rows too; by default as packing says.
    Trl eval_packing: Option<bool> = None;
    /// Lay a batch out as one row without padding; always so with packing_strategy bfd.
    Trl padding_free: bool = false;
    /// Pad rows to a multiple of this.
    Trl pad_to_multiple_of: PadToMultiple = PadToMultiple(None);
}

impl PackingOptions {
    /// Whether evaluation rows are packed.
    #[must_use]
    pub fn packs_evaluation(&self) -> bool {
        self.eval_packing.unwrap_or(self.packing)
    }
}
