//! Trainable tokens: rows of the embedding, and of a head that shares it, train, alone or beside LoRA.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::matching::ends_with;
use crate::method::{Method, site};
use crate::{
    Change, ChangePart, ChangeSite, Follows, LoraConfig, ModuleInfo, ModuleKind, PeftError, Start, Targets,
};

/// Which tokens' rows train (`trainable_token_indices`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a list of token ids, or such lists by module")]
pub enum TokenIndices {
    /// Of the embedding.
    List(Vec<i64>),
    /// Of these modules.
    ByModule(BTreeMap<String, Vec<i64>>),
}

impl TokenIndices {
    /// The modules, each with its ids and the entry that names it.
    fn modules<'a>(&self, modules: &'a [ModuleInfo]) -> Result<Vec<(&'a ModuleInfo, Vec<i64>)>, PeftError> {
        let table = |module: &&ModuleInfo| module.kind == ModuleKind::Embedding;
        match self {
            // Tables of positions come after the embedding.
            Self::List(ids) => Ok(modules.iter().find(table).map(|m| (m, ids.clone())).into_iter().collect()),
            Self::ByModule(entries) => entries
                .iter()
                .map(|(name, ids)| {
                    let found = modules.iter().find(|module| ends_with(&module.name, name));
                    let found = found.filter(|m| matches!(m.kind, ModuleKind::Embedding | ModuleKind::Head));
                    let unknown = || PeftError::BadValue {
                        key: "trainable_token_indices",
                        got: name.clone(),
                        expected: "the name of the embedding or the head",
                    };
                    found.map(|module| (module, ids.clone())).ok_or_else(unknown)
                })
                .collect(),
        }
    }

    /// The sites beside an adapter of factors on `adapted` modules.
    ///
    /// # Errors
    /// If a module is none, is adapted or trained whole too, or an id is no row.
    pub(crate) fn sites(
        &self,
        config: &LoraConfig,
        modules: &[ModuleInfo],
        adapted: &BTreeSet<&str>,
    ) -> Result<Vec<ChangeSite>, PeftError> {
        let conflict = |condition| Err(PeftError::Conflict { key: "trainable_token_indices", condition });
        let mut sites = Vec::new();
        for (module, ids) in self.modules(modules)? {
            if adapted.contains(module.name.as_str()) {
                return conflict("on a module that target_modules names too: take it out of one of the two");
            }
            let saved = config.modules_to_save.iter().flatten();
            if saved.into_iter().any(|saved| ends_with(&module.name, saved)) {
                return conflict("on a module that modules_to_save names too: take it out of one of the two");
            }
            let name = format!("{}.token_adapter.trainable_tokens_delta", module.name);
            sites.push(rows(module, "trainable_token_indices", &ids, name, Start::BaseRows)?);
        }
        Ok(sites)
    }
}

/// What a configuration of trainable tokens alone says beyond which module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainableTokens {
    /// The ids.
    pub token_indices: Vec<i64>,
    /// Whether rows start as they are; normal otherwise.
    pub init_weights: bool,
}

impl Default for TrainableTokens {
    fn default() -> Self {
        Self { token_indices: Vec::new(), init_weights: true }
    }
}

impl Method for TrainableTokens {
    const SHARED: &'static [&'static str] = &[];

    fn validate(&self, _config: &LoraConfig, _fresh: bool) -> Result<(), PeftError> {
        if self.token_indices.is_empty() {
            let (key, expected) = ("token_indices", "the ids of tokens");
            return Err(PeftError::BadValue { key, got: "an empty list".into(), expected });
        }
        Ok(())
    }

    fn resolve(&mut self, config: &mut LoraConfig, _model_type: &str, modules: &[ModuleInfo]) -> bool {
        if config.target_modules.is_none() {
            let table = modules.iter().find(|module| module.kind == ModuleKind::Embedding);
            let last = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
            config.target_modules = table.map(|table| Targets::List(vec![last(&table.name)]));
        }
        config.target_modules.is_some()
    }

    fn site(&self, module: &ModuleInfo, _rank: usize, _alpha: Option<f64>) -> Result<ChangeSite, PeftError> {
        if !matches!(module.kind, ModuleKind::Embedding | ModuleKind::Head) {
            let condition = "on a layer inside the model with peft_type TRAINABLE_TOKENS: name the embedding";
            return Err(PeftError::Conflict { key: "target_modules", condition });
        }
        let start = if self.init_weights { Start::BaseRows } else { Start::normal(1.0) };
        let name = format!("{}.trainable_tokens_delta", module.name);
        rows(module, "token_indices", &self.token_indices, name, start)
    }
}

/// The site of a table of whose rows these train.
fn rows(
    module: &ModuleInfo,
    key: &'static str,
    ids: &[i64],
    name: String,
    start: Start,
) -> Result<ChangeSite, PeftError> {
    let mut seen = BTreeSet::new();
    let mut own = Vec::with_capacity(ids.len());
    for &id in ids {
        match usize::try_from(id).ok().filter(|&id| id < module.out && seen.insert(id)) {
            Some(id) => own.push(id),
            None => {
                let expected = "ids of tokens of the vocabulary, each once";
                return Err(PeftError::BadValue { key, got: id.to_string(), expected });
            }
        }
    }
    let shape = vec![own.len(), module.input];
    let part = ChangePart { name, shape, start, follows: Follows::Whole };
    Ok(site(module, Change::Rows(own), vec![part]))
}
