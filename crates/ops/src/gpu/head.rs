//! The head, by chunks of rows: a chunk's logits are the largest thing there is.
//!
//! Each chunk leaves seven numbers per token on the device. They reach the host in one transfer and are made into
//! statistics there, as of a rank's part of the vocabulary; a whole head is one rank's. Backward makes a chunk's logits
//! again and writes their gradient down. Where the gradient by log-probabilities is known before ([`head_nll`]), a chunk's
//! logits become their gradient at once and nothing waits.

use std::sync::Arc;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burnish_core::{Dtype, LinearParts};

#[cfg(feature = "cube")]
use super::kernels;
use super::linear::{Gradients, Layer, Operand, Saved};
use super::{constant, ints, to, wide_dtype};
use crate::head::shard::{Combined, NO_PART, Part, SUM, TARGET, TOP, TOTAL};
use crate::head::{Coefficient, HeadOptions, LaterStats, TokenStats, VocabShard, nll_by_coefficients};
use crate::{AnyTensor, Linear, OpsError, all_joined, apply};

const OP: &str = "head";

/// Logits of a chunk, about: 256 MiB in 16 bits.
const LOGITS: usize = 1 << 27;
/// Rows of a chunk are a multiple of so many: tiles of products have as many.
const TILE: usize = 128;

/// Rows of a chunk over a weight `[vocab, width]`. Where the weight's gradient is made, which every chunk behind the first
/// reads and writes, a chunk's logits may have three elements for four of its.
pub(super) fn chunk([vocab, width]: [usize; 2], trains: bool) -> usize {
    let of = |rows: usize| rows / TILE * TILE;
    let least = of(LOGITS / vocab.max(1)).max(TILE);
    if trains { least.max(of(width / 4 * 3)) } else { least }
}

/// [`chunk`] of a head.
fn chunk_of(head: &Linear, trains: bool) -> usize {
    chunk([head.out(), head.weight.shape()[1]], trains)
}

/// Rows of a chunk of so many tokens, where none has more than `most`: as many of each as whole tiles allow.
pub(super) fn even(tokens: usize, most: usize) -> usize {
    let chunks = tokens.div_ceil(most).max(1);
    tokens.div_ceil(chunks).next_multiple_of(TILE).min(most).max(1)
}

fn inputs(hidden: &AnyTensor, head: &Linear) -> Vec<AnyTensor> {
    let mut all = vec![hidden.clone()];
    all.extend(head.tensors());
    all
}

/// The head on plain tensors, and some tokens' targets.
struct Body {
    hidden: AnyTensor,
    layer: Layer,
    options: HeadOptions,
    wide: DType,
    /// Each token's target as a row of this rank, 0 where another has it; and 1 where this one has it. Behind the last token
    /// zeros.
    targets: Targets,
    /// Rows of the layer.
    rows: usize,
    chunk: usize,
}

/// Some tokens' targets and whether they are this rank's, `[tokens, 1]` each.
pub(super) struct Targets {
    pub(super) ids: Tensor<2, Int>,
    pub(super) owned: Tensor<2>,
}

impl Targets {
    /// Those of a chunk.
    fn chunk(&self, start: usize, n: usize) -> Self {
        Self { ids: self.ids.clone().narrow(0, start, n), owned: self.owned.clone().narrow(0, start, n) }
    }
}

/// What a loss says of tokens, of all or of a chunk's: `ln sum exp z` and, where a gradient of it may come, the entropy `[tokens, 1]`; and its
/// gradients by log-probability and entropy `[2, tokens]`.
pub(super) struct Upstream {
    pub(super) log_z: Tensor<2>,
    pub(super) entropy: Option<Tensor<2>>,
    pub(super) gradients: Tensor<2>,
    /// Entries of the whole vocabulary.
    pub(super) vocab: usize,
}

/// A chunk's product with the head, and what its backward needs.
struct Logits {
    z: Tensor<2>,
    saved: Saved,
    operand: Operand,
}

impl Body {
    fn new(
        plain: &[AnyTensor],
        head: &Linear,
        first_row: usize,
        targets: &[u32],
        (options, chunk): (HeadOptions, usize),
    ) -> Result<Self, OpsError> {
        let (wide, device) = (wide_dtype(&plain[0]), plain[0].device());
        let own = first_row..first_row + head.out();
        let (tokens, has) = (targets.len(), |&t: &u32| own.contains(&(t as usize)));
        let local = targets.iter().map(|t| if has(t) { (*t as usize - own.start) as i32 } else { 0 });
        let (mut local, mut owned): (Vec<i32>, Vec<f32>) =
            (local.collect(), targets.iter().map(|t| if has(t) { 1.0 } else { 0.0 }).collect());
        // As whole tiles, of which chunks are pieces where they lie.
        let tokens = tokens.next_multiple_of(TILE);
        local.resize(tokens, 0);
        owned.resize(tokens, 0.0);
        Ok(Self {
            hidden: plain[0].clone(),
            layer: Layer::new(head, &mut plain[1..].iter().cloned(), wide)?,
            options,
            wide,
            targets: Targets {
                ids: ints(local, &device).reshape([tokens, 1]),
                owned: host(owned, [tokens], &device, wide).reshape([tokens, 1]),
            },
            rows: head.out(),
            chunk: even(targets.len(), chunk),
        })
    }

    /// First token and number of tokens of each chunk.
    fn chunks(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (tokens, chunk) = (self.hidden.shape()[0], self.chunk);
        (0..tokens).step_by(chunk).map(move |start| (start, chunk.min(tokens - start)))
    }

    fn logits(&self, start: usize, n: usize, wanted: &LinearParts<bool>) -> Result<Logits, OpsError> {
        let mut operand = Operand::new(self.hidden.rank::<2>()?.narrow(0, start, n));
        let to = (self.layer.out_dtype(), None);
        let (z, saved) = self.layer.forward(&mut operand, start, wanted, to, None);
        Ok(Logits { z: z.made(), saved, operand })
    }

    /// What this rank's rows say of each token: [`Part`]s, `[n, 7]`; from a chunk's product.
    fn parts(&self, z: Tensor<2>, targets: Targets) -> Tensor<2> {
        #[cfg(feature = "cube")]
        if let Some(parts) = kernels::logit_parts(&z, &targets, &self.options) {
            return parts;
        }
        let (z, Targets { ids, owned }) = (scaled(z, &self.options, self.wide), targets);
        let [_, rows] = z.dims();
        let top = z.clone().max_dim(1).clamp_min(NO_PART[0]);
        let below = (z.clone() - top.clone()).clamp_min(-200.0);
        let e = below.clone().exp();
        let (sum, squares) = (e.clone().sum_dim(1), e.clone().powi_scalar(2).sum_dim(1));
        let weighted = (e * below).sum_dim(1);
        let target = z.clone().gather(1, ids.clone());
        let total = z.clone().sum_dim(1);
        // The target is the first maximum if nothing is above it and nothing before it as high.
        let ahead = z - target.clone();
        let column = Tensor::<1, Int>::arange(0..rows as i64, &ids.device()).unsqueeze::<2>();
        let earlier = (column - ids).lower_elem(0);
        let above = ahead.clone().greater_elem(0.0).bool_or(ahead.greater_equal_elem(0.0).bool_and(earlier));
        let above = to(above.float(), self.wide).sum_dim(1);
        let first = to(above.lower_elem(0.5).float(), self.wide);
        Tensor::cat(vec![top, sum, squares, weighted, total, target * owned.clone(), first * owned], 1)
    }

    /// Every token's part: a wait for the device.
    fn all_parts(&self) -> Result<Vec<Part>, OpsError> {
        let parts = self
            .chunks()
            .map(|(start, n)| {
                let logits = self.logits(start, n, &LinearParts::default())?;
                Ok(self.parts(logits.z, self.targets.chunk(start, n)))
            })
            .collect::<Result<Vec<_>, OpsError>>()?;
        Ok(as_parts(&below(parts).to_f32()))
    }

    /// The gradient of a chunk's product from that of its tokens' log-probabilities and entropies:
    /// `dz_j = g_lp ((1 - s) 1[j = t] + s / vocab) - p_j (g_lp + g_h (log p_j + H))` with `s` of label smoothing.
    ///
    /// The chunk's first token is number `first` of `of`.
    fn gradient(&self, z: Tensor<2>, targets: Targets, first: usize, of: &Upstream) -> Tensor<2> {
        let (o, [n, rows]) = (&self.options, z.dims());
        #[cfg(feature = "cube")]
        let z = match kernels::logit_gradient(z, &targets, of, first, o) {
            Ok(dz) => return dz,
            Err(z) => z,
        };
        let (z, Targets { ids, owned }) = (scaled(z, &self.options, self.wide), targets);
        let upstream =
            |row: usize| of.gradients.clone().slice([row..row + 1, first..first + n]).reshape([n, 1]);
        let slope = o.softcap.map(|cap| (z.clone() * (o.temperature / cap)).powi_scalar(2).neg() + 1.0);
        let log_p = (z - of.log_z.clone().narrow(0, first, n)).clamp_min(-200.0);
        let p = log_p.clone().exp();
        let pulled = match &of.entropy {
            Some(entropy) => (log_p + entropy.clone().narrow(0, first, n)) * upstream(1) + upstream(0),
            None => upstream(0),
        };
        let own = upstream(0) * owned * (1.0 - o.label_smoothing);
        let mut dz = (p * pulled).neg();
        if o.label_smoothing > 0.0 {
            dz = dz + upstream(0) * (f64::from(o.label_smoothing) / of.vocab as f64);
        }
        // By comparison: to scatter one number a row would be an atomic sum and a pass of its own.
        let column = Tensor::<1, Int>::arange(0..rows as i64, &ids.device()).unsqueeze::<2>();
        dz = dz.clone().mask_where(column.equal(ids), dz + own);
        if let Some(slope) = slope {
            dz = dz * slope;
        }
        let factor = o.logit_scale / o.temperature;
        if factor == 1.0 { dz } else { dz * factor }
    }

    /// The gradients of the head's inputs.
    fn backward(
        self,
        upstream: &Upstream,
        want_hidden: bool,
        wanted: &LinearParts<bool>,
    ) -> Result<Vec<Option<AnyTensor>>, OpsError> {
        let (mut gradients, mut parts) = (self.layer.gradients(), Vec::new());
        for (start, n) in self.chunks() {
            let Logits { z, saved, operand } = self.logits(start, n, wanted)?;
            let dz = self.gradient(z, self.targets.chunk(start, n), start, upstream);
            parts.extend(self.of_chunk(start, (operand, saved), dz, (want_hidden, wanted), &mut gradients));
        }
        Ok(in_order(parts, gradients))
    }

    /// The gradient of a chunk's hidden states, where it is wanted, from that of its product; what the layer's are of is added
    /// to `gradients`.
    fn of_chunk(
        &self,
        start: usize,
        (mut operand, saved): (Operand, Saved),
        dz: Tensor<2>,
        (want_hidden, wanted): (bool, &LinearParts<bool>),
        gradients: &mut Gradients,
    ) -> Option<Tensor<2>> {
        let asked = (wanted, want_hidden.then(|| self.hidden.burn_dtype()));
        self.layer.backward(&mut operand, start, (saved, None), dz, asked, (gradients, None))
    }

    /// `factor` times the sum of log-probabilities; every token's part; and the gradients of the head's inputs, if any is
    /// wanted.
    fn log_prob_sum(
        self,
        factor: f64,
        want_hidden: bool,
        wanted: &LinearParts<bool>,
    ) -> Result<(Tensor<1>, AnyTensor, Vec<Option<AnyTensor>>), OpsError> {
        let tracked = want_hidden || wanted.as_ref().into_iter().any(|(_, &wanted)| wanted);
        let [tokens, _] = self.targets.ids.dims();
        let coefficients = [factor as f32, 0.0].map(|c| vec![c; self.chunk.min(tokens)]);
        let shape = [2, coefficients[0].len()];
        let coefficients = host(coefficients.concat(), shape, &self.targets.ids.device(), self.wide);
        let (mut gradients, mut hidden, mut parts) = (self.layer.gradients(), Vec::new(), Vec::new());
        for (start, n) in self.chunks() {
            let Logits { z, saved, operand } = self.logits(start, n, wanted)?;
            let targets = || self.targets.chunk(start, n);
            let part = self.parts(z.clone(), targets());
            if tracked {
                let (log_z, gradients_of) = (log_sum(part.clone()), coefficients.clone());
                let upstream = Upstream { log_z, entropy: None, gradients: gradients_of, vocab: self.rows };
                let dz = self.gradient(z, targets(), 0, &upstream);
                hidden.extend(self.of_chunk(
                    start,
                    (operand, saved),
                    dz,
                    (want_hidden, wanted),
                    &mut gradients,
                ));
            }
            parts.push(part);
        }
        let parts = below(parts);
        let all = parts.rank::<2>()?;
        let (log_z, smoothing) = (log_sum(all.clone()), f64::from(self.options.label_smoothing));
        let mut log_prob = all.clone().narrow(1, TARGET, 1) - log_z.clone();
        if smoothing > 0.0 {
            let mean = all.narrow(1, TOTAL, 1) * (1.0 / self.rows as f64);
            log_prob = log_prob * (1.0 - smoothing) + (mean - log_z) * smoothing;
        }
        let log_prob = log_prob.reshape([1, -1]);
        #[cfg(feature = "cube")]
        let sum = kernels::sum_rows(&log_prob, false).unwrap_or_else(|| log_prob.clone().sum());
        #[cfg(not(feature = "cube"))]
        let sum = log_prob.sum();
        Ok((sum * factor, parts, in_order(hidden, gradients)))
    }
}

/// The gradients of a head's inputs: of the hidden states, chunk by chunk, and of the layer.
fn in_order(hidden: Vec<Tensor<2>>, layer: LinearParts<Option<AnyTensor>>) -> Vec<Option<AnyTensor>> {
    let hidden = (!hidden.is_empty()).then(|| below(hidden));
    std::iter::once(hidden).chain(layer.into_iter().map(|(_, gradient)| gradient)).collect()
}

/// `ln sum exp z` of tokens' parts `[tokens, 7]`, `[tokens, 1]`.
fn log_sum(parts: Tensor<2>) -> Tensor<2> {
    parts.clone().narrow(1, TOP, 1) + parts.narrow(1, SUM, 1).log()
}

/// Tokens' parts, of their numbers.
fn as_parts(values: &[f32]) -> Vec<Part> {
    let (parts, rest) = values.as_chunks::<{ VocabShard::VALUES }>();
    assert!(rest.is_empty(), "invariant: seven numbers per token");
    parts.to_vec()
}

/// The logits of a product, wide.
fn scaled(z: Tensor<2>, o: &HeadOptions, wide: DType) -> Tensor<2> {
    let mut z = to(z, wide);
    if o.logit_scale != 1.0 {
        z = z * o.logit_scale;
    }
    if let Some(cap) = o.softcap {
        z = (z / cap).tanh() * cap;
    }
    if o.temperature != 1.0 {
        z = z / o.temperature;
    }
    z
}

/// Rows of chunks, one below the other.
fn below(chunks: Vec<Tensor<2>>) -> AnyTensor {
    let shape = [chunks.iter().map(|chunk| chunk.dims()[0]).sum(), chunks[0].dims()[1]];
    all_joined(chunks.into_iter().map(AnyTensor::new).collect(), &shape)
}

fn host<const D: usize>(values: Vec<f32>, shape: [usize; D], device: &Device, dtype: DType) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values, shape), (device, dtype))
}

/// [`head_log_probs`], in chunks of `chunk` rows where that is said; `entropies` says whether a gradient of them may come.
fn log_probs(
    hidden: &AnyTensor,
    head: &Linear,
    shard: Option<&VocabShard>,
    targets: &[u32],
    options: HeadOptions,
    (entropies, chunk): (bool, Option<usize>),
) -> Result<(AnyTensor, TokenStats), OpsError> {
    let (dtype, tokens) = (wide_dtype(hidden), targets.len());
    let device = hidden.plain().device();
    let inputs = inputs(hidden, head);
    if tokens == 0 {
        let none = Tensor::<2>::zeros([2, 0], (&device, dtype));
        return Ok((constant(OP, &inputs, true, AnyTensor::new(none))?, TokenStats::default()));
    }
    let shard = shard.map_or_else(|| whole(head), |shard| Ok(shard.clone()))?;
    let both = |stats: &TokenStats| {
        let values = [stats.log_prob.as_slice(), &stats.entropy].concat();
        AnyTensor::new(host(values, [2, tokens], &device, dtype))
    };
    if shard.rows().is_empty() {
        let stats = shard.combine(targets, &vec![NO_PART; tokens], &options).stats;
        return Ok((constant(OP, &inputs, true, both(&stats))?, stats));
    }
    let mut found = TokenStats::default();
    let out = apply(OP, &inputs, |plain, wanted| {
        let want_hidden = wanted[0];
        let wanted = head.parts().fill(&mut wanted[1..].iter().copied());
        let chunk = chunk.unwrap_or_else(|| chunk_of(head, wanted.weight));
        let body = Body::new(plain, head, shard.rows().start, targets, (options, chunk))?;
        let Combined { stats, log_z } = shard.combine(targets, &body.all_parts()?, &options);
        let out = both(&stats);
        let column = |values: Vec<f32>| host(values, [tokens, 1], &device, dtype);
        let (log_z, entropy) = (column(log_z), entropies.then(|| column(stats.entropy.clone())));
        let vocab = shard.vocab();
        found = stats;
        let back = move |upstream: AnyTensor| {
            let gradients = to(upstream.carrier().reshape([2, tokens]), dtype);
            let upstream = Upstream { log_z, entropy, gradients, vocab };
            body.backward(&upstream, want_hidden, &wanted).expect("invariant: ranks are as in forward")
        };
        Ok((out, Box::new(back)))
    })?;
    Ok((out, found))
}

/// A whole head is that of one rank.
fn whole(head: &Linear) -> Result<VocabShard, OpsError> {
    VocabShard::new(&[head.out()], 0, Arc::new(|own: &[f32]| own.to_vec()))
}

/// See [`crate::head_log_probs`].
pub fn head_log_probs(
    hidden: &AnyTensor,
    head: &Linear,
    shard: Option<&VocabShard>,
    targets: &Arc<Vec<u32>>,
    options: HeadOptions,
) -> Result<(AnyTensor, TokenStats), OpsError> {
    log_probs(hidden, head, shard, targets, options, (true, None))
}

/// See [`crate::head_loss`]. Its coefficients need the host, so that gradients in the same pass would wait for the device
/// at each chunk: backward makes the logits again instead. [`head_nll`] needs none.
pub fn head_loss(
    hidden: &AnyTensor,
    head: &Linear,
    shard: Option<&VocabShard>,
    targets: &Arc<Vec<u32>>,
    options: HeadOptions,
    coefficient: &Coefficient,
    value: impl FnOnce(&TokenStats) -> f32,
) -> Result<(AnyTensor, TokenStats), OpsError> {
    let (device, dtype, n) = (hidden.plain().device(), wide_dtype(hidden), targets.len());
    let (both, stats) = log_probs(hidden, head, shard, targets, options, (false, None))?;
    let loss = AnyTensor::new(host(vec![value(&stats)], [1], &device, dtype));
    if n == 0 {
        return Ok((constant(OP, &inputs(hidden, head), true, loss)?, stats));
    }
    let mut gradient: Vec<f32> =
        stats.log_prob.iter().enumerate().map(|(i, &lp)| coefficient(i, lp)).collect();
    gradient.resize(2 * n, 0.0);
    let out = apply("head_loss", &[both], move |_, _| {
        let gradient = host(gradient, [2, n], &device, dtype);
        let back = move |upstream: AnyTensor| {
            vec![Some(AnyTensor::new(gradient * upstream.carrier().reshape([1, 1])))]
        };
        Ok((loss, Box::new(back)))
    })?;
    Ok((out, stats))
}

/// See [`crate::head_nll`].
pub fn head_nll(
    hidden: &AnyTensor,
    head: &Linear,
    shard: Option<&VocabShard>,
    targets: &Arc<Vec<u32>>,
    options: HeadOptions,
    denominator: f64,
) -> Result<(AnyTensor, LaterStats), OpsError> {
    // Ranks that split the vocabulary meet on the host; f16's gradients want the scale that backward comes with.
    let split = shard.is_some_and(|shard| shard.ranks() > 1);
    if targets.is_empty() || split || head.weight.dtype() == Some(Dtype::F16) {
        return nll_by_coefficients(hidden, head, shard, targets, options, denominator);
    }
    let mut found = None;
    let loss = apply("head_nll", &inputs(hidden, head), |plain, wanted| {
        let linear = head.parts().fill(&mut wanted[1..].iter().copied());
        let body = Body::new(plain, head, 0, targets, (options, chunk_of(head, linear.weight)))?;
        let factor = -1.0 / denominator.max(1.0);
        let (loss, parts, gradients) = body.log_prob_sum(factor, wanted[0], &linear)?;
        found = Some(parts);
        let back = move |upstream: AnyTensor| {
            let upstream = upstream.carrier();
            gradients.into_iter().map(|gradient| gradient.map(|g| times(g, &upstream))).collect()
        };
        Ok((AnyTensor::new(loss), Box::new(back)))
    })?;
    let (shard, targets) = (whole(head)?, targets.clone());
    let parts = found.expect("invariant: forward ran");
    let parts = reading(&parts);
    let stats = LaterStats::new(move || shard.combine(&targets, &as_parts(&parts()), &options).stats);
    Ok((loss, stats))
}

/// A gradient times a number of one element, where it lies.
fn times(gradient: AnyTensor, by: &Tensor<1>) -> AnyTensor {
    fn of_rank<const D: usize>(whole: AnyTensor, by: &Tensor<1>) -> AnyTensor {
        let gradient = whole.rank::<D>().expect("invariant: of that rank");
        // What is held here may not be written to.
        drop(whole);
        let by = to(by.clone().reshape([1; D]), gradient.dtype());
        AnyTensor::new(gradient * by)
    }
    match gradient.shape().len() {
        1 => of_rank::<1>(gradient, by),
        _ => of_rank::<2>(gradient, by),
    }
}

/// Numbers that a device is to bring to the host; whoever asks for them waits.
fn reading(values: &AnyTensor) -> Box<dyn FnOnce() -> Vec<f32> + Send> {
    #[cfg(feature = "cube")]
    if let Some(reading) = crate::cube::reading(values) {
        return Box::new(move || reading.wait());
    }
    let values = values.to_f32();
    Box::new(move || values)
}

/// See [`crate::head_logits()`].
pub fn head_logits(hidden: &AnyTensor, head: &Linear, options: HeadOptions) -> Result<Vec<f32>, OpsError> {
    Ok(resting_logits(hidden, head, options)?.to_f32())
}

/// The same where they were made, `[tokens, vocab]`.
pub(crate) fn resting_logits(
    hidden: &AnyTensor,
    head: &Linear,
    options: HeadOptions,
) -> Result<AnyTensor, OpsError> {
    let plain: Vec<AnyTensor> = inputs(hidden, head).iter().map(AnyTensor::plain).collect();
    let (wide, options) = (wide_dtype(&plain[0]), HeadOptions { temperature: 1.0, ..options });
    let hidden = plain[0].rank::<2>()?;
    let [tokens, _] = hidden.dims();
    if tokens == 0 {
        return Ok(AnyTensor::new(Tensor::<2>::zeros([0, head.out()], (&hidden.device(), wide))));
    }
    let layer = Layer::new(head, &mut plain[1..].iter().cloned(), wide)?;
    let chunk = chunk_of(head, false);
    let logits = |first: usize| {
        let rows = hidden.clone().narrow(0, first, chunk.min(tokens - first));
        let to = (layer.out_dtype(), None);
        let (z, _) = layer.forward(&mut Operand::new(rows), first, &LinearParts::default(), to, None);
        scaled(z.made(), &options, wide)
    };
    Ok(below((0..tokens).step_by(chunk).map(logits).collect()))
}

#[cfg(all(test, feature = "flex"))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
