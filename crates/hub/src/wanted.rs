//! `Wanted`: which files of a repository are needed.

use crate::tree::Tree;

/// The files that are needed.
pub enum Wanted<'a> {
    /// A model: configuration, tokenizer, weights.
    Model,
    /// An adapter: its configuration, weights and tokenizer.
    Adapter,
    /// A tokenizer with its chat templates.
    Tokenizer,
    /// These, chosen from the list of all.
    Files(&'a dyn Fn(&Tree) -> Vec<String>),
}

/// Configuration files of models and adapters.
const CONFIGURATION: [&str; 3] = ["config.json", "generation_config.json", "adapter_config.json"];
/// Files beside a tokenizer's.
const TEMPLATES: [&str; 2] = ["chat_template.jinja", "chat_template.json"];
/// Weights by the stem of their files, in the order of preference.
const WEIGHTS: [&str; 2] = ["model", "adapter_model"];
/// Weights that are not read, to name in an error.
const FOREIGN_WEIGHTS: [&str; 7] = [".bin", ".pt", ".pth", ".ckpt", ".gguf", ".msgpack", ".h5"];

impl Wanted<'_> {
    /// The files of `tree` that are wanted, weights aside.
    pub(crate) fn small(&self, tree: &Tree) -> Vec<String> {
        if let Self::Files(choose) = self {
            return choose(tree);
        }
        let configured = !matches!(self, Self::Tokenizer);
        let wanted = |name: &&str| {
            burnish_core::file::TOKENIZER.contains(name)
                || TEMPLATES.contains(name)
                || (configured && CONFIGURATION.contains(name))
                || (name.starts_with("additional_chat_templates/") && name.ends_with(".jinja"))
        };
        tree.names().filter(wanted).map(str::to_owned).collect()
    }

    /// The file of weights, or the index that names several.
    pub(crate) fn weights(&self, tree: &Tree) -> Option<String> {
        if !matches!(self, Self::Model | Self::Adapter) {
            return None;
        }
        let stems = WEIGHTS.iter().rev().filter(|stem| matches!(self, Self::Adapter) || **stem == "model");
        let names =
            stems.flat_map(|stem| [format!("{stem}.safetensors"), format!("{stem}.safetensors.index.json")]);
        let mut names = names.filter(|name| tree.get(name).is_some());
        names.next()
    }

    /// Whether it is nothing without weights.
    pub(crate) fn needs_weights(&self) -> bool {
        matches!(self, Self::Model | Self::Adapter)
    }
}

/// Weights of other formats, for an error.
pub(crate) fn foreign_weights(tree: &Tree) -> String {
    let mut names = tree.names().filter(|n| FOREIGN_WEIGHTS.iter().any(|end| n.ends_with(end)));
    let first: Vec<&str> = names.by_ref().take(3).collect();
    if first.is_empty() { "none at all".to_owned() } else { first.join(", ") }
}
