//! Experts of the few tokens of a decoding step: each of a token's rows by its own expert's matrices, which are read where they lie, in
//! fewer bits too.

use burn::tensor::{DType, Tensor};
use burnish_core::FEW_PLACES;

use super::grouped::{Layer, ids_of, multiplied};
use crate::experts::Experts;
use crate::gpu::kernels::{
    FewFinish, FewPlaces, expert_gate, few_places, few_places_by_codes, weighed_places,
};
use crate::gpu::{to, wide};
use crate::{AnyTensor, OpsError, Routing};

const KERNEL: &str = "invariant: a kernel computes it on this device";

impl Layer {
    /// Rows of places by the layer with its bias; `None` where its codes are no strip.
    fn of_places(&self, x: &Tensor<2>, of: FewPlaces<'_>) -> Result<Option<Tensor<2>>, OpsError> {
        let low = self.low.as_ref().map(|low| {
            let finish = FewFinish::scaled(self.low_factors, low.scale);
            (few_places(x, &low.a, of, self.low_factors, &finish).expect(KERNEL), &low.b)
        });
        let bias = self.bias.as_ref();
        let packed = self.weight.as_packed().is_some();
        if !packed && self.factors == self.low_factors {
            let more = low.as_ref().map(|(p, q)| (p, *q));
            let finish = FewFinish { more, bias, ..FewFinish::scaled(self.rows(), 1.0) };
            return Ok(few_places(x, &self.weight.rank()?, of, self.factors, &finish));
        }
        // The adapter is a product of its own.
        let add = low.map(|(p, q)| {
            let (own, finish) = (FewPlaces { each: 1, ..of }, FewFinish::scaled(DType::F32, 1.0));
            few_places(&p, q, own, self.low_factors, &finish).expect(KERNEL)
        });
        let finish = FewFinish { bias, add: add.as_ref(), ..FewFinish::scaled(self.rows(), 1.0) };
        if packed {
            return Ok(few_places_by_codes(&to(x.clone(), self.factors), &self.weight, of, &finish));
        }
        Ok(few_places(x, &self.weight.rank()?, of, self.factors, &finish))
    }
}

/// See [`crate::experts_decode`]; `None` where there is no kernel, or there are more places.
pub(super) fn experts(
    x: &AnyTensor,
    routing: &Routing,
    experts: &Experts,
) -> Option<Result<AnyTensor, OpsError>> {
    let places = routing.experts.len();
    let compute = multiplied(x, experts)?;
    if places > FEW_PLACES {
        return None;
    }
    let run = || -> Result<Option<AnyTensor>, OpsError> {
        let ([count, ..], weights) = (experts.sizes()?, wide::<2>(&routing.weights.plain())?);
        let [up, down] = [&experts.gate_up, &experts.down].map(|layer| {
            Layer::new(layer, &layer.parts().map(|_, part| part.plain()), (compute, experts.widened_together))
        });
        let (up, down) = (up?, down?);
        let chosen = ids_of(&routing.experts, x);
        let of = FewPlaces { chosen: &chosen, experts: count, each: weights.dims()[1] };
        let Some(gate_up) = up.of_places(&to(x.plain().rank()?, up.rows()), of)? else { return Ok(None) };
        let z = expert_gate(&gate_up, experts.gate, down.rows()).expect(KERNEL);
        let Some(out) = down.of_places(&z, FewPlaces { each: 1, ..of })? else { return Ok(None) };
        Ok(Some(AnyTensor::new(weighed_places(&out, &weights).expect(KERNEL))))
    };
    run().transpose()
}
