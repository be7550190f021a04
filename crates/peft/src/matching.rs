//! Matching of `target_modules`, exactly as PEFT 0.21.2 decides (`tuners_utils.check_target_module_exists`).

use std::collections::BTreeSet;

use burnish_weight_files::nearest;

use crate::error::DeadPattern;
use crate::pattern::{self, Matcher};
use crate::{Layers, LoraConfig, Names, PeftError, PeftMethod, Purpose, Targets};

/// What a module is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleKind {
    /// A linear layer inside the model.
    Linear,
    /// A token embedding.
    Embedding,
    /// The output projection (or a classification head): not part of `all-linear`.
    Head,
    /// A matrix that no linear layer holds, by the parameter's own name: a router's weight. Only `target_parameters`
    /// reaches it.
    Parameter,
    /// The matrices `[experts, out, in]` of so many experts, by the parameter's own name. As [`Self::Parameter`].
    Experts(usize),
    /// The same where files have `[experts, in, out]` and PEFT takes that for `[experts, out, in]` (Llama 4): A reads what
    /// these matrices give, B gives what they read, and what is added is their product turned.
    ExpertsTurned(usize),
}

impl ModuleKind {
    /// Whether it is a parameter and no module.
    #[must_use]
    pub fn is_parameter(self) -> bool {
        self == Self::Parameter || self.is_experts()
    }

    /// Whether it is the matrices of experts.
    #[must_use]
    pub fn is_experts(self) -> bool {
        matches!(self, Self::Experts(_) | Self::ExpertsTurned(_))
    }

    /// How many matrices of its shape there are.
    #[must_use]
    pub fn matrices(self) -> usize {
        match self {
            Self::Experts(count) | Self::ExpertsTurned(count) => count,
            _ => 1,
        }
    }
}

/// A module that can carry an adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModuleInfo {
    /// Its dotted name in the base model: `model.layers.0.self_attn.q_proj`.
    pub name: String,
    /// What it is.
    pub kind: ModuleKind,
    /// The weight's dim 0: output features, or the vocabulary of an embedding.
    pub out: usize,
    /// The weight's dim 1: input features, or the width of an embedding.
    pub input: usize,
}

impl ModuleInfo {
    /// A module with a weight of shape `[out, input]`.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: ModuleKind, out: usize, input: usize) -> Self {
        Self { name: name.into(), kind, out, input }
    }
}

/// What one pattern of the configuration matched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PatternCount {
    /// The configuration key: `target_modules`, `exclude_modules`, `rank_pattern`, ...
    pub key: &'static str,
    /// The entry or regular expression.
    pub pattern: String,
    /// The names of the modules.
    pub modules: Vec<String>,
}

/// Which modules are adapted, and which pattern is to thank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatchReport {
    /// The adapted modules, in the order of the list given.
    pub matched: Vec<String>,
    /// Modules that a target matched and an exclusion took away.
    pub excluded: Vec<String>,
    /// Every pattern with what it matched.
    pub patterns: Vec<PatternCount>,
}

impl MatchReport {
    /// The patterns that matched nothing.
    pub fn dead(&self) -> impl Iterator<Item = &PatternCount> {
        self.patterns.iter().filter(|p| p.modules.is_empty())
    }
}

/// The modules that PEFT adapts by default on an architecture, by `model_type` of `config.json`.
#[must_use]
pub fn default_targets(model_type: &str) -> Option<Targets> {
    let names: &[&str] = match model_type {
        "llama" | "llama4" | "mistral" | "mixtral" | "gemma" | "gemma2" | "gemma3_text" | "qwen2"
        | "qwen3" | "opt" | "gptj" | "gpt_neo" | "bart" => &["q_proj", "v_proj"],
        "phi" => &["q_proj", "v_proj", "fc1", "fc2"],
        "nemotron_h" => &["q_proj", "k_proj", "v_proj", "o_proj"],
        "gpt2" | "gpt_bigcode" => &["c_attn"],
        "bloom" | "gpt_neox" | "chatglm" | "falcon" | "RefinedWeb" | "RefinedWebModel" => {
            &["query_key_value"]
        }
        "mpt" => &["Wqkv"],
        "btlm" => &["c_proj", "c_attn"],
        "codegen" => &["qkv_proj"],
        "stablelm" => &["q_proj", "v_proj"],
        "t5" | "mt5" => &["q", "v"],
        "gemma4" => return Some(Targets::Pattern(r".*language_model\..*\.(q_proj|v_proj)".into())),
        _ => return None,
    };
    Some(Targets::List(names.iter().map(|&n| n.to_owned()).collect()))
}

/// Whether a target is the shorthand for every linear layer but the head.
pub(crate) fn is_all_linear(targets: &Targets) -> bool {
    matches!(targets, Targets::Pattern(p) if p.to_lowercase() == "all-linear")
}

/// Replaces absent targets by the architecture's default and `all-linear` by the names it stands for, as PEFT does
/// before it saves the configuration.
///
/// # Errors
/// If targets are absent and `model_type` has no default.
pub fn resolve_targets(
    config: &LoraConfig,
    model_type: &str,
    modules: &[ModuleInfo],
) -> Result<LoraConfig, PeftError> {
    let mut config = config.clone();
    let unknown = |key| PeftError::NoDefaultTargets { key, model_type: model_type.to_owned() };
    if let Some(mut method) = config.method.take() {
        let named = method.resolve(&mut config, model_type, modules);
        config.method = Some(method);
        if !named {
            let named = config.target_modules.is_some();
            return Err(unknown(if named { "feedforward_modules" } else { "target_modules" }));
        }
    } else {
        crate::mixtures::resolve(&mut config, model_type, modules)?;
    }
    match &config.target_modules {
        None if config.target_parameters.as_ref().is_some_and(|names| !names.is_empty()) => {}
        None => {
            let default = default_targets(model_type).ok_or_else(|| unknown("target_modules"))?;
            config.target_modules = Some(default);
        }
        Some(targets) if is_all_linear(targets) => {
            let linear = modules.iter().filter(|m| m.kind == ModuleKind::Linear);
            let names: BTreeSet<String> = linear.map(|m| m.name.clone()).collect();
            config.target_modules = Some(Targets::List(names.into_iter().collect()));
        }
        Some(_) => {}
    }
    Ok(config)
}

/// Decides for every module whether the adapter goes on it. Targets must be [resolved](resolve_targets).
///
/// # Errors
/// If a pattern is not a regular expression; if nothing is left to adapt; and, with [`Purpose::Create`], if a pattern
/// matches nothing (PEFT ignores such entries silently; an adapter from a file is checked by its tensors instead).
pub fn match_modules(
    config: &LoraConfig,
    modules: &[ModuleInfo],
    use_: Purpose,
) -> Result<MatchReport, PeftError> {
    let rules = Rules::compile(config)?;
    let mut report = MatchReport { patterns: rules.patterns(), ..MatchReport::default() };
    for module in modules {
        let name = module.name.as_str();
        if module.kind.is_parameter() {
            if rules.targets_parameter(name, &mut report.patterns) {
                report.matched.push(name.to_owned());
            }
            continue;
        }
        let excluded = rules.excluded(name, &mut report.patterns)?;
        if !rules.targeted(name, &mut report.patterns)? {
            continue;
        }
        if excluded { &mut report.excluded } else { &mut report.matched }.push(name.to_owned());
    }
    for (key, pattern, matcher) in value_patterns(config)? {
        let mut names = Vec::new();
        for name in &report.matched {
            if matcher.matches(name)? || *name == pattern {
                names.push(name.clone());
            }
        }
        report.patterns.push(PatternCount { key, pattern, modules: names });
    }
    if use_ == Purpose::Create {
        refuse_dead(&report, modules)?;
    }
    if report.matched.is_empty() {
        return Err(match report.excluded.len() {
            0 => PeftError::DeadPatterns(dead_of(&report, modules, Some("target_modules"))),
            candidates => PeftError::NothingLeft { candidates },
        });
    }
    Ok(report)
}

/// That every pattern of a configuration is one.
///
/// # Errors
/// The first that is not a regular expression.
pub(crate) fn compile_patterns(config: &LoraConfig) -> Result<(), PeftError> {
    Rules::compile(config)?;
    value_patterns(config)?;
    Ok(())
}

/// The patterns of settings that have values by them, with their settings.
fn value_patterns(config: &LoraConfig) -> Result<Vec<(&'static str, String, Matcher)>, PeftError> {
    let mut found = Vec::new();
    for (key, patterns) in [("rank_pattern", &config.rank_pattern), ("alpha_pattern", &config.alpha_pattern)]
    {
        for p in patterns.keys() {
            found.push((key, p.clone(), pattern::suffix(key, p)?));
        }
    }
    if let Some((key, patterns)) = config.method.as_ref().and_then(PeftMethod::patterns) {
        for p in patterns.keys() {
            found.push((key, p.clone(), pattern::behind_dot(key, p)?));
        }
    }
    Ok(found)
}

fn refuse_dead(report: &MatchReport, modules: &[ModuleInfo]) -> Result<(), PeftError> {
    let dead = dead_of(report, modules, None);
    if dead.is_empty() { Ok(()) } else { Err(PeftError::DeadPatterns(dead)) }
}

fn dead_of(report: &MatchReport, modules: &[ModuleInfo], only: Option<&str>) -> Vec<DeadPattern> {
    // People write last segments, so suggest those too.
    let mut names: BTreeSet<&str> = modules.iter().map(|m| m.name.as_str()).collect();
    names.extend(modules.iter().filter_map(|m| m.name.rsplit('.').next()));
    report
        .dead()
        .filter(|p| only.is_none_or(|k| k == p.key))
        .map(|p| DeadPattern {
            key: p.key,
            pattern: p.pattern.clone(),
            nearest: nearest(&p.pattern, names.iter().copied(), 3),
        })
        .collect()
}

/// Names or an expression, ready to match.
enum Rule {
    List(Vec<String>),
    Whole(String, Matcher),
}

impl Rule {
    fn compile(key: &'static str, targets: &Targets) -> Result<Self, PeftError> {
        Ok(match targets {
            Targets::List(names) => Self::List(names.clone()),
            Targets::Pattern(p) => Self::Whole(p.clone(), pattern::whole(key, p)?),
        })
    }

    fn patterns(&self) -> Vec<String> {
        match self {
            Self::List(names) => names.clone(),
            Self::Whole(p, _) => vec![p.clone()],
        }
    }

    /// The entries that match; empty when none does.
    fn matching(&self, name: &str) -> Result<Vec<&str>, PeftError> {
        Ok(match self {
            Self::List(names) => names.iter().map(String::as_str).filter(|n| ends_with(name, n)).collect(),
            Self::Whole(p, matcher) if matcher.matches(name)? => vec![p],
            Self::Whole(..) => Vec::new(),
        })
    }
}

/// Whether `name` is `suffix` or ends with it after a dot.
pub(crate) fn ends_with(name: &str, suffix: &str) -> bool {
    name.strip_suffix(suffix).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

struct Rules {
    targets: Option<Rule>,
    parameters: Option<Rule>,
    exclude: Option<Rule>,
    /// `modules_to_save`: never adapted.
    saved: Vec<Matcher>,
    /// Where layer numbers are found, and which are wanted.
    layers: Option<(Vec<Matcher>, Vec<i64>)>,
}

impl Rules {
    fn compile(config: &LoraConfig) -> Result<Self, PeftError> {
        let rule =
            |key, targets: &Option<Targets>| targets.as_ref().map(|t| Rule::compile(key, t)).transpose();
        let is_empty = |t: &Targets| match t {
            Targets::List(names) => names.is_empty(),
            Targets::Pattern(p) => p.is_empty(),
        };
        let saved = config.modules_to_save.iter().flatten();
        let layers = match &config.layers_to_transform {
            None => None,
            Some(Layers::Many(wanted)) if wanted.is_empty() => None,
            Some(layers) => {
                let wanted = match layers {
                    Layers::One(i) => vec![*i],
                    Layers::Many(wanted) => wanted.clone(),
                };
                let named: Vec<&String> = match &config.layers_pattern {
                    None => Vec::new(),
                    Some(Names::One(p)) => Some(p).filter(|p| !p.is_empty()).into_iter().collect(),
                    Some(Names::Many(p)) => p.iter().collect(),
                };
                let matchers = if named.is_empty() {
                    vec![pattern::first_number()?]
                } else {
                    named.into_iter().map(|p| pattern::layer_index(p)).collect::<Result<_, _>>()?
                };
                Some((matchers, wanted))
            }
        };
        Ok(Self {
            targets: rule("target_modules", &config.target_modules)?,
            parameters: config.target_parameters.clone().map(Rule::List),
            exclude: rule("exclude_modules", &config.exclude_modules.clone().filter(|t| !is_empty(t)))?,
            saved: saved.map(|m| pattern::inside("modules_to_save", m)).collect::<Result<_, _>>()?,
            layers,
        })
    }

    fn patterns(&self) -> Vec<PatternCount> {
        let of = |key, rule: &Option<Rule>| {
            let patterns = rule.iter().flat_map(Rule::patterns).collect::<BTreeSet<_>>();
            patterns.into_iter().map(move |pattern| PatternCount { key, pattern, modules: Vec::new() })
        };
        of("target_modules", &self.targets)
            .chain(of("target_parameters", &self.parameters))
            .chain(of("exclude_modules", &self.exclude))
            .collect()
    }

    /// Whether a parameter is adapted; exclusions and layers are of modules alone.
    fn targets_parameter(&self, name: &str, counts: &mut [PatternCount]) -> bool {
        let Some(Rule::List(targets)) = &self.parameters else { return false };
        let by: Vec<&str> = targets.iter().map(String::as_str).filter(|t| ends_with(name, t)).collect();
        count(counts, "target_parameters", &by, name);
        !by.is_empty()
    }

    fn excluded(&self, name: &str, counts: &mut [PatternCount]) -> Result<bool, PeftError> {
        let mut excluded = false;
        if let Some(rule) = &self.exclude {
            let by = rule.matching(name)?;
            excluded = !by.is_empty();
            count(counts, "exclude_modules", &by, name);
        }
        for saved in &self.saved {
            excluded |= saved.matches(name)?;
        }
        Ok(excluded)
    }

    fn targeted(&self, name: &str, counts: &mut [PatternCount]) -> Result<bool, PeftError> {
        let Some(rule) = &self.targets else { return Ok(false) };
        let by = rule.matching(name)?;
        // A name given in full is taken whatever its layer; so is what an expression matches.
        let whole = matches!(rule, Rule::Whole(..)) || by.contains(&name);
        let taken = !by.is_empty() && (whole || self.in_layers(name)?);
        if taken {
            count(counts, "target_modules", &by, name);
        }
        Ok(taken)
    }

    fn in_layers(&self, name: &str) -> Result<bool, PeftError> {
        let Some((matchers, wanted)) = &self.layers else { return Ok(true) };
        for matcher in matchers {
            if let Some(index) = matcher.index(name)? {
                return Ok(wanted.contains(&index));
            }
        }
        Ok(false)
    }
}

fn count(counts: &mut [PatternCount], key: &str, by: &[&str], name: &str) {
    for entry in counts.iter_mut().filter(|c| c.key == key && by.contains(&c.pattern.as_str())) {
        entry.modules.push(name.to_owned());
    }
}
