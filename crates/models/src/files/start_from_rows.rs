//! `RowStart`: what an adapter starts from where that is made of rows of the data, before it trains (EVA, CorDA, LoRA-GA).
//!
//! The base runs over the rows, whole and without an adapter, in this process: every process that does so over the same rows
//! has the same start.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::Device;
use burnish_core::work::{Unit, Work};
use burnish_core::{Compute, Dtype, QuantizeOnLoad};
use burnish_ops::{AnyTensor, Coefficient, OpsError, TokenStats, head_loss, select_rows};
use burnish_peft::{
    CordaConfig, Covariance, Decomposition, Eva, EvaConfig, Init, LoraConfig, LoraGaConfig, LoraPlan,
    LoraSite, ModuleKind, PeftError, Targets,
};
use serde_json::Map;

use crate::{InputTap, LocalParams, Mode, Model, ModelError, ModelFolder, ModelPlan, Tokens, Tuning};

/// Passes over all rows after which vectors of EVA that do not stand still will not.
const MOST_PASSES: usize = 100;

/// A row of the data.
#[derive(Clone, Debug)]
pub struct TokenRow {
    /// Its texts, one or several.
    pub texts: Vec<Vec<u32>>,
    /// A label for each token of all texts, below zero where it is not learned.
    pub labels: Vec<i32>,
}

/// Rows, and how they run.
pub struct RowsToStart<'a> {
    /// The rows that are read.
    pub rows: &'a [TokenRow],
    /// How many run at once where the method does not run them one by one (EVA, LoRA-GA).
    pub batch: usize,
    /// The stored dtype of what trains.
    pub trained: Dtype,
    /// What products multiply.
    pub compute: Compute,
    /// How the base rests.
    pub quantization: Option<QuantizeOnLoad>,
    /// What is random is a function of it.
    pub seed: u64,
}

/// The start of an adapter.
#[derive(Clone, Debug)]
pub struct RowStart {
    /// The adapter's configuration, with the ranks that modules have got (EVA).
    pub config: LoraConfig,
    /// The factors of each linear module.
    pub factors: BTreeMap<String, Arc<Decomposition>>,
}

impl RowStart {
    /// Runs the model of a folder over rows for a fresh adapter; `None` where its start needs none.
    ///
    /// # Errors
    /// If the folder or the adapter does not fit; if the rows say too little: a layer that none of them reaches, batches with
    /// fewer tokens than vectors are wanted, vectors that do not come to stand still.
    pub fn of(
        folder: &ModelFolder,
        config: &LoraConfig,
        rows: &RowsToStart<'_>,
        device: &Device,
    ) -> Result<Option<Self>, ModelError> {
        let Some(init) = config.init_lora_weights.method().filter(|init| init.reads_rows()) else {
            return Ok(None);
        };
        let adapted = ModelPlan::new(folder, &Tuning::NewAdapter(config), rows.trained, rows.seed)?;
        let Some(plan) = adapted.plan().cloned() else { return Ok(None) };
        let sites: Vec<&LoraSite> = plan.sites.iter().filter(|s| s.kind != ModuleKind::Embedding).collect();
        let index = |site: &&LoraSite| adapted.index_of(&site.base_weight());
        let weights: Vec<usize> = sites.iter().map(index).collect::<Result<_, _>>()?;
        let base = ModelPlan::new(folder, &Tuning::None, rows.trained, rows.seed)?;
        let mut base = base.computing(rows.compute);
        if let Some(quantization) = rows.quantization {
            base = base.quantized(quantization, rows.trained)?;
        }
        if init == Init::LoraGa {
            base = base.training_only(&weights);
        }
        let (model, parameters) = base.resident(device)?;
        let work = Work::begin(format!("{init}: reading rows"), Unit::Rows, rows.rows.len() as u64);
        let run =
            Calibration { model, parameters, plan: &plan, sites: &sites, weights: &weights, rows, work };
        match init {
            Init::Eva => run.eva(),
            Init::Corda => run.corda(),
            _ => run.lora_ga(),
        }
        .map(Some)
    }
}

/// A run of the base over rows.
struct Calibration<'a> {
    model: Model,
    parameters: Arc<LocalParams>,
    plan: &'a LoraPlan,
    sites: &'a [&'a LoraSite],
    weights: &'a [usize],
    rows: &'a RowsToStart<'a>,
    work: Work,
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
        let wanted: BTreeSet<usize> = (0..self.sites.len()).filter(|&at| wanted(at)).collect();
        let heard = Arc::new(Heard {
            weights: self.weights.to_vec(),
            widths: self.sites.iter().map(|site| site.input).collect(),
            wanted: wanted.iter().map(|&at| self.weights[at]).collect(),
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
        let config = EvaConfig::of(&self.plan.config)?;
        // Of each batch the tokens that count.
        let counts = |batch: &[TokenRow]| -> Vec<usize> {
            let counts = |label: i32| !config.use_label_mask || i64::from(label) != config.label_mask_value;
            let labels = batch.iter().flat_map(|row| &row.labels).enumerate();
            labels.filter(|(_, label)| counts(**label)).map(|(at, _)| at).collect()
        };
        let batches: Vec<(&[TokenRow], Vec<usize>)> =
            self.rows.rows.chunks(self.rows.batch.max(1)).map(|batch| (batch, counts(batch))).collect();
        let Some((first, _)) = batches.first() else { return Err(conflict("as eva without rows")) };
        let inputs = self.listen(
            first,
            |_| true,
            vec![0_u64; self.sites.len()],
            |inputs, site, x| {
                let mut hasher = DefaultHasher::new();
                x.len().hash(&mut hasher);
                x.iter().for_each(|x| x.to_bits().hash(&mut hasher));
                inputs[site] = hasher.finish();
            },
        )?;
        let ranks: Vec<usize> = self.sites.iter().map(|site| site.rank).collect();
        let mut eva = Eva::new(config, &ranks, &inputs);
        let wide = |(at, site): &(usize, &&LoraSite)| eva.most(*at) > site.input;
        if let Some((at, site)) = self.sites.iter().enumerate().find(wide) {
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
                let wanted: Vec<bool> = (0..self.sites.len()).map(|at| eva.wants(at)).collect();
                let widths = self.sites.iter().map(|site| site.input).collect();
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
        let mut start = RowStart { config: self.plan.config.clone(), factors: BTreeMap::new() };
        let (mut ranks, mut alphas, mut targets) = (Map::new(), Map::new(), Vec::new());
        let mut made = made.into_iter();
        for site in &self.plan.sites {
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
            if rank != self.plan.config.r {
                ranks.insert(site.module.clone(), rank.into());
            }
            if alpha != self.plan.config.alpha() {
                alphas.insert(site.module.clone(), alpha.into());
            }
        }
        start.config.target_modules = Some(Targets::List(targets));
        (start.config.rank_pattern, start.config.alpha_pattern) = (ranks, alphas);
        start
    }

    fn corda(self) -> Result<RowStart, ModelError> {
        let config = CordaConfig::of(&self.plan.config)?;
        let new = |site: &&LoraSite| Covariance::new(site.input);
        let mut state: (Vec<Covariance>, bool) = (self.sites.iter().map(new).collect(), true);
        for row in self.rows.rows {
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
        let unfit =
            || conflict("as corda over rows whose inputs are no numbers, or over none: look at the data");
        if !fits || self.rows.rows.is_empty() {
            return Err(unfit());
        }
        let mut factors = BTreeMap::new();
        for ((site, covariance), &weight) in self.sites.iter().zip(covariances).zip(self.weights) {
            let weight = self.model.host(weight).to_f32();
            let made = covariance.factors(site, config, &weight, self.rows.seed).ok_or_else(unfit)?;
            factors.insert(site.module.clone(), Arc::new(made));
        }
        Ok(RowStart { config: self.plan.config.clone(), factors })
    }

    fn lora_ga(self) -> Result<RowStart, ModelError> {
        let config = LoraGaConfig::of(&self.plan.config)?;
        let mut batches = 0_u32;
        for batch in self.rows.rows.chunks(self.rows.batch.max(1)) {
            batches += u32::from(self.learn(batch)?);
            self.work.advance(batch.len() as u64);
        }
        let mut factors = BTreeMap::new();
        for (site, &weight) in self.sites.iter().zip(self.weights) {
            let Some(gradient) = self.parameters.take_gradient(weight) else {
                return Err(conflict("as lora_ga over rows in which nothing is learned: look at the data"));
            };
            let gradient: Vec<f32> = gradient.to_f32().iter().map(|g| g / batches as f32).collect();
            let weight = self.model.host(weight).to_f32();
            let made = config.factors(site, &weight, &gradient, self.rows.seed);
            factors.insert(site.module.clone(), Arc::new(made));
        }
        Ok(RowStart { config: self.plan.config.clone(), factors })
    }

    /// Adds the gradients of a batch's mean loss; whether it has a token that is learned.
    fn learn(&self, batch: &[TokenRow]) -> Result<bool, ModelError> {
        let tokens = texts(batch);
        let labels: Vec<i32> = batch.iter().flat_map(|row| &row.labels).copied().collect();
        // The tokens before those that are learned, in the same text.
        let before = |d: &Range<usize>| d.start..d.end.max(d.start + 1) - 1;
        let learned = |at: &usize| labels[at + 1] >= 0;
        let rows: Vec<usize> = tokens.documents.iter().flat_map(before).filter(learned).collect();
        if rows.is_empty() {
            return Ok(false);
        }
        let targets: Vec<u32> = rows.iter().map(|&at| tokens.ids[at + 1]).collect();
        let row_ids: Vec<u64> = rows.iter().map(|&at| tokens.rows[at]).collect();
        let decoder = &self.model.decoder;
        let pass = decoder.pass(Mode::Train { recompute: true, dropout: None });
        let by = rows.len() as f32;
        let hidden = select_rows(&decoder.hidden(&tokens, &pass)?, &Arc::new(rows))?;
        let hidden = decoder.final_norm(&hidden, &pass)?;
        let head = decoder.head(&pass, &Arc::new(row_ids))?;
        let coefficient: Coefficient = Arc::new(move |_, _| -1.0 / by);
        let (options, shard) = (decoder.head_options(1.0), decoder.vocab_shard());
        let value = |s: &TokenStats| -s.log_prob.iter().sum::<f32>() / by;
        let (loss, _) = head_loss(&hidden, &head, shard, &Arc::new(targets), options, &coefficient, value)?;
        pass.backward(&loss)?;
        Ok(true)
    }
}
