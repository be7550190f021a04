//! A step of AdamW over the elements of several parameters.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address};
use crate::several::{EACH, Several, vector_of};

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

/// Parameters whose step is one launch.
pub const TOGETHER: usize = 4;

/// One step of [`TOGETHER`] parameters at most, with their gradients. Where nobody else holds what is given, it is written where it
/// lies.
///
/// One launch: `24 + w_g` bytes and about 15 flops for each element.
///
/// # Panics
/// If there are more or none, the buffers of one are not of one length, or gradients of several dtypes.
#[must_use]
pub fn adam_step(client: &Client, all: Vec<(Adam, Buffer)>, step: &AdamStep) -> Vec<Adam> {
    assert!((1..=TOGETHER).contains(&all.len()), "invariant: a launch's parameters");
    let dtype = all[0].1.dtype;
    for (Adam { p, m, v }, g) in &all {
        let n = p.len;
        assert!(
            [m.len, v.len, g.len] == [n; 3],
            "invariant: parameter, moments and gradient are of one length"
        );
        let wide = [p.dtype, m.dtype, v.dtype] == [FloatType::F32; 3];
        assert!(
            wide && g.dtype == dtype,
            "invariant: parameters and moments are f32, gradients of one dtype"
        );
    }
    let held: Vec<&Buffer> = all.iter().flat_map(|(Adam { p, m, v }, g)| [p, m, v, g]).collect();
    let in_place = all.iter().all(|(Adam { p, m, v }, _)| [p, m, v].iter().all(|b| b.handle.can_mut()));
    let own = |b: &Buffer| if in_place { b.clone() } else { Buffer::empty(client, b.len, FloatType::F32) };
    let to: Vec<Adam> =
        all.iter().map(|(Adam { p, m, v }, _)| Adam { p: own(p), m: own(m), v: own(v) }).collect();
    let several = Several::new(client, all.iter().map(|(_, g)| g.len), &held);
    if several.parts == 0 {
        return to;
    }
    let (size, vectors) = (several.size, |at: usize| several.vectors(at));
    let read = |at: usize| {
        let (Adam { p, m, v }, g) = &all[several.place(at)];
        [p, m, v, g].map(|b| b.arg(size))
    };
    let written = |at: usize| {
        let Adam { p, m, v } = &to[several.place(at)];
        let position = several.place(at) * 4;
        [(p, 0), (m, 1), (v, 2)].map(|(b, of)| match in_place {
            true => BufferArg::alias(position + of, b.len / size),
            false => b.arg(size),
        })
    };
    let [[p0, m0, v0, g0], [p1, m1, v1, g1], [p2, m2, v2, g2], [p3, m3, v3, g3]] = [0, 1, 2, 3].map(read);
    let [[a0, b0, c0], [a1, b1, c1], [a2, b2, c2], [a3, b3, c3]] = [0, 1, 2, 3].map(written);
    update::launch(
        client,
        several.cubes(client),
        several.dim(),
        address(&held),
        size,
        p0,
        m0,
        v0,
        g0,
        p1,
        m1,
        v1,
        g1,
        p2,
        m2,
        v2,
        g2,
        p3,
        m3,
        v3,
        g3,
        a0,
        b0,
        c0,
        a1,
        b1,
        c1,
        a2,
        b2,
        c2,
        a3,
        b3,
        c3,
        vectors(0),
        vectors(1),
        vectors(2),
        vectors(3),
        several.parts,
        NumbersLaunch::new(
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
        ),
        dtype.elem(),
    );
    to
}

/// [`AdamStep`], as kernels have it.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
struct Numbers {
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
}

/// Updates this unit's elements of a part of a parameter.
#[cube]
fn update_part<G: Float, N: Size>(
    p: &[Vector<f32, N>],
    m: &[Vector<f32, N>],
    v: &[Vector<f32, N>],
    g: &[Vector<G, N>],
    p_out: &mut [Vector<f32, N>],
    m_out: &mut [Vector<f32, N>],
    v_out: &mut [Vector<f32, N>],
    vectors: usize,
    part: usize,
    step: &Numbers,
) {
    #[unroll]
    for turn in 0..EACH {
        let i = vector_of(part, turn);
        if i < vectors {
            // What is rounded once is said, so that bits do not depend on how wide vectors are.
            let old = p[i];
            let g = Vector::<f32, N>::cast_from(g[i]);
            let g = fma(g, Vector::new(step.grad_scale), old * Vector::new(step.decay));
            let first = fma(m[i], Vector::new(step.beta1), g * Vector::new(step.rest1));
            let second = fma(v[i], Vector::new(step.beta2), g * g * Vector::new(step.rest2));
            m_out[i] = first;
            v_out[i] = second;
            let denominator = fma(second.sqrt(), Vector::new(step.root), Vector::new(step.eps));
            p_out[i] = fma(old, Vector::new(step.keep), first / denominator * Vector::new(-step.rate));
        }
    }
}

#[cube(launch, address_type = "dynamic")]
fn update<G: Float, N: Size>(
    p0: &[Vector<f32, N>],
    m0: &[Vector<f32, N>],
    v0: &[Vector<f32, N>],
    g0: &[Vector<G, N>],
    p1: &[Vector<f32, N>],
    m1: &[Vector<f32, N>],
    v1: &[Vector<f32, N>],
    g1: &[Vector<G, N>],
    p2: &[Vector<f32, N>],
    m2: &[Vector<f32, N>],
    v2: &[Vector<f32, N>],
    g2: &[Vector<G, N>],
    p3: &[Vector<f32, N>],
    m3: &[Vector<f32, N>],
    v3: &[Vector<f32, N>],
    g3: &[Vector<G, N>],
    a0: &mut [Vector<f32, N>],
    b0: &mut [Vector<f32, N>],
    c0: &mut [Vector<f32, N>],
    a1: &mut [Vector<f32, N>],
    b1: &mut [Vector<f32, N>],
    c1: &mut [Vector<f32, N>],
    a2: &mut [Vector<f32, N>],
    b2: &mut [Vector<f32, N>],
    c2: &mut [Vector<f32, N>],
    a3: &mut [Vector<f32, N>],
    b3: &mut [Vector<f32, N>],
    c3: &mut [Vector<f32, N>],
    of_0: usize,
    of_1: usize,
    of_2: usize,
    of_3: usize,
    parts: usize,
    step: Numbers,
    #[define(G)] _of_g: ElemType,
) {
    let (tensor, part) = (CUBE_POS / parts, CUBE_POS % parts);
    if tensor == 0 {
        update_part::<G, N>(p0, m0, v0, g0, a0, b0, c0, of_0, part, &step);
    } else if tensor == 1 {
        update_part::<G, N>(p1, m1, v1, g1, a1, b1, c1, of_1, part, &step);
    } else if tensor == 2 {
        update_part::<G, N>(p2, m2, v2, g2, a2, b2, c2, of_2, part, &step);
    } else if tensor == 3 {
        update_part::<G, N>(p3, m3, v3, g3, a3, b3, c3, of_3, part, &step);
    }
}
