//! Group relative policy optimisation: sampled completions with advantages.
//!
//! A token's objective depends on its own log-probability and on its sequence's mean log-ratio, so value and gradient
//! are computed per token; what it is divided by ([`PolicyStep`]) is known beforehand. Only `top_entropy_quantile`
//! needs a first pass without gradients, for the step's entropies.

mod aggregate;
mod clip;
mod entropy;
mod grpo;
mod kind;
mod mask;
mod options;
mod ratio;
mod sampler;
mod vespo;

pub use aggregate::PolicyStep;
pub(crate) use clip::Clipped;
pub use entropy::{AdaptiveEntropy, EntropyControl};
pub use grpo::{Grpo, Rollout};
pub use kind::{ImportanceLevel, PolicyLoss};
pub use mask::{HighEntropy, is_truncated};
pub use options::GrpoOptions;
pub use sampler::{Correction, CorrectionMode, SamplerCorrection};
pub use vespo::VespoOptions;
