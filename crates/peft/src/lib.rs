//! Parameter-efficient adapters in PEFT's formats. No backend, no autodiff: names, shapes, values, files.
//!
//! * [`LoraConfig`]: `adapter_config.json`, kept losslessly; what changes the arithmetic and is not computed here is
//!   refused by name ([`LoraConfig::check`]).
//! * [`match_modules`]: which modules, exactly as PEFT decides, with a report; a pattern that matches nothing is an error.
//! * [`Plan`]: the adapter's [sites](LoraSite) and parameters on a base model.
//! * [`fresh`]: initial values as a function of (seed, name, index); [`decompose`], where they come from the base weight.
//! * [`AdapterFolder`], [`write_adapter`]: PEFT's folders, read totally or not at all.
//! * [`merge_adapter`], [`merge_site`]: folding into a pristine copy of the base.
//! * [`combine`]: one adapter for a weighted sum of several.
//!
//! ```
//! use burnish_core::Registry;
//! use burnish_peft::{LoraConfig, ModuleInfo, ModuleKind, Plan, Targets, Use};
//!
//! let modules = [
//!     ModuleInfo::new("model.layers.0.self_attn.q_proj", ModuleKind::Linear, 64, 64),
//!     ModuleInfo::new("lm_head", ModuleKind::Head, 256, 64),
//! ];
//! let mut config = LoraConfig::new(8, 16.0);
//! config.target_modules = Some(Targets::Pattern("all-linear".into()));
//! let plan = Plan::new(&config, Use::Create, "llama", &modules, &Registry::new()).unwrap();
//! assert_eq!(plan.parameters()[0].name, "model.layers.0.self_attn.q_proj.lora_A.weight");
//! assert_eq!(plan.sites.len(), 1);
//! assert_eq!(plan.sites[0].scale, 2.0);
//! ```

mod config;
mod convert;
mod error;
mod folder;
mod init;
mod matching;
mod merge;
mod pattern;
mod plan;
mod python_json;
mod site;
mod spectral;
mod support;
mod weighted;

pub use config::{Bias, Init, InitWeights, Layers, LoraConfig, Names, Targets};
pub use convert::{Decomposition, decompose};
pub use error::{DeadPattern, Differences, PeftError};
pub use folder::{AdapterFolder, AdapterTensors, write_adapter, write_adapter_rows};
pub use init::fresh;
pub use matching::{
    MatchReport, ModuleInfo, ModuleKind, PatternCount, default_targets, match_modules, resolve_targets,
};
pub use merge::{Merged, MergedBase, merge_adapter, merge_site};
pub use plan::Plan;
pub use site::{Factor, LoraSite};
pub use support::Use;
pub use weighted::{Combination, Weighted, combine};
