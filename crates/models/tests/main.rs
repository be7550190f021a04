//! Models against recordings made with Transformers and PEFT.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod adapters;
mod dora;
mod families;
mod generation;
mod recordings;
mod refused;
mod regressions;
mod round_trips;
mod tensor_parallel;
