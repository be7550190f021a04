//! Tokenisation of rows by a model folder's tokenizer and chat template.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use burnish_config::groups::PreparationOptions;
use burnish_data::{
    ContentKey, Finding, Options, Prepared as Rows, Preparer, Record, Row, RowCache, RowOrigin, Template,
    Templates, Texts, TokenChecks, Tokenizer, preflight_prepared,
};
use burnish_models::GenerationConfig;
use serde_json::{Map, json};

use crate::TrainError;

/// A tokenizer, its templates and the rules by which rows become tokens.
pub struct Prepared {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat templates.
    pub templates: Option<Templates>,
    /// The rules.
    pub rules: Options,
}

impl Prepared {
    /// Rows to examples.
    #[must_use]
    pub fn preparer(&self) -> Preparer<'_> {
        Preparer { tokenizer: &self.tokenizer, templates: self.templates.as_ref(), options: &self.rules }
    }

    /// Tokens that end a completion: those of the model's files, else the tokenizer's end-of-sequence token; that one alone
    /// where it was given as an option.
    #[must_use]
    pub fn stop_tokens(&self, config: &GenerationConfig, eos_given: bool) -> Vec<u32> {
        if config.stop.is_empty() || eos_given {
            return self.tokenizer.eos_id().into_iter().collect();
        }
        config.stop.clone()
    }

    /// What there is to say of rows to train on and to evaluate on before a run is spent on them.
    pub(crate) fn findings<T: Texts>(&self, train: &Rows<T>, eval: Option<&Rows<T>>) -> Vec<Finding> {
        let mut found = preflight_prepared(train, &self.tokenizer, self.templates.as_ref(), &self.rules);
        let checks = |rows: &Rows<T>| TokenChecks::of_texts(&self.tokenizer, &rows.examples);
        found.extend(eval.and_then(|eval| checks(train).evaluated(&checks(eval))));
        found
    }

    /// Whether the chat template speaks of system messages, as far as its text tells (alignment-handbook's rule).
    pub(crate) fn has_place_for_system(&self) -> bool {
        let template = self.templates.as_ref().and_then(|templates| templates.pick(false).ok());
        template.is_some_and(|t| t.source().contains("system") || t.source().contains("<|im_start|>"))
    }

    /// The same rules for rows that stay in their order.
    #[must_use]
    pub(crate) fn preparer_in_order(&self) -> InOrder<'_> {
        InOrder { of: self, rules: Options { shuffle: false, ..self.rules.clone() } }
    }

    /// The token ids that generation starts from when someone writes `text`: the user's turn where there is a chat
    /// template, the text itself otherwise. `name` is for messages.
    ///
    /// # Errors
    /// If the template refuses it.
    pub fn prompt(&self, name: &str, text: &str) -> Result<Vec<u32>, TrainError> {
        let value =
            if self.templates.is_some() { json!([{"role": "user", "content": text}]) } else { json!(text) };
        let fields = Map::from_iter([("prompt".to_owned(), value)]);
        let row = Row::parse(Record { place: RowOrigin::given(name), fields }, &self.rules.text_field)?;
        Ok(self.preparer().prompt(&row)?)
    }
}

/// Rules without a shuffle.
pub(crate) struct InOrder<'a> {
    of: &'a Prepared,
    rules: Options,
}

impl InOrder<'_> {
    pub(crate) fn preparer(&self) -> Preparer<'_> {
        Preparer { options: &self.rules, ..self.of.preparer() }
    }
}

/// Reads a folder's tokenizer and templates, with the options that change them.
///
/// # Errors
/// If a file is missing or damaged, or a token is not in the vocabulary.
pub fn prepare_rows(
    folder: &Path,
    options: &PreparationOptions,
    vocab: usize,
) -> Result<Prepared, TrainError> {
    let mut tokenizer = Tokenizer::from_folder(folder)?;
    tokenizer.set_max_text_bytes(options.max_text_bytes);
    if let Some(token) = &options.eos_token {
        tokenizer.set_named("eos_token", token)?;
    }
    if let Some(token) = &options.pad_token {
        tokenizer.set_named("pad_token", token)?;
    }
    let inline = options.chat_template.0.as_deref().filter(|text| !text.is_empty());
    let file = inline.filter(|text| !text.contains(['{', '\n'])).map(PathBuf::from);
    let templates = match options.chat_template_path.as_ref().or(file.as_ref()) {
        None if inline.is_some() => {
            let text = inline.unwrap_or_default();
            Some(Templates::one(Template::new("chat_template", text, &tokenizer)?))
        }
        None => Templates::from_folder(folder, &tokenizer)?,
        Some(path) if path.is_dir() => Templates::from_folder(path, &tokenizer)?,
        Some(path) if path.is_file() => Some(Templates::from_file(path, &tokenizer)?),
        Some(path) => {
            return Err(TrainError::OptionPath { option: "chat_template_path", path: path.clone() });
        }
    };
    Ok(Prepared { rules: options.row_options(vocab), tokenizer, templates })
}

/// A digest of the files that tokens depend on, whatever the day.
pub(crate) fn token_digest(folder: &Path, options: &PreparationOptions) -> String {
    let files = token_files(folder, options).into_iter();
    let key = files.fold(ContentKey::new("tokens"), |key, path| {
        key.and(burnish_core::file::read(path).unwrap_or_default())
    });
    key.hex()
}

/// Files of a tokenizer and its templates, whether or not they are there.
fn token_files(folder: &Path, options: &PreparationOptions) -> Vec<PathBuf> {
    let of = |folder: &Path| {
        let names = burnish_core::file::TOKENIZER.into_iter().chain(FILES);
        names.map(|name| folder.join(name)).collect::<Vec<_>>()
    };
    let mut files = of(folder);
    if let Some(path) = &options.chat_template_path {
        files.push(path.clone());
        files.extend(of(path));
    }
    for folder in std::iter::once(folder).chain(options.chat_template_path.as_deref()) {
        let more =
            std::fs::read_dir(folder.join("additional_chat_templates")).into_iter().flatten().flatten();
        let mut more: Vec<PathBuf> = more.map(|entry| entry.path()).collect();
        more.sort();
        files.extend(more);
    }
    files.push(options.chat_template.0.as_deref().unwrap_or_default().into());
    files
}

/// The digest of what tokens depend on beside rows and rules: tokenizer and templates, as [`prepare_rows`] reads them. Templates
/// may ask for the date: then it is today's.
pub(crate) fn row_key(folder: &Path, options: &PreparationOptions) -> ContentKey {
    let files = token_files(folder, options);
    let inline = options.chat_template.0.as_deref().unwrap_or_default();
    let mut key = RowCache::key().and(format!("{inline:?} {:?} {:?}", options.eos_token, options.pad_token));
    let mut dated = inline.contains("strftime");
    for path in files {
        let Ok(bytes) = burnish_core::file::read(&path) else {
            key = key.and("no file");
            continue;
        };
        let template = path.extension().is_some_and(|ending| ending == "jinja" || ending == "json");
        if template && !path.ends_with("tokenizer.json") {
            dated |= String::from_utf8_lossy(&bytes).contains("strftime");
        }
        key = key.and(bytes);
    }
    let days = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
    if dated { key.and(days.to_string()) } else { key }
}

/// Files of a folder that say how texts become tokens, beside its tokenizer's.
const FILES: [&str; 4] =
    ["generation_config.json", "config.json", "chat_template.jinja", "chat_template.json"];
