//! Counted randomness: every value is a function of (seed, name, index).
//!
//! Nothing here has state, so a rank, a thread or a resumed run computes exactly the slice it needs.
//! [`Stream`] is Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, section 4);
//! [`dropout_row`] and [`dropout_bits`] are a cheaper 32-bit mix for masks that kernels generate in passing.

const PHILOX_M: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const PHILOX_W: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Philox-4x32-10: four words for one counter and key.
#[must_use]
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key[0] = key[0].wrapping_add(PHILOX_W[0]);
            key[1] = key[1].wrapping_add(PHILOX_W[1]);
        }
        let a = u64::from(PHILOX_M[0]) * u64::from(counter[0]);
        let b = u64::from(PHILOX_M[1]) * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
    }
    counter
}

/// FNV-1a, 64 bits: names to keys.
#[must_use]
pub const fn name_hash(name: &str) -> u64 {
    let bytes = name.as_bytes();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0100_0000_01b3);
        i += 1;
    }
    hash
}

/// A named stream of values addressed by index.
///
/// ```
/// use burnish_core::random::Stream;
/// let whole: Vec<f32> = (0..8).map(|i| Stream::new(42, "w").normal(i)).collect();
/// let shard: Vec<f32> = (4..8).map(|i| Stream::new(42, "w").normal(i)).collect();
/// assert_eq!(whole[4..], shard[..]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    seed: u64,
    name: u64,
}

impl Stream {
    /// The stream of `name` under `seed`.
    #[must_use]
    pub const fn new(seed: u64, name: &str) -> Self {
        Self { seed, name: name_hash(name) }
    }

    /// A sub-stream: the same name at another counter (a step, an epoch, a sample).
    #[must_use]
    pub fn at(self, counter: u64) -> Self {
        let [a, b, c, d] = philox(
            [counter as u32, (counter >> 32) as u32, 0x6275_726e, 0x6973_6821],
            [self.name as u32, (self.name >> 32) as u32],
        );
        Self {
            seed: self.seed ^ (u64::from(c) << 32 | u64::from(d)),
            name: u64::from(a) << 32 | u64::from(b),
        }
    }

    /// Four words at `block`.
    #[must_use]
    pub fn words(self, block: u64) -> [u32; 4] {
        philox(
            [block as u32, (block >> 32) as u32, self.name as u32, (self.name >> 32) as u32],
            [self.seed as u32, (self.seed >> 32) as u32],
        )
    }

    /// The `index`-th word.
    #[must_use]
    pub fn word(self, index: u64) -> u32 {
        self.words(index / 4)[(index % 4) as usize]
    }

    /// The `index`-th uniform value in `[0, 1)`, with 24 random bits.
    #[must_use]
    pub fn uniform(self, index: u64) -> f32 {
        (self.word(index) >> 8) as f32 * (1.0 / 16_777_216.0)
    }

    /// The `index`-th uniform value in `[0, 1)`, with 53 random bits.
    #[must_use]
    pub fn uniform_f64(self, index: u64) -> f64 {
        let w = self.words(index);
        let bits = (u64::from(w[0]) << 32 | u64::from(w[1])) >> 11;
        bits as f64 * (1.0 / 9_007_199_254_740_992.0)
    }

    /// The `index`-th standard normal value (Box–Muller on two words of its own block).
    #[must_use]
    pub fn normal(self, index: u64) -> f32 {
        let w = self.words(index);
        let u = (f64::from(w[0]) + 0.5) / 4_294_967_296.0;
        let v = f64::from(w[1]) / 4_294_967_296.0;
        ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
    }

    /// A permutation of `0..n`: Fisher–Yates with counted draws.
    #[must_use]
    pub fn permutation(self, n: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..n).collect();
        for i in (1..n).rev() {
            let j = (self.uniform_f64(i as u64) * (i as f64 + 1.0)) as usize;
            order.swap(i, j.min(i));
        }
        order
    }

    /// The key of a dropout site: (seed, name) folded into 64 bits. See [`dropout_row`].
    #[must_use]
    pub fn dropout_key(self) -> u64 {
        let w = self.words(u64::MAX);
        u64::from(w[0]) << 32 | u64::from(w[1])
    }
}

/// A 32-bit finaliser with low bias (C. Wellons, "Prospecting for hash functions", 2018).
#[inline(always)]
#[must_use]
pub const fn mix32(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x7feb_352d);
    x ^= x >> 15;
    x = x.wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// The row key of a dropout mask: `row` is the token's position in the step's global batch.
#[inline(always)]
#[must_use]
pub const fn dropout_row(key: u64, row: u64) -> u32 {
    let high = mix32((row >> 32) as u32 ^ (key >> 32) as u32);
    mix32(row as u32 ^ key as u32 ^ high.rotate_left(16))
}

/// The mask word at column `col` of a row: the element is dropped when it is below `p * 2^32`.
#[inline(always)]
#[must_use]
pub const fn dropout_bits(row_key: u32, col: u32) -> u32 {
    mix32(row_key ^ col.wrapping_mul(0x9E37_79B9))
}

/// The threshold of [`dropout_bits`] for drop probability `p`.
#[must_use]
pub fn dropout_threshold(p: f32) -> u32 {
    (f64::from(p) * 4_294_967_296.0).min(4_294_967_295.0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of Random123's kat_vectors for philox4x32-10.
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }

    #[test]
    fn moments() {
        let s = Stream::new(1, "moments");
        let n = 100_000;
        let (mut m, mut v, mut u) = (0.0, 0.0, 0.0);
        for i in 0..n {
            let x = f64::from(s.normal(i));
            m += x;
            v += x * x;
            u += f64::from(s.uniform(i));
        }
        assert!((m / n as f64).abs() < 0.01);
        assert!((v / n as f64 - 1.0).abs() < 0.02);
        assert!((u / n as f64 - 0.5).abs() < 0.005);
    }

    #[test]
    fn permutation_is_one_and_depends_on_the_counter() {
        let a = Stream::new(3, "shuffle").at(0).permutation(1000);
        let b = Stream::new(3, "shuffle").at(1).permutation(1000);
        let mut sorted = a.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..1000).collect::<Vec<_>>());
        assert_ne!(a, b);
    }

    #[test]
    fn dropout_rate() {
        let key = Stream::new(9, "site").dropout_key();
        let t = dropout_threshold(0.1);
        let mut dropped = 0;
        for row in 0..200 {
            let r = dropout_row(key, row);
            dropped += (0..500).filter(|&c| dropout_bits(r, c) < t).count();
        }
        assert!((dropped as f64 / 100_000.0 - 0.1).abs() < 0.005);
    }
}
