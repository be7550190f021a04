//! The source of reference log-probabilities: a reference model, or values computed before the run.

use burnish_config::groups::{PrecomputeOptions, ReferenceOptions};
use burnish_data::ContentKey;
use burnish_zero::ShardedParams;

use crate::TrainError;
use crate::rank::Rank;
use crate::rank::resumed::Resumed;
use crate::reference::ref_log_probs_cache::Scored;
use crate::reference::{LazyReference, Reference};

/// What the reference says of each example: two sums.
pub(crate) type RefLogProbs = Vec<[f64; 2]>;

/// The reference, or what it said.
pub enum ReferenceState {
    With(Reference),
    Before { train: Scored, eval: Option<Scored> },
}

impl ReferenceState {
    /// The reference of a run that begins, or goes on; with `precompute_ref_log_probs` what it says of the training rows
    /// (`score` with `true`) and of those to evaluate on, if there are any.
    pub(crate) fn start(
        rank: &Rank<'_>,
        resumed: Option<&Resumed>,
        options: &PrecomputeOptions,
        score: impl Fn(&LazyReference<'_>, bool) -> Result<Option<Scored>, TrainError>,
    ) -> Result<Self, TrainError> {
        if !options.precompute_ref_log_probs {
            return Ok(Self::With(Reference::start(rank, resumed)?));
        }
        let reference = LazyReference::new(rank, resumed);
        let train = score(&reference, true)?.expect("invariant: there are training rows");
        let eval = score(&reference, false)?;
        // The ranks have summed their scores, so none still reads.
        rank.setup.reference.iter().for_each(|other| other.frozen.clear());
        Ok(Self::Before { train, eval })
    }

    /// What the reference says of `rows`, of the training rows or of those to evaluate on; `run` asks it.
    pub(crate) fn said(
        &self,
        rows: &[usize],
        trains: bool,
        run: impl FnOnce(&Reference) -> Result<RefLogProbs, TrainError>,
    ) -> Result<RefLogProbs, TrainError> {
        let of = |scored: &Scored| rows.iter().map(|&row| [scored.of(row)[0], scored.of(row)[1]]).collect();
        Ok(match self {
            Self::With(reference) => run(reference)?,
            Self::Before { train, .. } if trains => of(train),
            Self::Before { eval, .. } => eval.as_ref().map(of).unwrap_or_default(),
        })
    }

    /// Drops what passes have gathered, the policy's too.
    pub(crate) fn release(&self, rank: &Rank<'_>) {
        match self {
            Self::With(reference) => reference.release(rank),
            Self::Before { .. } => rank.store.release(),
        }
    }

    /// After `done` steps: see [`Reference::moved`].
    pub(crate) fn moved(
        &mut self,
        rank: &Rank<'_>,
        options: &ReferenceOptions,
        done: u64,
    ) -> Result<(), TrainError> {
        match self {
            Self::With(reference) => reference.moved(rank, options, done),
            Self::Before { .. } => Ok(()),
        }
    }

    /// What a checkpoint has to hold of it.
    pub(crate) fn store(&self, options: &ReferenceOptions) -> Option<&ShardedParams> {
        match self {
            Self::With(reference) => reference.store(options),
            Self::Before { .. } => None,
        }
    }
}

/// What `reference` says of `examples` rows, from disk where it has been said before; `said` asks it about some.
pub(crate) fn scored(
    rank: &Rank<'_>,
    reference: &LazyReference<'_>,
    options: &PrecomputeOptions,
    key: ContentKey,
    examples: usize,
    said: impl Fn(&Reference, &[usize]) -> Result<RefLogProbs, TrainError>,
) -> Result<Scored, TrainError> {
    let training = &rank.setup.options.training;
    let dir = options.precompute_ref_dir.clone().unwrap_or_else(|| training.output_dir.join("reference"));
    let size = options.precompute_ref_batch_size.unwrap_or(training.per_device_train_batch_size);
    Scored::new(rank, &dir, key, (examples, 2, size), |rows| {
        let reference = reference.get()?;
        let said = said(reference, rows)?;
        reference.release(rank);
        Ok(said.concat())
    })
}
