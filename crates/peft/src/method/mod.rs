//! Methods other than LoRA: one table of what each has beyond the keys that all share, and which parameters it gives a
//! module. A method is a file here and a line of the table; what it makes of a layer is a [`Change`].

mod adalora;
mod boft;
mod c3a;
mod ia3;
mod ln_tuning;
mod loha;
mod lokr;
mod oft;
mod prefix_tuning;
mod prompt_encoder;
mod prompt_tuning;
mod rand_lora;
mod trainable_tokens;
mod vb_lora;
mod vera;

use std::borrow::Cow;

use burnish_core::{Choice, Registry, UnknownWord, choices};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use adalora::AdaLora;
pub use boft::Boft;
pub use c3a::C3a;
pub use ia3::Ia3;
pub use ln_tuning::LnTuning;
pub use loha::Loha;
pub use lokr::Lokr;
pub use oft::Oft;
pub use prefix_tuning::PrefixTuning;
pub use prompt_encoder::{Activation, Lstm, PromptEncoder};
pub use prompt_tuning::{PTuning, PromptTuning, VirtualTokens};
pub use rand_lora::RandLora;
pub use trainable_tokens::{TokenIndices, TrainableTokens};
pub use vb_lora::VbLora;
pub use vera::Vera;

use crate::{
    Change, ChangePart, ChangeSite, LoraConfig, ModuleInfo, ModuleKind, PeftError, Targets, default_targets,
};

/// Keys that every configuration has.
const COMMON: &[&str] =
    &["base_model_name_or_path", "inference_mode", "peft_type", "target_modules", "task_type"];

/// What a method is beyond its configuration's fields.
pub(crate) trait Method {
    /// The keys of [`LoraConfig`] that its configuration has besides [`COMMON`].
    const SHARED: &'static [&'static str];

    /// Whether modules are named.
    const TARGETS: bool = true;

    /// The rank of a configuration that says none.
    const RANK: usize = 8;

    /// What its values must be; `fresh` if the adapter begins.
    fn validate(&self, config: &LoraConfig, fresh: bool) -> Result<(), PeftError>;

    /// Names what is not named: targets by the architecture's default. `false` where it has none.
    fn resolve(&mut self, config: &mut LoraConfig, model_type: &str, _modules: &[ModuleInfo]) -> bool {
        if config.target_modules.is_none() {
            config.target_modules = default_targets(model_type);
        }
        config.target_modules.is_some()
    }

    /// Its setting that has values by patterns of modules.
    fn patterns(&self) -> Option<(&'static str, &Map<String, Value>)> {
        None
    }

    /// The modules that it may go on, of those that linears and tables are, and a base's parameters.
    fn modules<'a>(&self, modules: &'a [ModuleInfo], _base: &Registry) -> Cow<'a, [ModuleInfo]> {
        Cow::Borrowed(modules)
    }

    /// What PEFT calls its copy of a module where it trains one and changes none.
    fn copies(&self) -> Option<&'static str> {
        None
    }

    /// The embeddings of virtual tokens before every text, where it has them, of a model of this width.
    fn prompt(&mut self, _width: usize) -> Result<Option<ChangePart>, PeftError> {
        Ok(None)
    }

    /// What virtual tokens are the outputs of while they train, where they are no parameter themselves; after
    /// [`Self::prompt`].
    fn encoder(&self) -> Option<PromptEncoder> {
        None
    }

    /// That an adapter of a file can be trained further.
    fn continues(&self) -> Result<(), PeftError> {
        Ok(())
    }

    /// Completes the sites with what they share, and what the configuration says of all.
    fn share(&self, _config: &LoraConfig, _sites: &mut [ChangeSite]) {}

    /// The parameters of a module, of rank and alpha after patterns.
    fn site(&self, module: &ModuleInfo, rank: usize, alpha: Option<f64>) -> Result<ChangeSite, PeftError>;
}

/// The table of methods.
macro_rules! methods {
    ($($(#[$doc:meta])* $name:ident($config:ty) = $word:literal | $lower:literal),+ $(,)?) => {
        choices! {
            /// What an adapter is.
            #[derive(Default)]
            pub enum PeftType: "peft_type", UnknownWord {
                /// Factors of low rank.
                #[default]
                Lora = "LORA" | "lora",
                $($(#[$doc])* $name = $word | $lower,)+
            }
        }

        /// A method other than LoRA, with the settings that it alone has.
        #[derive(Clone, Debug, PartialEq)]
        pub enum PeftMethod {
            $($(#[$doc])* $name($config),)+
        }

        impl PeftMethod {
            /// PEFT's word for it.
            #[must_use]
            pub fn peft_type(&self) -> PeftType {
                match self { $(Self::$name(_) => PeftType::$name,)+ }
            }

            /// PEFT's rank where a configuration says none.
            pub(crate) fn default_rank(&self) -> usize {
                fn of<M: Method>(_: &M) -> usize {
                    M::RANK
                }
                match self { $(Self::$name(own) => of(own),)+ }
            }

            /// The method of that type, its keys taken out of `object`; `None` for LoRA. Fails with key and reason.
            pub(crate) fn take(
                peft_type: PeftType,
                object: &mut Map<String, Value>,
            ) -> Result<Option<Self>, (String, String)> {
                Ok(match peft_type {
                    PeftType::Lora => None,
                    $(PeftType::$name => Some(Self::$name(take::<$config>(object)?)),)+
                })
            }

            /// Its keys with their values.
            pub(crate) fn own(&self) -> Map<String, Value> {
                match self { $(Self::$name(own) => map(own),)+ }
            }

            /// Whether its configuration has a key of [`LoraConfig`].
            #[must_use]
            pub fn has_key(&self, key: &str) -> bool {
                let shared = match self { $(Self::$name(_) => <$config as Method>::SHARED,)+ };
                let targets = match self { $(Self::$name(_) => <$config as Method>::TARGETS,)+ };
                shared.contains(&key) || COMMON.contains(&key) && (targets || key != "target_modules")
            }

            pub(crate) fn validate(&self, config: &LoraConfig, fresh: bool) -> Result<(), PeftError> {
                match self { $(Self::$name(own) => own.validate(config, fresh),)+ }
            }

            pub(crate) fn patterns(&self) -> Option<(&'static str, &Map<String, Value>)> {
                match self { $(Self::$name(own) => own.patterns(),)+ }
            }

            pub(crate) fn resolve(
                &mut self,
                config: &mut LoraConfig,
                model_type: &str,
                modules: &[ModuleInfo],
            ) -> bool {
                match self { $(Self::$name(own) => own.resolve(config, model_type, modules),)+ }
            }

            pub(crate) fn modules<'a>(
                &self,
                modules: &'a [ModuleInfo],
                base: &Registry,
            ) -> Cow<'a, [ModuleInfo]> {
                match self { $(Self::$name(own) => own.modules(modules, base),)+ }
            }

            pub(crate) fn copies(&self) -> Option<&'static str> {
                match self { $(Self::$name(own) => own.copies(),)+ }
            }

            pub(crate) fn prompt(&mut self, width: usize) -> Result<Option<ChangePart>, PeftError> {
                match self { $(Self::$name(own) => own.prompt(width),)+ }
            }

            pub(crate) fn encoder(&self) -> Option<PromptEncoder> {
                match self { $(Self::$name(own) => own.encoder(),)+ }
            }

            pub(crate) fn continues(&self) -> Result<(), PeftError> {
                match self { $(Self::$name(own) => own.continues(),)+ }
            }

            pub(crate) fn share(&self, config: &LoraConfig, sites: &mut [ChangeSite]) {
                match self { $(Self::$name(own) => own.share(config, sites),)+ }
            }

            pub(crate) fn site(
                &self,
                module: &ModuleInfo,
                rank: usize,
                alpha: Option<f64>,
                base: &Registry,
            ) -> Result<ChangeSite, PeftError> {
                let mut site = match self { $(Self::$name(own) => own.site(module, rank, alpha)?,)+ };
                site.has_bias = base.get(&site.base_bias()).is_some();
                Ok(site)
            }
        }
    };
}

methods! {
    /// Vectors that scale outputs or inputs.
    Ia3(Ia3) = "IA3" | "ia3",
    /// Rows of the embedding (and a tied head) that train.
    TrainableTokens(TrainableTokens) = "TRAINABLE_TOKENS" | "trainable_tokens",
    /// Blocks of a layer's inputs, rotated.
    Oft(Oft) = "OFT" | "oft",
    /// Products of rotations of a layer's inputs, and outputs that are scaled.
    Boft(Boft) = "BOFT" | "boft",
    /// An added product, by elements, of two matrices of low rank.
    Loha(Loha) = "LOHA" | "loha",
    /// An added Kronecker product.
    Lokr(Lokr) = "LOKR" | "lokr",
    /// Added blocks that are circulant.
    C3a(C3a) = "C3A" | "c3a",
    /// Copies of norms that train.
    LnTuning(LnTuning) = "LN_TUNING" | "ln_tuning",
    /// Vectors between random factors that all modules share.
    Vera(Vera) = "VERA" | "vera",
    /// Random bases that all modules share, weighed.
    RandLora(RandLora) = "RANDLORA" | "randlora",
    /// Factors of parts that are mixed of the vectors of one bank.
    VbLora(VbLora) = "VBLORA" | "vblora",
    /// Factors with singular values, of ranks that were allocated.
    AdaLora(AdaLora) = "ADALORA" | "adalora",
    /// Embeddings of virtual tokens before every text.
    PromptTuning(PromptTuning) = "PROMPT_TUNING" | "prompt_tuning",
    /// The same, which an encoder gave.
    PTuning(PTuning) = "P_TUNING" | "p_tuning",
    /// Keys and values of virtual tokens before every text.
    PrefixTuning(PrefixTuning) = "PREFIX_TUNING" | "prefix_tuning",
}

impl PeftType {
    /// The type of a file's word, which is in capitals.
    pub(crate) fn of_file(word: &str) -> Option<Self> {
        Self::from_word(word).filter(|found| found.word() == word)
    }
}

impl PeftMethod {
    /// Whether it puts tokens before texts and changes no weight.
    pub(crate) fn is_prompt(&self) -> bool {
        matches!(self, Self::PromptTuning(_) | Self::PTuning(_) | Self::PrefixTuning(_))
    }

    /// Whether its configuration says how weights lie (`fan_in_fan_out`).
    pub(crate) fn turns_weights(&self) -> bool {
        matches!(
            self,
            Self::Ia3(_)
                | Self::Oft(_)
                | Self::Boft(_)
                | Self::Vera(_)
                | Self::RandLora(_)
                | Self::VbLora(_)
                | Self::AdaLora(_)
        )
    }

    /// Whether what is drawn is in its files.
    pub(crate) fn keeps_drawn(&self) -> bool {
        match self {
            Self::Vera(own) => own.save_projection,
            Self::RandLora(own) => own.save_projection,
            _ => true,
        }
    }

    /// A method of that type whose settings are those of `own` by PEFT's names, the others its defaults; `None` for LoRA.
    ///
    /// # Errors
    /// If the method has no such key, or a value is of another type.
    pub fn with(peft_type: PeftType, own: &Map<String, Value>) -> Result<Option<Self>, PeftError> {
        let mut rest = own.clone();
        let wrong = |(key, reason)| PeftError::MethodKey { peft_type: peft_type.word(), key, reason };
        let method = Self::take(peft_type, &mut rest).map_err(wrong)?;
        if let Some(key) = rest.keys().next() {
            let known: Vec<String> =
                method.iter().flat_map(|m| m.own().into_iter().map(|(k, _)| k)).collect();
            let reason =
                format!("it has {}", if known.is_empty() { "none".into() } else { known.join(", ") });
            return Err(wrong((key.clone(), reason)));
        }
        Ok(method)
    }
}

fn map<C: Serialize>(own: &C) -> Map<String, Value> {
    match serde_json::to_value(own) {
        Ok(Value::Object(keys)) => keys,
        _ => unreachable!("invariant: settings are a struct that serialises"),
    }
}

/// Takes the keys of a method's settings out of an object.
fn take<C: Default + Serialize + for<'a> Deserialize<'a>>(
    object: &mut Map<String, Value>,
) -> Result<C, (String, String)> {
    let mut own = Map::new();
    for (key, _) in map(&C::default()) {
        let Some(value) = object.remove(&key) else { continue };
        let one = Map::from_iter([(key.clone(), value.clone())]);
        C::deserialize(Value::Object(one)).map_err(|e| (key.clone(), format!("is {value}: {e}")))?;
        own.insert(key, value);
    }
    C::deserialize(Value::Object(own)).map_err(|e| (String::new(), e.to_string()))
}

/// That a module is a linear layer.
fn linear(module: &ModuleInfo, what: &'static str) -> Result<(), PeftError> {
    match module.kind {
        ModuleKind::Linear | ModuleKind::Head => Ok(()),
        _ => Err(PeftError::Conflict { key: "target_modules", condition: what }),
    }
}

/// What only fresh adapters are refused, since nothing drops where an adapter is used.
fn no_dropout(key: &'static str, p: f64, fresh: bool) -> Result<(), PeftError> {
    if fresh && p != 0.0 {
        return Err(PeftError::UnsupportedKey {
            key: key.to_owned(),
            value: p.to_string(),
            mend: "whole blocks or rows are not dropped here: leave it out",
        });
    }
    Ok(())
}

/// That `p` is a probability of dropping.
fn probability(key: &'static str, p: f64) -> Result<(), PeftError> {
    if (0.0..1.0).contains(&p) {
        return Ok(());
    }
    Err(PeftError::BadValue { key, got: p.to_string(), expected: "a probability in [0, 1)" })
}

/// A list of names.
fn names(names: &[&str]) -> Targets {
    Targets::List(names.iter().map(|&name| name.to_owned()).collect())
}

/// A site of a module with these parameters; whether the module has a bias is filled in by the caller.
fn site(module: &ModuleInfo, change: Change, parts: Vec<ChangePart>) -> ChangeSite {
    ChangeSite {
        module: module.name.clone(),
        kind: module.kind,
        out: module.out,
        input: module.input,
        has_bias: false,
        dropout: 0.0,
        change,
        parts,
    }
}
