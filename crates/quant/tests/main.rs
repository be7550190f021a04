//! Against bitsandbytes' numbers, and what no numbers say.
#![allow(clippy::unwrap_used, reason = "tests")]

mod bitsandbytes;
mod packed_words;
mod rows;
mod wire;
