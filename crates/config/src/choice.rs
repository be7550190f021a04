//! Options that are one of a few words.

use crate::raw::Raw;
use crate::value::{Kind, OptionValue};

/// Declares an enum whose variants are written as words, with other spellings after `|`.
macro_rules! choices {
    ($($(#[doc = $doc:literal])+ $name:ident {
        $($(#[doc = $variant_doc:literal])+ $variant:ident = $word:literal $(| $alias:literal)*,)+
    })+) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[doc = $variant_doc])+ $variant,)+
        }

        impl $name {
            /// Every word, in the order of `--help`.
            pub const WORDS: &'static [&'static str] = &[$($word),+];

            /// The word for this choice.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }

        impl OptionValue for $name {
            const KIND: Kind = Kind::Choice(Self::WORDS);

            fn expected() -> String {
                let (last, rest) = Self::WORDS.split_last().expect("invariant: a choice has words");
                if rest.is_empty() { (*last).into() } else { format!("{} or {last}", rest.join(", ")) }
            }

            fn read(raw: &Raw) -> Option<Self> {
                let of = |word: &str| match word { $($word $(| $alias)* => Some(Self::$variant),)+ _ => None };
                match raw {
                    Raw::Text(word) => of(word),
                    // YAML 1.1 reads a bare `no` as false.
                    Raw::Bool(false) => of("false").or_else(|| of("no")),
                    Raw::Bool(true) => of("true"),
                    _ => None,
                }
            }

            fn write(&self) -> Raw {
                Raw::Text(self.word().into())
            }
        }
    )+};
}

/// How fresh LoRA factors start (PEFT's `init_lora_weights`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LoraInit {
    /// A is Kaiming uniform, B zero: the adapter starts as no change.
    Default,
    /// A is Gaussian with deviation 1/r, B zero.
    Gaussian,
    /// Both factors are random: for tests, the adapter starts as a change.
    Random,
    /// Both factors are random and their product is zero (the rank is even).
    Orthogonal,
    /// The leading singular vectors of the weight, which keeps the rest.
    Pissa,
    /// As `pissa`, by so many iterations of a randomised method: faster, nearly the same.
    PissaNiter(u32),
    /// The leading part of the weight's QR decomposition; the weight keeps the rest.
    Olora,
}

impl std::fmt::Display for LoraInit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("true"),
            Self::Gaussian => f.write_str("gaussian"),
            Self::Random => f.write_str("false"),
            Self::Orthogonal => f.write_str("orthogonal"),
            Self::Pissa => f.write_str("pissa"),
            Self::PissaNiter(n) => write!(f, "pissa_niter_{n}"),
            Self::Olora => f.write_str("olora"),
        }
    }
}

impl OptionValue for LoraInit {
    const KIND: Kind =
        Kind::Choice(&["true", "gaussian", "false", "orthogonal", "pissa", "pissa_niter_N", "olora"]);

    fn expected() -> String {
        "true, gaussian, false, orthogonal, pissa, pissa_niter_N (as in pissa_niter_4) or olora".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        match raw {
            Raw::Bool(true) => Some(Self::Default),
            Raw::Bool(false) => Some(Self::Random),
            Raw::Text(word) => match word.as_str() {
                "true" | "True" => Some(Self::Default),
                "false" | "False" => Some(Self::Random),
                "gaussian" => Some(Self::Gaussian),
                "orthogonal" => Some(Self::Orthogonal),
                "pissa" => Some(Self::Pissa),
                "olora" => Some(Self::Olora),
                _ => Some(Self::PissaNiter(word.strip_prefix("pissa_niter_")?.parse().ok()?)),
            },
            _ => None,
        }
    }

    fn write(&self) -> Raw {
        Raw::Text(self.to_string())
    }
}

choices! {
    /// The element type in which weights are held after loading.
    ModelDtype {
        /// As stored in the folder.
        Auto = "auto",
        /// IEEE single.
        Float32 = "float32" | "fp32" | "f32" | "torch.float32",
        /// Brain float.
        Bfloat16 = "bfloat16" | "bf16" | "torch.bfloat16",
        /// IEEE half.
        Float16 = "float16" | "fp16" | "f16" | "half" | "torch.float16",
    }

    /// What computes.
    DeviceChoice {
        /// A GPU where the build and the machine have what it needs, else the processor.
        Auto = "auto",
        /// The processor.
        Cpu = "cpu",
        /// NVIDIA GPUs: one for each rank, or one that ranks of a process share.
        Cuda = "cuda",
        /// The arithmetic of the GPU path on any graphics driver.
        Wgpu = "wgpu",
    }

    /// How ranks talk.
    Transport {
        /// `mpi` under mpirun; under torchrun `nccl` on GPUs, else `tcp`; `nccl` between threads with a GPU each; else `local`.
        Auto = "auto",
        /// Threads of one process.
        Local = "local",
        /// Processes, over MPI.
        Mpi = "mpi",
        /// Processes that find each other by MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE.
        Tcp = "tcp",
        /// Ranks with a GPU each, threads or processes, whose elements NCCL moves.
        Nccl = "nccl",
    }

    /// When gradients are summed over ranks.
    ReduceWhen {
        /// `step` up to stage 2, `micro_batch` in stage 3.
        Auto = "auto",
        /// Once per optimizer step.
        Step = "step",
        /// In every micro-batch.
        MicroBatch = "micro_batch",
    }

    /// What ranks that share layers sum of adapters.
    AdapterReduce {
        /// What moves fewer elements in a full step.
        Auto = "auto",
        /// The layer's one sum serves its adapter; the whole factor's gradient is summed once per step.
        Fused = "fused",
        /// The adapter's activations of rank r, in every micro-batch.
        RankR = "rank_r",
    }

    /// When something recurring happens.
    Interval {
        /// Never.
        No = "no",
        /// Every so many steps.
        Steps = "steps",
        /// After each epoch.
        Epoch = "epoch",
    }

    /// When a checkpoint is saved.
    SaveInterval {
        /// Never while training; the result is still saved at the end.
        No = "no",
        /// Every so many steps.
        Steps = "steps",
        /// After each epoch.
        Epoch = "epoch",
        /// After each evaluation that is the best so far.
        Best = "best",
    }

    /// The learning rate over the run, after warm-up.
    Scheduler {
        /// Falls in a line to 0.
        Linear = "linear",
        /// Falls along half a cosine to 0.
        Cosine = "cosine",
        /// Stays; no warm-up.
        Constant = "constant",
        /// Stays after a linear warm-up.
        ConstantWithWarmup = "constant_with_warmup",
    }

    /// The optimizer.
    Optimizer {
        /// Adam with decoupled weight decay.
        AdamW = "adamw_torch_fused" | "adamw_torch" | "adamw" | "adamw_hf" | "adamw_apex_fused",
        /// Adam; weight decay is added to the gradient.
        Adam = "adam",
        /// Muon for weight matrices, AdamW for the rest.
        Muon = "muon",
    }

    /// How an update of Muon is scaled by its matrix' shape.
    MuonScale {
        /// 0.2 sqrt(max(out, in)): the size of AdamW's updates.
        MatchRmsAdamw = "match_rms_adamw",
        /// sqrt(max(1, out / in)).
        Original = "original",
        /// sqrt(out / in).
        Spectral = "spectral",
    }

    /// What follows orthogonalisation.
    MuonVariant {
        /// Nothing.
        Muon = "muon",
        /// A second moment per row.
        NorMuon = "normuon",
        /// A second moment per element.
        AdaMuon = "adamuon",
    }

    /// Coefficients of Newton-Schulz.
    MuonCoefficients {
        /// The same quintic in every iteration.
        Quintic = "quintic",
        /// Polar Express: one polynomial per iteration.
        PolarExpress = "polar_express",
    }

    /// The element type of optimizer state.
    SlotDtype {
        /// IEEE single.
        Float32 = "float32" | "fp32" | "f32" | "torch.float32",
        /// Brain float.
        Bfloat16 = "bfloat16" | "bf16" | "torch.bfloat16",
    }

    /// The training loss.
    LossType {
        /// Negative log-likelihood per target token.
        Nll = "nll",
        /// Dynamic fine-tuning: each token's loss is weighted by its own probability.
        Dft = "dft",
        /// The former name of the memory-saving `nll`; the same loss here.
        ChunkedNll = "chunked_nll",
    }

    /// A loss over a pair of a chosen and a rejected completion.
    DpoLoss {
        /// The loss of DPO.
        Sigmoid = "sigmoid",
        /// SLiC's margin.
        Hinge = "hinge",
        /// IPO: a squared distance, per token.
        Ipo = "ipo",
        /// EXO.
        ExoPair = "exo_pair",
        /// NCA.
        NcaPair = "nca_pair",
        /// DPO with labels that may be wrong.
        Robust = "robust",
        /// BCO.
        BcoPair = "bco_pair",
        /// SPPO with hard labels.
        SppoHard = "sppo_hard",
        /// Sorted margins (AOT).
        Aot = "aot",
        /// Sorted rewards (AOT).
        AotUnpaired = "aot_unpaired",
        /// APO: chosen up, rejected down.
        ApoZero = "apo_zero",
        /// APO: both down, rejected more.
        ApoDown = "apo_down",
        /// DiscoPOP.
        Discopop = "discopop",
        /// Likelihood of the chosen completion.
        Sft = "sft",
        /// DPO per token.
        SigmoidNorm = "sigmoid_norm",
    }

    /// How a log-ratio becomes a score.
    FDivergence {
        /// As it is.
        ReverseKl = "reverse_kl",
        /// 1 - e^-r.
        ForwardKl = "forward_kl",
        /// log 2 + log sigmoid(r).
        JsDivergence = "js_divergence",
        /// (e^((a - 1) r) - 1) / (a - 1).
        AlphaDivergence = "alpha_divergence",
    }

    /// The loss of KTO.
    KtoLossType {
        /// With the KL term.
        Kto = "kto",
        /// Without it.
        ApoZeroUnpaired = "apo_zero_unpaired",
    }

    /// GRPO's objective and what it is divided by.
    GrpoLoss {
        /// By each completion's length.
        Grpo = "grpo",
        /// By the tokens of a step.
        Bnpo = "bnpo",
        /// By max_completion_length.
        DrGrpo = "dr_grpo",
        /// By the tokens of a sampled batch.
        Dapo = "dapo",
        /// Clipped weights of the log-probabilities.
        Cispo = "cispo",
        /// A soft gate in place of clipping.
        Sapo = "sapo",
        /// Weights of whole sequences.
        Vespo = "vespo",
        /// Not divided by lengths.
        Luspo = "luspo",
    }

    /// What importance ratios are taken of.
    ImportanceSampling {
        /// Each token.
        Token = "token",
        /// A whole completion: its mean (GSPO).
        Sequence = "sequence",
    }

    /// What advantages are divided by.
    RewardScale {
        /// The group's standard deviation.
        Group = "group" | "true",
        /// The whole batch's.
        Batch = "batch",
        /// Nothing.
        None = "none" | "false",
    }

    /// How several rewards become one advantage.
    RewardAggregation {
        /// Add them up, then compare.
        SumThenNormalize = "sum_then_normalize",
        /// Compare each, then add up.
        NormalizeThenSum = "normalize_then_sum",
    }

    /// How a sampler that is not the model in training is corrected for.
    SamplerCorrectionMode {
        /// Per token, cut to the bounds.
        TokenTruncate = "token_truncate",
        /// Per token, 0 out of bounds.
        TokenMask = "token_mask",
        /// Per completion, cut to the bounds.
        SequenceTruncate = "sequence_truncate",
        /// Per completion, 0 out of bounds.
        SequenceMask = "sequence_mask",
    }

    /// The end of a long row that is cut off.
    Truncation {
        /// The start is kept.
        KeepStart = "keep_start",
        /// The end is kept.
        KeepEnd = "keep_end",
    }

    /// How rows are joined to fill `max_length`.
    PackingStrategy {
        /// Whole rows, best fit decreasing; rows never attend to each other.
        Bfd = "bfd",
        /// As `bfd`, after cutting long rows into pieces instead of truncating them.
        BfdSplit = "bfd_split" | "bfd-requeue",
        /// One stream cut at every `max_length` tokens, across row borders.
        Wrapped = "wrapped",
    }

    /// The order of training rows.
    Sampling {
        /// A fresh random order in each epoch.
        Random = "random",
        /// The order of the file.
        Sequential = "sequential",
    }

    /// Which biases train beside the adapter (PEFT's `bias`).
    BiasTraining {
        /// None.
        None = "none",
        /// Every bias of the model.
        All = "all",
        /// The biases of adapted modules.
        LoraOnly = "lora_only",
    }
}
