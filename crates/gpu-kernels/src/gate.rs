//! Activations of feed-forwards, gated and not, in one pass.

use burnish_core::Activation;
use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address, vector};
use crate::elements;

/// What an activation is applied to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// The function.
    pub activation: Activation,
    /// Whether rows are `[gate | up]` of twice the width, and the value is `f(gate) up`.
    pub gated: bool,
}

/// Bytes that a unit reads or writes at once at most.
const AT_ONCE: usize = 16;

impl Gate {
    fn width(self, inner: usize) -> usize {
        if self.gated { 2 * inner } else { inner }
    }
}

/// `f(gate) up`, or `f(x)`: `[rows, inner]` in `dtype`.
///
/// Reads and writes each element once: `rows inner (2 w_x + w_y)` bytes where it is gated, about 10 flops for each.
///
/// # Panics
/// If `x` is not rows of that width.
#[must_use]
pub fn gate(client: &Client, x: &Buffer, inner: usize, gate: Gate, dtype: FloatType) -> Buffer {
    let width = gate.width(inner);
    assert!(inner > 0 && x.len.is_multiple_of(width), "invariant: x is rows of {width}");
    let y = Buffer::empty(client, x.len / width * inner, dtype);
    if y.len > 0 {
        let size = vector(inner, AT_ONCE / x.dtype.bytes().max(dtype.bytes()), &[x]);
        let (count, dim) = elements::launch(client, y.len / size);
        forward::launch(
            client,
            count,
            dim,
            address(&[x]),
            size,
            x.arg(size),
            y.arg(size),
            inner / size,
            gate.activation,
            gate.gated,
            x.dtype.elem(),
            dtype.elem(),
        );
    }
    y
}

/// The gradient of `x`, in its dtype, from `d` `[rows, inner]` of [`gate`]'s value.
///
/// Reads and writes each element once: `rows inner (4 w_x + w_d)` bytes where it is gated, about 20 flops for each.
///
/// # Panics
/// If the buffers are not rows of these widths.
#[must_use]
pub fn gate_backward(client: &Client, x: &Buffer, d: &Buffer, inner: usize, gate: Gate) -> Buffer {
    let width = gate.width(inner);
    assert!(inner > 0 && x.len / width * inner == d.len, "invariant: x is rows of {width}, d of {inner}");
    let dx = Buffer::empty(client, x.len, x.dtype);
    if x.len > 0 {
        let size = vector(inner, AT_ONCE / x.dtype.bytes().max(d.dtype.bytes()), &[x, d]);
        let (count, dim) = elements::launch(client, d.len / size);
        backward::launch(
            client,
            count,
            dim,
            address(&[x]),
            size,
            x.arg(size),
            d.arg(size),
            dx.arg(size),
            inner / size,
            gate.activation,
            gate.gated,
            x.dtype.elem(),
            d.dtype.elem(),
        );
    }
    dx
}

#[cube(launch, address_type = "dynamic")]
fn forward<I: Float, O: Float, N: Size>(
    x: &[Vector<I, N>],
    y: &mut [Vector<O, N>],
    #[comptime] inner: usize,
    #[comptime] f: Activation,
    #[comptime] gated: bool,
    #[define(I)] _of_x: ElemType,
    #[define(O)] _of_y: ElemType,
) {
    if ABSOLUTE_POS >= y.len() {
        terminate!();
    }
    if comptime!(gated) {
        let at = (ABSOLUTE_POS / inner) * comptime!(2 * inner) + ABSOLUTE_POS % inner;
        let value = value_of::<N>(Vector::cast_from(x[at]), f);
        y[ABSOLUTE_POS] = Vector::cast_from(value * Vector::cast_from(x[at + inner]));
    } else {
        y[ABSOLUTE_POS] = Vector::cast_from(value_of::<N>(Vector::cast_from(x[ABSOLUTE_POS]), f));
    }
}

#[cube(launch, address_type = "dynamic")]
fn backward<I: Float, D: Float, N: Size>(
    x: &[Vector<I, N>],
    d: &[Vector<D, N>],
    dx: &mut [Vector<I, N>],
    #[comptime] inner: usize,
    #[comptime] f: Activation,
    #[comptime] gated: bool,
    #[define(I)] _of_x: ElemType,
    #[define(D)] _of_d: ElemType,
) {
    if ABSOLUTE_POS >= d.len() {
        terminate!();
    }
    let d = Vector::<f32, N>::cast_from(d[ABSOLUTE_POS]);
    if comptime!(gated) {
        let at = (ABSOLUTE_POS / inner) * comptime!(2 * inner) + ABSOLUTE_POS % inner;
        let gate = Vector::<f32, N>::cast_from(x[at]);
        let up = Vector::<f32, N>::cast_from(x[at + inner]);
        dx[at] = Vector::cast_from(d * up * slope_of::<N>(gate, f));
        dx[at + inner] = Vector::cast_from(d * value_of::<N>(gate, f));
    } else {
        let x = Vector::<f32, N>::cast_from(x[ABSOLUTE_POS]);
        dx[ABSOLUTE_POS] = Vector::cast_from(d * slope_of::<N>(x, f));
    }
}

/// `f(x)`.
#[cube]
pub(crate) fn value_of<N: Size>(x: Vector<f32, N>, #[comptime] f: Activation) -> Vector<f32, N> {
    match comptime!(f) {
        Activation::Silu => x * sigmoid::<N>(x),
        Activation::Gelu => x * normal_cdf::<N>(x),
        Activation::GeluTanh => x * sigmoid::<N>(inner_of::<N>(x)),
        Activation::Relu => max(x, Vector::new(0.0f32)),
        Activation::Relu2 => {
            let positive = max(x, Vector::new(0.0f32));
            positive * positive
        }
    }
}

/// `f'(x)`.
#[cube]
pub(crate) fn slope_of<N: Size>(x: Vector<f32, N>, #[comptime] f: Activation) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    match comptime!(f) {
        Activation::Silu => {
            let s = sigmoid::<N>(x);
            s * (one + x * (one - s))
        }
        Activation::Gelu => {
            let density = (x * x * Vector::new(-0.5f32)).exp() * Vector::new(0.398_942_3f32);
            normal_cdf::<N>(x) + x * density
        }
        Activation::GeluTanh => {
            let s = sigmoid::<N>(inner_of::<N>(x));
            // 3 * 0.044715, and 2 sqrt(2 / pi).
            let rise = (one + x * x * Vector::new(0.134_145f32)) * Vector::new(1.595_769f32);
            s + x * s * (one - s) * rise
        }
        Activation::Relu => step::<N>(x),
        Activation::Relu2 => max(x, Vector::new(0.0f32)) * Vector::new(2.0f32),
    }
}

/// 1 above 0, else 0.
#[cube]
fn step<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let mut out = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for k in 0..N::value() {
        out.insert(k, select(x.extract(k) > 0.0f32, 1.0f32, 0.0f32));
    }
    out
}

#[cube]
pub(crate) fn sigmoid<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    one / (one + (-x).exp())
}

/// The distribution function of the normal distribution.
#[cube]
fn normal_cdf<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let scaled = x * Vector::new(std::f32::consts::FRAC_1_SQRT_2);
    (scaled.erf() + Vector::new(1.0f32)) * Vector::new(0.5f32)
}

/// Twice what the tanh form of GELU takes the tanh of.
#[cube]
fn inner_of<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let cubic = Vector::new(1.0f32) + x * x * Vector::new(0.044_715f32);
    x * cubic * Vector::new(1.595_769f32)
}
