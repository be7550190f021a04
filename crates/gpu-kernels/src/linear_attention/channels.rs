//! Linear attention whose channels have decays of their own: Kimi Delta Attention (Kimi Team, arXiv:2510.26692).
//!
//! Before walks each chunk and head gets a record of its queries and keys with what is kept around them, and of its pairs; walks
//! are those of linear attention, and read it in place of queries, keys and decays.

use cubecl_core::prelude::*;

use super::tile::UNITS;
use super::{LinearAttention, LinearAttentionOperands, LinearAttentionShape, channel_gradients, decayed};
use crate::buffer::{Buffer, FloatType, address};
use crate::text_plan::TextPlan;

/// Linear attention of one shape, whose channels have decays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChannelLinearAttention(LinearAttention);

/// What it reads, in f32.
#[derive(Clone, Debug)]
pub struct ChannelLinearAttentionOperands {
    /// `[tokens, width]`.
    pub qkv: Buffer,
    /// The logarithm of what each token keeps of each channel of the state, at most 0: `[tokens, heads * key_dim]`.
    pub decays: Buffer,
    /// How much of each token is learned, `[tokens, heads]`.
    pub betas: Buffer,
    /// The plan's words.
    pub words: Buffer,
}

/// Gradients, in f32; zeros in rows of no text.
#[derive(Clone, Debug)]
pub struct ChannelLinearAttentionGradients {
    /// `[tokens, width]`; anything in columns that nothing reads.
    pub qkv: Buffer,
    /// `[tokens, heads * key_dim]`.
    pub decays: Buffer,
    /// `[tokens, heads]`.
    pub betas: Buffer,
}

impl ChannelLinearAttention {
    /// `None` where there is no kernel: as [`LinearAttention::new`], and where heads share keys.
    #[must_use]
    pub fn new(client: &Client, shape: LinearAttentionShape) -> Option<Self> {
        let own = LinearAttention::of_chunks(client, shape, true, &[16, 8])?;
        (shape.key_heads == shape.heads).then_some(Self(own))
    }

    /// Tokens of a chunk, of which plans are made.
    #[must_use]
    pub fn chunk(&self) -> usize {
        self.0.chunk
    }

    /// `[tokens, heads * value_dim]`; zeros in rows of no text.
    ///
    /// A launch for the records, and one for each level of texts that continue others. In memory meanwhile: the records,
    /// three times the keys and `2 C` numbers for each token and head, in chunks of C tokens (16, of long keys or little shared
    /// memory 8).
    ///
    /// # Panics
    /// If buffers are not of these shapes.
    #[must_use]
    pub fn forward(&self, client: &Client, plan: &TextPlan, o: &ChannelLinearAttentionOperands) -> Buffer {
        self.0.forward(client, plan, &self.recorded(client, plan, o))
    }

    /// As [`LinearAttention::forward_held`].
    ///
    /// # Panics
    /// If buffers are not of these shapes, or the plan is not of held states.
    #[must_use]
    pub fn forward_held(
        &self,
        client: &Client,
        plan: &TextPlan,
        o: &ChannelLinearAttentionOperands,
        held: &Buffer,
    ) -> [Buffer; 2] {
        self.0.forward_held(client, plan, &self.recorded(client, plan, o), held)
    }

    /// What walks read.
    fn recorded(
        &self,
        client: &Client,
        plan: &TextPlan,
        o: &ChannelLinearAttentionOperands,
    ) -> LinearAttentionOperands {
        let (LinearAttentionShape { heads, key_dim, width, .. }, form) = (self.0.shape, self.0.form());
        let tokens = o.qkv.len / width;
        assert!(
            o.decays.len == tokens * heads * key_dim && o.betas.len == tokens * heads,
            "invariant: decays are [tokens, heads * key_dim], betas [tokens, heads]"
        );
        let records = Buffer::empty(client, (plan.chunks * heads * form.record()).max(1), FloatType::F32);
        let made = LinearAttentionOperands { qkv: o.qkv.clone(), weights: records, words: o.words.clone() };
        if plan.chunks > 0 {
            // SAFETY: the kernel reads rows of the plan's chunks, and has a record for each of their heads.
            unsafe {
                decayed::put_decayed::launch_unchecked(
                    client,
                    CubeCount::Static(plan.chunks as u32, heads as u32, 1),
                    CubeDim::new_1d(UNITS as u32),
                    address(&[&o.qkv, &o.decays, &made.weights]),
                    o.qkv.arg(1),
                    o.decays.arg(1),
                    o.betas.arg(1),
                    o.words.arg(1),
                    made.weights.arg(1),
                    self.0.numbers(plan, &made, plan.of_chunks),
                    form,
                );
            }
        }
        made
    }

    /// Gradients from that of the output, `[tokens, heads * value_dim]`, f32.
    ///
    /// As [`LinearAttention::backward`], with the records before the walks.
    ///
    /// # Panics
    /// If buffers are not of these shapes, or the plan is of held states.
    #[must_use]
    pub fn backward(
        &self,
        client: &Client,
        plan: &TextPlan,
        o: &ChannelLinearAttentionOperands,
        dy: &Buffer,
    ) -> ChannelLinearAttentionGradients {
        assert!(!plan.held, "invariant: held states have no gradient");
        let [qkv, decays, betas] =
            [&o.qkv, &o.decays, &o.betas].map(|of| Buffer::cleared(client, of.len, !plan.whole));
        if plan.chunks > 0 {
            let made = self.recorded(client, plan, o);
            let kept = self.0.walked(client, plan, &made, dy);
            // SAFETY: as in `recorded`; a chunk's rows of a head are its cube's own.
            unsafe {
                channel_gradients::of_channels::launch_unchecked(
                    client,
                    CubeCount::Static(plan.chunks as u32, self.0.shape.heads as u32, 1),
                    CubeDim::new_1d(UNITS as u32),
                    address(&[&o.qkv, &o.decays, dy, &kept.of_states]),
                    o.qkv.arg(1),
                    o.decays.arg(1),
                    o.betas.arg(1),
                    o.words.arg(1),
                    dy.arg(1),
                    kept.states.arg(1),
                    kept.learned.arg(1),
                    kept.of_states.arg(1),
                    kept.of_learned.arg(1),
                    qkv.arg(1),
                    decays.arg(1),
                    betas.arg(1),
                    self.0.numbers(plan, &made, plan.of_chunks),
                    self.0.form(),
                );
            }
        }
        ChannelLinearAttentionGradients { qkv, decays, betas }
    }
}
