//! A mixture of experts. Where kernels multiply in groups, all experts' rows go through a layer together (`grouped`); in Burn's
//! operations of each expert that has tokens, its rows through its two layers.
//!
//! One node on the tape: it keeps gate and up of each expert, and makes the rest again.

#[cfg(feature = "cube")]
mod few;
#[cfg(feature = "cube")]
mod grouped;

use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor};
use burnish_core::{Compute, ELSEWHERE, ExpertGate, LinearPart, LinearParts};

use super::product::{self, Finish};
use super::{activation, add, constant, ints, to, wide, wide_dtype};
use crate::experts::{ExpertLayer, Experts};
use crate::{AnyTensor, OpsError, Routing, apply};

const OP: &str = "experts";

/// One expert's layer.
struct Layer {
    weight: Tensor<2>,
    bias: Option<Tensor<2>>,
    /// A `[r, in]`, B `[out, r]`, both wide, with the factor.
    low: Option<(Tensor<2>, Tensor<2>, f32)>,
    compute: Compute,
}

/// One expert of a stack, of which no other is widened where they are in fewer bits.
fn one(all: &AnyTensor, expert: usize) -> Result<Tensor<2>, OpsError> {
    let shape = all.shape();
    let &[_, rows, columns] = shape.as_slice() else { return Err(OpsError::Rank { expected: 3, shape }) };
    let elements = rows * columns;
    all.piece(expert * elements..(expert + 1) * elements, &[rows, columns]).rank()
}

fn of_weight(
    layer: &ExpertLayer,
    plain: &LinearParts<AnyTensor>,
    e: usize,
    (w, compute): (DType, Compute),
) -> Result<Layer, OpsError> {
    let weight = one(&plain.weight, e)?;
    let experts = plain.weight.shape()[0];
    let bias = match &plain.bias {
        Some(bias) => Some(wide::<2>(bias)?.narrow(0, e, 1)),
        None => None,
    };
    let low = match (&plain.lora, &layer.low_rank) {
        (Some(lora), Some(low)) => {
            let (a, b): (Tensor<2>, Tensor<2>) = (wide(&lora.a)?, wide(&lora.b)?);
            let (out, rank) = (b.dims()[0], a.dims()[0] / experts);
            let b = b.reshape([out, rank, experts]).narrow(2, e, 1).reshape([out, rank]);
            Some((to(a.narrow(0, e * rank, rank), w), to(b, w), low.scale))
        }
        _ => None,
    };
    Ok(Layer { weight, bias, low, compute })
}

impl Layer {
    /// `factor a b` of the adapter's, as only its other product reads it.
    fn low(&self, a: Tensor<2>, b: Tensor<2>, wide: DType, factor: f32) -> Tensor<2> {
        let out = product::factors(wide, wide, self.compute);
        product::product(a, b, self.compute, Finish::scaled(out, factor))
    }

    fn forward(&self, x: &Tensor<2>, wide: DType) -> Tensor<2> {
        let mut finish = Finish::new(wide);
        if let Some((a, b, scale)) = &self.low {
            let low = self.low(x.clone(), a.clone().transpose(), wide, *scale);
            finish.more = Some([low, b.clone().transpose()]);
        }
        finish.bias = self.bias.as_ref().map(|bias| bias.clone().reshape([bias.dims()[1]]));
        product::forward(x.clone(), &self.weight, self.compute, finish)
    }

    /// The input's gradient.
    fn of_input(&self, dy: &Tensor<2>, wide: DType) -> Tensor<2> {
        let mut finish = Finish::new(wide);
        if let Some((a, b, scale)) = &self.low {
            finish.more = Some([self.low(dy.clone(), b.clone(), wide, *scale), a.clone()]);
        }
        product::of_input(dy.clone(), &self.weight, self.compute, finish)
    }
}

/// The gradients of the parts of all experts' layer.
struct Stacked {
    parts: LinearParts<Option<Vec<Tensor<2>>>>,
}

impl Stacked {
    fn new(asked: LinearParts<bool>) -> Self {
        Self { parts: asked.map(|_, asked| asked.then(Vec::new)) }
    }

    /// Whether anything of the layer gets a gradient.
    fn asks(&self) -> bool {
        self.parts.as_ref().into_iter().any(|(_, all)| all.is_some())
    }

    /// An expert's: of its rows, or zeros.
    fn add(
        &mut self,
        layer: &Layer,
        rows: Option<(&Tensor<2>, &Tensor<2>)>,
        bias: Option<Tensor<2>>,
        wide: DType,
    ) {
        let device = layer.weight.device();
        let [out, input] = layer.weight.dims();
        let zeros = |rows: usize, columns: usize| Tensor::<2>::zeros([rows, columns], (&device, wide));
        if let Some(to) = self.parts.found_mut(LinearPart::Weight) {
            to.push(match rows {
                Some((x, dy)) => {
                    let x = super::to(x.clone(), layer.weight.dtype());
                    product::of_weight(dy.clone(), x, layer.compute, Finish::new(wide))
                }
                None => zeros(out, input),
            });
        }
        if let Some(to) = self.parts.found_mut(LinearPart::Bias) {
            to.push(bias.unwrap_or_else(|| zeros(1, out)));
        }
        let Some((a, b, scale)) = &layer.low else { return };
        let rank = a.dims()[0];
        if let Some(to) = self.parts.found_mut(LinearPart::LoraA) {
            to.push(match rows {
                Some((x, dy)) => {
                    let low = layer.low(dy.clone(), b.clone(), wide, *scale);
                    product::of_weight(low, x.clone(), layer.compute, Finish::new(wide))
                }
                None => zeros(rank, input),
            });
        }
        if let Some(to) = self.parts.found_mut(LinearPart::LoraB) {
            to.push(match rows {
                Some((x, dy)) => {
                    let low = layer.low(x.clone(), a.clone().transpose(), wide, *scale);
                    product::of_weight(dy.clone(), low, layer.compute, Finish::new(wide))
                }
                None => zeros(out, rank),
            });
        }
    }

    fn finish(self) -> Vec<Option<AnyTensor>> {
        let one = |(part, all): (LinearPart, Option<Vec<Tensor<2>>>)| {
            all.map(|all| match part {
                LinearPart::Weight => AnyTensor::new(Tensor::stack::<3>(all, 0)),
                LinearPart::LoraB => {
                    let (experts, [out, rank]) = (all.len(), all[0].dims());
                    AnyTensor::new(Tensor::stack::<3>(all, 2).reshape([out, rank * experts]))
                }
                _ => AnyTensor::new(Tensor::cat(all, 0)),
            })
        };
        self.parts.into_iter().map(one).collect()
    }
}

/// Gate and up of rows in which they take turns.
fn turns(x: &Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    let [rows, width] = x.dims();
    let turns = x.clone().reshape([rows, width / 2, 2]);
    let of = |at: usize| turns.clone().narrow(2, at, 1).reshape([rows, width / 2]);
    (of(0), of(1))
}

/// Gates and ups of a clamped gate.
fn apart(gate: ExpertGate, x: &Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    if matches!(gate, ExpertGate::Clamped { .. }) {
        return turns(x);
    }
    let half = x.dims()[1] / 2;
    (x.clone().narrow(1, 0, half), x.clone().narrow(1, half, half))
}

fn activate(gate: ExpertGate, x: &Tensor<2>) -> Tensor<2> {
    let any = AnyTensor::new(x.clone());
    let wide = wide_dtype(&any);
    match gate {
        ExpertGate::Halves(f) => activation::gated(f, &any, wide).expect("invariant: a matrix"),
        ExpertGate::Plain(f) => activation::plain(f, &any, wide).expect("invariant: a matrix"),
        ExpertGate::Clamped { alpha, limit } | ExpertGate::ClampedHalves { alpha, limit } => {
            let (g, u) = apart(gate, x);
            let g = g.clamp_max(limit);
            g.clone() * burn::tensor::activation::sigmoid(g * alpha) * (u.clamp(-limit, limit) + 1.0)
        }
    }
}

/// The gradient of gate and up, and the output once more.
fn activate_backward(gate: ExpertGate, x: &Tensor<2>, d: Tensor<2>) -> (Tensor<2>, Tensor<2>) {
    let [rows, width] = x.dims();
    let any = || AnyTensor::new(x.clone());
    match gate {
        ExpertGate::Halves(f) => {
            let dx = activation::gated_backward(f, &any(), d).expect("invariant: a matrix");
            (dx, activate(gate, x))
        }
        ExpertGate::Plain(f) => {
            let dx = activation::plain_backward(f, &any(), d).expect("invariant: a matrix");
            (dx, activate(gate, x))
        }
        ExpertGate::Clamped { alpha, limit } | ExpertGate::ClampedHalves { alpha, limit } => {
            let (g, u) = apart(gate, x);
            let below = g.clone().lower_equal_elem(limit);
            let within = u.clone().abs().lower_equal_elem(limit);
            let (g, u) = (g.clamp_max(limit), u.clamp(-limit, limit) + 1.0);
            let s = burn::tensor::activation::sigmoid(g.clone() * alpha);
            let value = g * s.clone();
            let slope = s.clone() + value.clone() * (s.neg() + 1.0) * alpha;
            let dg = (d.clone() * u.clone() * slope).mask_fill(below.bool_not(), 0.0);
            let du = (d * value.clone()).mask_fill(within.bool_not(), 0.0);
            let dx = if matches!(gate, ExpertGate::Clamped { .. }) {
                Tensor::stack::<3>(vec![dg, du], 2).reshape([rows, width])
            } else {
                Tensor::cat(vec![dg, du], 1)
            };
            (dx, value * u)
        }
    }
}

/// The places of `[tokens, per_token]` that each expert computes.
fn groups(experts: usize, chosen: &[u32]) -> Vec<Vec<i32>> {
    let mut groups = vec![Vec::new(); experts];
    for (place, &e) in chosen.iter().enumerate().filter(|(_, e)| **e != ELSEWHERE) {
        groups[e as usize].push(place as i32);
    }
    groups
}

/// Tokens, and weights `[rows, 1]`, of an expert's places.
fn rows_of(places: &[i32], each: usize, weights: &Tensor<2>) -> (Tensor<1, Int>, Tensor<1, Int>, Tensor<2>) {
    let device = weights.device();
    let tokens = ints(places.iter().map(|p| p / each as i32).collect(), &device);
    let at = ints(places.to_vec(), &device);
    let count = weights.dims().iter().product();
    let own = weights.clone().reshape([count, 1]).select(0, at.clone());
    (tokens, at, own)
}

/// See [`crate::experts()`].
pub fn experts(x: &AnyTensor, routing: &Routing, experts: &Experts) -> Result<AnyTensor, OpsError> {
    let layers = experts.clone();
    let [count, ..] = experts.sizes()?;
    let inputs = experts.inputs(x, routing);
    if x.shape()[0] == 0 {
        let none = to(x.plain().rank::<2>()?, wide_dtype(x));
        return constant(OP, &inputs, true, AnyTensor::new(none));
    }
    #[cfg(feature = "cube")]
    if let Some(y) = grouped::experts(x, routing, experts, &inputs) {
        return y;
    }
    apply(OP, &inputs, move |plain, wanted| {
        let dtype = wide_dtype(&plain[0]);
        let (x, weights) = (wide::<2>(&plain[0])?, wide::<2>(&plain[1])?);
        let ([_, each], in_dtype) = (weights.dims(), plain[0].burn_dtype());
        let mut rest = plain[2..].iter().cloned();
        let parts = [&layers.gate_up, &layers.down].map(|layer| layer.parts().fill(&mut rest));
        let mut asked = wanted[2..].iter().copied();
        let asked = [&layers.gate_up, &layers.down].map(|layer| layer.parts().fill(&mut asked));
        let (want_x, want_weights) = (wanted[0], wanted[1]);
        let layers_of = move |e: usize| -> Result<[Layer; 2], OpsError> {
            let of = (dtype, layers.compute);
            let up = of_weight(&layers.gate_up, &parts[0], e, of)?;
            Ok([up, of_weight(&layers.down, &parts[1], e, of)?])
        };
        let (gate, groups) = (experts.gate, groups(count, &routing.experts.to_host()));
        let mut y = x.zeros_like();
        let mut kept = Vec::with_capacity(count);
        for (e, places) in groups.iter().enumerate() {
            if places.is_empty() {
                kept.push(None);
                continue;
            }
            let [up, mut down] = layers_of(e)?;
            let (tokens, _, own) = rows_of(places, each, &weights);
            let gate_up = up.forward(&x.clone().select(0, tokens.clone()), dtype);
            let bias = down.bias.take();
            let mut out = down.forward(&(activate(gate, &gate_up) * own.clone()), dtype);
            if let Some(bias) = bias {
                out = out + own * bias;
            }
            y = y.select_assign(0, tokens, out, IndexingUpdateOp::Add);
            kept.push(Some(gate_up));
        }
        let back = move |upstream: AnyTensor| -> Result<Vec<Option<AnyTensor>>, OpsError> {
            let dy = to(upstream.rank::<2>()?, dtype);
            let [mut of_up, mut of_down] = asked.map(Stacked::new);
            let mut dx = want_x.then(|| x.zeros_like());
            let places: usize = weights.dims().iter().product();
            let mut dweights = want_weights.then(|| weights.zeros_like().reshape([places, 1]));
            for ((e, places), gate_up) in groups.iter().enumerate().zip(kept) {
                if gate_up.is_none() && !of_up.asks() && !of_down.asks() {
                    continue;
                }
                let [up, down] = layers_of(e)?;
                let Some(gate_up) = gate_up else {
                    of_up.add(&up, None, None, dtype);
                    of_down.add(&down, None, None, dtype);
                    continue;
                };
                let (tokens, at, own) = rows_of(places, each, &weights);
                let own_dy = dy.clone().select(0, tokens.clone());
                let z = activate(gate, &gate_up) * own.clone();
                let bias = down.bias.as_ref().map(|_| (own_dy.clone() * own.clone()).sum_dim(0));
                of_down.add(&down, Some((&z, &own_dy)), bias, dtype);
                let (d_gate_up, act) = activate_backward(gate, &gate_up, down.of_input(&own_dy, dtype));
                if let Some(all) = dweights.take() {
                    let mut d = (down.of_input(&own_dy, dtype) * act).sum_dim(1);
                    if let Some(bias) = &down.bias {
                        d = d + (own_dy * bias.clone()).sum_dim(1);
                    }
                    dweights = Some(all.select_assign(0, at, d, IndexingUpdateOp::Add));
                }
                let d_gate_up = d_gate_up * own;
                let rows = x.clone().select(0, tokens.clone());
                let bias = up.bias.as_ref().map(|_| d_gate_up.clone().sum_dim(0));
                of_up.add(&up, Some((&rows, &d_gate_up)), bias, dtype);
                if let Some(all) = dx.take() {
                    let d = up.of_input(&d_gate_up, dtype);
                    dx = Some(add(None, all.select_assign(0, tokens, d, IndexingUpdateOp::Add)));
                }
            }
            let dweights = dweights.map(|d| AnyTensor::new(d.reshape(weights.dims())));
            let mut all = vec![dx.map(|d| AnyTensor::new(to(d, in_dtype))), dweights];
            all.extend(of_up.finish());
            all.extend(of_down.finish());
            Ok(all)
        };
        let back = move |upstream| back(upstream).expect("invariant: ranks are as in forward");
        Ok((AnyTensor::new(y), Box::new(back)))
    })
}

/// See [`crate::experts_decode`].
pub(crate) fn experts_decode(x: &AnyTensor, routing: &Routing, e: &Experts) -> Result<AnyTensor, OpsError> {
    #[cfg(feature = "cube")]
    if x.shape()[0] > 0
        && let Some(y) = few::experts(x, routing, e)
    {
        return y;
    }
    experts(x, routing, e)
}
