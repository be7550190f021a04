//! `Tolerance`: the largest relative error per device kind and dtype, with its reason.

use burnish_device::DeviceKind;

/// Bounds of errors, relative to the largest element of what is compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Of sums and elementwise arithmetic in f32.
    pub plain: f64,
    /// Of operations with matrix products in f32.
    pub product: f64,
    /// Of operations with matrix products in bf16.
    pub half: f64,
    /// Of the figures of a run in f32 over a few steps.
    pub run: f64,
    /// Of the figures of a run with products of bf16.
    pub half_run: f64,
}

impl Tolerance {
    /// The bounds for a kind of device.
    ///
    /// The longest sums have some thousand terms: 6e-8 times their root is 2e-6 a stage, and an operation has a handful
    /// of stages. Products of f32 are multiplied in f32 on every device. bf16 has 7 bits of mantissa: 4e-3.
    #[must_use]
    pub fn of(kind: DeviceKind) -> Self {
        match kind {
            DeviceKind::Cpu => Self { plain: 1e-5, product: 2e-5, half: 2e-5, run: 1e-4, half_run: 1e-4 },
            DeviceKind::Wgpu => Self { plain: 1e-5, product: 3e-5, half: 3e-2, run: 2e-4, half_run: 3e-2 },
            DeviceKind::Cuda => Self { plain: 1e-5, product: 3e-5, half: 3e-2, run: 2e-4, half_run: 3e-2 },
        }
    }
}
