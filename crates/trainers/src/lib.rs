//! Trainers for post-training: the loop exists once, a trainer is what differs.
//!
//! A [`Task`] computes a loss from rows; a [`Run`] of it is everything else: micro-batches, the typed optimizer step,
//! metrics, evaluation, checkpoints, and what a run leaves behind. [`Sft`], [`Dpo`], [`Kto`], [`Reward`], [`Grpo`] and
//! [`Rloo`] are the tasks that the program's options describe ([`Trainer`]); an own task is an own trainer.
//!
//! Supervised fine-tuning on rows from memory, with a closure that hears of every step:
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! use burn::tensor::Device;
//! use burnish_config::{Command, SftOptions};
//! use burnish_trainers::{Ranks, RunInputs, Sft, Stop, Trainer};
//! use serde_json::json;
//!
//! let words = ["--model_name_or_path=examples/base", "--output_dir=output/own", "--use_peft", "--max_steps=5"];
//! let options = SftOptions::parse_to_plan(words).unwrap().run().unwrap().options;
//! let (ranks, device) = (Ranks::alone(), Device::flex());
//! let rows = ["What is a cow?", "What is a sow?"].map(|text| json!({"text": text}));
//! let run = Sft::open(options, RunInputs::new(&ranks, &device).rows(rows)).unwrap();
//! let run = run.on_step(|record| {
//!     println!("step {}: loss {:?}", record.step, record.get("loss"));
//!     ControlFlow::Continue(())
//! });
//! run.run(&ranks, &Stop::never()).unwrap();
//! ```
//!
//! What a run will hold and send is known before it runs: [`Trainer::plan`].

#![cfg_attr(docsrs, feature(doc_cfg))]

use burnish_config::Command;

mod data_view;
mod dpo;
mod error;
mod evaluation;
mod forward;
mod grpo;
mod inference;
mod kto;
mod metrics;
mod online;
mod pair_batch;
mod plan;
mod rank;
mod ranks;
mod reference;
mod reference_free;
mod reward;
mod rloo;
mod rows;
mod run;
mod scoring;
mod setup;
mod sft;

pub use data_view::{DataView, PackingView, RowsView};
pub use dpo::Dpo;
pub use error::{Difference, RolloutError, TrainError};
pub use evaluation::{Evaluation, evaluate, evaluate_on};
pub use forward::log_probs::log_probs;
pub use forward::token_loss::{SupervisedLoss, supervised};
pub use grpo::Grpo;
pub use inference::{Inference, InferenceRank};
pub use kto::Kto;
#[doc(hidden)]
pub use online::heard;
pub use online::{Objective, Online, Sampled};
pub use plan::device_overhead::DeviceOverhead;
pub use plan::generation_plan::GenerationPlan;
pub use plan::roofline::{Bound, Roofline, RooflineLine};
pub use plan::step_passes::{RolloutPasses, StepPasses};
pub use plan::{PrecisionRow, PrecisionTable, RunPlan};
pub use rank::Rank;
pub use rank::resumed::Resumed;
pub use ranks::Ranks;
pub use ranks::cores::cores_of_process;
pub use reference_free::{Cpo, Orpo, ReferenceFree, ReferenceFreeOptions};
pub use reward::Reward;
pub use rloo::Rloo;
pub use rows::micro_batch::MicroBatch;
pub use rows::prepared::{Prepared, prepare_rows};
pub use run::batch_size::{FittingBatch, fewer, fitting_batch, resumed_batch, until_it_fits};
pub use run::products::default_bf16;
pub use run::stop::Stop;
pub use run::task::{Counts, LossFigures, LossPart, Task};
pub use run::training::Outcome;
pub use run::{Run, Trainer};
pub use scoring::reward_folder::{RewardFolder, scores, scores_adapted, scoring_pass};
pub use scoring::reward_functions::{WeightedReward, reward_functions};
pub use setup::model_setup::ModelSetup;
pub use setup::run_inputs::RunInputs;
pub use setup::{Rows, Setup};
pub use sft::Sft;

macro_rules! trainers {
    ($($trainer:ident),+ $(,)?) => {
        /// What is done with a trainer that is named.
        pub trait WithTrainer {
            /// What comes of it.
            type Output;

            /// Does it with `T`.
            fn with<T: Trainer>(self) -> Self::Output;
        }

        /// The commands of the trainers.
        #[must_use]
        pub fn trainer_names() -> Vec<&'static str> {
            vec![$(<$trainer as Trainer>::Options::NAME),+]
        }

        /// Does something with the trainer whose command is `name`; `None` where there is none.
        pub fn with_trainer<W: WithTrainer>(name: &str, with: W) -> Option<W::Output> {
            $(if name == <$trainer as Trainer>::Options::NAME {
                return Some(with.with::<$trainer>());
            })+
            None
        }
    };
}

// A new trainer is named here, beside its module and its export above.
trainers! { Sft, Dpo, Kto, Cpo, Orpo, Reward, Grpo, Rloo }
