//! Logits of what follows each sequence, where they were made.

#[cfg(any(feature = "cuda", feature = "wgpu"))]
use burnish_ops::RestingLogits;

/// Rows of logits.
pub(super) enum Logits {
    /// `[rows, vocab]`.
    Host(Vec<f32>),
    /// On a device.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    Resting(RestingLogits),
}

impl Logits {
    /// `[rows, vocab]`.
    pub(super) fn into_host(self) -> Vec<f32> {
        match self {
            Self::Host(logits) => logits,
            #[cfg(any(feature = "cuda", feature = "wgpu"))]
            Self::Resting(logits) => logits.to_f32(),
        }
    }
}
