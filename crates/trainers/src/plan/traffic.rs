//! The collectives of a step by the passes that it makes.

use burnish_comm::Traffic;
use burnish_core::Dtype;
use burnish_models::{DecodingSize, ModelPlan, Parallel, ScoreSize, Texts};
use burnish_zero::Plan;

use crate::plan::roofline::{Decoding, Passes};
use crate::plan::step_passes::RolloutPasses;

/// Elements of weights and gradients among what was moved: not scalars and flags.
pub(crate) fn moved(traffic: &Traffic) -> u64 {
    let carried = |dtype: Dtype| matches!(dtype, Dtype::F32 | Dtype::Bf16 | Dtype::F16);
    traffic.rows().filter(|(key, _)| carried(key.dtype)).map(|(_, row)| row.elements).sum()
}

/// A model's passes without gradients, and what they move: among ranks that take different rows by `plan`, among ranks
/// that share layers by `parallel`.
#[derive(Clone, Copy)]
pub(crate) struct Scoring<'a> {
    pub(crate) planned: &'a ModelPlan<'a>,
    pub(crate) parallel: &'a Parallel,
    pub(crate) plan: &'a Plan,
    /// Whether adapters are left out.
    pub(crate) base: bool,
}

impl Scoring<'_> {
    /// The units that a pass reads, in order.
    pub(crate) fn reads(&self) -> Vec<usize> {
        self.plan.units_of(&self.planned.reads(!self.base))
    }

    /// What `passes` passes over micro-batches of so many tokens, of which so many are predicted, of so many texts, move among
    /// ranks that share layers.
    pub(crate) fn shared(&self, size: (usize, usize, usize), passes: usize) -> Traffic {
        let (tokens, targets, texts) = size;
        let size = ScoreSize { tokens, targets, texts, base: self.base };
        self.planned.forecast_scores(self.parallel, &size, passes).traffic().clone()
    }
}

/// Generation batches of a step, as the first rank samples and scores its part of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rollouts<'a> {
    passes: &'a RolloutPasses,
    /// Generation batches of a step.
    pub(crate) batches: usize,
    /// The rank's completions of one.
    own: usize,
    /// Micro-batches in which every rank scores its own: as many as the rank with most needs.
    chunks: usize,
    rows: usize,
    /// Whether the policy scores them.
    pub(crate) scored: bool,
}

impl<'a> Rollouts<'a> {
    /// Of steps of `step` rows on `data` ranks, in micro-batches of `rows`; completions are sampled and scored by `dp` groups of
    /// those, each together.
    pub(crate) fn new(
        passes: &'a RolloutPasses,
        rows: usize,
        (dp, data): (usize, usize),
        step: usize,
    ) -> Self {
        let batch = passes.generation_batch(rows, data, step);
        Self {
            passes,
            batches: step.div_ceil(batch.max(1)),
            own: batch / dp,
            chunks: batch.div_ceil(dp).div_ceil(rows),
            rows,
            scored: passes.scored(batch, step),
        }
    }

    /// Tokens of a prompt with its completion.
    pub(crate) fn text(&self) -> usize {
        self.passes.prompt_tokens() + self.passes.completion
    }

    /// Whether a copy in int8 samples.
    pub(crate) fn int8(&self) -> bool {
        self.passes.int8
    }

    /// Sequences that are sampled at once.
    fn at_once(&self) -> usize {
        self.own.min(if self.passes.at_once == 0 { usize::MAX } else { self.passes.at_once })
    }

    /// Bytes of keys and values, of a token `token`, with so many virtual tokens before each text.
    pub(crate) fn cache(&self, before: usize, token: usize) -> u64 {
        if self.passes.here { (self.at_once() * (before + self.text()) * token) as u64 } else { 0 }
    }

    /// Sequences that are sampled together, of a batch, in order: how many of their prompts are computed, and how many there are.
    pub(crate) fn waves(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (own, most, group) = (self.own, self.at_once().max(1), self.passes.group.max(1));
        let own = if self.passes.here { own } else { 0 };
        (0..own).step_by(most).map(move |first| {
            let joined = most.min(own - first);
            // A prompt that the sequences before these began with is not computed again.
            ((first + joined).div_ceil(group) - first.div_ceil(group), joined)
        })
    }

    /// Such sequences' sizes.
    pub(crate) fn decoding(&self, (prompts, sequences): (usize, usize)) -> Decoding {
        let (prompt, length) = (self.passes.prompt_tokens(), self.passes.completion);
        Decoding { prompts, sequences, prompt, length, filtered: self.passes.filtered }
    }

    /// Adds the passes in which `model` scores what was sampled.
    pub(crate) fn scored_by(&self, model: &Scoring<'_>, work: &mut Passes) {
        for (rows, passes) in self.chunks_of_rows() {
            let tokens = if rows == 0 { 1 } else { self.text() };
            let texts =
                Texts { texts: rows.max(1), tokens, before: 0, targets: rows * self.passes.completion };
            work.score_texts(model, texts, passes * self.batches);
        }
    }

    /// Rows of the passes that score a batch, and how many such passes there are; a rank without rows runs one token.
    fn chunks_of_rows(&self) -> [(usize, usize); 3] {
        let (full, rest) = (self.own / self.rows, self.own % self.rows);
        [(self.rows, full), (rest, usize::from(rest > 0)), (0, self.chunks - full - usize::from(rest > 0))]
    }

    /// What sampling moves among ranks that share layers: equal prompts run once, completions are as long as they may be.
    pub(crate) fn sampled(&self, planned: &ModelPlan<'_>, parallel: &Parallel) -> Traffic {
        let mut traffic = Traffic::default();
        if !self.passes.here || self.own == 0 {
            return traffic;
        }
        let mut size = DecodingSize::default();
        for (fresh, joined) in self.waves() {
            if fresh > 0 {
                size.add(fresh * self.passes.prompt_tokens(), fresh, fresh);
            }
            (1..self.passes.completion).for_each(|_| size.add(joined, joined, 0));
        }
        let one = planned.forecast_decoding(parallel, &size);
        (0..self.batches).for_each(|_| traffic.merge(one.traffic()));
        traffic
    }

    /// What it takes for every rank to have all weights while it samples.
    pub(crate) fn gathered(&self, plan: &Plan) -> Traffic {
        let mut traffic = Traffic::default();
        if self.passes.here {
            let each: Vec<Vec<usize>> = (0..plan.registry().len()).map(|index| vec![index]).collect();
            let one = plan.traffic_of_reads(&plan.units_of(&each));
            (0..self.batches).for_each(|_| traffic.merge(&one));
        }
        traffic
    }

    /// What `model` moves among ranks that share layers to score what was sampled.
    pub(crate) fn scores_shared(&self, model: &Scoring<'_>) -> Traffic {
        let mut traffic = Traffic::default();
        for (rows, passes) in self.chunks_of_rows().into_iter().filter(|(_, passes)| *passes > 0) {
            let (tokens, targets) = (rows * self.text(), rows * self.passes.completion);
            traffic.merge(&model.shared((tokens.max(1), targets, rows.max(1)), passes * self.batches));
        }
        traffic
    }

    /// What the passes that score what was sampled move among ranks that take different rows, when each reads `reads`.
    pub(crate) fn scores(&self, plan: &Plan, reads: &[usize]) -> Traffic {
        let one = plan.traffic_of_reads(&reads.repeat(self.chunks));
        let mut traffic = Traffic::default();
        (0..self.batches).for_each(|_| traffic.merge(&one));
        traffic
    }
}
