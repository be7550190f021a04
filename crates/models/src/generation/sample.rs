//! From logits to the next token: Transformers' processors in Transformers' order.
//!
//! Repetition penalty, temperature, top-k, top-p, min-p; then the first maximum, or a draw that is a function of
//! (seed, row, position).

use std::cmp::Ordering;

use burnish_core::random::Stream;

use crate::ModelError;
use crate::generation::exponentials::{Exponentials, place_of};

/// How tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Draw instead of taking the maximum.
    pub do_sample: bool,
    /// Divides the logits when drawing.
    pub temperature: f32,
    /// Keep the `k` largest; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Drop tokens below this fraction of the largest probability.
    pub min_p: Option<f32>,
    /// Makes seen tokens less likely when above 1.
    pub repetition_penalty: f32,
    /// The seed of the draws.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            do_sample: false,
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: None,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// The next token of row `row` at `position`, given its logits `[vocab]` and the tokens so far.
    #[must_use]
    pub fn next(&self, logits: &mut [f32], so_far: &[u32], row: u64, position: u64) -> u32 {
        if self.repetition_penalty != 1.0 {
            self.penalise(logits, so_far);
        }
        if !self.do_sample {
            return first_maximum(logits);
        }
        let draw = self.uniform(row, position);
        if self.keeps_all(logits.len()) {
            return Exponentials::new(logits, self.temperature).at(draw);
        }
        let probabilities = self.probabilities(logits);
        let total: f64 = probabilities.iter().map(|&(_, p)| p).sum();
        let (at, _) = place_of(probabilities.iter().map(|&(_, p)| p), draw * total);
        probabilities.get(at).map_or(0, |&(token, _)| token)
    }

    /// What says which token row `row` draws at `position`: from 0 to 1.
    pub(super) fn uniform(&self, row: u64, position: u64) -> f64 {
        Stream::new(self.seed, "sample").at(row).uniform_f64(position)
    }

    /// What divides logits: the temperature where tokens are drawn.
    pub(super) fn divisor(&self) -> f32 {
        if self.do_sample { self.temperature } else { 1.0 }
    }

    /// Whether logits are taken as the model gives them, all of so many or the largest.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(super) fn draws_of_all(&self, vocab: usize) -> bool {
        self.repetition_penalty == 1.0 && (!self.do_sample || self.keeps_all(vocab))
    }

    /// Whether every token of so many may be drawn.
    fn keeps_all(&self, vocab: usize) -> bool {
        (self.top_k == 0 || self.top_k >= vocab) && self.top_p >= 1.0 && self.min_p.is_none()
    }

    /// The probabilities `[vocab]` that [`Self::next`] draws from: all its processors, then a softmax.
    #[must_use]
    pub fn distribution(&self, logits: &[f32], so_far: &[u32]) -> Vec<f32> {
        let mut logits = logits.to_vec();
        if self.repetition_penalty != 1.0 {
            self.penalise(&mut logits, so_far);
        }
        let kept = self.probabilities(&logits);
        let total: f64 = kept.iter().map(|&(_, p)| p).sum();
        let mut all = vec![0.0; logits.len()];
        for (token, p) in kept {
            all[token as usize] = (p / total) as f32;
        }
        all
    }

    /// The log-probability of `token` given the model's logits `[vocab]`: at this temperature where tokens are drawn, over
    /// the whole vocabulary, before anything is penalised or left out. What a loss at the same temperature computes.
    #[must_use]
    pub fn log_prob(&self, logits: &[f32], token: u32) -> f32 {
        self.log_probs(logits)(logits[token as usize])
    }

    /// What makes a log-probability of a logit among `logits`.
    fn log_probs(&self, logits: &[f32]) -> impl Fn(f32) -> f32 + use<> {
        let by = self.divisor();
        let total = Exponentials::new(logits, by).log_of_sum();
        move |logit| (f64::from(logit / by) - total) as f32
    }

    /// The `count` likeliest tokens with their log-probabilities as [`Self::log_prob`] has them, the likeliest first; of equal
    /// ones those with the smaller number.
    #[must_use]
    pub fn top_log_probs(&self, logits: &[f32], count: usize) -> Vec<(u32, f32)> {
        let count = count.min(logits.len());
        if count == 0 {
            return Vec::new();
        }
        let mut all: Vec<(u32, f32)> = logits.iter().enumerate().map(|(i, &l)| (i as u32, l)).collect();
        all.select_nth_unstable_by(count - 1, largest_first);
        all.truncate(count);
        all.sort_unstable_by(largest_first);
        let log_prob = self.log_probs(logits);
        all.into_iter().map(|(token, logit)| (token, log_prob(logit))).collect()
    }

    fn penalise(&self, logits: &mut [f32], so_far: &[u32]) {
        let mut done = vec![0_u64; logits.len().div_ceil(64)];
        for &token in so_far {
            let (word, bit) = (token as usize / 64, 1 << (token % 64));
            if done[word] & bit == 0 {
                done[word] |= bit;
                let logit = &mut logits[token as usize];
                let penalty = self.repetition_penalty;
                *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
            }
        }
    }

    /// The kept tokens and their (unnormalised) probabilities, in an order that depends on the logits alone.
    fn probabilities(&self, logits: &[f32]) -> Vec<(u32, f64)> {
        let mut kept: Vec<(u32, f32)> =
            logits.iter().enumerate().map(|(i, &l)| (i as u32, l / self.temperature)).collect();
        if self.top_k > 0 && self.top_k < kept.len() {
            let (_, &mut (_, least), _) = kept.select_nth_unstable_by(self.top_k - 1, largest_first);
            // Ties with the k-th stay.
            kept.retain(|&(_, l)| l >= least);
            kept.sort_unstable_by(largest_first);
        }
        let max = kept.iter().fold(f32::NEG_INFINITY, |m, k| m.max(k.1));
        let weight = |l: f32| f64::from(l - max).exp();
        if self.top_p < 1.0 {
            let total: f64 = kept.iter().map(|k| weight(k.1)).sum();
            keep_likeliest(&mut kept, f64::from(self.top_p) * total, weight);
        }
        let mut weighted: Vec<(u32, f64)> = kept.into_iter().map(|(t, l)| (t, weight(l))).collect();
        if let Some(min_p) = self.min_p {
            // The largest weight is 1 by construction.
            weighted.retain(|&(_, w)| w >= f64::from(min_p));
        }
        weighted
    }

    /// Whether every setting is in range.
    pub(crate) fn check(&self) -> Result<(), ModelError> {
        let fraction = |p: f32| (0.0..=1.0).contains(&p);
        let wrong = |name, got, expected| Err(ModelError::Sampling { name, got, expected });
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return wrong("repetition_penalty", self.repetition_penalty, "a positive number");
        }
        if !self.do_sample {
            return Ok(());
        }
        if !(self.temperature > 0.0 && self.temperature.is_finite()) {
            return wrong(
                "temperature",
                self.temperature,
                "a positive number (or do_sample false for the maximum)",
            );
        }
        if !fraction(self.top_p) {
            return wrong("top_p", self.top_p, "a number from 0 to 1");
        }
        match self.min_p {
            Some(p) if !fraction(p) => wrong("min_p", p, "a number from 0 to 1"),
            _ => Ok(()),
        }
    }
}

fn largest_first(a: &(u32, f32), b: &(u32, f32)) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Keeps the smallest set of the likeliest tokens whose weights reach `wanted` (at least one), largest first; sorts no
/// more of the vocabulary than that takes.
fn keep_likeliest(kept: &mut Vec<(u32, f32)>, wanted: f64, weight: impl Fn(f32) -> f64) {
    let (mut sorted, mut run, mut before) = (0, 256, 0.0);
    while sorted < kept.len() {
        let end = kept.len().min(sorted + run);
        if end < kept.len() {
            kept[sorted..].select_nth_unstable_by(end - sorted - 1, largest_first);
        }
        kept[sorted..end].sort_unstable_by(largest_first);
        for i in sorted..end {
            if i > 0 && before >= wanted {
                kept.truncate(i);
                return;
            }
            before += weight(kept[i].1);
        }
        (sorted, run) = (end, 4 * run);
    }
}

/// The first of the largest logits.
#[must_use]
pub fn first_maximum(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &l) in logits.iter().enumerate() {
        if l > logits[best] {
            best = i;
        }
    }
    best as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(sampling: &Sampling, logits: &[f32]) -> Vec<u32> {
        sampling.probabilities(logits).iter().map(|k| k.0).collect()
    }

    #[test]
    fn filters_keep_what_transformers_keeps() {
        let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].iter().map(|p| p.ln()).collect();
        let base = Sampling { do_sample: true, ..Sampling::default() };
        assert_eq!(kept(&Sampling { top_k: 2, ..base.clone() }, &logits), [0, 1]);
        // Ties with the k-th are kept.
        assert_eq!(kept(&Sampling { top_k: 3, ..base.clone() }, &logits), [0, 1, 2, 3]);
        assert_eq!(kept(&Sampling { top_p: 0.5, ..base.clone() }, &logits), [0]);
        assert_eq!(kept(&Sampling { top_p: 0.51, ..base.clone() }, &logits), [0, 1]);
        assert_eq!(kept(&Sampling { top_p: 0.0, ..base.clone() }, &logits), [0]);
        assert_eq!(kept(&Sampling { min_p: Some(0.4), ..base.clone() }, &logits), [0, 1]);
    }

    #[test]
    fn draws_follow_the_distribution_and_repeat() {
        let sampling = Sampling { do_sample: true, seed: 7, ..Sampling::default() };
        let logits: Vec<f32> = [0.7f32, 0.2, 0.1].iter().map(|p| p.ln()).collect();
        let mut counts = [0usize; 3];
        for position in 0..20_000 {
            let token = sampling.next(&mut logits.clone(), &[], 0, position);
            assert_eq!(token, sampling.next(&mut logits.clone(), &[], 0, position));
            counts[token as usize] += 1;
        }
        for (count, p) in counts.iter().zip([0.7, 0.2, 0.1]) {
            assert!((*count as f64 / 20_000.0 - p).abs() < 0.015, "{counts:?}");
        }
    }

    #[test]
    fn all_of_a_vocabulary_is_drawn_as_by_its_probabilities() {
        let sampling = Sampling { do_sample: true, temperature: 0.7, seed: 3, ..Sampling::default() };
        let logits: Vec<f32> =
            (0..5000_u16).map(|i| f32::from(i.wrapping_mul(40_503) % 997) / 60.0).collect();
        let all = sampling.probabilities(&logits);
        let total: f64 = all.iter().map(|&(_, p)| p).sum();
        for position in 0..500 {
            let token = sampling.next(&mut logits.clone(), &[], 1, position);
            let draw = Stream::new(3, "sample").at(1).uniform_f64(position) * total;
            let before: f64 = all[..token as usize].iter().map(|&(_, p)| p).sum();
            let own = all[token as usize].1;
            let near = 1e-6 * total;
            assert!(before - near <= draw && draw <= before + own + near, "{before} {draw} {own} of {total}");
        }
        let exact = (all[17].1 / total).ln() as f32;
        assert!((sampling.log_prob(&logits, 17) - exact).abs() < 2e-6);
    }

    #[test]
    fn what_has_no_probability_is_not_drawn() {
        let sampling = Sampling { do_sample: true, ..Sampling::default() };
        let mut logits = [f32::NEG_INFINITY, -900.0, 3.0, f32::NEG_INFINITY];
        for position in 0..100 {
            assert_eq!(sampling.next(&mut logits, &[], 0, position), 2);
        }
    }

    #[test]
    fn penalty_divides_positive_and_multiplies_negative_logits_once_per_token() {
        let sampling = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
        let mut logits = [4.0, 3.0, -1.0];
        assert_eq!(sampling.next(&mut logits, &[0, 0, 2], 0, 0), 1);
        assert_eq!(logits, [2.0, 3.0, -2.0]);
    }
}
