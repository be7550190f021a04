//! The generic decoder's description: what differs between families, as data.

pub(crate) mod config;
mod families;
pub(crate) mod names;
pub(crate) mod rope;

pub use families::Family;
pub(crate) use families::text_config;

use burnish_core::{Activation, ExpertGate, RouterRule};

use crate::spec::config::CONFIG;
use crate::spec::names::{INDEXER, Names};
use crate::spec::rope::Rope;
use crate::{ConfigFile, ModelError};

/// The embedding's module name in most families ([`Names::embed`]).
pub const EMBED: &str = "model.embed_tokens";
/// The head's module name ([`Names::head`]).
pub const HEAD: &str = "lm_head";
/// The module name of the head that gives a score.
pub const SCORE: &str = "score";

/// What stands on the last hidden states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Logits over the vocabulary (`*ForCausalLM`).
    Vocabulary,
    /// One number for a text, from its last token (`*ForSequenceClassification` with one label): a reward.
    Score,
}

/// What a norm of the stream does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormKind {
    /// RMSNorm times its weight.
    Rms,
    /// RMSNorm times one more than its weight (Gemma).
    RmsPlusOne,
    /// RMSNorm without a weight (nanochat).
    RmsBare,
    /// LayerNorm times its weight, plus a bias where it has one.
    Layer {
        /// Whether there is a bias.
        bias: bool,
    },
    /// LayerNorm times one more than its weight, plus a bias (Nemotron).
    LayerPlusOne,
    /// LayerNorm without parameters (OLMo).
    LayerBare,
}

impl NormKind {
    /// Whether the mean is taken away.
    #[must_use]
    pub fn is_layer(self) -> bool {
        !matches!(self, Self::Rms | Self::RmsPlusOne | Self::RmsBare)
    }

    /// Whether one is added to the weight.
    #[must_use]
    pub fn is_plus_one(self) -> bool {
        matches!(self, Self::RmsPlusOne | Self::LayerPlusOne)
    }

    /// Whether there is a weight.
    #[must_use]
    pub fn has_weight(self) -> bool {
        !matches!(self, Self::LayerBare | Self::RmsBare)
    }

    /// Whether there is a bias.
    #[must_use]
    pub fn has_bias(self) -> bool {
        matches!(self, Self::Layer { bias: true } | Self::LayerPlusOne)
    }
}

/// Where a block's norms stand and what its feed-forward reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockLayout {
    /// Norms before attention and feed-forward.
    Pre,
    /// Norms before and after each (Gemma 2, GLM-4).
    Sandwich,
    /// Norms after each alone (OLMo 2).
    Post,
    /// Norms of each's sum with the stream (OPT-350m).
    AfterSum,
    /// Attention and feed-forward on the same stream, each behind a norm of its own (GPT-NeoX).
    Parallel,
    /// Attention and feed-forward on the same stream behind one norm (Cohere, Phi).
    ParallelShared,
}

impl BlockLayout {
    /// Whether a norm stands before attention (and, unless it is shared, before the feed-forward).
    #[must_use]
    pub fn is_pre(self) -> bool {
        !matches!(self, Self::Post | Self::AfterSum)
    }

    /// Whether norms stand after attention and feed-forward.
    #[must_use]
    pub fn is_post(self) -> bool {
        matches!(self, Self::Sandwich | Self::Post | Self::AfterSum)
    }

    /// Whether the feed-forward reads what attention reads.
    #[must_use]
    pub fn is_parallel(self) -> bool {
        matches!(self, Self::Parallel | Self::ParallelShared)
    }
}

/// Norms of queries and keys: RMSNorm, or Gemma's form of it as the stream's are, but where LayerNorm is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QkNorm {
    /// Of each head, before the rotation.
    PerHead,
    /// The same without weights (nanochat).
    PerHeadBare,
    /// Of each head, before the rotation, and of each head's values without weights (Gemma 4).
    PerHeadAndValues,
    /// Of each head, after the rotation (HunYuan).
    PerHeadRotated,
    /// The same without weights, in blocks that turn alone (Llama 4).
    PerHeadRotatedBare,
    /// Of all heads together (OLMo 2).
    WholeWidth,
    /// LayerNorm of each head, before the rotation.
    PerHeadLayer {
        /// Whether each head has weights of its own, without a bias (Command R+); else all share them, with a bias
        /// (Persimmon).
        own: bool,
    },
}

/// Gates of what attention gives, which is multiplied by their sigmoid, or their softplus ([`Spec::softplus_gates`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadGates {
    /// Of each element one, which its query head's layer gives behind the query (Qwen3-Next).
    BehindQueries,
    /// Of each element one, by a layer of its own (AFMoE).
    Elements,
    /// Of each head one, by a layer of its own (LFM3, Laguna).
    Heads,
}

/// How the dimensions of a head that turn together lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairs {
    /// The first half with the second.
    Halves,
    /// Each even one with the next (Cohere, GLM).
    Neighbours,
}

/// Queries that grow with their position: times `1 + beta * ln(1 + floor((position + shift) / original))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    /// The factor of the logarithm.
    pub beta: f64,
    /// Positions the model was trained on.
    pub original: usize,
    /// Added to positions: 0 (Ministral 3), or 1 (Llama 4).
    pub shift: usize,
    /// Which blocks' queries do.
    pub grows: Grows,
}

/// Whose queries grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grows {
    /// All blocks' (Ministral 3).
    All,
    /// Those of blocks without a rotation (Llama 4).
    Still,
}

/// What is particular to a block.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LayerSpec {
    /// The sliding window.
    pub window: Option<usize>,
    /// Tokens see those of their own chunk of so many positions alone (Llama 4).
    pub chunk: Option<usize>,
    /// Which of [`Spec::ropes`] turns queries and keys; none turns nothing.
    pub rope: Option<usize>,
    /// Divides attention's scores further; 0 does not.
    pub divisor: usize,
    /// Whether a gated short convolution ([`Spec::conv`]) stands in place of attention.
    pub conv: bool,
    /// Whether a gated delta rule ([`Spec::delta`]) stands in place of attention.
    pub delta: bool,
    /// Where norms stand, if not where [`Spec::layout`] says (OLMo Hybrid).
    pub layout: Option<BlockLayout>,
    /// Whether a state space ([`Spec::ssd`]) stands beside attention, or in its place where that is not there.
    pub ssd: bool,
    /// Whether the block has no attention, nor a convolution or a delta rule in its place.
    pub no_attention: bool,
    /// Whether the block has no feed-forward.
    pub no_feed_forward: bool,
    /// Whether attention's output has a bias, where others' has none (GPT-NeoX Japanese).
    pub o_bias: bool,
    /// Whether query heads have no sinks, where others' have (MiMo-V2-Flash).
    pub no_sinks: bool,
    /// Whether a norm stands behind the feed-forward though none does behind attention (A.X K1).
    pub mlp_post_norm: bool,
    /// Whether attention reads the stream as it is, where other blocks' reads it normed (ModernBERT's first).
    pub no_attention_norm: bool,
    /// Whether the feed-forward is a mixture of experts ([`Spec::experts`]).
    pub experts: bool,
    /// Sizes of its own, where the spec's are not its.
    pub sizes: Option<BlockSizes>,
    /// Where its keys and values come from.
    pub keys: KeysValues,
    /// Whether later blocks read its keys and values.
    pub lends: bool,
    /// Of the feed-forward's gates counts by how much they are above their token's mean and so many standard deviations, and
    /// nothing below (Gemma 3n).
    pub cutoff: Option<f32>,
}

/// Sizes that blocks of a model may differ in (Gemma 4, Laguna).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockSizes {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Width of the feed-forward.
    pub intermediate: usize,
}

/// Where a block's keys and values come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeysValues {
    /// Its own layers.
    #[default]
    Own,
    /// Its own layer of keys gives values too, before any norm and rotation (Gemma 4).
    KeysAsValues,
    /// They are those of an earlier block of the same sizes and rotation (Gemma 4).
    Of(usize),
}

/// A further embedding of each token for each block, which enters behind its feed-forward (Gemma 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerLayerInputs {
    /// Elements of a token for one block.
    pub width: usize,
    /// Tokens that have one; others have that of the first.
    pub tokens: usize,
}

/// Streams beside each other (AltUp, Baykal et al., arXiv:2301.13310): a block predicts all of them, runs on one and corrects
/// all by what it made of that (Gemma 3n). Beside attention stand two narrow layers (Laurel).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AltUp {
    /// How many there are.
    pub streams: usize,
    /// The one that blocks run on.
    pub active: usize,
    /// Whether the corrected stream is scaled before it meets the block's own input.
    pub scaled: bool,
    /// The rank of the layers beside attention.
    pub laurel_rank: usize,
}

/// A table of learned positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LearnedPositions {
    /// The row of position 0.
    pub offset: usize,
    /// Positions.
    pub count: usize,
}

/// A gated short convolution (LFM2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShortConv {
    /// Tokens that one sees, itself among them.
    pub taps: usize,
    /// Whether its layers have biases.
    pub bias: bool,
}

/// Linear attention by the gated delta rule (Yang et al., arXiv:2412.06464), behind a short convolution and before a gated
/// norm of each head (Qwen3-Next, Qwen3.5, OLMo Hybrid).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedDelta {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values: as many for each head of keys.
    pub value_heads: usize,
    /// Elements of a head of queries and keys.
    pub key_dim: usize,
    /// Elements of a head of values.
    pub value_dim: usize,
    /// Tokens that one sees in the convolution, itself among them.
    pub taps: usize,
    /// Whether twice as much is learned, so that what a matrix says may change its sign (OLMo Hybrid).
    pub doubled: bool,
    /// Where each channel of a key forgets by itself, and gates are sigmoids (Kimi Delta Attention, arXiv:2510.26692).
    pub by_channel: Option<ChannelDecay>,
    /// Added to the mean square in the norm of each head, where it is not that of the stream's norms.
    pub norm_eps: Option<f32>,
}

/// How each channel of a key forgets by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChannelDecay {
    /// Width of the narrow layers through which decays and gates are made, where they are (Kimi Linear).
    pub rank: Option<usize>,
    /// The strongest decay's logarithm: decays are so many times a sigmoid (Ling 3), where there is one, else a softplus.
    pub bound: Option<f32>,
}

impl GatedDelta {
    /// Heads of values for each head of keys.
    #[must_use]
    pub fn each(&self) -> usize {
        self.value_heads / self.key_heads.max(1)
    }
}

/// Mamba-2's state space (Dao and Gu, arXiv:2405.21060), or Mamba's, behind a short convolution and before gates. Ranks that share layers
/// have it whole, as Transformers' plans do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SsdSpec {
    /// Heads.
    pub heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Groups of heads that share the directions in which they learn and read.
    pub groups: usize,
    /// Elements of such a direction.
    pub state: usize,
    /// Tokens that one sees in the convolution, itself among them.
    pub taps: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the layer that it reads, and the one behind it, have biases.
    pub biases: [bool; 2],
    /// Whether each group's output is normed.
    pub norm: bool,
    /// Whether that norm stands before the gates.
    pub norm_before_gate: bool,
    /// What multiplies gates, values, directions in, directions out and steps (Falcon-H1).
    pub scales: [f32; 5],
    /// What multiplies its output, and attention's where that stands beside it (Falcon-H1).
    pub out_scales: [f32; 2],
    /// What Mamba has in place of Mamba-2's: each channel is then a head of one element, with a rate for each element of its state.
    pub selective: Option<SelectiveScanSpec>,
}

/// Mamba's selective scan (Gu and Dao, arXiv:2312.00752): steps and directions are made of what the convolution gave, which reads
/// values alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelectiveScanSpec {
    /// Width of what steps are made of.
    pub step_rank: usize,
    /// Where that and the directions are normed, what is added to the mean square (Falcon-Mamba, Jamba).
    pub norm_eps: Option<f32>,
    /// Whether those norms have weights (Jamba).
    pub norm_weights: bool,
}

impl SsdSpec {
    /// Elements of all heads.
    #[must_use]
    pub fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// What the convolution reads: values, directions in and directions out; in Mamba values.
    #[must_use]
    pub fn channels(&self) -> usize {
        let directions = if self.selective.is_some() { 0 } else { 2 * self.groups * self.state };
        self.width() + directions
    }

    /// What its layer gives: gates, what the convolution reads, and a step of each head; in Mamba values and gates.
    #[must_use]
    pub fn reads(&self) -> usize {
        let steps = if self.selective.is_some() { 0 } else { self.heads };
        self.width() + self.channels() + steps
    }
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsSpec {
    /// How many experts there are.
    pub count: usize,
    /// Width of one.
    pub intermediate: usize,
    /// How a token's experts are chosen and weighted.
    pub rule: RouterRule,
    /// What stands between an expert's layers.
    pub gate: ExpertGate,
    /// Whether the router and every expert's layers have biases (gpt-oss).
    pub biased: bool,
    /// The feed-forward that every token goes through beside its experts.
    pub shared: Option<SharedExpert>,
    /// What multiplies what that gives.
    pub shared_scale: f32,
    /// Whether they stand beside the block's own feed-forward (Gemma 4): both read the stream, each behind a norm of its own
    /// and before another, and the router reads it behind a norm that has its own weights.
    pub beside: bool,
    /// Whether a token's weights multiply what its experts read, and not what they give (Llama 4).
    pub weighs_inputs: bool,
    /// Whether each expert has a number that is added to its score where experts are compared, and not to weights. Nothing
    /// trains it.
    pub corrected: bool,
    /// The coefficient of the auxiliary loss that balances the experts (`router_aux_loss_coef`); none where the family has
    /// no such loss.
    pub balance: Option<f32>,
}

/// Attention over keys and values that are made of a narrow latent (DeepSeek): a head's queries and keys have a part that
/// turns, which is one for the keys of all heads, and a part that does not; values may be of another width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LatentAttention {
    /// Width of the latent that queries are made of; none where they come straight from the stream.
    pub query_rank: Option<usize>,
    /// Width of the latent that keys and values are made of.
    pub rank: usize,
    /// Dimensions of a head's queries and keys that do not turn.
    pub still: usize,
    /// Those that do.
    pub turned: usize,
    /// Dimensions of a head's values.
    pub value: usize,
}

/// A feed-forward beside a mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Its width.
    pub intermediate: usize,
    /// Whether its output is multiplied by the sigmoid of a number that a layer makes of the token (Qwen2-MoE).
    pub gated: bool,
}

/// A decoder-only transformer.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    /// The family.
    pub family: Family,
    /// What modules are called.
    pub names: Names,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Tokens that have an embedding: more than the head has rows where pictures and sound have some (Llama 3.2 Vision, Apertus 1.5).
    pub embeddings: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the embedding and of what the head reads; where it is not the stream's, layers stand between (OPT-350m).
    pub ends: usize,
    /// Width of the feed-forward.
    pub intermediate: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements per head, as attention has them.
    pub head_dim: usize,
    /// How queries, keys and values are made, where it is of a latent.
    pub latent: Option<LatentAttention>,
    /// Elements of a head's values that layers give, at most those of a head, and what multiplies them (MiMo-V2-Flash).
    pub narrow_values: Option<(usize, f32)>,
    /// The norms of the stream.
    pub norm: NormKind,
    /// Added to the mean square (or the variance) in norms.
    pub norm_eps: f32,
    /// The same in norms behind attention and feed-forward, where it is another (Muse Glimmer).
    pub post_norm_eps: Option<f32>,
    /// The norms of embeddings and of what the head reads, where they are of another kind than blocks' (Muse Glimmer).
    pub end_norms: Option<[NormKind; 2]>,
    /// Where norms stand.
    pub layout: BlockLayout,
    /// Whether a norm stands behind the last block.
    pub final_norm: bool,
    /// Norms of queries and keys.
    pub qk_norm: Option<QkNorm>,
    /// Biases on q, k, v.
    pub qkv_bias: bool,
    /// Bias on the attention output.
    pub o_bias: bool,
    /// Biases in the feed-forward.
    pub mlp_bias: bool,
    /// Bias on the head.
    pub head_bias: bool,
    /// Whether a layer and its GELU stand between the last block's norm and the head, which has a norm of its own; and whether that layer
    /// has a bias (ModernBERT).
    pub dense_head: Option<bool>,
    /// The feed-forward's activation; whether there is a gate say [`Names::up`].
    pub activation: Activation,
    /// The factor and the bound of gates that are clamped instead, as those of experts are
    /// ([`ExpertGate::ClampedHalves`](burnish_core::ExpertGate::ClampedHalves), MiniMax-M3).
    pub clamped_gates: Option<(f32, f32)>,
    /// Whether it is xIELU instead, with two numbers that each block learns (Apertus).
    pub xielu: bool,
    /// Multiplies attention's scores.
    pub attention_scale: f32,
    /// `c * tanh(score / c)` of attention's scores.
    pub attention_softcap: Option<f32>,
    /// Queries, keys and values are held in `-c..=c`.
    pub clip_qkv: Option<f32>,
    /// Linear biases of attention (`ALiBi`), a slope per query head; empty for none.
    pub slopes: Vec<f32>,
    /// As [`Self::slopes`], but slope times the key's position is rounded to bfloat16 (Falcon), which is no line: one more
    /// dimension of keys holds it, and each query head then has keys of its own.
    pub rounded_slopes: Vec<f32>,
    /// Whether each query head has a sink: a learned logit that takes part in softmax and has no value (gpt-oss).
    pub sinks: bool,
    /// Queries that grow with their position.
    pub query_growth: Option<QueryGrowth>,
    /// Multiplies embeddings.
    pub embedding_scale: f32,
    /// Whether embeddings are normed before the first block (BLOOM).
    pub embedding_norm: bool,
    /// Multiplies what attention and feed-forward add to the stream.
    pub residual_scale: f32,
    /// Multiplies logits.
    pub logit_scale: f32,
    /// `c * tanh(logit / c)` of logits.
    pub logit_softcap: Option<f32>,
    /// Whether the head's rows are divided by their lengths (Baichuan 2).
    pub unit_head: bool,
    /// Whether the head shares the embedding.
    pub tied: bool,
    /// What the head gives.
    pub output: Output,
    /// Whether it is the text part of a model that has others (which stay as they are).
    pub part: bool,
    /// Rotary embeddings, of which each layer has one or none.
    pub ropes: Vec<Rope>,
    /// Which dimensions turn together.
    pub pairs: Pairs,
    /// Where a text grows beyond so many tokens, generation begins its cache anew (Phi-3, whose keys turn otherwise then).
    pub recached_beyond: Option<usize>,
    /// Whether each token's position is added as sines and cosines, two rows further on (XGLM).
    pub sinusoids: bool,
    /// Learned positions.
    pub positions: Option<LearnedPositions>,
    /// The convolution of blocks that have one.
    pub conv: Option<ShortConv>,
    /// The gated delta rule of blocks that have one.
    pub delta: Option<GatedDelta>,
    /// The state space of blocks that have one.
    pub ssd: Option<SsdSpec>,
    /// What multiplies the feed-forward's gates before their activation, and its output (Falcon-H1).
    pub mlp_scales: [f32; 2],
    /// Gates of what attention gives.
    pub head_gates: Option<HeadGates>,
    /// Whether those gates are softpluses and not sigmoids (Laguna).
    pub softplus_gates: bool,
    /// The mixture of experts of blocks that have one.
    pub experts: Option<ExpertsSpec>,
    /// Blocks behind the last that predict tokens further on (GLM-4.5), which no class of Transformers runs: files may
    /// have them, and what is written has not.
    pub further: usize,
    /// Per block, its window and rope.
    pub layers: Vec<LayerSpec>,
    /// What each block is given of each token beside the stream.
    pub per_layer: Option<PerLayerInputs>,
    /// Streams beside each other.
    pub altup: Option<AltUp>,
    /// Whether each block's output is multiplied by a number that its file gives and nothing trains (Gemma 4).
    pub layer_scalars: bool,
    /// The token whose embedding the lookup does not train.
    pub padding: Option<u32>,
    /// Tokens among which an indexer picks those that one sees (DeepSeek sparse attention, arXiv:2512.02556), and no more than which
    /// a text has here: every token then sees all before it; and the key that says how many.
    pub indexed: Option<(usize, &'static str)>,
    /// Tokens of the longest text that is computed, where longer ones are another function (Qwen before 1.5); and the key that says
    /// how many.
    pub bounded: Option<(usize, &'static str)>,
    /// Longest sequence the configuration names, or that is computed if that is shorter.
    pub max_positions: usize,
    /// Standard deviation of a fresh initialisation.
    pub initializer_range: f64,
}

pub(crate) fn wrong(key: &str, got: &str, expected: &'static str) -> ModelError {
    ModelError::Key { file: CONFIG, key: key.to_owned(), got: got.to_owned(), expected }
}

impl Spec {
    /// Reads a spec from `config.json`.
    ///
    /// # Errors
    /// If a key is missing or of the wrong kind, or names something that is not computed here.
    pub fn from_config(config: &ConfigFile) -> Result<Self, ModelError> {
        families::read(config)
    }

    /// The same transformer under a score instead of a vocabulary.
    #[must_use]
    pub fn scoring(self) -> Self {
        Self { output: Output::Score, tied: false, head_bias: false, unit_head: false, ..self }
    }

    /// The head's module name.
    #[must_use]
    pub fn head_name(&self) -> &'static str {
        match self.output {
            Output::Vocabulary => self.names.head,
            Output::Score => SCORE,
        }
    }

    /// The sizes of a block.
    #[must_use]
    pub fn sizes(&self, layer: usize) -> BlockSizes {
        self.layers.get(layer).and_then(|own| own.sizes).unwrap_or(BlockSizes {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            intermediate: self.intermediate,
        })
    }

    /// The spec with these sizes for every block.
    #[must_use]
    pub fn with_sizes(&self, sizes: BlockSizes) -> Self {
        let BlockSizes { heads, kv_heads, head_dim, intermediate } = sizes;
        Self { heads, kv_heads, head_dim, intermediate, ..self.clone() }
    }

    /// Query heads of the block that has most.
    #[must_use]
    pub fn most_heads(&self) -> usize {
        (0..self.layers.len()).map(|layer| self.sizes(layer).heads).max().unwrap_or(self.heads)
    }

    /// Width of what blocks pass on: of all streams together.
    #[must_use]
    pub fn passed_on(&self) -> usize {
        self.altup.map_or(self.hidden, |altup| altup.streams * self.hidden)
    }

    /// Whether a later block reads this one's keys and values.
    #[must_use]
    pub fn lends_keys(&self, layer: usize) -> bool {
        self.layers.get(layer).is_some_and(|own| own.lends)
    }

    /// Elements that a layer gives for a query head.
    #[must_use]
    pub fn query_dim(&self) -> usize {
        match self.latent {
            Some(latent) => latent.still + latent.turned,
            None if self.head_gates == Some(HeadGates::BehindQueries) => 2 * self.head_dim,
            None => self.head_dim,
        }
    }

    /// Gates of a head that a layer of their own gives.
    #[must_use]
    pub fn gates_apart(&self) -> Option<usize> {
        match self.head_gates? {
            HeadGates::BehindQueries => None,
            HeadGates::Elements => Some(self.head_dim),
            HeadGates::Heads => Some(1),
        }
    }

    /// Elements of a head in attention: what stands behind those that layers give is made there.
    #[must_use]
    pub fn attended_dim(&self) -> usize {
        if self.rounded_slopes.is_empty() { self.head_dim } else { (self.head_dim + 1).next_multiple_of(8) }
    }

    /// Key/value heads in attention of a rank that has `kv_heads` of them for `heads` query heads.
    pub(crate) fn attended_kv_heads(&self, heads: usize, kv_heads: usize) -> usize {
        if self.rounded_slopes.is_empty() { kv_heads } else { heads }
    }

    /// Elements of a head that the attention's output layer reads.
    #[must_use]
    pub fn value_dim(&self) -> usize {
        let narrow = self.narrow_values.map_or(self.head_dim, |(width, _)| width);
        self.latent.map_or(narrow, |latent| latent.value)
    }

    /// Whether a module, or a tensor of the files, is of what is computed here, and of no other part of the model.
    #[must_use]
    pub fn has(&self, module: &str) -> bool {
        let experts = self.experts.map_or(0, |experts| experts.count);
        let picks = self.indexed.is_some() && module.contains(INDEXER);
        if picks || self.names.is_for_pictures(module, experts) {
            return false;
        }
        !self.part || self.names.has(module)
    }

    /// Whether the feed-forward has a gate.
    #[must_use]
    pub fn gated(&self) -> bool {
        !matches!(self.names.up, names::UpNames::Plain(_))
    }

    /// Whether queries, keys and values come from one matrix.
    #[must_use]
    pub fn packed(&self) -> bool {
        !matches!(self.names.qkv, names::QkvNames::Apart(_) | names::QkvNames::OfLatent(_))
    }

    /// The mixture of experts of a block that has one.
    #[must_use]
    pub fn experts_of(&self, layer: usize) -> Option<&ExpertsSpec> {
        self.experts.as_ref().filter(|_| self.layers.get(layer).is_some_and(|own| own.experts))
    }

    /// The gated delta rule of a block that has one.
    #[must_use]
    pub fn delta_of(&self, layer: usize) -> Option<&GatedDelta> {
        self.delta.as_ref().filter(|_| self.layers.get(layer).is_some_and(|own| own.delta))
    }

    /// The state space of a block that has one.
    #[must_use]
    pub fn ssd_of(&self, layer: usize) -> Option<&SsdSpec> {
        self.ssd.as_ref().filter(|_| self.layers.get(layer).is_some_and(|own| own.ssd))
    }

    /// The longest sequence that is computed, and the key that says so; none where any length is.
    #[must_use]
    pub fn limit(&self) -> Option<(usize, &'static str)> {
        let learned = self.positions.map(|learned| (learned.count, "max_position_embeddings"));
        learned.or(self.indexed).or(self.bounded)
    }

    /// Whether rotary frequencies change with the length of the sequence.
    #[must_use]
    pub fn depends_on_length(&self) -> bool {
        self.ropes.iter().any(Rope::depends_on_length)
    }
}

/// How the classes of Transformers are called whose head gives a score.
pub(crate) const SCORING: &str = "ForSequenceClassification";
