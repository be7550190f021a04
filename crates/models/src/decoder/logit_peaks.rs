//! The largest attention logit of each head, over the passes of a step.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use burn::tensor::Tensor;
use burnish_ops::{AnyTensor, OpsError};

/// The largest attention logit of each query head of each layer, over all pairs that passes have seen.
///
/// A logit is what softmax sees before any cap: `q . k / sqrt(head_dim)` after norm and rotation, for pairs that mask and
/// documents show. Passes that were given it ([`ForwardContext::with_logit_peaks`](crate::ForwardContext::with_logit_peaks)) merge theirs into
/// it, whatever the number of micro-batches; a block that runs again in backward finds the same ones again.
///
/// Heads are numbered as in the whole model: a tensor-parallel rank has those of its query heads, and the maximum of the
/// vectors of all ranks ([`Self::take`]) is that of the global batch, however it was divided.
#[derive(Debug)]
pub struct LogitPeaks {
    heads: usize,
    own: Range<usize>,
    /// Per layer, `[own heads]`.
    layers: Vec<Mutex<Option<AnyTensor>>>,
}

impl LogitPeaks {
    /// Of `layers` layers of `heads` query heads, of which this rank has `own`.
    pub(crate) fn new(layers: usize, heads: usize, own: Range<usize>) -> Self {
        Self { heads, own, layers: (0..layers).map(|_| Mutex::new(None)).collect() }
    }

    /// Elements of the vector of [`Self::take`]: layers times query heads of the whole model.
    #[must_use]
    pub fn len(&self) -> usize {
        self.layers.len() * self.heads
    }

    /// Whether there is no head at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What was found since the last call, layer by layer, `[layers * heads]`; negative infinity for heads of other ranks
    /// and where no pair was seen, NaN where a logit was infinite or not a number. Begins anew.
    ///
    /// A step that is skipped takes too, and lets go.
    #[must_use]
    pub fn take(&self) -> Vec<f32> {
        let mut all = vec![f32::NEG_INFINITY; self.len()];
        let mut found: Vec<(usize, Tensor<1>)> = Vec::new();
        for (layer, peaks) in self.layers.iter().enumerate() {
            let peaks = peaks.lock().unwrap_or_else(PoisonError::into_inner).take();
            let peaks = peaks.map(|p| p.rank::<1>().expect("invariant: `merge` keeps one dimension"));
            found.extend(peaks.map(|p| (layer, p)));
        }
        if found.is_empty() {
            return all;
        }
        // One read from the device.
        let (layers, peaks): (Vec<usize>, Vec<Tensor<1>>) = found.into_iter().unzip();
        let values = AnyTensor::new(Tensor::cat(peaks, 0)).to_f32();
        for (layer, own) in layers.into_iter().zip(values.chunks_exact(self.own.len())) {
            all[layer * self.heads..][self.own.clone()].copy_from_slice(own);
        }
        all
    }

    /// Whether it is one of a model with so many layers and own heads.
    pub(crate) fn check(&self, layers: usize, heads: usize) -> Result<(), OpsError> {
        let (got, expected) = (vec![self.layers.len(), self.own.len()], vec![layers, heads]);
        if got == expected {
            return Ok(());
        }
        Err(OpsError::Shape { op: "logit peaks", what: "layers and heads of this rank", got, expected })
    }

    /// Takes in what one forward of `layer` found, `[own heads]`.
    pub(crate) fn merge(&self, layer: usize, found: &AnyTensor) -> Result<(), OpsError> {
        let found = found.rank::<1>()?;
        let mut known = self.layers[layer].lock().unwrap_or_else(PoisonError::into_inner);
        let all = match known.take() {
            None => found,
            Some(before) => {
                let before = before.rank::<1>()?;
                // Where either is NaN the result is.
                let rises = found.clone().greater(before.clone()).bool_or(found.clone().is_nan());
                before.mask_where(rises, found)
            }
        };
        *known = Some(AnyTensor::new(all));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use burn::tensor::Device;

    use super::*;

    const NONE: f32 = f32::NEG_INFINITY;

    fn peaks(values: [f32; 2]) -> AnyTensor {
        AnyTensor::from_elements(values.to_vec(), &[2], &Device::flex())
    }

    #[test]
    fn the_largest_of_all_passes_stays_until_it_is_taken() {
        let all = LogitPeaks::new(3, 4, 1..3);
        for found in [[1.0, -5.0], [3.0, -7.0], [2.0, NONE]] {
            all.merge(1, &peaks(found)).unwrap();
        }
        all.merge(2, &peaks([NONE, 0.5])).unwrap();
        let mut want = vec![NONE; 12];
        want[5..7].copy_from_slice(&[3.0, -5.0]);
        want[10] = 0.5;
        assert_eq!(all.take(), want);
        assert_eq!(all.take(), [NONE; 12]);
        all.merge(0, &peaks([-1.0, 0.0])).unwrap();
        assert_eq!(all.take()[..4], [NONE, -1.0, 0.0, NONE]);
    }

    #[test]
    fn what_is_not_a_number_is_not_lost() {
        let all = LogitPeaks::new(1, 2, 0..2);
        for found in [[1.0, f32::NAN], [f32::NAN, 1.0], [2.0, 2.0]] {
            all.merge(0, &peaks(found)).unwrap();
        }
        assert!(all.take().iter().all(|x| x.is_nan()));
    }

    #[test]
    fn those_of_another_model_are_refused() {
        let error = LogitPeaks::new(3, 4, 1..3).check(2, 4).unwrap_err().to_string();
        assert_eq!(error, "logit peaks: `layers and heads of this rank` has shape [3, 2], expected [2, 4]");
    }
}
