//! Types of single options: steps or a share of the run, where to resume, text word for word.

use std::fmt;
use std::path::PathBuf;

use burnish_core::Dtype;
use burnish_optim::Arguments;
use burnish_peft::{Init, Targets, TokenIndices};
use burnish_zero::Stage;

use crate::raw::{Raw, is_null_word};
use crate::value::{OptionValue, ValueKind, is_pattern};

/// A number of steps, or, below 1, a share of all steps of the run (Transformers' rule for `logging_steps`,
/// `save_steps`, `eval_steps` and `warmup_steps`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steps(pub f64);

impl Steps {
    /// The number of steps in a run of `total` steps: whole numbers as they are, shares rounded up.
    ///
    /// # Source
    /// Transformers 5.23, `TrainerState.compute_steps` and `TrainingArguments.get_warmup_steps`.
    ///
    /// ```
    /// use burnish_config::values::Steps;
    ///
    /// assert_eq!(Steps(10.0).of(1000), 10);
    /// assert_eq!(Steps(0.03).of(1001), 31);
    /// ```
    #[must_use]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    pub fn of(self, total: u64) -> u64 {
        if self.0 >= 1.0 { self.0 as u64 } else { (total as f64 * self.0.max(0.0)).ceil() as u64 }
    }

    /// Whether this is a share of the run rather than a number of steps.
    #[must_use]
    pub fn is_share(self) -> bool {
        self.0 < 1.0
    }
}

impl OptionValue for Steps {
    const KIND: ValueKind = ValueKind::Float;

    fn expected() -> String {
        "a whole number of steps, or a share of the run below 1".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        let steps = f64::read(raw)?;
        // Below 0 stands where a strategy does not ask for steps, as in Transformers; rules look at the others.
        (steps.is_finite() && ((0.0..1.0).contains(&steps) || steps.fract() == 0.0)).then_some(Self(steps))
    }

    fn write(&self) -> Raw {
        i64::read(&Raw::Float(self.0)).map_or(Raw::Float(self.0), Raw::Int)
    }
}

/// Several values, each as it stands: a flag's words, or the items of a file's list, are not split any further.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Items<T>(pub Vec<T>);

impl<T: OptionValue> OptionValue for Items<T> {
    const KIND: ValueKind = ValueKind::List;

    fn expected() -> String {
        format!("a list, each item {}", T::expected())
    }

    fn read(raw: &Raw) -> Option<Self> {
        let all = |items: &[Raw]| items.iter().map(T::read).collect::<Option<Vec<T>>>().map(Self);
        match raw {
            Raw::List(items) => all(items),
            Raw::Text(text) => match Raw::from_json(text) {
                Some(Raw::List(items)) => all(&items),
                _ => all(std::slice::from_ref(raw)),
            },
            _ => None,
        }
    }

    fn write(&self) -> Raw {
        Raw::List(self.0.iter().map(OptionValue::write).collect())
    }
}

/// The element type in which weights are held after loading; `None` is that of the folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelDtype(pub Option<Dtype>);

impl fmt::Display for ModelDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.map_or("auto", Dtype::name))
    }
}

impl OptionValue for ModelDtype {
    const KIND: ValueKind = ValueKind::AutoOr(&[Dtype::F32.name(), Dtype::Bf16.name(), Dtype::F16.name()]);

    fn expected() -> String {
        "auto, float32, bfloat16 or float16".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        let Raw::Text(word) = raw else { return None };
        if word == "auto" {
            return Some(Self(None));
        }
        let held = |dtype: &Dtype| matches!(dtype, Dtype::F32 | Dtype::Bf16 | Dtype::F16);
        // As people shorten them.
        let word = match word.as_str() {
            "bf16" => Dtype::Bf16.name(),
            "fp16" | "half" => Dtype::F16.name(),
            "fp32" | "float" => Dtype::F32.name(),
            word => word,
        };
        word.parse().ok().filter(held).map(|dtype| Self(Some(dtype)))
    }

    fn write(&self) -> Raw {
        Raw::Text(self.to_string())
    }
}

impl OptionValue for Stage {
    const KIND: ValueKind = ValueKind::Int;

    fn expected() -> String {
        "0, 1, 2 or 3".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        Self::try_from(u8::try_from(i64::read(raw)?).ok()?).ok()
    }

    fn write(&self) -> Raw {
        Raw::Int(u8::from(*self).into())
    }
}

impl OptionValue for Init {
    const KIND: ValueKind = ValueKind::Choice(Self::WORDS);

    fn expected() -> String {
        "true, gaussian, false, orthogonal, pissa, pissa_niter_N (as in pissa_niter_4), olora, loftq, mica, eva, corda or lora_ga"
            .into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        match raw {
            Raw::Bool(uniform) => Some(if *uniform { Self::Default } else { Self::Random }),
            Raw::Text(word) => word.parse().ok(),
            _ => None,
        }
    }

    fn write(&self) -> Raw {
        Raw::Text(self.to_string())
    }
}

/// A list of module names, or one regular expression, as PEFT distinguishes them.
impl OptionValue for Targets {
    const KIND: ValueKind = ValueKind::List;

    fn expected() -> String {
        "module names, one regular expression, or all-linear".into()
    }

    /// A list of one is its element, as in TRL. A single plain name stays a list of one, where TRL would take it for a
    /// regular expression that matches no module.
    fn read(raw: &Raw) -> Option<Self> {
        let mut names: Vec<String> = match raw {
            Raw::Null => return None,
            Raw::Text(text) if is_pattern(text) && !text.trim_start().starts_with('[') => vec![text.clone()],
            _ => OptionValue::read(raw)?,
        };
        if names.is_empty() {
            return None;
        }
        if names.len() == 1 && (names[0] == "all-linear" || is_pattern(&names[0])) {
            return Some(Self::Pattern(names.remove(0)));
        }
        Some(Self::List(names))
    }

    fn write(&self) -> Raw {
        match self {
            Self::Pattern(pattern) => Raw::Text(pattern.clone()),
            Self::List(names) => names.write(),
        }
    }
}

/// Arguments of a schedule: a mapping, or its JSON text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeywordArguments(pub Arguments);

impl OptionValue for KeywordArguments {
    const KIND: ValueKind = ValueKind::Map;

    fn expected() -> String {
        "a mapping of names to numbers and words, as in {\"num_cycles\": 2}".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        let entries = match raw {
            _ if raw.is_nothing() => return Some(Self::default()),
            Raw::Map(entries) => entries.clone(),
            Raw::Text(text) => match Raw::from_json(text)? {
                Raw::Map(entries) => entries,
                _ => return None,
            },
            _ => return None,
        };
        let single = |(name, value): (String, Raw)| match value {
            Raw::List(_) | Raw::Map(_) => None,
            value => Some((name, value.plain())),
        };
        entries.into_iter().map(single).collect::<Option<Arguments>>().map(Self)
    }

    fn write(&self) -> Raw {
        if self.0.is_empty() {
            return Raw::Null;
        }
        let number = |text: &str| match Raw::from_json(text) {
            Some(raw @ (Raw::Int(_) | Raw::Float(_) | Raw::Bool(_) | Raw::Null)) => raw,
            _ => Raw::Text(text.to_owned()),
        };
        Raw::Map(self.0.iter().map(|(name, value)| (name.to_owned(), number(value))).collect())
    }
}

/// Settings of an adapter's method by PEFT's names: a mapping, or its JSON text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MethodSettings(pub serde_json::Map<String, serde_json::Value>);

impl OptionValue for MethodSettings {
    const KIND: ValueKind = ValueKind::Map;

    fn expected() -> String {
        "a mapping of PEFT's names to values, as in {\"oft_block_size\": 8}".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        match raw {
            _ if raw.is_nothing() => Some(Self::default()),
            Raw::Text(text) => serde_json::from_str(text).ok().map(Self),
            other => match serde_json::Value::from(other) {
                serde_json::Value::Object(settings) => Some(Self(settings)),
                _ => None,
            },
        }
    }

    fn write(&self) -> Raw {
        if self.0.is_empty() {
            return Raw::Null;
        }
        Raw::from_json(&serde_json::Value::Object(self.0.clone()).to_string()).unwrap_or(Raw::Null)
    }
}

/// Ranges of layers, `[start, end)` each: a list of pairs, or its JSON text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerRanges(pub Vec<(usize, usize)>);

impl OptionValue for LayerRanges {
    const KIND: ValueKind = ValueKind::List;

    fn expected() -> String {
        "a list of pairs of layers, as in [[0, 4], [2, 5]]".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        let pair = |raw: &Raw| match Vec::<usize>::read(raw)?[..] {
            [start, end] => Some((start, end)),
            _ => None,
        };
        match raw {
            _ if raw.is_nothing() => Some(Self::default()),
            Raw::Text(text) => Self::read(&Raw::from_json(text).filter(|raw| matches!(raw, Raw::List(_)))?),
            Raw::List(items) => match &items[..] {
                [text @ Raw::Text(_)] => Self::read(text),
                pairs => pairs.iter().map(pair).collect::<Option<_>>().map(Self),
            },
            _ => None,
        }
    }

    fn write(&self) -> Raw {
        let pair = |&(start, end): &(usize, usize)| Raw::List(vec![start.write(), end.write()]);
        Raw::List(self.0.iter().map(pair).collect())
    }
}

/// Token ids, or such lists by module.
impl OptionValue for TokenIndices {
    const KIND: ValueKind = ValueKind::List;

    fn expected() -> String {
        "a list of token ids, or a mapping of modules to such lists".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        let ids =
            |raw: &Raw| Vec::<usize>::read(raw).map(|ids| ids.into_iter().map(|id| id as i64).collect());
        match raw {
            _ if raw.is_nothing() => None,
            Raw::Map(entries) => {
                let entry = |(name, raw): &(String, Raw)| Some((name.clone(), ids(raw)?));
                entries.iter().map(entry).collect::<Option<_>>().map(Self::ByModule)
            }
            Raw::Text(text) if text.trim_start().starts_with('{') => Self::read(&Raw::from_json(text)?),
            _ => ids(raw).map(Self::List),
        }
    }

    fn write(&self) -> Raw {
        let list = |ids: &[i64]| Raw::List(ids.iter().map(|&id| Raw::Int(id)).collect());
        match self {
            Self::List(ids) => list(ids),
            Self::ByModule(entries) => {
                Raw::Map(entries.iter().map(|(name, ids)| (name.clone(), list(ids))).collect())
            }
        }
    }
}

/// Arguments of an optimizer: `name=value,name=value`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArgumentList(pub Arguments);

impl OptionValue for ArgumentList {
    const KIND: ValueKind = ValueKind::Text;

    fn expected() -> String {
        "name=value pairs with commas between them, as in momentum=0.9,nesterov=true".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        match raw {
            _ if raw.is_nothing() => Some(Self::default()),
            Raw::Text(text) => Arguments::parse(text).map(Self),
            _ => None,
        }
    }

    fn write(&self) -> Raw {
        if self.0.is_empty() {
            return Raw::Null;
        }
        let pairs: Vec<String> = self.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        Raw::Text(pairs.join(","))
    }
}

/// Where a run starts from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// From the beginning.
    #[default]
    No,
    /// From the newest complete checkpoint in the output folder.
    Newest,
    /// From this checkpoint folder.
    From(PathBuf),
}

impl OptionValue for Resume {
    const KIND: ValueKind = ValueKind::Path;

    fn expected() -> String {
        "true (the newest checkpoint of output_dir), false, or the path of a checkpoint folder".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        match raw {
            Raw::Null => Some(Self::No),
            Raw::Text(text) if is_null_word(text) => Some(Self::No),
            Raw::Bool(_) | Raw::Text(_) => match bool::read(raw) {
                Some(true) => Some(Self::Newest),
                Some(false) => Some(Self::No),
                None => Some(Self::From(PathBuf::read(raw)?)),
            },
            _ => None,
        }
    }

    fn write(&self) -> Raw {
        match self {
            Self::No => Raw::Null,
            Self::Newest => Raw::Bool(true),
            Self::From(path) => path.write(),
        }
    }
}

/// `pad_to_multiple_of`: TRL's `auto` pads to the longest row on every device that burnish knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PadToMultiple(pub Option<usize>);

impl OptionValue for PadToMultiple {
    const KIND: ValueKind = ValueKind::Int;

    fn expected() -> String {
        "auto, null, or a whole number that is at least 1".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        match raw {
            Raw::Text(text) if text == "auto" => Some(Self(None)),
            _ => {
                let multiple = Option::<usize>::read(raw)?;
                (multiple != Some(0)).then_some(Self(multiple))
            }
        }
    }

    fn write(&self) -> Raw {
        self.0.map_or_else(|| Raw::Text("auto".into()), |multiple| multiple.write())
    }
}

/// Text taken word for word: even `None` is text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verbatim(pub Option<String>);

impl OptionValue for Verbatim {
    const KIND: ValueKind = ValueKind::Text;

    fn expected() -> String {
        String::expected()
    }

    fn read(raw: &Raw) -> Option<Self> {
        match raw {
            Raw::Null => Some(Self(None)),
            _ => Some(Self(Some(String::read(raw)?))),
        }
    }

    fn write(&self) -> Raw {
        self.0.as_ref().map_or(Raw::Null, |text| Raw::Text(text.clone()))
    }
}

/// A mapping whose values may be anything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JsonMap(Vec<(String, Raw)>);

impl JsonMap {
    /// Its entries as JSON.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Map<String, serde_json::Value> {
        self.0.iter().map(|(key, raw)| (key.clone(), raw.into())).collect()
    }
}

impl OptionValue for JsonMap {
    const KIND: ValueKind = ValueKind::Map;

    fn expected() -> String {
        "a mapping".into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        match raw {
            raw if raw.is_nothing() => Some(Self::default()),
            Raw::Map(entries) => {
                let switch = |raw: &Raw| match raw {
                    // YAML 1.1's switches.
                    Raw::Text(word)
                        if matches!(word.to_ascii_lowercase().as_str(), "yes" | "on" | "no" | "off") =>
                    {
                        bool::read(raw).map_or_else(|| raw.clone(), Raw::Bool)
                    }
                    _ => raw.clone(),
                };
                Some(Self(entries.iter().map(|(key, raw)| (key.clone(), switch(raw))).collect()))
            }
            Raw::Text(text) => match Raw::from_json(text)? {
                Raw::Map(entries) => Some(Self(entries)),
                _ => None,
            },
            _ => None,
        }
    }

    fn write(&self) -> Raw {
        Raw::Map(self.0.clone())
    }
}

/// Where metrics go besides `metrics.jsonl`, which is always written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportTo {
    /// Write a TensorBoard event file.
    pub tensorboard: bool,
    /// Write a run into MLflow's store of files.
    pub mlflow: bool,
    /// Write a run as Weights & Biases' client does offline.
    pub wandb: bool,
}

impl OptionValue for ReportTo {
    const KIND: ValueKind = ValueKind::List;

    fn expected() -> String {
        "none, tensorboard, mlflow, wandb or all (metrics.jsonl is always written; other trackers can import it)"
            .into()
    }

    fn read(raw: &Raw) -> Option<Self> {
        let words = match raw {
            Raw::Null => Vec::new(),
            _ => Vec::<String>::read(raw)?,
        };
        let mut report = Self { tensorboard: false, mlflow: false, wandb: false };
        for word in words {
            match word.as_str() {
                "none" | "None" | "null" => {}
                "tensorboard" | "all" => report.tensorboard = true,
                "mlflow" => report.mlflow = true,
                "wandb" => report.wandb = true,
                _ => return None,
            }
        }
        Some(report)
    }

    fn write(&self) -> Raw {
        let all = [("tensorboard", self.tensorboard), ("mlflow", self.mlflow), ("wandb", self.wandb)];
        let words = all.into_iter().filter(|(_, wanted)| *wanted).map(|(word, _)| Raw::Text(word.into()));
        match <[Raw; 1]>::try_from(words.collect::<Vec<_>>()) {
            Ok([only]) => only,
            Err(none) if none.is_empty() => Raw::Text("none".into()),
            Err(several) => Raw::List(several),
        }
    }
}
