//! Scoring of sampled completions by the reward functions.

use burnish_comm::Bucket;
use burnish_config::groups::RolloutOptions;
use burnish_data::PromptExample;
use burnish_rewards::{RewardFunction, Sample};

use super::sampled::Sampled;
use crate::TrainError;
use crate::rank::Rank;
use crate::scoring::reward_functions::WeightedReward;

/// Reward functions and their weights; with a [`MissingEos`] one more of weight 1, which knows where a completion ended.
pub(crate) struct Scoring {
    functions: Vec<Box<dyn RewardFunction>>,
    names: Vec<String>,
    weights: Vec<f64>,
    missing_eos: Option<MissingEos>,
}

/// Reward of a completion that ends without an end-of-sequence token, as TRL's former RLOO had it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MissingEos {
    /// Taken off what the functions say (`missing_eos_penalty`).
    Less(f64),
    /// Instead of what the functions say (`non_eos_penalty`, `penalty_reward_value`).
    Instead(f64),
}

impl MissingEos {
    /// What the options ask for, if anything.
    pub(crate) fn of(options: &RolloutOptions) -> Option<Self> {
        let instead = options.non_eos_penalty.then_some(Self::Instead(options.penalty_reward_value));
        instead.or(options.missing_eos_penalty.map(Self::Less))
    }

    /// The option that asks for it.
    fn name(self) -> &'static str {
        match self {
            Self::Less(_) => "missing_eos_penalty",
            Self::Instead(_) => "non_eos_penalty",
        }
    }

    /// What a completion without an end gets beside the `scored` of the functions.
    fn beside(self, scored: f64) -> f64 {
        match self {
            Self::Less(penalty) => -penalty,
            Self::Instead(value) => value - scored,
        }
    }
}

impl Scoring {
    /// Functions with their weights; what becomes of a completion that ends without an end-of-sequence token.
    pub(crate) fn new(
        weighted: Vec<WeightedReward>,
        missing_eos: Option<MissingEos>,
    ) -> Result<Self, TrainError> {
        if weighted.is_empty() {
            return Err(TrainError::NoReward);
        }
        let (functions, mut weights): (Vec<_>, Vec<f64>) = weighted.into_iter().unzip();
        let mut names: Vec<String> = functions.iter().map(|f| f.name().to_owned()).collect();
        if let Some(missing) = missing_eos {
            names.push(missing.name().to_owned());
            weights.push(1.0);
        }
        Ok(Self { functions, names, weights, missing_eos })
    }

    /// The functions' names, in order.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// Their weights.
    pub(crate) fn weights(&self) -> &[f64] {
        &self.weights
    }

    /// Scores completions of `prompts`. Of ranks that share layers, which have the same, the first asks; the others hear
    /// of it.
    pub(crate) fn score(
        &self,
        rank: &Rank<'_>,
        prompts: &[PromptExample],
        sampled: &mut [Sampled],
    ) -> Result<(), TrainError> {
        let own = if rank.axes.all.rank() == 0 { self.ask(rank, prompts, sampled)? } else { Vec::new() };
        let all = rank.axes.all.group().all_gather_any(Bucket::new(own), "rewards")?;
        let functions = self.functions.len();
        for (completion, said) in sampled.iter_mut().zip(all.of(0).chunks(functions)) {
            completion.rewards = said.iter().map(|&reward| (!reward.is_nan()).then_some(reward)).collect();
            if let Some(missing) = self.missing_eos {
                let said =
                    || completion.rewards.iter().zip(&self.weights).filter_map(|(r, w)| Some((*r)? * w));
                // A completion that every function declined stays without a reward.
                let scored = said().next().map(|_| said().sum());
                let beside = |scored: f64| if completion.ended { 0.0 } else { missing.beside(scored) };
                completion.rewards.push(scored.map(beside));
            }
        }
        Ok(())
    }

    /// `[completions, functions]`; NaN where a function declined.
    fn ask(
        &self,
        rank: &Rank<'_>,
        prompts: &[PromptExample],
        sampled: &[Sampled],
    ) -> Result<Vec<f64>, TrainError> {
        let tokenizer = &rank.setup.prepared.tokenizer;
        let texts = sampled.iter().map(|s| tokenizer.decode(&s.ids, true)).collect::<Result<Vec<_>, _>>()?;
        let asked: Vec<_> = sampled.iter().map(|s| prompts[s.row].prompt.to_json()).collect();
        let samples: Vec<Sample<'_>> = (0..sampled.len())
            .map(|at| Sample {
                prompt: &asked[at],
                completion: &texts[at],
                completion_ids: &sampled[at].ids,
                columns: &prompts[sampled[at].row].columns,
            })
            .collect();
        let mut out = vec![f64::NAN; samples.len() * self.functions.len()];
        for (at, function) in self.functions.iter().enumerate() {
            let said = if samples.is_empty() { Vec::new() } else { function.score(&samples)? };
            if said.len() != samples.len() {
                let function = function.name().to_owned();
                return Err(TrainError::RewardCount { function, got: said.len(), expected: samples.len() });
            }
            for (completion, reward) in said.into_iter().enumerate() {
                out[completion * self.functions.len() + at] = reward.unwrap_or(f64::NAN);
            }
        }
        Ok(out)
    }
}
