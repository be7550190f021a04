//! A step of decoding as one launch: what the blocks do with one token of each sequence, recorded once on a device and run
//! again for every further token.
//!
//! The hundreds of small launches of a step cost the host far more than the device. What changes from token to token, the
//! stream, the places of keys and values and the rotations, lies in memory that the recording reads
//! ([`StepMemory`]). Rows that belong to no sequence fill a step up, so that sequences may end without another
//! recording.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::FloatDType;
use burnish_core::Dtype;
use burnish_ops::{
    AnyTensor, Documents, NotRecorded, PlacedRows, Recording, SequenceRows, StepMemory, StepRows,
    linears_decode,
};

use crate::decoder::queries_keys::Factors;
use crate::decoder::state_cache::StateCache;
use crate::generation::decoding::{Attending, Decoding, Rows};
use crate::generation::logits::Logits;
use crate::generation::sequences::{Cache, Sequences};
use crate::spec::{KeysValues, QkNorm};
use crate::{Decoder, ModelError};

/// Steps of as many rows that run as they are before one is recorded, which takes as long as three: where sequences come and go
/// all the time nothing is recorded in vain.
const BEFORE: usize = 4;
/// How often a step is run before it is recorded: which of its kernels write where their input lies depends on how far the host
/// is ahead, and what is recorded may be compiled no more.
const REHEARSED: usize = 2;
/// Recordings that may fail.
const REFUSALS: usize = 3;
/// Up to so many sequences a step has a row for each, and no more; beyond, a multiple of [`ROWS`].
const FEW: usize = 4;
const ROWS: usize = 8;

/// What of a decoding is recorded.
#[derive(Default)]
pub(super) struct Recorder {
    /// Whether nothing is, now and later.
    off: bool,
    /// How many steps in a row had so many rows.
    alike: usize,
    rows: usize,
    recorded: Option<Recorded>,
    steps: usize,
    /// How often the device recorded nothing or did not run it, and why the last time.
    refusals: usize,
    refusal: Option<NotRecorded>,
}

struct Recorded {
    step: Step,
    recording: Recording,
    /// What it writes: what the head reads, `[rows, hidden]`.
    output: AnyTensor,
}

/// What a step's blocks read.
pub(super) struct Step {
    memory: StepMemory,
    caches: Caches,
    /// A token of each sequence, and of nobody's.
    documents: Documents,
}

/// Which rows of a step each layer's cache has, and where caches are.
#[derive(PartialEq, Eq)]
struct Caches {
    /// None where a layer has no keys.
    rows: Vec<Option<usize>>,
    memory: Vec<usize>,
}

impl Step {
    /// Those of a layer with keys.
    pub(super) fn rows_of(&self, layer: usize) -> &PlacedRows {
        self.memory.rows(self.caches.rows[layer].expect("invariant: a layer with keys has rows"))
    }

    /// A text of one token for each row.
    pub(super) fn documents(&self) -> &Documents {
        &self.documents
    }
}

impl Recorder {
    pub(super) fn new(decoder: &Decoder) -> Self {
        Self { off: !decoder.repeats_steps(), ..Self::default() }
    }

    /// One that records nothing.
    pub(super) fn off() -> Self {
        Self { off: true, ..Self::default() }
    }

    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    pub(super) fn refusal(&self) -> Option<&NotRecorded> {
        self.refusal.as_ref()
    }

    fn refuse(&mut self, why: NotRecorded) {
        self.refusals += 1;
        self.off = self.refusals >= REFUSALS;
        (self.alike, self.refusal) = (0, Some(why));
    }

    /// Whether a step of so many rows is worth a recording.
    fn is_worth(&mut self, rows: usize) -> bool {
        if self.rows != rows {
            (self.rows, self.alike, self.recorded) = (rows, 0, None);
        }
        self.alike += 1;
        self.alike > BEFORE
    }
}

impl Decoder {
    /// Whether a step of decoding launches the same for every token, and no more of it is on the host than
    /// [`StepMemory`] takes.
    fn repeats_steps(&self) -> bool {
        let spec = &self.spec;
        let layers = spec.layers.iter().all(|layer| {
            !layer.lends && layer.chunk.is_none() && layer.cutoff.is_none() && layer.keys == KeysValues::Own
        });
        let turned_before = matches!(spec.qk_norm, Some(QkNorm::PerHeadRotated | QkNorm::PerHeadRotatedBare));
        let attention = !turned_before
            && spec.query_growth.is_none()
            && spec.slopes.is_empty()
            && spec.rounded_slopes.is_empty();
        let stream = spec.altup.is_none() && spec.per_layer.is_none();
        let adapters = self.prompt.is_none() && self.invocation.is_none() && self.mixed.is_none();
        // While one thread records, others may not ask the driver for memory.
        let alone = !self.shard.divided()
            && !self.shard.meets()
            && burnish_comm::local::ranks_here() <= 1
            && (0..self.parameters.registry().len()).all(|index| !self.parameters.gathers(index));
        layers && attention && stream && adapters && alone
    }
}

impl Sequences {
    /// A row for each sequence's next token, and rows of nobody: what each layer's cache makes of them, kinds of it once. None
    /// where a layer's keys and values are in no pages of a device, or its states cannot rest.
    fn step(&mut self, rows: usize) -> Option<(Caches, Vec<StepRows>)> {
        let paged = |cache: &Cache| !matches!(cache, Cache::Keys(cache) if cache.memory().is_none());
        if !self.caches.iter().all(paged) {
            return None;
        }
        // Before a token joins any keys, which no other step may let join once more.
        let memory: Option<Vec<usize>> = self.rows().map(|held| held.rest(rows)).collect();
        let (mut kinds, mut caches): (Vec<StepRows>, _) =
            (Vec::new(), Caches { rows: vec![], memory: memory? });
        for cache in &mut self.caches {
            let Cache::Keys(cache) = cache else {
                caches.rows.push(None);
                continue;
            };
            let own = cache.step(rows)?;
            let kind = kinds.iter().position(|kind| *kind == own).unwrap_or(kinds.len());
            if kind == kinds.len() {
                kinds.push(own);
            }
            caches.rows.push(Some(kind));
            caches.memory.extend(cache.memory()?);
        }
        Some((caches, kinds))
    }

    /// What layers have of each sequence that does not grow.
    fn rows(&mut self) -> impl Iterator<Item = &mut SequenceRows> {
        let scans = self.scans.iter_mut().flatten().flat_map(StateCache::rows);
        self.caches.iter_mut().flat_map(Cache::rows).chain(scans)
    }
}

impl Decoding<'_> {
    /// A step of one token of each sequence by a recording; none where it is to run as it is.
    pub(super) fn by_recording<S: AsRef<[u32]>>(
        &mut self,
        sequences: &mut Sequences,
        new: &[S],
    ) -> Result<Option<Logits>, ModelError> {
        let continues = |(&length, new): (&usize, &S)| length > 0 && new.as_ref().len() == 1;
        if self.recorder.off || new.is_empty() || !sequences.lengths.iter().zip(new).all(continues) {
            return Ok(None);
        }
        let rows = if new.len() <= FEW { new.len() } else { new.len().next_multiple_of(ROWS) };
        if !self.recorder.is_worth(rows) {
            return Ok(None);
        }
        let Some((caches, kinds)) = sequences.step(rows) else {
            self.recorder.off = true;
            return Ok(None);
        };
        let mut ids: Vec<u32> = new.iter().flat_map(AsRef::as_ref).copied().collect();
        let mut spans: Vec<Range<usize>> = sequences.lengths.iter().map(|&at| at..at + 1).collect();
        ids.resize(rows, 0);
        spans.resize(rows, 0..1);
        let positions = Arc::new(spans.iter().map(|span| span.start as u32).collect());
        let rotaries = self.rotaries(&spans, 0);
        let (decoder, counters) = (self.decoder, Arc::default());
        let x = decoder.embed_tokens(&Arc::new(ids), None, &positions, &self.pass, &counters, &|x| Ok(x))?;
        let x = decoder.embeddings_normed(x, &self.pass)?;
        let logits = match self.recorder.recorded.take() {
            Some(recorded) if recorded.step.caches == caches && recorded.step.memory.fits(&kinds) => {
                recorded.step.memory.write(&x, &kinds, &rotaries);
                match recorded.recording.run() {
                    Ok(()) => {
                        let logits = self.logits_of(&first_rows(&recorded.output, new.len())?, &self.pass)?;
                        self.recorder.recorded = Some(recorded);
                        self.recorder.steps += 1;
                        Some(logits)
                    }
                    Err(why) => {
                        self.recorder.refuse(why);
                        None
                    }
                }
            }
            stale => {
                drop(stale);
                let memory = StepMemory::new(&x, &kinds, &rotaries)
                    .expect("invariant: the stream is where pages of keys and values are");
                let documents = (0..rows).map(|row| row..row + 1).collect();
                self.recorded(sequences, Step { memory, caches, documents }, new.len())?
            }
        };
        if let Some(logits) = logits {
            sequences.said(new);
            return Ok(Some(logits));
        }
        // What the recording would have written may not be read again: all of it is computed anew.
        let whole: Vec<Vec<u32>> =
            sequences.ids.iter().zip(new).map(|(ids, new)| [ids, new.as_ref()].concat()).collect();
        let mut fresh = Sequences::new(decoder, new.len());
        let logits = self.extend(&mut fresh, &whole)?;
        *sequences = fresh;
        Ok(Some(logits))
    }

    /// Runs a step and records it; the logits of its first `count` rows, or none where it was spoiled.
    fn recorded(
        &mut self,
        sequences: &mut Sequences,
        step: Step,
        count: usize,
    ) -> Result<Option<Logits>, ModelError> {
        let run = |sequences: &mut Sequences| {
            let rows = Rows {
                pass: &self.pass,
                rotaries: step.memory.turns(),
                factors: &Factors::default(),
                given: None,
                acts: None,
                decodes: true,
                attending: Attending::Joined(&step),
            };
            let x = self.through_blocks(sequences, step.memory.x().clone(), &rows)?;
            // As what is chosen of rows is.
            let x = if x.dtype() == Some(Dtype::F32) { x } else { x.cast(FloatDType::F32) };
            self.before_head(x, &self.pass, linears_decode)
        };
        let held: Option<Vec<AnyTensor>> = sequences.rows().map(|rows| rows.duplicate()).collect();
        let held = held.expect("invariant: what rests has a copy");
        let rehearsal = step.memory.rehearse();
        let output = run(sequences)?;
        let logits = self.logits_of(&first_rows(&output, count)?, &self.pass)?;
        drop(output);
        // The same once more: keys and values come to the same places, and what goes on from itself goes on from where it was.
        for _ in 1..REHEARSED {
            sequences.rows().zip(&held).for_each(|(rows, held)| rows.restore(held));
            run(sequences)?;
        }
        drop(held);
        let rehearsal = match rehearsal {
            Ok(rehearsal) => rehearsal,
            Err(why) => {
                self.recorder.refuse(why);
                return Ok(Some(logits));
            }
        };
        match rehearsal.record(|| run(sequences)) {
            Ok((recording, output)) => {
                self.recorder.recorded = Some(Recorded { step, recording, output });
                Ok(Some(logits))
            }
            Err(why) => {
                self.recorder.refuse(why);
                Ok(None)
            }
        }
    }
}

/// The first rows of a matrix.
fn first_rows(x: &AnyTensor, count: usize) -> Result<AnyTensor, ModelError> {
    let rows = x.rank::<2>()?;
    if rows.dims()[0] == count {
        return Ok(x.clone());
    }
    Ok(AnyTensor::new(rows.narrow(0, 0, count)))
}
