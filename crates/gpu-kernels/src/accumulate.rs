//! Sums of pairs of tensors, of several a launch.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address};
use crate::several::{EACH, Several, vector_of};

/// Pairs of a launch.
pub const TOGETHER: usize = 8;

/// The sum of each of [`TOGETHER`] pairs at most, in f32. Where nobody else holds the first ones, it is written where they lie.
///
/// One launch: 12 bytes of each element.
///
/// # Panics
/// If there are more or none, a pair is not of one length, or not f32.
#[must_use]
pub fn accumulate(client: &Client, pairs: Vec<(Buffer, Buffer)>) -> Vec<Buffer> {
    assert!((1..=TOGETHER).contains(&pairs.len()), "invariant: a launch's pairs");
    let alike = |(into, more): &(Buffer, Buffer)| {
        into.len == more.len && [into.dtype, more.dtype] == [FloatType::F32; 2]
    };
    assert!(pairs.iter().all(alike), "invariant: a pair is f32 and of one length");
    let in_place = pairs.iter().all(|(into, _)| into.handle.can_mut());
    let own = |b: &Buffer| if in_place { b.clone() } else { Buffer::empty(client, b.len, FloatType::F32) };
    let sums: Vec<Buffer> = pairs.iter().map(|(into, _)| own(into)).collect();
    let held: Vec<&Buffer> = pairs.iter().flat_map(|(into, more)| [into, more]).collect();
    let several = Several::new(client, pairs.iter().map(|(into, _)| into.len), &held);
    if several.parts == 0 {
        return sums;
    }
    let (size, vectors) = (several.size, |at: usize| several.vectors(at));
    let into = |at: usize| pairs[several.place(at)].0.arg(size);
    let more = |at: usize| pairs[several.place(at)].1.arg(size);
    let sum = |at: usize| match (in_place, several.place(at)) {
        (true, place) => BufferArg::alias(place, vectors(place)),
        (false, place) => sums[place].arg(size),
    };
    add_pairs::launch(
        client,
        several.cubes(client),
        several.dim(),
        address(&held),
        size,
        into(0),
        into(1),
        into(2),
        into(3),
        into(4),
        into(5),
        into(6),
        into(7),
        more(0),
        more(1),
        more(2),
        more(3),
        more(4),
        more(5),
        more(6),
        more(7),
        sum(0),
        sum(1),
        sum(2),
        sum(3),
        sum(4),
        sum(5),
        sum(6),
        sum(7),
        vectors(0),
        vectors(1),
        vectors(2),
        vectors(3),
        vectors(4),
        vectors(5),
        vectors(6),
        vectors(7),
        several.parts,
    );
    sums
}

/// Adds this unit's elements of a part of a pair.
#[cube]
fn add_part<N: Size>(
    into: &[Vector<f32, N>],
    more: &[Vector<f32, N>],
    sum: &mut [Vector<f32, N>],
    vectors: usize,
    part: usize,
) {
    #[unroll]
    for turn in 0..EACH {
        let i = vector_of(part, turn);
        if i < vectors {
            sum[i] = into[i] + more[i];
        }
    }
}

#[cube(launch, address_type = "dynamic")]
fn add_pairs<N: Size>(
    a: &[Vector<f32, N>],
    b: &[Vector<f32, N>],
    c: &[Vector<f32, N>],
    d: &[Vector<f32, N>],
    e: &[Vector<f32, N>],
    f: &[Vector<f32, N>],
    g: &[Vector<f32, N>],
    h: &[Vector<f32, N>],
    to_a: &[Vector<f32, N>],
    to_b: &[Vector<f32, N>],
    to_c: &[Vector<f32, N>],
    to_d: &[Vector<f32, N>],
    to_e: &[Vector<f32, N>],
    to_f: &[Vector<f32, N>],
    to_g: &[Vector<f32, N>],
    to_h: &[Vector<f32, N>],
    sum_a: &mut [Vector<f32, N>],
    sum_b: &mut [Vector<f32, N>],
    sum_c: &mut [Vector<f32, N>],
    sum_d: &mut [Vector<f32, N>],
    sum_e: &mut [Vector<f32, N>],
    sum_f: &mut [Vector<f32, N>],
    sum_g: &mut [Vector<f32, N>],
    sum_h: &mut [Vector<f32, N>],
    of_a: usize,
    of_b: usize,
    of_c: usize,
    of_d: usize,
    of_e: usize,
    of_f: usize,
    of_g: usize,
    of_h: usize,
    parts: usize,
) {
    let (pair, part) = (CUBE_POS / parts, CUBE_POS % parts);
    if pair == 0 {
        add_part::<N>(a, to_a, sum_a, of_a, part);
    } else if pair == 1 {
        add_part::<N>(b, to_b, sum_b, of_b, part);
    } else if pair == 2 {
        add_part::<N>(c, to_c, sum_c, of_c, part);
    } else if pair == 3 {
        add_part::<N>(d, to_d, sum_d, of_d, part);
    } else if pair == 4 {
        add_part::<N>(e, to_e, sum_e, of_e, part);
    } else if pair == 5 {
        add_part::<N>(f, to_f, sum_f, of_f, part);
    } else if pair == 6 {
        add_part::<N>(g, to_g, sum_g, of_g, part);
    } else if pair == 7 {
        add_part::<N>(h, to_h, sum_h, of_h, part);
    }
}
