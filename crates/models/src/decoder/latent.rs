//! Queries, keys and values of latents (multi-head latent attention, DeepSeek-V2, arXiv:2405.04434, section 2.1), in the
//! order in which attention takes them.
//!
//! Attention turns a head's first dimensions and has queries, keys and values of one width: the part that turns comes first,
//! the keys' is repeated for each head, and what is narrower ends with zeros. Scores do not change when the dimensions of
//! queries and keys change places together, nor by zeros.

use burn::tensor::Tensor;
use burnish_ops::{AnyTensor, OpsError};

use crate::Spec;
use crate::spec::{LatentAttention, Pairs};

/// Added to the mean square of a latent, whatever the norms of the stream have.
pub(crate) const EPS: f32 = 1e-6;

fn of(spec: &Spec) -> LatentAttention {
    spec.latent.expect("invariant: a block with latents has their sizes")
}

/// The latent of keys and values `[tokens, rank]`, and the keys' part that turns `[tokens, turned]`.
pub(crate) fn split(x: &AnyTensor, spec: &Spec) -> Result<(AnyTensor, AnyTensor), OpsError> {
    let LatentAttention { rank, turned, .. } = of(spec);
    let x = x.rank::<2>()?;
    Ok((AnyTensor::new(x.clone().narrow(1, 0, rank)), AnyTensor::new(x.narrow(1, rank, turned))))
}

/// Queries, keys and values `[tokens, 3 * heads * head_dim]`.
///
/// # Shapes
/// - q: `[tokens, heads * (still + turned)]`, kv: `[tokens, heads * (still + value)]`, turned: `[tokens, turned]`
pub(crate) fn heads(
    q: &AnyTensor,
    kv: &AnyTensor,
    turned: &AnyTensor,
    spec: &Spec,
) -> Result<AnyTensor, OpsError> {
    let LatentAttention { still, turned: r, value, .. } = of(spec);
    let d = spec.head_dim;
    let (q, kv, turned) = (q.rank::<2>()?, kv.rank::<2>()?, turned.rank::<2>()?);
    let [tokens, width] = q.dims();
    let heads = width / (still + r);
    let (q, kv) = (q.reshape([tokens, heads, still + r]), kv.reshape([tokens, heads, still + value]));
    let halves = |x: Tensor<3>| match spec.pairs {
        Pairs::Halves => x,
        Pairs::Neighbours => {
            let [tokens, heads, r] = x.dims();
            x.reshape([tokens, heads, r / 2, 2]).swap_dims(2, 3).reshape([tokens, heads, r])
        }
    };
    let wide = |parts: Vec<Tensor<3>>, width: usize| {
        let mut parts = parts;
        if width < d {
            let like = &parts[0];
            parts.push(Tensor::zeros([tokens, heads, d - width], (&like.device(), like.dtype())));
        }
        let all = if parts.len() == 1 { parts.remove(0) } else { Tensor::cat(parts, 2) };
        all.reshape([tokens, heads * d])
    };
    let of_q = vec![halves(q.clone().narrow(2, still, r)), q.narrow(2, 0, still)];
    let turned = halves(turned.reshape([tokens, 1, r])).repeat_dim(1, heads);
    let of_k = vec![turned, kv.clone().narrow(2, 0, still)];
    let of_v = vec![kv.narrow(2, still, value)];
    let all = vec![wide(of_q, still + r), wide(of_k, still + r), wide(of_v, value)];
    Ok(AnyTensor::new(Tensor::cat(all, 1)))
}

/// The dimensions of attention's output `[tokens, heads * head_dim]` that values have.
pub(crate) fn values(attended: AnyTensor, spec: &Spec) -> Result<AnyTensor, OpsError> {
    let (value, d) = (spec.value_dim(), spec.attended_dim());
    let scale = spec.narrow_values.map_or(1.0, |(_, scale)| scale);
    if value == d && scale == 1.0 {
        return Ok(attended);
    }
    let x = attended.rank::<2>()?;
    let x = if scale == 1.0 { x } else { x * scale };
    let [tokens, width] = x.dims();
    let heads = width / d;
    let own = x.reshape([tokens, heads, d]).narrow(2, 0, value);
    Ok(AnyTensor::new(own.reshape([tokens, heads * value])))
}
