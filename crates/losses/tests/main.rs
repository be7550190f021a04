//! Replays of TRL's recorded losses, and laws: the fused head is the chunked reference, whatever the options.
#![allow(clippy::unwrap_used, reason = "tests")]

mod accumulation;
mod chunked_logprob;
mod chunked_nll;
mod dft;
mod golden;
mod nothing;
mod problem;
mod refused;
mod sft;
mod split_head;
