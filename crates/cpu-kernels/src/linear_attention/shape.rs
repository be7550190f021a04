//! Arguments of linear attention, and which documents continue each other.

use crate::micro::KC;
use crate::texts;
use std::ops::Range;

/// Elements of a key or a value at most.
pub const STATE_DIM: usize = KC;

/// Whose decays are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decays {
    /// A head has one.
    OfHeads,
    /// Each channel of a head's keys has one of its own (Kimi Delta Attention, arXiv:2510.26692); no heads share keys.
    OfChannels,
}

/// Heads, dimensions and documents of a call.
#[derive(Clone, Copy, Debug)]
pub struct LinearAttentionShape<'a> {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values; `heads / key_heads` one after another share a head of keys.
    pub heads: usize,
    /// Columns of a query or key, at most [`STATE_DIM`].
    pub key_dim: usize,
    /// Columns of a value, at most [`STATE_DIM`].
    pub value_dim: usize,
    /// The first column of queries, keys and values in a row of `qkv`.
    pub columns: [usize; 3],
    /// Columns of a row of `qkv`.
    pub width: usize,
    /// Whether a token learns only what the state does not say already (the delta rule).
    pub delta_rule: bool,
    /// Whose decays are.
    pub decays: Decays,
    /// Texts as ranges of rows; they do not overlap, and no state passes from one to the next.
    pub documents: &'a [Range<usize>],
    /// Of each document, an earlier one that it continues (it starts from the state that one leaves), if any; a missing
    /// entry is none.
    pub parents: &'a [Option<usize>],
}

/// Queries, keys and values, and what each token keeps and learns.
#[derive(Clone, Copy, Debug)]
pub struct LinearAttention<'a> {
    /// Heads, dimensions and documents.
    pub shape: LinearAttentionShape<'a>,
    /// `[tokens, width]`.
    pub qkv: &'a [f32],
    /// Logarithm (at most 0) of what a token keeps of the state, `[tokens, heads]`, or `[tokens, heads * key_dim]` of
    /// channels.
    pub decay: &'a [f32],
    /// How much of a token is learned, `[tokens, heads]`.
    pub beta: &'a [f32],
}

/// A document of a [`Family`].
#[derive(Debug)]
pub(super) struct Member {
    pub(super) document: usize,
    pub(super) rows: Range<usize>,
    /// Place of the state that it starts from, if not from zeros.
    pub(super) parent: Option<usize>,
    /// Place of the state that it leaves, where another document continues it.
    pub(super) kept: Option<usize>,
}

/// A document and all that continue it, parents first.
#[derive(Debug, Default)]
pub(super) struct Family {
    pub(super) members: Vec<Member>,
    /// States that are kept for members to start from.
    pub(super) places: usize,
}

impl Family {
    /// Rows of all members.
    pub(super) fn rows(&self) -> usize {
        self.members.iter().map(|member| member.rows.len()).sum()
    }
}

impl LinearAttention<'_> {
    /// Panics unless lengths, heads and documents fit each other; the number of tokens.
    pub(super) fn check(&self) -> usize {
        let s = &self.shape;
        assert!(
            s.key_heads > 0 && s.heads > 0 && s.heads.is_multiple_of(s.key_heads),
            "linear attention: {} heads, expected a multiple of {} key heads",
            s.heads,
            s.key_heads
        );
        assert!(
            (1..=STATE_DIM).contains(&s.key_dim) && (1..=STATE_DIM).contains(&s.value_dim),
            "linear attention: key_dim {} and value_dim {}, expected 1 to {STATE_DIM}",
            s.key_dim,
            s.value_dim
        );
        for (first, len) in s.columns.iter().zip(s.lengths()) {
            assert!(
                first + len <= s.width,
                "linear attention: {len} columns from {first} pass the end of a row of {}",
                s.width
            );
        }
        assert!(
            self.qkv.len().is_multiple_of(s.width),
            "linear attention: qkv of {} elements is not whole rows of {}",
            self.qkv.len(),
            s.width
        );
        let tokens = self.qkv.len() / s.width;
        assert!(
            self.decay.len() == tokens * s.row_of_decays() && self.beta.len() == tokens * s.heads,
            "linear attention: decay and beta of {} and {} elements, expected {tokens} rows of {} and {}",
            self.decay.len(),
            self.beta.len(),
            s.row_of_decays(),
            s.heads
        );
        assert!(
            s.decays == Decays::OfHeads || s.heads == s.key_heads,
            "linear attention: {} heads share {} key heads, expected as many for decays of channels",
            s.heads,
            s.key_heads
        );
        texts::check("linear attention", s.documents, s.parents, tokens);
        tokens
    }
}

impl LinearAttentionShape<'_> {
    /// Columns of all queries, keys and values.
    pub(super) fn lengths(&self) -> [usize; 3] {
        [self.key_heads * self.key_dim, self.key_heads * self.key_dim, self.heads * self.value_dim]
    }

    /// Decays of a token.
    pub(super) fn row_of_decays(&self) -> usize {
        match self.decays {
            Decays::OfHeads => self.heads,
            Decays::OfChannels => self.heads * self.key_dim,
        }
    }

    /// Heads of values to a head of keys.
    pub(super) fn group(&self) -> usize {
        self.heads / self.key_heads
    }

    /// Documents by what they continue, those of most rows first.
    pub(super) fn families(&self) -> Vec<Family> {
        let parent = |document: usize| self.parents.get(document).copied().flatten();
        let mut families: Vec<Family> = vec![];
        // Of each document its family and its number there.
        let mut at: Vec<(usize, usize)> = Vec::with_capacity(self.documents.len());
        for (document, rows) in self.documents.iter().enumerate() {
            let (family, place) = match parent(document) {
                None => {
                    families.push(Family::default());
                    (families.len() - 1, None)
                }
                Some(p) => {
                    let (family, number) = at[p];
                    let Family { members, places } = &mut families[family];
                    let place = *members[number].kept.get_or_insert_with(|| {
                        *places += 1;
                        *places - 1
                    });
                    (family, Some(place))
                }
            };
            let members = &mut families[family].members;
            at.push((family, members.len()));
            members.push(Member { document, rows: rows.clone(), parent: place, kept: None });
        }
        families.retain(|family| family.rows() > 0);
        families.sort_by_key(|family| std::cmp::Reverse(family.rows()));
        families
    }
}
