//! Sight of a plane: what tiles of keys all of its rows see, or none; the same for all of its units.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::cores::{PLANE, STRIP, Tiles};
use super::score::{Form, Sight, sight};

/// Queries from `first` to `last`, and the least and the largest of the first keys that they see.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Seen {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) least: usize,
    pub(super) most: usize,
}

/// What each of a unit's rows sees, `row` and those below.
#[cube]
pub(super) fn own_sights(
    plan: &[u32],
    tokens: usize,
    row: usize,
    #[comptime] form: Form,
    #[comptime] tiles: Tiles,
) -> Sequence<Sight> {
    let mut sights = Sequence::<Sight>::new();
    #[unroll]
    for of_row in 0..comptime!(tiles.strips * 2) {
        sights.push(sight(plan, tokens, row + comptime!(of_row / 2 * STRIP + of_row % 2 * 8), form));
    }
    sights
}

/// Of a plane's rows from `first`.
#[cube]
pub(super) fn by_own(
    sights: &Sequence<Sight>,
    first: usize,
    tokens: usize,
    row: usize,
    #[comptime] tiles: Tiles,
) -> Seen {
    let mut least = u32::MAX.runtime();
    let mut most = 0u32;
    #[unroll]
    for of_row in 0..comptime!(tiles.strips * 2) {
        if row + comptime!(of_row / 2 * STRIP + of_row % 2 * 8) < tokens {
            let low = sights.index(of_row).low as u32;
            least = min(least, low);
            most = max(most, low);
        }
    }
    #[unroll]
    for i in 2..5u32 {
        least = min(least, plane_shuffle_xor(least, comptime!(1u32 << i)));
        most = max(most, plane_shuffle_xor(most, comptime!(1u32 << i)));
    }
    let last = first + comptime!(tiles.strips * STRIP - 1);
    Seen { first, last, least: least as usize, most: most as usize }
}

/// Of a tile of queries from `first`, the first keys of which `lows` has from `at` on; zeros where there is no query.
#[cube]
pub(super) fn by_others(lows: &[u32], at: usize, first: usize, #[comptime] tiles: Tiles) -> Seen {
    let lane = UNIT_POS as usize % PLANE;
    let rows = comptime!(tiles.other_rows());
    let turns = comptime!(rows.div_ceil(PLANE));
    let mut of_unit = Array::<u32>::new(turns);
    #[unroll]
    for turn in 0..turns {
        of_unit[turn] = lows[at + comptime!(turn * PLANE) + lane % comptime!(rows.min(PLANE))];
    }
    by_lows(&of_unit, first, rows)
}

/// Of so many queries from `first`, the first keys of which the units of a plane have.
#[cube]
pub(super) fn by_lows(lows: &Array<u32>, first: usize, #[comptime] rows: usize) -> Seen {
    let mut least = u32::MAX.runtime();
    let mut most = 0u32;
    #[unroll]
    for turn in 0..comptime!(rows.div_ceil(PLANE)) {
        least = min(least, lows[turn]);
        most = max(most, lows[turn]);
    }
    #[unroll]
    for i in 0..5u32 {
        least = min(least, plane_shuffle_xor(least, comptime!(1u32 << i)));
        most = max(most, plane_shuffle_xor(most, comptime!(1u32 << i)));
    }
    Seen { first, last: first + comptime!(rows - 1), least: least as usize, most: most as usize }
}

/// Whether some row may see some of the keys from `key`.
#[cube]
pub(super) fn any_of(seen: &Seen, key: usize, #[comptime] keys: usize, #[comptime] form: Form) -> bool {
    let mut any = key <= seen.last;
    if comptime!(!form.before) {
        any = any && key + keys > seen.least;
    }
    any
}

/// Whether every row sees all of the keys from `key`, none of which is past `end`.
#[cube]
pub(super) fn all_of(seen: &Seen, key: usize, end: usize, #[comptime] keys: usize) -> bool {
    key + keys <= end && key + comptime!(keys - 1) <= seen.first && key >= seen.most
}
