//! Matrices in fewer bits: rows that are widened, bit for bit, and products of few rows.

use std::borrow::Cow;
use std::ops::Range;

use burnish_core::{Codes, PackedMatrix, PackedStrip, ScaleOf, ScaleValues};
use burnish_gpu_kernels::{
    Buffer, Client, FewPlaces, FewRows, FloatType, PackedLayout, multiply_few_places_by_codes,
    multiply_few_rows, widen_rows,
};

use crate::on_device::{
    client, close, download, dtypes, numbers, rounded, rounding, upload, upload_integers,
};

/// Which scale an element has.
#[derive(Clone, Copy)]
enum Scaled {
    /// Scales from row to row, elements from row to row, before the first column, of a block.
    Blocks([usize; 4]),
    /// Groups of a row, dealt to columns in turns.
    Listed(usize),
}

/// A strip of a kind.
#[derive(Clone, Copy)]
struct Kind {
    name: &'static str,
    /// Matrices, rows of each, columns.
    shape: [usize; 3],
    line: usize,
    eight: bool,
    scaled: Scaled,
    /// Scales before the first and of a block, where they are coded.
    coded: Option<[usize; 2]>,
    zeros: bool,
    factor: f32,
}

/// Its memory.
struct Memory {
    codes: Vec<Vec<u8>>,
    scale_codes: Vec<Vec<u8>>,
    scales: Vec<Vec<f32>>,
    zeros: Vec<Vec<u8>>,
    list: Vec<u32>,
    table: [f32; 256],
}

fn bytes(n: usize, seed: usize) -> Vec<u8> {
    (0..n).map(|i| ((i + seed).wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
}

const PLAIN: Kind = Kind {
    name: "blocks within rows",
    shape: [1, 12, 192],
    line: 192,
    eight: false,
    scaled: Scaled::Blocks([3, 0, 0, 64]),
    coded: None,
    zeros: false,
    factor: 1.0,
};

/// All that strips may be: blocks that run over rows, in vectors and not, begin before rows; groups; coded scales; stacks.
const KINDS: [Kind; 12] = [
    PLAIN,
    Kind { name: "blocks over rows", scaled: Scaled::Blocks([0, 192, 0, 64]), ..PLAIN },
    Kind {
        name: "blocks over odd rows",
        shape: [1, 7, 33],
        line: 33,
        scaled: Scaled::Blocks([0, 33, 0, 64]),
        ..PLAIN
    },
    Kind {
        name: "rows apart",
        shape: [1, 9, 100],
        line: 100,
        scaled: Scaled::Blocks([3, 0, 40, 64]),
        ..PLAIN
    },
    Kind {
        name: "rows apart, from within a vector",
        shape: [1, 9, 100],
        line: 100,
        scaled: Scaled::Blocks([3, 0, 13, 64]),
        ..PLAIN
    },
    Kind { name: "scales in eight bits", coded: Some([0, 256]), ..PLAIN },
    Kind { name: "scales in eight bits, from within a block", coded: Some([11, 16]), ..PLAIN },
    Kind {
        name: "a stack, scales in eight bits",
        shape: [3, 5, 128],
        line: 128,
        scaled: Scaled::Blocks([0, 128, 0, 64]),
        coded: Some([3, 4]),
        ..PLAIN
    },
    Kind {
        name: "signed bytes",
        shape: [2, 6, 136],
        line: 136,
        eight: true,
        scaled: Scaled::Blocks([1, 0, 0, 136]),
        factor: 7.874_016e-3,
        ..PLAIN
    },
    Kind {
        name: "signed bytes of odd rows",
        shape: [1, 6, 13],
        line: 13,
        eight: true,
        scaled: Scaled::Blocks([1, 0, 0, 13]),
        factor: 7.874_016e-3,
        ..PLAIN
    },
    Kind {
        name: "groups with zero points",
        shape: [2, 8, 96],
        line: 96,
        scaled: Scaled::Blocks([3, 0, 8, 40]),
        zeros: true,
        ..PLAIN
    },
    Kind {
        name: "listed groups with zero points",
        shape: [1, 8, 96],
        line: 96,
        scaled: Scaled::Listed(5),
        zeros: true,
        ..PLAIN
    },
];

impl Kind {
    /// Scales of a matrix.
    fn scales(&self) -> usize {
        let [_, rows, columns] = self.shape;
        match self.scaled {
            Scaled::Blocks([groups, step, first, block]) => {
                groups * (rows - 1) + (step * (rows - 1) + first + columns - 1) / block + 1
            }
            Scaled::Listed(groups) => groups * rows,
        }
    }

    fn memory(&self) -> Memory {
        let [matrices, rows, columns] = self.shape;
        let scales = self.scales();
        let codes = rows * self.line;
        let coarse = |[first, block]: [usize; 2]| (first + scales).div_ceil(block);
        let each = |seed: usize| numbers(FloatType::F32, self.coded.map_or(scales, coarse), seed as u32 + 1);
        let of = |n: usize, seed: usize| (0..matrices).map(|m| bytes(n, 1000 * m + seed)).collect();
        let groups = if let Scaled::Listed(groups) = self.scaled { groups } else { 1 };
        Memory {
            codes: of(if self.eight { codes } else { codes.div_ceil(2) }, 1),
            scale_codes: of(if self.coded.is_some() { scales } else { 0 }, 2),
            scales: (0..matrices).map(each).collect(),
            zeros: of(if self.zeros { scales } else { 0 }, 3),
            list: (0..columns).map(|column| (column * 3 % groups) as u32).collect(),
            table: numbers(FloatType::F32, 256, 77).try_into().unwrap(),
        }
    }

    fn strip<'a>(&self, memory: &'a Memory) -> PackedStrip<'a> {
        let [matrices, rows, columns] = self.shape;
        let matrix = |m: usize| PackedMatrix {
            codes: &memory.codes[m],
            scales: match self.coded {
                None => ScaleValues::Plain(Cow::Borrowed(&memory.scales[m])),
                Some([first, block]) => ScaleValues::Coded {
                    codes: &memory.scale_codes[m],
                    table: &memory.table,
                    scales: Cow::Borrowed(&memory.scales[m]),
                    first,
                    block,
                    offset: 0.37 + m as f32,
                },
            },
            zeros: &memory.zeros[m],
        };
        PackedStrip {
            rows,
            columns,
            line: self.line,
            kind: if self.eight {
                Codes::Eight
            } else {
                Codes::Four(numbers(FloatType::F32, 16, 78).try_into().unwrap())
            },
            scale_of: match self.scaled {
                Scaled::Blocks([groups, step, first, block]) => {
                    ScaleOf::Blocks { groups, step, first, block }
                }
                Scaled::Listed(groups) => ScaleOf::Listed { groups, list: &memory.list },
            },
            factor: self.factor,
            matrices: (0..matrices).map(matrix).collect(),
        }
    }
}

/// An element, as a strip says it.
fn element(strip: &PackedStrip<'_>, row: usize, column: usize) -> f32 {
    let (matrix, row) = (&strip.matrices[row / strip.rows], row % strip.rows);
    let at = match strip.scale_of {
        ScaleOf::Blocks { groups, step, first, block } => {
            groups * row + (step * row + first + column) / block
        }
        ScaleOf::Listed { groups, list } => groups * row + list[column] as usize,
    };
    let scale = match &matrix.scales {
        ScaleValues::Plain(scales) => scales[at],
        ScaleValues::Coded { codes, table, scales, first, block, offset } => {
            table[usize::from(codes[at])] * scales[(at + first) / block] + offset
        }
    };
    let code = strip.line * row + column;
    let value = match strip.kind {
        Codes::Four(values) => values[usize::from(matrix.codes[code / 2] >> (4 * (1 - code % 2)) & 15)],
        Codes::Eight => f32::from(matrix.codes[code].cast_signed()),
    };
    (value - matrix.zeros.get(at).map_or(0.0, |&zero| f32::from(zero))) * scale * strip.factor
}

/// A strip in a device's memory.
fn resting(client: &Client, strip: &PackedStrip<'_>) -> (PackedLayout, [Buffer; 2]) {
    let (layout, words, numbers) = PackedLayout::new(strip);
    (layout, [upload_integers(client, &words), upload(client, FloatType::F32, &numbers)])
}

#[track_caller]
fn same(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let other = got.iter().zip(expected).position(|(got, expected)| got.to_bits() != expected.to_bits());
    assert_eq!(other.map(|at| (at, got[at], expected[at])), None, "{what}");
}

#[test]
fn rows_are_widened_bit_for_bit() {
    let client = client();
    let all = [FloatType::F32, FloatType::Bf16, FloatType::F16];
    for kind in KINDS {
        let memory = kind.memory();
        let strip = kind.strip(&memory);
        let (rows, columns) = (strip.rows * strip.matrices.len(), strip.columns);
        let (layout, [words, numbers]) = resting(&client, &strip);
        for dtype in all.into_iter().take(if cfg!(feature = "cuda") { 3 } else { 1 }) {
            let of = |rows: Range<usize>| -> Vec<f32> {
                let each = rows.flat_map(|row| (0..columns).map(move |column| (row, column)));
                each.map(|(row, column)| rounded(dtype, element(&strip, row, column))).collect()
            };
            for part in [0..rows, rows / 3..rows.div_ceil(2), rows - 1..rows, 1..1] {
                let y = Buffer::empty(&client, part.len() * columns, dtype);
                widen_rows(&client, &layout, [&words, &numbers], part.clone(), &y, [0, columns]);
                let what = format!("{}: rows {part:?} in {dtype:?}", kind.name);
                same(&what, &download(&client, &y), &of(part));
            }
        }
    }
}

#[test]
fn strips_lie_side_by_side() {
    let client = client();
    // The second begins where vectors do, and where they do not.
    for columns in [64, 13] {
        let first = Kind {
            shape: [1, 9, columns],
            line: columns.next_multiple_of(2),
            scaled: Scaled::Blocks([2, 0, 0, 64]),
            ..PLAIN
        };
        let second = Kind { shape: [1, 9, 100], line: 100, scaled: Scaled::Blocks([3, 0, 40, 64]), ..PLAIN };
        let width = columns + 100;
        let y = Buffer::empty(&client, 9 * width, FloatType::F32);
        let mut expected = vec![0.0; 9 * width];
        for (kind, from) in [(first, 0), (second, columns)] {
            let memory = kind.memory();
            let strip = kind.strip(&memory);
            let (layout, [words, numbers]) = resting(&client, &strip);
            widen_rows(&client, &layout, [&words, &numbers], 0..9, &y, [from, width]);
            for row in 0..9 {
                (0..strip.columns).for_each(|c| expected[row * width + from + c] = element(&strip, row, c));
            }
        }
        same(&format!("{columns} columns, and 100"), &download(&client, &y), &expected);
    }
}

/// Products of few rows are those with the elements, each rounded to the dtype of the rows.
#[test]
fn few_rows_are_multiplied_by_codes() {
    let client = client();
    let long = Kind { name: "long rows", shape: [1, 130, 2048], line: 2048, ..PLAIN };
    for kind in KINDS.into_iter().chain([Kind { scaled: Scaled::Blocks([32, 0, 0, 64]), ..long }]) {
        let memory = kind.memory();
        let strip = kind.strip(&memory);
        let (outputs, columns) = (strip.rows * strip.matrices.len(), strip.columns);
        let (layout, [words, floats]) = resting(&client, &strip);
        for &dtype in dtypes() {
            let w: Vec<f64> = (0..outputs * columns)
                .map(|at| f64::from(rounded(dtype, element(&strip, at / columns, at % columns))))
                .collect();
            for (rows, finished) in [(1, false), (3, true), (8, true)] {
                let x = numbers(dtype, rows * columns, 7);
                let add = numbers(FloatType::F32, rows * outputs, 8);
                let bias = numbers(FloatType::F32, outputs, 9);
                let (add_at, bias_at) =
                    (upload(&client, FloatType::F32, &add), upload(&client, FloatType::F32, &bias));
                let finish = FewRows {
                    scale: 0.5,
                    bias: finished.then_some(&bias_at),
                    add: finished.then_some(&add_at),
                    dtype: if finished { FloatType::F32 } else { dtype },
                };
                let x_at = upload(&client, dtype, &x);
                let y = multiply_few_rows(&client, &x_at, &layout, [&words, &floats], finish);
                let expected: Vec<f64> = (0..rows * outputs)
                    .map(|at| {
                        let (x, w) = (&x[at / outputs * columns..], &w[at % outputs * columns..][..columns]);
                        let sum: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * w).sum();
                        let more = f64::from(add[at]) + f64::from(bias[at % outputs]);
                        0.5 * sum + if finished { more } else { 0.0 }
                    })
                    .collect();
                let what = format!("{rows} rows, {}, {dtype:?}", kind.name);
                close(&what, &download(&client, &y), &expected, 1e-4 + rounding(finish.dtype));
            }
        }
    }
}

/// Rows of places by the codes of their experts, of one strip.
#[test]
fn rows_of_places_are_multiplied_by_the_codes_of_their_experts() {
    let client = client();
    for kind in KINDS {
        let memory = kind.memory();
        let strip = kind.strip(&memory);
        let (lines, columns) = (strip.rows * strip.matrices.len(), strip.columns);
        let experts = (2..=lines).find(|n| lines.is_multiple_of(*n)).unwrap_or(1);
        let outputs = lines / experts;
        let (layout, [words, floats]) = resting(&client, &strip);
        // Two tokens of three experts; one of another rank.
        let ids: Vec<u32> =
            (0..6).map(|i| if i == 4 { u32::MAX } else { (i * i % experts) as u32 }).collect();
        let chosen = upload_integers(&client, &ids);
        for (&dtype, each) in dtypes().iter().flat_map(|dtype| [(dtype, 3), (dtype, 1)]) {
            let x = numbers(dtype, 6 / each * columns, 7);
            let bias = numbers(FloatType::F32, lines, 9);
            let (x_at, bias_at) = (upload(&client, dtype, &x), upload(&client, FloatType::F32, &bias));
            let finish = FewRows { scale: 0.5, bias: Some(&bias_at), add: None, dtype };
            let of = FewPlaces { chosen: &chosen, experts, each };
            let y = multiply_few_places_by_codes(&client, &x_at, &layout, [&words, &floats], of, finish);
            let output = |at: usize| {
                let place = at / outputs;
                if ids[place] == u32::MAX {
                    return 0.0;
                }
                let line = ids[place] as usize * outputs + at % outputs;
                let w = |column| f64::from(rounded(dtype, element(&strip, line, column)));
                let sum: f64 = (0..columns).map(|c| f64::from(x[place / each * columns + c]) * w(c)).sum();
                0.5 * sum + f64::from(bias[line])
            };
            let expected: Vec<f64> = (0..6 * outputs).map(output).collect();
            let what = format!("{experts} experts, {each} a row, {}, {dtype:?}", kind.name);
            close(&what, &download(&client, &y), &expected, 1e-4 + rounding(dtype));
        }
    }
}
