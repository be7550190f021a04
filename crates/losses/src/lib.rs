//! Losses as numerator, denominator and metrics.
//!
//! A loss never divides by what one micro-batch or one rank happens to hold: it is given the denominator of the whole
//! step, and metrics travel as sums until the step is over ([`MetricSums`]). All token losses run on one fused
//! log-probability head ([`chunked_nll`]), so no `[tokens, vocab]` tensor exists.
//!
//! Preference, reward and policy losses ([`Dpo`], [`Kto`], [`Reward`], [`Grpo`], [`Rloo`]) are functions of few numbers
//! per sequence or token. A step is, for each of them:
//!
//! 1. count what the loss divides by, over all micro-batches and ranks (pairs, sequences, targets);
//! 2. where `needs` says so, score the whole step without gradients and make of it what the loss compares with
//!    ([`Dpo::matches`], [`Kto::kl`], [`Grpo::high_entropy`]);
//! 3. per micro-batch: score with gradients (`burnish_ops::head_log_probs`, or the score head), compute [`LossTerms`], put
//!    them on the tape ([`LossTerms::on_tape`]) and run backward;
//! 4. add up the terms' values and tallies over ranks ([`Metrics`]) and [`MetricSums::settle`].
//!
//! The result does not depend on how the step is split: TRL's value of one process and one micro-batch is the
//! definition.
//!
//! ```
//! use burn::nn::LinearConfig;
//! use burn::tensor::{Device, Distribution, Int, Tensor};
//! use burnish_losses::{TokenLossOptions, chunked_nll, head_from};
//!
//! let device = Device::flex().autodiff();
//! let hidden = Tensor::<3>::random([2, 3, 4], Distribution::Default, &device).require_grad();
//! let projection = LinearConfig::new(4, 7).init(&device);
//! // The token that each position predicts; -100 for none.
//! let labels = Tensor::<2, Int>::from_data([[0, 3, -100], [6, -100, -100]], &device);
//! let out = chunked_nll(hidden.clone(), &head_from(&projection), labels, &TokenLossOptions::default())?;
//! let gradients = out.tensor().backward();
//! assert!(projection.weight.val().grad(&gradients).is_some());
//! assert_eq!(hidden.grad(&gradients).unwrap().dims(), [2, 3, 4]);
//! assert_eq!(out.facts.tally().sums("loss").unwrap().1, 3.0); // three positions have a label
//! # Ok::<(), burnish_losses::OpsError>(())
//! ```

mod metric_sums;
mod metrics;

mod chunked_nll;
mod head;
mod labels;
mod token_loss;

mod dual;
mod error;
mod loss_terms;
mod sequence;

mod kto;
mod preference;
mod reward;

mod advantages;
mod policy;
mod rloo;

pub use advantages::{Advantages, Aggregation, GrpoAdvantages, Rewards, RlooAdvantages, ScaleRewards};
pub use burnish_ops::{AnyTensor, HeadOptions, Linear, OpsError, TokenStats, VocabShard};
pub use chunked_nll::{LossOutput, TokenFacts, TokenLossOptions, chunked_nll};
pub use error::LossError;
pub use head::head_from;
pub use kto::{Kto, KtoLoss, KtoOptions, Labelled};
pub use labels::Labels;
pub use loss_terms::LossTerms;
pub use metric_sums::{Extreme, MetricSums};
pub use metrics::Metrics;
pub use policy::{
    AdaptiveEntropy, Correction, CorrectionMode, EntropyControl, Grpo, GrpoOptions, HighEntropy,
    ImportanceLevel, PolicyLoss, PolicyStep, Rollout, SamplerCorrection, VespoOptions, is_truncated,
};
pub use preference::{
    CpoLoss, CpoOptions, Divergence, Divergences, Dpo, DpoOptions, FirstPass, Match, Pair, PairCounts,
    PairSums, PreferenceLoss, ReferenceFree, UnreferencedPair,
};
pub use reward::Reward;
pub use rloo::{Rloo, Sampled};
pub use sequence::Completion;
pub use token_loss::{TokenLoss, UnknownLoss, token_loss};
