//! `Quantized`: a matrix in few bits.

use std::borrow::Cow;
use std::ops::Range;

use burnish_core::{
    BlockScale, Codes, Dtype, EightBits, FourBits, PackedMatrix, PackedStrip, Quantization, Region, ScaleOf,
    ScaleValues, Scheme,
};
use half::{bf16, f16};
use rayon::prelude::*;

use crate::blocks::Blocks;
use crate::error::QuantError;
use crate::groups::{Groups, Inputs, Steps};
use crate::scales::Scales;
use crate::{int8, mxfp4};

/// What a quantised matrix is read as.
pub trait Float: Copy + Default + Send + Sync + 'static {
    /// Its name.
    const DTYPE: Dtype;
    /// The nearest value, of two that are as near the even one.
    fn narrow(value: f32) -> Self;
    /// The same value.
    fn widen(self) -> f32;
}

macro_rules! float {
    ($type:ty, $dtype:ident, $narrow:expr, $widen:expr) => {
        impl Float for $type {
            const DTYPE: Dtype = Dtype::$dtype;
            #[inline]
            fn narrow(value: f32) -> Self {
                $narrow(value)
            }
            #[inline]
            fn widen(self) -> f32 {
                $widen(self)
            }
        }
    };
}
float!(f32, F32, std::convert::identity, std::convert::identity);
float!(bf16, Bf16, bf16::from_f32, bf16::to_f32);
float!(f16, F16, f16::from_f32, f16::to_f32);

/// Rows of a matrix as codes and scales, of the whole or of a [region](Self::region) of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantized {
    pub(crate) quantization: Quantization,
    pub(crate) rows: usize,
    pub(crate) row: usize,
    pub(crate) body: Body,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Body {
    Blocks(Blocks),
    /// A scale a row.
    Rows {
        codes: Vec<u8>,
        scales: Vec<f32>,
    },
    Groups(Groups),
    /// Columns that did not follow each other, side by side.
    Strips(Vec<Quantized>),
    /// Matrices of as many rows each, one below the other, quantised each by itself.
    Stack(Vec<Quantized>),
}

/// Blocks that one task reads or writes (256 KiB of fp32).
pub(crate) const TASK: usize = 1024;

/// Elements that are read at most: more than any matrix has, and few enough for every product of sizes.
const MOST: usize = 1 << 40;

pub(crate) fn plain(scheme: Scheme) -> Quantization {
    Quantization { scheme, nested: false }
}

/// Fails unless there are so many.
fn expect(
    what: &'static str,
    got: usize,
    expected: usize,
    [rows, row]: [usize; 2],
) -> Result<(), QuantError> {
    if got == expected { Ok(()) } else { Err(QuantError::Length { what, got, expected, rows, row }) }
}

pub(crate) fn finite(what: &'static str, values: &[f32]) -> Result<(), QuantError> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(at) => Err(QuantError::NotFinite { what, at, value: values[at] }),
        None => Ok(()),
    }
}

/// Fails unless a matrix may be of this shape.
fn shape_of([rows, row]: [usize; 2]) -> Result<usize, QuantError> {
    let elements = rows.checked_mul(row).filter(|&elements| elements > 0 && elements <= MOST);
    elements.ok_or(QuantError::Shape { rows, row })
}

/// The matrix that a row of all of a stack is in, and which row of it that is.
fn of_stack(parts: &[Quantized], row: usize) -> (&Quantized, usize) {
    let each = parts[0].rows;
    (&parts[row / each], row % each)
}

/// Puts matrices below those of a strip; `None` where they are of another kind.
fn below<'a>(strip: &mut PackedStrip<'a>, more: PackedStrip<'a>) -> Option<()> {
    let shape = |strip: &PackedStrip<'a>| {
        let PackedStrip { rows, columns, line, kind, scale_of, factor, matrices } = strip;
        let scales = match &matrices[0].scales {
            ScaleValues::Plain(scales) => (scales.len(), None),
            ScaleValues::Coded { codes, table, scales, first, block, .. } => {
                (codes.len(), Some((*table, scales.len(), *first, *block)))
            }
        };
        let matrix = (matrices[0].codes.len(), matrices[0].zeros.len(), scales);
        (*rows, *columns, *line, *kind, *scale_of, *factor, matrix)
    };
    if shape(strip) != shape(&more) {
        return None;
    }
    strip.matrices.extend(more.matrices);
    Some(())
}

impl Quantized {
    /// `values`, rows of `row` elements, quantised as bitsandbytes does.
    ///
    /// # Panics
    /// If `values` are not whole rows, or nothing is quantised so ([`Scheme::Int4`], [`Scheme::Mxfp4`], [`Scheme::Nvfp4`]).
    #[must_use]
    pub fn new<T: Float>(quantization: Quantization, values: &[T], row: usize) -> Self {
        assert!(row > 0 && values.len().is_multiple_of(row), "{} elements in rows of {row}", values.len());
        let rows = values.len() / row;
        let body = match quantization.scheme {
            Scheme::Nf4 | Scheme::Fp4 => {
                Body::Blocks(Blocks::new(quantization.scheme, quantization.nested, values))
            }
            Scheme::Int8 => {
                let (mut codes, mut scales) = (vec![0_u8; values.len()], vec![0.0_f32; rows]);
                let tasks = codes.par_chunks_mut(row).zip(values.par_chunks(row)).zip(&mut scales);
                tasks.with_min_len(16).for_each_init(Vec::new, |wide, ((codes, values), scale)| {
                    wide.clear();
                    wide.extend(values.iter().map(|value| value.widen()));
                    *scale = int8::narrow(wide, codes);
                });
                Body::Rows { codes, scales }
            }
            Scheme::Int4 { .. } | Scheme::Mxfp4 | Scheme::Nvfp4 => {
                panic!("invariant: {:?} is read, not made", quantization.scheme)
            }
        };
        Self { quantization, rows, row, body }
    }

    /// A matrix of `[rows, row]` elements in NF4 or FP4 as bitsandbytes stores it: codes two a byte, the first in the upper
    /// half, and a scale for every 64.
    ///
    /// # Errors
    /// If there are not as many codes or scales, or a scale is not finite.
    ///
    /// # Panics
    /// If `scheme` has no blocks.
    pub fn from_blocks(
        scheme: Scheme,
        shape: [usize; 2],
        codes: Vec<u8>,
        scales: Scales,
    ) -> Result<Self, QuantError> {
        assert!(matches!(scheme, Scheme::Nf4 | Scheme::Fp4), "invariant: {scheme:?} has blocks");
        let elements = shape_of(shape)?;
        let blocks = elements.div_ceil(Quantization::BLOCK);
        expect("codes (bytes)", codes.len(), elements.div_ceil(2), shape)?;
        expect("scales (absmax)", scales.len(), blocks, shape)?;
        let nested = match &scales {
            Scales::Plain(scales) => {
                finite("scale (absmax)", scales)?;
                false
            }
            Scales::Nested { scales, offset, .. } => {
                let groups = blocks.div_ceil(Quantization::NESTED_BLOCK);
                expect("scales of scales (nested_absmax)", scales.len(), groups, shape)?;
                finite("scale of scales (nested_absmax)", scales)?;
                finite("nested_offset", &[*offset])?;
                true
            }
        };
        let body = Body::Blocks(Blocks::whole(scheme, codes, scales));
        Ok(Self { quantization: Quantization { scheme, nested }, rows: shape[0], row: shape[1], body })
    }

    /// A matrix of `[rows, row]` elements in int8 as bitsandbytes stores it: a signed byte an element, a scale a row.
    ///
    /// # Errors
    /// If there are not as many codes or scales, or a scale is not finite.
    pub fn from_rows(shape: [usize; 2], codes: Vec<u8>, scales: Vec<f32>) -> Result<Self, QuantError> {
        expect("codes (bytes)", codes.len(), shape_of(shape)?, shape)?;
        expect("scales (SCB)", scales.len(), shape[0], shape)?;
        finite("scale (SCB)", &scales)?;
        let body = Body::Rows { codes, scales };
        Ok(Self { quantization: plain(Scheme::Int8), rows: shape[0], row: shape[1], body })
    }

    /// A matrix of `[rows, row]` elements in MXFP4 as gpt-oss stores it: `blocks` has 16 bytes for each of `scales`, two
    /// codes a byte, the first in the lower half; a scale is an exponent of two, 127 too large. Exact in bf16.
    ///
    /// # Errors
    /// If rows are not whole blocks of 32, there are not as many codes or scales, or a value is past bf16's range.
    pub fn from_mxfp4(shape: [usize; 2], blocks: Vec<u8>, scales: Vec<u8>) -> Result<Self, QuantError> {
        let [rows, row] = shape;
        let elements = shape_of(shape)?;
        if !row.is_multiple_of(Scheme::MXFP4_BLOCK) {
            return Err(QuantError::Shape { rows, row });
        }
        expect("codes (bytes of blocks)", blocks.len(), elements / 2, shape)?;
        expect("scales", scales.len(), rows * mxfp4::blocks(row), shape)?;
        mxfp4::fit(&scales)?;
        let body = Body::Groups(Groups {
            codes: mxfp4::turned(blocks),
            steps: Steps::Powers(scales),
            groups: mxfp4::blocks(row),
            inputs: Inputs::Runs { group: Scheme::MXFP4_BLOCK, first: 0 },
        });
        Ok(Self { quantization: plain(Scheme::Mxfp4), rows, row, body })
    }

    /// A matrix of `[rows, row]` elements in NVFP4: `codes` as in [`Self::from_mxfp4`], and what 16 elements of a row each are
    /// multiplied by, the scale of the matrix in it.
    ///
    /// # Errors
    /// If rows are not whole blocks of 16, there are not as many codes or scales, or a scale is not finite.
    pub fn from_nvfp4(shape: [usize; 2], codes: Vec<u8>, scales: Vec<f32>) -> Result<Self, QuantError> {
        let [rows, row] = shape;
        let elements = shape_of(shape)?;
        if !row.is_multiple_of(Scheme::NVFP4_BLOCK) {
            return Err(QuantError::Shape { rows, row });
        }
        expect("codes (bytes)", codes.len(), elements / 2, shape)?;
        expect("scales", scales.len(), elements / Scheme::NVFP4_BLOCK, shape)?;
        finite("scale", &scales)?;
        let body = Body::Groups(Groups {
            codes: mxfp4::turned(codes),
            steps: Steps::Floats(scales),
            groups: row / Scheme::NVFP4_BLOCK,
            inputs: Inputs::Runs { group: Scheme::NVFP4_BLOCK, first: 0 },
        });
        Ok(Self { quantization: plain(Scheme::Nvfp4), rows, row, body })
    }

    /// Matrices of one shape, quantised alike but each by itself, as one matrix of all their rows (experts).
    ///
    /// # Panics
    /// If there are none, or one has another shape or quantisation.
    #[must_use]
    pub fn stacked(parts: Vec<Self>) -> Self {
        let first = parts.first().expect("invariant: there is a matrix");
        let (quantization, [rows, row]) = (first.quantization, first.shape());
        let alike = |part: &Self| part.shape() == [rows, row] && part.quantization == quantization;
        assert!(parts.iter().all(alike), "invariant: matrices of one shape, quantised alike");
        Self { quantization, rows: rows * parts.len(), row, body: Body::Stack(parts) }
    }

    /// The matrices that are [stacked](Self::stacked); itself where none are.
    #[must_use]
    pub fn parts(&self) -> &[Self] {
        match &self.body {
            Body::Stack(parts) => parts,
            _ => std::slice::from_ref(self),
        }
    }

    /// A matrix of `[rows, row]` elements in steps: `codes` two a byte, the first in the upper half, each row from a byte
    /// on; `scales` and `zeros` `[rows, groups]`; inputs are `group` to a group, or of the group that `order` says.
    pub(crate) fn from_groups(
        [rows, row]: [usize; 2],
        group: usize,
        (codes, scales, zeros): (Vec<u8>, Vec<f32>, Vec<u8>),
        order: Option<Vec<u32>>,
    ) -> Self {
        let scheme = Scheme::Int4 { group, ordered: order.is_some() };
        let inputs = order.map_or(Inputs::Runs { group, first: 0 }, |order| Inputs::Listed(order.into()));
        let groups = scales.len() / rows;
        let body = Body::Groups(Groups { codes, steps: Steps::Even { scales, zeros }, groups, inputs });
        Self { quantization: plain(scheme), rows, row, body }
    }

    /// How its codes are to be read.
    #[must_use]
    pub fn quantization(&self) -> Quantization {
        self.quantization
    }

    /// Rows, and elements of each.
    #[must_use]
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.row]
    }

    /// Codes of a whole matrix as bitsandbytes stores them: two a byte in four bits (the first in the upper half), one signed
    /// byte an element in eight.
    #[must_use]
    pub fn codes(&self) -> &[u8] {
        match &self.body {
            Body::Blocks(blocks) => blocks.codes(),
            Body::Rows { codes, .. } => codes,
            Body::Groups(groups) => &groups.codes,
            Body::Strips(_) | Body::Stack(_) => &[],
        }
    }

    /// Scales of a whole matrix, of blocks or of rows.
    #[must_use]
    pub fn scales(&self) -> Scales {
        match &self.body {
            Body::Blocks(blocks) => blocks.scales().clone(),
            Body::Rows { scales, .. } => Scales::Plain(scales.clone()),
            Body::Groups(groups) => {
                Scales::Plain((0..groups.steps.len()).map(|group| groups.steps.scale(group)).collect())
            }
            Body::Strips(_) | Body::Stack(_) => Scales::Plain(Vec::new()),
        }
    }

    /// Bytes of codes and scales.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.body {
            Body::Blocks(blocks) => blocks.bytes(),
            Body::Rows { codes, scales } => codes.len() + 4 * scales.len(),
            Body::Groups(groups) => groups.bytes(),
            Body::Strips(parts) | Body::Stack(parts) => parts.iter().map(Self::bytes).sum(),
        }
    }

    /// The scale that the codes of a block (in eight bits of a row) are multiplied by.
    ///
    /// # Panics
    /// If rows lie apart, or there is no such block.
    #[must_use]
    pub fn scale(&self, block: usize) -> f32 {
        match &self.body {
            Body::Blocks(blocks) => blocks.scale_of(block),
            Body::Rows { scales, .. } => scales[block],
            Body::Groups(groups) => groups.steps.scale(block),
            Body::Strips(_) | Body::Stack(_) => panic!("invariant: several matrices have no run of blocks"),
        }
    }

    /// Some of the rows.
    ///
    /// # Panics
    /// If there are no such rows.
    #[must_use]
    pub fn rows(&self, rows: Range<usize>) -> Self {
        self.region(&Region::rows(&[self.rows, self.row], rows))
    }

    /// A part of it, with the codes and scales that it has in the whole.
    ///
    /// # Panics
    /// If the region is of another shape.
    #[must_use]
    pub fn region(&self, region: &Region) -> Self {
        assert_eq!(region.shape(), [self.rows, self.row], "invariant: a region of this matrix");
        if region.is_whole() {
            return self.clone();
        }
        let (rows, columns) = (region.ranges(0), region.ranges(1));
        let shape = region.local_shape();
        let mut strips = Vec::new();
        if region.elements() > 0 {
            strips.extend(columns.iter().map(|columns| self.part(rows, columns.clone())));
        }
        if strips.len() == 1 {
            return strips.remove(0);
        }
        let quantization = self.quantization;
        Self { quantization, rows: shape[0], row: shape[1], body: Body::Strips(strips) }
    }

    fn part(&self, rows: &[Range<usize>], columns: Range<usize>) -> Self {
        let numbers = || rows.iter().cloned().flatten();
        let width = columns.len();
        let body = match &self.body {
            Body::Blocks(blocks) => Body::Blocks(blocks.part(self.row, rows, columns)),
            Body::Rows { codes, scales } => {
                let of = |number: usize| &codes[number * self.row..][columns.clone()];
                Body::Rows {
                    codes: numbers().flat_map(|number| of(number).iter().copied()).collect(),
                    scales: numbers().map(|number| scales[number]).collect(),
                }
            }
            Body::Groups(groups) => Body::Groups(groups.part(self.row, rows, columns)),
            Body::Strips(strips) => {
                let (mut at, mut own) = (0, Vec::new());
                for strip in strips {
                    let within = columns.start.max(at)..columns.end.min(at + strip.row);
                    if !within.is_empty() {
                        own.push(strip.part(rows, within.start - at..within.end - at));
                    }
                    at += strip.row;
                }
                Body::Strips(own)
            }
            Body::Stack(parts) => return Self::part_of_stack(parts, rows, columns),
        };
        Self { quantization: self.quantization, rows: numbers().count(), row: width, body }
    }

    /// As [`Self::part`] of matrices one below the other. Where as many rows of each are wanted they stay so, else runs of
    /// rows are matrices of one row.
    fn part_of_stack(parts: &[Self], rows: &[Range<usize>], columns: Range<usize>) -> Self {
        let each = parts[0].rows;
        let mut own: Vec<(usize, Vec<Range<usize>>)> = Vec::new();
        for range in rows {
            let mut start = range.start;
            while start < range.end {
                let (at, end) = (start / each, range.end.min((start / each + 1) * each));
                let within = start - at * each..end - at * each;
                match own.last_mut() {
                    Some((last, ranges)) if *last == at => ranges.push(within),
                    _ => own.push((at, vec![within])),
                }
                start = end;
            }
        }
        let many = |ranges: &[Range<usize>]| ranges.iter().map(Range::len).sum::<usize>();
        let alike = own.windows(2).all(|pair| many(&pair[0].1) == many(&pair[1].1));
        let of = |(at, ranges): &(usize, Vec<Range<usize>>)| parts[*at].part(ranges, columns.clone());
        if own.len() == 1 {
            return of(&own[0]);
        }
        if alike {
            return Self::stacked(own.iter().map(of).collect());
        }
        let one =
            |at: usize, row: usize| parts[at].part(std::slice::from_ref(&(row..row + 1)), columns.clone());
        let single = own.iter().flat_map(|(at, ranges)| {
            let at = *at;
            ranges.iter().cloned().flatten().map(move |row| (at, row))
        });
        Self::stacked(single.map(|(at, row)| one(at, row)).collect())
    }

    /// Elements of a row, from a column on: of a code its value times the scale, rounded once.
    ///
    /// # Panics
    /// If the row has not so many.
    pub fn read<T: Float>(&self, row: usize, column: usize, out: &mut [T]) {
        assert!(row < self.rows && column + out.len() <= self.row, "invariant: elements of the matrix");
        match &self.body {
            Body::Blocks(blocks) => blocks.read(self.row, row, column, out),
            Body::Rows { codes, scales } => {
                let codes = &codes[row * self.row + column..];
                for (value, &code) in out.iter_mut().zip(codes) {
                    *value = T::narrow(int8::widen(code, scales[row]));
                }
            }
            Body::Groups(groups) => groups.read(self.row, row, column, out),
            Body::Strips(strips) => {
                let (mut at, mut column, mut out) = (0, column, out);
                for strip in strips {
                    if out.is_empty() {
                        break;
                    }
                    if column < at + strip.row {
                        let many = (at + strip.row - column).min(out.len());
                        let (now, rest) = out.split_at_mut(many);
                        strip.read(row, column - at, now);
                        column += many;
                        out = rest;
                    }
                    at += strip.row;
                }
            }
            Body::Stack(parts) => {
                let (part, row) = of_stack(parts, row);
                part.read(row, column, out);
            }
        }
    }

    /// See [`burnish_core::PackedRows::four_bits`].
    pub(crate) fn four_bits(
        &self,
        row: usize,
        column: usize,
        scales: &mut [BlockScale],
    ) -> Option<FourBits<'_>> {
        match &self.body {
            Body::Blocks(blocks) => blocks.four_bits(self.row, row, column, scales),
            Body::Groups(groups) => groups.four_bits(self.row, row, column, scales),
            Body::Stack(parts) => {
                let (part, row) = of_stack(parts, row);
                part.four_bits(row, column, scales)
            }
            Body::Rows { .. } | Body::Strips(_) => None,
        }
    }

    /// See [`burnish_core::PackedRows::eight_bits`].
    pub(crate) fn eight_bits(&self, row: usize, column: usize) -> Option<EightBits<'_>> {
        match &self.body {
            Body::Rows { codes, scales } => {
                let codes = &codes[row * self.row + column..];
                Some(EightBits { codes, scales: [scales[row], int8::STEP], products: false })
            }
            Body::Stack(parts) => {
                let (part, row) = of_stack(parts, row);
                part.eight_bits(row, column)
            }
            Body::Blocks(_) | Body::Groups(_) | Body::Strips(_) => None,
        }
    }

    /// See [`burnish_core::PackedRows::strips`].
    pub(crate) fn strips(&self) -> Option<Vec<PackedStrip<'_>>> {
        Some(match &self.body {
            Body::Blocks(blocks) => vec![blocks.strip(self.rows, self.row)?],
            Body::Groups(groups) => vec![groups.strip(self.rows, self.row)],
            Body::Rows { codes, scales } => vec![PackedStrip {
                rows: self.rows,
                columns: self.row,
                line: self.row,
                kind: Codes::Eight,
                scale_of: ScaleOf::Blocks { groups: 1, step: 0, first: 0, block: self.row },
                factor: int8::STEP,
                matrices: vec![PackedMatrix {
                    codes,
                    scales: ScaleValues::Plain(Cow::Borrowed(scales)),
                    zeros: &[],
                }],
            }],
            Body::Strips(strips) => {
                let all: Option<Vec<_>> = strips.iter().map(Self::strips).collect();
                all?.into_iter().flatten().collect()
            }
            Body::Stack(parts) => {
                let mut all = parts[0].strips()?;
                for part in &parts[1..] {
                    let more = part.strips()?;
                    if more.len() != all.len() {
                        return None;
                    }
                    for (strip, more) in all.iter_mut().zip(more) {
                        below(strip, more)?;
                    }
                }
                all
            }
        })
    }

    /// The elements, row by row: of a code its value times the scale, rounded once.
    #[must_use]
    pub fn values<T: Float>(&self) -> Vec<T> {
        let mut values = vec![T::default(); self.rows * self.row];
        if values.is_empty() {
            return values;
        }
        match &self.body {
            Body::Blocks(blocks) => blocks.values(self.row, &mut values),
            Body::Groups(groups) => groups.values(self.row, &mut values),
            Body::Rows { .. } | Body::Strips(_) | Body::Stack(_) => {
                let rows = values.par_chunks_mut(self.row).enumerate();
                rows.with_min_len(8).for_each(|(number, values)| self.read(number, 0, values));
            }
        }
        values
    }
}
