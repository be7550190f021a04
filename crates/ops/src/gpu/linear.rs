//! Linears with what comes in and goes out with them.
//!
//! One node on the tape per group: it keeps the input as it came and what is narrow, and makes the rest again.
//! An adapter's second product is added to the layer's as another one of the same sums, where both are of one dtype of factors.

use burn::tensor::{DType, Tensor};
#[cfg(feature = "cube")]
use burnish_core::LoraParts;
use burnish_core::{Activation, Compute, Dtype, LinearPart, LinearParts};

#[cfg(feature = "cube")]
use super::kernels;
use super::product::{self, Factors, Finish};
use super::{activation, add, constant, norm, over_rows, to, wide_dtype};
use crate::linear::{Dropout, Linear, LinearInput};
use crate::tensor::in_burn;
use crate::{AnyTensor, OpsError, apply};

const OP: &str = "linears";

/// An operand in the dtypes in which it is asked for.
#[derive(Clone)]
pub(super) struct Operand {
    made: Vec<Tensor<2>>,
}

impl Operand {
    pub(super) fn new(x: Tensor<2>) -> Self {
        Self { made: vec![x] }
    }

    /// Of products with what is in the dtype `other`, in that of their factors.
    fn factor(&mut self, other: DType, compute: Compute) -> Tensor<2> {
        self.get(product::factors(self.made[0].dtype(), other, compute))
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
    accumulate_by(into, part, |before| add(before, more));
}

/// Lets what makes a part's gradient add what was there before.
fn accumulate_by<const D: usize>(
    into: &mut Gradients,
    part: LinearPart,
    made: impl FnOnce(Option<Tensor<D>>) -> Tensor<D>,
) {
    if let Some(gradient) = into.get_mut(part) {
        let before = gradient
            .take()
            .map(|before| before.rank::<D>().expect("invariant: a part's gradients have one rank"));
        *gradient = Some(AnyTensor::new(made(before)));
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

/// A layer's outputs: the factors of what is a product, finished, so that those of several layers can be made at once.
pub(super) enum Output {
    Product(Box<Factors>),
    Made(Tensor<2>),
}

impl Output {
    pub(super) fn made(self) -> Tensor<2> {
        match self {
            Self::Product(factors) => factors.product(),
            Self::Made(y) => y,
        }
    }

    /// Those of all layers beside each other.
    fn beside(all: Vec<Self>) -> Tensor<2> {
        if all.iter().all(|output| matches!(output, Self::Product(_))) {
            let factors = all.into_iter().filter_map(|output| match output {
                Self::Product(factors) => Some(*factors),
                Self::Made(_) => None,
            });
            return product::beside(factors.collect());
        }
        let mut all: Vec<_> = all.into_iter().map(Self::made).collect();
        if all.len() == 1 { all.remove(0) } else { Tensor::cat(all, 1) }
    }
}

/// What a forward keeps for the backward.
pub(super) struct Saved {
    /// `scale drop(x) A^T`.
    low: Option<Tensor<2>>,
    /// What the gain multiplies, where the magnitude's gradient is wanted.
    gained: Option<Tensor<2>>,
}

fn matrix(tensor: &AnyTensor) -> Tensor<2> {
    tensor.rank().expect("invariant: shapes were checked")
}

fn vector(tensor: &AnyTensor) -> Tensor<1> {
    tensor.rank().expect("invariant: shapes were checked")
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
                Some(Gain { factor: vector(value).unsqueeze() / norm.clone(), norm })
            }
            _ => None,
        };
        Ok(Self {
            scale: low.map_or(1.0, |low| low.scale),
            dropout: low.and_then(|low| low.dropout.clone()).filter(|dropout| dropout.p > 0.0),
            gain,
            compute: product::on_device(&parts.weight.device(), layer.compute),
            parts,
            wide,
        })
    }

    /// The dtype in which an adapter's products are multiplied, and what they write that only they read.
    fn low_dtype(&self) -> DType {
        product::factors(self.wide, self.wide, self.compute)
    }

    /// What the adapter reads of the input: what the weight reads, where factors are rounded to that.
    fn seen(&self, x: &mut Operand) -> Tensor<2> {
        let of_weight = self.dtype();
        x.get(if of_weight == self.low_dtype() { of_weight } else { self.wide })
    }

    /// The dtype in which the weight and the input are multiplied.
    fn dtype(&self) -> DType {
        product::factors(self.parts.weight.burn_dtype(), self.wide, self.compute)
    }

    /// The weight in that dtype: kernels multiply what is copied as it is.
    fn weight(&self) -> Tensor<2> {
        to(matrix(&self.parts.weight), self.dtype())
    }

    /// The dtype in which all that reads the input does so, if that is one.
    fn reads(&self) -> Option<DType> {
        let dtype = self.dtype();
        let adapter = self.parts.lora.is_some();
        (!adapter || self.dropout.is_none() && dtype == self.low_dtype()).then_some(dtype)
    }

    /// No gradient yet of any part.
    pub(super) fn gradients(&self) -> Gradients {
        self.parts.as_ref().map(|_, _| None)
    }

    /// The dtype of the outputs where none is asked for: the weight's where nothing is added to its product.
    pub(super) fn out_dtype(&self) -> DType {
        let alone = self.parts.lora.is_none() && self.parts.bias.is_none();
        if alone { self.parts.weight.burn_dtype() } else { self.wide }
    }

    /// The outputs for `x`, whose first row is row `first` of the dropout's; in `out`, with `residual`. `low` is what the
    /// adapter's first factor makes of it, where that was made.
    pub(super) fn forward(
        &self,
        x: &mut Operand,
        first: usize,
        wanted: &LinearParts<bool>,
        (out, residual): (DType, Option<Tensor<2>>),
        low: Option<Tensor<2>>,
    ) -> (Output, Saved) {
        let mut saved = Saved { low: None, gained: None };
        let mut finish = Finish::adding(out, residual);
        finish.bias = self.parts.bias.as_ref().map(vector);
        let Some(lora) = &self.parts.lora else {
            return (self.through_weight(x, finish), saved);
        };
        let dropped = self.dropped(x, first);
        let low = low.unwrap_or_else(|| {
            let seen = dropped.clone().unwrap_or_else(|| self.seen(x));
            let scaled = Finish::scaled(self.low_dtype(), self.scale);
            product::forward(seen, &matrix(&lora.a), self.compute, scaled)
        });
        saved.low = Some(low.clone());
        let b_bias = lora.b_bias.as_ref().map(|bias| vector(bias) * self.scale);
        // In the dtype of factors: kernels multiply what is copied as it is.
        let b = to(matrix(&lora.b), self.low_dtype()).transpose();
        let Some(gain) = &self.gain else {
            finish.more = Some([low, b]);
            finish.bias = match (finish.bias, b_bias) {
                (Some(bias), Some(more)) => Some(bias + more),
                (bias, more) => bias.or(more),
            };
            return (self.through_weight(x, finish), saved);
        };
        let (weight, wants_magnitude) = (self.weight(), wanted.wants(LinearPart::Magnitude));
        let with_low = Finish { more: Some([low, b]), bias: b_bias, ..Finish::new(self.wide) };
        let mut y = match dropped {
            None => {
                let gained = product::forward(x.get(weight.dtype()), &weight, self.compute, with_low);
                saved.gained = wants_magnitude.then(|| gained.clone());
                gained * gain.factor.clone()
            }
            // PEFT's form: the base's product is scaled, of dropout's input only in part.
            Some(dropped) => {
                let of = |x| product::forward(x, &weight, self.compute, Finish::new(self.wide));
                let (y, seen) = (of(x.get(weight.dtype())), of(dropped.clone()));
                let gained = product::forward(dropped, &weight, self.compute, with_low);
                saved.gained = wants_magnitude.then(|| gained.clone());
                y - seen + gained * gain.factor.clone()
            }
        };
        if let Some(bias) = finish.bias {
            y = y + bias.unsqueeze();
        }
        let y = to(add(finish.add.map(|residual| to(residual, self.wide)), y), out);
        (Output::Made(y), saved)
    }

    /// `x W^T`, finished.
    fn through_weight(&self, x: &mut Operand, finish: Finish<2>) -> Output {
        #[cfg(feature = "cube")]
        let finish = match self.by_codes(x, finish) {
            Ok(y) => return Output::Made(y),
            Err(finish) => *finish,
        };
        let weight = self.weight();
        let factors = product::forward_factors(x.get(weight.dtype()), &weight, self.compute, finish);
        Output::Product(Box::new(factors))
    }

    /// The same of a few rows and a weight in fewer bits, which is not widened for them.
    #[cfg(feature = "cube")]
    fn by_codes(&self, x: &mut Operand, mut finish: Finish<2>) -> Result<Tensor<2>, Box<Finish<2>>> {
        if self.parts.weight.as_packed().is_none() {
            return Err(Box::new(finish));
        }
        let (out, more) = (finish.out, finish.more.take());
        if more.is_some() {
            finish.out = DType::F32;
        }
        match (kernels::few_rows(&x.get(self.dtype()), &self.parts.weight, &finish), more) {
            (Some(y), None) => Ok(y),
            (Some(before), Some([p, q])) => {
                let behind = Finish { scale: finish.scale, ..Finish::adding(out, Some(before)) };
                Ok(product::product(p, q, self.compute, behind))
            }
            (None, more) => Err(Box::new(Finish { out, more, ..finish })),
        }
    }

    /// The input behind its dropout.
    fn dropped(&self, x: &mut Operand, first: usize) -> Option<Tensor<2>> {
        self.dropout.as_ref().map(|dropout| super::dropout::dropped(dropout, x.get(self.wide), first))
    }

    /// Adds the layer's gradients to `into`; gives the input's added to `dx`, in the dtype in which it is wanted, if it is.
    /// `of_adapter` is what all factors' gradients are, where they were made.
    pub(super) fn backward(
        &self,
        x: &mut Operand,
        first: usize,
        (saved, of_adapter): (Saved, Option<AdapterGradient>),
        dy: Tensor<2>,
        (wanted, out): (&LinearParts<bool>, Option<DType>),
        (into, mut dx): (&mut Gradients, Option<Tensor<2>>),
    ) -> Option<Tensor<2>> {
        let (wide, want_dx) = (self.wide, out.is_some());
        if wanted.wants(LinearPart::Bias) {
            accumulate(into, LinearPart::Bias, over_rows(to(dy.clone(), wide)));
        }
        let Some(lora) = &self.parts.lora else {
            let mut dy = Operand::new(dy);
            self.of_weight(x, &mut dy, wanted, into);
            return out.map(|out| self.of_input(&mut dy, &self.weight(), Finish::adding(out, dx)));
        };
        let dropped = self.dropped(x, first);
        if let (Some(gain), Some(gained)) = (&self.gain, saved.gained) {
            let sums = (to(dy.clone(), wide) * gained).sum_dim(0) / gain.norm.clone();
            let n = sums.dims()[1];
            accumulate(into, LinearPart::Magnitude, sums.reshape([n]));
        }
        let mut scaled = Operand::new(match &self.gain {
            Some(gain) => to(dy.clone(), wide) * gain.factor.clone(),
            None => dy.clone(),
        });
        let mut through = if dropped.is_none() {
            // Rounded once for all that reads it.
            scaled.factor(self.dtype(), self.compute);
            scaled.clone()
        } else {
            Operand::new(dy.clone())
        };
        self.of_weight(x, &mut through, wanted, into);
        // The gradient of dropout's output, where it has one.
        let mut d_seen = None;
        if let (Some(_), Some(seen)) = (&self.gain, &dropped) {
            let mut through = Operand::new(scaled.get(wide) - to(dy, wide));
            self.of_weight(&mut Operand::new(seen.clone()), &mut through, wanted, into);
            d_seen = want_dx.then(|| self.of_input(&mut through, &self.weight(), Finish::new(wide)));
        }
        if wanted.wants(LinearPart::LoraBBias) {
            let sums = over_rows(scaled.get(wide)) * self.scale;
            accumulate(into, LinearPart::LoraBBias, sums);
        }
        let d_rank = if let Some(AdapterGradient { low, a, b }) = of_adapter {
            accumulate(into, LinearPart::LoraA, a);
            accumulate(into, LinearPart::LoraB, b);
            low
        } else {
            if wanted.wants(LinearPart::LoraB) {
                let low = saved.low.expect("invariant: kept where there is an adapter");
                let scaled = scaled.factor(low.dtype(), self.compute);
                accumulate_by(into, LinearPart::LoraB, |before| {
                    product::of_weight(scaled, low, self.compute, Finish::adding(wide, before))
                });
            }
            let wants_a = wanted.wants(LinearPart::LoraA);
            if !wants_a && !want_dx {
                return None;
            }
            let finish = Finish::scaled(self.low_dtype(), self.scale);
            let d_rank = self.of_input(&mut scaled, &matrix(&lora.b), finish);
            if wants_a {
                let seen = dropped.clone().unwrap_or_else(|| self.seen(x));
                accumulate_by(into, LinearPart::LoraA, |before| {
                    product::of_weight(d_rank.clone(), seen, self.compute, Finish::adding(wide, before))
                });
            }
            d_rank
        };
        let a = to(matrix(&lora.a), self.low_dtype());
        let mut finish = Finish::new(out?);
        match &self.dropout {
            None => finish.more = Some([d_rank, a]),
            Some(dropout) => {
                let more = product::of_input(d_rank, &a, self.compute, Finish::adding(wide, d_seen));
                dx = Some(add(dx, super::dropout::dropped(dropout, more, first)));
            }
        }
        finish.add = dx;
        Some(self.of_input(&mut through, &self.weight(), finish))
    }

    /// `dy W`, finished.
    fn of_input(&self, dy: &mut Operand, weight: &Tensor<2>, finish: Finish<2>) -> Tensor<2> {
        product::of_input(dy.factor(weight.dtype(), self.compute), weight, self.compute, finish)
    }

    /// Adds the gradient of the weight through `x W^T` alone.
    fn of_weight(&self, x: &mut Operand, dy: &mut Operand, wanted: &LinearParts<bool>, into: &mut Gradients) {
        if wanted.weight {
            let x = x.get(self.dtype());
            let dy = dy.factor(x.dtype(), self.compute);
            accumulate_by(into, LinearPart::Weight, |before| {
                product::of_weight(dy, x, self.compute, Finish::adding(self.wide, before))
            });
        }
    }
}

/// A layer of a group, and which of its gradients are wanted.
type Asked = (Layer, LinearParts<bool>);

/// Adapters of a group that are multiplied together.
struct Together {
    #[cfg(feature = "cube")]
    of: kernels::Adapters,
    /// Second factors, and what first ones made of the input, each one below the other.
    #[cfg(feature = "cube")]
    stacks: [Tensor<2>; 2],
}

#[cfg(feature = "cube")]
impl Together {
    /// Rounds the factors of adapters once for all that multiplies them, where they are rounded; and says where those of the
    /// group are multiplied together on `x`, with what the first factors make of it.
    fn new(layers: &mut [Asked], x: &Tensor<2>) -> Option<(Self, Vec<Tensor<2>>)> {
        let dtype = layers.first()?.0.low_dtype();
        let low = |layer: &Layer| layer.parts.lora.is_some() && layer.low_dtype() == dtype;
        if dtype.size() != 2 || !layers.iter().all(|(layer, _)| low(layer)) {
            return None;
        }
        let factors = |of: fn(&LoraParts<AnyTensor>) -> &AnyTensor| -> Vec<Tensor<2>> {
            layers
                .iter()
                .filter_map(|(layer, _)| layer.parts.lora.as_ref())
                .map(|lora| matrix(of(lora)))
                .collect()
        };
        let kernels::Narrow { stack, stack_of_b, a, b } =
            kernels::narrow(&factors(|l| &l.a), &factors(|l| &l.b), dtype)?;
        let (first, rank) = (layers[0].0.scale, a[0].dims()[0]);
        let outputs: Vec<usize> = b.iter().map(|b| b.dims()[0]).collect();
        let one_rank = a.iter().all(|a| a.dims()[0] == rank);
        for ((layer, _), (a, b)) in layers.iter_mut().zip(a.into_iter().zip(b)) {
            if let Some(lora) = &mut layer.parts.lora {
                (lora.a, lora.b) = (AnyTensor::new(a), AnyTensor::new(b));
            }
        }
        let alike = |(layer, asked): &Asked| {
            let plain = layer.dropout.is_none() && layer.gain.is_none() && layer.scale == first;
            let trains = [LinearPart::LoraA, LinearPart::LoraB].into_iter().all(|part| asked.wants(part));
            plain && trains && layer.dtype() == dtype
        };
        let together = one_rank && x.dtype() == dtype && layers.iter().all(alike);
        let of = together.then(|| kernels::Adapters::new(x, rank, &outputs, first)).flatten()?;
        let (low, each) = of.low(x, &stack)?;
        Some((Self { of, stacks: [stack_of_b?, low] }, each))
    }

    /// The gradients of all factors, from those of the outputs beside each other in the dtype of `x`.
    fn gradients(&self, x: &Tensor<2>, dy: &Tensor<2>, outputs: &[usize]) -> Option<Vec<AdapterGradient>> {
        let [b, low] = &self.stacks;
        self.of.gradients(x, (dy, outputs), (b, low))
    }
}

/// Where no kernel does it.
#[cfg(not(feature = "cube"))]
impl Together {
    fn new(_: &mut [Asked], _: &Tensor<2>) -> Option<(Self, Vec<Tensor<2>>)> {
        None
    }

    fn gradients(&self, _: &Tensor<2>, _: &Tensor<2>, _: &[usize]) -> Option<Vec<AdapterGradient>> {
        None
    }
}

/// The gradients of an adapter's factors, and of what the first makes of the input.
#[cfg(feature = "cube")]
pub(super) use kernels::AdapterGradient;
#[cfg(not(feature = "cube"))]
pub(super) struct AdapterGradient {
    low: Tensor<2>,
    a: Tensor<2>,
    b: Tensor<2>,
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

    /// In which dtype the gradient of what the layers read is written: that of the input itself, of an activation what they
    /// `read`, as autocast has it; behind a norm, which sums it over a row, `wide`.
    fn gradient_dtype(&self, read: DType, wide: DType) -> DType {
        match self {
            Self::Plain(x) => x.burn_dtype(),
            Self::Activated(..) | Self::Gated(..) => read,
            Self::Norm(_) => wide,
        }
    }

    /// What the layers are applied to; what is made for them is made in `dtype`.
    fn operand(&mut self, dtype: DType) -> Result<Operand, OpsError> {
        Ok(Operand::new(match self {
            Self::Plain(x) => x.rank()?,
            Self::Norm(normed) => {
                let (y, rstd) = normed.norm.forward(&normed.x, normed.rstd.take(), dtype)?;
                normed.rstd = Some(rstd);
                y
            }
            Self::Activated(x, f) => activation::plain(*f, x, dtype)?,
            Self::Gated(x, f) => activation::gated(*f, x, dtype)?,
        }))
    }

    /// The gradients of the input's tensors from that of the operand.
    fn backward(self, dx: Option<Tensor<2>>, want: (bool, bool)) -> Result<InputGrad, OpsError> {
        let Some(dx) = dx else { return Ok(InputGrad::default()) };
        let dtype = self.tensor().burn_dtype();
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
    let mut dtypes = layers.iter().map(|layer| match layer.weight.dtype() {
        Some(Dtype::F32) if rounded(input, layer) => Some(Dtype::Bf16),
        dtype => dtype,
    });
    match dtypes.next() {
        Some(Some(first @ (Dtype::Bf16 | Dtype::F16))) if behind_norm && dtypes.all(|d| d == Some(first)) => {
            in_burn(first)
        }
        _ => wide,
    }
}

/// The dtype in which all layers read what is made for them, or the wide one.
fn read_as(layers: &[(Layer, LinearParts<bool>)], wide: DType) -> DType {
    let mut all = layers.iter().map(|(layer, _)| layer.reads());
    match all.next().flatten() {
        Some(first) if all.all(|dtype| dtype == Some(first)) => first,
        _ => wide,
    }
}

/// Whether a layer's factors in f32 are rounded to bf16.
fn rounded(input: &LinearInput, layer: &Linear) -> bool {
    product::on_device(&input.tensor().device(), layer.compute) == Compute::Bf16
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
    let count = inputs.len() - before;
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
        let (mut wanted, plain) = (wanted[before..].iter().copied(), &plain[before..]);
        let residual = (plain.len() > count).then(|| plain[count].clone());
        let mut plain = plain[..count].iter().cloned();
        let mut made = Vec::new();
        for layer in layers {
            let asked = layer.parts().fill(&mut wanted);
            made.push((Layer::new(layer, &mut plain, wide_as)?, asked));
        }
        let read = read_as(&made, wide_as);
        let mut operand = input.operand(read)?;
        let (mut parts, mut group) = (Vec::new(), Vec::new());
        let (together, low) = Together::new(&mut made, &operand.get(read)).unzip();
        let mut low = low.into_iter().flatten();
        for (layer, asked) in made {
            let alone = if layers.len() == 1 { residual.as_ref() } else { None };
            let added = alone.map(AnyTensor::rank).transpose()?;
            let (y, saved) = layer.forward(&mut operand, 0, &asked, (out, added), low.next());
            parts.push(y);
            group.push((layer, asked, saved));
        }
        let mut y = Output::beside(parts);
        if let Some(residual) = residual.as_ref().filter(|_| layers.len() > 1) {
            y = y + to(residual.rank()?, out);
        }
        let residual = residual.map(|r| (r.burn_dtype(), wanted.next().unwrap_or(false)));
        let back = move |upstream: AnyTensor| -> Result<Vec<Option<AnyTensor>>, OpsError> {
            let dy = upstream.rank::<2>()?;
            let mut operand = input.operand(read)?;
            let (mut dx, mut entries, mut column) = (None, Vec::new(), 0);
            let last = group.len() - 1;
            let mut of_layers = dy.clone();
            let of_adapters = together.as_ref().and_then(|all| {
                // Rounded once for all that reads it.
                let x = operand.get(read);
                of_layers = to(of_layers.clone(), x.dtype());
                all.gradients(&x, &of_layers, &outs)
            });
            let mut of_adapters = of_adapters.into_iter().flatten();
            let parts = outs.into_iter().map(|out| {
                column += out;
                of_layers.clone().narrow(1, column - out, out)
            });
            let parts: Vec<_> = parts.collect();
            for (at, ((layer, asked, saved), dy)) in group.into_iter().zip(parts).enumerate() {
                let mut gradients = layer.gradients();
                // Sums are wide until the last.
                let dtype = if at == last { input.gradient_dtype(read, wide_as) } else { wide_as };
                let asked = (&asked, want_dx.then_some(dtype));
                let into = (&mut gradients, dx);
                let saved = (saved, of_adapters.next());
                dx = layer.backward(&mut operand, 0, saved, dy, asked, into);
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
    let mut operand = Input::new(input, &plain, DType::F32)?.operand(DType::F32)?;
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
