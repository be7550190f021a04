//! What a finished run leaves behind.

use burnish_data::{Row, Source};
use burnish_models::{Generation, GenerationConfig};
use burnish_report::{Chart, ModelCard, Produced, replace};
use burnish_store::FolderWriter;

use crate::training::Outcome;
use crate::{Sft, TrainError};

/// New tokens of the sample at the end of a run.
const SAMPLE_TOKENS: usize = 64;
/// Tokens of a language-modelling row that the sample starts from.
const SAMPLE_START: usize = 16;

impl Sft {
    /// Writes the trained model as its users expect it: a PEFT adapter folder, or a full model folder; with the
    /// tokenizer beside it.
    pub(crate) fn write_model(&self, writer: &mut FolderWriter) -> Result<(), TrainError> {
        if self.model.plan.is_some() {
            self.model.write_adapter(writer)?;
            self.folder.copy_companions(writer)?;
        } else {
            self.model.write_full(&self.folder, writer, self.model.trained_dtype())?;
        }
        Ok(())
    }

    /// The final model, the chart and the model card.
    pub(crate) fn leave(&self, outcome: &mut Outcome) -> Result<(), TrainError> {
        let dir = self.output_dir();
        let mut writer = FolderWriter::in_place(&dir)?;
        self.write_model(&mut writer)?;
        writer.commit()?;
        replace(&dir.join("loss.svg"), Chart::of_loss("loss", &outcome.records).to_svg().as_bytes())?;
        outcome.sample = self.sample()?;
        let defaults = burnish_config::SftOptions::default();
        let given: Vec<(String, String)> = option_values(&self.options)
            .into_iter()
            .zip(option_values(&defaults))
            .filter(|(now, default)| now != default)
            .map(|(now, _)| now)
            .collect();
        let name = dir.file_name().map_or_else(|| "model".into(), |n| n.to_string_lossy());
        let base = self.folder.path().display().to_string();
        let card = ModelCard {
            name: &name,
            base_model: &base,
            dataset: &self.options.data.dataset_name,
            trainer: "sft",
            produced: if self.model.plan.is_some() { Produced::Adapter } else { Produced::Model },
            conversational: self.rows.templates.is_some(),
            options: &given,
            records: &outcome.records,
            time: outcome.time,
            sample: outcome.sample.as_ref().map(|(a, b)| (a.as_str(), b.as_str())),
            version: env!("CARGO_PKG_VERSION"),
        };
        replace(&dir.join("README.md"), card.to_markdown().as_bytes())?;
        Ok(())
    }

    /// A prompt and what the tuned model makes of it: `sample_prompt`, or the first row's.
    fn sample(&self) -> Result<Option<(String, String)>, TrainError> {
        let rows = &self.rows;
        let ids = match &self.options.logging.sample_prompt.0 {
            Some(text) => rows.prompt("sample_prompt", text)?,
            None => {
                let data = &self.options.data;
                let source = Source::train(&data.dataset_name, &data.dataset_train_split)?;
                let Some(record) = source.records().next() else { return Ok(None) };
                let row = Row::parse(record?, &rows.rules.text_field)?;
                let mut ids = rows.preparer().prompt(&row)?;
                if !row.has_prompt_and_completion {
                    ids.truncate(SAMPLE_START);
                }
                ids
            }
        };
        if ids.is_empty() || ids.len() >= self.folder.spec().max_positions {
            return Ok(None);
        }
        let config = GenerationConfig::read(self.folder.path(), self.folder.config())?;
        let mut settings = Generation { max_new_tokens: SAMPLE_TOKENS, ..Generation::default() };
        settings.stop = config.stop;
        if settings.stop.is_empty() {
            settings.stop = rows.tokenizer.eos_id().into_iter().collect();
        }
        let done = self.model.decoder.generate(std::slice::from_ref(&ids), &settings, &mut |_, _| true)?;
        let Some(completion) = done.first() else { return Ok(None) };
        Ok(Some((rows.tokenizer.decode(&ids, true)?, rows.tokenizer.decode(&completion.token_ids, true)?)))
    }
}

fn option_values(options: &burnish_config::SftOptions) -> Vec<(String, String)> {
    use burnish_config::Command;
    options.values().into_iter().map(|(name, raw)| (name.to_owned(), raw.to_string())).collect()
}
