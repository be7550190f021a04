//! A step of AdamW, of a few parameters a launch, where the tensors lie if nobody else holds them.

use burn::tensor::DType;
use burnish_gpu_kernels as kernels;

use crate::AnyTensor;
use crate::adamw::{Adam, AdamState};
use crate::cube::{Inputs, float, launch_all};

/// A parameter, its moments and its gradient.
type Item = (AnyTensor, AdamState, AnyTensor);

/// The tensors back where no kernel takes one of them.
pub(in crate::gpu) fn adam_steps(all: Vec<Item>, h: &Adam) -> Result<Vec<(AnyTensor, AdamState)>, Vec<Item>> {
    let fits = |(p, AdamState { exp_avg, exp_avg_sq }, g): &Item| {
        let wide = [p, exp_avg, exp_avg_sq].iter().all(|t| t.burn_dtype() == DType::F32);
        wide && float(g.burn_dtype()).is_some() && Inputs::of(&[p]).is_some()
    };
    if !all.iter().all(fits) {
        return Err(all);
    }
    let step = numbers(h);
    let mut made = Vec::with_capacity(all.len());
    let mut all = all.into_iter().peekable();
    while let Some(first) = all.next() {
        let dtype = first.2.burn_dtype();
        let mut group = vec![first];
        while group.len() < kernels::ADAM_TOGETHER
            && let Some(more) = all.next_if(|(_, _, g)| g.burn_dtype() == dtype)
        {
            group.push(more);
        }
        made.extend(together(group, step));
    }
    Ok(made)
}

fn together(group: Vec<Item>, step: kernels::AdamStep) -> Vec<(AnyTensor, AdamState)> {
    let tensors = |(p, AdamState { exp_avg, exp_avg_sq }, g)| [p, exp_avg, exp_avg_sq, g];
    let shapes: Vec<Vec<usize>> = group.iter().flat_map(|(p, ..)| vec![p.shape(); 3]).collect();
    // What is held here may not be written to.
    let inputs = {
        let tensors: Vec<AnyTensor> = group.into_iter().flat_map(tensors).collect();
        Inputs::of(&tensors.iter().collect::<Vec<_>>())
            .expect("invariant: on a device of kernels, in dtypes of theirs")
    };
    let outputs = shapes.into_iter().map(|shape| (shape, DType::F32)).collect();
    let made = launch_all(inputs, outputs, |client, buffers| {
        let mut buffers = buffers.into_iter();
        let mut all = Vec::new();
        while let Some(p) = buffers.next() {
            let mut next = || buffers.next().expect("invariant: four inputs for each parameter");
            let from = kernels::Adam { p, m: next(), v: next() };
            all.push((from, next()));
        }
        kernels::adam_step(client, all, &step)
            .into_iter()
            .flat_map(|kernels::Adam { p, m, v }| [p, m, v])
            .collect()
    });
    let mut made = made.into_iter();
    let mut all = Vec::new();
    while let Some(p) = made.next() {
        let mut next = || made.next().expect("invariant: three outputs for each parameter");
        all.push((p, AdamState { exp_avg: next(), exp_avg_sq: next() }));
    }
    all
}

fn numbers(h: &Adam) -> kernels::AdamStep {
    let (c1, c2) = (1.0 - h.beta1.powi(h.step as i32), 1.0 - h.beta2.powi(h.step as i32));
    let decay = h.weight_decay as f32;
    kernels::AdamStep {
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
    }
}
