//! The loss of REINFORCE leave-one-out.

use crate::table::options;

options! {
    /// The loss over sampled completions.
    RlooLossOptions, "RLOO";
    /// Weight of the KL divergence from the reference, which is taken off the reward; 0 needs no reference.
    Trl beta: f64 = 0.05;
    /// How far a ratio of policies may fall below 1, and rise above it.
    Trl epsilon: f64 = 0.2;
    /// How far it may rise above 1; by default epsilon.
    Trl epsilon_high: Option<f64> = None;
    /// Scale advantages to mean 0 and standard deviation 1 over the sampled batch.
    Trl normalize_advantages: bool = false;
    /// The least and the greatest reward that counts.
    Trl reward_clip_range: Option<Vec<f64>> = None;
}
