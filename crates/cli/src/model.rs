//! A model folder, with an adapter over it, to score or generate with.

use burn::tensor::Device;
use burnish_config::ModelOptions;
use burnish_core::Dtype;
use burnish_models::{Model, ModelFolder, Tuning};
use burnish_peft::AdapterFolder;

pub(crate) struct Loaded {
    pub(crate) folder: ModelFolder,
    pub(crate) model: Model,
}

pub(crate) fn load(options: &ModelOptions) -> anyhow::Result<Loaded> {
    let folder = ModelFolder::open(&options.model_name_or_path)?;
    let adapter = options.adapter_name_or_path.as_ref().map(AdapterFolder::open).transpose()?;
    let tuning = adapter.as_ref().map_or(Tuning::None, Tuning::Adapter);
    let model = Model::load(&folder, &tuning, Dtype::F32, 0, &Device::flex())?;
    Ok(Loaded { folder, model })
}
