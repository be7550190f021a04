//! Trainers for post-training: the loop exists once, a trainer is what differs.
//!
//! [`Sft`] prepares a supervised run from [`burnish_config::SftOptions`] and [`Sft::run`] drives it: micro-batches,
//! the typed optimizer step, metrics, evaluation, checkpoints, and everything that a run leaves behind.
//!
//! ```no_run
//! use burn::tensor::Device;
//! use burnish_config::{Command, SftOptions};
//! use burnish_trainers::{Ranks, Sft, Stop};
//!
//! let words = ["--config", "examples/sft-lora.yaml"];
//! let options = SftOptions::parse(words).unwrap().run().unwrap().options;
//! let ranks = Ranks::of(&options.ranks, burnish_device::Kind::Cpu).unwrap();
//! let run = Sft::prepare(options, &ranks, &Device::flex(), &mut |note| eprintln!("{note}")).unwrap();
//! let outcome = run.run(&ranks, &Stop::never()).unwrap();
//! println!("{} steps", outcome.steps);
//! ```

mod checkpointing;
mod compared;
mod desirable;
mod device_failure;
mod device_overhead;
mod devices;
mod dpo;
mod error;
mod evaluate;
mod frozen;
mod grpo;
mod inference;
mod kto;
mod leave;
mod log_probs;
mod micro_batch;
mod online;
mod optimizer;
mod planned_step;
mod preferences;
mod prepared;
mod qk_clip;
mod rank;
mod ranks;
mod reference;
mod reference_folder;
mod reporter;
mod reward_folder;
mod reward_functions;
mod reward_model;
mod rewards;
mod rloo;
mod run;
mod run_plan;
mod scored;
mod setup;
mod sft;
mod shared_layers;
mod step_size;
mod stop;
mod supervised;
mod task;
mod token_task;
mod training;
mod tuned;
mod window;

pub use device_overhead::DeviceOverhead;
pub use dpo::Dpo;
pub use error::TrainError;
pub use evaluate::{Evaluation, evaluate, evaluate_on};
pub use grpo::Grpo;
pub use inference::{Inference, InferenceRank};
pub use kto::Kto;
pub use micro_batch::MicroBatch;
pub use online::RolloutError;
pub use planned_step::PlanOf;
pub use prepared::{Prepared, packing, prepare_rows, row_options};
pub use ranks::Ranks;
pub use reward_folder::{RewardFolder, scores};
pub use reward_functions::{WeightedReward, reward_functions};
pub use reward_model::Reward;
pub use rloo::Rloo;
pub use run::Trainer;
pub use run_plan::RunPlan;
pub use sft::Sft;
pub use stop::Stop;
pub use token_task::supervised;
pub use training::Outcome;
pub use tuned::lora_config;
