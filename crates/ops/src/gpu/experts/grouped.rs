//! All experts' rows of a layer in one launch: rows of tokens sorted by expert, each expert's filled up with zeros.

use std::ops::Range;

use burn::tensor::{DType, Device, Int, Tensor};
use burnish_core::{Compute, ELSEWHERE, LinearPart, LinearParts};

use super::{activate, activate_backward, groups};
use crate::experts::{ExpertLayer, Experts};
use crate::gpu::cost::widened_together;
use crate::gpu::kernels::{
    GROUP_ROWS, Groups, NO_ROW, Places, Stack, gather_rows, integers, multiplies, multiply_groups,
    scatter_rows, sum_groups,
};
use crate::gpu::{product, sum_rows, to, wide};
use crate::{AnyTensor, OpsError, Routing, apply};

const KERNEL: &str = "invariant: a kernel computes it on this device";

/// Where the rows of tokens lie, sorted by expert.
struct Rows {
    /// For each expert, its rows in [`GROUP_ROWS`].
    tiles: Vec<usize>,
    groups: Groups,
    /// The token of each row, and its place in `[tokens, per_token]`; none of what only fills up.
    tokens: Tensor<1, Int>,
    places: Tensor<1, Int>,
    /// The row of each place; none of another rank's.
    of_places: Tensor<1, Int>,
    /// The rows of each token.
    back: Places,
}

impl Rows {
    fn new(experts: usize, chosen: &[u32], each: usize, device: &Device) -> Self {
        let by_expert = groups(experts, chosen);
        let tiles: Vec<usize> = by_expert.iter().map(|own| own.len().div_ceil(GROUP_ROWS)).collect();
        let (mut places, mut of_places) = (Vec::new(), vec![NO_ROW; chosen.len()]);
        for own in by_expert {
            for (row, &place) in (places.len()..).zip(&own) {
                of_places[place as usize] = row as i32;
            }
            places.extend(own);
            places.resize(places.len().next_multiple_of(GROUP_ROWS), NO_ROW);
        }
        let token = |place: &i32| (*place != NO_ROW).then(|| *place as usize / each);
        let back = Places::new(places.iter().map(token), chosen.len() / each, device);
        let tokens = places.iter().map(|place| token(place).map_or(NO_ROW, |token| token as i32));
        Self {
            groups: Groups::new(&tiles, device),
            tokens: integers(tokens.collect(), device),
            places: integers(places, device),
            of_places: integers(of_places, device),
            back,
            tiles,
        }
    }

    /// The rows of tokens, in `dtype`.
    fn of_tokens(&self, x: &AnyTensor, dtype: DType) -> Tensor<2> {
        gather_rows(x, &self.tokens, dtype).expect(KERNEL)
    }

    /// The weight of each row, `[rows, 1]`; 0 of what only fills up.
    fn weights(&self, weights: &Tensor<2>) -> Tensor<2> {
        let all = weights.dims().iter().product();
        let column = AnyTensor::new(weights.clone().reshape([all, 1]));
        gather_rows(&column, &self.places, weights.dtype()).expect(KERNEL)
    }

    /// The sum of each token's rows.
    fn to_tokens(&self, rows: &Tensor<2>) -> Tensor<2> {
        scatter_rows(rows, || self.back.clone(), DType::F32).expect(KERNEL)
    }
}

/// All experts' layer.
struct Layer {
    /// `[experts, out, in]`.
    weight: AnyTensor,
    /// `[experts, out]`, wide.
    bias: Option<Tensor<2>>,
    low: Option<Low>,
    /// In which rows and weight are multiplied, and what is wide.
    factors: DType,
    low_factors: DType,
}

/// Rows, with what the layer's adapter makes of them by the factor that reads them.
struct Seen {
    rows: Tensor<2>,
    low: Option<Tensor<2>>,
}

/// All experts' adapter, in the dtype in which it is multiplied.
struct Low {
    /// `[experts, r, in]`.
    a: Tensor<3>,
    /// `[experts, out, r]`.
    b: Tensor<3>,
    scale: f32,
}

impl Layer {
    fn new(layer: &ExpertLayer, plain: &LinearParts<AnyTensor>, compute: Compute) -> Result<Self, OpsError> {
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
            factors: factors(&plain.weight, compute),
            low_factors,
            weight: plain.weight.clone(),
        })
    }

    /// The dtype in which all that reads a row can read it.
    fn reads(&self) -> DType {
        if self.low.is_none() || self.factors == self.low_factors { self.factors } else { DType::F32 }
    }

    /// Ranges of experts whose weights are read together.
    fn blocks(&self) -> Vec<Range<usize>> {
        let shape = self.weight.shape();
        let (experts, each) = (shape[0], shape[1..].iter().product::<usize>());
        let together = if self.weight.as_packed().is_some() { widened_together(each) } else { experts };
        (0..experts).step_by(together).map(|first| first..experts.min(first + together)).collect()
    }

    /// What one factor of the adapter makes of rows, as only its other product reads it: of inputs, or of the turned layer's.
    fn low(&self, rows: &Rows, x: &Tensor<2>, turned: bool) -> Option<Tensor<2>> {
        let Low { a, b, scale } = self.low.as_ref()?;
        let stack = Stack { all: if turned { a.clone() } else { b.clone() }, turned };
        let of = (self.low_factors, *scale, self.low_factors);
        Some(multiply_groups(x, &stack, None, &rows.groups, of).expect(KERNEL))
    }

    fn seen(&self, rows: &Rows, x: Tensor<2>, turned: bool) -> Seen {
        Seen { low: self.low(rows, &x, turned), rows: x }
    }

    /// Rows by the layer, or the gradients of its outputs by the turned one; without the bias, wide.
    fn through(&self, rows: &Rows, seen: &Seen, turned: bool) -> Result<Tensor<2>, OpsError> {
        let x = &seen.rows;
        let low = seen.low.clone().zip(self.low.as_ref()).map(|(p, low)| {
            let all = if turned { low.b.clone() } else { low.a.clone() };
            (p, Stack { all, turned })
        });
        let (joined, apart) = if self.factors == self.low_factors { (low, None) } else { (None, low) };
        let blocks = self.blocks();
        let mut made = Vec::with_capacity(blocks.len());
        let (mut first, shape) = (0, self.weight.shape());
        let each: usize = shape[1..].iter().product();
        for block in blocks {
            let tiles = &rows.tiles[block.clone()];
            let count = tiles.iter().sum::<usize>() * GROUP_ROWS;
            if count == 0 {
                continue;
            }
            // A part of a tensor is a copy for a kernel, the whole is not.
            let whole = block.len() == rows.tiles.len();
            let groups = if whole { rows.groups.clone() } else { Groups::new(tiles, &x.device()) };
            let own = |all: &Tensor<2>| if whole { all.clone() } else { all.clone().narrow(0, first, count) };
            let more = joined.as_ref().map(|(p, q)| {
                let all = q.all.clone();
                let all = if whole { all } else { all.narrow(0, block.start, block.len()) };
                (own(p), Stack { all, turned })
            });
            let of = [block.len(), shape[1], shape[2]];
            let all = self.weight.piece(block.start * each..block.end * each, &of).rank::<3>()?;
            let (x, stack, of) = (own(x), Stack { all, turned }, (self.factors, 1.0, DType::F32));
            let more = more.as_ref().map(|(p, q)| (p, q));
            made.push(multiply_groups(&x, &stack, more, &groups, of).expect(KERNEL));
            first += count;
        }
        let y = if made.len() == 1 { made.remove(0) } else { Tensor::cat(made, 0) };
        Ok(match &apart {
            Some((p, q)) => {
                let of = (self.low_factors, 1.0, DType::F32);
                y + multiply_groups(p, q, None, &rows.groups, of).expect(KERNEL)
            }
            None => y,
        })
    }

    /// The bias of each row's expert, times what each row is multiplied by.
    fn biases(&self, rows: &Rows, by: Option<&Tensor<2>>) -> Option<Tensor<2>> {
        let bias = self.bias.as_ref()?;
        let experts = rows.tiles.iter().enumerate();
        let of_rows = experts.flat_map(|(e, &tiles)| vec![e as i32; tiles * GROUP_ROWS]).collect();
        let of_rows = integers(of_rows, &bias.device());
        let all = gather_rows(&AnyTensor::new(bias.clone()), &of_rows, DType::F32).expect(KERNEL);
        Some(match by {
            Some(by) => all * by.clone(),
            None => all,
        })
    }

    /// The gradients of the layer's parts of what comes in, the gradients of what goes out, and what those are multiplied by for
    /// the bias.
    fn gradients(
        &self,
        rows: &Rows,
        asked: &LinearParts<bool>,
        (x, seen, of_bias): (&Tensor<2>, &Seen, &Tensor<2>),
    ) -> Vec<Option<AnyTensor>> {
        let dy = &seen.rows;
        let sums = |a: &Tensor<2>, b: &Tensor<2>, factors| {
            sum_groups(a, b, &rows.groups, (factors, DType::F32)).expect(KERNEL)
        };
        let one = |(part, asked): (LinearPart, bool)| {
            asked.then(|| match part {
                LinearPart::Weight => AnyTensor::new(sums(dy, x, self.factors)),
                LinearPart::Bias => {
                    let sums = sums(of_bias, dy, DType::F32);
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
    let device = x.device();
    let compute = product::on_device(&device, experts.compute);
    let all = [&experts.gate_up.weight, &experts.down.weight];
    let there = x.burn_dtype() != DType::F64
        && all.iter().all(|weight| multiplies(&device, factors(weight, compute)))
        && multiplies(&device, DType::F32);
    let any = routing.experts.iter().any(|&e| e != ELSEWHERE);
    (there && any).then(|| grouped(routing, experts, inputs, compute))
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
            Layer::new(layer, &parts, compute)
        });
        let (up, down) = (up?, down?);
        let mut asked = wanted[2..].iter().copied();
        let asked = [&layers.gate_up, &layers.down].map(|layer| layer.parts().fill(&mut asked));
        let (want_x, want_weights) = (wanted[0], wanted[1]);
        let (gate, rows) = (layers.gate, Rows::new(count, &chosen, each, &weights.device()));
        let own = rows.weights(&weights);
        let mut gate_up = up.through(&rows, &up.seen(&rows, rows.of_tokens(&x, up.reads()), true), true)?;
        if let Some(bias) = up.biases(&rows, None) {
            gate_up = gate_up + bias;
        }
        let weighted = |x: Tensor<2>, own: &Tensor<2>, dtype| to(x * own.clone(), dtype);
        let z = weighted(activate(gate, &gate_up), &own, down.reads());
        let mut out = down.through(&rows, &down.seen(&rows, z, true), true)?;
        if let Some(bias) = down.biases(&rows, Some(&own)) {
            out = out + bias;
        }
        let y = rows.to_tokens(&out);
        let back = move |upstream: AnyTensor| -> Result<Vec<Option<AnyTensor>>, OpsError> {
            let asks = |of: &LinearParts<bool>| of.as_ref().into_iter().any(|(_, asked)| *asked);
            let dy = down.seen(&rows, rows.of_tokens(&upstream, down.reads()), false);
            let mut of_up: Vec<_> = asked[0].as_ref().into_iter().map(|_| None).collect();
            let (mut dx, mut dweights) = (None, None);
            let mut act = None;
            if want_x || want_weights || asks(&asked[0]) {
                let dz = down.through(&rows, &dy, false)?;
                let (d, value) = activate_backward(gate, &gate_up, dz.clone());
                if want_weights {
                    let mut products = sum_rows(dz * value.clone(), false);
                    if let Some(bias) = down.biases(&rows, None) {
                        products = products + sum_rows(to(dy.rows.clone(), DType::F32) * bias, false);
                    }
                    let all = products.dims()[0];
                    let products = AnyTensor::new(products.reshape([all, 1]));
                    let of_places = gather_rows(&products, &rows.of_places, DType::F32).expect(KERNEL);
                    dweights = Some(AnyTensor::new(of_places.reshape(weights.dims())));
                }
                act = Some(value);
                let d = up.seen(&rows, weighted(d, &own, up.reads()), false);
                if asks(&asked[0]) {
                    let (x, ones) = (rows.of_tokens(&x, up.reads()), own.ones_like());
                    of_up = up.gradients(&rows, &asked[0], (&x, &d, &ones));
                }
                if want_x {
                    let dx_rows = up.through(&rows, &d, false)?;
                    dx = Some(AnyTensor::new(to(rows.to_tokens(&dx_rows), in_dtype)));
                }
            }
            let mut of_down: Vec<_> = asked[1].as_ref().into_iter().map(|_| None).collect();
            if asks(&asked[1]) {
                let z = weighted(act.unwrap_or_else(|| activate(gate, &gate_up)), &own, down.reads());
                of_down = down.gradients(&rows, &asked[1], (&z, &dy, &own));
            }
            Ok([dx, dweights].into_iter().chain(of_up).chain(of_down).collect())
        };
        let back = move |upstream| back(upstream).expect("invariant: ranks are as in forward");
        Ok((AnyTensor::new(y), Box::new(back)))
    })
}
