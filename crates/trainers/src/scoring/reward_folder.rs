//! A reward model from a folder, as a reward function.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Device;
use burnish_config::groups::PreparationOptions;
use burnish_core::Dtype;
use burnish_data::{Message, Render, RowOrigin};
use burnish_models::{
    Decoder, ForwardContext, LocalParams, Mode, ModelFolder, ModelPlan, Output, Tokens, Tuning,
};
use burnish_peft::AdapterFolder;
use burnish_rewards::{RewardError, RewardFunction, Sample};
use serde_json::Value;

use crate::{Prepared, TrainError, prepare_rows};

/// A model that scores texts: what `burnish reward` leaves, or any `*ForSequenceClassification` with one label.
///
/// As TRL does, a prompt and its completion become one text, by the chat template of the model's own tokenizer where the
/// prompt is a conversation and one after the other otherwise, without special tokens around them; the score is that of the
/// last token which is not the padding token. The ranks of a process share one copy of the weights, and each scores its own
/// completions.
pub struct RewardFolder {
    name: String,
    folder: ModelFolder,
    adapter: Option<AdapterFolder>,
    rows: Prepared,
    batch: usize,
    device: Device,
    /// The weights, once they are read, and decoders over them that are not in use.
    held: Mutex<(Option<Arc<LocalParams>>, Vec<Decoder>)>,
}

impl RewardFolder {
    /// Opens the folder of a model, or of an adapter of task `SEQ_CLS` whose base is where it says. Texts are scored up to
    /// `batch` at a time.
    ///
    /// # Errors
    /// If the folder is missing or damaged, or its model does not score texts.
    pub fn open(path: &Path, batch: usize, device: &Device) -> Result<Self, TrainError> {
        Self::open_over(path, None, batch, device)
    }

    /// As [`Self::open`], where an adapter's base is at `base` if it is not where the adapter says.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_over(
        path: &Path,
        base: Option<&Path>,
        batch: usize,
        device: &Device,
    ) -> Result<Self, TrainError> {
        let adapter =
            path.join("adapter_config.json").is_file().then(|| AdapterFolder::open(path)).transpose()?;
        let base = match &adapter {
            None => path.to_owned(),
            Some(adapter) => {
                let named = PathBuf::from(adapter.config.base_model_name_or_path.clone().unwrap_or_default());
                base.filter(|_| !named.is_dir()).map_or(named, Path::to_path_buf)
            }
        };
        let mut folder = ModelFolder::open(&base)?;
        if let Some(adapter) = &adapter {
            folder = folder.for_adapter(adapter);
        }
        if folder.spec().output != Output::Score {
            return Err(TrainError::NoScore { path: path.to_owned() });
        }
        // An adapter's folder has the tokenizer that it was trained with.
        let tokenizer = if burnish_data::Tokenizer::is_in(path) { path } else { &base };
        let rows = prepare_rows(tokenizer, &PreparationOptions::default(), folder.spec().vocab)?;
        let name =
            path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
        let held = Mutex::default();
        Ok(Self { name, folder, adapter, rows, batch: batch.max(1), device: device.clone(), held })
    }

    /// The score of each sample; none where there is no token.
    fn scores(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, TrainError> {
        let texts = samples.iter().map(|sample| self.tokens(sample)).collect::<Result<Vec<_>, _>>()?;
        let decoder = self.take()?;
        let scores =
            texts.chunks(self.batch).map(|texts| scores(&decoder, texts, self.rows.tokenizer.pad_id()));
        let scores = scores.collect::<Result<Vec<_>, _>>()?.concat();
        self.held.lock().unwrap_or_else(PoisonError::into_inner).1.push(decoder);
        Ok(scores.into_iter().map(|score| score.map(f64::from)).collect())
    }

    fn tokens(&self, sample: &Sample<'_>) -> Result<Vec<u32>, TrainError> {
        let place = RowOrigin::given("a prompt with its completion");
        let text = match sample.prompt {
            Value::Array(_) => {
                let messages = [sample.prompt, &sample.completion_value()]
                    .into_iter()
                    .flat_map(messages)
                    .collect::<Vec<_>>();
                let templates = self.rows.templates.as_ref();
                let templates = templates
                    .ok_or_else(|| TrainError::NoTemplate { path: self.folder.path().to_owned() })?;
                templates.pick(false)?.render(&messages, Render::default(), &place)?.text
            }
            prompt => format!("{}{}", prompt.as_str().unwrap_or_default(), sample.completion),
        };
        let tokens = self.rows.tokenizer.encode(&text, false);
        Ok(tokens.map_err(|reason| burnish_data::DataError::Tokenise { place, reason })?)
    }

    /// A decoder over the weights that all share.
    fn take(&self) -> Result<Decoder, TrainError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let (resident, free) = &mut *held;
        if let Some(decoder) = free.pop() {
            return Ok(decoder);
        }
        let tuning = self.adapter.as_ref().map_or(Tuning::None, Tuning::Adapter);
        let planned = ModelPlan::new(&self.folder, &tuning, Dtype::F32, 0)?;
        if let Some(resident) = resident {
            return Ok(planned.into_model(resident.clone()).decoder);
        }
        let (model, read) = planned.resident(&self.device)?;
        *resident = Some(read);
        Ok(model.decoder)
    }
}

fn messages(value: &Value) -> impl Iterator<Item = Message> {
    value.as_array().into_iter().flatten().filter_map(|message| message.as_object().cloned())
}

impl RewardFunction for RewardFolder {
    fn name(&self) -> &str {
        &self.name
    }

    fn score(&self, samples: &[Sample<'_>]) -> Result<Vec<Option<f64>>, RewardError> {
        self.scores(samples)
            .map_err(|source| RewardError::Function { name: self.name.clone(), source: Box::new(source) })
    }
}

/// The score of each text at its last token that is not `pad_id`, as Transformers reads it (at the first token where all
/// are); none for a text without tokens.
///
/// # Errors
/// If the model gives logits instead, or a tensor does not fit.
pub fn scores(
    decoder: &Decoder,
    texts: &[Vec<u32>],
    pad_id: Option<u32>,
) -> Result<Vec<Option<f32>>, TrainError> {
    scores_adapted(decoder, texts, &vec![None; texts.len()], pad_id)
}

/// As [`scores`], each text by its adapter of those that the model has ([`Decoder::adapters`]), or by the base.
///
/// # Errors
/// As [`scores`]; if an adapter is not there.
///
/// # Panics
/// If there are not as many adapters as texts.
pub fn scores_adapted(
    decoder: &Decoder,
    texts: &[Vec<u32>],
    adapters: &[Option<usize>],
    pad_id: Option<u32>,
) -> Result<Vec<Option<f32>>, TrainError> {
    assert_eq!(texts.len(), adapters.len(), "an adapter, or none, for each text");
    let (mut kept, mut own) = (Vec::with_capacity(texts.len()), Vec::with_capacity(texts.len()));
    for (text, &adapter) in texts.iter().zip(adapters).filter(|(text, _)| !text.is_empty()) {
        let last = text.iter().rposition(|&id| Some(id) != pad_id).unwrap_or(0);
        kept.push(&text[..=last]);
        own.push(adapter);
    }
    if kept.is_empty() {
        return Ok(vec![None; texts.len()]);
    }
    let pass = scoring_pass(decoder, own)?;
    let scores = decoder.rewards(&Tokens::from_sequences(&kept), &pass)?.to_f32();
    let mut scores = scores.into_iter();
    Ok(texts.iter().map(|text| if text.is_empty() { None } else { scores.next() }).collect())
}

/// A pass that scores documents, each by its adapter where the model has several.
///
/// # Errors
/// If an adapter is not there.
pub fn scoring_pass(decoder: &Decoder, adapters: Vec<Option<usize>>) -> Result<ForwardContext, TrainError> {
    if decoder.adapters() == 0 { Ok(decoder.pass(Mode::Score)) } else { Ok(decoder.adapted_pass(adapters)?) }
}
