//! A decoder that remembers: new tokens run over the keys and values of the tokens before them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use burnish_ops::{
    AnyTensor, Documents, KvCache, OpsError, Rotary, head_logits, linears, linears_decode, select_rows,
    together,
};

#[cfg(any(feature = "cuda", feature = "wgpu"))]
use burnish_ops::resting_logits;

use crate::decoder::Linears;
use crate::decoder::block::{OnTensors, Walked, run_block};
use crate::decoder::chunks::attend_chunked;
use crate::decoder::invocation::acting;
use crate::decoder::queries_keys::{Factors, Turning};
use crate::decoder::state_cache::Behind;
use crate::decoder::virtual_tokens::PrefixRows;
use crate::decoder::{delta, keys_values, ssd};
use crate::generation::logits::Logits;
#[cfg(any(feature = "cuda", feature = "wgpu"))]
use crate::generation::recorded;
use crate::generation::sequences::{Cache, Sequences};
use crate::spec::KeysValues;
use crate::{Decoder, ForwardContext, ModelError, Rope};

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
    pub(super) decoder: &'a Decoder,
    pub(super) pass: ForwardContext,
    /// Of sequences that have no adapter of several.
    bare: ForwardContext,
    sequences: Sequences,
    /// Per rope its frequencies and attention factor, where they do not depend on a sequence's length.
    frequencies: Vec<Option<(Vec<f32>, f32)>>,
    held: Option<Held>,
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    pub(super) recorder: recorded::Recorder,
}

/// A prompt with the adapter that continues it, where the decoder has [several](Decoder::adapters): none is the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AdaptedPrompt<'p> {
    /// The prompt's tokens.
    pub tokens: &'p [u32],
    /// The adapter's number.
    pub adapter: Option<usize>,
}

impl<'p> From<&'p [u32]> for AdaptedPrompt<'p> {
    fn from(tokens: &'p [u32]) -> Self {
        Self { tokens, adapter: None }
    }
}

/// A prompt that was computed, for samples of it that come later.
struct Held {
    prompt: Vec<u32>,
    adapter: Option<usize>,
    sequence: Sequences,
    logits: Vec<f32>,
}

impl<'a> Decoding<'a> {
    /// `sequences` empty sequences.
    #[must_use]
    pub fn new(decoder: &'a Decoder, sequences: usize) -> Self {
        let frequencies = |rope: &Rope| (!rope.depends_on_length()).then(|| rope.narrow_frequencies(0));
        let [pass, bare] = decoder.decoding_passes();
        Self {
            decoder,
            pass,
            bare,
            sequences: Sequences::new(decoder, sequences),
            frequencies: decoder.spec.ropes.iter().map(frequencies).collect(),
            held: None,
            #[cfg(any(feature = "cuda", feature = "wgpu"))]
            recorder: recorded::Recorder::new(decoder),
        }
    }

    /// The same, of which every step is launched as it is: none is recorded, where a device could.
    #[must_use]
    pub fn eager(mut self) -> Self {
        self.run_eagerly();
        self
    }

    /// From now on every step is launched as it is.
    pub(super) fn run_eagerly(&mut self) {
        #[cfg(any(feature = "cuda", feature = "wgpu"))]
        {
            self.recorder = recorded::Recorder::off();
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
        let mut decoding = Self::new(decoder, 0);
        let logits = decoding.join(prompts, None)?;
        Ok((decoding, logits))
    }

    /// Sequences for `prompts` follow those in progress; returns the logits `[prompts, vocab]` of what follows each.
    /// Prompts that are equal are computed once, also when the last of them joins again in the next call: `next` is the
    /// prompt that it will begin with.
    ///
    /// ```no_run
    /// # use burn::tensor::Device;
    /// # use burnish_models::{Decoding, load};
    /// let model = load("path/to/model", &Device::flex()).unwrap().decoder;
    /// let (mut decoding, _) = Decoding::of_prompts(&model, &[[1, 2], [3, 4]]).unwrap();
    /// decoding.logits(&[[5], [6]]).unwrap();
    /// // The first sequence has ended, and another takes its place.
    /// decoding.reorder(&[1]).unwrap();
    /// let logits = decoding.join(&[[7, 8]], None).unwrap();
    /// assert_eq!((decoding.len(0), decoding.len(1), logits.len()), (3, 2, model.spec().vocab));
    /// ```
    ///
    /// # Errors
    /// As [`Self::logits`].
    pub fn join<S: AsRef<[u32]>>(
        &mut self,
        prompts: &[S],
        next: Option<&[u32]>,
    ) -> Result<Vec<f32>, ModelError> {
        let prompts: Vec<AdaptedPrompt<'_>> = prompts.iter().map(|prompt| prompt.as_ref().into()).collect();
        self.join_adapted(&prompts, next.map(Into::into))
    }

    /// As [`Self::join`], of prompts with an adapter each: equal are those that have the same.
    ///
    /// # Errors
    /// As [`Self::logits`]; if there is no such adapter.
    pub fn join_adapted(
        &mut self,
        prompts: &[AdaptedPrompt<'_>],
        next: Option<AdaptedPrompt<'_>>,
    ) -> Result<Vec<f32>, ModelError> {
        let Some(&last) = prompts.last() else { return Ok(Vec::new()) };
        for (row, prompt) in prompts.iter().enumerate() {
            self.decoder.check_adapter(row, prompt.adapter)?;
        }
        let held = self.held.take();
        let mut places = BTreeMap::new();
        if let Some(held) = &held {
            places.insert(AdaptedPrompt { tokens: &held.prompt, adapter: held.adapter }, 0);
        }
        let first = places.len();
        let mut distinct: Vec<AdaptedPrompt<'_>> = Vec::new();
        let mut order: Vec<usize> = prompts
            .iter()
            .map(|prompt| {
                *places.entry(*prompt).or_insert_with(|| {
                    distinct.push(*prompt);
                    first + distinct.len() - 1
                })
            })
            .collect();
        let (mut computed, mut logits) = match held {
            Some(held) => (held.sequence, held.logits),
            None => (Sequences::new(self.decoder, 0), Vec::new()),
        };
        if !distinct.is_empty() {
            let mut fresh = Sequences::new(self.decoder, distinct.len());
            fresh.adapters = distinct.iter().map(|prompt| prompt.adapter).collect();
            let distinct: Vec<&[u32]> = distinct.iter().map(|prompt| prompt.tokens).collect();
            logits.extend(self.run(&mut fresh, &distinct)?.into_host());
            computed.append(fresh);
        }
        let vocab = self.decoder.spec.vocab;
        let of = |place: usize| &logits[place * vocab..(place + 1) * vocab];
        let (count, place) = (order.len(), order[order.len() - 1]);
        let held = (next == Some(last)).then(|| (last, of(place).to_vec()));
        if held.is_some() {
            order.push(place);
        }
        if order.iter().copied().ne(0..computed.lengths.len()) {
            logits = order[..count].iter().flat_map(|&place| of(place)).copied().collect();
            computed.reorder(&order)?;
        }
        self.held = held.map(|(AdaptedPrompt { tokens, adapter }, logits)| {
            let (prompt, sequence) = (tokens.to_vec(), computed.split_off(count));
            Held { prompt, adapter, sequence, logits }
        });
        self.sequences.append(computed);
        Ok(logits)
    }

    /// Sequences in progress.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.sequences.lengths.len()
    }

    /// Tokens that a sequence has.
    #[must_use]
    pub fn len(&self, sequence: usize) -> usize {
        self.sequences.lengths[sequence]
    }

    /// Whether no sequence has a token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sequences.lengths.iter().all(|&n| n == 0)
    }

    /// How many steps have run as one launch, from a recording ([CUDA graphs](https://developer.nvidia.com/blog/cuda-graphs/)).
    #[must_use]
    pub fn recorded_steps(&self) -> usize {
        #[cfg(any(feature = "cuda", feature = "wgpu"))]
        return self.recorder.steps();
        #[cfg(not(any(feature = "cuda", feature = "wgpu")))]
        0
    }

    /// Why a device that was to record a step did not, the last time; the step was launched as it is.
    #[must_use]
    pub fn recording_refused(&self) -> Option<String> {
        #[cfg(any(feature = "cuda", feature = "wgpu"))]
        return self.recorder.refusal().map(ToString::to_string);
        #[cfg(not(any(feature = "cuda", feature = "wgpu")))]
        None
    }

    /// Bytes of keys and values held.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let held = self.held.iter().map(|held| &held.sequence);
        held.chain([&self.sequences]).map(Sequences::bytes).sum()
    }

    /// Sequence `i` becomes what `order[i]` was; what is not named leaves.
    ///
    /// # Errors
    /// If `order` names a sequence that is not there.
    pub fn reorder(&mut self, order: &[usize]) -> Result<(), ModelError> {
        Ok(self.sequences.reorder(order)?)
    }

    /// Appends `new[i]` to sequence `i` and returns the logits `[sequences, vocab]` of what follows each.
    ///
    /// All new tokens run in one flattened pass; only the last of each sequence goes through the head. Frequencies of
    /// a rotary embedding that depend on the length (dynamic, longrope) are those of each sequence's own current
    /// length; keys of earlier tokens stay as they were rotated, as in Transformers with a cache, but for Phi-3, whose
    /// cache begins anew where a text grows beyond the original positions ([`Spec::recached_beyond`](crate::Spec)).
    ///
    /// # Errors
    /// If a sequence gets no token, `new` is not one entry per sequence, or an id is outside the vocabulary. After an
    /// error the sequences must not be used further.
    pub fn logits<S: AsRef<[u32]>>(&mut self, new: &[S]) -> Result<Vec<f32>, ModelError> {
        Ok(self.next(new)?.into_host())
    }

    /// [`Self::logits`], where they were made.
    pub(super) fn next<S: AsRef<[u32]>>(&mut self, new: &[S]) -> Result<Logits, ModelError> {
        if new.len() != self.sequences() {
            return Err(ModelError::Sequences { got: new.len(), expected: self.sequences() });
        }
        let mut sequences = std::mem::replace(&mut self.sequences, Sequences::new(self.decoder, 0));
        let logits = self.run(&mut sequences, new);
        self.sequences = sequences;
        logits
    }

    /// Whether a sequence can go on as `prompt`, which its tokens begin: an adapter that waits for tokens acts on the same of
    /// them.
    pub(super) fn goes_on(&mut self, sequence: usize, prompt: &[u32]) -> bool {
        let Some(invocation) = self.decoder.waits_for(&self.pass) else { return true };
        let (length, now) = (self.sequences.lengths[sequence], invocation.begins(prompt));
        let before = std::mem::replace(&mut self.sequences.begins[sequence], now);
        let first = |begins: Option<usize>| begins.map_or(length, |at| at.min(length));
        first(before) == first(now)
    }

    /// One pass over `new[i]` of sequence `i`, over all of a sequence whose cache begins anew.
    fn run<S: AsRef<[u32]>>(&mut self, sequences: &mut Sequences, new: &[S]) -> Result<Logits, ModelError> {
        if let Some(invocation) = self.decoder.waits_for(&self.pass) {
            // A prompt says it, and what follows does not change it, as in PEFT.
            for (at, tokens) in new.iter().enumerate().filter(|(at, _)| sequences.lengths[*at] == 0) {
                sequences.begins[at] = invocation.begins(tokens.as_ref());
            }
        }
        let crosses = |length: usize, more: usize| {
            let limit = self.decoder.spec.recached_beyond;
            limit.is_some_and(|limit| length > 0 && length <= limit && length + more > limit)
        };
        let lengths = sequences.lengths.iter().zip(new);
        let anew: Vec<bool> = lengths.map(|(&length, new)| crosses(length, new.as_ref().len())).collect();
        if !anew.contains(&true) {
            #[cfg(any(feature = "cuda", feature = "wgpu"))]
            if let Some(logits) = self.by_recording(sequences, new)? {
                return Ok(logits);
            }
            return self.extend(sequences, new);
        }
        let whole: Vec<Vec<u32>> = sequences
            .ids
            .iter()
            .zip(new)
            .zip(&anew)
            .map(
                |((before, new), &anew)| {
                    if anew { [before, new.as_ref()].concat() } else { new.as_ref().to_vec() }
                },
            )
            .collect();
        let (count, begins) = (sequences.lengths.len(), sequences.begins.clone());
        let adapters = sequences.adapters.clone();
        sequences.append(Sequences::new(self.decoder, anew.iter().filter(|&&anew| anew).count()));
        let mut fresh = count..;
        let order: Vec<usize> = anew
            .iter()
            .enumerate()
            .map(|(i, &anew)| if anew { fresh.next().unwrap_or(i) } else { i })
            .collect();
        sequences.reorder(&order)?;
        (sequences.begins, sequences.adapters) = (begins, adapters);
        self.extend(sequences, &whole)
    }

    /// One pass over `new[i]` of sequence `i`.
    pub(super) fn extend<S: AsRef<[u32]>>(
        &self,
        sequences: &mut Sequences,
        new: &[S],
    ) -> Result<Logits, ModelError> {
        let mixed = self.decoder.mixed.as_ref();
        let bare = mixed.is_some() && sequences.adapters.iter().all(Option::is_none);
        let pass = if bare { &self.bare } else { &self.pass };
        let (mut ids, mut documents, mut last) = (Vec::new(), Vec::new(), Vec::new());
        let (mut given, mut rows) = (Vec::new(), 0);
        let spans = spans(&sequences.lengths, new, self.decoder.virtual_tokens(pass));
        for (row, tokens) in new.iter().map(AsRef::as_ref).enumerate() {
            if tokens.is_empty() {
                return Err(ModelError::EmptyPrompt { row });
            }
            let start = rows;
            ids.extend_from_slice(tokens);
            rows += spans[row].len();
            given.extend(rows - tokens.len()..rows);
            documents.push(start..rows);
            last.push(rows - 1);
        }
        let documents = Documents::from(documents);
        let given = (rows > given.len()).then_some(given);
        let still = if self.decoder.has_prefix() { self.decoder.virtual_tokens(pass) } else { 0 };
        let decoder = self.decoder;
        let counters = Arc::new(Vec::new());
        let spec = &decoder.spec;
        // Nothing turns keys of an adapter.
        let place = |at: usize| if at < still { 0 } else { at };
        let positions: Vec<u32> = spans.iter().cloned().flatten().map(|at| place(at) as u32).collect();
        let rotaries = self.rotaries(&spans, still);
        let (factors, positions) = (Factors::new(spec, &decoder.shard, &positions), Arc::new(positions));
        let ids = Arc::new(ids);
        let given = given.as_deref();
        let x = decoder.embed_tokens(&ids, given, &positions, pass, &counters, &|x| Ok(x))?;
        let prefix = decoder.prefix(given, rows, pass)?;
        let x = decoder.embeddings_normed(x, pass)?;
        let device = x.plain().device();
        let acts = match mixed.filter(|_| !bare) {
            Some(mixed) => {
                let tokens = spans.iter().map(ExactSizeIterator::len);
                mixed.acting(tokens.zip(sequences.adapters.iter().copied()), &device)
            }
            None => decoder.waits_for(pass).and_then(|_| {
                let own = spans.iter().cloned().zip(&sequences.begins);
                let acts = own
                    .flat_map(|(span, begins)| span.map(move |at| begins.is_some_and(|begins| at >= begins)));
                acting(&acts.collect::<Vec<_>>(), &device)
            }),
        };
        // Prompts run as scoring does, to the bit.
        let decodes = sequences.lengths.iter().any(|&n| n != 0);
        let linears: Linears = if decodes { linears_decode } else { linears };
        let given = decoder.per_layer_inputs(&ids, &x, pass, &counters, linears)?;
        let x = decoder.streams_of(x, pass, &counters, linears)?;
        let attending =
            Attending::Joining { documents: &documents, positions: &positions, prefix: prefix.as_ref() };
        let rows = Rows {
            pass,
            rotaries: &rotaries,
            factors: &factors,
            given: given.as_ref(),
            acts: acts.as_ref(),
            decodes,
            attending,
        };
        let x = self.through_blocks(sequences, x, &rows)?;
        sequences.said(new);
        let x = select_rows(&x, &Arc::new(last))?;
        let x = self.before_head(x, pass, linears)?;
        self.logits_of(&x, pass)
    }

    /// The rotation of each rope for these positions, of which the first `still` of a sequence are at 0.
    pub(super) fn rotaries(&self, spans: &[Range<usize>], still: usize) -> Vec<Rotary> {
        let ropes = self.decoder.spec.ropes.iter().zip(&self.frequencies);
        ropes.map(|(rope, known)| rotary(rope, known.as_ref(), spans, still)).collect()
    }

    /// The stream behind the last block.
    pub(super) fn through_blocks(
        &self,
        sequences: &mut Sequences,
        x: AnyTensor,
        rows: &Rows<'_>,
    ) -> Result<AnyTensor, ModelError> {
        let (decoder, mut x, counters) = (self.decoder, x, Arc::new(Vec::new()));
        let mut lent = BTreeMap::new();
        let caches = sequences.caches.iter_mut().zip(&mut sequences.scans);
        for (index, (cache, scans)) in caches.enumerate() {
            let w = decoder.block_tensors(index, rows.pass, &counters)?;
            let (block, kind) = (&decoder.blocks[index], &decoder.kinds[index]);
            let (spec, shard) = (&*kind.spec, &kind.shard);
            let turning = Turning::new(block.own, rows.rotaries, &kind.orders, rows.factors);
            let own = decoder.own_input(rows.given, index)?;
            let borrowed: Option<AnyTensor> = match block.own.keys {
                KeysValues::Of(lender) => lent.get(&lender).cloned(),
                _ => None,
            };
            let lends = spec.lends_keys(index).then(|| decoder.attention_shape(index));
            let mut keys = None;
            let norm = w.head_norm(spec);
            let attend = |qkv: &AnyTensor| -> Result<AnyTensor, OpsError> {
                if let Some(shape) = &lends {
                    keys = Some(keys_values(qkv, shape)?);
                }
                let (rotary, sinks) = (turning.in_attention(spec), w.sinks.as_ref());
                let (documents, positions, prefix) = match &rows.attending {
                    Attending::Joining { documents, positions, prefix } => (*documents, *positions, *prefix),
                    #[cfg(any(feature = "cuda", feature = "wgpu"))]
                    Attending::Joined(step) => match cache {
                        Cache::Keys(cache) => {
                            let rows = step.rows_of(index);
                            return cache.attend_step(qkv, rows, rotary, norm.as_ref(), sinks);
                        }
                        _ => (step.documents(), &[][..], None),
                    },
                };
                match (cache, w.kernel()) {
                    (Cache::State(cache), Some((kernel, _))) => {
                        let delta = w.delta.as_ref().expect("invariant: a block with a state has its rule");
                        delta::attend_on(cache, qkv, kernel, delta, spec, documents)
                    }
                    (Cache::Products(cache), Some((kernel, bias))) => cache.run(qkv, kernel, bias, documents),
                    (Cache::Keys(cache), None) => {
                        let with_prefix = match prefix {
                            Some((keys, at)) => {
                                Some(at.on(qkv, keys, index, w.qk_norms.as_ref(), (spec, shard))?)
                            }
                            None => None,
                        };
                        let norm = norm.as_ref().filter(|_| with_prefix.is_none());
                        let qkv = with_prefix.as_ref().unwrap_or(qkv);
                        let attend = |cache: &mut KvCache, documents: &[Range<usize>]| {
                            cache.attend(qkv, documents, rotary, norm, sinks)
                        };
                        match block.own.chunk {
                            Some(size) => attend_chunked(cache, documents, positions, size, attend),
                            None => attend(cache, documents),
                        }
                    }
                    _ => unreachable!("invariant: caches are made by the blocks' kinds"),
                }
            };
            let name = &block.name;
            let (given, keys_of) = (own.as_ref(), borrowed.as_ref());
            let on = OnTensors {
                shard,
                spec,
                linears: rows.linears(),
                turning: &turning,
                decodes: rows.decodes,
                same_tokens: true,
                given,
                keys: keys_of,
                balance: None,
                acts: rows.acts,
                tap: None,
            };
            let walk = |walked: Walked<'_, AnyTensor>| {
                let documents = match &rows.attending {
                    Attending::Joining { documents, .. } => documents,
                    #[cfg(any(feature = "cuda", feature = "wgpu"))]
                    Attending::Joined(step) => step.documents(),
                };
                let (Some(ssd), Some(cache)) = (&w.ssd, scans.as_mut()) else {
                    unreachable!("invariant: what is walked has a state space and its cache")
                };
                ssd::walk(walked, ssd, spec, documents, Behind::Said(cache))
            };
            let run = || run_block(&on, &x, &w.layers(), name, attend, walk);
            // Ranks that share layers wait for each other inside a block.
            let y = if shard.meets() { run() } else { together(&x, run) }?;
            x = y;
            lent.extend(keys.map(|keys| (index, keys)));
        }
        Ok(x)
    }

    /// What the head reads of the last rows of a stream.
    pub(super) fn before_head(
        &self,
        x: AnyTensor,
        pass: &ForwardContext,
        linears: Linears,
    ) -> Result<AnyTensor, ModelError> {
        let counters = Arc::new(Vec::new());
        let x = self.decoder.of_streams(x, pass, &counters, linears)?;
        let x = self.decoder.projected(1, x, pass, &counters, linears)?;
        let x = self.decoder.densed(x, pass, &counters, linears)?;
        self.decoder.final_norm(&x, pass)
    }

    /// The logits of rows.
    pub(super) fn logits_of(&self, x: &AnyTensor, pass: &ForwardContext) -> Result<Logits, ModelError> {
        let decoder = self.decoder;
        let (head, options) = (decoder.head(pass, &Arc::default())?, decoder.head_options(1.0));
        #[cfg(any(feature = "cuda", feature = "wgpu"))]
        if !decoder.shard.divided()
            && let Some(logits) = resting_logits(x, &head, options)?
        {
            return Ok(Logits::Resting(logits));
        }
        let own = head_logits(x, &head, options)?;
        if !decoder.shard.divided() {
            return Ok(Logits::Host(own));
        }
        // Every rank gets every logit, and so chooses the same token.
        let shape = [x.shape()[0], decoder.shard.own_vocab().len()];
        let own = AnyTensor::from_elements(own, &shape, &x.device());
        let all = decoder.shard.tp.gather_columns(&own, &decoder.shard.vocab, decoder.spec.names.head)?;
        Ok(Logits::Host(all.to_f32()))
    }
}

/// The new rows of sequences, as blocks see them.
pub(super) struct Rows<'p> {
    pub(super) pass: &'p ForwardContext,
    pub(super) rotaries: &'p [Rotary],
    pub(super) factors: &'p Factors,
    /// What blocks are given beside the stream.
    pub(super) given: Option<&'p AnyTensor>,
    pub(super) acts: Option<&'p AnyTensor>,
    /// Whether a few tokens are decoded.
    pub(super) decodes: bool,
    pub(super) attending: Attending<'p>,
}

impl Rows<'_> {
    fn linears(&self) -> Linears {
        if self.decodes { linears_decode } else { linears }
    }
}

/// How rows come to see what their sequences have said.
pub(super) enum Attending<'p> {
    /// They join it.
    Joining { documents: &'p Documents, positions: &'p [u32], prefix: Option<&'p (AnyTensor, PrefixRows)> },
    /// They have, in a step that is recorded.
    #[cfg(any(feature = "cuda", feature = "wgpu"))]
    Joined(&'p recorded::Step),
}

/// The positions of each sequence's new tokens: so many virtual ones come before a sequence's first.
fn spans<S: AsRef<[u32]>>(lengths: &[usize], new: &[S], virtual_tokens: usize) -> Vec<Range<usize>> {
    let span = |(&from, tokens): (&usize, &S)| {
        let first = if from == 0 { 0 } else { from + virtual_tokens };
        first..from + virtual_tokens + tokens.as_ref().len()
    };
    lengths.iter().zip(new).map(span).collect()
}

/// One row of the table per new token, so that no step computes more than it needs; the first `still` of a sequence are at
/// position 0.
fn rotary(rope: &Rope, known: Option<&(Vec<f32>, f32)>, spans: &[Range<usize>], still: usize) -> Rotary {
    let mut table = Vec::new();
    for span in spans {
        let mut rows = |frequencies: &[f32], attention: f32| {
            let turned = span.start.max(still.min(span.end));
            (span.start..turned).for_each(|_| rope.rows(frequencies, attention, 0..1, &mut table));
            rope.rows(frequencies, attention, turned..span.end, &mut table);
        };
        match known {
            Some((frequencies, attention)) => rows(frequencies, *attention),
            None => {
                let (frequencies, attention) = rope.narrow_frequencies(span.end);
                rows(&frequencies, attention);
            }
        }
    }
    let count = table.len() / rope.dim.max(1);
    Rotary::new(Arc::new(table), Arc::new((0..count as u32).collect()), rope.dim)
}
