//! Gates between the two layers of experts, in one pass.

use burnish_core::{Activation, ExpertGate};
use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address, vector};
use crate::gate::{Gate, gate, sigmoid, slope_of, value_of};
use crate::gated_norm::{Shares, item, sum_of_group};
use crate::rows::NO_ROW;
use crate::{elements, row};

/// Bytes that a unit reads or writes at once at most.
const AT_ONCE: usize = 16;
/// The widest vectors: elements of 16 bits.
const WIDEST: usize = 8;

/// How a row of the first layer is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Form {
    /// Gates, then ups.
    Halves(Activation),
    /// No gates.
    Plain(Activation),
    /// Gates and ups by turns, clamped.
    Clamped,
    /// The same of gates, then ups.
    ClampedHalves,
}

impl Form {
    /// The form, and the numbers that kernels get as they run: the sigmoid's factor and the bound.
    fn of(gate: ExpertGate) -> (Self, f32, f32) {
        match gate {
            ExpertGate::Halves(f) => (Self::Halves(f), 0.0, 0.0),
            ExpertGate::Plain(f) => (Self::Plain(f), 0.0, 0.0),
            ExpertGate::Clamped { alpha, limit } => (Self::Clamped, alpha, limit),
            ExpertGate::ClampedHalves { alpha, limit } => (Self::ClampedHalves, alpha, limit),
        }
    }
}

/// The widest vectors of values in which all these buffers are read, and those of these dtypes written.
fn size_of(inner: usize, read: &[&Buffer], written: &[FloatType]) -> usize {
    let bytes = read.iter().map(|b| b.dtype).chain(written.iter().copied()).map(FloatType::bytes).max();
    vector(inner, AT_ONCE / bytes.unwrap_or(AT_ONCE), read)
}

/// The gate's value of each row of the first layer, `[rows, inner]` in `dtype`; `x` is `[rows, gate.reads(inner)]`.
///
/// One launch, which reads and writes each element once: `rows inner (2 w_x + w_y)` bytes where there are gates, about 10 flops
/// for each value.
///
/// # Panics
/// If `x` is not rows of that width.
#[must_use]
pub fn expert_gate(client: &Client, x: &Buffer, inner: usize, of: ExpertGate, dtype: FloatType) -> Buffer {
    match of {
        ExpertGate::Halves(activation) => gate(client, x, inner, Gate { activation, gated: true }, dtype),
        ExpertGate::Plain(activation) => gate(client, x, inner, Gate { activation, gated: false }, dtype),
        ExpertGate::Clamped { alpha, limit } => clamped(client, x, inner, (alpha, limit, false), dtype),
        ExpertGate::ClampedHalves { alpha, limit } => clamped(client, x, inner, (alpha, limit, true), dtype),
    }
}

/// A clamped gate's value, of gates and ups by turns, or of `halves`: gates, then ups.
fn clamped(
    client: &Client,
    x: &Buffer,
    inner: usize,
    (alpha, limit, halves): (f32, f32, bool),
    dtype: FloatType,
) -> Buffer {
    let width = 2 * inner;
    assert!(inner > 0 && x.len.is_multiple_of(width), "invariant: x is rows of {width}");
    let y = Buffer::empty(client, x.len / 2, dtype);
    if y.len > 0 {
        // Turns go on from a row to the next.
        let size = size_of(if halves { inner } else { y.len }, &[x], &[dtype]);
        let (count, dim) = elements::launch(client, y.len / size);
        clamped_forward::launch(
            client,
            count,
            dim,
            address(&[x]),
            size,
            x.arg(size),
            y.arg(size),
            inner / size,
            alpha,
            limit,
            halves,
            x.dtype.elem(),
            dtype.elem(),
        );
    }
    y
}

/// What comes back through an [`expert_gate`].
#[derive(Clone, Debug)]
pub struct ExpertGateBackward {
    /// The gradient of `x` times the row's weight, `[rows, reads]`.
    pub dx: Buffer,
    /// The value times the row's weight, `[rows, inner]`, where it is wanted.
    pub value: Option<Buffer>,
    /// The sum over a row of `d` times the value, without the weight, `[rows]` in f32, where it is wanted.
    pub dots: Option<Buffer>,
}

/// The gradient of [`expert_gate`]'s `x` in `dtype`, and its value once more in `value`'s dtype, both times their row's weight. `d`,
/// `[rows, inner]`, is the gradient of the value if the weight were one. A row's weight is that of its place: `weights` are f32, and
/// `places` `[rows]` 32-bit integers; a row of [`NO_ROW`] is zeros whatever `x` and `d` have there.
///
/// One launch, which reads and writes each element once: `rows inner (2 w_x + w_d + 2 w_dx + w_value)` bytes where there are gates,
/// about 25 flops for each value. Dots are summed in an order that depends on widths and dtypes alone.
///
/// # Panics
/// If the buffers are not of these shapes.
#[must_use]
pub fn expert_gate_backward(
    client: &Client,
    x: &Buffer,
    d: &Buffer,
    weights: &Buffer,
    places: &Buffer,
    inner: usize,
    gate: ExpertGate,
    dtype: FloatType,
    value: Option<FloatType>,
    want_dots: bool,
) -> ExpertGateBackward {
    let (rows, reads) = (places.len, gate.reads(inner));
    assert!(inner > 0 && x.len == rows * reads, "invariant: x is {rows} rows of {reads}");
    assert_eq!(d.len, rows * inner, "invariant: d is {rows} rows of {inner}");
    assert_eq!(weights.dtype, FloatType::F32, "invariant: weights are f32");
    let dx = Buffer::empty(client, x.len, dtype);
    let value = value.map(|dtype| Buffer::empty(client, d.len, dtype));
    let dots = want_dots.then(|| Buffer::empty(client, rows, FloatType::F32));
    if rows > 0 {
        // Two: what is written is bound once.
        let [no_value, no_dots] = [(); 2].map(|()| Buffer::empty(client, WIDEST, FloatType::F32));
        let value_dtype = value.as_ref().map_or(dtype, |value| value.dtype);
        let size = size_of(inner, &[x, d], &[dtype, value_dtype]);
        let shares = Shares::new(client, inner / size);
        let (form, alpha, limit) = Form::of(gate);
        through_gate::launch(
            client,
            row::cubes(client, rows.div_ceil(shares.groups())),
            CubeDim::new_1d(shares.cube as u32),
            address(&[x, weights]),
            size,
            x.arg(size),
            d.arg(size),
            weights.arg(1),
            places.arg(1),
            dx.arg(size),
            value.as_ref().unwrap_or(&no_value).arg(size),
            dots.as_ref().unwrap_or(&no_dots).arg(1),
            rows,
            alpha,
            limit,
            shares,
            form,
            value.is_some(),
            want_dots,
            x.dtype.elem(),
            d.dtype.elem(),
            dtype.elem(),
            value_dtype.elem(),
        );
    }
    ExpertGateBackward { dx, value, dots }
}

#[cube(launch, address_type = "dynamic")]
fn clamped_forward<I: Float, O: Float, N: Size>(
    x: &[Vector<I, N>],
    y: &mut [Vector<O, N>],
    vectors: usize,
    alpha: f32,
    limit: f32,
    #[comptime] halves: bool,
    #[define(I)] _of_x: ElemType,
    #[define(O)] _of_y: ElemType,
) {
    if ABSOLUTE_POS >= y.len() {
        terminate!();
    }
    if comptime!(halves) {
        let at = ABSOLUTE_POS + ABSOLUTE_POS / vectors * vectors;
        let (gate, up) = (Vector::cast_from(x[at]), Vector::cast_from(x[at + vectors]));
        y[ABSOLUTE_POS] = Vector::cast_from(of_clamped::<N>(gate, up, alpha, limit).0);
    } else {
        let at = 2 * ABSOLUTE_POS;
        let (gate, up) = from_turns::<N>(Vector::cast_from(x[at]), Vector::cast_from(x[at + 1]));
        y[ABSOLUTE_POS] = Vector::cast_from(of_clamped::<N>(gate, up, alpha, limit).0);
    }
}

#[cube(launch, address_type = "dynamic")]
fn through_gate<I: Float, D: Float, O: Float, V: Float, N: Size>(
    x: &[Vector<I, N>],
    d: &[Vector<D, N>],
    weights: &[f32],
    places: &[u32],
    dx: &mut [Vector<O, N>],
    value: &mut [Vector<V, N>],
    dots: &mut [f32],
    rows: usize,
    alpha: f32,
    limit: f32,
    #[comptime] shares: Shares,
    #[comptime] form: Form,
    #[comptime] wants_value: bool,
    #[comptime] wants_dots: bool,
    #[define(I)] _of_x: ElemType,
    #[define(D)] _of_d: ElemType,
    #[define(O)] _of_dx: ElemType,
    #[define(V)] _of_value: ElemType,
) {
    let row = item(shares);
    let there = row < rows;
    let place = places[min(row, rows - 1)];
    let first = row * shares.vectors;
    let lane = UNIT_POS as usize % shares.lanes;
    let mut own = Vector::<f32, N>::new(0.0f32);
    let mut i = lane;
    if there && place != NO_ROW {
        let weight = Vector::<f32, N>::new(weights[place as usize]);
        while i < shares.vectors {
            let of_value = Vector::<f32, N>::cast_from(d[first + i]);
            let scaled = of_value * weight;
            let result = match comptime!(form) {
                Form::Halves(f) => {
                    let at = 2 * first + i;
                    let gate = Vector::<f32, N>::cast_from(x[at]);
                    let up = Vector::<f32, N>::cast_from(x[at + shares.vectors]);
                    let activated = value_of::<N>(gate, f);
                    dx[at] = Vector::cast_from(scaled * up * slope_of::<N>(gate, f));
                    dx[at + shares.vectors] = Vector::cast_from(scaled * activated);
                    activated * up
                }
                Form::Plain(f) => {
                    let up = Vector::<f32, N>::cast_from(x[first + i]);
                    dx[first + i] = Vector::cast_from(scaled * slope_of::<N>(up, f));
                    value_of::<N>(up, f)
                }
                Form::Clamped => {
                    let at = 2 * (first + i);
                    let (gate, up) = from_turns::<N>(Vector::cast_from(x[at]), Vector::cast_from(x[at + 1]));
                    let (result, of_gate, of_up) = of_clamped::<N>(gate, up, alpha, limit);
                    let (a, b) = to_turns::<N>(scaled * of_gate, scaled * of_up);
                    dx[at] = Vector::cast_from(a);
                    dx[at + 1] = Vector::cast_from(b);
                    result
                }
                Form::ClampedHalves => {
                    let at = 2 * first + i;
                    let gate = Vector::<f32, N>::cast_from(x[at]);
                    let up = Vector::<f32, N>::cast_from(x[at + shares.vectors]);
                    let (result, of_gate, of_up) = of_clamped::<N>(gate, up, alpha, limit);
                    dx[at] = Vector::cast_from(scaled * of_gate);
                    dx[at + shares.vectors] = Vector::cast_from(scaled * of_up);
                    result
                }
            };
            if comptime!(wants_value) {
                value[first + i] = Vector::cast_from(result * weight);
            }
            own += of_value * result;
            i += shares.lanes;
        }
    } else if there {
        let zero = Vector::<O, N>::new(O::from_int(0));
        while i < shares.vectors {
            match comptime!(form) {
                Form::Plain(_) => {
                    dx[first + i] = zero;
                }
                Form::Halves(_) | Form::Clamped | Form::ClampedHalves => {
                    dx[2 * first + i] = zero;
                    dx[2 * first + i + shares.vectors] = zero;
                }
            }
            if comptime!(wants_value) {
                value[first + i] = Vector::new(V::from_int(0));
            }
            i += shares.lanes;
        }
    }
    if comptime!(wants_dots) {
        let mut shared = Shared::<[f32]>::new_slice(shares.cube);
        let sum = sum_of_group::<N>(own, &mut shared, shares);
        if there && lane == 0 {
            dots[row] = sum;
        }
    }
}

/// The clamped gate's value, and its slopes in gate and up: 0 beyond the limit.
#[cube]
fn of_clamped<N: Size>(
    gate: Vector<f32, N>,
    up: Vector<f32, N>,
    alpha: f32,
    limit: f32,
) -> (Vector<f32, N>, Vector<f32, N>, Vector<f32, N>) {
    let one = Vector::<f32, N>::new(1.0f32);
    let alpha = Vector::<f32, N>::new(alpha);
    let most = Vector::<f32, N>::new(limit);
    let g = min(gate, most);
    let risen = max(min(up, most), -most) + one;
    let s = sigmoid::<N>(g * alpha);
    let activated = g * s;
    let of_gate = risen * (s + activated * (one - s) * alpha);
    let mut kept_of_gate = Vector::<f32, N>::new(0.0f32);
    let mut kept_of_up = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for k in 0..N::value() {
        let u = up.extract(k);
        kept_of_gate.insert(k, select(gate.extract(k) > limit, 0.0f32, of_gate.extract(k)));
        kept_of_up.insert(k, select(u > limit || u < -limit, 0.0f32, activated.extract(k)));
    }
    (activated * risen, kept_of_gate, kept_of_up)
}

/// Of numbers by turns, the even ones and the odd ones.
#[cube]
fn from_turns<N: Size>(a: Vector<f32, N>, b: Vector<f32, N>) -> (Vector<f32, N>, Vector<f32, N>) {
    let mut even = Vector::<f32, N>::new(0.0f32);
    let mut odd = Vector::<f32, N>::new(0.0f32);
    let size = N::value().comptime();
    #[unroll]
    for k in 0..size {
        even.insert(k, of_two::<N>(a, b, comptime!(2 * k)));
        odd.insert(k, of_two::<N>(a, b, comptime!(2 * k + 1)));
    }
    (even, odd)
}

/// The inverse of [`from_turns`].
#[cube]
fn to_turns<N: Size>(even: Vector<f32, N>, odd: Vector<f32, N>) -> (Vector<f32, N>, Vector<f32, N>) {
    let mut a = Vector::<f32, N>::new(0.0f32);
    let mut b = Vector::<f32, N>::new(0.0f32);
    let size = N::value().comptime();
    #[unroll]
    for k in 0..size {
        let other = comptime!(size + k);
        a.insert(k, of_two::<N>(even, odd, comptime!(k % 2 * size + k / 2)));
        b.insert(k, of_two::<N>(even, odd, comptime!(other % 2 * size + other / 2)));
    }
    (a, b)
}

/// An element of two vectors behind each other.
#[cube]
fn of_two<N: Size>(a: Vector<f32, N>, b: Vector<f32, N>, #[comptime] k: usize) -> f32 {
    let size = N::value().comptime();
    if comptime!(k < size) { a.extract(k) } else { b.extract(comptime!(k - size)) }
}
