//! Pieces of chunks in shared memory, and their products by units.
//!
//! A unit has two rows of a chunk, [`SIDE`] apart, by four neighbouring columns of a slice of values; or by every eighth row of
//! another chunk. Rows of fours lie an odd number of fours apart, so that neighbours lie in other banks.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

pub(super) use crate::elements::Four;

use super::Form;
use super::records::Part;

/// Units of a cube.
pub(super) const UNITS: usize = 128;
/// Columns of values of a cube, or of keys that are summed at a time.
pub(super) const SLICE: usize = 32;
/// Fours of a slice.
pub(super) const FOURS: usize = SLICE / 4;
/// Units that share a row of a chunk.
pub(super) const BESIDE: usize = FOURS;
/// Rows of a chunk that units have at a time.
pub(super) const SIDE: usize = UNITS / BESIDE;
/// Fours from one row of a slice to the next.
pub(super) const SLICE_PITCH: usize = FOURS + 1;

/// What a chunk's tokens keep and learn, in shared memory.
#[derive(CubeType)]
pub(super) struct Weights {
    /// The logarithm of what is kept from the chunk's beginning to each token.
    pub(super) sums: Shared<[f32]>,
    pub(super) beta: Shared<[f32]>,
    decay: Shared<[f32]>,
}

#[cube]
impl Weights {
    pub(super) fn new(#[comptime] form: Form) -> Weights {
        Weights {
            sums: Shared::<[f32]>::new_slice(comptime!(form.chunk)),
            beta: Shared::<[f32]>::new_slice(comptime!(form.chunk)),
            decay: Shared::<[f32]>::new_slice(comptime!(form.chunk)),
        }
    }

    /// Brings those of `count` tokens from `row` on, `heads` a token; the others keep all and learn nothing. Waits for the cube,
    /// so that what else was brought before is there as well.
    pub(super) fn bring(
        &mut self,
        all: &[f32],
        of_heads: usize,
        row: usize,
        count: usize,
        heads: usize,
        head: usize,
        #[comptime] form: Form,
    ) {
        let unit = UNIT_POS as usize;
        if unit < form.chunk {
            let mut kept = 0.0f32;
            let mut learned = 0.0f32;
            if unit < count {
                kept = all[(row + unit) * heads + head];
                learned = all[of_heads + (row + unit) * heads + head];
            }
            self.decay[unit] = kept;
            self.beta[unit] = learned;
        }
        sync_cube();
        if unit < form.chunk {
            let mut sum = 0.0f32;
            for i in 0..unit + 1 {
                sum += self.decay[i];
            }
            self.sums[unit] = sum;
        }
        sync_cube();
    }

    /// Brings what tokens learn from the record of a chunk whose channels have decays, and waits for the cube.
    pub(super) fn bring_betas(&mut self, records: &[f32], record: usize, #[comptime] form: Form) {
        let unit = UNIT_POS as usize;
        if unit < form.chunk {
            self.beta[unit] = records[record + comptime!(Part::Betas.place(form)) + unit];
        }
        sync_cube();
    }

    /// What is kept from the chunk's beginning to a token; all, where it is in the rows of queries and keys.
    pub(super) fn until(&self, token: usize, #[comptime] form: Form) -> f32 {
        if comptime!(form.channels) { f32::new(1.0) } else { self.sums[token].exp() }
    }

    /// What is kept from a token to the chunk's end; all, where it is in the rows of keys.
    pub(super) fn after(&self, token: usize, #[comptime] form: Form) -> f32 {
        if comptime!(form.channels) {
            f32::new(1.0)
        } else {
            (self.sums[comptime!(form.chunk - 1)] - self.sums[token]).exp()
        }
    }

    /// What is kept from a token to a later one, or itself.
    pub(super) fn between(&self, from: usize, to: usize) -> f32 {
        (self.sums[to] - self.sums[from]).exp()
    }
}

/// Multiplies this unit's part of a state, or of a gradient of one, with what the chunk keeps.
#[cube]
pub(super) fn keep_state(
    own: &mut Array<Four>,
    records: &[f32],
    record: usize,
    weights: &Weights,
    #[comptime] form: Form,
) {
    if comptime!(form.channels) {
        let y = UNIT_POS as usize / BESIDE;
        #[unroll]
        for part in 0..comptime!(form.parts()) {
            #[unroll]
            for i in 0..4usize {
                let row = (y + part * SIDE) * 4 + i;
                if row < form.key_dim {
                    own[part * 4 + i] *=
                        Four::new(records[record + comptime!(Part::Whole.place(form)) + row]);
                }
            }
        }
    } else {
        let kept = Four::new(weights.until(comptime!(form.chunk - 1), form));
        #[unroll]
        for i in 0..comptime!(4 * form.parts()) {
            own[i] *= kept;
        }
    }
}

/// Four columns of a row; zeros past `columns`.
#[cube]
pub(super) fn four(source: &[f32], first: usize, column: usize, #[comptime] columns: usize) -> Four {
    let mut four = Four::new(0.0);
    #[unroll]
    for i in 0..4usize {
        if column + i < columns {
            four.insert(i, source[first + column + i]);
        }
    }
    four
}

/// Writes four columns of a row, those that there are.
#[cube]
pub(super) fn put_four(
    into: &mut [f32],
    first: usize,
    column: usize,
    four: Four,
    #[comptime] columns: usize,
) {
    #[unroll]
    for i in 0..4usize {
        if column + i < columns {
            into[first + column + i] = four.extract(i);
        }
    }
}

/// Adds a slice of a state in memory to this unit's part of it, four rows of keys at a time.
#[cube]
pub(super) fn add_state(
    source: &[f32],
    first: usize,
    column: usize,
    into: &mut Array<Four>,
    #[comptime] form: Form,
) {
    let y = UNIT_POS as usize / BESIDE;
    #[unroll]
    for part in 0..comptime!(form.parts()) {
        #[unroll]
        for i in 0..4usize {
            let row = (y + part * SIDE) * 4 + i;
            if row < form.key_dim {
                into[part * 4 + i] += four(source, first + row * form.value_dim, column, form.value_dim);
            }
        }
    }
}

/// Writes this unit's part of a slice of a state.
#[cube]
pub(super) fn put_state(
    into: &mut [f32],
    first: usize,
    column: usize,
    own: &Array<Four>,
    #[comptime] form: Form,
) {
    let y = UNIT_POS as usize / BESIDE;
    #[unroll]
    for part in 0..comptime!(form.parts()) {
        #[unroll]
        for i in 0..4usize {
            let row = (y + part * SIDE) * 4 + i;
            if row < form.key_dim {
                put_four(into, first + row * form.value_dim, column, own[part * 4 + i], form.value_dim);
            }
        }
    }
}

/// Shares this unit's part of a slice of a state with the cube.
#[cube]
pub(super) fn share_state(own: &Array<Four>, state: &mut [Four], #[comptime] form: Form) {
    let (x, y) = (UNIT_POS as usize % BESIDE, UNIT_POS as usize / BESIDE);
    #[unroll]
    for part in 0..comptime!(form.parts()) {
        let four = y + part * SIDE;
        if four < comptime!(form.fours()) {
            #[unroll]
            for i in 0..4usize {
                state[(four * 4 + i) * FOURS + x] = own[part * 4 + i];
            }
        }
    }
}

/// What tokens of a chunk have to do with each other: below the diagonal of `system` how much of an earlier one's learning is known to a later
/// one, for the delta rule; on and below that of `scores`, where they are `scored`, how much a later one reads of it.
#[cube]
pub(super) fn put_pairs(
    q: &[Four],
    k: &[Four],
    weights: &Weights,
    system: &mut [f32],
    scores: &mut [f32],
    #[comptime] scored: bool,
    #[comptime] form: Form,
) {
    let (x, y) = (UNIT_POS as usize % BESIDE, UNIT_POS as usize / BESIDE);
    let (chunk, others) = comptime!((form.chunk, form.chunk / BESIDE));
    let (fours, pitch) = comptime!((form.fours(), form.pitch()));
    let mut of_keys = Array::<f32>::new(comptime!(form.turns() * form.chunk / BESIDE));
    let mut of_queries = Array::<f32>::new(comptime!(form.turns() * form.chunk / BESIDE));
    #[unroll]
    for i in 0..comptime!(form.turns() * form.chunk / BESIDE) {
        of_keys[i] = 0.0f32;
        of_queries[i] = 0.0f32;
    }
    if comptime!(form.delta) {
        add_dots(k, k, &mut of_keys, fours, pitch, form);
    }
    if comptime!(scored) {
        add_dots(q, k, &mut of_queries, fours, pitch, form);
    }
    #[unroll]
    for turn in 0..comptime!(form.turns()) {
        let token = y + turn * SIDE;
        if token < chunk {
            let learns = weights.beta[token];
            #[unroll]
            for j in 0..others {
                let other = x + j * BESIDE;
                let mut below = 0.0f32;
                let mut score = 0.0f32;
                if other <= token {
                    let kept = weights.between(other, token);
                    score = of_queries[turn * others + j] * kept;
                    if other < token {
                        below = of_keys[turn * others + j] * kept * learns;
                    }
                }
                if comptime!(form.delta) {
                    system[token * comptime!(form.chunk + 1) + other] = below;
                }
                if comptime!(scored) {
                    scores[token * comptime!(form.chunk + 1) + other] = score;
                }
            }
        }
    }
}

/// A column of values of a state in memory, of four rows of keys; zeros where there is none.
#[cube]
pub(super) fn key_four(
    source: &[f32],
    first: usize,
    four: usize,
    value: usize,
    #[comptime] form: Form,
) -> Four {
    let mut column = Four::new(0.0);
    #[unroll]
    for i in 0..4usize {
        let key = four * 4 + i;
        if key < form.key_dim {
            if value < form.value_dim {
                column.insert(i, source[first + key * form.value_dim + value]);
            }
        }
    }
    column
}

/// Brings `count` rows of a chunk of keys or queries, `stride` apart; zeros behind them.
#[cube]
pub(super) fn bring_keys(
    source: &[f32],
    first: usize,
    stride: usize,
    count: usize,
    into: &mut [Four],
    #[comptime] form: Form,
) {
    let fours = comptime!(form.chunk * form.fours());
    #[unroll]
    for turn in 0..comptime!(fours.div_ceil(UNITS)) {
        let at = turn * UNITS + UNIT_POS as usize;
        if at < fours {
            let (row, column) = (at / comptime!(form.fours()), at % comptime!(form.fours()));
            let mut value = Four::new(0.0);
            if row < count {
                value = four(source, first + row * stride, column * 4, comptime!(form.key_dim));
            }
            into[row * comptime!(form.pitch()) + column] = value;
        }
    }
}

/// Brings a slice of `count` rows of a chunk, from `column` on; zeros behind them and past the last column.
#[cube]
pub(super) fn bring_slice(
    source: &[f32],
    first: usize,
    stride: usize,
    count: usize,
    column: usize,
    into: &mut [Four],
    #[comptime] form: Form,
) {
    let (x, y) = (UNIT_POS as usize % BESIDE, UNIT_POS as usize / BESIDE);
    #[unroll]
    for turn in 0..comptime!(form.turns()) {
        let row = y + turn * SIDE;
        if row < form.chunk {
            let mut value = Four::new(0.0);
            if row < count {
                let first = first + row * stride;
                value = four(source, first, column + x * 4, comptime!(form.value_dim));
            }
            into[row * SLICE_PITCH + x] = value;
        }
    }
}

/// Adds the products of this unit's rows of `a` with every eighth row of `b`, over `fours` of columns.
#[cube]
pub(super) fn add_dots(
    a: &[Four],
    b: &[Four],
    into: &mut Array<f32>,
    #[comptime] fours: usize,
    #[comptime] pitch: usize,
    #[comptime] form: Form,
) {
    let (x, y) = (UNIT_POS as usize % BESIDE, UNIT_POS as usize / BESIDE);
    let others = comptime!(form.chunk / BESIDE);
    for column in 0..fours {
        let mut columns = Array::<Four>::new(others);
        #[unroll]
        for j in 0..others {
            columns[j] = b[(x + j * BESIDE) * pitch + column];
        }
        #[unroll]
        for turn in 0..comptime!(form.turns()) {
            let row = a[row_of(y, turn, form) * pitch + column];
            #[unroll]
            for j in 0..others {
                let mut sum = into[turn * others + j];
                #[unroll]
                for i in 0..4usize {
                    sum = fma(row.extract(i), columns[j].extract(i), sum);
                }
                into[turn * others + j] = sum;
            }
        }
    }
}

/// The row of a unit's turn; where a chunk has fewer, one that there is.
#[cube]
pub(super) fn row_of(y: usize, #[comptime] turn: usize, #[comptime] form: Form) -> usize {
    if comptime!(form.chunk >= SIDE) { y + comptime!(turn * SIDE) } else { y % form.chunk }
}

/// Adds this unit's rows of `a`, `a_pitch` fours apart, times `b`, whose rows are a slice of fours `b_pitch` apart: over
/// `fours` of the columns of `a`.
#[cube]
pub(super) fn add_product(
    a: &[Four],
    b: &[Four],
    into: &mut Array<Four>,
    #[comptime] fours: usize,
    #[comptime] a_pitch: usize,
    #[comptime] b_pitch: usize,
    #[comptime] form: Form,
) {
    let (x, y) = (UNIT_POS as usize % BESIDE, UNIT_POS as usize / BESIDE);
    for column in 0..fours {
        let mut rows = Array::<Four>::new(4usize);
        #[unroll]
        for i in 0..4usize {
            rows[i] = b[(column * 4 + i) * b_pitch + x];
        }
        #[unroll]
        for turn in 0..comptime!(form.turns()) {
            let row = a[row_of(y, turn, form) * a_pitch + column];
            #[unroll]
            for i in 0..4usize {
                into[turn] = fma(Four::new(row.extract(i)), rows[i], into[turn]);
            }
        }
    }
}

/// Adds to this unit's part of a state the outer products of a chunk's keys or queries and rows of a slice, each times its
/// `factors`.
#[cube]
pub(super) fn add_outer(
    keys: &[Four],
    slice: &[Four],
    factors: &[f32],
    into: &mut Array<Four>,
    #[comptime] form: Form,
) {
    let (x, y) = (UNIT_POS as usize % BESIDE, UNIT_POS as usize / BESIDE);
    for token in 0..comptime!(form.chunk) {
        let row = slice[token * SLICE_PITCH + x] * Four::new(factors[token]);
        #[unroll]
        for part in 0..comptime!(form.parts()) {
            let four = y + part * SIDE;
            if four < comptime!(form.fours()) {
                let key = keys[token * comptime!(form.pitch()) + four];
                #[unroll]
                for i in 0..4usize {
                    into[part * 4 + i] = fma(Four::new(key.extract(i)), row, into[part * 4 + i]);
                }
            }
        }
    }
}

/// Solves a system of a chunk with ones on its diagonal for each column of a slice, `system` `[chunk, chunk + 1]` below it; or,
/// where it is `turned`, the system's transpose. A unit has a column; `columns` `[chunk, SLICE]` is where they hand them over.
#[cube]
pub(super) fn solve(
    system: &[f32],
    slice: &mut [Four],
    columns: &mut [f32],
    #[comptime] turned: bool,
    #[comptime] form: Form,
) {
    let chunk = comptime!(form.chunk);
    let column = UNIT_POS as usize;
    if column < SLICE {
        let mut own = Array::<f32>::new(chunk);
        #[unroll]
        for i in 0..chunk {
            let four = slice[comptime!(i * SLICE_PITCH) + column / 4];
            let mut one = four.extract(0usize);
            #[unroll]
            for k in 1..4usize {
                one = select(column % 4 == k, four.extract(k), one);
            }
            own[i] = one;
        }
        #[unroll]
        for step in 0..chunk {
            let done = comptime!(if turned { chunk - 1 - step } else { step });
            #[unroll]
            for at in 0..comptime!(chunk - 1 - step) {
                let other = comptime!(if turned { at } else { done + 1 + at });
                let place = comptime!(pitched(
                    if turned { done } else { other },
                    if turned { other } else { done },
                    chunk
                ));
                own[other] -= system[place] * own[done];
            }
        }
        #[unroll]
        for i in 0..chunk {
            columns[comptime!(i * SLICE) + column] = own[i];
        }
    }
    sync_cube();
    let (x, y) = (UNIT_POS as usize % BESIDE, UNIT_POS as usize / BESIDE);
    #[unroll]
    for turn in 0..comptime!(form.turns()) {
        let token = y + turn * SIDE;
        if token < chunk {
            let mut four = Four::new(0.0);
            #[unroll]
            for k in 0..4usize {
                four.insert(k, columns[token * SLICE + x * 4 + k]);
            }
            slice[token * SLICE_PITCH + x] = four;
        }
    }
}

/// Where a matrix of a chunk's tokens has an element.
pub(super) fn pitched(row: usize, column: usize, chunk: usize) -> usize {
    row * (chunk + 1) + column
}
