//! `Mixed`: which columns of its adapters' activations of rank r a sequence has, where a decoder has several
//! ([`MixedAdapters`](crate::MixedAdapters)).

use std::ops::Range;

use burn::tensor::Device;
use burnish_ops::AnyTensor;

use crate::{Decoder, ForwardContext, Mode, ModelError, Tokens};

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

    /// Passes that score: with adapters, and of the base alone.
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

    /// A pass that scores documents, each by its adapter of [several](Self::adapters); of the base where none has one.
    ///
    /// # Errors
    /// If an adapter is not there.
    pub fn adapted_pass(&self, adapters: Vec<Option<usize>>) -> Result<ForwardContext, ModelError> {
        adapters.iter().enumerate().try_for_each(|(row, &adapter)| self.check_adapter(row, adapter))?;
        let [pass, bare] = self.decoding_passes();
        Ok(if adapters.iter().all(Option::is_none) { bare } else { pass.by_document(adapters) })
    }

    /// What multiplies activations of a pass over documents, where it has several adapters.
    pub(crate) fn acts_of_documents(
        &self,
        tokens: &Tokens,
        pass: &ForwardContext,
        device: &Device,
    ) -> Result<Option<AnyTensor>, ModelError> {
        let Some(mixed) = self.mixed.as_ref().filter(|_| pass.adapters()) else { return Ok(None) };
        let adapters = pass.adapters_of_documents().unwrap_or_default();
        if adapters.len() != tokens.documents.len() {
            let (got, documents) = (adapters.len(), tokens.documents.len());
            return Err(ModelError::AdaptersOfDocuments { got, documents });
        }
        let lengths = tokens.documents.iter().map(ExactSizeIterator::len);
        Ok(mixed.acting(lengths.zip(adapters.iter().copied()), device))
    }
}
