//! Kahneman–Tversky optimisation: single completions that are desirable or not.

use burnish_core::{OptionFaults, choices};
use burnish_ops::TokenStats;

use crate::dual::Dual;
use crate::error::{ABOVE_0, AT_LEAST_0, above_0, at_least_0, within};
use crate::sequence::{self, Completion};
use crate::{LossError, LossTerms, Metrics};

choices! {
    /// `loss_type` of KTO. `r` is the log-ratio of policy and reference, `z` the KL term ([`Kto::kl`]).
    #[derive(Default)]
    pub enum KtoLoss: "loss_type", LossError {
        /// `1 - sigmoid(b (r - z))` for desirable, `1 - sigmoid(b (z - r))` for undesirable completions (Ethayarajh et
        /// al., arXiv:2402.01306, eq. 7).
        #[default]
        Kto = "kto",
        /// `1 - sigmoid(b r)` and `sigmoid(b r)`, without a KL term (D'Oosterlinck et al., arXiv:2408.06266, eq. 7,
        /// unpaired).
        ApoZeroUnpaired = "apo_zero_unpaired",
    }
}

impl KtoLoss {
    /// Whether it has a KL term, which is of other completions under the same prompts.
    #[must_use]
    pub fn needs_kl(self) -> bool {
        self == Self::Kto
    }
}

/// Options of KTO; the defaults are TRL's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KtoOptions {
    /// The loss.
    pub loss_type: KtoLoss,
    /// Strength of the reference.
    pub beta: f64,
    /// Weight of desirable completions.
    pub desirable_weight: f64,
    /// Weight of undesirable completions.
    pub undesirable_weight: f64,
}

impl Default for KtoOptions {
    fn default() -> Self {
        Self { loss_type: KtoLoss::Kto, beta: 0.1, desirable_weight: 1.0, undesirable_weight: 1.0 }
    }
}

impl KtoOptions {
    /// The rules that these options break, all of them.
    #[must_use]
    pub fn faults(&self) -> OptionFaults {
        let mut faults = OptionFaults::default();
        let Self { beta, desirable_weight, undesirable_weight, .. } = *self;
        faults.range("beta", above_0(beta), beta, ABOVE_0);
        faults.range("desirable_weight", at_least_0(desirable_weight), desirable_weight, AT_LEAST_0);
        faults.range("undesirable_weight", at_least_0(undesirable_weight), undesirable_weight, AT_LEAST_0);
        faults
    }
}

/// A completion with its label.
#[derive(Clone, Debug, PartialEq)]
pub struct Labelled {
    /// Where its targets are.
    pub completion: Completion,
    /// Whether it is desirable.
    pub desirable: bool,
    /// The reference's log-probability of it, summed.
    pub reference: f64,
}

/// The KTO loss: `(sum w_d L_d + sum w_u L_u) / examples`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kto {
    options: KtoOptions,
}

impl Kto {
    /// Checks the options.
    ///
    /// # Errors
    /// If `beta` is not positive or a weight is negative.
    pub fn new(options: KtoOptions) -> Result<Self, LossError> {
        options.faults().first()?;
        Ok(Self { options })
    }

    /// Whether the loss has a KL term: then mismatched completions are scored first, over the whole step.
    #[must_use]
    pub fn needs_kl(&self) -> bool {
        self.options.loss_type.needs_kl()
    }

    /// The KL term z, without gradient: `max(0, mean(log pi(y'|x) - log ref(y'|x)))` over the mismatched completions
    /// y' of the whole step (all micro-batches and ranks). Zero where the loss has none.
    ///
    /// # Shapes
    /// - policy, reference: `[completions]`, log-probabilities summed over each completion
    ///
    /// # Errors
    /// If the lists differ in length.
    pub fn kl(&self, policy: &[f64], reference: &[f64]) -> Result<f64, LossError> {
        if policy.len() != reference.len() {
            let (got, expected) = (reference.len(), policy.len());
            return Err(LossError::Length {
                what: "reference log-probabilities",
                got,
                expected,
                of: "completions",
            });
        }
        if !self.needs_kl() || policy.is_empty() {
            return Ok(0.0);
        }
        let sum: f64 = policy.iter().zip(reference).map(|(p, r)| p - r).sum();
        Ok((sum / policy.len() as f64).max(0.0))
    }

    /// What [`Kto::terms`] tallies.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        Metrics {
            differences: vec![["rewards/margins", "rewards/chosen", "rewards/rejected"]],
            ..Metrics::sums(&[
                "kl",
                "entropy",
                "logits/chosen",
                "logits/rejected",
                "rewards/chosen",
                "rewards/rejected",
                "logps/chosen",
                "logps/rejected",
            ])
        }
    }

    /// This micro-batch's part of the loss, given z and the number of examples in the whole step.
    ///
    /// # Shapes
    /// - stats: `[targets]` each, gradient: `[2, targets]`
    ///
    /// # Errors
    /// If a completion lies outside the targets, or `examples` is fewer than there are here.
    pub fn terms(
        &self,
        stats: &TokenStats,
        examples_here: &[Labelled],
        kl: f64,
        examples: f64,
    ) -> Result<LossTerms, LossError> {
        within("examples", examples, examples_here.len() as f64)?;
        let KtoOptions { beta, .. } = self.options;
        let targets = stats.log_prob.len();
        let mut terms = LossTerms::of_targets(targets);
        for (number, example) in examples_here.iter().enumerate() {
            let range = &example.completion.targets;
            sequence::check(number, range, targets)?;
            let log_prob = sequence::sum(&stats.log_prob[range.clone()]);
            let ratio = Dual::first(log_prob) - example.reference;
            let sign = if example.desirable { 1.0 } else { -1.0 };
            // 1 - sigmoid(x) is sigmoid(-x): no cancellation.
            let loss = match self.options.loss_type {
                KtoLoss::Kto => ((ratio - kl) * (-sign * beta)).sigmoid(),
                KtoLoss::ApoZeroUnpaired => (ratio * (-sign * beta)).sigmoid(),
            };
            let weight = if example.desirable {
                self.options.desirable_weight
            } else {
                self.options.undesirable_weight
            };
            terms.value += weight * loss.value / examples;
            terms.gradient[range.clone()].fill((weight * loss.slope[0] / examples) as f32);

            let side = if example.desirable { "chosen" } else { "rejected" };
            let tally = &mut terms.tally;
            sequence::measure(tally, stats, range, &format!("logits/{side}"));
            tally.add(&format!("rewards/{side}"), beta * ratio.value, 1.0);
            tally.add(&format!("logps/{side}"), log_prob, 1.0);
            tally.add("kl", kl, 1.0);
        }
        terms.tally.difference("rewards/margins", "rewards/chosen", "rewards/rejected");
        Ok(terms)
    }
}
