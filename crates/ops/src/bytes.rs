//! A tensor's elements on the host, without a copy where the tensor is there already.

use std::ops::{Deref, Range};

use burn::tensor::{Device, Element, Shape, Tensor, TensorData};
use burnish_core::Dtype;
use half::{bf16, f16};

use crate::AnyTensor;

mod sealed {
    /// What only this module implements.
    pub trait Sealed: Sized {
        /// The elements of a contiguous tensor of this type.
        #[cfg(feature = "flex")]
        fn slice(tensor: &burn_flex::FlexTensor) -> Option<&[Self]>;
        /// The elements, in place where nobody else holds them.
        #[cfg(feature = "flex")]
        fn slice_mut(tensor: &mut burn_flex::FlexTensor) -> &mut [Self];
    }
}

/// A type that a weight or a gradient may have: `f32`, `bf16`, `f16`.
pub trait Scalar: sealed::Sealed + Element + Send + Sync + 'static {
    /// Its name.
    const DTYPE: Dtype;
}

macro_rules! scalar {
    ($type:ty, $dtype:ident) => {
        impl sealed::Sealed for $type {
            #[cfg(feature = "flex")]
            fn slice(tensor: &burn_flex::FlexTensor) -> Option<&[Self]> {
                tensor.as_slice::<$type>()
            }
            #[cfg(feature = "flex")]
            fn slice_mut(tensor: &mut burn_flex::FlexTensor) -> &mut [Self] {
                tensor.storage_mut::<$type>()
            }
        }
        impl Scalar for $type {
            const DTYPE: Dtype = Dtype::$dtype;
        }
    };
}

scalar!(f32, F32);
scalar!(bf16, Bf16);
scalar!(f16, F16);

/// A tensor's elements in row-major order: a view of its storage on the CPU, which it keeps alive, and a copy elsewhere.
#[derive(Clone, Debug)]
pub struct Elements<E: Scalar>(Held<E>);

#[derive(Clone, Debug)]
enum Held<E> {
    #[cfg(feature = "flex")]
    View(burn_flex::FlexTensor, std::marker::PhantomData<E>),
    Copy(Vec<E>),
}

impl<E: Scalar> AsRef<[E]> for Elements<E> {
    fn as_ref(&self) -> &[E] {
        match &self.0 {
            #[cfg(feature = "flex")]
            Held::View(tensor, _) => E::slice(tensor).expect("invariant: contiguous, of this type"),
            Held::Copy(values) => values,
        }
    }
}

impl<E: Scalar> Deref for Elements<E> {
    type Target = [E];

    fn deref(&self) -> &[E] {
        self.as_ref()
    }
}

impl AnyTensor {
    /// The elements; `None` if the tensor is of another dtype.
    #[must_use]
    pub fn elements<E: Scalar>(&self) -> Option<Elements<E>> {
        if self.dtype() != Some(E::DTYPE) {
            return None;
        }
        #[cfg(feature = "flex")]
        if let Ok(flex) = self.carrier().inner().try_into_primitive::<burn::backend::Flex>() {
            let flex = if flex.is_contiguous() { flex } else { flex.to_contiguous() };
            return Some(Elements(Held::View(flex, std::marker::PhantomData)));
        }
        let values = self.to_data().try_into_vec::<E>().ok()?;
        Some(Elements(Held::Copy(values)))
    }

    /// A plain tensor around `values`, without a copy on the CPU.
    ///
    /// # Panics
    /// If `shape` has another number of elements, or not 1 to 4 dimensions.
    #[must_use]
    pub fn from_elements<E: Scalar>(values: Vec<E>, shape: &[usize], device: &Device) -> Self {
        Self::from_data(TensorData::new(values, Shape::from(shape.to_vec())), device)
    }

    /// Changes the elements, in place where nobody else holds them; as it was if the tensor is of another dtype.
    #[must_use]
    pub fn edited<E: Scalar>(self, change: impl FnOnce(&mut [E])) -> Self {
        if self.dtype() != Some(E::DTYPE) {
            return self;
        }
        let (shape, device) = (self.shape(), self.device());
        #[cfg(feature = "flex")]
        if crate::flex::holds([&self]) {
            let mut flex = crate::flex::adamw::flex(self.plain_owned());
            change(E::slice_mut(&mut flex));
            return Self::new(Tensor::<1>::from_primitive::<burn::backend::Flex>(flex));
        }
        let mut values = self.elements::<E>().map(|e| e.to_vec()).unwrap_or_default();
        change(&mut values);
        Self::from_elements(values, &shape, &device)
    }

    /// Elements `range` of this tensor, flattened, as a tensor of `shape`: a view on the CPU.
    ///
    /// # Panics
    /// If the range is not within the tensor, or `shape` has another number of elements or not 1 to 4 dimensions.
    #[must_use]
    pub fn piece(&self, range: Range<usize>, shape: &[usize]) -> Self {
        let all = self.shape().iter().product::<usize>();
        if range.is_empty() {
            let data = TensorData::from_bytes_vec(Vec::new(), shape.to_vec(), self.burn_dtype());
            return Self::from_data(data, &self.device());
        }
        if let Some(rows) = self.packed_rows(&range, shape) {
            return rows;
        }
        let flat: Tensor<1> = match self.shape().len() {
            1 => Tensor::from_dispatch(self.clone().dispatch()),
            2 => Tensor::<2>::from_dispatch(self.clone().dispatch()).reshape([all]),
            3 => Tensor::<3>::from_dispatch(self.clone().dispatch()).reshape([all]),
            _ => Tensor::<4>::from_dispatch(self.clone().dispatch()).reshape([all]),
        };
        let cut = if range == (0..all) { flat } else { flat.slice([range]) };
        match *shape {
            [_] => Self::new(cut),
            [a, b] => Self::new(cut.reshape([a, b])),
            [a, b, c] => Self::new(cut.reshape([a, b, c])),
            [a, b, c, d] => Self::new(cut.reshape([a, b, c, d])),
            _ => unreachable!("invariant: parameters have rank 1 to 4, not {}", shape.len()),
        }
    }

    /// Elements `range` of a matrix in fewer bits where they are whole rows, without those of other rows.
    fn packed_rows(&self, range: &Range<usize>, shape: &[usize]) -> Option<Self> {
        let [_, width] = self.as_packed()?.shape();
        let whole = width > 0 && [range.start, range.end].iter().all(|end| end.is_multiple_of(width));
        whole.then(|| self.widened_rows(range.start / width..range.end / width, shape))?
    }

    /// The tensor outside autodiff, without another handle to its storage.
    fn plain_owned(self) -> Self {
        if self.is_tracked() { self.plain() } else { self }
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn elements_are_the_tensors_own_storage() {
        let device = Device::flex();
        let values: Vec<bf16> = (0..6).map(|i| bf16::from_f32(i as f32)).collect();
        let at = values.as_ptr();
        let tensor = AnyTensor::from_elements(values, &[3, 2], &device);
        assert_eq!(tensor.shape(), [3, 2]);
        assert_eq!(tensor.dtype(), Some(Dtype::Bf16));
        assert_eq!(tensor.elements::<bf16>().unwrap().as_ptr(), at);
        assert!(tensor.elements::<f32>().is_none());
        let tensor = tensor.edited::<bf16>(|e| e[5] = bf16::from_f32(7.0));
        assert_eq!(tensor.elements::<bf16>().unwrap().as_ptr(), at);
        assert_eq!(tensor.to_f32(), [0.0, 1.0, 2.0, 3.0, 4.0, 7.0]);
    }

    #[test]
    fn an_edit_leaves_other_holders_their_values() {
        let tensor = AnyTensor::from_elements(vec![1.0_f32, 2.0], &[2], &Device::flex());
        let other = tensor.clone();
        let held = tensor.elements::<f32>().unwrap();
        let edited = tensor.edited::<f32>(|e| e[0] = 5.0);
        assert_eq!(
            (edited.to_f32(), other.to_f32(), held.to_vec()),
            (vec![5.0, 2.0], vec![1.0, 2.0], vec![1.0, 2.0])
        );
    }

    #[test]
    fn a_piece_is_a_view_with_a_shape() {
        let tensor = AnyTensor::from_elements((0..12).map(|i| i as f32).collect(), &[12], &Device::flex());
        let piece = tensor.piece(2..8, &[3, 2]);
        assert_eq!(piece.shape(), [3, 2]);
        assert_eq!(piece.to_f32(), [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
        let (whole, part) = (tensor.elements::<f32>().unwrap(), piece.elements::<f32>().unwrap());
        assert_eq!(part.as_ptr(), whole[2..].as_ptr());
        assert_eq!(piece.edited::<f32>(|e| e[0] = 9.0).to_f32()[0], 9.0);
        assert_eq!(tensor.to_f32()[2], 2.0);
        assert_eq!(tensor.piece(0..12, &[2, 3, 2]).piece(10..12, &[2]).to_f32(), [10.0, 11.0]);
    }

    #[test]
    fn nothing_has_elements_too() {
        let tensor = AnyTensor::from_elements(Vec::<f32>::new(), &[0, 3], &Device::flex());
        assert_eq!(tensor.shape(), [0, 3]);
        assert!(tensor.elements::<f32>().unwrap().is_empty());
        assert_eq!(tensor.piece(0..0, &[4, 0]).shape(), [4, 0]);
    }
}
