//! Rotations of a row's tokens, and what of them is the same from row to row.

use std::sync::{Arc, Mutex, PoisonError};

use burnish_ops::Rotary;

use super::{Decoder, Tokens};
use crate::Rope;

/// Tables and rotations of earlier rows: a step's micro-batches have the same angles, often at the same positions, and sines
/// of thousands of positions for each cost a device's host more than some of its kernels.
#[derive(Debug, Default)]
pub(crate) struct KeptRotations(Mutex<Kept>);

#[derive(Debug, Default)]
struct Kept {
    /// Of each rope the longest table so far; empty where frequencies depend on a text's length.
    tables: Vec<Arc<Vec<f32>>>,
    /// The last row's positions, and its rotations where none depends on a length.
    last: Option<(Arc<Vec<u32>>, Vec<Rotary>)>,
}

impl Kept {
    fn table(&mut self, at: usize, rope: &Rope, length: usize) -> Arc<Vec<f32>> {
        if self.tables.len() <= at {
            self.tables.resize_with(at + 1, Arc::default);
        }
        let table = &mut self.tables[at];
        if table.len() < length * rope.dim {
            *table = Arc::new(rope.table(length));
        }
        table.clone()
    }
}

impl Decoder {
    /// The rotations of a row of tokens, one per rope of the spec. Frequencies that depend on a length take each text's
    /// own, whatever else is in the row.
    pub(crate) fn rotaries(&self, tokens: &Tokens) -> Vec<Rotary> {
        let ropes = &self.spec.ropes;
        let mut kept = self.rotations.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((positions, rotaries)) = &kept.last
            && *positions == tokens.positions
        {
            return rotaries.clone();
        }
        let positions = &tokens.positions;
        let length = positions.iter().max().map_or(0, |&p| p as usize + 1);
        let of = |(at, rope): (usize, &Rope)| {
            if rope.depends_on_length() {
                return by_texts(rope, tokens);
            }
            Rotary::new(kept.table(at, rope, length), positions.clone(), rope.dim)
        };
        let rotaries: Vec<Rotary> = ropes.iter().enumerate().map(of).collect();
        let same = !ropes.iter().any(Rope::depends_on_length);
        kept.last = same.then(|| (positions.clone(), rotaries.clone()));
        rotaries
    }
}

/// The rotation of a row whose texts have frequencies of their own.
fn by_texts(rope: &Rope, tokens: &Tokens) -> Rotary {
    let positions = &tokens.positions;
    let (mut table, mut rows) = (Vec::new(), vec![0; positions.len()]);
    for (document, length) in tokens.documents.iter().zip(tokens.lengths()) {
        let (frequencies, attention) = rope.narrow_frequencies(length);
        for at in document.clone() {
            rows[at] = (table.len() / rope.dim.max(1)) as u32;
            let p = positions[at] as usize;
            rope.rows(&frequencies, attention, p..p + 1, &mut table);
        }
    }
    // What is in no document reads the first row of a table that has one.
    if table.is_empty() {
        table = rope.table(1);
    }
    Rotary::new(Arc::new(table), Arc::new(rows), rope.dim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RopeKind;

    #[test]
    fn a_table_serves_rows_that_are_as_long_and_grows_for_longer_ones() {
        let rope = Rope { theta: 1e4, dim: 4, kind: RopeKind::Default };
        let mut kept = Kept::default();
        let long = kept.table(1, &rope, 9);
        assert!(Arc::ptr_eq(&long, &kept.table(1, &rope, 5)), "a shorter row has it too");
        assert_eq!(*long, rope.table(9));
        assert_eq!(*kept.table(1, &rope, 10), rope.table(10));
        assert_eq!(*kept.table(0, &rope, 2), rope.table(2), "another rope has its own");
    }
}
