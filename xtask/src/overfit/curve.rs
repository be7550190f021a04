//! Bounds on the log of an overfit run.

use anyhow::{Result, ensure};

/// Steps of a run.
pub(crate) const STEPS: usize = 300;
/// How far loss and gradient norm must fall, as a share of where they begin.
pub(crate) const FALL: f64 = 0.9;
/// Steps whose loss is compared with one rank's.
const COMPARED: usize = 50;
/// How close it must be, relatively.
const CLOSE: f64 = 1e-5;
/// Steps at the end of a run over which the median of the gradient norm is taken.
///
/// The last step alone, which the tests of PEFT and Transformers take, is chance: at a constant rate Adam does not come to
/// rest. As gradients vanish so does the average of their squares that divides them, until the step is too long for the
/// curvature; then the norm leaps from 0.2 % of its first value to 10 or 20 %, the average recovers, and it falls again,
/// some for forty steps, while the loss moves in its third digit. Rounding decides when, so numbers of ranks differ. The
/// same recipe in PyTorch wanders alike, and a rate that decays ends it. The median over one third of the run outlasts such
/// bursts, and stays high for a run that does not train.
const TAIL: usize = STEPS / 3;

/// Loss and gradient norm of every step.
#[derive(Clone, Debug)]
pub(crate) struct Curves {
    pub(crate) loss: Vec<f64>,
    pub(crate) norm: Vec<f64>,
}

/// How far both fell: 1 is to nothing, 0 not at all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fall {
    pub(crate) loss: f64,
    pub(crate) norm: f64,
}

impl Curves {
    /// That the run trained: the last loss, and the median gradient norm of the last third, are at most a tenth of the
    /// first.
    pub(crate) fn fallen(&self) -> Result<Fall> {
        let (loss, norm) = (&self.loss, &self.norm);
        ensure!(
            loss.len() == STEPS && norm.len() == STEPS,
            "the log has {} losses and {} gradient norms, expected {STEPS}",
            loss.len(),
            norm.len()
        );
        let finite = loss.iter().chain(norm).all(|n| n.is_finite());
        ensure!(finite, "the log has a loss or a gradient norm that is not a number");
        let fall = Fall {
            loss: 1.0 - loss[STEPS - 1] / loss[0],
            norm: 1.0 - median(&norm[STEPS - TAIL..]) / norm[0],
        };
        let [lost, calmed, wanted] = [fall.loss, fall.norm, FALL].map(|share| 100.0 * share);
        ensure!(fall.loss >= FALL, "the loss fell by {lost:.1} % only, expected {wanted:.0} %");
        ensure!(
            fall.norm >= FALL,
            "the gradient norm fell by {calmed:.1} % only (median of the last {TAIL} steps), expected {wanted:.0} %"
        );
        Ok(fall)
    }

    /// The largest relative difference of the first losses to one rank's.
    pub(crate) fn apart(&self, one: &Self) -> Result<f64> {
        let pairs = self.loss.iter().zip(&one.loss).take(COMPARED);
        let (at, worst) = pairs
            .map(|(a, b)| ((a - b) / b).abs())
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .unwrap_or((0, f64::NAN));
        ensure!(
            worst <= CLOSE,
            "the loss of step {} differs from one rank's by {worst:.1e}, expected {CLOSE:.0e}",
            at + 1
        );
        Ok(worst)
    }
}

/// The middle one, or the upper one of two.
fn median(numbers: &[f64]) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run that trains: both fall to a hundredth within 150 steps.
    fn trained() -> Curves {
        let fall = |first: f64| (0..STEPS).map(|t| first * (-(t as f64) / 30.0).exp().max(0.01)).collect();
        Curves { loss: fall(6.5), norm: fall(7.0) }
    }

    #[test]
    fn a_run_that_trains_passes_and_bursts_at_the_end_do_not_fail_it() {
        let mut curves = trained();
        let fall = curves.fallen().expect("trained");
        assert!((fall.loss - 0.99).abs() < 1e-9 && (fall.norm - 0.99).abs() < 1e-9, "{fall:?}");
        for t in STEPS - 20..STEPS {
            curves.norm[t] = 0.2 * curves.norm[0];
        }
        curves.fallen().expect("twenty steps of a burst");
    }

    #[test]
    fn a_run_that_does_not_train_fails() {
        let said = |curves: &Curves| curves.fallen().map(|_| ()).expect_err("not trained").to_string();
        let mut still = trained();
        still.norm.fill(7.0);
        assert!(said(&still).contains("gradient norm fell by 0.0 %"), "{}", said(&still));
        still.loss.fill(6.5);
        assert!(said(&still).contains("the loss fell by 0.0 %"), "{}", said(&still));
        // Low for less than half of the last third.
        let mut late = trained();
        late.norm[..STEPS - TAIL / 2 + 1].fill(7.0);
        assert!(said(&late).contains("gradient norm"), "{}", said(&late));
        // A loss that comes back at the very end is no burst to be forgiven.
        let mut back = trained();
        back.loss[STEPS - 1] = 2.0;
        assert!(said(&back).contains("the loss fell by 69.2 %"), "{}", said(&back));
    }

    #[test]
    fn logs_that_break_off_or_blow_up_fail() {
        let mut short = trained();
        short.loss.pop();
        assert!(short.fallen().expect_err("short").to_string().contains("299 losses"));
        let mut blown = trained();
        blown.norm[250] = f64::NAN;
        assert!(blown.fallen().expect_err("blown").to_string().contains("not a number"));
    }

    #[test]
    fn only_the_first_steps_are_held_to_one_rank() {
        let one = trained();
        let mut other = trained();
        other.loss[COMPARED] *= 1.1;
        other.loss[7] *= 1.0 + 1e-6;
        let apart = other.apart(&one).expect("close");
        assert!((apart - 1e-6).abs() < 1e-9, "{apart}");
        other.loss[COMPARED - 1] *= 1.0 + 1e-4;
        assert!(other.apart(&one).expect_err("apart").to_string().contains("step 50"));
        other.loss[3] = f64::NAN;
        assert!(other.apart(&one).is_err());
    }
}
