//! Messages between pairs of ranks: what an engine without collectives of its own has to offer.

use std::sync::Arc;
use std::time::Duration;

use burnish_core::Dtype;

use crate::call::{LONG, SHORT};
use crate::transport::{Bytes, Inbox};
use crate::{Call, CommError, Op, Reduction};

/// Bytes of a message's header on a wire; a multiple of eight, so that what follows stays aligned.
pub const HEADER: usize = 256;

const MAGIC: u64 = u32::from_le_bytes(*b"BRN1") as u64;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// Part of a call.
    Call,
    /// A rank has failed, mostly the sender; the body is its message.
    Failed,
    /// The sender has seen that ranks disagree; the body is its message.
    Disagreed,
    /// The sender has ended in good order; nothing will come from it.
    Left,
}

/// What one rank sends to another.
#[derive(Clone, Debug)]
pub struct Message {
    /// What it is.
    pub kind: MessageKind,
    /// The channel's hash.
    pub channel: u64,
    /// 0, or from 1 on for the pieces in the second round of an all_reduce.
    pub phase: u8,
    /// Which call of the sender to this receiver on this channel the message belongs to; in other kinds than
    /// [`MessageKind::Call`] the rank that the message is about.
    pub index: u64,
    /// The sender's call.
    pub call: Arc<Call>,
    /// The body's checksum, if asked for.
    pub checksum: Option<u64>,
    /// The elements.
    pub body: Bytes,
}

/// An engine that moves messages between pairs of ranks: memory, MPI. [`PointToPoint`](crate::transport::PointToPoint) makes a
/// [`Transport`](crate::transport::Transport) of it.
///
/// The contract:
/// * [`Link::post`] takes the message over and returns without waiting for the receiver; the body stays alive (it is
///   reference-counted) as long as the link needs it.
/// * Messages may overtake each other (each says which call it belongs to), except that one of a kind other than
///   [`MessageKind::Call`] must not overtake what the same sender posted to the same receiver before it.
/// * What arrives goes to this rank's [`Inbox`] by [`Inbox::deliver`]: from any thread, or within [`Link::poll`].
pub trait Link: Send + Sync {
    /// The transport's name.
    fn name(&self) -> &'static str;

    /// This rank in the world.
    fn rank(&self) -> usize;

    /// Ranks of the world.
    fn size(&self) -> usize;

    /// Where this rank's messages arrive.
    fn inbox(&self) -> &Inbox;

    /// Hands a message over for rank `to`, never this rank itself.
    ///
    /// # Errors
    /// What the engine reports.
    fn post(&self, to: usize, message: Message) -> Result<(), CommError>;

    /// Called once per call before its first message: where a fault plan steps in.
    ///
    /// # Errors
    /// What ends the call before it starts.
    fn begin(&self, call: &Call) -> Result<(), CommError> {
        let _ = call;
        Ok(())
    }

    /// Moves things forward without blocking; waiting threads call it.
    ///
    /// # Errors
    /// What the engine reports.
    fn poll(&self) -> Result<(), CommError> {
        Ok(())
    }

    /// How often a waiting thread must wake up to [`Link::poll`]; `None` if messages arrive by themselves.
    fn poll_every(&self) -> Option<Duration> {
        None
    }

    /// The ranks whose processes are stopped, as far as this one can know: not even signs of life come from them.
    fn stopped(&self) -> Vec<usize> {
        Vec::new()
    }

    /// The last words are posted: see them off, for at most `deadline`.
    fn close(&self, deadline: Duration) {
        let _ = deadline;
    }
}

/// Most bytes of what a rank says of its end.
pub(crate) const WORDS: usize = 64 << 10;

const OPS: usize = Op::ALL.len();
const REDUCTIONS: [Reduction; 5] =
    [Reduction::Sum, Reduction::SumF64, Reduction::Mean, Reduction::Max, Reduction::Min];
const DTYPES: [Dtype; 7] =
    [Dtype::F64, Dtype::F32, Dtype::Bf16, Dtype::F16, Dtype::I64, Dtype::I32, Dtype::U8];
const KINDS: [MessageKind; 4] =
    [MessageKind::Call, MessageKind::Failed, MessageKind::Disagreed, MessageKind::Left];
const NONE: u8 = u8::MAX;

fn place<T: PartialEq>(all: &[T], value: &T) -> u8 {
    all.iter().position(|one| one == value).map_or(NONE, |place| place as u8)
}

impl Message {
    /// The header as it travels: fixed size, little endian.
    #[must_use]
    pub fn header(&self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let call = &*self.call;
        bytes[..4].copy_from_slice(b"BRN1");
        bytes[4] = place(&KINDS, &self.kind);
        bytes[5] = self.phase;
        bytes[6] = place(&Op::ALL, &call.op);
        bytes[7] = call.reduction.map_or(NONE, |reduction| place(&REDUCTIONS, &reduction));
        bytes[8] = place(&DTYPES, &call.dtype);
        bytes[9] = u8::from(self.checksum.is_some());
        let words = [
            self.channel,
            self.index,
            self.checksum.unwrap_or(0),
            self.body.len() as u64,
            call.elements as u64,
            call.counts,
            call.names,
            call.root.map_or(u64::MAX, |root| root as u64),
            call.sequence,
        ];
        for (slot, word) in bytes[16..].chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        for (at, most, text) in
            [(88, SHORT, &call.axis), (112, SHORT, &call.channel), (136, LONG, &call.what)]
        {
            let length = text.len().min(most);
            bytes[at] = length as u8;
            bytes[at + 1..at + 1 + length].copy_from_slice(&text.as_bytes()[..length]);
        }
        bytes
    }

    /// Bytes of the body that follows `header`, which came from rank `from`.
    ///
    /// # Errors
    /// [`CommError::Header`] if burnish did not write it.
    pub fn body_bytes(from: usize, header: &[u8]) -> Result<usize, CommError> {
        let magic = u64::from(u32::from_le_bytes(head(from, header, 0)?));
        if magic != MAGIC {
            return Err(CommError::Header { from, field: "magic", got: magic, expected: "`BRN1`" });
        }
        Ok(word(from, header, 3)? as usize)
    }

    /// As [`Message::body_bytes`], and no more than the message's call has elements.
    ///
    /// # Errors
    /// [`CommError::Header`] if burnish did not write it, or it claims more.
    pub fn checked_body_bytes(from: usize, header: &[u8]) -> Result<usize, CommError> {
        let got = Self::body_bytes(from, header)?;
        let (kind, dtype) = (header.get(4).copied(), header.get(8).copied());
        let most = if kind == Some(place(&KINDS, &MessageKind::Call)) {
            let dtype = DTYPES.get(usize::from(dtype.unwrap_or(NONE)));
            let elements = usize::try_from(word(from, header, 4)?).unwrap_or(usize::MAX);
            elements.saturating_mul(dtype.map_or(0, |dtype| dtype.bytes()))
        } else {
            WORDS
        };
        if got <= most {
            return Ok(got);
        }
        let expected = "no more bytes than the call has elements";
        Err(CommError::Header { from, field: "body length", got: got as u64, expected })
    }

    /// The message with `header` and `body` from rank `from`.
    ///
    /// # Errors
    /// [`CommError::Header`] if burnish did not write it.
    pub fn decode(from: usize, header: &[u8], body: Bytes) -> Result<Self, CommError> {
        let expected = Self::body_bytes(from, header)?;
        if expected != body.len() {
            let got = body.len() as u64;
            return Err(CommError::Header {
                from,
                field: "body length",
                got,
                expected: "the length in its header",
            });
        }
        let pick = |at: usize, count: usize, field| {
            let code = header[at];
            if usize::from(code) < count {
                Ok(usize::from(code))
            } else {
                Err(CommError::Header { from, field, got: u64::from(code), expected: "a known code" })
            }
        };
        if header.len() < HEADER {
            let got = header.len() as u64;
            return Err(CommError::Header { from, field: "header length", got, expected: "256" });
        }
        let text = |at: usize, most: usize, field| {
            let length = usize::from(header[at]);
            let bytes = header.get(at + 1..at + 1 + length).filter(|_| length <= most);
            bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()).map(str::to_owned).ok_or(
                CommError::Header { from, field, got: length as u64, expected: "a UTF-8 text that fits" },
            )
        };
        let root = word(from, header, 7)?;
        let call = Call {
            op: Op::ALL[pick(6, OPS, "operation")?],
            reduction: match header[7] {
                NONE => None,
                _ => Some(REDUCTIONS[pick(7, REDUCTIONS.len(), "reduction")?]),
            },
            dtype: DTYPES[pick(8, DTYPES.len(), "dtype")?],
            elements: word(from, header, 4)? as usize,
            counts: word(from, header, 5)?,
            names: word(from, header, 6)?,
            root: (root != u64::MAX).then_some(root as usize),
            sequence: word(from, header, 8)?,
            axis: text(88, SHORT, "axis")?,
            channel: text(112, SHORT, "channel")?,
            what: text(136, LONG, "name")?,
        };
        Ok(Self {
            kind: KINDS[pick(4, KINDS.len(), "kind")?],
            channel: word(from, header, 0)?,
            phase: header[5],
            index: word(from, header, 1)?,
            checksum: if header[9] == 1 { Some(word(from, header, 2)?) } else { None },
            call: Arc::new(call),
            body,
        })
    }
}

fn head<const N: usize>(from: usize, header: &[u8], at: usize) -> Result<[u8; N], CommError> {
    header.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).ok_or(CommError::Header {
        from,
        field: "header length",
        got: header.len() as u64,
        expected: "256",
    })
}

fn word(from: usize, header: &[u8], index: usize) -> Result<u64, CommError> {
    Ok(u64::from_le_bytes(head(from, header, 16 + 8 * index)?))
}

/// The checksum of a body: the first eight bytes of its BLAKE3 hash.
pub(crate) fn checksum(body: &Bytes) -> u64 {
    let hash = blake3::hash(body.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hash.as_bytes()[..8]);
    u64::from_le_bytes(first)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn message(what: &str) -> Message {
        let mut call = Call::new(Op::ReduceScatter, Dtype::Bf16, "dp", "reduce", what);
        call.elements = 12;
        call.counts = 77;
        call.reduction = Some(Reduction::Mean);
        call.root = Some(3);
        call.sequence = 1 << 40;
        let body = Bytes::from_vec(vec![1_u64, 2]);
        let checksum = Some(checksum(&body));
        Message {
            kind: MessageKind::Call,
            channel: 5,
            phase: 2,
            index: 9,
            call: Arc::new(call),
            checksum,
            body,
        }
    }

    #[test]
    fn headers_survive_the_wire() {
        let long = "ä".repeat(500);
        for what in ["", "model.embed_tokens.weight", &long] {
            let sent = message(what);
            let header = sent.header();
            assert_eq!(Message::body_bytes(1, &header).unwrap(), 16);
            let got = Message::decode(1, &header, sent.body.clone()).unwrap();
            assert_eq!(got.call, sent.call);
            assert_eq!(got.call.difference(&sent.call), None);
            assert_eq!(
                (got.kind, got.channel, got.phase, got.index, got.checksum),
                (sent.kind, sent.channel, sent.phase, sent.index, sent.checksum)
            );
        }
        // names that agree as far as a header shows them still differ
        let other = message(&format!("{long}x"));
        assert_eq!(other.call.what, message(&long).call.what);
        assert!(other.call.difference(&message(&long).call).is_some());
    }

    #[test]
    fn foreign_headers_are_refused() {
        let sent = message("a");
        let header = sent.header();
        assert!(Message::decode(1, &header, Bytes::empty()).is_err());
        for length in 0..HEADER {
            assert!(Message::decode(1, &header[..length], sent.body.clone()).is_err(), "{length}");
        }
        for (at, value) in [(0, b'X'), (4, 9), (6, 99), (7, 9), (8, 7), (88, 24), (112, 255), (136, 120)] {
            let mut foreign = header;
            foreign[at] = value;
            let error = Message::decode(7, &foreign, sent.body.clone()).unwrap_err().to_string();
            assert!(error.contains("rank 7"), "{error}");
        }
    }
}
