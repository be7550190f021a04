//! `EmbeddingNoise`: uniform noise on embeddings while training (NEFTune, Jain et al. 2023).

use burnish_core::random::Stream;
use burnish_ops::{AnyTensor, OpsError};

use crate::decoder::Tokens;
use crate::decoder::change::beside;

/// Noise from -m to m on every element of every embedding, where `m` is `alpha / sqrt(L d)`: `L` tokens of the sequence,
/// `d` elements of an embedding. Counted by (seed, step, token, element), so it is the same on any number of ranks; for
/// the same reason `L` is the sequence's own length, not that of the longest beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmbeddingNoise {
    /// `neftune_noise_alpha`.
    pub alpha: f64,
    /// The run's seed.
    pub seed: u64,
    /// The optimizer step.
    pub step: u64,
}

impl EmbeddingNoise {
    /// The largest magnitude for sequences of at most `length` tokens with `width` elements each.
    #[must_use]
    pub fn magnitude(&self, length: usize, width: usize) -> f64 {
        self.alpha / ((length * width).max(1) as f64).sqrt()
    }

    /// The noise of tokens with these counters, one after another.
    #[must_use]
    pub fn values(&self, counters: &[u64], length: usize, width: usize) -> Vec<f32> {
        let magnitude = self.magnitude(length, width);
        let stream = Stream::new(self.seed, "neftune").at(self.step);
        let mut values = Vec::with_capacity(counters.len() * width);
        for &counter in counters {
            let own = stream.at(counter);
            for block in 0..width.div_ceil(4) {
                let left = (width - 4 * block).min(4);
                // From the middle of each of 2^24 steps: without bias, and never the bound itself.
                let value = |word: u32| {
                    let unit = (f64::from(word >> 8) + 0.5) / f64::from(1_u32 << 24);
                    (magnitude * (2.0 * unit - 1.0)) as f32
                };
                values.extend(own.words(block as u64)[..left].iter().map(|&word| value(word)));
            }
        }
        values
    }

    /// Embeddings `[tokens, width]` with their noise.
    pub(crate) fn on(&self, x: &AnyTensor, tokens: &Tokens) -> Result<AnyTensor, OpsError> {
        let width = x.shape().last().copied().unwrap_or(0);
        let mut values = vec![0.0; tokens.rows.len() * width];
        for document in tokens.documents.iter().filter(|document| !document.is_empty()) {
            let length = tokens.positions[document.end - 1] as usize + 1;
            let own = self.values(&tokens.rows[document.clone()], length, width);
            values[document.start * width..document.end * width].copy_from_slice(&own);
        }
        let noise = AnyTensor::from_elements(values, &x.shape(), &x.plain().device());
        let noise = beside(&noise, x);
        let x = x.rank::<2>()?;
        let noise = noise.rank::<2>()?.cast(x.dtype());
        Ok(AnyTensor::new(x + noise))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A million values: bound, mean, and variance of a uniform distribution, and nothing shared between tokens and steps.
    #[test]
    fn uniform_within_the_bound_and_counted() {
        let noise = EmbeddingNoise { alpha: 5.0, seed: 3, step: 7 };
        let (length, width) = (100, 250);
        let bound = 5.0 / (25_000.0_f64).sqrt();
        assert!((noise.magnitude(length, width) - bound).abs() < 1e-15);
        let counters: Vec<u64> = (0..4000).map(|i| i << 32 | (i * 7)).collect();
        let values = noise.values(&counters, length, width);
        let n = values.len() as f64;
        assert!(values.iter().all(|&v| f64::from(v).abs() <= bound));
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let variance = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n;
        // Five standard errors.
        assert!(mean.abs() < 5.0 * bound / (3.0 * n).sqrt(), "mean {mean}");
        let expected = bound * bound / 3.0;
        assert!((variance / expected - 1.0).abs() < 5.0 * (0.8 / n).sqrt(), "variance {variance}");
        let most = values.iter().fold(0.0_f64, |m, &v| m.max(f64::from(v).abs()));
        assert!(most > 0.9999 * bound, "largest {most} of {bound}");

        assert_eq!(noise.values(&counters[17..18], length, width), values[17 * width..18 * width]);
        let other = EmbeddingNoise { step: 8, ..noise }.values(&counters, length, width);
        let same = values.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 10, "{same} values of another step");
    }
}
