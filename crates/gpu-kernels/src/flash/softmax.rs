//! Softmax of a unit's rows over tiles of keys, one after another, as the registers of tensor cores' products hold them.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::cores::{Pair, STRIP, Tiles, power_of_two};
use super::score::{Form, HIDDEN, LOG2_E, Numbers, Sight, score_in_units, sees, unit};
use super::seen::{self, Seen};

/// How many powers of two a score may be larger than what shares are held against.
const LEEWAY: f32 = 8.0;

/// Of each of a unit's rows.
#[derive(CubeType)]
pub(super) struct Softmax {
    /// The largest score so far.
    tops: Array<f32>,
    /// The sum of the shares that this unit has seen.
    totals: Array<f32>,
    /// By what sums of earlier tiles are multiplied.
    pub(super) less: Array<f32>,
}

/// Of a head's rows, of which no key has been seen; `t` is the unit's number among those that have a row.
#[cube]
pub(super) fn begin(
    sinks: &[f32],
    numbers: &Numbers,
    head: usize,
    t: usize,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
) -> Softmax {
    let mut tops = Array::<f32>::new(comptime!(tiles.strips * 2));
    let mut totals = Array::<f32>::new(comptime!(tiles.strips * 2));
    let mut less = Array::<f32>::new(comptime!(tiles.strips * 2));
    #[unroll]
    for i in 0..comptime!(tiles.strips * 2) {
        tops[i] = f32::new(HIDDEN);
        totals[i] = 0.0;
        less[i] = 1.0;
        if comptime!(form.sinks) {
            tops[i] = sinks[head] / unit(numbers, form);
            if t == 0 {
                totals[i] = 1.0;
            }
        }
    }
    Softmax { tops, totals, less }
}

/// Makes products with the keys from `key` scores, which are hidden where a row does not see the key.
#[cube]
pub(super) fn make_scores(
    scores: &mut Array<Pair<f32>>,
    sights: &Sequence<Sight>,
    seen: &Seen,
    numbers: &Numbers,
    slope: f32,
    row: usize,
    t: usize,
    key: usize,
    end: usize,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
) {
    let whole = seen::all_of(seen, key, end, comptime!(tiles.other_rows()));
    if !whole || comptime!(!form.scaled()) {
        #[unroll]
        for of_row in 0..comptime!(tiles.strips * 2) {
            let (strip, half) = comptime!((of_row / 2, of_row % 2));
            let query = row + comptime!(strip * STRIP + half * 8);
            #[unroll]
            for i in 0..comptime!(tiles.others * 2) {
                let at = comptime!((strip * tiles.others * 2 + i) * 2 + half);
                let mut pair = scores[at];
                #[unroll]
                for c in 0..2usize {
                    let key = key + comptime!(i * 8 + c) + t * 2;
                    let one = score_in_units(pair.extract(c), numbers, slope, query, key, form);
                    let there = key < end && sees(sights.index(of_row), query, key, form);
                    pair.insert(c, select(there, one, f32::new(HIDDEN)));
                }
                scores[at] = pair;
            }
        }
    }
}

/// Makes scores shares, held against the largest score so far; with `leeway` against an earlier one while that is little smaller,
/// so that sums stay as they are.
#[cube]
pub(super) fn make_shares(
    softmax: &mut Softmax,
    scores: &mut Array<Pair<f32>>,
    numbers: &Numbers,
    #[comptime] leeway: bool,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
) {
    let by = unit(numbers, form) * LOG2_E;
    #[unroll]
    for of_row in 0..comptime!(tiles.strips * 2) {
        let (strip, half) = comptime!((of_row / 2, of_row % 2));
        let mut top = softmax.tops[of_row];
        #[unroll]
        for i in 0..comptime!(tiles.others * 2) {
            let pair = scores[comptime!((strip * tiles.others * 2 + i) * 2 + half)];
            top = max(top, max(pair.extract(0usize), pair.extract(1usize)));
        }
        top = max(top, plane_shuffle_xor(top, 1u32));
        top = max(top, plane_shuffle_xor(top, 2u32));
        if comptime!(leeway) {
            top = select(top > softmax.tops[of_row] + LEEWAY / by, top, softmax.tops[of_row]);
        }
        // Where everything is hidden so far, shares are zeros whatever they are held against.
        let less_top = select(top <= HIDDEN, 0.0, top * -by);
        let less = power_of_two(fma(softmax.tops[of_row], by, less_top));
        let less = select(top == softmax.tops[of_row], 1.0, less);
        softmax.tops[of_row] = top;
        softmax.less[of_row] = less;
        let mut total = softmax.totals[of_row] * less;
        #[unroll]
        for i in 0..comptime!(tiles.others * 2) {
            let at = comptime!((strip * tiles.others * 2 + i) * 2 + half);
            let mut pair = scores[at];
            #[unroll]
            for c in 0..2usize {
                let share = power_of_two(fma(pair.extract(c), by, less_top));
                pair.insert(c, share);
                total += share;
            }
            scores[at] = pair;
        }
        softmax.totals[of_row] = total;
    }
}

/// Ends the softmax of a row: the logarithm of its sum of exponentials, and by what its shares are multiplied.
#[cube]
pub(super) fn end(
    softmax: &Softmax,
    numbers: &Numbers,
    #[comptime] of_row: usize,
    #[comptime] form: Form,
) -> (f32, f32) {
    let mut total = softmax.totals[of_row];
    total += plane_shuffle_xor(total, 1u32);
    total += plane_shuffle_xor(total, 2u32);
    let share = select(total == 0.0, 0.0, 1.0 / total);
    (softmax.tops[of_row] * unit(numbers, form) + total.ln(), share)
}
