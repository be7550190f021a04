//! Rows of logits: what a loss needs to know of each, and their gradient.

use burn::tensor::{DType, Int, Tensor};
use burnish_gpu_kernels as kernels;

use super::of_rank;
use crate::AnyTensor;
use crate::cube::{Inputs, launch};
use crate::gpu::head::{Targets, Upstream};
use crate::head::HeadOptions;

/// What a head does with its product.
fn scaling(o: &HeadOptions) -> kernels::Scaling {
    kernels::Scaling { scale: o.logit_scale, softcap: o.softcap.unwrap_or(0.0), temperature: o.temperature }
}

fn ids(targets: &Targets) -> Tensor<1, Int> {
    let [rows, _] = targets.ids.dims();
    targets.ids.clone().reshape([rows])
}

/// [`kernels::logit_parts`] of a product `[rows, vocab]`.
pub(in crate::gpu) fn logit_parts(z: &Tensor<2>, targets: &Targets, o: &HeadOptions) -> Option<Tensor<2>> {
    if targets.ids.dtype() != DType::I32 {
        return None;
    }
    let rows = z.dims()[0];
    let inputs = Inputs::of(&[&AnyTensor::new(z.clone()), &AnyTensor::new(targets.owned.clone())])?;
    let (inputs, scaling) = (inputs.and_integers(ids(targets)), scaling(o));
    let outputs = [(&[rows, kernels::PARTS][..], DType::F32)];
    let [parts] = launch(inputs, outputs, |client, buffers| {
        [kernels::logit_parts(client, &buffers[0], &buffers[2], &buffers[1], scaling)]
    });
    Some(of_rank(&parts))
}

/// The gradient of the product `[rows, vocab]` of the tokens from `first`, in its dtype and where it lies; the product back where no kernel takes it.
pub(in crate::gpu) fn logit_gradient(
    z: Tensor<2>,
    targets: &Targets,
    of: &Upstream,
    first: usize,
    o: &HeadOptions,
) -> Result<Tensor<2>, Tensor<2>> {
    if targets.ids.dtype() != DType::I32 {
        return Err(z);
    }
    let (shape, dtype) = (z.dims(), z.dtype());
    let entropy = of.entropy.as_ref().unwrap_or(&of.log_z);
    let known = [&targets.owned, &of.log_z, entropy, &of.gradients];
    let known = known.map(|t| AnyTensor::new(t.clone()));
    let z = AnyTensor::new(z);
    let Some(inputs) = Inputs::of(&[&z, &known[0], &known[1], &known[2], &known[3]]) else {
        return Err(of_rank(&z));
    };
    // What is held here may not be written to.
    drop(z);
    let (inputs, scaling) = (inputs.and_integers(ids(targets)), scaling(o));
    let tokens = of.gradients.dims()[1];
    let smoothing = kernels::Smoothing {
        entropy: of.entropy.is_some(),
        target: 1.0 - o.label_smoothing,
        each: (f64::from(o.label_smoothing) / of.vocab as f64) as f32,
    };
    let [dz] = launch(inputs, [(&shape, dtype)], |client, buffers| {
        let mut buffers = buffers.into_iter();
        let mut next = || buffers.next().expect("invariant: six inputs");
        let (z, owned) = (next(), next());
        let of = kernels::RowGradients { log_z: next(), entropy: next(), upstream: next(), first, tokens };
        [kernels::logit_gradient(client, z, &next(), &owned, &of, scaling, smoothing)]
    });
    Ok(of_rank(&dz))
}
