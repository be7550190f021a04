//! `LoraPlan`: the sites and parameters of an adapter on a base model, before any tensor exists.

use std::collections::BTreeSet;

use burnish_core::{Dtype, Parameter, Registry, Role};
use burnish_weight_files::nearest;
use serde_json::{Map, Value};

use crate::error::DeadPattern;
use crate::pattern::{self, Matcher};
use crate::site::suffix;
use crate::{
    AllottedRanks, Bias, Change, ChangePart, ChangeSite, Factor, Init, LoraConfig, LoraSite, MatchReport,
    ModuleInfo, ModuleKind, PeftError, PeftMethod, PromptEncoder, Purpose, match_modules, resolve_targets,
};

/// An adapter on a base model: its sites, and which base parameters train along.
#[derive(Clone, Debug)]
pub struct LoraPlan {
    /// The configuration with its targets resolved: what is saved.
    pub config: LoraConfig,
    /// The adapted modules, in the order of the list given.
    pub sites: Vec<LoraSite>,
    /// What it is planned for.
    pub purpose: Purpose,
    /// The modules that other methods change, and tables of which rows train.
    pub changes: Vec<ChangeSite>,
    /// Base parameters of `modules_to_save`: trained whole, saved under their own names. A tied one is listed
    /// under its own name and trains apart from the other (untie it first), as in PEFT.
    pub saved: Vec<String>,
    /// Base biases that train along (`bias`).
    pub biases: Vec<String>,
    /// Which pattern matched what.
    pub report: MatchReport,
    /// Of [`saved`](Self::saved), modules that a method trains as copies of its own (LN tuning).
    pub copied: Vec<String>,
    /// What files have of virtual tokens before every text.
    pub prompt: Option<ChangePart>,
    /// What trains in the place of [`prompt`](Self::prompt), which is its output; an adapter of a file has none.
    pub encoder: Option<PromptEncoder>,
    /// Tied base parameters: (alias, the one whose storage it shares).
    pub ties: Vec<(String, String)>,
    /// Of [`ties`](Self::ties) the one that the adapter keeps (`ensure_weight_tying`): what trains of the table, whole or as
    /// factors, is of the alias too.
    pub kept_tie: Option<(String, String)>,
    /// Shapes of `saved` and `biases`, in that order.
    base_shapes: Vec<Vec<usize>>,
}

impl LoraPlan {
    /// Plans the adapter of `config` on a base with these modules and parameters.
    ///
    /// # Errors
    /// If the configuration is not supported or not valid ([`LoraConfig::check`]), or a pattern matches nothing.
    pub fn new(
        config: &LoraConfig,
        use_: Purpose,
        model_type: &str,
        modules: &[ModuleInfo],
        base: &Registry,
    ) -> Result<Self, PeftError> {
        config.check(use_)?;
        let prompted = Self::of_prompt(config, use_, modules)?;
        if let Some(plan) = prompted {
            return Ok(plan);
        }
        let config = resolve_targets(config, model_type, modules)?;
        let may = config.method.as_ref().map(|method| method.modules(modules, base));
        let modules = may.as_deref().unwrap_or(modules);
        let mut report = match_modules(&config, modules, use_)?;
        let ranks = Patterns::compile("rank_pattern", &config.rank_pattern)?;
        let alphas = Patterns::compile("alpha_pattern", &config.alpha_pattern)?;
        let ties: Vec<(String, String)> =
            base.iter().filter_map(|p| Some((p.name.clone(), p.alias_of.clone()?))).collect();
        let kept_tie = config.ensures_weight_tying().then(|| ties.first().cloned()).flatten();
        let mut matched: BTreeSet<&str> = report.matched.iter().map(String::as_str).collect();
        let module =
            |weight: &'_ str| modules.iter().map(|m| m.name.as_str()).find(|m| is_weight_of(weight, m));
        let tied_targets = kept_tie.as_ref().is_some_and(|(alias, target)| {
            let both = [alias, target].map(|weight| module(weight));
            let hit = both.iter().flatten().any(|module| matched.contains(module));
            if hit {
                // The head's are the embedding's.
                both[0].map(|head| matched.remove(head));
                matched.extend(both[1]);
            }
            hit
        });
        if tied_targets {
            check_tied(&config)?;
        }
        let mut sites = Vec::with_capacity(matched.len());
        let (mut changes, mut copied) = (Vec::new(), Vec::new());
        for module in modules.iter().filter(|m| matched.contains(m.name.as_str())) {
            let rank = ranks.value(&module.name)?.and_then(Value::as_u64).map_or(config.r, |r| r as usize);
            let alpha = alphas.value(&module.name)?.and_then(Value::as_f64);
            if config.method.as_ref().is_some_and(|method| method.copies().is_some()) {
                copied.push(module.name.clone());
                continue;
            }
            if let Some(method) = &config.method {
                changes.push(method.site(module, rank, alpha, base)?);
                continue;
            }
            let alpha = alpha.unwrap_or_else(|| config.alpha());
            if config.lora_bias && module.kind == ModuleKind::Embedding {
                return Err(PeftError::Conflict { key: "lora_bias", condition: "on an embedding" });
            }
            check_init(&config, use_, module, rank, base)?;
            check_parameter(&config, module)?;
            sites.push(site(&config, module, rank, alpha));
        }
        nest(&mut sites);
        if let Some(method) = &config.method {
            method.share(&config, &mut changes);
        }
        if let Some(tokens) = &config.trainable_token_indices {
            changes.extend(tokens.sites(&config, modules, &matched)?);
        }
        share_rows(&mut changes, &ties, |module| matched.contains(module))?;
        let mut saved = saved_parameters(&config, use_, base, &copied, &mut report)?;
        let tied_saved = kept_tie.as_ref().is_some_and(|tie| keep_one(&mut saved, tie, base));
        if use_ == Purpose::Create && config.ensures_weight_tying() && !(tied_targets || tied_saved) {
            let condition = match kept_tie {
                Some(_) => "unless modules_to_save or target_modules names the embedding, or the head",
                None => "on a model whose head has a weight of its own",
            };
            return Err(PeftError::Conflict { key: "ensure_weight_tying", condition });
        }
        let saved_set: BTreeSet<&str> = saved.iter().map(String::as_str).collect();
        let is_bias = |name: &str| name == "bias" || name.ends_with(".bias");
        let of_changes = changes.iter().filter(|_| config.method.is_some()).map(ChangeSite::base_bias);
        let adapted: BTreeSet<String> = sites.iter().map(LoraSite::base_bias).chain(of_changes).collect();
        let biases: Vec<String> = base
            .iter()
            .map(|p| p.name.as_str())
            .filter(|n| !saved_set.contains(n))
            .filter(|n| match config.bias {
                Bias::None => false,
                Bias::All => is_bias(n),
                Bias::LoraOnly => adapted.contains(*n),
            })
            .map(str::to_owned)
            .collect();
        let shape = |n: &String| base.get(n).map(|p| p.shape.clone()).unwrap_or_default();
        let base_shapes = saved.iter().chain(&biases).map(shape).collect();
        Ok(Self {
            config,
            purpose: use_,
            sites,
            changes,
            saved,
            biases,
            report,
            copied,
            prompt: None,
            encoder: None,
            ties,
            kept_tie,
            base_shapes,
        })
    }

    /// The plan of a method that puts virtual tokens before every text.
    fn of_prompt(
        config: &LoraConfig,
        use_: Purpose,
        modules: &[ModuleInfo],
    ) -> Result<Option<Self>, PeftError> {
        let mut config = config.clone();
        let table = modules.iter().find(|module| module.kind == ModuleKind::Embedding);
        let width = table.map_or(0, |table| table.input);
        let prompt = config.method.as_mut().map(|method| method.prompt(width)).transpose()?.flatten();
        let encoder = config.method.as_ref().filter(|_| use_ == Purpose::Create);
        let encoder = encoder.and_then(|method| method.encoder());
        let plan = |prompt| Self {
            config,
            purpose: use_,
            sites: Vec::new(),
            changes: Vec::new(),
            saved: Vec::new(),
            biases: Vec::new(),
            report: MatchReport::default(),
            copied: Vec::new(),
            prompt: Some(prompt),
            encoder,
            ties: Vec::new(),
            kept_tie: None,
            base_shapes: Vec::new(),
        };
        Ok(prompt.map(plan))
    }

    /// The adapter's own parameters: fp32 at rest and in the optimizer, in the order of the sites, each once; trainable, but
    /// for what is drawn, and for B where it keeps its start ([`LoraConfig::keeps_b`]).
    /// Parameters of the base that train along are in [`saved`](Self::saved) and [`biases`](Self::biases).
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        let of = |site: &LoraSite, factor| {
            let role = if factor == Factor::BBias { Role::Bias } else { Role::Adapter };
            let mut parameter = Parameter::new(site.name(factor), &site.shape(factor), role, Dtype::F32);
            parameter.trainable = !(self.config.keeps_b() && factor == Factor::B);
            parameter
        };
        let factors = self.sites.iter().flat_map(|s| s.factors().map(|f| of(s, f)).collect::<Vec<_>>());
        let changes = self.changes.iter().flat_map(|change| &change.parts);
        let parts = changes.chain(self.prompt_parts()).map(|part| {
            let role =
                if part.shape.len() == 1 && self.encoder.is_some() { Role::Bias } else { Role::Adapter };
            let mut parameter = Parameter::new(&part.name, &part.shape, role, Dtype::F32);
            parameter.trainable = part.trains();
            parameter
        });
        let mut seen = BTreeSet::new();
        // A rank of zero has nothing.
        let own = |p: &Parameter| p.elements() > 0 && seen.insert(p.name.clone());
        factors.chain(parts).filter(own).collect()
    }

    /// The parameters of virtual tokens: those of their encoder where there is one.
    pub fn prompt_parts(&self) -> impl Iterator<Item = &ChangePart> {
        let own = self.prompt.iter().filter(|_| self.encoder.is_none());
        self.encoder.iter().flat_map(|encoder| &encoder.parts).chain(own)
    }

    /// Whether anything is dropped in training.
    #[must_use]
    pub fn drops_out(&self) -> bool {
        let lstm = self.encoder.as_ref().and_then(|encoder| encoder.lstm);
        self.config.dropout() != 0.0 || lstm.is_some_and(|lstm| lstm.dropout != 0.0)
    }

    /// Whether files have a parameter as it trains: those of an encoder are in none, of those of AdaLoRA what is left.
    #[must_use]
    pub fn in_files(&self, parameter: &str) -> bool {
        let singular = self.changes.iter().filter(|site| matches!(site.change, Change::Singular { .. }));
        let parts = singular.flat_map(|site| &site.parts);
        self.encoder.iter().flat_map(|encoder| &encoder.parts).chain(parts).all(|part| part.name != parameter)
    }

    /// The plan of files of an adapter whose ranks training has allocated.
    #[must_use]
    pub fn with_ranks(&self, ranks: &AllottedRanks) -> Self {
        let mut plan = self.clone();
        let Some(PeftMethod::AdaLora(own)) = &mut plan.config.method else { return plan };
        own.total_step = Some(ranks.total_step);
        own.rank_pattern.clone_from(&ranks.pattern);
        for site in &mut plan.changes {
            if let (Change::Singular { .. }, [a, b, values]) = (&site.change, &mut site.parts[..])
                && let Some(kept) = ranks.pattern.as_ref().and_then(|pattern| pattern.get(&values.name))
            {
                let rank = kept.iter().filter(|&&kept| kept).count();
                (a.shape[0], b.shape[1], values.shape[0]) = (rank, rank, rank);
            }
        }
        plan
    }

    /// The plan of files with that configuration, which tells what training has made of ranks.
    #[must_use]
    pub fn with_ranks_of(&self, config: &LoraConfig) -> Self {
        let Some(PeftMethod::AdaLora(own)) = &config.method else { return self.clone() };
        let pattern = own.rank_pattern.clone();
        self.with_ranks(&AllottedRanks { total_step: own.total_step.unwrap_or(0), pattern })
    }

    /// Parameters of the base that train along, with their shapes: [`saved`](Self::saved), then
    /// [`biases`](Self::biases).
    pub fn base_parameters(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.saved
            .iter()
            .chain(&self.biases)
            .map(String::as_str)
            .zip(self.base_shapes.iter().map(Vec::as_slice))
    }

    /// That the adapter changes weights, into which it can be folded.
    ///
    /// # Errors
    /// If it puts tokens before texts instead, acts on some tokens alone, or its layers share weights.
    pub fn check_merge(&self) -> Result<(), PeftError> {
        self.config.check_weights("part of the base's weights")
    }

    /// The site of a module.
    #[must_use]
    pub fn site(&self, module: &str) -> Option<&LoraSite> {
        self.sites.iter().find(|s| s.module == module)
    }

    /// What is made of a module by another method than factors.
    #[must_use]
    pub fn change(&self, module: &str) -> Option<&ChangeSite> {
        self.changes.iter().find(|s| s.module == module)
    }

    /// Whether a module's table no longer is that of another which shares its storage: rows that train are of both.
    #[must_use]
    pub fn parts_from_tied(&self, module: &str) -> bool {
        let whole = |site: &ChangeSite| !matches!(site.change, Change::Rows(_));
        if self
            .kept_tie
            .as_ref()
            .is_some_and(|(alias, target)| is_weight_of(alias, module) || is_weight_of(target, module))
        {
            return false;
        }
        self.site(module).is_some()
            || self.change(module).is_some_and(whole)
            || self.saved.contains(&format!("{module}.weight"))
    }

    /// The number of elements that train.
    #[must_use]
    pub fn trainable_elements(&self) -> usize {
        let own: usize = self.parameters().iter().filter(|p| p.trainable).map(Parameter::elements).sum();
        own + self.base_shapes.iter().map(|s| s.iter().product::<usize>()).sum::<usize>()
    }
}

/// Whether a parameter is the weight of a module.
fn is_weight_of(parameter: &str, module: &str) -> bool {
    parameter.strip_suffix(".weight") == Some(module)
}

/// What factors of an embedding that a head has too cannot be.
fn check_tied(config: &LoraConfig) -> Result<(), PeftError> {
    let others = [
        ("peft_type", config.method.is_some()),
        ("use_dora", config.use_dora),
        ("init_lora_weights: mica", config.keeps_b()),
    ];
    let condition = "with ensure_weight_tying on the embedding's or the head's factors";
    let other = others.into_iter().find(|(_, is)| *is);
    other.map_or(Ok(()), |(key, _)| Err(PeftError::Conflict { key, condition }))
}

/// Makes of tied parameters that are saved the one that has storage; whether they are.
fn keep_one(saved: &mut Vec<String>, (alias, target): &(String, String), base: &Registry) -> bool {
    if !saved.iter().any(|name| name == alias || name == target) {
        return false;
    }
    let kept: BTreeSet<String> =
        saved.drain(..).filter(|name| name != alias).chain([target.clone()]).collect();
    saved.extend(base.iter().map(|p| &p.name).filter(|name| kept.contains(*name)).cloned());
    true
}

/// Of tables that share storage the rows that train are those of one, and what reads the other reads them too.
fn share_rows(
    changes: &mut Vec<ChangeSite>,
    ties: &[(String, String)],
    adapted: impl Fn(&str) -> bool,
) -> Result<(), PeftError> {
    let module = |weight: &str| weight.strip_suffix(".weight").unwrap_or(weight).to_owned();
    for (alias, target) in ties {
        let (alias, target) = (module(alias), module(target));
        let rows = |module: &str| {
            let site = changes.iter().find(|site| site.module == module);
            site.map(|site| site.change.clone()).filter(|change| matches!(change, Change::Rows(_)))
        };
        let Some(shared) = rows(&target) else { continue };
        let own = rows(&alias);
        if own.as_ref().is_some_and(|own| *own != shared) || own.is_none() && adapted(&alias) {
            let condition = "on tables that share their weight, of which each would become another: name the same tokens for both, or the embedding alone and no adapter on the head";
            return Err(PeftError::Conflict { key: "trainable_token_indices", condition });
        }
        changes.retain(|site| site.module != alias);
    }
    Ok(())
}

/// What PEFT cannot do on a bare parameter.
fn check_parameter(config: &LoraConfig, module: &ModuleInfo) -> Result<(), PeftError> {
    if !module.kind.is_parameter() {
        return Ok(());
    }
    let conflict = |key, condition| Err(PeftError::Conflict { key, condition });
    if config.dropout() != 0.0 {
        return conflict("lora_dropout", "on target_parameters (experts, routers); set it to 0");
    }
    if config.use_dora {
        return conflict("use_dora", "on target_parameters (experts, routers)");
    }
    if config.lora_bias {
        return conflict("lora_bias", "on target_parameters (experts, routers)");
    }
    if config.invocation().is_some() {
        return conflict("alora_invocation_tokens", "on target_parameters (experts, routers)");
    }
    let init = config.init_lora_weights.method();
    if init.is_some_and(|init| init.reads_base() || init == Init::Orthogonal) {
        let condition = "other than true, false and gaussian on target_parameters (experts, routers)";
        return conflict("init_lora_weights", condition);
    }
    Ok(())
}

/// Names the factors of bare parameters as PEFT's nested wrappers do: behind their module, the last one outermost, each
/// further in behind one more `base_layer`.
fn nest(sites: &mut [LoraSite]) {
    let module = |site: &LoraSite| {
        let of = site.module.rsplit_once('.').map_or("", |(module, _)| module).to_owned();
        site.kind.is_parameter().then_some(of)
    };
    let modules: Vec<Option<String>> = sites.iter().map(module).collect();
    for (at, site) in sites.iter_mut().enumerate() {
        let Some(own) = &modules[at] else { continue };
        let outside = modules[at + 1..].iter().flatten().filter(|later| *later == own).count();
        let within = ".base_layer".repeat(outside);
        let name = |factor| format!("{own}{within}.{}", suffix(site.kind, factor));
        (site.a_name, site.b_name) = (name(Factor::A), name(Factor::B));
    }
}

fn site(config: &LoraConfig, module: &ModuleInfo, rank: usize, alpha: f64) -> LoraSite {
    let denominator = if config.use_rslora { (rank as f64).sqrt() } else { rank as f64 };
    let embedding = module.kind == ModuleKind::Embedding;
    let name = |factor| format!("{}.{}", module.name, suffix(module.kind, factor));
    let has_bias = config.lora_bias;
    LoraSite {
        module: module.name.clone(),
        kind: module.kind,
        out: module.out,
        input: module.input,
        rank,
        alpha,
        scale: alpha / denominator,
        dropout: if embedding { 0.0 } else { config.dropout() },
        has_bias,
        a_name: name(Factor::A),
        b_name: name(Factor::B),
        b_bias_name: has_bias.then(|| name(Factor::BBias)),
        magnitude_name: config.use_dora.then(|| name(Factor::Magnitude)),
    }
}

/// What an initialisation asks of a module.
fn check_init(
    config: &LoraConfig,
    use_: Purpose,
    module: &ModuleInfo,
    rank: usize,
    base: &Registry,
) -> Result<(), PeftError> {
    let Some(init) = config.init_lora_weights.method() else { return Ok(()) };
    if use_ == Purpose::Load || module.kind == ModuleKind::Embedding && init != Init::Mica {
        return Ok(());
    }
    let unfit = |expected| {
        Err(PeftError::InitRank { init: init.to_string(), module: module.name.clone(), got: rank, expected })
    };
    if init == Init::Orthogonal && !rank.is_multiple_of(2) {
        return unfit("an even rank".to_owned());
    }
    if init.reads_rows() && module.kind != ModuleKind::Linear {
        let condition =
            "as eva, corda or lora_ga on the head, experts or routers: take them out of the targets";
        return Err(PeftError::Conflict { key: "init_lora_weights", condition });
    }
    let half = module.out.min(module.input) / 2;
    if init == Init::LoraGa && rank > half {
        return unfit(match half {
            0 => "none: take the module out of the targets".to_owned(),
            _ => format!("at most {half}, half of the smaller dimension of its weight"),
        });
    }
    if init == Init::Mica && config.use_dora {
        let condition = "with init_lora_weights mica, as in PEFT; take one of the two";
        return Err(PeftError::Conflict { key: "use_dora", condition });
    }
    if init.reads_base() {
        let most = module.out.min(module.input);
        if rank > most {
            return unfit(format!("at most {most}, the smaller dimension of its weight"));
        }
    }
    if init.changes_base() {
        let weight = format!("{}.weight", module.name);
        let shared = |p: &Parameter| p.alias_of.as_deref() == Some(weight.as_str());
        if base.get(&weight).is_some_and(|p| p.alias_of.is_some()) || base.iter().any(shared) {
            let condition = "with a word that changes the base (pissa, olora, corda, lora_ga) on a weight that is tied to another; leave the module out of target_modules";
            return Err(PeftError::Conflict { key: "init_lora_weights", condition });
        }
    }
    Ok(())
}

/// The parameters of modules that are copied and inside every module whose name ends with an entry of `modules_to_save` (PEFT
/// compares ends of names without regard to dots), and the report of what each entry matched.
fn saved_parameters(
    config: &LoraConfig,
    use_: Purpose,
    base: &Registry,
    copied: &[String],
    report: &mut MatchReport,
) -> Result<Vec<String>, PeftError> {
    let inside = |name: &&str| {
        let module = name.rsplit_once('.').filter(|(_, part)| matches!(*part, "weight" | "bias"));
        module.is_some_and(|(module, _)| copied.iter().any(|copied| copied == module))
    };
    let mut saved: BTreeSet<&str> = base.iter().map(|p| p.name.as_str()).filter(inside).collect();
    let mut dead = Vec::new();
    for entry in config.modules_to_save.iter().flatten() {
        let names: Vec<&str> = base.iter().map(|p| p.name.as_str()).filter(|n| holds(n, entry)).collect();
        if names.is_empty() {
            let modules = base.iter().filter_map(|p| p.name.rsplit_once('.')?.0.rsplit('.').next());
            let modules: BTreeSet<&str> = modules.collect();
            dead.push(DeadPattern {
                key: "modules_to_save",
                pattern: entry.clone(),
                nearest: nearest(entry, modules.into_iter(), 3),
            });
        }
        report.patterns.push(crate::PatternCount {
            key: "modules_to_save",
            pattern: entry.clone(),
            modules: names.iter().map(|&n| n.to_owned()).collect(),
        });
        saved.extend(names);
    }
    if use_ == Purpose::Create && !dead.is_empty() {
        return Err(PeftError::DeadPatterns(dead));
    }
    Ok(base.iter().map(|p| p.name.as_str()).filter(|n| saved.contains(n)).map(str::to_owned).collect())
}

/// Whether a parameter lies in a module whose name ends with `entry`.
fn holds(parameter: &str, entry: &str) -> bool {
    parameter.match_indices('.').any(|(dot, _)| parameter[..dot].ends_with(entry))
}

/// `rank_pattern` or `alpha_pattern`: the first key that matches counts.
struct Patterns<'a> {
    key: &'static str,
    entries: Vec<(&'a str, Matcher, &'a Value)>,
}

impl<'a> Patterns<'a> {
    fn compile(key: &'static str, patterns: &'a Map<String, Value>) -> Result<Self, PeftError> {
        let entry = |(p, v): (&'a String, &'a Value)| Ok((p.as_str(), pattern::suffix(key, p)?, v));
        Ok(Self { key, entries: patterns.iter().map(entry).collect::<Result<_, PeftError>>()? })
    }

    /// The value for a module, if it does not depend on the order of the patterns, which files do not keep.
    fn value(&self, module: &str) -> Result<Option<&'a Value>, PeftError> {
        let mut matching = Vec::new();
        for (pattern, matcher, value) in &self.entries {
            if matcher.matches(module)? {
                matching.push((*pattern, *value));
            }
        }
        let first = matching.first().copied();
        let sorted_first = matching.into_iter().min_by_key(|(p, _)| *p);
        match (first, sorted_first) {
            (Some((a, x)), Some((b, y))) if x != y => Err(PeftError::PatternOrder {
                key: self.key,
                first: a.to_owned(),
                second: b.to_owned(),
                module: module.to_owned(),
            }),
            _ => Ok(first.map(|(_, v)| v)),
        }
    }
}
