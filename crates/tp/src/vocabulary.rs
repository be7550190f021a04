//! Embeddings whose vocabulary is divided over the ranks.

use std::ops::Range;
use std::sync::Arc;

use burnish_ops::{AnyTensor, BackwardFn, EmbeddingLowRank, OpsError, apply, embedding};

use crate::Tp;
use crate::handle::expect_f32;
use crate::index_select::{lines, matrix, select, shaped};
use crate::mappings::output;

/// The tokens whose ids lie in a range of the vocabulary.
///
/// ```
/// use burnish_tp::LocalIds;
/// let local = LocalIds::of(&[7, 2, 9, 4], &(4..9));
/// assert_eq!((local.rows.as_slice(), local.ids.as_slice()), (&[0, 3][..], &[3, 0][..]));
/// assert_eq!(local.mask(4), [true, false, false, true]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalIds {
    /// Which tokens they are, ascending.
    pub rows: Arc<Vec<usize>>,
    /// Their ids, counted from the start of the range.
    pub ids: Arc<Vec<u32>>,
}

impl LocalIds {
    /// The tokens of `ids` that are in `range`.
    #[must_use]
    pub fn of(ids: &[u32], range: &Range<usize>) -> Self {
        let inside = |(row, &id): (usize, &u32)| {
            let id = id as usize;
            range.contains(&id).then(|| (row, (id - range.start) as u32))
        };
        let (rows, ids) = ids.iter().enumerate().filter_map(inside).unzip();
        Self { rows: Arc::new(rows), ids: Arc::new(ids) }
    }

    /// For each of `tokens` tokens, whether its id is in the range.
    #[must_use]
    pub fn mask(&self, tokens: usize) -> Vec<bool> {
        let mut mask = vec![false; tokens];
        for &row in self.rows.iter() {
            mask[row] = true;
        }
        mask
    }
}

impl Tp {
    /// The embedding of `ids` from this rank's rows of it, `range` of the vocabulary: what other ranks have comes from
    /// them. An adapter's `a` is this rank's columns `[r, range.len()]`, its `b` whole, with a gradient that is an addend.
    ///
    /// # Shapes
    /// - ids: `[tokens]`, weight: `[range.len(), hidden]`, output: `[tokens, hidden]` in f32, the same on every rank.
    ///   Forward: one all-reduce of the output.
    ///
    /// # Errors
    /// If an id is outside `0..vocab`, or shapes or dtypes do not fit.
    pub fn embedding(
        &self,
        ids: &Arc<Vec<u32>>,
        weight: &AnyTensor,
        low_rank: Option<&EmbeddingLowRank>,
        range: &Range<usize>,
        vocab: usize,
        what: &str,
    ) -> Result<AnyTensor, OpsError> {
        const OP: &str = "embedding";
        let &[rows, hidden] = weight.shape().as_slice() else {
            return Err(OpsError::Rank { expected: 2, shape: weight.shape() });
        };
        if rows != range.len() {
            let (what, got, expected) = ("weight", weight.shape(), vec![range.len(), hidden]);
            return Err(OpsError::Shape { op: OP, what, got, expected });
        }
        if let Some(&got) = ids.iter().find(|&&id| id as usize >= vocab) {
            return Err(OpsError::Index { op: OP, got: got as usize, limit: vocab });
        }
        if self.size() == 1 {
            return embedding(ids, weight, low_rank);
        }
        let local = LocalIds::of(ids, range);
        let tokens = ids.len();
        if local.rows.is_empty() {
            // its parameters stay on the tape, so that what follows is recorded on every rank alike
            let mut inputs = vec![weight.clone()];
            if let Some(low) = low_rank {
                inputs.extend([low.a.clone(), low.b.clone()]);
                inputs.extend(low.magnitude.iter().map(|m| m.value.clone()));
            }
            return self.reduce_from_tp(&self.zeros_like_output(&inputs, &[tokens, hidden])?, what);
        }
        let found = embedding(&local.ids, weight, low_rank)?;
        expect_f32(OP, "the local rows", &found)?;
        apply("vocabulary", std::slice::from_ref(&found), |plain, _| {
            let all = if local.rows.len() == tokens {
                plain[0].clone()
            } else {
                among(&plain[0], &local.rows, tokens, hidden)
            };
            let sum = self.summed(&all, &output(what));
            let own = Arc::clone(&local.rows);
            let backward = move |upstream: AnyTensor| vec![Some(rows_of(upstream, &own))];
            Ok((sum, Box::new(backward) as BackwardFn))
        })
    }
}

/// The rows `rows` of `tokens`, of which `found` has the values; the others are zeros.
fn among(found: &AnyTensor, rows: &[usize], tokens: usize, hidden: usize) -> AnyTensor {
    let shape = [tokens, hidden];
    if !found.is_on_host() {
        let lines = lines(tokens, rows.iter().enumerate().map(|(at, &row)| (row, at)));
        return shaped(select(vec![matrix(found, hidden)], 0, &lines), &shape);
    }
    let mut all = vec![0.0; tokens * hidden];
    let values = found.elements::<f32>().expect("invariant: an embedding's output in f32");
    for (&row, values) in rows.iter().zip(values.chunks_exact(hidden.max(1))) {
        all[row * hidden..(row + 1) * hidden].copy_from_slice(values);
    }
    AnyTensor::from_elements(all, &shape, &found.device())
}

/// Some rows of a matrix of f32.
fn rows_of(x: AnyTensor, rows: &[usize]) -> AnyTensor {
    let shape = x.shape();
    if rows.len() == shape[0] {
        return x;
    }
    let (hidden, device) = (shape[1], x.device());
    if !x.is_on_host() {
        let lines: Vec<Option<usize>> = rows.iter().copied().map(Some).collect();
        return shaped(select(vec![matrix(&x, hidden)], 0, &lines), &[rows.len(), hidden]);
    }
    let values = x.elements::<f32>().expect("invariant: the gradient of an output in f32");
    let mut out = Vec::with_capacity(rows.len() * hidden);
    for &row in rows {
        out.extend_from_slice(&values[row * hidden..(row + 1) * hidden]);
    }
    AnyTensor::from_elements(out, &[rows.len(), hidden], &device)
}
