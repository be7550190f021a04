//! Losses of pairs without a reference: CPO with SimPO and AlphaPO, and ORPO, as TRL 1.16 computes them.

use std::ops::Range;

use burnish_core::{OptionFaults, choices};
use burnish_ops::TokenStats;

use super::PairCounts;
use crate::dual::Dual;
use crate::error::{ABOVE_0, above_0, in_f32, within};
use crate::sequence::{self, Completion};
use crate::{LossError, LossTerms, Metrics};

choices! {
    /// A `loss_type` of CPO, per pair.
    ///
    /// `D` is the chosen completion's reward less the rejected one's, `b` beta, `S` the logistic function, `e` label
    /// smoothing.
    #[derive(Default)]
    pub enum CpoLoss: "loss_type", LossError {
        /// `-(1-e) ln S(b D) - e ln S(-b D)` of summed log-probabilities (Xu et al., arXiv:2401.08417, eq. 3).
        #[default]
        Sigmoid = "sigmoid",
        /// `max(0, 1 - b D)` of summed log-probabilities.
        Hinge = "hinge",
        /// `(D - 1/(2b))^2` of log-probabilities per token.
        Ipo = "ipo",
        /// `-(1-e) ln S(b D - g) - e ln S(g - b D)` of log-probabilities per token, g `simpo_gamma` (Meng et al.,
        /// arXiv:2405.14734, eq. 6).
        Simpo = "simpo",
        /// The same without the likelihood of the chosen completion, for an `alpha` that is not 0 (Gupta et al.,
        /// arXiv:2501.03884).
        Alphapo = "alphapo",
    }
}

/// Options of CPO; the defaults are TRL's.
#[derive(Clone, Debug, PartialEq)]
pub struct CpoOptions {
    /// The loss of a pair.
    pub loss_type: CpoLoss,
    /// Strength of the preference, b.
    pub beta: f64,
    /// Probability that a label is wrong, for `sigmoid`, `simpo` and `alphapo`.
    pub label_smoothing: f64,
    /// Weight of the chosen completions' negative log-likelihood per token.
    pub cpo_alpha: f64,
    /// The margin that SimPO wants between rewards.
    pub simpo_gamma: f64,
    /// Shape of the reward `(1 - p^-alpha) / alpha`; 0 takes log-probabilities.
    pub alpha: f64,
}

impl Default for CpoOptions {
    fn default() -> Self {
        Self {
            loss_type: CpoLoss::Sigmoid,
            beta: 0.1,
            label_smoothing: 0.0,
            cpo_alpha: 1.0,
            simpo_gamma: 0.5,
            alpha: 0.0,
        }
    }
}

impl CpoOptions {
    /// The rules that these options break, all of them.
    #[must_use]
    pub fn faults(&self) -> OptionFaults {
        let mut faults = OptionFaults::default();
        faults.range("beta", above_0(self.beta), self.beta, ABOVE_0);
        let smoothing = self.label_smoothing;
        let expected = "a number from 0 to below 1";
        faults.range("label_smoothing", (0.0..1.0).contains(&smoothing), smoothing, expected);
        let weight = self.cpo_alpha;
        faults.range("cpo_alpha", weight >= 0.0 && in_f32(weight), weight, "a number of at least 0");
        for (name, value) in [("simpo_gamma", self.simpo_gamma), ("alpha", self.alpha)] {
            faults.range(name, in_f32(value), value, "a number that float32 holds");
        }
        let ignores = matches!(self.loss_type, CpoLoss::Hinge | CpoLoss::Ipo);
        faults.conflict(
            "label_smoothing",
            ignores && smoothing > 0.0,
            format_args!("loss_type: {}", self.loss_type),
            "set label_smoothing: 0, or loss_type: sigmoid",
            format!("`label_smoothing` has no meaning for the loss `{}`; set it to 0", self.loss_type),
        );
        faults
    }
}

/// A pair in a micro-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct UnreferencedPair {
    /// Where the chosen completion's targets are.
    pub chosen: Completion,
    /// Where the rejected completion's targets are.
    pub rejected: Completion,
    /// Where the targets of the prompt are that [`ReferenceFree::trains_prompt`] asks for; empty otherwise.
    pub prompt: Range<usize>,
}

impl UnreferencedPair {
    /// Targets whose likelihood is learnt beside the preference: what [`PairCounts::chosen_targets`] counts.
    #[must_use]
    pub fn supervised(&self) -> usize {
        self.prompt.len() + self.chosen.targets.len()
    }
}

/// A loss of pairs that compares a policy with itself alone: `mean_pairs(loss) + w NLL(chosen)`.
///
/// ```
/// use burnish_losses::{PairCounts, ReferenceFree, UnreferencedPair};
/// use burnish_ops::TokenStats;
///
/// let orpo = ReferenceFree::orpo(0.1).unwrap();
/// let stats = TokenStats { log_prob: vec![-1.0, -0.5, -0.75], ..TokenStats::default() };
/// let pair = UnreferencedPair { chosen: (0..2).into(), rejected: (2..3).into(), prompt: 0..0 };
/// let counts = PairCounts { pairs: 1.0, chosen_targets: 2.0 };
/// // Both are as likely per token: the odds are even, ln 2, beside the likelihood of the chosen completion.
/// let terms = orpo.terms(&stats, &[pair], counts).unwrap();
/// assert!((terms.value - (0.75 + 0.1 * 2f64.ln())).abs() < 1e-12);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ReferenceFree(Kind);

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Cpo(CpoOptions),
    /// The odds ratio of both completions' mean probabilities (Hong et al., arXiv:2403.07691, eqs. 4 to 7), with its weight.
    Orpo(f64),
}

/// What a pair comes to.
struct Compared {
    loss: Dual,
    /// The rewards of both completions, times beta.
    rewards: [f64; 2],
    /// ORPO's logarithm of the odds ratio.
    log_odds: Option<f64>,
}

impl ReferenceFree {
    /// CPO, SimPO or AlphaPO.
    ///
    /// # Errors
    /// If an option is out of range; the message names the mend.
    pub fn cpo(options: CpoOptions) -> Result<Self, LossError> {
        options.faults().first()?;
        Ok(Self(Kind::Cpo(options)))
    }

    /// ORPO, with the weight `beta` of the odds ratio.
    ///
    /// # Errors
    /// If `beta` is out of range.
    pub fn orpo(beta: f64) -> Result<Self, LossError> {
        Self::orpo_faults(beta).first()?;
        Ok(Self(Kind::Orpo(beta)))
    }

    /// The rules that ORPO's options break.
    #[must_use]
    pub fn orpo_faults(beta: f64) -> OptionFaults {
        let mut faults = OptionFaults::default();
        faults.range("beta", above_0(beta), beta, ABOVE_0);
        faults
    }

    /// Whether the likelihood that is learnt is also that of the prompt, as in ORPO.
    #[must_use]
    pub fn trains_prompt(&self) -> bool {
        matches!(self.0, Kind::Orpo(_))
    }

    /// The weight of the chosen texts' negative log-likelihood per token.
    fn supervision(&self) -> f64 {
        match &self.0 {
            Kind::Cpo(options) if options.loss_type == CpoLoss::Alphapo => 0.0,
            Kind::Cpo(options) => options.cpo_alpha,
            Kind::Orpo(_) => 1.0,
        }
    }

    /// What [`Self::terms`] tallies.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let mut names = vec![
            "entropy",
            "logits/chosen",
            "logits/rejected",
            "rewards/chosen",
            "rewards/rejected",
            "rewards/accuracies",
            "rewards/margins",
            "logps/chosen",
            "logps/rejected",
        ];
        if self.supervision() > 0.0 {
            names.push("nll_loss");
        }
        if self.trains_prompt() {
            names.extend(["log_odds_ratio", "log_odds_chosen"]);
        }
        Metrics::sums(&names)
    }

    /// This micro-batch's part of the loss.
    ///
    /// # Shapes
    /// - stats: `[targets]` each; entropy and mean logit may be empty, they are metrics
    /// - gradient: `[2, targets]`
    ///
    /// # Errors
    /// If a completion lies outside the targets, or the counts are less than what is here.
    pub fn terms(
        &self,
        stats: &TokenStats,
        pairs: &[UnreferencedPair],
        counts: PairCounts,
    ) -> Result<LossTerms, LossError> {
        let targets = stats.log_prob.len();
        within("pairs", counts.pairs, pairs.len() as f64)?;
        let here: usize = pairs.iter().map(UnreferencedPair::supervised).sum();
        within("targets of chosen completions", counts.chosen_targets, here as f64)?;
        let mut terms = LossTerms::of_targets(targets);
        for (number, pair) in pairs.iter().enumerate() {
            for range in [&pair.chosen.targets, &pair.rejected.targets, &pair.prompt] {
                sequence::check(number, range, targets)?;
            }
            self.pair(stats, pair, counts, &mut terms);
        }
        Ok(terms)
    }

    fn pair(&self, stats: &TokenStats, pair: &UnreferencedPair, counts: PairCounts, terms: &mut LossTerms) {
        let sides = [&pair.chosen.targets, &pair.rejected.targets];
        let share =
            sides.map(|targets| if self.averages() { 1.0 / targets.len().max(1) as f64 } else { 1.0 });
        let sums = sides.map(|targets| sequence::sum(&stats.log_prob[targets.clone()]));
        let log_probs = [sums[0] * share[0], sums[1] * share[1]];
        let compared = self.compared(Dual::first(log_probs[0]), Dual::second(log_probs[1]));

        terms.value += compared.loss.value / counts.pairs;
        for (side, targets) in sides.into_iter().enumerate() {
            let slope = compared.loss.slope[side] * share[side] / counts.pairs;
            terms.gradient[targets.clone()].iter_mut().for_each(|g| *g += slope as f32);
        }
        let supervision = self.supervision();
        if supervision > 0.0 {
            let per_token = supervision / counts.chosen_targets.max(1.0);
            let supervised = sums[0] + sequence::sum(&stats.log_prob[pair.prompt.clone()]);
            terms.value -= per_token * supervised;
            for at in pair.prompt.clone().chain(pair.chosen.targets.clone()) {
                terms.gradient[at] -= per_token as f32;
            }
            terms.tally.add("nll_loss", -supervised, pair.supervised() as f64);
        }
        let tally = &mut terms.tally;
        sequence::measure(tally, stats, sides[0], "logits/chosen");
        sequence::measure(tally, stats, sides[1], "logits/rejected");
        let [chosen, rejected] = compared.rewards;
        tally.add("rewards/chosen", chosen, 1.0);
        tally.add("rewards/rejected", rejected, 1.0);
        tally.add("rewards/accuracies", f64::from(u8::from(chosen > rejected)), 1.0);
        tally.add("rewards/margins", chosen - rejected, 1.0);
        tally.add("logps/chosen", log_probs[0], 1.0);
        tally.add("logps/rejected", log_probs[1], 1.0);
        if let Some(log_odds) = compared.log_odds {
            tally.add("log_odds_ratio", crate::dual::log_sigmoid(log_odds), 1.0);
            tally.add("log_odds_chosen", log_odds, 1.0);
        }
    }

    /// Whether completions are compared by their log-probability per token.
    fn averages(&self) -> bool {
        match &self.0 {
            Kind::Cpo(options) => !matches!(options.loss_type, CpoLoss::Sigmoid | CpoLoss::Hinge),
            Kind::Orpo(_) => true,
        }
    }

    fn compared(&self, chosen: Dual, rejected: Dual) -> Compared {
        match &self.0 {
            Kind::Cpo(options) => {
                let (alpha, beta, smoothing) = (options.alpha, options.beta, options.label_smoothing);
                let reward = |log_prob: Dual| {
                    if alpha == 0.0 { log_prob } else { (-(log_prob * -alpha).exp() + 1.0) * (1.0 / alpha) }
                };
                let (chosen, rejected) = (reward(chosen), reward(rejected));
                let margin = chosen - rejected;
                let smoothed =
                    |x: Dual| -x.log_sigmoid() * (1.0 - smoothing) - (-x).log_sigmoid() * smoothing;
                let loss = match options.loss_type {
                    CpoLoss::Sigmoid => smoothed(margin * beta),
                    CpoLoss::Hinge => (-(margin * beta) + 1.0).relu(),
                    CpoLoss::Ipo => (margin - 1.0 / (2.0 * beta)).square(),
                    CpoLoss::Simpo | CpoLoss::Alphapo => smoothed(margin * beta - options.simpo_gamma),
                };
                Compared { loss, rewards: [beta * chosen.value, beta * rejected.value], log_odds: None }
            }
            Kind::Orpo(beta) => {
                let log_odds = (chosen - rejected) - (chosen.log_1m_exp() - rejected.log_1m_exp());
                Compared {
                    loss: -log_odds.log_sigmoid() * *beta,
                    rewards: [beta * chosen.value, beta * rejected.value],
                    log_odds: Some(log_odds.value),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn all() -> Vec<ReferenceFree> {
        let cpo = |loss_type, alpha| CpoOptions { loss_type, alpha, beta: 0.7, ..CpoOptions::default() };
        let mut all: Vec<ReferenceFree> = CpoLoss::ALL
            .iter()
            .flat_map(|&loss| [cpo(loss, 0.0), cpo(loss, 0.3), cpo(loss, -0.4)])
            .map(|options| ReferenceFree::cpo(options).unwrap())
            .collect();
        let smooth = CpoOptions { label_smoothing: 0.2, ..cpo(CpoLoss::Simpo, 0.25) };
        all.push(ReferenceFree::cpo(smooth).unwrap());
        all.push(ReferenceFree::orpo(0.4).unwrap());
        all
    }

    #[test]
    fn gradients_are_slopes() {
        let log_prob = [-0.3f32, -1.5, -0.2, -0.9, -2.5, -0.4];
        let counts = PairCounts { pairs: 3.0, chosen_targets: 9.0 };
        for loss in all() {
            let prompt = if loss.trains_prompt() { 0..2 } else { 0..0 };
            let pair = [UnreferencedPair { chosen: (2..4).into(), rejected: (4..6).into(), prompt }];
            let terms = |log_prob: Vec<f32>| {
                let stats = TokenStats { log_prob, ..TokenStats::default() };
                loss.terms(&stats, &pair, counts).unwrap()
            };
            let gradient = terms(log_prob.to_vec()).gradient;
            for at in 0..log_prob.len() {
                let step = 1e-2f32;
                let moved = |by: f32| {
                    let mut values = log_prob.to_vec();
                    values[at] += by;
                    (f64::from(values[at]), terms(values).value)
                };
                let ((a, low), (b, high)) = (moved(-step), moved(step));
                let slope = (high - low) / (b - a);
                assert!(
                    (slope - f64::from(gradient[at])).abs() < 1e-4,
                    "{loss:?} {at}: {slope} {gradient:?}"
                );
            }
        }
    }

    #[test]
    fn a_certain_completion_has_finite_odds() {
        let stats = TokenStats { log_prob: vec![0.0, -1.0], ..TokenStats::default() };
        let pair = UnreferencedPair { chosen: (0..1).into(), rejected: (1..2).into(), prompt: 0..0 };
        let counts = PairCounts { pairs: 1.0, chosen_targets: 1.0 };
        let terms = ReferenceFree::orpo(0.1).unwrap().terms(&stats, &[pair], counts).unwrap();
        assert!(terms.value.is_finite() && terms.gradient.iter().all(|g| g.is_finite()), "{terms:?}");
    }

    #[test]
    fn options_out_of_range_are_named() {
        let message = |options| ReferenceFree::cpo(options).unwrap_err().to_string();
        assert!(message(CpoOptions { beta: 0.0, ..CpoOptions::default() }).contains("beta"));
        let ignored = CpoOptions { loss_type: CpoLoss::Hinge, label_smoothing: 0.1, ..CpoOptions::default() };
        assert!(message(ignored).contains("label_smoothing"));
        assert!(ReferenceFree::orpo(f64::NAN).unwrap_err().to_string().contains("beta"));
    }
}
