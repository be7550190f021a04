//! Products of small matrices by a warp: which lane has which element, and the product.

use crate::float::{decode, encode};
use crate::instruction::{Mode, Part, Product};
use crate::scalar::Type;

/// Elements of a row-major matrix, as numbers.
pub(crate) struct Dense {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) values: Vec<f64>,
}

/// Rows and columns of a part.
pub(crate) fn size([m, n, k]: [usize; 3], part: Part) -> [usize; 2] {
    match part {
        Part::A => [m, k],
        Part::B => [k, n],
        Part::C => [m, n],
    }
}

/// Elements of a register.
fn packed(ty: Type) -> usize {
    if matches!(ty, Type::F16 | Type::Bf16) { 2 } else { 1 }
}

/// Whether the interpreter has products with such a part.
pub(crate) fn is_known(product: &Product, part: Part) -> bool {
    let [rows, columns] = size(product.shape, part);
    let elements = rows * columns / 32;
    let (types, registers): (&[Type], &[usize]) = match part {
        Part::A => (&[product.a_type], &[product.a.len()]),
        Part::B => (&[product.b_type], &[product.b.len()]),
        Part::C => (&[product.c_type, product.d_type], &[product.c.len(), product.d.len()]),
    };
    let shapes: &[[usize; 3]] = match product.a_type {
        Type::F16 | Type::Bf16 => &[[16, 8, 16], [16, 8, 8]],
        Type::Tf32 => &[[16, 8, 8], [16, 8, 4]],
        _ => return false,
    };
    let factors = product.a_type == product.b_type;
    let right = |(ty, registers): (&Type, &usize)| {
        let whole = matches!(ty, Type::F16 | Type::Bf16 | Type::Tf32 | Type::F32);
        // Fragments of f16 have each element twice on old hardware, and as many registers still.
        let needed = elements / packed(*ty);
        whole && (*registers == needed || (!product.stated && *registers > needed))
    };
    factors && (!product.stated || shapes.contains(&product.shape)) && types.iter().zip(registers).all(right)
}

/// Row and column of element `at` of a lane, in the order that the ISA states of `mma`.
fn stated(part: Part, ty: Type, shape: [usize; 3], lane: usize, at: usize) -> [usize; 2] {
    let (group, inner) = (lane / 4, lane % 4);
    match (part, ty) {
        (Part::C, _) => [group + 8 * (at / 2), 2 * inner + at % 2],
        (Part::A, Type::Tf32) => [group + 8 * (at % 2), inner + 4 * (at / 2)],
        (Part::B, Type::Tf32) => [inner + 4 * at, group],
        (Part::A, _) if shape[2] == 8 => [group + 8 * (at / 2), 2 * inner + at % 2],
        (Part::A, _) => [group + 8 * (at / 2 % 2), 2 * inner + at % 2 + 8 * (at / 4)],
        (Part::B, _) => [2 * inner + at % 2 + 8 * (at / 2), group],
    }
}

/// Row and column of element `at` of a lane, in this interpreter's order of `wmma`.
pub(crate) fn own([rows, columns]: [usize; 2], lane: usize, at: usize) -> [usize; 2] {
    let element = lane * (rows * columns / 32) + at;
    [element / columns, element % columns]
}

/// Element `at` of a lane's registers, as its bits.
pub(crate) fn element(ty: Type, registers: &[[u64; 32]], lane: usize, at: usize) -> u64 {
    match packed(ty) {
        2 => registers[at / 2][lane] >> (16 * (at % 2)) & 0xffff,
        _ => registers[at][lane] & ty.mask(),
    }
}

/// Puts bits into element `at` of a lane's registers, which are 0 before.
pub(crate) fn put(ty: Type, registers: &mut [[u64; 32]], lane: usize, at: usize, bits: u64) {
    match packed(ty) {
        2 => registers[at / 2][lane] |= (bits & 0xffff) << (16 * (at % 2)),
        _ => registers[at][lane] = bits & ty.mask(),
    }
}

/// A part of a product, from the lanes' registers.
pub(crate) fn gather(product: &Product, part: Part, ty: Type, registers: &[[u64; 32]]) -> Dense {
    let [rows, columns] = size(product.shape, part);
    let mut values = vec![0.0; rows * columns];
    for lane in 0..32 {
        for at in 0..rows * columns / 32 {
            let [row, column] = match product.stated {
                true => stated(part, ty, product.shape, lane, at),
                false => own([rows, columns], lane, at),
            };
            values[row * columns + column] = decode(ty, element(ty, registers, lane, at), false);
        }
    }
    Dense { rows, columns, values }
}

/// `A B + C`, each element rounded once, as registers of `D`.
pub(crate) fn multiply(product: &Product, a: &Dense, b: &Dense, c: &Dense) -> Vec<[u64; 32]> {
    let ty = product.d_type;
    let mut out = vec![[0; 32]; product.d.len()];
    for lane in 0..32 {
        for at in 0..c.rows * c.columns / 32 {
            let [row, column] = match product.stated {
                true => stated(Part::C, ty, product.shape, lane, at),
                false => own([c.rows, c.columns], lane, at),
            };
            let products =
                (0..a.columns).map(|k| a.values[row * a.columns + k] * b.values[k * b.columns + column]);
            let value = c.values[row * c.columns + column] + products.sum::<f64>();
            put(ty, &mut out, lane, at, encode(ty, value, Mode::default()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every element of every part is some lane's, once.
    #[test]
    fn the_stated_orders_are_of_all_elements() {
        for (ty, shapes) in [(Type::Bf16, [[16, 8, 16], [16, 8, 8]]), (Type::Tf32, [[16, 8, 8], [16, 8, 4]])]
        {
            for shape in shapes {
                for part in [Part::A, Part::B, Part::C] {
                    let ty = if part == Part::C { Type::F32 } else { ty };
                    let [rows, columns] = size(shape, part);
                    let mut seen = vec![0; rows * columns];
                    for lane in 0..32 {
                        for at in 0..rows * columns / 32 {
                            let [row, column] = stated(part, ty, shape, lane, at);
                            seen[row * columns + column] += 1;
                        }
                    }
                    assert!(seen.iter().all(|&times| times == 1), "{ty:?} {shape:?} {part:?}: {seen:?}");
                }
            }
        }
    }
}
