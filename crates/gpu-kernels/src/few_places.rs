//! Products of a few tokens' rows, each by the matrices of its own experts, which are read where they lie: no row is sorted or
//! filled up.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address, vector};
use crate::elements::Four;
use crate::few_rows::{FewRows, OUTPUTS, UNITS, with_product};
use crate::packed::{Form, Layout, PackedLayout, VALUES, elements, table};
use crate::row::{self, Units};

/// Whose rows are multiplied: a place is one of a token's experts.
#[derive(Clone, Copy, Debug)]
pub struct FewPlaces<'a> {
    /// `[places]`, 32-bit integers; rows of a number that is none of the experts are zeros.
    pub chosen: &'a Buffer,
    /// How many there are.
    pub experts: usize,
    /// Places that have a row of `x` in turn: a token's experts, or one where each has its own.
    pub each: usize,
}

/// Another product, `p Q^T` of each place's row, `[places, depth]`, and its expert's matrix of `[experts, outputs, depth]`.
#[derive(Clone, Copy, Debug)]
pub struct FewMore<'a> {
    /// Rows.
    pub p: &'a Buffer,
    /// Matrices.
    pub q: &'a Buffer,
    /// Factors of a sum.
    pub depth: usize,
}

/// `scale (x W^T + p Q^T) + bias + add` of each place, `[places, outputs]`; `x` is `[places / each, columns]`, `W` of each expert lies
/// in `[experts, outputs, columns]`, `bias` is `[experts, outputs]`. Both factors of a product are rounded to `factors`.
///
/// One launch: a cube of 128 units reads four of an expert's outputs for one place, `places outputs (w_w columns + w)` bytes where no
/// two have one expert. Sums are in f32, over a unit's vectors and then over units, always by the same tree.
///
/// # Panics
/// If sizes do not fit.
#[must_use]
pub fn multiply_few_places(
    client: &Client,
    x: &Buffer,
    (w, [outputs, columns]): (&Buffer, [usize; 2]),
    of: FewPlaces<'_>,
    more: Option<FewMore<'_>>,
    factors: FloatType,
    finish: FewRows<'_>,
) -> Buffer {
    let places = of.places(x, columns);
    assert_eq!(w.len, of.experts * outputs * columns, "invariant: a matrix for each expert");
    let y = of.output(client, outputs, &finish);
    if y.len == 0 {
        return y;
    }
    let both = |a: &Buffer, b: &Buffer, depth: usize| {
        vector(depth, 16 / a.dtype.bytes().max(b.dtype.bytes()), &[a, b])
    };
    let FewMore { p, q, depth } = more.unwrap_or(FewMore { p: x, q: w, depth: 0 });
    let fits = more.is_none() || p.len == places * depth && q.len == of.experts * outputs * depth;
    assert!(fits, "invariant: a row for each place and a matrix for each expert");
    let (size, others) = (both(x, w, columns), if depth > 0 { both(p, q, depth) } else { 1 });
    let (bias, add) = (finish.bias.unwrap_or(w), finish.add.unwrap_or(w));
    let units = row::units(client, (columns / size).clamp(1, UNITS.min(row::most_units(client))));
    // SAFETY: rows, matrices and outputs are those that sizes were compared with.
    unsafe {
        by_few_places::launch_unchecked(
            client,
            row::cubes(client, places * outputs.div_ceil(OUTPUTS)),
            CubeDim::new_1d(units.count),
            address(&[x, w, q, &y]),
            size,
            others,
            x.arg(size),
            w.arg(size),
            p.arg(others),
            q.arg(others),
            bias.arg(1),
            add.arg(1),
            of.chosen.arg(1),
            y.arg(1),
            OfLaunch::new(places, of.experts, of.each, outputs, finish.scale),
            columns / size,
            depth / others,
            Asked { more: depth > 0, bias: finish.bias.is_some(), add: finish.add.is_some(), units },
            x.dtype.elem(),
            w.dtype.elem(),
            p.dtype.elem(),
            q.dtype.elem(),
            add.dtype.elem(),
            finish.dtype.elem(),
            factors.elem(),
        );
    }
    y
}

/// [`multiply_few_places`] by matrices in fewer bits, one below the other in a strip that has all columns, whose elements are rounded to
/// the dtype of `x`.
///
/// # Panics
/// If sizes do not fit.
#[must_use]
pub fn multiply_few_places_by_codes(
    client: &Client,
    x: &Buffer,
    layout: &PackedLayout,
    [words, numbers]: [&Buffer; 2],
    of: FewPlaces<'_>,
    finish: FewRows<'_>,
) -> Buffer {
    let [rows, columns] = layout.shape();
    assert!(of.experts > 0 && rows.is_multiple_of(of.experts), "invariant: a matrix for each expert");
    let (places, outputs) = (of.places(x, columns), rows / of.experts);
    let y = of.output(client, outputs, &finish);
    if y.len == 0 {
        return y;
    }
    let size = if x.is_aligned(16 / x.dtype.bytes()) { layout.size(0, columns, x.dtype) } else { 1 };
    let (bias, add) = (finish.bias.unwrap_or(numbers), finish.add.unwrap_or(numbers));
    let units = row::units(client, UNITS.min(row::most_units(client)));
    by_codes_of_experts::launch(
        client,
        row::cubes(client, places * outputs.div_ceil(OUTPUTS)),
        CubeDim::new_1d(units.count),
        layout.address(x.len.max(y.len), [words, numbers]),
        size,
        x.arg(size),
        words.arg(1),
        numbers.arg(1),
        bias.arg(1),
        add.arg(1),
        of.chosen.arg(1),
        y.arg(1),
        layout.arg(size),
        OfLaunch::new(places, of.experts, of.each, outputs, finish.scale),
        layout.form(size),
        Asked { more: false, bias: finish.bias.is_some(), add: finish.add.is_some(), units },
        x.dtype.elem(),
        add.dtype.elem(),
        finish.dtype.elem(),
    );
    y
}

impl FewPlaces<'_> {
    /// Places, where rows of `columns` are theirs.
    fn places(&self, x: &Buffer, columns: usize) -> usize {
        let places = self.chosen.len;
        assert!(
            self.each > 0 && x.len * self.each == places * columns,
            "invariant: a row for {} of {places} places",
            self.each
        );
        places
    }

    /// Memory for the outputs, where what is added fits.
    fn output(&self, client: &Client, outputs: usize, finish: &FewRows<'_>) -> Buffer {
        let y = Buffer::empty(client, self.chosen.len * outputs, finish.dtype);
        assert!(
            finish.bias.is_none_or(|bias| bias.len == self.experts * outputs),
            "invariant: a bias of each"
        );
        assert!(finish.add.is_none_or(|add| add.len == y.len), "invariant: as many elements are added");
        y
    }
}

/// Numbers of a call.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Of {
    places: usize,
    experts: usize,
    /// Places of a row.
    each: usize,
    outputs: usize,
    scale: f32,
}

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Asked {
    more: bool,
    bias: bool,
    add: bool,
    units: Units,
}

/// What a cube computes: a place's outputs from one on.
#[derive(CubeType, Clone, Copy)]
struct Share {
    place: usize,
    first: usize,
    /// Whether there is such an expert.
    there: bool,
    /// The line of its first output among all experts', and the last one of its expert.
    line: usize,
    last: usize,
}

#[cube]
fn share(chosen: &[u32], of: &Of) -> Share {
    let across = of.outputs.div_ceil(OUTPUTS);
    let place = CUBE_POS / across;
    let expert = chosen[min(place, of.places - 1)] as usize;
    let there = expert < of.experts;
    let begin = select(there, expert, 0usize) * of.outputs;
    let first = CUBE_POS % across * OUTPUTS;
    Share { place, first, there, line: begin + first, last: begin + of.outputs - 1 }
}

/// The line of one of a cube's outputs; those behind the last are it once more, and not written.
#[cube]
fn line_of(share: &Share, #[comptime] output: usize) -> usize {
    min(share.line + output, share.last)
}

/// The products of a row from `from` on and the lines of a cube's outputs, this unit's.
#[cube]
fn add_products<X: Float, W: Float, E: Float, N: Size>(
    sums: Four,
    x: &[Vector<X, N>],
    w: &[Vector<W, N>],
    from: usize,
    share: &Share,
    vectors: usize,
    #[comptime] units: Units,
) -> Four {
    let mut sums = sums;
    for vector in range_stepped(UNIT_POS as usize, vectors, comptime!(units.count as usize)) {
        let row = Vector::<f32, N>::cast_from(Vector::<E, N>::cast_from(x[from + vector]));
        #[unroll]
        for output in 0..comptime!(OUTPUTS) {
            let own = w[line_of(share, output) * vectors + vector];
            let own = Vector::<f32, N>::cast_from(Vector::<E, N>::cast_from(own));
            sums.insert(output, with_product::<N>(sums.extract(output), row, own));
        }
    }
    sums
}

/// Finishes a cube's sums and writes them; zeros where there is no such expert.
#[cube]
fn write<A: Float, O: Float>(
    sums: Four,
    share: &Share,
    of: &Of,
    bias: &[f32],
    add: &[A],
    y: &mut [O],
    #[comptime] asked: Asked,
) {
    let mut shared = Shared::<[Four]>::new_slice(comptime!(asked.units.count as usize));
    let four = row::sum(sums, &mut shared, asked.units);
    #[unroll]
    for output in 0..comptime!(OUTPUTS) {
        let column = share.first + output;
        if UNIT_POS as usize == comptime!(output) && column < of.outputs {
            let at = share.place * of.outputs + column;
            let mut sum = four.extract(output) * of.scale;
            if comptime!(asked.bias) {
                sum += bias[share.line + output];
            }
            if comptime!(asked.add) {
                sum += f32::cast_from(add[at]);
            }
            y[at] = O::cast_from(select(share.there, sum, 0.0f32));
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn by_few_places<X: Float, W: Float, P: Float, Q: Float, A: Float, O: Float, E: Float, N: Size, M: Size>(
    x: &[Vector<X, N>],
    w: &[Vector<W, N>],
    p: &[Vector<P, M>],
    q: &[Vector<Q, M>],
    bias: &[f32],
    add: &[A],
    chosen: &[u32],
    y: &mut [O],
    of: Of,
    vectors: usize,
    more_vectors: usize,
    #[comptime] asked: Asked,
    #[define(X)] _of_x: ElemType,
    #[define(W)] _of_w: ElemType,
    #[define(P)] _of_p: ElemType,
    #[define(Q)] _of_q: ElemType,
    #[define(A)] _of_add: ElemType,
    #[define(O)] _of_y: ElemType,
    #[define(E)] _factors: ElemType,
) {
    let share = share(chosen, &of);
    if share.place >= of.places {
        terminate!();
    }
    let mut sums = Four::new(0.0f32);
    if share.there {
        let from = share.place / of.each * vectors;
        sums = add_products::<X, W, E, N>(sums, x, w, from, &share, vectors, asked.units);
        if comptime!(asked.more) {
            let from = share.place * more_vectors;
            sums = add_products::<P, Q, E, M>(sums, p, q, from, &share, more_vectors, asked.units);
        }
    }
    write::<A, O>(sums, &share, &of, bias, add, y, asked);
}

#[cube(launch, address_type = "dynamic")]
fn by_codes_of_experts<I: Float, A: Float, O: Float, N: Size>(
    x: &[Vector<I, N>],
    words: &[u32],
    numbers: &[f32],
    bias: &[f32],
    add: &[A],
    chosen: &[u32],
    y: &mut [O],
    layout: &Layout,
    of: Of,
    #[comptime] form: Form,
    #[comptime] asked: Asked,
    #[define(I)] _of_x: ElemType,
    #[define(A)] _of_add: ElemType,
    #[define(O)] _of_y: ElemType,
) {
    let share = share(chosen, &of);
    if share.place >= of.places {
        terminate!();
    }
    let mut values = Shared::<[f32]>::new_slice(comptime!(VALUES));
    table(numbers, &mut values, form);
    let mut sums = Four::new(0.0f32);
    if share.there {
        let from = share.place / of.each * layout.of_row;
        for vector in range_stepped(UNIT_POS as usize, layout.of_row, comptime!(asked.units.count as usize)) {
            let row = Vector::<f32, N>::cast_from(x[from + vector]);
            #[unroll]
            for output in 0..comptime!(OUTPUTS) {
                let line = line_of(&share, output);
                let wide = elements::<N>(words, numbers, &values, layout, line, vector, form);
                let own = Vector::<f32, N>::cast_from(Vector::<I, N>::cast_from(wide));
                sums.insert(output, with_product::<N>(sums.extract(output), row, own));
            }
        }
    }
    write::<A, O>(sums, &share, &of, bias, add, y, asked);
}
