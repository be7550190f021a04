//! Rows of matrices in fewer bits, widened.

use std::ops::Range;

use burnish_core::{Codes, PackedStrip, ScaleOf, ScaleValues};
use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use crate::buffer::{Buffer, FloatType};
use crate::row;

/// Vectors of a unit.
const EACH: usize = 4;
/// Values of codes of four bits.
pub(crate) const VALUES: usize = 16;
/// Scales that codes of eight bits stand for.
const TABLE: usize = 256;
/// Codes of four and of eight bits in a word.
const CODES: [usize; 2] = [8, 4];

/// How a [`PackedStrip`] lies in two memories: one of words of 32 bits (codes, codes of scales, zero points, a list), one of
/// f32 (values of codes, scales).
#[derive(Clone, Debug)]
pub struct PackedLayout {
    rows: usize,
    columns: usize,
    line: usize,
    factor: f32,
    /// Scales from row to row; elements from row to row, before the first column, of a block.
    groups: usize,
    step: usize,
    first: usize,
    block: usize,
    /// Words of the codes of a matrix.
    codes: usize,
    /// Scales of a matrix.
    scales: usize,
    /// Factors of a matrix' scales, where those are coded; scales before the first, of a block.
    coarse: usize,
    coarse_first: usize,
    coarse_block: usize,
    /// Words before the codes of scales, zero points and list; numbers before the scales or what is multiplied by them.
    scale_codes_at: usize,
    zeros_at: usize,
    list_at: usize,
    scales_at: usize,
    matrices: usize,
    form: Form,
}

/// What a kernel is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    /// Codes are of eight bits, else of four.
    eight: bool,
    /// Scales are codes.
    coded: bool,
    zeros: bool,
    /// The groups of columns are listed.
    listed: bool,
    /// Elements of a vector.
    pub(crate) size: usize,
}

/// Bytes as words, the last one filled up.
fn push(words: &mut Vec<u32>, bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<4>();
    words.extend(whole.iter().map(|word| u32::from_le_bytes(*word)));
    if !rest.is_empty() {
        let mut last = [0; 4];
        last[..rest.len()].copy_from_slice(rest);
        words.push(u32::from_le_bytes(last));
    }
}

impl PackedLayout {
    /// Where all of a strip lies, its words, and its numbers.
    ///
    /// # Panics
    /// If it has no matrix.
    #[must_use]
    pub fn new(strip: &PackedStrip<'_>) -> (Self, Vec<u32>, Vec<f32>) {
        let (mut words, mut numbers) = (Vec::new(), Vec::new());
        let one = strip.matrices.first().expect("invariant: a strip has a matrix");
        for matrix in &strip.matrices {
            push(&mut words, matrix.codes);
        }
        if let Codes::Four(values) = strip.kind {
            numbers.extend(values);
        }
        let mut layout = Self {
            rows: strip.rows,
            columns: strip.columns,
            line: strip.line,
            factor: strip.factor,
            groups: 0,
            step: 0,
            first: 0,
            block: 1,
            codes: one.codes.len().div_ceil(4),
            scales: 0,
            coarse: 0,
            coarse_first: 0,
            coarse_block: 1,
            scale_codes_at: words.len(),
            zeros_at: 0,
            list_at: 0,
            scales_at: numbers.len(),
            matrices: strip.matrices.len(),
            form: Form {
                eight: strip.kind == Codes::Eight,
                coded: false,
                zeros: !one.zeros.is_empty(),
                listed: false,
                size: 1,
            },
        };
        let mut codes_of_scales = Vec::new();
        for matrix in &strip.matrices {
            match &matrix.scales {
                ScaleValues::Plain(scales) => {
                    layout.scales = scales.len();
                    numbers.extend_from_slice(scales);
                }
                ScaleValues::Coded { codes, table, scales, first, block, offset } => {
                    if !layout.form.coded {
                        numbers.extend_from_slice(&table[..]);
                        layout.form.coded = true;
                    }
                    (layout.scales, layout.coarse) = (codes.len(), scales.len());
                    (layout.coarse_first, layout.coarse_block) = (*first, *block);
                    codes_of_scales.extend_from_slice(codes);
                    numbers.push(*offset);
                    numbers.extend_from_slice(scales);
                }
            }
        }
        push(&mut words, &codes_of_scales);
        layout.zeros_at = words.len();
        push(&mut words, &strip.matrices.iter().flat_map(|matrix| matrix.zeros).copied().collect::<Vec<_>>());
        layout.list_at = words.len();
        match strip.scale_of {
            ScaleOf::Blocks { groups, step, first, block } => {
                (layout.groups, layout.step, layout.first, layout.block) = (groups, step, first, block);
            }
            ScaleOf::Listed { groups, list } => {
                (layout.groups, layout.form.listed) = (groups, true);
                words.extend_from_slice(list);
            }
        }
        // A word there is, whatever is asked of it.
        words.resize(words.len().max(1), 0);
        (layout, words, numbers)
    }

    /// As an argument of a kernel that takes vectors of `size` elements.
    pub(crate) fn arg(&self, size: usize) -> LayoutLaunch {
        LayoutLaunch::new(
            self.columns / size,
            self.rows,
            self.line,
            self.codes,
            self.groups,
            self.step,
            self.first,
            self.block,
            self.scales,
            self.scales_at,
            self.scale_codes_at,
            self.coarse,
            self.coarse_first,
            self.coarse_block,
            self.zeros_at,
            self.list_at,
            self.factor,
            0,
        )
    }

    /// What kernels that take vectors of `size` elements are compiled for.
    pub(crate) fn form(&self, size: usize) -> Form {
        Form { size, ..self.form }
    }

    /// Rows, and elements of each.
    #[must_use]
    pub fn shape(&self) -> [usize; 2] {
        [self.matrices * self.rows, self.columns]
    }

    /// The integers that count its codes and so many elements.
    pub(crate) fn address(&self, elements: usize, [words, numbers]: [&Buffer; 2]) -> AddressType {
        let counts = [words.len, numbers.len, elements, self.rows * self.line];
        AddressType::from_len(counts.into_iter().max().unwrap_or(0))
    }

    /// Elements of the vectors of 16 bytes in which rows of `width` elements are written from `column` on, or 1 where a vector
    /// would reach over rows, words or blocks.
    pub(crate) fn size(&self, column: usize, width: usize, dtype: FloatType) -> usize {
        let size = 16 / dtype.bytes();
        let of_blocks =
            [self.step, self.first, self.block].iter().all(|at| at.is_multiple_of(size)) || self.form.listed;
        let fits = [self.columns, self.line, column, width].iter().all(|at| at.is_multiple_of(size));
        if of_blocks && fits { size } else { 1 }
    }
}

/// Widens rows `rows` of a strip, whose memory is `words` and `numbers`, to columns `column..` of `y` `[rows, width]`.
///
/// A code's bits, `1 / block` scales and `w_y` bytes an element, each once, in vectors of 16 bytes where rows, words and blocks
/// are whole vectors; the 16 values of codes of four bits are 64 bytes of shared memory. Four operations an element, in the
/// order that [`PackedStrip`] says and none joined with another, so that bits are those of the CPU.
///
/// # Panics
/// If there are no such rows, or `y` is not of this size.
pub fn widen_rows(
    client: &Client,
    layout: &PackedLayout,
    [words, numbers]: [&Buffer; 2],
    rows: Range<usize>,
    y: &Buffer,
    [column, width]: [usize; 2],
) {
    assert!(
        rows.end <= layout.matrices * layout.rows && column + layout.columns <= width,
        "invariant: rows of the strip"
    );
    assert_eq!(y.len, rows.len() * width, "invariant: rows of {width}");
    if rows.is_empty() || layout.columns == 0 {
        return;
    }
    let size = layout.size(column, width, y.dtype);
    let vectors = rows.len() * (layout.columns / size);
    let units = row::most_units(client);
    widened::launch(
        client,
        row::cubes(client, vectors.div_ceil(units * EACH)),
        CubeDim::new_1d(units as u32),
        layout.address(y.len, [words, numbers]),
        size,
        words.arg(1),
        numbers.arg(1),
        y.arg(size),
        layout.arg(size),
        vectors,
        rows.start,
        width / size,
        column / size,
        layout.form(size),
        y.dtype.elem(),
    );
}

/// [`PackedLayout`], as the kernel has it.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Layout {
    /// Vectors of a row.
    pub(crate) of_row: usize,
    rows: usize,
    line: usize,
    codes: usize,
    groups: usize,
    step: usize,
    first: usize,
    block: usize,
    scales: usize,
    scales_at: usize,
    scale_codes_at: usize,
    coarse: usize,
    coarse_first: usize,
    coarse_block: usize,
    zeros_at: usize,
    list_at: usize,
    factor: f32,
    /// 0, which the compiler does not know.
    nothing: u32,
}

/// A byte of words.
#[cube]
fn byte(words: &[u32], at: usize, number: usize) -> u32 {
    (words[at + number / 4] >> ((number % 4) as u32 * 8u32)) & 255u32
}

/// The scale of a matrix by number.
#[cube]
fn scale(
    words: &[u32],
    numbers: &[f32],
    layout: &Layout,
    matrix: usize,
    number: usize,
    #[comptime] form: Form,
) -> f32 {
    let at = matrix * layout.scales + number;
    if form.coded {
        let begins = layout.scales_at + comptime!(TABLE) + matrix * (layout.coarse + 1);
        let fine = numbers[layout.scales_at + byte(words, layout.scale_codes_at, at) as usize];
        let coarse = numbers[begins + 1 + (number + layout.coarse_first) / layout.coarse_block];
        // Rounded before the offset is added, as the CPU does it: one fused operation would not.
        let product = u32::reinterpret(fine * coarse) ^ layout.nothing;
        f32::reinterpret(product) + numbers[begins]
    } else {
        numbers[layout.scales_at + at]
    }
}

/// The zero point of a matrix by number.
#[cube]
fn zero(words: &[u32], layout: &Layout, matrix: usize, number: usize, #[comptime] form: Form) -> f32 {
    if form.zeros {
        f32::cast_from(byte(words, layout.zeros_at, matrix * layout.scales + number))
    } else {
        0.0f32.runtime()
    }
}

/// What a code stands for, by its number among those of a vector, of a matrix.
#[cube]
fn value(words: &[u32], values: &Shared<[f32]>, at: usize, code: usize, #[comptime] form: Form) -> f32 {
    if form.eight {
        let word = words[at + code / 4] << (24u32 - (code % 4) as u32 * 8u32);
        f32::cast_from(i32::reinterpret(word) >> 24i32)
    } else {
        let upper = 4u32 - (code % 2) as u32 * 4u32;
        let code = (words[at + code / 8] >> ((code % 8) as u32 / 2u32 * 8u32 + upper)) & 15u32;
        values[code as usize]
    }
}

/// The values of codes of four bits, for all units.
#[cube]
pub(crate) fn table(numbers: &[f32], values: &mut Shared<[f32]>, #[comptime] form: Form) {
    if !form.eight {
        if (UNIT_POS as usize) < comptime!(VALUES) {
            values[UNIT_POS as usize] = numbers[UNIT_POS as usize];
        }
        sync_cube();
    }
}

/// A vector of a row.
#[cube]
pub(crate) fn elements<N: Size>(
    words: &[u32],
    numbers: &[f32],
    values: &Shared<[f32]>,
    layout: &Layout,
    row: usize,
    vector: usize,
    #[comptime] form: Form,
) -> Vector<f32, N> {
    let (matrix, row) = (row / layout.rows, row % layout.rows);
    let column = vector * comptime!(form.size);
    let code = row * layout.line + column;
    let at = matrix * layout.codes + code / comptime!(codes(form));
    // Whole words are known to be such.
    let within =
        if comptime!(form.size >= codes(form)) { 0usize.runtime() } else { code % comptime!(codes(form)) };
    let mut wide = Vector::<f32, N>::new(0.0f32);
    if form.listed {
        #[unroll]
        for k in 0..comptime!(form.size) {
            let number = row * layout.groups + words[layout.list_at + column + k] as usize;
            let less = value(words, values, at, within + k, form) - zero(words, layout, matrix, number, form);
            wide.insert(k, less * scale(words, numbers, layout, matrix, number, form) * layout.factor);
        }
    } else {
        let number = row * layout.groups + (row * layout.step + layout.first + column) / layout.block;
        let scale = scale(words, numbers, layout, matrix, number, form);
        let zero = zero(words, layout, matrix, number, form);
        #[unroll]
        for k in 0..comptime!(form.size) {
            let less = value(words, values, at, within + k, form) - zero;
            wide.insert(k, less * scale * layout.factor);
        }
    }
    wide
}

#[cube(launch, address_type = "dynamic")]
fn widened<O: Float, N: Size>(
    words: &[u32],
    numbers: &[f32],
    y: &mut [Vector<O, N>],
    layout: &Layout,
    vectors: usize,
    from: usize,
    width: usize,
    first: usize,
    #[comptime] form: Form,
    #[define(O)] _of_y: ElemType,
) {
    let mut values = Shared::<[f32]>::new_slice(comptime!(VALUES));
    table(numbers, &mut values, form);
    #[unroll]
    for turn in 0..comptime!(EACH) {
        let place = (CUBE_POS * comptime!(EACH) + turn) * CUBE_DIM as usize + UNIT_POS as usize;
        if place < vectors {
            let (row, vector) = (place / layout.of_row, place % layout.of_row);
            let wide = elements::<N>(words, numbers, &values, layout, from + row, vector, form);
            y[row * width + first + vector] = Vector::cast_from(wide);
        }
    }
}

/// Codes in a word.
fn codes(form: Form) -> usize {
    CODES[usize::from(form.eight)]
}
