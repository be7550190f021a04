//! Options of ranks: their number, transport, ZeRO stage and tensor-parallel size.

use std::path::PathBuf;

use burnish_core::Dtype;
use burnish_tp::AdapterReduce;
use burnish_zero::{Policy, ReduceWhen, Stage};

use crate::checks::{AT_LEAST_1, Checks};
use crate::choice::{Auto, Transport};
use crate::groups::{ModelOptions, TrainingOptions};
use crate::setting::ModelDtype;
use crate::table::options;

/// Most seconds to wait: published configurations say 180000000 for "as long as it takes".
pub(crate) const MOST_SECONDS: f64 = 1e9;

options! {
    /// Ranks, and what they share out.
    RankOptions, "Ranks";
    /// Ranks that this process starts as threads; under mpirun the launcher decides.
    Burnish nproc: usize = 1;
    /// Keep each rank of this machine, and its threads, to cores of its own, those of a NUMA node together; by default the
    /// threads of a rank are then as many as its cores. Launchers that bind by themselves (mpirun, srun) need it not.
    DeepSpeed bind_cores_to_rank: bool = false;
    /// The cores to share out then, such as `0-27,32-59`; by default all that this process may run on, one hardware thread
    /// of each.
    DeepSpeed bind_core_list: Option<String> = None;
    /// How ranks talk: `local` between the threads of one process, `mpi` or `tcp` between processes, `nccl` between GPUs;
    /// `auto` sees mpirun and torchrun, and whether each rank has a GPU.
    Burnish transport: Transport = Transport::Auto;
    /// Ranks that share each layer (tensor parallelism); the others take different rows.
    Transformers tp_size: usize = 1;
    /// With `tp_size`, each rank has some experts of a mixture whole (expert parallelism) instead of a part of every one.
    Transformers enable_expert_parallel: bool = false;
    /// Ranks that have the experts of a mixture between them, and each all other layers and rows of its own: tokens are sent
    /// to their experts and back (expert parallelism without `tp_size`).
    DeepSpeed ep_size: usize = 1;
    /// What ranks that share layers sum of LoRA adapters: gradients once a step with the layer's own sums (`fused`) or
    /// activations in every micro-batch (`rank_r`); `auto` takes what moves fewer elements. DoRA is always fused.
    Burnish tp_adapter_reduce: AdapterReduce = AdapterReduce::Auto;
    /// What is sharded over ranks: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too.
    DeepSpeed zero_stage: Stage = Stage::Zero;
    /// Rows of an optimizer step on all ranks together; fixes batches and their order whatever the number of ranks.
    Burnish global_batch_size: Option<usize> = None;
    /// When gradients are summed over ranks: each `step`, or each `micro_batch` (less memory with accumulation, more
    /// traffic); `auto` is micro_batch in stage 3.
    Burnish zero_reduce: Auto<ReduceWhen> = Auto(None);
    /// Parameters with fewer elements stay whole on every rank in stage 3.
    DeepSpeed stage3_param_persistence_threshold: usize = 100_000;
    /// Gather the next block's parameters while this one computes, in stage 3.
    Burnish stage3_prefetch: bool = true;
    /// Keep the gathered embedding and head from forward to the end of backward, in stage 3.
    Burnish stage3_keep_root: bool = true;
    /// The most elements of one collective on gradients or parameters; a larger parameter has one of its own.
    DeepSpeed reduce_bucket_size: usize = 16_777_216;
    /// Seconds to wait for another rank, when ranks meet and whenever they exchange something, before the run fails.
    Transformers ddp_timeout: f64 = 1800.0;
    /// A file with the secret by which ranks over `tcp` (and `nccl` across processes) know each other, the same on every
    /// machine; or the variable BURNISH_DDP_SECRET. Ranks on one machine need none.
    Burnish ddp_secret_file: Option<PathBuf> = None;
    /// Hide what ranks over `tcp` say to each other from who reads the network, on all ranks alike; or the variable
    /// BURNISH_DDP_ENCRYPTION=1. `mpi` and `nccl`, which trust their network, are refused with it.
    Burnish ddp_encryption: bool = false;
}

options! {
    /// Ranks of a command that trains nothing: some share each layer, the others take different rows.
    InferenceRankOptions, "Ranks";
    /// Ranks that this process starts as threads; under mpirun the launcher decides.
    Burnish nproc: usize = 1;
    /// How ranks talk: `local` between the threads of one process, `mpi` or `tcp` between processes, `nccl` between GPUs;
    /// `auto` sees mpirun and torchrun, and whether each rank has a GPU.
    Burnish transport: Transport = Transport::Auto;
    /// Ranks that share each layer (tensor parallelism); the others take different rows.
    Transformers tp_size: usize = 1;
    /// With `tp_size`, each rank has some experts of a mixture whole (expert parallelism) instead of a part of every one.
    Transformers enable_expert_parallel: bool = false;
    /// Seconds to wait for another rank, when ranks meet and whenever they exchange something, before the run fails.
    Transformers ddp_timeout: f64 = 1800.0;
    /// A file with the secret by which ranks over `tcp` (and `nccl` across processes) know each other, the same on every
    /// machine; or the variable BURNISH_DDP_SECRET. Ranks on one machine need none.
    Burnish ddp_secret_file: Option<PathBuf> = None;
    /// Hide what ranks over `tcp` say to each other from who reads the network, on all ranks alike; or the variable
    /// BURNISH_DDP_ENCRYPTION=1. `mpi` and `nccl`, which trust their network, are refused with it.
    Burnish ddp_encryption: bool = false;
}

impl InferenceRankOptions {
    /// The same ranks as a training command has them.
    #[must_use]
    pub fn ranks(&self) -> RankOptions {
        let Self {
            nproc,
            transport,
            tp_size,
            enable_expert_parallel,
            ddp_timeout,
            ddp_secret_file,
            ddp_encryption,
        } = self.clone();
        RankOptions {
            nproc,
            transport,
            tp_size,
            enable_expert_parallel,
            ddp_timeout,
            ddp_secret_file,
            ddp_encryption,
            ..RankOptions::default()
        }
    }
}

impl RankOptions {
    /// Ranks that have one model between them: each layer of it, or its experts.
    #[must_use]
    pub fn model_parallel_size(&self) -> usize {
        self.tp_size * self.ep_size
    }

    /// That `ranks` ranks make whole groups of these.
    ///
    /// # Errors
    /// The option that does not divide them, and what it says.
    pub fn whole_groups(&self, ranks: usize) -> Result<(), (&'static str, usize)> {
        let (key, size) = match (self.tp_size, self.ep_size) {
            (tp_size, 1) => ("tp_size", tp_size),
            (1, ep_size) => ("ep_size", ep_size),
            _ => ("tp_size times ep_size", self.model_parallel_size()),
        };
        if ranks.is_multiple_of(size.max(1)) { Ok(()) } else { Err((key, size)) }
    }

    /// What ranks that take different rows share out.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let policy = Policy::new(self.zero_stage);
        Policy {
            reduce: self.zero_reduce.0.unwrap_or(policy.reduce),
            persist_below: self.stage3_param_persistence_threshold,
            keep_root: self.stage3_keep_root,
            bucket_elements: self.reduce_bucket_size,
            prefetch: self.stage3_prefetch,
            ..policy
        }
    }

    pub(crate) fn rules(&self, model: &ModelOptions, training: &TrainingOptions, checks: &mut Checks<'_>) {
        launched(self.nproc, self.tp_size, self.enable_expert_parallel, checks);
        checks.range("ep_size", self.ep_size >= 1, AT_LEAST_1);
        if self.nproc > 1 && self.ep_size > 1 && self.whole_groups(self.nproc).is_err() {
            checks.conflict(
                "ep_size",
                format!("nproc: {}", self.nproc),
                "make nproc a multiple of ep_size, and of tp_size times ep_size: so many ranks hold one model",
            );
        }
        if self.bind_core_list.is_some() && !self.bind_cores_to_rank {
            checks.conflict("bind_core_list", "bind_cores_to_rank: false", "say bind_cores_to_rank too");
        }
        if self.bind_cores_to_rank && self.nproc > 1 && model.threads.is_some() {
            let mend = "each rank has a thread for each of its cores: say how many by bind_core_list";
            checks.conflict("threads", "bind_cores_to_rank", mend);
        }
        checks.range("global_batch_size", self.global_batch_size != Some(0), AT_LEAST_1);
        checks.range("reduce_bucket_size", self.reduce_bucket_size >= 1, AT_LEAST_1);
        waiting(self.ddp_timeout, checks);
        if self.global_batch_size.is_some() && checks.is_given("gradient_accumulation_steps") {
            checks.conflict(
                "global_batch_size",
                "gradient_accumulation_steps",
                "keep one of the two: the accumulation follows from the global batch and the number of ranks",
            );
        }
        if self.zero_stage < Stage::Two && self.zero_reduce.0 == Some(ReduceWhen::MicroBatch) {
            checks.conflict(
                "zero_reduce",
                format!("zero_stage: {}", self.zero_stage),
                "stages 0 and 1 keep whole gradients, so summing them more often saves nothing: leave it out",
            );
        }
        if training.fp16 && model.bf16 == Some(true) {
            checks.conflict("fp16", "bf16: true", "keep one of the two");
        }
        if training.fp16 && model.dtype == ModelDtype(Some(Dtype::Bf16)) {
            checks.conflict(
                "fp16",
                "dtype: bfloat16",
                "fp16 holds trained matrices in float16, beside their masters in float32: leave dtype out",
            );
        }
    }
}

impl InferenceRankOptions {
    pub(crate) fn rules(&self, checks: &mut Checks<'_>) {
        launched(self.nproc, self.tp_size, self.enable_expert_parallel, checks);
        waiting(self.ddp_timeout, checks);
    }
}

/// Ranks in whole groups that share layers.
fn launched(nproc: usize, tp_size: usize, expert_parallel: bool, checks: &mut Checks<'_>) {
    if expert_parallel && tp_size <= 1 {
        checks.conflict(
            "enable_expert_parallel",
            format!("tp_size: {tp_size}"),
            "say how many ranks have a mixture's experts between them: tp_size",
        );
    }
    checks.range("nproc", nproc >= 1, AT_LEAST_1);
    checks.range(
        "nproc",
        nproc <= 1024,
        "at most 1024 threads; more ranks are processes: mpirun or torchrun's variables",
    );
    checks.range("tp_size", tp_size >= 1, AT_LEAST_1);
    if nproc > 1 && !nproc.is_multiple_of(tp_size.max(1)) {
        let with = format!("nproc: {}", nproc);
        checks.conflict(
            "tp_size",
            with,
            "make nproc a multiple of tp_size: each group of tp_size ranks holds one model",
        );
    }
}

fn waiting(ddp_timeout: f64, checks: &mut Checks<'_>) {
    let waits = ddp_timeout > 0.0 && ddp_timeout <= MOST_SECONDS;
    checks.range("ddp_timeout", waits, "a number of seconds above 0, at most 1000000000");
}
