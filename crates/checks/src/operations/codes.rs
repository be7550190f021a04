//! Weights in fewer bits, widened on the device: bit for bit what the processor makes of them.

use std::iter::once;
use std::ops::Range;
use std::sync::Arc;

use anyhow::ensure;
use burn::tensor::DType;
use burnish_core::random::Stream;
use burnish_core::{Dtype, PackedRows, Quantization, Region, Scheme};
use burnish_ops::AnyTensor;
use burnish_quant::{PackedWords, Quantized, Values, gptq_order};

use super::name_of;
use crate::Check;

/// Numbers of a matrix, quantised.
fn of_numbers(scheme: Scheme, nested: bool, [rows, row]: [usize; 2], seed: u64) -> Quantized {
    let stream = Stream::new(seed, "codes");
    let values: Vec<f32> = (0..(rows * row) as u64).map(|i| stream.normal(i) / 16.0).collect();
    Quantized::new(Quantization { scheme, nested }, &values, row)
}

/// A matrix of GPTQ's or AWQ's words.
fn of_words(awq: bool, ordered: bool) -> Quantized {
    const GROUP: usize = 32;
    let [rows, row] = [24, 160];
    let word = |i: usize| (i as i32).wrapping_mul(0x1e37_79b9) ^ 0x5bd1_e995;
    let qweight: Vec<i32> = (0..rows * row / 8).map(word).collect();
    let qzeros: Vec<i32> = (0..row / GROUP * rows / 8).map(|i| word(i + 77)).collect();
    let scales: Vec<f32> = (0..row / GROUP * rows).map(|i| 0.01 + (i % 37) as f32 / 511.0).collect();
    let parts = PackedWords { qweight: &qweight, qzeros: &qzeros, scales: &scales };
    if awq {
        return Quantized::from_awq([rows, row], GROUP, parts).expect("invariant: sizes fit");
    }
    let of = |input: usize| (if ordered { input * 7 % row } else { input } / GROUP) as i32;
    let order: Vec<i32> = (0..row).map(of).collect();
    let order = gptq_order(&order, GROUP, [rows, row]).expect("invariant: groups are there");
    Quantized::from_gptq([rows, row], GROUP, parts, order, true).expect("invariant: sizes fit")
}

fn of_powers(seed: usize) -> Quantized {
    let blocks = (0..24 * 64 / 2).map(|i: usize| (i * 37 + seed * 11) as u8).collect();
    // The smallest there are, and the largest.
    let scales = (0..24 * 2).map(|i| [0, 1, 23, 100, 127, 130, 252][(i + seed) % 7]).collect();
    Quantized::from_mxfp4([24, 64], blocks, scales).expect("invariant: sizes fit")
}

fn of_floats() -> Quantized {
    let codes = (0..24 * 160 / 2).map(|i: usize| (i * 37 + 5) as u8).collect();
    let scales = (0..24 * 10).map(|i| 0.001 + (i % 37) as f32 / 511.0).collect();
    Quantized::from_nvfp4([24, 160], codes, scales).expect("invariant: sizes fit")
}

/// Some rows and columns of 192 by 256.
fn part(whole: &Quantized, columns: Vec<Range<usize>>) -> Quantized {
    whole.region(&Region::announced(&[192, 256], vec![vec![8..40, 160..192], columns]))
}

pub(super) fn checks() -> Vec<Check> {
    type Make = Box<dyn Fn() -> Quantized>;
    // Of more than 256 blocks.
    let whole = |scheme, nested| of_numbers(scheme, nested, [192, 256], 3);
    let kinds: Vec<(&str, Make)> = vec![
        ("NF4", Box::new(move || whole(Scheme::Nf4, false))),
        ("NF4, scales in eight bits", Box::new(move || whole(Scheme::Nf4, true))),
        ("NF4, rows of no whole blocks", Box::new(|| of_numbers(Scheme::Nf4, true, [21, 100], 4))),
        ("FP4", Box::new(move || whole(Scheme::Fp4, false))),
        ("FP4, columns", Box::new(move || part(&whole(Scheme::Fp4, true), once(40..168).collect()))),
        (
            "NF4, columns side by side",
            Box::new(move || part(&whole(Scheme::Nf4, true), vec![0..64, 96..256])),
        ),
        (
            "NF4, experts",
            Box::new(|| {
                let expert = |seed| of_numbers(Scheme::Nf4, true, [10, 128], seed);
                Quantized::stacked((0..3).map(expert).collect())
            }),
        ),
        ("int8", Box::new(move || whole(Scheme::Int8, false))),
        ("GPTQ", Box::new(|| of_words(false, false))),
        ("GPTQ, groups in an order", Box::new(|| of_words(false, true))),
        ("AWQ", Box::new(|| of_words(true, false))),
        ("NVFP4", Box::new(of_floats)),
        ("MXFP4, experts", Box::new(|| Quantized::stacked((0..3).map(of_powers).collect()))),
    ];
    let mut all = Vec::new();
    for (name, make) in kinds {
        let make: Arc<dyn Fn() -> Quantized> = make.into();
        for dtype in [DType::F32, DType::BF16] {
            let make = make.clone();
            all.push(Check::new(
                "operation",
                format!("widened {name}, {}", name_of(dtype)),
                move |context| {
                    if dtype == DType::BF16 {
                        context.has_half()?;
                    }
                    let stored = if dtype == DType::F32 { Dtype::F32 } else { Dtype::Bf16 };
                    let values = Arc::new(Values::new(Arc::new(make()), stored));
                    let ([rows, row], expected) = (values.shape(), values.bytes());
                    ensure!(values.strips().is_some(), "it is not described for a device");
                    let packed = AnyTensor::packed(values, &[rows, row], &context.device);
                    let each = row * dtype.size();
                    for part in [0..rows, rows / 3..rows / 2] {
                        let piece = packed.piece(part.start * row..part.end * row, &[part.len(), row]);
                        let got = piece.to_data();
                        let expected = &expected[part.start * each..part.end * each];
                        let other =
                            got.as_bytes().iter().zip(expected).position(|(got, expected)| got != expected);
                        ensure!(
                            got.as_bytes().len() == expected.len() && other.is_none(),
                            "rows {part:?} differ from byte {other:?} on"
                        );
                    }
                    Ok("bit for bit".to_owned())
                },
            ));
        }
    }
    all
}
