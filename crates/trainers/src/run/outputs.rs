//! Outputs of a finished run: the model or adapter, metrics, the chart, the model card.

use std::path::Path;

use burnish_comm::Bucket;
use burnish_data::{Content, Message, Row, Text};
use burnish_models::{Exporter, Generation, ModelError, ModelFolder, RowSource};
use burnish_report::{Chart, ModelCard, Produced, RunFolder, Sample, replace, runs_page};
use burnish_weight_files::{Attempt, FolderWriter, Placement, Share};
use burnish_zero::Stage;

use crate::TrainError;
use crate::inference::together;
use crate::rank::Rank;
use crate::run::training::Outcome;
use crate::setup::Setup;
use crate::setup::public_name::public_name;

/// New tokens of the sample at the end of a run.
const SAMPLE_TOKENS: usize = 64;
/// Tokens of a language-modelling row that the sample starts from.
const SAMPLE_START: usize = 16;

/// Writes what a rank has of the trained model as its users expect it: a PEFT adapter folder, or a full model folder;
/// with the tokenizer beside it.
pub(crate) fn write_model(
    exporter: &Exporter,
    folder: &ModelFolder,
    writer: &mut FolderWriter,
    source: &dyn RowSource,
) -> Result<(), TrainError> {
    if exporter.is_adapter() {
        exporter.adapter(writer, source)?;
        folder.copy_companions(writer)?;
    } else {
        exporter.full(folder, writer, exporter.trained_dtype(), source)?;
    }
    Ok(())
}

impl Rank<'_> {
    /// The final model, the chart and the model card. Every rank calls it.
    pub(crate) fn leave(&self, outcome: &mut Outcome) -> Result<(), TrainError> {
        self.check_replicas()?;
        let setup = self.setup;
        let dir = setup.output_dir();
        self.write_to(&dir, Placement::InPlace, "final model")?;
        if self.leads() {
            let svg = Chart::of_loss("loss", &outcome.records).to_svg();
            replace(&dir.join("loss.svg"), svg.as_bytes())?;
            if outcome.records.iter().any(|record| record.get("reward").is_some()) {
                let svg = Chart::of_reward("reward", &outcome.records).to_svg();
                replace(&dir.join("reward.svg"), svg.as_bytes())?;
            }
            let run = RunFolder::read(&dir)?;
            replace(&dir.join("run.html"), runs_page(&[run], None).as_bytes())?;
        }
        // Ranks that share layers or weights take part together; else one is enough.
        let together = self.plan.policy().stage == Stage::Three || self.dp.rank() == 0;
        if self.leads() || together {
            outcome.sample = self.closing_sample()?;
        }
        if self.leads() {
            setup.card(outcome)?;
        }
        Ok(())
    }

    /// The trained model as it is now, in a folder. Every rank calls it.
    pub(crate) fn write_to(&self, dir: &Path, placement: Placement, what: &str) -> Result<(), TrainError> {
        let share = self.share()?;
        let mut writer = self.lead_first(what, || Ok(FolderWriter::shared(dir, placement, share)?))?;
        write_model(&self.exporter, &self.setup.folder, &mut writer, &self.snapshot()?)?;
        let written = writer.finish()?;
        self.world.barrier(what)?;
        if self.leads() {
            written.commit()?;
        }
        Ok(())
    }

    /// The number of this writing, the same on all ranks.
    pub(crate) fn share(&self) -> Result<Share, TrainError> {
        let words = Bucket::new(Attempt::fresh().to_words().to_vec());
        let words = self.world.broadcast(words, 0, "attempt").wait()?;
        let attempt = Attempt::from_words([words.as_slice()[0], words.as_slice()[1]]);
        Ok(Share { attempt, rank: self.world.rank(), ranks: self.world.size() })
    }

    /// Does something on the lead before the others do it.
    pub(crate) fn lead_first<T>(
        &self,
        what: &str,
        mut act: impl FnMut() -> Result<T, TrainError>,
    ) -> Result<T, TrainError> {
        let early = if self.leads() { Some(act()?) } else { None };
        self.world.barrier(what)?;
        match early {
            Some(done) => Ok(done),
            None => act(),
        }
    }

    /// As [`Self::sample`]; a sample that cannot be made is none: it is decoration, and everything else is written.
    fn closing_sample(&self) -> Result<Option<Sample>, TrainError> {
        match self.sample() {
            Err(error @ (TrainError::Comm(_) | TrainError::Zero(_) | TrainError::Tp(_))) => Err(error),
            Err(error @ TrainError::Model(ModelError::Tp(_))) => Err(error),
            Err(_) => Ok(None),
            made => made,
        }
    }

    /// A prompt and what the tuned model makes of it: `sample_prompt`, or the first row's. A prompt that cannot be made
    /// makes no sample: the run is over, and all else is written.
    fn sample(&self) -> Result<Option<Sample>, TrainError> {
        let setup = self.setup;
        if setup.scores {
            return Ok(None);
        }
        let rows = &setup.prepared;
        let Ok((ids, user)) = setup.sample_prompt() else { return Ok(None) };
        if ids.is_empty() || ids.len() >= setup.folder.spec().max_positions {
            return Ok(None);
        }
        let stop = setup.stop_tokens()?;
        // A table of learned positions ends.
        let room = setup.folder.spec().limit().map_or(usize::MAX, |(limit, _)| limit - ids.len());
        let max_new_tokens = SAMPLE_TOKENS.min(room);
        let settings = Generation { max_new_tokens, stop, ..Generation::default() };
        let prompts = std::slice::from_ref(&ids);
        let done = together(&self.axes.all, &self.model.decoder, prompts, &settings, &mut |_, _| true)?;
        let Some(completion) = done.first() else { return Ok(None) };
        let text = |ids: &[u32]| rows.tokenizer.decode(ids, true);
        Ok(Some(Sample { prompt: text(&ids)?, user, completion: text(&completion.token_ids)? }))
    }
}

impl Setup {
    /// The tokens that the sample goes on from, none where there is no row, and the user's words in a conversation.
    fn sample_prompt(&self) -> Result<(Vec<u32>, Option<String>), TrainError> {
        let rows = &self.prepared;
        if let Some(text) = &self.options.logging.sample_prompt.0 {
            return Ok((rows.prompt("sample_prompt", text)?, Some(text.clone())));
        }
        let Some(record) = self.first_record()? else { return Ok((Vec::new(), None)) };
        let row = Row::parse(record, &rows.rules.text_field)?;
        let mut ids = rows.preparer().prompt(&row)?;
        if matches!(row.content, Content::Language(_) | Content::Tokens { .. }) {
            ids.truncate(SAMPLE_START);
        }
        Ok((ids, row.content.prompt().and_then(|prompt| last_said_by_user(&prompt))))
    }

    /// The model card.
    fn card(&self, outcome: &Outcome) -> Result<(), TrainError> {
        let dir = self.output_dir();
        let name = dir.file_name().map_or_else(|| "model".into(), |n| n.to_string_lossy());
        let base = public_name(self.folder.path());
        let adapter = self.config.is_some() || self.adapter.is_some();
        let card = ModelCard {
            name: &name,
            base_model: &base,
            dataset: &public_name(Path::new(&self.dataset_name())),
            trainer: self.trainer,
            produced: if adapter { Produced::Adapter } else { Produced::Model },
            scores: self.scores,
            conversational: self.prepared.templates.is_some(),
            options: &self.changed,
            records: &outcome.records,
            time: outcome.time,
            sample: outcome.sample.as_ref(),
            version: env!("CARGO_PKG_VERSION"),
        };
        replace(&dir.join("README.md"), card.to_markdown().as_bytes())?;
        Ok(())
    }
}

/// The text of a conversation's last turn of the user.
fn last_said_by_user(prompt: &Text) -> Option<String> {
    let said = |message: &Message| message.get("role").is_some_and(|role| role == "user");
    let last = prompt.chat()?.iter().rev().find(|message| said(message))?;
    Some(last.get("content")?.as_str()?.to_owned())
}
