//! Attention alone, forward and backward.

use std::sync::Arc;

use anyhow::Result;
use burn::tensor::{Distribution, FloatDType, Tensor};
use burnish_device::DeviceKind;
use burnish_ops::{AnyTensor, AttentionShape, attention};

use super::{Bench, Measured, median};
use crate::Context;

pub(super) fn benches(context: &Context) -> Vec<Bench> {
    let lengths: &[usize] = if context.quick { &[128] } else { &[2048, 8192] };
    // Elsewhere activations are f32.
    let (label, dtype) =
        if context.kind == DeviceKind::Cuda { ("bf16", FloatDType::BF16) } else { ("f32", FloatDType::F32) };
    let bench = |&length: &usize| -> Bench {
        let name = format!("attention, rows of {length}, 16 heads of 128, {label}");
        let named = name.clone();
        (name, Box::new(move |context, _| measure(context, &named, length, dtype)))
    };
    lengths.iter().map(bench).collect()
}

fn measure(context: &Context, name: &str, length: usize, dtype: FloatDType) -> Result<Measured> {
    let device = &context.device;
    let rows = if context.quick { 1 } else { 16_384 / length };
    let tokens = rows * length;
    let shape = AttentionShape {
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        scale: 128f32.powf(-0.5),
        softcap: None,
        slopes: Arc::default(),
        window: None,
        parents: Arc::default(),
        compute: Default::default(),
    };
    let documents = (0..rows).map(|row| row * length..(row + 1) * length).collect();
    let width = (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
    let qkv = Tensor::<2>::random([tokens, width], Distribution::Normal(0.0, 1.0), device);
    let qkv = AnyTensor::new(qkv).cast(dtype);
    let seconds = median(device, if context.quick { 2 } else { 5 }, || {
        let qkv = qkv.leaf();
        let out = attention(&qkv, &shape, &documents, None, None, None)?;
        let mut gradients = out.rank::<2>()?.sum().backward();
        anyhow::ensure!(qkv.take_gradient(&mut gradients).is_some(), "no gradient");
        Ok(())
    })?;
    // Two products forward and five backward over the half of the pairs that is visible.
    let work = 7.0 * 2.0 * (tokens * length / 2 * shape.heads * shape.head_dim) as f64;
    let bound = "products by tiles, and the exponential; no score goes through memory, backward makes them again twice";
    Ok(Measured::new(context, name, [seconds, tokens as f64, work], bound))
}
