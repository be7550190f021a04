//! The model in training as a sampler.

use std::sync::Arc;

use burnish_config::values::RolloutQuantization;
use burnish_models::{Completion, Decoder, Generation, LocalParams, int8_for_generation};
use burnish_ops::{AnyTensor, Parameters};
use burnish_zero::Stage;

use crate::TrainError;
use crate::inference::together;
use crate::rank::Rank;

/// The decoder that samples, adapters active: the one that trains, or one with weights of its own for as long as it samples.
/// At stage 3, where the first has a part of every weight only, the second holds them whole (DeepSpeed's
/// `ds3_gather_for_generation`); with `rollout_quantization` it has them in fewer bits.
pub(super) enum Engine<'a> {
    InPlace(&'a Decoder),
    Own(Box<Decoder>),
}

impl<'a> Engine<'a> {
    /// Every data-parallel rank calls it: at stage 3 each weight travels once.
    pub(super) fn of(rank: &'a Rank<'_>, quantization: RolloutQuantization) -> Result<Self, TrainError> {
        let sharded = rank.plan.policy().stage == Stage::Three && rank.dp.size() > 1;
        if !sharded && quantization == RolloutQuantization::None {
            return Ok(Self::InPlace(&rank.model.decoder));
        }
        let planned = rank.setup.planned_over(&rank.axes, rank.data.size())?;
        let registry = planned.local_registry();
        let value = |index| match quantization {
            RolloutQuantization::None => Ok(rank.store.read(index)),
            RolloutQuantization::Int8 => int8_for_generation(registry.at(index), rank.store.read(index)),
        };
        let values = (0..registry.len()).map(value).collect::<Result<Vec<AnyTensor>, _>>()?;
        rank.store.release();
        rank.store.check()?;
        let parameters = Arc::new(LocalParams::new(registry, values));
        Ok(Self::Own(Box::new(planned.into_model(parameters).decoder)))
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
            Self::Own(decoder) => decoder.as_ref(),
        };
        together(&rank.axes.all, decoder, prompts, settings, &mut |_, _| true)
    }
}
