//! A model that is used and not trained, on ranks that share its layers, its rows, or both.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Device;
use burnish_comm::{Bucket, Group};
use burnish_config::groups::{ModelOptions, RankOptions};
use burnish_core::work::{Unit, Work};
use burnish_core::{Compute, Dtype, QuantizeOnLoad};
use burnish_data::{Collator, DataError, Example, Record};
use burnish_models::{
    Completion, Decoder, ExpertSharding, Generation, LocalParams, MixedAdapters, ModelAxes, ModelFolder,
    ModelPlan, Tuning,
};
use burnish_peft::{AdapterFolder, PeftError};
use burnish_tp::Tp;

use crate::evaluation::{Evaluation, evaluate_on};
use crate::forward::token_loss::SupervisedLoss;
use crate::ranks::Axes;
use crate::ranks::agreement::{Facts, agree};
use crate::ranks::device_failure::{failed_in_use, guarded};
use crate::{Ranks, TrainError};

/// A model folder, with an adapter over it, to score or generate with. Weights are read by the ranks, each its slices.
pub struct Inference {
    folder: ModelFolder,
    adapter: Option<AdapterFolder>,
    /// Of which rows name one each.
    named: Vec<(String, AdapterFolder)>,
    compute: Compute,
    /// How its matrices are held in fewer bits, and what they are read as.
    quantization: Option<(QuantizeOnLoad, Dtype)>,
    tp_size: usize,
    /// How those ranks have experts.
    experts: ExpertSharding,
    device: Device,
    /// What ranks of this process hold, by their device and their place among those that share layers: one copy serves all
    /// with these.
    held: Mutex<BTreeMap<(usize, usize), Arc<LocalParams>>>,
}

impl Inference {
    /// Opens the folders; each layer will be shared by `tp_size` ranks. With `quantization` the matrices of blocks are held
    /// as a training run with these options holds them.
    ///
    /// # Errors
    /// If a folder is missing or damaged.
    pub fn open(
        options: &ModelOptions,
        quantization: Option<QuantizeOnLoad>,
        tp_size: usize,
        device: &Device,
    ) -> Result<Self, TrainError> {
        let folder = ModelFolder::open(&options.model_name_or_path)?;
        let mut folder = options.tokenizer_name_or_path.iter().fold(folder, ModelFolder::with_tokenizer);
        let adapter = options.adapter_name_or_path.as_ref().map(AdapterFolder::open).transpose()?;
        if let Some(adapter) = &adapter {
            folder = folder.for_adapter(adapter);
        }
        let (device, compute) = (device.clone(), options.compute());
        let quantization = quantization.map(|how| (how, options.dtype.0.unwrap_or(Dtype::F32)));
        let (experts, held) = (ExpertSharding::Parts, Mutex::default());
        let named = Vec::new();
        Ok(Self { folder, adapter, named, compute, quantization, tp_size, experts, device, held })
    }

    /// The same; ranks that share layers have some experts of each mixture whole instead of a part of every one.
    #[must_use]
    pub fn with_whole_experts(self, whole_experts: bool) -> Self {
        let experts = if whole_experts { ExpertSharding::Whole } else { ExpertSharding::Parts };
        Self { experts, ..self }
    }

    /// The same, with adapters of which [a row's `adapter`](Self::adapter_of) names one; they are mixed in one batch.
    ///
    /// # Errors
    /// If a folder is missing or damaged.
    pub fn with_adapters(
        self,
        named: impl IntoIterator<Item = (String, PathBuf)>,
    ) -> Result<Self, TrainError> {
        let open = |(name, path): (String, PathBuf)| Ok((name, AdapterFolder::open(path)?));
        let named = named.into_iter().map(open).collect::<Result<_, PeftError>>()?;
        Ok(Self { named, ..self })
    }

    /// Which adapter a row names; none without, and where there are no adapters.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn adapter_of(&self, row: &Record) -> Result<Option<usize>, TrainError> {
        let named = row.fields.get("adapter").filter(|value| !value.is_null() && !self.named.is_empty());
        let Some(value) = named else { return Ok(None) };
        let found = self.named.iter().position(|(name, _)| value.as_str() == Some(name));
        if found.is_none() {
            let names: Vec<&str> = self.named.iter().map(|(name, _)| name.as_str()).collect();
            let (place, got) = (row.place.clone(), value.to_string());
            return Err(TrainError::NoSuchAdapter { place, got, adapters: names.join(", ") });
        }
        Ok(found)
    }

    /// The model's folder.
    #[must_use]
    pub fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    /// Runs `program` on every rank of this process, with the rank's part of the model; the first rank's result.
    ///
    /// # Errors
    /// If the model cannot be divided so, a file is damaged; whatever `program` returns; if another rank fails.
    pub fn run<T: Send>(
        &self,
        ranks: &Ranks,
        program: impl Fn(&InferenceRank) -> Result<T, TrainError> + Sync,
    ) -> Result<T, TrainError> {
        let devices = ranks.devices(&self.device)?;
        ranks.run(|world| {
            let (place, device) = devices.of(world.rank());
            let used = guarded(|| {
                agree(world, || self.facts())?;
                let options = RankOptions { tp_size: self.tp_size, ..RankOptions::default() };
                let Axes { dp, model: ModelAxes { all: tp, .. }, .. } = Axes::new(world, &options)?;
                let rank = self.on((place, device.clone()), world.group().channel("rows"), dp, tp)?;
                let result = program(&rank);
                // What stopped the ranks that share layers comes before what followed from it.
                rank.tp.check()?;
                result
            });
            used.unwrap_or_else(|failure| Err(failed_in_use(failure, device)))
        })
    }

    /// What every rank must have alike.
    fn facts(&self) -> Result<Facts, TrainError> {
        let how = format!("{:?}, {:?}, tp_size {}", self.compute, self.quantization, self.tp_size);
        let facts =
            Facts::default().and("version of burnish", env!("CARGO_PKG_VERSION")).and("computes", &how);
        let mut facts = facts.and_folder("model_name_or_path", self.folder.path())?;
        if self.folder.tokenizer_path() != self.folder.path() {
            facts = facts.and_folder("tokenizer_name_or_path", self.folder.tokenizer_path())?;
        }
        for (name, adapter) in &self.named {
            facts = facts.and_folder(&format!("lora_modules, {name}"), adapter.path())?;
        }
        match &self.adapter {
            Some(adapter) => facts.and_folder("adapter_name_or_path", adapter.path()),
            None => Ok(facts),
        }
    }

    /// This model on the ranks of another, for programs that use both: what one of them says comes before what the other
    /// says next, on every rank.
    ///
    /// # Errors
    /// If the model cannot be divided so, or a file is damaged.
    pub fn beside(&self, rank: &InferenceRank) -> Result<InferenceRank, TrainError> {
        self.on(rank.device.clone(), rank.world.clone(), rank.dp.clone(), rank.tp.clone())
    }

    fn on(
        &self,
        device: (usize, Device),
        world: Group,
        dp: Group,
        tp: Tp,
    ) -> Result<InferenceRank, TrainError> {
        let tuning = self.adapter.as_ref().map_or(Tuning::None, Tuning::Adapter);
        let mut mixed = MixedAdapters::new(&self.folder);
        for (name, adapter) in &self.named {
            mixed.add(name, adapter)?;
        }
        let planned = match mixed.is_empty() {
            true => ModelPlan::new(&self.folder, &tuning, Dtype::F32, 0)?,
            false => mixed.plan()?,
        };
        let mut planned = planned.computing(self.compute);
        if let Some((quantization, read)) = self.quantization {
            planned = planned.quantized(quantization, read)?;
        }
        if self.tp_size > 1 {
            planned = planned.sharing_experts(self.experts).over(&tp)?;
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let model = match held.get(&(device.0, tp.rank())) {
            Some(resident) => planned.into_model(resident.clone()),
            None => {
                let (model, resident) = planned.resident(&device.1)?;
                held.insert((device.0, tp.rank()), resident);
                model
            }
        };
        Ok(InferenceRank { device, world, dp, tp, decoder: model.decoder })
    }
}

/// As [`Decoder::generate`], on the ranks of `tp`, which share layers; see [`InferenceRank::generate`].
pub(crate) fn together(
    tp: &Tp,
    decoder: &Decoder,
    prompts: &[Vec<u32>],
    settings: &Generation,
    on_token: &mut dyn FnMut(usize, u32) -> bool,
) -> Result<Vec<Completion>, TrainError> {
    together_adapted(tp, decoder, (prompts, &[]), settings, on_token)
}

/// As [`together`], of prompts with their adapters.
fn together_adapted(
    tp: &Tp,
    decoder: &Decoder,
    (prompts, adapters): (&[Vec<u32>], &[Option<usize>]),
    settings: &Generation,
    on_token: &mut dyn FnMut(usize, u32) -> bool,
) -> Result<Vec<Completion>, TrainError> {
    // What follows a failure is no text.
    let mut heard = |row, token| tp.check().is_ok() && on_token(row, token);
    let done = decoder.generate_adapted(prompts, adapters, settings, &mut heard);
    tp.check()?;
    Ok(done?)
}

/// One rank of those that use a model.
pub struct InferenceRank {
    /// What it computes on, with its place among this process's devices.
    device: (usize, Device),
    world: Group,
    /// The ranks that take other rows.
    dp: Group,
    /// The ranks that share each layer: they take the same rows and run the same passes.
    tp: Tp,
    decoder: Decoder,
}

impl InferenceRank {
    /// Whether this rank speaks and writes for all.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.world.rank() == 0
    }

    /// Whether this rank shares layers with the lead: these run what has one row only.
    #[must_use]
    pub fn with_lead(&self) -> bool {
        self.dp.rank() == 0
    }

    /// Whether this rank is the first of those that share layers: what it says of a row is said once.
    #[must_use]
    pub fn leads_layers(&self) -> bool {
        self.tp.rank() == 0
    }

    /// This rank's part of the model.
    #[must_use]
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// As [`Decoder::generate`], on the ranks that share layers with this one: they choose the same tokens, so that a
    /// completion ends at the same step on all of them. On one of them `on_token` may hear more than on others, but it
    /// must not answer differently.
    ///
    /// # Errors
    /// Those of [`Decoder::generate`]; if another rank fails.
    pub fn generate(
        &self,
        prompts: &[Vec<u32>],
        settings: &Generation,
        on_token: &mut dyn FnMut(usize, u32) -> bool,
    ) -> Result<Vec<Completion>, TrainError> {
        together(&self.tp, &self.decoder, prompts, settings, on_token)
    }

    /// As [`Self::generate`], each prompt by its adapter ([`Inference::adapter_of`]).
    ///
    /// # Errors
    /// As [`Self::generate`].
    pub fn generate_adapted(
        &self,
        prompts: &[Vec<u32>],
        adapters: &[Option<usize>],
        settings: &Generation,
        on_token: &mut dyn FnMut(usize, u32) -> bool,
    ) -> Result<Vec<Completion>, TrainError> {
        together_adapted(&self.tp, &self.decoder, (prompts, adapters), settings, on_token)
    }

    /// The loss and its companions over `examples`, whose batches are dealt to the ranks; the same result on all.
    ///
    /// # Errors
    /// If a tensor does not fit, or another rank fails.
    pub fn evaluate(
        &self,
        examples: &[Example],
        collator: &Collator,
        batch_rows: usize,
        loss: impl Into<SupervisedLoss>,
    ) -> Result<Evaluation, TrainError> {
        let found = evaluate_on(&self.dp, &self.decoder, examples, collator, batch_rows, loss);
        self.tp.check()?;
        found
    }

    /// Deals `records` to the ranks in rounds of up to `size` rows each, and hands what they say of them to `write`, on
    /// the lead, in the order of the rows. `say` gets the number of its first row, counted from 0, and some rows that
    /// follow each other; the same on ranks that share layers.
    ///
    /// Every rank gives the same records; a row is only looked into by the ranks that it is dealt to.
    ///
    /// # Errors
    /// What `records`, `say` and `write` return; if another rank fails.
    pub fn in_order(
        &self,
        mut records: impl Iterator<Item = Result<Record, DataError>>,
        size: usize,
        mut say: impl FnMut(u64, Vec<Record>) -> Result<String, TrainError>,
        mut write: impl FnMut(&[u8]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let (rank, ranks) = (self.dp.rank(), self.dp.size());
        let mut first = 0;
        // Counted by the lead, whose rounds are all ranks'.
        let total = records.size_hint().1.unwrap_or(0) as u64;
        let work = self.leads().then(|| Work::begin("going through rows", Unit::Rows, total));
        loop {
            let round = records.by_ref().take(size.max(1) * ranks).collect::<Result<Vec<_>, _>>()?;
            let rows = round.len();
            if rows == 0 {
                // Nobody leaves before everything is written.
                return Ok(self.world.barrier("rows")?);
            }
            // A round that is not full is dealt evenly as well.
            let own = rows * rank / ranks..rows * (rank + 1) / ranks;
            let start = own.start;
            let own: Vec<Record> = round.into_iter().skip(start).take(own.len()).collect();
            let said = if own.is_empty() { String::new() } else { say(first + start as u64, own)? };
            self.tp.check()?;
            if self.tp.rank() == 0 {
                self.collect(said.into_bytes(), &mut write)?;
            }
            first += rows as u64;
            work.iter().for_each(|work| work.advance(rows as u64));
        }
    }

    /// What each data-parallel rank has to say, written by the first of them in their order.
    fn collect(
        &self,
        said: Vec<u8>,
        write: &mut impl FnMut(&[u8]) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        if self.dp.size() == 1 {
            return write(&said);
        }
        let lengths = vec![1; self.dp.size()];
        let own = Bucket::new(vec![said.len() as u64]);
        let lengths = self.dp.all_gather_v(own, &lengths, "lengths of rows").wait()?;
        let lengths: Vec<usize> = lengths.iter().flatten().map(|&length| length as usize).collect();
        let parts = self.dp.gather(Bucket::new(said), &lengths, 0, "rows").wait()?;
        parts.iter().flat_map(|parts| parts.iter()).try_for_each(write)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::path::Path;

    use burnish_config::groups::ModelOptions;

    use super::*;

    fn open(tp_size: usize) -> Inference {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/llama");
        let options = ModelOptions { model_name_or_path: folder, ..ModelOptions::default() };
        Inference::open(&options, None, tp_size, &Device::flex()).unwrap()
    }

    /// Elements that the lead holds.
    fn elements(inference: &Inference, ranks: usize) -> usize {
        let held = |rank: &InferenceRank| {
            let registry = rank.decoder().parameters().registry().clone();
            Ok(registry.iter().map(|p| p.elements()).sum())
        };
        inference.run(&Ranks::threads(ranks), held).unwrap()
    }

    #[test]
    fn ranks_hold_slices_and_threads_with_the_same_slices_one_copy() {
        let whole = elements(&open(1), 1);
        for (ranks, tp_size) in [(2, 2), (4, 2), (3, 1), (4, 4)] {
            let inference = open(tp_size);
            let own = elements(&inference, ranks);
            // Norms are whole on each, and four ranks share two heads of keys and values.
            assert!(own * tp_size <= whole + whole / 10, "{own} of {whole} on each of {tp_size}");
            assert_eq!(inference.held.lock().unwrap().len(), tp_size, "of {ranks} ranks");
        }
    }

    #[test]
    fn what_a_rank_could_not_do_is_told_once_as_its_own() {
        let inference = open(2);
        let failed = inference.run(&Ranks::threads(4), |rank| {
            if rank.world.rank() == 3 {
                return Err(TrainError::NothingTrains);
            }
            rank.world.barrier("never")?;
            Ok(())
        });
        assert!(matches!(failed, Err(TrainError::NothingTrains)));
        // The others hear of it in whatever they wait for, and in what they try after it.
        let failed = inference.run(&Ranks::threads(2), |rank| {
            if rank.leads() {
                return Err(TrainError::NothingTrains);
            }
            let settings = Generation { max_new_tokens: 1_000, ..Generation::default() };
            let stopped =
                rank.generate(&[vec![1, 2]], &settings, &mut |_, _| panic!("said something")).unwrap_err();
            let later = TrainError::from(rank.world.barrier("later").unwrap_err());
            assert!(stopped.came_from_another_rank() && later.came_from_another_rank(), "{stopped}; {later}");
            Err::<(), _>(stopped)
        });
        assert!(matches!(failed, Err(TrainError::NothingTrains)));
    }
}
