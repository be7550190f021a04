//! LoRA adapters as GGUF files of their own.

use std::path::Path;
use std::sync::Arc;

use burnish_core::Dtype;
use burnish_gguf::{GgufFile, GgufWriter, OutType, TensorSpec, TensorType, Value};
use burnish_peft::{AdapterFolder, AdapterTensors, Factor, LoraPlan, LoraSite, ModuleKind};
use burnish_weight_files::HostTensor;

use super::arch::Arch;
use super::names::{Change, Tensors};
use super::streamed::{Failed, FolderParameters};
use super::{TensorError, encoded, metadata, relative_error, rounds};
use crate::files::folder::ModelFolder;
use crate::files::load::{Model, ModelPlan, Tuning};
use crate::{Decoder, ModelError};

/// A LoRA adapter on its way to a GGUF file, which llama.cpp loads beside its base (`--lora`).
pub struct GgufAdapterExport<'a> {
    folder: Arc<ModelFolder>,
    adapter: &'a AdapterFolder,
    plan: LoraPlan,
    tensors: AdapterTensors,
    names: Tensors,
    arch: Arch,
    out: OutType,
    failed: Failed,
    model: Model,
}

impl<'a> GgufAdapterExport<'a> {
    /// The adapter of a folder over its base.
    ///
    /// # Errors
    /// If the family is not mapped; if the adapter is more than llama.cpp's factors: it changes embeddings that are the head
    /// too, experts, biases, magnitudes or whole modules.
    pub fn new(folder: ModelFolder, adapter: &'a AdapterFolder, out: OutType) -> Result<Self, ModelError> {
        let arch = Arch::of(folder.spec())?;
        if matches!(out, OutType::Q4_0 | OutType::Q4KM) {
            return Err(ModelError::GgufAdapter {
                what: format!("factors in {out}"),
                mend: "f32, f16, bf16 or q8_0",
            });
        }
        let folder = Arc::new(folder);
        let planned = ModelPlan::new(&folder, &Tuning::Adapter(adapter), Dtype::F32, 0)?;
        let refused = |what: &str| {
            Err(ModelError::GgufAdapter {
                what: what.to_owned(),
                mend: "fold it into its base: leave --adapter_only out",
            })
        };
        let Some(plan) = planned.plan().cloned() else { return refused("no LoRA") };
        if plan.own_quantization().is_some() {
            return refused("an adapter of a base that is quantised as it says (loftq)");
        }
        plan.config.check_weights("an adapter of GGUF")?;
        if !plan.changes.is_empty() || plan.sites.is_empty() {
            return refused(&format!("an adapter of {}", plan.config.peft_type));
        }
        if !plan.saved.is_empty() || !plan.biases.is_empty() {
            return refused("an adapter with whole modules or biases beside it (modules_to_save, bias)");
        }
        if plan.changes_base() {
            return refused("an adapter that changes its base (PiSSA, OLoRA)");
        }
        for site in &plan.sites {
            if site.has_bias || site.magnitude_name.is_some() {
                return refused("an adapter with magnitudes or biases (use_dora, lora_bias)");
            }
            if site.kind.is_parameter() {
                return refused("an adapter of experts (target_parameters)");
            }
            let ends = [folder.spec().names.embed, folder.spec().names.head];
            if folder.spec().tied && ends.contains(&site.module.as_str()) {
                return refused("an adapter of an embedding that is the head, too");
            }
        }
        let tensors = adapter.load(&plan)?;
        let failed = Failed::default();
        let parameters = FolderParameters::new(&folder, &planned, failed.clone())?;
        let model = planned.into_model(Arc::new(parameters));
        let names = Tensors::new(folder.spec(), arch);
        Ok(Self { folder, adapter, plan, tensors, names, arch, out, failed, model })
    }

    /// Base and adapter, which read the base's weights as they need them.
    #[must_use]
    pub fn source(&self) -> &Decoder {
        &self.model.decoder
    }

    /// Fails if reading the base's weights did.
    ///
    /// # Errors
    /// The first error of reading.
    pub fn check(&self) -> Result<(), ModelError> {
        self.failed.check()
    }

    fn alpha(&self) -> f64 {
        self.plan.config.lora_alpha.as_f64().unwrap_or_default()
    }

    /// llama.cpp scales every module by `alpha / rank`; what is scaled otherwise is so in its factor.
    fn factor(&self, site: &LoraSite) -> f64 {
        site.scale / (self.alpha() / site.rank as f64)
    }

    /// A factor's tensor: its name, shape, and values as the file has them.
    fn planned(&self, site: &LoraSite, factor: Factor) -> Result<(TensorSpec, Vec<f32>), ModelError> {
        let unknown = || ModelError::UnknownParameter { name: site.name(factor).to_owned() };
        let tensor = self.tensors.parameters.get(site.name(factor)).ok_or_else(unknown)?;
        let (mut shape, mut values) = (site.shape(factor), tensor.to_f32());
        let part = &self.names.of(&site.base_weight())?[0];
        let end = if factor == Factor::A { "a" } else { "b" };
        if factor == Factor::B {
            let by = self.factor(site);
            if (by - 1.0).abs() > 1e-9 {
                values.iter_mut().for_each(|value| *value = (f64::from(*value) * by) as f32);
            }
            part.change.forward(&mut values, shape[0]);
        } else if site.kind == ModuleKind::Embedding {
            values = turned(&values, shape[1]);
            shape.reverse();
        }
        let name = format!("{}.lora_{end}", part.tensor);
        let most = self.out.most();
        let row = shape.last().copied().unwrap_or(1);
        let stored = if row.is_multiple_of(most.block()) { most } else { TensorType::F16 };
        Ok((TensorSpec { name, shape, stored }, values))
    }

    fn sites(&self) -> impl Iterator<Item = (&LoraSite, Factor)> {
        self.plan.sites.iter().flat_map(|site| [(site, Factor::A), (site, Factor::B)])
    }

    /// Writes the file, all but its name; `name` is `general.name`.
    ///
    /// # Errors
    /// If a factor is not finite, or a file cannot be written.
    pub fn write(&self, path: &Path, name: &str) -> Result<GgufWriter, ModelError> {
        let mut planned = Vec::new();
        for (site, factor) in self.sites() {
            planned.push(self.planned(site, factor)?);
        }
        let elements = self.plan.sites.iter().map(|site| (site.out * site.input) as u64).sum();
        let all = vec![
            ("general.architecture".to_owned(), Value::from(self.arch.name)),
            ("general.type".to_owned(), Value::from("adapter")),
            ("adapter.type".to_owned(), Value::from("lora")),
            ("general.name".to_owned(), Value::from(name)),
            ("general.size_label".to_owned(), Value::from(metadata::size_label(elements, None))),
            ("adapter.lora.alpha".to_owned(), Value::F32(self.alpha() as f32)),
            ("general.quantization_version".to_owned(), Value::U32(metadata::QUANTIZATION_VERSION)),
        ];
        let specs = planned.iter().map(|(spec, _)| spec.clone()).collect();
        let mut writer = GgufWriter::create(path, &all, specs)?;
        for (spec, values) in &planned {
            if let Some(at) = values.iter().position(|value| !value.is_finite()) {
                let (name, value) = (spec.name.clone(), f64::from(values[at]));
                return Err(ModelError::NotFinite { name, value, at });
            }
            writer.write(&encoded(spec, values)?)?;
        }
        writer.finish()?;
        Ok(writer)
    }

    /// Base and the adapter that a file of this export holds, and how far its factors lie from their source's.
    ///
    /// # Errors
    /// If it is damaged, or a factor lies further than its type rounds.
    pub fn read_back(&self, path: &Path) -> Result<(Decoder, TensorError), ModelError> {
        let file = GgufFile::open(path)?;
        let mut worst = TensorError::none();
        let mut values = Vec::new();
        for (site, factor) in self.sites() {
            let (spec, source) = self.planned(site, factor)?;
            let mut own = file.values(&spec.name)?;
            let relative = relative_error(&source, &own);
            let bound = rounds(file.info(&spec.name)?.stored);
            worst.note(site.name(factor), &spec.name, relative, bound)?;
            let shape = site.shape(factor);
            if factor == Factor::B {
                let change: Change = self.names.of(&site.base_weight())?[0].change;
                change.backward(&mut own, shape[0]);
                let by = self.factor(site);
                own.iter_mut().for_each(|value| *value = (f64::from(*value) / by) as f32);
            } else if site.kind == ModuleKind::Embedding {
                own = turned(&own, shape[0]);
            }
            values.push((site.name(factor).to_owned(), HostTensor::from_f32(&own, &shape, Dtype::F32)?));
        }
        let planned = ModelPlan::new(&self.folder, &Tuning::Adapter(self.adapter), Dtype::F32, 0)?;
        let parameters = FolderParameters::new(&self.folder, &planned, self.failed.clone())?.with(values);
        Ok((planned.into_model(Arc::new(parameters)).decoder, worst))
    }
}

/// A matrix with rows of `width`, turned.
fn turned(values: &[f32], width: usize) -> Vec<f32> {
    let rows = values.len() / width.max(1);
    (0..width).flat_map(|column| (0..rows).map(move |row| values[row * width + column])).collect()
}
