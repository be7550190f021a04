//! From declared dtypes to Rust's types: the one place where a dtype chooses code.

use std::ops::Range;

use burn::tensor::Device;
use burnish_comm::Bucket;
use burnish_core::{Dtype, Parameter};
use burnish_ops::AnyTensor;
pub(crate) use burnish_tensor_comm::Number;

use crate::rows::{rows_of, rows_shape};

/// Runs `$body` with `$E` as the type of a dtype that a plan allows.
macro_rules! by_dtype {
    ($dtype:expr, $E:ident => $body:expr) => {
        match $dtype {
            burnish_core::Dtype::Bf16 => {
                type $E = half::bf16;
                $body
            }
            burnish_core::Dtype::F16 => {
                type $E = half::f16;
                $body
            }
            // A plan allows f32 beside these.
            _ => {
                type $E = f32;
                $body
            }
        }
    };
}
pub(crate) use by_dtype;

/// A parameter whose every element is zero.
pub(crate) fn zeros(parameter: &Parameter, device: &Device) -> AnyTensor {
    let (rows, row) = rows_of(&parameter.shape);
    let shape = rows_shape(&parameter.shape, rows);
    by_dtype!(parameter.precision.store, E => {
        AnyTensor::from_elements(vec![E::default(); rows * row], &shape, device)
    })
}

/// A copy of some elements.
pub(crate) fn cut(value: &AnyTensor, range: Range<usize>, shape: &[usize], device: &Device) -> AnyTensor {
    if !value.is_on_host() {
        return value.piece(range, shape);
    }
    by_dtype!(value.dtype().unwrap_or(Dtype::F32), E => {
        AnyTensor::from_elements(elements::<E>(value)[range].to_vec(), shape, device)
    })
}

/// The elements of a value whose dtype was checked when it came.
pub(crate) fn elements<E: Number>(value: &AnyTensor) -> burnish_ops::Elements<E> {
    value.elements::<E>().expect("invariant: values have their declared dtype")
}

/// A value as a bucket, without a copy.
pub(crate) fn shared<E: Number>(value: &AnyTensor) -> Bucket<E> {
    burnish_tensor_comm::bucket(value).expect("invariant: values have their declared dtype")
}
