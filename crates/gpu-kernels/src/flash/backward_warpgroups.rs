//! Pieces of attention's gradients by `wgmma`, for both passes: scores of 64 rows and a tile of others, with them the products of
//! the operands beside those (values and the output's gradient), and sums over the others; barriers and turns.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::cores::{Tiles, rounded};
use crate::buffer::FloatType;
use crate::mma::{PLANE, Pair, STRIP, pair};
use crate::tma::{BARRIER, arrive, init, pass, publish};
use crate::wgmma::{
    Name, PLANES, Tile, add_lefts, begin, begin_lefts, commit, name_sums, put_left, put_product, sum, told,
};

/// Registers of a tile's scores, and of the products beside them.
pub(super) const SCORES: Name = "scores";
pub(super) const PRODUCTS: Name = "products";
/// Of the scores' gradients as left factors, where they do not take those of the products.
const CHANGES: Name = "changes";

/// How a kernel is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Layout {
    pub(crate) tiles: Tiles,
    /// Tiles of others in shared memory.
    pub(crate) stages: usize,
    /// Whether a tile's products are begun behind the sums of the one before, and not when these are there.
    pub(crate) ahead: bool,
}

impl Layout {
    /// Units of a cube: those that multiply, and a warpgroup of which one plane asks for tiles.
    pub(super) fn units(self) -> usize {
        self.tiles.units() + PLANES * PLANE
    }

    /// How many tiles a warpgroup can leave out that has not yet given its stage free.
    pub(super) fn left_out(self) -> usize {
        if self.ahead { self.stages - 2 } else { usize::MAX }
    }

    /// The registers of the scores' gradients as left factors: where scores are begun ahead, there is no room but in those that
    /// become free in the same sixteen columns.
    pub(super) fn changes(self) -> Name {
        if self.ahead { PRODUCTS } else { CHANGES }
    }

    pub(super) fn warpgroups(self) -> usize {
        self.tiles.planes / PLANES
    }

    /// Barriers: that a stage is there, and free, that own rows are there, and of each warpgroup that it is its turn.
    pub(super) fn barriers(self) -> usize {
        2 * self.stages + 1 + self.warpgroups()
    }

    /// Bytes of shared memory of a cube that has so many words for each stage.
    pub(super) fn bytes(self, head_dim: usize, words: usize) -> usize {
        let rows = self.tiles.rows() + self.stages * self.tiles.other_rows();
        2 * rows * head_dim * 2 + self.stages * words * 4 + self.barriers() * BARRIER
    }
}

/// Where the barriers of a cube are in shared memory.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Barriers {
    pub(super) there: u32,
    pub(super) free: u32,
    pub(super) own: u32,
    turns: u32,
}

/// Begins the barriers' first phases.
#[cube]
pub(super) fn begin_barriers(at: u32, #[comptime] layout: Layout) -> Barriers {
    let (stages, planes) = comptime!((layout.stages, layout.tiles.planes));
    let free = at + comptime!((stages * BARRIER) as u32);
    let own = free + comptime!((stages * BARRIER) as u32);
    let turns = own + comptime!(BARRIER as u32);
    if UNIT_POS == 0 {
        #[unroll]
        for stage in 0..stages {
            init(at + comptime!((stage * BARRIER) as u32), 1usize);
            init(free + comptime!((stage * BARRIER) as u32), planes);
        }
        init(own, 1usize);
        #[unroll]
        for warpgroup in 0..comptime!(layout.warpgroups()) {
            init(turns + comptime!((warpgroup * BARRIER) as u32), PLANES);
        }
        publish();
    }
    sync_cube();
    Barriers { there: at, free, own, turns }
}

/// Waits until it is this warpgroup's turn.
#[cube]
pub(super) fn await_turn(cursor: &mut Cursor, barriers: &Barriers, warpgroup: usize) {
    // The first one's is the first turn.
    let before = select(warpgroup == 0, 1u32, 0u32);
    pass(barriers.turns + (warpgroup * BARRIER) as u32, (cursor.turns + before) % 2);
}

/// Gives the turn to the next warpgroup.
#[cube]
pub(super) fn give_turn(
    cursor: &mut Cursor,
    barriers: &Barriers,
    warpgroup: usize,
    #[comptime] layout: Layout,
) {
    let last = warpgroup == comptime!(layout.warpgroups() - 1);
    let next = select(last, 0usize, warpgroup + 1);
    let lane = UNIT_POS as usize % PLANE;
    arrive(barriers.turns + (next * BARRIER) as u32, select(lane == 0, 1u32, 0u32));
    cursor.turns += 1;
}

/// These registers. A kernel begins with them.
#[cube]
pub(super) fn begin_tile(#[comptime] layout: Layout) {
    let others = comptime!(layout.tiles.other_rows());
    name_sums(SCORES, comptime!(others / 2));
    if comptime!(layout.ahead) {
        // Sums can be in registers of factors, factors not in those of numbers.
        begin_lefts(PRODUCTS, comptime!(others / 2));
    } else {
        name_sums(PRODUCTS, comptime!(others / 2));
        begin_lefts(CHANGES, comptime!(others / 4));
    }
}

/// A pair of sums, while no product is under way.
#[cube]
pub(super) fn taken(#[comptime] name: Name, #[comptime] at: usize) -> Pair<f32> {
    pair::<f32>(sum(name, comptime!(2 * at)), sum(name, comptime!(2 * at + 1)))
}

/// Begins products of a tile, a group: of operands of 64 rows, from `own`, and of the others, from `other`, in units of 16 bytes;
/// of scores, which is the first operand of each, or of the second, which is behind it.
#[cube]
pub(super) fn multiply(
    own: u32,
    other: u32,
    #[comptime] name: Name,
    #[comptime] of_own: Tile,
    #[comptime] of_other: Tile,
    #[comptime] dtype: FloatType,
) {
    let operand = comptime!(usize::from(name != SCORES));
    let lefts = own + comptime!(of_own.described());
    let rights = other + comptime!(of_other.described());
    begin();
    #[unroll]
    for step in 0..comptime!(of_own.depth / STRIP) {
        put_product(
            told(lefts, comptime!(operand * of_own.eights() + of_own.step(step))),
            told(rights, comptime!(operand * of_other.eights() + of_other.step(step))),
            name,
            0usize,
            comptime!(of_other.across),
            comptime!(step > 0),
            [true, true],
            dtype,
        );
    }
    commit();
}

/// Where a warpgroup is among the tiles that are brought.
#[derive(CubeType)]
pub(super) struct Cursor {
    pub(super) stage: usize,
    /// How many times all stages were passed.
    round: u32,
    /// How many turns it had.
    turns: u32,
}

#[cube]
pub(super) fn begin_cursor() -> Cursor {
    let mut cursor = Cursor { stage: 0usize, round: 0u32, turns: 0u32 };
    cursor.stage = 0usize.runtime();
    cursor.round = 0u32.runtime();
    cursor.turns = 0u32.runtime();
    cursor
}

/// Waits until the tile is there.
#[cube]
pub(super) fn await_tile(cursor: &mut Cursor, barriers: &Barriers) {
    pass(barriers.there + (cursor.stage * BARRIER) as u32, cursor.round % 2);
}

/// To the next tile.
#[cube]
pub(super) fn advance(cursor: &mut Cursor, #[comptime] layout: Layout) {
    cursor.stage += 1;
    if cursor.stage == layout.stages {
        cursor.stage = 0usize;
        cursor.round += 1;
    }
}

/// Says that this plane is done with a stage.
#[cube]
pub(super) fn release(stage: usize, barriers: &Barriers) {
    sync_plane();
    let lane = UNIT_POS as usize % PLANE;
    arrive(barriers.free + (stage * BARRIER) as u32, select(lane == 0, 1u32, 0u32));
}

/// Registers from one step's left factors to the next one's.
fn apart(lefts: Name) -> usize {
    if lefts == PRODUCTS { 8 } else { 4 }
}

/// Puts the pair number `at` of a tile where left factors are.
#[cube]
pub(super) fn put_pair<E: Float>(#[comptime] lefts: Name, #[comptime] at: usize, factors: Pair<f32>) {
    put_left::<E>(lefts, comptime!(at / 4 * apart(lefts) + at % 4), rounded::<E>(factors));
}

/// Begins to add the products of left factors of a tile, over the others, and these, from `other`.
#[cube]
pub(super) fn add_by_lefts(
    #[comptime] lefts: Name,
    other: u32,
    #[comptime] sums: Name,
    #[comptime] of_other: Tile,
    #[comptime] dtype: FloatType,
) {
    let across = comptime!(Tile { along: false, across: of_other.depth, depth: of_other.across });
    let rights = other + comptime!(across.described());
    #[unroll]
    for step in 0..comptime!(across.depth / STRIP) {
        add_lefts(
            lefts,
            comptime!(step * apart(lefts)),
            told(rights, across.step(step)),
            sums,
            0usize,
            comptime!(across.across),
            false,
            dtype,
        );
    }
}
