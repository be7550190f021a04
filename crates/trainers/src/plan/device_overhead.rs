//! Memory of a GPU beside counted tensors: context, kernels, the allocator's slack.

use burnish_core::{FLASH_HEAD, LINEAR_ATTENTION_CHUNK, Parameter, Registry, Role};
use burnish_models::Spec;
use burnish_ops::gpu::cost::{self, HeadSize, LinearSize};

/// Bytes beside weights, gradients, optimizer state and activations. Estimates, on the careful side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOverhead {
    /// The driver's context and the compiled kernels, once for each process.
    pub context: u64,
    /// Of the head, a chunk of logits; of attention, the gradients of queries, keys and values; of linear attention the states of chunks
    /// and their gradients; of weights in fewer bits those that are widened at once.
    pub workspace: u64,
}

/// A driver's context on recent GPUs is some 500 MiB with its modules.
const CONTEXT: u64 = 600 << 20;

/// A chunk of logits, of a frozen head at most 256 MiB in 16 bits, and what is made of it.
const LOGITS: u64 = 3 * (128 << 20);

/// Queries at a time against a row's keys, of heads that attention has no kernels for.
const QUERIES: usize = 512;

impl DeviceOverhead {
    /// Of a model whose step has `tokens` in `texts` rows, over `tp_size` ranks that share layers, with
    /// `at_once` bytes of something else for a while: weights that are widened, logits.
    pub(crate) fn new(spec: &Spec, texts: usize, tokens: usize, tp_size: usize, at_once: u64) -> Self {
        let row = tokens / texts.max(1);
        let of_ranks = |heads: usize| heads.div_ceil(tp_size.max(1));
        let heads = of_ranks(spec.most_heads());
        let attention = if spec.head_dim <= FLASH_HEAD {
            4 * (heads + 2 * of_ranks(spec.kv_heads)) * spec.head_dim * tokens
        } else {
            // Scores, probabilities and their gradient, f32.
            3 * 4 * heads * QUERIES.min(row) * row
        };
        let chunks = tokens.div_ceil(LINEAR_ATTENTION_CHUNK) + texts;
        let linear = |heads: usize, key_dim: usize, value_dim: usize| {
            2 * 4 * heads * value_dim * (key_dim * chunks + tokens)
        };
        let delta = spec.delta.map_or(0, |d| linear(of_ranks(d.value_heads), d.key_dim, d.value_dim));
        let ssd = spec.ssd.map_or(0, |s| linear(s.heads, s.state, s.head_dim));
        let most = [attention, delta, ssd].into_iter().max().unwrap_or(0) as u64;
        Self { context: CONTEXT, workspace: LOGITS.max(most).max(at_once) }
    }

    /// All of it beside `held` bytes of tensors.
    pub(crate) fn beside(&self, held: u64) -> u64 {
        self.context + self.workspace + self.pages(held)
    }

    /// Pages that the allocator keeps beside `held` bytes of tensors: CubeCL pads and slices them.
    pub(crate) fn pages(&self, held: u64) -> u64 {
        (held + self.workspace) / 10
    }
}

/// Bytes of a chunk of logits over a head that trains, of `tokens` rows on this rank: the more of its gradient, the more rows.
pub(crate) fn trained_logits(local: &Registry, tokens: usize) -> u64 {
    let of = |head: &Parameter| {
        let weight = local.owner(head);
        let [output, input] = weight.shape[..] else { return 0 };
        let [tokens, input, output] = [tokens, input, output].map(|n| n as u64);
        let layer = LinearSize { tokens, input, output, bytes: weight.precision.store.bytes() as u64 };
        if weight.trainable { HeadSize { layer, trains: true }.logits_bytes() } else { 0 }
    };
    local.iter().filter(|parameter| parameter.role == Role::Head).map(of).max().unwrap_or(0)
}

/// Bytes of the largest weight in fewer bits that is widened as a whole, in the dtype that it is read in: of experts that of some.
/// Layers that read one input, as a gate and what it multiplies, are widened together: two such.
pub(crate) fn largest_widened(local: &Registry) -> u64 {
    let of = |parameter: &Parameter| {
        let matrices =
            if parameter.role == Role::Expert { parameter.shape.first().copied().unwrap_or(1) } else { 1 };
        let each = parameter.elements() / matrices.max(1);
        (matrices.min(cost::widened_together(each)) * each * parameter.precision.store.bytes()) as u64
    };
    local.iter().filter(|parameter| parameter.quantization.is_some()).map(of).max().unwrap_or(0)
}
