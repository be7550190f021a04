//! Eight bits an element: 127 even steps to each side of a row's largest magnitude.

use half::f16;

/// The inverse of 127 as bitsandbytes multiplies by it.
pub(crate) const STEP: f32 = 7.874_016e-3;

/// A row's codes and its scale. bitsandbytes reads weights in half precision here, whatever they are stored in.
pub(crate) fn narrow(row: &[f32], codes: &mut [u8]) -> f32 {
    let half = |value: f32| f16::from_f32(value).to_f32();
    let most = row.iter().fold(0.0_f32, |most, &value| most.max(half(value).abs()));
    // As PyTorch divides a number by a tensor: the inverse, rounded, times the number.
    let scale = if most > 0.0 { 1.0 / most * 127.0 } else { 0.0 };
    for (code, &value) in codes.iter_mut().zip(row) {
        *code = ((half(value) * scale).round_ties_even() as i8).cast_unsigned();
    }
    most
}

/// The value of a code.
pub(crate) fn widen(code: u8, scale: f32) -> f32 {
    f32::from(code.cast_signed()) * scale * STEP
}
