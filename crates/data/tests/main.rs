//! Replays of recordings (`golden/`, and every case under `BURNISH_RECORDINGS` when it is set) and laws.
#![allow(clippy::unwrap_used, reason = "tests")]

mod cases;
mod collator;
mod files;
mod groups;
mod laws;
mod packing;
mod preferences;
mod prepared;
mod templates;
mod tokenizer_files;
mod trl_runs;
mod views;
