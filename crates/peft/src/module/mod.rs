//! LoRA on any Burn module: attach, train, save, load, merge.
//!
//! [`attach`] puts Burn's own `LoraAdapter` on the weights that a [`LoraConfig`] targets and freezes the rest, so the
//! module keeps its type and its `forward`, and Burn's optimizers and `Learner` train the factors. Targets, ranks, scales
//! and initial values are PEFT's; [`save`] writes PEFT's folder and [`load`] reads it, whoever wrote it.
//!
//! # Names and shapes
//!
//! A module's name is its path in Burn's traversal, so a module whose fields are named as in `transformers`
//! (`model.layers.0.self_attn.q_proj`) gives folders that PEFT and burnish's programs load. Burn holds `[in, out]` and
//! files hold `[out, in]`: factors and whole weights are turned on the way. Norms are `weight` and `bias` in files.
//! Linear layers (`burn::nn::Linear`) and embeddings (`burn::nn::Embedding`) can be adapted.
//!
//! # What an adapter on a weight cannot do
//!
//! Burn composes `W + s A B` and multiplies by that: a dense gradient of each adapted weight exists in backward. The
//! adapter sees the weight and not the input, so `lora_dropout` is refused when training begins (and has no effect on an
//! adapter that was trained with it elsewhere); so are `use_dora`, `lora_bias`, and initial values that are made of the base.
//! burnish's own models have all of them.

mod files;
mod survey;

use std::collections::{HashMap, HashSet};

use burn::module::{LoraAdapter, Module, Param, Reparameterizer};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use serde_json::Value;

use crate::{Factor, LoraConfig, LoraPlan, LoraSite, PeftError, Purpose, init_lora_weights};
use survey::{Survey, turned};

pub use files::{load, save};

/// Puts a fresh adapter on the weights of `module` that `config` targets and freezes everything else but what
/// `modules_to_save` and `bias` name. Initial values are a function of `seed` and names.
///
/// # Errors
/// If the configuration is not valid or asks for what an adapter on a weight cannot do, a pattern matches nothing, or the
/// module has adapters already.
pub fn attach<M: Module>(module: M, config: &LoraConfig, seed: u64) -> Result<M, PeftError> {
    refuse(config)?;
    let refused =
        |key: &str, value: String, mend| Err(PeftError::UnsupportedKey { key: key.into(), value, mend });
    if config.dropout() != 0.0 {
        let mend = "on a Burn module the adapter is part of the weight and sees no input: set it to 0";
        return refused("lora_dropout", config.lora_dropout.to_string(), mend);
    }
    if config.init_lora_weights.method().is_some_and(crate::Init::reads_base) {
        let value = serde_json::to_string(&config.init_lora_weights).unwrap_or_default();
        let mend = "on a Burn module use true, false, \"gaussian\" or \"orthogonal\"";
        return refused("init_lora_weights", value, mend);
    }
    let survey = Survey::of(&module)?;
    let plan = survey.plan(config, Purpose::Create)?;
    let mut adapters = Adapters::new(&survey, &plan);
    for site in &plan.sites {
        let factor = |factor: Factor| {
            let elements = 0..site.shape(factor).iter().product();
            init_lora_weights(site, factor, &config.init_lora_weights, seed, elements)
        };
        adapters.site(site, &factor(Factor::A)?, &factor(Factor::B)?);
    }
    Ok(module.apply_reparameterization(adapters))
}

/// The module with `W + s A B` in each adapted weight's place, and no adapters. Starts from the base as it is: there is
/// no unmerge.
#[must_use]
pub fn merge<M: Module>(module: M) -> M {
    module.materialize()
}

/// What `W + s A B` cannot express, whatever the factors.
fn refuse(config: &LoraConfig) -> Result<(), PeftError> {
    let mend =
        "an adapter on a Burn module is W + s A B; merge it into its base with PEFT first, or train without";
    if config.method.is_some() {
        let (key, value) = ("peft_type".to_owned(), config.peft_type.clone());
        return Err(PeftError::UnsupportedKey { key, value, mend });
    }
    config.check_weights("an adapter on a Burn module")?;
    let tying = config.ensures_weight_tying();
    for (key, on) in
        [("use_dora", config.use_dora), ("lora_bias", config.lora_bias), ("ensure_weight_tying", tying)]
    {
        if on {
            let value = Value::Bool(true).to_string();
            return Err(PeftError::UnsupportedKey { key: key.into(), value, mend });
        }
    }
    Ok(())
}

/// Adapters by the paths of the weights that they go on, and what becomes of the base's own parameters.
struct Adapters {
    factors: HashMap<String, Factors>,
    /// Paths of base parameters that train.
    trained: HashSet<String>,
    /// New values of base parameters, by path, as Burn holds them.
    values: HashMap<String, Vec<f32>>,
    /// Whether B stays as it is.
    keeps_b: bool,
}

/// An adapter as Burn holds it.
struct Factors {
    /// `[in, rank]`.
    a: TensorData,
    /// `[rank, out]`.
    b: TensorData,
    scale: f64,
}

impl Adapters {
    fn new(survey: &Survey, plan: &LoraPlan) -> Self {
        let trained = plan.base_parameters().map(|(name, _)| survey.path(name).to_owned()).collect();
        Self { factors: HashMap::new(), trained, values: HashMap::new(), keeps_b: plan.config.keeps_b() }
    }

    /// The adapter of a site, from PEFT's factors.
    fn site(&mut self, site: &LoraSite, a: &[f32], b: &[f32]) {
        let turn = |values: &[f32], factor| {
            let [rows, columns] = [site.shape(factor)[0], site.shape(factor)[1]];
            TensorData::new(turned(values, columns), [columns, rows])
        };
        let (a, b) = (turn(a, Factor::A), turn(b, Factor::B));
        let factors = Factors { a, b, scale: site.scale };
        self.factors.insert(site.base_weight(), factors);
    }
}

impl Reparameterizer for Adapters {
    type Reparam = LoraAdapter;

    fn reparameterize<const D: usize>(
        &mut self,
        path: &str,
        param: Param<Tensor<D>>,
    ) -> (Param<Tensor<D>>, Option<LoraAdapter>) {
        let param = match self.values.remove(path) {
            Some(values) => param.map(|old| {
                let data = TensorData::new(values, old.dims());
                Tensor::from_data(data, (&old.device(), old.dtype()))
            }),
            None => param,
        };
        let base = param.set_require_grad(self.trained.contains(path));
        let adapter = self.factors.remove(path).map(|Factors { a, b, scale }| {
            let value = base.base();
            let (device, dtype) = (value.device(), value.dtype());
            let b = leaf(b, &device, dtype).set_require_grad(!self.keeps_b);
            LoraAdapter { a: leaf(a, &device, dtype), b, scale }
        });
        (base, adapter)
    }
}

/// A factor, in the dtype of the weight that it is added to.
fn leaf(data: TensorData, device: &Device, dtype: DType) -> Param<Tensor<2>> {
    let dtype = if dtype.is_float() { FloatDType::from(dtype) } else { FloatDType::F32 };
    Param::from_tensor(Tensor::from_data(data, (device, DType::from(dtype))))
}
