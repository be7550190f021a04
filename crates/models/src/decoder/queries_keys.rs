//! Queries, keys and values between the linears and attention: held in bounds, normed over their whole width, brought into
//! the order of columns that attention's rotation takes, turned before a norm of each head, grown with their position.
//!
//! Most families need none of it. Attention's scores do not change when the dimensions of queries and keys change places
//! together: neighbours that turn together become halves that do.

use std::sync::Arc;

use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use burnish_ops::{
    AnyTensor, ColumnNorm, ColumnOrder, OpsError, Rotary, clamp, norm_columns, permute_columns,
};

use crate::Spec;
use crate::decoder::layers::NormTensors;
use crate::decoder::tp_plan::Shard;
use crate::spec::names::QkvNames;
use crate::spec::{Grows, KeysValues, LayerSpec, Pairs, QkNorm};

/// How a block's queries and keys are turned.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turning {
    /// The rotation; none where the block has none.
    pub(crate) rotary: Option<Rotary>,
    /// The columns of queries, keys and values as attention takes them, where the linears have another order.
    order: Option<Arc<ColumnOrder>>,
    factors: Factors,
    /// Where keys and values come from.
    keys: KeysValues,
}

impl Turning {
    /// The turning of a block whose spec is `own`, by the rotations of this row of tokens.
    pub(crate) fn new(own: LayerSpec, rotaries: &[Rotary], orders: &Orders, factors: &Factors) -> Self {
        let rotary = own.rope.and_then(|rope| rotaries.get(rope).cloned());
        let order = if rotary.is_some() { &orders.turned } else { &orders.still };
        let grows = rotary.is_none() || factors.grows == Some(Grows::All);
        let factors = Factors { growth: factors.growth.clone().filter(|_| grows), ..factors.clone() };
        Self { rotary, order: order.clone(), factors, keys: own.keys }
    }

    /// The rotation that attention does itself.
    pub(crate) fn in_attention(&self, spec: &Spec) -> Option<&Rotary> {
        let before = matches!(spec.qk_norm, Some(QkNorm::PerHeadRotated | QkNorm::PerHeadRotatedBare));
        self.rotary.as_ref().filter(|_| !before)
    }
}

/// The orders of columns of a rank's queries, keys and values; none where they are as attention takes them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orders {
    /// Of blocks that turn.
    turned: Option<Arc<ColumnOrder>>,
    /// Of blocks that do not.
    still: Option<Arc<ColumnOrder>>,
}

impl Orders {
    /// Those of `heads` query heads and `kv_heads` key and value heads.
    pub(crate) fn new(spec: &Spec, heads: usize, kv_heads: usize) -> Self {
        let d = spec.head_dim;
        let (each, quarter) = (heads / kv_heads.max(1), (spec.heads / 4).max(1));
        // The place of head `h` of queries (0), keys (1) or values (2) in what the linears give.
        let place = |part: usize, h: usize| match (spec.names.qkv, part) {
            (QkvNames::PerGroup(_), 0) => (h / each * (each + 2) + h % each) * d,
            (QkvNames::PerGroup(_), _) => (h * (each + 2) + each + part - 1) * d,
            // Values before keys.
            (QkvNames::Quarters(_), _) => ((h / quarter * 3 + [0, 2, 1][part]) * quarter + h % quarter) * d,
            (_, 0) => h * d,
            (_, 1) => (heads + h) * d,
            (_, _) => (heads + kv_heads + h) * d,
        };
        let order = |turned: usize| -> Option<Arc<ColumnOrder>> {
            let within = |c: usize| match c {
                c if c < turned / 2 => 2 * c,
                c if c < turned => 2 * (c - turned / 2) + 1,
                c => c,
            };
            let mut from = Vec::with_capacity((heads + 2 * kv_heads) * d);
            for (part, count) in [(0, heads), (1, kv_heads), (2, kv_heads)] {
                for h in 0..count {
                    from.extend((0..d).map(|c| place(part, h) + if part < 2 { within(c) } else { c }));
                }
            }
            let moves = from.iter().enumerate().any(|(to, &from)| to != from);
            ColumnOrder::new(&from).filter(|_| moves).map(Arc::new)
        };
        let neighbours = spec.pairs == Pairs::Neighbours;
        let turned = spec.ropes.first().map_or(0, |rope| rope.dim);
        Self { turned: order(if neighbours { turned } else { 0 }), still: order(0) }
    }
}

/// What follows from positions alone, for all blocks of a pass.
#[derive(Clone, Debug, Default)]
pub(crate) struct Factors {
    /// What each token's query is multiplied by; none where all are one.
    growth: Option<Arc<Vec<f32>>>,
    /// In which blocks.
    grows: Option<Grows>,
    /// What stands behind each head's query, key and value, `[tokens, 3 * heads, columns]`, where something does.
    behind: Option<Arc<Vec<f32>>>,
}

impl Factors {
    /// Of tokens at `positions`, for the heads of `shard`.
    pub(crate) fn new(spec: &Spec, shard: &Shard, positions: &[u32]) -> Self {
        let grows = spec.query_growth.map(|growth| growth.grows);
        Self { growth: growth(spec, positions), grows, behind: behind(spec, shard, positions) }
    }
}

/// What queries of these positions are multiplied by; none where all are one.
fn growth(spec: &Spec, positions: &[u32]) -> Option<Arc<Vec<f32>>> {
    let growth = spec.query_growth?;
    let of = |&p: &u32| {
        let times = (u64::from(p) + growth.shift as u64) / growth.original as u64;
        (1.0 + growth.beta * ((1 + times) as f64).ln()) as f32
    };
    let all: Vec<f32> = positions.iter().map(of).collect();
    all.iter().any(|&f| f != 1.0).then(|| Arc::new(all))
}

/// One behind each query, slope times position behind each key, both and their product rounded to bfloat16.
fn behind(spec: &Spec, shard: &Shard, positions: &[u32]) -> Option<Arc<Vec<f32>>> {
    if spec.rounded_slopes.is_empty() {
        return None;
    }
    let rounded = |x: f32| half::bf16::from_f32(x).to_f32();
    let slopes = &spec.rounded_slopes[shard.first_head..][..shard.heads];
    let (heads, columns) = (shard.heads, spec.attended_dim() - spec.head_dim);
    let mut all = vec![0.0; positions.len() * 3 * heads * columns];
    for (row, &position) in all.chunks_exact_mut((3 * heads * columns).max(1)).zip(positions) {
        for (head, &slope) in slopes.iter().enumerate() {
            row[head * columns] = 1.0;
            row[(heads + head) * columns] = rounded(rounded(slope) * rounded(position as f32));
        }
    }
    Some(Arc::new(all))
}

/// Queries, keys and values as attention takes them; `lent` are keys and values of another block, as they were there.
/// `what` names the collectives of ranks that share a norm.
///
/// # Shapes
/// - qkv: `[tokens, (heads + 2 * kv_heads) * head_dim]`, less what [`KeysValues`] says; output: all of it
pub(crate) fn prepared(
    qkv: AnyTensor,
    spec: &Spec,
    shard: &Shard,
    norms: Option<&(NormTensors, NormTensors)>,
    turning: &Turning,
    lent: Option<&AnyTensor>,
    what: &str,
) -> Result<AnyTensor, OpsError> {
    let mut qkv = qkv;
    if turning.keys == KeysValues::KeysAsValues {
        let (x, width) = (qkv.rank::<2>()?, shard.kv_heads * spec.head_dim);
        let keys = x.clone().narrow(1, shard.heads * spec.head_dim, width);
        qkv = AnyTensor::new(Tensor::cat(vec![x, keys], 1));
    }
    if spec.narrow_values.is_some() {
        qkv = with_wide_values(&qkv, spec, shard)?;
    }
    if let (Some(QkNorm::PerHeadAndValues), Some(norms)) = (spec.qk_norm, norms) {
        qkv = heads_and_values_normed(&qkv, spec, shard, norms, lent.is_none())?;
    }
    if let Some(lent) = lent {
        qkv = AnyTensor::new(Tensor::cat(vec![qkv.rank::<2>()?, lent.rank::<2>()?], 1));
    }
    if let (Some(QkNorm::WholeWidth), Some(norms)) = (spec.qk_norm, norms) {
        qkv = whole_width(&qkv, spec, shard, norms, what)?;
    }
    // OLMoE's are of what is normed; of the others none norms the whole width.
    if let Some(c) = spec.clip_qkv {
        qkv = clamp(&qkv, c)?;
    }
    // Norms of heads read their dimensions as the linears give them, but find them where attention does.
    let of_heads = norms.filter(|_| matches!(spec.qk_norm, Some(QkNorm::PerHeadLayer { .. })));
    let grouped = matches!(spec.names.qkv, QkvNames::PerGroup(_));
    if let Some(norms) = of_heads.filter(|_| !grouped) {
        qkv = heads_normed(&qkv, spec, shard, norms, None)?;
    }
    if let Some(order) = &turning.order {
        qkv = permute_columns(&qkv, order)?;
    }
    if let Some(norms) = of_heads.filter(|_| grouped) {
        qkv = heads_normed(&qkv, spec, shard, norms, None)?;
    }
    let rotated = matches!(spec.qk_norm, Some(QkNorm::PerHeadRotated | QkNorm::PerHeadRotatedBare));
    if let Some(norms) = norms.filter(|_| rotated) {
        qkv = heads_normed(&qkv, spec, shard, norms, turning.rotary.as_ref())?;
    }
    if let Some(behind) = &turning.factors.behind {
        qkv = widened(&qkv, behind, spec, shard)?;
    }
    grown(qkv, spec, shard, turning)
}

/// Queries, keys and values with queries that have grown with their positions.
pub(crate) fn grown(
    qkv: AnyTensor,
    spec: &Spec,
    shard: &Shard,
    turning: &Turning,
) -> Result<AnyTensor, OpsError> {
    let Some(growth) = &turning.factors.growth else { return Ok(qkv) };
    let width = shard.heads * spec.head_dim;
    let x = qkv.rank::<2>()?;
    let data = TensorData::new(growth.to_vec(), [growth.len(), 1]);
    let factors = Tensor::<2>::from_data(data, (&x.device(), x.dtype()));
    let rest = x.dims()[1] - width;
    let queries = x.clone().narrow(1, 0, width) * factors;
    Ok(AnyTensor::new(Tensor::cat(vec![queries, x.narrow(1, width, rest)], 1)))
}

/// Queries, keys and values with zeros behind each head's values, where they are narrower than a head.
fn with_wide_values(qkv: &AnyTensor, spec: &Spec, shard: &Shard) -> Result<AnyTensor, OpsError> {
    let (d, narrow) = (spec.head_dim, spec.value_dim());
    if narrow == d {
        return Ok(qkv.clone());
    }
    let x = qkv.rank::<2>()?;
    let (tokens, first) = (x.dims()[0], (shard.heads + shard.kv_heads) * d);
    let values =
        x.clone().narrow(1, first, shard.kv_heads * narrow).reshape([tokens, shard.kv_heads, narrow]);
    let zeros = Tensor::zeros([tokens, shard.kv_heads, d - narrow], (&x.device(), x.dtype()));
    let values = Tensor::cat(vec![values, zeros], 2).reshape([tokens, shard.kv_heads * d]);
    Ok(AnyTensor::new(Tensor::cat(vec![x.narrow(1, 0, first), values], 1)))
}

/// Queries, keys and values `[tokens, 3 * heads * head_dim]`, with `behind` behind each head's: each query head gets keys and
/// values of its own.
fn widened(qkv: &AnyTensor, behind: &[f32], spec: &Spec, shard: &Shard) -> Result<AnyTensor, OpsError> {
    let (d, wide) = (spec.head_dim, spec.attended_dim());
    let x = qkv.rank::<2>()?;
    let tokens = x.dims()[0];
    let heads = 3 * shard.heads;
    let x = match (shard.heads, shard.kv_heads) {
        (all, kv) if all == kv => x,
        (all, kv) => {
            let each = |at: usize| {
                let own = x.clone().narrow(1, (all + at * kv) * d, kv * d).reshape([tokens, kv, 1, d]);
                own.repeat_dim(2, all / kv).reshape([tokens, all * d])
            };
            Tensor::cat(vec![x.clone().narrow(1, 0, all * d), each(0), each(1)], 1)
        }
    };
    let data = TensorData::new(behind.to_vec(), [tokens, heads, wide - d]);
    let behind = Tensor::<3>::from_data(data, (&x.device(), x.dtype()));
    let all = Tensor::cat(vec![x.reshape([tokens, heads, d]), behind], 2);
    Ok(AnyTensor::new(all.reshape([tokens, heads * wide])))
}

/// Queries, keys and values `[tokens, (heads + 2 * kv_heads) * head_dim]`, and the gates that stand in what the linears give:
/// behind each query (`[tokens, heads * head_dim]`), or behind all ([`Spec::gates_apart`] for each head).
pub(crate) fn apart_from_gates(
    x: &AnyTensor,
    spec: &Spec,
    shard: &Shard,
) -> Result<(AnyTensor, AnyTensor), OpsError> {
    let (d, heads) = (spec.head_dim, shard.heads);
    let x = x.rank::<2>()?;
    let [tokens, width] = x.dims();
    if let Some(each) = spec.gates_apart() {
        let part = |from: usize, to: usize| AnyTensor::new(x.clone().narrow(1, from, to - from));
        let first = width - heads * each;
        return Ok((part(0, first), part(first, width)));
    }
    let first = 2 * heads * d;
    let of_heads = x.clone().narrow(1, 0, first).reshape([tokens, heads, 2 * d]);
    let half = |at: usize| of_heads.clone().narrow(2, at * d, d).reshape([tokens, heads * d]);
    let qkv = Tensor::cat(vec![half(0), x.narrow(1, first, width - first)], 1);
    Ok((AnyTensor::new(qkv), AnyTensor::new(half(1))))
}

/// In another float dtype, on the tape.
pub(crate) fn cast<const D: usize>(x: Tensor<D>, dtype: DType) -> Tensor<D> {
    let to = match dtype {
        DType::F64 => FloatDType::F64,
        DType::BF16 => FloatDType::BF16,
        DType::F16 => FloatDType::F16,
        _ => FloatDType::F32,
    };
    if x.dtype() == dtype { x } else { x.cast(to) }
}

/// RMSNorm of all queries and of all keys of a token; ranks that share them sum their squares.
fn whole_width(
    qkv: &AnyTensor,
    spec: &Spec,
    shard: &Shard,
    (of_q, of_k): &(NormTensors, NormTensors),
    what: &str,
) -> Result<AnyTensor, OpsError> {
    let (q_width, k_width) = (shard.heads * spec.head_dim, shard.kv_heads * spec.head_dim);
    if !shard.divided() {
        let norm = |first: usize, width: usize, norm: &NormTensors| ColumnNorm {
            first,
            groups: 1,
            width,
            gamma: norm.gamma.clone(),
            beta: None,
        };
        let norms = [norm(0, q_width, of_q), norm(q_width, k_width, of_k)];
        return norm_columns(qkv, &norms, false, spec.norm_eps, None);
    }
    let x = qkv.rank::<2>()?;
    let (q, k) = (x.clone().narrow(1, 0, q_width), x.clone().narrow(1, q_width, k_width));
    let v = x.narrow(1, q_width + k_width, k_width);
    let dtype = v.dtype();
    let (q, k) = (cast(q, DType::F32), cast(k, DType::F32));
    let squares = |x: &Tensor<2>| x.clone().powi_scalar(2).sum_dim(1);
    // Keys that several ranks have count once.
    let owned = k.clone()
        * Tensor::<1>::from_data(
            TensorData::new(shard.key_shares.to_vec(), [k_width]),
            (&k.device(), DType::F32),
        )
        .unsqueeze();
    let own = AnyTensor::new(Tensor::cat(vec![squares(&q), (owned * k.clone()).sum_dim(1)], 1));
    let what = format!("{what}: squares of queries and keys");
    let all = shard.tp.copy_to_tp(&shard.tp.reduce_from_tp(&own, &what)?, &what)?.rank::<2>()?;
    let normed = |x: Tensor<2>, at: usize, width: usize, gamma: &AnyTensor| {
        let mean = all.clone().narrow(1, at, 1) / width as f32;
        let rstd = (mean + spec.norm_eps).sqrt().recip();
        Ok::<_, OpsError>(cast(x * rstd * gamma.rank::<1>()?.unsqueeze(), dtype))
    };
    let (q_all, k_all) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    let (q, k) = (normed(q, 0, q_all, &of_q.gamma)?, normed(k, 1, k_all, &of_k.gamma)?);
    Ok(AnyTensor::new(Tensor::cat(vec![q, k, v], 1)))
}

/// The norm of each head of queries and, where they are there, of keys and of values.
fn heads_and_values_normed(
    qkv: &AnyTensor,
    spec: &Spec,
    shard: &Shard,
    (of_q, of_k): &(NormTensors, NormTensors),
    keys: bool,
) -> Result<AnyTensor, OpsError> {
    let d = spec.head_dim;
    let norm = |before: usize, groups: usize, gamma: &AnyTensor| ColumnNorm {
        first: before * d,
        groups,
        width: d,
        gamma: gamma.clone(),
        beta: None,
    };
    let (heads, kv_heads) = (shard.heads, shard.kv_heads);
    let mut norms = vec![norm(0, heads, &of_q.gamma)];
    if keys {
        let ones = AnyTensor::from_elements(vec![1.0_f32; d], &[d], &qkv.device());
        norms.push(norm(heads, kv_heads, &of_k.gamma));
        norms.push(norm(heads + kv_heads, kv_heads, &ones));
    }
    norm_columns(qkv, &norms, false, spec.norm_eps, None)
}

/// The norm of each head of queries and of keys, which `rotary` turns first.
pub(crate) fn heads_normed(
    qkv: &AnyTensor,
    spec: &Spec,
    shard: &Shard,
    (of_q, of_k): &(NormTensors, NormTensors),
    rotary: Option<&Rotary>,
) -> Result<AnyTensor, OpsError> {
    let d = spec.head_dim;
    let norm = |before: usize, groups: usize, norm: &NormTensors| ColumnNorm {
        first: before * d,
        groups,
        width: d,
        gamma: norm.gamma.clone(),
        beta: norm.beta.clone(),
    };
    let norms = [norm(0, shard.heads, of_q), norm(shard.heads, shard.kv_heads, of_k)];
    let centered = matches!(spec.qk_norm, Some(QkNorm::PerHeadLayer { .. }));
    norm_columns(qkv, &norms, centered, spec.norm_eps, rotary)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::ConfigFile;

    /// Biases of Transformers' `build_alibi_tensor` for 12 heads, beyond 256 positions and of slopes that are no powers of
    /// two.
    #[test]
    fn rounded_biases_equal_falcon_s() {
        let config = serde_json::json!({
            "model_type": "falcon", "vocab_size": 4, "hidden_size": 24, "num_hidden_layers": 1,
            "num_attention_heads": 12, "alibi": true, "multi_query": false,
        });
        let spec = Spec::from_config(&ConfigFile { json: config.as_object().unwrap().clone() }).unwrap();
        let columns = spec.attended_dim() - spec.head_dim;
        let positions = [0, 1, 7, 257, 1000, 1199];
        let all = behind(&spec, &Shard::whole(&spec), &positions).unwrap();
        for (head, want) in [
            (0, [0.0, 0.5, 3.5, 128.0, 500.0, 600.0]),
            (8, [0.0, 0.707_031_25, 4.937_5, 181.0, 708.0, 848.0]),
            (11, [0.0, 0.088_378_906, 0.617_187_5, 22.625, 88.5, 106.0]),
        ] {
            for (token, want) in want.into_iter().enumerate() {
                let of = |part: usize| all[((token * 3 + part) * 12 + head) * columns];
                assert_eq!(
                    [of(0), of(1), of(2)],
                    [1.0, want, 0.0],
                    "head {head}, position {}",
                    positions[token]
                );
            }
        }
    }
}
