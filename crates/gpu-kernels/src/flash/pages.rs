//! Attention of a few rows of many sequences over what each has said, which lies in pages.
//!
//! A pool has pages of 64 positions, keys and values apart: `[pages, 64, kv_heads, head_dim]`. A sequence's table names
//! its pages in order. A cube takes one row, up to 8 of the query heads of a key/value head, and a part of the positions: a page of
//! a short row, four of a long one, so that few sequences fill a device too. One launch serves all sequences whatever their
//! lengths; a second one joins the parts of a row in their order.

use burnish_core::FLASH_HEAD;
use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::score::{Form, HIDDEN, Numbers, NumbersLaunch, Rows, score, slope_of};
use super::{FlashShape, HeadRows};
use crate::buffer::{Buffer, FloatType, address};

/// Positions of a page.
pub const PAGE: usize = 64;
/// The place of a row that is not kept.
pub const NOWHERE: u32 = u32::MAX;
/// Pages of a cube at most, and parts of a row from which on a cube takes more of them.
const PAGES: usize = 4;
const PARTS: usize = 32;
/// Scores of a head at most.
const CHUNK: usize = PAGES * PAGE;
/// Units of a cube.
const UNITS: usize = 256;
/// Units that share a key.
const LANES: usize = 8;
/// Keys that are looked at together.
const TOGETHER: usize = UNITS / LANES;
/// Query heads of a cube at most.
const HEADS: usize = 8;
/// Units of a head that first put together what the others found.
const NEAR: usize = 16;
/// Values that a unit asks for together.
const ASKED: usize = 8;

/// What a row sees, in a call's words: positions `low..end` of the table that begins at word `table`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagedRow {
    /// The first position.
    pub low: usize,
    /// After the last one; 0 of a row that sees nothing.
    pub end: usize,
    /// Which table.
    pub table: usize,
}

/// Rows and tables as a device has them, and in how many parts the longest row is computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagedRows {
    words: Vec<u32>,
    rows: usize,
    parts: usize,
}

impl PagedRows {
    /// Rows over the tables of sequences.
    ///
    /// # Panics
    /// If a row names a table that is not there, or positions for which that has no page.
    #[must_use]
    pub fn new(rows: &[PagedRow], tables: &[&[u32]]) -> Self {
        let parts = rows.iter().map(|row| parts_of(row.low, row.end)).max().unwrap_or(0);
        Self::laid_out(rows, tables, |table| table.len(), parts)
    }

    /// Rows over tables that each have room for `room` pages: the words have the same places, and rows are computed in the
    /// same parts, whatever sequences have said.
    ///
    /// # Panics
    /// As [`Self::new`]; if a table has more pages.
    #[must_use]
    pub fn with_room(rows: &[PagedRow], tables: &[&[u32]], room: usize) -> Self {
        assert!(tables.iter().all(|table| table.len() <= room), "invariant: room for each table");
        let parts = parts_of(0, room * PAGE).max(room.min(PARTS));
        Self::laid_out(rows, tables, |_| room, parts)
    }

    fn laid_out(rows: &[PagedRow], tables: &[&[u32]], room: impl Fn(&[u32]) -> usize, parts: usize) -> Self {
        let word = |n: usize| u32::try_from(n).expect("invariant: fewer than 2^32 positions");
        let mut end = 3 * rows.len();
        let starts: Vec<usize> = tables
            .iter()
            .map(|table| {
                end += room(table);
                end - room(table)
            })
            .collect();
        let mut words = Vec::with_capacity(end);
        for row in rows {
            assert!(row.end.div_ceil(PAGE) <= tables[row.table].len(), "invariant: a page for each position");
            words.extend([word(row.low), word(row.end), word(starts[row.table])]);
        }
        for (table, start) in tables.iter().zip(starts) {
            words.resize(start, 0);
            words.extend_from_slice(table);
        }
        words.resize(end, 0);
        Self { words, rows: rows.len(), parts }
    }

    /// How many rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// What a device is given.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }
}

/// The output `[rows, heads, head_dim]` of `q`'s rows in its dtype, over pools of keys and values.
///
/// Two launches. Keys and values that are visible to a row are read once for each 8 query heads of a key/value head: `2
/// head_dim w` bytes and, for each query head, `4 head_dim` flops a position. Between the launches `[rows, heads, parts,
/// head_dim]` in f32 is written and read, a part for each 64 to 256 positions.
///
/// # Panics
/// If buffers are not of these shapes or one dtype, or a head has more than 256 elements.
#[must_use]
pub fn attend_pages(
    client: &Client,
    shape: &FlashShape,
    rows: &PagedRows,
    words: &Buffer,
    q: &HeadRows,
    [k, v]: [&Buffer; 2],
    [slopes, sinks]: [Option<&Buffer>; 2],
) -> Buffer {
    let FlashShape { heads, kv_heads, head_dim, .. } = *shape;
    assert!(head_dim <= FLASH_HEAD && k.dtype == q.buffer.dtype, "invariant: heads that the kernel takes");
    let PagedRows { rows: n, parts, .. } = *rows;
    let out = Buffer::empty(client, n * heads * head_dim, q.buffer.dtype);
    if n == 0 {
        return out;
    }
    let held = Buffer::empty(client, n * heads * parts.max(1) * head_dim, FloatType::F32);
    let tops = Buffer::empty(client, n * heads * parts.max(1) * 2, FloatType::F32);
    let group = heads / kv_heads;
    let form = Form {
        head_dim,
        group,
        softcap: shape.softcap.is_some(),
        slopes: slopes.is_some(),
        sinks: sinks.is_some(),
        before: false,
    };
    let each = group.next_power_of_two().min(HEADS);
    let widest = if q.buffer.dtype == FloatType::F32 { 4 } else { 8 };
    let lies = |size: usize| {
        let strides = [q.first, q.token, q.head, head_dim];
        strides.iter().all(|n| n.is_multiple_of(size)) && [&q.buffer, k, v].iter().all(|b| b.is_aligned(size))
    };
    let size = [8, 4, 2].into_iter().find(|&size| size <= widest && lies(size)).unwrap_or(1);
    let elem = q.buffer.dtype.elem();
    let address = address(&[k, &held, &q.buffer]);
    // SAFETY: rows name words that there are, and those pages that there are.
    unsafe {
        if parts > 0 {
            attend::launch_unchecked(
                client,
                CubeCount::Static(parts as u32, (kv_heads * group.div_ceil(each)) as u32, n as u32),
                CubeDim::new_1d(UNITS as u32),
                address,
                size,
                q.arg(size),
                k.arg(size),
                v.arg(size),
                words.arg(1),
                slopes.unwrap_or(words).arg(1),
                held.arg(size),
                tops.arg(1),
                q.rows(size),
                NumbersLaunch::new(n, shape.scale, shape.softcap.unwrap_or(0.0), 0, parts),
                form,
                each,
                elem,
            );
        }
        join::launch_unchecked(
            client,
            crate::row::cubes(client, out.len.div_ceil(UNITS)),
            CubeDim::new_1d(UNITS as u32),
            address,
            held.arg(1),
            tops.arg(1),
            words.arg(1),
            sinks.unwrap_or(words).arg(1),
            out.arg(1),
            n,
            heads,
            parts,
            form,
            elem,
        );
    }
    out
}

/// Positions of a part of a row that ends at `end`: of that alone, so that bits are those of any batch.
#[cube]
fn part_of(end: usize) -> usize {
    let mut pages = 1usize;
    if end > PARTS * PAGE {
        pages *= 2;
    }
    if end > 2 * PARTS * PAGE {
        pages *= 2;
    }
    pages * PAGE
}

/// In how many parts a row is computed.
#[cube]
fn parts_of(low: usize, end: usize) -> usize {
    let mut parts = 0usize;
    if end > low {
        parts = end.div_ceil(part_of(end)) - low / part_of(end);
    }
    parts
}

/// The largest of what a head's units have, or their sum; all get it.
#[cube]
fn of_all(
    value: f32,
    own: usize,
    first: usize,
    over: &mut [f32],
    #[comptime] units: usize,
    #[comptime] largest: bool,
) -> f32 {
    let each = comptime!(units / NEAR);
    let mut found = value;
    over[first + own] = value;
    sync_cube();
    if own < NEAR {
        found = over[first + own * each];
        #[unroll]
        for i in 1..each {
            let one = over[first + own * each + i];
            found = if comptime!(largest) { max(found, one) } else { found + one };
        }
    }
    sync_cube();
    if own < NEAR {
        over[first + own] = found;
    }
    sync_cube();
    found = over[first];
    #[unroll]
    for i in 1..NEAR {
        let one = over[first + i];
        found = if comptime!(largest) { max(found, one) } else { found + one };
    }
    // Nobody writes before all have read.
    sync_cube();
    found
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn attend<E: Float, N: Size>(
    q: &[Vector<E, N>],
    k: &[Vector<E, N>],
    v: &[Vector<E, N>],
    words: &[u32],
    slopes: &[f32],
    held: &mut [Vector<f32, N>],
    tops: &mut [f32],
    of_q: Rows,
    numbers: Numbers,
    #[comptime] form: Form,
    #[comptime] each: usize,
    #[define(E)] _operands: ElemType,
) {
    let size = N::value();
    let width = comptime!(form.head_dim / size);
    let turns = comptime!(form.group.div_ceil(each));
    let row = CUBE_POS_Z as usize;
    let (low, end, table) =
        (words[3 * row] as usize, words[3 * row + 1] as usize, words[3 * row + 2] as usize);
    let part = CUBE_POS_X as usize;
    if part >= parts_of(low, end) {
        terminate!();
    }
    let chunk = part_of(end);
    let first = (low / chunk + part) * chunk;
    let pages = chunk / PAGE;
    let kv_head = CUBE_POS_Y as usize / turns;
    let kv_heads = CUBE_COUNT_Y as usize / turns;
    let of_group = CUBE_POS_Y as usize % turns * each;
    let head = kv_head * form.group + of_group;
    let heads = kv_heads * form.group;
    let unit = UNIT_POS as usize;

    let mut queries = Shared::<[Vector<f32, N>]>::new_slice(comptime!(each * width));
    let mut dots = Shared::<[f32]>::new_slice(comptime!(each * LANES * PAGE));
    let mut scores = Shared::<[f32]>::new_slice(comptime!(each * CHUNK));
    let mut over = Shared::<[f32]>::new_slice(comptime!(UNITS));
    let mut columns = Shared::<[Vector<f32, N>]>::new_slice(comptime!(UNITS));

    for at in range_stepped(unit, comptime!(each * width), UNITS) {
        let of_each = at / width;
        let mut query = Vector::<f32, N>::new(0.0);
        if of_group + of_each < form.group {
            query = Vector::cast_from(
                q[of_q.first + row * of_q.stride + (head + of_each) * of_q.head + at % width],
            );
        }
        queries[at] = query;
    }
    sync_cube();

    // Scores, a page at a time: 8 units share a key, each has a part of its elements.
    let (of_key, lane) = (unit / LANES, unit % LANES);
    let columns_each = comptime!(width.div_ceil(LANES));
    for page in 0..pages {
        let from = first + page * PAGE;
        let mut held_at = 0usize;
        if from < end {
            held_at = words[table + from / PAGE] as usize * PAGE;
        }
        #[unroll]
        for turn in 0..comptime!(PAGE / TOGETHER) {
            let of_page = turn * TOGETHER + of_key;
            let position = from + of_page;
            let mut sums = Array::<Vector<f32, N>>::new(each);
            #[unroll]
            for i in 0..each {
                sums[i] = Vector::new(0.0);
            }
            if position >= low && position < end {
                let at = ((held_at + of_page) * kv_heads + kv_head) * width;
                #[unroll]
                for c in 0..columns_each {
                    let column = c * LANES + lane;
                    if column < width {
                        let key = Vector::<f32, N>::cast_from(k[at + column]);
                        #[unroll]
                        for i in 0..each {
                            sums[i] = fma(key, queries[i * width + column], sums[i]);
                        }
                    }
                }
            }
            #[unroll]
            for i in 0..each {
                let mut sum = 0.0f32;
                #[unroll]
                for c in 0..size {
                    sum += sums[i].extract(c);
                }
                dots[i * comptime!(LANES * PAGE) + of_page * LANES + lane] = sum;
            }
        }
        sync_cube();
        #[unroll]
        for turn in 0..comptime!((each * PAGE).div_ceil(UNITS)) {
            let at = turn * UNITS + unit;
            let (of_each, of_page) = (at / PAGE, at % PAGE);
            if of_each < each {
                let position = from + of_page;
                let mut sum = 0.0f32;
                #[unroll]
                for lane in 0..LANES {
                    sum += dots[of_each * comptime!(LANES * PAGE) + of_page * LANES + lane];
                }
                let mut one = f32::new(HIDDEN);
                if position >= low && position < end && of_group + of_each < form.group {
                    let slope = slope_of(slopes, head + of_each, form);
                    one = score(sum, &numbers, slope, end - 1, position, form);
                }
                scores[of_each * CHUNK + page * PAGE + of_page] = one;
            }
        }
        sync_cube();
    }

    // Shares, of each head apart.
    let units_each = comptime!(UNITS / each);
    let (of_each, own) = (unit / units_each, unit % units_each);
    let mut top = f32::new(HIDDEN);
    for at in range_stepped(own, chunk, units_each) {
        top = max(top, scores[of_each * CHUNK + at]);
    }
    top = of_all(top, own, of_each * units_each, &mut over, units_each, true);
    let mut sum = 0.0f32;
    for at in range_stepped(own, chunk, units_each) {
        let one = scores[of_each * CHUNK + at];
        let share = select(one <= HIDDEN, 0.0, (one - top).exp());
        scores[of_each * CHUNK + at] = share;
        sum += share;
    }
    sum = of_all(sum, own, of_each * units_each, &mut over, units_each, false);
    if own == 0 && of_group + of_each < form.group {
        let at = ((row * heads + head + of_each) * numbers.tiles + part) * 2;
        tops[at] = top;
        tops[at + 1] = sum;
    }

    // Values: a unit has some columns of every so-many-th key of a page.
    let wide = comptime!(width.next_power_of_two());
    let apart = comptime!((UNITS / wide).min(PAGE));
    let at_once = comptime!((PAGE / apart).min(ASKED));
    let (column, from) = (unit % wide, unit / wide);
    let mut sums = Array::<Vector<f32, N>>::new(each);
    #[unroll]
    for i in 0..each {
        sums[i] = Vector::new(0.0);
    }
    if column < width && from < apart {
        for page in 0..pages {
            let begin = first + page * PAGE;
            if begin < end && begin + PAGE > low {
                let held_at = words[table + begin / PAGE] as usize * PAGE;
                for turn in 0..comptime!(PAGE / apart / at_once) {
                    // All are asked for before any is multiplied.
                    let mut values = Array::<Vector<E, N>>::new(at_once);
                    #[unroll]
                    for i in 0..at_once {
                        let of_page = (turn * at_once + i) * apart + from;
                        // Of what is not seen the share is 0, but not what lies there times 0.
                        let seen = begin + of_page >= low && begin + of_page < end;
                        let of_page = select(seen, of_page, min(end - 1 - begin, PAGE - 1));
                        values[i] = v[((held_at + of_page) * kv_heads + kv_head) * width + column];
                    }
                    #[unroll]
                    for i in 0..at_once {
                        let at = page * PAGE + (turn * at_once + i) * apart + from;
                        let value = Vector::<f32, N>::cast_from(values[i]);
                        #[unroll]
                        for of in 0..each {
                            sums[of] = fma(Vector::new(scores[of * CHUNK + at]), value, sums[of]);
                        }
                    }
                }
            }
        }
    }
    #[unroll]
    for i in 0..each {
        sync_cube();
        columns[unit] = sums[i];
        sync_cube();
        if from == 0 && column < width && of_group + i < form.group {
            let mut sum = Vector::<f32, N>::new(0.0);
            for j in 0..apart {
                sum += columns[j * wide + column];
            }
            held[((row * heads + head + i) * numbers.tiles + part) * width + column] = sum;
        }
    }
}

/// One element of the output for each unit: the parts of its row in their order.
#[cube(launch_unchecked, address_type = "dynamic")]
fn join<E: Float>(
    held: &[f32],
    tops: &[f32],
    words: &[u32],
    sinks: &[f32],
    out: &mut [E],
    rows: usize,
    heads: usize,
    parts: usize,
    #[comptime] form: Form,
    #[define(E)] _operands: ElemType,
) {
    let at = ABSOLUTE_POS;
    let head_dim = comptime!(form.head_dim);
    if at >= rows * heads * head_dim {
        terminate!();
    }
    let (of_row, column) = (at / head_dim, at % head_dim);
    let (row, head) = (of_row / heads, of_row % heads);
    let own = parts_of(words[3 * row] as usize, words[3 * row + 1] as usize);
    let mut top = f32::new(HIDDEN);
    if comptime!(form.sinks) {
        top = sinks[head];
    }
    for part in 0..own {
        top = max(top, tops[(of_row * parts + part) * 2]);
    }
    let mut total = 0.0f32;
    if comptime!(form.sinks) {
        total = (sinks[head] - top).exp();
    }
    let mut sum = 0.0f32;
    for part in 0..own {
        let of_part = of_row * parts + part;
        let share = (tops[of_part * 2] - top).exp();
        total += share * tops[of_part * 2 + 1];
        sum += share * held[of_part * head_dim + column];
    }
    out[at] = E::cast_from(select(total == 0.0, 0.0, sum / total));
}

/// Puts rows of keys and of values into their places in the pools: `places` has a position of the pools for each of `rows`, or [`NOWHERE`].
/// Where nobody else holds the pools they are written where they lie.
///
/// One launch: `2 rows kv_heads head_dim w` bytes read and written.
///
/// # Panics
/// If the buffers are not of one dtype.
#[must_use]
pub fn write_pages(
    client: &Client,
    pools: [Buffer; 2],
    new: [&HeadRows; 2],
    places: &Buffer,
    (kv_heads, head_dim): (usize, usize),
) -> [Buffer; 2] {
    let (rows, each) = (places.len, kv_heads * head_dim);
    let pools = pools.map(|pool| if pool.handle.can_mut() { pool } else { copied(client, &pool) });
    let [k, v] = new;
    assert!(pools.iter().all(|p| p.dtype == k.buffer.dtype), "invariant: pools of the rows' dtype");
    if rows > 0 {
        // SAFETY: places are positions of the pools.
        unsafe {
            put::launch_unchecked(
                client,
                crate::row::cubes(client, (rows * each).div_ceil(UNITS)),
                CubeDim::new_1d(UNITS as u32),
                address(&[&pools[0], &k.buffer, &v.buffer]),
                k.arg(1),
                v.arg(1),
                places.arg(1),
                pools[0].arg(1),
                pools[1].arg(1),
                k.rows(1),
                v.rows(1),
                rows,
                kv_heads,
                head_dim,
                k.buffer.dtype.elem(),
            );
        }
    }
    pools
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn put<E: Float>(
    k: &[E],
    v: &[E],
    places: &[u32],
    k_pool: &mut [E],
    v_pool: &mut [E],
    of_k: Rows,
    of_v: Rows,
    rows: usize,
    kv_heads: usize,
    #[comptime] head_dim: usize,
    #[define(E)] _operands: ElemType,
) {
    let at = ABSOLUTE_POS;
    let each = kv_heads * head_dim;
    if at >= rows * each {
        terminate!();
    }
    let (row, of_row) = (at / each, at % each);
    let (head, column) = (of_row / head_dim, of_row % head_dim);
    let place = places[row];
    if place != NOWHERE {
        let to = place as usize * each + of_row;
        k_pool[to] = k[of_k.first + row * of_k.stride + head * of_k.head + column];
        v_pool[to] = v[of_v.first + row * of_v.stride + head * of_v.head + column];
    }
}

/// Copies of pages, pair by pair of `pairs`: from a page of `from` to a page of `to`, `page` elements each. `to` is written
/// where it lies if nobody else holds it.
///
/// One launch: `2 count page w` bytes.
#[must_use]
pub fn copy_pages(
    client: &Client,
    from: &Buffer,
    to: Buffer,
    pairs: &Buffer,
    count: usize,
    page: usize,
) -> Buffer {
    let to = if to.handle.can_mut() { to } else { copied(client, &to) };
    launch_copy(client, from, to.arg(1), pairs, count, page);
    to
}

/// [`copy_pages`] within one pool, from pages that are not written to.
#[must_use]
pub fn duplicate_pages(client: &Client, pool: Buffer, pairs: &Buffer, count: usize, page: usize) -> Buffer {
    if !pool.handle.can_mut() {
        return copy_pages(client, &pool, copied(client, &pool), pairs, count, page);
    }
    launch_copy(client, &pool, BufferArg::alias(0, pool.len), pairs, count, page);
    pool
}

fn launch_copy(client: &Client, from: &Buffer, to: BufferArg, pairs: &Buffer, count: usize, page: usize) {
    if count == 0 {
        return;
    }
    // SAFETY: pairs name pages that there are.
    unsafe {
        copy::launch_unchecked(
            client,
            crate::row::cubes(client, (count * page).div_ceil(UNITS)),
            CubeDim::new_1d(UNITS as u32),
            AddressType::from_len(from.len.max(to.size())),
            from.arg(1),
            pairs.arg(1),
            to,
            count,
            page,
            from.dtype.elem(),
        );
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn copy<E: Float>(
    from: &[E],
    pairs: &[u32],
    to: &mut [E],
    count: usize,
    page: usize,
    #[define(E)] _elements: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at >= count * page {
        terminate!();
    }
    let (pair, of_page) = (at / page, at % page);
    to[pairs[2 * pair + 1] as usize * page + of_page] = from[pairs[2 * pair] as usize * page + of_page];
}

/// Memory of its own with the same elements.
fn copied(client: &Client, from: &Buffer) -> Buffer {
    let to = Buffer::empty(client, from.len, from.dtype);
    let pairs = client.create_from_slice(u32::as_bytes(&[0, 0]));
    let pairs = Buffer { handle: pairs, len: 2, dtype: FloatType::F32 };
    copy_pages(client, from, to, &pairs, 1, from.len)
}
