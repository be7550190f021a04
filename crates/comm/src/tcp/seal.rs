//! `Seal`: what is said in one direction of a connection, each piece proven to come from the other side, in its order, and
//! hidden from everybody else where that is asked for.

use std::io;

use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher};

/// Bytes of a seal.
pub(super) const SEAL: usize = 32;

/// One direction of a session: a key of its own and the number of pieces so far. A piece that was changed, left out,
/// repeated or taken from another place has another seal (BLAKE3, keyed).
pub(super) struct Seal {
    key: [u8; 32],
    /// The key that pieces are hidden with, which is no other's.
    cipher: Option<[u8; 32]>,
    pieces: u64,
}

impl Seal {
    pub(super) fn new(key: [u8; 32]) -> Self {
        Self { key, cipher: None, pieces: 0 }
    }

    /// The same, hiding what it seals.
    pub(super) fn hiding(self, key: [u8; 32]) -> Self {
        Self { cipher: Some(key), ..self }
    }

    /// The next piece, of which nothing has been said yet.
    pub(super) fn piece(&mut self) -> Piece {
        let number = self.pieces;
        self.pieces += 1;
        // A piece's number is no other's under this key, and its stream of 256 GiB is longer than what there is memory for.
        let stream = self.cipher.map(|key| {
            let mut nonce = [0; 12];
            nonce[..8].copy_from_slice(&number.to_le_bytes());
            ChaCha20::new(&key.into(), &nonce.into())
        });
        Piece { said: blake3::Hasher::new_keyed(&self.key), number, stream }
    }

    /// The seal of the next piece, which is there as a whole.
    pub(super) fn next(&mut self, piece: &[u8]) -> [u8; SEAL] {
        self.piece().and(piece).seal()
    }

    /// Compares, in constant time, the seal that came with the next piece.
    pub(super) fn check(&mut self, piece: &[u8], seal: [u8; SEAL]) -> io::Result<()> {
        self.piece().and(piece).check(seal)
    }
}

/// A piece that is said part by part.
pub(super) struct Piece {
    said: blake3::Hasher,
    number: u64,
    stream: Option<ChaCha20>,
}

impl Piece {
    /// The same with more of it.
    pub(super) fn and(mut self, part: &[u8]) -> Self {
        self.said.update(part);
        self
    }

    /// Whether it is hidden: [`Self::hide`] and [`Self::reveal`] change what they are given.
    pub(super) fn hides(&self) -> bool {
        self.stream.is_some()
    }

    /// The same with more of it, which becomes what travels.
    pub(super) fn hide(mut self, part: &mut [u8]) -> io::Result<Self> {
        self.pass(part)?;
        Ok(self.and(part))
    }

    /// The same with more of it, which was what travelled.
    pub(super) fn reveal(self, part: &mut [u8]) -> io::Result<Self> {
        let mut all = self.and(part);
        all.pass(part)?;
        Ok(all)
    }

    fn pass(&mut self, part: &mut [u8]) -> io::Result<()> {
        let long = |_| io::Error::new(io::ErrorKind::InvalidData, "a piece of more than 256 GiB");
        self.stream.as_mut().map_or(Ok(()), |stream| stream.try_apply_keystream(part).map_err(long))
    }

    /// Its seal.
    pub(super) fn seal(self) -> [u8; SEAL] {
        self.compute().into()
    }

    /// Compares, in constant time, the seal that came with it.
    pub(super) fn check(self, seal: [u8; SEAL]) -> io::Result<()> {
        if self.compute() == seal {
            return Ok(());
        }
        let what = "what arrived is not what was sent, or was sent by somebody else (its seal does not fit)";
        Err(io::Error::new(io::ErrorKind::InvalidData, what))
    }

    fn compute(mut self) -> blake3::Hash {
        // Behind the piece, so that its blocks are hashed where they lie.
        self.said.update(&self.number.to_le_bytes()).finalize()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn what_is_hidden_is_read_by_who_has_the_key_and_by_nobody_else() {
        let seal = |key| Seal::new([7; 32]).hiding(key);
        let (mut ours, mut theirs, mut others) = (seal([1; 32]), seal([1; 32]), seal([2; 32]));
        let mut before = Vec::new();
        for _ in 0..3 {
            // The same words, in parts of any length.
            let (mut said, text) = ([5; 300], [5; 300]);
            let (first, second) = said.split_at_mut(123);
            let proof = ours.piece().hide(first).unwrap().hide(second).unwrap().seal();
            assert!(said != text && !before.contains(&said), "each piece is hidden in a way of its own");
            before.push(said);
            let mut heard = said;
            let (first, rest) = heard.split_at_mut(8);
            theirs.piece().reveal(first).unwrap().reveal(rest).unwrap().check(proof).unwrap();
            assert_eq!(heard, text);
            let mut heard = said;
            others.piece().reveal(&mut heard).unwrap().check(proof).unwrap();
            assert!(heard.iter().filter(|&&byte| byte == 5).count() < 30, "not without the key");
        }
    }

    #[test]
    fn only_the_same_pieces_in_the_same_order_fit() {
        let pair = || (Seal::new([7; 32]), Seal::new([7; 32]));
        let (mut ours, mut theirs) = pair();
        for piece in [&b""[..], b"a", &[3; 5000]] {
            theirs.check(piece, ours.next(piece)).unwrap();
        }
        let (mut ours, mut theirs) = pair();
        let first = ours.next(b"piece");
        theirs.check(b"piece", first).unwrap();
        assert!(theirs.check(b"piece", first).is_err(), "said again");
        let (mut ours, mut theirs) = pair();
        let _left_out = ours.next(b"one");
        assert!(theirs.check(b"two", ours.next(b"two")).is_err(), "one left out");
        for bit in 0..8 * 6 {
            let (mut ours, mut theirs) = pair();
            let (mut piece, seal) = (*b"pieces", ours.next(b"pieces"));
            piece[bit / 8] ^= 1 << (bit % 8);
            assert!(theirs.check(&piece, seal).is_err(), "bit {bit}");
        }
        for bit in 0..8 * SEAL {
            let (mut ours, mut theirs) = pair();
            let mut seal = ours.next(b"pieces");
            seal[bit / 8] ^= 1 << (bit % 8);
            assert!(theirs.check(b"pieces", seal).is_err(), "bit {bit} of the seal");
        }
        assert!(Seal::new([8; 32]).check(b"a", Seal::new([7; 32]).next(b"a")).is_err(), "another key");
    }
}
