//! The selective scan: by kernels, or in Burn's operations token by token.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{DType, Tensor};

use super::head_weights::softplus;
#[cfg(feature = "cube")]
use super::kernels;
use super::{to, wide_dtype};
use crate::selective_scan::{SelectiveScan, Sizes};
use crate::{AnyTensor, Documents, OpsError};

/// See [`crate::selective_scan()`].
pub(crate) fn selective_scan(
    scan: &SelectiveScan,
    sizes: Sizes,
    texts: &Documents,
    parents: &[Option<usize>],
) -> Result<AnyTensor, OpsError> {
    #[cfg(feature = "cube")]
    if let Some(y) = kernels::selective_scan(scan, sizes, texts, parents) {
        return y;
    }
    let channels = Channels::new(scan)?;
    let mut left: BTreeMap<usize, Tensor<2>> = BTreeMap::new();
    let mut all = Vec::with_capacity(texts.len());
    for (at, rows) in texts.iter().enumerate() {
        let before = parents.get(at).copied().flatten().and_then(|parent| left.get(&parent).cloned());
        let (parts, state) = channels.walk(rows, before.unwrap_or_else(|| channels.rates.zeros_like()));
        all.push((rows.clone(), parts));
        if parents.contains(&Some(at)) {
            left.insert(at, state);
        }
    }
    Ok(channels.in_rows(all, sizes))
}

/// The output of new rows and the states behind them, `[texts, states * channels]`.
pub(crate) fn stepped(
    scan: &SelectiveScan,
    sizes: Sizes,
    texts: &Documents,
    states: AnyTensor,
) -> Result<(AnyTensor, AnyTensor), OpsError> {
    #[cfg(feature = "cube")]
    if let Some(stepped) = kernels::selective_scan_stepped(scan, sizes, texts, &states) {
        return Ok(stepped);
    }
    let (channels, states) = (Channels::new(scan)?, states.rank::<2>()?);
    let (mut all, mut behind) = (Vec::new(), Vec::new());
    for (at, rows) in texts.iter().enumerate() {
        let state = states.clone().narrow(0, at, 1).reshape([sizes.states, sizes.channels]);
        let (parts, state) = channels.walk(rows, to(state, channels.x.dtype()));
        all.push((rows.clone(), parts));
        behind.push(to(state, DType::F32).reshape([1, sizes.states * sizes.channels]));
    }
    let states = if behind.is_empty() { states } else { Tensor::cat(behind, 0) };
    Ok((channels.in_rows(all, sizes), AnyTensor::new(states)))
}

/// What channels read; states are `[states, channels]`.
struct Channels {
    x: Tensor<2>,
    dt: Tensor<2>,
    /// How fast is forgotten, below zero: `[states, channels]`.
    rates: Tensor<2>,
    b: Tensor<2>,
    c: Tensor<2>,
    /// `[1, channels]`.
    skip: Tensor<2>,
}

impl Channels {
    fn new(scan: &SelectiveScan) -> Result<Self, OpsError> {
        let dtype = wide_dtype(&scan.x);
        let matrix = |t: &AnyTensor| Ok::<_, OpsError>(to(t.rank::<2>()?, dtype));
        Ok(Self {
            x: matrix(&scan.x)?,
            dt: softplus(matrix(&scan.steps)?),
            rates: -matrix(&scan.log_rates)?.exp().swap_dims(0, 1),
            b: matrix(&scan.b)?,
            c: matrix(&scan.c)?,
            skip: to(scan.skip.rank::<1>()?, dtype).unsqueeze(),
        })
    }

    /// A text's outputs, and the state behind it.
    fn walk(&self, rows: &Range<usize>, state: Tensor<2>) -> (Vec<Tensor<2>>, Tensor<2>) {
        let (mut state, mut all) = (state, Vec::with_capacity(rows.len()));
        for row in rows.clone() {
            let of = |x: &Tensor<2>| x.clone().narrow(0, row, 1);
            let (x, dt, b, c) = (of(&self.x), of(&self.dt), of(&self.b), of(&self.c));
            state = state * (dt.clone() * self.rates.clone()).exp() + b.swap_dims(0, 1) * (dt * x.clone());
            all.push(c.matmul(state.clone()) + x * self.skip.clone());
        }
        (all, state)
    }

    /// The outputs of texts in the order of their rows, `[tokens, channels]`; rows of no text are zeros.
    fn in_rows(&self, texts: Vec<(Range<usize>, Vec<Tensor<2>>)>, sizes: Sizes) -> AnyTensor {
        let on = (self.x.device(), self.x.dtype());
        let zeros = |rows: usize| Tensor::zeros([rows, sizes.channels], (&on.0, on.1));
        AnyTensor::new(super::in_rows(texts, 0, sizes.tokens, zeros))
    }
}
