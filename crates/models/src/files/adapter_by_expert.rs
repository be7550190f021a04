//! An adapter with factors of each expert, as vLLM reads them: `...experts.3.gate_proj.lora_A.weight`.
//!
//! PEFT has the factors of all experts of a parameter in two matrices (`target_parameters`): A with the rows of each expert
//! one after another, B with the columns of each rank by expert. Gate and up share a parameter, and so A.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use burnish_core::Dtype;
use burnish_peft::{AdapterFolder, AdapterTensors, Factor, LoraPlan, LoraSite, ModuleKind, merge_site};
use burnish_weight_files::{FolderWriter, HostTensor, TensorSpec, WeightFolder};
use serde_json::json;

use crate::ModelError;
use crate::files::folder::ModelFolder;
use crate::files::gguf::{TensorError, relative_error};
use crate::files::load::{ModelPlan, Tuning};
use crate::files::pieces::Piece;

/// The file's name without its ending, as PEFT has it.
const STEM: &str = "adapter_model";
/// What PEFT puts before a module's name.
const PREFIX: &str = "base_model.model.";

/// An adapter on its way to a folder with factors of each expert.
pub struct AdapterByExpert {
    base: String,
    plan: LoraPlan,
    tensors: AdapterTensors,
    /// Of each expert's parameter the files' matrices.
    pieces: BTreeMap<String, Vec<Piece>>,
    /// Routers by the names that the files have them by.
    routers: BTreeMap<String, String>,
    /// The greatest rank, which all factors get: vLLM has one.
    rank: usize,
}

/// A module with factors of its own: `[rank, in]` and `[out, rank]`.
struct Module {
    name: String,
    a: HostTensor,
    b: HostTensor,
}

impl AdapterByExpert {
    /// The adapter of a folder over its base.
    ///
    /// # Errors
    /// If the adapter has more than factors of linear layers, routers and experts; if files of the family have no matrices
    /// of each expert.
    pub fn new(folder: &ModelFolder, adapter: &AdapterFolder) -> Result<Self, ModelError> {
        let planned = ModelPlan::new(folder, &Tuning::Adapter(adapter), Dtype::F32, 0)?;
        let refused = |what: &str| {
            let mend = "merge it into its base instead (burnish merge)";
            Err(ModelError::ByExpert { what: what.to_owned(), mend })
        };
        let Some(plan) = planned.plan().cloned() else { return refused("no LoRA") };
        plan.config.check_weights("factors of each expert")?;
        if !plan.changes.is_empty() || plan.sites.is_empty() {
            return refused(&format!("an adapter of {}", plan.config.peft_type));
        }
        if !plan.saved.is_empty() || !plan.biases.is_empty() || plan.changes_base() {
            return refused(
                "an adapter that has or changes weights of the base (modules_to_save, bias, PiSSA, OLoRA)",
            );
        }
        let (mut pieces, mut routers) = (BTreeMap::new(), BTreeMap::new());
        for site in &plan.sites {
            if site.has_bias || site.magnitude_name.is_some() {
                return refused("an adapter with magnitudes or biases (use_dora, lora_bias)");
            }
            let parameter = planned.registry().get(&site.base_weight());
            match (site.kind, parameter) {
                (ModuleKind::Embedding, _) => return refused("an adapter of an embedding"),
                (ModuleKind::Experts(_), Some(parameter)) => {
                    let own = folder.spec().names.pieces(parameter);
                    if own.is_empty() {
                        return refused(&format!(
                            "`{}`, whose experts files have in one tensor,",
                            site.module
                        ));
                    }
                    pieces.insert(site.module.clone(), own);
                }
                (ModuleKind::Parameter, _) => {
                    let theirs = folder.spec().names.of_mixture_in_files(&site.module);
                    routers.insert(site.module.clone(), theirs.unwrap_or_else(|| site.module.clone()));
                }
                _ => {}
            }
        }
        let tensors = adapter.load(&plan)?;
        let rank = plan.sites.iter().map(|site| site.rank).max().unwrap_or(1);
        let base = plan.config.base_model_name_or_path.clone().unwrap_or_default();
        Ok(Self { base, plan, tensors, pieces, routers, rank })
    }

    /// Writes `adapter_config.json` and the factors in `dtype`. Each module's scale is in its B, so that `lora_alpha / r` is
    /// 1 for all of them.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, writer: &mut FolderWriter, dtype: Dtype) -> Result<(), ModelError> {
        let mut factors: BTreeMap<String, HostTensor> = BTreeMap::new();
        let mut targets = BTreeSet::new();
        for site in &self.plan.sites {
            for module in self.modules(site)? {
                targets.insert(module.name.rsplit('.').next().unwrap_or_default().to_owned());
                factors.insert(named(&module.name, "A"), module.a.cast(dtype));
                factors.insert(named(&module.name, "B"), module.b.cast(dtype));
            }
        }
        let config = json!({
            "base_model_name_or_path": self.base, "bias": "none", "fan_in_fan_out": false, "inference_mode": true,
            "init_lora_weights": true, "lora_alpha": self.rank, "lora_dropout": 0.0, "modules_to_save": null,
            "peft_type": "LORA", "r": self.rank, "target_modules": targets, "task_type": "CAUSAL_LM",
            "use_dora": false, "use_rslora": false,
        });
        writer.json("adapter_config.json", &config)?;
        let specs: Vec<TensorSpec> = factors
            .iter()
            .map(|(name, tensor)| TensorSpec::new(name.clone(), dtype, &tensor.shape))
            .collect();
        // An adapter has no index of shards.
        writer.set_max_shard_size(u64::MAX);
        writer.tensors_from::<ModelError>(STEM, &specs, |spec| {
            Ok(Cow::Borrowed(&factors[spec.name.as_str()].bytes[..]))
        })
    }

    /// Reads what `writer` has written and compares what each module adds to its weight with what the adapter adds there.
    ///
    /// # Errors
    /// If one lies further than `dtype` rounds; if the file cannot be read.
    pub fn compare(&self, writer: &FolderWriter, dtype: Dtype) -> Result<TensorError, ModelError> {
        let file = format!("{STEM}.safetensors");
        let path = writer.written().find(|(name, _)| *name == file).map(|(_, path)| path);
        self.compare_file(&path.ok_or_else(|| ModelError::Missing { path: file.into() })?, dtype)
    }

    fn compare_file(&self, path: &Path, dtype: Dtype) -> Result<TensorError, ModelError> {
        let written = WeightFolder::open(path)?;
        let bound = if dtype == Dtype::F32 { 1e-5 } else { 1e-2 };
        let mut worst = TensorError::none();
        for site in &self.plan.sites {
            // What a merge adds, by its own arithmetic, onto nothing.
            let shape = match site.kind {
                ModuleKind::Experts(count) => vec![count, site.out, site.input],
                _ => vec![site.out, site.input],
            };
            let nothing = HostTensor::zeros(Dtype::F32, &shape);
            let added =
                merge_site(site, &nothing, None, |factor| &self.tensors.parameters[site.name(factor)])?;
            let added = added.weight.to_f32();
            let matrix = site.out * site.input;
            for (name, at, rows) in self.parts(site) {
                let factor = |end: &str| -> Result<Vec<f32>, ModelError> {
                    Ok(written.read(&named(&name, end))?.to_f32())
                };
                let (a, b) = (factor("A")?, factor("B")?);
                let mut product = vec![0.0; rows.len() * site.input];
                for (out, row) in product.chunks_exact_mut(site.input).enumerate() {
                    for k in 0..self.rank {
                        let by = b[out * self.rank + k];
                        row.iter_mut().zip(&a[k * site.input..]).for_each(|(sum, a)| *sum += by * a);
                    }
                }
                let own = &added[at * matrix..][rows.start * site.input..rows.end * site.input];
                worst.note(&name, &name, relative_error(own, &product), bound)?;
            }
        }
        Ok(worst)
    }

    /// Modules of a site: their names, which expert's matrix, and which rows of it.
    fn parts(&self, site: &LoraSite) -> Vec<(String, usize, std::ops::Range<usize>)> {
        let without = |name: &str| name.strip_suffix(".weight").unwrap_or(name).to_owned();
        match self.pieces.get(&site.module) {
            Some(pieces) => {
                pieces.iter().map(|piece| (without(&piece.name), piece.at, piece.rows.clone())).collect()
            }
            None => {
                let name = self.routers.get(&site.module).unwrap_or(&site.module);
                vec![(without(name), 0, 0..site.out)]
            }
        }
    }

    /// A site's modules with their factors.
    fn modules(&self, site: &LoraSite) -> Result<Vec<Module>, ModelError> {
        let values = |factor: Factor| -> Result<Vec<f32>, ModelError> {
            let unknown = || ModelError::UnknownParameter { name: site.name(factor).to_owned() };
            Ok(self.tensors.parameters.get(site.name(factor)).ok_or_else(unknown)?.to_f32())
        };
        let (a, b) = (values(Factor::A)?, values(Factor::B)?);
        let (rank, count) = (site.rank, site.kind.matrices());
        let module = |(name, at, rows): (String, usize, std::ops::Range<usize>)| {
            // Ranks beyond the site's are zeros.
            let mut own_a = vec![0.0; self.rank * site.input];
            own_a[..rank * site.input].copy_from_slice(&a[at * rank * site.input..][..rank * site.input]);
            let mut own_b = vec![0.0; rows.len() * self.rank];
            for (out, row) in rows.clone().zip(own_b.chunks_exact_mut(self.rank)) {
                for (k, value) in row.iter_mut().take(rank).enumerate() {
                    *value = (f64::from(b[(out * rank + k) * count + at]) * site.scale) as f32;
                }
            }
            Ok(Module {
                name,
                a: HostTensor::from_f32(&own_a, &[self.rank, site.input], Dtype::F32)?,
                b: HostTensor::from_f32(&own_b, &[rows.len(), self.rank], Dtype::F32)?,
            })
        };
        self.parts(site).into_iter().map(module).collect()
    }
}

fn named(module: &str, end: &str) -> String {
    format!("{PREFIX}{module}.lora_{end}.weight")
}
