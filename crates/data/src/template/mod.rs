//! Chat templates, rendered as Transformers 5 renders them with jinja2.
//!
//! Block trimming, loop controls, Python's methods and printing, `raise_exception`, `strftime_now`, `tojson` with
//! Python's spacing, `namespace`, and `{% generation %}` blocks whose spans become the assistant mask.
//!
//! One difference is kept: on Python a key that a dictionary lacks but that names one of its methods (`spec['items']`,
//! `spec.keys`) gives that method, which counts as defined and true; here it is undefined like any other missing key.

mod clock;
mod generation;
mod json;
mod python;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, UndefinedBehavior};
use serde_json::{Map, Value};

pub use clock::Clock;

use crate::error::DataError;
use crate::row::Message;
use crate::row_origin::RowOrigin;
use crate::tokenizer::{Tokenizer, json_file};

/// Names under which a message's reasoning is passed; templates read the first, or `thinking`.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// The marker that `continue_final_message` appends to find the end of the final message again.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

/// A compiled chat template with the variables that do not change.
#[derive(Clone)]
pub struct Template {
    name: String,
    source: Arc<str>,
    env: Arc<Environment<'static>>,
    tokens: Vec<(String, String)>,
    marked: bool,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template")
            .field("name", &self.name)
            .field("marked", &self.marked)
            .finish_non_exhaustive()
    }
}

/// What a rendering is given besides the messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct Render<'a> {
    /// JSON schemas of tools.
    pub tools: Option<&'a Value>,
    /// Documents for retrieval.
    pub documents: Option<&'a Value>,
    /// End with the header of an assistant turn.
    pub add_generation_prompt: bool,
    /// Leave the final message open.
    pub continue_final_message: bool,
    /// Further variables (`chat_template_kwargs`); they win over the named tokens.
    pub variables: Option<&'a Map<String, Value>>,
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Where `{% generation %}` blocks lie in it, in characters, in order.
    pub generated: Vec<Range<usize>>,
}

/// The chat templates of a model folder: one, or several by name.
#[derive(Clone, Debug)]
pub struct Templates {
    named: Vec<(String, Template)>,
}

impl Templates {
    /// Reads the templates of a model folder: `chat_template.jinja` and `additional_chat_templates/*.jinja`, else
    /// `chat_template` in `tokenizer_config.json` (a text or a list of named ones). `None` when there is none.
    ///
    /// # Errors
    /// When a file cannot be read or a template does not parse.
    pub fn from_folder(folder: &Path, tokenizer: &Tokenizer) -> Result<Option<Self>, DataError> {
        let read = |path: &Path| {
            std::fs::read_to_string(path).map_err(|source| DataError::Io { path: path.to_path_buf(), source })
        };
        let mut named = Vec::new();
        let file = folder.join("chat_template.jinja");
        if file.is_file() {
            named.push((
                "default".to_owned(),
                Template::new("chat_template.jinja", &read(&file)?, tokenizer)?,
            ));
        }
        let extra = folder.join("additional_chat_templates");
        if extra.is_dir() {
            let io = |source| DataError::Io { path: extra.clone(), source };
            let mut files = Vec::new();
            for entry in std::fs::read_dir(&extra).map_err(io)? {
                files.push(entry.map_err(io)?.path());
            }
            files.sort();
            for path in files.iter().filter(|p| p.extension().is_some_and(|e| e == "jinja")) {
                let name = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
                named.push((name.to_owned(), Template::new(name, &read(path)?, tokenizer)?));
            }
        }
        if named.is_empty() {
            let config = json_file(&folder.join("tokenizer_config.json"))?;
            match config.get("chat_template") {
                Some(Value::String(text)) => {
                    named.push((
                        "default".to_owned(),
                        Template::new("tokenizer_config.json", text, tokenizer)?,
                    ));
                }
                Some(Value::Array(list)) => {
                    for entry in list {
                        let field = |f: &str| entry.get(f).and_then(Value::as_str);
                        let (Some(name), Some(text)) = (field("name"), field("template")) else {
                            return Err(DataError::BadFile {
                                path: folder.join("tokenizer_config.json"),
                                reason: "`chat_template` entries need `name` and `template`".to_owned(),
                            });
                        };
                        named.push((name.to_owned(), Template::new(name, text, tokenizer)?));
                    }
                }
                _ => {}
            }
        }
        Ok(if named.is_empty() { None } else { Some(Self { named }) })
    }

    /// A single template from a `.jinja` file (`chat_template_path`).
    ///
    /// # Errors
    /// When the file cannot be read or does not parse.
    pub fn from_file(path: &Path, tokenizer: &Tokenizer) -> Result<Self, DataError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| DataError::Io { path: path.to_path_buf(), source })?;
        let name = path.display().to_string();
        Ok(Self { named: vec![("default".to_owned(), Template::new(&name, &text, tokenizer)?)] })
    }

    /// A single template.
    #[must_use]
    pub fn one(template: Template) -> Self {
        Self { named: vec![("default".to_owned(), template)] }
    }

    /// The template for a row: `tool_use` for rows with tools if there is one, else `default`.
    ///
    /// # Errors
    /// When there are several and none applies.
    pub fn pick(&self, tools: bool) -> Result<&Template, DataError> {
        let find = |name: &str| self.named.iter().find(|(n, _)| n == name).map(|(_, t)| t);
        let picked = if tools { find("tool_use").or_else(|| find("default")) } else { find("default") };
        picked.ok_or_else(|| DataError::NoDefaultTemplate {
            names: self.named.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>().join(", "),
        })
    }

    /// The same templates under another clock.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        let named = self.named.into_iter().map(|(n, t)| (n, t.with_clock(clock))).collect();
        Self { named }
    }
}

impl Template {
    /// Compiles a template. `name` is for messages.
    ///
    /// # Errors
    /// When it does not parse.
    pub fn new(name: &str, source: &str, tokenizer: &Tokenizer) -> Result<Self, DataError> {
        let tokens = tokenizer.named_tokens().map(|(n, t)| (n.to_owned(), t.to_owned())).collect();
        Self::compile(name, source, tokens)
    }

    /// Compiles a template that sees the given named tokens (`bos_token`, `eos_token`, ...).
    ///
    /// # Errors
    /// When it does not parse.
    pub fn compile(name: &str, source: &str, tokens: Vec<(String, String)>) -> Result<Self, DataError> {
        let (rewritten, marked) = generation::rewrite(source);
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.expect("invariant: the delimiters are the default ones"));
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        env.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        env.set_debug(false);
        python::install(&mut env);
        clock::install(&mut env, Clock::Now);
        env.add_template_owned("chat", rewritten)
            .map_err(|e| DataError::TemplateSyntax { name: name.to_owned(), reason: python::describe(&e) })?;
        Ok(Self { name: name.to_owned(), source: Arc::from(source), env: Arc::new(env), tokens, marked })
    }

    /// The same template with `strftime_now` under another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: Clock) -> Self {
        let mut env = (*self.env).clone();
        clock::install(&mut env, clock);
        self.env = Arc::new(env);
        self
    }

    /// File or name, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the template has `{% generation %}` blocks.
    #[must_use]
    pub const fn marks_generation(&self) -> bool {
        self.marked
    }

    /// Renders a conversation. `place` is for messages.
    ///
    /// # Errors
    /// When the template refuses the conversation or fails, or the final message cannot be continued.
    pub fn render(
        &self,
        messages: &[Message],
        with: Render<'_>,
        place: &RowOrigin,
    ) -> Result<Rendered, DataError> {
        let mut chat: Vec<Value> = messages.iter().map(|m| Value::Object(alias_reasoning(m))).collect();
        let open = |reason| DataError::Continue { place: place.clone(), reason };
        let mut final_text = None;
        if with.continue_final_message {
            if with.add_generation_prompt {
                return Err(open("`add_generation_prompt` would start a new one"));
            }
            let content = chat.last_mut().and_then(|m| m.get_mut("content"));
            final_text = Some(tag_text(content).ok_or_else(|| open("it has no text in `content`"))?);
            if !self.source.contains("content") {
                return Err(open("the chat template never reads `content`"));
            }
        }
        let (start, end) = self.markers(&chat, with);
        let mut context = vec![
            ("messages".to_owned(), python::value(&Value::Array(chat))),
            ("tools".to_owned(), with.tools.map_or_else(|| minijinja::Value::from(()), python::value)),
            (
                "documents".to_owned(),
                with.documents.map_or_else(|| minijinja::Value::from(()), python::value),
            ),
            ("add_generation_prompt".to_owned(), minijinja::Value::from(with.add_generation_prompt)),
            (generation::MARKS.to_owned(), minijinja::Value::from(format!("{start}{end}"))),
        ];
        let variables = with.variables;
        for (name, token) in &self.tokens {
            if variables.is_none_or(|v| !v.contains_key(name)) {
                context.push((name.clone(), minijinja::Value::from(token.as_str())));
            }
        }
        for (name, value) in variables.into_iter().flatten() {
            context.retain(|(n, _)| n != name);
            context.push((name.clone(), python::value(value)));
        }
        let template = self.env.get_template("chat").map_err(|e| failure(&e, place))?;
        let text = template.render(minijinja::Value::from_pairs(context)).map_err(|e| failure(&e, place))?;
        let mut rendered = generation::spans(&text, start, end);
        if let Some(final_text) = final_text {
            let lost = || open("it does not appear in the rendered conversation as it was given");
            if !rendered.text.contains(final_text.trim()) {
                return Err(lost());
            }
            let at = rendered.text.rfind(TAG.trim_end()).ok_or_else(lost)?;
            let kept = rendered.text[at..].starts_with(TAG);
            rendered.text.truncate(at);
            if !kept {
                rendered.text.truncate(rendered.text.trim_end().len());
            }
        }
        Ok(rendered)
    }

    /// Two characters that occur in none of the inputs, to mark where generation blocks start and end.
    fn markers(&self, chat: &[Value], with: Render<'_>) -> (char, char) {
        let candidates: Vec<char> = ('\u{fdd0}'..='\u{fdef}').collect();
        if !self.marked {
            return (candidates[0], candidates[1]);
        }
        let mut used = Vec::new();
        let mut look = |value: &Value| generation::used(value, &mut used);
        chat.iter().for_each(&mut look);
        with.tools.into_iter().chain(with.documents).for_each(&mut look);
        with.variables.into_iter().flat_map(Map::values).for_each(&mut look);
        used.extend(self.source.chars().filter(|c| candidates.contains(c)));
        let mut free = candidates.iter().copied().filter(|c| !used.contains(c));
        // A conversation that uses all but one of these 32 non-characters only loses its mask.
        (free.next().unwrap_or('\u{fdd0}'), free.next().unwrap_or('\u{fdd1}'))
    }
}

/// Appends the tag to a message's text and gives the text as it was; for content blocks, to the last text block.
fn tag_text(content: Option<&mut Value>) -> Option<String> {
    let text = match content? {
        Value::String(text) => text,
        Value::Array(blocks) => match blocks.iter_mut().rev().find_map(|b| b.get_mut("text"))? {
            Value::String(text) => text,
            _ => return None,
        },
        _ => return None,
    };
    let before = text.clone();
    text.push_str(TAG);
    Some(before)
}

/// Fills `reasoning_content` from its older names, and `thinking` beside it.
fn alias_reasoning(message: &Message) -> Message {
    let mut message: Message =
        message.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
    if let Some(reasoning) = REASONING.iter().find_map(|k| message.get(*k)).cloned() {
        message.entry("thinking").or_insert_with(|| reasoning.clone());
        message.insert("reasoning_content".to_owned(), reasoning);
    }
    message
}

fn failure(error: &minijinja::Error, place: &RowOrigin) -> DataError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = cause {
        if let Some(raised) = e.downcast_ref::<python::Raised>() {
            return DataError::TemplateRaised { place: place.clone(), message: raised.0.clone() };
        }
        cause = e.source();
    }
    let mut reason = python::describe(error);
    if error.kind() == ErrorKind::UndefinedError {
        reason += "; the conversation lacks something the template reads";
    }
    DataError::TemplateFailed { place: place.clone(), reason }
}

#[cfg(test)]
mod tests;
