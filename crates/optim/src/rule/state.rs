//! A rule's state of one parameter: f32 and blocks of bytes in host memory, walked in pieces.

use rayon::prelude::*;

use super::{Kept, Rule, Slot, Step};
use burnish_quant::blockwise::{self, BLOCK, Blockwise};

/// Elements of a piece: whole blocks, and little enough to stay in the nearest cache.
const PIECE: usize = 16 * BLOCK;

/// One slot's values.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Values {
    F32(Vec<f32>),
    Blocks(Blockwise),
}

/// The state of one parameter, in the order of its slots.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State(pub(super) Vec<Values>);

/// A piece of a slot.
enum Piece<'a> {
    F32(&'a mut [f32]),
    Blocks { codes: &'a mut [u8], scales: &'a mut [f32], signed: bool },
}

impl State {
    /// The state before the first step of a parameter with `value`.
    pub(super) fn begin(rule: &dyn Rule, slots: &[Slot], elements: usize, value: Option<&[f32]>) -> Self {
        let of = |slot: &Slot| match (&slot.kept, value) {
            (Kept::Blocks { signed }, _) => Values::Blocks(Blockwise::zeros(elements, *signed)),
            (Kept::Statistic(shape), _) => Values::F32(vec![0.0; shape.iter().product()]),
            (Kept::Elements, Some(value)) if rule.begins_as_value(slot.name) => Values::F32(value.to_vec()),
            (Kept::Elements, _) => Values::F32(vec![0.0; elements]),
        };
        Self(slots.iter().map(of).collect())
    }

    /// The direction of a whole parameter, with its value where the rule takes it.
    pub(super) fn direction(
        &mut self,
        rule: &dyn Rule,
        step: &Step,
        shape: &[usize],
        gradient: &mut [f32],
        value: Option<Vec<f32>>,
    ) {
        if rule.of_tensor() {
            let mut value = value;
            let mut all: Vec<&mut [f32]> = self.0.iter_mut().map(Values::whole).collect();
            all.extend(value.as_deref_mut());
            rule.direction(step, shape, gradient, &mut all);
            return;
        }
        self.pieces(gradient.len()).into_par_iter().zip(gradient.par_chunks_mut(PIECE)).for_each(
            |(pieces, gradient)| {
                with_f32(pieces, |state| rule.direction(step, &[gradient.len()], gradient, state));
            },
        );
    }

    /// A step of elements that are all here.
    pub(super) fn update(&mut self, rule: &dyn Rule, step: &Step, value: &mut [f32], gradient: &mut [f32]) {
        let pieces = self.pieces(gradient.len()).into_par_iter();
        pieces.zip(value.par_chunks_mut(PIECE)).zip(gradient.par_chunks_mut(PIECE)).for_each(
            |((pieces, value), gradient)| {
                with_f32(pieces, |state| rule.update(step, &[gradient.len()], value, gradient, state));
            },
        );
    }

    /// Every slot cut into pieces, by piece.
    fn pieces(&mut self, elements: usize) -> Vec<Vec<Piece<'_>>> {
        let mut pieces: Vec<Vec<Piece<'_>>> =
            (0..elements.div_ceil(PIECE)).map(|_| Vec::with_capacity(self.0.len())).collect();
        for values in &mut self.0 {
            match values {
                Values::F32(values) => {
                    for (piece, values) in pieces.iter_mut().zip(values.chunks_mut(PIECE)) {
                        piece.push(Piece::F32(values));
                    }
                }
                Values::Blocks(Blockwise { codes, scales, signed }) => {
                    let parts = codes.chunks_mut(PIECE).zip(scales.chunks_mut(PIECE / BLOCK));
                    for (piece, (codes, scales)) in pieces.iter_mut().zip(parts) {
                        piece.push(Piece::Blocks { codes, scales, signed: *signed });
                    }
                }
            }
        }
        pieces
    }
}

impl Values {
    /// Of a rule that keeps no blocks.
    pub(super) fn f32(&self) -> &[f32] {
        match self {
            Self::F32(values) => values,
            Self::Blocks(_) => &[],
        }
    }

    fn whole(&mut self) -> &mut [f32] {
        match self {
            Self::F32(values) => values,
            Self::Blocks(_) => unreachable!("invariant: rules of whole tensors keep no blocks"),
        }
    }
}

/// Runs `work` on a piece's slots as f32; what is kept in bytes is widened before and narrowed behind.
fn with_f32(mut pieces: Vec<Piece<'_>>, work: impl FnOnce(&mut [&mut [f32]])) {
    let mut wide: Vec<Vec<f32>> = pieces
        .iter()
        .map(|piece| match piece {
            Piece::F32(_) => Vec::new(),
            Piece::Blocks { codes, scales, signed } => {
                let mut values = vec![0.0; codes.len()];
                blockwise::widen(codes, scales, *signed, &mut values);
                values
            }
        })
        .collect();
    let mut state: Vec<&mut [f32]> = pieces
        .iter_mut()
        .zip(&mut wide)
        .map(|(piece, wide)| match piece {
            Piece::F32(values) => &mut **values,
            Piece::Blocks { .. } => &mut wide[..],
        })
        .collect();
    work(&mut state);
    drop(state);
    for (piece, wide) in pieces.into_iter().zip(&wide) {
        if let Piece::Blocks { codes, scales, signed } = piece {
            blockwise::narrow(wide, codes, scales, signed);
        }
    }
}
