//! The hello: a rank and rank 0 prove to each other that they have the job's secret, and get the keys of their session.
//!
//! | from | to | bytes |
//! |---|---|---|
//! | rank 0 | whoever came | `BRN3`, a nonce |
//! | the rank | rank 0 | `BRN3`, rank, ranks of the world, whether it encrypts (4 bytes each), a nonce, a proof |
//! | rank 0 | the rank | `yes!`, a proof; or `no!!`, and the connection ends |
//!
//! Nonces and proofs are 32 bytes. A proof is BLAKE3, keyed by the secret, of who gives it and everything said before it;
//! so are the keys of the session, which are of this rank, this connection and one direction (two of each, to seal and to
//! hide). Rank 0 says nothing that
//! depends on the secret before the other side has proven that it has it.

use super::seal::Seal;
use super::secret::Secret;

const MAGIC: [u8; 4] = *b"BRN3";
pub(super) const YES: [u8; 4] = *b"yes!";
pub(super) const NO: [u8; 4] = *b"no!!";
/// Bytes of a nonce, a proof, a key.
const WORD: usize = 32;
/// Bytes of rank 0's first words.
pub(super) const CHALLENGE: usize = 4 + WORD;
/// Bytes of the other rank's.
pub(super) const ANSWER: usize = CLAIM + WORD;
/// Bytes of an answer before its proof.
const CLAIM: usize = 16 + WORD;
/// Bytes of rank 0's proof behind `yes!`.
pub(super) const PROOF: usize = WORD;

/// Who a rank says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) rank: u32,
    pub(super) size: u32,
    /// Whether it hides what it says.
    pub(super) encrypts: bool,
}

/// Both directions of a session, as one side has them.
pub(super) struct Session {
    /// For what this side says.
    pub(super) says: Seal,
    /// For what it hears.
    pub(super) hears: Seal,
    /// To hide both.
    ciphers: [[u8; WORD]; 2],
}

impl Session {
    fn new(says: Keys, hears: Keys) -> Self {
        Self { says: says.seal(), hears: hears.seal(), ciphers: [says.cipher, hears.cipher] }
    }

    /// The session once all have met: what is said from here on is hidden, where ranks `encrypt`.
    pub(super) fn settled(self, encrypt: bool) -> Self {
        if !encrypt {
            return self;
        }
        let [says, hears] = self.ciphers;
        Self { says: self.says.hiding(says), hears: self.hears.hiding(hears), ..self }
    }
}

/// Rank 0's first words.
pub(super) fn challenge(nonce: &[u8; WORD]) -> [u8; CHALLENGE] {
    let mut bytes = [0; CHALLENGE];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..].copy_from_slice(nonce);
    bytes
}

/// Whether the first bytes, however few there are yet, may be a hello's.
pub(super) fn may_be(bytes: &[u8]) -> bool {
    bytes.iter().zip(&MAGIC).all(|(got, expected)| got == expected)
}

/// What a rank answers, and what it keeps to check rank 0's proof.
pub(super) fn answer(
    secret: &Secret,
    claim: Claim,
    challenge: &[u8; CHALLENGE],
    nonce: &[u8; WORD],
) -> ([u8; ANSWER], Said) {
    let mut bytes = [0; ANSWER];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[4..8].copy_from_slice(&claim.rank.to_le_bytes());
    bytes[8..12].copy_from_slice(&claim.size.to_le_bytes());
    bytes[12..16].copy_from_slice(&u32::from(claim.encrypts).to_le_bytes());
    bytes[16..CLAIM].copy_from_slice(nonce);
    let proof = word(secret, b"rank", &[challenge, &bytes[..CLAIM]]);
    bytes[CLAIM..].copy_from_slice(proof.as_bytes());
    let said = Said::of(secret, challenge, &bytes);
    (bytes, said)
}

/// Who answered, and what was said; `None` if the proof is not one.
pub(super) fn judge(
    secret: &Secret,
    challenge: &[u8; CHALLENGE],
    answer: &[u8; ANSWER],
) -> Option<(Claim, Said)> {
    let number = |at: usize| u32::from_le_bytes([answer[at], answer[at + 1], answer[at + 2], answer[at + 3]]);
    let mut proof = [0; WORD];
    proof.copy_from_slice(&answer[CLAIM..]);
    // `blake3::Hash` compares in constant time.
    let fits = word(secret, b"rank", &[challenge, &answer[..CLAIM]]) == proof;
    let claim = Claim { rank: number(4), size: number(8), encrypts: number(12) != 0 };
    fits.then(|| (claim, Said::of(secret, challenge, answer)))
}

/// A hello that both sides have spoken.
pub(super) struct Said {
    proof: blake3::Hash,
    to_rank_0: Keys,
    from_rank_0: Keys,
}

/// Of one direction.
struct Keys {
    seal: [u8; WORD],
    /// To hide what is said, where it is to be.
    cipher: [u8; WORD],
}

impl Keys {
    fn seal(&self) -> Seal {
        Seal::new(self.seal)
    }
}

impl Said {
    fn of(secret: &Secret, challenge: &[u8; CHALLENGE], answer: &[u8; ANSWER]) -> Self {
        let word = |of: &[u8]| word(secret, of, &[challenge, answer]);
        Self {
            proof: word(b"rank 0"),
            to_rank_0: Keys { seal: word(b"to rank 0").into(), cipher: word(b"to rank 0, hidden").into() },
            from_rank_0: Keys {
                seal: word(b"from rank 0").into(),
                cipher: word(b"from rank 0, hidden").into(),
            },
        }
    }

    /// Rank 0's proof.
    pub(super) fn proof(&self) -> [u8; PROOF] {
        self.proof.into()
    }

    /// The session as the rank has it, if the proof is rank 0's.
    pub(super) fn at_rank(self, proof: [u8; PROOF]) -> Option<Session> {
        let fits = self.proof == proof;
        fits.then(|| Session::new(self.to_rank_0, self.from_rank_0))
    }

    /// The session as rank 0 has it.
    pub(super) fn at_rank_0(self) -> Session {
        Session::new(self.from_rank_0, self.to_rank_0)
    }
}

fn word(secret: &Secret, of: &[u8], parts: &[&[u8]]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new_keyed(secret.key());
    // Lengths, so that nothing can be read as something else.
    for part in std::iter::once(&of).chain(parts) {
        hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
    }
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    const CLAIM_OF_2: Claim = Claim { rank: 2, size: 3, encrypts: true };

    fn secret(text: &str) -> Secret {
        Secret::new(text.as_bytes()).unwrap()
    }

    #[test]
    fn both_sides_get_the_same_keys_and_each_direction_its_own() {
        let secret = secret("a secret of some length");
        let challenge = challenge(&[1; 32]);
        let (answer, said) = answer(&secret, CLAIM_OF_2, &challenge, &[2; 32]);
        let (claim, heard) = judge(&secret, &challenge, &answer).unwrap();
        assert_eq!(claim, CLAIM_OF_2);
        let proof = heard.proof();
        let (mut rank, mut zero) = (said.at_rank(proof).unwrap(), heard.at_rank_0());
        zero.hears.check(b"up", rank.says.next(b"up")).unwrap();
        rank.hears.check(b"down", zero.says.next(b"down")).unwrap();
        // What a rank says cannot be said back to it.
        let said = rank.says.next(b"again");
        assert!(rank.hears.check(b"again", said).is_err());
    }

    #[test]
    fn nothing_but_the_secret_and_these_words_is_a_proof() {
        let (ours, theirs) = (secret("a secret of some length"), secret("another secret of that length"));
        let asked = challenge(&[1; 32]);
        let (said, _) = answer(&theirs, CLAIM_OF_2, &asked, &[2; 32]);
        assert!(judge(&ours, &asked, &said).is_none(), "another secret");
        let (said, _) = answer(&ours, CLAIM_OF_2, &asked, &[2; 32]);
        assert!(judge(&ours, &challenge(&[3; 32]), &said).is_none(), "an answer of another meeting");
        for bit in 32..8 * ANSWER {
            let mut changed = said;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(judge(&ours, &asked, &changed).is_none(), "bit {bit}");
        }
        // Rank 0's proof is of this answer: one to another rank's is none.
        let (_, kept) = answer(&ours, CLAIM_OF_2, &asked, &[2; 32]);
        let (other, _) = answer(&ours, Claim { rank: 1, ..CLAIM_OF_2 }, &asked, &[2; 32]);
        let (_, heard) = judge(&ours, &asked, &other).unwrap();
        assert!(kept.at_rank(heard.proof()).is_none());
        // Nor is a rank's own proof said back.
        let (own, kept) = answer(&ours, CLAIM_OF_2, &asked, &[2; 32]);
        let mut back = [0; PROOF];
        back.copy_from_slice(&own[CLAIM..]);
        assert!(kept.at_rank(back).is_none());
    }

    #[test]
    fn a_beginning_may_still_become_a_hello() {
        assert!(may_be(b"") && may_be(b"BR") && may_be(b"BRN3 and more"));
        assert!(!may_be(b"G") && !may_be(b"BRNT"));
    }
}
