//! Linear attention forward.

use super::channel_rows::exponentials;
use super::chunk::{
    Chunk, ChunkHead, Heads, Room, chunks, cut, load_state, runs, state_len, state_row, store_state, total,
};
use super::product::{Second, Target, lower, product};
use super::shape::{Decays, Family, LinearAttention};
use super::token::{FEW, Token, token};
use crate::micro::{KC, LDP};
use crate::scratch::{Ptr, scratch};
use crate::simd::isa;
use crate::tasks::few_tasks;

/// Output `[tokens, heads * value_dim]`; rows of no document are zeros.
///
/// `states` is where generation keeps them, `[documents, heads, key_dim, value_dim]`: on entry the state before each
/// document's first row, afterwards the one behind its last. Without, documents begin with zeros or what `parents` say.
/// The result does not depend on the number of threads.
///
/// One task per head, or heads that share keys, and documents that continue each other. A few rows, as when generating, go token by token.
///
/// ```
/// use burnish_cpu_kernels::{Decays, LinearAttention, LinearAttentionShape, linear_attention_forward};
///
/// let shape = LinearAttentionShape { key_heads: 1, heads: 1, key_dim: 1, value_dim: 1, columns: [0, 1, 2], width: 3,
///     delta_rule: false, decays: Decays::OfHeads, documents: &[0..2], parents: &[] };
/// let call = LinearAttention { shape, qkv: &[1.0, 1.0, 4.0, 1.0, 1.0, 3.0], decay: &[0.0; 2], beta: &[1.0; 2] };
/// assert_eq!(linear_attention_forward(&call, None), [4.0, 7.0]);
/// // With the delta rule the second token replaces what the first one said of the same key.
/// let call = LinearAttention { shape: LinearAttentionShape { delta_rule: true, ..shape }, ..call };
/// assert_eq!(linear_attention_forward(&call, None), [4.0, 3.0]);
/// ```
///
/// # Panics
/// If lengths, heads or documents disagree, or there are both `states` and parents.
#[must_use]
pub fn linear_attention_forward(call: &LinearAttention<'_>, states: Option<&mut [f32]>) -> Vec<f32> {
    let (tokens, isa, s) = (call.check(), isa(), &call.shape);
    let size = s.key_dim * s.value_dim;
    if let Some(states) = &states {
        assert!(
            s.parents.iter().all(Option::is_none),
            "linear attention: documents continue others and kept states, expected one of both"
        );
        assert!(
            states.len() == s.documents.len() * s.heads * size,
            "linear attention: states of {} elements, expected {} documents of {} heads of {size}",
            states.len(),
            s.documents.len(),
            s.heads
        );
    }
    let mut out = vec![0.0; tokens * s.heads * s.value_dim];
    let to = Ptr(out.as_mut_ptr());
    let states = states.map(|states| Ptr(states.as_mut_ptr()));
    let families = s.families();
    // The bits of a head do not depend on the others of its task.
    let runs = runs(s, families.len() * s.key_heads, 4 * rayon::current_num_threads());
    let each = s.key_heads * runs;
    few_tasks(families.len() * each, tokens * s.heads * size, |task| {
        let (family, task) = (&families[task / each], task % each);
        let heads = Heads::of_run(isa, call, task / runs, task % runs, runs);
        // SAFETY: `check` and the assertions above compared the lengths; a task has its heads of its documents' rows and
        // states to itself.
        unsafe { walk(&heads, family, states, to) };
    });
    out
}

/// Outputs of some heads of documents that continue each other.
///
/// # Safety
/// `out` is the call's output and `states` its states, of which nobody else has the heads' part of these documents.
unsafe fn walk(heads: &Heads<'_>, family: &Family, states: Option<Ptr>, out: Ptr) {
    let s = heads.shape();
    let size = s.key_dim * s.value_dim;
    let stored = |document: usize, head: usize| {
        // SAFETY: the document has its states.
        states.map(|states| unsafe { states.at((document * s.heads + head) * size) })
    };
    if let ([member], Some(_)) = (family.members.as_slice(), states)
        && member.rows.len() <= FEW
    {
        for (head, state) in heads.heads().filter_map(|head| Some((head, stored(member.document, head)?))) {
            // SAFETY: as the caller's.
            unsafe { few(heads, head, member.rows.start, member.rows.len(), state, s.value_dim, out) };
        }
        return;
    }
    let sizes = [heads.count * state_len(s), heads.count * family.places * size];
    let room = Room::sizes(s);
    scratch(total(&sizes) + total(&room), |mut at| {
        let ([work, places], room) = (cut(&mut at, sizes), Room::new(cut(&mut at, room)));
        // Each head with its state in work.
        let each = || heads.heads().enumerate().map(|(i, head)| (head, work.wrapping_add(i * state_len(s))));
        for member in &family.members {
            let place = |place: Option<usize>, head: usize| match place {
                Some(place) => Some(places.wrapping_add((place * heads.count + head - heads.first) * size)),
                None => stored(member.document, head),
            };
            let mut before = states.is_some() || member.parent.is_some();
            let wanted = states.is_some() || member.kept.is_some();
            // SAFETY: states have their sizes, and parents left theirs; the rows are the caller's.
            unsafe {
                for (head, state) in each() {
                    if let Some(from) = place(member.parent, head) {
                        load_state(heads, from, state);
                    }
                }
                for (row, m) in chunks(&member.rows) {
                    let wanted = wanted || row + m < member.rows.end;
                    if m <= FEW && before {
                        each().for_each(|(head, state)| few(heads, head, row, m, state, state_row(s), out));
                    } else {
                        let chunk = Chunk::load(*heads, row, m, room, true);
                        each()
                            .for_each(|(head, state)| outputs(&chunk.head(head), state, before, wanted, out));
                    }
                    before = true;
                }
                for (head, state) in each() {
                    match place(member.kept, head) {
                        Some(to) if before => store_state(heads, state, to),
                        Some(to) => std::ptr::write_bytes(to, 0, size),
                        None => {}
                    }
                }
            }
        }
    });
}

/// A chunk's outputs of a head, and the state behind it where that is `wanted`.
///
/// # Safety
/// As [`walk`]; `state`, by rows of [`state_row`], is the one before the chunk, or anything unless `before`.
unsafe fn outputs(head: &ChunkHead<'_>, state: *mut f32, before: bool, wanted: bool, out: Ptr) {
    let Chunk { heads, row, m, room: r } = head.chunk;
    let (s, isa, m) = (heads.shape(), heads.isa, *m);
    // SAFETY: the caller's rows and state; the room is the task's.
    unsafe {
        head.load(true, std::ptr::null_mut());
        head.learn(before.then_some(state));
        let at = out.at(heads.scalar(*row, head.head) * s.value_dim);
        let to = Target { at, ld: s.heads * s.value_dim, alpha: 1.0, add: false };
        if before {
            let state = Second::rows(state, state_row(s));
            product(isa, [m, s.value_dim, s.key_dim], r.queries_since, state, to);
        }
        let to = Target { add: before, ..to };
        lower(isa, m, s.value_dim, r.weights(), Second::rows(r.new, LDP), to);
        if wanted {
            head.carry(state, before);
        }
    }
}

/// `m` rows of a head token by token; `state` has `ld` between its rows.
///
/// # Safety
/// As [`walk`].
unsafe fn few(heads: &Heads<'_>, head: usize, row: usize, m: usize, state: *mut f32, ld: usize, out: Ptr) {
    let s = heads.shape();
    for row in row..row + m {
        let at = heads.scalar(row, head);
        // SAFETY: the caller's, and a key has at most `KC` channels.
        unsafe {
            let step = |keep: *const f32| Token {
                key_dim: s.key_dim,
                value_dim: s.value_dim,
                delta_rule: s.delta_rule,
                query: heads.query(row),
                key: heads.key(row),
                value: heads.value(row, head),
                keep,
                beta: heads.call.beta[at],
                state,
                ld,
                out: out.at(at * s.value_dim),
            };
            match s.decays {
                Decays::OfHeads => token::<false>(heads.isa, step(&heads.call.decay[at].exp())),
                Decays::OfChannels => {
                    let mut keep = [0.0_f32; KC];
                    exponentials(heads.isa, s.key_dim, heads.decays(row, head), keep.as_mut_ptr());
                    token::<true>(heads.isa, step(keep.as_ptr()));
                }
            }
        }
    }
}
