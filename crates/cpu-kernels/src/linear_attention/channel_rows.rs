//! Row operations of linear attention whose channels have decays of their own.
//!
//! The decay between two rows is a product of numbers of at most one, made factor by factor: nothing overflows however strong
//! decays are, and none is found as a difference of large sums.

#![allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]

use super::chunk::CHUNK;
use super::product::STEP;
use crate::micro::{KC, LDP, NR};
use crate::simd::{Lanes, dispatch};

#[inline(always)]
unsafe fn exponentials_body<S: Lanes>(n: usize, x: *const f32, y: *mut f32) {
    let mut j = 0;
    while j < n {
        let mask = S::mask((n - j).min(S::N));
        S::store_m(mask, y.add(j), S::exp(S::load_m(mask, x.add(j))));
        j += S::N;
    }
}

dispatch! {
    /// `y = e^x` of `n` numbers.
    ///
    /// # Safety
    /// Both hold `n`.
    pub(super) unsafe fn exponentials = exponentials_body [] [] (n: usize, x: *const f32, y: *mut f32)
}

#[inline(always)]
unsafe fn times_row_body<S: Lanes>(m: usize, n: usize, w: *const f32, x: *mut f32) {
    let mut j = 0;
    while j < n {
        let mask = S::mask((n - j).min(S::N));
        let (w, mut x) = (S::load_m(mask, w.add(j)), x.add(j));
        for _ in 0..m {
            S::store_m(mask, x, S::mul(S::load_m(mask, x), w));
            x = x.add(LDP);
        }
        j += S::N;
    }
}

dispatch! {
    /// `x[i] = w x[i]`, element by element, of `m` rows of `n` at stride [`LDP`].
    ///
    /// # Safety
    /// The rows exist; `w` holds `n`.
    pub(super) unsafe fn times_row = times_row_body [] [] (m: usize, n: usize, w: *const f32, x: *mut f32)
}

#[inline(always)]
unsafe fn column_dots_body<S: Lanes>(m: usize, n: usize, a: *const f32, b: *const f32, to: *mut f32) {
    let mut j = 0;
    while j < n {
        let mask = S::mask((n - j).min(S::N));
        let mut sum = S::splat(0.0);
        for i in 0..m {
            let at = i * LDP + j;
            sum = S::fma(S::load_m(mask, a.add(at)), S::load_m(mask, b.add(at)), sum);
        }
        S::store_m(mask, to.add(j), sum);
        j += S::N;
    }
}

dispatch! {
    /// `to[j]`, the product of columns `j` of `a` and `b`, `m` rows of `n` at stride [`LDP`].
    ///
    /// # Safety
    /// The rows exist; `to` holds `n`.
    pub(super) unsafe fn column_dots = column_dots_body [] [] (
        m: usize, n: usize, a: *const f32, b: *const f32, to: *mut f32
    )
}

/// Keys and queries of a chunk's rows by rows of [`LDP`], and what they become by their decays.
#[derive(Clone, Copy)]
pub(super) struct Decayed {
    pub(super) m: usize,
    pub(super) d: usize,
    /// Logarithms of what each row keeps of each channel, so many numbers from a row to the next.
    pub(super) decay: *const f32,
    pub(super) ld: usize,
    pub(super) beta: *const f32,
    pub(super) keys: *const f32,
    /// Null where queries are not wanted, as what is made of them.
    pub(super) queries: *const f32,
    /// What each row keeps of each channel.
    pub(super) kept: *mut f32,
    /// Queries times what is kept from their block's beginning to them, and from the chunk's.
    pub(super) queries_in: *mut f32,
    pub(super) queries_since: *mut f32,
    /// Keys times `beta` and the same.
    pub(super) keys_in: *mut f32,
    pub(super) keys_seen: *mut f32,
    /// Keys times what is kept from them to their block's end, and to the chunk's.
    pub(super) keys_on: *mut f32,
    pub(super) keys_until: *mut f32,
    /// What each block keeps, by rows of `d`.
    pub(super) blocks: *mut f32,
    /// What the chunk keeps.
    pub(super) whole: *mut f32,
}

/// Of what is kept, less than `2^-104` is nothing: processors are slow with the smallest numbers.
#[inline(always)]
unsafe fn settled<S: Lanes>(kept: S::V) -> S::V {
    // 2^-80, to whose last bit it is rounded.
    let least = S::splat(f32::from_bits((127 - 80) << 23));
    S::sub(S::add(kept, least), least)
}

#[inline(always)]
unsafe fn decayed_body<S: Lanes>(t: Decayed) {
    let mut j = 0;
    while j < t.d {
        let mask = S::mask((t.d - j).min(S::N));
        let (mut own, mut all) = (S::splat(1.0), S::splat(1.0));
        for i in 0..t.m {
            let at = i * LDP + j;
            let kept = settled::<S>(S::exp(S::load_m(mask, t.decay.add(i * t.ld + j))));
            S::store_m(mask, t.kept.add(at), kept);
            own = if i % STEP == 0 { kept } else { settled::<S>(S::mul(own, kept)) };
            all = settled::<S>(S::mul(all, kept));
            if !t.queries.is_null() {
                let query = S::load_m(mask, t.queries.add(at));
                S::store_m(mask, t.queries_in.add(at), S::mul(query, own));
                S::store_m(mask, t.queries_since.add(at), S::mul(query, all));
            }
            let key = S::mul(S::load_m(mask, t.keys.add(at)), S::splat(*t.beta.add(i)));
            S::store_m(mask, t.keys_in.add(at), S::mul(key, own));
            S::store_m(mask, t.keys_seen.add(at), S::mul(key, all));
            if (i + 1) % STEP == 0 || i + 1 == t.m {
                S::store_m(mask, t.blocks.add(i / STEP * t.d + j), own);
            }
        }
        S::store_m(mask, t.whole.add(j), all);
        (own, all) = (S::splat(1.0), S::splat(1.0));
        for i in (0..t.m).rev() {
            let at = i * LDP + j;
            if (i + 1) % STEP == 0 {
                own = S::splat(1.0);
            }
            let key = S::load_m(mask, t.keys.add(at));
            S::store_m(mask, t.keys_on.add(at), S::mul(key, own));
            S::store_m(mask, t.keys_until.add(at), S::mul(key, all));
            let kept = S::load_m(mask, t.kept.add(at));
            (own, all) = (settled::<S>(S::mul(own, kept)), settled::<S>(S::mul(all, kept)));
        }
        j += S::N;
    }
}

dispatch! {
    /// Multiplies keys and queries with what is kept around them.
    ///
    /// # Safety
    /// The rows exist, as do `d` numbers of each block and of the chunk.
    pub(super) unsafe fn decayed = decayed_body [] [] (t: Decayed)
}

#[inline(always)]
unsafe fn block_columns_body<S: Lanes>(d: usize, x: *const f32, to: *mut f32) {
    for i in (0..STEP).step_by(S::N) {
        let mut c = 0;
        while c < d {
            S::transpose(x.add(i * LDP + c), LDP, to.add(c * CHUNK + i), CHUNK);
            c += S::N;
        }
    }
}

dispatch! {
    /// A block's rows of `d` as columns at stride [`CHUNK`].
    ///
    /// # Safety
    /// There are [`STEP`] rows of [`LDP`]; `to` has room for `d` rounded up to whole vectors.
    pub(super) unsafe fn block_columns = block_columns_body [] [] (d: usize, x: *const f32, to: *mut f32)
}

/// A block's rows by rows of [`LDP`], and where their pairs go.
#[derive(Clone, Copy)]
pub(super) struct BlockPairs {
    /// The first row, and how many.
    pub(super) first: usize,
    pub(super) rows: usize,
    pub(super) d: usize,
    pub(super) beta: *const f32,
    pub(super) kept: *const f32,
    pub(super) keys: *const f32,
    /// Null where they are not wanted.
    pub(super) queries: *const f32,
    pub(super) system: *mut f32,
    pub(super) weights: *mut f32,
}

#[inline(always)]
unsafe fn block_pairs_body<S: Lanes>(t: BlockPairs) {
    let end = t.first + t.rows;
    let mut key = [0.0_f32; KC];
    for other in t.first..end {
        for row in other..end {
            let (at, first) = (row * LDP, row == other);
            let (mut of_key, mut of_query) = (S::splat(0.0), S::splat(0.0));
            let mut c = 0;
            while c < t.d {
                let (mask, own) = (S::mask((t.d - c).min(S::N)), key.as_mut_ptr().add(c));
                let k = S::load_m(mask, t.keys.add(at + c));
                // The other row's key, times what is kept of it up to this one.
                let past = if first { k } else { S::mul(S::load(own), S::load_m(mask, t.kept.add(at + c))) };
                S::store(own, past);
                of_key = S::fma(past, k, of_key);
                if !t.queries.is_null() {
                    of_query = S::fma(past, S::load_m(mask, t.queries.add(at + c)), of_query);
                }
                c += S::N;
            }
            if !t.queries.is_null() {
                *t.weights.add(at + other) = S::sum(of_query);
            }
            if !first {
                *t.system.add(at + other) = *t.beta.add(row) * S::sum(of_key);
            }
        }
    }
    if !t.queries.is_null() {
        for row in t.first..end {
            let above = row + 1..(t.first + 1).next_multiple_of(NR);
            std::ptr::write_bytes(t.weights.add(row * LDP + above.start), 0, above.len());
        }
    }
}

dispatch! {
    /// The system's triangle and the weights of a block's pairs, zeros above its diagonal in the columns of its panel.
    ///
    /// # Safety
    /// The rows exist, of at most [`KC`] channels, and no more than [`STEP`].
    pub(super) unsafe fn block_pairs = block_pairs_body [] [] (t: BlockPairs)
}

/// A chunk's rows by rows of [`LDP`], gradients up to their blocks' ends, and where gradients go.
#[derive(Clone, Copy)]
pub(super) struct ChannelGrads {
    pub(super) m: usize,
    pub(super) d: usize,
    pub(super) beta: *const f32,
    pub(super) kept: *const f32,
    pub(super) keys: *const f32,
    pub(super) queries: *const f32,
    /// Gradients of the output's weights and of the system.
    pub(super) d_weights: *const f32,
    pub(super) d_system: *const f32,
    /// Of queries at their block's beginning, through what lies before the block.
    pub(super) d_queries: *mut f32,
    /// The same of keys that ask what is known; behind it at their rows, through all.
    pub(super) d_asked: *mut f32,
    /// Of keys at their block's end, through what lies behind the block.
    pub(super) d_keys: *mut f32,
    /// Gradient of the chunk's sum of decays.
    pub(super) end: *const f32,
    /// Rows of the results, and their strides.
    pub(super) query: *mut f32,
    pub(super) key: *mut f32,
    pub(super) ld: usize,
    pub(super) decay: *mut f32,
    pub(super) decay_ld: usize,
}

#[inline(always)]
unsafe fn channel_grads_body<S: Lanes, const DELTA: bool>(t: ChannelGrads) {
    let mut c = 0;
    while c < t.d {
        let mask = S::mask((t.d - c).min(S::N));
        let mut behind = S::load_m(mask, t.end.add(c));
        for first in (0..t.m).step_by(STEP).rev() {
            let end = t.m.min(first + STEP);
            let mut own = S::splat(1.0);
            for i in first..end {
                let at = i * LDP + c;
                own = S::mul(own, S::load_m(mask, t.kept.add(at)));
                S::store_m(mask, t.d_queries.add(at), S::mul(own, S::load_m(mask, t.d_queries.add(at))));
                if DELTA {
                    S::store_m(mask, t.d_asked.add(at), S::mul(own, S::load_m(mask, t.d_asked.add(at))));
                }
            }
            own = S::splat(1.0);
            for other in (first..end).rev() {
                let at = other * LDP + c;
                let key = S::load_m(mask, t.keys.add(at));
                let mut sum = S::mul(own, S::load_m(mask, t.d_keys.add(at)));
                own = S::mul(own, S::load_m(mask, t.kept.add(at)));
                let mut past = S::splat(1.0);
                for i in other + 1..end {
                    let (at, pair) = (i * LDP + c, i * LDP + other);
                    past = S::mul(past, S::load_m(mask, t.kept.add(at)));
                    let (w, key) = (S::splat(*t.d_weights.add(pair)), S::mul(key, past));
                    let d_query = S::load_m(mask, t.d_queries.add(at));
                    S::store_m(mask, t.d_queries.add(at), S::fma(w, key, d_query));
                    let mut d = S::mul(w, S::load_m(mask, t.queries.add(at)));
                    if DELTA {
                        let w = *t.d_system.add(pair);
                        let d_asked = S::load_m(mask, t.d_asked.add(at));
                        S::store_m(mask, t.d_asked.add(at), S::fma(S::splat(w), key, d_asked));
                        d = S::fma(S::splat(w * *t.beta.add(i)), S::load_m(mask, t.keys.add(at)), d);
                    }
                    sum = S::fma(past, d, sum);
                }
                S::store_m(mask, t.d_keys.add(at), sum);
            }
            for i in (first..end).rev() {
                let at = i * LDP + c;
                let (query, key) = (S::load_m(mask, t.queries.add(at)), S::load_m(mask, t.keys.add(at)));
                let (d_query, d_key) =
                    (S::load_m(mask, t.d_queries.add(at)), S::load_m(mask, t.d_keys.add(at)));
                let mut d_asked = S::splat(0.0);
                if DELTA {
                    d_asked = S::mul(S::splat(*t.beta.add(i)), S::load_m(mask, t.d_asked.add(at)));
                }
                // A row's decay is in the sums of all rows from it on. What a row has of itself knows no decay.
                let of_row = S::fma(query, d_query, S::mul(key, S::sub(d_asked, d_key)));
                behind = S::add(behind, of_row);
                S::store_m(mask, t.decay.add(i * t.decay_ld + c), behind);
                let w = S::splat(*t.d_weights.add(i * LDP + i));
                S::store_m(mask, t.query.add(i * t.ld + c), S::fma(w, key, d_query));
                S::store_m(mask, t.key.add(i * t.ld + c), S::fma(w, query, S::add(d_key, d_asked)));
            }
        }
        c += S::N;
    }
}

dispatch! {
    /// Gradients of queries, keys and decays of a chunk.
    ///
    /// # Safety
    /// The rows exist; `d_asked` and `d_system` are read if `DELTA`.
    pub(super) unsafe fn channel_grads = channel_grads_body [const DELTA: bool] [DELTA] (t: ChannelGrads)
}
