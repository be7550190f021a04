//! Weights of a base that an adapter quantises in several iterations (LoftQ; Li et al. 2023, algorithm 1): `Q = q(W - s B A)` and
//! the factors nearest to `W - Q`, in turn.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use burnish_core::Dtype;
use burnish_peft::{Decomposition, Init, Loftq, LoraPlan, LoraSite, ModuleKind, decompose};
use burnish_quant::Quantized;
use burnish_weight_files::HostTensor;

use crate::files::folder::quantize;
use crate::files::packed::widened;
use crate::{ModelError, ModelPlan};

/// A weight in fewer bits and the factors made with it.
pub(super) struct Alternated {
    pub(super) bits: Quantized,
    pub(super) factors: Arc<Decomposition>,
}

/// Weights that were quantised so, by module.
#[derive(Default)]
pub(super) struct AlternatedWeights(Mutex<BTreeMap<String, Arc<Alternated>>>);

impl ModelPlan<'_> {
    /// The site whose weight this base parameter is, where the adapter says how it is quantised.
    pub(super) fn own_quantization(&self, name: &str) -> Option<(&LoraSite, Loftq)> {
        let plan = self.plan.as_ref()?;
        let own = plan.own_quantization()?;
        let site = plan.site(name.strip_suffix(".weight")?)?;
        matches!(site.kind, ModuleKind::Linear | ModuleKind::Head).then_some((site, own))
    }

    /// The weight of a site and its factors after all iterations, which need the whole of it; the same for every seed.
    pub(super) fn alternated(&self, site: &LoraSite, own: Loftq) -> Result<Arc<Alternated>, ModelError> {
        let mut all = self.alternated.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&site.module) {
            return Ok(known.clone());
        }
        let index = self.index_of(&site.base_weight())?;
        let parameter = self.registry().at(index);
        let quantization = parameter.quantization.unwrap_or_else(|| own.quantization());
        let unknown = || ModelError::UnknownParameter { name: site.a_name.clone() };
        let original = self.original(index, 0..site.out)?;
        let weight = original.to_f32();
        let mut bits = quantize(&original, quantization)?;
        let mut made: Option<Decomposition> = None;
        for iteration in 0..own.iterations {
            if let Some(made) = &made {
                let mut rest = weight.clone();
                made.take_from(site, 0..site.out, &mut rest);
                bits = quantize(&HostTensor::from_f32(&rest, &original.shape, Dtype::F32)?, quantization)?;
            }
            if self.plan.as_ref().is_some_and(LoraPlan::is_loaded) && iteration + 1 == own.iterations {
                // Its factors are in the file.
                break;
            }
            // Whatever it is read in: as in PEFT the codes do not depend on it.
            let read = widened(&bits, Dtype::F32).to_f32();
            let lost: Vec<f32> = weight.iter().zip(&read).map(|(w, read)| w - read).collect();
            made = Some(decompose(site, &Init::Loftq.into(), &lost, 0).ok_or_else(unknown)?);
        }
        let factors = Arc::new(made.unwrap_or_default());
        let alternated = Arc::new(Alternated { bits, factors });
        all.insert(site.module.clone(), alternated.clone());
        Ok(alternated)
    }
}
