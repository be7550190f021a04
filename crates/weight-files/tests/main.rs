//! The store against the file system: reading what others write, writing what nothing can tear.
#![allow(clippy::unwrap_used, reason = "tests")]

mod full_disk;
mod reading;
mod shared;
mod writing;

use burnish_core::Dtype;
use burnish_weight_files::HostTensor;

/// A tensor of small numbers that differ by position.
fn ramp(dtype: Dtype, shape: &[usize]) -> HostTensor {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (i % 251) as f32 - 100.0).collect();
    HostTensor::from_f32(&values, shape, dtype).unwrap()
}
