//! Attention of new tokens over what their sequences have said.

use std::ops::Range;
use std::sync::OnceLock;

use burn::tensor::Tensor;

use super::{Body, Heads, blocks::Blocks};
use crate::attention::{AttentionShape, HeadNorm, Rotary};
use crate::gpu::wide_dtype;
use crate::{AnyTensor, Documents, OpsError};

/// Positions that a sequence has room for, at least.
const ROOM: usize = 64;

/// Keys and values of one sequence, in the dtype in which they came.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    /// `[kv_heads, room, head_dim]`, of which the first `len` positions are said.
    k: Tensor<3>,
    v: Tensor<3>,
    len: usize,
}

impl Past {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Bytes of storage held.
    pub(crate) fn bytes(&self) -> usize {
        2 * self.k.dtype().size() * self.k.shape().num_elements()
    }

    /// Adds positions, where the room is without moving the others.
    fn push(past: Option<Self>, k: Tensor<3>, v: Tensor<3>) -> Self {
        let [heads, n, d] = k.dims();
        let len = past.as_ref().map_or(0, |p| p.len);
        let (old_k, old_v) = past.map(|p| (p.k, p.v)).unzip();
        let place = |old: Option<Tensor<3>>, new: Tensor<3>| {
            let room = old.as_ref().map_or(0, |old| old.dims()[1]);
            let into = match old {
                Some(old) if len + n <= room => old,
                old => {
                    let room = (len + n).max(2 * room).next_multiple_of(ROOM);
                    let more = Tensor::zeros([heads, room, d], (&new.device(), new.dtype()));
                    match old {
                        Some(old) => more.slice_assign([0..heads, 0..old.dims()[1], 0..d], old),
                        None => more,
                    }
                }
            };
            into.slice_assign([0..heads, len..len + n, 0..d], new)
        };
        Self { k: place(old_k, k), v: place(old_v, v), len: len + n }
    }
}

/// See [`crate::KvCache::attend`]: the new rows of each sequence join its past, then attend to it.
pub(crate) fn attend(
    past: &mut [Option<Past>],
    qkv: &AnyTensor,
    shape: &AttentionShape,
    documents: &[Range<usize>],
    rotary: Option<&Rotary>,
    norms: Option<&HeadNorm>,
    sinks: Option<&AnyTensor>,
) -> Result<AnyTensor, OpsError> {
    let qkv = qkv.plain();
    let [tokens, _] = crate::check::matrix(&qkv)?;
    let (device, dtype, width) = (qkv.device(), qkv.burn_dtype(), shape.heads * shape.head_dim);
    let mut out = Tensor::<2>::zeros([tokens, width], (&device, dtype));
    if tokens == 0 {
        return Ok(AnyTensor::new(out));
    }
    let before = |past: &Option<Past>| past.as_ref().map_or(0, Past::len);
    let sequences = past.iter().zip(documents).map(|(past, rows)| (rows.clone(), before(past)));
    let (apart, blocks) = Blocks::cached(shape, sequences, tokens);
    let whole = (tokens, &device, wide_dtype(&qkv));
    let mut body = Body::new(shape, &Documents::default(), rotary, (norms, sinks), whole)?;
    body.blocks = OnceLock::from(blocks);
    let new = body.prepare(&qkv, shape.scale)?;
    for ((past, rows), blocks) in past.iter_mut().zip(documents).zip(apart) {
        if rows.is_empty() {
            continue;
        }
        let own = |x: &Tensor<3>| x.clone().narrow(1, rows.start, rows.len());
        let held = Past::push(past.take(), own(&new.k), own(&new.v));
        let heads = Heads { q: new.q.clone(), k: held.k.clone(), v: held.v.clone() };
        for block in &blocks {
            let (rows, _) = body.block(&heads, block, None);
            out = out.slice_assign([block.rows.clone(), 0..width], rows);
        }
        *past = Some(held);
    }
    Ok(AnyTensor::new(out))
}
