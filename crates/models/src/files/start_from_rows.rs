//! `RowStart`: what an adapter starts from where that is made of rows of the data, before it trains (EVA, CorDA, LoRA-GA).
//!
//! The base runs over the rows, whole and without an adapter, in this process: every process that does so over the same rows
//! has the same start.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Device;
use burnish_core::work::{Unit, Work};
use burnish_core::{Compute, Dtype, QuantizeOnLoad};
use burnish_ops::{AnyTensor, OpsError};
use burnish_peft::{
    CordaConfig, CordaTriplets, Covariance, Decomposition, Eva, EvaConfig, Init, LoraConfig, LoraGaConfig,
    LoraPlan, LoraSite, ModuleKind, PeftError, Targets,
};
use serde_json::Map;

use crate::{
    Decoder, ForwardContext, InputTap, LocalParams, Mode, Model, ModelError, ModelFolder, ModelPlan, Tokens,
    Tuning,
};

/// Passes over all rows after which vectors of EVA that do not stand still will not.
const MOST_PASSES: usize = 100;

/// What runs at once of the data where rows run one by one.
#[derive(Clone, Debug)]
pub struct TokenRow {
    /// Its texts, one or several.
    pub texts: Vec<Vec<u32>>,
    /// A label for each token of all texts, below zero where it is not learned; `None` where a trainer's rows have none, and
    /// every token counts.
    pub labels: Option<Vec<i32>>,
}

impl TokenRow {
    /// A text without labels.
    #[must_use]
    pub fn unlabelled(text: Vec<u32>) -> Self {
        Self { texts: vec![text], labels: None }
    }

    fn tokens(&self) -> usize {
        self.texts.iter().map(Vec::len).sum()
    }

    /// Each text with its labels.
    pub fn labelled(&self) -> impl Iterator<Item = (&[u32], Option<&[i32]>)> {
        let mut rest = self.labels.as_deref();
        self.texts.iter().map(move |text| {
            let own = rest.map(|labels| labels.split_at(text.len().min(labels.len())));
            rest = own.map(|(_, after)| after);
            (text.as_slice(), own.map(|(labels, _)| labels))
        })
    }
}

/// The loss of a batch, by its number, as a trainer has it in a first step of these rows: `[1]` on the tape, `None` where nothing
/// is learned.
pub type BatchLoss<'a, E> = dyn Fn(&Decoder, &ForwardContext, usize) -> Result<Option<AnyTensor>, E> + 'a;

/// Rows, and how they run.
pub struct RowsToStart<'a> {
    /// The rows that are read, by batches, which run at once where the method does not run rows one by one (EVA, LoRA-GA).
    pub batches: &'a [Vec<TokenRow>],
    /// The stored dtype of what trains.
    pub trained: Dtype,
    /// What products multiply.
    pub compute: Compute,
    /// Whether the base rests in fp32 ([`ModelPlan::widening`]).
    pub widened: bool,
    /// How the base rests.
    pub quantization: Option<QuantizeOnLoad>,
    /// What is random is a function of it.
    pub seed: u64,
    /// Whether this process writes the files that a configuration names for what was found (CorDA).
    pub writes: bool,
}

/// The start of an adapter.
#[derive(Clone, Debug)]
pub struct RowStart {
    /// The adapter's configuration, with the ranks that modules have got (EVA).
    pub config: LoraConfig,
    /// The factors of each linear module.
    pub factors: BTreeMap<String, Arc<Decomposition>>,
    /// The file that has said what rows would have, if one has.
    pub read: Option<PathBuf>,
}

impl RowStart {
    /// Runs the model of a folder over rows for a fresh adapter; `None` where its start needs none. LoRA-GA learns from `loss`.
    ///
    /// # Errors
    /// If the folder or the adapter does not fit; if the rows say too little: a layer that none of them reaches, batches with
    /// fewer tokens than vectors are wanted, vectors that do not come to stand still. Whatever `loss` returns.
    pub fn of<E: From<ModelError>>(
        folder: &ModelFolder,
        config: &LoraConfig,
        rows: &RowsToStart<'_>,
        loss: &BatchLoss<'_, E>,
        device: &Device,
    ) -> Result<Option<Self>, E> {
        let Some(to_start) = ToStart::of(folder, config, rows)? else { return Ok(None) };
        if let Some(kept) = to_start.kept()? {
            return Ok(Some(kept));
        }
        let init = to_start.init;
        let run = Calibration::of(folder, to_start, rows, device)?;
        match init {
            Init::Eva => Ok(Some(run.eva()?)),
            Init::Corda => Ok(Some(run.corda()?)),
            _ => run.lora_ga(loss).map(Some),
        }
    }
}

/// An adapter that is to start from rows.
struct ToStart {
    init: Init,
    plan: LoraPlan,
    /// Its linear modules, and the weights that they change.
    sites: Vec<LoraSite>,
    weights: Vec<usize>,
}

impl ToStart {
    fn of(
        folder: &ModelFolder,
        config: &LoraConfig,
        rows: &RowsToStart<'_>,
    ) -> Result<Option<Self>, ModelError> {
        let Some(init) = config.init_lora_weights.method().filter(|init| init.reads_rows()) else {
            return Ok(None);
        };
        let adapted = ModelPlan::new(folder, &Tuning::NewAdapter(config), rows.trained, rows.seed)?;
        let Some(plan) = adapted.plan().cloned() else { return Ok(None) };
        let linear = |site: &&LoraSite| site.kind != ModuleKind::Embedding;
        let sites: Vec<LoraSite> = plan.sites.iter().filter(linear).cloned().collect();
        let index = |site: &LoraSite| adapted.index_of(&site.base_weight());
        let weights = sites.iter().map(index).collect::<Result<_, _>>()?;
        Ok(Some(Self { init, plan, sites, weights }))
    }

    /// The start that a file of triplets says (CorDA), for which nothing runs.
    fn kept(&self) -> Result<Option<RowStart>, ModelError> {
        if self.init != Init::Corda {
            return Ok(None);
        }
        let config = CordaConfig::of(&self.plan.config)?;
        let Some(triplets) = config.kept_triplets(&self.sites)? else { return Ok(None) };
        Ok(Some(self.of_triplets(&triplets, config.cache_file)))
    }

    fn of_triplets(&self, triplets: &[CordaTriplets], read: Option<PathBuf>) -> RowStart {
        let made =
            |(site, own): (&LoraSite, &CordaTriplets)| (site.module.clone(), Arc::new(own.factors(site)));
        let factors = self.sites.iter().zip(triplets).map(made).collect();
        RowStart { config: self.plan.config.clone(), factors, read }
    }
}

/// A run of the base over rows.
struct Calibration<'a> {
    model: Model,
    parameters: Arc<LocalParams>,
    to_start: ToStart,
    rows: &'a RowsToStart<'a>,
    work: Work,
}

impl<'a> Calibration<'a> {
    /// The base of a folder in memory.
    fn of(
        folder: &ModelFolder,
        to_start: ToStart,
        rows: &'a RowsToStart<'a>,
        device: &Device,
    ) -> Result<Self, ModelError> {
        let base = ModelPlan::new(folder, &Tuning::None, rows.trained, rows.seed)?;
        let mut base = base.computing(rows.compute).widening(rows.widened);
        if let Some(quantization) = rows.quantization {
            base = base.quantized(quantization, rows.trained)?;
        }
        let init = to_start.init;
        if init == Init::LoraGa {
            base = base.training_only(&to_start.weights);
        }
        let (model, parameters) = base.resident(device)?;
        let count = rows.batches.iter().map(Vec::len).sum::<usize>();
        let work = Work::begin(format!("{init}: reading rows"), Unit::Rows, count as u64);
        Ok(Self { model, parameters, to_start, rows, work })
    }
}

/// What the inputs of layers are given to, by their places among the sites.
struct Heard<T> {
    weights: Vec<usize>,
    /// Features that each site reads.
    widths: Vec<usize>,
    wanted: BTreeSet<usize>,
    /// With the sites that were heard.
    state: Mutex<(T, BTreeSet<usize>)>,
    take: fn(&mut T, usize, &[f32]),
}

impl<T: Send> InputTap for Heard<T> {
    fn wants(&self, weight: usize) -> bool {
        self.wanted.contains(&weight)
    }

    fn hear(&self, weights: &[usize], x: &AnyTensor) -> Result<(), OpsError> {
        let values = x.to_f32();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for weight in weights {
            if let Some(site) = self.weights.iter().position(|own| own == weight) {
                debug_assert_eq!(x.shape()[1], self.widths[site], "a layer reads its weight's columns");
                (self.take)(&mut state.0, site, &values);
                state.1.insert(site);
            }
        }
        Ok(())
    }
}

/// What fits inputs of the tokens that count.
struct Fitted {
    eva: Eva,
    counts: Vec<usize>,
    /// Features that each site reads.
    widths: Vec<usize>,
}

fn conflict(condition: &'static str) -> ModelError {
    PeftError::Conflict { key: "init_lora_weights", condition }.into()
}

fn texts(rows: &[TokenRow]) -> Tokens {
    let texts: Vec<&Vec<u32>> = rows.iter().flat_map(|row| &row.texts).collect();
    Tokens::from_sequences(&texts)
}

impl Calibration<'_> {
    /// The inputs of the sites that are `wanted` over rows, given to `take`.
    fn listen<T: Send + 'static>(
        &self,
        rows: &[TokenRow],
        wanted: impl Fn(usize) -> bool,
        state: T,
        take: fn(&mut T, usize, &[f32]),
    ) -> Result<T, ModelError> {
        let wanted: BTreeSet<usize> = (0..self.to_start.sites.len()).filter(|&at| wanted(at)).collect();
        let heard = Arc::new(Heard {
            weights: self.to_start.weights.to_vec(),
            widths: self.to_start.sites.iter().map(|site| site.input).collect(),
            wanted: wanted.iter().map(|&at| self.to_start.weights[at]).collect(),
            state: Mutex::new((state, BTreeSet::new())),
            take,
        });
        let pass = self.model.decoder.pass(Mode::Score).with_input_tap(heard.clone());
        self.model.decoder.hidden(&texts(rows), &pass)?;
        drop(pass);
        let heard = Arc::into_inner(heard).expect("invariant: the pass is over");
        let (state, seen) = heard.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        if seen != wanted {
            return Err(conflict(
                "as eva, corda or lora_ga on layers that run beside those of attention and feed-forward: take them out of the targets",
            ));
        }
        Ok(state)
    }

    fn eva(self) -> Result<RowStart, ModelError> {
        let config = EvaConfig::of(&self.to_start.plan.config)?;
        // Of each batch the tokens that count.
        let counts = |batch: &[TokenRow]| -> Vec<usize> {
            let counts = |label: i32| !config.use_label_mask || i64::from(label) != config.label_mask_value;
            let of_row = |row: &TokenRow| match &row.labels {
                Some(labels) => labels.iter().map(|&label| counts(label)).collect(),
                None => vec![true; row.tokens()],
            };
            let all = batch.iter().flat_map(of_row).enumerate();
            all.filter(|(_, counts)| *counts).map(|(at, _)| at).collect()
        };
        let batches: Vec<(&[TokenRow], Vec<usize>)> =
            self.rows.batches.iter().map(|batch| (&batch[..], counts(batch))).collect();
        let Some((first, _)) = batches.first() else { return Err(conflict("as eva without rows")) };
        let inputs = self.listen(
            first,
            |_| true,
            vec![0_u64; self.to_start.sites.len()],
            |inputs, site, x| {
                let mut hasher = DefaultHasher::new();
                x.len().hash(&mut hasher);
                x.iter().for_each(|x| x.to_bits().hash(&mut hasher));
                inputs[site] = hasher.finish();
            },
        )?;
        let ranks: Vec<usize> = self.to_start.sites.iter().map(|site| site.rank).collect();
        let mut eva = Eva::new(config, &ranks, &inputs);
        let wide = |(at, site): &(usize, &LoraSite)| eva.most(*at) > site.input;
        if let Some((at, site)) = self.to_start.sites.iter().enumerate().find(wide) {
            let init = "eva, with rho in eva_config".to_owned();
            let expected = format!("at most {} vectors, the features that it reads", site.input);
            let (module, got) = (site.module.clone(), eva.most(at));
            return Err(PeftError::InitRank { init, module, got, expected }.into());
        }
        let mut pass = 0;
        while eva.goes_on() {
            if pass == MOST_PASSES {
                return Err(conflict(
                    "as eva where vectors do not come to stand still: lower tau in eva_config, or raise init_lora_rows",
                ));
            }
            for (batch, counts) in &batches {
                if !eva.goes_on() {
                    break;
                }
                let wanted: Vec<bool> = (0..self.to_start.sites.len()).map(|at| eva.wants(at)).collect();
                let widths = self.to_start.sites.iter().map(|site| site.input).collect();
                let state = Fitted { eva, counts: counts.clone(), widths };
                let fitted = self.listen(
                    batch,
                    |at| wanted[at],
                    state,
                    |fitted, site, x| {
                        let width = fitted.widths[site];
                        let rows = fitted.counts.iter().flat_map(|&at| &x[at * width..(at + 1) * width]);
                        let own: Vec<f32> = rows.copied().collect();
                        fitted.eva.fit(site, &own, width);
                    },
                )?;
                eva = fitted.eva;
                self.work.advance(if pass == 0 { batch.len() as u64 } else { 0 });
                eva.redistribute();
            }
            if !eva.has_all() {
                return Err(conflict(
                    "as eva where no batch has as many tokens that are learned as vectors are wanted (lora_r times rho): raise per_device_train_batch_size, or lower lora_r",
                ));
            }
            pass += 1;
        }
        Ok(self.of_ranks(config, eva.finish()))
    }

    /// The start with what layers have got of ranks; modules with none have no adapter.
    fn of_ranks(&self, eva: EvaConfig, made: Vec<(usize, Vec<f32>)>) -> RowStart {
        let config = self.to_start.plan.config.clone();
        let mut start = RowStart { config, factors: BTreeMap::new(), read: None };
        let (mut ranks, mut alphas, mut targets) = (Map::new(), Map::new(), Vec::new());
        let mut made = made.into_iter();
        for site in &self.to_start.plan.sites {
            let (mut rank, mut alpha) = (site.rank, site.alpha);
            if site.kind != ModuleKind::Embedding {
                let Some((own, a)) = made.next() else { break };
                if own == 0 {
                    continue;
                }
                if own != rank && eva.adjust_scaling_factors {
                    alpha *= own as f64 / rank as f64;
                }
                rank = own;
                let made = Decomposition { a, b: vec![0.0; site.out * rank] };
                start.factors.insert(site.module.clone(), Arc::new(made));
            }
            targets.push(site.module.clone());
            if rank != self.to_start.plan.config.r {
                ranks.insert(site.module.clone(), rank.into());
            }
            if alpha != self.to_start.plan.config.alpha() {
                alphas.insert(site.module.clone(), alpha.into());
            }
        }
        start.config.target_modules = Some(Targets::List(targets));
        (start.config.rank_pattern, start.config.alpha_pattern) = (ranks, alphas);
        start
    }

    fn corda(self) -> Result<RowStart, ModelError> {
        let ToStart { plan, sites, weights, .. } = &self.to_start;
        let config = CordaConfig::of(&plan.config)?;
        let unfit =
            || conflict("as corda over rows whose inputs are no numbers, or over none: look at the data");
        let (covariances, read) = match config.kept_covariances(sites)? {
            Some(kept) => (kept, config.covariance_file.clone()),
            None => {
                let covariances = self.covariances()?.ok_or_else(unfit)?;
                if self.rows.writes {
                    config.keep_covariances(sites, &covariances)?;
                }
                (covariances, None)
            }
        };
        let mut triplets = Vec::with_capacity(sites.len());
        for ((site, covariance), &weight) in sites.iter().zip(covariances).zip(weights) {
            let weight = self.model.host(weight).to_f32();
            triplets.push(covariance.triplets(site, &config, &weight, self.rows.seed).ok_or_else(unfit)?);
        }
        if self.rows.writes {
            config.keep_triplets(sites, &triplets)?;
        }
        Ok(self.to_start.of_triplets(&triplets, read))
    }

    /// Those of what each site reads over all rows; `None` where they are none of numbers.
    fn covariances(&self) -> Result<Option<Vec<Covariance>>, ModelError> {
        let new = |site: &LoraSite| Covariance::new(site.input);
        let mut state: (Vec<Covariance>, bool) = (self.to_start.sites.iter().map(new).collect(), true);
        for row in self.rows.batches.iter().flatten() {
            state = self.listen(
                std::slice::from_ref(row),
                |_| true,
                state,
                |(all, fits), site, x| {
                    *fits &= all[site].add(x);
                },
            )?;
            self.work.advance(1);
        }
        let (covariances, fits) = state;
        Ok(Some(covariances).filter(|_| fits && self.rows.batches.iter().any(|batch| !batch.is_empty())))
    }

    fn lora_ga<E: From<ModelError>>(self, loss: &BatchLoss<'_, E>) -> Result<RowStart, E> {
        let config = LoraGaConfig::of(&self.to_start.plan.config).map_err(ModelError::from)?;
        let mut batches = 0_u32;
        for (number, batch) in self.rows.batches.iter().enumerate() {
            let pass = self.model.decoder.pass(Mode::Train { recompute: true, dropout: None });
            if let Some(loss) = loss(&self.model.decoder, &pass, number)? {
                pass.backward(&loss).map_err(ModelError::from)?;
                batches += 1;
            }
            self.work.advance(batch.len() as u64);
        }
        let mut factors = BTreeMap::new();
        for (site, &weight) in self.to_start.sites.iter().zip(&self.to_start.weights) {
            let Some(gradient) = self.parameters.take_gradient(weight) else {
                return Err(
                    conflict("as lora_ga over rows in which nothing is learned: look at the data").into()
                );
            };
            let gradient: Vec<f32> = gradient.to_f32().iter().map(|g| g / batches as f32).collect();
            let weight = self.model.host(weight).to_f32();
            let made = config.factors(site, &weight, &gradient, self.rows.seed);
            factors.insert(site.module.clone(), Arc::new(made));
        }
        Ok(RowStart { config: self.to_start.plan.config.clone(), factors, read: None })
    }
}
