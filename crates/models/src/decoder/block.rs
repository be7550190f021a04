//! `run_block`: a transformer block's operations and collectives, written once, on tensors or on sizes.
//!
//! A pass runs it on tensors ([`OnTensors`]); a plan runs it on sizes, and so counts what it would move. Neither has a
//! list of its own.
//!
//! # Collectives
//! With several tensor-parallel ranks the input's gradient is summed before each pair of column-parallel layers, and the
//! output of each row-parallel layer, with its adapter's, in one call; the norms' gradients are addends. Where
//! [`BlockRun::sums`] says so adapters run beside their layers ([`lora_rank_reduce`](super::lora_rank_reduce)).

use std::sync::Arc;

use burn::tensor::activation::{log_sigmoid, sigmoid};
use burn::tensor::{DType, Tensor};
use burnish_ops::{
    AnyTensor, Linear, LinearInput, OpsError, RouterBalance, Routing, experts, experts_decode,
    linears_unread, rms_norm, route, runs_again, scaled_sum, xielu,
};
use burnish_tp::{AdapterSum, AdapterSums, TokenDispatcher};

use crate::Spec;
use crate::decoder::Linears;
use crate::decoder::change::beside;
use crate::decoder::input_tap::BlockTap;
use crate::decoder::latent;
use crate::decoder::layers::{Alternating, Beside, MixtureTensors, NormTensors, PerLayer, SsdLayers};
use crate::decoder::lora_rank_reduce::{lora_down, lora_up, runs_apart, without_adapters};
use crate::decoder::queries_keys::{self, Turning};
use crate::decoder::selective_scan;
use crate::decoder::streams;
use crate::decoder::tp_plan::Shard;
use crate::spec::BlockLayout;

/// What a block runs on.
pub(crate) trait BlockRun {
    /// An activation, `[tokens, features]`.
    type X: Clone;
    /// A norm.
    type Norm: Clone;
    /// What linears read.
    type Input;
    /// A linear layer with its adapter.
    type Linear;
    /// The numbers of a learned activation.
    type Curve;
    /// A mixture of experts.
    type Mixture;
    /// A number.
    type Scalar;

    /// Whether ranks share layers.
    fn divided(&self) -> bool;

    /// Which adapters run beside their layers.
    fn sums(&self) -> AdapterSums;

    /// Whether a layer has an adapter, and of it whether that has a magnitude.
    fn adapter(&self, layer: &Self::Linear) -> Option<bool>;

    /// What the family is.
    fn spec(&self) -> &Spec;

    /// `x` as it is.
    fn plain(&self, x: Self::X) -> Self::Input;

    /// `x` normed.
    fn normed(&self, x: Self::X, norm: Self::Norm) -> Self::Input;

    /// The feed-forward's activation, of gate and up or of up alone; the learned one where it has one.
    fn activated(&self, x: Self::X, curve: Option<&Self::Curve>) -> Result<Self::Input, OpsError>;

    /// Queries, keys and values as attention takes them, from what the linears gave.
    fn queries_keys_values(
        &self,
        qkv: Self::X,
        norms: Option<&(Self::Norm, Self::Norm)>,
        what: &str,
    ) -> Result<Self::X, OpsError>;

    /// What the experts of each token make of `x`, which is normed; the router reads `routed`. Whole on every rank.
    fn experts(
        &self,
        x: &Self::X,
        routed: &Self::X,
        mixture: &Self::Mixture,
        what: &str,
    ) -> Result<Self::X, OpsError>;

    /// `x` times the sigmoid of `gate`, which has one column.
    fn gated_by(&self, x: &Self::X, gate: &Self::X) -> Result<Self::X, OpsError>;

    /// A latent normed.
    fn latent_normed(&self, x: &Self::X, norm: &Self::Norm) -> Result<Self::X, OpsError>;

    /// What keys and values are made of, and the keys' part that turns.
    fn latent_and_turned(&self, x: &Self::X) -> Result<(Self::X, Self::X), OpsError>;

    /// Queries, keys and values as attention takes them, from queries, the latent's keys and values, and the keys' part that
    /// turns.
    fn latent_heads(&self, q: &Self::X, kv: &Self::X, turned: &Self::X) -> Result<Self::X, OpsError>;

    /// Values and gates of a selective scan.
    fn values_and_gates(&self, x: &Self::X) -> Result<[Self::X; 2], OpsError>;

    /// What steps of a selective scan are made of, and directions in and out, normed where they are.
    fn steps_and_directions(
        &self,
        x: &Self::X,
        norms: Option<[&Self::Norm; 3]>,
    ) -> Result<[Self::X; 3], OpsError>;

    /// What linears gave, one after another.
    fn side_by_side(&self, all: &[Self::X]) -> Result<Self::X, OpsError>;

    /// Queries, keys and values, and the gates that linears give with them.
    fn queries_and_gates(&self, x: Self::X) -> Result<(Self::X, Self::X), OpsError>;

    /// `x` times the sigmoid of as many gates, or of one for each head.
    fn gated_each(&self, x: &Self::X, gates: &Self::X) -> Result<Self::X, OpsError>;

    /// Of what attention gave the dimensions that values have.
    fn values_of(&self, attended: Self::X) -> Result<Self::X, OpsError>;

    /// The activation of `gate` times what the block is given beside the stream.
    fn gates_given(&self, gate: Self::X) -> Result<Self::Input, OpsError>;

    /// `x` times a number.
    fn scaled(&self, x: &Self::X, scalar: &Self::Scalar) -> Result<Self::X, OpsError>;

    /// Of streams beside each other the one that the block runs on.
    fn active_stream(&self, x: &Self::X) -> Result<Self::X, OpsError>;

    /// The hyperbolic tangent.
    fn tanh(&self, x: &Self::X) -> Result<Self::X, OpsError>;

    /// Streams predicted from themselves, `coefficients` a matrix for each token.
    fn predicted(&self, x: &Self::X, coefficients: &Self::X) -> Result<Self::X, OpsError>;

    /// Streams corrected by what the block made of its own, `coefficients` a number for each.
    fn corrected(
        &self,
        predicted: &Self::X,
        made: &Self::X,
        coefficients: &Self::X,
    ) -> Result<Self::X, OpsError>;

    /// Streams, with `y` added to all but the first.
    fn added_to_others(&self, x: &Self::X, y: &Self::X) -> Result<Self::X, OpsError>;

    /// `x` by columns of `scale`.
    fn scaled_columns(&self, x: &Self::X, scale: &Self::Scalar) -> Result<Self::X, OpsError>;

    /// `(x + y) / sqrt(2)`.
    fn joined(&self, x: &Self::X, y: &Self::X) -> Result<Self::X, OpsError>;

    /// Gates and ups with gates cut off ([`LayerSpec::cutoff`](crate::LayerSpec::cutoff)), whose mean and deviation ranks
    /// make together.
    fn cut_off(&self, x: Self::X, deviations: f32, what: &str) -> Result<Self::X, OpsError>;

    /// Gates, which come first, times a number, and ups.
    fn scaled_gates(&self, x: Self::X, factor: f32) -> Result<Self::X, OpsError>;

    /// `x` normed, on its own.
    fn norm(&self, x: &Self::X, norm: &Self::Norm) -> Result<Self::X, OpsError>;

    /// `factor * x + residual`.
    fn scaled_sum(&self, x: &Self::X, factor: f32, residual: &Self::X) -> Result<Self::X, OpsError>;

    /// Layers side by side, plus `residual`; without their adapters where `bare`.
    fn linears(
        &self,
        input: &Self::Input,
        layers: &[Self::Linear],
        bare: bool,
        residual: Option<&Self::X>,
    ) -> Result<Self::X, OpsError>;

    /// [`Self::linears`] whose output is the block's.
    fn linears_last(
        &self,
        input: &Self::Input,
        layers: &[Self::Linear],
        residual: &Self::X,
    ) -> Result<Self::X, OpsError> {
        self.linears(input, layers, false, Some(residual))
    }

    /// The activations of rank r of the layers' adapters, side by side.
    fn lora_down(&self, input: &Self::Input, layers: &[Self::Linear]) -> Result<Self::X, OpsError>;

    /// What the adapters add to the layers' outputs, plus `residual`.
    fn lora_up(
        &self,
        h: &Self::X,
        layers: &[Self::Linear],
        residual: Option<&Self::X>,
    ) -> Result<Self::X, OpsError>;

    /// [`Tp::copy_to_tp`](burnish_tp::Tp::copy_to_tp).
    fn copy_to_tp(&self, x: &Self::X, what: &str) -> Result<Self::X, OpsError>;

    /// [`Tp::grad_on_rank0`](burnish_tp::Tp::grad_on_rank0).
    fn grad_on_rank0(&self, norm: &Self::Norm) -> Result<Self::Norm, OpsError>;

    /// [`Tp::reduce_from_tp`](burnish_tp::Tp::reduce_from_tp).
    fn reduce_from_tp(&self, x: &Self::X, what: &str) -> Result<Self::X, OpsError>;

    /// [`Tp::reduce_from_tp_add`](burnish_tp::Tp::reduce_from_tp_add).
    fn reduce_from_tp_add(&self, x: &Self::X, add: &Self::X, what: &str) -> Result<Self::X, OpsError>;
}

/// What makes the latents of a block's attention, ready to run.
pub(crate) struct LatentLayers<'a, R: BlockRun> {
    /// Of queries, where they have one.
    pub(crate) query: Option<(&'a R::Linear, &'a R::Norm)>,
    pub(crate) layer: &'a R::Linear,
    pub(crate) norm: &'a R::Norm,
}

/// A block's layers, ready to run.
pub(crate) struct BlockLayers<'a, R: BlockRun> {
    pub(crate) attention_norm: Option<&'a R::Norm>,
    /// `qkv` is then what makes queries, and what makes keys and values.
    pub(crate) latent: Option<LatentLayers<'a, R>>,
    pub(crate) qkv: &'a [R::Linear],
    /// Narrow layers, with the wide ones behind them: what stands behind what `qkv` gives.
    pub(crate) narrow: &'a [[R::Linear; 2]],
    pub(crate) qk_norms: Option<&'a (R::Norm, R::Norm)>,
    /// Whether a convolution stands in place of attention, with a delta rule or without.
    pub(crate) convolves: bool,
    /// None where the block has no attention.
    pub(crate) o: Option<&'a R::Linear>,
    pub(crate) ssd: Option<SsdLayers<&'a R::Linear, &'a R::Norm>>,
    pub(crate) attention_post_norm: Option<&'a R::Norm>,
    pub(crate) mlp_norm: Option<&'a R::Norm>,
    pub(crate) up: &'a [R::Linear],
    pub(crate) curve: Option<&'a R::Curve>,
    /// None in a mixture without a shared expert, and in a block without a feed-forward.
    pub(crate) down: Option<&'a R::Linear>,
    pub(crate) mixture: Option<&'a R::Mixture>,
    /// Of a mixture that stands beside the feed-forward.
    pub(crate) beside: Option<Beside<&'a R::Norm>>,
    pub(crate) shared_gate: Option<&'a R::Linear>,
    pub(crate) mlp_post_norm: Option<&'a R::Norm>,
    pub(crate) per_layer: Option<PerLayer<&'a R::Linear, &'a R::Norm>>,
    /// Where streams stand beside each other.
    pub(crate) altup: Option<Alternating<&'a R::Linear, &'a R::Norm, &'a R::Scalar>>,
    /// Where gates are cut off.
    pub(crate) cutoff: Option<f32>,
    /// What multiplies the output.
    pub(crate) scalar: Option<&'a R::Scalar>,
}

/// What a state space walks over a text.
pub(crate) enum Walked<'a, X> {
    /// What Mamba-2's layer gives, which is convolved and scanned.
    Ssd(&'a X),
    /// Values of Mamba's, which are convolved.
    Values(&'a X),
    /// Those as they were convolved, with what they gave: scanned.
    Selective(SelectiveSteps<'a, X>),
}

/// What Mamba's scan reads of each token.
pub(crate) struct SelectiveSteps<'a, X> {
    pub(crate) values: &'a X,
    pub(crate) gates: &'a X,
    pub(crate) steps: &'a X,
    /// In and out.
    pub(crate) directions: [&'a X; 2],
}

/// One block around an attention function, or a convolution, and the walks of its state space (over documents, or with a
/// cache). `name` appears in errors.
///
/// # Shapes
/// - x: `[tokens, hidden]` (of streams beside each other all), output: the same
pub(crate) fn run_block<R: BlockRun>(
    run: &R,
    x: &R::X,
    block: &BlockLayers<'_, R>,
    name: &str,
    attend: impl FnOnce(&R::X) -> Result<R::X, OpsError>,
    walk: impl FnMut(Walked<'_, R::X>) -> Result<R::X, OpsError>,
) -> Result<R::X, OpsError> {
    if let Some(altup) = &block.altup {
        return alternating(run, x, block, altup, name, attend);
    }
    let after = match (block.o, &block.ssd) {
        (Some(o), None) => attention(run, x, block, o, name, attend)?,
        (_, Some(ssd)) => state_space(run, x, block, ssd, name, attend, walk)?,
        (None, None) => x.clone(),
    };
    feed_forward(run, x, after, block, name)
}

/// A state space, and attention beside it where there is one, both of the stream behind one norm; plus the stream.
fn state_space<R: BlockRun>(
    run: &R,
    x: &R::X,
    block: &BlockLayers<'_, R>,
    ssd: &SsdLayers<&R::Linear, &R::Norm>,
    name: &str,
    attend: impl FnOnce(&R::X) -> Result<R::X, OpsError>,
    mut walk: impl FnMut(Walked<'_, R::X>) -> Result<R::X, OpsError>,
) -> Result<R::X, OpsError> {
    let [of_ssd, of_attention] = run.spec().ssd.map_or([1.0; 2], |ssd| ssd.out_scales);
    let scale = run.spec().residual_scale;
    let normed = block.attention_norm.map_or_else(|| Ok(x.clone()), |norm| run.norm(x, norm))?;
    let through =
        |x: R::X, layer: &R::Linear| run.linears(&run.plain(x), std::slice::from_ref(layer), false, None);
    let read = through(normed.clone(), ssd.input)?;
    let scanned = match &ssd.selective {
        None => walk(Walked::Ssd(&read))?,
        Some(own) => {
            let [values, gates] = run.values_and_gates(&read)?;
            let values = walk(Walked::Values(&values))?;
            let [steps, within, out] =
                run.steps_and_directions(&through(values.clone(), own.read)?, own.norms)?;
            let steps = through(steps, own.steps)?;
            let (values, gates, steps) = (&values, &gates, &steps);
            walk(Walked::Selective(SelectiveSteps { values, gates, steps, directions: [&within, &out] }))?
        }
    };
    drop(read);
    let y = through(scanned, ssd.output)?;
    let after = run.scaled_sum(&y, of_ssd * scale, x)?;
    let Some(o) = block.o else { return Ok(after) };
    let qkv = columns(run, &normed, None, block.qkv, name)?;
    let attended = attend(&run.queries_keys_values(qkv, block.qk_norms, name)?)?;
    let y = summed(run, run.plain(attended), o, None, name)?;
    run.scaled_sum(&y, of_attention * scale, &after)
}

/// Attention, or a convolution, and the stream.
fn attention<R: BlockRun>(
    run: &R,
    x: &R::X,
    block: &BlockLayers<'_, R>,
    o: &R::Linear,
    name: &str,
    attend: impl FnOnce(&R::X) -> Result<R::X, OpsError>,
) -> Result<R::X, OpsError> {
    let mut gates = None;
    let by_channel = run.spec().delta.is_some_and(|delta| delta.by_channel.is_some());
    let qkv = match &block.latent {
        Some(latent) => {
            let made = of_latents(run, x, block, latent, name)?;
            gates = made.1;
            made.0
        }
        None if block.convolves && by_channel => of_channels(run, x, block, name)?,
        None => {
            let mut qkv = columns(run, x, block.attention_norm, block.qkv, name)?;
            if run.spec().head_gates.is_some() && !block.convolves {
                let both = run.queries_and_gates(qkv)?;
                (qkv, gates) = (both.0, Some(both.1));
            }
            if block.convolves { qkv } else { run.queries_keys_values(qkv, block.qk_norms, name)? }
        }
    };
    let mut attended = attend(&qkv)?;
    drop(qkv);
    let narrow = run.spec().narrow_values.is_some() && !block.convolves;
    if block.latent.is_some() || !run.spec().rounded_slopes.is_empty() || narrow {
        attended = run.values_of(attended)?;
    }
    if let Some(gates) = gates {
        attended = run.gated_each(&attended, &gates)?;
    }
    row(run, run.plain(attended), o, block.attention_post_norm, x, name)
}

/// The feed-forward of the stream `after` attention (or of what came in, `x`), where there is one, and what stands behind.
fn feed_forward<R: BlockRun>(
    run: &R,
    x: &R::X,
    after: R::X,
    block: &BlockLayers<'_, R>,
    name: &str,
) -> Result<R::X, OpsError> {
    let layout = run.spec().layout;
    let read = if layout.is_parallel() { x } else { &after };
    let shared = layout == BlockLayout::ParallelShared;
    let norm = if shared { block.attention_norm } else { block.mlp_norm };
    if let (Some(of_experts), Some(norms)) = (block.mixture, &block.beside) {
        let y = mixture_beside(run, &after, block, (of_experts, norms), name)?;
        return ended(run, added(run, y, block.mlp_post_norm, &after)?, block);
    }
    if let Some(of_experts) = block.mixture {
        // Of a norm that attention reads too the gradient is a sum of addends, and a mixture's would be whole on every rank.
        let own = if shared { norm.map(|norm| run.grad_on_rank0(norm)).transpose()? } else { norm.cloned() };
        let read = own.map_or_else(|| Ok(read.clone()), |norm| run.norm(read, &norm))?;
        let y = mixture(run, &read, block, of_experts, name)?;
        return ended(run, added(run, y, block.mlp_post_norm, &after)?, block);
    }
    let Some(down) = block.down else { return ended(run, after, block) };
    let mut up = columns(run, read, norm, block.up, name)?;
    let [of_gates, of_output] = run.spec().mlp_scales;
    if of_gates != 1.0 {
        up = run.scaled_gates(up, of_gates)?;
    }
    let inner = run.activated(up, block.curve)?;
    if of_output != 1.0 {
        let y = summed(run, inner, down, None, name)?;
        return ended(run, run.scaled_sum(&y, of_output * run.spec().residual_scale, &after)?, block);
    }
    // Nothing else stands between this and what the block gives.
    let last = !run.divided()
        && (block.mlp_post_norm.is_none() && block.per_layer.is_none() && block.scalar.is_none())
        && run.spec().residual_scale == 1.0;
    if last {
        return run.linears_last(&inner, std::slice::from_ref(down), &after);
    }
    ended(run, row(run, inner, down, block.mlp_post_norm, &after, name)?, block)
}

/// A block on one of several streams, which it predicts before and corrects after. All of that every rank has whole.
fn alternating<R: BlockRun>(
    run: &R,
    x: &R::X,
    block: &BlockLayers<'_, R>,
    altup: &Alternating<&R::Linear, &R::Norm, &R::Scalar>,
    name: &str,
    attend: impl FnOnce(&R::X) -> Result<R::X, OpsError>,
) -> Result<R::X, OpsError> {
    let through = |x: &R::X, layer: &R::Linear| {
        run.linears(&run.plain(x.clone()), std::slice::from_ref(layer), false, None)
    };
    let coefficients = |x: &R::X, layer: &R::Linear| {
        let said = run.tanh(&through(&run.norm(x, altup.router_norm)?, altup.router)?)?;
        through(&said, layer)
    };
    let predicted = run.predicted(x, &coefficients(&run.active_stream(x)?, altup.prediction)?)?;
    let active = run.active_stream(&predicted)?;
    let normed = block.attention_norm.map_or_else(|| Ok(active.clone()), |norm| run.norm(&active, norm))?;
    let [left, right] = altup.laurel;
    let laurel = through(&through(&normed, left)?, right)?;
    let laurel = run.scaled_sum(&run.norm(&laurel, altup.laurel_norm)?, 1.0, &normed)?;
    let qkv = columns(run, &normed, None, block.qkv, name)?;
    let attended = attend(&run.queries_keys_values(qkv, block.qk_norms, name)?)?;
    let o = block.o.expect("invariant: a block on one of several streams has attention");
    let after = row(run, run.plain(attended), o, block.attention_post_norm, &active, name)?;
    let after = run.joined(&after, &laurel)?;
    let up = columns(run, &after, block.mlp_norm, block.up, name)?;
    let up = match block.cutoff {
        Some(deviations) => run.cut_off(up, deviations, name)?,
        None => up,
    };
    let down = block.down.expect("invariant: a block without experts has a feed-forward");
    let made = row(run, run.activated(up, block.curve)?, down, block.mlp_post_norm, &after, name)?;
    let corrected = run.corrected(&predicted, &made, &coefficients(&made, altup.correction)?)?;
    let Some(PerLayer { gate, projection, norm }) = block.per_layer else { return Ok(corrected) };
    let mut first = run.active_stream(&corrected)?;
    if run.spec().altup.is_some_and(|altup| altup.scaled) {
        first = run.scaled_columns(&first, altup.scale)?;
    }
    let given = run.gates_given(through(&first, gate)?)?;
    let y = run.linears(&given, std::slice::from_ref(projection), false, None)?;
    run.added_to_others(&corrected, &run.norm(&y, norm)?)
}

/// What stands behind the feed-forward, which every rank has whole.
fn ended<R: BlockRun>(run: &R, x: R::X, block: &BlockLayers<'_, R>) -> Result<R::X, OpsError> {
    let mut x = x;
    if let Some(PerLayer { gate, projection, norm }) = block.per_layer {
        let gate = run.linears(&run.plain(x.clone()), std::slice::from_ref(gate), false, None)?;
        let given = run.gates_given(gate)?;
        let y = run.linears(&given, std::slice::from_ref(projection), false, None)?;
        x = added(run, y, Some(norm), &x)?;
    }
    match block.scalar {
        Some(scalar) => run.scaled(&x, scalar),
        None => Ok(x),
    }
}

/// Queries, keys and values of latents, which every rank has whole, and gates where there are some.
fn of_latents<R: BlockRun>(
    run: &R,
    x: &R::X,
    block: &BlockLayers<'_, R>,
    latent: &LatentLayers<'_, R>,
    name: &str,
) -> Result<(R::X, Option<R::X>), OpsError> {
    let x = block.attention_norm.map_or_else(|| Ok(x.clone()), |norm| run.norm(x, norm))?;
    let narrow =
        |layer: &R::Linear| run.linears(&run.plain(x.clone()), std::slice::from_ref(layer), false, None);
    let (of_q, others) = block.qkv.split_at(1);
    let (of_kv, of_gates) = others.split_at(1);
    let gates = match of_gates {
        [] => None,
        _ => Some(columns(run, &x, None, of_gates, &format!("{name}: gates"))?),
    };
    let q = match latent.query {
        Some((layer, norm)) => {
            columns(run, &run.latent_normed(&narrow(layer)?, norm)?, None, of_q, &format!("{name}: queries"))?
        }
        None => columns(run, &x, None, of_q, &format!("{name}: queries"))?,
    };
    let (low, turned) = run.latent_and_turned(&narrow(latent.layer)?)?;
    let kv = columns(run, &run.latent_normed(&low, latent.norm)?, None, of_kv, &format!("{name}: keys"))?;
    // Each rank's heads give an addend of its gradient.
    let turned = run.copy_to_tp(&turned, &format!("{name}: turned keys"))?;
    Ok((run.latent_heads(&q, &kv, &turned)?, gates))
}

/// What linear attention reads whose channels forget each by itself: queries, keys, values and what each head learns by, gates, and
/// what channels forget by. Narrow layers every rank has whole.
fn of_channels<R: BlockRun>(
    run: &R,
    x: &R::X,
    block: &BlockLayers<'_, R>,
    name: &str,
) -> Result<R::X, OpsError> {
    let x = block.attention_norm.map_or_else(|| Ok(x.clone()), |norm| run.norm(x, norm))?;
    let mut all = vec![columns(run, &x, None, block.qkv, name)?];
    for (at, [narrow, wide]) in block.narrow.iter().enumerate() {
        let low = run.linears(&run.plain(x.clone()), std::slice::from_ref(narrow), false, None)?;
        all.push(columns(run, &low, None, std::slice::from_ref(wide), &format!("{name}: narrow {at}"))?);
    }
    if all.len() == 1 { Ok(all.remove(0)) } else { run.side_by_side(&all) }
}

/// The feed-forward and the experts of each token, both of the stream.
fn mixture_beside<R: BlockRun>(
    run: &R,
    x: &R::X,
    block: &BlockLayers<'_, R>,
    (of_experts, norms): (&R::Mixture, &Beside<&R::Norm>),
    name: &str,
) -> Result<R::X, OpsError> {
    let down = block.down.expect("invariant: experts beside a feed-forward have one");
    let up = columns(run, x, block.mlp_norm, block.up, name)?;
    let dense = summed(run, run.activated(up, block.curve)?, down, None, name)?;
    let y = run.experts(&run.norm(x, norms.before)?, x, of_experts, name)?;
    run.scaled_sum(&run.norm(&y, norms.behind)?, 1.0, &run.norm(&dense, norms.behind_dense)?)
}

/// The experts of each token, and the shared one where there is one.
fn mixture<R: BlockRun>(
    run: &R,
    x: &R::X,
    block: &BlockLayers<'_, R>,
    of_experts: &R::Mixture,
    name: &str,
) -> Result<R::X, OpsError> {
    let y = run.experts(x, x, of_experts, name)?;
    let Some(down) = block.down else { return Ok(y) };
    let up = columns(run, x, None, block.up, name)?;
    let shared = summed(run, run.activated(up, block.curve)?, down, None, name)?;
    let shared = match block.shared_gate {
        Some(gate) => {
            let gate = run.linears(&run.plain(x.clone()), std::slice::from_ref(gate), false, None)?;
            run.gated_by(&shared, &gate)?
        }
        None => shared,
    };
    let scale = run.spec().experts.map_or(1.0, |experts| experts.shared_scale);
    run.scaled_sum(&shared, scale, &y)
}

/// Whether the adapters of these layers run beside them.
fn apart<R: BlockRun>(run: &R, layers: &[R::Linear], sum: AdapterSum) -> bool {
    let mut adapters = layers.iter().filter_map(|layer| run.adapter(layer)).peekable();
    adapters.peek().is_some() && adapters.all(|magnitude| runs_apart(sum, magnitude))
}

/// Layers whose outputs are divided, behind a norm where there is one: the input is whole on every rank.
fn columns<R: BlockRun>(
    run: &R,
    x: &R::X,
    norm: Option<&R::Norm>,
    layers: &[R::Linear],
    name: &str,
) -> Result<R::X, OpsError> {
    let input = |x: R::X, norm: Option<R::Norm>| match norm {
        Some(norm) => run.normed(x, norm),
        None => run.plain(x),
    };
    let divided = input(run.copy_to_tp(x, name)?, norm.cloned());
    if !apart(run, layers, run.sums().colwise) {
        return run.linears(&divided, layers, false, None);
    }
    // Here the gradients of input and norm are whole, and the norm's is an addend.
    let whole = input(x.clone(), norm.map(|norm| run.grad_on_rank0(norm)).transpose()?);
    let h = run.copy_to_tp(&run.lora_down(&whole, layers)?, &format!("{name}: adapters"))?;
    let added = run.lora_up(&h, layers, None)?;
    run.linears(&divided, layers, true, Some(&added))
}

/// A layer whose inputs are divided, normed where a norm follows, plus the residual.
fn row<R: BlockRun>(
    run: &R,
    input: R::Input,
    layer: &R::Linear,
    norm: Option<&R::Norm>,
    residual: &R::X,
    name: &str,
) -> Result<R::X, OpsError> {
    let scale = run.spec().residual_scale;
    let after_sum = run.spec().layout == BlockLayout::AfterSum;
    if (norm.is_none() || after_sum) && scale == 1.0 {
        let sum = summed(run, input, layer, Some(residual), name)?;
        return match norm {
            Some(norm) => run.norm(&sum, norm),
            None => Ok(sum),
        };
    }
    let y = summed(run, input, layer, None, name)?;
    added(run, y, norm, residual)
}

/// What attention or the feed-forward gave, normed where a norm follows, plus the residual; or their sum normed.
fn added<R: BlockRun>(run: &R, y: R::X, norm: Option<&R::Norm>, residual: &R::X) -> Result<R::X, OpsError> {
    let factor = run.spec().residual_scale;
    match norm {
        Some(norm) if run.spec().layout == BlockLayout::AfterSum => {
            run.norm(&run.scaled_sum(&y, factor, residual)?, norm)
        }
        Some(norm) => run.scaled_sum(&run.norm(&y, norm)?, factor, residual),
        None => run.scaled_sum(&y, factor, residual),
    }
}

/// A layer whose inputs are divided, plus `residual`: the sum over ranks.
fn summed<R: BlockRun>(
    run: &R,
    input: R::Input,
    layer: &R::Linear,
    residual: Option<&R::X>,
    name: &str,
) -> Result<R::X, OpsError> {
    let layer = std::slice::from_ref(layer);
    if !run.divided() {
        return run.linears(&input, layer, false, residual);
    }
    let reduced = |x: &R::X, add: Option<&R::X>| match add {
        Some(add) => run.reduce_from_tp_add(x, add, name),
        None => run.reduce_from_tp(x, name),
    };
    if !apart(run, layer, run.sums().rowwise) {
        return reduced(&run.linears(&input, layer, false, None)?, residual);
    }
    let h = run.reduce_from_tp(&run.lora_down(&input, layer)?, &format!("{name}: adapters"))?;
    let added = run.lora_up(&h, layer, residual)?;
    reduced(&run.linears(&input, layer, true, None)?, Some(&added))
}

/// A block on tensors, with what a rank has of it.
pub(crate) struct OnTensors<'a> {
    pub(crate) shard: &'a Shard,
    pub(crate) spec: &'a Spec,
    pub(crate) linears: Linears,
    /// How this block's queries and keys are turned.
    pub(crate) turning: &'a Turning,
    /// Whether a few tokens are decoded, with nothing to differentiate.
    pub(crate) decodes: bool,
    /// Whether all ranks have the same tokens where experts are divided alone: they choose what comes next together.
    pub(crate) same_tokens: bool,
    /// What the block is given beside the stream, `[tokens, width]`.
    pub(crate) given: Option<&'a AnyTensor>,
    /// Keys and values of another block, where it has none of its own.
    pub(crate) keys: Option<&'a AnyTensor>,
    /// Where this block's router notes its choice, and its number among the blocks.
    pub(crate) balance: Option<(&'a Arc<RouterBalance>, usize)>,
    /// What multiplies the adapters' activations of each token where they do not act on all alike: `[tokens, 1]`, or
    /// `[tokens, r]` the same of each layer.
    pub(crate) acts: Option<&'a AnyTensor>,
    /// What hears the inputs of its layers.
    pub(crate) tap: Option<BlockTap<'a>>,
}

/// Clamped gates times ups ([`Spec::clamped_gates`]), of gates and then ups.
fn clamped_gates(x: &AnyTensor, (alpha, limit): (f32, f32)) -> Result<AnyTensor, OpsError> {
    let x = x.rank::<2>()?;
    let half = x.dims()[1] / 2;
    let gate = x.clone().narrow(1, 0, half).clamp_max(limit);
    let up = x.narrow(1, half, half).clamp(-limit, limit);
    Ok(AnyTensor::new(gate.clone() * sigmoid(gate * alpha) * (up + 1.0)))
}

/// The weights of a token's experts, each times the number of its expert.
fn scaled_by_expert(routing: &Routing, of_experts: &AnyTensor) -> Result<AnyTensor, OpsError> {
    let weights = routing.weights.rank::<2>()?;
    let [tokens, each] = weights.dims();
    let own = routing.experts.select(of_experts)?.rank::<1>()?.reshape([tokens, each]);
    let own = queries_keys::cast(own, weights.dtype());
    Ok(AnyTensor::new(weights * own))
}

/// Each row of `x` times its number of `factors`, `[rows, 1]`, or times its row of them, again and again.
fn on_rows(x: &AnyTensor, factors: &AnyTensor) -> Result<AnyTensor, OpsError> {
    let factors = beside(factors, x).rank::<2>()?;
    let x = x.rank::<2>()?;
    let factors = queries_keys::cast(factors, x.dtype());
    let ([_, each], [_, all]) = (factors.dims(), x.dims());
    let again = if each > 1 { all / each } else { 1 };
    let factors = if again > 1 { factors.repeat_dim(1, again) } else { factors };
    Ok(AnyTensor::new(x * factors))
}

/// The sum of what a token's experts make of it times their weights: a row for each of them, of one expert with weight one.
fn of_weighed(
    x: &AnyTensor,
    routing: &Routing,
    run: impl FnOnce(&AnyTensor, &Routing) -> Result<AnyTensor, OpsError>,
) -> Result<AnyTensor, OpsError> {
    let (x, weights) = (x.rank::<2>()?, routing.weights.rank::<2>()?);
    let ([tokens, hidden], [_, each]) = (x.dims(), weights.dims());
    let weights = queries_keys::cast(weights, x.dtype());
    let ones = Tensor::<2>::ones([tokens * each, 1], (&x.device(), x.dtype()));
    let rows = x.unsqueeze_dim::<3>(1) * weights.reshape([tokens, each, 1]);
    let single = Routing { weights: AnyTensor::new(ones), experts: routing.experts.clone() };
    let y = run(&AnyTensor::new(rows.reshape([tokens * each, hidden])), &single)?.rank::<2>()?;
    Ok(AnyTensor::new(y.reshape([tokens, each, hidden]).sum_dim(1).squeeze_dim::<2>(1)))
}

impl BlockRun for OnTensors<'_> {
    type X = AnyTensor;
    type Norm = NormTensors;
    type Input = LinearInput;
    type Linear = Linear;
    type Curve = (AnyTensor, AnyTensor);
    type Mixture = MixtureTensors;
    type Scalar = AnyTensor;

    fn spec(&self) -> &Spec {
        self.spec
    }

    fn experts(
        &self,
        x: &AnyTensor,
        routed: &AnyTensor,
        mixture: &MixtureTensors,
        what: &str,
    ) -> Result<AnyTensor, OpsError> {
        let router = std::slice::from_ref(&mixture.router);
        let routed = match &mixture.scales {
            Some([gamma, _]) => rms_norm(routed, gamma, self.spec.norm_eps)?,
            None => routed.clone(),
        };
        let logits = self.linears(&LinearInput::Plain(routed), router, false, None)?;
        let mut routing = route(&logits, mixture.correction.as_ref(), &mixture.rule, self.balance)?;
        if let Some([_, of_experts]) = &mixture.scales {
            routing.weights = scaled_by_expert(&routing, of_experts)?;
        }
        let run = if self.decodes { experts_decode } else { experts };
        let made = |x: &AnyTensor, routing: &Routing| match mixture.weighs_inputs {
            true => of_weighed(x, routing, |x, routing| run(x, routing, &mixture.experts)),
            false => run(x, routing, &mixture.experts),
        };
        let what = format!("{what}: experts");
        let mut x = x.clone();
        if self.divided() {
            // Each rank has some experts, or some features of every one: gradients of tokens and of weights are addends.
            x = self.copy_to_tp(&x, &what)?;
            routing.weights = self.copy_to_tp(&routing.weights, &format!("{what}: weights"))?;
        }
        let y = match (&self.shard.expert_ranks, &self.shard.own_experts) {
            (Some(ranks), _) if !self.same_tokens => {
                let each = mixture.rule.per_token;
                let there =
                    TokenDispatcher::new(&ranks.ep, &routing.experts.to_host(), each, &ranks.owners, &what)?;
                let (x, weights) = (there.dispatch(&x)?, there.dispatch(&routing.weights)?);
                there.combine(&made(&x, &Routing { weights, experts: there.experts().clone().into() })?)?
            }
            (Some(ranks), Some(own)) => {
                return ranks.all.reduce_from_tp(&made(&x, &routing.to(own))?, &what);
            }
            (_, Some(own)) => made(&x, &routing.to(own))?,
            (_, None) => made(&x, &routing)?,
        };
        if self.divided() { self.reduce_from_tp(&y, &what) } else { Ok(y) }
    }

    fn gated_by(&self, x: &AnyTensor, gate: &AnyTensor) -> Result<AnyTensor, OpsError> {
        Ok(AnyTensor::new(x.rank::<2>()? * sigmoid(gate.rank::<2>()?)))
    }

    fn divided(&self) -> bool {
        self.shard.divided()
    }

    fn sums(&self) -> AdapterSums {
        self.shard.sums
    }

    fn adapter(&self, layer: &Linear) -> Option<bool> {
        layer.low_rank.as_ref().map(|adapter| adapter.magnitude.is_some())
    }

    fn plain(&self, x: AnyTensor) -> LinearInput {
        LinearInput::Plain(x)
    }

    fn normed(&self, x: AnyTensor, NormTensors { gamma, beta, eps }: NormTensors) -> LinearInput {
        let eps = eps.unwrap_or(self.spec.norm_eps);
        if self.spec.norm.is_layer() {
            return LinearInput::LayerNorm { x, gamma, beta, eps };
        }
        LinearInput::RmsNorm { x, gamma, eps }
    }

    fn activated(
        &self,
        x: AnyTensor,
        curve: Option<&(AnyTensor, AnyTensor)>,
    ) -> Result<LinearInput, OpsError> {
        if let Some(clamped) = self.spec.clamped_gates {
            return Ok(LinearInput::Plain(clamped_gates(&x, clamped)?));
        }
        let Some((alpha_p, alpha_n)) = curve else {
            let (activation, gated) = (self.spec.activation, self.spec.gated());
            return Ok(LinearInput::Activated { x, activation, gated });
        };
        Ok(LinearInput::Plain(xielu(&x, alpha_p, alpha_n)?))
    }

    fn queries_keys_values(
        &self,
        qkv: AnyTensor,
        norms: Option<&(NormTensors, NormTensors)>,
        what: &str,
    ) -> Result<AnyTensor, OpsError> {
        queries_keys::prepared(qkv, self.spec, self.shard, norms, self.turning, self.keys, what)
    }

    fn latent_normed(&self, x: &AnyTensor, norm: &NormTensors) -> Result<AnyTensor, OpsError> {
        rms_norm(x, &norm.gamma, latent::EPS)
    }

    fn latent_and_turned(&self, x: &AnyTensor) -> Result<(AnyTensor, AnyTensor), OpsError> {
        latent::split(x, self.spec)
    }

    fn latent_heads(&self, q: &AnyTensor, kv: &AnyTensor, turned: &AnyTensor) -> Result<AnyTensor, OpsError> {
        let qkv = latent::heads(q, kv, turned, self.spec)?;
        queries_keys::grown(qkv, self.spec, self.shard, self.turning)
    }

    fn values_and_gates(&self, x: &AnyTensor) -> Result<[AnyTensor; 2], OpsError> {
        selective_scan::values_and_gates(x, self.spec)
    }

    fn steps_and_directions(
        &self,
        x: &AnyTensor,
        norms: Option<[&NormTensors; 3]>,
    ) -> Result<[AnyTensor; 3], OpsError> {
        selective_scan::steps_and_directions(x, norms, self.spec)
    }

    fn side_by_side(&self, all: &[AnyTensor]) -> Result<AnyTensor, OpsError> {
        let all = all.iter().map(AnyTensor::rank::<2>).collect::<Result<Vec<_>, _>>()?;
        Ok(AnyTensor::new(Tensor::cat(all, 1)))
    }

    fn queries_and_gates(&self, x: AnyTensor) -> Result<(AnyTensor, AnyTensor), OpsError> {
        queries_keys::apart_from_gates(&x, self.spec, self.shard)
    }

    fn gated_each(&self, x: &AnyTensor, gates: &AnyTensor) -> Result<AnyTensor, OpsError> {
        let x = x.rank::<2>()?;
        let gates = gates.rank::<2>()?;
        let gates = match self.spec.softplus_gates {
            true => -log_sigmoid(-queries_keys::cast(gates, DType::F32)),
            false => sigmoid(gates),
        };
        let gates = queries_keys::cast(gates, x.dtype());
        let ([tokens, width], [_, count]) = (x.dims(), gates.dims());
        if count == width {
            return Ok(AnyTensor::new(x * gates));
        }
        let of_heads = x.reshape([tokens, count, width / count]) * gates.unsqueeze_dim(2);
        Ok(AnyTensor::new(of_heads.reshape([tokens, width])))
    }

    fn values_of(&self, attended: AnyTensor) -> Result<AnyTensor, OpsError> {
        latent::values(attended, self.spec)
    }

    fn gates_given(&self, gate: AnyTensor) -> Result<LinearInput, OpsError> {
        let given = self.given.expect("invariant: a block with a gate is given its input");
        let x = AnyTensor::new(Tensor::cat(vec![gate.rank::<2>()?, given.rank::<2>()?], 1));
        Ok(LinearInput::Activated { x, activation: self.spec.activation, gated: true })
    }

    fn scaled(&self, x: &AnyTensor, scalar: &AnyTensor) -> Result<AnyTensor, OpsError> {
        let x = x.rank::<2>()?;
        let scalar = queries_keys::cast(scalar.rank::<1>()?, x.dtype());
        Ok(AnyTensor::new(x * scalar.unsqueeze()))
    }

    fn active_stream(&self, x: &AnyTensor) -> Result<AnyTensor, OpsError> {
        streams::active(x, self.spec)
    }

    fn tanh(&self, x: &AnyTensor) -> Result<AnyTensor, OpsError> {
        Ok(AnyTensor::new(x.rank::<2>()?.tanh()))
    }

    fn predicted(&self, x: &AnyTensor, coefficients: &AnyTensor) -> Result<AnyTensor, OpsError> {
        streams::predicted(x, coefficients, self.spec)
    }

    fn corrected(
        &self,
        predicted: &AnyTensor,
        made: &AnyTensor,
        coefficients: &AnyTensor,
    ) -> Result<AnyTensor, OpsError> {
        streams::corrected(predicted, made, coefficients, self.spec)
    }

    fn added_to_others(&self, x: &AnyTensor, y: &AnyTensor) -> Result<AnyTensor, OpsError> {
        streams::added_to_others(x, y, self.spec)
    }

    fn scaled_columns(&self, x: &AnyTensor, scale: &AnyTensor) -> Result<AnyTensor, OpsError> {
        let x = x.rank::<2>()?;
        let scale = queries_keys::cast(scale.rank::<1>()?, x.dtype());
        Ok(AnyTensor::new(x * scale.unsqueeze()))
    }

    fn joined(&self, x: &AnyTensor, y: &AnyTensor) -> Result<AnyTensor, OpsError> {
        Ok(AnyTensor::new((x.rank::<2>()? + y.rank::<2>()?) * std::f32::consts::FRAC_1_SQRT_2))
    }

    fn cut_off(&self, x: AnyTensor, deviations: f32, what: &str) -> Result<AnyTensor, OpsError> {
        streams::cut_off(&x, deviations, self.spec, self.shard, what)
    }

    fn scaled_gates(&self, x: AnyTensor, factor: f32) -> Result<AnyTensor, OpsError> {
        let x = x.rank::<2>()?;
        let half = x.dims()[1] / 2;
        let gates = x.clone().narrow(1, 0, half) * factor;
        Ok(AnyTensor::new(Tensor::cat(vec![gates, x.narrow(1, half, half)], 1)))
    }

    fn norm(&self, x: &AnyTensor, norm: &NormTensors) -> Result<AnyTensor, OpsError> {
        norm.of(x, self.spec)
    }

    fn scaled_sum(&self, x: &AnyTensor, factor: f32, residual: &AnyTensor) -> Result<AnyTensor, OpsError> {
        scaled_sum(x, factor, Some(residual))
    }

    fn linears(
        &self,
        input: &LinearInput,
        layers: &[Linear],
        bare: bool,
        residual: Option<&AnyTensor>,
    ) -> Result<AnyTensor, OpsError> {
        if let Some(tap) = &self.tap {
            tap.hear(input, layers)?;
        }
        let base = |added: Option<&AnyTensor>| (self.linears)(input, &without_adapters(layers), added);
        // What adapters add is no residual: the sum is in the dtype of the layers alone, as it is where they act within.
        let with = |added: &AnyTensor| -> Result<AnyTensor, OpsError> {
            let sum = base(Some(added))?.rank::<2>()?;
            Ok(AnyTensor::new(queries_keys::cast(sum, input.out_dtype(layers))))
        };
        if bare {
            return residual.map_or_else(|| base(None), with);
        }
        if self.acts.is_some() && layers.iter().any(|layer| layer.low_rank.is_some()) {
            let added = self.lora_up(&self.lora_down(input, layers)?, layers, residual)?;
            return if residual.is_some() { base(Some(&added)) } else { with(&added) };
        }
        (self.linears)(input, layers, residual)
    }

    fn linears_last(
        &self,
        input: &LinearInput,
        layers: &[Linear],
        residual: &AnyTensor,
    ) -> Result<AnyTensor, OpsError> {
        if runs_again() && self.acts.is_none() && self.tap.is_none() {
            return linears_unread(input, layers, Some(residual));
        }
        self.linears(input, layers, false, Some(residual))
    }

    fn lora_down(&self, input: &LinearInput, layers: &[Linear]) -> Result<AnyTensor, OpsError> {
        let h = lora_down(input, layers, self.linears)?;
        match self.acts {
            Some(acts) => on_rows(&h, acts),
            None => Ok(h),
        }
    }

    fn lora_up(
        &self,
        h: &AnyTensor,
        layers: &[Linear],
        residual: Option<&AnyTensor>,
    ) -> Result<AnyTensor, OpsError> {
        let biased = |layer: &Linear| layer.low_rank.as_ref().is_some_and(|low| low.b_bias.is_some());
        match self.acts.filter(|_| layers.iter().any(biased)) {
            // The bias of B is a part of what is added.
            Some(acts) => {
                let added = on_rows(&lora_up(h, layers, None, self.linears)?, acts)?;
                residual.map_or(Ok(added.clone()), |residual| scaled_sum(&added, 1.0, Some(residual)))
            }
            None => lora_up(h, layers, residual, self.linears),
        }
    }

    fn copy_to_tp(&self, x: &AnyTensor, what: &str) -> Result<AnyTensor, OpsError> {
        self.shard.tp.copy_to_tp(x, what)
    }

    fn grad_on_rank0(&self, norm: &NormTensors) -> Result<NormTensors, OpsError> {
        let tp = &self.shard.tp;
        let beta = norm.beta.as_ref().map(|beta| tp.grad_on_rank0(beta)).transpose()?;
        Ok(NormTensors { gamma: tp.grad_on_rank0(&norm.gamma)?, beta, eps: norm.eps })
    }

    fn reduce_from_tp(&self, x: &AnyTensor, what: &str) -> Result<AnyTensor, OpsError> {
        self.shard.tp.reduce_from_tp(x, what)
    }

    fn reduce_from_tp_add(&self, x: &AnyTensor, add: &AnyTensor, what: &str) -> Result<AnyTensor, OpsError> {
        self.shard.tp.reduce_from_tp_add(x, add, what)
    }
}
