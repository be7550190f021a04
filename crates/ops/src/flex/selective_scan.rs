//! [`crate::selective_scan()`] on CPU kernels.

use std::ops::Range;

use burn::tensor::FloatDType;
use burnish_cpu_kernels as kernels;

use super::host::{Host, tensor};
use crate::selective_scan::{OP, SelectiveScan, Sizes};
use crate::{AnyTensor, Documents, Dtype, OpsError, apply};

/// What the kernels read, in f32.
struct Read {
    tokens: [Host; 4],
    log_rates: Vec<f32>,
    skip: Vec<f32>,
}

impl Read {
    /// Of the inputs in the order of [`SelectiveScan::inputs`].
    fn of([x, steps, log_rates, b, c, skip]: [&AnyTensor; 6]) -> Result<Self, OpsError> {
        let wide = |what, t: &AnyTensor| match t.dtype() {
            Some(Dtype::Bf16 | Dtype::F16) => Host::f32_of(OP, what, &t.cast(FloatDType::F32)),
            _ => Host::f32_of(OP, what, t),
        };
        let tokens = [wide("x", x)?, wide("steps", steps)?, wide("b", b)?, wide("c", c)?];
        // Small, and in whichever dtype they are stored.
        Ok(Self { tokens, log_rates: log_rates.to_f32(), skip: skip.to_f32() })
    }

    fn call<'a>(
        &'a self,
        documents: &'a [Range<usize>],
        parents: &'a [Option<usize>],
    ) -> kernels::SelectiveScan<'a> {
        let ([x, steps, b, c], Self { log_rates, skip, .. }) = (self.tokens.each_ref().map(Host::f32), self);
        kernels::SelectiveScan { x, steps, log_rates, b, c, skip, documents, parents }
    }
}

/// See [`crate::selective_scan()`].
pub(crate) fn selective_scan(
    scan: &SelectiveScan,
    Sizes { tokens, channels, states }: Sizes,
    texts: &Documents,
    parents: &[Option<usize>],
) -> Result<AnyTensor, OpsError> {
    let (texts, parents) = (texts.clone(), parents[..parents.len().min(texts.len())].to_vec());
    apply(OP, &scan.inputs().map(Clone::clone), move |plain, wanted| {
        let inputs: &[AnyTensor; 6] = plain.try_into().expect("invariant: as many as were given");
        let read = Read::of(inputs.each_ref())?;
        let y = kernels::selective_scan_forward(&read.call(&texts, &parents), None);
        let (wanted, dtypes) = (wanted.to_vec(), inputs.each_ref().map(AnyTensor::dtype));
        let backward = move |upstream: AnyTensor| {
            let dy = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            let found = kernels::selective_scan_backward(&read.call(&texts, &parents), dy.f32());
            let (wide, narrow) = ([tokens, channels], [tokens, states]);
            let of_tokens = |values: Vec<f32>, shape: &[usize], input: usize| {
                let gradient = tensor(values, shape);
                match dtypes[input] {
                    Some(Dtype::Bf16) => gradient.cast(FloatDType::BF16),
                    Some(Dtype::F16) => gradient.cast(FloatDType::F16),
                    _ => gradient,
                }
            };
            let all = [
                of_tokens(found.x, &wide, 0),
                of_tokens(found.steps, &wide, 1),
                tensor(found.log_rates, &[channels, states]),
                of_tokens(found.b, &narrow, 3),
                of_tokens(found.c, &narrow, 4),
                tensor(found.skip, &[channels]),
            ];
            all.into_iter().zip(wanted).map(|(gradient, wanted)| wanted.then_some(gradient)).collect()
        };
        Ok((tensor(y, &[tokens, channels]), Box::new(backward)))
    })
}

/// The output of new rows and the states behind them, `[texts, states * channels]`.
pub(crate) fn stepped(
    scan: &SelectiveScan,
    Sizes { tokens, channels, states: numbers }: Sizes,
    texts: &Documents,
    states: AnyTensor,
) -> Result<(AnyTensor, AnyTensor), OpsError> {
    let read = Read::of(scan.inputs())?;
    let mut held = Host::f32_of(OP, "states", &states)?;
    drop(states);
    let (call, size) = (read.call(texts, &[]), [tokens, channels]);
    if let Some(own) = held.own_f32() {
        let y = kernels::selective_scan_forward(&call, Some(own));
        let states = held.into_tensor().expect("invariant: a tensor, as it was");
        return Ok((tensor(y, &size), states));
    }
    let mut own = held.f32().to_vec();
    let y = kernels::selective_scan_forward(&call, Some(&mut own));
    Ok((tensor(y, &size), tensor(own, &[texts.len(), numbers * channels])))
}
