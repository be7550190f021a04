//! How many ranks, how they talk, and what they share out.

use crate::choice::{AdapterReduce, ReduceWhen, Transport};
use crate::setting::ZeroStage;
use crate::table::options;

options! {
    /// Ranks, and what they share out.
    RankOptions, "Ranks";
    /// Ranks that this process starts as threads; under mpirun the launcher decides.
    Burnish nproc: usize = 1;
    /// How ranks talk: `local` between the threads of one process, `mpi` or `tcp` between processes, `nccl` between GPUs;
    /// `auto` sees mpirun and torchrun, and whether each rank has a GPU.
    Burnish transport: Transport = Transport::Auto;
    /// Ranks that share each layer (tensor parallelism); the others take different rows.
    Transformers tp_size: usize = 1;
    /// What ranks that share layers sum of LoRA adapters: gradients once a step with the layer's own sums (`fused`) or
    /// activations in every micro-batch (`rank_r`); `auto` takes what moves fewer elements. DoRA is always fused.
    Burnish tp_adapter_reduce: AdapterReduce = AdapterReduce::Auto;
    /// What is sharded over ranks: 0 nothing, 1 optimizer state, 2 gradients too, 3 parameters too.
    DeepSpeed zero_stage: ZeroStage = ZeroStage(0);
    /// Rows of an optimizer step on all ranks together; fixes batches and their order whatever the number of ranks.
    Burnish global_batch_size: Option<usize> = None;
    /// When gradients are summed over ranks: each `step`, or each `micro_batch` (less memory with accumulation, more
    /// traffic); `auto` is micro_batch in stage 3.
    Burnish zero_reduce: ReduceWhen = ReduceWhen::Auto;
    /// Parameters with fewer elements stay whole on every rank in stage 3.
    DeepSpeed stage3_param_persistence_threshold: usize = 100_000;
    /// Gather the next block's parameters while this one computes, in stage 3.
    Burnish stage3_prefetch: bool = true;
    /// Keep the gathered embedding and head from forward to the end of backward, in stage 3.
    Burnish stage3_keep_root: bool = true;
    /// The most elements of one collective on gradients or parameters; a larger parameter has one of its own.
    DeepSpeed reduce_bucket_size: usize = 16_777_216;
    /// Seconds to wait for another rank before the run fails.
    Transformers ddp_timeout: f64 = 1800.0;
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
    /// Seconds to wait for another rank before the run fails.
    Transformers ddp_timeout: f64 = 1800.0;
}

impl InferenceRankOptions {
    /// The same ranks as a training command has them.
    #[must_use]
    pub fn ranks(&self) -> RankOptions {
        let Self { nproc, transport, tp_size, ddp_timeout } = self.clone();
        RankOptions { nproc, transport, tp_size, ddp_timeout, ..RankOptions::default() }
    }
}
