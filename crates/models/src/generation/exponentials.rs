//! Exponentials of a whole vocabulary's logits: their sum, and where in it a share lies.

/// Logits of a block: its sum is known, and the token that a draw means is looked for in one.
const BLOCK: usize = 512;
/// Sums side by side, always as many: bits do not depend on the machine.
const LANES: usize = 16;
/// Below it an exponential is no normal number of f32, and is taken for 0.
const LEAST: f32 = -87.0;

/// `exp(logit / temperature - max)` of all logits, and their sums.
pub(super) struct Exponentials<'l> {
    logits: &'l [f32],
    temperature: f32,
    /// The largest `logit / temperature`.
    max: f32,
    /// Of blocks.
    sums: Vec<f64>,
    total: f64,
}

/// `e^x` of what is not above 0, to two units in the last place (Cephes' polynomial); 0 below [`LEAST`].
#[inline]
fn exp(x: f32) -> f32 {
    // Adding and taking off 1.5 * 2^23 rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    let bounded = x.max(LEAST);
    let power = (bounded * std::f32::consts::LOG2_E + ROUND) - ROUND;
    // The logarithm of 2 in two parts, of which the first has few bits.
    let r = bounded - power * 0.693_359_4 + power * 2.121_944_4e-4;
    let mut y = 1.987_569_2e-4;
    for factor in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        y = y * r + factor;
    }
    let y = y * r * r + r + 1.0;
    let two = f32::from_bits(((power as i32 + 127) as u32) << 23);
    if x < LEAST { 0.0 } else { y * two }
}

impl<'l> Exponentials<'l> {
    pub(super) fn new(logits: &'l [f32], temperature: f32) -> Self {
        let max = logits.iter().fold(f32::NEG_INFINITY, |max, logit| max.max(*logit)) / temperature;
        let mut own = Self { logits, temperature, max, sums: Vec::new(), total: 0.0 };
        own.sums = logits.chunks(BLOCK).map(|block| own.sum_of(block)).collect();
        own.total = own.sums.iter().sum();
        own
    }

    fn of(&self, logit: f32) -> f32 {
        exp(logit / self.temperature - self.max)
    }

    fn sum_of(&self, block: &[f32]) -> f64 {
        let mut sums = [0.0_f32; LANES];
        for lanes in block.chunks(LANES) {
            for (sum, &logit) in sums.iter_mut().zip(lanes) {
                *sum += self.of(logit);
            }
        }
        sums.iter().map(|&sum| f64::from(sum)).sum()
    }

    /// The logarithm of the sum of `exp(logit / temperature)`.
    pub(super) fn log_of_sum(&self) -> f64 {
        f64::from(self.max) + self.total.ln()
    }

    /// The first logit at which this share of the sum, below 1, is passed.
    pub(super) fn at(&self, share: f64) -> u32 {
        let (block, left) = place_of(self.sums.iter().copied(), share * self.total);
        let first = block * BLOCK;
        let logits = &self.logits[first..self.logits.len().min(first + BLOCK)];
        let (of_block, _) = place_of(logits.iter().map(|&logit| f64::from(self.of(logit))), left);
        (first + of_block) as u32
    }
}

/// The first of weights at which so much of their sum is passed, and how much of that is left there; the last above 0 where
/// rounding leaves none.
pub(super) fn place_of(weights: impl Iterator<Item = f64>, wanted: f64) -> (usize, f64) {
    let (mut passed, mut last) = (0.0, (0, 0.0));
    for (at, weight) in weights.enumerate() {
        if weight > 0.0 {
            last = (at, wanted - passed);
            if wanted < passed + weight {
                break;
            }
        }
        passed += weight;
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_those_of_f64_to_two_units_in_the_last_place() {
        for step in 0..80_000_u32 {
            let x = -(step as f32) / 920.0;
            let exact = f64::from(x).exp();
            let apart = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(apart < 2.5e-7, "{x}: {apart:e}");
        }
        assert_eq!([exp(f32::NEG_INFINITY), exp(-88.0), exp(0.0)], [0.0, 0.0, 1.0]);
    }
}
