//! `Frame`: what travels between two ranks once they have met. Every piece of it is sealed, the head before anything in it
//! is believed.

use std::io::{self, Read, Write};

use super::seal::{Piece, SEAL, Seal};
use crate::CommError;
use crate::transport::{Aligned, Bytes, HEADER, Message};

/// Bytes of sender and receiver.
const WAY: usize = 8;
/// In the receiver's place: a sign of life, with the number of ranks in the sender's.
const BEAT: u32 = u32::MAX;
/// Most ranks that a sign of life names.
const NAMED: usize = 1024;
/// Bytes of a body that are made room for before the first of them has come; then as many again as have come.
const ROOM: usize = 64 << 20;
/// Bytes of a body that are sealed at a time: while one side does so, the other has the part before, and both find theirs
/// in the processor's cache.
const PART: usize = 256 << 10;

/// A message on its way.
pub(super) struct Parcel {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) header: Box<[u8; HEADER]>,
    pub(super) body: Bytes,
}

/// What a connection brings.
pub(super) enum Frame {
    /// A message, for this rank or to be passed on.
    Parcel(Parcel),
    /// The other side lives, and has not heard from these ranks.
    Beat(Vec<usize>),
}

fn number(value: usize) -> [u8; 4] {
    u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes()
}

impl Parcel {
    /// Writes the message: from, to, header, seal; then the body with its seal, if there is one.
    pub(super) fn write(&self, out: &mut impl Write, seal: &mut Seal) -> io::Result<()> {
        let mut head = [0; WAY + HEADER];
        head[..4].copy_from_slice(&number(self.from));
        head[4..WAY].copy_from_slice(&number(self.to));
        head[WAY..].copy_from_slice(&*self.header);
        say(&mut head, out, seal)?;
        if self.body.is_empty() {
            return Ok(());
        }
        let mut piece = seal.piece();
        // The body may be read by others of this process, and is hidden in a copy.
        let mut hidden = if piece.hides() { vec![0; PART.min(self.body.as_bytes().len())] } else { vec![] };
        for part in self.body.as_bytes().chunks(PART) {
            piece = if piece.hides() {
                let hidden = &mut hidden[..part.len()];
                hidden.copy_from_slice(part);
                let piece = piece.hide(hidden)?;
                out.write_all(hidden)?;
                piece
            } else {
                out.write_all(part)?;
                piece.and(part)
            };
        }
        out.write_all(&piece.seal())
    }
}

/// Writes a sign of life.
pub(super) fn write_beat(silent: &[usize], out: &mut impl Write, seal: &mut Seal) -> io::Result<()> {
    let silent = &silent[..silent.len().min(NAMED)];
    let mut bytes = [number(silent.len()), BEAT.to_le_bytes()].concat();
    bytes.extend(silent.iter().flat_map(|&rank| number(rank)));
    say(&mut bytes, out, seal)
}

/// Writes a piece that is there as a whole, and its seal.
fn say(piece: &mut [u8], out: &mut impl Write, seal: &mut Seal) -> io::Result<()> {
    let proof = seal.piece().hide(piece)?.seal();
    out.write_all(piece)?;
    out.write_all(&proof)
}

impl Frame {
    /// The next frame from `stream`.
    pub(super) fn read(stream: &mut impl Read, seal: &mut Seal) -> io::Result<Self> {
        let mut head = [0; WAY + HEADER];
        stream.read_exact(&mut head[..WAY])?;
        let piece = seal.piece().reveal(&mut head[..WAY])?;
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let (from, to) = (number(0) as usize, number(4));
        if to == BEAT {
            return Self::read_beat(from, stream, piece);
        }
        hear(&mut head[WAY..], stream, piece)?;
        let mut header = Box::new([0; HEADER]);
        header.copy_from_slice(&head[WAY..]);
        let invalid = |error: CommError| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
        let bytes = Message::checked_body_bytes(from, &*header).map_err(invalid)?;
        let body = if bytes > 0 { read_body(stream, bytes, seal)? } else { Aligned::zeroed(0) };
        Ok(Self::Parcel(Parcel { from, to: to as usize, header, body: body.freeze() }))
    }

    fn read_beat(ranks: usize, stream: &mut impl Read, piece: Piece) -> io::Result<Self> {
        if ranks > NAMED {
            let what = format!("a sign of life with {ranks} ranks");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let mut bytes = vec![0; 4 * ranks];
        hear(&mut bytes, stream, piece)?;
        let words = bytes.chunks_exact(4).map(|four| [four[0], four[1], four[2], four[3]]);
        Ok(Self::Beat(words.map(|four| u32::from_le_bytes(four) as usize).collect()))
    }
}

/// Reads the rest of a piece, and its seal.
fn hear(rest: &mut [u8], stream: &mut impl Read, piece: Piece) -> io::Result<()> {
    stream.read_exact(rest)?;
    let piece = piece.reveal(rest)?;
    let mut proof = [0; SEAL];
    stream.read_exact(&mut proof)?;
    piece.check(proof)
}

/// Reads `bytes` bytes and their seal, into room that grows with what has come.
fn read_body(stream: &mut impl Read, bytes: usize, seal: &mut Seal) -> io::Result<Aligned> {
    let full =
        |_| io::Error::new(io::ErrorKind::OutOfMemory, format!("no memory for {bytes} bytes of a message"));
    // Pages that nothing is written to are not taken.
    let mut body = Aligned::zeroed(bytes.min(ROOM));
    let (mut came, mut piece) = (0, seal.piece());
    loop {
        for part in body.as_mut()[came..].chunks_mut(PART) {
            stream.read_exact(part)?;
            piece = piece.reveal(part)?;
        }
        came = body.as_ref().len();
        if came == bytes {
            let mut seal = [0; SEAL];
            stream.read_exact(&mut seal)?;
            piece.check(seal)?;
            return Ok(body);
        }
        body.try_grow(came.saturating_mul(2).min(bytes)).map_err(full)?;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Arc;

    use burnish_core::Dtype;

    use super::*;
    use crate::transport::MessageKind;
    use crate::{Call, Op};

    fn seals() -> (Seal, Seal) {
        (Seal::new([5; 32]), Seal::new([5; 32]))
    }

    fn parcel(elements: usize, body: Bytes) -> Parcel {
        let mut call = Call::new(Op::AllGather, Dtype::U8, "world", "", "bytes");
        call.elements = elements;
        let (kind, channel, phase, index, checksum) = (MessageKind::Call, 0, 0, 0, None);
        let message = Message { kind, channel, phase, index, call: Arc::new(call), checksum, body };
        Parcel { from: 1, to: 0, header: Box::new(message.header()), body: message.body }
    }

    fn written(parcel: &Parcel, seal: &mut Seal) -> Vec<u8> {
        let mut bytes = Vec::new();
        parcel.write(&mut bytes, seal).unwrap();
        bytes
    }

    #[test]
    fn frames_survive_the_wire() {
        let (ours, theirs) = seals();
        survive(ours, theirs, false);
        let (ours, theirs) = seals();
        survive(ours.hiding([9; 32]), theirs.hiding([9; 32]), true);
    }

    fn survive(mut ours: Seal, mut theirs: Seal, hidden: bool) {
        for length in [0, 1, 7, 4096, ROOM + 5] {
            let body = Bytes::from_vec((0..length).map(|at| at as u8).collect::<Vec<_>>());
            let parcel = parcel(length, body.clone());
            let bytes = written(&parcel, &mut ours);
            let seen = |part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
            assert_eq!(!hidden, seen(&parcel.header[..]));
            if length >= 64 {
                assert_eq!(!hidden, seen(&body.as_bytes()[..64]));
            }
            let Frame::Parcel(got) = Frame::read(&mut &bytes[..], &mut theirs).unwrap() else { panic!() };
            assert_eq!((got.from, got.to), (1, 0));
            assert!(got.body.as_bytes() == body.as_bytes());
        }
        let mut bytes = Vec::new();
        write_beat(&[3, 4], &mut bytes, &mut ours).unwrap();
        let Frame::Beat(ranks) = Frame::read(&mut &bytes[..], &mut theirs).unwrap() else { panic!() };
        assert_eq!(ranks, [3, 4]);
    }

    #[test]
    fn a_flipped_bit_and_a_frame_said_again_are_refused() {
        let body = Bytes::from_vec(vec![9_u8; 40]);
        let good = written(&parcel(40, body), &mut Seal::new([5; 32]));
        for bit in 0..8 * good.len() {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Frame::read(&mut &bytes[..], &mut Seal::new([5; 32])).is_err(), "bit {bit}");
        }
        let mut seal = Seal::new([5; 32]);
        assert!(Frame::read(&mut &good[..], &mut seal).is_ok());
        let error = Frame::read(&mut &good[..], &mut seal).err().unwrap().to_string();
        assert!(error.contains("its seal does not fit"), "{error}");
    }

    /// A head of 264 bytes that claims more than there is memory, as a stranger would send it and as a rank would.
    #[test]
    fn a_length_beyond_all_bounds_takes_no_memory() {
        let huge = parcel(usize::MAX, Bytes::empty());
        let mut header = huge.header.clone();
        header[40..48].copy_from_slice(&(1_u64 << 60).to_le_bytes());
        let head = [&number(1)[..], &number(0), &*header].concat();
        let stranger = [&head[..], &[0; 32]].concat();
        let error = Frame::read(&mut &stranger[..], &mut Seal::new([5; 32])).err().unwrap();
        assert!(error.to_string().contains("seal"), "{error}");
        let sealed = [&head[..], &Seal::new([5; 32]).next(&head)].concat();
        let error = Frame::read(&mut &sealed[..], &mut Seal::new([5; 32])).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "the bytes never come: {error}");
        // A call of few elements has no such message.
        let few = parcel(12, Bytes::empty());
        let mut header = few.header.clone();
        header[40..48].copy_from_slice(&13_u64.to_le_bytes());
        let head = [&number(1)[..], &number(0), &*header].concat();
        let sealed = [&head[..], &Seal::new([5; 32]).next(&head)].concat();
        let error = Frame::read(&mut &sealed[..], &mut Seal::new([5; 32])).err().unwrap();
        assert!(error.to_string().contains("body length = 13"), "{error}");
        let beats = [&number(NAMED + 1)[..], &BEAT.to_le_bytes()].concat();
        assert!(Frame::read(&mut &beats[..], &mut Seal::new([5; 32])).is_err());
    }
}
