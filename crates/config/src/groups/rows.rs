//! Options of data sets: which rows.

use std::path::{Path, PathBuf};

use crate::checks::Checks;
use crate::choice::Interval;
use crate::groups::TrainingOptions;
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

impl SourceOptions {
    pub(crate) fn rules(&self, training: &TrainingOptions, checks: &mut Checks<'_>) {
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
