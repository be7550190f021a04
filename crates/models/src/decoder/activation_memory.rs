//! Activation memory of a forward and backward pass, in bytes, as a plan predicts it.

use crate::Spec;
use crate::spec::names::QkvNames;
use crate::spec::{BlockSizes, Pairs, QkNorm};

/// Bytes of an f32.
const F32: u64 = 4;

impl Spec {
    /// Whether queries, keys and values are made anew between the linears and attention.
    fn moves_columns(&self) -> bool {
        let per_group = matches!(self.names.qkv, QkvNames::PerGroup(_) | QkvNames::Quarters(_));
        let normed = self.qk_norm.is_some_and(|norm| !matches!(norm, QkNorm::PerHead | QkNorm::PerHeadBare));
        per_group || normed || self.pairs == Pairs::Neighbours || self.clip_qkv.is_some()
    }

    /// Elements a token of what a block's attention gives over so many heads: its output and row sums.
    fn attended(&self, layer: usize, heads: usize) -> usize {
        heads * (self.sizes(layer).head_dim + 1)
    }

    /// Bytes of what attention gave over `tokens` tokens, of all blocks: its outputs and row sums.
    ///
    /// Of `tp_size` ranks that share each layer, the one with most.
    #[must_use]
    pub fn attention_bytes(&self, tokens: usize, tp_size: usize) -> u64 {
        let of = |layer: usize| {
            let heads = self.sizes(layer).heads.div_ceil(tp_size);
            let attends = !self.layers[layer].no_attention && self.delta_of(layer).is_none();
            if attends { self.attended(layer, heads) } else { 0 }
        };
        tokens as u64 * F32 * (0..self.layers.len()).map(of).sum::<usize>() as u64
    }

    /// Bytes of activations at the height of a training pass over `tokens` tokens of which `targets` predict
    /// something: what forward keeps for backward, and what the block that is being differentiated needs.
    ///
    /// Of `tp_size` ranks that share each layer, the one with most. With `recompute` each block keeps its input alone. Attention keeps no scores and the head no logits. Packing
    /// buffers of the kernels, which do not grow with the model's depth, are left out.
    #[must_use]
    pub fn activation_bytes(&self, tokens: usize, targets: usize, recompute: bool, tp_size: usize) -> u64 {
        let of = |elements: usize| tokens as u64 * elements as u64 * F32;
        let h = self.hidden;
        // A convolution reads three streams, and keeps its own sums. Linear attention keeps its columns apart from the layer's and convolved,
        // what it gives before and behind its gates, and numbers of each head; gradients are as wide.
        let of_linear = |channels: usize, values: usize, heads: usize| 4 * channels + 5 * values + 10 * heads;
        let channels = self.conv.map_or(0, |_| 4 * h.div_ceil(tp_size));
        let of_delta = self.delta.map_or(0, |d| {
            let (keys, values) = (d.key_heads * d.key_dim, d.value_heads * d.value_dim);
            // Of channels that forget each by itself how much they do as layers say it, with the gates, and as the rule reads it.
            let by_channel =
                d.by_channel.map_or(0, |decay| 2 * decay.rank.unwrap_or(0) + 6 * keys + 3 * values);
            (of_linear(2 * keys + values, values, d.value_heads) + by_channel).div_ceil(tp_size)
        });
        let channels = channels.max(of_delta);
        // Every rank has a state space whole, with what passes by it.
        // Of Mamba values before and behind the convolution, steps and what they are made of, what the scan and the gates give.
        let of_ssd = self.ssd.map_or(0, |s| match s.selective {
            Some(own) => 9 * s.width() + 2 * (own.step_rank + 2 * s.state),
            None => of_linear(s.channels(), s.width(), s.heads) + 3 * s.width(),
        });
        // Branches that are normed or scaled before they are added are kept too, as are columns in another order.
        let apart = self.layout.is_post() || self.residual_scale != 1.0;
        let branches = if apart { 4 * h } else { 0 };
        // A mixture keeps the normed stream and gate and up of each of a token's experts; what they, and a shared one, give
        // is added to the stream apart.
        let of_mixture = self.experts.map_or(0, |experts| {
            let shared = experts.shared.map_or(0, |shared| 2 * shared.intermediate.div_ceil(tp_size) + h);
            let routed =
                experts.rule.per_token * (experts.gate.reads(experts.intermediate.div_ceil(tp_size)) + 1);
            // What each of them reads is weighed apart, and what it gives.
            let weighed = if experts.weighs_inputs { 2 * experts.rule.per_token * h } else { 0 };
            2 * h + experts.count + routed + shared + weighed
        });
        // What a block is given beside the stream, the gate before it, both together, and a branch.
        let given = self.per_layer.map_or(0, |given| 4 * given.width + 2 * h);
        // Of streams beside each other those that come in, predicted, corrected and passed on, and what each is made of;
        // beside attention two narrow layers.
        let streams = self.altup.map_or(0, |altup| {
            6 * self.passed_on() + 6 * h + altup.laurel_rank + 2 * altup.streams * (altup.streams + 1)
        });
        // What a learned activation gives is kept as well.
        let inner_of = |layer: usize| match self.sizes(layer).intermediate.div_ceil(tp_size) {
            // Both branches, and what their norms read.
            i if self.experts_of(layer).is_some_and(|experts| experts.beside) => of_mixture + 2 * i + 4 * h,
            _ if self.experts_of(layer).is_some() => of_mixture,
            // Gates as they come, apart from their mean and cut off, and both halves together.
            i if self.layers.get(layer).is_some_and(|own| own.cutoff.is_some()) => 8 * i,
            _ if self.layers.get(layer).is_some_and(|own| own.no_feed_forward) => 0,
            // Scaled gates are kept beside those that come.
            i if self.mlp_scales[0] != 1.0 => 5 * i,
            i if self.gated() || self.xielu => 2 * i,
            i => i,
        };
        // What one block keeps: its input, qkv, attention's output and row sums, the stream between, gate and up.
        let block_of = |layer: usize| {
            let BlockSizes { heads, kv_heads, head_dim, .. } = self.sizes(layer);
            let heads = heads.div_ceil(tp_size);
            let keys = 2 * kv_heads.div_ceil(tp_size) * head_dim;
            let qkv = (heads * head_dim + keys).max(channels);
            // What is made in attention stands behind each head's.
            let more = self.attended_dim() - self.head_dim;
            let widened = if more > 0 { 3 * heads * (head_dim + more) } else { 0 };
            let moved = if self.moves_columns() { qkv } else { 0 } + widened;
            let lent = if self.lends_keys(layer) { self.passed_on() + 2 * keys } else { 0 };
            let attends = !self.layers.get(layer).is_some_and(|own| own.no_attention);
            let attention = if attends { qkv + moved + self.attended(layer, heads) } else { 0 };
            let ssd = if self.ssd_of(layer).is_some() { of_ssd + 3 * h } else { 0 };
            of(h + attention + ssd + h + inner_of(layer) + branches + given + lent + streams)
        };
        let layers = self.layers.len();
        let inner = (0..layers).map(inner_of).max().unwrap_or_else(|| inner_of(0));
        let kept = if recompute {
            let inputs = self.passed_on() + self.per_layer.map_or(0, |given| given.width);
            layers as u64 * of(inputs) + (0..layers).map(block_of).max().unwrap_or_else(|| block_of(0))
        } else {
            (0..layers).map(block_of).sum()
        };
        // Gradients on their way through the feed-forward: of the stream, of gate and up.
        let flowing = of(2 * h + inner);
        // The head's input and its gradient wait until backward begins.
        let head = 2 * targets as u64 * self.ends as u64 * F32 + of(self.ends);
        kept + flowing.max(head)
    }
}
