//! A step of AdamW over flat elements.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address, vector};
use crate::elements;

/// A step's numbers.
#[derive(Clone, Copy, Debug)]
pub struct AdamStep {
    /// Multiplies the gradient first.
    pub grad_scale: f32,
    /// What the parameter is multiplied with: 1 less the decoupled decay.
    pub keep: f32,
    /// The decay that is added to the gradient, of the parameter.
    pub decay: f32,
    /// Of the first moment.
    pub beta1: f32,
    /// `1 - beta1`, rounded once.
    pub rest1: f32,
    /// Of the second moment.
    pub beta2: f32,
    /// `1 - beta2`, rounded once.
    pub rest2: f32,
    /// Multiplies the second moment's root: `1 / sqrt(1 - beta2^step)`.
    pub root: f32,
    /// Added to the denominator.
    pub eps: f32,
    /// The learning rate over `1 - beta1^step`.
    pub rate: f32,
}

/// A parameter and its moments, f32 and of one length.
#[derive(Clone, Debug)]
pub struct Adam {
    /// The parameter.
    pub p: Buffer,
    /// The first moment.
    pub m: Buffer,
    /// The second moment.
    pub v: Buffer,
}

/// One step. Where nobody else holds what is given, it is written where it lies.
///
/// One launch: `n (24 + w_g)` bytes and about 15 flops for each of `n` elements.
///
/// # Panics
/// If the buffers are not of one length.
#[must_use]
pub fn adam_step(client: &Client, from: Adam, g: &Buffer, step: &AdamStep) -> Adam {
    let Adam { p, m, v } = from;
    let n = p.len;
    assert!([m.len, v.len, g.len] == [n; 3], "invariant: parameter, moments and gradient are of one length");
    assert!([p.dtype, m.dtype, v.dtype] == [FloatType::F32; 3], "invariant: parameter and moments are f32");
    let in_place = [&p, &m, &v].iter().all(|b| b.handle.can_mut());
    let own = |b: &Buffer| if in_place { b.clone() } else { Buffer::empty(client, n, FloatType::F32) };
    let to = Adam { p: own(&p), m: own(&m), v: own(&v) };
    if n > 0 {
        let size = vector(n, 4, &[&p, &m, &v, g]);
        let (count, dim) = elements::launch(client, n / size);
        let out = |b: &Buffer, position: usize| {
            if in_place { BufferArg::alias(position, n / size) } else { b.arg(size) }
        };
        update::launch(
            client,
            count,
            dim,
            address(&[&p]),
            size,
            p.arg(size),
            m.arg(size),
            v.arg(size),
            g.arg(size),
            out(&to.p, 0),
            out(&to.m, 1),
            out(&to.v, 2),
            step.grad_scale,
            step.keep,
            step.decay,
            step.beta1,
            step.rest1,
            step.beta2,
            step.rest2,
            step.root,
            step.eps,
            step.rate,
            g.dtype.elem(),
        );
    }
    to
}

#[cube(launch, address_type = "dynamic")]
fn update<G: Float, N: Size>(
    p: &[Vector<f32, N>],
    m: &[Vector<f32, N>],
    v: &[Vector<f32, N>],
    g: &[Vector<G, N>],
    p_out: &mut [Vector<f32, N>],
    m_out: &mut [Vector<f32, N>],
    v_out: &mut [Vector<f32, N>],
    grad_scale: f32,
    keep: f32,
    decay: f32,
    beta1: f32,
    rest1: f32,
    beta2: f32,
    rest2: f32,
    root: f32,
    eps: f32,
    rate: f32,
    #[define(G)] _of_g: ElemType,
) {
    let i = ABSOLUTE_POS;
    if i >= g.len() {
        terminate!();
    }
    let old = p[i];
    let g = Vector::<f32, N>::cast_from(g[i]) * Vector::new(grad_scale) + old * Vector::new(decay);
    let first = m[i] * Vector::new(beta1) + g * Vector::new(rest1);
    let second = v[i] * Vector::new(beta2) + g * g * Vector::new(rest2);
    m_out[i] = first;
    v_out[i] = second;
    let denominator = second.sqrt() * Vector::new(root) + Vector::new(eps);
    p_out[i] = old * Vector::new(keep) - first / denominator * Vector::new(rate);
}
