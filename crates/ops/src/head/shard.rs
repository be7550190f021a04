//! A head whose rows are split over ranks (Megatron-LM's vocabulary parallelism, arXiv:1909.08053 section 3).
//!
//! A rank's logits never leave it. Per token it says seven numbers of them; the ranks' numbers are gathered and every
//! rank makes the statistics of the whole vocabulary of them, in the order of the ranks and so with the same bits.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::{HeadOptions, TokenStats};
use crate::OpsError;

/// How the ranks that split a vocabulary exchange what they found.
pub trait AcrossVocab: Send + Sync {
    /// What every rank gave, one after the other in the order of the ranks.
    ///
    /// All ranks call it in the same order with slices of the same length, in forward and, inside segments, in
    /// backward. There is nobody to return an error to: who cannot reach the others gives zeros, as many, and says so
    /// elsewhere.
    fn gather(&self, own: &[f32]) -> Vec<f32>;
}

impl<F: Fn(&[f32]) -> Vec<f32> + Send + Sync> AcrossVocab for F {
    fn gather(&self, own: &[f32]) -> Vec<f32> {
        self(own)
    }
}

/// Which rows of a head a rank has, and how it reaches the others.
///
/// ```
/// use std::sync::Arc;
/// use burn::tensor::{Device, Tensor};
/// use burnish_ops::{AnyTensor, HeadOptions, Linear, VocabShard, head_log_probs};
///
/// let hidden = AnyTensor::new(Tensor::<2>::ones([1, 4], &Device::flex()));
/// let head = Linear::new(AnyTensor::new(Tensor::<2>::zeros([3, 4], &Device::flex())));
/// // Three rows here; the other rank has four, and as it happens finds the same maximum.
/// let other = [0.0, 4.0, 4.0, 0.0, 0.0, 0.0, 0.0];
/// let gather = move |own: &[f32]| [own, other.as_slice()].concat();
/// let shard = VocabShard::new(&[3, 4], 0, Arc::new(gather)).unwrap();
/// let (_, stats) =
///     head_log_probs(&hidden, &head, Some(&shard), &vec![2].into(), HeadOptions::default()).unwrap();
/// assert!((stats.log_prob[0] + 7f32.ln()).abs() < 1e-6);
/// ```
#[derive(Clone)]
pub struct VocabShard {
    /// Where each rank's rows start; then the vocabulary's length.
    starts: Arc<[usize]>,
    rank: usize,
    across: Arc<dyn AcrossVocab>,
}

impl VocabShard {
    /// Numbers per token that a rank gives to [`AcrossVocab::gather`].
    ///
    /// A pass without gradients gathers once, a [`crate::head_loss`] on the CPU that makes gradients once for every
    /// tile of tokens; the numbers are as many.
    pub const VALUES: usize = 7;

    /// The rows of rank `rank`, where the vocabulary is split in order into `rows` per rank; a rank may have none.
    ///
    /// # Errors
    /// If there is no such rank.
    pub fn new(rows: &[usize], rank: usize, across: Arc<dyn AcrossVocab>) -> Result<Self, OpsError> {
        if rank >= rows.len() {
            return Err(OpsError::Index { op: "vocabulary shard", got: rank, limit: rows.len() });
        }
        let mut starts = vec![0];
        starts.extend(rows.iter().scan(0, |at, n| {
            *at += n;
            Some(*at)
        }));
        Ok(Self { starts: starts.into(), rank, across })
    }

    /// Entries of the whole vocabulary.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.starts[self.ranks()]
    }

    /// This rank's rows.
    #[must_use]
    pub fn rows(&self) -> Range<usize> {
        self.starts[self.rank]..self.starts[self.rank + 1]
    }

    /// Tokens of a tile of [`crate::head_loss`] on the CPU, the same on every rank.
    #[cfg(feature = "flex")]
    #[must_use]
    pub fn tile(&self) -> usize {
        tile(self.widest())
    }

    /// How often [`crate::head_loss`] with gradients gathers for `tokens` tokens, when the rank with most rows has
    /// `widest`: on the CPU once per tile, elsewhere once. (With a magnitude once anywhere.)
    #[must_use]
    pub fn exchanges(widest: usize, tokens: usize) -> usize {
        tokens.div_ceil(tile(widest)).max(1)
    }

    /// Rows of the rank that has most.
    #[cfg(feature = "flex")]
    pub(crate) fn widest(&self) -> usize {
        self.starts.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0)
    }

    pub(crate) fn ranks(&self) -> usize {
        self.starts.len() - 1
    }

    /// The statistics of tokens, from what this rank's rows say of them.
    pub(crate) fn combine(&self, targets: &[u32], own: &[Part], options: &HeadOptions) -> Combined {
        let all = self.across.gather(own.as_flattened());
        let expected = own.len() * self.ranks();
        let (all, rest) = all.as_chunks::<{ Self::VALUES }>();
        assert!(
            all.len() == expected && rest.is_empty(),
            "head: gathered {} parts from {} ranks, expected {expected}",
            all.len(),
            self.ranks()
        );
        let mut out = Combined::default();
        for (i, &target) in targets.iter().enumerate() {
            let parts = || all.iter().skip(i).step_by(own.len());
            // The last rank that starts there or before: those without rows start where the next one does.
            let owner = self.starts.partition_point(|&s| s <= target as usize) - 1;
            self.push(parts, owner, options, &mut out);
        }
        out
    }

    /// One token: its parts on all ranks, and the rank of its target.
    fn push<'p, P: Iterator<Item = &'p Part>>(
        &self,
        parts: impl Fn() -> P,
        owner: usize,
        options: &HeadOptions,
        out: &mut Combined,
    ) {
        let top = parts().fold(f32::NEG_INFINITY, |top, p| top.max(p[TOP]));
        let (mut sum, mut squares, mut weighted, mut total) = (0.0, 0.0, 0.0, 0.0);
        let (mut target, mut is_top1) = (0.0, true);
        for (rank, part) in parts().enumerate() {
            let at = |i: usize| f64::from(part[i]);
            let below = at(TOP) - f64::from(top);
            let e = below.exp();
            sum += e * at(SUM);
            squares += e * e * at(SQUARES);
            // Where `e` is 0, so is the term.
            weighted += e * (below.max(-200.0) * at(SUM) + at(WEIGHTED));
            total += at(TOTAL);
            if rank == owner {
                target = part[TARGET];
                is_top1 = part[IS_FIRST] == 1.0 && target >= top;
            }
        }
        is_top1 &= parts().take(owner).all(|p| p[TOP] < target);
        let log_sum = sum.ln();
        let log_z = f64::from(top) + log_sum;
        out.log_z.push(log_z as f32);
        let s = &mut out.stats;
        let mean = total / self.vocab() as f64;
        let smoothing = f64::from(options.label_smoothing);
        // The mean need not be finite.
        let spread = if smoothing > 0.0 { smoothing * (mean - log_z) } else { 0.0 };
        s.log_prob.push(((1.0 - smoothing) * (f64::from(target) - log_z) + spread) as f32);
        s.entropy.push((log_sum - weighted / sum) as f32);
        s.log_sum_sq_probs.push((squares.ln() - 2.0 * log_sum) as f32);
        s.mean_logit.push(mean as f32);
        s.is_top1.push(is_top1);
    }
}

#[cfg(feature = "flex")]
fn tile(widest: usize) -> usize {
    burnish_cpu_kernels::head_tile(widest)
}

/// Without the CPU's kernels all tokens are one.
#[cfg(not(feature = "flex"))]
fn tile(_: usize) -> usize {
    usize::MAX
}

impl fmt::Debug for VocabShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VocabShard").field("rows", &self.rows()).field("vocab", &self.vocab()).finish()
    }
}

/// What one rank's rows say of a token: the largest `z` (at least -1e30), `Σ e` with `e = exp(z - top)`, `Σ e²`,
/// `Σ e·(z - top)`, `Σ z`; the target's `z` where it is one of them, and 1 where it is their first maximum.
pub(crate) type Part = [f32; VocabShard::VALUES];

pub(crate) const TOP: usize = 0;
pub(crate) const SUM: usize = 1;
pub(crate) const SQUARES: usize = 2;
pub(crate) const WEIGHTED: usize = 3;
pub(crate) const TOTAL: usize = 4;
pub(crate) const TARGET: usize = 5;
pub(crate) const IS_FIRST: usize = 6;

/// Of no rows.
pub(crate) const NO_PART: Part = [-1e30, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];

/// The whole vocabulary's statistics of some tokens.
#[derive(Debug, Default)]
pub(crate) struct Combined {
    pub(crate) stats: TokenStats,
    /// `ln Σ exp z`.
    pub(crate) log_z: Vec<f32>,
}
