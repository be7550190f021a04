//! `Mixed`: which columns of its adapters' activations of rank r a sequence has, where a decoder has several
//! ([`MixedAdapters`](crate::MixedAdapters)).

use std::ops::Range;

use burn::tensor::Device;
use burnish_ops::AnyTensor;

use crate::{Decoder, ForwardContext, Mode, ModelError};

/// Of each adapter its columns; side by side they are all.
#[derive(Clone, Debug)]
pub(crate) struct Mixed(pub(crate) Vec<Range<usize>>);

impl Mixed {
    /// What multiplies activations, `[tokens, rank]`, of sequences of so many tokens with their adapters; `None` where all of
    /// them have all columns, as adapters run that wait for nothing.
    pub(crate) fn acting(
        &self,
        sequences: impl Iterator<Item = (usize, Option<usize>)> + Clone,
        device: &Device,
    ) -> Option<AnyTensor> {
        if self.0.len() == 1 && sequences.clone().all(|(_, adapter)| adapter.is_some()) {
            return None;
        }
        let (rank, mut factors) = (self.0.last().map_or(0, |columns| columns.end), Vec::new());
        for (tokens, adapter) in sequences {
            let own = adapter.map_or(0..0, |adapter| self.0[adapter].clone());
            let row = (0..rank).map(|column| f32::from(u8::from(own.contains(&column))));
            factors.extend(row.cycle().take(tokens * rank));
        }
        let tokens = factors.len() / rank.max(1);
        Some(AnyTensor::from_elements(factors, &[tokens, rank], device))
    }
}

impl Decoder {
    /// How many adapters a [`Sequence`](crate::Sequence) chooses from ([`MixedAdapters`](crate::MixedAdapters)); 0 where
    /// all that is generated has the model's own, if it has one.
    #[must_use]
    pub fn adapters(&self) -> usize {
        self.mixed.as_ref().map_or(0, |mixed| mixed.0.len())
    }

    /// The passes of a [`Decoding`](crate::Decoding): with adapters, and of the base alone.
    pub(crate) fn decoding_passes(&self) -> [ForwardContext; 2] {
        [true, false].map(|adapters| ForwardContext::new(self.parameters.clone(), Mode::Score, adapters))
    }

    /// That `adapter` of prompt `row` is there.
    pub(crate) fn check_adapter(&self, row: usize, adapter: Option<usize>) -> Result<(), ModelError> {
        match adapter.filter(|&adapter| adapter >= self.adapters()) {
            Some(got) => Err(ModelError::NoAdapter { row, got, adapters: self.adapters() }),
            None => Ok(()),
        }
    }

    /// That a pass over documents knows which adapter is meant.
    pub(crate) fn check_one_adapter(&self, pass: &ForwardContext) -> Result<(), ModelError> {
        if self.mixed.is_none() || !pass.adapters() {
            return Ok(());
        }
        let (key, got) = ("adapters".to_owned(), self.adapters().to_string());
        let supported =
            "in generation alone, where sequences name one each; load the adapter on its own to score";
        Err(ModelError::Unsupported { key, got, supported })
    }
}
