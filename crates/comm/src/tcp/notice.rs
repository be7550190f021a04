//! `Notice`: what rank 0 says to ranks that have proven who they are, until all have met.

use std::io::{self, Read};

use super::seal::{SEAL, Seal};

/// Most ranks that a notice names.
const NAMED: usize = 1024;
/// Bytes before a notice's words: its kind and their number.
pub(super) const HEAD: usize = 3;

/// How the meeting goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// All ranks have met.
    Welcome,
    /// These ranks are waited for.
    Waiting(Vec<usize>),
    /// These ranks did not come until rank 0's deadline.
    Missing(Vec<usize>),
    /// The first of these ranks ended; the others had not come by then.
    Ended(Vec<usize>),
    /// A rank said the first text where the second was expected.
    Contradiction(String, String),
}

impl Notice {
    /// The notice as it travels, sealed.
    pub(super) fn sealed(&self, seal: &mut Seal) -> Vec<u8> {
        let numbers = |ranks: &[usize]| -> Vec<u8> {
            let number = |&rank: &usize| u32::try_from(rank).unwrap_or(u32::MAX).to_le_bytes();
            ranks.iter().take(NAMED).flat_map(number).collect()
        };
        let (kind, words) = match self {
            Self::Welcome => (0, Vec::new()),
            Self::Waiting(ranks) => (1, numbers(ranks)),
            Self::Missing(ranks) => (2, numbers(ranks)),
            Self::Ended(ranks) => (3, numbers(ranks)),
            Self::Contradiction(got, expected) => (4, format!("{got}\n{expected}").into_bytes()),
        };
        let length = u16::try_from(words.len()).unwrap_or(u16::MAX);
        let mut bytes = vec![kind];
        bytes.extend(length.to_le_bytes());
        bytes.extend(&words[..usize::from(length)]);
        let seal = seal.next(&bytes);
        bytes.extend(seal);
        bytes
    }

    /// The next notice from `stream`.
    pub(super) fn read(stream: &mut impl Read, seal: &mut Seal) -> io::Result<Self> {
        let mut bytes = vec![0; HEAD];
        stream.read_exact(&mut bytes)?;
        let length = usize::from(u16::from_le_bytes([bytes[1], bytes[2]]));
        bytes.resize(HEAD + length, 0);
        stream.read_exact(&mut bytes[HEAD..])?;
        let mut proof = [0; SEAL];
        stream.read_exact(&mut proof)?;
        seal.check(&bytes, proof)?;
        let words = &bytes[HEAD..];
        let numbers = || {
            let numbers = words.chunks_exact(4).map(|four| [four[0], four[1], four[2], four[3]]);
            numbers.map(|four| u32::from_le_bytes(four) as usize).collect()
        };
        match bytes[0] {
            0 => Ok(Self::Welcome),
            1 => Ok(Self::Waiting(numbers())),
            2 => Ok(Self::Missing(numbers())),
            3 => Ok(Self::Ended(numbers())),
            4 => {
                let text = String::from_utf8_lossy(words);
                let (got, expected) = text.split_once('\n').unwrap_or((&text, ""));
                Ok(Self::Contradiction(got.to_owned(), expected.to_owned()))
            }
            other => Err(io::Error::new(io::ErrorKind::InvalidData, format!("a notice of kind {other}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn notices_survive_the_wire() {
        let (mut ours, mut theirs) = (Seal::new([1; 32]), Seal::new([1; 32]));
        for notice in [
            Notice::Welcome,
            Notice::Waiting(vec![1, 70_000]),
            Notice::Missing(vec![]),
            Notice::Ended(vec![2, 3]),
            Notice::Contradiction("it is rank 9".to_owned(), "a rank below 3".to_owned()),
        ] {
            let bytes = notice.sealed(&mut ours);
            assert_eq!(Notice::read(&mut &bytes[..], &mut theirs).unwrap(), notice);
        }
        let many = Notice::Missing((0..5000).collect()).sealed(&mut ours);
        let Notice::Missing(named) = Notice::read(&mut &many[..], &mut theirs).unwrap() else { panic!() };
        assert_eq!(named, (0..NAMED).collect::<Vec<_>>());
    }
}
