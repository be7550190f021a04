//! Runs recorded from TRL, on the processor.

use std::path::Path;

use burn::tensor::Device;
use burnish_checks::trl::recorded;
use recordings::Replay;

/// fp32 sums in another order over a few steps.
const RELATIVE: f64 = 1e-4;

fn replay_all(root: &Path) -> (usize, usize) {
    let mut told = Replay::of(root.join("trl-runs").display().to_string());
    for run in &recorded(root).unwrap() {
        if let Some(why) = run.refused().unwrap_or_else(|error| panic!("{}: {error:#}", run.name)) {
            told.refused(&run.name, why);
            continue;
        }
        run.replay(&Device::flex(), RELATIVE, false, &[])
            .unwrap_or_else(|error| panic!("{}: {error:#}", run.name));
        told.replayed();
    }
    told.finish()
}

#[test]
fn runs_of_the_repository_equal_trl() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../trainers/tests/fixtures");
    let (replayed, refused) = replay_all(&own);
    assert!(replayed >= 41);
    assert_eq!(refused, 0);
}

#[test]
fn given_runs_equal_trl() {
    if recordings::given("trl-runs").is_some() {
        replay_all(&recordings::root().unwrap());
    }
}
