//! `TpLayout`: the layout of each tensor of a tensor-parallel layer, from its style, and the kind of its gradient.

use burnish_core::layout::{Layout, Split, TP};
use burnish_core::{LinearDim, LinearPart};

use crate::{Style, TpError};

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

/// How one parameter lies over the ranks of the tensor-parallel axis, and what a rank's gradient of it is. Made from global
/// shapes, the same on every rank.
///
/// ```
/// use burnish_tp::{Gradient, LinearPart, Split, Style, TpLayout};
///
/// // an adapter of rank 8 on a row-parallel linear [64, 100]
/// let inputs = Split::balanced(100, 3)?;
/// let a = TpLayout::of(Style::Rowwise, LinearPart::LoraA, &[8, 100], &inputs)?;
/// let b = TpLayout::of(Style::Rowwise, LinearPart::LoraB, &[64, 8], &inputs)?;
/// assert_eq!((a.layout().local_shape(0), a.gradient()), (vec![8, 34], Gradient::Own));
/// assert_eq!((b.layout().local_shape(0), b.gradient()), (vec![64, 8], Gradient::Partial));
/// # Ok::<_, burnish_tp::TpError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TpLayout {
    layout: Layout,
    gradient: Gradient,
}

impl TpLayout {
    /// A tensor of a layer of `style`, of global `shape`. `split` is that of the layer's divided features: its outputs
    /// where it is colwise, its inputs (the vocabulary of an embedding) where it is rowwise; for replicated layers only
    /// its number of ranks counts.
    ///
    /// The bias of a rowwise layer is added by rank 0 alone, and its adapter's addend goes into the same sum as its own:
    /// both gradients are addends.
    ///
    /// # Errors
    /// [`TpError::SplitLength`], [`TpError::Dimension`]: a split that is not the layer's.
    pub fn of(style: Style, part: LinearPart, shape: &[usize], split: &Split) -> Result<Self, TpError> {
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
        Self::sharded(shape, dim, split.clone())
    }

    /// A tensor that every rank has whole.
    #[must_use]
    pub fn replicated(shape: &[usize], ranks: usize, gradient: Gradient) -> Self {
        Self { layout: Layout::replicated(shape, TP, ranks), gradient }
    }

    /// A tensor divided along `dim`.
    ///
    /// # Errors
    /// [`TpError::Layout`]: a split that is not of that dimension's length.
    pub fn sharded(shape: &[usize], dim: usize, split: Split) -> Result<Self, TpError> {
        let gradient = if split.overlaps() { Gradient::Shared } else { Gradient::Own };
        Ok(Self { layout: Layout::sharded(shape, TP, dim, split)?, gradient })
    }

    /// The same, with the gradient of the whole on every rank: of an adapter's whole factor whose activations are summed
    /// ([`AdapterSum::RankR`](crate::AdapterSum::RankR)). What is divided stays as it is.
    #[must_use]
    pub fn completed(self) -> Self {
        let gradient = if self.layout.is_replicated() { Gradient::Complete } else { self.gradient };
        Self { gradient, ..self }
    }

    /// How it lies over the ranks.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// What a rank's gradient is.
    #[must_use]
    pub fn gradient(&self) -> Gradient {
        self.gradient
    }
}

/// The dimension that a style divides in a tensor of its layer: the one that counts what the style divides.
pub(crate) fn sharded_dim(style: Style, part: LinearPart) -> Option<usize> {
    if matches!(style, Style::Replicated | Style::ReplicatedWithGradAllreduce) {
        return None;
    }
    let embedding = matches!(style, Style::EmbeddingRowwise | Style::EmbeddingColwise);
    let divided = if style.is_colwise() { LinearDim::Out } else { LinearDim::In };
    part.dims(embedding).iter().position(|dim| *dim == divided)
}

fn replicated_gradient(style: Style) -> Gradient {
    if style == Style::Replicated { Gradient::Complete } else { Gradient::Partial }
}
