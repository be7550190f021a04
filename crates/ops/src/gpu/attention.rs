//! Attention by blocks of queries, each against the keys that it sees; on CubeCL's devices by the kernels of flash
//! attention, which compute everything but the largest scores and heads of more than 256 elements.
//!
//! Products run in the dtype of `qkv`, softmax in f32. Forward keeps the output and the log-sum-exp of each row; backward
//! makes a block's probabilities again. Queries of one key/value head lie one after another, so that keys are never
//! repeated: `[kv_heads, group * rows, d] x [kv_heads, d, keys]`.

mod blocks;
mod cached;
#[cfg(feature = "cube")]
mod pages;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
#[cfg(feature = "cube")]
use burnish_gpu_kernels::HeadShape;

#[cfg(feature = "cube")]
use super::kernels;
use super::{constant, ints, norm, to, wide_dtype};
#[cfg(feature = "cube")]
use crate::BackwardFn;
use crate::attention::{AttentionShape, HeadNorm, Rotary};
use crate::kept::kept;
use crate::{AnyTensor, Documents, OpsError, apply};
use blocks::{Block, Blocks};

#[cfg(feature = "cube")]
pub(in crate::gpu) use blocks::Sight;
#[cfg(feature = "cube")]
pub(crate) use kernels::Plans;
#[cfg(feature = "cube")]
pub(crate) use pages::Pages;
#[cfg(feature = "cube")]
pub use pages::{PlacedRows, StepRows};

pub(crate) use cached::{Past, attend as attend_cached};

const OP: &str = "attention";

/// See [`crate::attention()`].
pub fn attention(
    qkv: &AnyTensor,
    shape: &AttentionShape,
    documents: &Documents,
    rotary: Option<&Rotary>,
    norms: Option<&HeadNorm>,
    sinks: Option<&AnyTensor>,
) -> Result<AnyTensor, OpsError> {
    attend(qkv, shape, documents, rotary, norms, sinks, None)
}

/// See [`crate::attention_with_peaks()`].
pub fn attention_with_peaks(
    qkv: &AnyTensor,
    shape: &AttentionShape,
    documents: &Documents,
    rotary: Option<&Rotary>,
    norms: Option<&HeadNorm>,
    sinks: Option<&AnyTensor>,
) -> Result<(AnyTensor, AnyTensor), OpsError> {
    let mut peaks = Peaks::default();
    let out = attend(qkv, shape, documents, rotary, norms, sinks, Some(&mut peaks))?;
    let none = || Tensor::<1>::full([shape.heads], f32::NEG_INFINITY, &out.plain().device());
    let peaks = match (peaks.largest, peaks.spoiled) {
        (Some(largest), Some(spoiled)) => (largest + spoiled).reshape([shape.heads]),
        _ => none(),
    };
    Ok((out, AnyTensor::new(peaks)))
}

/// The largest score of each head; apart from it 0, or NaN where a score is not finite: devices differ in what the
/// maximum of a NaN is. Each `[heads, 1]`.
#[derive(Default)]
struct Peaks {
    largest: Option<Tensor<2>>,
    spoiled: Option<Tensor<2>>,
}

fn attend(
    qkv: &AnyTensor,
    shape: &AttentionShape,
    documents: &Documents,
    rotary: Option<&Rotary>,
    norms: Option<&HeadNorm>,
    sinks: Option<&AnyTensor>,
    peaks: Option<&mut Peaks>,
) -> Result<AnyTensor, OpsError> {
    let [tokens, _] = crate::check::matrix(qkv)?;
    let mut inputs = vec![qkv.clone()];
    inputs.extend(norms.into_iter().flat_map(|n| [n.q.clone(), n.k.clone()]));
    inputs.extend(sinks.cloned());
    let width = shape.heads * shape.head_dim;
    if documents.iter().all(Range::is_empty) {
        let plain = qkv.plain().carrier();
        let none = Tensor::<2>::zeros([tokens, width], (&plain.device(), plain.dtype()));
        return constant(OP, &inputs, true, AnyTensor::new(none));
    }
    apply(OP, &inputs, |inputs, wanted| {
        let device = inputs[0].device();
        let wide_as = wide_dtype(&inputs[0]);
        let body = Body::new(shape, documents, rotary, (norms, sinks), (tokens, &device, wide_as))?;
        #[cfg(feature = "cube")]
        if peaks.is_none()
            && let Some(flash) = body.flash(&inputs[0], documents, Some(&documents.plans))
        {
            return body.attend_by(flash, &inputs[0], wanted);
        }
        let (out, sums) = match peaks {
            None => kept(|| body.forward(&inputs[0], None))?,
            Some(peaks) => {
                let made = body.forward(&inputs[0], Some(peaks))?;
                kept(|| Ok::<_, OpsError>(made))?
            }
        };
        let (qkv, saved) = (inputs[0].clone(), out.clone());
        let wanted = wanted.to_vec();
        let back = move |upstream: AnyTensor| {
            body.backward(&qkv, saved, sums, &upstream, &wanted).expect("invariant: ranks are as in forward")
        };
        Ok((AnyTensor::new(out), Box::new(back)))
    })
}

struct Norms {
    q: Tensor<1>,
    k: Tensor<1>,
    eps: f32,
}

/// The rotations of a row of tokens on the device that first asked for them, for all layers that share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Angles(Arc<OnceLock<Turn>>);

#[cfg(feature = "cube")]
impl Angles {
    /// Cosines and sines that a device has already, `[tokens, 1, rotary_dim / 2]` each.
    pub(crate) fn resting(halves: &[AnyTensor; 2]) -> Self {
        let [cos, sin] =
            halves.each_ref().map(|t| t.rank::<3>().expect("invariant: a row of each token's angles"));
        let half = cos.dims()[2];
        Self(Arc::new(OnceLock::from(Turn { cos, sin, half })))
    }
}

/// A rotation of each token: `[tokens, 1, rotary_dim / 2]`.
#[derive(Clone, Debug)]
struct Turn {
    cos: Tensor<3>,
    sin: Tensor<3>,
    half: usize,
}

impl Turn {
    fn of(r: &Rotary, tokens: usize, device: &Device, dtype: DType) -> Self {
        let turn = r.angles.0.get_or_init(|| Self::new(r, tokens, device, dtype));
        if turn.cos.device() == *device && turn.cos.dtype() == dtype {
            return turn.clone();
        }
        Self::new(r, tokens, device, dtype)
    }

    fn new(r: &Rotary, tokens: usize, device: &Device, dtype: DType) -> Self {
        let half = r.rotary_dim / 2;
        let [cos, sin] = r.halves().map(|values| {
            Tensor::<3>::from_data(TensorData::new(values, [tokens, 1, half]), (device, dtype))
        });
        Self { cos, sin, half }
    }

    /// `[tokens, heads, d]`, by the angle or back by it (the transpose, which is what a gradient wants).
    fn apply(&self, x: Tensor<3>, back: bool) -> Tensor<3> {
        let d = x.dims()[2];
        let (a, b) = (x.clone().narrow(2, 0, self.half), x.clone().narrow(2, self.half, self.half));
        let sin = if back { self.sin.clone().neg() } else { self.sin.clone() };
        let mut all =
            vec![a.clone() * self.cos.clone() - b.clone() * sin.clone(), b * self.cos.clone() + a * sin];
        let turned = 2 * self.half;
        if turned < d {
            all.push(x.narrow(2, turned, d - turned));
        }
        Tensor::cat(all, 2)
    }
}

/// Normed and rotated, in the dtype of products; queries times a scale.
struct Heads {
    /// `[kv_heads, group, tokens, d]`.
    q: Tensor<4>,
    /// `[kv_heads, tokens, d]`.
    k: Tensor<3>,
    v: Tensor<3>,
}

struct Body {
    shape: AttentionShape,
    documents: Documents,
    /// Of the documents, when they are first asked for.
    blocks: OnceLock<Blocks>,
    /// The first visible key of each token, when a block first asks.
    low: OnceLock<Tensor<1, Int>>,
    device: Device,
    turn: Option<Turn>,
    norms: Option<Norms>,
    /// `[kv_heads, group, 1, 1]`.
    sinks: Option<Tensor<4>>,
    tokens: usize,
    wide: DType,
}

impl Body {
    fn new(
        shape: &AttentionShape,
        documents: &Documents,
        rotary: Option<&Rotary>,
        (norms, sinks): (Option<&HeadNorm>, Option<&AnyTensor>),
        (tokens, device, wide): (usize, &Device, DType),
    ) -> Result<Self, OpsError> {
        let gamma = |t: &AnyTensor| Ok::<_, OpsError>(to(t.plain().rank::<1>()?, wide));
        let norms = match norms {
            Some(n) => Some(Norms { q: gamma(&n.q)?, k: gamma(&n.k)?, eps: n.eps }),
            None => None,
        };
        let apart = [shape.kv_heads, shape.heads / shape.kv_heads, 1, 1];
        let sinks = sinks.map(|sinks| Ok::<_, OpsError>(gamma(sinks)?.reshape(apart))).transpose()?;
        Ok(Self {
            low: OnceLock::new(),
            device: device.clone(),
            turn: rotary.map(|r| Turn::of(r, tokens, device, wide)),
            shape: shape.clone(),
            documents: documents.clone(),
            blocks: OnceLock::new(),
            norms,
            sinks,
            tokens,
            wide,
        })
    }

    /// `[tokens, heads, d]` of heads `from..from + count`.
    fn heads(&self, x: &Tensor<2>, from: usize, count: usize) -> Tensor<3> {
        let d = self.shape.head_dim;
        x.clone().narrow(1, from * d, count * d).reshape([self.tokens, count, d])
    }

    fn product(&self, a: Tensor<3>, b: Tensor<3>) -> Tensor<3> {
        super::product::matmul(a, b, self.shape.compute)
    }

    fn low(&self) -> Tensor<1, Int> {
        self.low.get_or_init(|| ints(self.blocks().low.clone(), &self.device)).clone()
    }

    fn blocks(&self) -> &Blocks {
        self.blocks.get_or_init(|| Blocks::new(&self.shape, &self.documents, self.tokens))
    }

    fn group(&self) -> usize {
        self.shape.heads / self.shape.kv_heads
    }

    /// `[tokens, heads, d]` as `[kv_heads, group, tokens, d]`.
    fn grouped(&self, x: Tensor<3>) -> Tensor<4> {
        let [tokens, _, d] = x.dims();
        x.swap_dims(0, 1).reshape([self.shape.kv_heads, self.group(), tokens, d])
    }

    /// The other way.
    fn apart(&self, x: Tensor<4>) -> Tensor<3> {
        let [_, _, tokens, d] = x.dims();
        x.reshape([self.shape.heads, tokens, d]).swap_dims(0, 1)
    }

    /// How a kernel is to place heads.
    #[cfg(feature = "cube")]
    fn placing(&self) -> kernels::Placing<'_> {
        let (s, turn) = (&self.shape, self.turn.as_ref());
        let half = turn.map_or(0, |turn| turn.half);
        kernels::Placing {
            shape: HeadShape { heads: s.heads, kv_heads: s.kv_heads, dim: s.head_dim, half },
            turns: turn.map(|turn| (&turn.cos, &turn.sin)),
            norms: self.norms.as_ref().map(|n| (&n.q, &n.k, n.eps)),
        }
    }

    fn prepare(&self, qkv: &AnyTensor, scale: f32) -> Result<Heads, OpsError> {
        #[cfg(feature = "cube")]
        if let Some([q, k, v]) = kernels::place_heads(qkv, &self.placing(), scale) {
            let [_, tokens, d] = q.dims();
            return Ok(Heads { q: q.reshape([self.shape.kv_heads, self.group(), tokens, d]), k, v });
        }
        let qkv = qkv.rank::<2>()?;
        let (s, dtype) = (&self.shape, qkv.dtype());
        let place = |x: Tensor<3>, gamma: Option<&Tensor<1>>| {
            let mut x = to(x, self.wide);
            if let (Some(gamma), Some(n)) = (gamma, &self.norms) {
                let rstd = norm::reciprocal(&x, n.eps);
                x = x * rstd * gamma.clone().unsqueeze();
            }
            match &self.turn {
                Some(turn) => turn.apply(x, false),
                None => x,
            }
        };
        let norms = self.norms.as_ref();
        let q = place(self.heads(&qkv, 0, s.heads), norms.map(|n| &n.q)) * scale;
        let k = place(self.heads(&qkv, s.heads, s.kv_heads), norms.map(|n| &n.k));
        let v = self.heads(&qkv, s.heads + s.kv_heads, s.kv_heads);
        let by_head = |x: Tensor<3>| to(x, dtype).swap_dims(0, 1);
        Ok(Heads { q: self.grouped(to(q, dtype)), k: by_head(k), v: by_head(v) })
    }

    /// A block's rows of `[kv_heads, group, tokens, d]`, those of a group one after another.
    fn rows(&self, x: &Tensor<4>, block: &Block) -> Tensor<3> {
        let [kv_heads, group, _, d] = x.dims();
        let n = block.rows.len();
        x.clone().narrow(2, block.rows.start, n).reshape([kv_heads, group * n, d])
    }

    /// The keys or values that a block sees.
    fn keys(x: &Tensor<3>, block: &Block) -> Tensor<3> {
        let mut parts: Vec<_> = block.keys.iter().map(|r| x.clone().narrow(1, r.start, r.len())).collect();
        if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(parts, 1) }
    }

    /// `[kv_heads, group, rows, keys]`, wide: scores, and what of them is hidden.
    fn scores(&self, heads: &Heads, block: &Block) -> (Tensor<4>, Tensor<4, Bool>) {
        let (kv_heads, group) = (self.shape.kv_heads, self.group());
        let (n, m) = (block.rows.len(), block.visible());
        let keys = Self::keys(&heads.k, block).swap_dims(1, 2);
        let scores = self.product(self.rows(&heads.q, block), keys);
        let scores = to(scores, self.wide).reshape([kv_heads, group, n, m]);
        let device = scores.device();
        let count = |from: usize, n: usize| Tensor::<1, Int>::arange(from as i64..(from + n) as i64, &device);
        let key: Tensor<2, Int> = count(block.first_key, m).unsqueeze::<2>();
        let query: Tensor<2, Int> = count(block.first_query, n).reshape([n, 1]);
        let low: Tensor<2, Int> = self.low().narrow(0, block.rows.start, n).reshape([n, 1]);
        let after = (key.clone() - query).greater_elem(0);
        let before = (key - low).lower_elem(0);
        let hidden = after.bool_or(before).reshape([1, 1, n, m]).expand([kv_heads, group, n, m]);
        (scores, hidden)
    }

    /// The linear bias of a block's scores: `[kv_heads, group, rows, keys]`, wide.
    fn bias(&self, block: &Block) -> Option<Tensor<4>> {
        if self.shape.slopes.is_empty() {
            return None;
        }
        let (kv_heads, group) = (self.shape.kv_heads, self.group());
        let (n, m) = (block.rows.len(), block.visible());
        let device = self.device.clone();
        let slopes = TensorData::new(self.shape.slopes.to_vec(), [kv_heads, group, 1, 1]);
        let slopes = Tensor::<4>::from_data(slopes, (&device, self.wide));
        let count = |from: usize, n: usize| Tensor::<1, Int>::arange(from as i64..(from + n) as i64, &device);
        let apart = count(block.first_key, m).unsqueeze::<2>() - count(block.first_query, n).reshape([n, 1]);
        Some(to(apart.float().reshape([1, 1, n, m]), self.wide) * slopes)
    }

    /// Scores as softmax sees them, and the slope of the cap.
    fn capped(
        &self,
        scores: Tensor<4>,
        hidden: Tensor<4, Bool>,
        block: &Block,
        slope: bool,
    ) -> (Tensor<4>, Option<Tensor<4>>) {
        let (scores, slope) = match self.shape.softcap {
            None => (scores, None),
            Some(cap) => {
                let t = (scores / cap).tanh();
                (t.clone() * cap, slope.then(|| t.powi_scalar(2).neg() + 1.0))
            }
        };
        let scores = match self.bias(block) {
            Some(bias) => scores + bias,
            None => scores,
        };
        (scores.mask_fill(hidden, -1e30), slope)
    }

    /// The output, and each block's log-sum-exp `[kv_heads, group, rows, 1]`.
    fn forward(
        &self,
        qkv: &AnyTensor,
        mut peaks: Option<&mut Peaks>,
    ) -> Result<(Tensor<2>, Vec<Tensor<4>>), OpsError> {
        let heads = self.prepare(qkv, self.shape.scale)?;
        let (device, dtype) = (heads.q.device(), heads.q.dtype());
        let s = &self.shape;
        let width = s.heads * s.head_dim;
        let zeros = |n: usize| Tensor::<2>::zeros([n, width], (&device, dtype));
        let (mut parts, mut sums, mut at) = (Vec::new(), Vec::new(), 0);
        for block in &self.blocks().all {
            if block.rows.start > at {
                parts.push(zeros(block.rows.start - at));
            }
            at = block.rows.end;
            let (out, sum) = self.block(&heads, block, peaks.as_deref_mut());
            parts.push(out);
            sums.push(sum);
        }
        if at < self.tokens {
            parts.push(zeros(self.tokens - at));
        }
        Ok((Tensor::cat(parts, 0), sums))
    }

    /// A block's output `[rows, heads * d]` and log-sum-exp.
    fn block(&self, heads: &Heads, block: &Block, peaks: Option<&mut Peaks>) -> (Tensor<2>, Tensor<4>) {
        let (s, dtype) = (&self.shape, heads.q.dtype());
        let (n, m) = (block.rows.len(), block.visible());
        let (scores, hidden) = self.scores(heads, block);
        if let Some(peaks) = peaks {
            peaks.see(&scores, &hidden);
        }
        let (scores, _) = self.capped(scores, hidden, block, false);
        let mut top = scores.clone().max_dim(3);
        if let Some(sinks) = &self.sinks {
            top = top.clone().max_pair(sinks.clone().expand(top.dims()));
        }
        let p = (scores - top.clone()).exp();
        let mut sum = p.clone().sum_dim(3);
        if let Some(sinks) = &self.sinks {
            sum = sum + (sinks.clone() - top.clone()).exp();
        }
        let p = to(p, dtype).reshape([s.kv_heads, self.group() * n, m]);
        let out = to(self.product(p, Self::keys(&heads.v, block)), self.wide);
        let out = out.reshape([s.kv_heads, self.group(), n, s.head_dim]) / sum.clone();
        (self.apart(to(out, dtype)).reshape([n, s.heads * s.head_dim]), top + sum.log())
    }

    fn backward(
        &self,
        qkv: &AnyTensor,
        out: Tensor<2>,
        sums: Vec<Tensor<4>>,
        upstream: &AnyTensor,
        wanted: &[bool],
    ) -> Result<Vec<Option<AnyTensor>>, OpsError> {
        let heads = self.prepare(qkv, self.shape.scale)?;
        let (device, dtype) = (heads.q.device(), heads.q.dtype());
        let s = &self.shape;
        let (kv_heads, group, d, tokens) = (s.kv_heads, self.group(), s.head_dim, self.tokens);
        let dy = upstream.rank::<2>()?;
        let delta = to(dy.clone(), self.wide) * to(out, self.wide);
        let delta = self.grouped(self.heads(&delta, 0, s.heads).sum_dim(2));
        let dy = self.grouped(self.heads(&to(dy, dtype), 0, s.heads));
        let zeros = |n: usize| Tensor::<4>::zeros([kv_heads, group, n, d], (&device, self.wide));
        let none = || Tensor::<3>::zeros([kv_heads, tokens, d], (&device, self.wide));
        let (mut dk, mut dv) = (none(), none());
        let (mut parts, mut at) = (Vec::new(), 0);
        let mut of_sinks: Option<Tensor<4>> = None;
        for (block, sum) in self.blocks().all.iter().zip(sums) {
            if block.rows.start > at {
                parts.push(zeros(block.rows.start - at));
            }
            at = block.rows.end;
            let (n, m) = (block.rows.len(), block.visible());
            let (scores, hidden) = self.scores(&heads, block);
            let (scores, slope) = self.capped(scores, hidden, block, true);
            if let Some(sinks) = &self.sinks {
                let share = (sinks.clone() - sum.clone()).exp();
                let own = (share * delta.clone().narrow(2, block.rows.start, n)).sum_dim(2).neg();
                of_sinks = Some(super::add(of_sinks, own));
            }
            let p = (scores - sum).exp();
            let dy = self.rows(&dy, block);
            let narrow = |x: Tensor<4>| to(x, dtype).reshape([kv_heads, group * n, m]);
            let of_v = self.product(narrow(p.clone()).swap_dims(1, 2), dy.clone());
            dv = Self::sum_into(dv, to(of_v, self.wide), block);
            let dp = self.product(dy, Self::keys(&heads.v, block).swap_dims(1, 2));
            let dp = to(dp, self.wide).reshape([kv_heads, group, n, m]);
            let mut ds = p * (dp - delta.clone().narrow(2, block.rows.start, n));
            if let Some(slope) = slope {
                ds = ds * slope;
            }
            let ds = narrow(ds);
            let of_k = self.product(ds.clone().swap_dims(1, 2), self.rows(&heads.q, block));
            dk = Self::sum_into(dk, to(of_k, self.wide), block);
            let dq = to(self.product(ds, Self::keys(&heads.k, block)), self.wide);
            parts.push(dq.reshape([kv_heads, group, n, d]));
        }
        if at < tokens {
            parts.push(zeros(tokens - at));
        }
        drop(heads);
        let dq = Tensor::cat(parts, 2) * s.scale;
        let of_sinks = of_sinks.map(|of| of.reshape([s.heads]));
        self.gradients(qkv, [dq.reshape([s.heads, tokens, d]), dk, dv], of_sinks, wanted)
    }

    /// The gradients of all inputs from those of queries before their scale, keys and values, by head, and sinks.
    fn gradients(
        &self,
        qkv: &AnyTensor,
        by_head: [Tensor<3>; 3],
        of_sinks: Option<Tensor<1>>,
        wanted: &[bool],
    ) -> Result<Vec<Option<AnyTensor>>, OpsError> {
        let (dqkv, of_q, of_k) = self.unplaced(qkv, by_head, wanted)?;
        let want = |i: usize| wanted.get(i).copied().unwrap_or(false);
        let mut all = vec![wanted[0].then(|| AnyTensor::new(dqkv))];
        if self.norms.is_some() {
            all.extend([of_q.map(AnyTensor::new), of_k.map(AnyTensor::new)]);
        }
        if let Some(of_sinks) = of_sinks {
            all.push(want(all.len()).then(|| AnyTensor::new(of_sinks)));
        }
        Ok(all)
    }

    /// The kernels of flash attention, where they compute this; by a plan of `plans` where those have it.
    #[cfg(feature = "cube")]
    fn flash(
        &self,
        qkv: &AnyTensor,
        documents: &[Range<usize>],
        plans: Option<&kernels::Plans>,
    ) -> Option<kernels::Flash> {
        let sight = || Sight::new(&self.shape, documents, self.tokens);
        kernels::Flash::new(qkv, &self.shape, (self.tokens, sight), plans, self.flat_sinks().as_ref())
    }

    /// `[heads]`.
    #[cfg(feature = "cube")]
    fn flat_sinks(&self) -> Option<AnyTensor> {
        self.sinks.clone().map(|sinks| AnyTensor::new(sinks.reshape([self.shape.heads])))
    }

    /// What those kernels read: `qkv` itself where nothing is to be done to it.
    #[cfg(feature = "cube")]
    fn flash_input(&self, qkv: &AnyTensor) -> Result<kernels::FlashInput, OpsError> {
        if self.turn.is_none() && self.norms.is_none() {
            return Ok(kernels::FlashInput::Rows(qkv.clone()));
        }
        let Heads { q, k, v } = self.prepare(qkv, 1.0)?;
        let [_, _, tokens, d] = q.dims();
        Ok(kernels::FlashInput::ByHead(Box::new([q.reshape([self.shape.heads, tokens, d]), k, v])))
    }

    /// Attention by those kernels. Backward norms and rotates again.
    #[cfg(feature = "cube")]
    fn attend_by(
        self,
        flash: kernels::Flash,
        qkv: &AnyTensor,
        wanted: &[bool],
    ) -> Result<(AnyTensor, BackwardFn), OpsError> {
        let (out, sums) = kept(|| Ok::<_, OpsError>(flash.forward(&self.flash_input(qkv)?)))?;
        let (qkv, saved, wanted) = (qkv.clone(), out.clone(), wanted.to_vec());
        let back = move |upstream: AnyTensor| {
            let made = || {
                let input = self.flash_input(&qkv)?;
                let dy = to(upstream.rank::<2>()?, qkv.burn_dtype());
                let of = flash.backward(&input, &saved, &sums, &dy);
                self.gradients(&qkv, of.heads, of.sinks, &wanted)
            };
            made().expect("invariant: ranks are as in forward")
        };
        Ok((AnyTensor::new(out), Box::new(back)))
    }

    /// The gradients of `qkv` and of the gains that are wanted, from those of queries before their scale, keys and values, by
    /// head.
    fn unplaced(
        &self,
        qkv: &AnyTensor,
        [dq, dk, dv]: [Tensor<3>; 3],
        wanted: &[bool],
    ) -> Result<(Tensor<2>, Option<Tensor<1>>, Option<Tensor<1>>), OpsError> {
        let want = |i: usize| wanted.get(i).copied().unwrap_or(false);
        #[cfg(feature = "cube")]
        {
            let want_gains = self.norms.is_some() && (want(1) || want(2));
            let made = kernels::place_heads_backward(qkv, [&dq, &dk, &dv], &self.placing(), want_gains);
            if let Some((dqkv, gains)) = made {
                let (q, k) = gains.unzip();
                return Ok((dqkv, q.filter(|_| want(1)), k.filter(|_| want(2))));
            }
        }
        let qkv = qkv.rank::<2>()?;
        let (s, dtype) = (&self.shape, qkv.dtype());
        let dq = dq.swap_dims(0, 1);
        let norms = self.norms.as_ref();
        let (dq, of_q) = self.unplace(dq, || self.heads(&qkv, 0, s.heads), norms.map(|n| &n.q), want(1));
        let (dk, of_k) = self.unplace(
            dk.swap_dims(0, 1),
            || self.heads(&qkv, s.heads, s.kv_heads),
            norms.map(|n| &n.k),
            want(2),
        );
        let flat = |x: Tensor<3>| {
            let [n, heads, d] = x.dims();
            to(x, dtype).reshape([n, heads * d])
        };
        Ok((Tensor::cat(vec![flat(dq), flat(dk), flat(dv.swap_dims(0, 1))], 1), of_q, of_k))
    }

    /// A block's gradient of keys or values, in the rows that it saw.
    fn sum_into(mut into: Tensor<3>, more: Tensor<3>, block: &Block) -> Tensor<3> {
        let [heads, _, d] = into.dims();
        let mut at = 0;
        for keys in &block.keys {
            let place = [0..heads, keys.clone(), 0..d];
            let sum = into.clone().slice(place.clone()) + more.clone().narrow(1, at, keys.len());
            into = into.slice_assign(place, sum);
            at += keys.len();
        }
        into
    }

    /// Back through rotation and norm: the gradient of `x`, and gamma's.
    fn unplace(
        &self,
        d: Tensor<3>,
        x: impl FnOnce() -> Tensor<3>,
        gamma: Option<&Tensor<1>>,
        want_gamma: bool,
    ) -> (Tensor<3>, Option<Tensor<1>>) {
        let d = match &self.turn {
            Some(turn) => turn.apply(d, true),
            None => d,
        };
        let (Some(gamma), Some(n)) = (gamma, &self.norms) else { return (d, None) };
        let x = to(x(), self.wide);
        let rstd = norm::reciprocal(&x, n.eps);
        let (dx, rows) = norm::backward(x, rstd, gamma, d, want_gamma);
        let of_gamma = rows.map(|g| {
            let [tokens, heads, d] = g.dims();
            super::over_rows(g.reshape([tokens * heads, d]))
        });
        (dx, of_gamma)
    }
}

impl Peaks {
    fn see(&mut self, scores: &Tensor<4>, hidden: &Tensor<4, Bool>) {
        let [kv_heads, group, n, m] = scores.dims();
        let visible = |other: f32| -> Tensor<2> {
            scores.clone().mask_fill(hidden.clone(), other).reshape([kv_heads * group, n * m])
        };
        let largest = visible(f32::NEG_INFINITY).max_dim(1);
        let spoiled = (visible(0.0) * 0.0).sum_dim(1);
        self.largest = Some(match self.largest.take() {
            Some(before) => before.max_pair(largest),
            None => largest,
        });
        self.spoiled = Some(super::add(self.spoiled.take(), spoiled));
    }
}
