//! Adapters: TRL's `lora_*` options and those of PEFT's `LoraConfig` that TRL has no flag for.

use std::collections::BTreeMap;

use crate::choice::{BiasTraining, LoraInit};
use crate::setting::Modules;
use crate::table::options;

options! {
    /// A fresh LoRA adapter.
    LoraOptions, "LoRA";
    /// Train a LoRA adapter instead of the whole model.
    Trl use_peft: bool = false;
    /// Rank of the adapter.
    Trl lora_r: usize = 16;
    /// Scale: the adapter's output is multiplied by alpha / r.
    Trl lora_alpha: f64 = 32.0;
    /// Dropout on the adapter's input while training.
    Trl lora_dropout: f64 = 0.05;
    /// Modules to adapt: names, one regular expression, or `all-linear`; by default the model type's in PEFT.
    Trl lora_target_modules: Option<Modules> = None;
    /// Modules to train whole and save with the adapter.
    Trl lora_modules_to_save: Vec<String> = Vec::new();
    /// Scale by alpha / sqrt(r) instead (rsLoRA).
    Trl use_rslora: bool = false;
    /// Train each adapted weight's magnitude apart from its direction (DoRA).
    Trl use_dora: bool = false;
    /// Which biases train: none, all, or those of adapted modules.
    Peft bias: BiasTraining = BiasTraining::None;
    /// How the factors start: `true` (A Kaiming, B zero), `gaussian`, `false` (both random), `orthogonal` (random, product
    /// zero), or taken from the base weight, which keeps the rest: `pissa`, `pissa_niter_N` (faster), `olora`.
    Peft init_lora_weights: LoraInit = LoraInit::Default;
    /// Modules to leave out: names or one regular expression.
    Peft exclude_modules: Option<Modules> = None;
    /// Ranks that differ from lora_r, by module pattern: '{"q_proj": 8}'.
    Peft rank_pattern: BTreeMap<String, usize> = BTreeMap::new();
    /// Alphas that differ from lora_alpha, by module pattern.
    Peft alpha_pattern: BTreeMap<String, f64> = BTreeMap::new();
    /// Indices of the layers to adapt; by default all.
    Peft layers_to_transform: Vec<usize> = Vec::new();
    /// Name of the list of layers that layers_to_transform counts in.
    Peft layers_pattern: Vec<String> = Vec::new();
}
