//! Checks of a device against the CPU, and benchmarks.
//!
//! Whatever a device computes is held against what is tested already: operations against their reference bodies on the
//! processor, runs against TRL's recorded ones, ranks against one rank. The program `burnish-check` needs no tool chain
//! and no files but its own data, so that it can be carried to a machine that has a GPU and nothing else.

pub mod bench;
mod case;
mod check;
mod decoding;
mod full;
mod nccl;
mod operations;
mod ranks;
mod resume;
mod run;
mod soak;
mod table;
mod tolerance;
pub mod trl;

pub use check::{Check, Context, checks};
pub use table::{Row, Table, Verdict};
pub use tolerance::Tolerance;
