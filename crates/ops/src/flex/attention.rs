//! [`crate::attention`] on CPU kernels.

use std::ops::Range;
use std::sync::Arc;

use burnish_cpu_kernels as kernels;

use super::host::{Host, tensor};
use crate::attention::{AttentionShape, HeadNorm, Rotary};
use crate::kept::kept;
use crate::{AnyTensor, Documents, OpsError, apply};

const OP: &str = "attention";

pub(crate) fn kernel_shape<'a>(
    s: &'a AttentionShape,
    documents: &'a [Range<usize>],
    sinks: Option<&'a Host>,
) -> kernels::AttentionShape<'a> {
    kernels::AttentionShape {
        heads: s.heads,
        kv_heads: s.kv_heads,
        head_dim: s.head_dim,
        scale: s.scale,
        softcap: s.softcap,
        slopes: &s.slopes,
        sinks: sinks.map_or(&[], Host::f32),
        window: s.window,
        documents,
        parents: &s.parents,
        compute: s.compute,
    }
}

pub(crate) fn kernel_rotary(r: &Rotary) -> kernels::Rotary<'_> {
    kernels::Rotary { table: &r.table, positions: &r.positions, rotary_dim: r.rotary_dim }
}

pub(crate) fn attention(
    qkv: &AnyTensor,
    shape: &AttentionShape,
    documents: &Documents,
    rotary: Option<&Rotary>,
    norm: Option<&HeadNorm>,
    sinks: Option<&AnyTensor>,
) -> Result<AnyTensor, OpsError> {
    attend(qkv, shape, documents, rotary, norm, sinks, None)
}

pub(crate) fn attention_with_peaks(
    qkv: &AnyTensor,
    shape: &AttentionShape,
    documents: &Documents,
    rotary: Option<&Rotary>,
    norm: Option<&HeadNorm>,
    sinks: Option<&AnyTensor>,
) -> Result<(AnyTensor, AnyTensor), OpsError> {
    let mut peaks = Vec::new();
    let out = attend(qkv, shape, documents, rotary, norm, sinks, Some(&mut peaks))?;
    Ok((out, AnyTensor::from_elements(peaks, &[shape.heads], &qkv.plain().device())))
}

fn attend(
    qkv: &AnyTensor,
    shape: &AttentionShape,
    documents: &Documents,
    rotary: Option<&Rotary>,
    norm: Option<&HeadNorm>,
    sinks: Option<&AnyTensor>,
    peaks: Option<&mut Vec<f32>>,
) -> Result<AnyTensor, OpsError> {
    let [tokens, width] = crate::check::matrix(qkv)?;
    let (shape, documents, rotary) = (shape.clone(), documents.clone(), rotary.cloned());
    let mut inputs = vec![qkv.clone()];
    if let Some(n) = norm {
        inputs.extend([n.q.clone(), n.k.clone()]);
    }
    let normed = norm.is_some();
    inputs.extend(sinks.cloned());
    let eps = norm.map_or(0.0, |n| n.eps);
    apply(OP, &inputs, move |inputs, wanted| {
        let qkv = Host::f32_of(OP, "qkv", &inputs[0])?;
        let (norm, rest) = match &inputs[1..] {
            [q, k, rest @ ..] if normed => {
                (Some((Host::f32_of(OP, "q_norm", q)?, Host::f32_of(OP, "k_norm", k)?)), rest)
            }
            rest => (None, rest),
        };
        let sinks = rest.first().map(|sinks| Host::f32_of(OP, "sinks", sinks)).transpose()?;
        let kernel = kernel_shape(&shape, &documents, sinks.as_ref());
        let rotation = rotary.as_ref().map(kernel_rotary);
        let gains = norm.as_ref().map(|(q, k)| kernels::HeadNorm { q: q.f32(), k: k.f32(), eps });
        let (rotation, gains) = (rotation.as_ref(), gains.as_ref());
        let width_out = shape.heads * shape.head_dim;
        let whole = |made: kernels::AttentionOut| {
            Ok::<_, OpsError>((tensor(made.out, &[tokens, width_out]), Arc::new(made.lse)))
        };
        let (y, lse) = match peaks {
            None => kept(|| whole(kernels::attention_forward(qkv.f32(), &kernel, rotation, gains)))?,
            Some(peaks) => {
                let (made, found) = kernels::attention_forward_peaks(qkv.f32(), &kernel, rotation, gains);
                *peaks = found;
                kept(|| whole(made))?
            }
        };
        let saved = Host::of(&y).expect("invariant: made on flex");
        let wanted = wanted.to_vec();
        let backward = Box::new(move |upstream: AnyTensor| {
            let d_out = Host::of(&upstream).expect("invariant: a gradient has its output's backend");
            let grad = kernels::attention_backward(
                qkv.f32(),
                &kernel_shape(&shape, &documents, sinks.as_ref()),
                rotary.as_ref().map(kernel_rotary).as_ref(),
                norm.as_ref().map(|(q, k)| kernels::HeadNorm { q: q.f32(), k: k.f32(), eps }).as_ref(),
                saved.f32(),
                &lse,
                d_out.f32(),
            );
            let mut all = vec![Some(tensor(grad.dqkv, &[tokens, width]))];
            let keep = |g: Option<Vec<f32>>, wanted: bool| {
                g.filter(|_| wanted).map(|g| {
                    let dim = [g.len()];
                    tensor(g, &dim)
                })
            };
            if norm.is_some() {
                all.extend([keep(grad.dq_norm, wanted[1]), keep(grad.dk_norm, wanted[2])]);
            }
            if let Some(&wanted) = wanted.get(all.len()) {
                all.push(keep(grad.d_sinks, wanted));
            }
            all
        });
        Ok((y, backward))
    })
}
