//! The model's side of a run: what its options make of folders, with everything but weights, rows and ranks.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use burnish_config::RunOptions;
use burnish_config::groups::{ModelOptions, RankOptions};
use burnish_core::{Dtype, Parameter, QuantizeOnLoad, Registry, Role};
use burnish_device::DeviceKind;
use burnish_models::{ModelAxes, ModelFolder, ModelPlan, Tuning};
use burnish_peft::{AdapterFolder, Decomposition, LoraConfig};
use burnish_tp::AdapterSums;
use burnish_zero::Plan;

use crate::ranks::expert_sharding;
use crate::setup::lora_options::{open_folder, trained_dtype, tuning};
use crate::setup::optimizer_options::work;
use crate::setup::public_name::public_name;
use crate::setup::reference_folder::ReferenceFolder;
use crate::setup::sharding::sharding_plan;
use crate::setup::step_size::StepSize;
use crate::{Prepared, TrainError, prepare_rows};

/// Model, adapter and reference as options name them. A run and its plan open them alike, and ask the same questions of
/// them: which parameters there are, and which rank owns which rows.
pub struct ModelSetup {
    pub(crate) options: RunOptions,
    pub(crate) folder: Arc<ModelFolder>,
    /// Whether the model scores texts instead of going on with them.
    pub(crate) scores: bool,
    /// The stored dtype of trained matrices.
    pub(crate) trained: Dtype,
    pub(crate) config: Option<LoraConfig>,
    pub(crate) adapter: Option<AdapterFolder>,
    /// What the adapter starts from, where rows of the data have given that.
    pub(crate) start: BTreeMap<String, Arc<Decomposition>>,
    /// The reference model, where that is not the policy as it is at the start.
    pub(crate) reference: Option<ReferenceFolder>,
    /// Whether frozen matrices rest in fp32 whatever their files have.
    pub(crate) widened: bool,
}

impl ModelSetup {
    /// Opens the folders that `options` name.
    pub(crate) fn open(options: RunOptions) -> Result<Self, TrainError> {
        let folder = open_folder(&options.model, &options.training)?;
        let config =
            options.lora.use_peft.then(|| options.lora.config(Path::new(&public_name(folder.path()))));
        let adapter = options.model.adapter_name_or_path.as_ref().map(AdapterFolder::open).transpose()?;
        adapter.iter().try_for_each(|adapter| adapter.config.check_training())?;
        let folder = adapter.iter().fold(folder, ModelFolder::named_as_in);
        let trained = trained_dtype(&options.model, &options.training);
        let other = options.reference.as_ref().and_then(|r| Some((r.ref_model_name_or_path.as_ref()?, r)));
        let compute = options.model.compute();
        let quantization = options.quantization.quantization();
        let experts = expert_sharding(&options.ranks);
        let reference = other
            .map(|(path, r)| ReferenceFolder::open(path, r.sync_ref_model, compute, quantization, experts));
        let reference = reference.transpose()?;
        let (folder, start) = (Arc::new(folder), BTreeMap::new());
        let on_gpu = options.model.device.kind().is_some_and(|kind| kind != DeviceKind::Cpu);
        let setup = Self {
            options,
            folder,
            scores: false,
            trained,
            config,
            adapter,
            start,
            reference,
            widened: false,
        };
        Ok(setup.on(on_gpu))
    }

    /// The same on a GPU, or not. There a product's factors have the dtype of its weight, so that products of fp32, where
    /// they are asked for, want weights of fp32; the CPU widens what it multiplies.
    pub(crate) fn on(mut self, gpu: bool) -> Self {
        let ModelOptions { bf16, dtype, .. } = &self.options.model;
        let fp32 = *bf16 == Some(false) && dtype.0 == Some(Dtype::F32) && !self.options.training.fp16;
        self.widened = gpu && fp32;
        self.reference.iter_mut().for_each(|reference| reference.widened = self.widened);
        self
    }

    /// The same with a model that scores texts, whose padding is `pad_id`.
    pub(crate) fn scoring(self, pad_id: Option<u32>) -> Self {
        let folder = Arc::into_inner(self.folder).expect("invariant: nothing runs yet").into_scorer();
        let folder = Arc::new(match pad_id {
            Some(id) => folder.with_pad_token(id),
            None => folder,
        });
        let scored = |config| LoraConfig { task_type: Some("SEQ_CLS".to_owned()), ..config };
        Self { folder, scores: true, config: self.config.map(scored), ..self }
    }

    /// The folders that are read.
    pub(crate) fn inputs(&self) -> Vec<&Path> {
        let mut inputs: Vec<&Path> = vec![self.folder.path()];
        inputs.extend(self.options.model.tokenizer_name_or_path.as_deref());
        inputs.extend(self.options.model.adapter_name_or_path.as_deref());
        inputs.extend(self.reference.as_ref().map(|reference| reference.folder.path()));
        inputs
    }

    /// How the model's tokenizer makes tokens of rows, by its options.
    pub(crate) fn prepare_rows(&self) -> Result<Prepared, TrainError> {
        let RunOptions { training, preparation, data, .. } = &self.options;
        let mut prepared = prepare_rows(self.folder.tokenizer_path(), preparation, self.folder.spec().vocab)?;
        prepared.rules.shuffle = data.shuffle_dataset;
        prepared.rules.seed = training.row_seed();
        Ok(prepared)
    }

    /// What the loss that balances experts is multiplied by, where it is part of the loss: what is said, or else what the
    /// model's configuration has.
    pub(crate) fn balance(&self) -> Option<f64> {
        let own = self.folder.spec().experts.and_then(|experts| experts.balance).map(f64::from)?;
        Some(self.options.training.router_aux_loss_coef.unwrap_or(own)).filter(|c| *c != 0.0)
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
        let said = self.options.training.router_aux_loss_coef.filter(|c| *c != 0.0);
        if let (Some(got), None) = (said, self.balance()) {
            let model_type = self.folder.spec().family.model_type();
            return Err(TrainError::NoBalance { got, model_type });
        }
        Ok(())
    }

    fn tuning(&self) -> Tuning<'_> {
        tuning(self.adapter.as_ref(), self.config.as_ref())
    }

    /// The model's parameters under these options, before anything is read.
    pub(crate) fn planned(&self) -> Result<ModelPlan<'_>, TrainError> {
        let tuning = self.tuning();
        let seed = self.options.training.seed;
        let mut planned = ModelPlan::new(&self.folder, &tuning, self.trained, seed)?;
        planned = planned.computing(self.options.model.compute()).starting_from(&self.start);
        planned = planned.sharing_experts(expert_sharding(&self.options.ranks)).widening(self.widened);
        if let Some(quantization) = self.options.quantization.quantization() {
            planned = planned.quantized(quantization, self.trained)?;
        }
        if self.options.muon.muon_per_head {
            planned.split_heads();
        }
        Ok(planned)
    }

    /// That experts rest as the files have them while other matrices do so in fewer bits, if they do.
    ///
    /// # Errors
    /// As [`Self::planned`].
    pub(crate) fn note_of_experts(&self) -> Result<Option<String>, TrainError> {
        let given = self.options.quantization.quantization();
        let Some(QuantizeOnLoad { quantization, experts: false }) = given else { return Ok(None) };
        let planned = self.planned()?;
        let whole = |p: &&Parameter| p.role == Role::Expert && p.quantization.is_none() && !p.trainable;
        let (mut at_rest, mut in_bits, mut dtype) = (0, 0, None);
        for parameter in planned.registry().iter().filter(whole) {
            let [rows, row] = parameter.as_matrix(parameter.shape[0]);
            at_rest += parameter.stored_bytes(rows, row) as u64;
            in_bits += quantization.bytes(rows, row) as u64;
            dtype = Some(parameter.precision.store);
        }
        Ok(dtype.map(|dtype| {
            format!(
                "experts stay in {dtype} ({}), as in Transformers; quantize_experts: true holds them in {} too ({})",
                burnish_report::bytes(at_rest),
                quantization.scheme,
                burnish_report::bytes(in_bits)
            )
        }))
    }

    /// As [`Self::planned`], divided over the ranks of `axes`, where `data` take different rows.
    pub(crate) fn planned_over(&self, axes: &ModelAxes, data: usize) -> Result<ModelPlan<'_>, TrainError> {
        let planned = self.planned()?;
        if axes.all.size() == 1 {
            return Ok(planned);
        }
        Ok(planned.summing(self.adapter_sums(data)).over_axes(axes)?)
    }

    /// How large a step is on each of `data` ranks that take different rows.
    pub(crate) fn step_size(&self, data: usize) -> StepSize {
        let RunOptions { training, ranks, preparation, .. } = &self.options;
        StepSize::new(training, ranks, preparation, self.folder.spec(), data)
    }

    /// How ranks that share layers sum partial gradients of adapters.
    pub(crate) fn adapter_sums(&self, data: usize) -> AdapterSums {
        self.step_size(data).adapter_sums(&self.options.ranks, self.folder.spec())
    }

    /// Who of `dp` ranks owns which rows of `local`, the registry of one tensor-parallel rank's part of `planned`.
    pub(crate) fn sharding(
        &self,
        planned: &ModelPlan<'_>,
        local: &Registry,
        dp: usize,
    ) -> Result<Plan, TrainError> {
        let muon = self.options.muon.muon(&self.options.training, self.options.model.compute());
        let rule = self.options.training.rule();
        let cost =
            |index: usize, _: &Parameter| work(muon.as_ref(), rule.as_ref(), planned.registry().at(index));
        sharding_plan(local, planned.units(), dp, self.ranks(), cost)
    }

    pub(crate) fn ranks(&self) -> &RankOptions {
        &self.options.ranks
    }
}
