//! Attention over pages of what sequences have said, and what moves in and between them.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burnish_gpu_kernels as kernels;

use super::flash::FlashInput;
use super::{integers, of_rank};
use crate::AnyTensor;
use crate::attention::AttentionShape;
use crate::cube::{Inputs, launch};

/// Keys and values, `[pages, 64, kv_heads, d]` each.
pub(in crate::gpu) type Pools = [AnyTensor; 2];

/// Words for a kernel.
pub(in crate::gpu) fn words(values: &[u32], device: &Device) -> Tensor<1, Int> {
    integers(values.iter().map(|&word| word.cast_signed()).collect(), device)
}

fn inputs(tensors: &[&AnyTensor], words: Tensor<1, Int>) -> Inputs {
    let all = Inputs::of(tensors).expect("invariant: pools are on a device with kernels, in its dtypes");
    all.and_integers(words)
}

fn pairs_on(pool: &AnyTensor, pairs: &[[u32; 2]]) -> Tensor<1, Int> {
    words(pairs.as_flattened(), &pool.device())
}

/// Launches a kernel that makes pools of pools of this shape.
fn pools(
    inputs: Inputs,
    (shape, dtype): (&[usize], DType),
    kernel: impl FnOnce(&kernels::Client, Vec<kernels::Buffer>) -> Pair,
) -> Pools {
    launch(inputs, [(shape, dtype); 2], kernel)
}

type Pair = [kernels::Buffer; 2];

fn form(pools: &Pools) -> (Vec<usize>, DType, usize) {
    let shape = pools[0].shape();
    let page = shape[1..].iter().product();
    (shape, pools[0].burn_dtype(), page)
}

/// The first of the inputs by their order, and the words, which are the last.
fn apart<const N: usize>(mut buffers: Vec<kernels::Buffer>) -> ([kernels::Buffer; N], kernels::Buffer) {
    let words = buffers.pop().expect("invariant: the words are the last input");
    let all = <[_; N]>::try_from(buffers).unwrap_or_else(|_| unreachable!("invariant: an input for each"));
    (all, words)
}

/// `to` with pages of `from` in it: pairs of a page of each.
pub(in crate::gpu) fn copy_pages(from: &Pools, to: Pools, pairs: &[[u32; 2]]) -> Pools {
    let (shape, dtype, page) = form(&to);
    let inputs = inputs(&[&from[0], &from[1], &to[0], &to[1]], pairs_on(&to[0], pairs));
    // What is held here may not be written to.
    drop(to);
    let count = pairs.len();
    pools(inputs, (&shape, dtype), |client, buffers| {
        let ([k, v, to_k, to_v], pairs) = apart(buffers);
        [(k, to_k), (v, to_v)].map(|(from, to)| kernels::copy_pages(client, &from, to, &pairs, count, page))
    })
}

/// The pools with some pages a second time in others.
pub(in crate::gpu) fn duplicate_pages(held: Pools, pairs: &[[u32; 2]]) -> Pools {
    let (shape, dtype, page) = form(&held);
    let inputs = inputs(&[&held[0], &held[1]], pairs_on(&held[0], pairs));
    drop(held);
    let count = pairs.len();
    pools(inputs, (&shape, dtype), |client, buffers| {
        let (all, pairs): ([_; 2], _) = apart(buffers);
        all.map(|pool| kernels::duplicate_pages(client, pool, &pairs, count, page))
    })
}

/// The pools with the input's keys and values in the places that are named for its rows.
pub(in crate::gpu) fn write_pages(
    held: Pools,
    input: &FlashInput,
    (heads, kv_heads, head_dim): (usize, usize, usize),
    places: Tensor<1, Int>,
) -> Pools {
    let (shape, dtype, _) = form(&held);
    let (own, rows, [tokens]) = (input.tensors(), matches!(input, FlashInput::Rows(_)), places.dims());
    let mut all = vec![&held[0], &held[1]];
    all.extend(&own);
    let inputs = inputs(&all, places);
    drop(held);
    pools(inputs, (&shape, dtype), |client, mut buffers| {
        let places = buffers.pop().expect("invariant: the places are the last input");
        let mut buffers = buffers.into_iter();
        let mut next = || buffers.next().expect("invariant: a buffer for each input");
        let pools = [next(), next()];
        let [_, k, v] = FlashInput::rows(rows, next, tokens, (heads, kv_heads, head_dim));
        kernels::write_pages(client, pools, [&k, &v], &places, (kv_heads, head_dim))
    })
}

/// The output `[rows, heads * d]` of the input's queries over pages.
pub(in crate::gpu) fn attend_pages(
    input: &FlashInput,
    shape: &AttentionShape,
    held: &Pools,
    (rows, words): (&kernels::PagedRows, Tensor<1, Int>),
    sinks: Option<&AnyTensor>,
) -> Tensor<2> {
    let (own, beside, tokens) = (input.tensors(), matches!(input, FlashInput::Rows(_)), rows.rows());
    let AttentionShape { heads, kv_heads, head_dim, scale, softcap, .. } = *shape;
    let of = kernels::FlashShape { heads, kv_heads, head_dim, scale, softcap };
    let device = held[0].device();
    let slopes = (!shape.slopes.is_empty()).then(|| {
        let slopes = TensorData::new(shape.slopes.to_vec(), [heads]);
        AnyTensor::new(Tensor::<1>::from_data(slopes, (&device, DType::F32)))
    });
    let mut all = vec![&held[0], &held[1]];
    all.extend(&own);
    all.extend(&slopes);
    all.extend(sinks);
    let inputs = inputs(&all, words);
    let (has_slopes, has_sinks) = (slopes.is_some(), sinks.is_some());
    let outputs = [(&[tokens, heads * head_dim][..], input.dtype())];
    let [out] = launch(inputs, outputs, |client, mut buffers| {
        let words = buffers.pop().expect("invariant: the words are the last input");
        let mut buffers = buffers.into_iter();
        let mut next = || buffers.next().expect("invariant: a buffer for each input");
        let (k, v) = (next(), next());
        let [q, ..] = FlashInput::rows(beside, &mut next, tokens, (heads, kv_heads, head_dim));
        let slopes = has_slopes.then(&mut next);
        let sinks = has_sinks.then(&mut next);
        let more = [slopes.as_ref(), sinks.as_ref()];
        [kernels::attend_pages(client, &of, rows, &words, &q, [&k, &v], more)]
    });
    of_rank(&out)
}
