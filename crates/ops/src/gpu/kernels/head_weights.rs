//! Weights of heads of linear attention.

use burn::tensor::DType;
use burnish_gpu_kernels as kernels;

use super::of_rank;
use crate::cube::{Inputs, launch, launch_all};
use crate::gpu::to;
use crate::head_weights::{HeadSteps, OP};
use crate::{AnyTensor, OpsError, apply};

/// The buffers of the steps, the numbers of heads and, where there is that, what is learned.
fn steps(b: &[kernels::Buffer], learns: bool) -> kernels::HeadSteps<'_> {
    kernels::HeadSteps { steps: &b[0], bias: &b[1], log_rate: &b[2], learning: learns.then(|| &b[3]) }
}

/// See [`crate::head_weights()`]; `None` where no kernel computes it.
pub(in crate::gpu) fn head_weights(of: &HeadSteps) -> Option<Result<AnyTensor, OpsError>> {
    let inputs = of.inputs();
    Inputs::of(&inputs.iter().collect::<Vec<_>>())?;
    let (dtype, shape) = (of.steps.burn_dtype(), of.steps.shape());
    let learns = of.learning.is_some();
    let alike = of.learning.as_ref().is_none_or(|learning| learning.burn_dtype() == dtype);
    if !alike || dtype == DType::F16 || shape.contains(&0) {
        return None;
    }
    let (n, heads) = (shape[0] * shape[1], shape[1]);
    Some(apply(OP, &inputs, |plain, wanted| {
        let numbers = |at: usize| Ok::<_, OpsError>(AnyTensor::new(to(plain[at].rank::<1>()?, DType::F32)));
        let mut saved = vec![plain[0].clone(), numbers(1)?, numbers(2)?];
        saved.extend(plain.get(3).cloned());
        let read = |all: &[AnyTensor]| {
            Inputs::of(&all.iter().collect::<Vec<_>>()).expect("invariant: on one of CubeCL's devices")
        };
        let [weights] = launch(read(&saved), [(&[2, n], DType::F32)], |client, b| {
            [kernels::head_weights(client, steps(&b, learns))]
        });
        let wanted = wanted.to_vec();
        let of_numbers = wanted[1] || wanted[2];
        let backward = move |upstream: AnyTensor| {
            let mut outputs = vec![(shape.clone(), dtype)];
            outputs.extend(of_numbers.then(|| (vec![heads], DType::F32)));
            outputs.extend(of_numbers.then(|| (vec![heads], DType::F32)));
            outputs.extend(learns.then_some((shape, dtype)));
            saved.push(AnyTensor::new(to(of_rank::<2>(&upstream), DType::F32)));
            let read = Inputs::of(&saved.iter().collect::<Vec<_>>());
            let read = read.expect("invariant: on one of CubeCL's devices");
            let made = launch_all(read, outputs, |client, b| {
                let dy = b.last().expect("invariant: dy is the last");
                let found = kernels::head_weights_backward(client, steps(&b, learns), dy, of_numbers);
                [Some(found.steps), found.bias, found.log_rate, found.learning]
                    .into_iter()
                    .flatten()
                    .collect()
            });
            let mut made = made.into_iter();
            let of_steps = made.next();
            let [of_bias, of_rate] = [(); 2].map(|()| if of_numbers { made.next() } else { None });
            let all = [of_steps, of_bias, of_rate, made.next()].into_iter().zip(wanted);
            all.map(|(gradient, wanted)| gradient.filter(|_| wanted)).collect()
        };
        Ok((weights, Box::new(backward)))
    }))
}
