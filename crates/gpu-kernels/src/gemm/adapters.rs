//! Adapters of layers that read one input: what their first factors make of it is one product, and so is those factors' gradient.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::thin::{self, Bounds};
use super::{Gemm, Matrices, Product};
use crate::buffer::{Buffer, FloatType, address};
use crate::several::{EACH, Several, vector_of};

/// Adapters that are multiplied together at most: those of queries, keys and values.
const TOGETHER: usize = 3;

/// What adapters of one rank read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterSize {
    /// Rows of the input.
    pub rows: usize,
    /// Features of the input.
    pub input: usize,
    /// Columns of each adapter's first factor's product.
    pub rank: usize,
    /// How many adapters.
    pub count: usize,
}

/// Adapters that are multiplied together.
#[derive(Clone, Copy, Debug)]
pub struct Adapters {
    gemm: Gemm,
    of: AdapterSize,
}

/// What comes back of [`Adapters::gradients`], one of each for each adapter.
#[derive(Clone, Debug)]
pub struct AdapterGradients {
    /// Of what the first factors made of the input, times `scale`: `[rows, rank]`, in the factors' dtype.
    pub low: Vec<Buffer>,
    /// Of the first factor, `[rank, input]` in f32.
    pub a: Vec<Buffer>,
    /// Of the second one, `[output, rank]` in f32.
    pub b: Vec<Buffer>,
}

impl Gemm {
    /// `None` where these are not multiplied so: few rows, or more columns than a thin matrix has.
    #[must_use]
    pub fn adapters(&self, of: AdapterSize) -> Option<Adapters> {
        let AdapterSize { rows, input, rank, count } = of;
        let thin = (1..=TOGETHER).contains(&count) && thin::fits(rows, count * rank, self.shared);
        (self.cores && thin && input > thin::MOST && input.is_multiple_of(8))
            .then_some(Adapters { gemm: *self, of })
    }
}

impl Adapters {
    /// Whether layers with so many outputs are wide enough, and begin where a kernel can tell them apart.
    #[must_use]
    pub fn outputs(&self, outputs: &[usize]) -> bool {
        let before = &outputs[..outputs.len().saturating_sub(1)];
        outputs.iter().all(|&width| width > thin::MOST)
            && before.iter().all(|width| width.is_multiple_of(thin::WIDE))
    }

    /// Whether gradients of all outputs beside each other, and an input that lies so, can be read as they lie.
    #[must_use]
    pub fn reads(&self, x: &Matrices, upstream: &Matrices, outputs: &[usize]) -> bool {
        let held = |m: &Matrices, width: usize| {
            !m.transposed && m.buffer.dtype == self.gemm.factors && m.vector(width, 8) == 8
        };
        held(x, self.of.input) && held(upstream, outputs.iter().sum())
    }

    /// `scale x A^T` of each adapter, `[rows, rank]` in the factors' dtype; `a` are their first factors one below the other.
    ///
    /// One launch, which reads `x` once; they lie one behind the other.
    #[must_use]
    pub fn low(&self, client: &Client, x: &Matrices, a: &Buffer, scale: f32) -> Buffer {
        let AdapterSize { rows, input, rank, count } = self.of;
        let all = Buffer::empty(client, count * rows * rank, self.gemm.factors);
        let of = Product { batches: 1, rows, columns: count * rank, depth: input };
        let a = Matrices::rows(a.clone(), count * rank, input).transpose();
        let d = Matrices::rows(all.clone(), rows, rank);
        let whole = Bounds::of(&[input]);
        thin::multiply_rows(client, (self.gemm.factors, of), [x, &a, &d], (rank, whole), scale);
        all
    }

    /// Gradients from those of the outputs beside each other, from the second factors one below the other, `[outputs, rank]`, and
    /// from what [`Self::low`] gave.
    ///
    /// Four launches: what comes back through the second factors, both factors' sums over rows, and one that adds their parts.
    ///
    /// # Panics
    /// If [`Self::reads`] does not hold.
    #[must_use]
    pub fn gradients(
        &self,
        client: &Client,
        x: &Matrices,
        (upstream, outputs): (&Matrices, &[usize]),
        (b, low): (&Buffer, &Buffer),
        scale: f32,
    ) -> AdapterGradients {
        assert!(self.reads(x, upstream, outputs), "invariant: matrices that lie as kernels read them");
        let AdapterSize { rows, input, rank, count } = self.of;
        let (factors, width, bounds) = (self.gemm.factors, outputs.iter().sum(), Bounds::of(outputs));
        let all = Buffer::empty(client, count * rows * rank, factors);
        let [back, low] = [&all, low].map(|of| Matrices::rows(of.clone(), rows, rank));
        let of = Product { batches: 1, rows, columns: rank, depth: width };
        let of_b = Matrices::rows(b.clone(), width, rank);
        thin::multiply_rows(client, (factors, of), [upstream, &of_b, &back], (rank, bounds), scale);
        let of = Product { batches: 1, rows: width, columns: rank, depth: rows };
        let sums_of_b = thin::sums_of_columns(client, (factors, of), [&low, upstream], (rank, bounds));
        let of = Product { batches: 1, rows: count * rank, columns: input, depth: rows };
        let whole = (rank, Bounds::of(&[input]));
        let sums_of_a = thin::sums_of_columns(client, (factors, of), [&back, x], whole);
        let [of_b, of_a] = add_parts(client, &[sums_of_b, sums_of_a]);
        AdapterGradients {
            low: all.pieces(vec![rows * rank; count]),
            a: of_a.pieces(vec![rank * input; count]),
            b: of_b.pieces(outputs.iter().map(|output| output * rank)),
        }
    }
}

/// The sums of both buffers' parts, which lie one behind the other.
fn add_parts(client: &Client, sums: &[(Buffer, usize); 2]) -> [Buffer; 2] {
    let whole = sums.each_ref().map(|(all, parts)| Buffer::empty(client, all.len / parts, FloatType::F32));
    let several = Several::new(client, whole.iter().map(|d| d.len), &whole.iter().collect::<Vec<_>>());
    let (size, vectors) = (several.size, |at: usize| several.vectors(at));
    let read = |at: usize| sums[several.place(at)].0.arg(size);
    let written = |at: usize| whole[several.place(at)].arg(size);
    let parts = |at: usize| sums[several.place(at)].1;
    let held: Vec<&Buffer> = sums.iter().map(|(all, _)| all).collect();
    // SAFETY: each tensor's vectors are read and written as far as there are any.
    unsafe {
        sum_parts::launch_unchecked(
            client,
            several.cubes(client),
            several.dim(),
            address(&held),
            size,
            read(0),
            read(1),
            written(0),
            written(1),
            vectors(0),
            vectors(1),
            parts(0),
            parts(1),
            several.parts,
        );
    }
    whole
}

/// Adds the parts of this unit's sums of one tensor.
#[cube]
fn sum_own<N: Size>(
    sums: &[Vector<f32, N>],
    whole: &mut [Vector<f32, N>],
    vectors: usize,
    parts: usize,
    cube: usize,
) {
    #[unroll]
    for turn in 0..EACH {
        let i = vector_of(cube, turn);
        if i < vectors {
            let mut sum = Vector::<f32, N>::new(0.0f32);
            for part in 0..parts {
                sum += sums[part * vectors + i];
            }
            whole[i] = sum;
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn sum_parts<N: Size>(
    a: &[Vector<f32, N>],
    b: &[Vector<f32, N>],
    of_a: &mut [Vector<f32, N>],
    of_b: &mut [Vector<f32, N>],
    in_a: usize,
    in_b: usize,
    parts_of_a: usize,
    parts_of_b: usize,
    cubes: usize,
) {
    let (tensor, cube) = (CUBE_POS / cubes, CUBE_POS % cubes);
    if tensor == 0 {
        sum_own::<N>(a, of_a, in_a, parts_of_a, cube);
    } else if tensor == 1 {
        sum_own::<N>(b, of_b, in_b, parts_of_b, cube);
    }
}
