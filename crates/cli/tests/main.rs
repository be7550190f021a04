//! The program as its users run it.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod bad_input;
#[cfg(unix)]
mod browser;
mod commands;
mod convert;
mod data;
mod expert_parallel;
mod explain;
mod export;
#[cfg(feature = "hub")]
mod hub;
mod inference_ranks;
mod inspect;
mod mpi;
mod muon;
mod online;
mod optimizers;
#[cfg(unix)]
mod peers;
mod planned;
mod preferences;
mod products;
mod program;
mod published;
mod qk_clip;
mod quantized;
mod ranks;
mod regressions_tp;
mod resume;
mod rollout_server;
mod row_starts;
mod runs;
mod sameness;
#[cfg(feature = "serve")]
mod serve;
mod shared_traffic;
mod tensor_parallel;
#[cfg(unix)]
mod terminal;
#[cfg(unix)]
mod transcripts;
mod untied;
mod win_rate;
