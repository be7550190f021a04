//! Records of chunks whose channels have decays, one for each chunk and head, as walks read them.
//!
//! The decay between two tokens is a product of factors of at most one: nothing overflows however strong decays are.

use cubecl_core as cubecl;
use cubecl_core::prelude::*;

use super::records::{Part, record_of};
use super::tile::{self, BESIDE, Four, SIDE, UNITS, bring_keys};
use super::{Form, Numbers};

/// A chunk and a head for each cube.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn put_decayed(
    qkv: &[f32],
    decays: &[f32],
    betas: &[f32],
    words: &[u32],
    records: &mut [f32],
    numbers: Numbers,
    #[comptime] form: Form,
) {
    let (chunk, key_dim) = comptime!((form.chunk, form.key_dim));
    let (fours, pitch) = comptime!((form.fours(), form.pitch()));
    let (chunk_at, head) = (CUBE_POS_X as usize, CUBE_POS_Y as usize);
    let row = words[numbers.order + 2 * chunk_at] as usize;
    let count = words[numbers.order + 2 * chunk_at + 1] as usize;
    let unit = UNIT_POS as usize;
    let (x, y) = (unit % BESIDE, unit / BESIDE);
    let (heads, width) = (numbers.heads, numbers.width);
    let record = record_of(head, chunk_at, &numbers, form);

    let mut q = Shared::<[Four]>::new_slice(comptime!(form.chunk * form.pitch()));
    let mut k = Shared::<[Four]>::new_slice(comptime!(form.chunk * form.pitch()));
    let mut kept = Shared::<[Four]>::new_slice(comptime!(form.chunk * form.pitch()));
    let mut learned = Shared::<[f32]>::new_slice(comptime!(form.chunk));
    // Parts of pairs: of queries and keys, and of keys with each other.
    let mut sums = Shared::<[f32]>::new_slice(comptime!(2 * form.chunk * form.chunk * BESIDE));

    let first = row * width + head * key_dim;
    bring_keys(qkv, first + numbers.k, width, count, &mut k, form);
    bring_keys(qkv, first + numbers.q, width, count, &mut q, form);
    let stride = heads * key_dim;
    bring_keys(decays, row * stride + head * key_dim, stride, count, &mut kept, form);
    if unit < chunk {
        let mut beta = 0.0f32;
        if unit < count {
            beta = betas[(row + unit) * heads + head];
        }
        learned[unit] = beta;
        records[record + comptime!(Part::Betas.place(form)) + unit] = beta;
    }
    sync_cube();
    // Decays become what is kept, of tokens that there are not all.
    let mut four = unit;
    while four < fours {
        let column = four * 4;
        let mut since = Four::new(1.0);
        for token in 0..chunk {
            let at = token * pitch + four;
            let own = kept[at].exp();
            kept[at] = own;
            since *= own;
            let to = token * key_dim;
            let (queries, keys) = (
                record + comptime!(Part::QueriesSince.place(form)),
                record + comptime!(Part::KeysSince.place(form)),
            );
            tile::put_four(records, queries + to, column, q[at] * since, key_dim);
            tile::put_four(records, keys + to, column, k[at] * since, key_dim);
        }
        tile::put_four(records, record + comptime!(Part::Whole.place(form)), column, since, key_dim);
        let mut until = Four::new(1.0);
        for behind in 0..chunk {
            let token = comptime!(form.chunk - 1) - behind;
            let at = token * pitch + four;
            let to = record + comptime!(Part::KeysUntil.place(form)) + token * key_dim;
            tile::put_four(records, to, column, k[at] * until, key_dim);
            until *= kept[at];
        }
        four += UNITS;
    }
    sync_cube();

    // A unit has an earlier token, and every eighth four of its channels.
    if y < chunk {
        let mut of_queries = Array::<f32>::new(chunk);
        let mut of_keys = Array::<f32>::new(chunk);
        #[unroll]
        for token in 0..chunk {
            of_queries[token] = 0.0f32;
            of_keys[token] = 0.0f32;
        }
        let mut four = x;
        while four < fours {
            let mut key = k[y * pitch + four];
            #[unroll]
            for token in 0..chunk {
                let at = comptime!(token * form.pitch()) + four;
                if token > y {
                    key *= kept[at];
                }
                if token >= y {
                    let (by_query, by_key) = (key * q[at], key * k[at]);
                    #[unroll]
                    for i in 0..4usize {
                        of_queries[token] += by_query.extract(i);
                        of_keys[token] += by_key.extract(i);
                    }
                }
            }
            four += BESIDE;
        }
        #[unroll]
        for token in 0..chunk {
            let pair = (token * chunk + y) * BESIDE + x;
            sums[pair] = of_queries[token];
            sums[comptime!(form.chunk * form.chunk * BESIDE) + pair] = of_keys[token];
        }
    }
    sync_cube();
    #[unroll]
    for turn in 0..comptime!((form.chunk * form.chunk).div_ceil(UNITS)) {
        let pair = turn * UNITS + unit;
        if pair < comptime!(form.chunk * form.chunk) {
            let (token, other) = (pair / chunk, pair % chunk);
            let mut score = 0.0f32;
            let mut below = 0.0f32;
            if other <= token {
                #[unroll]
                for i in 0..BESIDE {
                    score += sums[pair * BESIDE + i];
                    below += sums[(comptime!(form.chunk * form.chunk) + pair) * BESIDE + i];
                }
                below *= learned[token];
                if other == token {
                    below = 0.0f32;
                }
            }
            records[record + comptime!(Part::Scores.place(form)) + pair] = score;
            records[record + comptime!(Part::System.place(form)) + pair] = below;
        }
    }
}

impl Form {
    /// Bytes of shared memory of this kernel.
    pub(super) fn decayed_bytes(self) -> usize {
        3 * self.chunk * self.pitch() * 16 + 4 * self.chunk + 8 * self.chunk * self.chunk * BESIDE
    }
}

const _: () = assert!(SIDE >= 16, "a chunk of channels has no more tokens than a cube has rows of units");
