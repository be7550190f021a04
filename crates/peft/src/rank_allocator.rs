//! `RankAllocator`: how many singular values AdaLoRA keeps at which step, and which (Zhang et al. 2023, arXiv:2303.10512).

use std::collections::BTreeMap;

use crate::{AdaLora, PeftError};

/// By the names of modules' singular values which are left.
pub type RankPattern = BTreeMap<String, Vec<bool>>;

/// What training has made of an adapter's ranks so far.
#[derive(Clone, Debug, PartialEq)]
pub struct AllottedRanks {
    /// The steps that its budget counts.
    pub total_step: u64,
    /// Which are left, once an allotment was made.
    pub pattern: Option<RankPattern>,
}

/// The budget of a run's steps: as many singular values as the modules begin with, fewer and fewer after `tinit` steps, and
/// `target_r` of each module on average in the last `tfinal`.
///
/// ```
/// use burnish_peft::{AdaLora, Allotment, RankAllocator};
///
/// let own = AdaLora { init_r: 4, target_r: 2, tinit: 2, tfinal: 2, ..AdaLora::default() };
/// let allocator = RankAllocator::new(&own, 8, 3).unwrap();
/// assert_eq!(allocator.at(2), Allotment::All);
/// assert_eq!(allocator.at(3), Allotment::Of(8));
/// assert_eq!(allocator.at(6), Allotment::Of(6));
/// assert_eq!(allocator.at(7), Allotment::AsBefore);
/// // Of equal scores all fall.
/// assert_eq!(allocator.kept(&[5.0, 0.5, 0.5, 2.0, 1.0, 3.0, 4.0, 6.0, 0.1, 7.0, 8.0, 9.0], 9), [
///     true, false, false, true, true, true, true, true, false, true, true, true
/// ]);
/// ```
#[derive(Clone, Debug)]
pub struct RankAllocator {
    own: AdaLora,
    total: u64,
    first: usize,
    last: usize,
}

/// What becomes of singular values after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allotment {
    /// They are as the step left them.
    All,
    /// So many of all modules are kept, the others zero.
    Of(usize),
    /// Those that were zero are so again.
    AsBefore,
}

impl RankAllocator {
    /// Of so many steps and modules.
    ///
    /// # Errors
    /// If no step is left for the budget to fall.
    pub fn new(own: &AdaLora, total_step: u64, modules: usize) -> Result<Self, PeftError> {
        own.check_steps(total_step)?;
        let (first, last) = (own.init_r * modules, own.target_r * modules);
        Ok(Self { own: own.clone(), total: total_step, first, last })
    }

    /// The steps that it counts.
    #[must_use]
    pub fn total_step(&self) -> u64 {
        self.total
    }

    /// The step, counted from 0, whose allotment is the last.
    fn end(&self) -> u64 {
        self.total - self.own.tfinal
    }

    /// Whether the importance of parameters moves with a step, counted from 0.
    #[must_use]
    pub fn measures(&self, step: u64) -> bool {
        step < self.end()
    }

    /// What becomes of singular values after a step, counted from 0.
    #[must_use]
    pub fn at(&self, step: u64) -> Allotment {
        let (begin, end) = (self.own.tinit, self.end());
        if step > end {
            return Allotment::AsBefore;
        }
        if step < end && (step <= begin || !step.is_multiple_of(self.own.delta_t)) {
            return Allotment::All;
        }
        let left = 1.0 - (step - begin) as f64 / (end - begin) as f64;
        let (first, last) = (self.first as f64, self.last as f64);
        Allotment::Of(((first - last) * left.powf(3.0) + last) as usize)
    }

    /// Which singular values are among the `budget` of highest score; of equal scores at its edge none.
    #[must_use]
    pub fn kept(&self, scores: &[f32], budget: usize) -> Vec<bool> {
        let mut sorted = scores.to_vec();
        sorted.sort_by(f32::total_cmp);
        let threshold = scores.len().saturating_sub(budget).checked_sub(1).map(|at| sorted[at]);
        scores.iter().map(|&score| threshold.is_none_or(|threshold| score > threshold)).collect()
    }

    /// How much of an average stays when it moves: of importance (sensitivity), and of its distance from that (uncertainty).
    #[must_use]
    pub fn smoothing(&self) -> [f64; 2] {
        [self.own.beta1, self.own.beta2]
    }
}
