//! Stage 3 inside a module's own forward: parameters that are gathered where they are used.

use std::sync::Arc;

use burn::module::{Module, Param, Reparameterization, Reparameterizer};
use burn::tensor::Tensor;
use burnish_ops::{AnyTensor, Parameters, recomputed};

use super::fill::{Place, Places, shaped};
use crate::ShardedParams;

/// Makes the parameters of a pass's module gather themselves.
pub(super) struct GatherOnUse<'a> {
    pub(super) places: &'a Places,
    pub(super) store: &'a Arc<ShardedParams>,
    /// Whether this parameter does.
    pub(super) gathers: &'a dyn Fn(&Place) -> bool,
    pub(super) training: bool,
}

/// A parameter whose value is gathered whenever its module asks for it.
#[derive(Module, Debug)]
pub(super) struct OnUse {
    #[module(skip)]
    store: Arc<ShardedParams>,
    #[module(skip)]
    index: usize,
    #[module(skip)]
    shape: Vec<usize>,
}

impl Reparameterizer for GatherOnUse<'_> {
    type Reparam = OnUse;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<OnUse>) {
        let place = self.places.at(path).filter(|place| (self.gathers)(place));
        let Some(place) = place else { return (param, None) };
        // Says the shape and holds one element.
        let mut shape = [0; D];
        shape.copy_from_slice(&place.shape);
        let stand_in = Tensor::<D>::zeros([1; D], &self.store.device().clone()).expand(shape);
        let stand_in = match self.training && place.trainable {
            true => stand_in.autodiff().require_grad(),
            false => stand_in,
        };
        let (store, index, shape) = (Arc::clone(self.store), place.index, place.shape.clone());
        (Param::initialized(place.id, stand_in), Some(OnUse { store, index, shape }))
    }
}

impl Reparameterization for OnUse {
    const NAME: &'static str = "gathered";

    fn apply<const D: usize>(&self, base: Tensor<D>) -> Tensor<D> {
        let anchor = AnyTensor::new(base);
        if !anchor.is_tracked() {
            return shaped(&self.store.read(self.index), &self.shape);
        }
        let (values, sums, index) = (Arc::clone(&self.store), Arc::clone(&self.store), self.index);
        let value = Arc::new(move || values.read(index));
        let weight = recomputed(&anchor, value, move |gradient| sums.accumulate(index, gradient));
        let weight = weight.unwrap_or_else(|error| panic!("a parameter gathered where it is used: {error}"));
        shaped(&weight, &self.shape)
    }
}
