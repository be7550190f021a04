//! Adapters of layers that read one input: what their first factors make of it is one product, and so is those factors' gradient.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::{Gemm, Matrices, Product, thin};
use crate::buffer::{Buffer, FloatType, address};
use crate::several::{EACH, Several, vector_of};

/// Adapters of a launch that adds parts of their gradients.
const TOGETHER: usize = 4;

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
        let thin = (1..TOGETHER).contains(&count) && thin::fits(rows, count * rank, self.shared);
        (self.cores && thin && input > thin::MOST && input.is_multiple_of(8))
            .then_some(Adapters { gemm: *self, of })
    }
}

impl Adapters {
    /// Whether layers with so many outputs are wide enough.
    #[must_use]
    pub fn outputs(&self, outputs: &[usize]) -> bool {
        outputs.iter().all(|&width| width > thin::MOST)
    }

    /// Whether gradients of outputs, and an input that lies so, can be read as they lie.
    #[must_use]
    pub fn reads(&self, x: &Matrices, upstream: &[Matrices], outputs: &[usize]) -> bool {
        let held = |m: &Matrices, width: usize| {
            !m.transposed && m.buffer.dtype == self.gemm.factors && m.vector(width, 8) == 8
        };
        held(x, self.of.input) && upstream.iter().zip(outputs).all(|(m, &width)| held(m, width))
    }

    /// `scale x A^T` of each adapter, `[rows, rank]` in the factors' dtype; `a` are their first factors one below the other.
    ///
    /// One launch, which reads `x` once.
    #[must_use]
    pub fn low(&self, client: &Client, x: &Matrices, a: &Buffer, scale: f32) -> Vec<Buffer> {
        let AdapterSize { rows, input, rank, count } = self.of;
        let all = Buffer::empty(client, count * rows * rank, self.gemm.factors);
        let of = Product { batches: 1, rows, columns: count * rank, depth: input };
        let a = Matrices::rows(a.clone(), count * rank, input).transpose();
        let d = Matrices::rows(all.clone(), rows, rank);
        thin::multiply_rows(client, (self.gemm.factors, of), [x, &a, &d], rank, scale);
        (0..count).map(|at| all.piece(at * rows * rank, rows * rank)).collect()
    }

    /// Gradients from those of the outputs, of the second factors `b` `[output, rank]` and of what [`Self::low`] gave.
    ///
    /// Two launches for each adapter, one for all first factors, one that adds the parts of all sums.
    ///
    /// # Panics
    /// If there are not as many of each as adapters.
    #[must_use]
    pub fn gradients(
        &self,
        client: &Client,
        x: &Matrices,
        upstream: &[Matrices],
        (b, low): (&[Buffer], &[Buffer]),
        scale: f32,
    ) -> AdapterGradients {
        let AdapterSize { rows, input, rank, count } = self.of;
        assert!([upstream.len(), b.len(), low.len()] == [count; 3], "invariant: one of each adapter");
        let factors = self.gemm.factors;
        let all = Buffer::empty(client, count * rows * rank, factors);
        let own = |at: usize| all.piece(at * rows * rank, rows * rank);
        let mut sums = Vec::with_capacity(TOGETHER);
        for at in 0..count {
            let output = b[at].len / rank;
            let of = Product { batches: 1, rows, columns: rank, depth: output };
            let (of_b, d) =
                (Matrices::rows(b[at].clone(), output, rank), Matrices::rows(own(at), rows, rank));
            thin::multiply_rows(client, (factors, of), [&upstream[at], &of_b, &d], rank, scale);
            let of = Product { batches: 1, rows: output, columns: rank, depth: rows };
            let low = Matrices::rows(low[at].clone(), rows, rank);
            sums.push(thin::sums_of_columns(client, (factors, of), [&low, &upstream[at]], rank));
        }
        let of = Product { batches: 1, rows: count * rank, columns: input, depth: rows };
        let thin = Matrices::rows(all.clone(), rows, rank);
        sums.push(thin::sums_of_columns(client, (factors, of), [&thin, x], rank));
        let mut whole = add_parts(client, &sums);
        let of_a = whole.pop().expect("invariant: the last is that of first factors");
        AdapterGradients {
            low: (0..count).map(own).collect(),
            a: (0..count).map(|at| of_a.piece(at * rank * input, rank * input)).collect(),
            b: whole,
        }
    }
}

/// The sum of each buffer's parts, which lie one behind the other.
fn add_parts(client: &Client, sums: &[(Buffer, usize)]) -> Vec<Buffer> {
    let whole: Vec<Buffer> =
        sums.iter().map(|(all, parts)| Buffer::empty(client, all.len / parts, FloatType::F32)).collect();
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
            read(2),
            read(3),
            written(0),
            written(1),
            written(2),
            written(3),
            vectors(0),
            vectors(1),
            vectors(2),
            vectors(3),
            parts(0),
            parts(1),
            parts(2),
            parts(3),
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
    c: &[Vector<f32, N>],
    d: &[Vector<f32, N>],
    of_a: &mut [Vector<f32, N>],
    of_b: &mut [Vector<f32, N>],
    of_c: &mut [Vector<f32, N>],
    of_d: &mut [Vector<f32, N>],
    in_a: usize,
    in_b: usize,
    in_c: usize,
    in_d: usize,
    parts_of_a: usize,
    parts_of_b: usize,
    parts_of_c: usize,
    parts_of_d: usize,
    cubes: usize,
) {
    let (tensor, cube) = (CUBE_POS / cubes, CUBE_POS % cubes);
    if tensor == 0 {
        sum_own::<N>(a, of_a, in_a, parts_of_a, cube);
    } else if tensor == 1 {
        sum_own::<N>(b, of_b, in_b, parts_of_b, cube);
    } else if tensor == 2 {
        sum_own::<N>(c, of_c, in_c, parts_of_c, cube);
    } else if tensor == 3 {
        sum_own::<N>(d, of_d, in_d, parts_of_d, cube);
    }
}
