//! Inputs of linear layers and their rows: as they are, normed, or behind an activation.

use burnish_core::Activation;

use crate::activation::{GateRows, activate_backward_rows, activate_rows};
use crate::rows::{TileLayout, copy_rows, norm_backward_rows, norm_rows};
use crate::simd::{Isa, Store};
use std::ops::Range;

/// What the linear layers read, as a function of the input tensor.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// `[tokens, in]`, as it is.
    Plain(&'a [f32]),
    /// `x * rsqrt(mean(x^2) + eps) * gamma` of `x` `[tokens, in]` (Zhang & Sennrich 2019).
    RmsNorm {
        /// `[tokens, in]`.
        x: &'a [f32],
        /// `[in]`.
        gamma: &'a [f32],
        /// Added to the mean square.
        eps: f32,
    },
    /// `(x - mean(x)) * rsqrt(var(x) + eps) * gamma + beta` of `x` `[tokens, in]` (Ba et al. 2016).
    LayerNorm {
        /// `[tokens, in]`.
        x: &'a [f32],
        /// `[in]`.
        gamma: &'a [f32],
        /// `[in]`.
        beta: Option<&'a [f32]>,
        /// Added to the variance.
        eps: f32,
    },
    /// `silu(gate) * up` of `[tokens, 2 * in]`: gate then up in each row (Shazeer 2020).
    SwiGlu(&'a [f32]),
    /// `f(gate) * up` of `[tokens, 2 * in]` where it is `gated`, `f(x)` of `[tokens, in]` otherwise.
    Activated {
        /// `[tokens, 2 * in]` or `[tokens, in]`.
        x: &'a [f32],
        /// `f`.
        activation: Activation,
        /// Whether rows are gate, then up.
        gated: bool,
    },
}

/// An [`Input`] by what has to be computed.
#[derive(Clone, Copy)]
pub(super) enum Reads<'a> {
    Plain(&'a [f32]),
    Norm(Norm<'a>),
    /// All rows, as a pointer: a backward in place writes a row's gradient where it has read the row.
    Activated(*const f32, (Activation, bool)),
}

// SAFETY: the pointer is to rows that outlive the call, and that nobody writes but, row by row, the task whose rows they are.
unsafe impl Sync for Reads<'_> {}
// SAFETY: as above.
unsafe impl Send for Reads<'_> {}

/// A norm of rows: LayerNorm where it is `centered`, else RMSNorm.
#[derive(Clone, Copy)]
pub(super) struct Norm<'a> {
    pub(super) x: &'a [f32],
    pub(super) gamma: &'a [f32],
    pub(super) beta: Option<&'a [f32]>,
    pub(super) eps: f32,
    pub(super) centered: bool,
}

impl Reads<'_> {
    pub(super) fn is_norm(&self) -> bool {
        matches!(self, Self::Norm(_))
    }

    /// Floats of the input tensor per token.
    pub(super) fn row_len(&self, in_dim: usize) -> usize {
        if matches!(self, Self::Activated(_, (_, true))) { 2 * in_dim } else { in_dim }
    }
}

impl<'a> Input<'a> {
    pub(super) fn reads(&self) -> Reads<'a> {
        match *self {
            Self::Plain(x) => Reads::Plain(x),
            Self::RmsNorm { x, gamma, eps } => {
                Reads::Norm(Norm { x, gamma, beta: None, eps, centered: false })
            }
            Self::LayerNorm { x, gamma, beta, eps } => {
                Reads::Norm(Norm { x, gamma, beta, eps, centered: true })
            }
            Self::SwiGlu(x) => Reads::Activated(x.as_ptr(), (Activation::Silu, true)),
            Self::Activated { x, activation, gated } => Reads::Activated(x.as_ptr(), (activation, gated)),
        }
    }

    /// The input tensor's elements.
    fn values(&self) -> &'a [f32] {
        match *self {
            Self::Plain(x)
            | Self::SwiGlu(x)
            | Self::RmsNorm { x, .. }
            | Self::LayerNorm { x, .. }
            | Self::Activated { x, .. } => x,
        }
    }

    /// Asserts that the slices have the lengths that their shapes say.
    pub(super) fn check(&self, tokens: usize, in_dim: usize) {
        let reads = self.reads();
        if let Reads::Norm(norm) = reads {
            assert_eq!(norm.gamma.len(), in_dim, "linears: `gamma` is [in]");
            assert!(norm.beta.is_none_or(|b| b.len() == in_dim), "linears: `beta` is [in]");
        }
        assert_eq!(
            self.values().len(),
            tokens * reads.row_len(in_dim),
            "linears: input is [tokens, in] ([tokens, 2 in] where it is gated)"
        );
    }
}

/// The layers' input, of `n` columns, in rows `row..row + m` of its columns `columns`, from the input tensor; writes the rows'
/// `rstd` unless that is `known`.
///
/// # Safety
/// Rows and columns exist; `to` has room at its place; `rstd` is `[tokens]` for a norm.
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
pub(super) unsafe fn input_rows<D: Store>(
    isa: Isa,
    input: Reads<'_>,
    rstd: *mut f32,
    known: bool,
    n: usize,
    columns: Range<usize>,
    row: usize,
    m: usize,
    to: *mut D,
    place: TileLayout,
) {
    let (at, first) = (row * input.row_len(n), columns.start);
    // SAFETY: the caller's; a known rstd is only read.
    unsafe {
        match input {
            Reads::Plain(x) => copy_rows(isa, m, columns.len(), x.as_ptr().add(at + first), n, to, place),
            Reads::Norm(Norm { x, gamma, beta, eps, centered }) => {
                let (x, gamma, rstd) = (x.as_ptr().add(at), gamma.as_ptr(), rstd.add(row));
                let beta = beta.map_or(std::ptr::null(), <[f32]>::as_ptr);
                let rows = if centered { norm_rows::<D, true> } else { norm_rows::<D, false> };
                rows(isa, m, n, x, gamma, beta, eps, rstd, known, &columns, to, place);
            }
            Reads::Activated(x, f) => {
                activate_rows(isa, f, m, columns.len(), x.add(at + first), GateRows::new(n, f.1), to, place);
            }
        }
    }
}

/// Where the gradients of a norm's parameters are summed; null for what is not wanted.
#[derive(Clone, Copy)]
pub(super) struct NormSums {
    pub(super) dgamma: *mut f32,
    pub(super) dbeta: *mut f32,
    /// Whether these rows are the first, which write instead of adding.
    pub(super) first: bool,
}

/// The gradient of a norm's rows `row..row + m` from `dh`, those of the layers' input.
///
/// # Safety
/// The rows exist; `dh` is `[m, n]`, `dx` all of the input tensor's shape, or null; `rstd` is `[tokens]`.
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
pub(super) unsafe fn norm_backward(
    isa: Isa,
    Norm { x, gamma, centered, .. }: Norm<'_>,
    rstd: *const f32,
    n: usize,
    row: usize,
    m: usize,
    dh: *const f32,
    dx: *mut f32,
    sums: NormSums,
) {
    let rows = if centered { norm_backward_rows::<true> } else { norm_backward_rows::<false> };
    let dx = if dx.is_null() { dx } else { dx.wrapping_add(row * n) };
    // SAFETY: the caller's.
    unsafe {
        let (x, gamma, rstd) = (x.as_ptr().add(row * n), gamma.as_ptr(), rstd.add(row));
        rows(isa, m, n, x, gamma, rstd, dh, dx, sums.dgamma, sums.dbeta, sums.first);
    }
}

/// The gradient of an activation's input, of `n` columns, in rows `row..row + m` of its columns `columns`, from `dh`, those of
/// the layers' input; with `OUTPUT` the layers' input once more, into `a` (otherwise unused).
///
/// # Safety
/// `x` and `dx` are all rows, and may be the same; `dh` has `m` rows at its stride; `a` has room at its place.
#[allow(clippy::too_many_arguments, reason = "a kernel takes what it reads and writes")]
pub(super) unsafe fn activated_backward<D: Store, const OUTPUT: bool>(
    isa: Isa,
    (x, f): (*const f32, (Activation, bool)),
    n: usize,
    columns: Range<usize>,
    row: usize,
    m: usize,
    dh: (*const f32, usize),
    dx: *mut f32,
    a: *mut D,
    place: TileLayout,
) {
    let rows = GateRows::new(n, f.1);
    let at = row * rows.stride + columns.start;
    // SAFETY: the caller's.
    unsafe {
        let (x, dx) = (x.add(at), dx.add(at));
        activate_backward_rows::<D, OUTPUT>(isa, f, m, columns.len(), x, rows, dh, dx, a, place);
    }
}
