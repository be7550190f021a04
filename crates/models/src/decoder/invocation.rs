//! `Invocation`: the tokens that an adapter waits for (aLoRA; Greenewald et al. 2025, arXiv:2504.12397).
//!
//! It acts from the first of them on where they stand last in a text, and nowhere in a text without them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use burn::tensor::Device;
use burnish_ops::AnyTensor;

use crate::decoder::Tokens;
use crate::{Decoder, ForwardContext};

/// Tokens, at least one.
#[derive(Clone, Debug)]
pub(crate) struct Invocation(pub(crate) Arc<Vec<u32>>);

/// A micro-batch, and on which of its tokens the adapter acts.
pub(crate) struct Invoked {
    /// The micro-batch, where texts that begin with the same tokens had to be taken apart: the adapter acts on them in one
    /// text and not in another.
    pub(crate) apart: Option<Apart>,
    /// For each token.
    pub(crate) acts: Vec<bool>,
}

/// A micro-batch of which some texts no longer share their beginning.
pub(crate) struct Apart {
    pub(crate) tokens: Tokens,
    /// Where each token of the micro-batch that was given is now.
    pub(crate) given: Arc<Vec<usize>>,
}

impl Invocation {
    /// Where the adapter begins to act in a text.
    pub(crate) fn begins(&self, text: &[u32]) -> Option<usize> {
        text.windows(self.0.len()).rposition(|tokens| tokens == self.0.as_slice())
    }

    /// The tokens of a micro-batch on which the adapter acts. What texts begin with together follows the first of them.
    pub(crate) fn among(&self, tokens: &Tokens) -> Invoked {
        let parent = |i: usize| tokens.parents.get(i).copied().flatten();
        let of = |i: usize| &tokens.ids[tokens.documents[i].clone()];
        let (mut begins, mut shared) = (vec![0; tokens.documents.len()], BTreeMap::new());
        let mut apart = vec![false; tokens.documents.len()];
        for i in 0..tokens.documents.len() {
            let before = parent(i).map_or(&[][..], of);
            let text = [before, of(i)].concat();
            begins[i] = self.begins(&text).unwrap_or(text.len());
            if let Some(p) = parent(i) {
                let own = begins[i].min(before.len());
                apart[i] = *shared.entry(p).or_insert(own) != own;
            }
        }
        for (&p, &first) in &shared {
            begins[p] = first;
        }
        if apart.contains(&true) {
            return self.taken_apart(tokens, &begins, &apart);
        }
        let mut acts = vec![false; tokens.ids.len()];
        for (i, document) in tokens.documents.iter().enumerate() {
            let before = parent(i).map_or(0, |p| tokens.documents[p].len());
            for (at, acts) in acts[document.clone()].iter_mut().enumerate() {
                *acts = before + at >= begins[i];
            }
        }
        Invoked { apart: None, acts }
    }

    /// The micro-batch with a beginning of its own for each text that is `apart`.
    fn taken_apart(&self, tokens: &Tokens, begins: &[usize], apart: &[bool]) -> Invoked {
        let (mut order, mut acts) = (Vec::<usize>::new(), Vec::new());
        let mut given = vec![0; tokens.ids.len()];
        let mut keep = |rows: Range<usize>, order: &mut Vec<usize>| {
            given[rows.clone()].iter_mut().zip(order.len()..).for_each(|(to, at)| *to = at);
            order.extend(rows);
        };
        let (mut documents, mut parents) = (Vec::new(), Vec::new());
        let mut seen = 0;
        for (i, document) in tokens.documents.iter().enumerate() {
            // What is in no document.
            keep(seen..document.start.max(seen), &mut order);
            acts.resize(order.len(), false);
            seen = seen.max(document.end);
            let parent = tokens.parents.get(i).copied().flatten();
            let before = parent.map_or(0..0, |p| tokens.documents[p].clone());
            let (start, length) = (order.len(), before.len());
            let mut first = length;
            if apart[i] {
                order.extend(before);
                first = 0;
            }
            keep(document.clone(), &mut order);
            acts.extend((first..length + document.len()).map(|at| at >= begins[i]));
            documents.push(start..order.len());
            parents.push(parent.filter(|_| !apart[i]));
        }
        keep(seen..tokens.ids.len(), &mut order);
        acts.resize(order.len(), false);
        let tokens = Tokens {
            ids: Arc::new(order.iter().map(|&at| tokens.ids[at]).collect()),
            positions: Arc::new(order.iter().map(|&at| tokens.positions[at]).collect()),
            documents: documents.into(),
            parents: Arc::new(parents),
            rows: Arc::new(order.iter().filter_map(|&at| tokens.rows.get(at).copied()).collect()),
        };
        Invoked { apart: Some(Apart { tokens, given: Arc::new(given) }), acts }
    }
}

/// What multiplies an adapter's part of each token, `[tokens, 1]`; `None` where it acts on all of them.
pub(crate) fn acting(acts: &[bool], device: &Device) -> Option<AnyTensor> {
    let factors = || acts.iter().map(|&acts| f32::from(u8::from(acts))).collect();
    acts.contains(&false).then(|| AnyTensor::from_elements(factors(), &[acts.len(), 1], device))
}

impl Decoder {
    /// What the adapter waits for in a pass.
    pub(crate) fn waits_for(&self, pass: &ForwardContext) -> Option<&Invocation> {
        self.invocation.as_ref().filter(|_| pass.adapters())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invocation() -> Invocation {
        Invocation(Arc::new(vec![7, 8]))
    }

    #[test]
    fn the_last_of_several_counts_and_documents_are_texts_of_their_own() {
        let tokens = Tokens::from_sequences(&[&[7, 8, 1, 7, 8, 2][..], &[7, 7], &[7, 8], &[8]]);
        let invoked = invocation().among(&tokens);
        let want = [0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 0].map(|acts| acts == 1);
        assert_eq!(invoked.acts, want);
        assert!(invoked.apart.is_none());
    }

    /// A prompt of three answers: the second one has the tokens again, so that the prompt is without the adapter there.
    #[test]
    fn texts_that_begin_alike_are_taken_apart_where_the_adapter_acts_otherwise() {
        let mut tokens = Tokens::from_sequences(&[&[3, 7, 8, 4][..], &[5, 6], &[7, 8], &[9]]);
        tokens.positions = Arc::new(vec![0, 1, 2, 3, 4, 5, 4, 5, 4]);
        tokens.parents = Arc::new(vec![None, Some(0), Some(0), Some(0)]);
        let invoked = invocation().among(&tokens);
        let apart = invoked.apart.expect("the third text is apart");
        assert_eq!(*apart.tokens.ids, [3, 7, 8, 4, 5, 6, 3, 7, 8, 4, 7, 8, 9]);
        assert_eq!(*apart.tokens.positions, [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 4]);
        assert_eq!(*apart.tokens.documents, [0..4, 4..6, 6..12, 12..13]);
        assert_eq!(*apart.tokens.parents, [None, Some(0), None, Some(0)]);
        assert_eq!(*apart.given, [0, 1, 2, 3, 4, 5, 10, 11, 12]);
        assert_eq!(invoked.acts, [0, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1].map(|acts| acts == 1));
    }
}
