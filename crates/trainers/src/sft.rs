//! Supervised fine-tuning: from options to a run that is ready to start.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use burn::tensor::Device;
use burnish_checkpoint::prepare_output_dir;
use burnish_config::{
    BiasTraining, LoraInit, LoraOptions, LossType, ModelOptions, Modules, PackingOptions, PackingStrategy,
    PreparationOptions, SftOptions, TrainingOptions, Truncation,
};
use burnish_core::Dtype;
use burnish_data::{
    Collator, Dataset, HeldOut, Options, Place, Preparer, Record, Row, Source, Strategy, Templates,
    Tokenizer, preflight,
};
use burnish_losses::TokenLoss;
use burnish_models::{ModelFolder, Tuning};
use burnish_ops::AnyTensor;
use burnish_peft::{AdapterFolder, Bias, InitWeights, Layers, LoraConfig, Names, Targets};

use serde_json::{Map, json};

use crate::{Ranks, TrainError};

/// Files of burnish's own in an output folder.
const OURS: [&str; 3] = ["metrics.jsonl", "loss.svg", "burnish.json"];

/// A tokenizer, its templates and the rules by which rows become tokens.
pub struct Prepared {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat templates.
    pub templates: Option<Templates>,
    /// The rules.
    pub rules: Options,
}

impl Prepared {
    /// Rows to examples.
    #[must_use]
    pub fn preparer(&self) -> Preparer<'_> {
        Preparer { tokenizer: &self.tokenizer, templates: self.templates.as_ref(), options: &self.rules }
    }

    /// The token ids that generation starts from when someone writes `text`: the user's turn where there is a chat
    /// template, the text itself otherwise. `name` is for messages.
    ///
    /// # Errors
    /// If the template refuses it.
    pub fn prompt(&self, name: &str, text: &str) -> Result<Vec<u32>, TrainError> {
        let value =
            if self.templates.is_some() { json!([{"role": "user", "content": text}]) } else { json!(text) };
        let fields = Map::from_iter([("prompt".to_owned(), value)]);
        let row = Row::parse(Record { place: Place::given(name), fields }, &self.rules.text_field)?;
        Ok(self.preparer().prompt(&row)?)
    }
}

/// A supervised run, everything but the weights read and checked.
pub struct Sft {
    pub(crate) options: SftOptions,
    pub(crate) folder: Arc<ModelFolder>,
    pub(crate) rows: Prepared,
    pub(crate) train: Dataset,
    pub(crate) eval: Option<Dataset>,
    pub(crate) device: Device,
    /// The stored dtype of trained matrices.
    pub(crate) trained: Dtype,
    pub(crate) config: Option<LoraConfig>,
    pub(crate) adapter: Option<AdapterFolder>,
    /// Frozen parameters that the ranks of this process share, by index.
    pub(crate) frozen: Mutex<HashMap<usize, AnyTensor>>,
}

impl Sft {
    /// Reads and checks everything that a run needs; `note` hears what the user should know.
    ///
    /// # Errors
    /// Whatever is missing, damaged or contradictory, before anything is written.
    pub fn prepare(
        options: SftOptions,
        ranks: &Ranks,
        device: &Device,
        note: &mut dyn FnMut(&str),
    ) -> Result<Self, TrainError> {
        let folder = open_folder(&options.model, &options.training)?;
        let mut inputs: Vec<&Path> = vec![folder.path()];
        inputs.extend(options.model.adapter_name_or_path.as_deref());
        let training = &options.training;
        if ranks.lead() {
            prepare_output_dir(&training.output_dir, training.overwrite_output_dir, &inputs, &OURS)?;
        }

        let mut rows = prepare_rows(folder.path(), &options.preparation, folder.spec().vocab)?;
        rows.rules.packing = packing(&options.packing, options.packing.packing);
        rows.rules.padding_free = options.packing.padding_free;
        rows.rules.shuffle = options.data.shuffle_dataset;
        rows.rules.seed = training.row_seed();
        let (train, eval) = datasets(&options, &rows)?;
        for finding in preflight(&train, &rows.tokenizer, rows.templates.as_ref(), &rows.rules) {
            note(&format!("data: {finding}"));
        }

        let config = options.lora.use_peft.then(|| lora_config(&options.lora, folder.path()));
        let adapter = options.model.adapter_name_or_path.as_ref().map(AdapterFolder::open).transpose()?;
        let trained = trained_dtype(&options.model, training);
        let (folder, device, frozen) = (Arc::new(folder), device.clone(), Mutex::default());
        let sft = Self { options, folder, rows, train, eval, device, trained, config, adapter, frozen };
        let planned = sft.planned()?;
        if planned.registry().trainable().next().is_none() {
            return Err(TrainError::NothingTrains);
        }
        if sft.options.muon.muon_qk_clip.is_some() {
            planned.qk_clip()?;
        }
        drop(planned);
        Ok(sft)
    }

    pub(crate) fn tuning(&self) -> Tuning<'_> {
        tuning(self.adapter.as_ref(), self.config.as_ref())
    }

    /// One line on what will train on what.
    ///
    /// # Errors
    /// If the model's folder does not fit its configuration.
    pub fn summary(&self) -> Result<String, TrainError> {
        let planned = self.planned()?;
        let registry = planned.registry();
        let trained: usize = registry.trainable().map(burnish_core::Parameter::elements).sum();
        let all: usize = registry.iter().filter(|p| p.alias_of.is_none()).map(|p| p.elements()).sum();
        let statistics = &self.train.statistics;
        Ok(format!(
            "{}: {} of {} parameters train on {} rows ({} tokens)",
            self.folder.path().display(),
            burnish_report::count(trained as u64),
            burnish_report::count(all as u64),
            self.train.examples.len(),
            burnish_report::count(statistics.tokens as u64),
        ))
    }

    pub(crate) fn loss(&self) -> TokenLoss {
        match self.options.training.loss_type {
            LossType::Nll | LossType::ChunkedNll => TokenLoss::Nll,
            LossType::Dft => TokenLoss::Dft,
        }
    }

    /// The collator of rows that are packed, or not.
    pub(crate) fn collator(&self, packs: bool) -> Collator {
        let keeps = packing(&self.options.packing, packs).is_some_and(Strategy::keeps_documents);
        Collator {
            pad_id: self.rows.tokenizer.pad_id().unwrap_or(0),
            padding_free: self.options.packing.padding_free || keeps,
            ..Collator::default()
        }
    }

    pub(crate) fn output_dir(&self) -> PathBuf {
        self.options.training.output_dir.clone()
    }
}

/// The model's folder, of which only the shapes count when a run starts from random weights.
pub(crate) fn open_folder(
    model: &ModelOptions,
    training: &TrainingOptions,
) -> Result<ModelFolder, TrainError> {
    let path = &model.model_name_or_path;
    Ok(if training.random_weights { ModelFolder::open_untrained(path)? } else { ModelFolder::open(path)? })
}

/// What trains: an adapter that is there, a fresh one, or everything.
pub(crate) fn tuning<'a>(adapter: Option<&'a AdapterFolder>, config: Option<&'a LoraConfig>) -> Tuning<'a> {
    match (adapter, config) {
        (Some(adapter), _) => Tuning::Adapter(adapter),
        (None, Some(config)) => Tuning::NewAdapter(config),
        (None, None) => Tuning::Full,
    }
}

/// The stored dtype of trained matrices; `auto` trains in fp32 as well, since a frozen matrix keeps its own.
pub(crate) fn trained_dtype(model: &ModelOptions, training: &TrainingOptions) -> Dtype {
    if training.fp16 { Dtype::F16 } else { model.dtype.word().parse().unwrap_or(Dtype::F32) }
}

/// Reads a folder's tokenizer and templates, with the options that change them.
///
/// # Errors
/// If a file is missing or damaged, or a token is not in the vocabulary.
pub fn prepare_rows(
    folder: &Path,
    options: &PreparationOptions,
    vocab: usize,
) -> Result<Prepared, TrainError> {
    let mut tokenizer = Tokenizer::from_folder(folder)?;
    if let Some(token) = &options.eos_token {
        tokenizer.set_named("eos_token", token)?;
    }
    if let Some(token) = &options.pad_token {
        tokenizer.set_named("pad_token", token)?;
    }
    let templates = match &options.chat_template_path {
        None => Templates::from_folder(folder, &tokenizer)?,
        Some(path) if path.is_dir() => Templates::from_folder(path, &tokenizer)?,
        Some(path) if path.is_file() => Some(Templates::from_file(path, &tokenizer)?),
        Some(path) => {
            return Err(TrainError::OptionPath { option: "chat_template_path", path: path.clone() });
        }
    };
    Ok(Prepared { rules: row_options(options, vocab), tokenizer, templates })
}

/// The rules that options describe, without packing.
#[must_use]
pub fn row_options(options: &PreparationOptions, vocab: usize) -> Options {
    Options {
        text_field: options.dataset_text_field.clone(),
        max_length: options.max_length,
        truncation: match options.truncation_mode {
            Truncation::KeepStart => burnish_data::Truncation::KeepStart,
            Truncation::KeepEnd => burnish_data::Truncation::KeepEnd,
        },
        completion_only_loss: options.completion_only_loss,
        assistant_only_loss: options.assistant_only_loss,
        vocab_size: Some(vocab),
        ..Options::default()
    }
}

/// How rows are packed, when they are.
#[must_use]
pub fn packing(options: &PackingOptions, packs: bool) -> Option<Strategy> {
    packs.then_some(match options.packing_strategy {
        PackingStrategy::Bfd => Strategy::Bfd,
        PackingStrategy::BfdSplit => Strategy::BfdSplit,
        PackingStrategy::Wrapped => Strategy::Wrapped,
    })
}

/// The training rows and the evaluation rows.
fn datasets(options: &SftOptions, rows: &Prepared) -> Result<(Dataset, Option<Dataset>), TrainError> {
    let data = &options.data;
    let mut eval_rules = rows.rules.clone();
    eval_rules.packing = packing(&options.packing, options.packing.packs_evaluation());
    eval_rules.shuffle = false;
    let evaluator = Preparer { options: &eval_rules, ..rows.preparer() };
    let source = Source::train(&data.dataset_name, &data.dataset_train_split)?;
    let evaluates = options.training.eval_strategy != burnish_config::Interval::No;
    if let Some(size) = data.test_split_size.filter(|_| evaluates) {
        let held = HeldOut::new(source.count()?, size, options.training.row_seed())?;
        let train = rows.preparer().prepare(&source.name(), held.select(false, source.records()))?;
        let eval = evaluator.prepare(&source.name(), held.select(true, source.records()))?;
        return Ok((train, Some(eval)));
    }
    let train = rows.preparer().prepare(&source.name(), source.records())?;
    if !evaluates {
        return Ok((train, None));
    }
    let eval = match &data.eval_dataset_name {
        Some(name) => Some(Source::train(name, &data.dataset_test_split)?),
        None => Source::test(&data.dataset_name, &data.dataset_test_split)?,
    };
    let eval = eval.map(|s| evaluator.prepare(&s.name(), s.records())).transpose()?;
    Ok((train, eval))
}

/// The PEFT configuration that options describe.
#[must_use]
pub fn lora_config(options: &LoraOptions, base: &Path) -> LoraConfig {
    let targets = |modules: &Modules| match modules {
        Modules::Pattern(pattern) => Targets::Pattern(pattern.clone()),
        Modules::Names(names) => Targets::List(names.clone()),
    };
    let some = |names: &Vec<String>| (!names.is_empty()).then(|| names.clone());
    let mut config = LoraConfig::new(options.lora_r, options.lora_alpha).with_dropout(options.lora_dropout);
    config.base_model_name_or_path = Some(base.display().to_string());
    config.task_type = Some("CAUSAL_LM".to_owned());
    config.target_modules = options.lora_target_modules.as_ref().map(targets);
    config.exclude_modules = options.exclude_modules.as_ref().map(targets);
    config.modules_to_save = some(&options.lora_modules_to_save);
    config.use_rslora = options.use_rslora;
    config.use_dora = options.use_dora;
    config.bias = match options.bias {
        BiasTraining::None => Bias::None,
        BiasTraining::All => Bias::All,
        BiasTraining::LoraOnly => Bias::LoraOnly,
    };
    config.init_lora_weights = match options.init_lora_weights {
        LoraInit::Default => InitWeights::Flag(true),
        LoraInit::Random => InitWeights::Flag(false),
        named => InitWeights::Named(named.to_string()),
    };
    config.rank_pattern = options.rank_pattern.iter().map(|(k, v)| (k.clone(), (*v).into())).collect();
    config.alpha_pattern = options.alpha_pattern.iter().map(|(k, v)| (k.clone(), (*v).into())).collect();
    config.layers_to_transform = (!options.layers_to_transform.is_empty())
        .then(|| Layers::Many(options.layers_to_transform.iter().map(|&l| l as i64).collect()));
    config.layers_pattern = some(&options.layers_pattern).map(Names::Many);
    config
}
