//! QK-Clip: after a step, queries and keys of heads whose attention logits grew too large are scaled down (Kimi K2,
//! arXiv:2507.20534, section 2.1, "MuonClip").
//!
//! With `S` the largest logit of a query head over the step's batch and `tau` the threshold, the head's logits are
//! multiplied by `gamma = min(1, tau / S)`. A logit is bilinear in the rows (and biases) of the query and the key
//! projection, so that is done by scaling rows: `sqrt(gamma)` each where a head has keys of its own. Where query heads
//! share keys, the keys are scaled by the root of the smallest `gamma` of the group, and each query head by
//! `gamma / sqrt(smallest)`: every head's logits shrink by its own `gamma`, those of heads below the threshold by none.
//!
//! Nothing here communicates: the maximum over ranks of [`LogitPeaks::take`](crate::LogitPeaks::take)'s vectors, in
//! which heads are numbered as in the whole model, is all that ranks must agree on. Ranks that share key heads then
//! find the same factors for them.

use std::ops::Range;

use burn::tensor::FloatDType;
use burnish_core::Dtype;
use burnish_ops::{AnyTensor, OpsError};

use crate::decoder::layers::{LATENT_NORMS, Layer};
use crate::files::load::ModelPlan;
use crate::spec::names::QkvNames;
use crate::{ModelError, Spec};

/// What the heads of one layer are multiplied by.
#[derive(Clone, Debug, PartialEq)]
pub struct HeadFactors {
    /// Queries, per query head.
    pub q: Vec<f64>,
    /// Keys, per key head.
    pub k: Vec<f64>,
}

impl HeadFactors {
    /// Factors of a layer whose query heads' largest logits are `peaks`; a multiple of `kv_heads` of them. All ones where
    /// none exceeds `tau`.
    ///
    /// ```
    /// use burnish_models::HeadFactors;
    ///
    /// // Two query heads share a key head; the first one's logits are to be halved, the second one's stay.
    /// let factors = HeadFactors::new(&[200.0, 50.0], 1, 100.0);
    /// assert_eq!(factors.q[0] * factors.k[0], 0.5);
    /// assert_eq!(factors.q[1] * factors.k[0], 1.0);
    /// ```
    ///
    /// # Panics
    /// If key heads do not serve equal numbers of query heads.
    #[must_use]
    pub fn new(peaks: &[f32], kv_heads: usize, tau: f32) -> Self {
        assert!(
            kv_heads > 0 && peaks.len().is_multiple_of(kv_heads),
            "qk_clip: {} query heads for {kv_heads} key heads, expected a multiple",
            peaks.len()
        );
        let gamma = |&peak: &f32| if peak > tau { f64::from(tau) / f64::from(peak) } else { 1.0 };
        let (mut q, mut k) = (Vec::with_capacity(peaks.len()), Vec::with_capacity(kv_heads));
        for group in peaks.chunks((peaks.len() / kv_heads).max(1)) {
            let root = group.iter().map(gamma).fold(1.0, f64::min).sqrt();
            q.extend(group.iter().map(|peak| gamma(peak) / root));
            k.push(root);
        }
        Self { q, k }
    }

    fn changes(&self) -> bool {
        self.k.iter().any(|&k| k != 1.0)
    }
}

/// What the rows of one parameter are multiplied by.
#[derive(Clone, Debug, PartialEq)]
pub struct RowFactors {
    /// The parameter.
    pub index: usize,
    /// One per row (element of a bias) of what this rank holds.
    pub factors: Vec<f32>,
}

impl RowFactors {
    /// `value`, which is rows `rows` of what this rank holds of the parameter (all of them, or those of its partition),
    /// scaled: multiplied in f32 and rounded to its own dtype.
    ///
    /// # Errors
    /// If it is not of one or two dimensions, or not of so many rows.
    pub fn scaled(&self, value: &AnyTensor, rows: Range<usize>) -> Result<AnyTensor, OpsError> {
        let shape = value.shape();
        let fits = rows.start <= rows.end && rows.end <= self.factors.len();
        if !fits || shape.first() != Some(&rows.len()) {
            let expected =
                [&[rows.len().min(self.factors.len())][..], shape.get(1..).unwrap_or_default()].concat();
            return Err(OpsError::Shape { op: "qk_clip", what: "rows of a parameter", got: shape, expected });
        }
        let factors = AnyTensor::from_elements(self.factors[rows].to_vec(), &shape[..1], &value.device());
        let factors = factors.rank::<1>()?;
        let narrow = match value.dtype() {
            Some(Dtype::Bf16) => Some(FloatDType::BF16),
            Some(Dtype::F16) => Some(FloatDType::F16),
            _ => None,
        };
        let wide = if narrow.is_some() { value.cast(FloatDType::F32) } else { value.clone() };
        let scaled = match shape.len() {
            1 => AnyTensor::new(wide.rank::<1>()? * factors),
            _ => AnyTensor::new(wide.rank::<2>()? * factors.unsqueeze_dim(1)),
        };
        Ok(match narrow {
            Some(dtype) => scaled.cast(dtype),
            None => scaled,
        })
    }
}

/// What a step's clipping does.
#[derive(Clone, Debug, PartialEq)]
pub struct Clip {
    /// Parameters of which some rank scales rows, ascending; the same ones on every tensor-parallel rank.
    pub rows: Vec<RowFactors>,
    /// How many heads exceeded the threshold, over all layers of the whole model.
    pub heads: usize,
    /// The largest logit of all; negative infinity where nothing was seen.
    pub largest: f32,
}

/// Which heads the rows of a projection belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    Queries,
    Keys,
    /// Queries, keys, values.
    All,
    /// Of each key head its queries, key and value.
    PerGroup,
    /// Of each quarter of the heads queries, values, keys.
    Quarters,
}

/// A weight or bias whose rows are scaled.
#[derive(Clone, Debug)]
struct Scaled {
    index: usize,
    rows: Rows,
    /// The rows that this rank holds of the whole.
    pieces: Vec<Range<usize>>,
}

/// The parameters that clipping scales: weights and biases of the query and key projections of every layer. Made by
/// [`ModelPlan::qk_clip`] before anything is read.
///
/// After a step, in which [`ForwardContext`](crate::ForwardContext)es had [`Decoder::logit_peaks`](crate::Decoder::logit_peaks):
/// take the peaks, reduce them by maximum over all ranks, and multiply rows by [`Self::factors`] wherever they are
/// kept: in the f32 master of a narrower weight, from which that is rounded again, or else in the weight itself.
///
/// ```no_run
/// # use burn::tensor::Device;
/// # use burnish_core::Dtype;
/// # use burnish_models::{Mode, ModelFolder, ModelPlan, Tokens, Tuning};
/// let folder = ModelFolder::open("path/to/model").unwrap();
/// let planned = ModelPlan::new(&folder, &Tuning::Full, Dtype::F32, 0).unwrap();
/// let clip = planned.qk_clip().unwrap();
/// let (model, parameters) = planned.resident(&Device::flex()).unwrap();
/// let (peaks, tokens) = (model.decoder.logit_peaks(), Tokens::from_sequences(&[vec![1, 2, 3]]));
///
/// let mode = Mode::Train { recompute: true, dropout: None };
/// let pass = model.decoder.pass(mode).with_logit_peaks(peaks.clone());
/// let hidden = model.decoder.hidden(&tokens, &pass).unwrap();
/// // loss, backward, the optimizer's step; the maximum over ranks, where there are several
/// for rows in clip.factors(&peaks.take(), 100.0).unwrap().rows {
///     let weight = parameters.take(rows.index);
///     parameters.write(rows.index, rows.scaled(&weight, 0..rows.factors.len()).unwrap());
/// }
/// ```
#[derive(Clone, Debug)]
pub struct QkClip {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    /// Per layer, its name and what is scaled in it.
    layers: Vec<(String, Vec<Scaled>)>,
}

impl ModelPlan<'_> {
    /// What QK-Clip scales in this model, on this rank.
    ///
    /// # Errors
    /// [`ModelError::QkClipNormed`] for models with norms of queries and keys; [`ModelError::QkClipAdapted`],
    /// [`ModelError::QkClipFrozen`] where a projection is not trained itself.
    pub fn qk_clip(&self) -> Result<QkClip, ModelError> {
        let blueprint = &self.blueprint;
        let Spec { heads, kv_heads, head_dim, .. } = *blueprint.spec();
        let mut layers = Vec::with_capacity(blueprint.blocks.len());
        for block in &blueprint.blocks {
            if block.conv.is_some() || block.o.is_none() {
                layers.push((block.name.clone(), Vec::new()));
                continue;
            }
            if block.latent.is_some() {
                let norm = format!("{}.{}.weight", block.name, LATENT_NORMS[1]);
                return Err(ModelError::QkClipNormed { norm });
            }
            if block.qk_norms.is_some() {
                let norm = format!("{}.{}.weight", block.name, blueprint.spec().names.qk_norms[0]);
                return Err(ModelError::QkClipNormed { norm });
            }
            let mut scaled = Vec::new();
            match block.qkv.as_slice() {
                [packed] => {
                    let rows = match blueprint.spec().names.qkv {
                        QkvNames::PerGroup(_) => Rows::PerGroup,
                        QkvNames::Quarters(_) => Rows::Quarters,
                        _ => Rows::All,
                    };
                    self.scaled(packed, rows, &mut scaled)?;
                }
                [q, k, ..] => {
                    self.scaled(q, Rows::Queries, &mut scaled)?;
                    self.scaled(k, Rows::Keys, &mut scaled)?;
                }
                [] => {}
            }
            scaled.sort_by_key(|s| s.index);
            layers.push((block.name.clone(), scaled));
        }
        Ok(QkClip { heads, kv_heads, head_dim, layers })
    }

    /// Adds weight and bias of `layer`.
    fn scaled(&self, layer: &Layer, rows: Rows, to: &mut Vec<Scaled>) -> Result<(), ModelError> {
        let registry = self.blueprint.registry();
        for (_, index) in layer.active(true).linear.base() {
            let parameter = registry.at(index);
            let name = parameter.name.clone();
            if layer.adapter.is_some() {
                return Err(ModelError::QkClipAdapted { name });
            }
            if !parameter.trainable {
                return Err(ModelError::QkClipFrozen { name });
            }
            let pieces = match self.layout_of(index) {
                Some((layout, rank)) => layout.region(rank).ranges(0).to_vec(),
                None => std::iter::once(0..parameter.shape[0]).collect(),
            };
            to.push(Scaled { index, rows, pieces });
        }
        Ok(())
    }
}

impl QkClip {
    /// What is to be scaled after a step whose largest logits, over all ranks, are `peaks` (as
    /// [`LogitPeaks::take`](crate::LogitPeaks::take): `[layers * heads]`).
    ///
    /// # Errors
    /// [`ModelError::QkClipThreshold`] if `tau` is not positive and finite; [`ModelError::QkClipPeaks`] if there are not
    /// as many peaks as heads; [`ModelError::QkClipNotFinite`] if one is infinite or not a number.
    pub fn factors(&self, peaks: &[f32], tau: f32) -> Result<Clip, ModelError> {
        if !(tau.is_finite() && tau > 0.0) {
            return Err(ModelError::QkClipThreshold { got: tau });
        }
        let expected = self.layers.len() * self.heads;
        if peaks.len() != expected {
            return Err(ModelError::QkClipPeaks { got: peaks.len(), expected });
        }
        if let Some(at) = peaks.iter().position(|p| p.is_nan() || *p == f32::INFINITY) {
            let layer = self.layers[at / self.heads].0.clone();
            return Err(ModelError::QkClipNotFinite { layer, head: at % self.heads, got: peaks[at] });
        }
        let mut rows = Vec::new();
        for ((_, scaled), peaks) in self.layers.iter().zip(peaks.chunks_exact(self.heads)) {
            let factors = HeadFactors::new(peaks, self.kv_heads, tau);
            if factors.changes() {
                rows.extend(scaled.iter().map(|s| self.rows(s, &factors)));
            }
        }
        rows.sort_by_key(|r: &RowFactors| r.index);
        let heads = peaks.iter().filter(|&&peak| peak > tau).count();
        Ok(Clip { rows, heads, largest: peaks.iter().copied().fold(f32::NEG_INFINITY, f32::max) })
    }

    fn rows(&self, scaled: &Scaled, factors: &HeadFactors) -> RowFactors {
        let values = vec![1.0; self.kv_heads];
        let heads: Vec<f64> = match scaled.rows {
            Rows::Queries => factors.q.clone(),
            Rows::Keys => factors.k.clone(),
            Rows::All => [&factors.q[..], &factors.k, &values].concat(),
            Rows::Quarters => {
                let each = (self.heads / 4).max(1);
                let quarters = factors.q.chunks(each).zip(factors.k.chunks(each));
                quarters.flat_map(|(q, k)| [q, &values[..q.len()], k].concat()).collect()
            }
            Rows::PerGroup => {
                let groups = factors.q.chunks((factors.q.len() / factors.k.len().max(1)).max(1));
                groups.zip(&factors.k).flat_map(|(q, &k)| [q, &[k, 1.0]].concat()).collect()
            }
        };
        let own = scaled.pieces.iter().cloned().flatten();
        let factors = own.map(|row| heads[row / self.head_dim] as f32).collect();
        RowFactors { index: scaled.index, factors }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use burn::tensor::Device;

    use super::*;

    #[test]
    fn every_head_shrinks_by_its_own_factor() {
        let peaks = [40.0, 10.0, f32::NEG_INFINITY, -90.0, 20.0, 80.0];
        let HeadFactors { q, k } = HeadFactors::new(&peaks, 3, 20.0);
        assert_eq!((q.len(), k.len()), (6, 3));
        for (head, peak) in peaks.into_iter().enumerate() {
            let want = if peak > 20.0 { 20.0 / f64::from(peak) } else { 1.0 };
            let got = q[head] * k[head / 2];
            assert!((got - want).abs() < 1e-15, "{head}: {got}, expected {want}");
        }
        // Keys of a group below the threshold do not change, nor queries.
        assert_eq!((k[1], q[2], q[3]), (1.0, 1.0, 1.0));
        // A head with keys of its own is scaled by the same factor on both sides.
        let alone = HeadFactors::new(&[80.0], 1, 20.0);
        assert_eq!((alone.q[0], alone.k[0]), (0.5, 0.5));
    }

    #[test]
    fn a_head_at_the_threshold_stays() {
        let factors = HeadFactors::new(&[100.0, 99.0], 2, 100.0);
        assert!(!factors.changes() && factors.q == [1.0, 1.0]);
    }

    #[test]
    fn rows_are_scaled_in_their_own_dtype() {
        let rows = RowFactors { index: 0, factors: vec![1.0, 0.5, 3.0, 0.7] };
        let device = Device::flex();
        let tensor =
            |values: &[f32], shape: &[usize]| AnyTensor::from_elements(values.to_vec(), shape, &device);
        let whole = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1.0, 10.0], &[4, 2]);
        assert_eq!(rows.scaled(&whole, 0..4).unwrap().to_f32(), [1.0, 2.0, 1.5, 2.0, 15.0, 18.0, 0.7, 7.0]);
        // A partition has some of them, or none.
        let part = rows.scaled(&tensor(&[3.0, 4.0, 5.0, 6.0], &[2, 2]), 1..3).unwrap();
        assert_eq!((part.shape(), part.to_f32()), (vec![2, 2], vec![1.5, 2.0, 15.0, 18.0]));
        assert_eq!(rows.scaled(&tensor(&[8.0, 2.0], &[2]), 1..3).unwrap().to_f32(), [4.0, 6.0]);
        assert_eq!(rows.scaled(&tensor(&[], &[0, 2]), 2..2).unwrap().shape(), [0, 2]);
        let narrow = rows.scaled(&whole.cast(FloatDType::BF16), 0..4).unwrap();
        assert_eq!(narrow.dtype(), Some(Dtype::Bf16));
        // 0.7 to 8 bits; 7 is exact after one rounding.
        assert_eq!(narrow.to_f32()[6..], [0.699_218_75, 7.0]);
        for wrong in [0..3, 2..6] {
            let error = rows.scaled(&whole, wrong).unwrap_err().to_string();
            assert!(error.starts_with("qk_clip: `rows of a parameter` has shape [4, 2]"), "{error}");
        }
    }
}
