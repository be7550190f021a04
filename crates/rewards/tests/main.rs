//! Tests of the reward functions.

#![allow(clippy::unwrap_used)]

mod built_in;
