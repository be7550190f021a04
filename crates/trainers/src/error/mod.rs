//! Errors of runs.

mod difference;
mod rollout;

use std::path::{Path, PathBuf};

use burnish_checkpoint::CheckpointError;
use burnish_comm::CommError;
use burnish_comm::launch::LaunchError;
use burnish_comm::mpi::MpiError;
use burnish_comm::tcp::TcpError;
use burnish_core::{Coded, Dtype, ErrorCode};
use burnish_data::{DataError, RowOrigin};
use burnish_losses::LossError;
use burnish_models::ModelError;
use burnish_ops::OpsError;
use burnish_optim::OptimError;
use burnish_peft::PeftError;
use burnish_report::ReportError;
use burnish_rewards::RewardError;
use burnish_tp::TpError;
use burnish_weight_files::WeightFileError;
use burnish_zero::{PlanError, ZeroError};

pub use self::difference::Difference;
use self::difference::listed;
pub use self::rollout::RolloutError;

/// A run that cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// No parameter trains.
    #[error(
        "nothing to train: the adapter has no trainable parameter; check lora_target_modules and \
         lora_modules_to_save, or drop use_peft"
    )]
    NothingTrains,
    /// A coefficient of a loss that the model does not have.
    #[error(
        "router_aux_loss_coef is {got}, but a model of type {model_type} has no auxiliary loss of routers; take it out"
    )]
    NoBalance {
        /// The coefficient.
        got: f64,
        /// The model's type.
        model_type: &'static str,
    },
    /// No row has anything to learn.
    #[error(
        "{name}: none of its {rows} rows has a token to learn from: texts are empty, or everything is masked; check the \
         columns, assistant_only_loss and max_length"
    )]
    NothingToLearn {
        /// The rows.
        name: String,
        /// How many.
        rows: usize,
    },
    /// The device's memory is full.
    #[error(
        "the device's memory is full: {} could not be had{}\n{table}\nwhat would help:{}", burnish_report::bytes(*.bytes),
        .held.map_or_else(String::new, |held| format!(
            " beside the {} that tensors of this process hold ({} with the pages kept for them)",
            burnish_report::bytes(held.in_use), burnish_report::bytes(held.reserved)
        )),
        .mends.iter().map(|mend| format!("\n  {mend}")).collect::<String>()
    )]
    OutOfMemory {
        /// What was asked for.
        bytes: u64,
        /// What this process holds.
        held: Option<burnish_device::Memory>,
        /// What the plan says that the run holds.
        table: String,
        /// Options that make it less, those that help most first.
        mends: Vec<String>,
    },
    /// The device failed.
    #[error(
        "the device failed: {text}; nothing more can be computed on it by this process. See the driver's log (dmesg, nvidia-smi -q), then resume from the last checkpoint, or run with `--device cpu` to tell a fault of the data from one of the device"
    )]
    DeviceBroken {
        /// What the backend says.
        text: String,
    },
    /// NCCL moves elements between GPUs only.
    #[error(
        "transport nccl moves elements between GPUs, and this run computes on {kind}; use `--device cuda`, or another `--transport`"
    )]
    NcclDevice {
        /// What it computes on.
        kind: burnish_device::DeviceKind,
    },
    /// Products of int8 are the CPU's.
    #[error(
        "rollout_quantization int8 multiplies on the CPU, and this run computes on a GPU; leave it out, or use `--device cpu`"
    )]
    Int8Device,
    /// Which cores are this process's is not known.
    #[error(
        "bind_cores_to_rank: {variable} speaks of several processes, and LOCAL_RANK and LOCAL_WORLD_SIZE do not say which of those on this machine this one is; set them, or let the launcher bind (mpirun --bind-to core, srun --cpu-bind)"
    )]
    NoLocalRank {
        /// The launcher's variable.
        variable: &'static str,
    },
    /// A rank's threads.
    #[error(
        "a rank's own threads cannot be started: {text}; leave bind_cores_to_rank out, or start fewer ranks (`ulimit -u`)"
    )]
    RankThreads {
        /// What the system says.
        text: String,
    },
    /// The build leaves NCCL out.
    #[error(
        "transport nccl: this build has none; build with `--features cuda`, or use another `--transport`"
    )]
    NoNccl,
    /// NCCL.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Nccl(#[from] burnish_comm::nccl::NcclError),
    /// The device is not there, or not ready.
    #[error(transparent)]
    Device(#[from] burnish_device::DeviceError),
    /// The loss is not a number.
    #[error(
        "step {step}: the loss is {loss}; training stopped before the update. {}; lower learning_rate, check the \
         data around these rows, or resume from an earlier checkpoint",
        .checkpoint.as_ref().map_or_else(|| "no checkpoint was saved yet".to_owned(), |c| format!("the last complete checkpoint is {}", c.display()))
    )]
    LossNotFinite {
        /// The optimizer step.
        step: u64,
        /// The loss.
        loss: f64,
        /// The last checkpoint.
        checkpoint: Option<PathBuf>,
    },
    /// A gradient is not a number.
    #[error(
        "step {step}: the gradient norm is {norm} at loss {loss}; training stopped before the update. {}; lower \
         learning_rate or set max_grad_norm",
        .checkpoint.as_ref().map_or_else(|| "no checkpoint was saved yet".to_owned(), |c| format!("the last complete checkpoint is {}", c.display()))
    )]
    GradientNotFinite {
        /// The optimizer step.
        step: u64,
        /// The norm.
        norm: f64,
        /// The loss.
        loss: f64,
        /// The last checkpoint.
        checkpoint: Option<PathBuf>,
    },
    /// What was to be saved is not a number.
    #[error(
        "step {step}: `{name}` holds {value} after the update, so that nothing was written. {}; lower learning_rate, set \
         max_grad_norm, or train in a wider dtype",
        .checkpoint.as_ref().map_or_else(|| "no checkpoint was saved yet".to_owned(), |c| format!("the last complete checkpoint is {}", c.display()))
    )]
    WeightsNotFinite {
        /// The optimizer step.
        step: u64,
        /// The parameter, or it and its slot.
        name: String,
        /// The value.
        value: f64,
        /// The last checkpoint.
        checkpoint: Option<PathBuf>,
    },
    /// A reward function said too little or too much.
    #[error(
        "reward function `{function}` gave {got} rewards for {expected} completions; it has to give one for each"
    )]
    RewardCount {
        /// The function.
        function: String,
        /// How many rewards.
        got: usize,
        /// How many completions.
        expected: usize,
    },
    /// Rewards for nothing.
    #[error(
        "no reward function could score any completion of the first generation batch: {}; check that rows have the columns \
         they read (`solution`) in a form that they know",
        names.join(", ")
    )]
    NothingScored {
        /// The functions.
        names: Vec<String>,
    },
    /// A server did not sample.
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    /// A generation batch cannot be dealt.
    #[error("a generation batch of {batch} completions is no multiple of {of}; {mend}")]
    GenerationBatch {
        /// Its completions on all ranks.
        batch: usize,
        /// What it has to be a multiple of.
        of: String,
        /// What helps.
        mend: &'static str,
    },
    /// The sampler is not the model that trains.
    #[error(
        "completions were sampled with log-probabilities that are {mean:.3} nats per token from those of the first \
         training pass (expected at most {expected}): the model samples other than it trains, which is a fault of \
         burnish; please report it with the model's config.json"
    )]
    Drift {
        /// Mean difference.
        mean: f64,
        /// What rounding allows.
        expected: f64,
    },
    /// A checkpoint of another run.
    #[error(
        "{path}: cannot resume: {what} was {then} when the checkpoint was saved and is {now} now; resume with the \
         same data and options, or start anew in another output_dir"
    )]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// What differs.
        what: &'static str,
        /// In the checkpoint.
        then: String,
        /// Now.
        now: String,
    },
    /// A checkpoint without training state.
    #[error("{path}: cannot resume: it holds a model but no training state (save_only_model)")]
    NoState {
        /// The checkpoint.
        path: PathBuf,
    },
    /// Optimizer state of another dtype, where none is to be converted.
    #[error(
        "{path}: cannot resume: slot `{slot}` of `{parameter}` is {got}, and this run keeps it in {expected}; set the \
         option of its dtype as when it was saved, or leave out resume_strict to have it converted"
    )]
    SlotDtype {
        /// The checkpoint.
        path: PathBuf,
        /// The parameter.
        parameter: String,
        /// The slot.
        slot: String,
        /// In the checkpoint.
        got: Dtype,
        /// By declaration.
        expected: Dtype,
    },
    /// An option whose file is missing.
    #[error("{option}: {path}: not found")]
    OptionPath {
        /// The option.
        option: &'static str,
        /// Its value.
        path: PathBuf,
    },
    /// A reference that reads other tokens than the policy.
    #[error(
        "ref_model_name_or_path: {path}: its tokens are not the policy's: {what}; take a model of the same tokenizer"
    )]
    OtherTokens {
        /// The reference's folder.
        path: PathBuf,
        /// The first difference.
        what: String,
    },
    /// A reference that cannot move towards the policy.
    #[error(
        "sync_ref_model: {path} has {got} where the policy has {expected}: only a model of the same shapes can move \
         towards it; take such a model, or leave sync_ref_model out"
    )]
    OtherShapes {
        /// The reference's folder.
        path: PathBuf,
        /// Its parameter.
        got: String,
        /// The policy's.
        expected: String,
    },
    /// An evaluation metric that is never computed.
    #[error("metric_for_best_model: there is no metric `{name}`; evaluation gives {available}")]
    UnknownMetric {
        /// What was asked for.
        name: String,
        /// What there is.
        available: String,
    },
    /// A reward model that is none.
    #[error(
        "reward_model_name_or_path: {path}: a language model, which does not score texts; make one that does with \
         `burnish reward`"
    )]
    NoScore {
        /// The folder.
        path: PathBuf,
    },
    /// A conversation for a model without a chat template.
    #[error(
        "{path}: the prompt is a conversation, and the reward model has no chat template; give prompts as text"
    )]
    NoTemplate {
        /// The model's folder.
        path: PathBuf,
    },
    /// Nothing rewards completions.
    #[error("nothing scores completions: give reward_funcs, reward_model_name_or_path or reward_command")]
    NoReward,
    /// Weights that do not belong to reward functions one by one.
    #[error("reward_weights: {got} weights for {} reward functions: {}; give one for each", names.len(), names.join(", "))]
    RewardWeights {
        /// How many there are.
        got: usize,
        /// The functions.
        names: Vec<String>,
    },
    /// A time that is none.
    #[error("reward_command_timeout: {got}; expected a number of seconds that is not negative")]
    RewardTimeout {
        /// As given.
        got: f64,
    },
    /// A reward function failed.
    #[error(transparent)]
    Rewards(#[from] RewardError),
    /// More ranks were asked for than the launcher started.
    #[error("nproc: {nproc}, but the launcher started {world} ranks; leave nproc out under mpirun")]
    WorldSize {
        /// The option.
        nproc: usize,
        /// The job's ranks.
        world: usize,
    },
    /// More ranks than a process has room for.
    #[error(
        "nproc: {nproc}: a process starts at most {most} ranks, which are threads with gradients and optimizer state of their \
         own; start processes on several machines with mpirun or torchrun's variables"
    )]
    TooManyThreads {
        /// The option.
        nproc: usize,
        /// The most.
        most: usize,
    },
    /// Ranks that do not have what all must have alike.
    #[error(
        "the ranks of this run differ: {}; start all of them with the same program, options and files, or the model would \
         be trained by several runs at once",
        listed(differences)
    )]
    RanksDiffer {
        /// What they differ in.
        differences: Vec<Difference>,
    },
    /// Ranks that do not make whole groups.
    #[error("{key}: {size} does not divide the number of ranks, {world}; start a multiple of {size}")]
    ModelParallelSize {
        /// The option.
        key: &'static str,
        /// What it says.
        size: usize,
        /// The ranks.
        world: usize,
    },
    /// Ranks that share layers hold different values of what each has whole.
    #[error(
        "parameter `{parameter}` differs between tensor-parallel rank 0 and ranks {ranks:?}: the run has drifted apart; \
         go on from the last checkpoint, and report this with its options"
    )]
    Drifted {
        /// The first parameter that differs.
        parameter: String,
        /// The ranks on the axis.
        ranks: Vec<usize>,
    },
    /// Ranks are to encrypt what they say over a transport that cannot.
    #[error(
        "ddp_encryption (or BURNISH_DDP_ENCRYPTION=1): ranks over `{transport}` trust their network; start them without it, or over `--transport tcp`"
    )]
    NotEncrypted {
        /// The transport.
        transport: burnish_config::values::Transport,
    },
    /// Several processes were started that have no way to talk.
    #[error(
        "{variable}={size}: a launcher started {size} processes, but transport: local is between the threads of one: \
         leave transport out (or set mpi or tcp), or start one process with --nproc {size}; unset {variable} if each \
         is to run alone"
    )]
    NoTransport {
        /// The launcher's variable.
        variable: &'static str,
        /// Its value.
        size: usize,
    },
    /// A row that is to be continued by an adapter that is not there.
    #[error(
        "{place}: `adapter` is {got}, expected one of {adapters} in `lora_modules`, or none for the model itself"
    )]
    NoSuchAdapter {
        /// File and line.
        place: RowOrigin,
        /// What the row has.
        got: String,
        /// The adapters' names.
        adapters: String,
    },
    /// Lines that cannot be written.
    #[error("{to}: cannot write: {source}")]
    Lines {
        /// The file, or standard output.
        to: String,
        /// Why.
        source: std::io::Error,
    },
    /// A file that cannot be read.
    #[error("{path}: cannot read: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        source: std::io::Error,
    },
    /// Overflow at the least loss scale.
    #[error(
        "step {step}: gradients overflow even at the least loss scale: training does not learn any more; lower \
         learning_rate, or use bf16 or float32 instead of fp16"
    )]
    LossScale {
        /// The optimizer step.
        step: u64,
    },
    /// Ranks.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A launcher's variable is not what it must be.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Processes that could not meet.
    #[error(transparent)]
    Tcp(#[from] TcpError),
    /// MPI.
    #[error(transparent)]
    Mpi(#[from] MpiError),
    /// The plan of who holds what.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Sharded parameters.
    #[error(transparent)]
    Zero(#[from] ZeroError),
    /// Layers divided over ranks.
    #[error(transparent)]
    Tp(#[from] TpError),
    /// Data.
    #[error(transparent)]
    Data(#[from] DataError),
    /// Model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Adapter.
    #[error(transparent)]
    Peft(#[from] PeftError),
    /// The loss.
    #[error(transparent)]
    Loss(#[from] LossError),
    /// Optimizer.
    #[error(transparent)]
    Optim(#[from] OptimError),
    /// A tensor operation.
    #[error(transparent)]
    Ops(#[from] OpsError),
    /// Checkpoints.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// Files.
    #[error(transparent)]
    ShardedParams(#[from] WeightFileError),
    /// Metrics and reports.
    #[error(transparent)]
    Report(#[from] ReportError),
}

impl TrainError {
    /// The same, said of weights that were to be saved at a step, where it is of them.
    pub(crate) fn of_weights(self, step: u64, checkpoint: Option<&Path>) -> Self {
        match self {
            Self::Model(ModelError::NotFinite { name, value, .. }) => {
                Self::WeightsNotFinite { step, name, value, checkpoint: checkpoint.map(Path::to_path_buf) }
            }
            other => other,
        }
    }

    /// Whether this only says that another rank failed.
    #[must_use]
    pub fn came_from_another_rank(&self) -> bool {
        fn told(error: &CommError) -> bool {
            match error {
                CommError::Failed { .. } | CommError::Gone { .. } => true,
                CommError::Broken { first } => told(first),
                _ => false,
            }
        }
        match self {
            Self::Comm(error)
            | Self::Zero(ZeroError::Comm(error))
            | Self::Tp(TpError::Comm(error))
            | Self::Model(ModelError::Tp(TpError::Comm(error))) => told(error),
            _ => false,
        }
    }
}

impl Coded for TrainError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::NothingTrains => ErrorCode::NothingTrains,
            Self::NoBalance { .. } => ErrorCode::UnsupportedModel,
            Self::NothingToLearn { .. } => ErrorCode::NothingToLearn,
            Self::OutOfMemory { .. } => ErrorCode::OutOfMemory,
            Self::DeviceBroken { .. } => ErrorCode::DeviceFailed,
            Self::NcclDevice { .. } => ErrorCode::NoTransport,
            Self::Int8Device => ErrorCode::UnsupportedOption,
            Self::NoLocalRank { .. } | Self::RankThreads { .. } => ErrorCode::BadEnvironment,
            Self::NoNccl => ErrorCode::NotBuilt,
            Self::LossNotFinite { .. }
            | Self::GradientNotFinite { .. }
            | Self::WeightsNotFinite { .. }
            | Self::LossScale { .. } => ErrorCode::NotFinite,
            Self::RewardCount { .. }
            | Self::NothingScored { .. }
            | Self::NoReward
            | Self::RewardWeights { .. } => ErrorCode::BadReward,
            Self::RewardTimeout { .. } | Self::UnknownMetric { .. } => ErrorCode::BadValue,
            Self::GenerationBatch { .. } => ErrorCode::Conflict,
            Self::Drift { .. } => ErrorCode::Internal,
            Self::OtherRun { .. } | Self::NoState { .. } | Self::SlotDtype { .. } => ErrorCode::CannotResume,
            Self::OptionPath { .. } => ErrorCode::NotFound,
            Self::OtherTokens { .. } => ErrorCode::ForeignTokens,
            Self::OtherShapes { .. } => ErrorCode::WeightsMismatch,
            Self::NoScore { .. } => ErrorCode::WrongHead,
            Self::NoTemplate { .. } => ErrorCode::BadTemplate,
            Self::WorldSize { .. }
            | Self::TooManyThreads { .. }
            | Self::ModelParallelSize { .. }
            | Self::NotEncrypted { .. }
            | Self::NoTransport { .. } => ErrorCode::BadLaunch,
            Self::RanksDiffer { .. } | Self::Drifted { .. } => ErrorCode::RanksDiffer,
            #[cfg(feature = "cuda")]
            Self::Nccl(error) => error.code(),
            Self::Device(error) => error.code(),
            Self::Rollout(error) => error.code(),
            Self::Rewards(error) => error.code(),
            Self::Comm(error) => error.code(),
            Self::Launch(error) => error.code(),
            Self::Tcp(error) => error.code(),
            Self::Mpi(error) => error.code(),
            Self::Plan(error) => error.code(),
            Self::Zero(error) => error.code(),
            Self::Tp(error) => error.code(),
            Self::Data(error) => error.code(),
            Self::Model(error) => error.code(),
            Self::Peft(error) => error.code(),
            Self::Loss(error) => error.code(),
            Self::Optim(error) => error.code(),
            Self::Ops(error) => error.code(),
            Self::Checkpoint(error) => error.code(),
            Self::ShardedParams(error) => error.code(),
            Self::Report(error) => error.code(),
            Self::NoSuchAdapter { .. } => ErrorCode::WrongColumns,
            Self::Lines { .. } => ErrorCode::CannotWrite,
            Self::Unreadable { source, .. } => source.code(),
        }
    }
}
