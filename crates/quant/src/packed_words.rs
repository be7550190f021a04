//! Eight codes in a word of 32 bits: GPTQ's and AWQ's matrices, inputs down and outputs across, and compressed-tensors', which
//! lie as PyTorch has a linear's weight.

use crate::Quantized;
use crate::error::QuantError;
use crate::quantized::finite;

/// Codes in a word.
const CODES: usize = 8;

/// Which output, of eight beside each other, AWQ keeps in the n-th four bits of a word.
const AWQ: [usize; CODES] = [0, 2, 4, 6, 1, 3, 5, 7];
/// As they come.
const IN_ORDER: [usize; CODES] = [0, 1, 2, 3, 4, 5, 6, 7];

/// The tensors of a matrix of `[out, in]` elements by GPTQ or AWQ.
#[derive(Clone, Copy, Debug)]
pub struct PackedWords<'a> {
    /// Codes: by GPTQ `[in / 8, out]`, by AWQ `[in, out / 8]`.
    pub qweight: &'a [i32],
    /// Zero points `[groups, out / 8]`.
    pub qzeros: &'a [i32],
    /// `[groups, out]`.
    pub scales: &'a [f32],
}

/// The tensors of a matrix of `[out, in]` elements by compressed-tensors (`pack-quantized`).
#[derive(Clone, Copy, Debug)]
pub struct PackedRows<'a> {
    /// Codes `[out, in / 8]`, rounded up.
    pub codes: &'a [i32],
    /// Zero points `[out / 8, groups]`, rounded up; without them steps are even to both sides.
    pub zero_points: Option<&'a [i32]>,
    /// `[out, groups]`.
    pub scales: &'a [f32],
}

fn nibble(word: i32, place: usize) -> u8 {
    (word.cast_unsigned() >> (4 * place) & 15) as u8
}

/// Inputs of a group as they are counted: -1 stands for all of them.
///
/// # Errors
/// If it is 0 or below.
pub fn group_of(group_size: i64, shape: [usize; 2]) -> Result<usize, QuantError> {
    let [rows, row] = shape;
    match usize::try_from(group_size) {
        _ if group_size == -1 => Ok(row),
        Ok(group) if group > 0 => Ok(group.min(row)),
        _ => Err(QuantError::Grouping {
            group: 0,
            rows,
            row,
            expected: "a group_size of at least 1, or -1 for one group",
        }),
    }
}

/// The group of each input, where those do not follow each other; GPTQ with `desc_act` deals them by how much they matter.
/// A list of zeros alone is what some programs write without it.
///
/// # Errors
/// If a list is not of all inputs, or names a group that is not there.
pub fn gptq_order(g_idx: &[i32], group: usize, shape: [usize; 2]) -> Result<Option<Vec<u32>>, QuantError> {
    let [rows, row] = shape;
    let groups = row.div_ceil(group.max(1));
    if g_idx.len() != row {
        return Err(QuantError::Length {
            what: "groups of inputs (g_idx)",
            got: g_idx.len(),
            expected: row,
            rows,
            row,
        });
    }
    if let Some(input) =
        g_idx.iter().position(|&own| usize::try_from(own).is_ok_and(|own| own >= groups) || own < 0)
    {
        return Err(QuantError::Group { input, got: i64::from(g_idx[input]), groups });
    }
    let follows = g_idx.iter().enumerate().all(|(input, &own)| own as usize == input / group);
    if follows || g_idx.iter().all(|&own| own == 0) {
        return Ok(None);
    }
    Ok(Some(g_idx.iter().map(|&own| own as u32).collect()))
}

impl Quantized {
    /// A matrix of `shape` (`[out, in]`) by GPTQ with groups of `group` inputs. `order` is that of [`gptq_order`];
    /// `less_one` says whether zero points are stored less one, which all folders have but those of the format `gptq_v2`.
    ///
    /// # Errors
    /// If sizes do not fit, or a scale is not finite.
    pub fn from_gptq(
        shape: [usize; 2],
        group: usize,
        parts: PackedWords<'_>,
        order: Option<Vec<u32>>,
        less_one: bool,
    ) -> Result<Self, QuantError> {
        let groups = check(shape, group, parts)?;
        let [rows, row] = shape;
        let code =
            |number: usize, input: usize| nibble(parts.qweight[input / CODES * rows + number], input % CODES);
        let codes = codes(shape, code);
        let (scales, mut zeros) = by_rows(shape, groups, parts, IN_ORDER);
        if less_one {
            // Four bits: 15 is the zero point 0.
            zeros.iter_mut().for_each(|zero| *zero = (*zero + 1) & 15);
        }
        debug_assert_eq!(codes.len(), rows * row.div_ceil(2));
        Ok(Self::from_groups(shape, group, (codes, scales, zeros), order))
    }

    /// A matrix of `shape` (`[out, in]`) by compressed-tensors with groups of `group` inputs. `order` is that of
    /// [`gptq_order`].
    ///
    /// # Errors
    /// If sizes do not fit, or a scale is not finite.
    pub fn from_packed_rows(
        shape: [usize; 2],
        group: usize,
        parts: PackedRows<'_>,
        order: Option<Vec<u32>>,
    ) -> Result<Self, QuantError> {
        let [rows, row] = shape;
        if rows == 0 || row == 0 || !row.is_multiple_of(2) || group == 0 {
            return Err(QuantError::Grouping {
                group,
                rows,
                row,
                expected: "inputs in twos, at least one to a group",
            });
        }
        rows.checked_mul(row).ok_or(QuantError::Shape { rows, row })?;
        let (across, groups) = (row.div_ceil(CODES), row.div_ceil(group));
        let down = rows.div_ceil(CODES);
        lengths(
            shape,
            [
                ("words of codes (weight_packed)", parts.codes.len(), rows * across),
                ("scales (weight_scale)", parts.scales.len(), rows * groups),
                (
                    "words of zero points (weight_zero_point)",
                    parts.zero_points.map_or(down * groups, <[i32]>::len),
                    down * groups,
                ),
            ],
        )?;
        finite("scale", parts.scales)?;
        let code =
            |number: usize, input: usize| nibble(parts.codes[number * across + input / CODES], input % CODES);
        // Codes are stored eight too large, and so are zero points.
        let zero = |(number, group): (usize, usize)| match parts.zero_points {
            Some(words) => nibble(words[number / CODES * groups + group], number % CODES),
            None => 8,
        };
        let all = (0..rows).flat_map(|number| (0..groups).map(move |group| (number, group)));
        let (codes, zeros) = (codes(shape, code), all.map(zero).collect());
        Ok(Self::from_groups(shape, group, (codes, parts.scales.to_vec(), zeros), order))
    }

    /// A matrix of `shape` (`[out, in]`) by AWQ (`gemm`) with groups of `group` inputs.
    ///
    /// # Errors
    /// If sizes do not fit, or a scale is not finite.
    pub fn from_awq(shape: [usize; 2], group: usize, parts: PackedWords<'_>) -> Result<Self, QuantError> {
        let groups = check(shape, group, parts)?;
        let across = shape[0] / CODES;
        let places = places(AWQ);
        let code = |number: usize, input: usize| {
            nibble(parts.qweight[input * across + number / CODES], places[number % CODES])
        };
        let codes = codes(shape, code);
        let (scales, zeros) = by_rows(shape, groups, parts, AWQ);
        Ok(Self::from_groups(shape, group, (codes, scales, zeros), None))
    }
}

/// Fails unless all parts are as long as the matrix needs them; how many groups there are.
fn check([rows, row]: [usize; 2], group: usize, parts: PackedWords<'_>) -> Result<usize, QuantError> {
    let wrong = |expected| QuantError::Grouping { group, rows, row, expected };
    if rows == 0 || row == 0 || !rows.is_multiple_of(CODES) || !row.is_multiple_of(CODES) {
        return Err(wrong("outputs and inputs in eights"));
    }
    if group == 0 {
        return Err(wrong("at least one input to a group"));
    }
    let groups = row.div_ceil(group);
    let words = rows.checked_mul(row).ok_or(QuantError::Shape { rows, row })? / CODES;
    lengths(
        [rows, row],
        [
            ("words of codes (qweight)", parts.qweight.len(), words),
            ("words of zero points (qzeros)", parts.qzeros.len(), groups * (rows / CODES)),
            ("scales", parts.scales.len(), groups * rows),
        ],
    )?;
    finite("scale", parts.scales)?;
    Ok(groups)
}

/// Fails unless every part is as long as expected.
fn lengths([rows, row]: [usize; 2], parts: [(&'static str, usize, usize); 3]) -> Result<(), QuantError> {
    match parts.into_iter().find(|(_, got, expected)| got != expected) {
        Some((what, got, expected)) => Err(QuantError::Length { what, got, expected, rows, row }),
        None => Ok(()),
    }
}

/// Codes row by row, two a byte.
fn codes([rows, row]: [usize; 2], code: impl Fn(usize, usize) -> u8 + Sync) -> Vec<u8> {
    use rayon::prelude::*;
    let mut codes = vec![0_u8; rows * row / 2];
    codes.par_chunks_mut(row / 2).enumerate().for_each(|(number, own)| {
        for (at, byte) in own.iter_mut().enumerate() {
            *byte = code(number, 2 * at) << 4 | code(number, 2 * at + 1);
        }
    });
    codes
}

/// Scales and zero points, those of a row one after another.
fn by_rows(
    [rows, _]: [usize; 2],
    groups: usize,
    parts: PackedWords<'_>,
    order: [usize; CODES],
) -> (Vec<f32>, Vec<u8>) {
    let places = places(order);
    let each = |number: usize| (0..groups).map(move |group| (number, group));
    let all = || (0..rows).flat_map(each);
    let scales = all().map(|(number, group)| parts.scales[group * rows + number]).collect();
    let zero = |(number, group): (usize, usize)| {
        nibble(parts.qzeros[group * (rows / CODES) + number / CODES], places[number % CODES])
    };
    (scales, all().map(zero).collect())
}

/// In which four bits of a word an output is.
fn places(order: [usize; CODES]) -> [usize; CODES] {
    let mut places = [0; CODES];
    order.iter().enumerate().for_each(|(place, &output)| places[output] = place);
    places
}
