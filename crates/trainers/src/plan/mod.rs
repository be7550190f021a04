//! `RunPlan`: bytes and collectives of each rank of a run, before anything is allocated.

pub(crate) mod device_overhead;
pub(crate) mod generation_plan;
mod json;
mod precision_table;
pub(crate) mod roofline;
pub(crate) mod step_passes;
mod table;
mod traffic;

use burnish_comm::{Op, Traffic};
use burnish_config::{PlanOptions, RunOptions};
use burnish_core::{Dtype, Parameter};
use burnish_device::DeviceKind;
use burnish_models::{BlockSizes, INT8, PassKind, PassSize, Texts, rests_in_int8};
use burnish_optim::{Optimizer, SlotScope, SlotSpec, Variant};
use burnish_tp::AdapterSums;
use burnish_zero::{AllToAllPlan, Memory, OrthoCost, Plan, Stage, ZeroError};

use crate::TrainError;
use crate::forward::token_loss::token_metrics;
use crate::plan::device_overhead::{DeviceOverhead, largest_widened, trained_logits};
pub use crate::plan::precision_table::{PrecisionRow, PrecisionTable};
use crate::plan::roofline::{Lines, Passes, Roofline};
use crate::plan::step_passes::StepPasses;
pub(crate) use crate::plan::traffic::moved;
use crate::plan::traffic::{Rollouts, Scoring};
use crate::rank::rank_allocation::{AVERAGES, allocated, traffic_of_allotment};
use crate::rank::tp_gradients::add_step;
use crate::setup::model_setup::ModelSetup;
use crate::setup::reference_folder::is_base;
use crate::setup::sharding::sharding_plan;
use crate::setup::step_size::StepSize;

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
    /// The collectives of a full step among the ranks that share layers, or experts, on the first of them; where tokens are sent
    /// to experts, as many as where every choice of them is as likely as every other. A full step has full
    /// micro-batches, of sequences that are predicted from their second token on: one for each row, two of a pair that
    /// share no prompt.
    pub shared: Traffic,
    /// What the first rank moves in a step to bring Muon's matrices to their owners and back.
    pub exchanged: Traffic,
    /// The collectives of a step that allots AdaLoRA's ranks, beside those of every step.
    pub allotment: Traffic,
    /// How those sum addends of the adapters on the linears of blocks, if there are adapters: fused where they have
    /// magnitudes.
    pub adapters: Option<AdapterSums>,
    /// The whole run.
    pub of: Whole,
    /// In which dtypes its parameters rest, compute and train.
    pub precision: PrecisionTable,
    /// Bytes beside weights while completions are sampled: keys and values, and at stage 3 the weights that are whole then.
    pub sampling: u64,
    /// Tokens of a prompt and of a completion, at most, where a step samples.
    pub rollout: Option<(usize, usize)>,
    /// What a GPU's memory holds beside that, where the options name one.
    pub overhead: Option<DeviceOverhead>,
    /// The time of a step, where the options name a GPU that is known.
    pub roofline: Option<Roofline>,
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
    /// Ranks that have the experts of mixtures between them, and the rest each.
    pub ep_size: usize,
}

impl RunPlan {
    /// The plan of a supervised run that these options describe, for any number of ranks. Reads the model's configuration
    /// and the headers of its files.
    ///
    /// # Errors
    /// If the model or the adapter does not fit.
    pub fn new(options: &PlanOptions) -> Result<Self, TrainError> {
        let PlanOptions {
            model, quantization, data, preparation, lora, training, muon, ranks, logging, ..
        } = options.clone();
        let run = RunOptions {
            model,
            quantization,
            data,
            preparation,
            lora,
            training,
            muon,
            ranks,
            logging,
            reference: None,
        };
        Self::of_step(run, &StepPasses { likelihood: true, ..StepPasses::new(1, &token_metrics()) })
    }

    /// The plan of a run that makes such steps.
    ///
    /// # Errors
    /// If the model or the adapter does not fit.
    pub fn of_step(options: RunOptions, step: &StepPasses) -> Result<Self, TrainError> {
        let setup = ModelSetup::open(options)?;
        Self::of_model(&if step.scores { setup.scoring(None) } else { setup }, step)
    }

    /// The plan of a run of this model that makes such steps.
    pub(crate) fn of_model(setup: &ModelSetup, step: &StepPasses) -> Result<Self, TrainError> {
        let step = &step.clone().with_balance(setup.balance().is_some());
        let RunOptions { model, training, muon, ranks, .. } = &setup.options;
        let mut planned = setup.planned()?;
        let qk_clip = muon.muon_qk_clip.is_some();
        if qk_clip {
            planned.qk_clip()?;
        }
        let (tp_size, sharing) = (ranks.tp_size, ranks.model_parallel_size());
        ranks.whole_groups(ranks.nproc).map_err(|(key, size)| TrainError::ModelParallelSize {
            key,
            size,
            world: ranks.nproc,
        })?;
        let (dp, data) = (ranks.nproc / sharing, ranks.nproc / tp_size);
        let StepSize { rows, tokens, micro_batches, recompute, keeps_attention } = setup.step_size(data);
        let rows_of_step = ranks.global_batch_size.unwrap_or(rows * data * micro_batches);
        let rollouts =
            step.rollout.as_ref().map(|passes| Rollouts::new(passes, rows, (dp, data), rows_of_step));
        let texts = rows * step.texts;
        let (tokens, targets) = match (&rollouts, &step.rollout) {
            (Some(rollouts), Some(passes)) => (rows * rollouts.text(), rows * passes.completion),
            _ => (tokens * step.texts, tokens * step.texts - texts.min(tokens * step.texts)),
        };
        let sums = setup.adapter_sums(data);
        planned = planned.summing(sums);
        // The first rank of those that share layers has the larger part where sizes do not divide.
        let parallel = planned.divided_over([tp_size, ranks.ep_size])?;
        let (muon, global) = (muon.muon(training, model.compute()), planned.registry());
        let plan_of = |tp: usize| setup.sharding(&planned, &parallel.local_registry(global, tp), dp);
        let plan = plan_of(0)?;
        let adam = Optimizer::adamw(plan.registry(), training.adamw()).schema();
        let rule = training.rule();
        let allocated = allocated(planned.plan(), global);
        let slots = |index: usize| {
            let mut slots = match muon.as_ref().filter(|muon| muon.takes(global.at(index))) {
                // NorMuon's is of rows, which are few.
                Some(muon) => {
                    let counted = |held| held == SlotScope::Rows || muon.variant == Variant::AdaMuon;
                    let counted = |(_, held): &(SlotSpec, SlotScope)| counted(*held);
                    muon.slots().into_iter().filter(counted).map(|(spec, _)| spec).collect()
                }
                None => match &rule {
                    Some(rule) => rule.element_slots(global.at(index)),
                    None => adam.clone(),
                },
            };
            if allocated.contains(&index) {
                slots.extend(AVERAGES.map(|name| SlotSpec { name: name.to_owned(), dtype: Dtype::F32 }));
            }
            slots
        };
        let wholes = |p: &Parameter| rule.as_ref().is_some_and(|rule| rule.needs_whole(p));
        let memory = (0..dp).map(|rank| plan.memory(rank, micro_batches, &slots)).collect();
        let mut exchanged = Traffic::default();
        if muon.is_some() || global.trainable().any(wholes) {
            let plans = (1..sharing).map(plan_of).collect::<Result<Vec<_>, _>>()?;
            let plans: Vec<&Plan> = std::iter::once(&plan).chain(&plans).collect();
            let replicas = if plan.policy().stage == Stage::Zero { 1 } else { dp };
            let of = |rank: usize| {
                let (dp, tp) = (rank / sharing, rank % sharing);
                plans[tp].logical_matrices(dp, tp)
            };
            let holdings: Vec<_> = (0..replicas * sharing).map(of).collect();
            let routes =
                AllToAllPlan::new(&holdings, plan.policy().bucket_elements).map_err(ZeroError::from)?;
            exchanged = routes.traffic(0);
        }
        let trained = plan.reads(recompute);
        let packing = plan.packing_of(micro_batches, &trained);
        let mut traffic = plan.traffic_of(micro_batches, &trained);
        if ranks.nproc > 1 {
            traffic.add(Op::AllReduce, Dtype::F64, step.sums.len() as u64, step.sums.iter().sum());
            if step.extremes > 0 {
                traffic.add(Op::AllGather, Dtype::I64, 1, step.extremes * ranks.nproc as u64);
            }
        }
        let spec = setup.folder.spec();
        if ranks.nproc > 1 && qk_clip {
            traffic.add(Op::AllReduce, Dtype::F32, 1, (spec.layers.len() * spec.heads) as u64);
        }
        let heads = if step.scores { texts } else { tokens };
        let texts_run = if rollouts.is_some() { rows } else { texts };
        let stream = tokens + texts_run * planned.virtual_tokens();
        let of_attention = if keeps_attention { spec.attention_bytes(stream, tp_size) } else { 0 };
        let activations = spec.activation_bytes(stream, heads, recompute, tp_size) + of_attention;
        let size = PassSize { tokens, targets, texts: texts_run, recompute };
        let mut estimate = planned.forecast(&parallel, &size, micro_batches);
        add_step(&mut estimate, &parallel, &plan)?;
        let mut shared = estimate.traffic().clone();
        // What runs before, without gradients: the policy's passes, and those of the reference.
        let policy = Scoring { planned: &planned, parallel: &parallel, plan: &plan, base: false };
        let first = step.first * micro_batches;
        shared.merge(&policy.shared((tokens, targets, texts_run), first));
        let mut work = model.device.gpu().map(|gpu| {
            let texts = Texts { texts: texts_run, tokens: tokens / texts_run.max(1), before: 0, targets };
            let mut work = Passes::new(Lines::new(gpu, model.compute()), texts, spec.vocab);
            let likelihood = step.likelihood;
            let kind = PassKind::Training { recompute, keeps_attention, likelihood };
            work.train(&policy, kind, micro_batches);
            if setup.balance().is_some() {
                work.balance(spec, micro_batches);
            }
            work.score(&policy, first);
            work
        });
        let mut reads = policy.reads().repeat(first);
        let mut sampling = 0;
        let mut sampled_reads = Vec::new();
        if let Some(rollouts) = &rollouts {
            shared.merge(&rollouts.sampled(&planned, &parallel));
            if let Some(work) = &mut work {
                rollouts.waves().for_each(|wave| {
                    work.decode((&planned, &parallel), rollouts.decoding(wave), rollouts.batches)
                });
            }
            let whole = plan.policy().stage == Stage::Three && dp > 1;
            if whole {
                traffic.merge(&rollouts.gathered(&plan));
            }
            sampling += held_to_sample(&plan, whole, rollouts.int8());
            // Keys and values are f32.
            let more = spec.attended_dim() - spec.head_dim;
            let keys = |sizes: BlockSizes| sizes.kv_heads.div_ceil(tp_size) * (sizes.head_dim + more);
            let keys: usize = (0..spec.layers.len()).map(|layer| keys(spec.sizes(layer))).sum();
            sampling += rollouts.cache(planned.virtual_tokens(), 8 * keys);
            if rollouts.scored {
                shared.merge(&rollouts.scores_shared(&policy));
                work.iter_mut().for_each(|work| rollouts.scored_by(&policy, work));
                sampled_reads = policy.reads();
            }
            if first > 0 && ranks.nproc > 1 {
                // Entropies of all targets, behind their numbers.
                traffic.add(Op::AllGather, Dtype::I64, 1, data as u64);
                traffic.add(Op::AllGather, Dtype::F32, 1, (data * micro_batches * targets) as u64);
            }
        }
        let passes = step.reference * micro_batches;
        let mut add_reference = |model: &Scoring<'_>, traffic: &mut Traffic| {
            shared.merge(&model.shared((tokens, targets, texts_run), passes));
            work.iter_mut().for_each(|work| work.score(model, passes));
            traffic.merge(&model.plan.traffic_of_reads(&model.reads().repeat(passes)));
            if let Some(rollouts) = &rollouts {
                shared.merge(&rollouts.scores_shared(model));
                work.iter_mut().for_each(|work| rollouts.scored_by(model, work));
                traffic.merge(&rollouts.scores(model.plan, &model.reads()));
            }
        };
        let mut reference = Vec::new();
        match setup.reference.as_ref().filter(|_| step.holds_reference) {
            Some(folder) => {
                let mut other = folder.planned(setup.trained)?;
                let parallel = other.divided_over([tp_size, ranks.ep_size])?;
                let local = parallel.local_registry(other.registry(), 0);
                let own = sharding_plan(&local, other.units(), dp, ranks, |_, _| None)?;
                let plan = if folder.moves { &plan } else { &own };
                reference = (0..dp).map(|rank| held(plan, rank, false)).collect();
                let other = Scoring { planned: &other, parallel: &parallel, plan, base: false };
                add_reference(&other, &mut traffic);
            }
            None if step.holds_reference && is_base(planned.plan(), setup.adapter.is_some()) => {
                // The policy's own weights, in one walk with its first passes.
                let base = Scoring { base: true, ..policy };
                shared.merge(&base.shared((tokens, targets, texts_run), passes));
                work.iter_mut().for_each(|work| work.score(&base, passes));
                reads.splice(0..0, base.reads().repeat(passes));
                if let Some(rollouts) = &rollouts {
                    shared.merge(&rollouts.scores_shared(&base));
                    work.iter_mut().for_each(|work| rollouts.scored_by(&base, work));
                    sampled_reads.extend(base.reads());
                }
            }
            None if step.holds_reference => {
                reference = (0..dp).map(|rank| held(&plan, rank, true)).collect();
                add_reference(&policy, &mut traffic);
            }
            None => {}
        }
        traffic.merge(&plan.traffic_of_reads(&reads));
        if let Some(rollouts) = &rollouts {
            traffic.merge(&rollouts.scores(&plan, &sampled_reads));
        }
        let adapters = (tp_size > 1 && planned.adapts()).then_some(sums);
        let own = planned.registry().iter().filter(|p| p.alias_of.is_none());
        let of = Whole {
            elements: own.map(Parameter::elements).sum(),
            trained: planned.registry().trainable().map(Parameter::elements).sum(),
            ranks: ranks.nproc,
            tp_size,
            ep_size: ranks.ep_size,
        };
        let overhead = (model.device.kind() == Some(DeviceKind::Cuda)).then(|| {
            // Beside the one that is counted with what is gathered.
            let local = parallel.local_registry(planned.registry(), 0);
            let at_once = largest_widened(&local).max(trained_logits(&local, stream));
            DeviceOverhead::new(spec, texts, stream, tp_size, at_once)
        });
        let lines = work.map(|mut work| {
            let flops = |p: &Parameter| OrthoCost::of(muon.as_ref()?, p).map(|cost| cost.flops);
            let owners = if exchanged == Traffic::default() { 1 } else { dp * sharing };
            let newton_schulz = global.iter().filter_map(flops).sum::<f64>() / owners as f64;
            work.update(&plan, micro_batches, &slots, newton_schulz);
            let mut lines = work.finish();
            lines.packing(packing);
            lines.collectives("weights and gradients, moved", &traffic, dp);
            lines.collectives("activations, moved", &shared, sharing);
            lines.collectives("matrices of Muon, moved", &exchanged, ranks.nproc);
            lines
        });
        let precision = PrecisionTable::new(planned.registry(), model.compute(), &slots);
        let allotment = traffic_of_allotment(planned.plan(), ranks.nproc);
        let mut run = Self {
            plan,
            of,
            precision,
            overhead,
            roofline: None,
            micro_batches,
            tokens,
            memory,
            reference,
            activations,
            sampling,
            rollout: step.rollout.as_ref().map(|r| (r.prompt_tokens(), r.completion)),
            traffic,
            shared,
            exchanged,
            allotment,
            adapters,
        };
        if let (Some(gpu), Some(lines)) = (model.device.gpu(), lines) {
            run.roofline = Some(Roofline {
                gpu,
                tokens: ("tokens", (tokens * micro_batches * data) as u64),
                ranks: ranks.nproc,
                lines: lines.finish(),
                memory: run.on_device_at_most(),
            });
        }
        Ok(run)
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

    /// Elements of importance that a step which allots AdaLoRA's ranks moves among all ranks.
    #[must_use]
    pub fn allotment_elements(&self) -> u64 {
        moved(&self.allotment)
    }

    /// Elements of activations and gradients that a full step moves among the ranks that share layers, or experts.
    #[must_use]
    pub fn shared_elements(&self) -> u64 {
        moved(&self.shared)
    }
}

/// Bytes that the first rank holds to sample beside what it keeps: parameters whole where they are `gathered`, a copy in int8
/// where that samples.
fn held_to_sample(plan: &Plan, gathered: bool, int8: bool) -> u64 {
    let bytes = |(index, p): (usize, &Parameter)| {
        let rows = p.shape.first().copied().unwrap_or(1);
        if int8 && rests_in_int8(p) {
            return INT8.bytes(rows, p.elements() / rows.max(1)) as u64;
        }
        let part = gathered && plan.kept_rows(index, 0).len() < rows;
        if part { (p.elements() * p.precision.store.bytes()) as u64 } else { 0 }
    };
    plan.registry().iter().enumerate().filter(|(_, p)| p.alias_of.is_none()).map(bytes).sum()
}

/// What a rank keeps of a reference by `plan`: all of it, or with `trained` what trains, as the rest is the policy's too.
fn held(plan: &Plan, rank: usize, trained: bool) -> Memory {
    let bytes = |index: usize| {
        let parameter = plan.registry().at(index);
        let row: usize = parameter.shape.iter().skip(1).product();
        parameter.stored_bytes(plan.kept_rows(index, rank).len(), row) as u64
    };
    let kept = |p: &Parameter| p.alias_of.is_none() && (!trained || p.trainable);
    let own = (0..plan.registry().len()).filter(|&i| kept(plan.registry().at(i)));
    let gathered = plan.memory(rank, 1, &|_| Vec::new()).gathered;
    Memory { weights: own.map(bytes).sum(), gathered, ..Memory::default() }
}
