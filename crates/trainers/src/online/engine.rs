//! The model in training as a sampler.

use std::sync::Arc;

use burnish_models::{Completion, Decoder, Generation, LocalParams};
use burnish_ops::{AnyTensor, Parameters};
use burnish_zero::Stage;

use crate::TrainError;
use crate::inference::together;
use crate::rank::Rank;

/// The decoder that samples: the one that trains, or at stage 3, where that has a part of every weight only, one that
/// holds them whole for as long as it samples (DeepSpeed's `ds3_gather_for_generation`). Adapters are active.
pub(super) enum Engine<'a> {
    InPlace(&'a Decoder),
    Gathered(Box<Decoder>),
}

impl<'a> Engine<'a> {
    /// Every data-parallel rank calls it: at stage 3 each weight travels once.
    pub(super) fn of(rank: &'a Rank<'_>) -> Result<Self, TrainError> {
        if rank.plan.policy().stage != Stage::Three || rank.dp.size() == 1 {
            return Ok(Self::InPlace(&rank.model.decoder));
        }
        let planned = rank.setup.planned_over(&rank.tp, rank.dp.size())?;
        let registry = planned.local_registry();
        let values: Vec<AnyTensor> = (0..registry.len()).map(|index| rank.store.read(index)).collect();
        rank.store.release();
        rank.store.check()?;
        let parameters = Arc::new(LocalParams::new(registry, values));
        Ok(Self::Gathered(Box::new(planned.into_model(parameters).decoder)))
    }

    /// As [`Decoder::generate`], on the ranks that share layers: they choose the same tokens.
    pub(super) fn sample(
        &self,
        rank: &Rank<'_>,
        prompts: &[Vec<u32>],
        settings: &Generation,
    ) -> Result<Vec<Completion>, TrainError> {
        let decoder = match self {
            Self::InPlace(decoder) => decoder,
            Self::Gathered(decoder) => decoder.as_ref(),
        };
        together(&rank.tp, decoder, prompts, settings, &mut |_, _| true)
    }
}
