//! Tests of GGUF files.

#![allow(clippy::unwrap_used, reason = "tests")]

mod blocks;
mod files;
mod vocabulary;
