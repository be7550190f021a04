//! A row as token ids and labels.

/// The label of a token that is not a target.
pub const IGNORED: i32 = -100;

/// One training row. `labels[i]` is `input_ids[i]`, or [`IGNORED`] where the token is not learned (not shifted).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Example {
    /// Token ids.
    pub input_ids: Vec<u32>,
    /// One label per token.
    pub labels: Vec<i32>,
    /// Lengths of the sequences packed into this row; empty for a row that is one sequence.
    pub seq_lengths: Vec<usize>,
}

impl Example {
    /// A row that is one sequence.
    ///
    /// # Panics
    /// When the lengths differ.
    #[must_use]
    pub fn new(input_ids: Vec<u32>, labels: Vec<i32>) -> Self {
        assert_eq!(input_ids.len(), labels.len(), "one label per token");
        Self { input_ids, labels, seq_lengths: Vec::new() }
    }

    /// A row in which every token is learned.
    #[must_use]
    pub fn all(input_ids: Vec<u32>) -> Self {
        let labels = input_ids.iter().map(|&id| label(id)).collect();
        Self::new(input_ids, labels)
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> usize {
        self.input_ids.len()
    }

    /// Whether there is no token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.input_ids.is_empty()
    }

    /// Number of learned tokens (before shifting: the first token of a sequence counts although nothing predicts it).
    #[must_use]
    pub fn trained(&self) -> usize {
        self.labels.iter().filter(|&&l| l != IGNORED).count()
    }
}

/// A token id as its own label.
pub(crate) fn label(id: u32) -> i32 {
    i32::try_from(id).expect("invariant: token ids are below 2^31, checked when rows are read")
}
