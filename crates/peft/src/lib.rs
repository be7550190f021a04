//! LoRA adapters in PEFT's formats: on any Burn module, and as names, shapes, values and files without Burn.
//!
//! On a Burn module ([`module`], feature `burn`, on by default):
//!
#![cfg_attr(feature = "burn", doc = "```")]
#![cfg_attr(not(feature = "burn"), doc = "```text")]
//! use burn::module::Module;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::tensor::{Device, Tensor};
//! use burnish_peft::{LoraConfig, module::{attach, load, merge, save}};
//!
//! #[derive(Module, Debug)]
//! struct Net { up: Linear, down: Linear }
//!
//! let device = Device::flex().autodiff();
//! let base = Net { up: LinearConfig::new(4, 8).init(&device), down: LinearConfig::new(8, 2).init(&device) };
//! let config = LoraConfig::new(2, 4.0).with_targets(["up", "down"]);
//! let net = attach(base.clone(), &config, 42)?;
//! // ... train `net` with any optimizer of Burn: only the factors require gradients ...
//! let folder = tempfile::tempdir().unwrap();
//! save(&net, &config, folder.path())?; // adapter_config.json, adapter_model.safetensors
//! let merged = merge(load(base, folder.path())?);
//! let x = Tensor::<2>::ones([1, 4], &device);
//! assert_eq!(merged.up.forward(x.clone()).into_data(), net.up.forward(x).into_data());
//! # Ok::<(), burnish_peft::PeftError>(())
//! ```
//!
//! Without Burn (`default-features = false`; no backend, no autodiff):
//!
//! * [`LoraConfig`]: `adapter_config.json`, kept losslessly; what changes the arithmetic and is not computed here is
//!   refused by name ([`LoraConfig::check`]).
//! * [`match_modules`]: which modules, exactly as PEFT decides, with a report; a pattern that matches nothing is an error.
//! * [`LoraPlan`]: the adapter's [sites](LoraSite) and parameters on a base model.
//! * [`init_lora_weights`]: initial values as a function of (seed, name, index); [`decompose`], where they come from the
//!   base weight.
//! * [`AdapterFolder`], [`write_adapter`]: PEFT's folders, read totally or not at all.
//! * [`merge_adapter`], [`merge_site`]: folding into a pristine copy of the base.
//! * [`add_weighted_adapter`]: one adapter for a weighted sum of several.
//!
//! ```
//! use burnish_core::Registry;
//! use burnish_peft::{LoraConfig, LoraPlan, ModuleInfo, ModuleKind, Purpose, Targets};
//!
//! let modules = [
//!     ModuleInfo::new("model.layers.0.self_attn.q_proj", ModuleKind::Linear, 64, 64),
//!     ModuleInfo::new("lm_head", ModuleKind::Head, 256, 64),
//! ];
//! let mut config = LoraConfig::new(8, 16.0);
//! config.target_modules = Some(Targets::Pattern("all-linear".into()));
//! let plan = LoraPlan::new(&config, Purpose::Create, "llama", &modules, &Registry::new()).unwrap();
//! assert_eq!(plan.parameters()[0].name, "model.layers.0.self_attn.q_proj.lora_A.weight");
//! assert_eq!(plan.sites.len(), 1);
//! assert_eq!(plan.sites[0].scale, 2.0);
//! ```

mod beside_base;
mod change;
mod cholesky;
mod config;
mod corda;
mod corda_files;
mod error;
mod eva;
mod factor_sums;
mod folder;
mod init_lora_weights;
mod loftq;
mod lora_ga;
mod lora_plan;
mod matching;
mod merge;
mod mersenne_twister;
mod method;
mod mixtures;
#[cfg(feature = "burn")]
pub mod module;
mod pattern;
mod pissa_olora;
mod python_json;
mod rank_allocator;
mod side_by_side;
mod site;
mod spectral;
mod support;
mod weighted;

pub use beside_base::BesideBase;
pub use burnish_core::Registry;
pub use burnish_weight_files::{FolderWriter, HostTensor};
pub use change::{
    Change, ChangePart, ChangeSite, Drawn, DrawnLaw, Follows, Start, butterfly, circulant, inverse, neumann,
};
pub use config::{Bias, Init, InitWeights, Layers, LoraConfig, Names, Targets};
pub use corda::{CordaConfig, CordaTriplets, Covariance};
pub use error::{DeadPattern, Differences, PeftError};
pub use eva::{Eva, EvaConfig};
pub use factor_sums::{CombinationType, FactorSum, FactorSums, MajoritySign};
pub use folder::{AdapterFolder, AdapterTensors, write_adapter, write_adapter_rows};
pub use init_lora_weights::init_lora_weights;
pub use loftq::Loftq;
pub use lora_ga::{Direction, GradientScale, LoraGaConfig};
pub use lora_plan::LoraPlan;
pub use matching::{
    MatchReport, ModuleInfo, ModuleKind, PatternCount, default_targets, match_modules, resolve_targets,
};
pub use merge::{Merged, MergedBase, merge_adapter, merge_site};
pub use method::{
    Activation, AdaLora, Boft, C3a, Ia3, LnTuning, Loha, Lokr, Lstm, Oft, PTuning, PeftMethod, PeftType,
    PrefixTuning, PromptEncoder, PromptTuning, RandLora, TokenIndices, TrainableTokens, VbLora, Vera,
    VirtualTokens,
};
pub use pissa_olora::{Decomposition, decompose};
pub use rank_allocator::{Allotment, AllottedRanks, RankAllocator, RankPattern};
pub use side_by_side::SideBySide;
pub use site::{Factor, LoraSite};
pub use support::Purpose;
pub use weighted::{Combination, Weighted, add_weighted_adapter};
