//! Linear attention: by kernels, or in Burn's operations chunk by chunk, of channels token by token.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{Bool, DType, Device, Tensor, TensorData};

#[cfg(feature = "cube")]
use super::kernels;
use super::to;
use crate::linear_attention::{Inputs, LinearAttentionShape};
use crate::{AnyTensor, Documents, OpsError, apply};

/// Tokens of a chunk.
const CHUNK: usize = 64;

/// See [`crate::linear_attention()`].
pub(crate) fn linear_attention(
    inputs: Inputs<'_>,
    shape: &LinearAttentionShape,
    texts: &Documents,
    parents: &[Option<usize>],
) -> Result<AnyTensor, OpsError> {
    #[cfg(feature = "cube")]
    if let Some(y) = kernels::linear_attention(inputs, shape, texts, parents) {
        return y;
    }
    let heads = Heads::new(inputs, shape)?;
    let mut left: BTreeMap<usize, Tensor<3>> = BTreeMap::new();
    let mut all = Vec::with_capacity(texts.len());
    for (at, rows) in texts.iter().enumerate() {
        let before = parents.get(at).copied().flatten().and_then(|parent| left.get(&parent).cloned());
        let (parts, state) = heads.walk(rows, before.unwrap_or_else(|| heads.empty_state()))?;
        all.push((rows.clone(), parts));
        if parents.contains(&Some(at)) {
            left.insert(at, state);
        }
    }
    Ok(heads.in_rows(all))
}

/// The output of new rows and the states behind them, `[texts, state]`.
pub(crate) fn stepped(
    inputs: Inputs<'_>,
    shape: &LinearAttentionShape,
    texts: &Documents,
    states: AnyTensor,
) -> Result<(AnyTensor, AnyTensor), OpsError> {
    #[cfg(feature = "cube")]
    if let Some(stepped) = kernels::linear_attention_stepped(inputs, shape, texts, &states) {
        return Ok(stepped);
    }
    let heads = Heads::new(inputs, shape)?;
    let (states, size) = (states.rank::<2>()?, [shape.heads, shape.key_dim, shape.value_dim]);
    let (mut all, mut behind) = (Vec::new(), Vec::new());
    for (at, rows) in texts.iter().enumerate() {
        let state = states.clone().narrow(0, at, 1).reshape(size);
        let (parts, state) = heads.walk(rows, to(state, heads.q.dtype()))?;
        all.push((rows.clone(), parts));
        behind.push(to(state, DType::F32).reshape([1, shape.state()]));
    }
    let states = if behind.is_empty() { states } else { Tensor::cat(behind, 0) };
    Ok((heads.in_rows(all), AnyTensor::new(states)))
}

/// What heads of values read: `[heads, tokens, _]`.
struct Heads {
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    beta: Tensor<3>,
    decay: Tensor<3>,
    delta_rule: bool,
    /// Whether channels have decays.
    of_channels: bool,
}

impl Heads {
    fn new(inputs: Inputs<'_>, shape: &LinearAttentionShape) -> Result<Self, OpsError> {
        let qkv = inputs.qkv();
        let dtype = super::wide_dtype(qkv);
        let qkv = to(qkv.rank::<2>()?, dtype);
        let LinearAttentionShape { key_heads, heads, key_dim, value_dim, columns, delta_rule } = *shape;
        let tokens = qkv.dims()[0];
        let keys = |first: usize| {
            let own = qkv.clone().narrow(1, first, key_heads * key_dim);
            let own = own.reshape([tokens, key_heads, 1, key_dim]).repeat_dim(2, heads / key_heads);
            own.reshape([tokens, heads, key_dim]).swap_dims(0, 1)
        };
        let values = qkv.clone().narrow(1, columns[2], heads * value_dim);
        let of_heads = |x: Tensor<2>, each: usize| x.reshape([tokens, heads, each]).swap_dims(0, 1);
        let (decay, beta) = match inputs {
            Inputs::OfHeads([_, weights]) => {
                let weights = to(weights.rank::<2>()?, dtype);
                let row = |at: usize| of_heads(weights.clone().narrow(0, at, 1), 1);
                (row(0), row(1))
            }
            Inputs::OfChannels([_, decays, betas]) => {
                let [decays, betas] = [to(decays.rank::<2>()?, dtype), to(betas.rank::<2>()?, dtype)];
                (of_heads(decays, key_dim), of_heads(betas, 1))
            }
        };
        Ok(Self {
            q: keys(columns[0]),
            k: keys(columns[1]),
            v: values.reshape([tokens, heads, value_dim]).swap_dims(0, 1),
            beta,
            decay,
            delta_rule,
            of_channels: matches!(inputs, Inputs::OfChannels(_)),
        })
    }

    fn empty_state(&self) -> Tensor<3> {
        let ([heads, _, k], [_, _, v]) = (self.k.dims(), self.v.dims());
        Tensor::zeros([heads, k, v], (&self.k.device(), self.k.dtype()))
    }

    fn part(&self, rows: &Range<usize>) -> Self {
        let part = |x: &Tensor<3>| x.clone().narrow(1, rows.start, rows.len());
        Self {
            q: part(&self.q),
            k: part(&self.k),
            v: part(&self.v),
            beta: part(&self.beta),
            decay: part(&self.decay),
            delta_rule: self.delta_rule,
            of_channels: self.of_channels,
        }
    }

    /// A text's outputs, and the state behind it.
    fn walk(&self, rows: &Range<usize>, state: Tensor<3>) -> Result<(Vec<Tensor<3>>, Tensor<3>), OpsError> {
        let (mut state, mut all) = (state, Vec::new());
        let chunk = if self.of_channels { 1 } else { CHUNK };
        for start in rows.clone().step_by(chunk) {
            let part = self.part(&(start..rows.end.min(start + chunk)));
            let (out, next) = if self.of_channels { part.token(state) } else { part.chunk(state)? };
            all.push(out);
            state = next;
        }
        Ok((all, state))
    }

    /// What a token gives, and the state behind it.
    fn token(self, state: Tensor<3>) -> (Tensor<3>, Tensor<3>) {
        let Self { q, k, v, beta, decay, delta_rule, .. } = self;
        let state = state * decay.exp().swap_dims(1, 2);
        let new = if delta_rule { v - k.clone().matmul(state.clone()) } else { v };
        let state = state + k.swap_dims(1, 2).matmul(new * beta);
        (q.matmul(state.clone()), state)
    }

    /// What a chunk gives, and the state behind it; states are `[heads, key_dim, value_dim]`.
    fn chunk(self, state: Tensor<3>) -> Result<(Tensor<3>, Tensor<3>), OpsError> {
        let Self { q, k, v, beta, decay, delta_rule, .. } = self;
        let [heads, tokens, _] = q.dims();
        let on = (q.device(), q.dtype());
        let upto = below(tokens, 0, &on);
        // Logarithms of what is kept from the chunk's beginning to each token; and from one token to a later one.
        let sums = upto.clone().repeat_dim(0, heads).matmul(decay);
        let later: Tensor<3, Bool> = upto.equal_elem(0.0).repeat_dim(0, heads);
        let between = sums.clone() - sums.clone().swap_dims(1, 2);
        let between = between.mask_fill(later, f32::NEG_INFINITY).exp();
        let (kept, keys) = (sums.clone().exp(), k.clone().swap_dims(1, 2));
        let mut new = v * beta.clone();
        if delta_rule {
            let learned = k.clone() * beta;
            let system = learned.clone().matmul(keys.clone()) * between.clone() * below(tokens, 1, &on);
            let solved = inverse_of_unit_lower(&AnyTensor::new(system))?.rank::<3>()?;
            let known = solved.clone().matmul(learned * kept.clone()).matmul(state.clone());
            new = solved.matmul(new) - known;
        }
        let own = (q.clone().matmul(keys) * between).matmul(new.clone());
        let out = (q * kept).matmul(state.clone()) + own;
        let last = sums.clone().narrow(1, tokens - 1, 1);
        let behind = (k * (last.clone() - sums).exp()).swap_dims(1, 2).matmul(new);
        Ok((out, state * last.exp() + behind))
    }

    /// The outputs of texts in the order of their rows, `[tokens, heads * value_dim]`; rows of no text are zeros.
    fn in_rows(&self, texts: Vec<(Range<usize>, Vec<Tensor<3>>)>) -> AnyTensor {
        let ([heads, tokens, width], on) = (self.v.dims(), (self.v.device(), self.v.dtype()));
        let zeros = |rows: usize| Tensor::zeros([heads, rows, width], (&on.0, on.1));
        let all = super::in_rows(texts, 1, tokens, zeros);
        AnyTensor::new(all.swap_dims(0, 1).reshape([tokens, heads * width]))
    }
}

/// Ones below the diagonal, from so far below it on: `[1, tokens, tokens]`.
fn below(tokens: usize, from: usize, on: &(Device, DType)) -> Tensor<3> {
    let one = |i: usize| f32::from(u8::from(i % tokens + from <= i / tokens));
    let values: Vec<f32> = (0..tokens * tokens).map(one).collect();
    Tensor::from_data(TensorData::new(values, [1, tokens, tokens]), (&on.0, on.1))
}

/// The inverse of one plus a matrix that has values below its diagonal alone, for each of several.
///
/// Row by row, on the host: products of powers would take no step by step, but where keys are alike they are sums of large
/// numbers that nearly cancel.
///
/// # Shapes
/// - system and output: `[heads, tokens, tokens]`
fn inverse_of_unit_lower(system: &AnyTensor) -> Result<AnyTensor, OpsError> {
    apply("inverse_of_unit_lower", std::slice::from_ref(system), |plain, _| {
        let x = plain[0].rank::<3>()?;
        let ([heads, n, _], on) = (x.dims(), (x.device(), x.dtype()));
        let values: Vec<f64> = x.into_data().convert::<f64>().try_into_vec().expect("invariant: in f64");
        let mut all = vec![0.0_f64; values.len()];
        for (to, of) in all.chunks_exact_mut((n * n).max(1)).zip(values.chunks_exact((n * n).max(1))) {
            for i in 0..n {
                let (done, row) = to.split_at_mut(i * n);
                for (j, before) in done.chunks_exact(n).enumerate() {
                    let factor = of[i * n + j];
                    if factor != 0.0 {
                        row.iter_mut().zip(&before[..=j]).for_each(|(to, x)| *to -= factor * x);
                    }
                }
                row[i] = 1.0;
            }
        }
        let data = TensorData::new(all, [heads, n, n]).convert_dtype(on.1);
        let inverse = Tensor::<3>::from_data(data, (&on.0, on.1));
        let kept = inverse.clone();
        let backward = move |upstream: AnyTensor| {
            let upstream = upstream.rank::<3>().expect("invariant: of the rank of the output");
            let turned = kept.swap_dims(1, 2);
            let gradient = -turned.clone().matmul(to(upstream, on.1)).matmul(turned) * below(n, 1, &on);
            vec![Some(AnyTensor::new(gradient))]
        };
        Ok((AnyTensor::new(inverse), Box::new(backward)))
    })
}
