//! Records: of each chunk and head whose channels have decays what walks read in place of queries, keys and decays.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::tile::{Four, UNITS, bring_keys};
use super::{Form, Numbers};

/// A part of the record of a chunk and head whose channels have decays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Queries times what is kept from the chunk's beginning to them, `[chunk, key_dim]`.
    QueriesSince,
    /// The same of keys.
    KeysSince,
    /// Keys times what is kept from them to the chunk's end.
    KeysUntil,
    /// What the chunk keeps, `[key_dim]`.
    Whole,
    /// The system, `[chunk, chunk]`.
    System,
    /// How much later tokens read of earlier ones, `[chunk, chunk]`.
    Scores,
    /// `[chunk]`.
    Betas,
}

impl Part {
    /// Where it begins.
    pub(super) fn place(self, form: Form) -> usize {
        let (rows, pairs) = (form.chunk * form.key_dim, form.chunk * form.chunk);
        match self {
            Self::QueriesSince => 0,
            Self::KeysSince => rows,
            Self::KeysUntil => 2 * rows,
            Self::Whole => 3 * rows,
            Self::System => 3 * rows + form.key_dim,
            Self::Scores => 3 * rows + form.key_dim + pairs,
            Self::Betas => 3 * rows + form.key_dim + 2 * pairs,
        }
    }
}

impl Form {
    /// Numbers of the record of a chunk and head whose channels have decays: three matrices of rows, what the chunk keeps of each
    /// channel, two matrices of pairs, and betas.
    pub(super) fn record(self) -> usize {
        self.chunk * (3 * self.key_dim + 2 * self.chunk + 1) + self.key_dim
    }
}

/// Where the record of a chunk and head begins.
#[cube]
pub(super) fn record_of(head: usize, chunk_at: usize, numbers: &Numbers, #[comptime] form: Form) -> usize {
    (head * numbers.chunks + chunk_at) * comptime!(form.record())
}

/// Brings rows of queries or keys of a record.
#[cube]
pub(super) fn bring_part(
    records: &[f32],
    record: usize,
    into: &mut [Four],
    #[comptime] part: Part,
    #[comptime] form: Form,
) {
    let (chunk, key_dim) = comptime!((form.chunk, form.key_dim));
    bring_keys(records, record + comptime!(part.place(form)), key_dim, chunk, into, form);
}

/// Brings the system of a record, where it is the delta rule's, and the scores, where they are `scored`.
#[cube]
pub(super) fn bring_pairs(
    records: &[f32],
    record: usize,
    system: &mut [f32],
    scores: &mut [f32],
    #[comptime] scored: bool,
    #[comptime] form: Form,
) {
    let chunk = comptime!(form.chunk);
    #[unroll]
    for turn in 0..comptime!((chunk * chunk).div_ceil(UNITS)) {
        let at = turn * UNITS + UNIT_POS as usize;
        if at < comptime!(chunk * chunk) {
            let to = at / chunk * comptime!(chunk + 1) + at % chunk;
            if comptime!(form.delta) {
                system[to] = records[record + comptime!(Part::System.place(form)) + at];
            }
            if comptime!(scored) {
                scores[to] = records[record + comptime!(Part::Scores.place(form)) + at];
            }
        }
    }
}
