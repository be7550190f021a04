//! What completions are worth.

use crate::table::options;

options! {
    /// What says how good a completion is.
    RewardFunctionOptions, "Rewards";
    /// Functions that burnish has, by name.
    Trl reward_funcs: Vec<String> = Vec::new();
    /// One weight for each reward; by default all 1.
    Trl reward_weights: Option<Vec<f64>> = None;
}
