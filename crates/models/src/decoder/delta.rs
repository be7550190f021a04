//! Linear attention by the gated delta rule (Yang et al., arXiv:2412.06464): of each head a matrix that forgets, and learns
//! from each token what that differs in from what the matrix says. Texts are walked in chunks of tokens; within one, what all
//! tokens change is the solution of a triangular system (section 3.3 there).

use std::ops::Range;

use burn::tensor::activation::{sigmoid, silu};
use burn::tensor::{Bool, DType, Device, Tensor, TensorData};
use burnish_ops::{AnyTensor, OpsError, apply};

use crate::Spec;
use crate::decoder::layers::{Delta, NormTensors};
use crate::decoder::queries_keys::cast;
use crate::decoder::recurrence::{Recurrence, StateCache, convolved, softplus};
use crate::spec::GatedDelta;
use crate::spec::names::DeltaNames;

/// Added to the square of a query's or key's length.
const EPS: f32 = 1e-6;

type Tensors = Delta<AnyTensor, NormTensors>;

/// What the layers give of each token, by heads of this rank.
struct Read {
    /// Queries, keys and values one after another, as the convolution reads them: `[tokens, channels]`.
    qkv: Tensor<2>,
    /// `[tokens, values]`.
    gates: Tensor<2>,
    /// How much each head learns, before its sigmoid: `[tokens, heads]`.
    learning: Tensor<2>,
    /// `[tokens, heads]`.
    forgetting: Tensor<2>,
}

impl Read {
    fn new(x: &AnyTensor, key_heads: usize, spec: &Spec, sizes: &GatedDelta) -> Result<Self, OpsError> {
        let x = x.rank::<2>()?;
        let tokens = x.dims()[0];
        let (k, v, each) = (sizes.key_dim, sizes.value_dim, sizes.each());
        let (keys, values, heads) = (key_heads * k, key_heads * each * v, key_heads * each);
        if matches!(spec.names.delta, DeltaNames::Apart(_)) {
            let part = |first: usize, width: usize| x.clone().narrow(1, first, width);
            let first = 2 * keys + values;
            return Ok(Self {
                qkv: part(0, first),
                gates: part(first, values),
                learning: part(first + values, heads),
                forgetting: part(first + values + heads, heads),
            });
        }
        let group = 2 * k + 2 * each * v;
        let of_heads = x.clone().narrow(1, 0, key_heads * group).reshape([tokens, key_heads, group]);
        let numbers = x.narrow(1, key_heads * group, 2 * heads).reshape([tokens, key_heads, 2 * each]);
        let part = |of: &Tensor<3>, first: usize, width: usize| {
            of.clone().narrow(2, first, width).reshape([tokens, key_heads * width])
        };
        let all = [(0, k), (k, k), (2 * k, each * v)].map(|(first, width)| part(&of_heads, first, width));
        Ok(Self {
            qkv: Tensor::cat(all.to_vec(), 1),
            gates: part(&of_heads, 2 * k + each * v, each * v),
            learning: part(&numbers, 0, each),
            forgetting: part(&numbers, each, each),
        })
    }
}

/// What the rule reads, by heads of values and in float32: `[heads, tokens, _]`.
struct Heads {
    q: Tensor<3>,
    k: Tensor<3>,
    v: Tensor<3>,
    /// How much of a token's difference is learned.
    beta: Tensor<3>,
    /// The logarithm of what is kept.
    decay: Tensor<3>,
}

/// The sizes of the rule, and this rank's heads of keys.
fn sizes(spec: &Spec, delta: &Tensors) -> (GatedDelta, usize) {
    let sizes = spec.delta.expect("invariant: a block with a delta rule has its sizes");
    (sizes, delta.bias.shape()[0] / sizes.each())
}

impl Heads {
    fn new(
        convolved: Tensor<2>,
        read: &Read,
        delta: &Tensors,
        sizes: &GatedDelta,
        key_heads: usize,
    ) -> Result<Self, OpsError> {
        let x = cast(silu(convolved), DType::F32);
        let tokens = x.dims()[0];
        let (k, v, each) = (sizes.key_dim, sizes.value_dim, sizes.each());
        let heads = key_heads * each;
        let keys = |first: usize| {
            let own = x.clone().narrow(1, first, key_heads * k).reshape([tokens, key_heads, 1, k]);
            let own = own.repeat_dim(2, each).reshape([tokens, heads, k]).swap_dims(0, 1);
            let square = own.clone().powi_scalar(2).sum_dim(2) + EPS;
            own / square.sqrt()
        };
        let values = x.clone().narrow(1, 2 * key_heads * k, heads * v);
        let column = |x: Tensor<2>| x.swap_dims(0, 1).reshape([heads, tokens, 1]);
        let rate = cast(delta.log_rate.rank::<1>()?, DType::F32).exp();
        let bias = cast(delta.bias.rank::<1>()?, DType::F32);
        let steps = cast(read.forgetting.clone(), DType::F32) + bias.unsqueeze();
        Ok(Self {
            q: keys(0) * (k as f32).powf(-0.5),
            k: keys(key_heads * k),
            v: values.reshape([tokens, heads, v]).swap_dims(0, 1),
            beta: column(sigmoid(cast(read.learning.clone(), DType::F32))),
            decay: column(-(softplus(steps) * rate.unsqueeze())),
        })
    }
}

impl Recurrence for Heads {
    fn part(&self, rows: &Range<usize>) -> Self {
        let part = |x: &Tensor<3>| x.clone().narrow(1, rows.start, rows.len());
        Self {
            q: part(&self.q),
            k: part(&self.k),
            v: part(&self.v),
            beta: part(&self.beta),
            decay: part(&self.decay),
        }
    }

    /// The state is `[heads, key_dim, value_dim]`.
    fn chunk(self, state: Tensor<3>) -> Result<(Tensor<3>, Tensor<3>), OpsError> {
        let Self { q, k, v, beta, decay } = self;
        let [_, tokens, _] = q.dims();
        let device = q.device();
        let below = |from: i64| -> Vec<f32> {
            let at = |i: usize, j: usize| f32::from(u8::from((j as i64) <= i as i64 - from));
            (0..tokens * tokens).map(|i| at(i / tokens, i % tokens)).collect()
        };
        let square = |values: Vec<f32>| {
            let data = TensorData::new(values, [1, tokens, tokens]);
            Tensor::<3>::from_data(data, (&device, DType::F32))
        };
        // Logarithms of what is kept from the chunk's beginning to each token; and from one token to a later one.
        let sums = square(below(0)).repeat_dim(0, decay.dims()[0]).matmul(decay);
        let later: Tensor<3, Bool> = square(below(0)).equal_elem(0.0).repeat_dim(0, sums.dims()[0]);
        let between = sums.clone() - sums.clone().swap_dims(1, 2);
        let between = between.mask_fill(later, f32::NEG_INFINITY).exp();
        let kept = sums.clone().exp();
        let learned = k.clone() * beta.clone();
        let keys = k.clone().swap_dims(1, 2);
        let system = learned.clone().matmul(keys.clone()) * between.clone() * square(below(1));
        let solved = inverse_of_unit_lower(&AnyTensor::new(system))?.rank::<3>()?;
        let told = solved.clone().matmul(v * beta);
        let known = solved.matmul(learned * kept.clone()).matmul(state.clone());
        let new = told - known;
        let own = (q.clone().matmul(keys) * between).matmul(new.clone());
        let out = (q * kept).matmul(state.clone()) + own;
        let last = sums.clone().narrow(1, tokens - 1, 1);
        let behind = (k * (last.clone() - sums).exp()).swap_dims(1, 2).matmul(new);
        Ok((out, state * last.exp() + behind))
    }

    fn empty_state(&self) -> Tensor<3> {
        let ([heads, _, k], [_, _, v]) = (self.k.dims(), self.v.dims());
        Tensor::zeros([heads, k, v], (&self.k.device(), DType::F32))
    }

    fn sizes(&self) -> ([usize; 3], Device) {
        let ([heads, tokens, _], [_, _, v]) = (self.k.dims(), self.v.dims());
        ([heads, tokens, v], self.k.device())
    }
}

/// What heads gave `[heads, tokens, value_dim]`, normed each and gated: `[tokens, heads * value_dim]`.
fn gated(out: Tensor<3>, gates: Tensor<2>, delta: &Tensors, spec: &Spec) -> Result<AnyTensor, OpsError> {
    let [heads, tokens, v] = out.dims();
    let out = out.swap_dims(0, 1);
    let mean = out.clone().powi_scalar(2).mean_dim(2) + spec.norm_eps;
    let gamma = cast(delta.norm.gamma.rank::<1>()?, DType::F32).reshape([1, 1, v]);
    let normed = (out / mean.sqrt() * gamma).reshape([tokens, heads * v]);
    let dtype = gates.dtype();
    Ok(AnyTensor::new(cast(normed * silu(cast(gates, DType::F32)), dtype)))
}

/// The rule over texts, each from nothing or from what the one that it continues left (`parents`, as in attention).
///
/// # Shapes
/// - x: `[tokens, _]`, what the layers give; kernel: `[channels, 1, taps]`; output: `[tokens, heads * value_dim]`
pub(crate) fn attend(
    x: &AnyTensor,
    kernel: &AnyTensor,
    delta: &Tensors,
    spec: &Spec,
    documents: &[Range<usize>],
    parents: &[Option<usize>],
) -> Result<AnyTensor, OpsError> {
    let (sizes, key_heads) = sizes(spec, delta);
    let read = Read::new(x, key_heads, spec, &sizes)?;
    let convolved = convolved(read.qkv.clone(), (kernel, None), documents, parents)?;
    let heads = Heads::new(convolved, &read, delta, &sizes, key_heads)?;
    gated(heads.over(documents, parents)?, read.gates, delta, spec)
}

/// [`attend`] of each sequence's new rows behind what it has said; plain tensors.
pub(crate) fn attend_on(
    cache: &mut StateCache,
    x: &AnyTensor,
    kernel: &AnyTensor,
    delta: &Tensors,
    spec: &Spec,
    documents: &[Range<usize>],
) -> Result<AnyTensor, OpsError> {
    let (sizes, key_heads) = sizes(spec, delta);
    let read = Read::new(x, key_heads, spec, &sizes)?;
    let convolved = cache.convolved(read.qkv.clone(), (kernel, None), documents)?;
    let heads = Heads::new(convolved, &read, delta, &sizes, key_heads)?;
    gated(cache.over(&heads, documents)?, read.gates, delta, spec)
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
        let ([heads, n, _], device, dtype) = (x.dims(), x.device(), x.dtype());
        let values = plain[0].to_f32();
        let mut all = vec![0.0_f32; values.len()];
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
        let data = TensorData::new(all, [heads, n, n]);
        let inverse = Tensor::<3>::from_data(data, (&device, DType::F32));
        let mut below = vec![0.0_f32; n * n];
        (0..n * n).filter(|i| i % n < i / n).for_each(|i| below[i] = 1.0);
        let kept = inverse.clone();
        let backward = move |upstream: AnyTensor| {
            let upstream =
                cast(upstream.rank::<3>().expect("invariant: of the rank of the output"), DType::F32);
            let turned = kept.swap_dims(1, 2);
            let below = TensorData::new(below, [1, n, n]);
            let below = Tensor::<3>::from_data(below, (&upstream.device(), DType::F32));
            let gradient = -turned.clone().matmul(upstream).matmul(turned) * below;
            vec![Some(AnyTensor::new(cast(gradient, dtype)))]
        };
        Ok((AnyTensor::new(cast(inverse, dtype)), Box::new(backward)))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use burn::tensor::Device;

    use super::*;
    use crate::decoder::recurrence::CHUNK;

    /// Ones below the diagonal, as of keys that are all alike: products of its powers would lose every digit.
    #[test]
    fn systems_of_keys_that_are_alike_are_solved() {
        let n = CHUNK;
        let values = (0..n * n).map(|i| f32::from(u8::from(i % n < i / n))).collect();
        let system = AnyTensor::from_elements(values, &[1, n, n], &Device::flex());
        let inverse = inverse_of_unit_lower(&system).unwrap().to_f32();
        for (i, &got) in inverse.iter().enumerate() {
            let want = match (i / n, i % n) {
                (row, column) if row == column => 1.0,
                (row, column) if row == column + 1 => -1.0,
                _ => 0.0,
            };
            assert_eq!(got, want, "at {}, {}", i / n, i % n);
        }
    }

    /// The gradient of a weighted sum of the inverse, against differences.
    #[test]
    fn the_inverse_s_gradient_equals_differences() {
        let n = 5;
        let below = |i: usize| i % n < i / n;
        let x: Vec<f32> = (0..2 * n * n)
            .map(|i| if below(i % (n * n)) { ((i * 7919) % 101) as f32 / 80.0 - 0.6 } else { 0.0 })
            .collect();
        let weights: Vec<f32> = (0..2 * n * n).map(|i| ((i * 31) % 17) as f32 / 8.0 - 1.0).collect();
        let device = Device::flex();
        let of = |x: &[f32]| AnyTensor::from_elements(x.to_vec(), &[2, n, n], &device);
        let value = |x: &[f32]| -> f64 {
            let inverse = inverse_of_unit_lower(&of(x)).unwrap().to_f32();
            inverse.iter().zip(&weights).map(|(a, b)| f64::from(a * b)).sum()
        };
        let leaf = of(&x).leaf();
        let inverse = inverse_of_unit_lower(&leaf).unwrap().rank::<3>().unwrap();
        let loss = (inverse.clone() * of(&weights).rank::<3>().unwrap().to_device(&inverse.device())).sum();
        let gradients = loss.backward();
        let got = AnyTensor::new(leaf.rank::<3>().unwrap().grad(&gradients).unwrap()).to_f32();
        for i in (0..x.len()).filter(|i| below(i % (n * n))) {
            let moved = |by: f32| {
                let mut x = x.clone();
                x[i] += by;
                value(&x)
            };
            let want = (moved(1e-2) - moved(-1e-2)) / 2e-2;
            assert!(
                (f64::from(got[i]) - want).abs() < 2e-3 * (1.0 + want.abs()),
                "{i}: {} is not {want}",
                got[i]
            );
        }
    }
}
