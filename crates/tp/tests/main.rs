//! N ranks equal one: forward, backward, sums, files; laws of splits; faults are errors.
#![allow(clippy::unwrap_used, reason = "tests")]

mod block;
mod columns;
mod equal;
mod faults;
mod laws;
mod linear;
mod partial;
mod reshard;
mod token_dispatcher;
mod vocabulary;
