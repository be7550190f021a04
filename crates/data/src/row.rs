//! TRL's row types, told apart by their columns (reference: TRL 1.16, dataset formats).

use std::borrow::Cow;
use std::fmt;

use serde_json::{Map, Value};

use crate::error::DataError;
use crate::extract_prompt::extract_prompt;
use crate::row_origin::RowOrigin;
use crate::source::{Record, json_type};

/// One message of a conversation: a JSON object with `role` and mostly `content`. Null entries are dropped.
pub type Message = Map<String, Value>;

/// A column that is either plain text or a conversation.
#[derive(Clone, Debug, PartialEq)]
pub enum Text {
    /// The standard format.
    Plain(String),
    /// The conversational format.
    Chat(Vec<Message>),
}

impl Text {
    /// Whether this is a conversation.
    #[must_use]
    pub const fn is_chat(&self) -> bool {
        matches!(self, Self::Chat(_))
    }

    /// The text, if it is plain.
    #[must_use]
    pub fn plain(&self) -> Option<&str> {
        match self {
            Self::Plain(text) => Some(text),
            Self::Chat(_) => None,
        }
    }

    /// The messages, if it is a conversation.
    #[must_use]
    pub fn chat(&self) -> Option<&[Message]> {
        match self {
            Self::Plain(_) => None,
            Self::Chat(messages) => Some(messages),
        }
    }

    /// As it is in a file: a string, or a list of messages.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Plain(text) => Value::from(text.as_str()),
            Self::Chat(messages) => messages.iter().cloned().map(Value::Object).collect(),
        }
    }

    /// Whether it has no text, or of messages none that holds anything a template could write.
    pub(crate) fn says_nothing(&self) -> bool {
        match self {
            Self::Plain(text) => text.is_empty(),
            Self::Chat(messages) => messages.iter().all(says_nothing),
        }
    }

    const fn what(&self) -> &'static str {
        match self {
            Self::Plain(_) => "a string",
            Self::Chat(_) => "messages",
        }
    }
}

/// What a row trains.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Language modelling: the text column, `messages`, or ShareGPT's `conversations`.
    Language(Text),
    /// `prompt` alone.
    Prompt(Text),
    /// `prompt` and `completion`.
    PromptCompletion {
        /// What is given.
        prompt: Text,
        /// What is learned.
        completion: Text,
    },
    /// `chosen` and `rejected`, with the prompt given or implicit in both.
    Preference {
        /// `None` when implicit.
        prompt: Option<Text>,
        /// The better answer.
        chosen: Text,
        /// The worse answer.
        rejected: Text,
    },
    /// `prompt`, `completion` and whether it is desirable.
    Unpaired {
        /// What is given.
        prompt: Text,
        /// The answer.
        completion: Text,
        /// Desirable or not.
        label: bool,
    },
    /// `prompt`, `completions` and a label for each step.
    Stepwise {
        /// What is given.
        prompt: Text,
        /// The steps.
        completions: Vec<String>,
        /// One label a step.
        labels: Vec<bool>,
    },
    /// Rows tokenised beforehand.
    Tokens {
        /// Token ids.
        input_ids: Vec<u32>,
        /// Per token its label, -100 where ignored; masks are not consulted when present.
        labels: Option<Vec<i32>>,
        /// 1 on the completion.
        completion_mask: Option<Vec<bool>>,
        /// 1 on the assistant's tokens.
        assistant_masks: Option<Vec<bool>>,
    },
}

/// Whether a message holds neither text nor anything else a template could write.
fn says_nothing(message: &Message) -> bool {
    message.iter().all(|(key, value)| {
        let empty = value.as_str().is_some_and(str::is_empty) || value.as_array().is_some_and(Vec::is_empty);
        empty || ["role", "name"].contains(&key.as_str())
    })
}

impl Content {
    /// What follows the prompt: a completion, or both answers.
    pub(crate) fn answers(&self) -> impl Iterator<Item = &Text> {
        let all = match self {
            Self::PromptCompletion { completion, .. } | Self::Unpaired { completion, .. } => {
                [Some(completion), None]
            }
            Self::Preference { chosen, rejected, .. } => [Some(chosen), Some(rejected)],
            _ => [None, None],
        };
        all.into_iter().flatten()
    }

    /// What comes before the answer: the prompt, or what both answers begin with; all of a text for language modelling.
    /// `None` for rows that are tokens.
    #[must_use]
    pub fn prompt(&self) -> Option<Cow<'_, Text>> {
        match self {
            Self::Prompt(text)
            | Self::Language(text)
            | Self::PromptCompletion { prompt: text, .. }
            | Self::Unpaired { prompt: text, .. }
            | Self::Preference { prompt: Some(text), .. }
            | Self::Stepwise { prompt: text, .. } => Some(Cow::Borrowed(text)),
            Self::Preference { prompt: None, chosen, rejected } => {
                Some(Cow::Owned(extract_prompt(chosen, rejected).0))
            }
            Self::Tokens { .. } => None,
        }
    }
}

/// The type of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the type of `Content` with that name, standard or conversational")]
pub enum RowKind {
    Language,
    LanguageChat,
    Prompt,
    PromptChat,
    PromptCompletion,
    PromptCompletionChat,
    Preference,
    PreferenceChat,
    ImplicitPreference,
    ImplicitPreferenceChat,
    Unpaired,
    UnpairedChat,
    Stepwise,
    Tokens,
}

impl fmt::Display for RowKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Language => "language modelling (text)",
            Self::LanguageChat => "language modelling (messages)",
            Self::Prompt => "prompt only (text)",
            Self::PromptChat => "prompt only (messages)",
            Self::PromptCompletion => "prompt-completion (text)",
            Self::PromptCompletionChat => "prompt-completion (messages)",
            Self::Preference => "preference (text)",
            Self::PreferenceChat => "preference (messages)",
            Self::ImplicitPreference => "preference with implicit prompt (text)",
            Self::ImplicitPreferenceChat => "preference with implicit prompt (messages)",
            Self::Unpaired => "unpaired preference (text)",
            Self::UnpairedChat => "unpaired preference (messages)",
            Self::Stepwise => "stepwise supervision",
            Self::Tokens => "tokenised (input_ids)",
        })
    }
}

/// One row, typed.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Where it came from.
    pub place: RowOrigin,
    /// What it trains.
    pub content: Content,
    /// The `tools` column: a list of JSON schemas.
    pub tools: Option<Value>,
    /// The `chat_template_kwargs` column: extra variables of the template.
    pub template_kwargs: Map<String, Value>,
    /// Whether the row has both a `prompt` and a `completion` column, whatever its type.
    pub has_prompt_and_completion: bool,
    /// Whether its columns are Alpaca's (`instruction`, `input`, `output`), read as a prompt and a completion.
    pub is_alpaca: bool,
    /// All other columns, as they are in the file (null ones are left out).
    pub columns: Map<String, Value>,
}

impl Row {
    /// Types a record. `text_field` is `dataset_text_field`.
    ///
    /// When columns of several types are present, the first of these decides: `input_ids`, `chosen` + `rejected`,
    /// `prompt`, `messages`, `conversations`, the text column. Null counts as absent.
    ///
    /// # Errors
    /// When no type fits, or a column holds the wrong JSON type.
    pub fn parse(record: Record, text_field: &str) -> Result<Self, DataError> {
        let mut columns = Columns { place: record.place, fields: record.fields };
        columns.fields.retain(|_, v| !v.is_null());
        columns.check_is_text()?;
        let is_alpaca = columns.read_alpaca(text_field);
        let has = |name: &str| columns.fields.contains_key(name);
        let has_prompt_and_completion = has("prompt") && has("completion");
        let tools = columns.tools()?;
        let template_kwargs = columns.object("chat_template_kwargs")?;
        let content = columns.content(text_field)?;
        let messages = if columns.fields.contains_key("messages") { "messages" } else { "conversations" };
        let used: &[&str] = match &content {
            Content::Language(Text::Plain(_)) => &[text_field],
            Content::Language(Text::Chat(_)) => &[messages],
            Content::Prompt(_) => &["prompt"],
            Content::PromptCompletion { .. } => &["prompt", "completion"],
            Content::Preference { .. } => &["prompt", "chosen", "rejected"],
            Content::Unpaired { .. } => &["prompt", "completion", "label"],
            Content::Stepwise { .. } => &["prompt", "completions", "labels"],
            Content::Tokens { .. } => &["input_ids", "labels", "completion_mask", "assistant_masks"],
        };
        let read =
            |column: &str| used.contains(&column) || ["tools", "chat_template_kwargs"].contains(&column);
        columns.fields.retain(|column, _| !read(column));
        Ok(Self {
            place: columns.place,
            content,
            tools,
            template_kwargs,
            has_prompt_and_completion,
            is_alpaca,
            columns: columns.fields,
        })
    }

    /// Types a record as a prompt to sample completions of, whatever other columns it has. As in TRL, `completion`
    /// and `completion_ids` are left out of [`columns`](Self::columns): rewards are given the sampled ones.
    ///
    /// # Errors
    /// When there is no `prompt`, or a column holds the wrong JSON type.
    pub fn parse_prompt(record: Record) -> Result<Self, DataError> {
        let mut columns = Columns { place: record.place, fields: record.fields };
        columns.fields.retain(|_, v| !v.is_null());
        columns.check_is_text()?;
        if !columns.fields.contains_key("prompt") {
            return Err(DataError::MissingColumn {
                columns: columns.names(),
                place: columns.place,
                trainer: "sampling completions",
                column: "prompt",
            });
        }
        let has_prompt_and_completion = columns.fields.contains_key("completion");
        let tools = columns.tools()?;
        let template_kwargs = columns.object("chat_template_kwargs")?;
        let content = Content::Prompt(columns.text("prompt")?);
        let own = ["prompt", "completion", "completion_ids", "tools", "chat_template_kwargs"];
        columns.fields.retain(|column, _| !own.contains(&column.as_str()));
        Ok(Self {
            place: columns.place,
            content,
            tools,
            template_kwargs,
            has_prompt_and_completion,
            is_alpaca: false,
            columns: columns.fields,
        })
    }

    /// The row's type.
    #[must_use]
    pub fn kind(&self) -> RowKind {
        let pick = |text: &Text, plain, chat| if text.is_chat() { chat } else { plain };
        match &self.content {
            Content::Language(t) => pick(t, RowKind::Language, RowKind::LanguageChat),
            Content::Prompt(t) => pick(t, RowKind::Prompt, RowKind::PromptChat),
            Content::PromptCompletion { prompt, .. } => {
                pick(prompt, RowKind::PromptCompletion, RowKind::PromptCompletionChat)
            }
            Content::Preference { prompt: Some(_), chosen, .. } => {
                pick(chosen, RowKind::Preference, RowKind::PreferenceChat)
            }
            Content::Preference { prompt: None, chosen, .. } => {
                pick(chosen, RowKind::ImplicitPreference, RowKind::ImplicitPreferenceChat)
            }
            Content::Unpaired { prompt, .. } => pick(prompt, RowKind::Unpaired, RowKind::UnpairedChat),
            Content::Stepwise { .. } => RowKind::Stepwise,
            Content::Tokens { .. } => RowKind::Tokens,
        }
    }

    /// The conversations of this row, for checks on roles.
    pub fn chats(&self) -> impl Iterator<Item = &[Message]> {
        let texts: Vec<&Text> = match &self.content {
            Content::Language(t) | Content::Prompt(t) | Content::Stepwise { prompt: t, .. } => vec![t],
            Content::PromptCompletion { prompt, completion }
            | Content::Unpaired { prompt, completion, .. } => {
                vec![prompt, completion]
            }
            Content::Preference { prompt, chosen, rejected } => {
                prompt.iter().chain([chosen, rejected]).collect()
            }
            Content::Tokens { .. } => vec![],
        };
        texts.into_iter().filter_map(|t| match t {
            Text::Chat(messages) => Some(messages.as_slice()),
            Text::Plain(_) => None,
        })
    }
}

/// Columns of pictures and sound, as TRL and Transformers name them.
pub(crate) const NOT_TEXT: [&str; 6] = ["image", "images", "video", "videos", "audio", "audios"];
/// The same as parts of a message's content.
const NOT_TEXT_PARTS: [&str; 6] = ["image", "image_url", "video", "video_url", "audio", "input_audio"];

struct Columns {
    place: RowOrigin,
    fields: Map<String, Value>,
}

impl Columns {
    /// Refuses rows with pictures or sound.
    fn check_is_text(&self) -> Result<(), DataError> {
        let empty = |value: &Value| match value {
            Value::Array(items) => items.is_empty(),
            Value::String(text) => text.is_empty(),
            _ => false,
        };
        let found = NOT_TEXT.iter().find(|name| self.fields.get(**name).is_some_and(|value| !empty(value)));
        found.map_or(Ok(()), |name| Err(self.not_text((*name).to_owned())))
    }

    fn not_text(&self, column: String) -> DataError {
        DataError::NotText { place: self.place.to_string(), column }
    }

    /// Turns `instruction` (with `input` after it) and `output` into a prompt of the user and a completion of the
    /// assistant, where no column of TRL's formats says otherwise.
    fn read_alpaca(&mut self, text_field: &str) -> bool {
        const TRLS: [&str; 6] = ["prompt", "completion", "messages", "conversations", "chosen", "input_ids"];
        let text = |name: &str| self.fields.get(name).and_then(Value::as_str);
        let (Some(instruction), Some(output)) = (text("instruction"), text("output")) else { return false };
        if TRLS.iter().chain([&text_field]).any(|name| self.fields.contains_key(*name)) {
            return false;
        }
        let prompt = match text("input").map(str::trim).filter(|input| !input.is_empty()) {
            Some(input) => format!("{instruction}\n\n{input}"),
            None => instruction.to_owned(),
        };
        let turn = |role: &str, content: &str| {
            Value::Array(vec![serde_json::json!({"role": role, "content": content})])
        };
        let (prompt, completion) = (turn("user", &prompt), turn("assistant", output));
        for name in ["instruction", "input", "output"] {
            self.fields.remove(name);
        }
        self.fields.insert("prompt".to_owned(), prompt);
        self.fields.insert("completion".to_owned(), completion);
        true
    }

    fn content(&mut self, text_field: &str) -> Result<Content, DataError> {
        let has = |name: &str| self.fields.contains_key(name);
        if has("input_ids") {
            return self.tokens();
        }
        if has("chosen") && has("rejected") {
            let (chosen, rejected) = (self.text("chosen")?, self.text("rejected")?);
            self.same("chosen", &chosen, "rejected", &rejected)?;
            let prompt = if self.fields.contains_key("prompt") { Some(self.text("prompt")?) } else { None };
            // Some data sets name in `prompt`, as text, the message that both conversations begin with.
            let prompt = prompt.filter(|prompt| !names_shared_message(prompt, &chosen, &rejected));
            if let Some(prompt) = &prompt {
                self.same("prompt", prompt, "chosen", &chosen)?;
            }
            return Ok(Content::Preference { prompt, chosen, rejected });
        }
        if has("prompt") {
            return self.prompted();
        }
        if has("messages") {
            return Ok(Content::Language(Text::Chat(self.chat("messages")?)));
        }
        if has("conversations") {
            return Ok(Content::Language(Text::Chat(self.chat("conversations")?)));
        }
        match self.fields.remove(text_field) {
            Some(Value::String(text)) => Ok(Content::Language(Text::Plain(text))),
            Some(other) => Err(self.wrong(text_field, "a string", &other)),
            None if self.fields.contains_key("completion") => {
                Err(DataError::NoPrompt { columns: self.names(), place: self.place.clone() })
            }
            None => Err(DataError::UnknownColumns {
                columns: self.names(),
                place: self.place.clone(),
                text_field: text_field.to_owned(),
            }),
        }
    }

    fn prompted(&mut self) -> Result<Content, DataError> {
        let prompt = self.text("prompt")?;
        if let (Some(steps), Some(labels)) = (self.fields.get("completions"), self.fields.get("labels")) {
            let (Value::Array(steps), Value::Array(labels)) = (steps, labels) else {
                let bad = if steps.is_array() { ("labels", labels) } else { ("completions", steps) };
                return Err(self.wrong(bad.0, "an array", bad.1));
            };
            let completions = (steps.iter())
                .map(|s| s.as_str().map(str::to_owned).ok_or_else(|| self.wrong("completions", "strings", s)))
                .collect::<Result<Vec<_>, _>>()?;
            let labels = (labels.iter())
                .map(|l| l.as_bool().ok_or_else(|| self.wrong("labels", "booleans", l)))
                .collect::<Result<Vec<_>, _>>()?;
            return Ok(Content::Stepwise { prompt, completions, labels });
        }
        if !self.fields.contains_key("completion") {
            return Ok(Content::Prompt(prompt));
        }
        let completion = self.text("completion")?;
        self.same("prompt", &prompt, "completion", &completion)?;
        match self.fields.get("label") {
            Some(&Value::Bool(label)) => Ok(Content::Unpaired { prompt, completion, label }),
            _ => Ok(Content::PromptCompletion { prompt, completion }),
        }
    }

    fn tokens(&self) -> Result<Content, DataError> {
        let ids = self.integers("input_ids")?.unwrap_or_default();
        let input_ids = (ids.iter().enumerate())
            .map(|(index, &id)| {
                u32::try_from(id).map_err(|_| DataError::ColumnType {
                    place: self.place.clone(),
                    column: format!("input_ids[{index}]"),
                    expected: "a token id",
                    got: "a number out of range",
                })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let length = |column, got: usize| {
            if got == input_ids.len() {
                return Ok(());
            }
            Err(DataError::ColumnLength { place: self.place.clone(), column, expected: input_ids.len(), got })
        };
        let mask = |column| -> Result<Option<Vec<bool>>, DataError> {
            let Some(bits) = self.integers(column)? else { return Ok(None) };
            length(column, bits.len())?;
            Ok(Some(bits.into_iter().map(|b| b != 0).collect()))
        };
        let labels = match self.integers("labels")? {
            None => None,
            Some(labels) => {
                length("labels", labels.len())?;
                let labels = labels.iter().map(|&l| i32::try_from(l)).collect::<Result<Vec<_>, _>>();
                Some(labels.map_err(|_| DataError::ColumnType {
                    place: self.place.clone(),
                    column: "labels".to_owned(),
                    expected: "token ids or -100",
                    got: "a number out of range",
                })?)
            }
        };
        let (completion_mask, assistant_masks) = (mask("completion_mask")?, mask("assistant_masks")?);
        Ok(Content::Tokens { input_ids, labels, completion_mask, assistant_masks })
    }

    fn integers(&self, column: &'static str) -> Result<Option<Vec<i64>>, DataError> {
        let Some(value) = self.fields.get(column) else { return Ok(None) };
        let Value::Array(values) = value else {
            return Err(self.wrong(column, "an array of integers", value));
        };
        let integer = |(i, v): (usize, &Value)| {
            let number = v.as_i64().or_else(|| v.as_bool().map(i64::from));
            number.ok_or_else(|| self.wrong(&format!("{column}[{i}]"), "an integer", v))
        };
        values.iter().enumerate().map(integer).collect::<Result<Vec<_>, _>>().map(Some)
    }

    /// A column that is text or a conversation.
    fn text(&mut self, column: &'static str) -> Result<Text, DataError> {
        match self.fields.get_mut(column) {
            Some(Value::String(text)) => Ok(Text::Plain(std::mem::take(text))),
            Some(Value::Array(_)) => self.chat(column).map(Text::Chat),
            Some(other) => {
                let other = other.take();
                Err(self.wrong(column, "a string or a list of messages", &other))
            }
            None => Err(self.wrong(column, "a string or a list of messages", &Value::Null)),
        }
    }

    fn chat(&self, column: &'static str) -> Result<Vec<Message>, DataError> {
        let value = self.fields.get(column).unwrap_or(&Value::Null);
        let Value::Array(messages) = value else {
            return Err(self.wrong(column, "a list of messages", value));
        };
        if messages.is_empty() {
            return Err(DataError::EmptyConversation { place: self.place.clone(), column });
        }
        messages.iter().enumerate().map(|(i, m)| self.message(column, i, m)).collect()
    }

    /// ShareGPT's `from`/`value` become `role`/`content`; roles are kept as they are written.
    fn message(&self, column: &str, index: usize, value: &Value) -> Result<Message, DataError> {
        let at = format!("{column}[{index}]");
        let Value::Object(fields) = value else {
            return Err(self.wrong(&at, "a message object with `role` and `content`", value));
        };
        let mut message = Message::new();
        for (key, value) in fields {
            let key = match key.as_str() {
                "from" if !fields.contains_key("role") => "role",
                "value" if !fields.contains_key("content") => "content",
                key => key,
            };
            if !value.is_null() {
                message.insert(key.to_owned(), value.clone());
            }
        }
        for (part, value) in
            message.get("content").and_then(Value::as_array).into_iter().flatten().enumerate()
        {
            // A mark of a picture's place that brings none is the template's to write out, as in Transformers.
            let brings = value.as_object().is_some_and(|part| part.len() > 1);
            let kind = value.get("type").and_then(Value::as_str);
            if let Some(kind) = kind.filter(|kind| brings && NOT_TEXT_PARTS.contains(kind)) {
                return Err(self.not_text(format!("{at}.content[{part}]: {kind}")));
            }
        }
        match message.get("role") {
            Some(Value::String(_)) => Ok(message),
            Some(other) => Err(self.wrong(&format!("{at}.role"), "a string", other)),
            None => Err(self.wrong(&format!("{at}.role"), "a string", &Value::Null)),
        }
    }

    fn names(&self) -> String {
        match self.fields.keys().map(|k| format!("`{k}`")).collect::<Vec<_>>() {
            names if names.is_empty() => "(none)".to_owned(),
            names => names.join(", "),
        }
    }

    fn tools(&self) -> Result<Option<Value>, DataError> {
        let expected = "a list of tool schemas (or that list as a JSON string)";
        let tools = match self.fields.get("tools") {
            None => return Ok(None),
            Some(Value::String(text)) => {
                let tools = serde_json::from_str(text);
                tools.map_err(|_| self.wrong("tools", expected, &Value::String(text.clone())))?
            }
            Some(tools) => tools.clone(),
        };
        match &tools {
            Value::Null => Ok(None),
            Value::Array(list) => match list.iter().position(|t| !t.is_object()) {
                None => Ok(Some(tools)),
                Some(i) => Err(self.wrong(&format!("tools[{i}]"), "a JSON schema object", &list[i])),
            },
            other => Err(self.wrong("tools", expected, other)),
        }
    }

    fn object(&self, column: &str) -> Result<Map<String, Value>, DataError> {
        match self.fields.get(column) {
            None => Ok(Map::new()),
            Some(Value::Object(map)) => Ok(map.clone()),
            Some(other) => Err(self.wrong(column, "an object", other)),
        }
    }

    fn same(&self, first: &'static str, a: &Text, second: &'static str, b: &Text) -> Result<(), DataError> {
        if a.is_chat() == b.is_chat() {
            return Ok(());
        }
        Err(DataError::MixedText {
            place: self.place.clone(),
            first,
            first_is: a.what(),
            second,
            second_is: b.what(),
        })
    }

    fn wrong(&self, column: &str, expected: &'static str, got: &Value) -> DataError {
        let got = if got.is_null() { "nothing" } else { json_type(got) };
        DataError::ColumnType { place: self.place.clone(), column: column.to_owned(), expected, got }
    }
}

fn names_shared_message(prompt: &Text, chosen: &Text, rejected: &Text) -> bool {
    let (Text::Plain(prompt), Text::Chat(chosen), Text::Chat(rejected)) = (prompt, chosen, rejected) else {
        return false;
    };
    let shared = chosen.iter().zip(rejected).take_while(|(a, b)| a == b);
    let mut contents = shared.filter_map(|(message, _)| message.get("content")?.as_str());
    contents.any(|content| content.trim() == prompt.trim())
}

#[cfg(test)]
mod tests;
