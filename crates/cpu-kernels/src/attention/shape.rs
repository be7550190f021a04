//! `AttentionShape` and its parts: head counts, mask, documents, rotary table, per-head norms of an attention call.

use burnish_core::Compute;
use std::ops::Range;

/// Heads, mask and documents of one causal attention over flattened tokens.
///
/// Tokens of every document lie one after another in `[tokens, ...]` buffers; there is no padding and no mask
/// tensor. Attention is causal inside each document and never crosses from one to another. Rows that belong to no
/// document come out as zeros.
///
/// A document may continue another (several completions one prompt): its tokens see all of that one's as well, before
/// their own, and its positions go on from there.
#[derive(Clone, Copy, Debug)]
pub struct AttentionShape<'a> {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads` (grouped-query attention).
    pub kv_heads: usize,
    /// Elements per head; any even number.
    pub head_dim: usize,
    /// Factor on `q·k`, usually `1/sqrt(head_dim)`.
    pub scale: f32,
    /// Scores become `c·tanh(score/c)` where set (Gemma 2).
    pub softcap: Option<f32>,
    /// Linear biases (`ALiBi`): `slope * (j - i)` is added to query `i`'s capped score of key `j`, a slope per query head;
    /// empty for none.
    pub slopes: &'a [f32],
    /// A logit per query head that takes part in softmax and has no value (gpt-oss' sinks); empty for none.
    pub sinks: &'a [f32],
    /// Sliding window: key `j` is visible to query `i` where `0 <= i - j < window`; all earlier keys where `None`.
    pub window: Option<usize>,
    /// Disjoint row ranges, one per document.
    pub documents: &'a [Range<usize>],
    /// For each document the one that it continues, which continues none itself; empty where none does.
    pub parents: &'a [Option<usize>],
    /// What the operands of the products are; softmax and its statistics are fp32.
    pub compute: Compute,
}

impl AttentionShape<'_> {
    /// Elements of one row of the fused projection, `q | k | v`.
    pub fn qkv_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Elements of one output row.
    pub fn out_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Query heads that share one key head.
    pub(crate) fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// The document that this one continues.
    pub(crate) fn parent(&self, document: usize) -> Option<usize> {
        self.parents.get(document).copied().flatten()
    }

    /// Tokens that a document's own see before them.
    pub(crate) fn before(&self, document: usize) -> usize {
        self.parent(document).map_or(0, |parent| self.documents[parent].len())
    }

    /// The slope of a query head's bias; 0 is none.
    pub(crate) fn slope(&self, head: usize) -> f32 {
        self.slopes.get(head).copied().unwrap_or(0.0)
    }

    /// The logit of a query head that has no value.
    pub(crate) fn sink(&self, head: usize) -> Option<f32> {
        self.sinks.get(head).copied()
    }

    /// First key visible to query `i` of a document.
    pub(crate) fn first_key(&self, i: usize) -> usize {
        self.window.map_or(0, |w| (i + 1).saturating_sub(w))
    }

    /// Panics unless the shape is consistent with a buffer of `rows` rows.
    pub(crate) fn check(&self, rows: usize) {
        assert!(
            self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads),
            "attention: kv_heads {} must divide heads {}",
            self.kv_heads,
            self.heads
        );
        assert!(
            self.head_dim > 0 && self.head_dim.is_multiple_of(2),
            "attention: head_dim {} must be even and positive",
            self.head_dim
        );
        assert!(
            self.slopes.is_empty() || self.slopes.len() == self.heads,
            "attention: {} slopes for {} heads, expected one each or none",
            self.slopes.len(),
            self.heads
        );
        assert!(
            self.sinks.is_empty() || self.sinks.len() == self.heads,
            "attention: {} sinks for {} heads, expected one each or none",
            self.sinks.len(),
            self.heads
        );
        assert!(self.window != Some(0), "attention: window 0 hides every key, expected at least 1");
        assert!(
            self.softcap.is_none_or(|c| c > 0.0),
            "attention: softcap {:?} must be positive",
            self.softcap
        );
        let mut ranges: Vec<&Range<usize>> = self.documents.iter().filter(|d| d.start < d.end).collect();
        ranges.sort_by_key(|d| d.start);
        for pair in ranges.windows(2) {
            assert!(
                pair[0].end <= pair[1].start,
                "attention: documents {:?} and {:?} overlap, expected disjoint row ranges",
                pair[0],
                pair[1]
            );
        }
        assert!(
            self.parents.is_empty() || self.parents.len() == self.documents.len(),
            "attention: {} parents for {} documents, expected one each or none",
            self.parents.len(),
            self.documents.len()
        );
        for (document, parent) in self.parents.iter().enumerate() {
            assert!(
                parent.is_none_or(|p| p < self.documents.len() && p != document && self.parents[p].is_none()),
                "attention: document {document} continues {parent:?}, expected one of {} that continues none",
                self.documents.len()
            );
        }
        if let Some(last) = ranges.last() {
            assert!(last.end <= rows, "attention: document {last:?} passes the end of {rows} rows");
        }
    }
}

/// Rotary position embedding of queries and keys (rotate-half pairing, as in GPT-NeoX and Llama).
///
/// Dimension `i < rotary_dim/2` is paired with `i + rotary_dim/2`; dimensions past `rotary_dim` pass through.
#[derive(Clone, Copy, Debug)]
pub struct Rotary<'a> {
    /// `[positions, rotary_dim]`: `rotary_dim/2` cosines, then as many sines; attention scaling is multiplied in.
    pub table: &'a [f32],
    /// Position of each row, `[rows]`; indexes `table`.
    pub positions: &'a [u32],
    /// Rotated leading dimensions of each head; even, at most `head_dim`.
    pub rotary_dim: usize,
}

impl Rotary<'_> {
    /// Panics unless the table covers every position of `rows` rows.
    pub(crate) fn check(&self, rows: usize, head_dim: usize) {
        let r = self.rotary_dim;
        assert!(
            r > 0 && r.is_multiple_of(2) && r <= head_dim,
            "rotary: rotary_dim {r} must be even and within head_dim {head_dim}"
        );
        assert!(
            self.positions.len() == rows,
            "rotary: {} positions for {rows} rows, expected one per row",
            self.positions.len()
        );
        let known = self.table.len() / r;
        if let Some(p) = self.positions.iter().find(|&&p| p as usize >= known) {
            panic!("rotary: position {p} lies outside the table of {known} positions");
        }
    }

    /// Table row of buffer row `row`.
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        let at = self.positions[row] as usize * self.rotary_dim;
        &self.table[at..at + self.rotary_dim]
    }
}

/// RMSNorm of each query and key head before rotary (Qwen3 `q_norm`, `k_norm`): `x·g/sqrt(mean(x²)+eps)`.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorm<'a> {
    /// Query gain, `[head_dim]`.
    pub q: &'a [f32],
    /// Key gain, `[head_dim]`.
    pub k: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
}

impl HeadNorm<'_> {
    /// Panics unless both gains have `head_dim` elements.
    pub(crate) fn check(&self, head_dim: usize) {
        assert!(
            self.q.len() == head_dim && self.k.len() == head_dim,
            "head norm: gains of {} and {} elements, expected head_dim {head_dim}",
            self.q.len(),
            self.k.len()
        );
    }
}

/// Result of attention forward.
#[derive(Clone, Debug)]
pub struct AttentionOut {
    /// `[rows, heads*head_dim]`.
    pub out: Vec<f32>,
    /// Log-sum-exp of each row's scores, and of its head's sink where there is one, `[rows, heads]`; what backward needs.
    pub lse: Vec<f32>,
}

/// Gradients of attention.
#[derive(Clone, Debug)]
pub struct AttentionGrad {
    /// Gradient of the fused projection, `[rows, (heads+2*kv_heads)*head_dim]`.
    pub dqkv: Vec<f32>,
    /// Gradient of the query gain, `[head_dim]`, where there is a head norm.
    pub dq_norm: Option<Vec<f32>>,
    /// Gradient of the key gain, `[head_dim]`, where there is a head norm.
    pub dk_norm: Option<Vec<f32>>,
    /// Gradient of the sinks, `[heads]`, where there are some.
    pub d_sinks: Option<Vec<f32>>,
}
