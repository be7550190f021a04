//! Linears with what comes in and goes out with them.
//!
//! One node on the tape per group: it keeps the input as it came and what is narrow, and makes the rest again.
//! An adapter's products are in f32: they are thin.

use burn::tensor::{DType, Tensor};
use burnish_core::{Activation, Compute, Dtype, LinearPart, LinearParts};

use super::{activation, add, constant, norm, over_rows, product, to, wide_dtype};
use crate::linear::{Dropout, Linear, LinearInput};
use crate::tensor::in_burn;
use crate::{AnyTensor, OpsError, apply};

const OP: &str = "linears";

/// An operand in the dtypes in which it is asked for.
pub(super) struct Operand {
    made: Vec<Tensor<2>>,
}

impl Operand {
    pub(super) fn new(x: Tensor<2>) -> Self {
        Self { made: vec![x] }
    }

    fn get(&mut self, dtype: DType) -> Tensor<2> {
        if let Some(x) = self.made.iter().find(|x| x.dtype() == dtype) {
            return x.clone();
        }
        let x = self.made[0].clone().cast(dtype);
        self.made.push(x.clone());
        x
    }
}

/// The gradients of a layer, by part; wide.
pub(super) type Gradients = LinearParts<Option<AnyTensor>>;

/// Adds to the gradient of a part.
fn accumulate<const D: usize>(into: &mut Gradients, part: LinearPart, more: Tensor<D>) {
    if let Some(gradient) = into.get_mut(part) {
        let before = gradient
            .take()
            .map(|before| before.rank::<D>().expect("invariant: a part's gradients have one rank"));
        *gradient = Some(AnyTensor::new(add(before, more)));
    }
}

/// A layer's plain tensors: the weight as it is stored, the others wide; and how its adapter is applied.
pub(super) struct Layer {
    parts: LinearParts<AnyTensor>,
    scale: f32,
    dropout: Option<Dropout>,
    gain: Option<Gain>,
    wide: DType,
    compute: Compute,
}

/// `m / norm` and `norm`, each `[1, out]`.
struct Gain {
    factor: Tensor<2>,
    norm: Tensor<2>,
}

/// What a forward keeps for the backward.
pub(super) struct Saved {
    /// `drop(x) A^T`.
    low: Option<Tensor<2>>,
    /// What the gain multiplies, where the magnitude's gradient is wanted.
    gained: Option<Tensor<2>>,
}

fn matrix(tensor: &AnyTensor) -> Tensor<2> {
    tensor.rank().expect("invariant: shapes were checked")
}

fn row(tensor: &AnyTensor) -> Tensor<2> {
    tensor.rank::<1>().expect("invariant: shapes were checked").unsqueeze()
}

impl Layer {
    /// From the plain tensors of `layer`, the next of `plain`.
    pub(super) fn new(
        layer: &Linear,
        plain: &mut dyn Iterator<Item = AnyTensor>,
        wide: DType,
    ) -> Result<Self, OpsError> {
        let parts = layer.parts().fill(plain).map(|part, tensor| match part {
            LinearPart::Weight => tensor,
            _ => AnyTensor::new(to(tensor.carrier(), wide)),
        });
        let low = layer.low_rank.as_ref();
        let magnitude = low.and_then(|low| low.magnitude.as_ref());
        let gain = match (magnitude, parts.get(LinearPart::Magnitude)) {
            (Some(magnitude), Some(value)) => {
                let norm: Tensor<2> = to(magnitude.norm.plain().rank::<1>()?, wide).unsqueeze();
                Some(Gain { factor: row(value) / norm.clone(), norm })
            }
            _ => None,
        };
        Ok(Self {
            scale: low.map_or(1.0, |low| low.scale),
            dropout: low.and_then(|low| low.dropout.clone()).filter(|dropout| dropout.p > 0.0),
            gain,
            parts,
            wide,
            compute: layer.compute,
        })
    }

    fn product(&self, a: Tensor<2>, b: Tensor<2>) -> Tensor<2> {
        product::matmul(a, b, self.compute)
    }

    fn weight(&self) -> Tensor<2> {
        matrix(&self.parts.weight)
    }

    /// No gradient yet of any part.
    pub(super) fn gradients(&self) -> Gradients {
        self.parts.as_ref().map(|_, _| None)
    }

    /// The outputs for `x`, whose first row is row `first` of the dropout's.
    pub(super) fn forward(
        &self,
        x: &mut Operand,
        first: usize,
        wanted: &LinearParts<bool>,
    ) -> (Tensor<2>, Saved) {
        let weight = self.weight();
        let mut y = product::forward(x.get(weight.dtype()), &weight, self.compute);
        let mut saved = Saved { low: None, gained: None };
        let wants_magnitude = wanted.wants(LinearPart::Magnitude);
        if let Some(lora) = &self.parts.lora {
            y = to(y, self.wide);
            let dropped = self.dropped(x, first);
            let mut low = dropped.clone().unwrap_or_else(|| x.get(self.wide));
            low = self.product(low, matrix(&lora.a).transpose());
            saved.low = Some(low.clone());
            low = self.product(low, matrix(&lora.b).transpose());
            if let Some(bias) = &lora.b_bias {
                low = low + row(bias);
            }
            low = low * self.scale;
            y = match (&self.gain, dropped) {
                (None, _) => y + low,
                (Some(gain), None) => {
                    let gained = y + low;
                    saved.gained = wants_magnitude.then(|| gained.clone());
                    gained * gain.factor.clone()
                }
                // PEFT's form: the base's product is scaled, of dropout's input only in part.
                (Some(gain), Some(dropped)) => {
                    let seen = product::forward(to(dropped, weight.dtype()), &weight, self.compute);
                    let seen = to(seen, self.wide);
                    let gained = seen.clone() + low;
                    saved.gained = wants_magnitude.then(|| gained.clone());
                    y - seen + gained * gain.factor.clone()
                }
            };
        }
        if let Some(bias) = &self.parts.bias {
            y = to(y, self.wide) + row(bias);
        }
        (y, saved)
    }

    /// The input behind its dropout.
    fn dropped(&self, x: &mut Operand, first: usize) -> Option<Tensor<2>> {
        self.dropout.as_ref().map(|dropout| super::dropout::dropped(dropout, x.get(self.wide), first))
    }

    /// Adds the layer's gradients to `into`; gives the input's, wide, if it is wanted.
    pub(super) fn backward(
        &self,
        x: &mut Operand,
        first: usize,
        saved: Saved,
        dy: Tensor<2>,
        (wanted, want_dx): (&LinearParts<bool>, bool),
        into: &mut Gradients,
    ) -> Option<Tensor<2>> {
        let wide = self.wide;
        if wanted.wants(LinearPart::Bias) {
            accumulate(into, LinearPart::Bias, over_rows(to(dy.clone(), wide)));
        }
        let Some(lora) = &self.parts.lora else {
            return self.base(x, dy, (wanted, want_dx), into);
        };
        let dy = to(dy, wide);
        let dropped = self.dropped(x, first);
        if let (Some(gain), Some(gained)) = (&self.gain, saved.gained) {
            let sums = (dy.clone() * gained).sum_dim(0) / gain.norm.clone();
            let n = sums.dims()[1];
            accumulate(into, LinearPart::Magnitude, sums.reshape([n]));
        }
        let scaled = match &self.gain {
            Some(gain) => dy.clone() * gain.factor.clone(),
            None => dy.clone(),
        };
        let through = if dropped.is_none() { scaled.clone() } else { dy.clone() };
        let mut dx = self.base(x, through, (wanted, want_dx), into);
        // The adapter's input: dropout's where there is one.
        let mut d_seen = None;
        let seen = match &dropped {
            Some(seen) => seen.clone(),
            None => x.get(wide),
        };
        if self.gain.is_some() && dropped.is_some() {
            let through = scaled.clone() - dy;
            d_seen = self.base(&mut Operand::new(seen.clone()), through, (wanted, want_dx), into);
        }
        let d_low = scaled * self.scale;
        if wanted.wants(LinearPart::LoraBBias) {
            accumulate(into, LinearPart::LoraBBias, over_rows(d_low.clone()));
        }
        if wanted.wants(LinearPart::LoraB) {
            let low = saved.low.expect("invariant: kept where there is an adapter");
            accumulate(into, LinearPart::LoraB, product::of_weight(d_low.clone(), low, wide, self.compute));
        }
        let wants_a = wanted.wants(LinearPart::LoraA);
        if wants_a || want_dx {
            let d_rank = product::of_input(d_low, &matrix(&lora.b), wide, self.compute);
            if wants_a {
                let of_a = product::of_weight(d_rank.clone(), seen, wide, self.compute);
                accumulate(into, LinearPart::LoraA, of_a);
            }
            if want_dx {
                let mut more = add(d_seen, product::of_input(d_rank, &matrix(&lora.a), wide, self.compute));
                if let Some(dropout) = &self.dropout {
                    more = super::dropout::dropped(dropout, more, first);
                }
                dx = Some(add(dx, more));
            }
        }
        dx
    }

    /// Through `x W^T` alone.
    fn base(
        &self,
        x: &mut Operand,
        dy: Tensor<2>,
        (wanted, want_dx): (&LinearParts<bool>, bool),
        into: &mut Gradients,
    ) -> Option<Tensor<2>> {
        let weight = self.weight();
        if wanted.weight {
            let gradient = product::of_weight(dy.clone(), x.get(weight.dtype()), self.wide, self.compute);
            accumulate(into, LinearPart::Weight, gradient);
        }
        want_dx.then(|| product::of_input(dy, &weight, self.wide, self.compute))
    }
}

/// What a group reads, plain.
enum Input {
    Plain(AnyTensor),
    Norm(Box<Normed>),
    Activated(AnyTensor, Activation),
    Gated(AnyTensor, Activation),
}

struct Normed {
    x: AnyTensor,
    norm: norm::Norm,
    rstd: Option<Tensor<2>>,
}

/// The gradients of an input's tensors.
#[derive(Default)]
struct InputGrad {
    x: Option<AnyTensor>,
    gamma: Option<AnyTensor>,
    beta: Option<AnyTensor>,
}

impl Input {
    /// From the first of the operation's plain tensors.
    fn new(input: &LinearInput, plain: &[AnyTensor], wide: DType) -> Result<Self, OpsError> {
        let x = plain[0].clone();
        let norm = |eps: f32, centers: bool, beta: Option<&AnyTensor>| {
            let norm = norm::Norm::new(&plain[1], beta, eps, centers, wide)?;
            Ok(Self::Norm(Box::new(Normed { x: x.clone(), norm, rstd: None })))
        };
        match input {
            LinearInput::RmsNorm { eps, .. } => norm(*eps, false, None),
            LinearInput::LayerNorm { eps, beta, .. } => {
                norm(*eps, true, beta.as_ref().and_then(|_| plain.get(2)))
            }
            _ => Ok(match input.activation() {
                Some((f, true)) => Self::Gated(x, f),
                Some((f, false)) => Self::Activated(x, f),
                None => Self::Plain(x),
            }),
        }
    }

    fn tensor(&self) -> &AnyTensor {
        match self {
            Self::Plain(x) | Self::Activated(x, _) | Self::Gated(x, _) => x,
            Self::Norm(normed) => &normed.x,
        }
    }

    /// What the layers are applied to.
    fn operand(&mut self) -> Result<Operand, OpsError> {
        Ok(Operand::new(match self {
            Self::Plain(x) => x.rank()?,
            Self::Norm(normed) => {
                let (y, rstd) = normed.norm.forward(&normed.x, normed.rstd.take())?;
                normed.rstd = Some(rstd);
                y
            }
            Self::Activated(x, f) => activation::plain(*f, x)?,
            Self::Gated(x, f) => activation::gated(*f, x)?,
        }))
    }

    /// The gradients of the input's tensors from that of the operand.
    fn backward(self, dx: Option<Tensor<2>>, want: (bool, bool)) -> Result<InputGrad, OpsError> {
        let Some(dx) = dx else { return Ok(InputGrad::default()) };
        let dtype = self.tensor().carrier().dtype();
        let mut all = InputGrad::default();
        let dx = match self {
            Self::Plain(_) => dx,
            Self::Norm(normed) => {
                let Normed { x, norm, rstd } = *normed;
                let rstd = rstd.expect("invariant: made in forward");
                let grad = norm.backward(&x, rstd, dx, want)?;
                (all.gamma, all.beta) = (grad.gamma.map(AnyTensor::new), grad.beta.map(AnyTensor::new));
                grad.dx
            }
            Self::Activated(x, f) => activation::plain_backward(f, &x, dx)?,
            Self::Gated(x, f) => activation::gated_backward(f, &x, dx)?,
        };
        all.x = Some(AnyTensor::new(to(dx, dtype)));
        Ok(all)
    }
}

/// What a group's output is in. Behind a norm come queries, keys, values, gates: their readers compute in the weights'
/// dtype. All else is a sum, or is summed over ranks, and is wide.
fn out_dtype(input: &LinearInput, layers: &[Linear], residual: Option<&AnyTensor>) -> DType {
    let wide = wide_dtype(input.tensor());
    let behind_norm = input.norm().is_some() && residual.is_none();
    // Not of a tensor of all elements, which a weight in fewer bits would become.
    let mut dtypes = layers.iter().map(|l| l.weight.dtype());
    match dtypes.next() {
        Some(Some(first @ (Dtype::Bf16 | Dtype::F16))) if behind_norm && dtypes.all(|d| d == Some(first)) => {
            in_burn(first)
        }
        _ => wide,
    }
}

/// See [`crate::linears`].
pub fn linears(
    input: &LinearInput,
    layers: &[Linear],
    residual: Option<&AnyTensor>,
) -> Result<AnyTensor, OpsError> {
    let out = out_dtype(input, layers, residual);
    let wide_as = wide_dtype(input.tensor());
    let [tokens, _] = crate::check::matrix(input.tensor())?;
    let total: usize = layers.iter().map(Linear::out).sum();
    let outs: Vec<usize> = layers.iter().map(Linear::out).collect();
    // Inputs in a fixed order: x, gamma, beta, each layer's tensors, residual.
    let mut inputs = input.tensors();
    let before = inputs.len();
    inputs.extend(layers.iter().flat_map(Linear::tensors));
    inputs.extend(residual.cloned());
    if tokens * total == 0 {
        let device = input.tensor().plain().device();
        let none = Tensor::<2>::zeros([tokens, total], (&device, out));
        return constant(OP, &inputs, true, AnyTensor::new(none));
    }
    apply(OP, &inputs, |plain, wanted| {
        let mut input = Input::new(input, plain, wide_as)?;
        let want_dx = wanted[..before].contains(&true);
        let want = |i: usize| i < before && wanted[i];
        let (want_x, want_norm) = (want(0), (want(1), want(2)));
        let (mut wanted, mut plain) = (wanted[before..].iter().copied(), plain[before..].iter().cloned());
        let mut operand = input.operand()?;
        let (mut parts, mut group) = (Vec::new(), Vec::new());
        for layer in layers {
            let asked = layer.parts().fill(&mut wanted);
            let layer = Layer::new(layer, &mut plain, wide_as)?;
            let (y, saved) = layer.forward(&mut operand, 0, &asked);
            parts.push(to(y, out));
            group.push((layer, asked, saved));
        }
        let mut y = if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(parts, 1) };
        let residual = plain.next();
        if let Some(residual) = &residual {
            y = y + to(residual.rank()?, out);
        }
        let residual = residual.map(|r| (r.carrier().dtype(), wanted.next().unwrap_or(false)));
        let back = move |upstream: AnyTensor| -> Result<Vec<Option<AnyTensor>>, OpsError> {
            let dy = upstream.rank::<2>()?;
            let mut operand = input.operand()?;
            let (mut dx, mut entries, mut column) = (None, Vec::new(), 0);
            for ((layer, asked, saved), out) in group.into_iter().zip(outs) {
                let dy = dy.clone().narrow(1, column, out);
                column += out;
                let mut gradients = layer.gradients();
                let more = layer.backward(&mut operand, 0, saved, dy, (&asked, want_dx), &mut gradients);
                dx = match (dx, more) {
                    (into, Some(more)) => Some(add(into, more)),
                    (into, None) => into,
                };
                entries.extend(gradients.into_iter().map(|(_, gradient)| gradient));
            }
            drop(operand);
            let InputGrad { x, gamma, beta } = input.backward(dx, want_norm)?;
            let mut all = vec![x.filter(|_| want_x), gamma, beta];
            all.truncate(before);
            all.extend(entries);
            if let Some((dtype, wanted)) = residual {
                all.push(wanted.then(|| AnyTensor::new(to(dy, dtype))));
            }
            Ok(all)
        };
        let back = move |upstream| back(upstream).expect("invariant: ranks are as in forward");
        Ok((AnyTensor::new(y), Box::new(back)))
    })
}

/// See [`crate::linears_unread`]: the values are made.
pub(crate) use linears as linears_unread;

/// See [`LinearInput::out_dtype`].
pub fn dtype(input: &LinearInput, layers: &[Linear]) -> DType {
    out_dtype(input, layers, None)
}

/// See [`LinearInput::read`].
pub(crate) fn read(input: &LinearInput) -> Result<AnyTensor, OpsError> {
    let plain: Vec<AnyTensor> = input.tensors().iter().map(AnyTensor::plain).collect();
    let mut operand = Input::new(input, &plain, DType::F32)?.operand()?;
    Ok(AnyTensor::new(operand.get(DType::F32)))
}

/// See [`crate::linears_decode`]: nothing is gained by another order of the same products.
pub(crate) fn linears_decode(
    input: &LinearInput,
    layers: &[Linear],
    residual: Option<&AnyTensor>,
) -> Result<AnyTensor, OpsError> {
    linears(input, layers, residual)
}
