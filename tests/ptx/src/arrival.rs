//! `mbarrier`: barriers in shared memory that count arrivals and bytes.

/// What an object counts, as this interpreter keeps it in the object's eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrivals {
    /// Of each phase.
    expected: u32,
    /// Still to come in this phase.
    pending: u32,
    /// Bytes that are announced and have not come, or below 0 have come and are not announced.
    bytes: i32,
    /// Phases that are over, by their lowest bit.
    phase: bool,
}

/// Bits of a count.
const COUNT: u32 = 20;
const COUNTS: u64 = (1 << COUNT) - 1;
/// Added to bytes, so that they are not negative.
const MIDDLE: i32 = 1 << 21;

impl Arrivals {
    pub(crate) fn new(expected: u64) -> Self {
        let expected = (expected & COUNTS) as u32;
        Self { expected, pending: expected, bytes: 0, phase: false }
    }

    pub(crate) fn read(bits: u64) -> Self {
        Self {
            expected: (bits & COUNTS) as u32,
            pending: (bits >> COUNT & COUNTS) as u32,
            bytes: (bits >> (2 * COUNT) & ((1 << 22) - 1)) as i32 - MIDDLE,
            phase: bits >> 63 == 1,
        }
    }

    pub(crate) fn bits(self) -> u64 {
        u64::from(self.expected)
            | u64::from(self.pending) << COUNT
            | ((self.bytes + MIDDLE) as u64) << (2 * COUNT)
            | u64::from(self.phase) << 63
    }

    /// So many arrive and announce so many bytes; the phase that they arrive in.
    pub(crate) fn arrive(&mut self, count: u64, announced: i64) -> u64 {
        let phase = self.token();
        self.bytes += announced as i32;
        self.pending = self.pending.saturating_sub(count as u32);
        self.end();
        phase
    }

    /// Bytes have come.
    pub(crate) fn came(&mut self, bytes: u64) {
        self.bytes -= bytes as i32;
        self.end();
    }

    fn end(&mut self) {
        if self.pending == 0 && self.bytes == 0 {
            self.phase = !self.phase;
            self.pending = self.expected;
        }
    }

    /// What stands for the present phase.
    pub(crate) fn token(self) -> u64 {
        u64::from(self.phase)
    }

    /// Whether the phase that a token (or a parity) stands for is over.
    pub(crate) fn is_over(self, token: u64) -> bool {
        self.token() != token & 1
    }
}

#[cfg(test)]
mod tests {
    use super::Arrivals;

    #[test]
    fn a_phase_ends_with_its_last_arrival_and_its_last_byte() {
        let mut barrier = Arrivals::new(2);
        let token = barrier.arrive(1, 64);
        assert!(!barrier.is_over(token) && barrier.is_over(1));
        barrier.came(32);
        barrier.arrive(1, 0);
        let mut barrier = Arrivals::read(barrier.bits());
        assert!(!barrier.is_over(token));
        barrier.came(32);
        assert!(barrier.is_over(token));
        // The next phase; bytes that come before they are announced.
        barrier.came(16);
        let token = barrier.arrive(2, 16);
        assert!(barrier.is_over(token) && Arrivals::read(barrier.bits()) == barrier);
    }
}
