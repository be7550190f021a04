//! Options that are one of a few words. The enums and their words are their owners'; those of the loop are here.

use burnish_core::{Choice, FourBit, UnknownWord, alternatives, choices};
use burnish_data::{Order, Strategy, Truncation};
use burnish_gguf::OutType;
use burnish_losses::{
    Aggregation, CorrectionMode, CpoLoss, Divergence, ImportanceLevel, KtoLoss, PolicyLoss, PreferenceLoss,
    ScaleRewards, TokenLoss,
};
use burnish_ops::Polynomials;
use burnish_optim::{MomentumDtype, OptimizerName, Scale, ScheduleKind, Variant};
use burnish_peft::{Bias, CombinationType, MajoritySign, PeftType};
use burnish_tp::AdapterReduce;

use crate::raw::Raw;
use crate::value::{OptionValue, ValueKind, list};

choices! {
    /// How ranks talk.
    pub enum Transport: "transport", UnknownWord {
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

    /// What `export` writes.
    pub enum ExportFormat: "format", UnknownWord {
        /// One file for llama.cpp and what is built on it.
        Gguf = "gguf",
        /// An adapter's folder with factors of each expert, as vLLM reads them.
        PerExpert = "per_expert",
    }

    /// When something recurring happens (Transformers' `IntervalStrategy`).
    pub enum Interval: "eval_strategy", UnknownWord {
        /// Never.
        No = "no",
        /// Every so many steps.
        Steps = "steps",
        /// After each epoch.
        Epoch = "epoch",
    }

    /// When a checkpoint is saved (Transformers' `SaveStrategy`).
    pub enum SaveInterval: "save_strategy", UnknownWord {
        /// Never while training; the result is still saved at the end.
        No = "no",
        /// Every so many steps.
        Steps = "steps",
        /// After each epoch.
        Epoch = "epoch",
        /// After each evaluation that is the best so far.
        Best = "best",
    }

    /// What completions are sampled from while training.
    pub enum RolloutQuantization: "rollout_quantization", UnknownWord {
        /// The model as it trains.
        None = "none",
        /// A copy of it, the matrices of whose blocks are in int8, and so are products with the newest tokens.
        Int8 = "int8",
    }

    /// What push_to_hub uploads while training (Transformers' `HubStrategy`).
    pub enum HubStrategy: "hub_strategy", UnknownWord {
        /// Nothing: the result, when the run is done.
        End = "end",
        /// The model of every checkpoint.
        EverySave = "every_save",
        /// Also the newest checkpoint whole, as `last-checkpoint`.
        Checkpoint = "checkpoint",
        /// Also every checkpoint whole, by its own name.
        AllCheckpoints = "all_checkpoints",
    }
}

/// Makes an option's type of an enum of words.
macro_rules! words {
    ($($type:ty),+ $(,)?) => {$(
        impl OptionValue for $type {
            const KIND: ValueKind = ValueKind::Choice(<$type as Choice>::WORDS);

            fn expected() -> String {
                alternatives(<$type as Choice>::WORDS)
            }

            fn read(raw: &Raw) -> Option<Self> {
                word(raw)
            }

            fn write(&self) -> Raw {
                Raw::Text(self.word().into())
            }
        }
    )+};
}

words! {
    AdapterReduce, Aggregation, Bias, CorrectionMode, CpoLoss, Divergence, FourBit, HubStrategy, ImportanceLevel, Interval, KtoLoss,
    CombinationType, ExportFormat, MajoritySign, MomentumDtype,
    OptimizerName, Order, OutType, PeftType, PolicyLoss, Polynomials, PreferenceLoss, RolloutQuantization, SaveInterval, Scale, ScaleRewards, ScheduleKind,
    Strategy, TokenLoss, Transport, Truncation, Variant,
}

/// The variant that a written value means.
fn word<T: Choice>(raw: &Raw) -> Option<T> {
    match raw {
        Raw::Text(word) => T::from_word(word),
        // YAML 1.1 reads a bare `no` as false.
        Raw::Bool(false) => T::from_word("false").or_else(|| T::from_word("no")),
        Raw::Bool(true) => T::from_word("true"),
        _ => None,
    }
}

/// The losses of a pair, which are summed; at least one.
impl OptionValue for Vec<PreferenceLoss> {
    const KIND: ValueKind = ValueKind::List;

    fn expected() -> String {
        format!("a list of {}", PreferenceLoss::WORDS.join(", "))
    }

    fn read(raw: &Raw) -> Option<Self> {
        list(raw).filter(|losses: &Self| !losses.is_empty())
    }

    fn write(&self) -> Raw {
        Raw::List(self.iter().map(OptionValue::write).collect())
    }
}

/// A word, or `auto`: then it follows from the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Auto<T>(pub Option<T>);

impl<T: Choice> std::fmt::Display for Auto<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.map_or("auto", T::word))
    }
}

impl<T: Choice> OptionValue for Auto<T> {
    const KIND: ValueKind = ValueKind::AutoOr(T::WORDS);

    fn expected() -> String {
        format!("auto, {}", alternatives(T::WORDS))
    }

    fn read(raw: &Raw) -> Option<Self> {
        match raw {
            Raw::Text(text) if text == "auto" => Some(Self(None)),
            _ => word(raw).map(|value| Self(Some(value))),
        }
    }

    fn write(&self) -> Raw {
        Raw::Text(self.to_string())
    }
}
