//! The objective of a micro-batch of rollouts.

use std::ops::Range;

use burnish_core::OptionFaults;
use burnish_ops::TokenStats;

use crate::dual::Dual;
use crate::error::{ABOVE_0, within};
use crate::preference::FirstPass;
use crate::sequence;
use crate::{LossError, LossTerms, Metrics};

use super::aggregate::PolicyStep;
use super::clip::Clipped;
use super::kind::{ImportanceLevel, PolicyLoss};
use super::mask::{HighEntropy, is_off_policy};
use super::options::GrpoOptions;
use super::ratio::Ratios;
use super::sampler::Correction;

/// A sampled completion in a micro-batch.
///
/// Its targets are its loss tokens: what tools wrote has none, nor has a completion that was cut off where those are
/// masked ([`super::is_truncated`]); such a sequence is here nevertheless, as the means over sequences count it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rollout<'a> {
    /// Where its targets are.
    pub targets: Range<usize>,
    /// Its advantage.
    pub advantage: f64,
    /// Log-probabilities under the policy that sampled, `[its targets]`; the current policy, held fixed, when absent.
    pub old: Option<&'a [f32]>,
    /// Log-probabilities under the reference, `[its targets]`; needed with `beta`.
    pub reference: Option<&'a [f32]>,
    /// Log-probabilities that the sampler gave, `[its targets]`; for the off-policy mask, which else takes `old`.
    pub sampling: Option<&'a [f32]>,
    /// Factors that correct for the sampler.
    pub correction: Correction,
}

/// GRPO and its relatives.
///
/// ```
/// use burnish_losses::{Grpo, GrpoOptions, PolicyStep, Rollout};
/// use burnish_ops::TokenStats;
///
/// let grpo = Grpo::new(GrpoOptions::default()).unwrap();
/// let stats = TokenStats { log_prob: vec![-1.0, -0.5], entropy: vec![0.7, 0.6], ..TokenStats::default() };
/// let rollout = Rollout { targets: 0..2, advantage: 1.5, ..Rollout::default() };
/// let step = PolicyStep {
///     sequences: 1.0,
///     tokens: 2.0,
///     generation_tokens: 2.0,
///     part: 1.0,
///     high_entropy: None,
///     entropy_coef: None,
/// };
/// // On policy all ratios are 1: the loss is minus the mean advantage, its gradient the policy gradient.
/// let terms = grpo.terms(&stats, &[rollout], &step).unwrap();
/// assert_eq!(terms.value, -1.5);
/// assert_eq!(terms.log_prob_gradient(), [-0.75, -0.75]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grpo {
    options: GrpoOptions,
}

impl Grpo {
    /// Checks the options.
    ///
    /// # Errors
    /// If an option is out of range; the message names the mend.
    pub fn new(options: GrpoOptions) -> Result<Self, LossError> {
        options.check()?;
        Ok(Self { options })
    }

    /// Whether [`Grpo::high_entropy`] is needed.
    #[must_use]
    pub fn needs(&self) -> FirstPass {
        if self.options.top_entropy_quantile < 1.0 { FirstPass::Scores } else { FirstPass::None }
    }

    /// Whether rollouts need the reference's log-probabilities.
    #[must_use]
    pub fn needs_reference(&self) -> bool {
        self.options.beta != 0.0
    }

    /// The tokens of highest entropy, given those of all loss tokens of the step (all micro-batches and ranks, any
    /// order) in a first pass; none where all tokens count.
    #[must_use]
    pub fn high_entropy(&self, entropies: &[f32]) -> Option<HighEntropy> {
        (self.needs() == FirstPass::Scores)
            .then(|| HighEntropy::new(self.options.top_entropy_quantile, entropies))
    }

    /// What [`Grpo::terms`] tallies. What [`super::SamplerCorrection::ratios`] does has
    /// [its own](super::SamplerCorrection::metrics).
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::sums(&["entropy", "policy_loss"]);
        metrics.sums.extend(self.needs_reference().then_some("kl"));
        match self.options.loss_type {
            PolicyLoss::Sapo => {}
            PolicyLoss::Vespo => metrics.sums.push("vespo/phi_seq_mean"),
            PolicyLoss::Cispo => metrics.sums.push("cispo_clip_ratio"),
            _ => Clipped::name(&mut metrics),
        }
        metrics
    }

    /// This micro-batch's part of the loss.
    ///
    /// # Shapes
    /// - stats: `[targets]` each; only log-probabilities and entropies are read
    /// - gradient: `[2, targets]`; the entropies' half is zero without an entropy bonus
    ///
    /// # Errors
    /// If a rollout lies outside the targets, lacks what an option asks for or has lists of the wrong length, or the
    /// step's counts are less than what is here.
    pub fn terms(
        &self,
        stats: &TokenStats,
        rollouts: &[Rollout<'_>],
        step: &PolicyStep,
    ) -> Result<LossTerms, LossError> {
        let targets = stats.log_prob.len();
        if stats.entropy.len() != targets {
            let got = stats.entropy.len();
            return Err(LossError::Length { what: "entropies", got, expected: targets, of: "targets" });
        }
        let tokens: usize = rollouts.iter().map(|r| r.targets.len()).sum();
        within("sequences", step.sequences, rollouts.len() as f64)?;
        within("loss tokens of the step", step.tokens, tokens as f64)?;
        within("loss tokens of the generation batch", step.generation_tokens, tokens as f64)?;
        let mut faults = OptionFaults::default();
        let part = "gradient_accumulation_steps / steps_per_generation";
        faults.range(part, step.part > 0.0, step.part, ABOVE_0);
        faults.first()?;
        if self.needs() == FirstPass::Scores && step.high_entropy.is_none() {
            return Err(LossError::Conflict {
                what: "`top_entropy_quantile` is below 1 and the step has no threshold",
                mend: "score the whole step without gradients first and pass what `Grpo::high_entropy` returns",
            });
        }
        let mut terms = LossTerms::of_targets(targets);
        let mut policy = 0.0;
        for (number, rollout) in rollouts.iter().enumerate() {
            self.check(number, rollout, targets)?;
            policy += self.rollout(stats, rollout, step, &mut terms);
        }
        terms.value += policy;
        if step.entropy_coef.is_some() && !rollouts.is_empty() {
            let part = rollouts.len() as f64 / step.sequences;
            terms.tally.add("policy_loss", policy, part);
        }
        Ok(terms)
    }

    fn check(&self, sequence: usize, rollout: &Rollout<'_>, targets: usize) -> Result<(), LossError> {
        sequence::check(sequence, &rollout.targets, targets)?;
        let expected = rollout.targets.len();
        let tokens = match &rollout.correction {
            Correction::Tokens(ratios) => Some(ratios.len()),
            _ => None,
        };
        for (what, got) in [
            ("old log-probabilities", rollout.old.map(<[f32]>::len)),
            ("reference log-probabilities", rollout.reference.map(<[f32]>::len)),
            ("sampling log-probabilities", rollout.sampling.map(<[f32]>::len)),
            ("sampler ratios", tokens),
        ] {
            if let Some(got) = got.filter(|&got| got != expected) {
                return Err(LossError::Length { what, got, expected, of: "targets of the sequence" });
            }
        }
        if self.needs_reference() && rollout.reference.is_none() {
            return Err(LossError::Missing {
                sequence,
                what: "reference log-probabilities",
                because: "`beta` above 0 needs",
                mend: "score it with the reference, or set `beta` to 0",
            });
        }
        Ok(())
    }

    /// Adds a rollout's gradient, bonus and metrics; returns its part of the policy loss.
    fn rollout(
        &self,
        stats: &TokenStats,
        rollout: &Rollout<'_>,
        step: &PolicyStep,
        terms: &mut LossTerms,
    ) -> f64 {
        let options = &self.options;
        let range = rollout.targets.clone();
        let (log_probs, entropies) = (&stats.log_prob[range.clone()], &stats.entropy[range.clone()]);
        let (length, half) = (range.len(), stats.log_prob.len());
        let ratios = Ratios::new(options.importance_sampling_level, log_probs, rollout.old);
        let phi = self.phi(rollout, &ratios, length);
        let dropped = options.off_policy_mask_threshold.is_some_and(|threshold| {
            rollout
                .sampling
                .or(rollout.old)
                .is_some_and(|sampled| is_off_policy(rollout.advantage, threshold, sampled, log_probs))
        });
        let factor = step.factor(options.loss_type, length, options.max_completion_length);
        let bonus = step.bonus();

        let (mut value, mut of_mean, mut kl_sum) = (0.0, 0.0, 0.0);
        let mut own = Vec::with_capacity(length);
        for t in 0..length {
            let counts = step.high_entropy.is_none_or(|h| entropies[t] >= h.threshold);
            let mut x = Dual::constant(0.0);
            if counts && !dropped {
                x = self.objective(rollout.advantage, &ratios, t, phi);
                if options.loss_type != PolicyLoss::Vespo {
                    x = x * rollout.correction.of(t);
                }
            }
            if let Some(reference) = rollout.reference.filter(|_| self.needs_reference()) {
                let kl = ratios.kl(t, reference[t], options.use_bias_correction_kl);
                kl_sum += kl.value;
                x = x + kl * options.beta;
            }
            value += factor * x.value;
            of_mean += factor * x.slope[1];
            own.push(factor * x.slope[0]);
            if bonus != 0.0 && counts {
                terms.value -= bonus * f64::from(entropies[t]);
                terms.gradient[half + range.start + t] = -bonus as f32;
            }
        }
        // The mean log-ratio moves with each of its tokens.
        let share = of_mean / length.max(1) as f64;
        for (slot, own) in terms.gradient[range].iter_mut().zip(own) {
            *slot = (own + share) as f32;
        }
        terms.tally.add("entropy", sequence::sum(entropies), length as f64);
        if self.needs_reference() {
            terms.tally.add("kl", kl_sum, length as f64);
        }
        self.measure(rollout, &ratios, phi, length, terms);
        value
    }

    /// VESPO's weight of the sequence; 1 for the other losses.
    fn phi(&self, rollout: &Rollout<'_>, ratios: &Ratios<'_>, length: usize) -> f64 {
        if self.options.loss_type != PolicyLoss::Vespo {
            return 1.0;
        }
        let sampler = rollout.correction.ratios().iter().copied();
        self.options.vespo.weight(rollout.advantage, (0..length).map(|t| ratios.log_ratio(t)), sampler)
    }

    /// A token's objective, before masks, correction and KL.
    fn objective(&self, advantage: f64, ratios: &Ratios<'_>, t: usize, phi: f64) -> Dual {
        let options = &self.options;
        let ratio = ratios.of(t);
        match options.loss_type {
            PolicyLoss::Cispo => ratios.log_prob(t) * (-ratio.at_most(options.high()).value * advantage),
            PolicyLoss::Sapo => {
                let temperature =
                    if advantage > 0.0 { options.sapo_temperature_pos } else { options.sapo_temperature_neg };
                ((ratio - 1.0) * temperature).sigmoid() * (-4.0 / temperature * advantage)
            }
            PolicyLoss::Vespo => ratios.log_prob(t) * (-phi * advantage),
            _ => {
                let clipped = ratio.at_most(1.0 + options.high()).at_least(1.0 - options.epsilon);
                let free = options.delta.map_or(ratio, |delta| ratio.at_most(delta));
                -(free * advantage).min(clipped * advantage)
            }
        }
    }

    /// How often ratios were clipped, by TRL's names: over tokens, or over sequences at their level.
    fn measure(
        &self,
        rollout: &Rollout<'_>,
        ratios: &Ratios<'_>,
        phi: f64,
        length: usize,
        terms: &mut LossTerms,
    ) {
        let options = &self.options;
        let advantage = rollout.advantage;
        let all: Vec<f64> = match options.importance_sampling_level {
            ImportanceLevel::Token => (0..length).map(|t| ratios.of(t).value).collect(),
            ImportanceLevel::Sequence => vec![ratios.of_sequence().value],
        };
        let tally = &mut terms.tally;
        match options.loss_type {
            PolicyLoss::Sapo => {}
            PolicyLoss::Vespo => tally.add("vespo/phi_seq_mean", phi, 1.0),
            PolicyLoss::Cispo => {
                let clipped = all.iter().filter(|&&p| p > options.high() && advantage > 0.0).count();
                tally.add("cispo_clip_ratio", clipped as f64, all.len() as f64);
            }
            _ => {
                let bound = options.delta.unwrap_or(f64::INFINITY);
                let mut clipped = Clipped::default();
                for ratio in all.iter().map(|p| p.min(bound)) {
                    clipped.count(ratio, advantage, options.epsilon, options.high());
                }
                clipped.add_to(tally);
            }
        }
    }
}
