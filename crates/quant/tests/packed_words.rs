//! Values of GPTQ's, AWQ's and gpt-oss' formats (recorded by `record/packed_words.py`), bit for bit, and what is refused.

use std::iter::once;

use burnish_core::{Region, Scheme};
use burnish_quant::{PackedWords, QuantError, Quantized, Scales, gptq_order, group_of};
use half::{bf16, f16};
use serde_json::Value;

use crate::bitsandbytes::bytes;

fn golden() -> Value {
    serde_json::from_str(include_str!("golden/packed_words.json")).unwrap()
}

fn integers(value: &Value) -> Vec<i32> {
    value.as_array().unwrap().iter().map(|v| v.as_i64().unwrap() as i32).collect()
}

fn floats(value: &Value) -> Vec<f32> {
    bytes(value).chunks(2).map(|b| f16::from_le_bytes(b.try_into().unwrap()).to_f32()).collect()
}

#[test]
fn groups() {
    let golden = golden();
    let cases = golden["groups"].as_array().unwrap();
    assert_eq!(cases.len(), 6);
    for case in cases {
        let shape = [0, 1].map(|dim| case["shape"][dim].as_u64().unwrap() as usize);
        let group = case["group"].as_u64().unwrap() as usize;
        let (qweight, qzeros) = (integers(&case["qweight"]), integers(&case["qzeros"]));
        let scales = floats(&case["scales"]);
        let parts = PackedWords { qweight: &qweight, qzeros: &qzeros, scales: &scales };
        let ordered = case.get("g_idx").is_some();
        let quantized = if case["kind"] == "gptq" {
            let order = case.get("g_idx").map(|g| gptq_order(&integers(g), group, shape).unwrap());
            assert_eq!(order.clone().flatten().is_some(), ordered);
            let less_one = !case["v2"].as_bool().unwrap();
            Quantized::from_gptq(shape, group, parts, order.flatten(), less_one).unwrap()
        } else {
            Quantized::from_awq(shape, group, parts).unwrap()
        };
        assert_eq!(quantized.quantization().scheme, Scheme::Int4 { group, ordered });
        assert_eq!(quantized.bytes(), quantized.quantization().bytes(shape[0], shape[1]));
        let values: Vec<f32> = quantized.values::<f16>().into_iter().map(f16::to_f32).collect();
        assert_eq!(values, floats(&case["values"]), "{} {shape:?} {group}", case["kind"]);
    }
}

#[test]
fn experts_of_gpt_oss() {
    let golden = golden();
    let case = &golden["mxfp4"];
    let quantized = Quantized::from_mxfp4([12, 64], bytes(&case["blocks"]), bytes(&case["scales"])).unwrap();
    assert_eq!(quantized.bytes(), quantized.quantization().bytes(12, 64));
    let values = quantized.values::<bf16>();
    let expected: Vec<bf16> =
        bytes(&case["values"]).chunks(2).map(|b| bf16::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(values.len(), 2 * 6 * 64);
    assert_eq!(values, expected);
    // A part with a row of each expert, and columns that begin and end inside a block.
    let region = Region::new(&[12, 64], vec![vec![1..2, 7..8], Vec::from_iter([5..25, 25..40])]).unwrap();
    assert_eq!(quantized.region(&region).values::<bf16>(), region.read(&expected));
    let from = |blocks: usize, scales: &[u8]| {
        Quantized::from_mxfp4([1, 32 * scales.len()], vec![0; blocks], scales.to_vec())
    };
    assert!(matches!(from(15, &[127]), Err(QuantError::Length { got: 15, expected: 16, .. })));
    assert!(matches!(from(32, &[127, 255]), Err(QuantError::NotFinite { at: 1, .. })));
    assert!(matches!(Quantized::from_mxfp4([1, 33], vec![0; 17], vec![0; 2]), Err(QuantError::Shape { .. })));
}

#[test]
fn small_floats_times_an_eight_bit_one() {
    // 0.5 and -6 times 0.25, 1 and 1.5 times 3, the others 0.
    let mut codes = vec![0_u8; 16];
    (codes[0], codes[8]) = (0xf1, 0x32);
    let quantized = Quantized::from_nvfp4([1, 32], codes.clone(), vec![0.25, 3.0]).unwrap();
    assert_eq!(quantized.bytes(), quantized.quantization().bytes(1, 32));
    let values = quantized.values::<f32>();
    assert_eq!((values[0], values[1], values[16], values[17]), (0.125, -1.5, 3.0, 4.5));
    assert_eq!(values.iter().filter(|value| **value != 0.0).count(), 4);
    let region = Region::new(&[1, 32], vec![once(0..1).collect(), once(1..18).collect()]).unwrap();
    assert_eq!(quantized.region(&region).values::<f32>(), values[1..18]);
    let from = |shape, scales: &[f32]| Quantized::from_nvfp4(shape, codes.clone(), scales.to_vec());
    assert!(matches!(from([2, 16], &[1.0]), Err(QuantError::Length { got: 1, expected: 2, .. })));
    assert!(matches!(from([1, 32], &[1.0, f32::NAN]), Err(QuantError::NotFinite { at: 1, .. })));
    assert!(matches!(from([4, 8], &[1.0, 1.0]), Err(QuantError::Shape { .. })));
}

#[test]
fn what_does_not_fit_is_refused() {
    let (words, zeros, scales) = (vec![0; 8], vec![0; 1], vec![1.0; 8]);
    let parts = PackedWords { qweight: &words, qzeros: &zeros, scales: &scales };
    let gptq = |shape, group, parts| Quantized::from_gptq(shape, group, parts, None, true);
    assert!(gptq([8, 8], 8, parts).is_ok());
    assert!(matches!(gptq([8, 12], 8, parts), Err(QuantError::Grouping { .. })));
    assert!(matches!(gptq([8, 8], 0, parts), Err(QuantError::Grouping { .. })));
    assert!(matches!(
        gptq([8, 8], 4, parts),
        Err(QuantError::Length { what: "words of zero points (qzeros)", .. })
    ));
    let short = PackedWords { qweight: &words[1..], ..parts };
    assert!(matches!(
        Quantized::from_awq([8, 8], 8, short),
        Err(QuantError::Length { got: 7, expected: 8, .. })
    ));
    let infinite = [f32::INFINITY; 8];
    let wide = PackedWords { scales: &infinite, ..parts };
    assert!(matches!(Quantized::from_awq([8, 8], 8, wide), Err(QuantError::NotFinite { at: 0, .. })));
    assert!(matches!(gptq_order(&[0, 2], 1, [8, 2]), Err(QuantError::Group { input: 1, got: 2, groups: 2 })));
    assert!(matches!(gptq_order(&[0, -1], 1, [8, 2]), Err(QuantError::Group { got: -1, .. })));
    assert!(matches!(gptq_order(&[0], 1, [8, 2]), Err(QuantError::Length { got: 1, expected: 2, .. })));
    // What some programs write without an order.
    assert_eq!(gptq_order(&[0, 0, 0, 0], 2, [8, 4]), Ok(None));
    assert_eq!((group_of(-1, [8, 24]), group_of(16, [8, 24])), (Ok(24), Ok(16)));
    assert!(group_of(0, [8, 24]).is_err() && group_of(-2, [8, 24]).is_err());

    let plain = |count| Scales::Plain(vec![1.0; count]);
    let blocks = |codes, scales| Quantized::from_blocks(Scheme::Nf4, [2, 65], vec![0; codes], scales);
    assert!(blocks(65, plain(3)).is_ok());
    assert!(matches!(blocks(64, plain(3)), Err(QuantError::Length { got: 64, expected: 65, .. })));
    assert!(matches!(blocks(65, plain(2)), Err(QuantError::Length { what: "scales (absmax)", .. })));
    let nested = |groups| Scales::Nested { codes: vec![0; 3], scales: vec![1.0; groups], offset: f32::NAN };
    assert!(matches!(blocks(65, nested(2)), Err(QuantError::Length { got: 2, expected: 1, .. })));
    assert!(matches!(blocks(65, nested(1)), Err(QuantError::NotFinite { what: "nested_offset", .. })));
    assert!(Quantized::from_blocks(Scheme::Fp4, [usize::MAX, 3], vec![], plain(0)).is_err());
    assert!(matches!(Quantized::from_rows([2, 3], vec![0; 6], vec![1.0]), Err(QuantError::Length { .. })));
}
