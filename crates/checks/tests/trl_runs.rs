//! Runs recorded from TRL, on the processor.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use burnish_checks::trl::recorded;

/// fp32 sums in another order over a few steps.
const RELATIVE: f64 = 1e-4;

fn replay_all(root: &Path) -> usize {
    let all = recorded(root).unwrap();
    for run in &all {
        run.replay(&Device::flex(), RELATIVE, false, &[])
            .unwrap_or_else(|error| panic!("{}: {error:#}", run.name));
    }
    all.len()
}

#[test]
fn runs_of_the_repository_equal_trl() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainers/tests/fixtures");
    assert!(replay_all(&own) >= 27);
}

#[test]
fn given_runs_equal_trl() {
    match std::env::var_os("BURNISH_RECORDINGS").map(PathBuf::from).filter(|r| r.join("trl-runs").is_dir()) {
        Some(root) => assert!(replay_all(&root) >= 1),
        None => println!("BURNISH_RECORDINGS is not set: only the repository's own runs are replayed"),
    }
}
