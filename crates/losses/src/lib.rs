//! Losses as numerator, denominator and metrics.
//!
//! A loss never divides by what one micro-batch or one rank happens to hold: it is given the denominator of the whole
//! step, and metrics travel as sums until the step is over ([`Tally`]). All token losses run on one fused
//! log-probability head (`burnish_ops::head_loss`), so no `[tokens, vocab]` tensor exists.
//!
//! Preference, reward and policy losses ([`Dpo`], [`Kto`], [`Reward`], [`Grpo`], [`Rloo`]) are functions of few numbers
//! per sequence or token. A step is, for each of them:
//!
//! 1. count what the loss divides by, over all micro-batches and ranks (pairs, sequences, targets);
//! 2. where `needs` says so, score the whole step without gradients and make of it what the loss compares with
//!    ([`Dpo::matches`], [`Kto::kl`], [`Grpo::high_entropy`]);
//! 3. per micro-batch: score with gradients (`burnish_ops::head_log_probs`, or the score head), compute [`Terms`], put
//!    them on the tape ([`Terms::on_tape`]) and run backward;
//! 4. add up the terms' values and tallies over ranks ([`Metrics`]) and [`Tally::settle`].
//!
//! The result does not depend on how the step is split: TRL's value of one process and one micro-batch is the
//! definition.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use burnish_losses::{TokenLoss, token_loss};
//! use burnish_ops::{AnyTensor, HeadOptions, Linear};
//!
//! let device = Device::flex();
//! let hidden = AnyTensor::new(Tensor::<2>::ones([3, 4], &device)).leaf();
//! let head = Linear::new(AnyTensor::new(Tensor::<2>::zeros([7, 4], &device)));
//! // All logits are equal: each token costs ln 7.
//! let out =
//!     token_loss(TokenLoss::Nll, &hidden, &head, None, &vec![0, 3, 6].into(), HeadOptions::default(), 3.0).unwrap();
//! assert!((out.loss.to_f32()[0] - 7f32.ln()).abs() < 1e-6);
//! assert_eq!(out.tally.mean("mean_token_accuracy"), Some(1.0 / 3.0)); // the first maximum is token 0
//! ```

mod metrics;
mod tally;

mod chunked_nll;
mod token_loss;

mod dual;
mod error;
mod sequence;
mod terms;

mod kto;
mod preference;
mod reward;

mod advantages;
mod policy;
mod rloo;

pub use advantages::{Advantages, Aggregation, GrpoAdvantages, Rewards, RlooAdvantages, ScaleRewards};
pub use chunked_nll::{CHUNK_TOKENS, chunked_nll};
pub use error::LossError;
pub use kto::{Kto, KtoLoss, KtoOptions, Labelled};
pub use metrics::Metrics;
pub use policy::{
    AdaptiveEntropy, Correction, CorrectionMode, EntropyControl, Gamma, Grpo, GrpoOptions, HighEntropy,
    ImportanceLevel, PolicyLoss, PolicyStep, Rollout, SamplerCorrection, is_truncated,
};
pub use preference::{
    Divergence, Dpo, DpoOptions, FirstPass, Match, Pair, PairCounts, PairSums, PreferenceLoss,
};
pub use reward::Reward;
pub use rloo::{Rloo, Sampled};
pub use sequence::Completion;
pub use tally::{Extreme, Tally};
pub use terms::Terms;
pub use token_loss::{LossOutput, TokenLoss, UnknownLoss, token_loss};
