//! Linear layers that share an input: `y_j = x W_j^T + b_j + s_j (drop(x) A_j^T) B_j^T`, side by side.
//!
//! One call serves a whole group (query, key and value; gate and up; or a single layer), with the operation
//! before it ([`Input`]: a norm, an activation) done while rows are packed. The low-rank part (LoRA, Hu et al. 2021)
//! rides in spare columns of the same GEMM. Rows go through in chunks that stay in the second-level cache.
//!
//! With a [`Magnitude`] (DoRA, Liu et al. 2024) a layer's output rows are scaled: `y = g (W x + s B A x) + b`,
//! `g = m / |W + s B A|`. The factor is multiplied into the packed weights, so it costs nothing per token.

mod backward;
mod forward;
pub(crate) mod gemv;
mod input;
mod int8;
mod magnitude;
mod many_tokens;
mod weight_grad;

pub use backward::{LinearsGrad, Wanted, activated_linears_backward_in_place, linears_backward};
pub use forward::{LinearsOut, LinearsSaved, linears_forward, linears_unread};
pub use gemv::linears_decode;
pub use input::Input;
pub(crate) use magnitude::scale_panel;
pub use magnitude::{Magnitude, column_dots, scale_columns, squared_column_norms, squared_row_norms};

use crate::embedding::widen_row;
use crate::few_bits;
use crate::micro::NR;
use crate::operand::Operand;
use crate::pack::{pack_kn, pack_nk};
use crate::scratch::scratch;
use crate::simd::Isa;
use burnish_core::random::{dropout_row, dropout_threshold};
use burnish_core::{Compute, EightBits, LinearParts, LoraParts, PackedRows};
use half::{bf16, f16};

/// Floats of packed weights that one pass holds (8 MiB: every chunk of rows reads them, so they are to stay in the third-level
/// cache); larger groups of layers take several passes.
const PASS: usize = 2 << 20;

/// A weight matrix at rest, `[out, in]` row-major (Hugging Face's layout), widened or narrowed while it is packed.
#[derive(Clone, Copy, Debug)]
pub enum Weight<'a> {
    /// IEEE single.
    F32(&'a [f32]),
    /// bfloat16.
    Bf16(&'a [bf16]),
    /// IEEE half.
    F16(&'a [f16]),
    /// Fewer bits: read by pieces as they are packed, never widened whole.
    Packed(PackedPart<'a>),
}

/// Elements of a matrix in fewer bits that follow each other, whole rows.
#[derive(Clone, Copy, Debug)]
pub struct PackedPart<'a> {
    rows: &'a dyn PackedRows,
    first: usize,
    len: usize,
}

impl PackedPart<'_> {
    /// Elements of a row.
    pub(crate) fn row(&self) -> usize {
        self.rows.shape()[1]
    }

    /// Codes of its row `row` and those that follow it, where elements have eight bits.
    fn eight_bits(&self, row: usize) -> Option<EightBits<'_>> {
        self.rows.eight_bits(self.first / self.row() + row, 0)
    }

    /// `n` elements of a row, from element `at` of this part on.
    ///
    /// # Safety
    /// `to` holds `n` floats.
    unsafe fn read(&self, isa: Isa, at: usize, n: usize, to: *mut f32) {
        let (row, at) = (self.row(), self.first + at);
        // SAFETY: the caller's; floats of any bits are floats.
        let out = unsafe { std::slice::from_raw_parts_mut(to, n) };
        few_bits::read(isa, self.rows, at / row, at % row, out);
    }
}

impl<'a> Weight<'a> {
    /// All of a matrix in fewer bits.
    #[must_use]
    pub fn packed(rows: &'a dyn PackedRows) -> Self {
        Self::Packed(PackedPart { rows, first: 0, len: rows.shape().iter().product() })
    }

    /// Some of its elements; of one in fewer bits whole rows.
    pub(crate) fn part(self, elements: std::ops::Range<usize>) -> Weight<'a> {
        match self {
            Self::F32(w) => Weight::F32(&w[elements]),
            Self::Bf16(w) => Weight::Bf16(&w[elements]),
            Self::F16(w) => Weight::F16(&w[elements]),
            Self::Packed(w) => {
                Weight::Packed(PackedPart { first: w.first + elements.start, len: elements.len(), ..w })
            }
        }
    }
}

/// Columns, and rows, of a packed matrix that are widened at once: with 32 of the others they stay in the second-level
/// cache.
const PIECE: usize = 512;

impl Weight<'_> {
    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(w) => w.len(),
            Self::Bf16(w) => w.len(),
            Self::F16(w) => w.len(),
            Self::Packed(w) => w.len,
        }
    }

    /// Widens `n` elements of a row, from element `at` of the matrix on.
    ///
    /// # Safety
    /// There are so many in one row of the matrix, and `to` holds `n` floats.
    pub(crate) unsafe fn widen(self, isa: Isa, at: usize, n: usize, to: *mut f32) {
        // SAFETY: the caller's.
        unsafe {
            match self {
                Self::F32(w) => widen_row(isa, w.as_ptr().add(at), n, to),
                Self::Bf16(w) => widen_row(isa, w.as_ptr().add(at), n, to),
                Self::F16(w) => widen_row(isa, w.as_ptr().add(at), n, to),
                Self::Packed(w) => w.read(isa, at, n, to),
            }
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// [`pack_nk`] from element `at` on.
    ///
    /// # Safety
    /// As [`pack_nk`].
    unsafe fn pack_nk<O: Operand>(
        self,
        isa: Isa,
        at: usize,
        ldw: usize,
        k: usize,
        n: usize,
        panel: *mut f32,
    ) {
        // SAFETY: the caller's.
        unsafe {
            match self {
                Self::F32(w) => pack_nk::<O, _>(isa, w.as_ptr().add(at), ldw, k, n, panel),
                Self::Bf16(w) => pack_nk::<O, _>(isa, w.as_ptr().add(at), ldw, k, n, panel),
                Self::F16(w) => pack_nk::<O, _>(isa, w.as_ptr().add(at), ldw, k, n, panel),
                Self::Packed(w) => scratch(n * PIECE.min(k), |rows| {
                    for c in (0..k).step_by(PIECE) {
                        let m = (k - c).min(PIECE);
                        (0..n).for_each(|j| w.read(isa, at + j * ldw + c, m, rows.add(j * m)));
                        pack_nk::<O, f32>(isa, rows, m, m, n, panel.add(c / O::VALUES * NR));
                    }
                }),
            }
        }
    }

    /// [`pack_kn`] from element `at` on.
    ///
    /// # Safety
    /// As [`pack_kn`].
    pub(crate) unsafe fn pack_kn<O: Operand>(
        self,
        isa: Isa,
        at: usize,
        ldw: usize,
        k: usize,
        n: usize,
        panel: *mut f32,
    ) {
        // SAFETY: the caller's.
        unsafe {
            match self {
                Self::F32(w) => pack_kn::<O, _>(isa, w.as_ptr().add(at), ldw, k, n, panel),
                Self::Bf16(w) => pack_kn::<O, _>(isa, w.as_ptr().add(at), ldw, k, n, panel),
                Self::F16(w) => pack_kn::<O, _>(isa, w.as_ptr().add(at), ldw, k, n, panel),
                Self::Packed(w) => scratch(n * PIECE.min(k), |rows| {
                    for r in (0..k).step_by(PIECE) {
                        let m = (k - r).min(PIECE);
                        (0..m).for_each(|i| w.read(isa, at + (r + i) * ldw, n, rows.add(i * n)));
                        pack_kn::<O, f32>(isa, rows, n, m, n, panel.add(r / O::VALUES * NR));
                    }
                }),
            }
        }
    }
}

/// The low-rank branch `scale * (drop(x) A^T B^T + b_bias)`.
#[derive(Clone, Copy, Debug)]
pub struct LowRank<'a> {
    /// Rank `r`, at least 1.
    pub rank: usize,
    /// `[r, in]`.
    pub a: &'a [f32],
    /// `[out, r]`.
    pub b: &'a [f32],
    /// `[out]`: the bias of `B` (PEFT's `lora_bias`).
    pub b_bias: Option<&'a [f32]>,
    /// The branch's factor.
    pub scale: f32,
    /// Dropout on the branch's input.
    pub dropout: Option<Dropout<'a>>,
    /// DoRA's magnitude: the layer's rows are scaled to it.
    pub magnitude: Option<Magnitude<'a>>,
}

/// A dropout mask computed where it is used: element (row, col) is dropped when
/// `dropout_bits(dropout_row(key, rows[row]), first_column + col)` is below `p * 2^32`; the others are scaled by `1 / (1 - p)`.
#[derive(Clone, Copy, Debug)]
pub struct Dropout<'a> {
    /// The site's key ([`burnish_core::random::Stream::dropout_key`]).
    pub key: u64,
    /// Probability of dropping, in `[0, 1)`.
    pub p: f32,
    /// `[tokens]`: each token's counter in the step's global batch.
    pub rows: &'a [u64],
    /// The mask's column at the input's first: not 0 where the input is some columns of a wider one.
    pub first_column: u32,
}

impl Dropout<'_> {
    fn mask(&self) -> Mask {
        Mask { threshold: dropout_threshold(self.p), keep: 1.0 / (1.0 - self.p), first: self.first_column }
    }

    fn row_keys(&self, first: usize, m: usize) -> Vec<u32> {
        self.rows[first..first + m].iter().map(|&row| dropout_row(self.key, row)).collect()
    }
}

#[derive(Clone, Copy)]
struct Mask {
    threshold: u32,
    keep: f32,
    first: u32,
}

/// One linear layer of a group.
#[derive(Clone, Copy, Debug)]
pub struct Linear<'a> {
    /// Output features.
    pub out: usize,
    /// `[out, in]`.
    pub weight: Weight<'a>,
    /// `[out]`.
    pub bias: Option<&'a [f32]>,
    /// The low-rank branch, if any.
    pub low_rank: Option<LowRank<'a>>,
    /// What the operands of the layer's products are; the same for all layers of a group.
    pub compute: Compute,
}

impl Linear<'_> {
    /// Of the gradients that are `asked`, those of parts that the layer has.
    pub(crate) fn wanted(&self, asked: &LinearParts<bool>) -> LinearParts<bool> {
        let lora = self.low_rank.map(|low| LoraParts {
            a: (),
            b: (),
            b_bias: low.b_bias.map(drop),
            magnitude: low.magnitude.map(drop),
        });
        LinearParts { weight: (), bias: self.bias.map(drop), lora }.map(|part, ()| asked.wants(part))
    }

    fn rank(&self) -> usize {
        self.low_rank.map_or(0, |l| l.rank)
    }

    fn any_bias(&self) -> bool {
        self.bias.is_some() || self.low_rank.is_some_and(|l| l.b_bias.is_some())
    }

    fn magnitude(&self) -> Option<Magnitude<'_>> {
        self.low_rank.and_then(|l| l.magnitude)
    }

    /// The rows' factors, where there is a magnitude.
    pub(crate) fn gains(&self) -> Option<Vec<f32>> {
        self.magnitude().map(|m| m.gains())
    }

    fn dropout(&self) -> Option<Dropout<'_>> {
        self.low_rank.and_then(|l| l.dropout).filter(|d| d.p > 0.0)
    }
}

/// What products of a group's layers multiply.
fn compute(linears: &[Linear<'_>]) -> Compute {
    linears.first().map_or(Compute::Fp32, |layer| layer.compute)
}

/// Asserts that every slice has the length its shape says.
fn check(tokens: usize, in_dim: usize, input: &Input<'_>, linears: &[Linear<'_>]) {
    assert!(in_dim > 0, "linears: `in_dim` is 0");
    assert!(
        linears.iter().all(|l| l.compute == compute(linears)),
        "linears: layers of one group have one `compute`"
    );
    input.check(tokens, in_dim);
    for l in linears {
        assert!(l.out > 0, "linears: `out` is 0");
        assert_eq!(l.weight.len(), l.out * in_dim, "linears: `weight` is [out, in]");
        assert!(l.bias.is_none_or(|b| b.len() == l.out), "linears: `bias` is [out]");
        if let Some(low) = &l.low_rank {
            assert!(low.rank > 0, "linears: `rank` is 0");
            assert_eq!(low.a.len(), low.rank * in_dim, "linears: `a` is [rank, in]");
            assert_eq!(low.b.len(), l.out * low.rank, "linears: `b` is [out, rank]");
            assert!(low.b_bias.is_none_or(|b| b.len() == l.out), "linears: `b_bias` is [out]");
            if let Some(m) = &low.magnitude {
                assert!(m.m.len() == l.out && m.norm.len() == l.out, "linears: `m` and `norm` are [out]");
                assert!(low.b_bias.is_none(), "linears: a magnitude excludes `b_bias`");
            }
            if let Some(d) = &low.dropout {
                assert!((0.0..1.0).contains(&d.p), "linears: dropout `p` is in [0, 1)");
                assert_eq!(d.rows.len(), tokens, "linears: dropout `rows` is [tokens]");
            }
        }
    }
}

#[cfg(test)]
mod tests;
