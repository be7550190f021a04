//! Reward functions: built in, programs, models from a folder.

pub(crate) mod reward_folder;
pub(crate) mod reward_functions;
