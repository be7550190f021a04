//! A step of AdamW in one launch, where the tensors lie if nobody else holds them.

use burnish_gpu_kernels as kernels;

use crate::AnyTensor;
use crate::adamw::{Adam, AdamState};
use crate::cube::{Inputs, launch};

/// The tensors back where no kernel takes them.
pub(in crate::gpu) fn adam_step(
    master: AnyTensor,
    state: AdamState,
    gradient: &AnyTensor,
    h: &Adam,
) -> Result<(AnyTensor, AdamState), (AnyTensor, AdamState)> {
    let shape = master.shape();
    let wide = |t: &AnyTensor| t.carrier().dtype() == burn::tensor::DType::F32;
    let all = [&master, &state.exp_avg, &state.exp_avg_sq];
    let Some(inputs) =
        all.iter().all(|t| wide(t)).then(|| Inputs::of(&[all[0], all[1], all[2], gradient])).flatten()
    else {
        return Err((master, state));
    };
    // What is held here may not be written to.
    drop((master, state));
    let (c1, c2) = (1.0 - h.beta1.powi(h.step as i32), 1.0 - h.beta2.powi(h.step as i32));
    let decay = h.weight_decay as f32;
    let step = kernels::AdamStep {
        grad_scale: h.grad_scale,
        keep: if h.decoupled { (1.0 - h.lr * h.weight_decay) as f32 } else { 1.0 },
        decay: if h.decoupled { 0.0 } else { decay },
        beta1: h.beta1 as f32,
        rest1: (1.0 - h.beta1) as f32,
        beta2: h.beta2 as f32,
        rest2: (1.0 - h.beta2) as f32,
        root: (1.0 / c2.sqrt()) as f32,
        eps: h.eps as f32,
        rate: (h.lr / c1) as f32,
    };
    let f32 = (shape.as_slice(), burn::tensor::DType::F32);
    let [p, exp_avg, exp_avg_sq] = launch("adam_step", inputs, [f32; 3], move |client, buffers| {
        let mut buffers = buffers.into_iter();
        let mut next = || buffers.next().expect("invariant: four inputs");
        let from = kernels::Adam { p: next(), m: next(), v: next() };
        let kernels::Adam { p, m, v } = kernels::adam_step(client, from, &next(), &step);
        [p, m, v]
    });
    Ok((p, AdamState { exp_avg, exp_avg_sq }))
}
