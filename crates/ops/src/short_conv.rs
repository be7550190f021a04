//! Gated short convolution (LFM2): `c * conv(b * x)`, causal and depthwise over a few tokens, within documents.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::{DType, Device, FloatDType, IndexingUpdateOp, Int, Tensor, TensorData};

use crate::sequence_rows::SequenceRows;
use crate::{AnyTensor, Documents, OpsError, apply};

const OP: &str = "short_conv";

/// `c * (sum over l of kernel[:, l] * (b * x)[t - (kernel - 1 - l)] + bias)` of each token; tokens of other documents count
/// as zeros, those of the document that one continues (`parents`, as in [`attention`](crate::attention())) as its own.
///
/// # Shapes
/// - bcx: `[tokens, 3 * channels]`: b, c, x; kernel: `[channels, 1, taps]`, bias: `[channels]`
/// - output: `[tokens, channels]`; rows outside every document see themselves alone
///
/// # Errors
/// If shapes do not fit, or a document lies outside the rows.
pub fn short_conv(
    bcx: &AnyTensor,
    kernel: &AnyTensor,
    bias: Option<&AnyTensor>,
    documents: &[Range<usize>],
    parents: &[Option<usize>],
) -> Result<AnyTensor, OpsError> {
    let (tokens, channels, taps) = sizes(bcx, kernel, bias)?;
    check_documents(documents, tokens)?;
    let back: Arc<Vec<Vec<i32>>> =
        Arc::new((0..taps).map(|tap| earlier(tokens, documents, parents, taps - 1 - tap)).collect());
    #[cfg(feature = "flex")]
    if crate::flex::holds([bcx, kernel].into_iter().chain(bias)) {
        // `tokens` is the row of zeros.
        let row = |&row: &i32| if row < tokens as i32 { row } else { -1 };
        let rows = back.iter().map(|rows| rows.iter().map(row).collect()).collect();
        return crate::flex::short_conv::short_conv(bcx, kernel, bias, &Arc::new(rows));
    }
    let inputs: Vec<AnyTensor> = [bcx, kernel].into_iter().chain(bias).cloned().collect();
    apply(OP, &inputs, |plain, wanted| {
        let all = plain[0].rank::<2>()?;
        let (dtype, device) = (all.dtype(), all.device());
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let all = to(all, wide);
        let kernel = to(plain[1].rank::<3>()?, wide).reshape([channels, taps]);
        let bias = plain.get(2).map(|bias| Ok::<_, OpsError>(to(bias.rank::<1>()?, wide))).transpose()?;
        let [b, c, x] = [0, 1, 2].map(|part| all.clone().narrow(1, part * channels, channels));
        let u = b.clone() * x.clone();
        let rows = with_zeros(u.clone());
        let mut out = Tensor::<2>::zeros([tokens, channels], (&device, wide));
        for (tap, back) in back.iter().enumerate() {
            out = out + shifted(&rows, back) * weights(&kernel, tap);
        }
        if let Some(bias) = bias {
            out = out + bias.unsqueeze();
        }
        let y = c.clone() * out.clone();
        let wanted = wanted.to_vec();
        let backward = move |upstream: AnyTensor| {
            let dy = to(upstream.rank::<2>().expect("invariant: of the rank of the output"), wide);
            let dc = dy.clone() * out;
            let d_out = dy * c;
            let rows = with_zeros(u);
            let mut du = rows.zeros_like();
            let mut of_taps = Vec::new();
            for (tap, back) in back.iter().enumerate() {
                if wanted[1] {
                    of_taps.push((d_out.clone() * shifted(&rows, back)).sum_dim(0).reshape([channels, 1]));
                }
                if wanted[0] {
                    let index = index(back, &rows.device());
                    let values = d_out.clone() * weights(&kernel, tap);
                    du = du.select_assign(0, index, values, IndexingUpdateOp::Add);
                }
            }
            let d_bcx = wanted[0].then(|| {
                let du = du.narrow(0, 0, tokens);
                AnyTensor::new(to(Tensor::cat(vec![du.clone() * x, dc, du * b], 1), dtype))
            });
            let d_kernel =
                wanted[1].then(|| AnyTensor::new(Tensor::cat(of_taps, 1).reshape([channels, 1, taps])));
            let d_bias = wanted
                .get(2)
                .map(|&wanted| wanted.then(|| AnyTensor::new(d_out.sum_dim(0).reshape([channels]))));
            [Some(d_bcx), Some(d_kernel), d_bias].into_iter().flatten().collect()
        };
        Ok((AnyTensor::new(to(y, dtype)), Box::new(backward)))
    })
}

/// Tokens, channels and taps.
fn sizes(
    bcx: &AnyTensor,
    kernel: &AnyTensor,
    bias: Option<&AnyTensor>,
) -> Result<(usize, usize, usize), OpsError> {
    let [tokens, width] = crate::check::matrix(bcx)?;
    let wrong = |what, got: Vec<usize>, expected: Vec<usize>| OpsError::Shape { op: OP, what, got, expected };
    let &[channels, 1, taps] = kernel.shape().as_slice() else {
        return Err(wrong("kernel", kernel.shape(), vec![width / 3, 1, 3]));
    };
    if width != 3 * channels || taps == 0 {
        return Err(wrong("bcx", vec![tokens, width], vec![tokens, 3 * channels]));
    }
    if let Some(bias) = bias.filter(|bias| bias.shape() != [channels]) {
        return Err(wrong("bias", bias.shape(), vec![channels]));
    }
    Ok((tokens, channels, taps))
}

pub(crate) fn check_documents(documents: &[Range<usize>], tokens: usize) -> Result<(), OpsError> {
    let last = documents.iter().map(|document| document.end).max().unwrap_or(0);
    if last > tokens {
        return Err(OpsError::Index { op: "short_conv documents", got: last - 1, limit: tokens });
    }
    Ok(())
}

/// For each token the row of the one `back` tokens before it in its text; `tokens` where there is none.
pub(crate) fn earlier(
    tokens: usize,
    documents: &[Range<usize>],
    parents: &[Option<usize>],
    back: usize,
) -> Vec<i32> {
    let mut rows = vec![if back == 0 { -1 } else { tokens as i32 }; tokens];
    if back == 0 {
        return (0..tokens as i32).collect();
    }
    for (i, document) in documents.iter().enumerate() {
        let before = parents.get(i).copied().flatten().map_or(0..0, |parent| documents[parent].clone());
        for at in document.clone() {
            let place = at - document.start;
            if place >= back {
                rows[at] = (at - back) as i32;
            } else if before.len() >= back - place {
                rows[at] = (before.end - (back - place)) as i32;
            }
        }
    }
    rows
}

/// The rows and one of zeros.
fn with_zeros(rows: Tensor<2>) -> Tensor<2> {
    let none = Tensor::zeros([1, rows.dims()[1]], (&rows.device(), rows.dtype()));
    Tensor::cat(vec![rows, none], 0)
}

fn index(rows: &[i32], device: &Device) -> Tensor<1, Int> {
    Tensor::from_data(TensorData::new(rows.to_vec(), [rows.len()]), device)
}

fn shifted(rows: &Tensor<2>, back: &[i32]) -> Tensor<2> {
    rows.clone().select(0, index(back, &rows.device()))
}

/// A tap's weights: `[1, channels]`.
fn weights(kernel: &Tensor<2>, tap: usize) -> Tensor<2> {
    let channels = kernel.dims()[0];
    kernel.clone().narrow(1, tap, 1).reshape([1, channels])
}

/// In another float dtype.
fn to<const D: usize>(x: Tensor<D>, dtype: DType) -> Tensor<D> {
    let into = match dtype {
        DType::F64 => FloatDType::F64,
        DType::BF16 => FloatDType::BF16,
        DType::F16 => FloatDType::F16,
        _ => FloatDType::F32,
    };
    if x.dtype() == dtype { x } else { x.cast(into) }
}

/// What a convolution has seen of sequences being generated: of each the last `taps - 1` products `b * x`.
#[derive(Clone, Debug)]
pub struct ConvCache {
    before: usize,
    pub(crate) rows: SequenceRows,
}

impl ConvCache {
    /// An empty cache of `sequences` sequences, for a kernel of `taps`.
    #[must_use]
    pub fn new(taps: usize, sequences: usize) -> Self {
        let before = taps.saturating_sub(1);
        Self { before, rows: SequenceRows::new(OP, sequences, before) }
    }

    /// Bytes held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.rows.bytes()
    }

    /// Sequence `i` becomes what `order[i]` was.
    ///
    /// # Errors
    /// If `order` names a sequence that is not held; the cache is then as before.
    pub fn reorder(&mut self, order: &[usize]) -> Result<(), OpsError> {
        self.rows.reorder(order)
    }

    /// The sequences of `other` follow those that are here.
    pub fn append(&mut self, other: Self) {
        self.rows.append(other.rows);
    }

    /// Takes out the sequences from `at` on.
    ///
    /// # Panics
    /// If there are fewer than `at`.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        Self { before: self.before, rows: self.rows.split_off(at) }
    }

    /// The rows, for steps that are recorded.
    pub fn rows(&mut self) -> &mut SequenceRows {
        &mut self.rows
    }

    /// [`short_conv`] of new rows, each sequence's behind what it has said; plain tensors.
    ///
    /// # Errors
    /// As [`short_conv`], or if there is not one range of rows per sequence.
    pub fn run(
        &mut self,
        bcx: &AnyTensor,
        kernel: &AnyTensor,
        bias: Option<&AnyTensor>,
        documents: &Documents,
    ) -> Result<AnyTensor, OpsError> {
        let (tokens, channels, taps) = sizes(bcx, kernel, bias)?;
        check_documents(documents, tokens)?;
        let all = bcx.plain().rank::<2>()?;
        let (dtype, device) = (all.dtype(), all.device());
        let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let all = to(all, wide);
        let kernel = to(kernel.plain().rank::<3>()?, wide).reshape([channels, taps]);
        let [b, c, x] = [0, 1, 2].map(|part| all.clone().narrow(1, part * channels, channels));
        self.rows.settle_for(documents.len());
        let rows = self.behind_held(b * x, documents, taps)?;
        let plan = documents.convolved.held(self, (rows.dims()[0], taps), documents, tokens);
        let mut out = Tensor::<2>::zeros([tokens, channels], (&device, wide));
        for (tap, back) in plan.by_tap(&device).iter().enumerate() {
            out = out + rows.clone().select(0, back.clone()) * weights(&kernel, tap);
        }
        if let Some(bias) = bias {
            out = out + to(bias.plain().rank::<1>()?, wide).unsqueeze();
        }
        self.keep(&rows, plan.behind(self, documents, &device));
        Ok(AnyTensor::new(to(c * out, dtype)))
    }

    /// What was said, then what is new.
    pub(crate) fn behind_held(
        &self,
        new: Tensor<2>,
        documents: &[Range<usize>],
        taps: usize,
    ) -> Result<Tensor<2>, OpsError> {
        let sequences = self.rows.count();
        if documents.len() != sequences || taps != self.before + 1 {
            let (got, expected) = (vec![documents.len(), taps], vec![sequences, self.before + 1]);
            return Err(OpsError::Shape { op: OP, what: "documents", got, expected });
        }
        let held = self.rows.held(|rows| empty(&new, rows));
        Ok(Tensor::cat(vec![held, new], 0))
    }

    /// The row `back` tokens before the token at `end` of a sequence's new ones.
    fn row(&self, sequence: usize, back: usize, document: &Range<usize>, end: usize) -> i32 {
        let first = self.rows.count() * self.before;
        let at = if end >= back {
            first + document.start + end - back
        } else {
            (sequence + 1) * self.before + end - back
        };
        at as i32
    }

    /// For each new token the row of the one `back` tokens before it; -1 of a token of no sequence.
    pub(crate) fn earlier(&self, tokens: usize, documents: &[Range<usize>], back: usize) -> Vec<i32> {
        let mut rows = vec![-1; tokens];
        for (sequence, document) in documents.iter().enumerate() {
            for at in document.clone() {
                rows[at] = self.row(sequence, back, document, at - document.start);
            }
        }
        rows
    }

    /// The rows that the tokens behind `documents` read.
    pub(crate) fn last_rows(&self, documents: &[Range<usize>], device: &Device) -> Tensor<1, Int> {
        let mut last = Vec::with_capacity(documents.len() * self.before);
        for (sequence, document) in documents.iter().enumerate() {
            last.extend(
                (1..=self.before).rev().map(|back| self.row(sequence, back, document, document.len())),
            );
        }
        index(&last, device)
    }

    /// Keeps what the next tokens read of `rows`.
    pub(crate) fn keep(&mut self, rows: &Tensor<2>, last: Tensor<1, Int>) {
        self.rows.keep(rows.clone().select(0, last));
    }
}

/// Rows of zeros.
fn empty(like: &Tensor<2>, rows: usize) -> Tensor<2> {
    Tensor::zeros([rows, like.dims()[1]], (&like.device(), like.dtype()))
}
