//! Rows and columns of matrices by number, where the matrices lie: what is a copy of slices in host memory.

use burn::tensor::{Int, Tensor, TensorData};
use burnish_ops::AnyTensor;

/// Lines (rows, or columns with `dim` 1) of `matrices` laid one behind the other along `dim`; `None` is a line of zeros.
///
/// # Panics
/// Without matrices.
pub(crate) fn select(mut matrices: Vec<Tensor<2>>, dim: usize, lines: &[Option<usize>]) -> Tensor<2> {
    let all: usize = matrices.iter().map(|m| m.dims()[dim]).sum();
    let device = matrices[0].device();
    if lines.len() == all && lines.iter().enumerate().all(|(at, line)| *line == Some(at)) {
        return together(matrices, dim);
    }
    if lines.contains(&None) {
        let mut shape = matrices[0].dims();
        shape[dim] = 1;
        let dtype = matrices[0].dtype();
        matrices.push(Tensor::zeros(shape, (&device, dtype)));
    }
    // A matrix has fewer lines than an i32 counts.
    let numbers: Vec<i32> = lines.iter().map(|line| line.unwrap_or(all) as i32).collect();
    let count = numbers.len();
    let numbers = Tensor::<1, Int>::from_data(TensorData::new(numbers, [count]), &device);
    together(matrices, dim).select(dim, numbers)
}

/// `count` lines for [`select`], of which `taken` says (which, from where); the others are zeros. Of what is named several
/// times, the last.
pub(crate) fn lines(count: usize, taken: impl IntoIterator<Item = (usize, usize)>) -> Vec<Option<usize>> {
    let mut lines = vec![None; count];
    for (line, from) in taken {
        lines[line] = Some(from);
    }
    lines
}

fn together(mut matrices: Vec<Tensor<2>>, dim: usize) -> Tensor<2> {
    if matrices.len() == 1 { matrices.remove(0) } else { Tensor::cat(matrices, dim) }
}

/// A plain tensor as a matrix of `columns` columns.
pub(crate) fn matrix(x: &AnyTensor, columns: usize) -> Tensor<2> {
    let all: usize = x.shape().iter().product();
    let rows = all / columns.max(1);
    x.plain().piece(0..all, &[rows, columns]).rank().expect("invariant: two dimensions were asked for")
}

/// A matrix as a tensor of `shape`.
pub(crate) fn shaped(matrix: Tensor<2>, shape: &[usize]) -> AnyTensor {
    let all: usize = shape.iter().product();
    AnyTensor::new(matrix).piece(0..all, shape)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn lines_of_several_matrices_and_zeros() {
        let device = Device::flex();
        let x = AnyTensor::from_elements(vec![1.0_f32, 2.0, 3.0, 4.0], &[2, 2], &device);
        let y = AnyTensor::from_elements(vec![5.0_f32, 6.0], &[2], &device);
        let (x, y) = (matrix(&x, 2), matrix(&y, 2));
        let lines = [Some(2), None, Some(0)];
        let rows = shaped(select(vec![x.clone(), y], 0, &lines), &[3, 2]);
        assert_eq!(rows.to_f32(), [5.0, 6.0, 0.0, 0.0, 1.0, 2.0]);
        let columns = shaped(select(vec![x.clone(), x.clone()], 1, &lines), &[2, 3]);
        assert_eq!(columns.to_f32(), [1.0, 0.0, 1.0, 3.0, 0.0, 3.0]);
        assert_eq!(shaped(select(vec![x], 1, &[Some(0), Some(1)]), &[4]).to_f32(), [1.0, 2.0, 3.0, 4.0]);
    }
}
