//! Options as users write them: flags, files, mistakes.
#![allow(clippy::unwrap_used, reason = "tests")]

mod acceptance;
mod compatible;
mod faults;
mod flags;
mod keys;
mod laws;
mod online;
mod owners;
mod page;
mod preferences;
mod scratch;
mod translated;
