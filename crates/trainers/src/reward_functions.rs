//! The reward functions that options name.

use burnish_config::RewardFunctionOptions;
use burnish_rewards::{BuiltInOptions, RewardFunction, built_in};

use crate::TrainError;

/// All of them, in the order of their weights.
pub(crate) fn reward_functions(
    options: &RewardFunctionOptions,
) -> Result<Vec<Box<dyn RewardFunction>>, TrainError> {
    let named = BuiltInOptions::default();
    options.reward_funcs.iter().map(|name| Ok(built_in(name, &named)?)).collect()
}
