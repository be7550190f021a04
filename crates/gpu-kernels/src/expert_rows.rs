//! Tokens' rows sorted by expert, each expert's filled up to a multiple of [`GROUP_ROWS`], and the sums of each token's rows.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address, vector};
use crate::gemm::GROUP_ROWS;
use crate::rows::NO_ROW;
use crate::{elements, row, sums};

/// Places whose experts a cube counts.
const PART: usize = 512;
/// The most experts: a cube holds four words for each.
const MOST: usize = 1024;

/// Where the rows of tokens lie, sorted by expert and, of one expert, by place; all are 32-bit integers. A place is one of a
/// token's experts: `[tokens, per_token]`.
#[derive(Clone, Debug)]
pub struct ExpertRows {
    /// For each [`GROUP_ROWS`] rows their expert; the number of experts for those behind the last one's.
    pub of_tiles: Buffer,
    /// For each expert, and once more, where its rows begin.
    pub starts: Buffer,
    /// The place of each row, [`NO_ROW`] of what fills up.
    pub places: Buffer,
    /// The token of each row, likewise.
    pub tokens: Buffer,
    /// The row of each place, [`NO_ROW`] where its expert is none of these.
    pub of_places: Buffer,
}

/// Whether [`ExpertRows::new`] sorts rows of so many experts on a device.
#[must_use]
pub fn sorts_experts(client: &Client, experts: usize) -> bool {
    let bytes = client.properties().hardware.max_shared_memory_size;
    (1..=MOST).contains(&experts) && bytes >= 4 * (PART + 4 * experts)
}

impl ExpertRows {
    /// Sorts the places of `chosen` `[tokens, per_token]`, experts as 32-bit integers; a number that is none of `experts` has no
    /// row. There are rows for `tiles` times [`GROUP_ROWS`], of which [`burnish_core::expert_tiles`] are always enough.
    ///
    /// One launch, two of more than 512 places. About 512 comparisons for each place.
    ///
    /// # Panics
    /// If [`sorts_experts`] says no, or a token has no expert.
    #[must_use]
    pub fn new(client: &Client, chosen: &Buffer, experts: usize, per_token: usize, tiles: usize) -> Self {
        assert!(
            sorts_experts(client, experts) && per_token > 0,
            "invariant: {experts} experts can be sorted"
        );
        let words = |len| Buffer::empty(client, len, FloatType::F32);
        let (rows, parts) = (tiles * GROUP_ROWS, parts(chosen.len));
        let all = Self {
            of_tiles: words(tiles),
            starts: words(experts + 1),
            places: words(rows),
            tokens: words(rows),
            of_places: words(chosen.len),
        };
        let alone = parts == 1;
        let counts = if alone { chosen.clone() } else { count_parts(client, chosen, experts) };
        let units = row::most_units(client);
        sort_places::launch(
            client,
            row::cubes(client, parts),
            CubeDim::new_1d(units as u32),
            address(&[chosen, &all.places]),
            chosen.arg(1),
            counts.arg(1),
            all.of_tiles.arg(1),
            all.starts.arg(1),
            all.places.arg(1),
            all.tokens.arg(1),
            all.of_places.arg(1),
            chosen.len,
            parts,
            tiles,
            experts,
            per_token,
            units,
            alone,
        );
        all
    }
}

/// How many of `chosen` are each of the experts, `[experts]` in f32, exact to 2^24.
///
/// One launch, two of more than 512 places.
///
/// # Panics
/// If [`sorts_experts`] says no.
#[must_use]
pub fn count_experts(client: &Client, chosen: &Buffer, experts: usize) -> Buffer {
    let counts = count_parts(client, chosen, experts);
    if counts.len == experts { counts } else { sums::over_rows(client, &counts, experts) }
}

fn parts(places: usize) -> usize {
    places.div_ceil(PART).max(1)
}

/// The counts of every [`PART`] places, `[parts, experts]` in f32.
fn count_parts(client: &Client, chosen: &Buffer, experts: usize) -> Buffer {
    assert!(sorts_experts(client, experts), "invariant: {experts} experts can be sorted");
    let parts = parts(chosen.len);
    let counts = Buffer::empty(client, parts * experts, FloatType::F32);
    let units = row::most_units(client);
    count_places::launch(
        client,
        row::cubes(client, parts),
        CubeDim::new_1d(units as u32),
        address(&[chosen, &counts]),
        chosen.arg(1),
        counts.arg(1),
        chosen.len,
        parts,
        experts,
        units,
    );
    counts
}

/// The sum of each token's rows, `[tokens, columns]` in `dtype`; with `weights` (f32, of each place) of each row times its own. A
/// place without a row adds nothing; without `of_places` places have rows in their order. Always in the order of a token's experts.
///
/// Reads each row once: `places columns w_rows + tokens columns w` bytes.
///
/// # Panics
/// If `rows` is not rows of `columns`, or places are not `per_token` of each token.
#[must_use]
pub fn combine_rows(
    client: &Client,
    rows: &Buffer,
    of_places: Option<&Buffer>,
    weights: Option<&Buffer>,
    (per_token, columns): (usize, usize),
    dtype: FloatType,
) -> Buffer {
    assert!(columns > 0 && rows.len.is_multiple_of(columns), "invariant: rows of {columns}");
    let places = of_places.map_or(rows.len / columns, |of| of.len);
    assert!(places.is_multiple_of(per_token), "invariant: {per_token} places of each token");
    assert!(weights.is_none_or(|w| w.len == places), "invariant: a weight of each place");
    let y = Buffer::empty(client, places / per_token * columns, dtype);
    if y.len > 0 {
        let size = vector(columns, 4, &[rows]);
        let (count, dim) = elements::launch(client, y.len / size);
        combine::launch(
            client,
            count,
            dim,
            address(&[rows, &y]),
            size,
            rows.arg(size),
            of_places.unwrap_or(rows).arg(1),
            weights.unwrap_or(rows).arg(1),
            y.arg(size),
            columns / size,
            per_token,
            of_places.is_some(),
            weights.is_some(),
            rows.dtype.elem(),
            dtype.elem(),
        );
    }
    y
}

/// Of each place of this cube's part the expert, [`NO_ROW`] where it is none of these, and how many before it in the part have
/// the same; of each expert how many places the part has.
#[cube]
fn count_part(
    chosen: &[u32],
    counts: &mut Shared<[u32]>,
    own: &mut Array<u32>,
    before: &mut Array<u32>,
    n: usize,
    #[comptime] experts: usize,
    #[comptime] units: usize,
) {
    let unit = UNIT_POS as usize;
    let first = CUBE_POS * PART;
    let each = comptime!(PART.div_ceil(units));
    let mut ids = Shared::<[u32]>::new_slice(comptime!(units * PART.div_ceil(units)));
    #[unroll]
    for j in 0..each {
        let at = unit + comptime!(j * units);
        let mut id = u32::new(comptime!(i64::from(NO_ROW)));
        if at < PART && first + at < n {
            id = chosen[first + at];
        }
        if id >= comptime!(experts as u32) {
            id = NO_ROW;
        }
        ids[at] = id;
        own[j] = id;
        before[j] = 0u32;
    }
    #[unroll]
    for k in 0..comptime!(experts.div_ceil(units)) {
        let expert = unit + comptime!(k * units);
        if expert < experts {
            counts[expert] = 0u32;
        }
    }
    sync_cube();
    let mut alike = Array::<u32>::new(each);
    #[unroll]
    for j in 0..each {
        alike[j] = 0u32;
    }
    for other in 0..min(n - first, PART) {
        let id = ids[other];
        #[unroll]
        for j in 0..each {
            let at = unit + comptime!(j * units);
            let same = id == own[j];
            alike[j] += select(same, 1u32, 0u32);
            before[j] += select(same && other < at, 1u32, 0u32);
        }
    }
    #[unroll]
    for j in 0..each {
        if own[j] != NO_ROW && before[j] == 0u32 {
            counts[own[j] as usize] = alike[j];
        }
    }
    sync_cube();
}

#[cube(launch, address_type = "dynamic")]
fn count_places(
    chosen: &[u32],
    counts: &mut [f32],
    n: usize,
    parts: usize,
    #[comptime] experts: usize,
    #[comptime] units: usize,
) {
    if CUBE_POS >= parts {
        terminate!();
    }
    let each = comptime!(PART.div_ceil(units));
    let mut of_part = Shared::<[u32]>::new_slice(experts);
    let (mut own, mut before) = (Array::<u32>::new(each), Array::<u32>::new(each));
    count_part(chosen, &mut of_part, &mut own, &mut before, n, experts, units);
    #[unroll]
    for k in 0..comptime!(experts.div_ceil(units)) {
        let expert = UNIT_POS as usize + comptime!(k * units);
        if expert < experts {
            counts[CUBE_POS * experts + expert] = of_part[expert] as f32;
        }
    }
}

/// Each number becomes the sum of it and those before.
#[cube]
fn sum_up(
    numbers: &mut Shared<[u32]>,
    other: &mut Shared<[u32]>,
    #[comptime] count: usize,
    #[comptime] units: usize,
) {
    let unit = UNIT_POS as usize;
    #[unroll]
    for level in 0..comptime!(count.next_power_of_two().ilog2()) {
        let step = comptime!(1usize << level);
        #[unroll]
        for k in 0..comptime!(count.div_ceil(units)) {
            let i = unit + comptime!(k * units);
            if i < count {
                let mut sum = numbers[i];
                if i >= step {
                    sum += numbers[i - step];
                }
                other[i] = sum;
            }
        }
        sync_cube();
        #[unroll]
        for k in 0..comptime!(count.div_ceil(units)) {
            let i = unit + comptime!(k * units);
            if i < count {
                numbers[i] = other[i];
            }
        }
        sync_cube();
    }
}

#[cube(launch, address_type = "dynamic")]
fn sort_places(
    chosen: &[u32],
    counts: &[f32],
    of_tiles: &mut [u32],
    starts: &mut [u32],
    places: &mut [u32],
    tokens: &mut [u32],
    of_places: &mut [u32],
    n: usize,
    parts: usize,
    tiles: usize,
    #[comptime] experts: usize,
    #[comptime] per_token: usize,
    #[comptime] units: usize,
    #[comptime] alone: bool,
) {
    if CUBE_POS >= parts {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let each = comptime!(PART.div_ceil(units));
    let turns = comptime!(experts.div_ceil(units));
    // Of each expert: all its places, those of the parts before, and its tiles with those of the experts before.
    let mut all = Shared::<[u32]>::new_slice(experts);
    let mut earlier = Shared::<[u32]>::new_slice(experts);
    let mut ends = Shared::<[u32]>::new_slice(experts);
    let mut other = Shared::<[u32]>::new_slice(experts);
    let (mut own, mut before) = (Array::<u32>::new(each), Array::<u32>::new(each));
    count_part(chosen, &mut all, &mut own, &mut before, n, experts, units);
    #[unroll]
    for k in 0..turns {
        let expert = unit + comptime!(k * units);
        if expert < experts {
            let mut of_earlier = 0u32;
            if comptime!(!alone) {
                let mut sum = 0u32;
                for part in 0..parts {
                    let count = counts[part * experts + expert] as u32;
                    sum += count;
                    of_earlier += select(part < CUBE_POS, count, 0u32);
                }
                all[expert] = sum;
            }
            earlier[expert] = of_earlier;
            ends[expert] = all[expert].div_ceil(comptime!(GROUP_ROWS as u32));
        }
    }
    sync_cube();
    sum_up(&mut ends, &mut other, experts, units);
    #[unroll]
    for k in 0..turns {
        let expert = unit + comptime!(k * units);
        if expert < experts {
            other[expert] = ends[expert] - all[expert].div_ceil(comptime!(GROUP_ROWS as u32));
        }
    }
    sync_cube();
    let rows = tiles * GROUP_ROWS;
    #[unroll]
    for j in 0..each {
        let at = unit + comptime!(j * units);
        let place = CUBE_POS * PART + at;
        if at < PART && place < n {
            let mut row = rows;
            if own[j] != NO_ROW {
                let expert = own[j] as usize;
                row = other[expert] as usize * GROUP_ROWS + (earlier[expert] + before[j]) as usize;
            }
            if row < rows {
                places[row] = place as u32;
                tokens[row] = (place / per_token) as u32;
                of_places[place] = row as u32;
            } else {
                of_places[place] = NO_ROW;
            }
        }
    }
    // What fills experts' rows up, an expert for each cube, then what is behind the last one's.
    let mut expert = CUBE_POS;
    while expert < experts {
        let mut row = other[expert] as usize * GROUP_ROWS + all[expert] as usize + unit;
        while row < min(ends[expert] as usize * GROUP_ROWS, rows) {
            places[row] = NO_ROW;
            tokens[row] = NO_ROW;
            row += units;
        }
        expert += parts;
    }
    let last = ends[comptime!(experts - 1)] as usize;
    let mut row = last * GROUP_ROWS + CUBE_POS * units + unit;
    while row < rows {
        places[row] = NO_ROW;
        tokens[row] = NO_ROW;
        row += parts * units;
    }
    if CUBE_POS == 0usize {
        #[unroll]
        for k in 0..turns {
            let expert = unit + comptime!(k * units);
            if expert < experts {
                starts[expert] = other[expert] * comptime!(GROUP_ROWS as u32);
                let mut tile = other[expert] as usize;
                while tile < min(ends[expert] as usize, tiles) {
                    of_tiles[tile] = expert as u32;
                    tile += 1usize;
                }
            }
        }
        if unit == 0usize {
            starts[experts] = ends[comptime!(experts - 1)] * comptime!(GROUP_ROWS as u32);
        }
        let mut tile = last + unit;
        while tile < tiles {
            of_tiles[tile] = comptime!(experts as u32);
            tile += units;
        }
    }
}

#[cube(launch, address_type = "dynamic")]
fn combine<I: Float, O: Float, N: Size>(
    rows: &[Vector<I, N>],
    of_places: &[u32],
    weights: &[f32],
    y: &mut [Vector<O, N>],
    #[comptime] vectors: usize,
    #[comptime] per_token: usize,
    #[comptime] sorted: bool,
    #[comptime] weighted: bool,
    #[define(I)] _of_rows: ElemType,
    #[define(O)] _of_y: ElemType,
) {
    if ABSOLUTE_POS >= y.len() {
        terminate!();
    }
    let first = ABSOLUTE_POS / vectors * per_token;
    let column = ABSOLUTE_POS % vectors;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    #[unroll(per_token <= 16)]
    for j in 0..per_token {
        let mut row = (first + j) as u32;
        if comptime!(sorted) {
            row = of_places[first + j];
        }
        if row != NO_ROW {
            let mut value = Vector::<f32, N>::cast_from(rows[row as usize * vectors + column]);
            if comptime!(weighted) {
                value *= Vector::new(weights[first + j]);
            }
            sum += value;
        }
    }
    y[ABSOLUTE_POS] = Vector::cast_from(sum);
}
