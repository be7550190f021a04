//! QK-Clip after a step: heads whose attention logits grew too large are scaled down on every rank alike.

use std::sync::Arc;

use burnish_comm::{Bucket, Reduction};
use burnish_models::{ForwardContext, LogitPeaks, Mode, QkClip};
use burnish_optim::Optimizer;

use crate::TrainError;
use crate::rank::Rank;

/// What a run with QK-Clip watches and scales.
pub(crate) struct LogitClip {
    pub(crate) clip: QkClip,
    pub(crate) peaks: Arc<LogitPeaks>,
    /// The largest logit that is left alone.
    pub(crate) tau: f32,
}

/// What was found and done in a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clipped {
    /// The largest attention logit of the step, over all ranks.
    pub(crate) largest: f32,
    /// Heads above the threshold, of the whole model.
    pub(crate) heads: usize,
}

impl Rank<'_> {
    /// A training pass, watched where logits are clipped.
    pub(crate) fn pass(&self, mode: Mode) -> ForwardContext {
        let pass = self.model.decoder.pass(mode);
        match &self.logit_clip {
            Some(clip) => pass.with_logit_peaks(clip.peaks.clone()),
            None => pass,
        }
    }

    /// Forgets what a step without an update has seen.
    pub(crate) fn forget_peaks(&self) {
        if let Some(clip) = &self.logit_clip {
            drop(clip.peaks.take());
        }
    }

    /// Scales this rank's rows by what all ranks have seen in the step, after its update and before it is published.
    pub(crate) fn clip_logits(&self, optimizer: &mut Optimizer) -> Result<Option<Clipped>, TrainError> {
        let Some(LogitClip { clip, peaks, tau }) = &self.logit_clip else { return Ok(None) };
        let peaks = Bucket::new(peaks.take());
        let peaks = self.world.all_reduce(peaks, Reduction::Max, "largest attention logits").wait()?;
        let clip = clip.factors(peaks.as_slice(), *tau)?;
        for factors in &clip.rows {
            let rows = self.plan.rows(factors.index, self.dp.rank());
            if !rows.is_empty() {
                optimizer.change(factors.index, &*self.store, |value| factors.scaled(value, rows.clone()))?;
            }
        }
        Ok(Some(Clipped { largest: clip.largest, heads: clip.heads }))
    }
}
