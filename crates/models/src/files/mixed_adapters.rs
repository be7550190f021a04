//! `MixedAdapters`: adapters of one base of which each sequence of a batch has one or none.

use burnish_core::Dtype;
use burnish_peft::{AdapterFolder, AdapterTensors, LoraPlan, PeftError, Purpose, SideBySide};

use crate::{Blueprint, ModelError, ModelFolder, ModelPlan, SCORING_TASK};

/// Adapters that one pass over their base generates with (S-LoRA; Sheng et al. 2023, arXiv:2311.03285): LoRA and rsLoRA on
/// linear layers of blocks, of any ranks, targets and scales.
///
/// ```no_run
/// # use std::path::Path;
/// # use burn::tensor::Device;
/// # use burnish_models::{Generation, MixedAdapters, ModelFolder};
/// # use burnish_peft::AdapterFolder;
/// let folder = ModelFolder::open("path/to/model").unwrap();
/// let mut adapters = MixedAdapters::new(&folder);
/// for name in ["french", "formal"] {
///     adapters.add(name, &AdapterFolder::open(Path::new("adapters").join(name)).unwrap()).unwrap();
/// }
/// let model = adapters.plan().unwrap().resident(&Device::flex()).unwrap().0.decoder;
/// let prompts = vec![vec![1, 2, 3]; 3];
/// // The base, and each adapter.
/// let of = [None, Some(0), Some(1)];
/// let done = model.generate_adapted(&prompts, &of, &Generation::default(), &mut |_, _| true).unwrap();
/// assert_eq!(done.len(), 3);
/// ```
pub struct MixedAdapters<'a> {
    folder: &'a ModelFolder,
    parts: Vec<(LoraPlan, AdapterTensors)>,
}

impl<'a> MixedAdapters<'a> {
    /// None yet.
    #[must_use]
    pub fn new(folder: &'a ModelFolder) -> Self {
        Self { folder, parts: Vec::new() }
    }

    /// Adds an adapter, called `name` in errors; its number.
    ///
    /// # Errors
    /// [`PeftError::NotMixed`] if it needs a pass of its own; those of loading it.
    pub fn add(&mut self, name: &str, adapter: &AdapterFolder) -> Result<usize, ModelError> {
        let refused = |key| Err(PeftError::NotMixed { adapter: name.to_owned(), key }.into());
        if adapter.config.task_type.as_deref() == Some(SCORING_TASK) {
            return refused("task_type");
        }
        let spec = self.folder.spec();
        if self.folder.names_in(adapter) != spec.names {
            return refused("names of modules");
        }
        let mut blueprint = Blueprint::new(spec.clone())?;
        let plan = blueprint.attach(&adapter.config, Purpose::Load, self.folder.model_type())?;
        SideBySide::check(name, &plan)?;
        if blueprint.outside_blocks(&plan).is_some() {
            return refused("target_modules");
        }
        let tensors = adapter.load_part(&plan, |module| spec.has(module))?;
        self.parts.push((plan, tensors));
        Ok(self.parts.len() - 1)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The sum of their greatest ranks: what each adapted layer computes more for every token.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.parts.iter().map(|(plan, _)| SideBySide::rank_of(plan)).sum()
    }

    /// The base with all of them.
    ///
    /// # Errors
    /// If there is none, or the folder does not fit.
    pub fn plan(&self) -> Result<ModelPlan<'a>, ModelError> {
        let parts: Vec<_> = self.parts.iter().map(|(plan, tensors)| (plan, tensors)).collect();
        let SideBySide { plan, tensors, columns } = SideBySide::new(&parts)?;
        let mut blueprint = Blueprint::new(self.folder.spec().clone())?;
        let base = blueprint.registry().len();
        let plan = blueprint.attach(&plan.config, Purpose::Load, self.folder.model_type())?;
        blueprint.mix(columns);
        ModelPlan::of(self.folder, blueprint, (base, Some(plan), tensors), (Dtype::F32, 0))
    }
}
