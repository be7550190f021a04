//! Products of 16-bit factors by tensor cores, and thin ones of f32 by units.

use burn::tensor::{DType, Device, Tensor};
use burn_cubecl::kernel::{into_contiguous, untile};
use burn_cubecl::tensor::CubeTensor;
use burnish_gpu_kernels as kernels;

use super::of_rank;
use crate::AnyTensor;
use crate::cube::{Inputs, client, client_of, float, launch_on_tensors};
use crate::gpu::product::Finish;

/// Rows, columns or factors of a sum of a product of f32 that is thin: one with an adapter's factors.
const THIN: usize = 64;

/// Whether the device multiplies factors of a dtype by a kernel.
pub(in crate::gpu) fn multiplies(device: &Device, factors: DType) -> bool {
    let gemm = || kernels::Gemm::new(&client_of(device)?, float(factors)?);
    gemm().is_some()
}

/// What a kernel does not compute.
type Rest<const D: usize> = (Tensor<D>, Tensor<D>, Finish<D>);

/// `a b` of factors rounded to `factors`, finished.
pub(in crate::gpu) fn gemm<const D: usize>(
    a: Tensor<D>,
    b: Tensor<D>,
    factors: DType,
    finish: Finish<D>,
) -> Result<Tensor<D>, Box<Rest<D>>> {
    let Some((asked, tensors)) = Asked::new(&a, &b, factors, &finish) else {
        return Err(Box::new((a, b, finish)));
    };
    let Some(inputs) = Inputs::of(&tensors.iter().collect::<Vec<_>>()) else {
        return Err(Box::new((a, b, finish)));
    };
    let mut shape = a.dims();
    shape[D - 1] = asked.of.columns;
    let out = finish.out;
    // What is held here may not be written to.
    drop((a, b, finish, tensors));
    let [y] = launch_on_tensors(inputs, |tensors| {
        let (client, device) = (tensors[0].client.clone(), tensors[0].device.clone());
        let Asked { gemm, of, .. } = asked;
        let Read { a, b, mut finish, added } = asked.read(&mut tensors.into_iter());
        let rows = |t: &CubeTensor| kernels::Matrices::rows(buffer(t), of.rows, of.columns);
        let made = |memory, finish| {
            let shape: Vec<usize> = shape.to_vec();
            let y = CubeTensor::new_contiguous(client.clone(), device.clone(), shape.into(), memory, out);
            gemm.multiply_into(&client, of, &a, &b, &rows(&y), &finish);
            [y]
        };
        let memory = || client.empty(of.batches * of.rows * of.columns * out.size());
        match added {
            Some(add) if add.dtype == out && add.handle.can_mut() => {
                finish.add = kernels::Add::Itself;
                made(add.handle, finish)
            }
            added => {
                finish.add = added.map_or(kernels::Add::Nothing, |add| kernels::Add::Other(rows(&add)));
                made(memory(), finish)
            }
        }
    });
    Ok(of_rank(&y))
}

/// Products of as many rows beside each other, of factors rounded to `factors`, finished, to which nothing is added; gives
/// them back where there is no kernel for one of them.
pub(in crate::gpu) fn gemm_beside(products: Vec<(Rest<2>, DType)>) -> Result<Tensor<2>, Vec<Rest<2>>> {
    let out = products[0].0.2.out;
    let fits = |((_, _, finish), _): &(Rest<2>, DType)| finish.add.is_none() && finish.out == out;
    let asked: Option<Vec<_>> = products
        .iter()
        .map(|product| {
            let ((a, b, finish), factors) = product;
            fits(product).then(|| Asked::new(a, b, *factors, finish))?
        })
        .collect();
    let rest = |products: Vec<(Rest<2>, DType)>| products.into_iter().map(|(rest, _)| rest).collect();
    let Some(asked) = asked else { return Err(rest(products)) };
    let (asked, tensors): (Vec<_>, Vec<_>) = asked.into_iter().unzip();
    let Some(inputs) = Inputs::of(&tensors.iter().flatten().collect::<Vec<_>>()) else {
        return Err(rest(products));
    };
    let (rows, width) = (asked[0].of.rows, asked.iter().map(|asked| asked.of.columns).sum());
    let [y] = launch_on_tensors(inputs, |tensors| {
        let (client, device) = (tensors[0].client.clone(), tensors[0].device.clone());
        let memory = client.empty(rows * width * out.size());
        let y = CubeTensor::new_contiguous(client.clone(), device, [rows, width].into(), memory, out);
        let mut tensors = tensors.into_iter();
        let mut d = kernels::Matrices::rows(buffer(&y), rows, width);
        for asked in &asked {
            let Read { a, b, finish, .. } = asked.read(&mut tensors);
            asked.gemm.multiply_into(&client, asked.of, &a, &b, &d, &finish);
            d.first += asked.of.columns;
        }
        [y]
    });
    Ok(of_rank(&y))
}

/// A product for which there is a kernel: all that is known before its tensors are there.
#[derive(Clone, Copy)]
struct Asked {
    gemm: kernels::Gemm,
    of: kernels::Product,
    more_depth: Option<usize>,
    adds: bool,
    biased: bool,
    scale: f32,
}

/// A product's tensors as kernels take them.
struct Read {
    a: kernels::Matrices,
    b: kernels::Matrices,
    /// Without what is added.
    finish: kernels::Finish,
    added: Option<CubeTensor>,
}

impl Asked {
    /// With all its tensors in the order of [`Self::read`].
    fn new<const D: usize>(
        a: &Tensor<D>,
        b: &Tensor<D>,
        factors: DType,
        finish: &Finish<D>,
    ) -> Option<(Self, Vec<AnyTensor>)> {
        let (of_a, of_b) = (a.dims(), b.dims());
        let one_batch = of_a[..D - 2] == of_b[..D - 2] && of_a.iter().chain(&of_b).all(|&n| n > 0);
        let thin = [of_a[D - 2], of_a[D - 1], of_b[D - 1]].iter().any(|&n| n <= THIN);
        if !one_batch || !(matches!(factors, DType::BF16 | DType::F16) || factors == DType::F32 && thin) {
            return None;
        }
        float(finish.out)?;
        let asked = Self {
            gemm: kernels::Gemm::new(&client(&AnyTensor::new(a.clone()))?, float(factors)?)?,
            of: kernels::Product {
                batches: of_a[..D - 2].iter().product(),
                rows: of_a[D - 2],
                columns: of_b[D - 1],
                depth: of_a[D - 1],
            },
            more_depth: finish.more.as_ref().map(|[p, _]| p.dims()[D - 1]),
            adds: finish.add.is_some(),
            biased: finish.bias.is_some(),
            scale: finish.scale,
        };
        let mut all = vec![a, b];
        all.extend(finish.more.iter().flatten());
        all.extend(&finish.add);
        let mut all: Vec<AnyTensor> = all.into_iter().map(|t| AnyTensor::new(t.clone())).collect();
        let bias = |bias: &Tensor<1>| AnyTensor::new(super::super::to(bias.clone(), DType::F32));
        all.extend(finish.bias.as_ref().map(bias));
        Some((asked, all))
    }

    /// The next tensors, which are this product's.
    fn read(&self, tensors: &mut impl Iterator<Item = CubeTensor>) -> Read {
        let mut next = || tensors.next().expect("invariant: as many as were given");
        let (a, b) = (matrices(next()), matrices(next()));
        let more = self.more_depth.map(|depth| {
            let [p, q] = [(next(), &a), (next(), &b)].map(|(m, like)| as_transposed(m, like.transposed));
            kernels::More { a: p, b: q, depth }
        });
        let added = self.adds.then(|| into_contiguous(next()));
        let bias = self.biased.then(|| matrices(next()).buffer);
        let finish = kernels::Finish { more, scale: self.scale, add: kernels::Add::Nothing, bias };
        Read { a, b, finish, added }
    }
}

/// The tensor's memory, up to its last element.
fn buffer(t: &CubeTensor) -> kernels::Buffer {
    let reach = t.meta.shape().iter().zip(t.meta.strides().iter()).map(|(&n, &step)| (n - 1) * step);
    let dtype = float(t.dtype).expect("invariant: inputs are of dtypes that kernels know");
    kernels::Buffer { handle: t.handle.clone(), len: 1 + reach.sum::<usize>(), dtype }
}

/// The matrices of a tensor as they lie, or a copy of them that lies as products can take them.
pub(super) fn matrices(t: CubeTensor) -> kernels::Matrices {
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
