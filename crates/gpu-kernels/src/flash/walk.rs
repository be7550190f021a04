//! The tiles of others that a tile of rows is held against, one after another.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::plan::TILE_WORDS;
use super::score::Numbers;

/// Where a walk is: `row` of the range from `first` to `end`, for the `turn`th time; of the ranges from `range` to `last`.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Walk {
    range: usize,
    last: usize,
    first: usize,
    pub(super) end: usize,
    pub(super) row: usize,
    pub(super) turn: usize,
}

/// Where the plan has the tile `number`: those with most before them come first.
#[cube]
fn place(numbers: &Numbers, number: usize) -> usize {
    numbers.ranges - (numbers.tiles - number) * TILE_WORDS
}

/// The tile `number`.
#[cube]
pub(super) fn tile_of(plan: &[u32], numbers: &Numbers, number: usize) -> usize {
    plan[place(numbers, number)] as usize
}

/// The tile of this cube.
#[cube]
pub(super) fn tile(plan: &[u32], numbers: &Numbers) -> usize {
    tile_of(plan, numbers, CUBE_POS_Y as usize)
}

/// Nowhere.
#[cube]
pub(super) fn none() -> Walk {
    Walk { range: 0usize, last: 0usize, first: 0usize, end: 0usize, row: 0usize, turn: 0usize }
}

/// Where another is.
#[cube]
pub(super) fn follow(walk: &mut Walk, other: &Walk) {
    walk.range = other.range;
    walk.last = other.last;
    walk.first = other.first;
    walk.end = other.end;
    walk.row = other.row;
    walk.turn = other.turn;
}

/// To the first of what the tile `number` is held against.
#[cube]
pub(super) fn go_to(walk: &mut Walk, plan: &[u32], numbers: &Numbers, number: usize) {
    let at = place(numbers, number);
    walk.range = plan[at + 1] as usize;
    walk.last = plan[at + 2] as usize;
    walk.first = plan[at + 3] as usize;
    walk.end = plan[at + 4] as usize;
    walk.row = walk.first;
    walk.turn = 0usize;
}

#[cube]
pub(super) fn begin(plan: &[u32], numbers: &Numbers, tile: usize) -> Walk {
    let range = plan[numbers.ranges + tile] as usize;
    let last = plan[numbers.ranges + tile + 1] as usize;
    let mut first = 0usize;
    let mut end = 0usize;
    if range < last {
        let pair = numbers.ranges + numbers.tiles + 1 + 2 * range;
        first = plan[pair] as usize;
        end = plan[pair + 1] as usize;
    }
    let mut walk =
        Walk { range: 0usize, last: 0usize, first: 0usize, end: 0usize, row: 0usize, turn: 0usize };
    walk.range = range;
    walk.last = last;
    walk.first = first;
    walk.end = end;
    walk.row = first;
    walk
}

/// Whether there is a tile.
#[cube]
pub(super) fn goes_on(walk: &Walk) -> bool {
    walk.range < walk.last
}

/// To the next tile: `step` rows further, the same range again for each of `turns`, then the next range.
#[cube]
pub(super) fn step(
    walk: &mut Walk,
    plan: &[u32],
    numbers: &Numbers,
    #[comptime] step: usize,
    #[comptime] turns: usize,
) {
    walk.row += step;
    if walk.row >= walk.end {
        walk.turn += 1;
        if walk.turn == turns {
            walk.turn = 0usize;
            walk.range += 1;
            if walk.range < walk.last {
                let pair = numbers.ranges + numbers.tiles + 1 + 2 * walk.range;
                walk.first = plan[pair] as usize;
                walk.end = plan[pair + 1] as usize;
            }
        }
        walk.row = walk.first;
    }
}
