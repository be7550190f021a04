//! Models and adapters as GGUF files.
//!
//! A file is written tensor by tensor and compared with its source before it gets its name: each tensor's values, then
//! the logits of a model that reads the file.

mod adapter;
mod arch;
mod metadata;
mod names;
mod streamed;

use std::path::Path;
use std::sync::Arc;

use burnish_core::work::{Unit, Work};
use burnish_core::{Dtype, Parameter, Registry};
use burnish_gguf::{
    GgufError, GgufFile, GgufWriter, Mix, OutType, TensorSpec, TensorType, Value, blocks, vocabulary,
};
use burnish_peft::{AdapterFolder, LoraPlan};

use self::arch::Arch;
use self::names::{Part, Tensors};
use self::streamed::{Failed, FileParameters, FolderParameters};
use crate::files::folder::ModelFolder;
use crate::files::load::{Model, ModelPlan, Tuning};
use crate::files::pieces::Stacks;
use crate::{Blueprint, Decoder, ModelError, Spec};

pub use self::adapter::GgufAdapterExport;

/// A model on its way to a GGUF file: a folder's, with an adapter folded in where there is one.
pub struct GgufExport {
    folder: Arc<ModelFolder>,
    model: Model,
    arch: Arch,
    tensors: Tensors,
    out: OutType,
    /// Whether a head that is the embedding in the folder is written on its own.
    untied: bool,
    failed: Failed,
}

/// A tensor of a file, and where it comes from.
struct Planned {
    spec: TensorSpec,
    from: From,
}

enum From {
    /// A part of the parameter at an index.
    Parameter(usize, Part),
    /// These values.
    Values(Vec<f32>),
}

/// How far a file's tensors lie from their source's.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorError {
    /// The parameter that lies furthest.
    pub name: String,
    /// The root of its squared errors' sum over that of its squares.
    pub relative: f64,
}

impl TensorError {
    pub(in crate::files) fn none() -> Self {
        Self { name: String::new(), relative: 0.0 }
    }

    /// Keeps what lies further than all before; fails, by the name of `what`, where it lies further than `bound`.
    pub(in crate::files) fn note(
        &mut self,
        name: &str,
        what: &str,
        relative: f64,
        bound: f64,
    ) -> Result<(), ModelError> {
        if relative > bound || relative.is_nan() {
            return Err(ModelError::GgufDiffers { what: what.to_owned(), relative, bound });
        }
        if relative >= self.relative {
            *self = Self { name: name.to_owned(), relative };
        }
        Ok(())
    }
}

impl GgufExport {
    /// A model folder's export, with an adapter folded in; nothing of the weights is read yet.
    ///
    /// # Errors
    /// If the family is not mapped, llama.cpp computes something else of the model, or folder and adapter do not fit.
    pub fn new(
        folder: ModelFolder,
        adapter: Option<&AdapterFolder>,
        out: OutType,
    ) -> Result<Self, ModelError> {
        let arch = Arch::of(folder.spec())?;
        let folder = Arc::new(folder);
        let tuning = adapter.map_or(Tuning::None, Tuning::Adapter);
        let plan = ModelPlan::new(&folder, &tuning, Dtype::F32, 0)?;
        plan.plan().map_or(Ok(()), LoraPlan::check_merge)?;
        let failed = Failed::default();
        let parameters = FolderParameters::new(&folder, &plan, failed.clone())?;
        let model = plan.into_model(Arc::new(parameters));
        let tied = model.plan.as_ref().is_some_and(|plan| model.unties(plan));
        let untied = tied || arch.name == "olmo2" && folder.spec().tied;
        if tied && !arch.has_head() {
            let what = "a head that the adapter makes another than the embedding".to_owned();
            return Err(ModelError::GgufComputes { arch: arch.name, what });
        }
        let tensors = Tensors::new(folder.spec(), arch);
        tensors.check(model.parameters.registry(), model.base)?;
        Ok(Self { folder, model, arch, tensors, out, untied, failed })
    }

    /// What whoever exports should know of the file.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        self.arch.notes(self.folder.spec())
    }

    /// The model that is exported, which reads its weights as it needs them.
    #[must_use]
    pub fn source(&self) -> &Decoder {
        &self.model.decoder
    }

    /// Fails if reading the source's weights did, in [`Self::source`] or since.
    ///
    /// # Errors
    /// The first error of reading.
    pub fn check(&self) -> Result<(), ModelError> {
        self.failed.check()
    }

    fn registry(&self) -> &Registry {
        self.model.parameters.registry()
    }

    fn spec(&self) -> &Spec {
        self.folder.spec()
    }

    /// Writes the file, all but its name. `name` is `general.name`; `pre` is llama.cpp's name of how the tokenizer cuts
    /// texts, where it is said.
    ///
    /// # Errors
    /// If the tokenizer has no form in llama.cpp, a weight is not finite, or a file cannot be read or written.
    pub fn write(&self, path: &Path, name: &str, pre: Option<&str>) -> Result<GgufWriter, ModelError> {
        let planned = self.planned();
        let specs: Vec<TensorSpec> = planned.iter().map(|own| own.spec.clone()).collect();
        let mut writer = GgufWriter::create(path, &self.metadata(name, pre, &specs)?, specs)?;
        let mut stacks = Stacks::new(planned.iter().filter_map(|own| match own.from {
            From::Parameter(index, _) => Some(index),
            From::Values(_) => None,
        }));
        let work = Work::begin(format!("writing {name}"), Unit::Tensors, planned.len() as u64);
        for own in &planned {
            let values = match &own.from {
                From::Values(values) => values.clone(),
                From::Parameter(index, part) => {
                    let of = |values: &Vec<f32>| part_of(values, self.registry().at(*index), part);
                    stacks.next(*index, || self.values(*index), of)?
                }
            };
            writer.write(&encoded(&own.spec, &values)?)?;
            work.advance(1);
        }
        writer.finish()?;
        Ok(writer)
    }

    /// A parameter's values with the adapter folded in, rounded no further than the source is.
    fn values(&self, index: usize) -> Result<Vec<f32>, ModelError> {
        let values = self.model.merged(index, Dtype::F32)?;
        self.failed.check()?;
        if let Some((at, value)) = values.not_finite() {
            return Err(ModelError::NotFinite { name: self.registry().at(index).name.clone(), value, at });
        }
        Ok(values.to_f32())
    }

    /// The tensors of the file.
    fn planned(&self) -> Vec<Planned> {
        let registry = self.registry();
        let written = |parameter: &Parameter| parameter.alias_of.is_none() || self.untied;
        let mix = self.mix();
        let mut planned: Vec<Planned> = Vec::new();
        for (tensor, values) in metadata::factors(self.spec()) {
            let spec =
                TensorSpec { name: tensor.to_owned(), shape: vec![values.len()], stored: TensorType::F32 };
            planned.push(Planned { spec, from: From::Values(values) });
        }
        for (index, parameter) in registry.iter().take(self.model.base).enumerate() {
            if !written(parameter) {
                continue;
            }
            for part in self.tensors.of(&parameter.name).unwrap_or_default() {
                let mut shape = parameter.shape.clone();
                if let (Some(rows), Some(own)) = (&part.rows, shape.get_mut(1)) {
                    *own = rows.len();
                }
                let stored = mix.stored(&part.tensor, &shape);
                let spec = TensorSpec { name: part.tensor.clone(), shape, stored };
                planned.push(Planned { spec, from: From::Parameter(index, part.clone()) });
            }
        }
        planned
    }

    fn mix(&self) -> Mix {
        let spec = self.spec();
        let grouped = spec.layers.len() == 80 && spec.heads != spec.kv_heads;
        Mix {
            out: self.out,
            layers: spec.layers.len(),
            experts: spec.experts.as_ref().map_or(0, |experts| experts.count),
            tied: spec.tied && !self.untied,
            is_70b: grouped && ["llama", "qwen2"].contains(&self.arch.name),
        }
    }

    fn metadata(
        &self,
        name: &str,
        pre: Option<&str>,
        specs: &[TensorSpec],
    ) -> Result<Vec<(String, Value)>, ModelError> {
        let mut elements = (0, 0);
        for spec in specs {
            let own: u64 = spec.shape.iter().map(|&dim| dim as u64).product();
            elements.0 += own;
            elements.1 += if spec.name.contains("_exps.") { own } else { 0 };
        }
        let experts = self.spec().experts.as_ref().map(|experts| {
            let each = elements.1 / experts.count.max(1) as u64;
            (experts.count, elements.0 - elements.1 + each)
        });
        let mut all = vec![
            ("general.architecture".to_owned(), Value::from(self.arch.name)),
            ("general.type".to_owned(), Value::from("model")),
            ("general.name".to_owned(), Value::from(name)),
            ("general.size_label".to_owned(), Value::from(metadata::size_label(elements.0, experts))),
        ];
        all.extend(metadata::metadata(self.spec(), self.arch, self.folder.config(), self.out)?);
        all.extend(vocabulary::metadata(&vocabulary::Request {
            folder: self.folder.tokenizer_path(),
            vocab: self.spec().vocab,
            config: &self.folder.config().json,
            pre,
            no_space_prefix: self.arch.adds_one,
        })?);
        Ok(all)
    }

    /// The model that a file of this export holds.
    ///
    /// # Errors
    /// If it is damaged.
    pub fn read_back(&self, path: &Path) -> Result<ReadBack, ModelError> {
        let file = GgufFile::open(path)?;
        let spec = Spec { tied: self.spec().tied && !self.untied, ..self.spec().clone() };
        let blueprint = Blueprint::new(spec)?;
        let failed = Failed::default();
        let parameters = Arc::new(FileParameters {
            file,
            tensors: Tensors::new(self.spec(), self.arch),
            registry: blueprint.registry().clone(),
            failed: failed.clone(),
        });
        Ok(ReadBack { decoder: blueprint.into_decoder(parameters.clone()), parameters, failed })
    }

    /// Compares every tensor of a file with its source.
    ///
    /// # Errors
    /// If one lies further than its type rounds; if a file cannot be read.
    pub fn compare(&self, back: &ReadBack) -> Result<TensorError, ModelError> {
        let mut worst = TensorError::none();
        let registry = &back.parameters.registry;
        let work = Work::begin("reading the file back", Unit::Tensors, registry.len() as u64);
        for (index, parameter) in registry.iter().enumerate().filter(|(_, own)| own.alias_of.is_none()) {
            let from = self.registry().index_of(&parameter.name);
            let from = from.ok_or_else(|| ModelError::UnknownParameter { name: parameter.name.clone() })?;
            let relative = relative_error(&self.values(from)?, &back.parameters.values(index)?);
            let mut bound = 0.0_f64;
            for part in self.tensors.of(&parameter.name)? {
                bound = bound.max(rounds(back.parameters.file.info(&part.tensor)?.stored));
            }
            worst.note(&parameter.name, &parameter.name, relative, bound)?;
            work.advance(1);
        }
        Ok(worst)
    }
}

/// A file's model.
pub struct ReadBack {
    decoder: Decoder,
    parameters: Arc<FileParameters>,
    failed: Failed,
}

impl ReadBack {
    /// The model, which reads the file's tensors as it needs them.
    #[must_use]
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// Fails if reading the file's tensors did.
    ///
    /// # Errors
    /// The first error of reading.
    pub fn check(&self) -> Result<(), ModelError> {
        self.failed.check()
    }
}

/// A part of a parameter, as its tensor has it.
fn part_of(values: &[f32], parameter: &Parameter, part: &Part) -> Vec<f32> {
    let shape = &parameter.shape;
    let mut own = match &part.rows {
        None => values.to_vec(),
        Some(rows) => {
            let width: usize = shape[2..].iter().product();
            let matrices = values.chunks_exact(shape[1] * width);
            matrices.flat_map(|matrix| &matrix[rows.start * width..rows.end * width]).copied().collect()
        }
    };
    part.change.forward(&mut own, shape[0]);
    own
}

/// A tensor's bytes.
fn encoded(spec: &TensorSpec, values: &[f32]) -> Result<Vec<u8>, ModelError> {
    let bytes = blocks::encode(spec.stored, values);
    let bytes =
        bytes.ok_or_else(|| GgufError::NotDecoded { name: spec.name.clone(), got: spec.stored.name() })?;
    if spec.stored == TensorType::F16 {
        let back = blocks::decode(spec.stored, &bytes).unwrap_or_default();
        if let Some(at) = back.iter().position(|value| !value.is_finite()) {
            let value = values[at];
            return Err(ModelError::GgufHalf { name: spec.name.clone(), value, at });
        }
    }
    Ok(bytes)
}

pub(in crate::files) fn relative_error(source: &[f32], file: &[f32]) -> f64 {
    let square = |value: f64| value * value;
    let apart: f64 = source.iter().zip(file).map(|(a, b)| square(f64::from(*a) - f64::from(*b))).sum();
    let all: f64 = source.iter().map(|value| square(f64::from(*value))).sum();
    if source.len() != file.len() {
        f64::INFINITY
    } else if apart == 0.0 {
        0.0
    } else {
        (apart / all).sqrt()
    }
}

/// The most that a type's rounding leaves of a tensor as its relative error: far less than what another order of rows, a
/// missing factor or another tensor makes.
fn rounds(stored: TensorType) -> f64 {
    match stored {
        TensorType::F32 => 1e-6,
        TensorType::F16 => 1e-3,
        TensorType::BF16 => 4e-3,
        TensorType::Q8_0 => 0.02,
        TensorType::Q6_K => 0.06,
        TensorType::Q5_K | TensorType::Q5_0 => 0.12,
        _ => 0.25,
    }
}
