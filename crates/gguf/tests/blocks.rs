//! Blocks against ggml's, bit by bit (`record/blocks.py`).

use std::path::Path;

use burnish_gguf::{TensorType, blocks};
use burnish_weight_files::WeightFolder;
use proptest::prelude::*;

const ALL: [TensorType; 8] = [
    TensorType::Q8_0,
    TensorType::Q4_0,
    TensorType::Q5_0,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
    TensorType::F16,
    TensorType::BF16,
];

fn golden() -> WeightFolder {
    WeightFolder::open(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/blocks.safetensors")).unwrap()
}

#[test]
fn blocks_have_ggmls_bits() {
    let golden = golden();
    let values = golden.read("values").unwrap().to_f32();
    for stored in ALL {
        let expected = golden.read(&format!("{stored}.bytes")).unwrap();
        let got = blocks::encode(stored, &values).unwrap();
        let block = stored.bytes(stored.block()).unwrap();
        let wrong: Vec<usize> = (0..got.len() / block)
            .filter(|at| got[at * block..][..block] != expected.bytes[at * block..][..block])
            .collect();
        assert!(wrong.is_empty(), "{stored}: blocks {wrong:?} of {} differ", got.len() / block);
    }
}

#[test]
fn values_of_blocks_are_those_of_the_gguf_package() {
    let golden = golden();
    for stored in ALL.into_iter().filter(|stored| stored.name().starts_with('Q')) {
        let bytes = golden.read(&format!("{stored}.bytes")).unwrap().bytes;
        let expected = golden.read(&format!("{stored}.values")).unwrap().to_f32();
        let got = blocks::decode(stored, &bytes).unwrap();
        assert_eq!(got.len(), expected.len(), "{stored}");
        for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
            assert_eq!(got, expected, "{stored} at {at}");
        }
    }
}

#[test]
fn what_does_not_fill_blocks_is_refused() {
    assert!(blocks::encode(TensorType::Q8_0, &[0.0; 33]).is_none());
    assert!(blocks::decode(TensorType::Q4_K, &[0; 100]).is_none());
    assert!(blocks::encode(TensorType::of(10).unwrap(), &[0.0; 256]).is_none());
}

proptest! {
    /// No element of a block is further from its value than half a step (and what rounding the scale to half precision
    /// adds).
    #[test]
    fn values_come_back_within_a_step(values in prop::collection::vec(-8.0_f32..8.0, 256)) {
        for (stored, steps) in [(TensorType::Q8_0, 127.0), (TensorType::Q5_0, 16.0), (TensorType::Q4_0, 8.0)] {
            let back = blocks::decode(stored, &blocks::encode(stored, &values).unwrap()).unwrap();
            for (block, back) in values.chunks(32).zip(back.chunks(32)) {
                let most = block.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                // The last positive step of an even number of codes is missing; scales are rounded.
                let bound = if steps == 127.0 { 0.57 } else { 1.02 } * most / steps;
                for (value, back) in block.iter().zip(back) {
                    prop_assert!((value - back).abs() <= bound, "{stored}: {value} {back} {bound}");
                }
            }
        }
    }

    /// Bytes of any kind are values of some kind.
    #[test]
    fn any_bytes_decode(bytes in prop::collection::vec(any::<u8>(), 210)) {
        for stored in ALL {
            let size = stored.bytes(stored.block()).unwrap();
            let whole = &bytes[..bytes.len() / size * size];
            prop_assert!(blocks::decode(stored, whole).is_some());
        }
    }
}
