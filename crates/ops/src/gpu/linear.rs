//! Linears with what comes in and goes out with them.
//!
//! One node on the tape per group: it keeps the input as it came and what is narrow, and makes the rest again.
//! An adapter's products are in f32: they are thin.

use burn::tensor::activation::sigmoid;
use burn::tensor::{DType, Device, Int, IntDType, Tensor};

use super::{add, constant, norm, over_rows, product, to, wide, wide_dtype};
use crate::linear::{Dropout, Linear, LinearInput};
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

    fn dims(&self) -> [usize; 2] {
        self.made[0].dims()
    }
}

/// Which gradients of a layer are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    weight: bool,
    bias: bool,
    a: bool,
    b: bool,
    b_bias: bool,
    magnitude: bool,
}

impl Wanted {
    /// In the order of [`Linear::tensors`].
    pub(super) fn of(layer: &Linear, wanted: &mut dyn Iterator<Item = bool>) -> Self {
        let mut next = |present: bool| present && wanted.next().unwrap_or(false);
        let low = layer.low_rank.as_ref();
        Self {
            weight: next(true),
            bias: next(layer.bias.is_some()),
            a: next(low.is_some()),
            b: next(low.is_some()),
            b_bias: next(low.is_some_and(|l| l.b_bias.is_some())),
            magnitude: next(low.is_some_and(|l| l.magnitude.is_some())),
        }
    }
}

/// The gradients of a layer.
#[derive(Default)]
pub(super) struct Gradients {
    weight: Option<Tensor<2>>,
    bias: Option<Tensor<1>>,
    a: Option<Tensor<2>>,
    b: Option<Tensor<2>>,
    b_bias: Option<Tensor<1>>,
    magnitude: Option<Tensor<1>>,
}

impl Gradients {
    /// In the order of [`Linear::tensors`], one entry for each that the layer has.
    pub(super) fn into_entries(self, layer: &Layer) -> Vec<Option<AnyTensor>> {
        let mut all = vec![self.weight.map(AnyTensor::new)];
        if layer.bias.is_some() {
            all.push(self.bias.map(AnyTensor::new));
        }
        if let Some(low) = &layer.low {
            all.extend([self.a.map(AnyTensor::new), self.b.map(AnyTensor::new)]);
            if low.b_bias.is_some() {
                all.push(self.b_bias.map(AnyTensor::new));
            }
            if low.gain.is_some() {
                all.push(self.magnitude.map(AnyTensor::new));
            }
        }
        all
    }
}

/// A layer's plain tensors: the weight as it is stored, the others wide.
pub(super) struct Layer {
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
    low: Option<Low>,
    wide: DType,
}

struct Low {
    a: Tensor<2>,
    b: Tensor<2>,
    b_bias: Option<Tensor<1>>,
    scale: f32,
    dropout: Option<Dropout>,
    gain: Option<Gain>,
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

impl Layer {
    /// From the plain tensors of `layer`, in the order of [`Linear::tensors`].
    pub(super) fn new(layer: &Linear, plain: &[AnyTensor], wide: DType) -> Result<Self, OpsError> {
        let mut next = plain.iter();
        let mut next = || next.next().expect("invariant: as many tensors as the layer holds");
        let weight = next().rank::<2>()?;
        let bias = layer.bias.as_ref().map(|_| next().rank::<1>()).transpose()?.map(|b| to(b, wide));
        let low = match &layer.low_rank {
            None => None,
            Some(l) => {
                let (a, b) = (to(next().rank::<2>()?, wide), to(next().rank::<2>()?, wide));
                let b_bias = l.b_bias.as_ref().map(|_| next().rank::<1>()).transpose()?;
                let gain = match &l.magnitude {
                    None => None,
                    Some(m) => {
                        let norm: Tensor<2> = to(m.norm.plain().rank::<1>()?, wide).unsqueeze();
                        let value: Tensor<2> = to(next().rank::<1>()?, wide).unsqueeze();
                        Some(Gain { factor: value / norm.clone(), norm })
                    }
                };
                Some(Low {
                    a,
                    b,
                    b_bias: b_bias.map(|b| to(b, wide)),
                    scale: l.scale,
                    dropout: l.dropout.clone().filter(|d| d.p > 0.0),
                    gain,
                })
            }
        };
        Ok(Self { weight, bias, low, wide })
    }

    /// The outputs for `x`, whose first row is row `first` of the dropout's.
    pub(super) fn forward(&self, x: &mut Operand, first: usize, wanted: &Wanted) -> (Tensor<2>, Saved) {
        let mut y = product::forward(x.get(self.weight.dtype()), &self.weight);
        let mut saved = Saved { low: None, gained: None };
        if let Some(l) = &self.low {
            y = to(y, self.wide);
            let dropped = self.dropped(x, first).map(|(x, _)| x);
            let mut low = dropped.clone().unwrap_or_else(|| x.get(self.wide));
            low = low.matmul(l.a.clone().transpose());
            saved.low = Some(low.clone());
            low = low.matmul(l.b.clone().transpose());
            if let Some(bias) = &l.b_bias {
                low = low + bias.clone().unsqueeze();
            }
            low = low * l.scale;
            y = match (&l.gain, dropped) {
                (None, _) => y + low,
                (Some(gain), None) => {
                    let gained = y + low;
                    saved.gained = wanted.magnitude.then(|| gained.clone());
                    gained * gain.factor.clone()
                }
                // PEFT's form: the base's product is scaled, of dropout's input only in part.
                (Some(gain), Some(dropped)) => {
                    let seen =
                        to(product::forward(to(dropped, self.weight.dtype()), &self.weight), self.wide);
                    let gained = seen.clone() + low;
                    saved.gained = wanted.magnitude.then(|| gained.clone());
                    y - seen + gained * gain.factor.clone()
                }
            };
        }
        if let Some(bias) = &self.bias {
            y = to(y, self.wide) + bias.clone().unsqueeze();
        }
        (y, saved)
    }

    /// The input behind its dropout, and the mask.
    fn dropped(&self, x: &mut Operand, first: usize) -> Option<(Tensor<2>, Tensor<2>)> {
        let dropout = self.low.as_ref()?.dropout.as_ref()?;
        let [tokens, dim] = x.dims();
        let x = x.get(self.wide);
        let device = x.device();
        let mask =
            super::dropout::mask(dropout, [first, tokens, dim], (&device, self.wide), int_dtype(&device));
        Some((x * mask.clone(), mask))
    }

    /// Adds the layer's gradients to `into`; gives the input's, wide, if it is wanted.
    pub(super) fn backward(
        &self,
        x: &mut Operand,
        first: usize,
        saved: Saved,
        dy: Tensor<2>,
        (wanted, want_dx): (&Wanted, bool),
        into: &mut Gradients,
    ) -> Option<Tensor<2>> {
        let wide = self.wide;
        if wanted.bias {
            into.bias = Some(add(into.bias.take(), over_rows(to(dy.clone(), wide))));
        }
        let Some(l) = &self.low else {
            return self.base(x, dy, (wanted, want_dx), into);
        };
        let dy = to(dy, wide);
        let dropped = self.dropped(x, first);
        if let (Some(gain), Some(gained)) = (&l.gain, saved.gained) {
            let sums = (dy.clone() * gained).sum_dim(0) / gain.norm.clone();
            let n = sums.dims()[1];
            into.magnitude = Some(add(into.magnitude.take(), sums.reshape([n])));
        }
        let scaled = match &l.gain {
            Some(gain) => dy.clone() * gain.factor.clone(),
            None => dy.clone(),
        };
        let through = if dropped.is_none() { scaled.clone() } else { dy.clone() };
        let mut dx = self.base(x, through, (wanted, want_dx), into);
        // The adapter's input: dropout's where there is one.
        let mut d_seen = None;
        let seen = match &dropped {
            Some((seen, _)) => seen.clone(),
            None => x.get(wide),
        };
        if l.gain.is_some() && dropped.is_some() {
            let through = scaled.clone() - dy;
            d_seen = self.base(&mut Operand::new(seen.clone()), through, (wanted, want_dx), into);
        }
        let d_low = scaled * l.scale;
        if wanted.b_bias {
            into.b_bias = Some(add(into.b_bias.take(), over_rows(d_low.clone())));
        }
        if wanted.b {
            let low = saved.low.expect("invariant: kept where there is an adapter");
            into.b = Some(add(into.b.take(), product::of_weight(d_low.clone(), low, wide)));
        }
        if wanted.a || want_dx {
            let d_rank = product::of_input(d_low, &l.b, wide);
            if wanted.a {
                into.a = Some(add(into.a.take(), product::of_weight(d_rank.clone(), seen, wide)));
            }
            if want_dx {
                let mut more = add(d_seen, product::of_input(d_rank, &l.a, wide));
                if let Some((_, mask)) = dropped {
                    more = more * mask;
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
        (wanted, want_dx): (&Wanted, bool),
        into: &mut Gradients,
    ) -> Option<Tensor<2>> {
        if wanted.weight {
            let gradient = product::of_weight(dy.clone(), x.get(self.weight.dtype()), self.wide);
            into.weight = Some(add(into.weight.take(), gradient));
        }
        want_dx.then(|| product::of_input(dy, &self.weight, self.wide))
    }
}

/// The dtype that the device has for integers.
fn int_dtype(device: &Device) -> IntDType {
    match Tensor::<1, Int>::empty([1], device).dtype() {
        DType::I64 => IntDType::I64,
        _ => IntDType::I32,
    }
}

/// What a group reads, plain.
enum Input {
    Plain(AnyTensor),
    RmsNorm(Box<Normed>),
    SwiGlu(AnyTensor),
}

struct Normed {
    x: AnyTensor,
    gamma: Tensor<1>,
    eps: f32,
    rstd: Option<Tensor<2>>,
}

impl Input {
    fn tensor(&self) -> &AnyTensor {
        match self {
            Self::Plain(x) | Self::SwiGlu(x) => x,
            Self::RmsNorm(normed) => &normed.x,
        }
    }

    /// What the layers are applied to.
    fn operand(&mut self) -> Result<Operand, OpsError> {
        Ok(Operand::new(match self {
            Self::Plain(x) => x.rank()?,
            Self::RmsNorm(normed) => {
                let x = wide::<2>(&normed.x)?;
                let rstd = normed.rstd.get_or_insert_with(|| norm::reciprocal(&x, normed.eps));
                x * rstd.clone() * normed.gamma.clone().unsqueeze()
            }
            Self::SwiGlu(x) => {
                let (gate, up) = gate_up(x)?;
                gate.clone() * sigmoid(gate) * up
            }
        }))
    }

    /// The input's gradient and gamma's, from that of the operand.
    fn backward(
        self,
        dx: Option<Tensor<2>>,
        want_gamma: bool,
    ) -> Result<(Option<AnyTensor>, Option<AnyTensor>), OpsError> {
        let Some(dx) = dx else { return Ok((None, None)) };
        let dtype = self.tensor().carrier().dtype();
        let mut of_gamma = None;
        let dx = match self {
            Self::Plain(_) => dx,
            Self::RmsNorm(normed) => {
                let Normed { x, gamma, rstd, .. } = *normed;
                let rstd = rstd.expect("invariant: made in forward");
                let (dx, rows) = norm::backward(wide::<2>(&x)?, rstd, &gamma, dx, want_gamma);
                of_gamma = rows.map(|g| AnyTensor::new(over_rows(g)));
                dx
            }
            Self::SwiGlu(x) => {
                let (gate, up) = gate_up(&x)?;
                let s = sigmoid(gate.clone());
                let d_up = dx.clone() * gate.clone() * s.clone();
                let slope = s.clone() * (gate * (s.neg() + 1.0) + 1.0);
                Tensor::cat(vec![to(dx * up * slope, dtype), to(d_up, dtype)], 1)
            }
        };
        Ok((Some(AnyTensor::new(to(dx, dtype))), of_gamma))
    }
}

fn gate_up(x: &AnyTensor) -> Result<(Tensor<2>, Tensor<2>), OpsError> {
    let (x, dtype) = (x.rank::<2>()?, wide_dtype(x));
    let half = x.dims()[1] / 2;
    Ok((to(x.clone().narrow(1, 0, half), dtype), to(x.narrow(1, half, half), dtype)))
}

/// What a group's output is in. Behind a norm come queries, keys, values, gates: their readers compute in the weights'
/// dtype. All else is a sum, or is summed over ranks, and is wide.
fn out_dtype(input: &LinearInput, layers: &[Linear], residual: Option<&AnyTensor>) -> DType {
    let wide = wide_dtype(input.tensor());
    let behind_norm = matches!(input, LinearInput::RmsNorm { .. }) && residual.is_none();
    let mut dtypes = layers.iter().map(|l| l.weight.carrier().dtype());
    match dtypes.next() {
        Some(first @ (DType::BF16 | DType::F16)) if behind_norm && dtypes.all(|d| d == first) => first,
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
    // Inputs in a fixed order: x, gamma, each layer's tensors, residual.
    let mut inputs = vec![input.tensor().clone()];
    if let LinearInput::RmsNorm { gamma, .. } = input {
        inputs.push(gamma.clone());
    }
    let before = inputs.len();
    inputs.extend(layers.iter().flat_map(Linear::tensors));
    inputs.extend(residual.cloned());
    if tokens * total == 0 {
        let device = input.tensor().plain().device();
        let none = Tensor::<2>::zeros([tokens, total], (&device, out));
        return constant(OP, &inputs, true, AnyTensor::new(none));
    }
    apply(OP, &inputs, |plain, wanted| {
        let mut input = match input {
            LinearInput::Plain(_) => Input::Plain(plain[0].clone()),
            LinearInput::SwiGlu(_) => Input::SwiGlu(plain[0].clone()),
            LinearInput::RmsNorm { eps, .. } => {
                let gamma = to(plain[1].rank::<1>()?, wide_as);
                Input::RmsNorm(Box::new(Normed { x: plain[0].clone(), gamma, eps: *eps, rstd: None }))
            }
        };
        let want_dx = wanted[..before].contains(&true);
        let (want_x, want_gamma) = (wanted[0], before == 2 && wanted[1]);
        let mut asked = wanted[before..].iter().copied();
        let mut operand = input.operand()?;
        let mut at = before;
        let (mut parts, mut group) = (Vec::new(), Vec::new());
        for layer in layers {
            let asked = Wanted::of(layer, &mut asked);
            let n = layer.tensors().len();
            let layer = Layer::new(layer, &plain[at..at + n], wide_as)?;
            at += n;
            let (y, saved) = layer.forward(&mut operand, 0, &asked);
            parts.push(to(y, out));
            group.push((layer, asked, saved));
        }
        let mut y = if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(parts, 1) };
        let residual = plain.get(at);
        if let Some(residual) = residual {
            y = y + to(residual.rank()?, out);
        }
        let residual = residual.map(|r| (r.carrier().dtype(), wanted[at]));
        let back = move |upstream: AnyTensor| -> Result<Vec<Option<AnyTensor>>, OpsError> {
            let dy = upstream.rank::<2>()?;
            let mut operand = input.operand()?;
            let (mut dx, mut entries, mut column) = (None, Vec::new(), 0);
            for ((layer, asked, saved), out) in group.into_iter().zip(outs) {
                let dy = dy.clone().narrow(1, column, out);
                column += out;
                let mut gradients = Gradients::default();
                let more = layer.backward(&mut operand, 0, saved, dy, (&asked, want_dx), &mut gradients);
                dx = match (dx, more) {
                    (into, Some(more)) => Some(add(into, more)),
                    (into, None) => into,
                };
                entries.extend(gradients.into_entries(&layer));
            }
            drop(operand);
            let (dx, d_gamma) = input.backward(dx, want_gamma)?;
            let mut all = vec![dx.filter(|_| want_x)];
            if before == 2 {
                all.push(d_gamma);
            }
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
