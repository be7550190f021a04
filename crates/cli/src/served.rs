//! A model in this process with adapters over it, which share its weights.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use burn::tensor::Device;
use burnish_config::groups::{ModelOptions, PreparationOptions, QuantizationOptions, named_adapters};
use burnish_core::{Compute, Dtype, QuantizeOnLoad};
use burnish_models::{Decoder, LocalParams, ModelFolder, ModelPlan, Tuning};
#[cfg(feature = "serve")]
use burnish_models::{MixedAdapters, ModelError};
use burnish_peft::AdapterFolder;
#[cfg(feature = "serve")]
use burnish_peft::PeftError;
use burnish_trainers::{Prepared, prepare_rows};

/// Adapters of which each sequence of a batch has its own, or none.
#[cfg(feature = "serve")]
pub(crate) struct Mixed<'a> {
    /// The base with those that can be in one batch, in order; `None` where none can.
    pub(crate) decoder: Option<Decoder>,
    /// The others, by name.
    pub(crate) alone: Vec<&'a String>,
}

/// A model folder whose base is in memory.
pub(crate) struct Served {
    folder: ModelFolder,
    base: Arc<LocalParams>,
    compute: Compute,
    quantization: Option<(QuantizeOnLoad, Dtype)>,
    device: Device,
}

impl Served {
    /// Reads the base; its decoder.
    pub(crate) fn open(
        model: &ModelOptions,
        quantization: &QuantizationOptions,
    ) -> anyhow::Result<(Self, Decoder)> {
        crate::use_threads(model.threads, None)?;
        let (kind, ordinal) = crate::device::kind(model.device.kind(), &mut |note| crate::voice::note(note))?;
        let device = burnish_device::open(kind, ordinal)?;
        let folder = ModelFolder::open(&model.model_name_or_path)?;
        let folder = model.tokenizer_name_or_path.iter().fold(folder, ModelFolder::with_tokenizer);
        folder.notes().iter().for_each(crate::voice::note);
        let compute = model.compute();
        let quantization = quantization.quantization().map(|how| (how, model.dtype.0.unwrap_or(Dtype::F32)));
        let plan = planned(&folder, &Tuning::None, compute, quantization)?;
        let (model, base) = plan.resident(&device)?;
        Ok((Self { folder, base, compute, quantization, device }, model.decoder))
    }

    pub(crate) fn folder(&self) -> &ModelFolder {
        &self.folder
    }

    /// Its tokenizer and templates, with what the options say of them.
    pub(crate) fn rows(
        &self,
        template: Option<&PathBuf>,
        eos_token: Option<&String>,
    ) -> anyhow::Result<Prepared> {
        let preparation = PreparationOptions {
            chat_template_path: template.cloned(),
            eos_token: eos_token.cloned(),
            ..PreparationOptions::default()
        };
        Ok(prepare_rows(self.folder.tokenizer_path(), &preparation, self.folder.spec().vocab)?)
    }

    /// The model with an adapter over it.
    pub(crate) fn adapter(&self, path: &Path) -> anyhow::Result<Decoder> {
        let adapter = AdapterFolder::open(path)?;
        let folder = ModelFolder::open(self.folder.path())?.for_adapter(&adapter);
        let tuning = Tuning::Adapter(&adapter);
        let plan = planned(&folder, &tuning, self.compute, self.quantization)
            .with_context(|| format!("adapter {}", path.display()))?;
        Ok(plan.resident_beside(&self.device, Some(&self.base))?.0.decoder)
    }

    /// The model with all of `adapters` that one batch can mix. What they add to each layer is computed for every token, so
    /// that one beyond a sum of ranks of the model's width stays alone.
    #[cfg(feature = "serve")]
    pub(crate) fn mixed<'a>(&self, adapters: &'a [(String, PathBuf)]) -> anyhow::Result<Mixed<'a>> {
        let (mut mixed, mut alone) = (MixedAdapters::new(&self.folder), Vec::new());
        for (name, path) in adapters {
            let adapter = AdapterFolder::open(path)?;
            if mixed.rank() + adapter.config.r > self.folder.spec().hidden {
                crate::voice::note(format_args!(
                    "adapter `{name}` runs on its own: the others' ranks are many"
                ));
                alone.push(name);
                continue;
            }
            match mixed.add(name, &adapter) {
                Ok(_) => {}
                Err(ModelError::Peft(why @ PeftError::NotMixed { .. })) => {
                    crate::voice::note(why);
                    alone.push(name);
                }
                Err(error) => {
                    return Err(error).with_context(|| format!("adapter {}", path.display()));
                }
            }
        }
        if mixed.is_empty() {
            return Ok(Mixed { decoder: None, alone });
        }
        let plan = computed(mixed.plan()?, self.compute, self.quantization)?;
        let decoder = plan.resident_beside(&self.device, Some(&self.base))?.0.decoder;
        Ok(Mixed { decoder: Some(decoder), alone })
    }
}

fn planned<'a>(
    folder: &'a ModelFolder,
    tuning: &'a Tuning<'a>,
    compute: Compute,
    quantization: Option<(QuantizeOnLoad, Dtype)>,
) -> anyhow::Result<ModelPlan<'a>> {
    computed(ModelPlan::new(folder, tuning, Dtype::F32, 0)?, compute, quantization)
}

fn computed(
    plan: ModelPlan<'_>,
    compute: Compute,
    quantization: Option<(QuantizeOnLoad, Dtype)>,
) -> anyhow::Result<ModelPlan<'_>> {
    let plan = plan.computing(compute);
    Ok(match quantization {
        Some((how, read)) => plan.quantized(how, read)?,
        None => plan,
    })
}

/// The adapters that options name, by what they are called.
pub(crate) fn adapters(model: &ModelOptions, lora_modules: &[String]) -> Vec<(String, PathBuf)> {
    let own = model.adapter_name_or_path.iter().map(|path| (name_of(path), path.clone()));
    own.chain(named_adapters(lora_modules)).collect()
}

/// What a folder is called: its last name.
pub(crate) fn name_of(path: &Path) -> String {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    // A snapshot of the Hub's cache is called by its repository: models--owner--name/snapshots/digest.
    let repository = path.ancestors().nth(2).and_then(|p| p.file_name()).and_then(|name| name.to_str());
    if let Some(name) = repository.and_then(|name| name.strip_prefix("models--")) {
        return name.replacen("--", "/", 1);
    }
    path.file_name().map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}
