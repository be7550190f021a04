//! N ranks equal one rank, at every stage; plans equal what runs; faults are errors.
#![allow(clippy::unwrap_used, reason = "tests")]

mod agree;
mod equal;
mod exchange;
mod faults;
mod mixed;
mod module;
mod muon;
mod net;
mod overflow;
mod quantized;
mod tied_frozen_unused;
mod toy_model;
mod traffic;
mod write;
