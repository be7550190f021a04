//! RMSNorm of groups of columns with a SiLU gate before or behind it, or the gate alone, in one pass.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address, vector};
use crate::gate::sigmoid;
use crate::row::{self, Units};
use crate::sums;

/// The widest vectors in which rows are read.
pub(crate) const WIDEST: usize = 4;
/// Units of a plane.
const PLANE: usize = 32;
/// Vectors that a unit of a plane has of a group at most; of a larger group a cube has each.
const EACH: usize = 4;

/// How units share groups of neighbouring vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shares {
    /// Vectors of a group.
    pub(crate) vectors: usize,
    /// Units of a group, a power of two.
    pub(crate) lanes: usize,
    /// Units of a cube, whole groups.
    pub(crate) cube: usize,
    /// Whether a group has its cube for itself, and the cube's units.
    whole: bool,
    units: Units,
    /// Whether a group's units are of one plane that hands numbers about.
    shuffled: bool,
}

impl Shares {
    pub(crate) fn new(client: &Client, vectors: usize) -> Self {
        let (shuffled, units) = (row::shuffles(client, PLANE), row::units(client, vectors));
        if vectors > EACH * PLANE {
            let lanes = units.count as usize;
            return Self { vectors, lanes, cube: lanes, whole: true, units, shuffled };
        }
        let cube = row::most_units(client);
        let most = if shuffled { cube.min(PLANE) } else { cube };
        let lanes = vectors.next_power_of_two().min(most);
        Self { vectors, lanes, cube, whole: false, units, shuffled }
    }

    /// Vectors of a unit at the most.
    pub(crate) fn each(self) -> usize {
        self.vectors.div_ceil(self.lanes)
    }

    /// Groups of a cube.
    pub(crate) fn groups(self) -> usize {
        self.cube / self.lanes
    }
}

/// The sum over a group of what its units have.
#[cube]
pub(crate) fn sum_of_group<N: Size>(
    value: Vector<f32, N>,
    shared: &mut Shared<[f32]>,
    #[comptime] shares: Shares,
) -> f32 {
    let own = row::sum_of_vector(value);
    if comptime!(shares.whole) {
        row::sum(own, shared, shares.units)
    } else {
        row::sum_of_groups(own, shared, comptime!(shares.lanes as u32), shares.shuffled)
    }
}

/// `silu(x)` and its slope.
#[cube]
pub(crate) fn silu<N: Size>(x: Vector<f32, N>) -> (Vector<f32, N>, Vector<f32, N>) {
    let one = Vector::<f32, N>::new(1.0f32);
    let s = sigmoid::<N>(x);
    let value = x * s;
    (value, s + value * (one - s))
}

/// What the compiler knows of a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    shares: Shares,
    /// Columns of a group.
    columns: usize,
    /// Vectors of the gains, 0 where there is no norm.
    gains: usize,
    /// Whether the norm comes before the gate.
    before: bool,
}

impl Form {
    fn normed(self) -> bool {
        self.gains > 0
    }

    /// Whether what is normed is gated already.
    fn after(self) -> bool {
        self.normed() && !self.before
    }
}

/// What is normed, checked, and how: the form, the size of vectors and groups of a row.
fn form(
    client: &Client,
    buffers: &[&Buffer],
    gamma: Option<&Buffer>,
    rows: usize,
    group: usize,
    before: bool,
) -> (Form, usize, usize) {
    let [x, gate, ..] = buffers else { unreachable!("invariant: x and gate are given") };
    let width = x.len.checked_div(rows).unwrap_or(group);
    assert!(x.len == rows * width && gate.len == x.len, "invariant: x and gate are [rows, width]");
    assert!(group > 0 && width.is_multiple_of(group), "invariant: a row of {width} in groups of {group}");
    assert_eq!(x.dtype, FloatType::F32, "invariant: x is f32");
    let fits = |g: &Buffer| g.dtype == FloatType::F32 && (g.len == group || g.len == width);
    assert!(gamma.is_none_or(fits), "invariant: gamma is [group] or [width] in f32");
    let all: Vec<&Buffer> = buffers.iter().copied().chain(gamma).collect();
    let size = vector(group, WIDEST, &all);
    let shares = Shares::new(client, group / size);
    (Form { shares, columns: group, gains: gamma.map_or(0, |g| g.len / size), before }, size, width / group)
}

/// `x rstd gamma silu(gate)` where the norm is `before_gate`, else `u rstd gamma` with `u = x silu(gate)`; without `gamma`
/// `x silu(gate)`. `x` is `[rows, width]` in f32 and so is `gate`, in any dtype; `rstd = 1 / sqrt(mean(square) + eps)` over
/// each `group` of columns; `gamma` is f32, `[group]` for all groups or `[width]`. The result is in `dtype`.
///
/// One launch, which reads and writes each element once: `rows width (4 + w_gate + w_y)` bytes, about 12 flops for each.
///
/// # Panics
/// If the buffers are not of these shapes.
#[must_use]
pub fn gated_norm(
    client: &Client,
    x: &Buffer,
    gate: &Buffer,
    gamma: Option<&Buffer>,
    rows: usize,
    group: usize,
    before_gate: bool,
    eps: f32,
    dtype: FloatType,
) -> Buffer {
    let (form, size, groups) = form(client, &[x, gate], gamma, rows, group, before_gate);
    let y = Buffer::empty(client, x.len, dtype);
    if x.len > 0 {
        let nothing = Buffer::empty(client, WIDEST, FloatType::F32);
        let items = rows * groups;
        forward::launch(
            client,
            row::cubes(client, items.div_ceil(form.shares.groups())),
            CubeDim::new_1d(form.shares.cube as u32),
            address(&[x]),
            size,
            x.arg(size),
            gate.arg(size),
            gamma.unwrap_or(&nothing).arg(size),
            y.arg(size),
            items,
            eps,
            form,
            gate.dtype.elem(),
            dtype.elem(),
        );
    }
    y
}

/// Which of a cube's groups a unit has, of all.
#[cube]
pub(crate) fn item(#[comptime] shares: Shares) -> usize {
    CUBE_POS * comptime!(shares.groups()) + UNIT_POS as usize / shares.lanes
}

/// `1 / sqrt(mean + eps)` of a group from a unit's squares.
#[cube]
fn reciprocal<N: Size>(
    squares: Vector<f32, N>,
    eps: f32,
    shared: &mut Shared<[f32]>,
    #[comptime] form: Form,
) -> f32 {
    let mean = sum_of_group::<N>(squares, shared, form.shares) / (comptime!(form.columns as u32) as f32);
    1.0f32 / (mean + eps).sqrt()
}

#[cube(launch, address_type = "dynamic")]
fn forward<G: Float, O: Float, N: Size>(
    x: &[Vector<f32, N>],
    gate: &[Vector<G, N>],
    gamma: &[Vector<f32, N>],
    y: &mut [Vector<O, N>],
    items: usize,
    eps: f32,
    #[comptime] form: Form,
    #[define(G)] _of_gate: ElemType,
    #[define(O)] _of_y: ElemType,
) {
    let shares = comptime!(form.shares);
    let item = item(shares);
    let there = item < items;
    let lane = UNIT_POS as usize % shares.lanes;
    let first = item * shares.vectors;
    // What is normed, and what it is multiplied by behind.
    let mut values = Array::<Vector<f32, N>>::new(comptime!(shares.each()));
    let mut gates = Array::<Vector<f32, N>>::new(comptime!(shares.each()));
    let mut squares = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for j in 0..comptime!(shares.each()) {
        let i = lane + comptime!(j * shares.lanes);
        let mut value = Vector::<f32, N>::new(0.0f32);
        let mut gated = Vector::<f32, N>::new(0.0f32);
        if there && i < shares.vectors {
            value = x[first + i];
            gated = silu::<N>(Vector::cast_from(gate[first + i])).0;
        }
        if comptime!(form.after()) {
            value *= gated;
        }
        values[j] = value;
        gates[j] = gated;
        squares += value * value;
    }
    let mut rstd = Vector::<f32, N>::new(1.0f32);
    if comptime!(form.normed()) {
        let mut shared = Shared::<[f32]>::new_slice(shares.cube);
        rstd = Vector::new(reciprocal::<N>(squares, eps, &mut shared, form));
    }
    #[unroll]
    for j in 0..comptime!(shares.each()) {
        let i = lane + comptime!(j * shares.lanes);
        if there && i < shares.vectors {
            let mut value = values[j];
            if comptime!(form.normed()) {
                value *= rstd * gamma[first % form.gains + i];
            }
            if comptime!(!form.after()) {
                value *= gates[j];
            }
            y[first + i] = Vector::cast_from(value);
        }
    }
}

/// The gradients of what [`gated_norm`] got.
#[derive(Clone, Debug)]
pub struct GatedNormGrad {
    /// `[rows, width]`, f32.
    pub x: Buffer,
    /// `[rows, width]`, in the gate's dtype.
    pub gate: Buffer,
    /// Of the length of `gamma`, f32, where it is wanted and there.
    pub gamma: Option<Buffer>,
}

/// The gradients of [`gated_norm`]'s `x`, `gate` and, where it is wanted, `gamma`, from `dy` `[rows, width]`.
///
/// Reads `x`, `gate` and `dy` once and writes two gradients once: `rows width (8 + 2 w_gate + w_dy)` bytes and about 30 flops for
/// each element. The gain's gradient is first summed over at most 1024 groups of successive rows, then over groups.
///
/// # Panics
/// If the buffers are not of these shapes.
#[must_use]
pub fn gated_norm_backward(
    client: &Client,
    x: &Buffer,
    gate: &Buffer,
    gamma: Option<&Buffer>,
    dy: &Buffer,
    rows: usize,
    group: usize,
    before_gate: bool,
    eps: f32,
    wants_gamma: bool,
) -> GatedNormGrad {
    let (form, size, groups) = form(client, &[x, gate, dy], gamma, rows, group, before_gate);
    assert_eq!(dy.len, x.len, "invariant: dy is [rows, width]");
    let dx = Buffer::empty(client, x.len, FloatType::F32);
    let dgate = Buffer::empty(client, x.len, gate.dtype);
    let wants_gamma = wants_gamma && form.normed();
    let each = if wants_gamma { sums::rows_each(rows) } else { 1 };
    let items = rows.div_ceil(each) * groups;
    let nothing = Buffer::empty(client, WIDEST, FloatType::F32);
    let partial =
        if wants_gamma { Buffer::empty(client, items * group, FloatType::F32) } else { nothing.clone() };
    if x.len > 0 {
        backward::launch(
            client,
            row::cubes(client, items.div_ceil(form.shares.groups())),
            CubeDim::new_1d(form.shares.cube as u32),
            address(&[x]),
            size,
            x.arg(size),
            gate.arg(size),
            gamma.unwrap_or(&nothing).arg(size),
            dy.arg(size),
            dx.arg(size),
            dgate.arg(size),
            partial.arg(size),
            rows,
            groups,
            each,
            eps,
            form,
            wants_gamma,
            gate.dtype.elem(),
            dy.dtype.elem(),
        );
    }
    let gamma = gamma.filter(|_| wants_gamma).map(|gamma| sums::over_rows(client, &partial, gamma.len));
    GatedNormGrad { x: dx, gate: dgate, gamma }
}

#[cube(launch, address_type = "dynamic")]
fn backward<G: Float, D: Float, N: Size>(
    x: &[Vector<f32, N>],
    gate: &[Vector<G, N>],
    gamma: &[Vector<f32, N>],
    dy: &[Vector<D, N>],
    dx: &mut [Vector<f32, N>],
    dgate: &mut [Vector<G, N>],
    partial: &mut [Vector<f32, N>],
    rows: usize,
    groups: usize,
    each: usize,
    eps: f32,
    #[comptime] form: Form,
    #[comptime] wants_gamma: bool,
    #[define(G)] _of_gate: ElemType,
    #[define(D)] _of_dy: ElemType,
) {
    let shares = comptime!(form.shares);
    let mine = comptime!(shares.each());
    let item = item(shares);
    let lane = UNIT_POS as usize % shares.lanes;
    let mut shared = Shared::<[f32]>::new_slice(shares.cube);
    let mut gains = Array::<Vector<f32, N>>::new(mine);
    #[unroll]
    for j in 0..mine {
        gains[j] = Vector::new(0.0f32);
    }
    // As many turns for every unit: a sum may be of the whole cube's.
    for turn in 0..each {
        let row = (item / groups) * each + turn;
        let there = row < rows;
        let first = (row * groups + item % groups) * shares.vectors;
        let mut xs = Array::<Vector<f32, N>>::new(mine);
        let mut values = Array::<Vector<f32, N>>::new(mine);
        let mut slopes = Array::<Vector<f32, N>>::new(mine);
        let mut ds = Array::<Vector<f32, N>>::new(mine);
        let mut squares = Vector::<f32, N>::new(0.0f32);
        let mut dots = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for j in 0..mine {
            let i = lane + comptime!(j * shares.lanes);
            xs[j] = Vector::new(0.0f32);
            values[j] = Vector::new(0.0f32);
            slopes[j] = Vector::new(0.0f32);
            ds[j] = Vector::new(0.0f32);
            if there && i < shares.vectors {
                let value = x[first + i];
                let d = Vector::<f32, N>::cast_from(dy[first + i]);
                let (gated, slope) = silu::<N>(Vector::cast_from(gate[first + i]));
                xs[j] = value;
                values[j] = gated;
                slopes[j] = slope;
                ds[j] = d;
                if comptime!(form.normed()) {
                    let u = value * gated;
                    if comptime!(form.before) {
                        squares += value * value;
                    } else {
                        squares += u * u;
                    }
                    // Of both kinds: the gate multiplies the gradient or the value.
                    dots += d * gamma[first % form.gains + i] * u;
                }
            }
        }
        let mut rstd = 1.0f32;
        let mut pull = 0.0f32;
        if comptime!(form.normed()) {
            rstd = reciprocal::<N>(squares, eps, &mut shared, form);
            let mean = sum_of_group::<N>(dots, &mut shared, shares) / (comptime!(form.columns as u32) as f32);
            pull = mean * rstd * rstd * rstd;
        }
        let (rstd, pull) = (Vector::<f32, N>::new(rstd), Vector::<f32, N>::new(pull));
        #[unroll]
        for j in 0..mine {
            let i = lane + comptime!(j * shares.lanes);
            if there && i < shares.vectors {
                let (value, gated, d) = (xs[j], values[j], ds[j]);
                if comptime!(form.normed()) {
                    let by = rstd * gamma[first % form.gains + i];
                    if comptime!(form.before) {
                        dx[first + i] = d * gated * by - value * pull;
                        dgate[first + i] = Vector::cast_from(d * value * by * slopes[j]);
                    } else {
                        let du = d * by - value * gated * pull;
                        dx[first + i] = du * gated;
                        dgate[first + i] = Vector::cast_from(du * value * slopes[j]);
                    }
                    if comptime!(wants_gamma) {
                        gains[j] += d * value * gated * rstd;
                    }
                } else {
                    dx[first + i] = d * gated;
                    dgate[first + i] = Vector::cast_from(d * value * slopes[j]);
                }
            }
        }
    }
    if comptime!(wants_gamma) {
        let there = (item / groups) * each < rows;
        #[unroll]
        for j in 0..mine {
            let i = lane + comptime!(j * shares.lanes);
            if there && i < shares.vectors {
                partial[item * shares.vectors + i] = gains[j];
            }
        }
    }
}
