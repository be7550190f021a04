//! MT19937 (Matsumoto and Nishimura 1998), which PyTorch draws with on the CPU.

const WORDS: usize = 624;

/// A generator of words of 32 bits.
pub(crate) struct Mt19937 {
    state: [u32; WORDS],
    at: usize,
}

impl Mt19937 {
    /// The generator of a seed, of which the lower 32 bits count.
    pub(crate) fn new(seed: u64) -> Self {
        let mut state = [0_u32; WORDS];
        state[0] = seed as u32;
        for at in 1..WORDS {
            let before = state[at - 1];
            state[at] = 1_812_433_253_u32.wrapping_mul(before ^ (before >> 30)).wrapping_add(at as u32);
        }
        Self { state, at: WORDS }
    }

    pub(crate) fn next(&mut self) -> u32 {
        if self.at == WORDS {
            self.twist();
        }
        let mut word = self.state[self.at];
        self.at += 1;
        word ^= word >> 11;
        word ^= (word << 7) & 0x9d2c_5680;
        word ^= (word << 15) & 0xefc6_0000;
        word ^ (word >> 18)
    }

    fn twist(&mut self) {
        for at in 0..WORDS {
            let joined = (self.state[at] & 0x8000_0000) | (self.state[(at + 1) % WORDS] & 0x7fff_ffff);
            let odd = if joined & 1 == 1 { 0x9908_b0df } else { 0 };
            self.state[at] = self.state[(at + 397) % WORDS] ^ (joined >> 1) ^ odd;
        }
        self.at = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::Mt19937;

    /// The ten thousandth word of the default seed, as C++'s standard states it of `std::mt19937`.
    #[test]
    fn the_standard_s_word() {
        let mut generator = Mt19937::new(5489);
        let last = (0..10_000).map(|_| generator.next()).last();
        assert_eq!(last, Some(4_123_659_995));
    }
}
