//! Virtual tokens: an adapter's embeddings before every text, or its keys and values in each block.

use std::sync::Arc;

use burn::tensor::Tensor;
use burnish_ops::{AnyTensor, OpsError, embedding, select_rows};
use burnish_peft::PromptEncoder;

use crate::decoder::change::beside;
use crate::decoder::layers::NormTensors;
use crate::decoder::prompt_encoder::encoded;
use crate::decoder::queries_keys::{cast, heads_normed};
use crate::decoder::tp_plan::Shard;
use crate::spec::QkNorm;
use crate::{Decoder, ForwardContext, Mode, ModelError, Spec, Tokens};

/// What an adapter has of virtual tokens.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    /// How many there are.
    pub(crate) count: usize,
    /// The index of their values, `[tokens, hidden]` or of keys and values `[tokens, blocks * 2 * kv_heads * head_dim]`; or of
    /// the parameters of the encoder that gives them.
    pub(crate) indices: Vec<usize>,
    /// What makes values of those parameters.
    pub(crate) encoder: Option<PromptEncoder>,
    /// Whether they are keys and values (prefix tuning).
    pub(crate) keys: bool,
}

impl Prompt {
    /// The values, on the pass's tape where they train.
    fn values(&self, pass: &ForwardContext) -> Result<AnyTensor, ModelError> {
        let read = pass.read_all(&self.indices)?;
        Ok(match &self.encoder {
            Some(encoder) => encoded(encoder, &read, pass.dropout_step())?,
            None => read[0].clone(),
        })
    }
}

/// Where virtual tokens stand among those that are given.
pub(crate) struct Virtual {
    /// The tokens with them: ids of given tokens alone, all else of both.
    pub(crate) tokens: Tokens,
    /// Which rows are given tokens.
    pub(crate) given: Arc<Vec<usize>>,
}

impl Virtual {
    /// `count` of them before every document that continues none; of `keys`, which nothing turns, at position 0.
    pub(crate) fn before(tokens: &Tokens, count: usize, keys: bool) -> Self {
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
                positions.extend((0..count as u32).map(|at| if keys { 0 } else { at }));
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
        let documents = documents.collect();
        let (ids, parents) = (tokens.ids.clone(), tokens.parents.clone());
        let (positions, rows) = (Arc::new(positions), Arc::new(rows));
        Self { tokens: Tokens { ids, positions, documents, parents, rows }, given: Arc::new(given) }
    }
}

impl Decoder {
    /// How many virtual tokens stand before every text of a pass; 0 where none do.
    pub(crate) fn virtual_tokens(&self, pass: &ForwardContext) -> usize {
        self.prompt.as_ref().filter(|_| pass.adapters()).map_or(0, |prompt| prompt.count)
    }

    /// Whether virtual tokens are keys and values.
    pub(crate) fn has_prefix(&self) -> bool {
        self.prompt.as_ref().is_some_and(|prompt| prompt.keys)
    }

    /// What the encoder of virtual tokens gives now, where there is one: what files have in its place. Ranks that share
    /// parameters call it together.
    ///
    /// # Errors
    /// If a tensor does not fit.
    pub fn encoded_prompt(&self) -> Result<Option<AnyTensor>, ModelError> {
        let prompt = self.prompt.as_ref().filter(|prompt| prompt.encoder.is_some());
        prompt.map(|prompt| prompt.values(&self.pass(Mode::Score))).transpose()
    }

    /// The keys and values of virtual tokens of all blocks, and where they stand: rows that are not `given` of `rows`.
    pub(crate) fn prefix(
        &self,
        given: Option<&[usize]>,
        rows: usize,
        pass: &ForwardContext,
    ) -> Result<Option<(AnyTensor, PrefixRows)>, ModelError> {
        let Some(given) = given.filter(|given| rows > given.len()) else { return Ok(None) };
        let Some(prompt) = self.prompt.as_ref().filter(|prompt| prompt.keys) else { return Ok(None) };
        let all = prompt.values(pass)?;
        let count = self.virtual_tokens(pass).max(1);
        let order = in_rows(given, rows, |at| given[at], |at| rows + at % count);
        Ok(Some((all, PrefixRows(order))))
    }

    /// Embeddings `x` of the rows `given`, with those of virtual tokens in the others of `rows`.
    pub(crate) fn with_virtual(
        &self,
        x: &AnyTensor,
        (given, rows): (&[usize], usize),
        pass: &ForwardContext,
    ) -> Result<AnyTensor, ModelError> {
        let Some(prompt) = self.prompt.as_ref().filter(|_| rows > given.len()) else { return Ok(x.clone()) };
        let count = self.virtual_tokens(pass).max(1);
        let ids: Vec<u32> = (0..rows - given.len()).map(|at| (at % count) as u32).collect();
        let tokens = if prompt.keys {
            // Nothing reads what blocks make of them.
            let zeros = x.rank::<2>()?.zeros_like();
            AnyTensor::new(zeros.narrow(0, 0, 1).repeat_dim(0, ids.len()))
        } else {
            embedding(&Arc::new(ids), &prompt.values(pass)?, None)?
        };
        let x = beside(x, &tokens);
        let both = AnyTensor::new(Tensor::cat(vec![x.rank::<2>()?, tokens.rank::<2>()?], 0));
        Ok(select_rows(&both, &in_rows(given, rows, |at| at, |at| given.len() + at))?)
    }
}

/// What stands in each of `rows`: of the number of a given token among them, or of that of a virtual one.
fn in_rows(
    given: &[usize],
    rows: usize,
    of_given: impl Fn(usize) -> usize,
    of_virtual: impl Fn(usize) -> usize,
) -> Arc<Vec<usize>> {
    let mut order = vec![None; rows];
    given.iter().enumerate().for_each(|(at, &row)| order[row] = Some(of_given(at)));
    let mut virtuals = (0..).map(of_virtual);
    Arc::new(order.into_iter().map(|own| own.or_else(|| virtuals.next()).unwrap_or_default()).collect())
}

/// Of each row of a pass the row of its keys and values, those of virtual tokens behind all.
#[derive(Clone)]
pub(crate) struct PrefixRows(Arc<Vec<usize>>);

impl PrefixRows {
    /// Queries, keys and values `[rows, (heads + 2 * kv_heads) * head_dim]` as attention takes them, heads normed, with
    /// `layer`'s of `prefix` `[tokens, blocks * 2 * kv_heads * head_dim]` in the rows of virtual tokens.
    pub(crate) fn on(
        &self,
        qkv: &AnyTensor,
        prefix: &AnyTensor,
        layer: usize,
        norms: Option<&(NormTensors, NormTensors)>,
        (spec, shard): (&Spec, &Shard),
    ) -> Result<AnyTensor, OpsError> {
        let mut qkv = qkv.clone();
        let of_heads = matches!(spec.qk_norm, Some(QkNorm::PerHead | QkNorm::PerHeadBare));
        if let Some(norms) = norms.filter(|_| of_heads) {
            qkv = heads_normed(&qkv, spec, shard, norms, None)?;
        }
        let (qkv, prefix) = (beside(&qkv, prefix), beside(prefix, &qkv));
        let (d, all) = (spec.head_dim, spec.kv_heads);
        let first = shard.first_head / (spec.heads / all.max(1)).max(1);
        let own = prefix.rank::<2>()?;
        let part =
            |at: usize| own.clone().narrow(1, ((2 * layer + at) * all + first) * d, shard.kv_heads * d);
        let x = qkv.rank::<2>()?;
        let own = cast(Tensor::cat(vec![part(0), part(1)], 1), x.dtype());
        let (q, kv) = (shard.heads * d, 2 * shard.kv_heads * d);
        let keys = Tensor::cat(vec![x.clone().narrow(1, q, kv), own], 0);
        let keys = select_rows(&AnyTensor::new(keys), &self.0)?.rank::<2>()?;
        Ok(AnyTensor::new(Tensor::cat(vec![x.narrow(1, 0, q), keys], 1)))
    }
}
