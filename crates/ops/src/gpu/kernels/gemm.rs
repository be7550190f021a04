//! Products of 16-bit factors by tensor cores, and thin ones of f32 by units.

use burn::tensor::{DType, Tensor};
use burn_cubecl::kernel::{into_contiguous, untile};
use burn_cubecl::tensor::CubeTensor;
use burnish_gpu_kernels as kernels;

use super::of_rank;
use crate::AnyTensor;
use crate::cube::{Inputs, client, float, launch_on_tensors};
use crate::gpu::product::Finish;

/// Rows, columns or factors of a sum of a product of f32 that is thin: one with an adapter's factors.
const THIN: usize = 64;

/// What a kernel does not compute.
type Rest<const D: usize> = (Tensor<D>, Tensor<D>, Finish<D>);

/// `a b` of factors rounded to `factors`, finished.
pub(in crate::gpu) fn gemm<const D: usize>(
    a: Tensor<D>,
    b: Tensor<D>,
    factors: DType,
    finish: Finish<D>,
) -> Result<Tensor<D>, Rest<D>> {
    let Some((gemm, inputs)) = inputs(&a, &b, factors, &finish) else {
        return Err((a, b, finish));
    };
    let mut shape = a.dims();
    let (of_a, of_b) = (a.dims(), b.dims());
    shape[D - 1] = of_b[D - 1];
    let of = kernels::Product {
        batches: shape[..D - 2].iter().product(),
        rows: shape[D - 2],
        columns: shape[D - 1],
        depth: of_a[D - 1],
    };
    let (out, scale) = (finish.out, finish.scale);
    let more_depth = finish.more.as_ref().map(|[p, _]| p.dims()[D - 1]);
    let (adds, biased) = (finish.add.is_some(), finish.bias.is_some());
    let dtype = float(out).expect("invariant: asked for before");
    // What is held here may not be written to.
    drop((a, b, finish));
    let [y] = launch_on_tensors("gemm", inputs, [(&shape, out)], move |tensors| {
        let (client, device) = (tensors[0].client.clone(), tensors[0].device.clone());
        let mut tensors = tensors.into_iter();
        let mut next = || tensors.next().expect("invariant: as many as were given");
        let (a, b) = (matrices(next()), matrices(next()));
        let more = more_depth.map(|depth| {
            let [p, q] = [(next(), &a), (next(), &b)].map(|(m, like)| as_transposed(m, like.transposed));
            kernels::More { a: p, b: q, depth }
        });
        let added = adds.then(|| into_contiguous(next()));
        let bias = biased.then(|| matrices(next()).buffer);
        let rows = |t: &CubeTensor| kernels::Matrices::rows(buffer(t), of.rows, of.columns);
        let made = |memory, add| {
            let shape: Vec<usize> = shape.to_vec();
            let y = CubeTensor::new_contiguous(client.clone(), device.clone(), shape.into(), memory, out);
            let finish = kernels::Finish { more: more.clone(), scale, add, bias: bias.clone() };
            gemm.multiply_into(&client, of, &a, &b, &rows(&y), &finish);
            [y]
        };
        let memory = || client.empty(of.batches * of.rows * of.columns * dtype.bytes());
        match added {
            Some(add) if add.dtype == out && add.handle.can_mut() => made(add.handle, kernels::Add::Itself),
            Some(add) => made(memory(), kernels::Add::Other(rows(&add))),
            None => made(memory(), kernels::Add::Nothing),
        }
    });
    Ok(of_rank(&y))
}

/// All tensors, where there is a kernel for them.
fn inputs<const D: usize>(
    a: &Tensor<D>,
    b: &Tensor<D>,
    factors: DType,
    finish: &Finish<D>,
) -> Option<(kernels::Gemm, Inputs)> {
    let (of_a, of_b) = (a.dims(), b.dims());
    let one_batch = of_a[..D - 2] == of_b[..D - 2] && of_a.iter().chain(&of_b).all(|&n| n > 0);
    let thin = [of_a[D - 2], of_a[D - 1], of_b[D - 1]].iter().any(|&n| n <= THIN);
    if !one_batch || !(matches!(factors, DType::BF16 | DType::F16) || factors == DType::F32 && thin) {
        return None;
    }
    float(finish.out)?;
    let gemm = kernels::Gemm::new(&client(&AnyTensor::new(a.clone()))?, float(factors)?)?;
    let mut all = vec![a, b];
    all.extend(finish.more.iter().flatten());
    all.extend(&finish.add);
    let mut all: Vec<AnyTensor> = all.into_iter().map(|t| AnyTensor::new(t.clone())).collect();
    let bias = |bias: &Tensor<1>| AnyTensor::new(super::super::to(bias.clone(), DType::F32));
    all.extend(finish.bias.as_ref().map(bias));
    Some((gemm, Inputs::of(&all.iter().collect::<Vec<_>>())?))
}

/// The tensor's memory, up to its last element.
fn buffer(t: &CubeTensor) -> kernels::Buffer {
    let reach = t.meta.shape().iter().zip(t.meta.strides().iter()).map(|(&n, &step)| (n - 1) * step);
    let dtype = float(t.dtype).expect("invariant: inputs are of dtypes that kernels know");
    kernels::Buffer { handle: t.handle.clone(), len: 1 + reach.sum::<usize>(), dtype }
}

/// The matrices of a tensor as they lie, or a copy of them that lies as products can take them.
fn matrices(t: CubeTensor) -> kernels::Matrices {
    let t = untile(t);
    as_they_lie(&t).unwrap_or_else(|| {
        as_they_lie(&into_contiguous(t)).expect("invariant: contiguous rows lie as products take them")
    })
}

/// [`matrices`] whose lines are columns, or rows.
fn as_transposed(t: CubeTensor, transposed: bool) -> kernels::Matrices {
    let found = matrices(t.clone());
    if found.transposed == transposed {
        return found;
    }
    let rank = t.meta.shape().len();
    let turned = |mut t: CubeTensor| {
        t.meta.swap(rank - 2, rank - 1);
        t
    };
    if !transposed {
        return matrices(into_contiguous(t));
    }
    matrices(into_contiguous(turned(t))).transpose()
}

/// The matrices of a tensor; `None` where neither rows nor columns lie one behind the other, or batches not evenly.
fn as_they_lie(t: &CubeTensor) -> Option<kernels::Matrices> {
    let (shape, strides) = (t.meta.shape(), t.meta.strides());
    let rank = shape.len();
    let buffer = buffer(t);
    if rank < 2 {
        return (strides[0] == 1).then(|| kernels::Matrices::rows(buffer, 1, shape[0]));
    }
    let [rows, columns] = [shape[rank - 2], shape[rank - 1]];
    let [row, column] = [strides[rank - 2], strides[rank - 1]];
    let (transposed, line) = if column == 1 || columns == 1 {
        (false, row)
    } else if row == 1 || rows == 1 {
        (true, column)
    } else {
        return None;
    };
    // From matrix to matrix, however many dimensions count them.
    let mut matrix = 0;
    let mut expected = None;
    for at in (0..rank - 2).rev().filter(|&at| shape[at] > 1) {
        match expected {
            None => matrix = strides[at],
            Some(expected) if expected == strides[at] => {}
            Some(_) => return None,
        }
        expected = Some(strides[at] * shape[at]);
    }
    Some(kernels::Matrices { buffer, first: 0, line, matrix, transposed })
}
