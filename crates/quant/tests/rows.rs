//! Rows apart are the rows of the whole, and bytes are as declared.

use burnish_core::{Quantization, Scheme};
use burnish_quant::Quantized;
use half::bf16;
use proptest::prelude::*;

fn any_quantization() -> impl Strategy<Value = Quantization> {
    let schemes = prop_oneof![Just(Scheme::Nf4), Just(Scheme::Fp4), Just(Scheme::Int8)];
    (schemes, any::<bool>()).prop_map(|(scheme, nested)| Quantization { scheme, nested })
}

proptest! {
    #[test]
    fn parts_are_of_the_whole(
        quantization in any_quantization(),
        (blocks, rows, cut) in (1_usize..9, 1_usize..200).prop_flat_map(|(b, r)| (Just(b), Just(r), 0..=r)),
        seed in any::<u32>(),
    ) {
        let row = 64 * blocks;
        let values: Vec<bf16> = (0..rows * row)
            .map(|i| bf16::from_f32((((i as u32).wrapping_mul(2_654_435_761) ^ seed) % 1013) as f32 / 500.0 - 1.0))
            .collect();
        let whole = Quantized::new(quantization, &values, row);
        let nested = quantization.nested && quantization.scheme != Scheme::Int8;
        prop_assert_eq!(whole.bytes(), Quantization { nested, ..quantization }.bytes(rows, row));
        let read: Vec<bf16> = whole.values();
        let (low, high) = (whole.rows(0..cut), whole.rows(cut..rows));
        let parts: Vec<bf16> = [low.values::<bf16>(), high.values::<bf16>()].concat();
        prop_assert_eq!(&parts, &read);
        // Again from a part: its place among the scales' blocks is kept.
        let again = high.rows(high.shape()[0] / 2..high.shape()[0]).values::<bf16>();
        prop_assert_eq!(&again[..], &read[read.len() - again.len()..]);
    }

    #[test]
    fn a_value_is_within_half_a_step(scheme in prop_oneof![Just(Scheme::Nf4), Just(Scheme::Int8)],
                                     values in prop::collection::vec(-4.0_f32..4.0, 1..300)) {
        let quantized = Quantized::new(Quantization { scheme, nested: false }, &values, values.len());
        let read: Vec<f32> = quantized.values();
        let eight = scheme == Scheme::Int8;
        for (at, (value, read)) in values.iter().zip(&read).enumerate() {
            let scale = quantized.scale(if eight { 0 } else { at / 64 });
            // The widest gap of NF4 lies between its lowest two codes; int8 has seen half precision.
            let step = if eight { 1.0 / 254.0 + 1e-3 } else { 0.152 };
            prop_assert!((value - read).abs() <= step * scale, "{value} became {read}, scale {scale}");
        }
    }
}
