//! What a run will hold and send on each rank, before anything is allocated.

use std::fmt;

use burnish_comm::{Op, Traffic};
use burnish_config::{DeviceChoice, PlanOptions, RunOptions};
use burnish_core::{Dtype, Parameter};
use burnish_models::{ModelFolder, Parallel, PassSize, Planned, ScoreSize, Tuning};
use burnish_optim::{Held, Optimizer, Variant};
use burnish_peft::AdapterFolder;
use burnish_report::{bytes, count};
use burnish_tp::AdapterSums;
use burnish_zero::{Memory, Plan, Routes, Stage, ZeroError};

use crate::device_overhead::DeviceOverhead;
use crate::planned_step::{PlanOf, PlannedStep, run_options};
use crate::rank::plan;
use crate::reference::is_base;
use crate::shared_layers::add_step;
use crate::step_size::StepSize;
use crate::tuned::{lora_config, open_folder, trained_dtype, tuning};
use crate::{TrainError, optimizer};

/// The plan of a fine-tuning run.
#[derive(Clone, Debug)]
pub struct RunPlan {
    /// Who owns what.
    pub plan: Plan,
    /// Micro-batches of a full step on each rank.
    pub micro_batches: usize,
    /// Tokens of a full micro-batch.
    pub tokens: usize,
    /// Each rank's bytes, activations aside.
    pub memory: Vec<Memory>,
    /// Each rank's bytes of the reference, where that is a copy or another model that is there during the step: its weights,
    /// and the most that it gathers of them, in passes that are over when those with gradients begin.
    pub reference: Vec<Memory>,
    /// Bytes of activations of a full micro-batch on one rank; an estimate.
    pub activations: u64,
    /// The collectives of a full step among the ranks that take different rows, and of all ranks' scalars.
    pub traffic: Traffic,
    /// The collectives of a full step among the ranks that share layers, on the first of them. A full step has full
    /// micro-batches, of sequences that are predicted from their second token on: one for each row, two of a pair that
    /// share no prompt.
    pub shared: Traffic,
    /// What the first rank moves in a step to bring Muon's matrices to their owners and back.
    pub exchanged: Traffic,
    /// How those sum addends of the adapters on the linears of blocks, if there are adapters: fused where they have
    /// magnitudes.
    pub adapters: Option<AdapterSums>,
    /// The whole run.
    pub of: Whole,
    /// What a GPU's memory holds beside that, where the options name one.
    pub overhead: Option<DeviceOverhead>,
}

/// What a [`RunPlan`] shares out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Elements of all parameters.
    pub elements: usize,
    /// Of those, the trained ones.
    pub trained: usize,
    /// All ranks.
    pub ranks: usize,
    /// Ranks that share each layer.
    pub tp_size: usize,
}

impl RunPlan {
    /// The plan of the run that these options describe, for any number of ranks. Reads the model's configuration and the
    /// headers of its files.
    ///
    /// # Errors
    /// If the model or the adapter does not fit.
    pub fn new(options: &PlanOptions) -> Result<Self, TrainError> {
        Self::of_step(&PlannedStep::supervised(run_options(options)))
    }

    /// The plan of a trainer's run, as [`Self::new`] makes that of `sft`.
    ///
    /// # Errors
    /// As there; if the options of the loss contradict each other.
    pub fn of(options: PlanOf<'_>) -> Result<Self, TrainError> {
        Self::of_step(&PlannedStep::of(options)?)
    }

    pub(crate) fn of_step(step: &PlannedStep) -> Result<Self, TrainError> {
        let RunOptions { model, lora, training, muon, ranks, preparation, .. } = &step.run;
        let mut folder = open_folder(model, training)?;
        let adapter = model.adapter_name_or_path.as_ref().map(AdapterFolder::open).transpose()?;
        let mut config = lora.use_peft.then(|| lora_config(lora, folder.path()));
        if step.scores {
            folder = folder.into_scorer();
            config.iter_mut().for_each(|config| config.task_type = Some("SEQ_CLS".to_owned()));
        }
        let tuning = tuning(adapter.as_ref(), config.as_ref());
        let mut planned = Planned::new(&folder, &tuning, trained_dtype(model, training), training.seed)?;
        if muon.muon_per_head {
            planned.split_heads();
        }
        let qk_clip = muon.muon_qk_clip.is_some();
        if qk_clip {
            planned.qk_clip()?;
        }
        let tp_size = ranks.tp_size;
        if !ranks.nproc.is_multiple_of(tp_size) {
            return Err(TrainError::TpSize { tp_size, world: ranks.nproc });
        }
        let dp = ranks.nproc / tp_size;
        let size = StepSize::new(training, ranks, preparation, folder.spec(), dp);
        let StepSize { rows, tokens, micro_batches, recompute } = size;
        let (texts, tokens) = (rows * step.texts, tokens * step.texts);
        let sums = size.adapter_sums(ranks, folder.spec());
        planned = planned.summing(sums);
        // The first rank of those that share layers has the larger part where sizes do not divide.
        let parallel = planned.divided(tp_size)?;
        let (muon, global) = (optimizer::muon(training, muon), planned.registry());
        let plan_of = |tp: usize| {
            let local = parallel.local_registry(global, tp);
            let work = |index: usize, _: &Parameter| optimizer::work(muon.as_ref(), global.at(index));
            plan(&local, planned.units(), dp, ranks, work)
        };
        let plan = plan_of(0)?;
        let adam = Optimizer::adamw(plan.registry(), optimizer::adamw(training)).schema();
        let slots = |index: usize| match muon.as_ref().filter(|muon| muon.takes(global.at(index))) {
            // NorMuon's is of rows, which are few.
            Some(muon) => {
                let counted = |held| held == Held::Rows || muon.variant == Variant::AdaMuon;
                muon.slots().into_iter().filter(|(_, held)| counted(*held)).map(|(spec, _)| spec).collect()
            }
            None => adam.clone(),
        };
        let memory = (0..dp).map(|rank| plan.memory(rank, micro_batches, &slots)).collect();
        let mut exchanged = Traffic::default();
        if let Some(muon) = &muon {
            let plans = (1..tp_size).map(plan_of).collect::<Result<Vec<_>, _>>()?;
            let plans: Vec<&Plan> = std::iter::once(&plan).chain(&plans).collect();
            let replicas = if plan.policy().stage == Stage::Zero { 1 } else { dp };
            let of = |rank: usize| {
                let (dp, tp) = (rank / tp_size, rank % tp_size);
                optimizer::holdings(global, muon, plans[tp], dp, Some((&parallel, tp)))
            };
            let holdings: Vec<_> = (0..replicas * tp_size).map(of).collect();
            let routes = Routes::new(&holdings, plan.policy().bucket_elements).map_err(ZeroError::from)?;
            exchanged = routes.traffic(0);
        }
        let mut traffic = plan.traffic_of(micro_batches, &plan.reads(recompute));
        if ranks.nproc > 1 {
            traffic.add(Op::AllReduce, Dtype::F64, step.scalars.len() as u64, step.scalars.iter().sum());
            if step.extremes > 0 {
                traffic.add(Op::AllGather, Dtype::I64, 1, step.extremes * ranks.nproc as u64);
            }
        }
        let spec = folder.spec();
        if ranks.nproc > 1 && qk_clip {
            traffic.add(Op::AllReduce, Dtype::F32, 1, (spec.layers * spec.heads) as u64);
        }
        let heads = if step.scores { texts } else { tokens };
        let activations = spec.activation_bytes(tokens, heads, recompute, tp_size);
        let targets = tokens - texts.min(tokens);
        let size = PassSize { tokens, targets, recompute };
        let mut forecast = planned.forecast(&parallel, &size, micro_batches);
        add_step(&mut forecast, &parallel, &plan)?;
        let mut shared = forecast.traffic().clone();
        // What runs before, without gradients.
        let ahead = Ahead { tokens, targets, passes: step.referred * micro_batches };
        let first = Ahead { passes: step.first * micro_batches, ..ahead };
        let mut reads = plan.units_of(&planned.reads(true)).repeat(first.passes);
        merge(&mut shared, &first.forecast(&planned, &parallel, false));
        let mut reference = Vec::new();
        let other = step.run.reference.as_ref().and_then(|r| Some((r.ref_model_name_or_path.as_ref()?, r)));
        match other.filter(|_| step.compares) {
            Some((path, options)) => {
                let folder = ModelFolder::open(path)?;
                let moves = options.sync_ref_model;
                let tuning = if moves { Tuning::Full } else { Tuning::None };
                let mut other = Planned::new(&folder, &tuning, trained_dtype(model, training), 0)?;
                let parallel = other.divided(tp_size)?;
                let local = parallel.local_registry(other.registry(), 0);
                let own = crate::rank::plan(&local, other.units(), dp, ranks, |_, _| None)?;
                let plan = if moves { &plan } else { &own };
                reference = (0..dp).map(|rank| held(plan, rank, false)).collect();
                merge(
                    &mut traffic,
                    &plan.traffic_of_reads(&plan.units_of(&other.reads(true)).repeat(ahead.passes)),
                );
                merge(&mut shared, &ahead.forecast(&other, &parallel, false));
            }
            None if step.compares && is_base(planned.plan(), adapter.is_some()) => {
                // The policy's own weights, in one walk with its first passes.
                let base = plan.units_of(&planned.reads(false)).repeat(ahead.passes);
                reads.splice(0..0, base);
                merge(&mut shared, &ahead.forecast(&planned, &parallel, true));
            }
            None if step.compares => {
                reference = (0..dp).map(|rank| held(&plan, rank, true)).collect();
                merge(
                    &mut traffic,
                    &plan.traffic_of_reads(&plan.units_of(&planned.reads(true)).repeat(ahead.passes)),
                );
                merge(&mut shared, &ahead.forecast(&planned, &parallel, false));
            }
            None => {}
        }
        merge(&mut traffic, &plan.traffic_of_reads(&reads));
        let adapters = (tp_size > 1 && planned.adapts()).then_some(sums);
        let own = planned.registry().iter().filter(|p| p.alias_of.is_none());
        let of = Whole {
            elements: own.map(Parameter::elements).sum(),
            trained: planned.registry().trainable().map(Parameter::elements).sum(),
            ranks: ranks.nproc,
            tp_size,
        };
        let overhead =
            (model.device == DeviceChoice::Cuda).then(|| DeviceOverhead::new(spec, texts, tokens, tp_size));
        Ok(Self {
            plan,
            of,
            overhead,
            micro_batches,
            tokens,
            memory,
            reference,
            activations,
            traffic,
            shared,
            exchanged,
            adapters,
        })
    }

    /// What each rank holds, as a table.
    #[must_use]
    pub fn held(&self) -> String {
        // A reference has gathered nothing any more when gradients begin.
        let total = |at: usize| {
            let (own, other) = (self.memory[at], self.reference.get(at).copied().unwrap_or_default());
            other.weights + (own.peak() + self.activations).max(own.rest() + own.gathered + other.gathered)
        };
        let of = |pick: fn(&Memory) -> u64| {
            let all = || self.memory.iter().map(pick);
            (all().max().unwrap_or(0), all().min().unwrap_or(0))
        };
        let mut table = String::from("per rank                            most      least\n");
        let mut line = |name: &str, (most, least): (u64, u64)| {
            table.push_str(&format!("{name:30} {:>10} {:>10}\n", bytes(most), bytes(least)));
        };
        line("weights", of(|m| m.weights));
        if !self.reference.is_empty() {
            let all = || self.reference.iter().map(|m| m.weights);
            line("reference", (all().max().unwrap_or(0), all().min().unwrap_or(0)));
        }
        line("gradients", of(|m| m.gradients));
        line("optimizer", of(|m| m.optimizer));
        line("gathered weights, at most", of(|m| m.gathered));
        line("gradients being summed, at most", of(|m| m.summing));
        if self.memory.iter().any(|m| m.updating > 0) {
            line("whole matrices of Muon, at most", of(|m| m.updating));
        }
        line("activations, estimated", (self.activations, self.activations));
        let sums = || (0..self.memory.len()).map(total);
        let (most, least) = (sums().max().unwrap_or(0), sums().min().unwrap_or(0));
        let Some(overhead) = self.overhead else {
            line("all together, at most", (most, least));
            return table;
        };
        line("CUDA context and kernels, about", (overhead.context, overhead.context));
        line("blocks of logits and scores", (overhead.workspace, overhead.workspace));
        let pages = |held: u64| overhead.pages(held);
        line("pages kept by the allocator", (pages(most), pages(least)));
        let all = |held: u64| held + overhead.context + overhead.workspace + pages(held);
        line("all together, at most", (all(most), all(least)));
        table
    }

    /// Elements of weights and gradients that a full step moves among the ranks that take different rows.
    #[must_use]
    pub fn elements(&self) -> u64 {
        moved(&self.traffic)
    }

    /// Elements of updates and of what becomes of them that the first rank sends to owners of matrices and back.
    #[must_use]
    pub fn exchanged_elements(&self) -> u64 {
        moved(&self.exchanged)
    }

    /// Elements of activations and gradients that a full step moves among the ranks that share layers.
    #[must_use]
    pub fn shared_elements(&self) -> u64 {
        moved(&self.shared)
    }
}

/// What a rank keeps of a reference by `plan`: all of it, or with `trained` what trains, as the rest is the policy's too.
fn held(plan: &Plan, rank: usize, trained: bool) -> Memory {
    let bytes = |index: usize| {
        let parameter = plan.registry().at(index);
        let row: usize = parameter.shape.iter().skip(1).product();
        (plan.kept_rows(index, rank).len() * row * parameter.precision.store.bytes()) as u64
    };
    let kept = |p: &Parameter| p.alias_of.is_none() && (!trained || p.trainable);
    let own = (0..plan.registry().len()).filter(|&i| kept(plan.registry().at(i)));
    let gathered = plan.memory(rank, 1, &|_| Vec::new()).gathered;
    Memory { weights: own.map(bytes).sum(), gathered, ..Memory::default() }
}

fn merge(traffic: &mut Traffic, more: &Traffic) {
    more.rows().for_each(|(key, row)| traffic.add(key.op, key.dtype, row.calls, row.elements));
}

/// Passes without gradients over full micro-batches.
#[derive(Clone, Copy)]
struct Ahead {
    tokens: usize,
    targets: usize,
    passes: usize,
}

impl Ahead {
    /// What they move over ranks that share layers.
    fn forecast(self, planned: &Planned<'_>, parallel: &Parallel, base: bool) -> Traffic {
        let size = ScoreSize { tokens: self.tokens, targets: self.targets, base };
        planned.forecast_scores(parallel, &size, self.passes).traffic().clone()
    }
}

/// Elements of weights and gradients among what was moved: not scalars and flags.
pub(crate) fn moved(traffic: &Traffic) -> u64 {
    let carried = |dtype: Dtype| matches!(dtype, Dtype::F32 | Dtype::Bf16 | Dtype::F16);
    traffic.rows().filter(|(key, _)| carried(key.dtype)).map(|(_, row)| row.elements).sum()
}

/// The table of `burnish plan`.
impl fmt::Display for RunPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Whole { elements: all, trained, ranks, tp_size } = self.of;
        writeln!(
            f,
            "{} parameters, {} train; {ranks} rank{}{}, ZeRO stage {}; {} micro-batch{} of {} tokens a step",
            count(all as u64),
            count(trained as u64),
            if ranks == 1 { "" } else { "s" },
            if tp_size == 1 { String::new() } else { format!(" ({tp_size} share each layer)") },
            self.plan.policy().stage,
            self.micro_batches,
            if self.micro_batches == 1 { "" } else { "es" },
            self.tokens,
        )?;
        write!(f, "\n{}", self.held())?;
        if self.of.ranks == 1 {
            return writeln!(f, "\nOne rank sends nothing.");
        }
        let table = |f: &mut fmt::Formatter<'_>, title: &str, traffic: &Traffic| {
            writeln!(f, "\n{title:36} calls     elements")?;
            traffic.rows().try_for_each(|(key, row)| {
                let name = format!("{} of {}", key.op, key.dtype);
                writeln!(f, "{name:30} {:>11} {:>12}", row.calls, row.elements)
            })
        };
        if tp_size > 1 {
            table(f, "per step, where layers are shared", &self.shared)?;
            let elements = self.shared_elements();
            writeln!(f, "activations and gradients: {elements} elements in full micro-batches")?;
            if let Some(AdapterSums { colwise, rowwise }) = self.adapters {
                writeln!(
                    f,
                    "adapters: {colwise} with column-parallel layers, {rowwise} with row-parallel ones"
                )?;
            }
        }
        if self.exchanged.rows().next().is_some() {
            table(f, "per step, Muon's matrices", &self.exchanged)?;
            writeln!(f, "updates: {} elements sent by the first rank", self.exchanged_elements())?;
        }
        if self.plan.world() == 1 {
            return Ok(());
        }
        table(f, "per step", &self.traffic)?;
        let shares = self.elements() as f64 / (trained as f64).max(1.0);
        writeln!(
            f,
            "weights and gradients: {} elements, {shares:.2} times the trained parameters",
            self.elements()
        )
    }
}
