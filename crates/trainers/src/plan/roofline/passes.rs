//! `Passes`: the passes of a step, as a roofline counts them.

use burnish_core::Parameter;
use burnish_models::{ModelPlan, Parallel, PassKind, Routed, Spec, Texts};
use burnish_ops::gpu::cost::{self, Cost};
use burnish_optim::SlotSpec;
use burnish_zero::Plan;

use crate::plan::roofline::Lines;
use crate::plan::traffic::Scoring;

/// Bytes of a token's ids, position and target on their way to the device.
const OF_TOKEN: u64 = 4 * 4;

/// The passes of a step on the first rank.
pub(crate) struct Passes {
    lines: Lines,
    /// Of a micro-batch.
    texts: Texts,
    vocab: usize,
}

/// Sequences that are sampled together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decoding {
    /// Prompts that are computed.
    pub(crate) prompts: usize,
    /// Sequences.
    pub(crate) sequences: usize,
    /// Tokens of a prompt.
    pub(crate) prompt: usize,
    /// New tokens of a sequence.
    pub(crate) length: usize,
    /// Whether tokens are left out of the vocabulary, or penalised, before one is drawn.
    pub(crate) filtered: bool,
}

impl Passes {
    pub(crate) fn new(lines: Lines, texts: Texts, vocab: usize) -> Self {
        Self { lines, texts, vocab }
    }

    /// `times` passes with gradients.
    pub(crate) fn train(&mut self, model: &Scoring<'_>, kind: PassKind, times: usize) {
        let work = model.planned.work(model.parallel, self.texts, kind);
        work.pieces().for_each(|piece| self.lines.piece(piece, times as u64));
        routed(&mut self.lines, (model.planned, model.parallel), (self.texts, kind), times as u64);
        self.heard(self.texts, times as u64);
    }

    /// The loss that balances experts, of so many passes.
    pub(crate) fn balance(&mut self, spec: &Spec, times: usize) {
        let (Some(experts), times) = (&spec.experts, times as u64) else { return };
        let layers = (0..spec.layers.len()).filter(|&layer| spec.experts_of(layer).is_some()).count() as u64;
        let tokens = (self.texts.texts * self.texts.tokens) as u64;
        let (count, each) = (experts.count as u64, experts.rule.per_token as u64);
        self.lines.moving("experts", cost::balanced(layers, count, tokens, each), times);
        self.lines.host(4 * times, 0, times);
    }

    /// `times` passes without gradients over a micro-batch.
    pub(crate) fn score(&mut self, model: &Scoring<'_>, times: usize) {
        self.score_texts(model, self.texts, times);
    }

    /// The same over other texts.
    pub(crate) fn score_texts(&mut self, model: &Scoring<'_>, texts: Texts, times: usize) {
        if times == 0 {
            return;
        }
        let kind = PassKind::Scoring { base: model.base };
        let work = model.planned.work(model.parallel, texts, kind);
        routed(&mut self.lines, (model.planned, model.parallel), (texts, kind), times as u64);
        work.pieces().for_each(|piece| self.lines.under("passes without gradients", piece, times as u64));
        self.heard(texts, times as u64);
    }

    /// `times` times: prompts, whose logits the host gets, then a token of every sequence at a time, of whose logits it gets what a
    /// draw reads where all of them may be drawn. A token in the middle stands for all of them.
    pub(crate) fn decode(
        &mut self,
        (planned, parallel): (&ModelPlan<'_>, &Parallel),
        of: Decoding,
        times: usize,
    ) {
        let Decoding { prompts, sequences, prompt, length, filtered } = of;
        let (times, vocab) = (times as u64, self.vocab as u64);
        let divided = parallel.ranks() > 1;
        let mut add = |name, texts: Texts, (read, waits): (u64, u64), times: u64| {
            if texts.texts == 0 || times == 0 {
                return;
            }
            let work = planned.work(parallel, texts, PassKind::Decoding);
            work.pieces().for_each(|piece| self.lines.under(name, piece, times));
            let tokens = (texts.texts * texts.tokens) as u64;
            self.lines.host(read * texts.texts as u64 * times, OF_TOKEN * tokens * times, waits * times);
            routed(&mut self.lines, (planned, parallel), (texts, PassKind::Decoding), times);
        };
        let of_prompts = Texts { texts: prompts, tokens: prompt, before: 0, targets: prompts };
        let all = (4 * vocab, 1);
        add("sampling: prompts", of_prompts, all, times);
        let one = Texts { texts: sequences, tokens: 1, before: prompt + length / 2, targets: sequences };
        let read = if filtered || divided { all } else { (cost::drawn(vocab), 2) };
        add("sampling: new tokens", one, read, times * length.saturating_sub(1) as u64);
    }

    /// The update, with the norm of gradients: of each trained parameter the rows that the first rank has.
    pub(crate) fn update(
        &mut self,
        plan: &Plan,
        micro_batches: usize,
        slots: &dyn Fn(usize) -> Vec<SlotSpec>,
        newton_schulz: f64,
    ) {
        let mut all = Cost { flops: newton_schulz as u64, ..Cost::default() };
        let mut tensors = 0;
        for (index, parameter) in plan.registry().iter().enumerate() {
            if !parameter.trainable || parameter.alias_of.is_some() {
                continue;
            }
            let elements = rows_of(parameter, plan.rows(index, 0).len());
            let store = parameter.precision.store;
            let own = |slot: &&SlotSpec| slot.name != "master";
            let slots: u64 =
                slots(index).iter().filter(own).map(|slot| elements * slot.dtype.bytes() as u64).sum();
            let stored =
                if store == parameter.precision.master { 0 } else { elements * store.bytes() as u64 };
            all += cost::gradient(parameter.elements() as u64, micro_batches as u64);
            all += cost::update(elements, slots, stored);
            tensors += 1;
        }
        self.lines.optimizer(all + cost::updates(tensors, micro_batches as u64));
        // The norm, and the figures of a log's line.
        self.lines.host(4 * tensors, 0, 2);
    }

    /// The statistics of a pass's targets, and its tokens.
    fn heard(&mut self, texts: Texts, times: u64) {
        let tokens = (texts.texts * texts.tokens) as u64;
        self.lines.host(cost::STATISTICS * texts.targets as u64 * times, OF_TOKEN * tokens * times, times);
    }

    pub(crate) fn finish(self) -> Lines {
        self.lines
    }
}

/// What the host hears and says of experts.
fn routed(
    lines: &mut Lines,
    (planned, parallel): (&ModelPlan<'_>, &Parallel),
    (texts, kind): (Texts, PassKind),
    times: u64,
) {
    let tokens = (texts.texts * texts.tokens) as u64;
    let Routed { to_host, to_device, waits } = planned.routed(parallel, tokens, kind);
    lines.host(to_host * times, to_device * times, waits * times);
}

/// Elements of so many rows of a parameter.
fn rows_of(parameter: &Parameter, rows: usize) -> u64 {
    let row: usize = parameter.shape.iter().skip(1).product();
    (rows * row) as u64
}
