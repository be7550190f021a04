//! Scores as softmax sees them, and who sees what.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

/// What a kernel of attention is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Form {
    pub(crate) head_dim: usize,
    /// Query heads of a key/value head.
    pub(crate) group: usize,
    pub(crate) softcap: bool,
    pub(crate) slopes: bool,
    pub(crate) sinks: bool,
    /// Some token sees tokens before its document.
    pub(crate) before: bool,
}

/// Numbers of a call.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Numbers {
    pub(crate) tokens: usize,
    /// Multiplies the scores.
    pub(crate) scale: f32,
    pub(crate) softcap: f32,
    /// Where the plan has the ranges of tiles.
    pub(crate) ranges: usize,
    /// How many tiles that is.
    pub(crate) tiles: usize,
}

/// Where the heads of a token lie in a buffer, in the buffer's vectors.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(crate) struct Rows {
    /// The first token's first head.
    pub(crate) first: usize,
    /// From token to token.
    pub(crate) stride: usize,
    /// From head to head.
    pub(crate) head: usize,
}

impl Form {
    /// Whether scores are products that are only scaled.
    pub(super) fn scaled(self) -> bool {
        !self.softcap && !self.slopes
    }
}

/// Exponentials are taken to the base of 2.
pub(super) const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// The score of a hidden pair: what is no larger counts for nothing.
pub(super) const HIDDEN: f32 = -1e30;

/// The keys that a query sees: from `low` to itself, and `from..to` before them.
#[derive(CubeType, Clone, Copy)]
pub(super) struct Sight {
    pub(super) low: usize,
    from: usize,
    to: usize,
}

/// What `query` sees; nothing where there is no such token.
#[cube]
pub(super) fn sight(plan: &[u32], tokens: usize, query: usize, #[comptime] form: Form) -> Sight {
    let mut low = query + 1;
    if query < tokens {
        low = plan[query] as usize;
    }
    sight_from(low, plan, tokens, query, false, form)
}

/// What `query` sees, whose first key is known; where it is seen as a `whole`, nothing else is.
#[cube]
pub(super) fn sight_from(
    low: usize,
    plan: &[u32],
    tokens: usize,
    query: usize,
    #[comptime] whole: bool,
    #[comptime] form: Form,
) -> Sight {
    let mut from = 0usize;
    let mut to = 0usize;
    if comptime!(form.before && !whole) {
        if query < tokens {
            from = plan[tokens + query] as usize;
            to = plan[2 * tokens + query] as usize;
        }
    }
    Sight { low, from, to }
}

#[cube]
pub(super) fn sees(sight: &Sight, query: usize, key: usize, #[comptime] form: Form) -> bool {
    let mut sees = key <= query && key >= sight.low;
    if comptime!(form.before) {
        sees = sees || (key >= sight.from && key < sight.to);
    }
    sees
}

/// A scaled product as softmax sees it, before what is hidden: capped, then biased.
#[cube]
pub(super) fn score(
    product: f32,
    numbers: &Numbers,
    slope: f32,
    query: usize,
    key: usize,
    #[comptime] form: Form,
) -> f32 {
    let mut score = product * numbers.scale;
    if comptime!(form.softcap) {
        score = (score / numbers.softcap).tanh() * numbers.softcap;
    }
    if comptime!(form.slopes) {
        score += slope * (f32::cast_from(key) - f32::cast_from(query));
    }
    score
}

/// How much of a score's gradient passes the cap.
#[cube]
pub(super) fn passes(product: f32, numbers: &Numbers, #[comptime] form: Form) -> f32 {
    let mut slope = 1.0f32;
    if comptime!(form.softcap) {
        let t = (product * numbers.scale / numbers.softcap).tanh();
        slope -= t * t;
    }
    slope
}

/// A head's slope.
#[cube]
pub(super) fn slope_of(slopes: &[f32], head: usize, #[comptime] form: Form) -> f32 {
    let mut slope = 0.0f32;
    if comptime!(form.slopes) {
        slope = slopes[head];
    }
    slope
}

/// By what scores are multiplied at last: where they are nothing but scaled, that is left until then.
#[cube]
pub(super) fn unit(numbers: &Numbers, #[comptime] form: Form) -> f32 {
    let mut unit = 1.0f32;
    if comptime!(form.scaled()) {
        unit = numbers.scale;
    }
    unit
}

/// The score in such units.
#[cube]
pub(super) fn score_in_units(
    product: f32,
    numbers: &Numbers,
    slope: f32,
    query: usize,
    key: usize,
    #[comptime] form: Form,
) -> f32 {
    let mut in_units = product;
    if comptime!(!form.scaled()) {
        in_units = score(product, numbers, slope, query, key, form);
    }
    in_units
}
