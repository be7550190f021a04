//! Nothing but features: what tests depend on has the features here that it has in the workspace.
//!
//! Cargo resolves features for the packages that it is asked to build. `cargo test -p` of one crate and a build without
//! default features would each have a feature less of `libc` or `serde_core`, and for that build all of Burn again. Where this
//! crate is among the dependencies of tests, they share the builds of the workspace.
