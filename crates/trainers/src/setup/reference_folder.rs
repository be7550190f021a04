//! Another folder's model to compare a policy with.

use std::path::Path;

use burnish_core::{Compute, Dtype, Parameter, QuantizeOnLoad};
use burnish_data::Tokenizer;
use burnish_models::{ExpertSharding, ModelAxes, ModelFolder, ModelPlan, Tuning};

use crate::TrainError;
use crate::setup::frozen::Frozen;

/// A model that is not the policy's start, checked against it.
pub(crate) struct ReferenceFolder {
    pub(crate) folder: ModelFolder,
    /// Whether it moves towards the policy: then it is stored and sharded as what trains.
    pub(crate) moves: bool,
    pub(crate) frozen: Frozen,
    /// What its products multiply: the policy's.
    compute: Compute,
    /// Whether its frozen matrices rest in fp32: as the policy's.
    pub(crate) widened: bool,
    /// How its frozen matrices rest: as the policy's.
    quantization: Option<QuantizeOnLoad>,
    /// Whether ranks that share layers have whole experts: as the policy's.
    experts: ExpertSharding,
}

impl ReferenceFolder {
    /// Opens the folder.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub(crate) fn open(
        path: &Path,
        moves: bool,
        compute: Compute,
        quantization: Option<QuantizeOnLoad>,
        experts: ExpertSharding,
    ) -> Result<Self, TrainError> {
        let (folder, frozen) = (ModelFolder::open(path)?, Frozen::default());
        Ok(Self { folder, moves, frozen, compute, widened: false, quantization, experts })
    }

    /// That its ids stand for the tokens of `tokenizer`, and where it moves its parameters are those of `policy`.
    ///
    /// # Errors
    /// If they do not.
    pub(crate) fn check(&self, tokenizer: &Tokenizer, policy: &ModelFolder) -> Result<(), TrainError> {
        let path = self.folder.path();
        let other = |what: String| TrainError::OtherTokens { path: path.to_path_buf(), what };
        if let Some((id, text)) = tokenizer.first_unlike(&Tokenizer::from_folder(path)?) {
            return Err(other(format!("id {id} is {text:?} in the policy's, and is not there")));
        }
        let (vocab, ids) = (self.folder.spec().vocab, tokenizer.ids());
        if vocab < ids {
            return Err(other(format!("the model knows {vocab} ids, and the tokenizer has {ids}")));
        }
        if self.moves {
            let (theirs, ours) =
                (self.planned(Dtype::F32)?, ModelPlan::new(policy, &Tuning::Full, Dtype::F32, 0)?);
            let of = |p: Option<&Parameter>| {
                p.map_or_else(|| "nothing more".to_owned(), |p| format!("`{}` {:?}", p.name, p.shape))
            };
            let (theirs, ours) = (theirs.registry(), ours.registry());
            for index in 0..theirs.len().max(ours.len()) {
                let [got, expected] = [theirs, ours].map(|r| of((index < r.len()).then(|| r.at(index))));
                if got != expected {
                    return Err(TrainError::OtherShapes { path: path.to_path_buf(), got, expected });
                }
            }
        }
        Ok(())
    }

    /// Its parameters: in `trained` where they move, frozen and as they are stored otherwise.
    pub(crate) fn planned(&self, trained: Dtype) -> Result<ModelPlan<'_>, TrainError> {
        let tuning = if self.moves { Tuning::Full } else { Tuning::None };
        let planned = ModelPlan::new(&self.folder, &tuning, trained, 0)?;
        let planned = planned.computing(self.compute).sharing_experts(self.experts).widening(self.widened);
        match self.quantization.filter(|_| !self.moves) {
            Some(quantization) => Ok(planned.quantized(quantization, trained)?),
            None => Ok(planned),
        }
    }

    /// The same divided over the ranks of `axes`.
    pub(crate) fn planned_over(&self, trained: Dtype, axes: &ModelAxes) -> Result<ModelPlan<'_>, TrainError> {
        let planned = self.planned(trained)?;
        Ok(if axes.all.size() == 1 { planned } else { planned.over_axes(axes)? })
    }
}

/// Whether the model without its adapter is as the whole was at the start: the adapter is fresh and changes nothing, and
/// what it stands on stands still.
pub(crate) fn is_base(plan: Option<&burnish_peft::LoraPlan>, loaded: bool) -> bool {
    let stands = |plan: &burnish_peft::LoraPlan| {
        let magnitudes = plan.sites.iter().any(|site| site.magnitude_name.is_some());
        let unchanged = plan.changes.iter().all(burnish_peft::ChangeSite::starts_as_base);
        let starts_as_base = !plan.changes_base() && !plan.starts_from_quantization();
        starts_as_base && !magnitudes && unchanged && plan.biases.is_empty() && plan.prompt.is_none()
    };
    !loaded && plan.is_some_and(stands)
}
