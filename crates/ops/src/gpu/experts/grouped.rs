//! All experts' rows of a layer in one launch: rows of tokens sorted by expert, each expert's filled up with zeros. Where a kernel
//! chose the experts the host knows none of them, and there are rows for any choice.

use std::ops::Range;

use burn::tensor::{DType, Int, Tensor};
use burnish_core::{Compute, ELSEWHERE, LinearPart, LinearParts, expert_tiles};

use super::groups;
use crate::experts::{ExpertLayer, Experts};
use crate::gpu::cost::matrices_of;
use crate::gpu::kernels::{
    Beside, ExpertGateBackward, ExpertRows, GROUP_ROWS, Stack, expert_gate, expert_gate_backward, integers,
    multiplies, multiply_groups, sorts_experts, sum_groups,
};
use crate::gpu::{product, to, wide};
use crate::{AnyTensor, OpsError, Routing, TokenExperts, apply};

const KERNEL: &str = "invariant: a kernel computes it on this device";

/// The experts of tokens on the device of another tensor.
pub(super) fn ids_of(chosen: &TokenExperts, beside: &AnyTensor) -> Tensor<1, Int> {
    if let Some(chosen) = chosen.as_on_device() {
        return chosen.ids.clone();
    }
    let chosen = chosen.to_host();
    integers(chosen.iter().map(|e| e.cast_signed()).collect(), &beside.plain().device())
}

/// As many times [`GROUP_ROWS`] as their rows fill at most.
fn tiles(experts: usize, chosen: &TokenExperts) -> usize {
    if chosen.as_on_device().is_some() {
        return expert_tiles(experts, chosen.len());
    }
    groups(experts, &chosen.to_host()).iter().map(|own| own.len().div_ceil(GROUP_ROWS)).sum()
}

/// All experts' layer.
pub(super) struct Layer {
    /// `[experts, out, in]`.
    pub(super) weight: AnyTensor,
    /// `[experts, out]`, in f32.
    pub(super) bias: Option<Tensor<2>>,
    pub(super) low: Option<Low>,
    /// See [`Experts::widened_together`].
    pub(super) widened_together: usize,
    /// In which rows and weight are multiplied, and the adapter's.
    pub(super) factors: DType,
    pub(super) low_factors: DType,
}

/// Rows, with what the layer's adapter makes of them by the factor that reads them.
struct Seen {
    rows: Tensor<2>,
    low: Option<Tensor<2>>,
}

/// All experts' adapter, in the dtype in which it is multiplied.
pub(super) struct Low {
    /// `[experts, r, in]`.
    pub(super) a: Tensor<3>,
    /// `[experts, out, r]`.
    pub(super) b: Tensor<3>,
    pub(super) scale: f32,
}

impl Layer {
    pub(super) fn new(
        layer: &ExpertLayer,
        plain: &LinearParts<AnyTensor>,
        (compute, widened_together): (Compute, usize),
    ) -> Result<Self, OpsError> {
        let experts = plain.weight.shape()[0];
        let low_factors = product::factors(DType::F32, DType::F32, compute);
        let low = match (&plain.lora, &layer.low_rank) {
            (Some(lora), Some(low)) => {
                let (a, b) = (to(lora.a.rank::<2>()?, low_factors), to(lora.b.rank::<2>()?, low_factors));
                let ([rows, input], [out, _]) = (a.dims(), b.dims());
                let rank = rows / experts;
                let b = b.reshape([out, rank, experts]).permute([2, 0, 1]);
                Some(Low { a: a.reshape([experts, rank, input]), b, scale: low.scale })
            }
            _ => None,
        };
        Ok(Self {
            bias: plain.bias.as_ref().map(wide::<2>).transpose()?,
            low,
            widened_together,
            factors: factors(&plain.weight, compute),
            low_factors,
            weight: plain.weight.clone(),
        })
    }

    /// The dtype of rows that come and go: that in which both are multiplied, where the adapter's rows are too.
    pub(super) fn rows(&self) -> DType {
        if self.low.is_none() || self.factors == self.low_factors { self.factors } else { DType::F32 }
    }

    /// Ranges of experts whose weights are read together.
    fn blocks(&self) -> Vec<Range<usize>> {
        let shape = self.weight.shape();
        let (experts, each) = (shape[0], shape[1..].iter().product::<usize>());
        let together = if self.weight.as_packed().is_some() {
            matrices_of(self.widened_together, each)
        } else {
            experts
        };
        (0..experts).step_by(together).map(|first| first..experts.min(first + together)).collect()
    }

    /// What one factor of the adapter makes of rows, as only its other product reads it: of inputs, or of the turned layer's.
    fn low(&self, rows: &ExpertRows, x: &Tensor<2>, turned: bool) -> Option<Tensor<2>> {
        let Low { a, b, scale } = self.low.as_ref()?;
        let stack = Stack { all: if turned { a.clone() } else { b.clone() }, turned };
        let of = (self.low_factors, *scale, self.low_factors);
        Some(multiply_groups(x, &stack, Beside::default(), &rows.groups, None, of).expect(KERNEL))
    }

    fn seen(&self, rows: &ExpertRows, x: Tensor<2>, turned: bool) -> Seen {
        Seen { low: self.low(rows, &x, turned), rows: x }
    }

    /// Rows by the layer with its bias, or the gradients of its outputs by the turned one.
    fn through(&self, rows: &ExpertRows, seen: &Seen, turned: bool) -> Result<Tensor<2>, OpsError> {
        let low = seen.low.as_ref().zip(self.low.as_ref()).map(|(p, low)| {
            let all = if turned { low.b.clone() } else { low.a.clone() };
            (p, Stack { all, turned })
        });
        let (joined, apart) = if self.factors == self.low_factors { (low, None) } else { (None, low) };
        let bias = self.bias.as_ref().filter(|_| turned);
        let shape = self.weight.shape();
        let each: usize = shape[1..].iter().product();
        let mut y = None;
        for block in self.blocks() {
            let more = joined.as_ref().map(|(p, q)| (*p, Stack { all: of_experts(&q.all, &block), turned }));
            let bias = bias.map(|bias| of_experts(bias, &block));
            let of = [block.len(), shape[1], shape[2]];
            let all = self.weight.piece(block.start * each..block.end * each, &of).rank::<3>()?;
            let (stack, of) = (Stack { all, turned }, (self.factors, 1.0, self.rows()));
            let groups = rows.groups.of(block.clone());
            let made = multiply_groups(&seen.rows, &stack, Beside { more, bias }, &groups, y.take(), of);
            y = Some(made.expect(KERNEL));
        }
        let y = y.expect("invariant: there are experts");
        Ok(match apart {
            Some((p, q)) => {
                let of = (self.low_factors, 1.0, DType::F32);
                y + multiply_groups(p, &q, Beside::default(), &rows.groups, None, of).expect(KERNEL)
            }
            None => y,
        })
    }

    /// `[rows, 1]`: what each row of gradients says of the weight of its expert's bias.
    fn of_bias(&self, rows: &ExpertRows, dy: &Tensor<2>) -> Option<Tensor<2>> {
        let stack = Stack { all: self.bias.clone()?.unsqueeze_dim(2), turned: false };
        let of = (DType::F32, 1.0, DType::F32);
        Some(multiply_groups(dy, &stack, Beside::default(), &rows.groups, None, of).expect(KERNEL))
    }

    /// The gradients of the layer's parts of what comes in, the gradients of what goes out, and what those are multiplied by for
    /// the bias, `[rows, 1]`.
    fn gradients(
        &self,
        rows: &ExpertRows,
        asked: &LinearParts<bool>,
        (x, seen, of_bias): (&Tensor<2>, &Seen, impl Fn() -> Tensor<2>),
    ) -> Vec<Option<AnyTensor>> {
        let dy = &seen.rows;
        let sums = |a: &Tensor<2>, b: &Tensor<2>, factors| {
            sum_groups(a, b, &rows.groups, (factors, DType::F32)).expect(KERNEL)
        };
        let one = |(part, asked): (LinearPart, bool)| {
            asked.then(|| match part {
                LinearPart::Weight => AnyTensor::new(sums(dy, x, self.factors)),
                LinearPart::Bias => {
                    let sums = sums(&of_bias(), dy, DType::F32);
                    let [experts, _, out] = sums.dims();
                    AnyTensor::new(sums.reshape([experts, out]))
                }
                LinearPart::LoraA => {
                    let low = seen.low.as_ref().expect("invariant: a layer with an adapter");
                    let sums = sums(low, x, self.low_factors);
                    let [experts, rank, input] = sums.dims();
                    AnyTensor::new(sums.reshape([experts * rank, input]))
                }
                LinearPart::LoraB => {
                    let low = self.low(rows, x, true).expect("invariant: a layer with an adapter");
                    let sums = sums(dy, &low, self.low_factors);
                    let [experts, out, rank] = sums.dims();
                    AnyTensor::new(sums.permute([1, 2, 0]).reshape([out, rank * experts]))
                }
                _ => unreachable!("invariant: experts have no {part}"),
            })
        };
        asked.as_ref().map(|_, asked| *asked).into_iter().map(one).collect()
    }
}

/// What a block of experts has of all of them. A part of a tensor is a copy for a kernel, the whole is not.
fn of_experts<const D: usize>(all: &Tensor<D>, block: &Range<usize>) -> Tensor<D> {
    match block.len() == all.dims()[0] {
        true => all.clone(),
        false => all.clone().narrow(0, block.start, block.len()),
    }
}

/// The dtype in which rows and a weight are multiplied.
fn factors(weight: &AnyTensor, compute: Compute) -> DType {
    product::factors(weight.burn_dtype(), DType::F32, compute)
}

/// See [`crate::experts()`]; `None` where there is no kernel, or no token.
pub(super) fn experts(
    x: &AnyTensor,
    routing: &Routing,
    experts: &Experts,
    inputs: &[AnyTensor],
) -> Option<Result<AnyTensor, OpsError>> {
    let compute = multiplied(x, experts)?;
    let any = |chosen: &TokenExperts| {
        chosen.as_on_device().is_some() || chosen.to_host().iter().any(|&e| e != ELSEWHERE)
    };
    let sorts = sorts_experts(x, experts.gate_up.weight.shape()[0]);
    (sorts && any(&routing.experts)).then(|| grouped(routing, experts, inputs, compute))
}

/// In what products of experts' layers run; `None` where no kernel multiplies them.
pub(super) fn multiplied(x: &AnyTensor, experts: &Experts) -> Option<Compute> {
    let device = x.device();
    let compute = product::on_device(&device, experts.compute);
    let all = [&experts.gate_up.weight, &experts.down.weight];
    let there = x.burn_dtype() != DType::F64
        && all.iter().all(|weight| multiplies(&device, factors(weight, compute)))
        && multiplies(&device, DType::F32);
    there.then_some(compute)
}

fn grouped(
    routing: &Routing,
    experts: &Experts,
    inputs: &[AnyTensor],
    compute: Compute,
) -> Result<AnyTensor, OpsError> {
    let (chosen, layers) = (routing.experts.clone(), experts.clone());
    let [count, ..] = experts.sizes()?;
    apply(super::OP, inputs, move |plain, wanted| {
        let (x, weights) = (plain[0].clone(), wide::<2>(&plain[1])?);
        let ([_, each], in_dtype) = (weights.dims(), x.burn_dtype());
        let mut rest = plain[2..].iter().cloned();
        let [up, down] = [&layers.gate_up, &layers.down].map(|layer| {
            let parts = layer.parts().fill(&mut rest);
            Layer::new(layer, &parts, (compute, layers.widened_together))
        });
        let (up, down) = (up?, down?);
        let mut asked = wanted[2..].iter().copied();
        let asked = [&layers.gate_up, &layers.down].map(|layer| layer.parts().fill(&mut asked));
        let (want_x, want_weights) = (wanted[0], wanted[1]);
        let (ids, tiles) = (ids_of(&chosen, &x), tiles(count, &chosen));
        let rows = ExpertRows::new(&ids, count, each, tiles, &x).expect(KERNEL);
        let of_tokens = move |rows: &ExpertRows, x: &AnyTensor, layer: &Layer| {
            rows.of_tokens(x, layer.rows()).expect(KERNEL)
        };
        let gate = layers.gate;
        let gate_up = up.through(&rows, &up.seen(&rows, of_tokens(&rows, &x, &up), true), true)?;
        let z = expert_gate(&gate_up, gate, down.rows()).expect(KERNEL);
        let out = down.through(&rows, &down.seen(&rows, z, true), true)?;
        let y = rows.to_tokens(&out, Some(&weights)).expect(KERNEL);
        let back = move |upstream: AnyTensor| -> Result<Vec<Option<AnyTensor>>, OpsError> {
            let asks = |of: &LinearParts<bool>| of.as_ref().into_iter().any(|(_, asked)| *asked);
            let dy = down.seen(&rows, of_tokens(&rows, &upstream, &down), false);
            let d = down.through(&rows, &dy, false)?;
            let more = (asks(&asked[1]).then(|| down.rows()), want_weights);
            let ExpertGateBackward { dx: d, value, dots } =
                expert_gate_backward(&gate_up, &d, (&rows, &weights), gate, up.rows(), more).expect(KERNEL);
            let none = |asked: &LinearParts<bool>| asked.as_ref().into_iter().map(|_| None).collect();
            let (mut of_up, mut of_down): (Vec<_>, Vec<_>) = (none(&asked[0]), none(&asked[1]));
            let dweights = dots.map(|dots| {
                let dots = match down.of_bias(&rows, &dy.rows) {
                    Some(of_bias) => dots + of_bias,
                    None => dots,
                };
                AnyTensor::new(rows.to_places(dots).expect(KERNEL))
            });
            if let Some(z) = value {
                let own = || rows.to_rows(&weights).expect(KERNEL);
                of_down = down.gradients(&rows, &asked[1], (&z, &dy, own));
            }
            let mut dx = None;
            if want_x || asks(&asked[0]) {
                let d = up.seen(&rows, d, false);
                if asks(&asked[0]) {
                    let x = of_tokens(&rows, &x, &up);
                    let ones = || Tensor::ones([x.dims()[0], 1], (&x.device(), DType::F32));
                    of_up = up.gradients(&rows, &asked[0], (&x, &d, ones));
                }
                if want_x {
                    let d = rows.to_tokens(&up.through(&rows, &d, false)?, None).expect(KERNEL);
                    dx = Some(AnyTensor::new(to(d, in_dtype)));
                }
            }
            Ok([dx, dweights].into_iter().chain(of_up).chain(of_down).collect())
        };
        let back = move |upstream| back(upstream).expect("invariant: ranks are as in forward");
        Ok((AnyTensor::new(y), Box::new(back)))
    })
}
