//! `BucketPlan`: the elements of one collective and their order.

use std::collections::BTreeMap;
use std::fmt;

use burnish_core::{Dtype, Layout};
use serde::{Deserialize, Serialize};

/// What a bucket's collective is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Sharded weights become whole for a unit: all-gather.
    Gather,
    /// Gradients are summed: reduce-scatter, or all-reduce at stage 0.
    Reduce,
    /// Updated rows of weights that are whole everywhere: all-gather.
    Publish,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gather => "gather",
            Self::Reduce => "reduce",
            Self::Publish => "publish",
        })
    }
}

/// The elements of one collective: parameters of one dtype, as parts in rank order; each part holds that rank's rows of
/// every piece, in the order of the pieces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BucketPlan {
    /// What errors and traces call it.
    pub name: String,
    /// What it is for.
    pub purpose: Purpose,
    /// The type of its elements on the wire.
    pub dtype: Dtype,
    /// What it holds.
    pub pieces: Vec<Piece>,
}

/// One parameter in a bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The registry index.
    pub parameter: usize,
    /// Its rows per part.
    pub layout: Layout,
    /// Where its elements begin in each part.
    pub offsets: Vec<usize>,
}

impl BucketPlan {
    /// How many parts it has: one per rank, or one for an all-reduce.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.pieces.first().map_or(0, |piece| piece.layout.ranks())
    }

    /// Elements per part.
    #[must_use]
    pub fn counts(&self) -> Vec<usize> {
        let part = |r: usize| self.pieces.iter().map(|p| p.layout.elements(r).len()).sum();
        (0..self.parts()).map(part).collect()
    }

    /// All elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.pieces.iter().map(|p| p.layout.all_elements()).sum()
    }

    /// All elements in the bucket's order, from whole parameters; one that is absent counts as zeros. `append` casts and
    /// copies.
    pub(crate) fn pack<'a, S: 'a, E: Default + Clone>(
        &self,
        whole: impl Fn(&Piece) -> Option<&'a [S]>,
        append: impl Fn(&mut Vec<E>, &[S]),
    ) -> Vec<E> {
        let sources: Vec<Option<&[S]>> = self.pieces.iter().map(whole).collect();
        let mut out = Vec::with_capacity(self.elements());
        for part in 0..self.parts() {
            for (piece, source) in self.pieces.iter().zip(&sources) {
                let range = piece.layout.elements(part);
                match source {
                    Some(source) => append(&mut out, &source[range]),
                    None => out.resize(out.len() + range.len(), E::default()),
                }
            }
        }
        out
    }

    /// One parameter whole, from the parts.
    pub(crate) fn whole<'a, E: Copy + 'a>(&self, piece: &Piece, part: impl Fn(usize) -> &'a [E]) -> Vec<E> {
        let mut out = Vec::with_capacity(piece.layout.all_elements());
        for rank in 0..piece.layout.ranks() {
            out.extend_from_slice(piece.of(rank, part(rank)));
        }
        out
    }
}

impl Piece {
    /// This parameter's elements in a rank's part.
    pub(crate) fn of<'a, E>(&self, rank: usize, part: &'a [E]) -> &'a [E] {
        &part[self.offsets[rank]..self.offsets[rank] + self.layout.elements(rank).len()]
    }
}

/// Buckets of parameters: each of one dtype, whole parameters, at most `cap` elements unless one is larger by itself.
/// Dtypes in their order, parameters in the given one: the same on every rank.
pub(crate) fn fill(
    name: &str,
    purpose: Purpose,
    cap: usize,
    parameters: impl IntoIterator<Item = (usize, Dtype, Layout)>,
) -> Vec<BucketPlan> {
    let mut by_dtype: BTreeMap<Dtype, Vec<Vec<Piece>>> = BTreeMap::new();
    for (parameter, dtype, layout) in parameters {
        let buckets = by_dtype.entry(dtype).or_default();
        let held = |bucket: &Vec<Piece>| bucket.iter().map(|p| p.layout.all_elements()).sum::<usize>();
        let bucket = match buckets.last_mut() {
            Some(last) if held(last) + layout.all_elements() <= cap => last,
            _ => buckets.push_mut(Vec::new()),
        };
        let offsets = match bucket.last() {
            None => vec![0; layout.ranks()],
            Some(last) => last
                .offsets
                .iter()
                .enumerate()
                .map(|(r, offset)| offset + last.layout.elements(r).len())
                .collect(),
        };
        bucket.push(Piece { parameter, layout, offsets });
    }
    let mut all = Vec::new();
    for (dtype, buckets) in by_dtype {
        let many = buckets.len() > 1;
        for (number, pieces) in buckets.into_iter().enumerate() {
            let number = if many { format!(" #{number}") } else { String::new() };
            all.push(BucketPlan {
                name: format!("{name}: {purpose} {dtype}{number}"),
                purpose,
                dtype,
                pieces,
            });
        }
    }
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use burnish_core::Split;
    use proptest::prelude::*;

    use super::*;
    use crate::rows::by_rows;

    fn by_load(shape: &[usize], loads: &mut [usize]) -> Layout {
        by_rows(shape, |rows, row| Split::by_load(rows, row, loads).unwrap())
    }

    fn values(parameter: usize, elements: usize) -> Vec<u32> {
        (0..elements).map(|i| (parameter * 10_000 + i) as u32).collect()
    }

    proptest! {
        /// Whole -> bucket -> what each rank has -> whole.
        #[test]
        fn a_bucket_gives_back_what_it_took(
            world in 1usize..9,
            cap in 1usize..200,
            shapes in prop::collection::vec((prop::collection::vec(0usize..9, 0..3), 0usize..3), 1..12),
        ) {
            let dtypes = [Dtype::F32, Dtype::Bf16, Dtype::F16];
            let mut loads = vec![0; world];
            let items: Vec<_> = shapes
                .iter()
                .enumerate()
                .map(|(i, (shape, d))| (i, dtypes[*d], by_load(shape, &mut loads)))
                .collect();
            let buckets = fill("unit", Purpose::Gather, cap, items.clone());
            let mut seen = Vec::new();
            for bucket in &buckets {
                prop_assert!(bucket.elements() <= cap || bucket.pieces.len() == 1
                    || bucket.pieces.iter().filter(|p| p.layout.all_elements() > 0).count() == 1);
                let whole: BTreeMap<usize, Vec<u32>> = bucket
                    .pieces
                    .iter()
                    .map(|p| (p.parameter, values(p.parameter, p.layout.all_elements())))
                    .collect();
                let packed: Vec<u32> = bucket.pack(|p| Some(&whole[&p.parameter][..]), Vec::extend_from_slice);
                let counts = bucket.counts();
                prop_assert_eq!(counts.iter().sum::<usize>(), packed.len());
                let mut parts = Vec::new();
                let mut start = 0;
                for count in counts {
                    parts.push(&packed[start..start + count]);
                    start += count;
                }
                for piece in &bucket.pieces {
                    prop_assert_eq!(items[piece.parameter].1, bucket.dtype);
                    prop_assert_eq!(&bucket.whole(piece, |r| parts[r]), &whole[&piece.parameter]);
                    for (rank, part) in parts.iter().enumerate() {
                        let range = piece.layout.elements(rank);
                        prop_assert_eq!(piece.of(rank, part), &whole[&piece.parameter][range]);
                    }
                    seen.push(piece.parameter);
                }
            }
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..shapes.len()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_never_came_counts_as_zeros() {
        let layout = by_load(&[3], &mut [0, 0]);
        let items = [(0, Dtype::F32, layout.clone()), (1, Dtype::F32, layout)];
        let bucket = fill("u", Purpose::Reduce, 100, items).pop().unwrap();
        let one: &[f32] = &[1.0, 2.0, 3.0];
        let packed: Vec<f32> = bucket.pack(|p| (p.parameter == 1).then_some(one), Vec::extend_from_slice);
        assert_eq!(packed, [0.0, 0.0, 1.0, 2.0, 0.0, 3.0]);
        assert_eq!(bucket.name, "u: reduce float32");
    }
}
