//! Correction for a sampler that is not the policy, and the entropy bonus's control.

use burnish_losses::{AdaptiveEntropy, Correction, CorrectionMode, EntropyControl, SamplerCorrection};

use crate::padded::assert_value;

const OLD: [f32; 3] = [-1.0, -2.0, -0.5];
/// Differences 0.5, -2, unknown.
const SAMPLING: [f32; 3] = [-1.5, 0.0, f32::NAN];

fn ratios(mode: CorrectionMode, least: Option<f64>, greatest: Option<f64>) -> Vec<f64> {
    let how = SamplerCorrection::new(mode, least, greatest).unwrap();
    match how.ratios(&OLD, &SAMPLING).unwrap().0 {
        Correction::None => panic!("no correction"),
        Correction::Sequence(ratio) => vec![ratio],
        Correction::Tokens(ratios) => ratios,
    }
}

#[test]
fn modes() {
    let (half, minus_two) = (0.5f64.exp(), (-2f64).exp());
    assert_eq!(ratios(CorrectionMode::TokenTruncate, None, Some(1.2)), [1.2, minus_two, 1.0]);
    assert_eq!(ratios(CorrectionMode::TokenTruncate, Some(0.5), Some(3.0)), [half, 0.5, 1.0]);
    assert_eq!(ratios(CorrectionMode::TokenMask, Some(0.5), Some(1.2)), [0.0, 0.0, 1.0]);
    assert_eq!(ratios(CorrectionMode::TokenMask, None, None), [half, minus_two, 1.0]);
    assert_eq!(ratios(CorrectionMode::SequenceMask, None, Some(3.0)), [(-1.5f64).exp()]);
    assert_eq!(ratios(CorrectionMode::SequenceMask, Some(0.5), None), [0.0]);
    assert_eq!(ratios(CorrectionMode::SequenceTruncate, Some(0.5), None), [0.5]);
}

#[test]
fn metrics() {
    let how = SamplerCorrection::new(CorrectionMode::TokenMask, None, Some(1.2)).unwrap();
    let found = how.ratios(&OLD, &SAMPLING).unwrap().1;
    let names = how.metrics();
    let mut tally = names.tally(&names.sums_of(&found), &names.extremes_of(&found));
    assert_eq!(tally, found);
    tally.settle();
    for (name, want) in [
        ("sampling/sampling_logp_difference/mean", 1.25),
        ("sampling/sampling_logp_difference/max", 2.0),
        ("sampling/importance_sampling_ratio/min", 0.0),
        ("sampling/importance_sampling_ratio/mean", (1.0 + (-2f64).exp()) / 3.0),
        ("sampling/importance_sampling_ratio/max", 1.0),
    ] {
        assert_value(tally.mean(name).unwrap(), want, name);
    }
}

#[test]
fn bounds_that_make_no_sense() {
    let refused =
        |mode, least, greatest| SamplerCorrection::new(mode, least, greatest).unwrap_err().to_string();
    assert!(refused(CorrectionMode::TokenMask, Some(3.0), Some(3.0)).contains("is not less than"));
    assert!(refused(CorrectionMode::SequenceTruncate, None, None).contains("clip_max"));
    assert!(refused(CorrectionMode::TokenMask, Some(-1.0), None).contains("not negative"));
    assert!("token".parse::<CorrectionMode>().unwrap_err().to_string().contains("sequence_mask"));
}

/// The bonus grows while the entropy is at or below its target, and is off above it.
#[test]
fn adaptive_entropy() {
    let adaptive = AdaptiveEntropy { least: 0.0, greatest: 0.012, delta: 0.005, target: 0.2 };
    let mut control = EntropyControl::new(0.0, Some(adaptive)).unwrap();
    assert_eq!(control.applied(), Some(0.0));
    for (entropy, applied) in [(0.1, 0.005), (0.2, 0.01), (0.1, 0.012), (0.3, 0.0)] {
        control.update(entropy);
        assert_eq!(control.applied(), Some(applied));
    }
    assert_value(control.coefficient, 0.007, "coefficient");
    for _ in 0..3 {
        control.update(0.3);
    }
    assert_eq!(control.coefficient, 0.0);

    let mut constant = EntropyControl::new(0.3, None).unwrap();
    constant.update(9.0);
    assert_eq!(constant.applied(), Some(0.3));
    assert_eq!(EntropyControl::new(0.0, None).unwrap().applied(), None);
    assert!(EntropyControl::new(0.0, Some(AdaptiveEntropy { least: 2.0, ..adaptive })).is_err());
}
