//! Kernels on a run of vocabulary entries for up to 32 tokens.
//!
//! Logits are kept transposed, `[entries][32]`: a vector holds the same entry of many tokens, so that no reduction
//! crosses lanes and the head's weight is read in the order it is stored, whatever the vocabulary's size.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use super::shard::VocabPart;
use crate::attention::tanh;
use crate::micro::NR;
use crate::simd::{Isa, Lanes, dispatch};
use burnish_core::HeadOptions;

/// Below every logit that takes part.
pub(super) const NEVER: f32 = -1e30;
/// Entries summed in one go; short sums lose less.
const RUN: usize = 64;

/// From product to `z`.
#[derive(Clone, Copy)]
pub(crate) struct Scaling {
    scale: f32,
    /// 0 is none.
    cap: f32,
    temperature: f32,
}

impl Scaling {
    pub(crate) fn new(o: &HeadOptions) -> Self {
        Self { scale: o.logit_scale, cap: o.softcap.unwrap_or(0.0), temperature: o.temperature }
    }

    /// Without temperature.
    pub(crate) fn plain(o: &HeadOptions) -> Self {
        Self { temperature: 1.0, ..Self::new(o) }
    }

    fn is_identity(&self) -> bool {
        self.scale == 1.0 && self.cap == 0.0 && self.temperature == 1.0
    }

    /// `product / z`, where there is no cap.
    pub(crate) fn uncapped(&self) -> Option<f32> {
        (self.cap == 0.0).then(|| self.temperature / self.scale)
    }

    /// `dz/d product` at `z`.
    pub(crate) fn slope(&self, z: f32) -> f32 {
        let t = if self.cap > 0.0 { z * self.temperature / self.cap } else { 0.0 };
        self.scale / self.temperature * (1.0 - t * t)
    }
}

#[inline(always)]
unsafe fn scale_body<S: Lanes>(s: Scaling, entries: usize, lanes: usize, z: *mut f32) {
    if s.is_identity() {
        return;
    }
    for j in 0..entries {
        let mut l = 0;
        while l < lanes {
            let p = z.add(j * NR + l);
            S::store(p, scaled::<S>(s, S::load(p)));
            l += S::N;
        }
    }
}

/// One vector of products to `z`.
#[inline(always)]
unsafe fn scaled<S: Lanes>(s: Scaling, v: S::V) -> S::V {
    let mut v = S::mul(v, S::splat(s.scale));
    if s.cap > 0.0 {
        v = S::mul(S::splat(s.cap), tanh::<S>(S::mul(v, S::splat(1.0 / s.cap))));
    }
    S::mul(v, S::splat(1.0 / s.temperature))
}

dispatch! {
    /// Products to `z`, in place.
    ///
    /// # Safety
    /// `z` holds `entries` rows of 32; `lanes` is a multiple of 16, at most 32.
    pub(crate) unsafe fn scale_logits = scale_body [] [] (s: Scaling, entries: usize, lanes: usize, z: *mut f32)
}

#[inline(always)]
unsafe fn scale_elements_body<S: Lanes>(s: Scaling, n: usize, z: *mut f32) {
    if s.is_identity() {
        return;
    }
    let mut j = 0;
    while j < n {
        let (mask, p) = (S::mask((n - j).min(S::N)), z.add(j));
        S::store_m(mask, p, scaled::<S>(s, S::load_m(mask, p)));
        j += S::N;
    }
}

dispatch! {
    /// `n` products to `z`, in place.
    ///
    /// # Safety
    /// `z` holds `n` floats.
    pub(crate) unsafe fn scale_elements = scale_elements_body [] [] (s: Scaling, n: usize, z: *mut f32)
}

/// Rows of a run's statistics, each of 32 lanes.
pub(crate) const STATS: usize = 5;
/// Largest `z`.
const TOP: usize = 0;
/// `Σ e`, `e = exp(z - top)`.
const SUM: usize = NR;
/// `Σ e²`.
const SQUARES: usize = 2 * NR;
/// `Σ e·(z - top)`.
const WEIGHTED: usize = 3 * NR;
/// `Σ z`.
const TOTAL: usize = 4 * NR;

/// Statistics of no entries.
const NOTHING: [f32; STATS * NR] = {
    let mut stats = [0.0; STATS * NR];
    let mut lane = 0;
    while lane < NR {
        stats[TOP + lane] = NEVER;
        lane += 1;
    }
    stats
};

#[inline(always)]
unsafe fn stats_body<S: Lanes, const TURN: bool>(
    s: Scaling,
    entries: usize,
    lanes: usize,
    stats: *mut f32,
    z: *mut f32,
    shrink: *mut f32,
) -> bool {
    let (zero, one) = (S::splat(0.0), S::splat(1.0));
    let floor = S::splat(-200.0);
    let per_cap = S::splat(if s.cap > 0.0 { s.temperature / s.cap } else { 0.0 });
    let mut grown = zero;
    let mut l = 0;
    while l < lanes {
        let (z, stats) = (z.add(l), stats.add(l));
        let before = S::load(stats.add(TOP));
        let (mut top, mut total) = (before, S::load(stats.add(TOTAL)));
        for first in (0..entries).step_by(RUN) {
            let mut t = zero;
            for j in first..(first + RUN).min(entries) {
                let v = S::load(z.add(j * NR));
                top = S::max(top, v);
                t = S::add(t, v);
            }
            total = S::add(total, t);
        }
        let fall = S::max(floor, S::sub(before, top));
        let by = S::exp(fall);
        grown = S::max(grown, S::sub(zero, fall));
        let past = S::mul(S::load(stats.add(SUM)), by);
        let mut weighted = S::fma(fall, past, S::mul(by, S::load(stats.add(WEIGHTED))));
        let mut squares = S::mul(S::mul(by, by), S::load(stats.add(SQUARES)));
        let mut sum = past;
        for first in (0..entries).step_by(RUN) {
            let (mut t, mut q, mut w) = (zero, zero, zero);
            for j in first..(first + RUN).min(entries) {
                let p = z.add(j * NR);
                let v = S::load(p);
                let d = S::max(floor, S::sub(v, top));
                let e = S::exp(d);
                t = S::add(t, e);
                q = S::fma(e, e, q);
                w = S::fma(e, d, w);
                if TURN {
                    let bend = S::mul(v, per_cap);
                    S::store(p, if s.cap > 0.0 { S::mul(e, S::fnma(bend, bend, one)) } else { e });
                }
            }
            sum = S::add(sum, t);
            squares = S::add(squares, q);
            weighted = S::add(weighted, w);
        }
        S::store(stats.add(TOP), top);
        S::store(stats.add(SUM), sum);
        S::store(stats.add(SQUARES), squares);
        S::store(stats.add(WEIGHTED), weighted);
        S::store(stats.add(TOTAL), total);
        S::store(shrink.add(l), by);
        l += S::N;
    }
    S::top(grown) > 0.0
}

dispatch! {
    /// Adds a run of entries to the statistics of those before; with `TURN` makes `e^(z - top)` of its logits, times the slope
    /// of a soft cap, `top` being the largest so far. `shrink` gets `e^(top before - top)`; whether one isn't 1.
    ///
    /// # Safety
    /// `z` holds `entries` rows of 32, `stats` [`STATS`] of 32, `shrink` 32; `lanes` is a multiple of 16, at most 32.
    unsafe fn add_run = stats_body [const TURN: bool] [TURN]
        (s: Scaling, entries: usize, lanes: usize, stats: *mut f32, z: *mut f32, shrink: *mut f32) -> bool
}

/// Statistics of a run of entries.
///
/// # Safety
/// `z` holds `entries` rows of 32, `stats` [`STATS`] of 32; `lanes` is a multiple of 16, at most 32.
pub(crate) unsafe fn run_stats(
    isa: Isa,
    s: Scaling,
    entries: usize,
    lanes: usize,
    z: *mut f32,
    stats: *mut f32,
) {
    begin_stats(stats);
    let mut shrink = [0.0; NR];
    add_run::<false>(isa, s, entries, lanes, stats, z, shrink.as_mut_ptr());
}

/// Statistics of no entries.
///
/// # Safety
/// `stats` holds [`STATS`] of 32.
pub(crate) unsafe fn begin_stats(stats: *mut f32) {
    std::slice::from_raw_parts_mut(stats, STATS * NR).copy_from_slice(&NOTHING);
}

/// Adds a run of entries to the statistics of those before, and makes `e^(z - top)` of its logits, times the slope of a soft
/// cap, `top` being the largest so far. `e^(top before - top)` of each lane, where one isn't 1.
///
/// # Safety
/// `z` holds `entries` rows of 32, `stats` [`STATS`] of 32; `lanes` is a multiple of 16, at most 32.
pub(crate) unsafe fn online_stats(
    isa: Isa,
    s: Scaling,
    entries: usize,
    lanes: usize,
    stats: *mut f32,
    z: *mut f32,
) -> Option<[f32; NR]> {
    let mut shrink = [1.0; NR];
    add_run::<true>(isa, s, entries, lanes, stats, z, shrink.as_mut_ptr()).then_some(shrink)
}

#[inline(always)]
unsafe fn merge_body<S: Lanes>(runs: usize, stride: usize, lanes: usize, parts: *const f32, out: *mut f32) {
    let mut l = 0;
    while l < lanes {
        let parts = parts.add(l);
        let zero = S::splat(0.0);
        let mut top = S::splat(NEVER);
        for r in 0..runs {
            top = S::max(top, S::load(parts.add(r * stride + TOP)));
        }
        let (mut sum, mut squares, mut weighted, mut total) = (zero, zero, zero, zero);
        for r in 0..runs {
            let p = parts.add(r * stride);
            let d = S::sub(S::load(p.add(TOP)), top);
            let e = S::exp(d);
            let s = S::mul(S::load(p.add(SUM)), e);
            sum = S::add(sum, s);
            squares = S::fma(S::mul(e, e), S::load(p.add(SQUARES)), squares);
            weighted =
                S::add(weighted, S::fma(S::max(S::splat(-200.0), d), s, S::mul(e, S::load(p.add(WEIGHTED)))));
            total = S::add(total, S::load(p.add(TOTAL)));
        }
        let out = out.add(l);
        S::store(out.add(TOP), top);
        S::store(out.add(SUM), sum);
        S::store(out.add(SQUARES), squares);
        S::store(out.add(WEIGHTED), weighted);
        S::store(out.add(TOTAL), total);
        l += S::N;
    }
}

dispatch! {
    /// Statistics of all runs (`stride` floats apart) as those of one.
    ///
    /// # Safety
    /// `parts` holds `runs` statistics, `out` one.
    pub(crate) unsafe fn merge_stats = merge_body [] []
        (runs: usize, stride: usize, lanes: usize, parts: *const f32, out: *mut f32)
}

/// Statistics of one token, read from merged rows of lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Token {
    pub(crate) top: f32,
    pub(crate) log_z: f32,
    pub(crate) entropy: f32,
    pub(crate) log_sum_sq: f32,
    pub(crate) total: f32,
}

impl Token {
    /// Lane `lane` of statistics.
    pub(crate) fn new(stats: &[f32], lane: usize) -> Self {
        let at = |row: usize| stats[row + lane];
        let log_sum = at(SUM).ln();
        Self {
            top: at(TOP),
            log_z: at(TOP) + log_sum,
            entropy: log_sum - at(WEIGHTED) / at(SUM),
            log_sum_sq: at(SQUARES).ln() - 2.0 * log_sum,
            total: at(TOTAL),
        }
    }
}

/// What merged rows of lanes say of the token in lane `lane`, but for its target.
pub(crate) fn part(stats: &[f32], lane: usize) -> VocabPart {
    let at = |row: usize| stats[row + lane];
    VocabPart {
        top: at(TOP),
        sum: at(SUM),
        squares: at(SQUARES),
        weighted: at(WEIGHTED),
        total: at(TOTAL),
        ..VocabPart::default()
    }
}

/// Rows of what the gradient needs of each token, each of 32 lanes: log Z, the gradients of log-probability and
/// entropy, the entropy.
pub(crate) const GIVEN: usize = 4;
pub(crate) const LOG_Z: usize = 0;
pub(crate) const G_LOG_PROB: usize = NR;
pub(crate) const G_ENTROPY: usize = 2 * NR;
pub(crate) const ENTROPY: usize = 3 * NR;

#[inline(always)]
unsafe fn gradient_body<S: Lanes>(
    s: Scaling,
    spread: f32,
    with_entropy: bool,
    entries: usize,
    lanes: usize,
    given: *const f32,
    z: *mut f32,
) {
    let one = S::splat(1.0);
    let factor = S::splat(s.scale / s.temperature);
    let per_cap = S::splat(if s.cap > 0.0 { s.temperature / s.cap } else { 0.0 });
    let mut l = 0;
    while l < lanes {
        let given = given.add(l);
        let log_z = S::load(given.add(LOG_Z));
        // dz = g_lp·spread - p·(g_lp + g_h·(log p + H)), and the rest of g_lp at the target, which the caller adds.
        let minus = S::sub(S::splat(0.0), S::mul(S::load(given.add(G_LOG_PROB)), factor));
        let g_h = S::mul(S::load(given.add(G_ENTROPY)), factor);
        let everywhere = S::mul(S::load(given.add(G_LOG_PROB)), S::mul(S::splat(spread), factor));
        let entropy = S::load(given.add(ENTROPY));
        for j in 0..entries {
            let p = z.add(j * NR + l);
            let v = S::load(p);
            let log_p = S::max(S::splat(-200.0), S::sub(v, log_z));
            let e = S::exp(log_p);
            let mut d = minus;
            if with_entropy {
                d = S::fnma(g_h, S::add(log_p, entropy), d);
            }
            d = S::fma(d, e, everywhere);
            if s.cap > 0.0 {
                let t = S::mul(v, per_cap);
                d = S::mul(d, S::fnma(t, t, one));
            }
            S::store(p, d);
        }
        l += S::N;
    }
}

dispatch! {
    /// `z` to the gradient of the products, but for the target's own term; every entry has `spread` of a target.
    ///
    /// # Safety
    /// `z` holds `entries` rows of 32, `given` [`GIVEN`] of 32; `lanes` is a multiple of 16, at most 32.
    pub(crate) unsafe fn logits_gradient = gradient_body [] []
        (s: Scaling, spread: f32, with_entropy: bool, entries: usize, lanes: usize, given: *const f32, z: *mut f32)
}

#[inline(always)]
unsafe fn row_sums_body<S: Lanes>(
    rows: usize,
    cols: usize,
    x: *const f32,
    panel: usize,
    out: *mut f32,
    scale: f32,
) {
    for i in 0..rows {
        let mut acc = S::splat(0.0);
        let mut c = 0;
        while c < cols {
            let n = (cols - c).min(S::N);
            let p = x.add((c / NR) * panel + i * NR + c % NR);
            acc = S::add(acc, S::load_m(S::mask(n), p));
            c += S::N;
        }
        *out.add(i) += scale * S::sum(acc);
    }
}

dispatch! {
    /// `out[i] += scale·Σ` over the `cols` tokens of entry `i`, panels of 32 tokens `panel` floats apart.
    ///
    /// # Safety
    /// `x` holds the panels, `out` `rows` floats.
    pub(crate) unsafe fn row_sums = row_sums_body [] []
        (rows: usize, cols: usize, x: *const f32, panel: usize, out: *mut f32, scale: f32)
}

#[inline(always)]
unsafe fn row_products_body<S: Lanes>(
    rows: usize,
    cols: usize,
    x: *const f32,
    panel_x: usize,
    y: *const f32,
    panel_y: usize,
    out: *mut f32,
) {
    for i in 0..rows {
        let mut acc = S::splat(0.0);
        let mut c = 0;
        while c < cols {
            let (mask, at) = (S::mask((cols - c).min(S::N)), i * NR + c % NR);
            let x = S::load_m(mask, x.add((c / NR) * panel_x + at));
            acc = S::fma(x, S::load_m(mask, y.add((c / NR) * panel_y + at)), acc);
            c += S::N;
        }
        *out.add(i) += S::sum(acc);
    }
}

dispatch! {
    /// `out[i] += Σ x·y` over the `cols` tokens of entry `i`, panels of 32 tokens `panel_x` and `panel_y` floats apart.
    ///
    /// # Safety
    /// `x` and `y` hold the panels, `out` `rows` floats.
    pub(crate) unsafe fn row_products = row_products_body [] [] (
        rows: usize, cols: usize, x: *const f32, panel_x: usize, y: *const f32, panel_y: usize, out: *mut f32
    )
}
