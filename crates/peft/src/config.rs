//! `adapter_config.json`, kept losslessly.
//!
//! The schema is that of PEFT 0.21.2; keys that burnish does not know are kept and written back.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use burnish_core::{UnknownWord, choices};
use burnish_weight_files::WeightFileError;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Number, Value};

use crate::method::TokenIndices;
use crate::{PeftError, PeftMethod, PeftType, python_json};

/// The file's name.
pub(crate) const CONFIG: &str = "adapter_config.json";

/// Which modules: names (suffixes on a boundary of the dotted path) or one regular expression for whole names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a list of names, or one text")]
pub enum Targets {
    /// `["q_proj", "v_proj"]`: a module matches when it is named so or ends with `.q_proj`.
    List(Vec<String>),
    /// A Python regular expression that must match the whole name; or `all-linear`.
    Pattern(String),
}

/// Which layers: one index or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a layer's number, or a list of them")]
pub enum Layers {
    /// One layer.
    One(i64),
    /// Several layers; none means no restriction.
    Many(Vec<i64>),
}

/// One name or several (`layers_pattern`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a name, or a list of them")]
pub enum Names {
    /// One.
    One(String),
    /// Several.
    Many(Vec<String>),
}

/// How fresh adapter factors are filled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected true, false, or a name such as \"pissa\"")]
pub enum InitWeights {
    /// `true`: A uniform, B zero; `false`: both random.
    Flag(bool),
    /// `gaussian`, or one of PEFT's data-driven methods.
    Named(String),
}

/// An initialisation that burnish computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Init {
    /// A uniform, B zero.
    Default,
    /// Both random.
    Random,
    /// A normal with deviation `1 / r`, B zero.
    Gaussian,
    /// Both random with `B A = 0`: see [`crate::init_lora_weights`].
    Orthogonal,
    /// The leading singular triplets of the weight, which keeps the rest (Meng et al. 2024).
    Pissa {
        /// Of a randomised subspace iteration; `None` for the exact triplets.
        iterations: Option<u32>,
    },
    /// The leading part of the weight's QR decomposition; the weight keeps the rest (Büyükakyüz 2024).
    Olora,
    /// The leading singular triplets of what quantising the weight loses (LoftQ; Li et al. 2023). Embeddings, and layers whose
    /// weight keeps its bits, start as with `true`.
    Loftq,
    /// B the left singular vectors of the smallest singular values, which do not train, A zero (MiCA; arXiv:2604.01694); of an
    /// embedding B those of its transpose.
    Mica,
    /// A the principal components of what a layer reads of rows, in ranks by their variance, B zero ([`crate::Eva`]).
    Eva,
    /// The triplets of the weight by the covariance of what its layer reads of rows; the weight keeps the rest
    /// ([`crate::Covariance`]).
    Corda,
    /// Triplets of the weight's gradient over rows; the weight keeps the rest ([`crate::LoraGaConfig`]).
    LoraGa,
}

impl Init {
    /// Whether the factors come from the base weight, which keeps `W - s B A`. Embeddings start as with `true` then.
    #[must_use]
    pub fn changes_base(self) -> bool {
        matches!(self, Self::Pissa { .. } | Self::Olora | Self::Corda | Self::LoraGa)
    }

    /// PEFT's words, `N` standing for a number.
    pub const WORDS: &'static [&'static str] = &[
        "true",
        "gaussian",
        "false",
        "orthogonal",
        "pissa",
        "pissa_niter_N",
        "olora",
        "loftq",
        "mica",
        "eva",
        "corda",
        "lora_ga",
    ];

    /// Whether the factors of linear layers are made of the base: see [`crate::decompose`].
    #[must_use]
    pub fn reads_base(self) -> bool {
        self.changes_base() || matches!(self, Self::Loftq | Self::Mica | Self::Eva)
    }

    /// Whether the factors of linear layers are made of rows of the data, which a run has and a configuration has not.
    #[must_use]
    pub fn reads_rows(self) -> bool {
        matches!(self, Self::Eva | Self::Corda | Self::LoraGa)
    }
}

/// PEFT's word for it.
impl fmt::Display for Init {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("true"),
            Self::Random => f.write_str("false"),
            Self::Gaussian => f.write_str("gaussian"),
            Self::Orthogonal => f.write_str("orthogonal"),
            Self::Pissa { iterations: None } => f.write_str("pissa"),
            Self::Pissa { iterations: Some(n) } => write!(f, "pissa_niter_{n}"),
            Self::Olora => f.write_str("olora"),
            Self::Loftq => f.write_str("loftq"),
            Self::Mica => f.write_str("mica"),
            Self::Eva => f.write_str("eva"),
            Self::Corda => f.write_str("corda"),
            Self::LoraGa => f.write_str("lora_ga"),
        }
    }
}

impl FromStr for Init {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        let init = match word {
            "true" | "True" => Some(Self::Default),
            "false" | "False" => Some(Self::Random),
            "orthogonal" => Some(Self::Orthogonal),
            "pissa" => Some(Self::Pissa { iterations: None }),
            "olora" => Some(Self::Olora),
            "loftq" => Some(Self::Loftq),
            "eva" => Some(Self::Eva),
            "corda" => Some(Self::Corda),
            "lora_ga" => Some(Self::LoraGa),
            _ if word.eq_ignore_ascii_case("mica") => Some(Self::Mica),
            _ if word.eq_ignore_ascii_case("gaussian") => Some(Self::Gaussian),
            _ => word
                .strip_prefix("pissa_niter_")
                .and_then(|iterations| iterations.parse().ok())
                .map(|iterations| Self::Pissa { iterations: Some(iterations) }),
        };
        init.ok_or_else(|| UnknownWord {
            option: "init_lora_weights",
            got: word.to_owned(),
            words: Self::WORDS,
        })
    }
}

impl From<Init> for InitWeights {
    fn from(init: Init) -> Self {
        match init {
            Init::Default => Self::Flag(true),
            Init::Random => Self::Flag(false),
            named => Self::Named(named.to_string()),
        }
    }
}

impl InitWeights {
    /// The initialisation, or `None` if burnish does not compute it.
    ///
    /// ```
    /// use burnish_peft::{Init, InitWeights};
    /// let named = |word: &str| InitWeights::Named(word.into()).method();
    /// assert_eq!(named("pissa_niter_4"), Some(Init::Pissa { iterations: Some(4) }));
    /// assert_eq!(named("new"), None);
    /// ```
    #[must_use]
    pub fn method(&self) -> Option<Init> {
        match self {
            Self::Flag(true) => Some(Init::Default),
            Self::Flag(false) => Some(Init::Random),
            // In a file these two are booleans.
            Self::Named(word) if matches!(word.as_str(), "true" | "True" | "false" | "False") => None,
            Self::Named(word) => word.parse().ok(),
        }
    }
}

choices! {
    /// Which biases of the base are trained and saved with the adapter.
    #[derive(Default)]
    pub enum Bias: "bias", UnknownWord {
        /// None.
        #[default]
        None = "none",
        /// Every bias of the model.
        All = "all",
        /// Those of adapted modules.
        LoraOnly = "lora_only",
    }
}

impl Serialize for Bias {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Bias {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        match word.as_str() {
            "none" => Ok(Self::None),
            "all" => Ok(Self::All),
            // Each method has a word of its own, and PEFT looks at its end.
            _ if word.ends_with(ONLY) => Ok(Self::LoraOnly),
            _ => Err(D::Error::custom("expected \"none\", \"all\" or the method's, as \"lora_only\"")),
        }
    }
}

/// What the method's name is followed by where biases of adapted modules train.
const ONLY: &str = "_only";

/// An adapter's configuration: LoRA's, or where [`method`](Self::method) is set that method's. Every key of PEFT 0.21.2 is here or in [`rest`](Self::rest).
///
/// ```
/// use burnish_peft::LoraConfig;
/// let config = LoraConfig::from_json(r#"{"peft_type": "LORA", "r": 16, "target_modules": ["q_proj"], "new": 1}"#).unwrap();
/// assert_eq!((config.r, config.alpha()), (16, 8.0));
/// assert!(config.to_json().contains("\"new\": 1"));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoraConfig {
    /// PEFT's word for the method: `LORA`, ...
    pub peft_type: String,
    /// What a method other than LoRA has of its own; then only the keys that both have count, and only the method's are
    /// written.
    #[serde(skip)]
    pub method: Option<PeftMethod>,
    /// The base model's folder or name.
    pub base_model_name_or_path: Option<String>,
    /// `CAUSAL_LM`, ...
    pub task_type: Option<String>,
    /// Always `true` on disk.
    pub inference_mode: bool,
    /// The rank of modules without an entry in `rank_pattern`.
    pub r: usize,
    /// The scale's numerator for modules without an entry in `alpha_pattern`.
    pub lora_alpha: Number,
    /// Probability with which an element of the adapter's input is dropped in training.
    pub lora_dropout: Number,
    /// Scale `alpha / sqrt(r)` instead of `alpha / r`.
    pub use_rslora: bool,
    /// Decompose each adapted weight into magnitude and direction and train both (DoRA).
    pub use_dora: bool,
    /// Whether B has a bias.
    pub lora_bias: bool,
    /// Biases of the base that train along.
    pub bias: Bias,
    /// Which modules are adapted; `None` means the architecture's default.
    pub target_modules: Option<Targets>,
    /// Parameters that are adapted although no linear layer holds them (experts, routers): ends of their names.
    pub target_parameters: Option<Vec<String>>,
    /// Which of them are not.
    pub exclude_modules: Option<Targets>,
    /// Only in these layers (with a list of targets).
    pub layers_to_transform: Option<Layers>,
    /// The name of the list of layers, where the first number in a path is not it.
    pub layers_pattern: Option<Names>,
    /// Ranks by pattern; the first pattern that matches counts.
    pub rank_pattern: Map<String, Value>,
    /// Alphas by pattern; the first pattern that matches counts.
    pub alpha_pattern: Map<String, Value>,
    /// Modules that are trained whole and saved with the adapter.
    pub modules_to_save: Option<Vec<String>>,
    /// How fresh factors are filled.
    pub init_lora_weights: InitWeights,
    /// Tokens whose rows of the embedding (and of a head that shares it) train beside the factors.
    pub trainable_token_indices: Option<TokenIndices>,
    /// The tokens from whose last occurrence in a text on the adapter acts (aLoRA; Greenewald et al. 2025,
    /// arXiv:2504.12397); without them it acts on every token.
    pub alora_invocation_tokens: Option<Vec<u32>>,
    /// Ranges `[start, end)` of the base's layers that stand one after another in place of its own, with weights that they
    /// share and factors of their own.
    pub layer_replication: Option<Vec<(usize, usize)>>,
    /// Every other key, as found.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Default for LoraConfig {
    fn default() -> Self {
        Self {
            peft_type: "LORA".into(),
            method: None,
            base_model_name_or_path: None,
            task_type: None,
            inference_mode: true,
            r: 8,
            lora_alpha: 8.into(),
            lora_dropout: Number::from_f64(0.0).unwrap_or_else(|| 0.into()),
            use_rslora: false,
            use_dora: false,
            lora_bias: false,
            bias: Bias::None,
            target_modules: None,
            target_parameters: None,
            exclude_modules: None,
            layers_to_transform: None,
            layers_pattern: None,
            rank_pattern: Map::new(),
            alpha_pattern: Map::new(),
            modules_to_save: None,
            init_lora_weights: InitWeights::Flag(true),
            trainable_token_indices: None,
            alora_invocation_tokens: None,
            layer_replication: None,
            rest: Map::new(),
        }
    }
}

/// What PEFT 0.21.2 writes for keys that burnish has no field for, in a plain LoRA configuration.
fn plain_rest() -> Map<String, Value> {
    let mut rest = Map::new();
    for key in [
        "arrow_config",
        "auto_mapping",
        "corda_config",
        "eva_config",
        "kasa_config",
        "lora_ga_config",
        "megatron_config",
        "monteclora_config",
        "revision",
        "use_bdlora",
        "velora_config",
    ] {
        rest.insert(key.into(), Value::Null);
    }
    for key in ["ensure_weight_tying", "fan_in_fan_out", "use_qalora"] {
        rest.insert(key.into(), Value::Bool(false));
    }
    rest.insert("loftq_config".into(), Value::Object(Map::new()));
    rest.insert("megatron_core".into(), "megatron.core".into());
    rest.insert("peft_version".into(), "0.21.2".into());
    rest.insert("qalora_group_size".into(), 16.into());
    rest
}

impl LoraConfig {
    /// A fresh configuration with PEFT 0.21.2's defaults and all of its keys.
    #[must_use]
    pub fn new(r: usize, lora_alpha: f64) -> Self {
        Self { r, lora_alpha: number(lora_alpha), rest: plain_rest(), ..Self::default() }
    }

    /// A fresh configuration of another method with PEFT 0.21.2's defaults and all of its keys.
    ///
    /// ```
    /// use burnish_peft::{Ia3, LoraConfig, PeftMethod};
    /// let config = LoraConfig::of(PeftMethod::Ia3(Ia3::default())).with_targets(["k_proj"]);
    /// assert!(config.to_json().contains("\"init_ia3_weights\": true") && !config.to_json().contains("lora"));
    /// ```
    #[must_use]
    pub fn of(method: PeftMethod) -> Self {
        let kept = |key: &str| {
            ["auto_mapping", "peft_version", "revision"].contains(&key)
                || key == "fan_in_fan_out" && method.turns_weights()
                // Its configuration is one of LoRA's with more.
                || method.peft_type() == PeftType::AdaLora
        };
        let rest = plain_rest().into_iter().filter(|(key, _)| kept(key)).collect();
        Self {
            peft_type: method.peft_type().name().to_owned(),
            r: method.default_rank(),
            method: Some(method),
            rest,
            ..Self::default()
        }
    }

    /// Reads a configuration file's text. Keys that are absent get PEFT's defaults.
    ///
    /// # Errors
    /// If it is not an object with a `peft_type`, or a value has the wrong type; the message names the key.
    pub fn from_json(text: &str) -> Result<Self, PeftError> {
        Self::parse(text.as_bytes(), Path::new(CONFIG))
    }

    /// Reads `adapter_config.json` of a folder.
    ///
    /// # Errors
    /// If there is none, or as [`from_json`](Self::from_json).
    pub fn read(folder: impl AsRef<Path>) -> Result<Self, PeftError> {
        let path = folder.as_ref().join(CONFIG);
        match burnish_core::file::read_json(&path) {
            Ok(text) => Self::parse(&text, &path),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                Err(PeftError::NoAdapter { path: folder.as_ref().to_path_buf(), found: Vec::new() })
            }
            Err(source) => Err(WeightFileError::Io { action: "read", path, source }.into()),
        }
    }

    fn parse(text: &[u8], path: &Path) -> Result<Self, PeftError> {
        let corrupt = |reason: String| PeftError::CorruptConfig { path: path.to_path_buf(), reason };
        let mut object: Map<String, Value> =
            serde_json::from_slice(text).map_err(|e| corrupt(e.to_string()))?;
        let peft_type = match object.get("peft_type") {
            Some(Value::String(kind)) => PeftType::of_file(kind)
                .ok_or_else(|| PeftError::UnsupportedMethod { peft_type: kind.clone() })?,
            Some(other) => return Err(corrupt(format!("`peft_type` is {other}, expected a string"))),
            None => return Err(corrupt("it has no `peft_type`".into())),
        };
        // Valid only while a process runs; PEFT drops it too.
        object.remove("runtime_config");
        for key in ["rank_pattern", "alpha_pattern", "use_dora"] {
            if object.get(key).is_some_and(Value::is_null) {
                object.remove(key);
            }
        }
        let method = PeftMethod::take(peft_type, &mut object)
            .map_err(|(key, reason)| corrupt(format!("`{key}` {reason}")))?;
        for key in object.keys().cloned().collect::<Vec<_>>() {
            let one = Map::from_iter([(key.clone(), object[&key].clone())]);
            if let Err(e) = Self::deserialize(Value::Object(one)) {
                return Err(corrupt(format!("`{key}` is {}: {e}", object[&key])));
            }
        }
        let own = method.as_ref().map(PeftMethod::default_rank).filter(|_| !object.contains_key("r"));
        let config = Self::deserialize(Value::Object(object)).map_err(|e| corrupt(e.to_string()))?;
        Ok(Self { method, r: own.unwrap_or(config.r), ..config })
    }

    /// The text of `adapter_config.json`, byte for byte as PEFT would write it.
    #[must_use]
    pub fn to_json(&self) -> String {
        let on_disk = Self { inference_mode: true, ..self.clone() };
        let mut value = serde_json::to_value(on_disk).expect("invariant: every field serialises to JSON");
        if let (Some(method), Value::Object(keys)) = (&self.method, &mut value) {
            keys.retain(|key, _| method.has_key(key) || self.rest.contains_key(key));
            keys.extend(method.own());
            if self.bias == Bias::LoraOnly {
                keys.insert("bias".to_owned(), format!("{}{ONLY}", self.peft_type.to_lowercase()).into());
            }
        }
        python_json::dumps(&value)
    }

    /// `lora_alpha`.
    #[must_use]
    pub fn alpha(&self) -> f64 {
        self.lora_alpha.as_f64().unwrap_or(f64::NAN)
    }

    /// `lora_dropout`.
    #[must_use]
    pub fn dropout(&self) -> f64 {
        self.lora_dropout.as_f64().unwrap_or(f64::NAN)
    }

    /// Sets `lora_dropout`.
    #[must_use]
    pub fn with_dropout(mut self, p: f64) -> Self {
        self.lora_dropout = Number::from_f64(p).unwrap_or_else(|| 0.into());
        self
    }

    /// Sets `target_modules` to a list of names: a module matches when it is named so or ends with `.` and the name.
    #[must_use]
    pub fn with_targets(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.target_modules = Some(Targets::List(names.into_iter().map(Into::into).collect()));
        self
    }

    /// The tokens that an adapter waits for, if it waits for some.
    #[must_use]
    pub fn invocation(&self) -> Option<&[u32]> {
        self.alora_invocation_tokens.as_deref().filter(|tokens| !tokens.is_empty())
    }

    /// The ranges of layers that stand in place of the base's, if some do.
    #[must_use]
    pub fn replication(&self) -> Option<&[(usize, usize)]> {
        self.layer_replication.as_deref().filter(|ranges| !ranges.is_empty())
    }

    /// `ensure_weight_tying`.
    #[must_use]
    pub fn ensures_weight_tying(&self) -> bool {
        self.rest.get("ensure_weight_tying") == Some(&Value::Bool(true))
    }

    /// Checks ranges and combinations, as PEFT's constructor does.
    ///
    /// # Errors
    /// The first violated rule.
    pub fn validate(&self) -> Result<(), PeftError> {
        let bad = |key, got: String, expected| Err(PeftError::BadValue { key, got, expected });
        let conflict = |key, condition| Err(PeftError::Conflict { key, condition });
        if self.method.is_some() && self.target_parameters.is_some() {
            return conflict("target_parameters", "with another peft_type than LORA");
        }
        if self.r == 0 {
            return bad("r", "0".into(), "a positive rank");
        }
        if !(0.0..1.0).contains(&self.dropout()) {
            return bad("lora_dropout", self.lora_dropout.to_string(), "a probability in [0, 1)");
        }
        if !self.alpha().is_finite() {
            return bad("lora_alpha", self.lora_alpha.to_string(), "a finite number");
        }
        if let Some((p, v)) = self.rank_pattern.iter().find(|(_, v)| v.as_u64().is_none_or(|r| r == 0)) {
            return bad("rank_pattern", format!("{{{p}: {v}}}"), "positive ranks");
        }
        if let Some((p, v)) = self.alpha_pattern.iter().find(|(_, v)| v.as_f64().is_none()) {
            return bad("alpha_pattern", format!("{{{p}: {v}}}"), "numbers");
        }
        match &self.target_modules {
            Some(Targets::List(names)) if names.iter().any(String::is_empty) => {
                return bad("target_modules", "a list with an empty string".into(), "module names");
            }
            Some(Targets::Pattern(_)) if self.layers_to_transform.is_some() => {
                return conflict("layers_to_transform", "when `target_modules` is a string");
            }
            Some(Targets::Pattern(_)) if self.layers_pattern.is_some() => {
                return conflict("layers_pattern", "when `target_modules` is a string");
            }
            _ => {}
        }
        let has_pattern = match &self.layers_pattern {
            None => false,
            Some(Names::One(p)) => !p.is_empty(),
            Some(Names::Many(p)) => !p.is_empty(),
        };
        if has_pattern && self.layers_to_transform.is_none() {
            return conflict("layers_pattern", "without `layers_to_transform`");
        }
        if self.target_parameters.as_ref().is_some_and(|names| names.iter().any(String::is_empty)) {
            return bad("target_parameters", "a list with an empty string".into(), "parameters' names");
        }
        if self.lora_bias && self.use_dora {
            return conflict("lora_bias", "with `use_dora`");
        }
        if self.replication().is_some() {
            if self.method.is_some() {
                return conflict("layer_replication", "with another peft_type than LORA");
            }
            if self.bias != Bias::None {
                return conflict("layer_replication", "with `bias`: layers that share it would train one");
            }
        }
        if self.invocation().is_some() {
            let condition = "with `use_dora` or another method: PEFT has no such variant";
            if self.use_dora || self.method.is_some() || self.keeps_b() {
                return conflict("alora_invocation_tokens", condition);
            }
        }
        if self.lora_bias && !matches!(self.init_lora_weights, InitWeights::Flag(_)) {
            return conflict("lora_bias", "unless `init_lora_weights` is true or false");
        }
        Ok(())
    }
}

/// An integral value as an integer, as Python users write it.
fn number(value: f64) -> Number {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return (value as i64).into();
    }
    Number::from_f64(value).unwrap_or_else(|| 0.into())
}
