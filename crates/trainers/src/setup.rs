//! What every run has, whatever it trains for: options, model, tokenizer, what trains.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::Device;
use burnish_checkpoint::prepare_output_dir;
use burnish_config::{Interval, RunOptions, Sampling, TrainerOptions};
use burnish_core::{Dtype, Parameter};
use burnish_data::{DataError, HeldOut, Order, Record, Sampler, Source};
use burnish_models::{GenerationConfig, ModelFolder, Planned, Tuning};
use burnish_peft::{AdapterFolder, LoraConfig};
use burnish_tp::Tp;

use crate::devices::Devices;
use crate::frozen::Frozen;
use crate::reference_folder::ReferenceFolder;
use crate::step_size::StepSize;
use crate::tuned::{lora_config, open_folder, trained_dtype, tuning};
use crate::{Prepared, Ranks, TrainError, prepare_rows};

/// Files of burnish's own in an output folder.
const OURS: [&str; 7] = [
    "metrics.jsonl",
    "loss.svg",
    "burnish.json",
    "reference",
    "reward.svg",
    "completions.jsonl",
    "rollout-adapter",
];

/// A run, everything but weights and rows read and checked.
pub(crate) struct Setup {
    /// The command's name.
    pub(crate) trainer: &'static str,
    pub(crate) options: RunOptions,
    /// The options that differ from their defaults, for people.
    pub(crate) changed: Vec<(String, String)>,
    pub(crate) folder: Arc<ModelFolder>,
    /// Whether the model scores texts instead of going on with them.
    pub(crate) scores: bool,
    pub(crate) prepared: Prepared,
    /// Rows to train on: what the sampler deals.
    pub(crate) rows: usize,
    /// What its ranks compute on.
    pub(crate) devices: Devices,
    /// The stored dtype of trained matrices.
    pub(crate) trained: Dtype,
    pub(crate) config: Option<LoraConfig>,
    pub(crate) adapter: Option<AdapterFolder>,
    pub(crate) frozen: Frozen,
    /// What the policy is compared with, where that is not the model as it is at the start.
    pub(crate) reference: Option<ReferenceFolder>,
}

impl Setup {
    /// Reads and checks what does not depend on rows.
    pub(crate) fn open<O: TrainerOptions>(
        command: &O,
        ranks: &Ranks,
        device: &Device,
    ) -> Result<Self, TrainError> {
        let options = command.run_options();
        let folder = open_folder(&options.model, &options.training)?;
        let mut inputs: Vec<&Path> = vec![folder.path()];
        inputs.extend(options.model.adapter_name_or_path.as_deref());
        let compared = options.reference.as_ref();
        inputs.extend(compared.and_then(|r| r.ref_model_name_or_path.as_deref()));
        let training = &options.training;
        if ranks.lead() {
            prepare_output_dir(&training.output_dir, training.overwrite_output_dir, &inputs, &OURS)?;
        }
        let mut prepared = prepare_rows(folder.path(), &options.preparation, folder.spec().vocab)?;
        prepared.rules.shuffle = options.data.shuffle_dataset;
        prepared.rules.seed = training.row_seed();
        let config = options.lora.use_peft.then(|| lora_config(&options.lora, folder.path()));
        let adapter = options.model.adapter_name_or_path.as_ref().map(AdapterFolder::open).transpose()?;
        let trained = trained_dtype(&options.model, training);
        let other = |path, moves| ReferenceFolder::open(path, moves, &prepared.tokenizer, &folder);
        let reference = compared
            .and_then(|r| Some(other(r.ref_model_name_or_path.as_deref()?, r.sync_ref_model)))
            .transpose()?;
        Ok(Self {
            trainer: O::NAME,
            changed: command.changed(),
            options,
            folder: Arc::new(folder),
            scores: false,
            prepared,
            rows: 0,
            devices: ranks.devices(device)?,
            trained,
            config,
            adapter,
            frozen: Frozen::default(),
            reference,
        })
    }

    /// The same with a model that scores texts.
    pub(crate) fn scoring(mut self) -> Self {
        let folder = Arc::into_inner(self.folder).expect("invariant: nothing runs yet").into_scorer();
        self.folder = Arc::new(match self.prepared.tokenizer.pad_id() {
            Some(id) => folder.with_pad_token(id),
            None => folder,
        });
        if let Some(config) = &mut self.config {
            config.task_type = Some("SEQ_CLS".to_owned());
        }
        self.scores = true;
        self
    }

    /// Fails when nothing would train.
    pub(crate) fn check_trains(&self) -> Result<(), TrainError> {
        let planned = self.planned()?;
        if planned.registry().trainable().next().is_none() {
            return Err(TrainError::NothingTrains);
        }
        if self.options.muon.muon_qk_clip.is_some() {
            planned.qk_clip()?;
        }
        Ok(())
    }

    /// The training rows and the evaluation rows, each made by its function from the name of a source and its records.
    pub(crate) fn datasets<T>(
        &self,
        train: impl Fn(&str, Rows<'_>) -> Result<T, TrainError>,
        eval: impl Fn(&str, Rows<'_>) -> Result<T, TrainError>,
    ) -> Result<(T, Option<T>), TrainError> {
        let (data, training) = (&self.options.data, &self.options.training);
        let source = Source::train(&data.dataset_name, &data.dataset_train_split)?;
        let evaluates = training.eval_strategy != Interval::No;
        if let Some(size) = data.test_split_size.filter(|_| evaluates) {
            let held = HeldOut::new(source.count()?, size, training.row_seed())?;
            let rows = train(&source.name(), &mut held.select(false, source.records()))?;
            let evaluated = eval(&source.name(), &mut held.select(true, source.records()))?;
            return Ok((rows, Some(evaluated)));
        }
        let rows = train(&source.name(), &mut source.records())?;
        if !evaluates {
            return Ok((rows, None));
        }
        let source = match &data.eval_dataset_name {
            Some(name) => Some(Source::train(name, &data.dataset_test_split)?),
            None => Source::test(&data.dataset_name, &data.dataset_test_split)?,
        };
        let evaluated = source.map(|s| eval(&s.name(), &mut s.records())).transpose()?;
        Ok((rows, evaluated))
    }

    pub(crate) fn tuning(&self) -> Tuning<'_> {
        tuning(self.adapter.as_ref(), self.config.as_ref())
    }

    /// The model's parameters under these options, before anything is read.
    pub(crate) fn planned(&self) -> Result<Planned<'_>, TrainError> {
        let tuning = self.tuning();
        let mut planned = Planned::new(&self.folder, &tuning, self.trained, self.options.training.seed)?;
        if self.options.muon.muon_per_head {
            planned.split_heads();
        }
        Ok(planned)
    }

    /// As [`Self::planned`], divided over the ranks of `tp`, of which there are `dp` groups.
    pub(crate) fn planned_over(&self, tp: &Tp, dp: usize) -> Result<Planned<'_>, TrainError> {
        let planned = self.planned()?;
        if tp.size() == 1 {
            return Ok(planned);
        }
        let RunOptions { training, ranks, preparation, .. } = &self.options;
        let step = StepSize::new(training, ranks, preparation, self.folder.spec(), dp);
        Ok(planned.summing(step.adapter_sums(ranks, self.folder.spec())).over(tp)?)
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

    pub(crate) fn output_dir(&self) -> PathBuf {
        self.options.training.output_dir.clone()
    }

    /// The training rows in the order that the options name.
    pub(crate) fn rows_in_order(&self) -> Sampler {
        let options = &self.options.training;
        Sampler::new(self.rows, order(options.train_sampling_strategy), options.row_seed())
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

/// The order of rows by its option.
pub(crate) fn order(strategy: Sampling) -> Order {
    match strategy {
        Sampling::Random => Order::Random,
        Sampling::Sequential => Order::Sequential,
    }
}

/// Rows as they are read.
pub(crate) type Rows<'a> = &'a mut dyn Iterator<Item = Result<Record, DataError>>;
