//! Tensors as buckets of collectives, and back.
//!
//! In host memory a tensor's elements are posted as they are, and what comes is wrapped as it is: no copy. Elsewhere
//! (feature `cuda` or `wgpu`) they are posted where they lie, and a transport that can (`nccl`) moves them from there to
//! new memory of the same device, which becomes a tensor as it is. Other transports copy what they look at to the host,
//! once. The caller never waits for the device.
//!
//! ```
//! use burn::tensor::Device;
//! use burnish_ops::AnyTensor;
//! use burnish_tensor_comm::{bucket, tensor};
//!
//! let device = Device::flex();
//! let x = AnyTensor::from_elements(vec![1.0_f32, 2.0], &[1, 2], &device);
//! let posted = bucket::<f32>(&x).unwrap();
//! assert_eq!(tensor(posted, &[2, 1], &device).to_f32(), [1.0, 2.0]);
//! assert!(bucket::<half::bf16>(&x).is_none());
//! ```
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "cube")]
mod device_tensor;

use std::sync::Arc;

use burn::tensor::Device;
use burnish_comm::{Bucket, Gathered, Wire};
use burnish_ops::{AnyTensor, Scalar};
use half::{bf16, f16};

/// A type of weights and gradients, in tensors and between ranks: `f32`, `bf16`, `f16`.
pub trait Number: Scalar + Wire<Wide = f32> + Default {}
impl Number for f32 {}
impl Number for bf16 {}
impl Number for f16 {}

/// A tensor's elements in row-major order, to be posted; `None` if they are not of type `E`.
#[must_use]
pub fn bucket<E: Number>(tensor: &AnyTensor) -> Option<Bucket<E>> {
    if tensor.dtype() != Some(<E as Scalar>::DTYPE) {
        return None;
    }
    #[cfg(feature = "cube")]
    if let Some(memory) = device_tensor::DeviceTensor::of(tensor) {
        return Some(Bucket::on_device(Arc::new(memory)));
    }
    Some(Bucket::shared(Arc::new(tensor.elements::<E>()?)))
}

/// What came, as a plain tensor on `device`.
///
/// # Panics
/// If `shape` has another number of elements, or not 1 to 4 dimensions; if the elements lie on another device, which
/// cannot be read.
#[must_use]
pub fn tensor<E: Number>(bucket: Bucket<E>, shape: &[usize], device: &Device) -> AnyTensor {
    #[cfg(feature = "cube")]
    if let Some(there) = device_tensor::adopted(&bucket, shape, device) {
        return there;
    }
    AnyTensor::from_elements(bucket.into_vec(), shape, device)
}

/// What each rank gave, as flat tensors on `device`, in rank order.
#[must_use]
pub fn tensors<E: Number>(parts: &Gathered<E>, device: &Device) -> Vec<AnyTensor> {
    let flat = |rank| {
        let part = parts.take(rank);
        let elements = part.len();
        tensor(part, &[elements], device)
    };
    (0..parts.ranks()).map(flat).collect()
}
