//! Replays of PyTorch's and Transformers' optimizers, and laws of the step.
#![allow(clippy::unwrap_used, reason = "tests")]

mod adam;
mod clip;
mod golden;
mod layouts;
mod module;
mod muon;
mod muon_catalogue;
mod orientation;
mod ranks;
mod restore;
mod rules;
mod schedules;
mod skipped;
mod store;
mod stored;
