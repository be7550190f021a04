//! A matrix, and what a rank holds of it.

use std::ops::Range;

use burnish_core::Region;

use crate::OrthoCost;

/// A logical matrix, and the part of it that one rank holds: some rows of some columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    /// The parameter's registry index.
    pub index: usize,
    /// Its name, for errors.
    pub name: String,
    /// Its global shape. With more than two dimensions, all but the last count as rows.
    pub shape: Vec<usize>,
    /// What orthogonalising it costs, in operations.
    pub flops: f64,
    /// What the rank holds of these rows and columns; nothing, or parts without overlap.
    pub region: Region,
}

impl Matrix {
    /// The parameter at `index`, of which the rank holds `held`. A vector is one row.
    #[must_use]
    pub fn new(index: usize, name: &str, flops: f64, held: &Region) -> Self {
        let (name, shape) = (name.to_owned(), held.shape().to_vec());
        Self { index, name, shape, flops, region: held.as_matrix() }
    }

    /// All rows and columns.
    #[must_use]
    pub fn size(&self) -> [usize; 2] {
        match self.shape.split_last() {
            Some((&columns, rows)) => [rows.iter().product(), columns],
            None => [1, 1],
        }
    }

    /// How many rows and columns the rank holds.
    #[must_use]
    pub fn held(&self) -> [usize; 2] {
        [0, 1].map(|dim| self.region.ranges(dim).iter().map(Range::len).sum())
    }

    /// All of it.
    pub(super) fn whole(&self) -> Region {
        Region::whole(&self.size())
    }

    /// Whether the rank holds some of it.
    pub(super) fn holds_some(&self) -> bool {
        self.held().iter().all(|&n| n > 0)
    }

    /// Whether the rank holds all of it.
    pub(super) fn holds_all(&self) -> bool {
        self.held() == self.size()
    }

    pub(super) fn work(&self) -> OrthoCost {
        OrthoCost { flops: self.flops, elements: self.size().iter().product() }
    }
}

/// As words, so that every rank can know what every rank holds.
pub(super) fn encode(matrices: &[Matrix]) -> Vec<u64> {
    let mut words = vec![matrices.len() as u64];
    for matrix in matrices {
        words.push(matrix.index as u64);
        words.push(matrix.name.len() as u64);
        words.extend(matrix.name.as_bytes().chunks(8).map(|chunk| {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            u64::from_le_bytes(bytes)
        }));
        words.push(matrix.shape.len() as u64);
        words.extend(matrix.shape.iter().map(|&n| n as u64));
        words.push(matrix.flops.to_bits());
        for ranges in [0, 1].map(|dim| matrix.region.ranges(dim)) {
            words.push(ranges.len() as u64);
            words.extend(ranges.iter().flat_map(|r| [r.start as u64, r.end as u64]));
        }
    }
    words
}

/// What [`encode`] wrote; `None` for anything else.
pub(super) fn decode(words: &[u64]) -> Option<Vec<Matrix>> {
    let mut words = words.iter().copied();
    let count = words.next()?;
    (0..count).map(|_| decode_one(&mut words)).collect()
}

fn decode_one(words: &mut impl Iterator<Item = u64>) -> Option<Matrix> {
    let index = words.next()? as usize;
    let length = words.next()? as usize;
    let mut name = Vec::new();
    for _ in 0..length.div_ceil(8) {
        name.extend(words.next()?.to_le_bytes());
    }
    name.truncate(length);
    let dims = words.next()?;
    let shape = (0..dims).map(|_| words.next().map(|n| n as usize)).collect::<Option<_>>()?;
    let flops = f64::from_bits(words.next()?);
    let mut ranges = || -> Option<Vec<Range<usize>>> {
        let count = words.next()?;
        (0..count).map(|_| Some(words.next()? as usize..words.next()? as usize)).collect()
    };
    let held = vec![ranges()?, ranges()?];
    let name = String::from_utf8(name).ok()?;
    let mut matrix = Matrix { index, name, shape, flops, region: Region::whole(&[1, 1]) };
    matrix.region = Region::announced(&matrix.size(), held);
    Some(matrix)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn what_is_announced_is_understood() {
        let matrix = |name: &str, shape: &[usize], rows, columns| {
            let mut matrix = Matrix::new(7, name, 1.5e9, &Region::whole(&[1, 1]));
            matrix.shape = shape.to_vec();
            matrix.region = Region::announced(&matrix.size(), vec![rows, columns]);
            matrix
        };
        let all = vec![
            matrix("", &[], vec![], vec![]),
            matrix("eight678", &[4, 2], vec![0..1, 3..4], vec![0..1, 1..2]),
            matrix("größer als acht", &[2, 3, 5], vec![0..4, 5..6], vec![1..2, 3..5]),
        ];
        let words = encode(&all);
        assert_eq!(decode(&words).unwrap(), all);
        assert_eq!(decode(&words[..words.len() - 1]), None);
        assert_eq!(all[2].size(), [6, 5]);
        assert_eq!(all[2].held(), [5, 3]);
    }
}
