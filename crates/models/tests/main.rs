//! Models against recordings made with Transformers and PEFT.
#![allow(clippy::unwrap_used, missing_docs, reason = "tests")]

mod adapters;
mod families;
mod generation;
mod recordings;
mod refused;
mod round_trips;
mod tensor_parallel;
