//! Checksums of what is written, taken on the way to the disk.

use serde::{Deserialize, Serialize};

/// Each piece of a file is summed in leaves of this many bytes (the last one is shorter), so that a small part of it can
/// be checked without reading the rest.
pub const LEAF: u64 = 256 << 10;

/// The hexadecimal digits of one leaf's sum.
const DIGITS: usize = 32;

/// The sum of a leaf: the first 128 bits of its BLAKE3, hexadecimal.
#[must_use]
pub fn leaf_sum(bytes: &[u8]) -> String {
    short(&blake3::hash(bytes))
}

fn short(hash: &blake3::Hash) -> String {
    let mut text = hash.to_hex().to_string();
    text.truncate(DIGITS);
    text
}

/// A run of bytes of a file that one rank wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: u64,
    /// The sums of its leaves, one after the other; empty if none were taken.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sums: String,
}

impl Piece {
    /// The number of leaves.
    #[must_use]
    pub fn leaves(&self) -> usize {
        (self.end - self.start).div_ceil(LEAF) as usize
    }

    /// The bytes of a leaf in the file, and its sum.
    #[must_use]
    pub fn leaf(&self, k: usize) -> Option<(std::ops::Range<u64>, &str)> {
        let start = self.start + k as u64 * LEAF;
        let sum = self.sums.get(k * DIGITS..(k + 1) * DIGITS)?;
        (start < self.end).then(|| (start..(start + LEAF).min(self.end), sum))
    }
}

/// Follows the bytes of one file as they are written.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    summed: bool,
    pieces: Vec<Piece>,
    leaf: blake3::Hasher,
}

impl Tally {
    pub(crate) fn new(summed: bool) -> Self {
        Self { summed, ..Self::default() }
    }

    /// Bytes that are written at `start`.
    pub(crate) fn add(&mut self, start: u64, mut bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.pieces.last().is_none_or(|p| p.end != start) {
            self.close();
            self.pieces.push(Piece { start, end: start, sums: String::new() });
        }
        while !bytes.is_empty() {
            let Some(piece) = self.pieces.last_mut() else { return };
            let room = LEAF - (piece.end - piece.start) % LEAF;
            let (now, later) = bytes.split_at(bytes.len().min(room as usize));
            piece.end += now.len() as u64;
            if self.summed {
                self.leaf.update(now);
                if now.len() as u64 == room {
                    self.close();
                }
            }
            bytes = later;
        }
    }

    /// Ends the leaf that was begun.
    fn close(&mut self) {
        if let Some(piece) = self.pieces.last_mut().filter(|_| self.leaf.count() > 0) {
            piece.sums.push_str(&short(&self.leaf.finalize()));
            self.leaf.reset();
        }
    }

    pub(crate) fn pieces(mut self) -> Vec<Piece> {
        self.close();
        self.pieces
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_do_not_depend_on_how_bytes_come() {
        let bytes: Vec<u8> = (0..LEAF * 2 + 100).map(|i| (i % 251) as u8).collect();
        let tally = |cuts: &[usize]| {
            let mut tally = Tally::new(true);
            let mut at = 0;
            for &cut in cuts.iter().chain([&bytes.len()]) {
                tally.add(7 + at as u64, &bytes[at..cut]);
                at = cut;
            }
            tally.pieces()
        };
        let whole = tally(&[]);
        assert_eq!(whole, tally(&[1, 2, LEAF as usize - 1, LEAF as usize, LEAF as usize + 5]));
        assert_eq!(whole.len(), 1);
        assert_eq!(whole[0].leaves(), 3);
        for k in 0..3 {
            let (range, sum) = whole[0].leaf(k).expect("a leaf");
            assert_eq!(sum, leaf_sum(&bytes[range.start as usize - 7..range.end as usize - 7]));
        }
        assert_eq!(whole[0].leaf(3), None);
    }

    #[test]
    fn jumps_begin_a_piece() {
        let mut tally = Tally::new(true);
        tally.add(0, b"ab");
        tally.add(10, b"cd");
        tally.add(12, b"e");
        let pieces = tally.pieces();
        assert_eq!(pieces.iter().map(|p| (p.start, p.end)).collect::<Vec<_>>(), [(0, 2), (10, 13)]);
        assert_eq!(pieces[1].sums, leaf_sum(b"cde"));
        let mut quiet = Tally::new(false);
        quiet.add(0, b"ab");
        assert_eq!(quiet.pieces(), [Piece { start: 0, end: 2, sums: String::new() }]);
    }
}
