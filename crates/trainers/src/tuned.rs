//! What of a model trains.

use std::path::Path;

use burnish_config::{BiasTraining, LoraInit, LoraOptions, ModelOptions, Modules, TrainingOptions};
use burnish_core::Dtype;
use burnish_models::{ModelFolder, Tuning};
use burnish_peft::{AdapterFolder, Bias, InitWeights, Layers, LoraConfig, Names, Targets};

use crate::TrainError;

/// The model's folder, of which only the shapes count when a run starts from random weights.
pub(crate) fn open_folder(
    model: &ModelOptions,
    training: &TrainingOptions,
) -> Result<ModelFolder, TrainError> {
    let path = &model.model_name_or_path;
    Ok(if training.random_weights { ModelFolder::open_untrained(path)? } else { ModelFolder::open(path)? })
}

/// What trains: an adapter that is there, a fresh one, or everything.
pub(crate) fn tuning<'a>(adapter: Option<&'a AdapterFolder>, config: Option<&'a LoraConfig>) -> Tuning<'a> {
    match (adapter, config) {
        (Some(adapter), _) => Tuning::Adapter(adapter),
        (None, Some(config)) => Tuning::NewAdapter(config),
        (None, None) => Tuning::Full,
    }
}

/// The stored dtype of trained matrices; `auto` trains in fp32 as well, since a frozen matrix keeps its own.
pub(crate) fn trained_dtype(model: &ModelOptions, training: &TrainingOptions) -> Dtype {
    if training.fp16 { Dtype::F16 } else { model.dtype.word().parse().unwrap_or(Dtype::F32) }
}

/// The PEFT configuration that options describe.
#[must_use]
pub fn lora_config(options: &LoraOptions, base: &Path) -> LoraConfig {
    let targets = |modules: &Modules| match modules {
        Modules::Pattern(pattern) => Targets::Pattern(pattern.clone()),
        Modules::Names(names) => Targets::List(names.clone()),
    };
    let some = |names: &Vec<String>| (!names.is_empty()).then(|| names.clone());
    let mut config = LoraConfig::new(options.lora_r, options.lora_alpha).with_dropout(options.lora_dropout);
    config.base_model_name_or_path = Some(base.display().to_string());
    config.task_type = Some("CAUSAL_LM".to_owned());
    config.target_modules = options.lora_target_modules.as_ref().map(targets);
    config.exclude_modules = options.exclude_modules.as_ref().map(targets);
    config.modules_to_save = some(&options.lora_modules_to_save);
    config.use_rslora = options.use_rslora;
    config.use_dora = options.use_dora;
    config.bias = match options.bias {
        BiasTraining::None => Bias::None,
        BiasTraining::All => Bias::All,
        BiasTraining::LoraOnly => Bias::LoraOnly,
    };
    config.init_lora_weights = match options.init_lora_weights {
        LoraInit::Default => InitWeights::Flag(true),
        LoraInit::Random => InitWeights::Flag(false),
        named => InitWeights::Named(named.to_string()),
    };
    config.rank_pattern = options.rank_pattern.iter().map(|(k, v)| (k.clone(), (*v).into())).collect();
    config.alpha_pattern = options.alpha_pattern.iter().map(|(k, v)| (k.clone(), (*v).into())).collect();
    config.layers_to_transform = (!options.layers_to_transform.is_empty())
        .then(|| Layers::Many(options.layers_to_transform.iter().map(|&l| l as i64).collect()));
    config.layers_pattern = some(&options.layers_pattern).map(Names::Many);
    config
}
