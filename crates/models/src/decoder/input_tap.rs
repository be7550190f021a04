//! `InputTap`: what hears the inputs of a model's linear layers in a pass that scores.

use std::sync::Arc;

use burnish_ops::{AnyTensor, Linear, LinearInput, OpsError};

use crate::decoder::layers::{Block, BlockTensors, Ssd};

/// What hears the inputs of linear layers of blocks, layer by layer as they run.
pub trait InputTap: Send + Sync {
    /// Whether it wants what the layer with this weight (its index in the registry) reads.
    fn wants(&self, weight: usize) -> bool;
    /// Hears the input `[tokens, in]` of layers that read it together, in float32.
    ///
    /// # Errors
    /// If the values cannot be read.
    fn hear(&self, weights: &[usize], x: &AnyTensor) -> Result<(), OpsError>;
}

/// A tap on the linear layers of one block.
pub(crate) struct BlockTap<'a> {
    tap: Arc<dyn InputTap>,
    layers: Vec<(&'a Linear, usize)>,
}

impl<'a> BlockTap<'a> {
    pub(crate) fn new(tap: Arc<dyn InputTap>, block: &Block, tensors: &'a BlockTensors) -> Self {
        let latent = block.latent.iter().flat_map(|own| {
            let query = own.query.iter().map(|(layer, _)| layer);
            query.chain(std::iter::once(&own.layer))
        });
        let of_latent = tensors.latent.iter().flat_map(|own| {
            let query = own.query.iter().map(|(layer, _)| layer);
            query.chain(std::iter::once(&own.layer))
        });
        let ssd = block.ssd.iter().flat_map(Ssd::layers);
        let of_ssd = tensors.ssd.iter().flat_map(Ssd::layers);
        let layers = latent
            .chain(&block.qkv)
            .chain(block.narrow.iter().flatten())
            .chain(&block.o)
            .chain(ssd)
            .chain(&block.up)
            .chain(&block.down);
        let linears = of_latent
            .chain(&tensors.qkv)
            .chain(tensors.narrow.iter().flatten())
            .chain(&tensors.o)
            .chain(of_ssd)
            .chain(&tensors.up)
            .chain(&tensors.down);
        Self { tap, layers: linears.zip(layers.map(|layer| layer.parts.weight)).collect() }
    }

    /// Passes on what these layers read, where it is wanted.
    pub(crate) fn hear(&self, input: &LinearInput, layers: &[Linear]) -> Result<(), OpsError> {
        let weight = |layer: &Linear| self.layers.iter().find(|(own, _)| std::ptr::eq(*own, layer));
        let weights: Vec<usize> = layers
            .iter()
            .filter_map(weight)
            .map(|(_, index)| *index)
            .filter(|&w| self.tap.wants(w))
            .collect();
        if weights.is_empty() { Ok(()) } else { self.tap.hear(&weights, &input.read()?) }
    }
}
