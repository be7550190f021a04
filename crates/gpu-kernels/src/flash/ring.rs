//! Tiles of queries, keys and values in shared memory that two warpgroups share: asked for ahead, each in the place of one that
//! both are done with, by a unit of the second one. A cube takes tiles of queries one after another.

use cubecl_core as cubecl;
use cubecl_core::prelude::barrier::Barrier;
use cubecl_core::prelude::*;

use super::cores::{Eight, PLANE, Tiles};
use super::score::{Form, Numbers};
use super::walk::{self, Walk};
use crate::tma::{BARRIER, announce, arrive, bring, init, pass, publish};
use crate::wgmma::{PLANES, Tile};

/// Warpgroups of a cube.
pub(super) const WARPGROUPS: usize = 2;

/// The tiles of a cube.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ring {
    pub(crate) tiles: Tiles,
    /// Tiles of queries in shared memory.
    pub(crate) queries: usize,
    /// Tiles of keys there; of values there is one more.
    pub(crate) keys: usize,
}

impl Ring {
    /// Where there is one for heads of so many elements.
    pub(super) fn new(head_dim: usize) -> Option<Self> {
        let (others, queries) = match head_dim {
            64 | 128 => (8, 1),
            256 => (4, 1),
            _ => return None,
        };
        let tiles = Tiles { planes: WARPGROUPS * PLANES, strips: 1, others, kept: false };
        Some(Self { tiles, queries, keys: 2 })
    }

    /// For a form: where scores take more registers than products alone, tiles of keys are smaller.
    pub(super) fn of(self, form: Form) -> Self {
        let others =
            if form.scaled() && !form.before { self.tiles.others } else { self.tiles.others * 3 / 4 };
        Self { tiles: Tiles { others, ..self.tiles }, ..self }
    }

    /// How many tiles of a kind are in shared memory.
    fn stages(self, of: Operand) -> usize {
        match of {
            Operand::Queries => self.queries,
            Operand::Keys => self.keys,
            Operand::Values => self.keys + 1,
        }
    }

    /// Tiles of all kinds before those of this one.
    fn stages_before(self, of: Operand) -> usize {
        [Operand::Queries, Operand::Keys, Operand::Values]
            .into_iter()
            .take_while(|&o| o != of)
            .map(|o| self.stages(o))
            .sum()
    }

    /// Of which tile values are asked for when a tile's products are under way, as many further: all places but that of the tile
    /// before are taken.
    pub(super) fn values_ahead(self) -> usize {
        self.keys - 1
    }

    fn all_stages(self) -> usize {
        self.stages_before(Operand::Values) + self.stages(Operand::Values)
    }

    /// A tile as products take it: queries as left factors of scores, keys as the right ones; values as right factors of shares.
    pub(super) fn tile(self, of: Operand, head_dim: usize) -> Tile {
        match of {
            Operand::Queries => Tile { along: true, across: self.tiles.rows(), depth: head_dim },
            Operand::Keys => Tile { along: true, across: self.tiles.other_rows(), depth: head_dim },
            Operand::Values => Tile { along: false, across: head_dim, depth: self.tiles.other_rows() },
        }
    }

    /// Where tiles of a kind begin in shared memory.
    fn first(self, of: Operand, head_dim: usize) -> usize {
        let [queries, keys] =
            [Operand::Queries, Operand::Keys].map(|o| self.stages(o) * self.tile(o, head_dim).eights());
        match of {
            Operand::Queries => 0,
            Operand::Keys => queries,
            Operand::Values => queries + keys,
        }
    }

    pub(super) fn eights(self, head_dim: usize) -> usize {
        self.first(Operand::Values, head_dim)
            + self.stages(Operand::Values) * self.tile(Operand::Values, head_dim).eights()
    }

    /// Barriers: of each tile that it is there, then that its place is free, then of each warpgroup that it is its turn.
    pub(super) fn barriers(self) -> usize {
        2 * self.all_stages() + WARPGROUPS
    }

    /// Arrivals at a barrier.
    fn arrivals(self, barrier: usize) -> usize {
        match barrier {
            i if i < self.all_stages() => 1,
            i if i < 2 * self.all_stages() => WARPGROUPS * PLANES,
            _ => PLANES,
        }
    }

    /// Shared memory of a cube.
    pub(super) fn bytes(self, head_dim: usize) -> usize {
        self.eights(head_dim) * 16 + self.barriers() * BARRIER
    }
}

/// What tiles are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operand {
    Queries,
    Keys,
    Values,
}

/// The number among all tiles of queries, of each tile of the plan for every head, of this cube's tile number `turn`: those with
/// most keys come first, so cubes take them from the first cube to the last and from the last to the first by turns.
#[cube]
pub(super) fn item(turn: usize) -> usize {
    let (cube, cubes) = (CUBE_POS_X as usize, CUBE_COUNT_X as usize);
    select(turn % 2 == 1, (turn + 1) * cubes - 1 - cube, turn * cubes + cube)
}

/// What is asked for next: keys and values of a tile of queries.
#[derive(CubeType)]
pub(super) struct Asked {
    turn: usize,
    item: usize,
    /// Their head.
    kv: usize,
    walk: Walk,
}

/// A cube, and this unit's place in it.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Cube {
    /// The address of its barriers.
    barriers: u32,
    pub(super) heads: usize,
    /// Tiles of queries of all heads.
    pub(super) items: usize,
    pub(super) plane: usize,
    pub(super) warpgroup: usize,
    /// 1 in the first unit of a plane.
    first: u32,
    /// In the unit that asks for tiles: of the warpgroup whose turns are later, so that it seldom waits for the other.
    asks: bool,
}

/// Begins the cube's barriers.
#[cube]
pub(super) fn begin(barriers: u32, heads: usize, numbers: &Numbers, #[comptime] ring: Ring) -> Cube {
    if UNIT_POS == 0 {
        #[unroll]
        for i in 0..comptime!(ring.barriers()) {
            init(barriers + comptime!((i * BARRIER) as u32), comptime!(ring.arrivals(i)));
        }
        publish();
    }
    sync_cube();
    let plane = plane_broadcast(UNIT_POS / PLANE as u32, 0u32) as usize;
    let lane = UNIT_POS % PLANE as u32;
    Cube {
        barriers,
        heads,
        items: numbers.tiles * heads,
        plane,
        warpgroup: plane / PLANES,
        first: select(lane == 0, 1u32, 0u32),
        asks: UNIT_POS == comptime!(((WARPGROUPS - 1) * PLANES * PLANE) as u32),
    }
}

/// Asks for the first tiles.
#[cube]
pub(super) fn ask_first<E: Float>(
    cube: &Cube,
    q: &TensorMap<E, Tiled>,
    k: &TensorMap<E, Tiled>,
    v: &TensorMap<E, Tiled>,
    barriers: &[Barrier],
    held: &mut [Eight<E>],
    plan: &[u32],
    numbers: &Numbers,
    #[comptime] form: Form,
    #[comptime] ring: Ring,
) -> Asked {
    let mut asked = Asked { turn: 0usize, item: 0usize, kv: 0usize, walk: walk::none() };
    #[unroll]
    for turn in 0..comptime!(ring.queries) {
        ask_queries::<E>(cube, q, barriers, held, plan, numbers, turn, form.head_dim, ring);
    }
    if cube.asks {
        ask_next(cube, &mut asked, plan, numbers, form, ring);
    }
    ask_keys::<E>(cube, k, barriers, held, &asked, 0usize, 0usize, form.head_dim, ring);
    #[unroll]
    for number in 1..comptime!(ring.keys) {
        // The last one's values are asked for while the first products are under way.
        ask_values::<E>(
            cube,
            v,
            barriers,
            held,
            plan,
            numbers,
            &mut asked,
            comptime!(number - 1),
            0usize,
            form,
            ring,
        );
        ask_keys::<E>(cube, k, barriers, held, &asked, number, 0usize, form.head_dim, ring);
    }
    asked
}

/// The address of the barrier that says of the tile `number` of a kind that it is there, or that its place is `free`.
#[cube]
fn barrier(
    cube: &Cube,
    number: usize,
    #[comptime] of: Operand,
    #[comptime] free: bool,
    #[comptime] ring: Ring,
) -> u32 {
    let before = comptime!(ring.stages_before(of) + if free { ring.all_stages() } else { 0 });
    cube.barriers + ((before + number % ring.stages(of)) * BARRIER) as u32
}

/// Waits until a tile is there.
#[cube]
pub(super) fn wait_for(cube: &Cube, number: usize, #[comptime] of: Operand, #[comptime] ring: Ring) {
    pass(barrier(cube, number, of, false, ring), (number / ring.stages(of)) as u32 % 2);
}

/// Is done with a tile.
#[cube]
pub(super) fn release(cube: &Cube, number: usize, #[comptime] of: Operand, #[comptime] ring: Ring) {
    arrive(barrier(cube, number, of, true, ring), cube.first);
}

/// Asks for a tile, once its place is free: rows of a head from `row`.
#[cube]
fn ask<E: Float>(
    cube: &Cube,
    from: &TensorMap<E, Tiled>,
    barriers: &[Barrier],
    held: &mut [Eight<E>],
    head: usize,
    row: usize,
    number: usize,
    #[comptime] of: Operand,
    #[comptime] head_dim: usize,
    #[comptime] ring: Ring,
) {
    let tile = comptime!(ring.tile(of, head_dim));
    // It is free from the first.
    pass(barrier(cube, number, of, true, ring), (number / ring.stages(of) + 1) as u32 % 2);
    announce(barrier(cube, number, of, false, ring), comptime!(tile.eights() * 16));
    let stage = number % ring.stages(of);
    let barrier = &barriers[comptime!(ring.stages_before(of)) + stage];
    let at = comptime!(ring.first(of, head_dim)) + stage * comptime!(tile.eights());
    if comptime!(tile.along) {
        bring::<E>(from, barrier, held, at, head, row, 0usize, tile);
    } else {
        bring::<E>(from, barrier, held, at, head, 0usize, row, tile);
    }
}

/// Asks for the cube's tile of queries number `turn`, if there is one, in the unit that asks.
#[cube]
pub(super) fn ask_queries<E: Float>(
    cube: &Cube,
    q: &TensorMap<E, Tiled>,
    barriers: &[Barrier],
    held: &mut [Eight<E>],
    plan: &[u32],
    numbers: &Numbers,
    turn: usize,
    #[comptime] head_dim: usize,
    #[comptime] ring: Ring,
) {
    let item = item(turn);
    if cube.asks && item < cube.items {
        let row = walk::tile_of(plan, numbers, item / cube.heads) * comptime!(ring.tiles.rows());
        ask::<E>(cube, q, barriers, held, item % cube.heads, row, turn, Operand::Queries, head_dim, ring);
    }
}

/// Goes to the tile after what was asked for.
#[cube]
fn ask_next(
    cube: &Cube,
    asked: &mut Asked,
    plan: &[u32],
    numbers: &Numbers,
    #[comptime] form: Form,
    #[comptime] ring: Ring,
) {
    if walk::goes_on(&asked.walk) {
        walk::step(&mut asked.walk, plan, numbers, comptime!(ring.tiles.other_rows()), 1usize);
    }
    // Tiles of queries may have no keys.
    while !walk::goes_on(&asked.walk) && asked.item < cube.items {
        asked.item = item(asked.turn);
        asked.turn += 1;
        if asked.item < cube.items {
            asked.kv = asked.item % cube.heads / form.group;
            walk::go_to(&mut asked.walk, plan, numbers, asked.item / cube.heads);
        }
    }
}

/// What products are told of the tile `number`.
#[cube]
pub(super) fn described(
    place: u32,
    number: usize,
    #[comptime] of: Operand,
    #[comptime] head_dim: usize,
    #[comptime] ring: Ring,
) -> u32 {
    let tile = comptime!(ring.tile(of, head_dim));
    let first = comptime!(ring.first(of, head_dim) as u32 + tile.described());
    place + first + (number % ring.stages(of) * comptime!(tile.eights())) as u32
}

/// Waits for a warpgroup's turn to begin products of the tile `number`.
#[cube]
pub(super) fn wait_turn(cube: &Cube, number: usize, #[comptime] ring: Ring) {
    let own = comptime!(2 * ring.all_stages()) + cube.warpgroup;
    // The first warpgroup's first turn is from the first.
    pass(cube.barriers + (own * BARRIER) as u32, (number + 1 - cube.warpgroup) as u32 % 2);
}

/// Gives the turn to the other warpgroup.
#[cube]
pub(super) fn give_turn(cube: &Cube, #[comptime] ring: Ring) {
    let other = comptime!(2 * ring.all_stages() + 1) - cube.warpgroup;
    arrive(cube.barriers + (other * BARRIER) as u32, cube.first);
}

/// Asks for the keys `ahead` of the tile `number`, if there are such, in the unit that asks.
#[cube]
pub(super) fn ask_keys<E: Float>(
    cube: &Cube,
    k: &TensorMap<E, Tiled>,
    barriers: &[Barrier],
    held: &mut [Eight<E>],
    asked: &Asked,
    number: usize,
    #[comptime] ahead: usize,
    #[comptime] head_dim: usize,
    #[comptime] ring: Ring,
) {
    if cube.asks && walk::goes_on(&asked.walk) {
        let row = asked.walk.row;
        ask::<E>(cube, k, barriers, held, asked.kv, row, number + ahead, Operand::Keys, head_dim, ring);
    }
}

/// Asks for the values of the keys that were asked for last, and goes to the next.
#[cube]
pub(super) fn ask_values<E: Float>(
    cube: &Cube,
    v: &TensorMap<E, Tiled>,
    barriers: &[Barrier],
    held: &mut [Eight<E>],
    plan: &[u32],
    numbers: &Numbers,
    asked: &mut Asked,
    number: usize,
    #[comptime] ahead: usize,
    #[comptime] form: Form,
    #[comptime] ring: Ring,
) {
    if cube.asks {
        if walk::goes_on(&asked.walk) {
            let (row, head_dim) = (asked.walk.row, form.head_dim);
            ask::<E>(cube, v, barriers, held, asked.kv, row, number + ahead, Operand::Values, head_dim, ring);
        }
        ask_next(cube, asked, plan, numbers, form, ring);
    }
}

/// Leaves out the tile `number`.
#[cube]
pub(super) fn leave<E: Float>(
    cube: &Cube,
    k: &TensorMap<E, Tiled>,
    v: &TensorMap<E, Tiled>,
    barriers: &[Barrier],
    held: &mut [Eight<E>],
    plan: &[u32],
    numbers: &Numbers,
    asked: &mut Asked,
    number: usize,
    #[comptime] form: Form,
    #[comptime] ring: Ring,
) {
    wait_turn(cube, number, ring);
    give_turn(cube, ring);
    wait_for(cube, number, Operand::Keys, ring);
    release(cube, number, Operand::Keys, ring);
    wait_for(cube, number, Operand::Values, ring);
    release(cube, number, Operand::Values, ring);
    ask_values::<E>(
        cube,
        v,
        barriers,
        held,
        plan,
        numbers,
        asked,
        number,
        comptime!(ring.values_ahead()),
        form,
        ring,
    );
    ask_keys::<E>(cube, k, barriers, held, &*asked, number, comptime!(ring.keys), form.head_dim, ring);
}
