//! Virtual tokens: an adapter's embeddings before every text.

use std::sync::Arc;

use burn::tensor::Tensor;
use burnish_ops::{AnyTensor, embedding, select_rows};

use crate::{Decoder, ForwardContext, ModelError, Tokens};

/// Where virtual tokens stand among those that are given.
pub(crate) struct Virtual {
    /// The tokens with them: ids of given tokens alone, all else of both.
    pub(crate) tokens: Tokens,
    /// Which rows are given tokens.
    pub(crate) given: Arc<Vec<usize>>,
}

impl Virtual {
    /// `count` of them before every document that continues none.
    pub(crate) fn before(tokens: &Tokens, count: usize) -> Self {
        let mut begins = vec![false; tokens.ids.len()];
        let mut within = vec![false; tokens.ids.len()];
        for (at, document) in tokens.documents.iter().enumerate() {
            within[document.clone()].fill(true);
            if tokens.parents.get(at).copied().flatten().is_none() && !document.is_empty() {
                begins[document.start] = true;
            }
        }
        let (mut given, mut positions, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        for at in 0..tokens.ids.len() {
            let row = tokens.rows.get(at).copied();
            if begins[at] {
                positions.extend(0..count as u32);
                rows.extend(row.into_iter().cycle().take(count));
            }
            given.push(positions.len());
            positions.push(tokens.positions[at] + if within[at] { count as u32 } else { 0 });
            rows.extend(row);
        }
        let place = |at: usize| given.get(at).copied().unwrap_or(positions.len());
        let documents = tokens.documents.iter().map(|document| {
            if document.is_empty() {
                return place(document.start)..place(document.start);
            }
            let before = if begins[document.start] { count } else { 0 };
            place(document.start) - before..place(document.end - 1) + 1
        });
        let documents = Arc::new(documents.collect());
        let (ids, parents) = (tokens.ids.clone(), tokens.parents.clone());
        let (positions, rows) = (Arc::new(positions), Arc::new(rows));
        Self { tokens: Tokens { ids, positions, documents, parents, rows }, given: Arc::new(given) }
    }
}

impl Decoder {
    /// How many virtual tokens stand before every text of a pass; 0 where none do.
    pub(crate) fn virtual_tokens(&self, pass: &ForwardContext) -> usize {
        let prompt = self.prompt.filter(|_| pass.adapters());
        prompt.map_or(0, |index| self.parameters.registry().at(index).shape[0])
    }

    /// Embeddings `x` of the rows `given`, with those of virtual tokens in the others of `rows`.
    pub(crate) fn with_virtual(
        &self,
        x: &AnyTensor,
        (given, rows): (&[usize], usize),
        pass: &ForwardContext,
    ) -> Result<AnyTensor, ModelError> {
        let Some(index) = self.prompt.filter(|_| rows > given.len()) else { return Ok(x.clone()) };
        let count = self.virtual_tokens(pass).max(1);
        let table = &pass.read_all(&[index])?[0];
        let ids: Vec<u32> = (0..rows - given.len()).map(|at| (at % count) as u32).collect();
        let tokens = embedding(&Arc::new(ids), table, None)?;
        let x = if tokens.is_tracked() && !x.is_tracked() { x.untracked() } else { x.clone() };
        let both = AnyTensor::new(Tensor::cat(vec![x.rank::<2>()?, tokens.rank::<2>()?], 0));
        let mut order: Vec<Option<usize>> = vec![None; rows];
        given.iter().enumerate().for_each(|(at, &row)| order[row] = Some(at));
        let mut next = given.len()..;
        let order = order.into_iter().map(|at| at.or_else(|| next.next()).unwrap_or_default()).collect();
        Ok(select_rows(&both, &Arc::new(order))?)
    }
}
