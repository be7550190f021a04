//! A decoder that remembers: new tokens run over the keys and values of the tokens before them.

use std::collections::BTreeMap;
use std::sync::Arc;

use burnish_ops::{
    AnyTensor, KvCache, OpsError, Rotary, head_logits, linears, linears_decode, select_rows, together,
};

use crate::blueprint::HEAD;
use crate::decoder::{Linears, run_block};
use crate::{Decoder, Mode, ModelError, Pass};

/// Sequences in progress on a [`Decoder`]: plain tensors, adapters active.
///
/// ```no_run
/// # use burn::tensor::Device;
/// # use burnish_models::{Decoding, load};
/// let model = load("path/to/model", &Device::flex()).unwrap().decoder;
/// let mut decoding = Decoding::new(&model, 2);
/// // Logits of what follows each of two prompts, then of one more token each.
/// let first = decoding.logits(&[vec![1, 2, 3], vec![4]]).unwrap();
/// let second = decoding.logits(&[vec![5], vec![6]]).unwrap();
/// assert_eq!((first.len(), decoding.len(0)), (second.len(), 4));
/// ```
pub struct Decoding<'a> {
    decoder: &'a Decoder,
    pass: Pass,
    caches: Vec<KvCache>,
    lengths: Vec<usize>,
    /// Frequencies and attention factor, where they do not depend on a sequence's length.
    frequencies: Option<(Vec<f32>, f32)>,
}

impl<'a> Decoding<'a> {
    /// `sequences` empty sequences.
    #[must_use]
    pub fn new(decoder: &'a Decoder, sequences: usize) -> Self {
        let cache = |window: &Option<usize>| KvCache::new(decoder.attention_shape(*window), sequences);
        let rope = &decoder.spec.rope;
        Self {
            decoder,
            pass: decoder.pass(Mode::Score),
            caches: decoder.spec.windows.iter().map(cache).collect(),
            lengths: vec![0; sequences],
            frequencies: (!rope.depends_on_length()).then(|| rope.narrow_frequencies(0)),
        }
    }

    /// A sequence for each of `prompts`, with the logits `[prompts, vocab]` of what follows. Prompts that are equal are
    /// computed once, and their keys and values copied.
    ///
    /// ```no_run
    /// # use burn::tensor::Device;
    /// # use burnish_models::{Decoding, load};
    /// let model = load("path/to/model", &Device::flex()).unwrap().decoder;
    /// // Eight samples of one prompt cost one prompt.
    /// let (decoding, logits) = Decoding::of_prompts(&model, &[[1, 2, 3]; 8]).unwrap();
    /// assert_eq!((decoding.sequences(), logits.len()), (8, 8 * model.spec().vocab));
    /// ```
    ///
    /// # Errors
    /// As [`Self::logits`].
    pub fn of_prompts<S: AsRef<[u32]>>(
        decoder: &'a Decoder,
        prompts: &[S],
    ) -> Result<(Self, Vec<f32>), ModelError> {
        let mut places = BTreeMap::new();
        let mut distinct: Vec<&[u32]> = Vec::new();
        let order: Vec<usize> = prompts
            .iter()
            .map(|prompt| {
                *places.entry(prompt.as_ref()).or_insert_with(|| {
                    distinct.push(prompt.as_ref());
                    distinct.len() - 1
                })
            })
            .collect();
        let mut decoding = Self::new(decoder, distinct.len());
        let logits = decoding.logits(&distinct)?;
        if distinct.len() == prompts.len() {
            return Ok((decoding, logits));
        }
        decoding.reorder(&order)?;
        let vocab = decoder.spec.vocab;
        let copied = order.iter().flat_map(|&at| &logits[at * vocab..(at + 1) * vocab]).copied().collect();
        Ok((decoding, copied))
    }

    /// Sequences in progress.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.lengths.len()
    }

    /// Tokens that a sequence has.
    #[must_use]
    pub fn len(&self, sequence: usize) -> usize {
        self.lengths[sequence]
    }

    /// Whether no sequence has a token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lengths.iter().all(|&n| n == 0)
    }

    /// Bytes of keys and values held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.caches.iter().map(KvCache::bytes).sum()
    }

    /// Sequence `i` becomes what `order[i]` was; what is not named leaves.
    ///
    /// # Errors
    /// If `order` names a sequence that is not there.
    pub fn reorder(&mut self, order: &[usize]) -> Result<(), ModelError> {
        for cache in &mut self.caches {
            cache.reorder(order)?;
        }
        self.lengths = order.iter().map(|&o| self.lengths[o]).collect();
        Ok(())
    }

    /// Appends `new[i]` to sequence `i` and returns the logits `[sequences, vocab]` of what follows each.
    ///
    /// All new tokens run in one flattened pass; only the last of each sequence goes through the head. Frequencies of
    /// a rotary embedding that depend on the length (dynamic, longrope) are those of each sequence's own current
    /// length; keys of earlier tokens stay as they were rotated, as in Transformers with a cache (which for Phi-3 alone
    /// begins anew where a text grows beyond the original positions).
    ///
    /// # Errors
    /// If a sequence gets no token, `new` is not one entry per sequence, or an id is outside the vocabulary. After an
    /// error the sequences must not be used further.
    pub fn logits<S: AsRef<[u32]>>(&mut self, new: &[S]) -> Result<Vec<f32>, ModelError> {
        if new.len() != self.sequences() {
            return Err(ModelError::Sequences { got: new.len(), expected: self.sequences() });
        }
        let (mut ids, mut documents, mut last) = (Vec::new(), Vec::new(), Vec::new());
        for (row, tokens) in new.iter().map(AsRef::as_ref).enumerate() {
            if tokens.is_empty() {
                return Err(ModelError::EmptyPrompt { row });
            }
            let start = ids.len();
            ids.extend_from_slice(tokens);
            documents.push(start..ids.len());
            last.push(ids.len() - 1);
        }
        let decoder = self.decoder;
        let rows = Arc::new(Vec::new());
        let rotary = self.rotary(new);
        let mut x = decoder.embed_tokens(&Arc::new(ids), &self.pass, &rows)?;
        // Prompts run as scoring does, to the bit.
        let linears: Linears = if self.is_empty() { linears } else { linears_decode };
        for (index, cache) in self.caches.iter_mut().enumerate() {
            let w = decoder.block_tensors(index, &self.pass, &rows)?;
            let attend = |qkv: &AnyTensor| -> Result<AnyTensor, OpsError> {
                cache.attend(qkv, &documents, Some(&rotary), w.head_norm.as_ref())
            };
            let name = &decoder.blocks[index].name;
            let (eps, shard) = (decoder.spec.norm_eps, &decoder.shard);
            let run = || run_block(&x, &w, eps, name, shard, linears, attend);
            // Ranks that share layers wait for each other inside a block.
            x = if shard.divided() { run() } else { together(run) }?;
        }
        for (length, tokens) in self.lengths.iter_mut().zip(new) {
            *length += tokens.as_ref().len();
        }
        let x = select_rows(&x, &Arc::new(last))?;
        let x = decoder.final_norm(&x, &self.pass)?;
        let own = head_logits(&x, &decoder.head(&self.pass, &rows)?, decoder.head_options(1.0))?;
        if !decoder.shard.divided() {
            return Ok(own);
        }
        // Every rank gets every logit, and so chooses the same token.
        let own = AnyTensor::from_elements(own, &[new.len(), decoder.shard.own_vocab().len()], &x.device());
        let all = decoder.shard.tp.gather_columns(&own, &decoder.shard.vocab, HEAD)?;
        Ok(all.to_f32())
    }

    /// One row of the table per new token, so that no step computes more than it needs.
    fn rotary<S: AsRef<[u32]>>(&self, new: &[S]) -> Rotary {
        let rope = &self.decoder.spec.rope;
        let mut table = Vec::new();
        for (&from, tokens) in self.lengths.iter().zip(new) {
            let to = from + tokens.as_ref().len();
            match &self.frequencies {
                Some((frequencies, attention)) => rope.rows(frequencies, *attention, from..to, &mut table),
                None => {
                    let (frequencies, attention) = rope.narrow_frequencies(to);
                    rope.rows(&frequencies, attention, from..to, &mut table);
                }
            }
        }
        let count = table.len() / rope.dim.max(1);
        Rotary {
            table: Arc::new(table),
            positions: Arc::new((0..count as u32).collect()),
            rotary_dim: rope.dim,
        }
    }
}
