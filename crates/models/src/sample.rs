//! From logits to the next token: Transformers' processors in Transformers' order.
//!
//! Repetition penalty, temperature, top-k, top-p, min-p; then the first maximum, or a draw that is a function of
//! (seed, row, position).

use burnish_core::random::Stream;

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
        let probabilities = self.probabilities(logits);
        let total: f64 = probabilities.iter().map(|&(_, p)| p).sum();
        let draw = Stream::new(self.seed, "sample").at(row).uniform_f64(position) * total;
        let mut passed = 0.0;
        for &(token, p) in &probabilities {
            passed += p;
            if draw < passed {
                return token;
            }
        }
        probabilities.last().map_or(0, |&(token, _)| token)
    }

    fn penalise(&self, logits: &mut [f32], so_far: &[u32]) {
        let mut seen = so_far.to_vec();
        seen.sort_unstable();
        seen.dedup();
        for token in seen {
            let logit = &mut logits[token as usize];
            *logit = if *logit < 0.0 { *logit * self.repetition_penalty } else { *logit / self.repetition_penalty };
        }
    }

    /// The kept tokens and their (unnormalised) probabilities, largest first.
    fn probabilities(&self, logits: &[f32]) -> Vec<(u32, f64)> {
        let mut kept: Vec<(u32, f32)> =
            logits.iter().enumerate().map(|(i, &l)| (i as u32, l / self.temperature)).collect();
        kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if self.top_k > 0 && self.top_k < kept.len() {
            let least = kept[self.top_k - 1].1;
            kept.retain(|&(_, l)| l >= least);
        }
        let max = kept.first().map_or(0.0, |k| k.1);
        let weight = |l: f32| f64::from(l - max).exp();
        let mut weighted: Vec<(u32, f64)> = kept.into_iter().map(|(t, l)| (t, weight(l))).collect();
        if self.top_p < 1.0 {
            let total: f64 = weighted.iter().map(|w| w.1).sum();
            let mut before = 0.0;
            let mut count = 0;
            for &(_, w) in &weighted {
                if count > 0 && before >= f64::from(self.top_p) * total {
                    break;
                }
                before += w;
                count += 1;
            }
            weighted.truncate(count);
        }
        if let Some(min_p) = self.min_p {
            // The largest weight is 1 by construction.
            weighted.retain(|&(_, w)| w >= f64::from(min_p));
        }
        weighted
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
    fn penalty_divides_positive_and_multiplies_negative_logits_once_per_token() {
        let sampling = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
        let mut logits = [4.0, 3.0, -1.0];
        assert_eq!(sampling.next(&mut logits, &[0, 0, 2], 0, 0), 1);
        assert_eq!(logits, [2.0, 3.0, -2.0]);
    }
}
