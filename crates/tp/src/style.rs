//! `Style`: Transformers' tensor-parallel styles (`colwise`, `rowwise`, ...).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::TpError;

/// How a layer is divided over the ranks, in the spelling of Transformers' `base_model_tp_plan`.
///
/// ```
/// use burnish_tp::Style;
/// let style: Style = "colwise_rep".parse()?;
/// assert_eq!((style, style.name()), (Style::ColwiseGather, "colwise_gather_output"));
/// # Ok::<_, burnish_tp::TpError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Style {
    /// `colwise`: output features are divided (rows of `[out, in]`); the input goes through
    /// [`Tp::copy_to_tp`](crate::Tp::copy_to_tp).
    Colwise,
    /// `colwise_gather_output`, `colwise_rep`: as colwise, and the outputs are put together on every rank
    /// ([`Tp::gather_columns`](crate::Tp::gather_columns)).
    ColwiseGather,
    /// `rowwise`: input features are divided; the outputs are addends, summed by [`Tp::reduce_from_tp`](crate::Tp::reduce_from_tp).
    Rowwise,
    /// `rowwise_split_input`, `rowwise_rep`: as rowwise, of an input that every rank has whole
    /// ([`Tp::scatter_columns`](crate::Tp::scatter_columns)).
    RowwiseSplitInput,
    /// `embedding_rowwise`, `vocab_parallel`: the vocabulary is divided ([`Tp::embedding`](crate::Tp::embedding)).
    EmbeddingRowwise,
    /// `embedding_colwise`: the features of an embedding are divided, and put together on every rank.
    EmbeddingColwise,
    /// `packed_colwise`: colwise, of several blocks in one matrix (gate and up; queries, keys and values).
    PackedColwise,
    /// `packed_rowwise`: rowwise, of several blocks in one matrix.
    PackedRowwise,
    /// `replicated`, `replicate`: whole on every rank, with a gradient that is the same on every rank.
    Replicated,
    /// `replicated_with_grad_allreduce`: whole on every rank, with a gradient that is an addend on each; summed once per
    /// step, whatever the number of micro-batches.
    ReplicatedWithGradAllreduce,
}

/// Every style and its spellings; the first is the one that is written.
const SPELLINGS: &[(Style, &[&str])] = &[
    (Style::Colwise, &["colwise"]),
    (Style::ColwiseGather, &["colwise_gather_output", "colwise_rep"]),
    (Style::Rowwise, &["rowwise"]),
    (Style::RowwiseSplitInput, &["rowwise_split_input", "rowwise_rep"]),
    (Style::EmbeddingRowwise, &["embedding_rowwise", "vocab_parallel"]),
    (Style::EmbeddingColwise, &["embedding_colwise"]),
    (Style::PackedColwise, &["packed_colwise"]),
    (Style::PackedRowwise, &["packed_rowwise"]),
    (Style::Replicated, &["replicated", "replicate"]),
    (Style::ReplicatedWithGradAllreduce, &["replicated_with_grad_allreduce"]),
];

/// Styles of Transformers that are refused by name, and why.
const REFUSED: &[(&str, &str)] = &[
    ("sequence_parallel", "activations are not divided along the sequence; write `replicated`"),
    ("local_colwise", "it was removed from Transformers; write `colwise`"),
    ("local_rowwise", "it was removed from Transformers; write `rowwise`"),
    ("local_packed_rowwise", "it was removed from Transformers; write `packed_rowwise`"),
    ("gather", "it was removed from Transformers; write `colwise_gather_output` on the layer itself"),
    ("local", "it was removed from Transformers; write `replicated`"),
    ("isolated", "it was removed from Transformers; write `replicated`"),
    ("moe_tp_experts", "experts are not divided yet; leave them out of the plan"),
    ("grouped_gemm", "expert parallelism is not supported; leave it out of the plan"),
    ("ep_dispatch_experts", "expert parallelism is not supported; leave it out of the plan"),
    ("ep_router", "expert parallelism is not supported; leave it out of the plan"),
    ("moe_identity_expert", "experts are not divided yet; leave them out of the plan"),
    ("mla_kv_a_proj", "latent attention is not divided yet; write `replicated`"),
    ("all_reduce", "it changes activations without weights; write `rowwise` on the layer before"),
    ("local_params", "it describes no division; write `replicated`"),
];

impl Style {
    /// The spelling of Transformers 5.
    #[must_use]
    pub fn name(self) -> &'static str {
        SPELLINGS.iter().find(|(style, _)| *style == self).map_or("", |(_, names)| names[0])
    }

    /// Whether output features are divided.
    #[must_use]
    pub fn is_colwise(self) -> bool {
        matches!(self, Self::Colwise | Self::ColwiseGather | Self::PackedColwise | Self::EmbeddingColwise)
    }

    /// Whether input features (or the vocabulary of an embedding) are divided, so that outputs are addends.
    #[must_use]
    pub fn is_rowwise(self) -> bool {
        matches!(self, Self::Rowwise | Self::RowwiseSplitInput | Self::PackedRowwise | Self::EmbeddingRowwise)
    }

    /// The style of that spelling, for `pattern` of a plan.
    pub(crate) fn read(pattern: &str, text: &str) -> Result<Self, TpError> {
        if let Some((style, _)) = SPELLINGS.iter().find(|(_, names)| names.contains(&text)) {
            return Ok(*style);
        }
        let (pattern, style) = (pattern.to_owned(), text.to_owned());
        if let Some(&(_, why)) = REFUSED.iter().find(|(name, _)| *name == text) {
            return Err(TpError::UnsupportedStyle { pattern, style, why });
        }
        let known: Vec<&str> = SPELLINGS.iter().map(|(_, names)| names[0]).collect();
        Err(TpError::UnknownStyle { pattern, style, known: known.join(", ") })
    }
}

impl FromStr for Style {
    type Err = TpError;

    fn from_str(text: &str) -> Result<Self, TpError> {
        Self::read("", text)
    }
}

impl TryFrom<String> for Style {
    type Error = TpError;

    fn try_from(text: String) -> Result<Self, TpError> {
        text.parse()
    }
}

impl From<Style> for String {
    fn from(style: Style) -> Self {
        style.name().to_owned()
    }
}

impl fmt::Display for Style {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
