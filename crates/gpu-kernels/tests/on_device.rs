//! A device for tests, and numbers to and from it.

use burnish_gpu_kernels::{Buffer, Client, FloatType};
use cubecl_runtime::runtime::Runtime;

#[cfg(feature = "cuda")]
type Device = cubecl::cuda::CudaRuntime;
#[cfg(all(feature = "wgpu", not(feature = "cuda")))]
type Device = cubecl_wgpu::WgpuRuntime;

pub(crate) fn client() -> Client {
    Device::client(&Default::default())
}

/// The dtypes that the device computes with.
pub(crate) fn dtypes() -> &'static [FloatType] {
    if cfg!(feature = "cuda") { &[FloatType::F32, FloatType::Bf16] } else { &[FloatType::F32] }
}

/// What stays of a number in a dtype.
pub(crate) fn rounded(dtype: FloatType, value: f32) -> f32 {
    match dtype {
        FloatType::F32 => value,
        FloatType::Bf16 => half::bf16::from_f32(value).to_f32(),
        FloatType::F16 => half::f16::from_f32(value).to_f32(),
    }
}

/// Half of the distance of two neighbours in a dtype, for numbers about 1.
pub(crate) fn rounding(dtype: FloatType) -> f64 {
    match dtype {
        FloatType::F32 => 6e-8,
        FloatType::Bf16 => 4e-3,
        FloatType::F16 => 5e-4,
    }
}

pub(crate) fn upload(client: &Client, dtype: FloatType, values: &[f32]) -> Buffer {
    let bytes: Vec<u8> = match dtype {
        FloatType::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        FloatType::Bf16 => values.iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect(),
        FloatType::F16 => values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect(),
    };
    Buffer { handle: client.create_from_slice(&bytes), len: values.len(), dtype }
}

pub(crate) fn download(client: &Client, buffer: &Buffer) -> Vec<f32> {
    let bytes = client.read_one(buffer.handle.clone()).unwrap();
    let each = buffer.dtype.bytes();
    bytes[..buffer.len * each]
        .chunks_exact(each)
        .map(|b| match buffer.dtype {
            FloatType::F32 => f32::from_le_bytes(b.try_into().unwrap()),
            FloatType::Bf16 => half::bf16::from_le_bytes(b.try_into().unwrap()).to_f32(),
            FloatType::F16 => half::f16::from_le_bytes(b.try_into().unwrap()).to_f32(),
        })
        .collect()
}

/// Numbers between -1 and 1, the same each time, as a dtype holds them.
pub(crate) fn numbers(dtype: FloatType, n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        rounded(dtype, state as f32 / 2_147_483_648.0 - 1.0)
    };
    (0..n).map(|_| next()).collect()
}

/// Holds every element to `bound` times its size, the largest one's hundredth, or a millionth, whichever is more.
#[track_caller]
pub(crate) fn close(what: &str, got: &[f32], expected: &[f64], bound: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    for (i, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        let error = (f64::from(got) - expected).abs();
        let allowed = bound * expected.abs().max(largest / 100.0).max(1e-6);
        assert!(error <= allowed, "{what}[{i}]: {got}, not {expected} ({error:e} > {allowed:e})");
    }
}

/// 32-bit integers.
pub(crate) fn upload_integers(client: &Client, values: &[u32]) -> Buffer {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Buffer { handle: client.create_from_slice(&bytes), len: values.len(), dtype: FloatType::F32 }
}

pub(crate) fn in_f64(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}
