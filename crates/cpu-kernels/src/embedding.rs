//! Token embedding: rows of a table, and the scatter-add of their gradients.

use crate::linear::Weight;
use crate::scratch::{Ptr, uninit};
use crate::simd::{Element, Isa, Lanes, dispatch, isa};
use crate::tasks::{SLICE, tasks};

/// Rows `ids` of the table `[vocab, dim]`, widened: `[ids.len(), dim]`.
///
/// # Panics
/// When the table is not whole rows of `dim`, or an id has no row in it.
#[must_use]
pub fn embedding_forward(ids: &[u32], weight: Weight<'_>, dim: usize) -> Vec<f32> {
    assert!(dim > 0 && weight.len().is_multiple_of(dim), "embedding: `weight` is [vocab, dim]");
    let vocab = weight.len() / dim;
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
        panic!("embedding: id {id} is outside the vocabulary of {vocab}");
    }
    let isa = isa();
    match weight {
        Weight::F32(w) => gather(isa, ids, w, dim),
        Weight::Bf16(w) => gather(isa, ids, w, dim),
        Weight::F16(w) => gather(isa, ids, w, dim),
        Weight::Packed(_) => {
            let mut out = vec![0.0; ids.len() * dim];
            for (row, &id) in out.chunks_exact_mut(dim).zip(ids) {
                // SAFETY: a row of the table, and as long a one to write to.
                unsafe { weight.widen(isa, id as usize * dim, dim, row.as_mut_ptr()) };
            }
            out
        }
    }
}

fn gather<E: Element>(isa: Isa, ids: &[u32], table: &[E], dim: usize) -> Vec<f32> {
    // SAFETY: every row is written below.
    let mut out = unsafe { uninit(ids.len() * dim) };
    let to = Ptr(out.as_mut_ptr());
    let rows = SLICE.div_ceil(dim);
    tasks(ids.len().div_ceil(rows), |task| {
        for (i, &id) in ids.iter().enumerate().skip(task * rows).take(rows) {
            // SAFETY: ids were checked; the row is this task's.
            unsafe { widen_row(isa, table.as_ptr().add(id as usize * dim), dim, to.at(i * dim)) };
        }
    });
    out
}

#[allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]
#[inline(always)]
unsafe fn widen_row_body<S: Lanes, E: Element>(x: *const E, n: usize, y: *mut f32) {
    let mut j = 0;
    while j + S::N <= n {
        S::store(y.add(j), E::load::<S>(x.add(j)));
        j += S::N;
    }
    for j in j..n {
        *y.add(j) = (*x.add(j)).widen();
    }
}

dispatch! {
    /// Widens `n` values.
    ///
    /// # Safety
    /// `x` and `y` hold `n` values.
    pub(crate) unsafe fn widen_row = widen_row_body [E: Element] [E] (x: *const E, n: usize, y: *mut f32)
}

/// The gradient of [`embedding_forward`]'s table, `[vocab, dim]`, from `dy` `[ids.len(), dim]`: each row the sum
/// of its tokens' gradients, in the tokens' order.
///
/// # Panics
/// When `dy` is not `[ids.len(), dim]`, or an id is not below `vocab`.
#[must_use]
pub fn embedding_backward(ids: &[u32], dy: &[f32], vocab: usize, dim: usize) -> Vec<f32> {
    assert!(dim > 0, "embedding: `dim` is 0");
    assert_eq!(dy.len(), ids.len() * dim, "embedding: `dy` is [tokens, dim]");
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocab) {
        panic!("embedding: id {id} is outside the vocabulary of {vocab}");
    }
    let isa = isa();
    let mut grad = vec![0.0; vocab * dim];
    let to = Ptr(grad.as_mut_ptr());
    // Tokens by id, each id's in order: every row of the gradient then belongs to one task.
    let mut order: Vec<u32> = (0..ids.len() as u32).collect();
    order.sort_by_key(|&t| ids[t as usize]);
    let starts: Vec<usize> = (0..order.len())
        .filter(|&i| i == 0 || ids[order[i] as usize] != ids[order[i - 1] as usize])
        .chain([order.len()])
        .collect();
    let rows = SLICE.div_ceil(dim);
    let runs = starts.len() - 1;
    tasks(runs.div_ceil(rows), |task| {
        for run in task * rows..runs.min((task + 1) * rows) {
            for &token in &order[starts[run]..starts[run + 1]] {
                let id = ids[token as usize] as usize;
                // SAFETY: ids were checked; the row is this task's.
                unsafe { add_row(isa, dy.as_ptr().add(token as usize * dim), dim, to.at(id * dim)) };
            }
        }
    });
    grad
}

#[allow(unsafe_op_in_unsafe_fn, reason = "kernel bodies are one raw operation after another")]
#[inline(always)]
unsafe fn add_row_body<S: Lanes>(x: *const f32, n: usize, y: *mut f32) {
    let mut j = 0;
    while j < n {
        let mask = S::mask((n - j).min(S::N));
        S::store_m(mask, y.add(j), S::add(S::load_m(mask, y.add(j)), S::load_m(mask, x.add(j))));
        j += S::N;
    }
}

dispatch! {
    /// `y += x` over `n` values.
    ///
    /// # Safety
    /// `x` and `y` hold `n` values.
    pub(crate) unsafe fn add_row = add_row_body [] [] (x: *const f32, n: usize, y: *mut f32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::with_isa;
    use half::{bf16, f16};

    #[test]
    fn rows_and_their_gradients() {
        let (vocab, dim) = (50, 37);
        let table: Vec<f32> = (0..vocab * dim).map(|i| (i as f32).sin()).collect();
        let narrow: Vec<bf16> = table.iter().map(|&x| bf16::from_f32(x)).collect();
        let half: Vec<f16> = table.iter().map(|&x| f16::from_f32(x)).collect();
        let ids: Vec<u32> = (0..2000_u32).map(|i| i * i % 47).collect();
        let dy: Vec<f32> = (0..ids.len() * dim).map(|i| (i as f32 * 0.7).cos()).collect();
        let mut want = vec![0.0; vocab * dim];
        for (t, &id) in ids.iter().enumerate() {
            for c in 0..dim {
                want[id as usize * dim + c] += dy[t * dim + c];
            }
        }
        for &isa in Isa::available() {
            with_isa(isa, || {
                let y = embedding_forward(&ids, Weight::F32(&table), dim);
                let b = embedding_forward(&ids, Weight::Bf16(&narrow), dim);
                let h = embedding_forward(&ids, Weight::F16(&half), dim);
                for (i, y) in y.iter().enumerate() {
                    let at = ids[i / dim] as usize * dim + i % dim;
                    assert_eq!((*y, b[i], h[i]), (table[at], narrow[at].to_f32(), half[at].to_f32()));
                }
                // In the tokens' order the additions are the same, so the bits are.
                assert_eq!(embedding_backward(&ids, &dy, vocab, dim), want);
            });
        }
    }

    #[test]
    fn nothing_in_nothing_out() {
        assert!(embedding_forward(&[], Weight::F32(&[1.0, 2.0]), 2).is_empty());
        assert_eq!(embedding_backward(&[], &[], 2, 2), vec![0.0; 4]);
    }

    #[test]
    #[should_panic(expected = "id 3 is outside the vocabulary of 3")]
    fn an_unknown_id_is_named() {
        let _ = embedding_forward(&[0, 3], Weight::F32(&[0.0; 6]), 2);
    }
}
