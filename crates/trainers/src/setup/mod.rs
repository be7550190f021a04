//! `Setup`: options, model folder, tokenizer and trained part of a run.

pub(crate) mod frozen;
pub(crate) mod lora_options;
pub(crate) mod model_setup;
pub(crate) mod optimizer_options;
pub(crate) mod public_name;
pub(crate) mod reference_folder;
pub(crate) mod run_facts;
pub(crate) mod run_inputs;
pub(crate) mod sharding;
pub(crate) mod start_from_rows;
pub(crate) mod step_size;

use std::ops::Deref;
use std::path::{Path, PathBuf};

use burnish_checkpoint::{FolderLock, prepare_output_dir};
use burnish_config::table::Raw;
use burnish_config::values::Interval;
use burnish_config::{RunOptions, TrainerOptions};
use burnish_core::Parameter;
use burnish_data::{DataError, HeldOut, Record, RowCache, Sampler};
use burnish_device::memory;
use burnish_hub::Repo;
use burnish_models::GenerationConfig;

use crate::ranks::agreement::Facts;
use crate::ranks::devices::Devices;
use crate::rows::named_rows::NamedRows;
use crate::rows::prepared::row_key;
use crate::rows::recast::Recast;
use crate::rows::sources::Sources;
use crate::setup::frozen::Frozen;
use crate::setup::model_setup::ModelSetup;
use crate::setup::run_facts::Digests;
use crate::setup::run_inputs::{RowsInMemory, RunInputs};
use crate::{Prepared, TrainError};

/// Files of burnish's own in an output folder.
const OURS: [&str; 8] = [
    "metrics.jsonl",
    "loss.svg",
    "run.html",
    "burnish.json",
    "reference",
    "reward.svg",
    "completions.jsonl",
    "rollout-adapter",
];

/// A run, everything but weights and rows read and checked: the model's setup with a tokenizer, devices and rows.
pub struct Setup {
    /// The command's name.
    pub(crate) trainer: &'static str,
    /// All options of the command.
    values: Vec<(&'static str, Raw)>,
    /// The options that differ from their defaults, for people.
    pub(crate) changed: Vec<(String, String)>,
    model: ModelSetup,
    pub(crate) prepared: Prepared,
    /// Rows to train on: what the sampler deals.
    pub(crate) rows: usize,
    /// What its ranks compute on.
    pub(crate) devices: Devices,
    pub(crate) frozen: Frozen,
    /// Where rows are kept as tokens.
    cache: Option<RowCache>,
    /// Rows to train and to evaluate on, where they do not come from files.
    given: (Option<RowsInMemory>, Option<RowsInMemory>),
    pub(crate) digests: Digests,
    /// The output folder is this run's until it ends.
    _lock: Option<FolderLock>,
}

impl Deref for Setup {
    type Target = ModelSetup;

    fn deref(&self) -> &ModelSetup {
        &self.model
    }
}

impl Setup {
    /// Reads and checks what does not depend on rows, and takes the output folder into use.
    ///
    /// # Errors
    /// If a folder is missing or damaged, or the output folder holds something else.
    pub fn open<O: TrainerOptions>(command: &O, inputs: &mut RunInputs<'_>) -> Result<Self, TrainError> {
        let mut model = ModelSetup::open(command.run_options())?.on(memory(inputs.device).is_some());
        let training = &model.options.training;
        let mut lock = None;
        if inputs.ranks.lead() {
            let overwrites = training.overwrite_output_dir;
            prepare_output_dir(&training.output_dir, overwrites, &model.inputs(), &OURS)?;
            let (held, before) = FolderLock::take(&training.output_dir)?;
            lock = Some(held);
            if let Some(owner) = before {
                let dir = training.output_dir.display();
                (inputs.note)(&format!(
                    "{dir} was left in use by {owner}, which has ended; it is taken over"
                ));
            }
        }
        let prepared = model.prepare_rows()?;
        model.options.data.auto_insert_empty_system_msg &= prepared.has_place_for_system();
        if let Some(reference) = &model.reference {
            reference.check(&prepared.tokenizer, &model.folder)?;
        }
        Ok(Self {
            trainer: O::NAME,
            values: command.values(),
            changed: command.changed().into_iter().map(published).collect(),
            model,
            prepared,
            rows: 0,
            devices: inputs.ranks.devices(inputs.device)?,
            frozen: Frozen::default(),
            cache: inputs.cache.take(),
            given: (inputs.rows.take(), inputs.eval_rows.take()),
            digests: Digests::default(),
            _lock: lock,
        })
    }

    /// The same with a model that scores texts.
    #[must_use]
    pub fn scoring(self) -> Self {
        let pad_id = self.prepared.tokenizer.pad_id();
        Self { model: self.model.scoring(pad_id), ..self }
    }

    /// How the model's tokenizer makes tokens of rows.
    #[must_use]
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// The options that all trainers have.
    #[must_use]
    pub fn options(&self) -> &RunOptions {
        &self.model.options
    }

    /// The training rows and the evaluation rows, each made by its function from the name of a source and its records.
    ///
    /// # Errors
    /// Whatever they return; if a file is missing or damaged.
    pub fn datasets<T>(
        &self,
        train: impl Fn(&str, Rows<'_>) -> Result<T, TrainError>,
        eval: impl Fn(&str, Rows<'_>) -> Result<T, TrainError>,
    ) -> Result<(T, Option<T>), TrainError> {
        self.named_datasets(|of, rows| train(of.name, rows), |of, rows| eval(of.name, rows))
    }

    /// As [`Self::datasets`], for rows that may be kept as tokens.
    pub(crate) fn named_datasets<T>(
        &self,
        train: impl Fn(&NamedRows<'_>, Rows<'_>) -> Result<T, TrainError>,
        eval: impl Fn(&NamedRows<'_>, Rows<'_>) -> Result<T, TrainError>,
    ) -> Result<(T, Option<T>), TrainError> {
        let (data, training) = (&self.options.data, &self.options.training);
        let evaluates = training.eval_strategy != Interval::No;
        if let (Some(rows), eval_rows) = &self.given {
            self.rows_are(rows.digest());
            return self.datasets_in_memory(rows, eval_rows.as_ref().filter(|_| evaluates), &train, &eval);
        }
        let source = Sources::train(data)?;
        self.rows_are(source.digest()?);
        if let Some(size) = data.test_split_size.filter(|_| evaluates) {
            let held = HeldOut::new(source.count()?, size, training.row_seed())?;
            let name = source.name();
            let part = |held: bool| format!("{size} {} {held}", training.row_seed());
            let of = |held: bool| self.named(&name, &source, &part(held));
            let rows = train(&of(false)?, &mut held.select(false, source.records()))?;
            let evaluated = eval(&of(true)?, &mut held.select(true, source.records()))?;
            return Ok((rows, Some(evaluated)));
        }
        let rows = train(&self.named(&source.name(), &source, "all")?, &mut source.records())?;
        if !evaluates {
            return Ok((rows, None));
        }
        let evaluated = |s: Sources| eval(&self.named(&s.name(), &s, "all")?, &mut s.records());
        Ok((rows, Sources::eval(data)?.map(evaluated).transpose()?))
    }

    /// Rows of `source`, of which `part` says which are meant.
    fn named<'a>(&'a self, name: &'a str, source: &Sources, part: &str) -> Result<NamedRows<'a>, TrainError> {
        let cache = self.cache.as_ref().filter(|_| self.options.data.row_cache);
        let kept = match cache.filter(|cache| cache.keeps(source.bytes())) {
            Some(cache) => {
                let key = row_key(self.folder.tokenizer_path(), &self.options.preparation);
                Some((cache, key.and(source.digest()?).and(part)))
            }
            None => None,
        };
        Ok(NamedRows { name, kept })
    }

    fn datasets_in_memory<T>(
        &self,
        rows: &RowsInMemory,
        eval_rows: Option<&RowsInMemory>,
        train: &impl Fn(&NamedRows<'_>, Rows<'_>) -> Result<T, TrainError>,
        eval: &impl Fn(&NamedRows<'_>, Rows<'_>) -> Result<T, TrainError>,
    ) -> Result<(T, Option<T>), TrainError> {
        let (data, training) = (&self.options.data, &self.options.training);
        let evaluates = training.eval_strategy != Interval::No;
        let of = NamedRows { name: RowsInMemory::NAME, kept: None };
        let recast = Recast::of(data);
        if let (Some(size), None, true) = (data.test_split_size, eval_rows, evaluates) {
            let held = HeldOut::new(rows.len(), size, training.row_seed())?;
            let kept = train(&of, &mut recast.rows(held.select(false, rows.records())))?;
            return Ok((kept, Some(eval(&of, &mut recast.rows(held.select(true, rows.records())))?)));
        }
        let evaluated = eval_rows.map(|rows| eval(&of, &mut recast.rows(rows.records()))).transpose()?;
        Ok((train(&of, &mut recast.rows(rows.records()))?, evaluated))
    }

    /// What every rank of the run must have alike.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn facts(&self) -> Result<Facts, TrainError> {
        let (data, training) = (&self.options.data, &self.options.training);
        let version = env!("CARGO_PKG_VERSION");
        let mut facts = Facts::default().and("version of burnish", version).and("command", self.trainer);
        facts = facts.and_options(&self.values)?;
        let parameter = |p: &Parameter| {
            let trains = if p.trainable { "trains" } else { "frozen" };
            format!("{} {:?} {}, {trains}\n", p.name, p.shape, p.precision.store)
        };
        facts =
            facts.and("parameters", &self.planned()?.registry().iter().map(parameter).collect::<String>());
        if !self.model.start.is_empty() {
            facts = facts.and("start of the adapter", &self.start_digest());
        }
        facts = facts.and("training rows", &self.rows.to_string());
        let evaluates = training.eval_strategy != Interval::No;
        if let (Some(rows), eval_rows) = &self.given {
            let eval_rows = eval_rows.iter().map(|rows| ("evaluation rows in memory", rows));
            for (name, rows) in std::iter::once(("training rows in memory", rows)).chain(eval_rows) {
                facts = facts.and(name, &rows.digest());
            }
            return Ok(facts);
        }
        facts = Sources::train(data)?.into_facts("training rows", facts)?;
        match Sources::eval(data)?.filter(|_| evaluates) {
            Some(sources) => sources.into_facts("evaluation rows", facts),
            None => Ok(facts),
        }
    }

    /// What the training rows are called.
    pub(crate) fn dataset_name(&self) -> String {
        if self.given.0.is_some() {
            RowsInMemory::NAME.to_owned()
        } else {
            Sources::names(&self.options.data)
        }
    }

    /// The first training row, as it is read.
    pub(crate) fn first_record(&self) -> Result<Option<Record>, TrainError> {
        let data = &self.options.data;
        if let Some(rows) = &self.given.0 {
            return Ok(Recast::of(data).rows(rows.records()).next().transpose()?);
        }
        Ok(Sources::train(data)?.records().next().transpose()?)
    }

    /// One line on what will train on what.
    pub(crate) fn summary(&self, tokens: usize) -> Result<String, TrainError> {
        let planned = self.planned()?;
        let registry = planned.registry();
        let trained: usize = registry.trainable().map(Parameter::elements).sum();
        let all: usize = registry.iter().filter(|p| p.alias_of.is_none()).map(|p| p.elements()).sum();
        Ok(format!(
            "{}: {} of {} parameters train on {} rows ({} tokens)",
            self.folder.path().display(),
            burnish_report::count(trained as u64),
            burnish_report::count(all as u64),
            self.rows,
            burnish_report::count(tokens as u64),
        ))
    }

    /// Tokens that end a completion: see [`Prepared::stop_tokens`].
    pub(crate) fn stop_tokens(&self) -> Result<Vec<u32>, TrainError> {
        let config = GenerationConfig::read(self.folder.path(), self.folder.config())?;
        Ok(self.prepared.stop_tokens(&config, self.options.preparation.eos_token.is_some()))
    }

    /// Every option and its value.
    pub(crate) fn parameters(&self) -> serde_json::Map<String, serde_json::Value> {
        self.values.iter().map(|(name, raw)| ((*name).to_owned(), raw.into())).collect()
    }

    pub(crate) fn output_dir(&self) -> PathBuf {
        self.options.training.output_dir.clone()
    }

    /// The training rows in the order that the options name.
    pub(crate) fn rows_in_order(&self) -> Sampler {
        let options = &self.options.training;
        Sampler::new(self.rows, options.train_sampling_strategy, options.row_seed())
    }

    /// The shape of steps over rows, for this many ranks.
    pub(crate) fn sampler(&self, rows: Sampler, ranks: usize) -> Result<Sampler, TrainError> {
        let sampler = self.shape(rows, ranks);
        sampler.check()?;
        Ok(sampler)
    }

    /// As [`Self::sampler`], whether or not there is a step in an epoch.
    pub(crate) fn shape(&self, rows: Sampler, ranks: usize) -> Sampler {
        let options = &self.options.training;
        rows.per_device(options.per_device_train_batch_size)
            .ranks(ranks)
            .accumulation(options.gradient_accumulation_steps)
            .global(self.options.ranks.global_batch_size)
            .drop_last(options.dataloader_drop_last)
    }
}

/// An option as the model card shows it, without folders of the hub's cache.
fn published((name, value): (String, String)) -> (String, String) {
    let path = Path::new(value.trim_matches('"'));
    let value = Repo::of_snapshot(path).map_or(value.clone(), |repo| repo.name().to_owned());
    (name, value)
}

/// Rows as they are read.
pub type Rows<'a> = &'a mut dyn Iterator<Item = Result<Record, DataError>>;
