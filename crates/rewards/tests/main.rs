//! Tests of the reward functions.

#![allow(clippy::unwrap_used, reason = "tests")]

mod built_in;
mod command;
mod open_r1;
mod trl;
