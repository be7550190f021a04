//! Recurrences over tokens that are computed chunk by chunk: each text from nothing, or from what the one that it continues
//! left; generation keeps a state of each sequence, which does not grow.

use std::collections::BTreeMap;
use std::ops::Range;

use burn::tensor::{DType, Device, Tensor};
use burnish_ops::{AnyTensor, ConvCache, OpsError, short_conv};

/// Tokens of a chunk.
pub(crate) const CHUNK: usize = 64;

/// What a recurrence reads of some tokens, by heads.
pub(crate) trait Recurrence: Sized {
    /// The same of these tokens alone.
    fn part(&self, rows: &Range<usize>) -> Self;

    /// What a chunk gives `[heads, tokens, width]`, and the state behind it.
    fn chunk(self, state: Tensor<3>) -> Result<(Tensor<3>, Tensor<3>), OpsError>;

    /// The state before a text's first token.
    fn empty_state(&self) -> Tensor<3>;

    /// Heads, tokens and the width of what is given, and where it lies.
    fn sizes(&self) -> ([usize; 3], Device);

    /// The whole text of these tokens, and the state behind it.
    fn walk(&self, rows: &Range<usize>, state: Tensor<3>) -> Result<(Vec<Tensor<3>>, Tensor<3>), OpsError> {
        let (mut state, mut all) = (state, Vec::new());
        for start in rows.clone().step_by(CHUNK) {
            let (out, next) = self.part(&(start..rows.end.min(start + CHUNK))).chunk(state)?;
            all.push(out);
            state = next;
        }
        Ok((all, state))
    }

    /// What all texts give, each from nothing or from what the one that it continues left (`parents`, as in attention).
    fn over(&self, documents: &[Range<usize>], parents: &[Option<usize>]) -> Result<Tensor<3>, OpsError> {
        let mut left = BTreeMap::new();
        let mut texts = Vec::with_capacity(documents.len());
        for (at, rows) in documents.iter().enumerate() {
            let before = parents.get(at).copied().flatten().and_then(|parent| left.get(&parent).cloned());
            let (parts, state) = self.walk(rows, before.unwrap_or_else(|| self.empty_state()))?;
            texts.push((rows.clone(), parts));
            if parents.contains(&Some(at)) {
                left.insert(at, state);
            }
        }
        Ok(in_rows(texts, self.sizes()))
    }
}

/// The outputs of texts in the order of their rows; rows of no text are zeros.
fn in_rows(
    mut texts: Vec<(Range<usize>, Vec<Tensor<3>>)>,
    ([heads, tokens, width], device): ([usize; 3], Device),
) -> Tensor<3> {
    texts.sort_by_key(|(rows, _)| rows.start);
    let zeros = |rows: usize| Tensor::zeros([heads, rows, width], (&device, DType::F32));
    let (mut all, mut at) = (Vec::new(), 0);
    for (rows, parts) in texts {
        if rows.start > at {
            all.push(zeros(rows.start - at));
        }
        all.extend(parts);
        at = at.max(rows.end);
    }
    if at < tokens {
        all.push(zeros(tokens - at));
    }
    Tensor::cat(all, 1)
}

/// What is convolved with nothing before and behind it.
fn bare(x: Tensor<2>) -> AnyTensor {
    let ones = Tensor::ones(x.shape(), (&x.device(), x.dtype()));
    AnyTensor::new(Tensor::cat(vec![ones.clone(), ones, x], 1))
}

/// The short convolution of each channel, ungated.
///
/// # Shapes
/// - x and output: `[tokens, channels]`, kernel: `[channels, 1, taps]`
pub(crate) fn convolved(
    x: Tensor<2>,
    (kernel, bias): (&AnyTensor, Option<&AnyTensor>),
    documents: &[Range<usize>],
    parents: &[Option<usize>],
) -> Result<Tensor<2>, OpsError> {
    short_conv(&bare(x), kernel, bias, documents, parents)?.rank::<2>()
}

/// `ln(1 + exp(x))`; beyond 20 the line that it comes near to, as torch has it.
pub(crate) fn softplus(x: Tensor<2>) -> Tensor<2> {
    let soft = x.clone().clamp_max(20.0).exp().log1p();
    soft.mask_where(x.clone().greater_elem(20.0), x)
}

/// What a recurrence and the convolution before it remember of sequences being generated.
pub(crate) struct StateCache {
    convolved: ConvCache,
    /// Of each sequence; none before its first token.
    states: Vec<Option<Tensor<3>>>,
}

impl StateCache {
    /// Of a convolution with so many taps.
    pub(crate) fn new(taps: usize, sequences: usize) -> Self {
        Self { convolved: ConvCache::new(taps, sequences), states: vec![None; sequences] }
    }

    pub(crate) fn bytes(&self) -> usize {
        let of = |state: &Tensor<3>| state.dtype().size() * state.shape().num_elements();
        self.convolved.bytes() + self.states.iter().flatten().map(of).sum::<usize>()
    }

    pub(crate) fn reorder(&mut self, order: &[usize]) -> Result<(), OpsError> {
        self.convolved.reorder(order)?;
        self.states = order.iter().map(|&o| self.states[o].clone()).collect();
        Ok(())
    }

    pub(crate) fn append(&mut self, more: Self) {
        self.convolved.append(more.convolved);
        self.states.extend(more.states);
    }

    pub(crate) fn split_off(&mut self, at: usize) -> Self {
        Self { convolved: self.convolved.split_off(at), states: self.states.split_off(at) }
    }

    /// [`convolved`] of each sequence's new rows behind those before; plain tensors.
    pub(crate) fn convolved(
        &mut self,
        x: Tensor<2>,
        (kernel, bias): (&AnyTensor, Option<&AnyTensor>),
        documents: &[Range<usize>],
    ) -> Result<Tensor<2>, OpsError> {
        self.convolved.run(&bare(x), kernel, bias, documents)?.rank::<2>()
    }

    /// [`Recurrence::over`] of each sequence's new rows behind what it has said; plain tensors.
    pub(crate) fn over(
        &mut self,
        heads: &impl Recurrence,
        documents: &[Range<usize>],
    ) -> Result<Tensor<3>, OpsError> {
        let mut texts = Vec::with_capacity(documents.len());
        for (rows, held) in documents.iter().zip(&mut self.states) {
            let (parts, state) = heads.walk(rows, held.take().unwrap_or_else(|| heads.empty_state()))?;
            *held = Some(state);
            texts.push((rows.clone(), parts));
        }
        Ok(in_rows(texts, heads.sizes()))
    }
}
