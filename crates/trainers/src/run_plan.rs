//! What a run will hold and send on each rank, before anything is allocated.

use std::fmt;

use burnish_comm::{Op, Traffic};
use burnish_config::PlanOptions;
use burnish_core::{Dtype, Parameter};
use burnish_models::{PassSize, Planned};
use burnish_optim::{Held, Optimizer, Variant};
use burnish_peft::AdapterFolder;
use burnish_report::{bytes, count};
use burnish_tp::AdapterSums;
use burnish_zero::{Memory, Plan, Routes, Stage, ZeroError};

use crate::rank::plan;
use crate::shared_layers::add_step;
use crate::step_size::StepSize;
use crate::tuned::{lora_config, open_folder, trained_dtype, tuning};
use crate::window::Sums;
use crate::{TrainError, optimizer};

/// Scalars that the loop sums over ranks in a step: tokens before forward, metrics after backward.
const SCALARS: [u64; 2] = [2, Sums::SCALARS as u64];

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
    /// Bytes of activations of a full micro-batch on one rank; an estimate.
    pub activations: u64,
    /// The collectives of a full step among the ranks that take different rows, and of all ranks' scalars.
    pub traffic: Traffic,
    /// The collectives of a full step among the ranks that share layers, on the first of them. A full step has full
    /// micro-batches, of one sequence per row that is predicted from its second token on.
    pub shared: Traffic,
    /// What the first rank moves in a step to bring Muon's matrices to their owners and back.
    pub exchanged: Traffic,
    /// How those sum addends of the adapters on the linears of blocks, if there are adapters: fused where they have
    /// magnitudes.
    pub adapters: Option<AdapterSums>,
    /// The whole run.
    pub of: Whole,
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
        let PlanOptions { model, lora, training, muon, ranks, preparation, .. } = options;
        let folder = open_folder(model, training)?;
        let adapter = model.adapter_name_or_path.as_ref().map(AdapterFolder::open).transpose()?;
        let config = lora.use_peft.then(|| lora_config(lora, folder.path()));
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
        let step = StepSize::new(training, ranks, preparation, folder.spec(), dp);
        let StepSize { rows, tokens, micro_batches, recompute } = step;
        let sums = step.adapter_sums(ranks, folder.spec());
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
            traffic.add(Op::AllReduce, Dtype::F64, SCALARS.len() as u64, SCALARS.iter().sum());
        }
        let spec = folder.spec();
        if ranks.nproc > 1 && qk_clip {
            traffic.add(Op::AllReduce, Dtype::F32, 1, (spec.layers * spec.heads) as u64);
        }
        let activations = spec.activation_bytes(tokens, tokens, recompute, tp_size);
        let size = PassSize { tokens, targets: tokens - rows.min(tokens), recompute };
        let mut forecast = planned.forecast(&parallel, &size, micro_batches);
        add_step(&mut forecast, &parallel, &plan)?;
        let shared = forecast.traffic().clone();
        let adapters = (tp_size > 1 && planned.adapts()).then_some(sums);
        let own = planned.registry().iter().filter(|p| p.alias_of.is_none());
        let of = Whole {
            elements: own.map(Parameter::elements).sum(),
            trained: planned.registry().trainable().map(Parameter::elements).sum(),
            ranks: ranks.nproc,
            tp_size,
        };
        Ok(Self {
            plan,
            of,
            micro_batches,
            tokens,
            memory,
            activations,
            traffic,
            shared,
            exchanged,
            adapters,
        })
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
        let total = |m: &Memory| m.peak() + self.activations;
        let of = |pick: fn(&Memory) -> u64| {
            let all = || self.memory.iter().map(pick);
            (all().max().unwrap_or(0), all().min().unwrap_or(0))
        };
        writeln!(f, "\nper rank                            most      least")?;
        let mut line = |name: &str, (most, least): (u64, u64)| {
            writeln!(f, "{name:30} {:>10} {:>10}", bytes(most), bytes(least))
        };
        line("weights", of(|m| m.weights))?;
        line("gradients", of(|m| m.gradients))?;
        line("optimizer", of(|m| m.optimizer))?;
        line("gathered weights, at most", of(|m| m.gathered))?;
        line("gradients being summed, at most", of(|m| m.summing))?;
        if self.memory.iter().any(|m| m.updating > 0) {
            line("whole matrices of Muon, at most", of(|m| m.updating))?;
        }
        line("activations, estimated", (self.activations, self.activations))?;
        let sums = || self.memory.iter().map(total);
        line("all together, at most", (sums().max().unwrap_or(0), sums().min().unwrap_or(0)))?;
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
