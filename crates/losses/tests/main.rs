//! Replays of TRL's recorded losses, and laws: the fused head is the chunked reference, whatever the options; a step's
//! loss is the sum of its parts, however it is split.
#![allow(clippy::unwrap_used, reason = "tests")]

mod accumulation;
mod advantages;
mod burn_linear;
mod chunked_logprob;
mod chunked_nll;
mod dft;
mod dpo;
mod golden;
mod grpo;
mod kto;
mod long_hand;
mod nothing;
mod on_tape;
mod options;
mod padded;
mod problem;
mod refused;
mod reward;
mod rloo;
mod sampler;
mod sft;
mod slopes;
mod split_head;
mod splits;
