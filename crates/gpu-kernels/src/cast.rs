//! Elements of several tensors in another dtype.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType, address};
use crate::several::{EACH, Several, vector_of};

/// Tensors of a launch.
pub const TOGETHER: usize = 8;

/// [`TOGETHER`] tensors at most, of one dtype, rounded to `dtype` and one behind the other in one memory: all of it, and each tensor's
/// piece.
///
/// One launch: each element is read and written once.
///
/// # Panics
/// If there are more or none, or several dtypes.
#[must_use]
pub fn cast(client: &Client, tensors: &[Buffer], dtype: FloatType) -> (Buffer, Vec<Buffer>) {
    assert!((1..=TOGETHER).contains(&tensors.len()), "invariant: a launch's tensors");
    let from = tensors[0].dtype;
    assert!(tensors.iter().all(|t| t.dtype == from), "invariant: tensors of one dtype");
    let all = Buffer::empty(client, tensors.iter().map(|t| t.len).sum(), dtype);
    let pieces = all.pieces(tensors.iter().map(|t| t.len));
    write(client, tensors, (&all, &pieces));
    (all, pieces)
}

/// Any number of tensors of one dtype, one behind the other in one memory.
///
/// A launch for each [`TOGETHER`] of them: each element is read and written once.
///
/// # Panics
/// If there is none, or several dtypes.
#[must_use]
pub fn join(client: &Client, tensors: &[Buffer]) -> Buffer {
    let dtype = tensors[0].dtype;
    assert!(tensors.iter().all(|t| t.dtype == dtype), "invariant: tensors of one dtype");
    let all = Buffer::empty(client, tensors.iter().map(|t| t.len).sum(), dtype);
    let groups = tensors.chunks(TOGETHER);
    let of_groups = all.pieces(groups.clone().map(|group| group.iter().map(|t| t.len).sum()));
    for (group, all) in groups.zip(&of_groups) {
        write(client, group, (all, &all.pieces(group.iter().map(|t| t.len))));
    }
    all
}

/// The elements of `from`, rounded to the dtype of `to`, to that memory, whoever else holds it.
///
/// One launch: each element is read and written once.
///
/// # Panics
/// If the two have not as many elements.
pub fn copy(client: &Client, from: &Buffer, to: &Buffer) {
    assert_eq!(from.len, to.len, "invariant: as many elements");
    write(client, std::slice::from_ref(from), (to, std::slice::from_ref(to)));
}

/// Writes tensors to pieces of `all`, one behind the other.
fn write(client: &Client, tensors: &[Buffer], (all, pieces): (&Buffer, &[Buffer])) {
    let (from, dtype) = (tensors[0].dtype, all.dtype);
    let held: Vec<&Buffer> = tensors.iter().chain(pieces).collect();
    let several = Several::new(client, tensors.iter().map(|t| t.len), &held);
    if several.parts == 0 {
        return;
    }
    let (size, vectors) = (several.size, |at: usize| several.vectors(at));
    let read = |at: usize| tensors[several.place(at)].arg(size);
    // Where each begins in the memory of all, in vectors.
    let begins = |at: usize| (0..at).map(vectors).sum::<usize>();
    cast_tensors::launch(
        client,
        several.cubes(client),
        several.dim(),
        address(&[all]),
        size,
        read(0),
        read(1),
        read(2),
        read(3),
        read(4),
        read(5),
        read(6),
        read(7),
        all.arg(size),
        vectors(0),
        vectors(1),
        vectors(2),
        vectors(3),
        vectors(4),
        vectors(5),
        vectors(6),
        vectors(7),
        begins(1),
        begins(2),
        begins(3),
        begins(4),
        begins(5),
        begins(6),
        begins(7),
        several.parts,
        from.elem(),
        dtype.elem(),
    );
}

/// Casts this unit's elements of a part of a tensor.
#[cube]
fn part_of<I: Float, O: Float, N: Size>(
    from: &[Vector<I, N>],
    into: &mut [Vector<O, N>],
    first: usize,
    vectors: usize,
    part: usize,
) {
    #[unroll]
    for turn in 0..EACH {
        let i = vector_of(part, turn);
        if i < vectors {
            into[first + i] = Vector::cast_from(from[i]);
        }
    }
}

#[cube(launch, address_type = "dynamic")]
fn cast_tensors<I: Float, O: Float, N: Size>(
    a: &[Vector<I, N>],
    b: &[Vector<I, N>],
    c: &[Vector<I, N>],
    d: &[Vector<I, N>],
    e: &[Vector<I, N>],
    f: &[Vector<I, N>],
    g: &[Vector<I, N>],
    h: &[Vector<I, N>],
    into: &mut [Vector<O, N>],
    of_a: usize,
    of_b: usize,
    of_c: usize,
    of_d: usize,
    of_e: usize,
    of_f: usize,
    of_g: usize,
    of_h: usize,
    from_b: usize,
    from_c: usize,
    from_d: usize,
    from_e: usize,
    from_f: usize,
    from_g: usize,
    from_h: usize,
    parts: usize,
    #[define(I)] _from: ElemType,
    #[define(O)] _to: ElemType,
) {
    let (tensor, part) = (CUBE_POS / parts, CUBE_POS % parts);
    if tensor == 0 {
        part_of::<I, O, N>(a, into, 0usize, of_a, part);
    } else if tensor == 1 {
        part_of::<I, O, N>(b, into, from_b, of_b, part);
    } else if tensor == 2 {
        part_of::<I, O, N>(c, into, from_c, of_c, part);
    } else if tensor == 3 {
        part_of::<I, O, N>(d, into, from_d, of_d, part);
    } else if tensor == 4 {
        part_of::<I, O, N>(e, into, from_e, of_e, part);
    } else if tensor == 5 {
        part_of::<I, O, N>(f, into, from_f, of_f, part);
    } else if tensor == 6 {
        part_of::<I, O, N>(g, into, from_g, of_g, part);
    } else if tensor == 7 {
        part_of::<I, O, N>(h, into, from_h, of_h, part);
    }
}
