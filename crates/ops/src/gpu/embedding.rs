//! Rows by index, widened after they are chosen.

use std::sync::Arc;

use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor};
use burnish_core::Compute;

use super::product::{self, Finish};
use super::{constant, ints, to, wide_dtype};
use crate::embedding::EmbeddingLowRank;
use crate::{AnyTensor, OpsError, apply};

/// Rows `index` of `table`, wide.
fn rows_of(table: &AnyTensor, index: &Tensor<1, Int>) -> Result<Tensor<2>, OpsError> {
    #[cfg(feature = "cube")]
    if let Some(y) = super::kernels::gather_rows(table, index, DType::F32) {
        return Ok(y);
    }
    Ok(to(table.rank::<2>()?.select(0, index.clone()), wide_dtype(table)))
}

/// The sums of the rows of `values` that go to each of `rows`, which `ids` (`index` on the device) names.
fn add_rows(
    rows: usize,
    ids: impl Iterator<Item = usize> + Clone,
    index: &Tensor<1, Int>,
    values: Tensor<2>,
) -> Tensor<2> {
    #[cfg(feature = "cube")]
    {
        let places = || super::kernels::Places::new(ids.map(Some), rows, &values.device());
        if let Some(sums) = super::kernels::scatter_rows(&values, places, values.dtype()) {
            return sums;
        }
    }
    #[cfg(not(feature = "cube"))]
    let _ = ids;
    let columns = values.dims()[1];
    Tensor::zeros([rows, columns], (&values.device(), values.dtype())).select_assign(
        0,
        index.clone(),
        values,
        IndexingUpdateOp::Add,
    )
}

/// See [`crate::embedding()`].
pub fn embedding(
    ids: &Arc<Vec<u32>>,
    weight: &AnyTensor,
    low_rank: Option<&EmbeddingLowRank>,
) -> Result<AnyTensor, OpsError> {
    const OP: &str = "embedding";
    let [vocab, hidden] = crate::check::matrix(weight)?;
    let dtype: DType = wide_dtype(weight);
    let mut inputs = vec![weight.clone()];
    if let Some(l) = low_rank {
        inputs.extend([l.a.clone(), l.b.clone()]);
        inputs.extend(l.magnitude.as_ref().map(|m| m.value.clone()));
    }
    if ids.is_empty() {
        let none = Tensor::<2>::zeros([0, hidden], (&weight.plain().device(), dtype));
        return constant(OP, &inputs, false, AnyTensor::new(none));
    }
    apply(OP, &inputs, |inputs, wanted| {
        let index = ints(ids.iter().map(|&id| id as i32).collect(), &inputs[0].device());
        let mut y = rows_of(&inputs[0], &index)?;
        let mut low = None;
        if let Some(l) = low_rank {
            let (a, b) = (to(inputs[1].rank::<2>()?, dtype), to(inputs[2].rank::<2>()?, dtype));
            let t = a.select(1, index.clone()).transpose();
            let finish = Finish { scale: l.scale, ..Finish::adding(dtype, Some(y)) };
            y = product::forward(t.clone(), &b, Compute::Fp32, finish);
            let mut gain = None;
            if let Some(m) = &l.magnitude {
                let norm: Tensor<2> = to(m.norm.plain().rank::<1>()?, dtype).unsqueeze();
                let factor = to(inputs[3].rank::<1>()?, dtype).unsqueeze() / norm.clone();
                gain = Some((factor.clone(), norm, wanted[3].then(|| y.clone())));
                y = y * factor;
            }
            low = Some((l.scale, t, b, gain));
        }
        let (wanted, ids) = (wanted.to_vec(), ids.clone());
        let back = move |upstream: AnyTensor| {
            let ids = || ids.iter().map(|&id| id as usize);
            let mut dy = to(upstream.rank::<2>().expect("invariant: a matrix"), dtype);
            let mut of_magnitude = None;
            if let Some((.., Some((factor, norm, gained)))) = &low {
                of_magnitude = gained.clone().map(|z| {
                    let sums = (dy.clone() * z).sum_dim(0) / norm.clone();
                    AnyTensor::new(sums.reshape([hidden]))
                });
                dy = dy * factor.clone();
            }
            let of_weight = wanted[0].then(|| AnyTensor::new(add_rows(vocab, ids(), &index, dy.clone())));
            let mut all = vec![of_weight];
            if let Some((scale, t, b, gain)) = low {
                let dy = dy * scale;
                all.push(wanted[1].then(|| {
                    let dt = product::of_input(dy.clone(), &b, Compute::Fp32, Finish::new(dtype));
                    AnyTensor::new(add_rows(vocab, ids(), &index, dt).transpose())
                }));
                let of_b = || product::of_weight(dy, t, Compute::Fp32, Finish::new(dtype));
                all.push(wanted[2].then(|| AnyTensor::new(of_b())));
                if gain.is_some() {
                    all.push(of_magnitude);
                }
            }
            all
        };
        Ok((AnyTensor::new(y), Box::new(back)))
    })
}

/// See [`crate::select_rows()`].
pub fn select_rows(x: &AnyTensor, rows: &Arc<Vec<usize>>) -> Result<AnyTensor, OpsError> {
    const OP: &str = "select_rows";
    let [tokens, hidden] = crate::check::matrix(x)?;
    let dtype = wide_dtype(x);
    if rows.is_empty() {
        let none = Tensor::<2>::zeros([0, hidden], (&x.plain().device(), dtype));
        return constant(OP, std::slice::from_ref(x), true, AnyTensor::new(none));
    }
    apply(OP, std::slice::from_ref(x), |inputs, _| {
        let narrow = inputs[0].burn_dtype();
        let index = ints(rows.iter().map(|&r| r as i32).collect(), &inputs[0].device());
        let (y, rows) = (rows_of(&inputs[0], &index)?, rows.clone());
        let back = move |upstream: AnyTensor| {
            let dy = to(upstream.rank::<2>().expect("invariant: a matrix"), dtype);
            let sums = add_rows(tokens, rows.iter().copied(), &index, dy);
            vec![Some(AnyTensor::new(to(sums, narrow)))]
        };
        Ok((AnyTensor::new(y), Box::new(back)))
    })
}
