//! Adapters on disk: PEFT's files and keys.
//!
//! `base_model.model.` + the module's name + `lora_A.weight` ...; weights of `modules_to_save` and biases under their
//! own names, the bias (or frozen weight) of an adapted module with `.base_layer` in between.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use burnish_core::Dtype;
use burnish_weight_files::{FolderWriter, HostTensor, TensorSpec, WeightFileError, WeightFolder};

use crate::config::CONFIG;
use crate::error::Differences;
use crate::matching::compile_patterns;
use crate::{
    Bias, Change, ChangeSite, Factor, LoraConfig, LoraPlan, LoraSite, ModuleKind, PeftError, PeftMethod,
    Purpose,
};

/// What PEFT puts before every name.
const PREFIX: &str = "base_model.model.";

/// What PEFT puts before what no module has.
const OUTSIDE: &str = "base_model.";

/// An adapter folder whose configuration has been read and whose tensors can be.
#[derive(Debug)]
pub struct AdapterFolder {
    /// The configuration as found.
    pub config: LoraConfig,
    path: PathBuf,
    weights: WeightFolder,
}

/// The tensors of an adapter, in their stored dtypes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdapterTensors {
    /// By parameter name: factors, and base parameters that train along.
    pub parameters: BTreeMap<String, HostTensor>,
    /// Frozen weights of adapted embeddings and heads, by base name: they replace the base's (PEFT saves them along
    /// because a vocabulary may have been resized).
    pub base_weights: BTreeMap<String, HostTensor>,
}

impl AdapterFolder {
    /// Opens a folder with `adapter_config.json` and `adapter_model.safetensors`, or one whose only subfolder with an
    /// adapter is meant (PEFT saves adapters of other names than `default` in subfolders).
    ///
    /// # Errors
    /// If there is no adapter, more than one, a file is damaged, or its configuration breaks a rule.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PeftError> {
        let path = path.as_ref();
        if path.join(CONFIG).is_file() {
            return Self::open_exactly(path);
        }
        if !path.exists() {
            return Err(WeightFileError::Missing { path: path.to_path_buf() }.into());
        }
        let mut found: Vec<String> = fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|e| e.path().join(CONFIG).is_file())
            .filter_map(|e| e.file_name().into_string().ok())
            .collect();
        found.sort();
        match found.as_slice() {
            [only] => Self::open_exactly(&path.join(only)),
            _ => Err(PeftError::NoAdapter { path: path.to_path_buf(), found }),
        }
    }

    /// Opens the adapter of that name: a subfolder, or the folder itself for `default`.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_named(path: impl AsRef<Path>, adapter: &str) -> Result<Self, PeftError> {
        let path = path.as_ref();
        let inner = path.join(adapter);
        if adapter == "default" && !inner.join(CONFIG).is_file() {
            return Self::open_exactly(path);
        }
        Self::open_exactly(&inner)
    }

    fn open_exactly(path: &Path) -> Result<Self, PeftError> {
        let config = LoraConfig::read(path)?;
        let checked = config.check(Purpose::Load).and_then(|()| compile_patterns(&config));
        checked.map_err(|error| error.in_file(path.join(CONFIG)))?;
        let weights = WeightFolder::open_stem(path, "adapter_model")?;
        Ok(Self { config, path: path.to_path_buf(), weights })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The keys of the file.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.weights.names()
    }

    /// What the keys name in the base model: its parameters, and those of modules beside them.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        self.weights.names().filter_map(|key| key.strip_prefix(PREFIX))
    }

    /// Reads every tensor of the plan. Loading is total: every key of the file is consumed, every slot of the plan is
    /// filled, every shape fits.
    ///
    /// # Errors
    /// [`PeftError::Mismatch`] lists all differences; nothing is skipped.
    pub fn load(&self, plan: &LoraPlan) -> Result<AdapterTensors, PeftError> {
        self.load_part(plan, |_| true)
    }

    /// As [`load`](Self::load), of a model that is a part of the one that the adapter is for: tensors of modules that are
    /// not `mine` are left out where they change nothing (a B of zeros).
    ///
    /// # Errors
    /// Those of [`load`](Self::load); an adapter that changes other parts is a difference.
    pub fn load_part(
        &self,
        plan: &LoraPlan,
        mine: impl Fn(&str) -> bool,
    ) -> Result<AdapterTensors, PeftError> {
        let mut differences = Differences::default();
        let mut unused: BTreeSet<&str> = self.weights.names().collect();
        let mut tensors = AdapterTensors::default();
        let chosen = match &plan.config.method {
            Some(PeftMethod::VbLora(own)) if own.save_only_topk_weights => Some(own.topk),
            _ => None,
        };
        for Slot { key, name, shape, kind } in slots(plan) {
            if let Some(topk) = chosen.filter(|_| key.contains(".vblora_logits_")) {
                let both = CHOSEN.map(|suffix| format!("{key}{suffix}"));
                if both.iter().all(|key| unused.remove(key.as_str())) {
                    match self.logits(&both, &shape, topk)? {
                        Some(tensor) => drop(tensors.parameters.insert(name, tensor)),
                        None => differences.shapes.push((
                            both[0].clone(),
                            shape,
                            self.weights.described(&both[0])?.1.to_vec(),
                        )),
                    }
                } else {
                    differences.missing.extend(both);
                }
                continue;
            }
            if !unused.remove(key.as_str()) {
                if kind == SlotKind::Parameter {
                    differences.missing.push(key);
                }
                continue;
            }
            if matches!(kind, SlotKind::Duplicate | SlotKind::Shared) {
                continue;
            }
            let got = self.weights.info(&key)?.shape;
            if got != shape {
                differences.shapes.push((key, shape, got));
                continue;
            }
            let tensor = self.weights.read(&key)?;
            match kind {
                SlotKind::Parameter => tensors.parameters.insert(name, tensor),
                _ => tensors.base_weights.insert(name, tensor),
            };
        }
        for key in unused {
            let module = key.strip_prefix(PREFIX).unwrap_or(key);
            let idle = if mine(module) {
                false
            } else if module.contains(".lora_A.") {
                true
            } else {
                self.weights.read(key)?.to_f32().iter().all(|&x| x == 0.0)
            };
            if !idle {
                differences.unexpected.push(key.to_owned());
            }
        }
        if differences.is_empty() {
            return Ok(tensors);
        }
        let path = self.weights.files().next().unwrap_or(&self.path).to_path_buf();
        Err(PeftError::Mismatch { path, differences })
    }
}

/// What the keys of logits end in where only those of chosen vectors are kept: their numbers, and the weights of all but the
/// last.
const CHOSEN: [&str; 2] = ["_topk_indices", "_topk_weights"];

impl AdapterFolder {
    /// Logits of this shape that have the weights kept, the others such that nothing chooses them; `None` if the tensors are of
    /// other shapes.
    fn logits(
        &self,
        [numbers, weights]: &[String; 2],
        shape: &[usize],
        topk: usize,
    ) -> Result<Option<HostTensor>, PeftError> {
        let kept = self.weights.read(weights)?;
        let (at, of) = (self.whole_numbers(numbers)?, self.weights.described(numbers)?.1);
        let &[one, two, vectors] = shape else { return Ok(None) };
        if *of != [one, two, topk] || kept.shape != [one, two, topk - 1] || at.iter().any(|&at| at >= vectors)
        {
            return Ok(None);
        }
        let kept = kept.to_f32();
        let mut logits = vec![f32::NEG_INFINITY; one * two * vectors];
        for (row, (logits, at)) in logits.chunks_exact_mut(vectors).zip(at.chunks_exact(topk)).enumerate() {
            let own = &kept[row * (topk - 1)..(row + 1) * (topk - 1)];
            let last = 1.0 - own.iter().sum::<f32>();
            for (&at, weight) in at.iter().zip(own.iter().chain([&last])) {
                logits[at] = weight.ln();
            }
        }
        Ok(Some(HostTensor::from_f32(&logits, shape, Dtype::F32)?))
    }

    /// A tensor of whole numbers, in as many bytes as it has.
    fn whole_numbers(&self, key: &str) -> Result<Vec<usize>, PeftError> {
        let (path, range) = self.weights.place_of(key)?;
        let elements: usize = self.weights.described(key)?.1.iter().product();
        let io = |source| WeightFileError::Io { action: "read", path: path.to_path_buf(), source };
        let mut bytes = vec![0_u8; (range.end - range.start) as usize];
        let mut file = fs::File::open(path).map_err(io)?;
        file.seek(SeekFrom::Start(range.start)).and_then(|_| file.read_exact(&mut bytes)).map_err(io)?;
        let number = |bytes: &[u8]| bytes.iter().rev().fold(0_usize, |n, &b| (n << 8) | usize::from(b));
        Ok(bytes.chunks_exact((bytes.len() / elements.max(1)).max(1)).map(number).collect())
    }
}

/// Writes `adapter_model.safetensors`, `adapter_config.json` and, unless the folder has one, `README.md`.
/// Tensors are asked for one at a time by parameter name; those of [`AdapterTensors::base_weights`] that `read`
/// answers with `None` are left out (only a resized vocabulary needs them).
///
/// # Errors
/// If a tensor has another shape than the plan's, or the disk refuses.
pub fn write_adapter<E: From<PeftError> + From<WeightFileError>>(
    writer: &mut FolderWriter,
    plan: &LoraPlan,
    mut read: impl FnMut(&str) -> Result<Option<HostTensor>, E>,
) -> Result<(), E> {
    let mut tensors: BTreeMap<String, HostTensor> = BTreeMap::new();
    let mut differences = Differences::default();
    for Slot { key, name, shape, kind } in slots(plan) {
        if kind == SlotKind::Duplicate {
            continue;
        }
        match read(&name)? {
            Some(tensor) if tensor.shape == shape => {
                tensors.insert(key, tensor);
            }
            Some(tensor) => differences.shapes.push((key, shape, tensor.shape)),
            None if kind == SlotKind::Parameter => differences.missing.push(key),
            None => {}
        }
    }
    if !differences.is_empty() {
        let path = writer.target().join("adapter_model.safetensors");
        return Err(PeftError::Mismatch { path, differences }.into());
    }
    let dtypes: BTreeMap<String, Dtype> = tensors.iter().map(|(n, t)| (n.clone(), t.dtype)).collect();
    write_adapter_rows(
        writer,
        plan,
        |_, key| dtypes.get(key).copied(),
        |_, shape| std::iter::once(0..shape[0]).collect(),
        |_, key, _| Ok(Cow::Borrowed(&tensors[key].bytes[..])),
    )
}

/// As [`write_adapter`], where each rank has some rows (along dim 0) of each tensor: the files come out as if one rank
/// had written them. All ranks call it.
///
/// By parameter name and key in the file: `dtype` is a tensor's, or `None` when it is not to be written, `rows` are this
/// rank's ranges, `read` gives their bytes, one after another.
///
/// # Errors
/// If a rank's rows do not fit, whatever `read` returns, or the disk refuses.
pub fn write_adapter_rows<'a, E: From<PeftError> + From<WeightFileError>>(
    writer: &mut FolderWriter,
    plan: &LoraPlan,
    mut dtype: impl FnMut(&str, &str) -> Option<Dtype>,
    mut rows: impl FnMut(&str, &[usize]) -> Vec<Range<usize>>,
    mut read: impl FnMut(&str, &str, &[Range<usize>]) -> Result<Cow<'a, [u8]>, E>,
) -> Result<(), E> {
    let mut names = BTreeMap::new();
    let mut specs = Vec::new();
    for Slot { key, name, shape, kind } in slots(plan) {
        if kind == SlotKind::Duplicate {
            continue;
        }
        if let Some(dtype) = dtype(&name, &key) {
            specs.push(TensorSpec::new(key.clone(), dtype, &shape));
            names.insert(key, name);
        }
    }
    writer.tensor_ranges::<E>(
        "adapter_model",
        &specs,
        |spec| rows(&names[&spec.name], &spec.shape),
        |spec, rows| read(&names[&spec.name], &spec.name, rows),
    )?;
    writer.file(CONFIG, plan.config.to_json().as_bytes())?;
    if !writer.target().join("README.md").exists() {
        writer.file("README.md", card(&plan.config).as_bytes())?;
    }
    Ok(())
}

/// A model card that the Hub and PEFT recognise.
fn card(config: &LoraConfig) -> String {
    let base = config.base_model_name_or_path.as_deref().unwrap_or_default();
    // A JSON string is a YAML string.
    let quoted = serde_json::Value::from(base).to_string();
    let tag = serde_json::Value::from(format!("base_model:adapter:{base}")).to_string();
    if config.method.is_some() {
        let (name, lower) = (&config.peft_type, config.peft_type.to_lowercase());
        return format!(
            "---\nbase_model: {quoted}\nlibrary_name: peft\npipeline_tag: text-generation\ntags:\n- {tag}\n- {lower}\n---\n\n\
             # {name} adapter\n\nFor the base model `{base}`.\n"
        );
    }
    let scale = if config.use_rslora { " (rsLoRA)" } else { "" };
    format!(
        "---\nbase_model: {quoted}\nlibrary_name: peft\npipeline_tag: text-generation\ntags:\n- {tag}\n- lora\n---\n\n\
         # LoRA adapter\n\nRank {}, alpha {}{scale}, for the base model `{base}`.\n",
        config.r, config.lora_alpha
    )
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotKind {
    Parameter,
    FrozenBase,
    /// A copy that PEFT writes besides the parameter itself: read over, never written.
    Duplicate,
    /// A parameter under the name of another module that shares it: written, read over, and may be absent.
    Shared,
}

/// A place in the file.
struct Slot {
    key: String,
    name: String,
    shape: Vec<usize>,
    kind: SlotKind,
}

/// Whether rows of a table train.
fn is_rows(site: &ChangeSite) -> bool {
    matches!(site.change, Change::Rows(_))
}

fn slots(plan: &LoraPlan) -> Vec<Slot> {
    let of_changes = plan.changes.iter().filter(|_| plan.config.method.is_some()).map(ChangeSite::base_bias);
    let adapted: BTreeSet<String> = plan.sites.iter().map(LoraSite::base_bias).chain(of_changes).collect();
    let mut slots = Vec::new();
    for site in &plan.sites {
        for factor in site.factors() {
            let name = site.name(factor).to_owned();
            let key = format!("{PREFIX}{name}");
            slots.push(Slot { key, name, shape: site.shape(factor), kind: SlotKind::Parameter });
        }
        if matches!(site.kind, ModuleKind::Embedding | ModuleKind::Head) {
            let key = format!("{PREFIX}{}.base_layer.weight", site.module);
            let shape = vec![site.out, site.input];
            slots.push(Slot { key, name: site.base_weight(), shape, kind: SlotKind::FrozenBase });
        }
    }
    if let Some((alias, target)) = &plan.kept_tie {
        let head = alias.trim_end_matches(".weight");
        // PEFT writes the head's too, which are the embedding's, turned.
        for site in plan.sites.iter().filter(|site| site.base_weight() == *target) {
            let turned = |factor| site.shape(factor).into_iter().rev().collect::<Vec<_>>();
            for (suffix, factor) in [("lora_A", Factor::B), ("lora_B", Factor::A)] {
                let key = format!("{PREFIX}{head}.{suffix}.weight");
                let (name, shape) = (site.name(factor).to_owned(), turned(factor));
                slots.push(Slot { key, name, shape, kind: SlotKind::Duplicate });
            }
            let (key, shape) = (format!("{PREFIX}{head}.base_layer.weight"), vec![site.out, site.input]);
            slots.push(Slot { key, name: target.clone(), shape, kind: SlotKind::Duplicate });
        }
        for (name, shape) in plan.base_parameters().filter(|(name, _)| name == target) {
            let (key, name, shape) = (format!("{PREFIX}{alias}"), name.to_owned(), shape.to_vec());
            slots.push(Slot { key, name, shape, kind: SlotKind::Shared });
        }
    }
    if let Some(prompt) = &plan.prompt {
        let (name, shape) = (prompt.name.clone(), prompt.shape.clone());
        slots.push(Slot { key: name.clone(), name, shape, kind: SlotKind::Parameter });
    }
    let mut shared = BTreeSet::new();
    let kept = plan.config.method.as_ref().is_none_or(PeftMethod::keeps_drawn);
    // PEFT reads over matrices that are not to be in the file.
    let drawn = if kept { SlotKind::Parameter } else { SlotKind::Duplicate };
    for site in &plan.changes {
        for part in &site.parts {
            let (name, shape) = (part.name.clone(), part.shape.clone());
            if site.shares(part) {
                let kind = if part.trains() { SlotKind::Parameter } else { drawn };
                // Of some methods PEFT writes it for each module, too.
                let key = format!("{PREFIX}{}.{name}", site.module);
                let copy = Slot { key, name: name.clone(), shape: shape.clone(), kind: SlotKind::Duplicate };
                slots.push(copy);
                if shared.insert(name.clone()) {
                    slots.push(Slot { key: format!("{OUTSIDE}{name}"), name, shape, kind });
                }
                continue;
            }
            // Alone, PEFT writes rows that a head shares under its name too.
            let shares = |(alias, target): &&(String, String)| {
                plan.config.method.is_some() && *target == site.base_weight() && alias.ends_with(".weight")
            };
            for (alias, _) in plan.ties.iter().filter(shares).filter(|_| is_rows(site)) {
                let module = alias.trim_end_matches(".weight");
                let key = format!("{PREFIX}{module}{}", &name[site.module.len()..]);
                let (name, shape) = (name.clone(), shape.clone());
                slots.push(Slot { key, name, shape, kind: SlotKind::Shared });
            }
            slots.push(Slot { key: format!("{PREFIX}{name}"), name, shape, kind: SlotKind::Parameter });
        }
        if site.kind == ModuleKind::Head && !is_rows(site) {
            let key = format!("{PREFIX}{}.base_layer.weight", site.module);
            let shape = vec![site.out, site.input];
            slots.push(Slot { key, name: site.base_weight(), shape, kind: SlotKind::FrozenBase });
        }
    }
    for (name, shape) in plan.base_parameters() {
        let key = match name.strip_suffix(".bias").filter(|_| adapted.contains(name)) {
            Some(module) => format!("{PREFIX}{module}.base_layer.bias"),
            None => match name.rsplit_once('.').zip(plan.config.method.as_ref().and_then(PeftMethod::copies))
            {
                Some(((module, part), copies)) if plan.copied.iter().any(|copied| copied == module) => {
                    format!("{PREFIX}{module}.{copies}.{part}")
                }
                _ => format!("{PREFIX}{name}"),
            },
        };
        slots.push(Slot { key, name: name.to_owned(), shape: shape.to_vec(), kind: SlotKind::Parameter });
        // With `bias: all`, PEFT also saves both inner copies of the biases of a wrapped module.
        if plan.config.bias == Bias::All && name.ends_with(".bias") && plan.saved.iter().any(|s| s == name) {
            for (dot, _) in name.match_indices('.') {
                for copy in ["modules_to_save", "original_module"] {
                    let key = format!("{PREFIX}{}.{copy}{}", &name[..dot], &name[dot..]);
                    slots.push(Slot {
                        key,
                        name: name.to_owned(),
                        shape: shape.to_vec(),
                        kind: SlotKind::Duplicate,
                    });
                }
            }
        }
    }
    slots
}
