//! A tensor in host memory: dtype, shape, bytes.

use std::borrow::Cow;
use std::ops::Range;

use burnish_core::{Dtype, Region};
use half::slice::HalfFloatSliceExt as _;
use half::{bf16, f16};

use crate::WeightFileError;

/// A Rust type that is one of the element types at rest.
pub trait Element: bytemuck::Pod {
    /// Its name on disk.
    const DTYPE: Dtype;
}

macro_rules! elements {
    ($($rust:ty => $dtype:ident),+ $(,)?) => {
        $(impl Element for $rust { const DTYPE: Dtype = Dtype::$dtype; })+
    };
}
elements!(f64 => F64, f32 => F32, bf16 => Bf16, f16 => F16, i64 => I64, i32 => I32, u8 => U8, i8 => I8);

/// A dense row-major tensor in its stored dtype (little endian, as in the file).
///
/// ```
/// use burnish_weight_files::HostTensor;
/// let t = HostTensor::from_slice(&[1.0_f32, -2.5], &[2, 1]).unwrap();
/// let b = t.cast(burnish_core::Dtype::Bf16);
/// assert_eq!(b.bytes.len(), 4);
/// assert_eq!(b.to_f32(), [1.0, -2.5]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostTensor {
    /// Element type.
    pub dtype: Dtype,
    /// Extent of each dim; empty for a scalar.
    pub shape: Vec<usize>,
    /// The elements, row-major, little endian.
    pub bytes: Vec<u8>,
}

impl HostTensor {
    /// A tensor of these bytes.
    ///
    /// # Errors
    /// If the bytes do not fill the shape.
    pub fn new(dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Result<Self, WeightFileError> {
        check_length(dtype, shape, bytes.len())?;
        Ok(Self { dtype, shape: shape.to_vec(), bytes })
    }

    /// A tensor of these elements.
    ///
    /// # Errors
    /// If there are not as many as the shape has.
    pub fn from_slice<T: Element>(elements: &[T], shape: &[usize]) -> Result<Self, WeightFileError> {
        Self::new(T::DTYPE, shape, bytemuck::cast_slice(elements).to_vec())
    }

    /// These values in `dtype` (rounded to nearest even).
    ///
    /// # Errors
    /// If there are not as many as the shape has.
    pub fn from_f32(values: &[f32], shape: &[usize], dtype: Dtype) -> Result<Self, WeightFileError> {
        check_length(Dtype::F32, shape, values.len() * 4)?;
        Ok(Self { dtype, shape: shape.to_vec(), bytes: encode(values, dtype) })
    }

    /// A tensor of zeros.
    #[must_use]
    pub fn zeros(dtype: Dtype, shape: &[usize]) -> Self {
        let bytes = vec![0; shape.iter().product::<usize>() * dtype.bytes()];
        Self { dtype, shape: shape.to_vec(), bytes }
    }

    /// The number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements as their own type; borrowed when the allocation is aligned for it (it nearly always is).
    ///
    /// # Errors
    /// If they are of another type.
    pub fn as_slice<T: Element>(&self) -> Result<Cow<'_, [T]>, WeightFileError> {
        if T::DTYPE != self.dtype {
            return Err(WeightFileError::WrongDtype { asked: T::DTYPE, got: self.dtype });
        }
        Ok(typed(&self.bytes))
    }

    /// The elements as f32: exact from bf16 and f16, rounded from f64 and integers.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        decode(&self.bytes, self.dtype)
    }

    /// The first element that is not a finite number, and its value; integers all are.
    ///
    /// ```
    /// use burnish_weight_files::HostTensor;
    /// let t = HostTensor::from_slice(&[1.0_f32, f32::INFINITY], &[2]).unwrap();
    /// assert_eq!(t.not_finite(), Some((1, f64::INFINITY)));
    /// ```
    #[must_use]
    pub fn not_finite(&self) -> Option<(usize, f64)> {
        // The exponent is all ones; one pass over words, without a branch inside a block.
        fn first<const N: usize>(bytes: &[u8], ones: u64) -> Option<usize> {
            let word = |chunk: &[u8; N]| {
                let mut all = [0; 8];
                all[..N].copy_from_slice(chunk);
                u64::from_le_bytes(all) & ones == ones
            };
            let words = bytes.as_chunks::<N>().0;
            let blocks =
                words.chunks(4096).position(|block| block.iter().fold(false, |any, w| any | word(w)));
            let block = blocks? * 4096;
            words[block..].iter().position(word).map(|at| block + at)
        }
        let at = match self.dtype {
            Dtype::F32 => first::<4>(&self.bytes, 0x7f80_0000),
            Dtype::Bf16 => first::<2>(&self.bytes, 0x7f80),
            Dtype::F16 => first::<2>(&self.bytes, 0x7c00),
            Dtype::F64 => first::<8>(&self.bytes, 0x7ff0_0000_0000_0000),
            _ => None,
        }?;
        let size = self.dtype.bytes();
        let element = &self.bytes[at * size..(at + 1) * size];
        let value = match self.dtype {
            Dtype::F64 => f64::from_le_bytes(element.try_into().unwrap_or_default()),
            dtype => f64::from(decode(element, dtype)[0]),
        };
        Some((at, value))
    }

    /// The same values in another dtype, through f32 (f64 to f64 and equal dtypes are copies).
    #[must_use]
    pub fn cast(&self, dtype: Dtype) -> Self {
        if dtype == self.dtype {
            return self.clone();
        }
        Self { dtype, shape: self.shape.clone(), bytes: encode(&self.to_f32(), dtype) }
    }

    /// A part of it.
    ///
    /// # Panics
    /// If the region is of another shape.
    #[must_use]
    pub fn region(&self, region: &Region) -> Self {
        let bytes = region.read_units(&self.bytes, self.dtype.bytes());
        Self { dtype: self.dtype, shape: region.local_shape(), bytes }
    }

    /// Some rows (along dim 0).
    ///
    /// # Panics
    /// If there are not so many.
    #[must_use]
    pub fn rows(&self, rows: Range<usize>) -> Self {
        self.region(&Region::rows(&self.shape, rows))
    }

    /// A matrix turned, its columns as rows; of a stack of matrices each. What is neither stays as it is.
    #[must_use]
    pub fn transposed(&self) -> Self {
        let (count, rows, columns) = match *self.shape.as_slice() {
            [rows, columns] => (1, rows, columns),
            [count, rows, columns] => (count, rows, columns),
            _ => return self.clone(),
        };
        let size = self.dtype.bytes();
        let mut bytes = Vec::with_capacity(self.bytes.len());
        for first in (0..count).map(|matrix| matrix * rows) {
            for column in 0..columns {
                for row in first..first + rows {
                    let at = (row * columns + column) * size;
                    bytes.extend_from_slice(&self.bytes[at..at + size]);
                }
            }
        }
        let mut shape = self.shape.clone();
        let last = shape.len() - 1;
        shape.swap(last - 1, last);
        Self { dtype: self.dtype, shape, bytes }
    }

    /// Puts further rows (along dim 0) of the same tensor after its own.
    pub fn append_rows(&mut self, more: Self) {
        self.shape[0] += more.shape[0];
        self.bytes.extend(more.bytes);
    }

    /// A borrowed view.
    #[must_use]
    pub fn view(&self) -> TensorView<'_> {
        TensorView { dtype: self.dtype, shape: &self.shape, bytes: &self.bytes }
    }
}

/// A borrowed tensor: of a [`HostTensor`], of a mapped file, of anyone's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorView<'a> {
    /// Element type.
    pub dtype: Dtype,
    /// Extent of each dim.
    pub shape: &'a [usize],
    /// The elements, row-major, little endian.
    pub bytes: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// A view of these elements.
    ///
    /// # Errors
    /// If there are not as many as the shape has.
    pub fn of<T: Element>(elements: &'a [T], shape: &'a [usize]) -> Result<Self, WeightFileError> {
        let bytes: &[u8] = bytemuck::cast_slice(elements);
        check_length(T::DTYPE, shape, bytes.len())?;
        Ok(Self { dtype: T::DTYPE, shape, bytes })
    }

    /// The elements as f32.
    #[must_use]
    pub fn to_f32(&self) -> Vec<f32> {
        decode(self.bytes, self.dtype)
    }

    /// An owned copy.
    #[must_use]
    pub fn to_host(&self) -> HostTensor {
        HostTensor { dtype: self.dtype, shape: self.shape.to_vec(), bytes: self.bytes.to_vec() }
    }
}

fn check_length(dtype: Dtype, shape: &[usize], got: usize) -> Result<(), WeightFileError> {
    let expected = shape.iter().product::<usize>() * dtype.bytes();
    if expected == got {
        Ok(())
    } else {
        Err(WeightFileError::WrongLength { dtype, shape: shape.to_vec(), expected, got })
    }
}

/// Bytes as elements, copied only when misaligned.
fn typed<T: Element>(bytes: &[u8]) -> Cow<'_, [T]> {
    match bytemuck::try_cast_slice(bytes) {
        Ok(slice) => Cow::Borrowed(slice),
        Err(_) => Cow::Owned(bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()),
    }
}

fn decode(bytes: &[u8], dtype: Dtype) -> Vec<f32> {
    match dtype {
        Dtype::F32 => typed::<f32>(bytes).into_owned(),
        Dtype::Bf16 => typed::<bf16>(bytes).to_f32_vec(),
        Dtype::F16 => typed::<f16>(bytes).to_f32_vec(),
        Dtype::F64 => typed::<f64>(bytes).iter().map(|&x| x as f32).collect(),
        Dtype::I64 => typed::<i64>(bytes).iter().map(|&x| x as f32).collect(),
        Dtype::I32 => typed::<i32>(bytes).iter().map(|&x| x as f32).collect(),
        Dtype::U8 => bytes.iter().map(|&x| f32::from(x)).collect(),
        Dtype::I8 => bytes.iter().map(|&x| f32::from(x.cast_signed())).collect(),
    }
}

fn encode(values: &[f32], dtype: Dtype) -> Vec<u8> {
    fn each<T: Element>(values: &[f32], convert: impl Fn(f32) -> T) -> Vec<u8> {
        let converted: Vec<T> = values.iter().map(|&x| convert(x)).collect();
        bytemuck::cast_slice(&converted).to_vec()
    }
    match dtype {
        Dtype::F32 => bytemuck::cast_slice(values).to_vec(),
        Dtype::Bf16 => each(values, bf16::from_f32),
        Dtype::F16 => each(values, f16::from_f32),
        Dtype::F64 => each(values, f64::from),
        Dtype::I64 => each(values, |x| x as i64),
        Dtype::I32 => each(values, |x| x as i32),
        Dtype::U8 => each(values, |x| x as u8),
        Dtype::I8 => each(values, |x| x as i8),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_to_nearest_even_and_widens_exactly() {
        // 1 + 2^-8 lies halfway between two bf16 values: ties go to the even one.
        let t = HostTensor::from_f32(&[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0], &[2], Dtype::Bf16).unwrap();
        assert_eq!(t.to_f32(), [1.0, 1.0 + 4.0 / 256.0]);
        assert_eq!(t.cast(Dtype::F32).cast(Dtype::Bf16), t);
    }

    #[test]
    fn wrong_lengths_and_types_are_refused() {
        assert_eq!(
            HostTensor::new(Dtype::F32, &[2, 2], vec![0; 12]).unwrap_err().to_string(),
            "float32 tensor of shape [2, 2] takes 16 bytes, got 12"
        );
        let t = HostTensor::from_slice(&[1_i64, 2], &[2]).unwrap();
        assert!(t.as_slice::<f32>().is_err());
        assert_eq!(&*t.as_slice::<i64>().unwrap(), &[1, 2]);
        assert_eq!(t.to_f32(), [1.0, 2.0]);
    }

    #[test]
    fn misaligned_bytes_are_copied() {
        let bytes: Vec<u8> = [&[0_u8][..], &1.5_f32.to_le_bytes(), &2.5_f32.to_le_bytes()].concat();
        let view = TensorView { dtype: Dtype::F32, shape: &[2], bytes: &bytes[1..] };
        assert_eq!(view.to_f32(), [1.5, 2.5]);
    }
}
