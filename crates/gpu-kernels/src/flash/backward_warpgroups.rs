//! What both passes of attention's gradients by `wgmma` do: scores of 64 rows and a tile of others, with them the products of what
//! is beside those (values and the output's gradient), and sums over the others.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::cores::Tiles;
use crate::buffer::FloatType;
use crate::mma::{PLANE, Pair, STRIP, pair};
use crate::wgmma::{
    DESCRIBED, Name, PLANES, Tile, add_lefts, begin, begin_lefts, commit, name_sums, put_product, sum,
};

/// Registers of a tile's scores, and of the products beside them.
pub(super) const SCORES: Name = "scores";
pub(super) const PRODUCTS: Name = "products";
/// Of the scores' gradients as left factors.
pub(super) const CHANGES: Name = "changes";

/// Units of a cube: those that multiply, and a warpgroup of which one plane asks for tiles.
pub(super) fn units(tiles: Tiles) -> usize {
    tiles.units() + PLANES * PLANE
}

/// These registers, for a tile of so many others. A kernel begins with them.
#[cube]
pub(super) fn begin_tile(#[comptime] others: usize) {
    name_sums(SCORES, comptime!(others / 2));
    name_sums(PRODUCTS, comptime!(others / 2));
    begin_lefts(CHANGES, comptime!(others / 4));
}

/// A pair of sums, while no product is under way.
#[cube]
pub(super) fn taken(#[comptime] name: Name, #[comptime] at: usize) -> Pair<f32> {
    pair::<f32>(sum(name, comptime!(2 * at)), sum(name, comptime!(2 * at + 1)))
}

/// Begins the products of a tile, a group: of both operands of 64 rows, from `own`, and of the others, from `other`, in units of
/// 16 bytes. The second operand of each is behind all of the first.
#[cube]
pub(super) fn multiply(
    own: u32,
    other: u32,
    #[comptime] of_own: Tile,
    #[comptime] of_other: Tile,
    #[comptime] dtype: FloatType,
) {
    let lefts = own + comptime!(of_own.described());
    let rights = other + comptime!(of_other.described());
    begin();
    #[unroll]
    for operand in 0..2usize {
        #[unroll]
        for step in 0..comptime!(of_own.depth / STRIP) {
            let left = lefts + comptime!((operand * of_own.eights() + of_own.step(step)) as u32);
            let right = rights + comptime!((operand * of_other.eights() + of_other.step(step)) as u32);
            put_product(
                u64::cast_from(left) | DESCRIBED,
                u64::cast_from(right) | DESCRIBED,
                comptime!(if operand == 0 { SCORES } else { PRODUCTS }),
                0usize,
                comptime!(of_other.across),
                comptime!(step > 0),
                [true, true],
                dtype,
            );
        }
    }
    commit();
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
        let right = rights + comptime!(across.step(step) as u32);
        add_lefts(
            lefts,
            comptime!(step * 4),
            u64::cast_from(right) | DESCRIBED,
            sums,
            0usize,
            comptime!(across.across),
            false,
            dtype,
        );
    }
}
