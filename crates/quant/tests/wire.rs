//! Rows that were sent are the rows that there were.

use burnish_core::{Quantization, Region, Scheme};
use burnish_quant::{QuantError, Quantized};
use proptest::prelude::*;

use crate::rows::grouped;

/// Fails unless rows of the parts, sent in pieces, have the values that they had.
fn check(whole: &Quantized, cuts: &[usize]) {
    let [rows, row] = whole.shape();
    let size = Quantized::row_bytes(whole.quantization(), row).unwrap();
    let mut bounds: Vec<usize> = cuts.iter().map(|cut| cut % (rows + 1)).chain([0, rows]).collect();
    bounds.sort_unstable();
    let sent: Vec<Vec<u8>> = bounds.windows(2).map(|cut| whole.rows(cut[0]..cut[1]).to_bytes()).collect();
    assert_eq!(sent.iter().map(Vec::len).sum::<usize>(), rows * size);
    let parts: Vec<&[u8]> = sent.iter().map(Vec::as_slice).collect();
    let got = Quantized::from_bytes(whole.quantization(), row, &parts).unwrap();
    assert_eq!(got.shape(), [rows, row]);
    let bits = |q: &Quantized| q.values::<f32>().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert!(bits(&got) == bits(whole), "{:?}", whole.quantization());
    // What came can be sent on.
    assert_eq!(got.to_bytes(), sent.concat());
}

proptest! {
    #[test]
    fn sent_rows_are_the_rows(
        scheme in prop_oneof![Just(Scheme::Nf4), Just(Scheme::Fp4), Just(Scheme::Int8)],
        nested in any::<bool>(),
        (blocks, rows) in (1_usize..9, 1_usize..70),
        cuts in prop::collection::vec(any::<usize>(), 0..4),
        columns in any::<bool>(),
    ) {
        let row = 64 * blocks;
        let values: Vec<f32> = (0..rows * row).map(|i| ((i * 7919 % 1013) as f32 / 500.0 - 1.0) * (1 + i / 999) as f32).collect();
        let whole = Quantized::new(Quantization { scheme, nested }, &values, row);
        check(&whole, &cuts);
        check(&Quantized::stacked(vec![whole.clone(), whole.clone(), whole.clone()]), &cuts);
        if columns && blocks > 1 {
            let region = Region::whole(&[rows, row]).along(1, std::slice::from_ref(&(64..row)));
            check(&whole.region(&region), &cuts);
        }
    }
}

#[test]
fn groups_are_sent_where_they_follow_each_other() {
    check(&grouped(16, 256, 128, false), &[3, 9]);
    check(&grouped(16, 48, 16, false), &[3, 9]);
    let ordered = grouped(8, 256, 64, true);
    assert_eq!(Quantized::row_bytes(ordered.quantization(), 256), None);
    let codes = (0..128_u8).map(|i| i.wrapping_mul(5)).collect();
    check(&Quantized::from_mxfp4([4, 64], codes, vec![120, 130, 127, 9, 0, 1, 252, 33]).unwrap(), &[1, 1]);
}

#[test]
fn rows_that_share_blocks_and_damaged_bytes_are_not_taken() {
    let nf4 = Quantization { scheme: Scheme::Nf4, nested: true };
    assert_eq!(Quantized::row_bytes(nf4, 96), None);
    assert_eq!(Quantized::row_bytes(nf4, 128), Some(64 + 8));
    let mut bytes = Quantized::new(nf4, &[1.0_f32; 128], 128).to_bytes();
    assert!(matches!(Quantized::from_bytes(nf4, 128, &[&bytes[1..]]), Err(QuantError::Length { .. })));
    bytes[64..68].copy_from_slice(&f32::NAN.to_le_bytes());
    assert!(matches!(Quantized::from_bytes(nf4, 128, &[&bytes]), Err(QuantError::NotFinite { at: 0, .. })));
}
