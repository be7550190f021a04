//! Gradients that are addends: summed over the ranks once per step.

use std::ops::Range;

use burnish_comm::{Bucket, Reduction};
use burnish_core::{Dtype, Split};
use burnish_ops::{AnyTensor, Elements, all_joined, on_host};
use burnish_tensor_comm::{bucket, tensor};

use crate::index_select::{lines, matrix, select, shaped};
use crate::{Gradient, Tp, TpError, TpLayout};

/// Elements of one all-reduce of [`Tp::sum_partial`], unless a gradient is larger by itself: 32 MiB.
pub const PARTIAL_BUCKET: usize = 8 << 20;

/// A gradient at the end of a step, summed over micro-batches and data-parallel ranks.
#[derive(Clone, Debug)]
pub struct PartialGrad<'a> {
    /// The parameter's name, for errors.
    pub name: &'a str,
    /// How the parameter lies.
    pub layout: &'a TpLayout,
    /// Which rows (dimension 0) of what this rank holds the gradient has: all on every tensor-parallel rank, or this
    /// data-parallel rank's, then the same rows on every one (unless the gradient is [`Gradient::Own`]).
    pub rows: Range<usize>,
    /// The gradient of those rows, in f32.
    pub gradient: AnyTensor,
}

impl PartialGrad<'_> {
    /// The sum of squares of the elements that `rank` counts for the global norm, once summed: over all ranks every
    /// element of the parameter is counted once.
    #[must_use]
    pub fn squares(&self, rank: usize) -> f64 {
        let layout = self.layout.layout();
        let counted = layout.counted(rank);
        if counted.is_empty() {
            return 0.0;
        }
        let Some(values) = self.gradient.elements::<f32>() else { return 0.0 };
        let square = |values: &[f32]| values.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>();
        let row: usize = layout.local_shape(rank).iter().skip(1).product();
        if layout.dim().unwrap_or(0) > 0 {
            // other dimensions are divided without overlap
            return square(&values);
        }
        let within = |range: &Range<usize>| {
            let (start, end) = (range.start.max(self.rows.start), range.end.min(self.rows.end));
            let range = if start < end { start - self.rows.start..end - self.rows.start } else { 0..0 };
            square(&values[range.start * row..range.end * row])
        };
        counted.ranges(0).iter().map(within).sum()
    }
}

impl Tp {
    /// Sums the gradients that are addends over the ranks, in place; the others stay as they are. To be called once per
    /// step, after micro-batches and data-parallel ranks are summed, with the same parameters in the same order on every
    /// rank.
    ///
    /// Traffic: all-reduces of the rows of all [`Gradient::Partial`] parameters, and of the rows that several ranks hold
    /// of [`Gradient::Shared`] ones, in buckets of [`PARTIAL_BUCKET`]. The result has the same bits on every rank.
    ///
    /// # Errors
    /// Gradients of another shape or dtype, rows that are not the same on all ranks, a rank that fails; the first error of
    /// this handle.
    pub fn sum_partial(&self, addends: &mut [PartialGrad<'_>]) -> Result<(), TpError> {
        self.sum_partial_in(addends, PARTIAL_BUCKET)
    }

    /// [`sum_partial`](Self::sum_partial) in buckets of at most `cap` elements.
    ///
    /// # Errors
    /// Those of [`sum_partial`](Self::sum_partial).
    pub fn sum_partial_in(&self, addends: &mut [PartialGrad<'_>], cap: usize) -> Result<(), TpError> {
        self.check()?;
        if self.size() == 1 {
            return Ok(());
        }
        let mut pieces = Vec::with_capacity(addends.len());
        for (index, addend) in addends.iter().enumerate() {
            pieces.extend(self.wired(addend)?.map(|wired| (index, wired)));
        }
        for (elements, pieces) in buckets(pieces, cap) {
            self.sum_bucket(addends, elements, &pieces)?;
        }
        Ok(())
    }

    fn sum_bucket(
        &self,
        addends: &mut [PartialGrad<'_>],
        elements: usize,
        pieces: &[(usize, WireLayout)],
    ) -> Result<(), TpError> {
        let named = |piece: &(usize, WireLayout)| {
            let addend = &addends[piece.0];
            let all = addend.layout.layout().local_shape(self.rank()).first().copied().unwrap_or(1);
            if addend.rows == (0..all) {
                return addend.name.to_owned();
            }
            format!("{} (rows {}..{})", addend.name, addend.rows.start, addend.rows.end)
        };
        let what = match pieces {
            [] => return Ok(()),
            [one] => format!("partial gradients: {}", named(one)),
            [first, .., last] => format!("partial gradients: {} to {}", named(first), named(last)),
        };
        let group = self.group();
        let sum = |bucket| self.kept(group.all_reduce(bucket, Reduction::Sum, &what).wait());
        // one gradient that travels as it is needs no copy
        if let [(index, WireLayout { local: None, .. })] = pieces {
            let gradient = &mut addends[*index].gradient;
            let (shape, device) = (gradient.shape(), gradient.device());
            *gradient = tensor(sum(posted(gradient))?, &shape, &device);
            return Ok(());
        }
        let device = pieces.first().map(|(index, _)| addends[*index].gradient.device());
        if let Some(device) = device.filter(|device| !on_host(device)) {
            let flat = pieces.iter().map(|(index, wired)| wired.taken(&addends[*index].gradient)).collect();
            let sums = sum(posted(&all_joined(flat, &[elements])))?;
            let sums = tensor(sums, &[elements], &device);
            let mut start = 0;
            for (index, wired) in pieces {
                let end = start + wired.elements();
                let gradient = &mut addends[*index].gradient;
                *gradient = wired.put(&sums.piece(start..end, &[end - start]), gradient);
                start = end;
            }
            return Ok(());
        }
        let mut wire = Vec::with_capacity(elements);
        for (index, wired) in pieces {
            wired.pack(&values(&addends[*index].gradient), &mut wire);
        }
        let sums = sum(Bucket::new(wire))?;
        let mut rest = sums.as_slice();
        for (index, wired) in pieces {
            let (now, after) = rest.split_at(wired.elements());
            let addend = &mut addends[*index];
            let gradient = addend.gradient.clone();
            // dropped first, so that the edit is in place where nobody else holds it
            addend.gradient = empty(&gradient);
            addend.gradient = gradient.edited::<f32>(|values| wired.unpack(now, values));
            rest = after;
        }
        Ok(())
    }

    /// What of a gradient travels.
    fn wired(&self, addend: &PartialGrad<'_>) -> Result<Option<WireLayout>, TpError> {
        let (layout, rank) = (addend.layout.layout(), self.rank());
        let what = || addend.name.to_owned();
        if layout.ranks() != self.size() {
            return Err(TpError::Ranks { what: what(), placed: layout.ranks(), group: self.size() });
        }
        let mut expected = layout.local_shape(rank);
        if let Some(rows) = expected.first_mut() {
            *rows = addend.rows.len();
        }
        if addend.gradient.shape() != expected {
            return Err(TpError::Shape { what: what(), got: addend.gradient.shape(), expected });
        }
        if addend.gradient.dtype() != Some(Dtype::F32) {
            let got = addend.gradient.dtype();
            return Err(TpError::Dtype { what: what(), got, expected: "float32" });
        }
        WireLayout::of(addend.layout, &addend.rows, rank).map_err(|row| TpError::Rows {
            what: what(),
            rows: addend.rows.clone(),
            row,
        })
    }
}

/// The gradients of each all-reduce, with its elements: as many as fit into `cap`, or one.
pub(crate) fn buckets(
    pieces: Vec<(usize, WireLayout)>,
    cap: usize,
) -> Vec<(usize, Vec<(usize, WireLayout)>)> {
    let mut buckets: Vec<(usize, Vec<(usize, WireLayout)>)> = Vec::new();
    for (index, wired) in pieces {
        let elements = wired.elements();
        match buckets.last_mut() {
            Some((held, pieces)) if *held + elements <= cap => {
                *held += elements;
                pieces.push((index, wired));
            }
            _ => buckets.push((elements, vec![(index, wired)])),
        }
    }
    buckets
}

/// How many rows travel of a dimension that some ranks share, if each gives all its rows, or its rows `rows`; and which of
/// them are which of those of `rank`.
///
/// # Errors
/// A row that only some of its ranks would give.
fn shared_rows(
    split: &Split,
    rows: &Range<usize>,
    rank: usize,
) -> Result<(usize, Vec<(usize, usize)>), usize> {
    // per global row: how many ranks hold it, and how many of them give it
    let mut holders = vec![(0, 0); split.length()];
    let whole = *rows == (0..split.len(rank));
    for rank in 0..split.ranks() {
        for (here, row) in split.pieces(rank).iter().cloned().flatten().enumerate() {
            holders[row].0 += 1;
            holders[row].1 += usize::from(whole || rows.contains(&here));
        }
    }
    let mut wire = vec![None; split.length()];
    let mut global = 0;
    for (row, &(held, given)) in
        holders.iter().enumerate().filter(|(_, (held, given))| *held > 1 && *given > 0)
    {
        if given < held {
            return Err(row);
        }
        wire[row] = Some(global);
        global += 1;
    }
    let own = split.pieces(rank).iter().cloned().flatten().enumerate();
    let local = own.filter_map(|(here, row)| Some((wire[row]?, here - rows.start))).collect();
    Ok((global, local))
}

/// What of a gradient travels: rows of `row` elements each.
pub(crate) struct WireLayout {
    row: usize,
    rows: usize,
    /// Which of them are which of this rank's; `None` where all are, in order.
    local: Option<Vec<(usize, usize)>>,
}

impl WireLayout {
    /// Of the gradient of some rows of what `rank` holds; nothing of one that is no addend.
    ///
    /// # Errors
    /// A row that only some of its ranks would give.
    pub(crate) fn of(layout: &TpLayout, rows: &Range<usize>, rank: usize) -> Result<Option<Self>, usize> {
        let row: usize = layout.layout().local_shape(rank).iter().skip(1).product();
        match (layout.gradient(), layout.layout().split()) {
            (Gradient::Partial, _) => Ok(Some(Self { row, rows: rows.len(), local: None })),
            (Gradient::Shared, Some((0, split))) => {
                let (global, local) = shared_rows(split, rows, rank)?;
                Ok(Some(Self { row, rows: global, local: Some(local) }))
            }
            _ => Ok(None),
        }
    }

    fn elements(&self) -> usize {
        self.rows * self.row
    }

    fn pack(&self, gradient: &[f32], wire: &mut Vec<f32>) {
        let Some(local) = &self.local else { return wire.extend_from_slice(gradient) };
        let start = wire.len();
        wire.resize(start + self.elements(), 0.0);
        for &(at, here) in local {
            wire[start + at * self.row..start + (at + 1) * self.row]
                .copy_from_slice(&gradient[here * self.row..(here + 1) * self.row]);
        }
    }

    /// [`Self::pack`] of a gradient on a device, as a flat tensor there.
    fn taken(&self, gradient: &AnyTensor) -> AnyTensor {
        let Some(local) = &self.local else { return shaped(matrix(gradient, self.row), &[self.elements()]) };
        let lines = lines(self.rows, local.iter().copied());
        shaped(select(vec![matrix(gradient, self.row)], 0, &lines), &[self.elements()])
    }

    /// [`Self::unpack`] of flat sums into a gradient on a device.
    fn put(&self, sums: &AnyTensor, gradient: &AnyTensor) -> AnyTensor {
        let shape = gradient.shape();
        let Some(local) = &self.local else { return shaped(matrix(sums, self.row), &shape) };
        let mut lines: Vec<Option<usize>> = (0..shape[0]).map(Some).collect();
        for &(at, here) in local {
            lines[here] = Some(shape[0] + at);
        }
        shaped(select(vec![matrix(gradient, self.row), matrix(sums, self.row)], 0, &lines), &shape)
    }

    fn unpack(&self, wire: &[f32], gradient: &mut [f32]) {
        let Some(local) = &self.local else { return gradient.copy_from_slice(wire) };
        for &(at, here) in local {
            gradient[here * self.row..(here + 1) * self.row]
                .copy_from_slice(&wire[at * self.row..(at + 1) * self.row]);
        }
    }
}

fn posted(x: &AnyTensor) -> Bucket<f32> {
    bucket(x).expect("invariant: f32, checked when the bucket was planned")
}

fn values(x: &AnyTensor) -> Elements<f32> {
    x.elements::<f32>().expect("invariant: f32, checked when the bucket was planned")
}

fn empty(like: &AnyTensor) -> AnyTensor {
    AnyTensor::from_elements(Vec::<f32>::new(), &[0], &like.device())
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    /// What a device does by numbers is what the host does by slices.
    #[test]
    fn rows_by_number_are_rows_by_slice() {
        let device = Device::flex();
        let tensor = |from: usize, shape: &[usize]| {
            let values = (from..).take(shape.iter().product()).map(|i| i as f32).collect();
            AnyTensor::from_elements(values, shape, &device)
        };
        let gradient = tensor(1, &[3, 2]);
        let shared = WireLayout { row: 2, rows: 4, local: Some(vec![(1, 0), (3, 2)]) };
        let whole = WireLayout { row: 2, rows: 3, local: None };
        for wired in [shared, whole] {
            let mut wire = Vec::new();
            wired.pack(&values(&gradient), &mut wire);
            assert_eq!(wired.taken(&gradient).to_f32(), wire);
            let sums = tensor(100, &[wired.elements()]);
            let by_slice = gradient.clone().edited::<f32>(|gradient| wired.unpack(&values(&sums), gradient));
            let by_number = wired.put(&sums, &gradient);
            assert_eq!((by_number.shape(), by_number.to_f32()), (vec![3, 2], by_slice.to_f32()));
        }
    }
}
