//! MXFP4, as gpt-oss keeps its experts: four bits an element and a power of two for every 32 (OCP Microscaling, 1.0).

use std::sync::OnceLock;

use burnish_core::Scheme;

use crate::error::QuantError;

/// What codes stand for before their scale (E2M1; the upper bit is the sign).
pub(crate) const VALUES: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The largest scale that is read: 6 * 2^125.
const LARGEST: u8 = 127 + 125;

/// The power of two of a scale, whose exponent is 127 too large.
pub(crate) fn power(scale: u8) -> f32 {
    2.0_f32.powi(i32::from(scale) - 127)
}

/// [`power`] of all scales that are read.
pub(crate) fn powers() -> &'static [f32; 256] {
    static POWERS: OnceLock<[f32; 256]> = OnceLock::new();
    POWERS.get_or_init(|| std::array::from_fn(|scale| power((scale as u8).min(LARGEST))))
}

/// Codes two a byte, the first in the upper half, of codes two a byte, the first in the lower half.
pub(crate) fn turned(mut blocks: Vec<u8>) -> Vec<u8> {
    blocks.iter_mut().for_each(|byte| *byte = byte.rotate_left(4));
    blocks
}

/// Fails unless every value of blocks with these scales fits bf16: six times the largest has to, and 255 is no number.
pub(crate) fn fit(scales: &[u8]) -> Result<(), QuantError> {
    match scales.iter().position(|&scale| scale > LARGEST) {
        Some(at) => {
            let value = if scales[at] == u8::MAX { f32::NAN } else { power(scales[at]) };
            Err(QuantError::NotFinite { what: "scale", at, value })
        }
        None => Ok(()),
    }
}

/// Blocks of a row.
pub(crate) fn blocks(row: usize) -> usize {
    row.div_ceil(Scheme::MXFP4_BLOCK)
}
