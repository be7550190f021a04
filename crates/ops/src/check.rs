//! Shapes, before any backend sees them.

use std::ops::Range;

use crate::attention::{AttentionShape, HeadNorm, Rotary};
use crate::embedding::EmbeddingLowRank;
use crate::head::VocabShard;
use crate::linear::{Linear, LinearInput};
use crate::{AnyTensor, OpsError};

/// The two dimensions of a matrix.
pub(crate) fn matrix(t: &AnyTensor) -> Result<[usize; 2], OpsError> {
    let shape = t.shape();
    match shape[..] {
        [rows, columns] => Ok([rows, columns]),
        _ => Err(OpsError::Rank { expected: 2, shape }),
    }
}

pub(crate) fn shape(
    op: &'static str,
    what: &'static str,
    got: Vec<usize>,
    expected: &[usize],
) -> Result<(), OpsError> {
    if got == expected {
        return Ok(());
    }
    Err(OpsError::Shape { op, what, got, expected: expected.to_vec() })
}

fn layer(op: &'static str, layer: &Linear, tokens: usize, in_dim: usize) -> Result<(), OpsError> {
    let out = layer.out();
    let rank = layer.low_rank.as_ref().map_or(0, |low| low.a.shape().first().copied().unwrap_or(0));
    for (part, tensor) in layer.parts() {
        shape(op, part.name(), tensor.shape(), &part.shape(false, out, in_dim, rank))?;
    }
    let Some(low) = &layer.low_rank else { return Ok(()) };
    if let Some(magnitude) = &low.magnitude {
        shape(op, "norm of the adapted weight", magnitude.norm.shape(), &[out])?;
        if low.b_bias.is_some() {
            return Err(OpsError::MagnitudeAndBias { op });
        }
    }
    match &low.dropout {
        Some(dropout) => shape(op, "dropout.rows", vec![dropout.rows.len()], &[tokens]),
        None => Ok(()),
    }
}

pub(crate) fn norms(
    op: &'static str,
    weight: &AnyTensor,
    a: &AnyTensor,
    b: &AnyTensor,
    table: bool,
) -> Result<(), OpsError> {
    let [rows, columns] = matrix(weight)?;
    let (from, to) = if table { (rows, columns) } else { (columns, rows) };
    let rank = a.shape().first().copied().unwrap_or(0);
    shape(op, "A", a.shape(), &[rank, from])?;
    shape(op, "B", b.shape(), &[to, rank])
}

pub(crate) fn linears(
    input: &LinearInput,
    layers: &[Linear],
    residual: Option<&AnyTensor>,
) -> Result<(), OpsError> {
    const OP: &str = "linears";
    let [tokens, width] = matrix(input.tensor())?;
    let in_dim = input.features(width);
    if let Some((_, true)) = input.activation() {
        shape(OP, "gate and up", vec![tokens, width], &[tokens, 2 * in_dim])?;
    }
    if let Some((gamma, beta)) = input.norm() {
        shape(OP, "gamma", gamma.shape(), &[width])?;
        if let Some(beta) = beta {
            shape(OP, "beta", beta.shape(), &[width])?;
        }
    }
    for l in layers {
        layer(OP, l, tokens, in_dim)?;
    }
    match residual {
        Some(r) => shape(OP, "residual", r.shape(), &[tokens, layers.iter().map(Linear::out).sum()]),
        None => Ok(()),
    }
}

pub(crate) fn norm(
    op: &'static str,
    x: &AnyTensor,
    gamma: &AnyTensor,
    beta: Option<&AnyTensor>,
) -> Result<(), OpsError> {
    let [_, hidden] = matrix(x)?;
    shape(op, "gamma", gamma.shape(), &[hidden])?;
    beta.map_or(Ok(()), |beta| shape(op, "beta", beta.shape(), &[hidden]))
}

pub(crate) fn embedding(
    ids: &[u32],
    weight: &AnyTensor,
    low_rank: Option<&EmbeddingLowRank>,
) -> Result<(), OpsError> {
    const OP: &str = "embedding";
    let [vocab, hidden] = matrix(weight)?;
    if let Some(&got) = ids.iter().find(|&&id| id as usize >= vocab) {
        return Err(OpsError::Index { op: OP, got: got as usize, limit: vocab });
    }
    if let Some(low) = low_rank {
        let rank = low.a.shape().first().copied().unwrap_or(0);
        shape(OP, "lora_embedding_A", low.a.shape(), &[rank, vocab])?;
        shape(OP, "lora_embedding_B", low.b.shape(), &[hidden, rank])?;
        if let Some(magnitude) = &low.magnitude {
            shape(OP, "lora_magnitude_vector", magnitude.value.shape(), &[hidden])?;
            shape(OP, "norm of the adapted table", magnitude.norm.shape(), &[hidden])?;
        }
    }
    Ok(())
}

pub(crate) fn attention(
    qkv: &AnyTensor,
    s: &AttentionShape,
    documents: &[Range<usize>],
    rotary: Option<&Rotary>,
    norm: Option<&HeadNorm>,
    sinks: Option<&AnyTensor>,
) -> Result<(), OpsError> {
    const OP: &str = "attention";
    let [tokens, width] = matrix(qkv)?;
    shape(OP, "qkv", vec![tokens, width], &[tokens, (s.heads + 2 * s.kv_heads) * s.head_dim])?;
    let mut ranges: Vec<&Range<usize>> = documents.iter().filter(|d| !d.is_empty()).collect();
    ranges.sort_by_key(|d| d.start);
    for pair in ranges.windows(2) {
        if pair[0].end > pair[1].start {
            return Err(OpsError::Overlap { first: pair[0].clone(), second: pair[1].clone() });
        }
    }
    if let Some(last) = ranges.last().filter(|d| d.end > tokens) {
        return Err(OpsError::Index { op: "attention documents", got: last.end - 1, limit: tokens });
    }
    if !s.slopes.is_empty() {
        shape(OP, "slopes", vec![s.slopes.len()], &[s.heads])?;
    }
    if !s.parents.is_empty() {
        shape(OP, "parents", vec![s.parents.len()], &[documents.len()])?;
    }
    for (document, parent) in s.parents.iter().enumerate() {
        let Some(parent) = *parent else { continue };
        if parent >= documents.len() {
            return Err(OpsError::Index { op: "attention parents", got: parent, limit: documents.len() });
        }
        if parent == document || s.parents[parent].is_some() {
            return Err(OpsError::Continued { document, parent });
        }
    }
    if let Some(r) = rotary {
        shape(OP, "rotary.positions", vec![r.positions.len()], &[tokens])?;
        let limit = r.table.len() / r.rotary_dim.max(1);
        if let Some(&got) = r.positions.iter().find(|&&p| p as usize >= limit) {
            return Err(OpsError::Index { op: "rotary", got: got as usize, limit });
        }
    }
    if let Some(n) = norm {
        shape(OP, "q_norm", n.q.shape(), &[s.head_dim])?;
        shape(OP, "k_norm", n.k.shape(), &[s.head_dim])?;
    }
    if let Some(sinks) = sinks {
        shape(OP, "sinks", sinks.shape(), &[s.heads])?;
    }
    Ok(())
}

/// `targets` is `None` where only logits are asked.
pub(crate) fn head(
    hidden: &AnyTensor,
    head: &Linear,
    shard: Option<&VocabShard>,
    targets: Option<&[u32]>,
) -> Result<(), OpsError> {
    const OP: &str = "head";
    let [tokens, dim] = matrix(hidden)?;
    layer(OP, head, tokens, dim)?;
    if let Some(shard) = shard {
        shape(OP, "weight", head.weight.shape(), &[shard.rows().len(), dim])?;
    }
    if let Some(targets) = targets {
        shape(OP, "targets", vec![targets.len()], &[tokens])?;
        let limit = shard.map_or(head.out(), VocabShard::vocab);
        if let Some(&got) = targets.iter().find(|&&t| t as usize >= limit) {
            return Err(OpsError::Index { op: OP, got: got as usize, limit });
        }
    }
    Ok(())
}
