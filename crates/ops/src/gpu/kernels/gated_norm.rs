//! A gate behind a norm, or before it.

use burn::tensor::DType;
use burnish_gpu_kernels as kernels;

use crate::cube::{Inputs, float, launch_all};
use crate::gated_norm::{GroupNorm, OP};
use crate::gpu::to;
use crate::{AnyTensor, OpsError, apply};

/// See [`crate::gated_norm()`]; `None` where no kernel computes it.
pub(in crate::gpu) fn gated_norm(
    x: &AnyTensor,
    gate: &AnyTensor,
    norm: Option<&GroupNorm>,
) -> Option<Result<AnyTensor, OpsError>> {
    let (shape, dtype) = (x.shape(), gate.burn_dtype());
    let gamma = norm.map(|norm| &norm.gamma);
    let inputs: Vec<AnyTensor> = [x, gate].into_iter().chain(gamma).cloned().collect();
    Inputs::of(&inputs.iter().collect::<Vec<_>>())?;
    let to_dtype = float(dtype)?;
    if x.burn_dtype() != DType::F32 || !shape.iter().all(|&n| n > 0) {
        return None;
    }
    let rows = shape[0];
    let (group, eps, before_gate) =
        norm.map_or((shape[1], 0.0, true), |norm| (norm.group, norm.eps, norm.before_gate));
    Some(apply(OP, &inputs, move |plain, wanted| {
        let gamma = plain.get(2).map(|gamma| Ok::<_, OpsError>(to(gamma.rank::<1>()?, DType::F32)));
        let gamma = gamma.transpose()?.map(AnyTensor::new);
        let (x, gate) = (plain[0].clone(), plain[1].clone());
        let read = |more: Option<&AnyTensor>| {
            let all: Vec<&AnyTensor> = [&x, &gate].into_iter().chain(&gamma).chain(more).collect();
            Inputs::of(&all).expect("invariant: on one of CubeCL's devices")
        };
        let has_gamma = gamma.is_some();
        let y = launch_all(read(None), vec![(shape.clone(), dtype)], |client, b| {
            let gamma = has_gamma.then(|| &b[2]);
            vec![kernels::gated_norm(client, &b[0], &b[1], gamma, rows, group, before_gate, eps, to_dtype)]
        });
        let of_gamma = wanted.get(2).is_some_and(|wanted| *wanted);
        let (wanted, shape) = (wanted.to_vec(), shape.clone());
        let read = {
            let (x, gate, gamma) = (x.clone(), gate.clone(), gamma.clone());
            move |dy: &AnyTensor| {
                let all: Vec<&AnyTensor> = [&x, &gate].into_iter().chain(&gamma).chain([dy]).collect();
                Inputs::of(&all).expect("invariant: on one of CubeCL's devices")
            }
        };
        let gains = gamma.map(|gamma| gamma.shape());
        let backward = move |upstream: AnyTensor| {
            let mut outputs = vec![(shape.clone(), DType::F32), (shape, dtype)];
            outputs.extend(gains.filter(|_| of_gamma).map(|gains| (gains, DType::F32)));
            let made = launch_all(read(&upstream), outputs, |client, b| {
                let (gamma, dy) = (has_gamma.then(|| &b[2]), b.last().expect("invariant: dy is the last"));
                let (x, gate) = (&b[0], &b[1]);
                let found = kernels::gated_norm_backward(
                    client,
                    x,
                    gate,
                    gamma,
                    dy,
                    rows,
                    group,
                    before_gate,
                    eps,
                    of_gamma,
                );
                [Some(found.x), Some(found.gate), found.gamma].into_iter().flatten().collect()
            });
            let mut made = made.into_iter();
            let [x, gate] = [(); 2].map(|()| made.next());
            let all = [x, gate, made.next()].into_iter().zip(wanted);
            all.map(|(gradient, wanted)| gradient.filter(|_| wanted)).collect()
        };
        let y = y.into_iter().next().expect("invariant: one output");
        Ok((y, Box::new(backward)))
    }))
}
