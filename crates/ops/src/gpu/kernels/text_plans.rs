//! Plans of texts that kernels walk, on the device.

use std::ops::Range;
use std::sync::Arc;

use burn::tensor::Device;
use burnish_gpu_kernels::TextPlan;

use super::OnDevice;
use crate::once_for::OnceFor;

/// Plans of the texts of a row, one for all layers that walk them alike.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextPlans(OnceFor<Kept>);

#[derive(Clone, Debug)]
struct Kept {
    chunk: usize,
    /// Of texts whose states are held, none.
    parents: Option<Arc<[Option<usize>]>>,
    tokens: usize,
    plan: OnDevice<TextPlan>,
}

impl TextPlans {
    /// That of texts that continue their `parents`, or go on from states that are held, in chunks of so many tokens.
    pub(super) fn of(
        &self,
        chunk: usize,
        texts: &[Range<usize>],
        parents: Option<&[Option<usize>]>,
        (tokens, device): (usize, &Device),
    ) -> OnDevice<TextPlan> {
        let fits = |kept: &Kept| {
            (kept.chunk, kept.tokens, kept.parents.as_deref()) == (chunk, tokens, parents)
                && kept.plan.words.device() == *device
        };
        let new = || {
            let plan = match parents {
                Some(parents) => TextPlan::new(texts, parents, tokens, chunk),
                None => TextPlan::new(texts, &[], tokens, chunk).held(),
            };
            let plan = OnDevice::new(plan, TextPlan::words, device);
            Kept { chunk, parents: parents.map(Into::into), tokens, plan }
        };
        self.0.get(fits, new).plan
    }
}
