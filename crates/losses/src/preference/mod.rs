//! Direct preference optimisation: pairs of a chosen and a rejected completion.
//!
//! A pair's loss depends on its two summed log-probabilities only, so the value and both slopes are computed per pair
//! ([`PreferenceLoss`]) and spread over the tokens. The losses that compare ([`PreferenceLoss::compares`]) do so over
//! the whole step in a first pass without gradients; a pair's [`Match`] is then a constant and the step may be split at
//! will.

mod divergence;
mod kind;
mod length;
mod matching;
mod options;
mod reference_free;
mod weighting;

use burnish_ops::TokenStats;

use crate::dual::Dual;
use crate::error::within;
use crate::sequence::{self, Completion};
use crate::{LossError, LossTerms, MetricSums, Metrics};

pub use divergence::Divergence;
pub use kind::PreferenceLoss;
pub use matching::{Divergences, Match, PairSums};
pub use options::DpoOptions;
pub use reference_free::{CpoLoss, CpoOptions, ReferenceFree, UnreferencedPair};

use kind::{Shape, Side};
use length::Lengths;

/// What has to be known of the whole step before any pass with gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstPass {
    /// Nothing but counts.
    None,
    /// Log-probabilities or entropies of all sequences under the current policy.
    Scores,
}

/// A pair in a micro-batch. The two completions may share their prompt's tokens, and a completion may be in several
/// pairs: only targets matter here.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    /// Where the chosen completion's targets are.
    pub chosen: Completion,
    /// Where the rejected completion's targets are.
    pub rejected: Completion,
    /// The reference's summed log-probabilities of both, as [`Dpo::sums`] sums them.
    pub reference: [f64; 2],
    /// What the pair is compared with, where the losses compare ([`Dpo::matches`]).
    pub matched: Option<Match>,
}

/// Counts over the whole step: all micro-batches, all ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairCounts {
    /// Pairs.
    pub pairs: f64,
    /// Targets of chosen completions, which `sft` divides by.
    pub chosen_targets: f64,
}

/// DPO's losses: `sum_k w_k mean_pairs(loss_k)`.
///
/// ```
/// use burnish_losses::{Dpo, DpoOptions, Pair, PairCounts};
/// use burnish_ops::TokenStats;
///
/// let dpo = Dpo::new(DpoOptions::default()).unwrap();
/// let stats = TokenStats { log_prob: vec![-1.0, -0.5, -2.0], ..TokenStats::default() };
/// // At the first step policy and reference agree: ln 2.
/// let reference = dpo.sums(&[-1.0, -0.5], &[-2.0]);
/// let pair = Pair { chosen: (0..2).into(), rejected: (2..3).into(), reference, matched: None };
/// let counts = PairCounts { pairs: 1.0, chosen_targets: 2.0 };
/// let terms = dpo.terms(&stats, &[pair], counts).unwrap();
/// assert!((terms.value - 2f64.ln()).abs() < 1e-12);
/// assert_eq!(terms.log_prob_gradient(), [-0.05, -0.05, 0.05]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Dpo {
    options: DpoOptions,
}

impl Dpo {
    /// Checks the options.
    ///
    /// # Errors
    /// If an option is out of range or two exclude each other; the message names the mend.
    pub fn new(options: DpoOptions) -> Result<Self, LossError> {
        options.check()?;
        Ok(Self { options })
    }

    /// Whether [`Dpo::matches`] is needed.
    #[must_use]
    pub fn needs(&self) -> FirstPass {
        if self.options.loss_type.iter().any(|l| l.compares()) { FirstPass::Scores } else { FirstPass::None }
    }

    /// The summed log-probabilities of a pair's completions, as the losses take them (`ld_alpha`): of the reference,
    /// and of the policy in a first pass.
    #[must_use]
    pub fn sums(&self, chosen: &[f32], rejected: &[f32]) -> [f64; 2] {
        let lengths = Lengths::new(self.options.ld_alpha, chosen.len(), rejected.len());
        [lengths.sum(chosen), lengths.sum(rejected)]
    }

    /// What each pair is compared with, given all pairs of the step (all micro-batches and ranks) in their order.
    #[must_use]
    pub fn matches(&self, all: &[PairSums]) -> Vec<Match> {
        matching::matches(all, self.options.beta)
    }

    /// What [`Dpo::terms`] tallies.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        Metrics::sums(&[
            "entropy",
            "logits/chosen",
            "logits/rejected",
            "mean_token_accuracy",
            "rewards/chosen",
            "rewards/rejected",
            "rewards/accuracies",
            "rewards/margins",
            "logps/chosen",
            "logps/rejected",
        ])
    }

    /// This micro-batch's part of the loss.
    ///
    /// With `use_weighting` a pair's weight goes with its pair in every loss; `sft` then weighs the chosen tokens of
    /// each pair with it.
    ///
    /// # Shapes
    /// - stats: `[targets]` each; entropy, mean logit and top-1 may be empty, they are metrics
    /// - gradient: `[2, targets]`
    ///
    /// # Errors
    /// If a completion lies outside the targets, a match is missing, or the counts are less than what is here.
    pub fn terms(
        &self,
        stats: &TokenStats,
        pairs: &[Pair],
        counts: PairCounts,
    ) -> Result<LossTerms, LossError> {
        let options = &self.options;
        let targets = stats.log_prob.len();
        if options.use_weighting && stats.log_sum_sq_probs.len() != targets {
            let got = stats.log_sum_sq_probs.len();
            return Err(LossError::Length {
                what: "log_sum_sq_probs",
                got,
                expected: targets,
                of: "targets",
            });
        }
        within("pairs", counts.pairs, pairs.len() as f64)?;
        let chosen_here: usize = pairs.iter().map(|p| p.chosen.targets.len()).sum();
        within("targets of chosen completions", counts.chosen_targets, chosen_here as f64)?;

        let mut terms = LossTerms::of_targets(targets);
        for (number, pair) in pairs.iter().enumerate() {
            sequence::check(number, &pair.chosen.targets, targets)?;
            sequence::check(number, &pair.rejected.targets, targets)?;
            if self.needs() == FirstPass::Scores && pair.matched.is_none() {
                return Err(LossError::Missing {
                    sequence: number,
                    what: "match",
                    because: "`aot`, `aot_unpaired` and `kto_pair` compare it with",
                    mend: "score the whole step without gradients first and pass what `Dpo::matches` returns",
                });
            }
            self.pair(stats, pair, counts, &mut terms);
        }
        Ok(terms)
    }

    fn pair(&self, stats: &TokenStats, pair: &Pair, counts: PairCounts, terms: &mut LossTerms) {
        let options = &self.options;
        let (chosen, rejected) = (&pair.chosen.targets, &pair.rejected.targets);
        let lengths = Lengths::new(options.ld_alpha, chosen.len(), rejected.len());
        let [c, r] = self.sums(&stats.log_prob[chosen.clone()], &stats.log_prob[rejected.clone()]);
        let side = |log_prob: Dual, reference: f64, completion: &Completion| {
            let ratio = log_prob - reference;
            let score = options.f_divergence_type.score(ratio, options.f_alpha_divergence_coef);
            Side { log_prob, ratio, score, tokens: completion.tokens as f64 }
        };
        let c = side(Dual::first(c), pair.reference[0], &pair.chosen);
        let r = side(Dual::second(r), pair.reference[1], &pair.rejected);
        let shape =
            Shape { beta: options.beta, smoothing: options.label_smoothing, tau: options.discopop_tau };
        let likely = if options.use_weighting {
            weighting::weight(stats, chosen) * weighting::weight(stats, rejected)
        } else {
            1.0
        };

        let (mut loss, mut per_chosen_token) = (Dual::constant(0.0), 0.0);
        for (k, kind) in options.loss_type.iter().enumerate() {
            let weight = likely * options.loss_weights.as_ref().map_or(1.0, |w| w[k]);
            loss = loss + kind.of(&c, &r, pair.matched, shape) * (weight / counts.pairs);
            if *kind == PreferenceLoss::Sft {
                per_chosen_token -= weight / counts.chosen_targets.max(1.0);
            }
        }
        let log_probs = sequence::sum(&stats.log_prob[chosen.clone()]);
        // Nothing times an unlikely -inf is nothing, not NaN.
        let supervised = if per_chosen_token == 0.0 { 0.0 } else { per_chosen_token * log_probs };
        terms.value += loss.value + supervised;
        for (range, slope, more) in
            [(chosen, loss.slope[0], per_chosen_token), (rejected, loss.slope[1], 0.0)]
        {
            for (position, at) in range.clone().enumerate() {
                terms.gradient[at] += (slope * lengths.weight(position) + more) as f32;
            }
        }
        self.measure(stats, pair, &c, &r, &mut terms.tally);
    }

    /// TRL's metrics: token sums over tokens, pair sums over pairs.
    fn measure(&self, stats: &TokenStats, pair: &Pair, c: &Side, r: &Side, tally: &mut MetricSums) {
        let chosen = &pair.chosen.targets;
        sequence::measure(tally, stats, chosen, "logits/chosen");
        sequence::measure(tally, stats, &pair.rejected.targets, "logits/rejected");
        if let Some(top) = stats.is_top1.get(chosen.clone()) {
            tally.add("mean_token_accuracy", top.iter().filter(|&&t| t).count() as f64, chosen.len() as f64);
        }
        let beta = self.options.beta;
        let (rc, rr) = (beta * c.ratio.value, beta * r.ratio.value);
        tally.add("rewards/chosen", rc, 1.0);
        tally.add("rewards/rejected", rr, 1.0);
        tally.add("rewards/accuracies", f64::from(u8::from(rc > rr)), 1.0);
        tally.add("rewards/margins", rc - rr, 1.0);
        tally.add("logps/chosen", c.log_prob.value, 1.0);
        tally.add("logps/rejected", r.log_prob.value, 1.0);
    }
}
