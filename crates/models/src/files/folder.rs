//! Hugging Face model folders: read slice-wise into stored dtypes, written so that Transformers loads them.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use burn::tensor::{Bytes, DType, Device, TensorData};
use burnish_core::{Dtype, Parameter, Quantization, Region, Registry, Role, RouterScores, Scheme};
use burnish_ops::AnyTensor;
use burnish_peft::AdapterFolder;
use burnish_quant::Quantized;
use burnish_weight_files::{FolderWriter, HostTensor, TensorSpec, WeightFileError, WeightFolder};
use half::{bf16, f16};
use serde_json::{Map, Value, json};

use crate::decoder::adapter::SCORING_TASK;
use crate::decoder::blueprint::is_correction;
use crate::error::WeightFault;
use crate::files::packed::{self, Declared, PackedFault, Packing, QUANTIZATION_CONFIG, widened};
use crate::files::pieces::{Piece, Stacks, bytes_of, read_pieces};
use crate::spec::config::ConfigFile;
use crate::spec::names::{ExpertFiles, QkvNames};
use crate::spec::{KeysValues, LayerSpec, Output, SCORING};
use crate::{ModelError, Names, Spec};

/// The parameter that a score is made with.
const SCORE_WEIGHT: &str = "score.weight";

/// How tensors of files end that no parameter is read from: what older classes of Transformers kept beside parameters.
const BUFFERS: [&str; 7] = [
    "rotary_emb.inv_freq",
    "rotary_pos_emb.inv_freq",
    ".attention.bias",
    ".attention.masked_bias",
    ".attn.bias",
    ".attn.masked_bias",
    ".attn.causal_mask",
];

/// What files name of xIELU and is not learned, with the values that are computed with.
const CONSTANTS: [(&str, f32); 2] = [(".mlp.act_fn.beta", 0.5), (".mlp.act_fn.eps", -1e-6)];

/// Files beside the weights that a tuned model keeps.
const COMPANIONS: [&str; 2] = ["generation_config.json", "preprocessor_config.json"];

/// What chat templates are read from, beside the tokenizer's files.
const TEMPLATE: [&str; 1] = ["chat_template.jinja"];

/// The matrices of a parameter that the files have quantised, in the order of its rows.
struct PackedNames<'a> {
    packing: Packing,
    weights: &'a WeightFolder,
    /// Names as the files have them, with their shapes.
    matrices: Vec<(String, [usize; 2])>,
}

/// A model folder, its configuration read and its weights mapped.
pub struct ModelFolder {
    path: PathBuf,
    config: ConfigFile,
    spec: Spec,
    /// `None` for a model that starts from random weights.
    weights: Option<WeightFolder>,
    /// How its matrices are quantised, where they are.
    packing: Option<Packing>,
    /// Of the tokenizer, for `config.json` of a model that scores.
    pad_token: Option<u32>,
    /// The folder of another tokenizer.
    tokenizer: Option<PathBuf>,
}

impl ModelFolder {
    /// Opens a folder; reads `config.json` and the headers of the weight files.
    ///
    /// # Errors
    /// If a file is missing or damaged, or the architecture is not supported.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref().to_path_buf();
        let config = ConfigFile::read(&path)?;
        let spec = Spec::from_config(&config)?;
        let packing = Packing::from_config(&config, &spec)?;
        let mut weights = WeightFolder::open(&path)?;
        if let Some(layout) = packed::scales(&config)? {
            weights = weights.with_scales(layout)?;
        }
        let spec = turned_by_files(untied_by_files(spec, &weights)?, &weights)?;
        let weights = Some(weights);
        Ok(Self { path, config, spec, weights, packing, pad_token: None, tokenizer: None })
    }

    /// Opens a folder of which only the configuration (and the tokenizer) counts: weights will be random.
    ///
    /// # Errors
    /// As [`Self::open`], but for the weights.
    pub fn open_untrained(path: impl AsRef<Path>) -> Result<Self, ModelError> {
        let path = path.as_ref().to_path_buf();
        let config = ConfigFile::read(&path)?;
        let spec = Spec::from_config(&config)?;
        if spec.part || spec.indexed.is_some() {
            return Err(ModelError::Unsupported {
                key: "model_type".to_owned(),
                got: spec.family.model_type().to_owned(),
                supported: "a model of text alone, to start from random weights: the other parts would be missing",
            });
        }
        Ok(Self { path, config, spec, weights: None, packing: None, pad_token: None, tokenizer: None })
    }

    /// The model as one that scores texts: a language model's head is left out, and its score starts afresh, normal
    /// with the configuration's `initializer_range`, a function of the seed. A model that scores already stays as it is.
    #[must_use]
    pub fn into_scorer(self) -> Self {
        Self { spec: self.spec.scoring(), ..self }
    }

    /// The family's word in `config.json`; empty without one.
    pub(crate) fn model_type(&self) -> &str {
        self.config().get("model_type").and_then(|v| v.as_str()).unwrap_or_default()
    }

    /// The model that an adapter is for: with PEFT's task `SEQ_CLS` one that [scores](Self::into_scorer), its modules
    /// [called as the adapter calls them](Self::named_as_in).
    #[must_use]
    pub fn for_adapter(self, adapter: &AdapterFolder) -> Self {
        let scores = adapter.config.task_type.as_deref() == Some(SCORING_TASK);
        if scores { self.into_scorer() } else { self }.named_as_in(adapter)
    }

    /// The model with its modules called as in an adapter. Of a model of several parts adapters name them as the class does
    /// that they were trained with: of all parts or of text alone (`Qwen3_5ForCausalLM`), or as Transformers had it before 4.52.
    #[must_use]
    pub fn named_as_in(mut self, adapter: &AdapterFolder) -> Self {
        self.spec.names = self.names_in(adapter);
        self
    }

    /// The names that an adapter has for the modules.
    pub(crate) fn names_in(&self, adapter: &AdapterFolder) -> Names {
        let names = self.spec.names;
        if self.spec.part { names.of_adapter(&adapter.modules().collect::<Vec<_>>()) } else { names }
    }

    /// What fills up texts in batches: written into the `config.json` of a model that scores, where Transformers finds a
    /// text's last token by it.
    #[must_use]
    pub fn with_pad_token(self, id: u32) -> Self {
        Self { pad_token: Some(id), ..self }
    }

    /// With the tokenizer of another folder, whose files it then keeps beside its weights.
    #[must_use]
    pub fn with_tokenizer(self, folder: impl Into<PathBuf>) -> Self {
        Self { tokenizer: Some(folder.into()), ..self }
    }

    /// The folder of its tokenizer.
    #[must_use]
    pub fn tokenizer_path(&self) -> &Path {
        self.tokenizer.as_deref().unwrap_or(&self.path)
    }

    /// Whether this parameter is not in the files but starts from random numbers: the score on a language model.
    pub(crate) fn is_fresh(&self, parameter: &Parameter) -> bool {
        self.spec.output == Output::Score
            && parameter.name == SCORE_WEIGHT
            && self.file_name(SCORE_WEIGHT).is_none()
    }

    /// Whether weights are read from files.
    #[must_use]
    pub fn has_weights(&self) -> bool {
        self.weights.is_some()
    }

    /// Whether matrices of it are quantised already, by bitsandbytes, or in four bits by GPTQ, AWQ, AutoRound or
    /// compressed-tensors.
    #[must_use]
    pub fn is_quantized(&self) -> bool {
        self.packing.is_some()
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `config.json`.
    #[must_use]
    pub fn config(&self) -> &ConfigFile {
        &self.config
    }

    /// What the configuration describes.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The dtype in which the folder stores its embedding.
    #[must_use]
    pub fn stored_dtype(&self) -> Dtype {
        self.file_name(&format!("{}.weight", self.spec.names.embed))
            .and_then(|name| self.weights.as_ref()?.info(&name).ok())
            .map_or(Dtype::F32, |info| info.dtype)
    }

    /// Compares every tensor's name and shape with a registry, and sets the registry's stored dtypes: what trains is
    /// stored in `trained`, vectors in fp32 (they cost nothing), frozen matrices as they are in the file. The first `base`
    /// parameters are the folder's.
    ///
    /// # Errors
    /// All differences at once.
    pub fn declare(&self, registry: &mut Registry, base: usize, trained: Dtype) -> Result<(), ModelError> {
        let mut faults = Vec::new();
        let mut known = BTreeSet::new();
        for parameter in registry.iter_mut().skip(base).filter(|p| p.trainable && p.shape.len() > 1) {
            if parameter.role != Role::Adapter {
                parameter.precision.store = trained;
            }
        }
        let Some(weights) = &self.weights else {
            for parameter in registry.iter_mut().filter(|p| p.shape.len() > 1 && p.role != Role::Adapter) {
                parameter.precision.store = trained;
            }
            return Ok(());
        };
        let mut replaces_head = false;
        for parameter in registry.iter_mut().take(base).filter(|p| p.alias_of.is_none()) {
            if self.is_fresh(parameter) {
                replaces_head = true;
                parameter.precision.store = if parameter.trainable { trained } else { Dtype::F32 };
                continue;
            }
            let pieces = self.pieces(parameter);
            if self.declare_packed(parameter, &mut known)? {
                continue;
            }
            if let Some(first) = pieces.first() {
                let stored = self.file_name(&first.name).and_then(|name| weights.info(&name).ok());
                for piece in pieces {
                    let Some(name) = self.file_name(&piece.name) else {
                        faults.push(WeightFault::Missing { name: piece.name });
                        continue;
                    };
                    let info = weights.info(&name)?;
                    let expected = piece.shape;
                    if info.shape != expected {
                        faults.push(WeightFault::Shape { name: name.clone(), got: info.shape, expected });
                    }
                    if !info.dtype.is_float() || info.dtype == Dtype::F64 {
                        faults.push(WeightFault::Dtype { name: name.clone(), got: info.dtype });
                    }
                    known.insert(name);
                }
                parameter.precision.store = match stored {
                    Some(info) if !parameter.trainable => info.dtype,
                    _ => trained,
                };
                continue;
            }
            if let Some(tensors) = self.mxfp4_tensors(parameter) {
                for (name, expected) in tensors.into_iter().zip(mxfp4_shapes(parameter)) {
                    let info = weights.info(&name)?;
                    if info.dtype != Dtype::U8 {
                        faults.push(WeightFault::Dtype { name: name.clone(), got: info.dtype });
                    }
                    if info.shape != expected {
                        faults.push(WeightFault::Shape { name: name.clone(), got: info.shape, expected });
                    }
                    known.insert(name);
                }
                // Trained experts are numbers in a dtype; frozen ones stay in their bits, which are exact in bf16.
                parameter.precision.store = if parameter.trainable { trained } else { Dtype::Bf16 };
                let bits = Quantization { scheme: Scheme::Mxfp4, nested: false };
                parameter.quantization = (!parameter.trainable).then_some(bits);
                continue;
            }
            let Some(name) = self.file_name(&parameter.name) else {
                faults.push(WeightFault::Missing { name: parameter.name.clone() });
                continue;
            };
            let info = weights.info(&name)?;
            let expected = self.shape_in_files(parameter);
            if info.shape != expected {
                faults.push(WeightFault::Shape { name: name.clone(), got: info.shape.clone(), expected });
            }
            if !info.dtype.is_float() || info.dtype == Dtype::F64 {
                faults.push(WeightFault::Dtype { name: name.clone(), got: info.dtype });
            }
            parameter.precision.store = match (parameter.trainable, parameter.shape.len()) {
                (_, 1) => Dtype::F32,
                // A router's few numbers decide much; biases of experts are stacked vectors.
                _ if matches!(parameter.role, Role::Router | Role::Bias) => Dtype::F32,
                (true, _) => trained,
                (false, _) => info.dtype,
            };
            known.insert(name);
        }
        let [head, head_bias] = ["weight", "bias"]
            .map(|part| named_in(weights, &self.spec.names, &format!("{}.{part}", self.spec.names.head)));
        for name in weights.names() {
            let derived = BUFFERS.iter().any(|buffer| name.ends_with(buffer))
                || Some(name) == head.as_deref() && (self.spec.tied || replaces_head)
                || Some(name) == head_bias.as_deref() && replaces_head;
            let unread = self.spec.names.unread;
            let left_out = self.is_further(name) || !unread.is_empty() && name.contains(unread);
            let left_out = left_out || self.is_of_another_part(name) || known.contains(name);
            if !derived && !left_out && !self.is_of_borrower(name) {
                faults.push(WeightFault::Unexpected { name: name.to_owned() });
            }
        }
        for (name, value) in weights.names().flat_map(|name| CONSTANTS.iter().map(move |c| (name, c))) {
            if !self.spec.xielu || !name.ends_with(value.0) {
                continue;
            }
            let got = weights.read(name)?.to_f32();
            // Stored in fewer bits.
            if got.iter().any(|got| (got - value.1).abs() > 0.01 * value.1.abs()) {
                return Err(ModelError::Unsupported {
                    key: name.to_owned(),
                    got: format!("{got:?}"),
                    supported: "0.5 for beta, -1e-6 for eps",
                });
            }
        }
        if faults.is_empty() { Ok(()) } else { Err(ModelError::Weights { path: self.path.clone(), faults }) }
    }

    /// Declares a parameter whose matrices the files have quantised; `false` where they have not. The names of its tensors
    /// become `known`.
    fn declare_packed(
        &self,
        parameter: &mut Parameter,
        known: &mut BTreeSet<String>,
    ) -> Result<bool, ModelError> {
        let Some(PackedNames { packing, weights, matrices }) = self.packed_names(parameter) else {
            return Ok(false);
        };
        let mut first: Option<Declared> = None;
        for (name, shape) in matrices {
            let declared = packing.declared(weights, &name, shape);
            let declared = declared.map_err(|fault| self.packed_fault(&name, fault))?;
            known.extend(packing.tensors(weights, &name));
            let first = first.get_or_insert(declared);
            if *first != declared {
                let (got, expected) = (declared.to_string(), first.to_string());
                let fault = PackedFault::State { tensor: name.clone(), key: "the bits", got, expected };
                return Err(self.packed_fault(&name, fault));
            }
        }
        let Some(declared) = first else { return Ok(false) };
        if parameter.trainable {
            let how = declared.quantization.scheme.to_string();
            let (what, mend) = ("the whole model cannot train:", "train an adapter (use_peft)");
            return Err(self.quantized_already(how, what, mend));
        }
        parameter.quantization = Some(declared.quantization);
        parameter.precision.store = declared.read;
        Ok(true)
    }

    /// Reads rows (along dim 0) of a base parameter, in its declared dtype.
    ///
    /// # Errors
    /// If it is missing or damaged.
    pub fn rows(&self, parameter: &Parameter, rows: Range<usize>) -> Result<HostTensor, ModelError> {
        if let Some(quantized) = self.packed_rows(parameter, rows.clone())? {
            let mut shape = parameter.shape.clone();
            shape[0] = rows.len();
            let HostTensor { dtype, bytes, .. } = widened(&quantized, parameter.precision.store);
            return Ok(HostTensor::new(dtype, &shape, bytes)?);
        }
        let pieces = self.pieces(parameter);
        if let Some(weights) = self.weights.as_ref().filter(|_| !pieces.is_empty()) {
            let (find, store) = (|name: &str| self.file_name(name), parameter.precision.store);
            return read_pieces(weights, &pieces, &find, parameter, rows, store);
        }
        if self.is_in_row(parameter) {
            let shape = [rows.len()];
            let row = self.stored(parameter, |weights, name| weights.read_slice(name, 1, rows))?;
            return Ok(HostTensor::new(row.dtype, &shape, row.bytes)?);
        }
        let turned = self.spec.names.turns(parameter);
        self.stored(parameter, |weights, name| read_rows(weights, name, rows, turned))
    }

    /// Reads columns of rows of a base matrix, in its declared dtype, and nothing else of it.
    ///
    /// # Errors
    /// If it is missing or damaged.
    pub fn block(
        &self,
        parameter: &Parameter,
        rows: Range<usize>,
        columns: Range<usize>,
    ) -> Result<HostTensor, ModelError> {
        if let Some(quantized) = self.packed(parameter)? {
            let region = Region::rows(&parameter.shape, rows).along(1, &[columns]);
            return Ok(widened(&quantized.region(&region), parameter.precision.store));
        }
        let turned = self.spec.names.turns(parameter);
        self.stored(parameter, |weights, name| {
            if turned {
                return Ok(weights.read_block(name, columns, rows)?.transposed());
            }
            weights.read_block(name, rows, columns)
        })
    }

    /// The tensors of a parameter that the files have in several; none where they have it in one.
    fn pieces(&self, parameter: &Parameter) -> Vec<Piece> {
        let pieces = self.spec.names.pieces(parameter);
        if pieces.is_empty() || self.file_name(&parameter.name).is_some() { Vec::new() } else { pieces }
    }

    /// A matrix, or a stack of those of experts, that the files have quantised, as they have it.
    ///
    /// # Errors
    /// If its tensors are missing or damaged, or do not fit each other.
    pub fn packed(&self, parameter: &Parameter) -> Result<Option<Quantized>, ModelError> {
        self.packed_rows(parameter, 0..rows_in(parameter))
    }

    /// Rows (along dim 0) of [`Self::packed`].
    fn packed_rows(
        &self,
        parameter: &Parameter,
        rows: Range<usize>,
    ) -> Result<Option<Quantized>, ModelError> {
        if let (Some(tensors), Some(weights)) = (self.mxfp4_tensors(parameter), &self.weights) {
            return self.read_mxfp4(weights, tensors, parameter, rows).map(Some);
        }
        let Some(PackedNames { packing, weights, matrices }) = self.packed_names(parameter) else {
            return Ok(None);
        };
        let read = |(name, shape): &(String, [usize; 2])| {
            packing.read(weights, name, *shape).map_err(|fault| self.packed_fault(name, fault))
        };
        if let [only] = &matrices[..] {
            return Ok(Some(read(only)?.rows(rows)));
        }
        let each = matrices.len() / rows_in(parameter).max(1);
        let wanted = &matrices[rows.start * each..rows.end * each];
        Ok(Some(Quantized::stacked(wanted.iter().map(read).collect::<Result<_, _>>()?)))
    }

    /// The matrices of a parameter, each by its name, where the files have them quantised.
    fn packed_names(&self, parameter: &Parameter) -> Option<PackedNames<'_>> {
        let (packing, weights) = (self.packing?, self.weights.as_ref()?);
        let has = |name: &str| packing.has(weights, name);
        let named = |name: &str, shape| Some((self.name_by(name, &has)?, shape));
        let matrices = match parameter.shape[..] {
            [rows, row] => vec![named(&parameter.name, [rows, row])?],
            [_, _, row] => {
                let pieces = self.spec.names.pieces(parameter);
                let all = pieces.iter().map(|piece| named(&piece.name, [piece.rows.len(), row]));
                all.collect::<Option<Vec<_>>>().filter(|all| !all.is_empty())?
            }
            _ => return None,
        };
        Some(PackedNames { packing, weights, matrices })
    }

    /// The codes and scales that the files have of experts in MXFP4, where they do.
    fn mxfp4_tensors(&self, parameter: &Parameter) -> Option<[String; 2]> {
        if parameter.role != Role::Expert || self.spec.names.experts.files != ExpertFiles::Turned {
            return None;
        }
        let tensors = ["blocks", "scales"].map(|part| self.file_name(&format!("{}_{part}", parameter.name)));
        match tensors {
            [Some(blocks), Some(scales)] => Some([blocks, scales]),
            _ => None,
        }
    }

    /// Some experts of codes and scales, whose shapes were compared: rows of outputs, as they are here.
    fn read_mxfp4(
        &self,
        weights: &WeightFolder,
        [blocks, scales]: [String; 2],
        parameter: &Parameter,
        experts: Range<usize>,
    ) -> Result<Quantized, ModelError> {
        let shape = parameter.as_matrix(experts.len());
        let codes = weights.read_slice(&blocks, 0, experts.clone())?;
        let scales = weights.read_slice(&scales, 0, experts)?;
        Quantized::from_mxfp4(shape, codes.bytes, scales.bytes)
            .map_err(|fault| self.packed_fault(&blocks, PackedFault::Parts(fault)))
    }

    fn packed_fault(&self, name: &str, fault: PackedFault) -> ModelError {
        ModelError::Packed { path: self.path.clone(), name: name.to_owned(), fault: Box::new(fault) }
    }

    /// That something cannot be, since the matrices are quantised.
    pub(crate) fn quantized_already(
        &self,
        how: String,
        what: &'static str,
        mend: &'static str,
    ) -> ModelError {
        ModelError::Quantized { path: self.path.clone(), how, what, mend }
    }

    /// A parameter's shape as files have it.
    fn shape_in_files(&self, parameter: &Parameter) -> Vec<usize> {
        let mut shape = parameter.shape.clone();
        if self.spec.names.turns(parameter) {
            let last = shape.len() - 1;
            shape.swap(last - 1, last);
        }
        if self.is_in_row(parameter) {
            shape.insert(0, 1);
        }
        shape
    }

    /// Whether files have a vector as a matrix of one row.
    fn is_in_row(&self, parameter: &Parameter) -> bool {
        self.spec.names.experts.correction_in_row && is_correction(parameter)
    }

    /// Whether a tensor belongs to a block behind the last.
    fn is_further(&self, tensor: &str) -> bool {
        let last = self.spec.layers.len();
        let of = |layer: usize| format!("{}.", self.spec.names.block(layer));
        (last..last + self.spec.further).any(|layer| tensor.starts_with(&of(layer)))
    }

    /// Whether a tensor would make keys or values of a block that reads another's: no class of Transformers reads it.
    fn is_of_borrower(&self, tensor: &str) -> bool {
        let names = &self.spec.names;
        let QkvNames::Apart([_, of_k, of_v]) = names.qkv else { return false };
        let borrows = |own: &LayerSpec| matches!(own.keys, KeysValues::Of(_));
        let blocks = self.spec.layers.iter().enumerate().filter(|(_, own)| borrows(own));
        let modules = [of_k, of_v, names.qk_norms[1], "self_attn.v_norm"];
        let mut all = blocks.flat_map(|(layer, _)| modules.map(|module| names.in_block(layer, module)));
        all.any(|module| names.in_files(&format!("{module}.")).any(|name| tensor.starts_with(&name)))
    }

    /// Whether a tensor belongs to a block that text passes by.
    fn is_of_passed_block(&self, tensor: &str) -> bool {
        let names = &self.spec.names;
        let passed = |own: &LayerSpec| own.no_attention && own.no_feed_forward && !own.ssd;
        let mut blocks = self.spec.layers.iter().enumerate().filter(|(_, own)| passed(own));
        blocks.any(|(layer, _)| {
            names.in_files(&format!("{}.", names.block(layer))).any(|name| tensor.starts_with(&name))
        })
    }

    /// Whether a tensor of the files only stays as it is: of a vision tower, of a projector, of an indexer, xIELU's constants.
    fn is_of_another_part(&self, tensor: &str) -> bool {
        !self.spec.has(tensor)
            || self.spec.part && self.is_of_passed_block(tensor)
            || self.spec.xielu && CONSTANTS.iter().any(|c| tensor.ends_with(c.0))
    }

    fn stored(
        &self,
        parameter: &Parameter,
        read: impl FnOnce(&WeightFolder, &str) -> Result<HostTensor, WeightFileError>,
    ) -> Result<HostTensor, ModelError> {
        let name = self
            .file_name(&parameter.name)
            .ok_or_else(|| ModelError::UnknownParameter { name: parameter.name.clone() })?;
        let weights = self.weights.as_ref().expect("invariant: a name was found in the weights");
        let tensor = read(weights, &name)?;
        let store = parameter.precision.store;
        Ok(if tensor.dtype == store { tensor } else { tensor.cast(store) })
    }

    /// The tensor's name in the files: as it is, in another spelling, or without the `model.` prefix (folders of the bare
    /// transformer).
    fn file_name(&self, name: &str) -> Option<String> {
        let weights = self.weights.as_ref()?;
        self.name_by(name, &|name| weights.contains(name))
    }

    fn name_by(&self, name: &str, there: &dyn Fn(&str) -> bool) -> Option<String> {
        let names = &self.spec.names;
        let named = |name: &str| names.in_files(name).find(|name| there(name));
        if let Some(found) = named(name) {
            return Some(found);
        }
        let (base, bare) = name.split_once('.')?;
        if names.layers.split('.').next() == Some(base) && there(bare) {
            return Some(bare.to_owned());
        }
        // Of a tied pair the one that is there.
        let embed = name.strip_suffix(".weight") == Some(names.embed) && self.spec.tied;
        named(&format!("{}.weight", names.head)).filter(|_| embed)
    }

    /// Copies the tokenizer, chat template and generation settings into `writer`.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub fn copy_companions(&self, writer: &mut FolderWriter) -> Result<(), ModelError> {
        copy(&self.path, &COMPANIONS, writer)?;
        copy_tokenizer(self.tokenizer_path(), writer)
    }

    /// Writes a full model folder: weights in `dtype`, the configuration with that dtype, and the companions.
    ///
    /// `rows` are this rank's of a parameter and `value` gives them on the host; the first `base` parameters are written.
    /// `untie` writes a tied head as a weight of its own.
    ///
    /// # Errors
    /// If a file cannot be written.
    #[expect(clippy::too_many_arguments, reason = "what to write, and where its rows come from")]
    pub fn write(
        &self,
        writer: &mut FolderWriter,
        registry: &Registry,
        base: usize,
        dtype: Dtype,
        untie: bool,
        rows: impl Fn(usize) -> Vec<Range<usize>>,
        value: impl Fn(usize) -> Result<HostTensor, ModelError>,
    ) -> Result<(), ModelError> {
        // Under the name that the folder's files have it by.
        let named = |p: &Parameter| {
            let there =
                self.weights.as_ref().and_then(|weights| named_in(weights, &self.spec.names, &p.name));
            // Published files of a mixture have other names.
            let published = || self.spec.names.of_mixture_in_files(&p.name);
            there.or_else(published).unwrap_or_else(|| p.name.clone())
        };
        let mut pieces: BTreeMap<String, (usize, Piece)> = BTreeMap::new();
        let mut written: BTreeMap<String, usize> = BTreeMap::new();
        let mut specs: Vec<TensorSpec> = Vec::new();
        for (index, p) in
            registry.iter().take(base).enumerate().filter(|(_, p)| p.alias_of.is_none() || untie)
        {
            let of = self.pieces(p);
            for piece in &of {
                let there = self.file_name(&piece.name).unwrap_or_else(|| piece.name.clone());
                specs.push(TensorSpec::new(there.clone(), dtype, &piece.shape));
                pieces.insert(there, (index, piece.clone()));
            }
            if !of.is_empty() {
                continue;
            }
            written.insert(named(p), index);
            // Rounded it would choose other experts.
            let dtype = if is_correction(p) { Dtype::F32 } else { dtype };
            let spec = TensorSpec::new(named(p), dtype, &self.shape_in_files(p));
            let by_columns = self.spec.names.turns(p) && p.shape.len() == 2 || self.is_in_row(p);
            specs.push(if by_columns { spec.by_columns() } else { spec });
        }
        // What the other parts have is written as it was read, by whoever has the first row of the first parameter.
        let others = self.other_parts()?;
        let writes_others = rows(0).iter().any(|rows| rows.contains(&0));
        specs.extend(others);
        let index = |spec: &TensorSpec| written.get(spec.name.as_str()).copied();
        let held = |(index, piece): &(usize, Piece)| rows(*index).iter().any(|rows| rows.contains(&piece.at));
        let mut stacks = Stacks::new(pieces.values().filter(|own| held(own)).map(|(index, _)| *index));
        writer.tensor_ranges::<ModelError>(
            "model",
            &specs,
            |spec| match index(spec) {
                _ if let Some(own) = pieces.get(spec.name.as_str()) => {
                    std::iter::once(0..spec.rows()).filter(|_| held(own)).collect()
                }
                Some(index) => rows(index),
                None if writes_others => std::iter::once(0..spec.rows()).collect(),
                None => Vec::new(),
            },
            |spec, _| {
                if let Some((index, piece)) = pieces.get(spec.name.as_str()) {
                    let of =
                        |all: &HostTensor| bytes_of(all, &rows(*index), piece, &registry.at(*index).shape);
                    return Ok(Cow::Owned(stacks.next(*index, || Ok(value(*index)?.cast(dtype)), of)?));
                }
                let Some(index) = index(spec) else {
                    let weights = self.weights.as_ref().expect("invariant: other parts are in the files");
                    return Ok(Cow::Owned(weights.read(&spec.name)?.bytes));
                };
                let tensor = value(index)?;
                let tensor = if tensor.dtype == spec.dtype { tensor } else { tensor.cast(spec.dtype) };
                let parameter = registry.at(index);
                if !self.spec.names.turns(parameter) {
                    return Ok(Cow::Owned(tensor.bytes));
                }
                // This rank's rows, whatever shape they come in.
                let mut shape = parameter.shape.clone();
                shape[0] = tensor.bytes.len() / (shape[1..].iter().product::<usize>() * dtype.bytes()).max(1);
                Ok(Cow::Owned(HostTensor { shape, ..tensor }.transposed().bytes))
            },
        )?;
        self.write_config(writer, dtype, untie, None)?;
        self.copy_companions(writer)
    }

    /// Writes `config.json` of a folder of weights in `dtype`.
    fn write_config(
        &self,
        writer: &mut FolderWriter,
        dtype: Dtype,
        untie: bool,
        quantization: Option<Value>,
    ) -> Result<(), ModelError> {
        let mut config = self.config.json.clone();
        config.remove("torch_dtype");
        match quantization {
            Some(quantization) => config.insert(QUANTIZATION_CONFIG.to_owned(), quantization),
            None => config.remove(QUANTIZATION_CONFIG),
        };
        config.insert("dtype".to_owned(), Value::from(dtype.name()));
        config.insert("architectures".to_owned(), Value::from(vec![self.architecture()]));
        for key in ["dtype", "torch_dtype"] {
            if let Some(own) = text_of(&mut config).and_then(|text| text.get_mut(key)) {
                *own = Value::from(dtype.name());
            }
        }
        if self.spec.output == Output::Score {
            self.score_keys(&mut config);
        }
        if untie || (self.spec.output == Output::Vocabulary && !self.spec.tied && self.declares_tied()) {
            config.insert("tie_word_embeddings".to_owned(), Value::from(false));
            if let Some(own) = text_of(&mut config).and_then(|text| text.get_mut("tie_word_embeddings")) {
                *own = Value::from(false);
            }
        }
        Ok(writer.json("config.json", &Value::Object(config))?)
    }

    /// As [`Self::write`] on one rank, with the parameters that `quantization` is said for as bitsandbytes stores them, in
    /// shards of at most 2 GB: a matrix is quantised once, when the first of its tensors is due. What is not quantised is
    /// written in `dtype`, or in that of this folder's files where none is said.
    ///
    /// # Errors
    /// If a file cannot be written; if the model has parts that are no text.
    pub(crate) fn write_quantized(
        &self,
        writer: &mut FolderWriter,
        parameters: &[&Parameter],
        dtype: Option<Dtype>,
        untie: bool,
        quantization: Quantization,
        value: impl Fn(&Parameter) -> Result<HostTensor, ModelError>,
    ) -> Result<(), ModelError> {
        if self.spec.part || self.spec.indexed.is_some() {
            return Err(ModelError::Unsupported {
                key: "model_type".to_owned(),
                got: self.spec.family.model_type().to_owned(),
                supported: "a model of text alone, to be quantised: Transformers quantises the other parts too",
            });
        }
        let named = |p: &Parameter| self.file_name(&p.name).unwrap_or_else(|| p.name.clone());
        let in_files = |p: &Parameter| {
            let info = self.weights.as_ref()?.info(&named(p)).ok()?;
            Some(info.dtype).filter(|dtype| dtype.is_float())
        };
        let dtype_of = |p: &Parameter| dtype.or_else(|| in_files(p)).unwrap_or(p.precision.store);
        // By the name of a tensor: the parameter that it is made of, and what it is of it.
        let mut made_of: BTreeMap<String, (&Parameter, Made)> = BTreeMap::new();
        let (mut specs, mut of_pieces) = (Vec::new(), Vec::new());
        for &p in parameters {
            let pieces = self.pieces(p);
            of_pieces.extend(pieces.iter().map(|_| p.name.clone()));
            let (name, dtype) = (named(p), dtype_of(p));
            let all: Vec<(String, Vec<usize>, Option<Piece>)> = if pieces.is_empty() {
                vec![(name, p.shape.clone(), None)]
            } else {
                let of = |piece: Piece| {
                    let name = self.file_name(&piece.name).unwrap_or_else(|| piece.name.clone());
                    (name, piece.shape.clone(), Some(piece))
                };
                pieces.into_iter().map(of).collect()
            };
            for (name, shape, piece) in all {
                match (p.quantization, &shape[..]) {
                    (Some(_), &[rows, row]) => {
                        let matrix = packed::written::Matrix { name, shape: [rows, row], dtype };
                        for spec in packed::written::specs(&matrix, quantization) {
                            let made = Made { piece: piece.clone(), matrix: Some(matrix.clone()) };
                            made_of.insert(spec.name.clone(), (p, made));
                            specs.push(spec);
                        }
                    }
                    _ => {
                        let shape = if piece.is_none() { self.shape_in_files(p) } else { shape };
                        specs.push(TensorSpec::new(name.clone(), dtype, &shape));
                        made_of.insert(name, (p, Made { piece, matrix: None }));
                    }
                }
            }
        }
        writer.set_max_shard_size(QUANTIZED_SHARD);
        let mut ready: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        let mut stacks = Stacks::new(of_pieces);
        writer.tensors_from::<ModelError>("model", &specs, |spec| {
            if let Some(bytes) = ready.remove(&spec.name) {
                return Ok(Cow::Owned(bytes));
            }
            let (parameter, Made { piece, matrix }) = &made_of[&spec.name];
            let dtype = matrix.as_ref().map_or(spec.dtype, |matrix| matrix.dtype);
            let tensor = match piece {
                None => value(parameter)?.cast(dtype),
                Some(piece) => {
                    let held = 0..rows_in(parameter);
                    let of = |all: &HostTensor| {
                        bytes_of(all, std::slice::from_ref(&held), piece, &parameter.shape)
                    };
                    let whole = || Ok(value(parameter)?.cast(dtype));
                    let bytes = stacks.next(parameter.name.clone(), whole, of)?;
                    HostTensor::new(dtype, &piece.shape, bytes)?
                }
            };
            let Some(matrix) = matrix else {
                let turned = self.spec.names.turns(parameter);
                return Ok(Cow::Owned(if turned { tensor.transposed().bytes } else { tensor.bytes }));
            };
            ready.extend(packed::written::bytes(matrix, &quantize(&tensor, quantization)?));
            Ok(Cow::Owned(ready.remove(&spec.name).expect("invariant: a matrix has all of its tensors")))
        })?;
        let dtype = dtype.unwrap_or_else(|| self.stored_dtype());
        self.write_config(writer, dtype, untie, Some(packed::written::config(quantization, dtype)))?;
        self.copy_companions(writer)
    }

    /// The tensors of the other parts, as they are in the files.
    fn other_parts(&self) -> Result<Vec<TensorSpec>, ModelError> {
        let Some(weights) = &self.weights else { return Ok(Vec::new()) };
        let others = weights.names().filter(|name| self.is_of_another_part(name));
        others
            .map(|name| {
                let info = weights.info(name)?;
                Ok(TensorSpec::new(name, info.dtype, &info.shape))
            })
            .collect()
    }

    /// A digest of the weights from samples of each tensor, its first, middle and last 4 KiB: another training moves all
    /// of a model's tensors. Of a model without weights that of its configuration.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn sampled_digest(&self) -> Result<String, ModelError> {
        const SAMPLE: u64 = 4 << 10;
        let mut digest = blake3::Hasher::new();
        let Some(weights) = &self.weights else {
            digest.update(&burnish_core::file::read(self.path.join("config.json")).unwrap_or_default());
            return Ok(digest.finalize().to_hex().to_string());
        };
        let mut names: Vec<&str> = weights.names().collect();
        names.sort_unstable();
        for name in names {
            let info = weights.info(name)?;
            digest.update(format!("{name} {} {:?}\n", info.dtype, info.shape).as_bytes());
            let view = weights.view(name)?;
            let bytes = view.bytes;
            let (length, sample) = (bytes.len(), (SAMPLE as usize).min(bytes.len()));
            for start in [0, (length - sample) / 2, length - sample] {
                digest.update(&bytes[start..start + sample]);
            }
        }
        Ok(digest.finalize().to_hex().to_string())
    }

    /// What whoever started the program should be told of this folder: that its head is its own although the
    /// configuration ties it, as Transformers warns.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let own = self.weights.is_some() && self.spec.output == Output::Vocabulary && !self.spec.tied;
        if !own || !self.declares_tied() {
            return Vec::new();
        }
        let head = self.spec.names.head;
        vec![format!(
            "{}: config.json says `tie_word_embeddings`, but the files have a `{head}.weight` that is not the embedding; \
             as in Transformers it is used and not tied: set `tie_word_embeddings` to false if that is meant",
            self.path.display()
        )]
    }

    /// What to say where ranks are to have experts whole (`enable_expert_parallel`) and the model has none.
    #[must_use]
    pub fn note_without_experts(&self) -> Option<&'static str> {
        let none = self.spec.experts.is_none();
        none.then_some(
            "enable_expert_parallel: the model has no experts; tp_size alone says how ranks share it",
        )
    }

    /// What whoever trains this folder should be told besides: that Transformers samples a token's experts where the best ones
    /// are taken here.
    #[must_use]
    pub fn training_notes(&self) -> Vec<String> {
        let scores = self.spec.experts.map(|experts| experts.rule.scores);
        if !matches!(scores, Some(RouterScores::SparseMixer { .. })) {
            return Vec::new();
        }
        vec![format!(
            "{}: every token goes to its best two experts; Transformers samples them in training among those whose logits are \
             near the best (docs/differences.md)",
            self.path.display()
        )]
    }

    /// Whether the configuration ties the head, whatever the files have.
    fn declares_tied(&self) -> bool {
        Spec::from_config(&self.config).is_ok_and(|spec| spec.tied)
    }

    /// One label, as Transformers names it, and the token that fills up.
    fn score_keys(&self, config: &mut Map<String, Value>) {
        let one = |config: &Map<String, Value>| {
            config.get("id2label").and_then(Value::as_object).is_some_and(|labels| labels.len() == 1)
        };
        if !one(config) {
            config.insert("id2label".to_owned(), json!({"0": "LABEL_0"}));
            config.insert("label2id".to_owned(), json!({"LABEL_0": 0}));
        }
        config.remove("num_labels");
        if let Some(id) = self.pad_token {
            config.insert("pad_token_id".to_owned(), Value::from(id));
        }
    }

    fn architecture(&self) -> String {
        let family = self.spec.family.class();
        // Classes of folders' own code have names of their own.
        let said = self.config.get("architectures").and_then(|all| all.get(0)).and_then(Value::as_str);
        // Baichuan's first turns, and is told by two capitals from the others.
        let begins = said.and_then(|class| class.get(..family.len()));
        let family = begins.filter(|own| own.eq_ignore_ascii_case(family)).unwrap_or(family);
        let head = match self.spec.output {
            Output::Score => SCORING,
            Output::Vocabulary if self.spec.part => match said.filter(|class| !class.ends_with(SCORING)) {
                Some(class) => return class.to_owned(),
                None => "ForConditionalGeneration",
            },
            Output::Vocabulary => self.spec.family.head_class(),
        };
        format!("{family}{head}")
    }
}

/// The spec with a head of its own where the configuration ties it and the files have one that is not the embedding:
/// Transformers does not tie then either.
fn untied_by_files(spec: Spec, weights: &WeightFolder) -> Result<Spec, ModelError> {
    let names = &spec.names;
    let there = |module: &str| named_in(weights, names, &format!("{module}.weight"));
    let (Some(embed), Some(head), true) = (there(names.embed), there(names.head), spec.tied) else {
        return Ok(spec);
    };
    let (a, b) = (weights.info(&embed)?, weights.info(&head)?);
    let mut same = a.shape == b.shape && a.dtype == b.dtype;
    let rows = a.shape.first().copied().unwrap_or(0);
    for from in (0..rows).step_by(COMPARED_ROWS) {
        if !same {
            break;
        }
        let rows = from..rows.min(from + COMPARED_ROWS);
        same = weights.read_slice(&embed, 0, rows.clone())? == weights.read_slice(&head, 0, rows)?;
    }
    Ok(Spec { tied: same, ..spec })
}

/// The spec with experts as the files have them, where those may be either way round.
fn turned_by_files(mut spec: Spec, weights: &WeightFolder) -> Result<Spec, ModelError> {
    let names = &spec.names;
    let (ExpertFiles::ByShape, Some(experts)) = (names.experts.files, &spec.experts) else { return Ok(spec) };
    let first = spec.layers.iter().position(|layer| layer.experts).unwrap_or(0);
    let shape = |module: &str| -> Result<Vec<usize>, ModelError> {
        let name = named_in(weights, names, &names.in_block(first, module));
        Ok(name.map(|name| weights.info(&name)).transpose()?.map_or_else(Vec::new, |info| info.shape))
    };
    // One of the two is no square.
    let (down, gate_up) = (shape(names.experts.down)?, shape(names.experts.gate_up)?);
    let same = match experts.intermediate == spec.hidden {
        false => down.get(1..) != Some(&[experts.intermediate, spec.hidden]),
        true => gate_up.get(1..) != Some(&[spec.hidden, 2 * experts.intermediate]),
    };
    spec.names.experts.files = if same { ExpertFiles::Same } else { ExpertFiles::Turned };
    Ok(spec)
}

/// What a folder's files call a parameter, if they have it.
pub(crate) fn named_in(weights: &WeightFolder, names: &Names, parameter: &str) -> Option<String> {
    names.in_files(parameter).find(|name| weights.contains(name))
}

/// Rows of a matrix that files may keep turned, or matrices of a stack of such.
pub(crate) fn read_rows(
    weights: &WeightFolder,
    name: &str,
    rows: Range<usize>,
    turned: bool,
) -> Result<HostTensor, WeightFileError> {
    if turned {
        let stacked = weights.info(name)?.shape.len() > 2;
        return Ok(weights.read_slice(name, usize::from(!stacked), rows)?.transposed());
    }
    weights.read_slice(name, 0, rows)
}

/// The configuration of a model's text part.
fn text_of(config: &mut Map<String, Value>) -> Option<&mut Map<String, Value>> {
    let key = ["text_config", "llm_config"].into_iter().find(|key| config.contains_key(*key))?;
    config.get_mut(key).and_then(Value::as_object_mut)
}

/// Rows of two tensors that are compared at once.
const COMPARED_ROWS: usize = 4096;

/// Copies the tokenizer, chat template and generation settings of `folder` into `writer`.
///
/// # Errors
/// If a file cannot be read or written.
pub fn copy_companions(folder: &Path, writer: &mut FolderWriter) -> Result<(), ModelError> {
    copy(folder, &COMPANIONS, writer)?;
    copy_tokenizer(folder, writer)
}

fn copy_tokenizer(folder: &Path, writer: &mut FolderWriter) -> Result<(), ModelError> {
    copy(folder, &burnish_core::file::TOKENIZER, writer)?;
    copy(folder, &TEMPLATE, writer)
}

fn copy(folder: &Path, names: &[&str], writer: &mut FolderWriter) -> Result<(), ModelError> {
    for &name in names {
        let path = folder.join(name);
        match burnish_core::file::read(&path) {
            Ok(bytes) => writer.file(name, &bytes)?,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(ModelError::Read { path, source }),
        }
    }
    Ok(())
}

/// A host tensor on a device, in its dtype, without a copy where the device is the host.
#[must_use]
pub fn to_device(tensor: HostTensor, device: &Device) -> AnyTensor {
    let dtype = match tensor.dtype {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::Bf16 => DType::BF16,
        Dtype::F16 => DType::F16,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::U8 => DType::U8,
        Dtype::I8 => DType::I8,
    };
    // `Bytes::from_bytes_vec` copies whatever was not declared to be aligned, and a `Vec<u8>` never is: for a moment two of
    // the largest tensor. Allocators align blocks of this size anyway.
    let aligned = (tensor.bytes.as_ptr() as usize).is_multiple_of(align_of::<u128>());
    let bytes = if aligned { Bytes::from_elems(tensor.bytes) } else { Bytes::from_bytes_vec(tensor.bytes) };
    AnyTensor::from_data(TensorData::from_bytes(bytes, tensor.shape, dtype), device)
}

/// A device tensor on the host, in its dtype.
#[must_use]
pub fn to_host(tensor: &AnyTensor) -> HostTensor {
    let dtype = tensor.dtype().expect("invariant: parameters are float tensors");
    let shape = tensor.shape();
    let bytes = tensor.to_data().into_bytes().to_vec();
    HostTensor { dtype, shape, bytes }
}

/// A matrix in few bits, from the values that it has.
pub(crate) fn quantize(tensor: &HostTensor, quantization: Quantization) -> Result<Quantized, ModelError> {
    let row = tensor.shape.last().copied().unwrap_or(1).max(1);
    Ok(match tensor.dtype {
        Dtype::Bf16 => Quantized::new(quantization, &tensor.as_slice::<bf16>()?, row),
        Dtype::F16 => Quantized::new(quantization, &tensor.as_slice::<f16>()?, row),
        _ => Quantized::new(quantization, &tensor.to_f32(), row),
    })
}

/// What a tensor of a quantised folder is of its parameter.
struct Made {
    /// The part of a stacked one; else all of it.
    piece: Option<Piece>,
    /// The matrix that is quantised, which several tensors stand for.
    matrix: Option<packed::written::Matrix>,
}

/// The shapes of codes (two to a byte) and scales of experts in MXFP4.
fn mxfp4_shapes(parameter: &Parameter) -> [Vec<usize>; 2] {
    let &[experts, out, input] = parameter.shape.as_slice() else { return [Vec::new(), Vec::new()] };
    let blocks = input / Scheme::MXFP4_BLOCK;
    [vec![experts, out, blocks, Scheme::MXFP4_BLOCK / 2], vec![experts, out, blocks]]
}

/// The most bytes of a shard with quantised matrices, which wait in memory for their turn.
const QUANTIZED_SHARD: u64 = 2_000_000_000;

/// The number of rows: dim 0, or 1 for a scalar.
pub(crate) fn rows_in(parameter: &Parameter) -> usize {
    parameter.shape.first().copied().unwrap_or(1)
}
