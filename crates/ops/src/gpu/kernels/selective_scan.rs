//! The selective scan, and its gradients.

use std::sync::Arc;

use burn::tensor::{DType, FloatDType};
use burnish_gpu_kernels as kernels;

use super::{OnDevice, of_rank};
use crate::cube::{Inputs, client, launch, launch_all};
use crate::selective_scan::{OP, SelectiveScan, Sizes};
use crate::{AnyTensor, Documents, OpsError, apply};

/// The kernel of channels and states; `None` where there is none.
fn kernel(scan: &SelectiveScan, sizes: Sizes) -> Option<kernels::SelectiveScan> {
    Inputs::of(&scan.inputs())?;
    if sizes.tokens == 0 {
        return None;
    }
    kernels::SelectiveScan::new(&client(&scan.x)?, sizes.channels, sizes.states)
}

fn wide(x: &AnyTensor) -> AnyTensor {
    if x.burn_dtype() == DType::F32 { x.clone() } else { x.cast(FloatDType::F32) }
}

/// What a kernel reads: the first six buffers and the last.
fn operands(buffers: &[kernels::Buffer]) -> kernels::SelectiveScanOperands {
    let [x, steps, log_rates, b, c, skip, .., words] = buffers else {
        unreachable!("invariant: six inputs, and the plan's words behind all others")
    };
    let [x, steps, log_rates, b, c, skip, words] = [x, steps, log_rates, b, c, skip, words].map(Clone::clone);
    kernels::SelectiveScanOperands { x, steps, log_rates, b, c, skip, words }
}

/// See [`crate::selective_scan()`]; `None` where no kernel computes it.
pub(in crate::gpu) fn selective_scan(
    scan: &SelectiveScan,
    sizes: Sizes,
    texts: &Documents,
    parents: &[Option<usize>],
) -> Option<Result<AnyTensor, OpsError>> {
    let kernel = kernel(scan, sizes)?;
    let Sizes { tokens, channels, states } = sizes;
    let device = scan.x.plain().device();
    let chunk = kernels::SelectiveScan::CHUNK;
    let OnDevice { plan, words } = texts.walked.of(chunk, texts, Some(parents), (tokens, &device));
    Some(apply(OP, &scan.inputs().map(Clone::clone), move |plain, wanted| {
        let dtypes: Vec<DType> = plain.iter().map(AnyTensor::burn_dtype).collect();
        let saved: Vec<AnyTensor> = plain.iter().map(wide).collect();
        let read = Inputs::of(&saved.iter().collect::<Vec<_>>());
        let read = read.expect("invariant: in f32 on one device").and_integers(words.clone());
        let size = [tokens, channels];
        let [y] = launch(read, [(&size, DType::F32)], |client, buffers| {
            [kernel.forward(client, &plan, &operands(&buffers))]
        });
        let (wanted, plan) = (wanted.to_vec(), Arc::clone(&plan));
        let backward = move |upstream: AnyTensor| {
            let upstream = wide(&upstream);
            let all: Vec<&AnyTensor> = saved.iter().chain([&upstream]).collect();
            let read = Inputs::of(&all).expect("invariant: in f32 on one device").and_integers(words);
            let (wide, narrow, rates) =
                (vec![tokens, channels], vec![tokens, states], vec![states, channels]);
            let shapes = [wide.clone(), wide, rates, narrow.clone(), narrow, vec![channels]];
            let outputs = shapes.into_iter().map(|shape| (shape, DType::F32)).collect();
            let made = launch_all(read, outputs, |client, buffers| {
                let found = kernel.backward(client, &plan, &operands(&buffers), &buffers[6]);
                vec![found.x, found.steps, found.log_rates, found.b, found.c, found.skip]
            });
            let gradients = made.into_iter().enumerate().map(|(input, gradient)| match input {
                2 => AnyTensor::new(of_rank::<2>(&gradient).swap_dims(0, 1)),
                5 => gradient,
                _ => match dtypes[input] {
                    DType::BF16 => gradient.cast(FloatDType::BF16),
                    DType::F16 => gradient.cast(FloatDType::F16),
                    _ => gradient,
                },
            });
            gradients.zip(wanted).map(|(gradient, wanted)| wanted.then_some(gradient)).collect()
        };
        Ok((y, Box::new(backward)))
    }))
}

/// The output of new rows and the states behind them; `None` where no kernel computes it.
pub(in crate::gpu) fn selective_scan_stepped(
    scan: &SelectiveScan,
    sizes: Sizes,
    texts: &Documents,
    states: &AnyTensor,
) -> Option<(AnyTensor, AnyTensor)> {
    let kernel = kernel(scan, sizes)?;
    let device = scan.x.device();
    let chunk = kernels::SelectiveScan::CHUNK;
    let OnDevice { plan, words } = texts.walked.of(chunk, texts, None, (sizes.tokens, &device));
    let inputs = scan.inputs().map(wide);
    let all: Vec<&AnyTensor> = inputs.iter().chain([states]).collect();
    let read = Inputs::of(&all)?.and_integers(words);
    let (y, behind) = ([sizes.tokens, sizes.channels], [texts.len(), sizes.states * sizes.channels]);
    let [y, behind] = launch(read, [(&y, DType::F32), (&behind, DType::F32)], |client, buffers| {
        kernel.forward_held(client, &plan, &operands(&buffers), &buffers[6])
    });
    Some((y, behind))
}
