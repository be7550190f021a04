//! Micro-batches without padding, and TRL's collator for comparison.
//!
//! Padded, padding-free and packed batches are one thing here: the tokens of all rows one after another, with the
//! documents that attention may run over. What TRL pads is simply not there.

use std::ops::Range;

use crate::example::{Example, IGNORED};

/// A micro-batch of T tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Token ids `[T]`.
    pub input_ids: Vec<u32>,
    /// The target of each token `[T]`: the next token's label in the same document, or -100.
    pub labels: Vec<i64>,
    /// Position of each token in its document `[T]`, from 0.
    pub positions: Vec<u32>,
    /// Token ranges over which attention runs, in order, covering all T tokens.
    pub documents: Vec<Range<usize>>,
    /// For each document the one that it continues, as completions do their prompt: attention runs over that one's
    /// tokens too, and positions go on from its last. Empty where none does.
    pub parents: Vec<Option<usize>>,
    /// Token ranges of the rows, in order, covering all T tokens; a packed row holds several documents.
    pub rows: Vec<Range<usize>>,
    /// A counter for each token `[T]` that depends only on the row's place in the step's global batch and the token's
    /// place in the row (`row << 32 | token`): dropout does not depend on ranks, micro-batches or padding.
    pub row_ids: Vec<u64>,
    /// Tokens as TRL counts them in `num_tokens`.
    pub num_tokens: usize,
}

impl Batch {
    /// Number of tokens, T.
    #[must_use]
    pub fn len(&self) -> usize {
        self.input_ids.len()
    }

    /// Whether there is no token (a rank without rows in the last step of an epoch).
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.input_ids.is_empty()
    }

    /// Tokens that have a target: what the loss divides by.
    #[must_use]
    pub fn num_targets(&self) -> usize {
        self.labels.iter().filter(|&&l| l != i64::from(IGNORED)).count()
    }

    /// Length of the longest document.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.documents.iter().map(ExactSizeIterator::len).max().unwrap_or(0)
    }
}

/// How examples become batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collator {
    /// The id that TRL's collator pads with; a [`Batch`] has no padding.
    pub pad_id: u32,
    /// Rows lie one after another and packed sequences are documents of their own.
    pub padding_free: bool,
    /// Also give positions with padded rows.
    pub return_position_ids: bool,
    /// Round padded lengths up to a multiple of this.
    pub pad_to_multiple_of: Option<usize>,
}

/// A batch as TRL's `DataCollatorForLanguageModeling` gives it: rows of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Padded {
    /// Token ids.
    pub input_ids: Vec<Vec<u32>>,
    /// Labels, not shifted.
    pub labels: Vec<Vec<i32>>,
    /// 1 on tokens, 0 on padding; absent when padding-free.
    pub attention_mask: Option<Vec<Vec<u32>>>,
    /// Positions, when padding-free or asked for.
    pub position_ids: Option<Vec<Vec<u32>>>,
    /// Document boundaries, when padding-free; padding tokens are documents of one token.
    pub cu_seq_lens: Option<Vec<usize>>,
    /// The longest document, when padding-free.
    pub max_length: Option<usize>,
    /// The document of each token, when padding-free.
    pub seq_idx: Option<Vec<Vec<u32>>>,
}

impl Padded {
    /// Tokens as TRL counts them: the attention mask's sum, or all positions when padding-free.
    #[must_use]
    pub fn num_tokens(&self) -> usize {
        match &self.attention_mask {
            Some(mask) => mask.iter().flatten().map(|&m| m as usize).sum(),
            None => self.input_ids.iter().map(Vec::len).sum(),
        }
    }
}

impl Collator {
    /// The micro-batch of `examples`. `first_row` is the place of the first in the step's global batch.
    #[must_use]
    pub fn batch(&self, examples: &[&Example], first_row: usize) -> Batch {
        let total = examples.iter().map(|e| e.len()).sum();
        let mut batch = Batch {
            input_ids: Vec::with_capacity(total),
            labels: Vec::with_capacity(total),
            positions: Vec::with_capacity(total),
            row_ids: Vec::with_capacity(total),
            ..Batch::default()
        };
        for (row, example) in examples.iter().enumerate() {
            let start = batch.len();
            batch.input_ids.extend(&example.input_ids);
            let row_id = ((first_row + row) as u64) << 32;
            batch.row_ids.extend((0..example.len() as u64).map(|token| row_id | token));
            for document in self.documents(example) {
                let labels = &example.labels[document.clone()];
                batch.labels.extend(labels.iter().skip(1).map(|&l| i64::from(l)));
                batch.labels.extend((!labels.is_empty()).then_some(i64::from(IGNORED)));
                batch.positions.extend((0..document.len()).map(position));
                batch.documents.push(start + document.start..start + document.end);
            }
            batch.rows.push(start..batch.len());
        }
        batch.num_tokens = if self.padding_free { self.rounded(total) } else { total };
        batch
    }

    /// The same rows as TRL's collator lays them out.
    #[must_use]
    pub fn padded(&self, examples: &[&Example]) -> Padded {
        let mut out = Padded::default();
        let mut positions: Vec<Vec<u32>> = Vec::new();
        for example in examples {
            // Positions restart at packed sequences even in rows that are padded.
            let lengths = if example.seq_lengths.is_empty() {
                vec![example.len()]
            } else {
                example.seq_lengths.clone()
            };
            positions.push(lengths.iter().flat_map(|&n| (0..n).map(position)).collect());
            out.input_ids.push(example.input_ids.clone());
            out.labels.push(example.labels.clone());
        }
        if self.padding_free {
            out.input_ids = vec![out.input_ids.concat()];
            out.labels = vec![out.labels.concat()];
            positions = vec![positions.concat()];
        }
        let width = self.rounded(out.input_ids.iter().map(Vec::len).max().unwrap_or(0));
        let mask: Vec<Vec<u32>> = out.input_ids.iter().map(|row| vec![1; row.len()]).collect();
        fill(&mut out.input_ids, width, self.pad_id);
        fill(&mut out.labels, width, IGNORED);
        fill(&mut positions, width, 0);
        if self.padding_free {
            let starts: Vec<usize> = (0..width).filter(|&i| positions[0][i] == 0).collect();
            for &start in &starts {
                out.labels[0][start] = IGNORED;
            }
            let ends: Vec<usize> = starts.iter().skip(1).copied().chain([width]).collect();
            let lengths = || starts.iter().zip(&ends).map(|(s, e)| e - s);
            out.max_length = lengths().max();
            out.seq_idx = Some(vec![
                lengths().enumerate().flat_map(|(i, n)| std::iter::repeat_n(position(i), n)).collect(),
            ]);
            out.cu_seq_lens = Some(starts.iter().copied().chain([width]).collect());
        } else {
            let mut mask = mask;
            fill(&mut mask, width, 0);
            out.attention_mask = Some(mask);
        }
        if self.padding_free || self.return_position_ids {
            out.position_ids = Some(positions);
        }
        out
    }

    /// The documents of a row: its packed sequences when padding-free, else the whole row.
    fn documents(&self, example: &Example) -> Vec<Range<usize>> {
        if example.is_empty() {
            return Vec::new();
        }
        if !self.padding_free || example.seq_lengths.is_empty() {
            return std::iter::once(0..example.len()).collect();
        }
        let ends = example.seq_lengths.iter().scan(0, |end, n| {
            *end += n;
            Some(*end - n..*end)
        });
        ends.filter(|d| !d.is_empty()).collect()
    }

    fn rounded(&self, length: usize) -> usize {
        self.pad_to_multiple_of.map_or(length, |m| length.next_multiple_of(m.max(1)))
    }
}

fn position(i: usize) -> u32 {
    u32::try_from(i).expect("invariant: a batch has fewer than 2^32 tokens")
}

fn fill<T: Clone>(rows: &mut [Vec<T>], width: usize, value: T) {
    for row in rows {
        row.resize(width, value.clone());
    }
}
