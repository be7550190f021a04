//! Rows apart are the rows of the whole, and bytes are as declared.

use std::iter::once;
use std::sync::Arc;

use burnish_core::{
    BlockScale, Codes, Dtype, PackedRows, PackedStrip, Quantization, Region, ScaleOf, ScaleValues, Scheme,
};
use burnish_quant::{PackedWords, Quantized, Values, gptq_order};
use half::bf16;
use proptest::prelude::*;

fn any_quantization() -> impl Strategy<Value = Quantization> {
    let schemes = prop_oneof![Just(Scheme::Nf4), Just(Scheme::Fp4), Just(Scheme::Int8)];
    (schemes, any::<bool>()).prop_map(|(scheme, nested)| Quantization { scheme, nested })
}

/// Some ascending ranges below a length.
fn any_ranges(length: usize) -> impl Strategy<Value = Vec<std::ops::Range<usize>>> {
    prop::collection::vec(0..=length, 2..=6).prop_map(|mut cuts| {
        cuts.sort_unstable();
        cuts.dedup();
        cuts.chunks_exact(2).map(|pair| pair[0]..pair[1]).collect()
    })
}

/// A matrix by GPTQ with words from a generator, some groups in another order.
pub(crate) fn grouped(rows: usize, row: usize, group: usize, ordered: bool) -> Quantized {
    let word = |i: usize| (i as i32).wrapping_mul(0x9e37_79b9_u32 as i32) ^ 0x5bd1_e995;
    let groups = row.div_ceil(group);
    let qweight: Vec<i32> = (0..rows * row / 8).map(word).collect();
    let qzeros: Vec<i32> = (0..groups * rows / 8).map(|i| word(i + 77)).collect();
    let scales: Vec<f32> = (0..groups * rows).map(|i| 0.01 + (i % 37) as f32 / 512.0).collect();
    let g_idx: Vec<i32> =
        (0..row).map(|i| if ordered { (i * 7 % row) / group } else { i / group } as i32).collect();
    let order = gptq_order(&g_idx, group, [rows, row]).unwrap();
    let parts = PackedWords { qweight: &qweight, qzeros: &qzeros, scales: &scales };
    Quantized::from_gptq([rows, row], group, parts, order, true).unwrap()
}

/// Fails unless the codes that kernels are given stand for what is read; how many blocks they were given.
fn check_codes(quantized: &Quantized) -> usize {
    let [rows, row] = quantized.shape();
    let values = Values::new(Arc::new(quantized.clone()), Dtype::F32);
    let mut given = 0;
    for number in 0..rows {
        let mut read = vec![0.0; row];
        values.read(number, 0, &mut read);
        for column in 0..row {
            if let Some(eight) = values.eight_bits(number, column) {
                let value = f32::from(eight.codes[0].cast_signed()) * eight.scales[0] * eight.scales[1];
                assert_eq!(value.to_bits(), read[column].to_bits(), "row {number}, column {column}");
            }
            let Some(block) = values.four_bits(number, column, &mut []).map(|four| four.block) else {
                continue;
            };
            let mut scales = vec![BlockScale::default(); (row - column) / block];
            let four = values.four_bits(number, column, &mut scales).unwrap();
            given += scales.len();
            for (at, want) in read[column..].iter().enumerate().take(scales.len() * block) {
                let code = four.codes[at / 2] >> (4 * (1 - at % 2)) & 15;
                let BlockScale { scale, zero } = scales[at / block];
                let value = scale * (four.values[usize::from(code)] - zero);
                assert_eq!(value.to_bits(), want.to_bits(), "row {number}, column {column} and {at}");
            }
        }
    }
    given
}

#[test]
fn kernels_are_given_whole_blocks() {
    let values: Vec<f32> = (0..3 * 192).map(|i| (i % 101) as f32 / 50.0 - 1.0).collect();
    for (scheme, nested) in
        [(Scheme::Nf4, false), (Scheme::Nf4, true), (Scheme::Fp4, true), (Scheme::Int8, false)]
    {
        let whole = Quantized::new(Quantization { scheme, nested }, &values, 192);
        // From each of a row's three blocks to its end.
        let blocks = if scheme == Scheme::Int8 { 0 } else { 3 * 6 };
        assert_eq!(check_codes(&whole), blocks, "{scheme:?}");
        assert_eq!(check_codes(&Quantized::stacked(vec![whole.clone(), whole])), 2 * blocks, "{scheme:?}");
    }
    assert_eq!(check_codes(&grouped(8, 256, 128, false)), 8 * 3);
    assert_eq!(check_codes(&grouped(8, 256, 24, false)), 0, "no vectors");
    assert_eq!(check_codes(&grouped(8, 256, 64, true)), 0, "groups as listed");
    let codes = (0..64_u8).map(|i| i.wrapping_mul(5)).collect();
    assert_eq!(check_codes(&Quantized::from_mxfp4([2, 64], codes, vec![120, 130, 127, 9]).unwrap()), 2 * 3);
}

proptest! {
    #[test]
    fn regions_are_of_the_whole(
        quantization in any_quantization(),
        (rows, row) in (1_usize..12, 1_usize..300),
        seed in any::<u32>(),
        cuts in (any_ranges(12), any_ranges(300)),
        again in (any_ranges(12), any_ranges(300)),
    ) {
        let values: Vec<f32> = (0..rows * row)
            .map(|i| (((i as u32).wrapping_mul(2_654_435_761) ^ seed) % 1013) as f32 / 500.0 - 1.0)
            .collect();
        check_regions(&Quantized::new(quantization, &values, row), &cuts, &again)?;
    }

    #[test]
    fn regions_of_groups_are_of_the_whole(
        (rows, row, group) in (1_usize..3, 1_usize..12, 1_usize..40),
        ordered in any::<bool>(),
        cuts in (any_ranges(16), any_ranges(88)),
        again in (any_ranges(16), any_ranges(88)),
    ) {
        check_regions(&grouped(8 * rows, 8 * row, group, ordered), &cuts, &again)?;
    }

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

type Cuts = (Vec<std::ops::Range<usize>>, Vec<std::ops::Range<usize>>);

/// A region, and a region of that one, have the values of the whole; so has every piece of a row.
fn check_regions(whole: &Quantized, cuts: &Cuts, again: &Cuts) -> Result<(), TestCaseError> {
    let of = |shape: [usize; 2], (rows, columns): &Cuts| {
        let within = |ranges: &[std::ops::Range<usize>], most: usize| -> Vec<_> {
            ranges.iter().map(|r| r.start.min(most)..r.end.min(most)).filter(|r| !r.is_empty()).collect()
        };
        Region::new(&shape, vec![within(rows, shape[0]), within(columns, shape[1])]).unwrap()
    };
    let values: Vec<f32> = whole.values();
    let region = of(whole.shape(), cuts);
    let part = whole.region(&region);
    prop_assert_eq!(part.shape().to_vec(), region.local_shape());
    let own: Vec<f32> = part.values();
    prop_assert_eq!(&own, &region.read(&values));
    let inner = of(part.shape(), again);
    let inner_part = part.region(&inner);
    prop_assert_eq!(inner_part.values::<f32>(), inner.read(&own));
    check_codes(&part);
    check_codes(&inner_part);
    let [rows, row] = part.shape();
    for number in 0..rows {
        for (from, to) in [(0, row), (row / 3, row), (row / 2, row - row / 4), (row / 3, row / 2)] {
            let (from, to) = (from.min(to), to);
            let mut piece = vec![0.0_f32; to - from];
            part.read(number, from, &mut piece);
            prop_assert_eq!(&piece[..], &own[number * row + from..number * row + to]);
        }
    }
    Ok(())
}

fn ranges(bounds: &[(usize, usize)]) -> Vec<std::ops::Range<usize>> {
    bounds.iter().map(|&(start, end)| start..end).collect()
}

/// Matrices one below the other: parts of them are parts of the values, whichever rows of whichever are wanted.
#[test]
fn parts_of_stacked_matrices_are_parts_of_the_values() {
    let values =
        |seed: usize| -> Vec<f32> { (0..6 * 96).map(|i| ((i * 7 + seed) as f32 * 0.37).sin()).collect() };
    for quantization in [
        Quantization { scheme: Scheme::Nf4, nested: true },
        Quantization { scheme: Scheme::Fp4, nested: false },
        Quantization { scheme: Scheme::Int8, nested: false },
    ] {
        let parts: Vec<Quantized> =
            (0..3).map(|seed| Quantized::new(quantization, &values(seed), 96)).collect();
        let each: Vec<f32> = parts.iter().flat_map(|part| part.values::<f32>()).collect();
        let bytes: usize = parts.iter().map(Quantized::bytes).sum();
        let stack = Quantized::stacked(parts);
        assert_eq!((stack.shape(), stack.parts().len(), stack.bytes()), ([18, 96], 3, bytes));
        assert_eq!(stack.values::<f32>(), each);
        type Bounds = &'static [(usize, usize)];
        let cases: [(Bounds, Bounds); 5] = [
            (&[(0, 6)], &[(0, 96)]),
            (&[(6, 18)], &[(0, 96)]),
            (&[(1, 3), (7, 9), (13, 15)], &[(0, 96)]),
            (&[(4, 11)], &[(3, 50)]),
            (&[(0, 1), (17, 18)], &[(0, 10), (64, 96)]),
        ];
        for (rows, columns) in cases {
            let region = Region::new(&[18, 96], vec![ranges(rows), ranges(columns)]).unwrap();
            let part = stack.region(&region);
            assert_eq!(part.values::<f32>(), region.read(&each), "{region:?}");
            // And a part of a part.
            let shape = part.shape();
            let inner = Region::new(
                &shape,
                vec![ranges(&[(0, 1), (shape[0] - 1, shape[0])]), ranges(&[(1, shape[1])])],
            );
            if let Ok(inner) = inner {
                assert_eq!(part.region(&inner).values::<f32>(), inner.read(&region.read(&each)));
            }
        }
    }
}

/// The elements that strips say, column behind column of each row.
fn by_strips(strips: &[PackedStrip<'_>], rows: usize) -> Vec<f32> {
    let mut all = Vec::new();
    for number in 0..rows {
        for strip in strips {
            let (matrix, row) = (&strip.matrices[number / strip.rows], number % strip.rows);
            for column in 0..strip.columns {
                let scale_at = match strip.scale_of {
                    ScaleOf::Blocks { groups, step, first, block } => {
                        groups * row + (step * row + first + column) / block
                    }
                    ScaleOf::Listed { groups, list } => groups * row + list[column] as usize,
                };
                let scale = match &matrix.scales {
                    ScaleValues::Plain(scales) => scales[scale_at],
                    ScaleValues::Coded { codes, table, scales, first, block, offset } => {
                        table[usize::from(codes[scale_at])] * scales[(scale_at + first) / block] + offset
                    }
                };
                let code = strip.line * row + column;
                let value = match strip.kind {
                    Codes::Four(values) => {
                        values[usize::from(matrix.codes[code / 2] >> (4 * (1 - code % 2)) & 15)]
                    }
                    Codes::Eight => f32::from(matrix.codes[code].cast_signed()),
                };
                let zero = matrix.zeros.get(scale_at).map_or(0.0, |&zero| f32::from(zero));
                all.push((value - zero) * scale * strip.factor);
            }
        }
    }
    all
}

/// Fails unless what a device is given stands for all elements.
fn check_strips(quantized: &Quantized, described: bool) {
    let values = Values::new(Arc::new(quantized.clone()), Dtype::F32);
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    let strips = values.strips();
    assert_eq!(strips.is_some(), described, "{:?}", quantized.quantization());
    if let Some(strips) = strips {
        assert_eq!(bits(&by_strips(&strips, quantized.shape()[0])), bits(&quantized.values::<f32>()));
    }
}

#[test]
fn devices_are_given_strips() {
    let values: Vec<f32> = (0..6 * 192).map(|i| (i % 101) as f32 / 50.0 - 1.0).collect();
    for (scheme, nested) in
        [(Scheme::Nf4, false), (Scheme::Nf4, true), (Scheme::Fp4, true), (Scheme::Int8, false)]
    {
        let whole = Quantized::new(Quantization { scheme, nested }, &values, 192);
        check_strips(&whole, true);
        check_strips(&whole.rows(2..5), true);
        let stack = Quantized::stacked(vec![whole.clone(), whole.rows(0..6)]);
        check_strips(&stack, true);
        let part = |rows: Vec<std::ops::Range<usize>>, columns| {
            Region::new(&[12, 192], vec![rows, columns]).unwrap()
        };
        check_strips(&stack.region(&part(vec![0..3, 6..9], vec![0..64, 128..192])), true);
        // As many rows of each there are not: matrices of one row.
        check_strips(&stack.region(&part(vec![0..2, 6..9], once(5..70).collect())), true);
        // Rows that begin in different places of a block.
        let odd = Quantized::new(Quantization { scheme, nested }, &values[..6 * 100], 100);
        let columns = Region::new(&[6, 100], [0..6, 10..90].map(|range| vec![range]).to_vec()).unwrap();
        check_strips(&odd, true);
        check_strips(&odd.region(&columns), scheme == Scheme::Int8);
    }
    for ordered in [false, true] {
        let whole = grouped(8, 96, 20, ordered);
        let columns = Region::new(&[8, 96], [1..7, 3..50].map(|range| vec![range]).to_vec()).unwrap();
        check_strips(&whole, true);
        check_strips(&whole.region(&columns), true);
    }
    let scales = (0..4 * 2).map(|i| [0, 1, 126, 252][i % 4]).collect();
    let blocks = (0..4 * 32).map(|i: usize| (i * 37) as u8).collect();
    check_strips(&Quantized::from_mxfp4([4, 64], blocks, scales).unwrap(), true);
}
