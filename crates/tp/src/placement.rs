//! Where the tensors of a layer lie, and what their gradients are.

use std::fmt;
use std::ops::Range;

use burnish_core::Layout;

use crate::{Split, Style, TpError};

/// Which tensor of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The weight, `[out, in]`, `[vocab, hidden]` or `[hidden]`.
    Weight,
    /// The bias, `[out]`.
    Bias,
    /// `lora_A`, `[r, in]`.
    LoraA,
    /// `lora_B`, `[out, r]`.
    LoraB,
    /// The bias of `lora_B`, `[out]`.
    LoraBBias,
    /// DoRA's magnitude, `[out]`.
    Magnitude,
    /// `lora_embedding_A`, `[r, vocab]`.
    EmbeddingA,
    /// `lora_embedding_B`, `[hidden, r]`.
    EmbeddingB,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Weight => "weight",
            Self::Bias => "bias",
            Self::LoraA => "lora_A",
            Self::LoraB => "lora_B",
            Self::LoraBBias => "lora_B.bias",
            Self::Magnitude => "lora_magnitude_vector",
            Self::EmbeddingA => "lora_embedding_A",
            Self::EmbeddingB => "lora_embedding_B",
        })
    }
}

/// What a rank's gradient of a parameter is after backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Gradient {
    /// The gradient of the whole parameter, the same on every rank.
    Complete,
    /// An addend of the gradient of the whole parameter: to be summed over all ranks, once per step.
    Partial,
    /// The gradient of this rank's own elements.
    Own,
    /// An addend for elements that some ranks share (key and value heads): to be summed over those, once per step.
    Shared,
}

/// How one parameter lies over the ranks of the tensor-parallel axis. Made from global shapes, the same on every rank.
///
/// ```
/// use burnish_tp::{Gradient, Part, Placement, Split, Style};
///
/// // an adapter of rank 8 on a row-parallel linear [64, 100]
/// let inputs = Split::balanced(100, 3)?;
/// let a = Placement::of(Style::Rowwise, Part::LoraA, &[8, 100], &inputs)?;
/// let b = Placement::of(Style::Rowwise, Part::LoraB, &[64, 8], &inputs)?;
/// assert_eq!((a.local_shape(0), a.gradient()), (vec![8, 34], Gradient::Own));
/// assert_eq!((b.local_shape(0), b.gradient()), (vec![64, 8], Gradient::Partial));
/// # Ok::<_, burnish_tp::TpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    shape: Vec<usize>,
    ranks: usize,
    along: Option<(usize, Split)>,
    gradient: Gradient,
}

impl Placement {
    /// A tensor of a layer of `style`, of global `shape`. `split` is that of the layer's divided features: its outputs
    /// where it is colwise, its inputs (the vocabulary of an embedding) where it is rowwise; for replicated layers only
    /// its number of ranks counts.
    ///
    /// The bias of a rowwise layer is added by rank 0 alone, and its adapter's addend goes into the same sum as its own:
    /// both gradients are addends.
    ///
    /// # Errors
    /// [`TpError::SplitLength`], [`TpError::Dimension`]: a split that is not the layer's.
    pub fn of(style: Style, part: Part, shape: &[usize], split: &Split) -> Result<Self, TpError> {
        let Some(dim) = sharded_dim(style, part) else {
            return Ok(Self::replicated(shape, split.ranks(), replicated_gradient(style)));
        };
        let Some(&length) = shape.get(dim) else {
            return Err(TpError::Dimension { style, part, shape: shape.to_vec(), dim });
        };
        if length != split.length() {
            let (shape, got) = (shape.to_vec(), split.length());
            return Err(TpError::SplitLength { style, part, shape, dim, expected: length, got });
        }
        Ok(Self::sharded(shape, dim, split.clone()))
    }

    /// A tensor that every rank has whole.
    #[must_use]
    pub fn replicated(shape: &[usize], ranks: usize, gradient: Gradient) -> Self {
        Self { shape: shape.to_vec(), ranks, along: None, gradient }
    }

    /// A tensor divided along `dim`.
    ///
    /// # Panics
    /// If the split is not of that dimension's length.
    #[must_use]
    pub fn sharded(shape: &[usize], dim: usize, split: Split) -> Self {
        assert_eq!(shape[dim], split.length(), "invariant: a split of dimension {dim} of {shape:?}");
        let gradient = if split.overlaps() { Gradient::Shared } else { Gradient::Own };
        Self { shape: shape.to_vec(), ranks: split.ranks(), along: Some((dim, split)), gradient }
    }

    /// The same, with the gradient of the whole on every rank: of an adapter's whole factor whose activations are summed
    /// ([`AdapterSum::RankR`](crate::AdapterSum::RankR)). What is divided stays as it is.
    #[must_use]
    pub fn completed(self) -> Self {
        let gradient = if self.along.is_none() { Gradient::Complete } else { self.gradient };
        Self { gradient, ..self }
    }

    /// The global shape.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// The divided dimension; `None` where every rank has all.
    #[must_use]
    pub fn dim(&self) -> Option<usize> {
        self.along.as_ref().map(|(dim, _)| *dim)
    }

    /// The split of the divided dimension.
    #[must_use]
    pub fn split(&self) -> Option<&Split> {
        self.along.as_ref().map(|(_, split)| split)
    }

    /// What a rank's gradient is.
    #[must_use]
    pub fn gradient(&self) -> Gradient {
        self.gradient
    }

    /// The shape of what `rank` holds.
    #[must_use]
    pub fn local_shape(&self, rank: usize) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if let Some((dim, split)) = &self.along {
            shape[*dim] = split.len(rank);
        }
        shape
    }

    /// As recorded in a registry.
    #[must_use]
    pub fn layout(&self) -> Layout {
        match &self.along {
            None => Layout::Replicated,
            Some((dim, split)) => split.layout(*dim),
        }
    }

    /// The ranges along [`dim`](Self::dim) (dimension 0 of a replicated tensor) that `rank` writes to files: every element
    /// is one rank's.
    #[must_use]
    pub fn saved(&self, rank: usize) -> Vec<Range<usize>> {
        match &self.along {
            Some((_, split)) => split.primary(rank),
            None => {
                let all = 0..self.shape.first().copied().unwrap_or(1);
                Vec::from_iter((rank == 0).then_some(all))
            }
        }
    }

    /// The ranges of [`saved`](Self::saved), counted within what `rank` holds: what it counts of its summed gradient for
    /// the global norm. Every element of the parameter is counted by one rank.
    #[must_use]
    pub fn counted(&self, rank: usize) -> Vec<Range<usize>> {
        match &self.along {
            Some((_, split)) => split.local(rank, &split.primary(rank)),
            None => self.saved(rank),
        }
    }

    /// Of the rows (dimension 0) `rows` of what `rank` holds, those that it [saves](Self::saved), with their place in the
    /// whole; of a tensor that is divided along another dimension `rank` has no whole row.
    #[must_use]
    pub fn saved_rows(&self, rank: usize, rows: &Range<usize>) -> Vec<(Range<usize>, Range<usize>)> {
        let Some((dim, split)) = &self.along else {
            return Vec::from_iter((rank == 0 && !rows.is_empty()).then(|| (rows.clone(), rows.clone())));
        };
        if *dim > 0 {
            return Vec::new();
        }
        let saved = split.primary(rank);
        let own = |global: Range<usize>| -> Vec<Range<usize>> {
            let cut = |s: &Range<usize>| s.start.max(global.start)..s.end.min(global.end);
            saved.iter().map(cut).filter(|range| !range.is_empty()).collect()
        };
        let global = split.global(rank, rows).into_iter().flat_map(own);
        // one range of the whole is one of what the rank holds
        global
            .flat_map(|whole| {
                split
                    .local(rank, std::slice::from_ref(&whole))
                    .into_iter()
                    .map(move |here| (here, whole.clone()))
            })
            .collect()
    }

    /// What `rank` holds, from all elements in row-major order.
    ///
    /// # Panics
    /// If there are not as many elements as the shape says.
    #[must_use]
    pub fn shard<E: Copy>(&self, values: &[E], rank: usize) -> Vec<E> {
        assert_eq!(values.len(), self.shape.iter().product::<usize>(), "invariant: the whole tensor");
        let Some((dim, split)) = &self.along else { return values.to_vec() };
        let (outer, inner) = around(&self.shape, *dim);
        let mut out = Vec::with_capacity(outer * split.len(rank) * inner);
        for row in values.chunks_exact((split.length() * inner).max(1)).take(outer) {
            for piece in split.pieces(rank) {
                out.extend_from_slice(&row[piece.start * inner..piece.end * inner]);
            }
        }
        out
    }

    /// All elements, from what every rank holds. Of shared elements those of the rank that saves them.
    ///
    /// # Panics
    /// If there is not one part per rank, of its elements.
    #[must_use]
    pub fn unshard<E: Copy + Default>(&self, parts: &[&[E]]) -> Vec<E> {
        assert_eq!(parts.len(), self.ranks, "invariant: one part per rank");
        let Some((dim, split)) = &self.along else { return parts[0].to_vec() };
        let (outer, inner) = around(&self.shape, *dim);
        let mut out = vec![E::default(); self.shape.iter().product()];
        for (rank, part) in parts.iter().enumerate() {
            let own = split.len(rank) * inner;
            assert_eq!(part.len(), outer * own, "invariant: what rank {rank} holds");
            if own == 0 {
                continue;
            }
            let saved = split.primary(rank);
            for (row, from) in out.chunks_exact_mut(split.length() * inner).zip(part.chunks_exact(own)) {
                for range in &saved {
                    for local in split.local(rank, std::slice::from_ref(range)) {
                        row[range.start * inner..range.end * inner]
                            .copy_from_slice(&from[local.start * inner..local.end * inner]);
                    }
                }
            }
        }
        out
    }
}

/// The dimension that a style divides in a tensor of its layer.
fn sharded_dim(style: Style, part: Part) -> Option<usize> {
    let colwise = style.is_colwise();
    match (style, part) {
        (Style::Replicated | Style::ReplicatedWithGradAllreduce, _) => None,
        // embeddings are [vocab, hidden]: the vocabulary comes in, features go out
        (Style::EmbeddingRowwise, Part::Weight) => Some(0),
        (Style::EmbeddingColwise, Part::Weight) => Some(1),
        (_, Part::Weight) => Some(if colwise { 0 } else { 1 }),
        (_, Part::LoraA | Part::EmbeddingA) => (!colwise).then_some(1),
        (_, Part::Bias | Part::LoraB | Part::LoraBBias | Part::Magnitude | Part::EmbeddingB) => {
            colwise.then_some(0)
        }
    }
}

fn replicated_gradient(style: Style) -> Gradient {
    if style == Style::Replicated { Gradient::Complete } else { Gradient::Partial }
}

/// The products of the dimensions before and after `dim`.
fn around(shape: &[usize], dim: usize) -> (usize, usize) {
    (shape[..dim].iter().product(), shape[dim + 1..].iter().product())
}
