//! Replays of PyTorch's and Transformers' optimizers, and laws of the step.
#![allow(clippy::unwrap_used, reason = "tests")]

mod adamw;
mod clip;
mod golden;
mod layouts;
mod muon;
mod muon_catalogue;
mod ranks;
mod restore;
mod schedules;
mod skipped;
mod store;
mod stored;
