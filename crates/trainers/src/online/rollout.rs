//! From prompts to completions with rewards and advantages, on all ranks.

use std::ops::Range;

use burnish_comm::Bucket;
use burnish_core::random::Stream;
use burnish_data::PromptExample;
use burnish_losses::{MetricSums, Rewards, is_truncated};
use burnish_models::{Completion, FinishReason, Generation};
use burnish_weight_files::Placement;

use super::completions_log::Line;
use super::engine::Engine;
use super::server::Server;
use super::{Objective, Online, Sampled, State};
use crate::TrainError;
use crate::forward::log_probs::of_policy;
use crate::plan::step_passes::RolloutPasses;
use crate::rank::Rank;
use crate::reference::Reference;

/// The number of the first completion in evaluation, beyond all those of training.
const EVALUATED: u64 = 1 << 63;

/// Completions to be sampled.
pub(super) struct Wanted<'a> {
    pub(super) prompts: &'a [PromptExample],
    /// The prompt of each; those of a prompt lie one after another.
    pub(super) rows: Vec<usize>,
    /// As many as this.
    pub(super) group: usize,
    /// How tokens are chosen; `first_row` is the first completion's.
    pub(super) settings: Generation,
    /// Whether they are scored by the policy.
    pub(super) old: bool,
}

/// The part of `all` completions that a data-parallel rank samples and scores.
fn share(all: usize, rank: usize, ranks: usize) -> Range<usize> {
    all * rank / ranks..all * (rank + 1) / ranks
}

impl<O: Objective> Online<O> {
    /// Generation batch `number`, in the order in which it trains, and what is said of it. Draws are a function of the
    /// seed, the batch, and the completion's place in it.
    pub(super) fn sample(
        &self,
        rank: &Rank<'_>,
        state: &mut State,
        number: u64,
        done: u64,
    ) -> Result<(Vec<Sampled>, MetricSums), TrainError> {
        let rows = self.rounds.rows(number)?;
        let first_row = number * rows.len() as u64;
        let wanted = Wanted {
            prompts: &self.train.examples,
            rows,
            group: self.options.num_generations,
            settings: Generation { first_row, ..self.settings.clone() },
            old: self.scores_old(rank),
        };
        self.serve_adapter(rank, state, number)?;
        let (sampled, tally) = self.roll_out(rank, state.reference.as_ref(), &wanted)?;
        if number == 0 && sampled.iter().all(|s| s.rewards.iter().all(Option::is_none)) {
            return Err(TrainError::NothingScored { names: self.scoring.names().to_vec() });
        }
        if let Some(log) = &mut state.log {
            let tokenizer = &rank.setup.prepared.tokenizer;
            let texts = sampled.iter().map(|s| tokenizer.decode(&s.ids, true));
            let texts = texts.collect::<Result<Vec<_>, _>>()?;
            let names = || self.scoring.names().iter().map(String::as_str);
            let lines = sampled.iter().zip(texts).map(|(s, completion)| Line {
                prompt: wanted.prompts[s.row].prompt.to_json(),
                completion,
                ended: s.ended,
                rewards: names().zip(s.rewards.iter().copied()).collect(),
                advantage: s.advantage,
            });
            log.write(done + 1, lines)?;
        }
        if self.rows_of_step(rank).is_multiple_of(self.rounds.batch()) {
            // A step takes all of it, and completions that lie together share their prompt.
            return Ok((sampled, tally));
        }
        // A step takes completions of many prompts.
        let order = Stream::new(rank.setup.options.training.seed, "rollouts.order").at(number);
        let mut kept: Vec<Option<Sampled>> = sampled.into_iter().map(Some).collect();
        let order = order.permutation(kept.len()).into_iter();
        let sampled = order.map(|at| kept[at].take().expect("invariant: a permutation")).collect();
        Ok((sampled, tally))
    }

    /// Whether the policy scores what was sampled.
    fn scores_old(&self, rank: &Rank<'_>) -> bool {
        let rollout = RolloutPasses::new(&self.options, self.objective.needs_old());
        rollout.scored(self.rounds.batch(), self.rows_of_step(rank))
    }

    /// Completions of a full step on all ranks.
    fn rows_of_step(&self, rank: &Rank<'_>) -> usize {
        rank.setup.shape(rank.setup.rows_in_order(), rank.data.size()).global_batch()
    }

    /// How evaluation chooses tokens: by draws of its own, the same every time.
    pub(super) fn settings_of_evaluation(&self) -> Generation {
        Generation { first_row: EVALUATED, ..self.settings.clone() }
    }

    /// Samples, scores, and compares; the same on all ranks, each of which does its share.
    pub(super) fn roll_out(
        &self,
        rank: &Rank<'_>,
        reference: Option<&Reference>,
        wanted: &Wanted<'_>,
    ) -> Result<(Vec<Sampled>, MetricSums), TrainError> {
        let own = share(wanted.rows.len(), rank.dp.rank(), rank.dp.size());
        let mut sampled = self.completions(rank, wanted, own)?;
        self.scoring.score(rank, wanted.prompts, &mut sampled)?;
        self.log_probs(rank, reference, wanted, &mut sampled)?;
        for one in &sampled {
            one.check()?;
        }
        let text = serde_json::to_vec(&sampled).expect("invariant: numbers and lists serialise to JSON");
        let mut all = Vec::with_capacity(wanted.rows.len());
        for part in rank.dp.all_gather_any(Bucket::new(text), "completions")?.iter() {
            let part: Vec<Sampled> = serde_json::from_slice(part)
                .expect("invariant: a rank wrote it, transports check what arrives");
            all.extend(part);
        }
        let tally = self.compare(wanted, &mut all)?;
        Ok((all, tally))
    }

    /// This rank's completions.
    fn completions(
        &self,
        rank: &Rank<'_>,
        wanted: &Wanted<'_>,
        own: Range<usize>,
    ) -> Result<Vec<Sampled>, TrainError> {
        let rows = &wanted.rows[own.clone()];
        let prompts: Vec<Vec<u32>> = rows.iter().map(|&row| wanted.prompts[row].ids.clone()).collect();
        let first_row = wanted.settings.first_row + own.start as u64;
        let settings = Generation { first_row, ..wanted.settings.clone() };
        let said = match &self.server {
            None => Engine::of(rank, self.options.rollout_quantization)?.sample(rank, &prompts, &settings)?,
            Some(server) => self.served(rank, server, &prompts, &settings)?,
        };
        let made = rows.iter().zip(said).map(|(&row, said)| {
            // A server may leave the token out that ended a completion.
            let ended =
                said.finish_reason == FinishReason::Stop || !is_truncated(&said.token_ids, &self.ends);
            Sampled {
                row,
                ended,
                trains: ended || !self.options.mask_truncated_completions,
                ids: said.token_ids,
                rewards: Vec::new(),
                advantage: 0.0,
                sampling: said.log_probs,
                old: None,
                reference: None,
            }
        });
        Ok(made.collect())
    }

    /// This rank's completions as the server samples them. Of ranks that share layers the first asks; the others hear of
    /// it.
    fn served(
        &self,
        rank: &Rank<'_>,
        server: &Server,
        prompts: &[Vec<u32>],
        settings: &Generation,
    ) -> Result<Vec<Completion>, TrainError> {
        let mut own = Vec::new();
        if rank.axes.all.rank() == 0 {
            for said in server.sample(prompts, settings, self.options.generation_max_sequences)? {
                let stopped = u64::from(said.finish_reason == FinishReason::Stop);
                own.push((said.token_ids.len() as u64) << 1 | stopped);
                own.extend(
                    said.token_ids
                        .iter()
                        .zip(&said.log_probs)
                        .map(|(&id, log_prob)| u64::from(id) << 32 | u64::from(log_prob.to_bits())),
                );
            }
        }
        let all = rank.axes.all.group().all_gather_any(Bucket::new(own), "completions of the server")?;
        let mut words = all.of(0).iter().copied();
        let mut completions = Vec::with_capacity(prompts.len());
        while let Some(length) = words.next() {
            let tokens: Vec<u64> = words.by_ref().take(length as usize >> 1).collect();
            completions.push(Completion {
                token_ids: tokens.iter().map(|word| (word >> 32) as u32).collect(),
                log_probs: tokens.iter().map(|&word| f32::from_bits(word as u32)).collect(),
                finish_reason: if length & 1 == 1 { FinishReason::Stop } else { FinishReason::Length },
            });
        }
        Ok(completions)
    }

    /// Has the server sample with the adapter as it is now.
    pub(super) fn serve_adapter(
        &self,
        rank: &Rank<'_>,
        state: &mut State,
        number: u64,
    ) -> Result<(), TrainError> {
        let Some(server) =
            self.server.as_ref().filter(|_| self.options.rollout_sync && rank.exporter.is_adapter())
        else {
            return Ok(());
        };
        let dir = rank.setup.output_dir().join("rollout-adapter");
        rank.write_to(&dir, Placement::Replacing, "adapter for the server")?;
        let name = format!("burnish-{number}");
        if rank.leads() {
            let path = std::path::absolute(&dir).unwrap_or(dir).display().to_string();
            server.load_adapter(&path, &name, state.served.as_deref())?;
        }
        rank.world.barrier("adapter on the server")?;
        server.use_model(&name);
        state.served = Some(name);
        Ok(())
    }

    /// Has the policy and the reference score this rank's completions, where the loss needs it. All ranks run as many
    /// passes.
    fn log_probs(
        &self,
        rank: &Rank<'_>,
        reference: Option<&Reference>,
        wanted: &Wanted<'_>,
        sampled: &mut [Sampled],
    ) -> Result<(), TrainError> {
        if !wanted.old && reference.is_none() {
            return Ok(());
        }
        let size = rank.setup.options.training.per_device_train_batch_size;
        let (all, ranks) = (wanted.rows.len(), rank.dp.size());
        let most = (0..ranks).map(|rank| share(all, rank, ranks).len()).max().unwrap_or(0);
        let mut parts = sampled.chunks_mut(size);
        for _ in 0..most.div_ceil(size) {
            let part = parts.next().unwrap_or_default();
            let (batch, spans) = Self::lay_out(wanted.prompts, &part.iter().collect::<Vec<_>>(), 0);
            if wanted.old {
                let said = of_policy(rank, &batch, self.temperature())?.log_prob;
                for (s, span) in part.iter_mut().zip(&spans) {
                    s.old = Some(said[span.clone()].to_vec());
                }
            }
            if let Some(reference) = reference {
                let said = reference.log_probs(rank, &batch, self.temperature())?;
                for (s, span) in part.iter_mut().zip(&spans) {
                    s.reference = Some(said[span.clone()].to_vec());
                }
            }
        }
        match reference {
            Some(reference) => reference.release(rank),
            None => rank.store.release(),
        }
        Ok(())
    }

    /// Gives completions their advantages; TRL's figures of rewards and lengths, each over 1.
    fn compare(&self, wanted: &Wanted<'_>, all: &mut [Sampled]) -> Result<MetricSums, TrainError> {
        let said = all.iter().flat_map(|s| s.rewards.iter().map(|reward| reward.unwrap_or(f64::NAN)));
        let values: Vec<f64> = said.collect();
        let rewards = Rewards {
            names: self.scoring.names(),
            weights: self.scoring.weights(),
            values: &values,
            group: wanted.group,
        };
        let advantages = self.objective.advantages(&rewards, all)?;
        for (s, advantage) in all.iter_mut().zip(&advantages.advantages) {
            s.advantage = *advantage;
        }
        let mut tally = advantages.tally;
        if let Some(correction) = self.objective.correction() {
            for s in all.iter() {
                if let Some(old) = &s.old {
                    tally.merge(&correction.ratios(old, &s.sampling[..old.len()])?.1);
                }
            }
            tally.settle();
        }
        let lengths = |ended: bool| all.iter().filter(move |s| s.ended || !ended).map(|s| s.ids.len() as f64);
        for (kind, ended) in [("length", false), ("terminated_length", true)] {
            let count = lengths(ended).count().max(1) as f64;
            let mean = lengths(ended).sum::<f64>() / count;
            let least = lengths(ended).reduce(f64::min).unwrap_or(0.0);
            let greatest = lengths(ended).reduce(f64::max).unwrap_or(0.0);
            for (name, value) in [("mean", mean), ("min", least), ("max", greatest)] {
                tally.add(&format!("completions/{name}_{kind}"), value, 1.0);
            }
        }
        let cut = all.iter().filter(|s| !s.ended).count() as f64;
        tally.add("completions/clipped_ratio", cut / all.len().max(1) as f64, 1.0);
        Ok(tally)
    }
}
