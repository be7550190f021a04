//! Rows to examples: tokenise, mask, truncate, pack; as TRL 1.16's `SFTTrainer` prepares a data set.

use std::cell::Cell;

use burnish_core::random::Stream;
use burnish_core::{OptionFaults, choices};

use crate::assistant_turns::assistant_turns;
use crate::error::DataError;
use crate::example::{Example, IGNORED, label};
use crate::pack::{self, Strategy};
use crate::row::{Content, Message, Row, RowKind, Text};
use crate::source::Record;
use crate::statistics::Statistics;
use crate::template::{Render, Rendered, Template, Templates};
use crate::tokenize;
use crate::tokenizer::Tokenizer;

/// Keys of `chat_template_kwargs` that would change what preparation decides.
const RESERVED: [&str; 14] = [
    "add_generation_prompt",
    "chat_template",
    "continue_final_message",
    "conversation",
    "max_length",
    "messages",
    "padding",
    "return_assistant_tokens_mask",
    "return_dict",
    "return_tensors",
    "sanitize_control_tokens",
    "tokenize",
    "tokenizer_kwargs",
    "truncation",
];

choices! {
    /// Which end of a long row is kept (`truncation_mode`).
    #[derive(Default)]
    pub enum Truncation: "truncation_mode", DataError {
        /// The start.
        #[default]
        KeepStart = "keep_start",
        /// The end.
        KeepEnd = "keep_end",
    }
}

/// The options of preparation, with TRL's names and defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// `dataset_text_field`: the column of plain text.
    pub text_field: String,
    /// `max_length`: tokens of a row; `None` keeps rows as they are.
    pub max_length: Option<usize>,
    /// `truncation_mode`.
    pub truncation: Truncation,
    /// `completion_only_loss`: `None` is true exactly when the first row has a prompt and a completion.
    pub completion_only_loss: Option<bool>,
    /// `assistant_only_loss`: learn only what lies in the template's `{% generation %}` blocks, or where it has none
    /// the assistant's turns as the renderings of the conversation's beginnings show them.
    pub assistant_only_loss: bool,
    /// `packing` with its `packing_strategy`.
    pub packing: Option<Strategy>,
    /// `padding_free` without packing.
    pub padding_free: bool,
    /// Preference data: where the template writes a prompt alone otherwise than before its completion, let the
    /// completion begin where the two part, as TRL does, rather than refuse the row. (Supervised fine-tuning always
    /// does, with a finding.)
    pub allow_diverging_prompts: bool,
    /// Preference data: every prompt begins with the bos token and every answer ends with the eos token, where the tokenizer
    /// has them, whatever templates write, as CPO and ORPO train.
    pub between_bos_and_eos: bool,
    /// `shuffle_dataset`: a fixed shuffle before packing and after.
    pub shuffle: bool,
    /// `seed` of that shuffle.
    pub seed: u64,
    /// Rows of the embedding, to refuse tokenised rows of another model; `None` does not check.
    pub vocab_size: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            text_field: "text".to_owned(),
            max_length: Some(1024),
            truncation: Truncation::KeepStart,
            completion_only_loss: None,
            assistant_only_loss: false,
            packing: None,
            padding_free: false,
            allow_diverging_prompts: false,
            between_bos_and_eos: false,
            shuffle: false,
            seed: 42,
            vocab_size: None,
        }
    }
}

impl Options {
    /// The rules that these options break, all of them.
    #[must_use]
    pub fn faults(&self) -> OptionFaults {
        let mut faults = OptionFaults::default();
        faults.conflict(
            "packing",
            self.packing.is_some() && self.max_length.is_none(),
            "max_length: null",
            "set max_length, the length that rows are packed to",
            "`packing` needs `max_length`, the length of a packed row; set `max_length`",
        );
        if let Some(length) = self.max_length {
            faults.range("max_length", length > 0, length, "null or at least 1");
        }
        faults
    }

    /// Checks options against each other.
    ///
    /// # Errors
    /// Names the contradiction and the mend.
    pub fn check(&self) -> Result<(), DataError> {
        Ok(self.faults().first()?)
    }

    /// Whether batches keep packed sequences apart and carry no padding: asked for, or by the packing strategy.
    #[must_use]
    pub fn is_padding_free(&self) -> bool {
        self.padding_free || self.packing.is_some_and(Strategy::keeps_documents)
    }
}

/// A prepared data set.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// The rows, truncated or packed.
    pub examples: Vec<Example>,
    /// What happened on the way.
    pub statistics: Statistics,
    /// The type of its rows.
    pub kind: RowKind,
    /// Whether only completions are learned.
    pub completion_only: bool,
}

/// Turns rows into examples.
#[derive(Clone, Copy, Debug)]
pub struct Preparer<'a> {
    /// The folder's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The folder's chat templates, if it has any.
    pub templates: Option<&'a Templates>,
    /// The options.
    pub options: &'a Options,
}

/// A row as tokens with what is known about them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tokens {
    input_ids: Vec<u32>,
    labels: Option<Vec<i32>>,
    completion: Option<Vec<bool>>,
    assistant: Option<Vec<bool>>,
    /// The end of the prompt that is no prefix of prompt and completion together, as text.
    diverges: Option<String>,
}

impl Preparer<'_> {
    /// Prepares a data set. `name` is for messages; rows are read once, in order, and tokenised in parallel.
    ///
    /// # Errors
    /// The first fault in row order, each with file and line; no row, no row left, or nothing to learn.
    pub fn prepare(
        &self,
        name: &str,
        records: impl Iterator<Item = Result<Record, DataError>>,
    ) -> Result<Dataset, DataError> {
        self.options.check()?;
        let completion_only = Cell::new(false);
        let (mut statistics, mut examples) = (Statistics::default(), Vec::new());
        let parse = |record| {
            let row = Row::parse(record, &self.options.text_field)?;
            self.usable(&row)?;
            Ok(row)
        };
        let begin = |row: &Row| {
            completion_only.set(self.options.completion_only_loss.unwrap_or(row.has_prompt_and_completion));
            self.check_first(row)
        };
        let keep = |row: Row, tokens: Tokens| {
            statistics.see_row(&row, tokens.diverges.as_deref());
            let example = self.labelled(tokens, completion_only.get());
            examples.extend(self.truncated(example, &mut statistics));
            Ok(())
        };
        let kind = tokenize::tokenised(name, records, parse, begin, |row| self.tokens(row), keep)?;
        let completion_only = completion_only.get();
        if let (Some(strategy), Some(max_length)) = (self.options.packing, self.options.max_length) {
            self.shuffle(&mut examples, 0);
            examples = pack::pack(&examples, max_length, strategy);
        }
        self.shuffle(&mut examples, 1);
        self.finish(&examples, &mut statistics)?;
        Ok(Dataset { examples, statistics, kind, completion_only })
    }

    /// One row as an example, not truncated. `completion_only` is [`Dataset::completion_only`].
    ///
    /// # Errors
    /// When the row is of a type that supervised fine-tuning cannot use, or cannot be tokenised.
    pub fn example(&self, row: &Row, completion_only: bool) -> Result<Example, DataError> {
        self.usable(row)?;
        Ok(self.labelled(self.tokens(row)?, completion_only))
    }

    /// One row as [`prepare`](Self::prepare) makes it without packing: cut to `max_length`, `None` when nothing of it
    /// is learned. `completion_only` is [`Dataset::completion_only`].
    ///
    /// # Errors
    /// As [`example`](Self::example).
    pub fn prepared(&self, row: &Row, completion_only: bool) -> Result<Option<Example>, DataError> {
        Ok(self.truncated(self.example(row, completion_only)?, &mut Statistics::default()))
    }

    /// The token ids that generation starts from: the prompt column (or a language-modelling row), a conversation
    /// with the header of an assistant turn, or with its final assistant message left open.
    ///
    /// # Errors
    /// When the row has no prompt, or cannot be tokenised.
    pub fn prompt(&self, row: &Row) -> Result<Vec<u32>, DataError> {
        let text = match &row.content {
            Content::Tokens { input_ids, .. } => return Ok(input_ids.clone()),
            content => content.prompt(),
        };
        match text.as_deref() {
            None => Ok(Vec::new()),
            Some(Text::Plain(text)) => self.encode(row, text),
            Some(Text::Chat(messages)) => {
                let open = messages.last().and_then(|m| m.get("role")).is_some_and(|r| r == "assistant");
                let with = Render {
                    add_generation_prompt: !open,
                    continue_final_message: open,
                    ..Render::default()
                };
                Ok(self.chat(row, messages, with, false)?.0)
            }
        }
    }

    /// Shuffles the examples if that is asked for; `pass` is 0 before packing and 1 at the end.
    pub(crate) fn shuffle<T>(&self, examples: &mut Vec<T>, pass: u64) {
        if self.options.shuffle {
            let order = Stream::new(self.options.seed, "data.shuffle").at(pass).permutation(examples.len());
            let mut given: Vec<Option<T>> = std::mem::take(examples).into_iter().map(Some).collect();
            *examples = order.into_iter().filter_map(|i| given[i].take()).collect();
        }
    }

    pub(crate) fn check_first(&self, row: &Row) -> Result<(), DataError> {
        if !self.options.assistant_only_loss {
            return Ok(());
        }
        if row.chats().next().is_none() {
            return Err(DataError::AssistantNeedsChat { place: row.place.clone(), got: row.kind() });
        }
        self.templates(row)?.pick(row.tools.is_some()).map(|_| ())
    }

    /// Supervised fine-tuning takes language modelling, prompt-completion and tokenised rows.
    fn usable(&self, row: &Row) -> Result<(), DataError> {
        let mend = match row.content {
            Content::Language(_) | Content::PromptCompletion { .. } | Content::Tokens { .. } => return Ok(()),
            Content::Prompt(_) => "add a `completion` column",
            Content::Preference { .. } => {
                "train with DPO, or keep `prompt` and rename `chosen` to `completion`"
            }
            Content::Unpaired { .. } => {
                "train with KTO, or keep the rows with `label` true and remove the column"
            }
            Content::Stepwise { .. } => "join the good steps into a `completion` column",
        };
        Err(DataError::WrongKind {
            place: row.place.clone(),
            trainer: "supervised fine-tuning",
            needs: "language modelling or prompt-completion rows",
            got: row.kind(),
            mend,
        })
    }

    fn tokens(&self, row: &Row) -> Result<Tokens, DataError> {
        let tokens = match &row.content {
            Content::Language(Text::Plain(text)) => {
                Tokens { input_ids: self.encode(row, &self.with_eos(text)?)?, ..Tokens::default() }
            }
            Content::Language(Text::Chat(messages)) => {
                let (input_ids, assistant) =
                    self.chat(row, messages, Render::default(), self.options.assistant_only_loss)?;
                Tokens { input_ids, assistant, ..Tokens::default() }
            }
            Content::PromptCompletion { prompt, completion } => {
                self.prompt_completion(row, prompt, completion)?
            }
            Content::Tokens { input_ids, labels, completion_mask, assistant_masks } => {
                self.check_range(row, input_ids)?;
                Tokens {
                    input_ids: input_ids.clone(),
                    labels: labels.clone(),
                    completion: completion_mask.clone(),
                    assistant: assistant_masks.clone(),
                    diverges: None,
                }
            }
            _ => {
                self.usable(row)?;
                Tokens::default()
            }
        };
        if self.options.assistant_only_loss && tokens.assistant.as_ref().is_some_and(|m| !m.contains(&true)) {
            return Err(DataError::NoAssistantToken { place: row.place.clone() });
        }
        Ok(tokens)
    }

    fn prompt_completion(&self, row: &Row, prompt: &Text, completion: &Text) -> Result<Tokens, DataError> {
        let (prompt_ids, input_ids, assistant) = match (prompt, completion) {
            (Text::Chat(prompt), Text::Chat(completion)) => {
                let with = Render { add_generation_prompt: true, ..Render::default() };
                let prompt_ids = self.chat(row, prompt, with, false)?.0;
                let whole: Vec<Message> = prompt.iter().chain(completion).cloned().collect();
                let mask = self.options.assistant_only_loss;
                let (input_ids, assistant) = self.chat(row, &whole, Render::default(), mask)?;
                (prompt_ids, input_ids, assistant)
            }
            (Text::Plain(prompt), Text::Plain(completion)) => {
                let whole = format!("{prompt}{}", self.with_eos(completion)?);
                (self.encode(row, prompt)?, self.encode(row, &whole)?, None)
            }
            _ => unreachable!("`Row::parse` refuses rows that mix text and messages"),
        };
        let boundary = prompt_ids.iter().zip(&input_ids).take_while(|(a, b)| a == b).count();
        let diverges = match prompt_ids.get(boundary..) {
            Some(rest) if !rest.is_empty() => Some(self.tokenizer.decode(rest, false)?),
            _ => None,
        };
        let completion = (0..input_ids.len()).map(|i| i >= boundary).collect();
        Ok(Tokens { input_ids, labels: None, completion: Some(completion), assistant, diverges })
    }

    /// Plain text ends with the eos text.
    pub(crate) fn with_eos(&self, text: &str) -> Result<String, DataError> {
        let eos = self.tokenizer.eos_token().ok_or(DataError::NoEos)?;
        Ok(if text.ends_with(eos) { text.to_owned() } else { format!("{text}{eos}") })
    }

    pub(crate) fn encode(&self, row: &Row, text: &str) -> Result<Vec<u32>, DataError> {
        let tokenise = |reason| DataError::Tokenise { place: row.place.clone(), reason };
        self.known(row, self.tokenizer.encode(text, true).map_err(tokenise)?)
    }

    /// A conversation as ids and, if asked for, which of them the assistant said.
    pub(crate) fn chat(
        &self,
        row: &Row,
        messages: &[Message],
        with: Render<'_>,
        mask: bool,
    ) -> Result<(Vec<u32>, Option<Vec<bool>>), DataError> {
        let (mut rendered, template) = self.rendered(row, messages, with)?;
        let tokenise = |reason| DataError::Tokenise { place: row.place.clone(), reason };
        if !mask {
            let ids = self.tokenizer.encode(&rendered.text, false).map_err(tokenise)?;
            return Ok((self.known(row, ids)?, None));
        }
        if !template.marks_generation() {
            let special = self.tokenizer.added_tokens();
            let beginning = |messages: &[Message], add_generation_prompt| {
                let with = Render { add_generation_prompt, ..with };
                self.rendered(row, messages, with).map(|(r, _)| r.text).map_err(|e| e.to_string())
            };
            rendered.generated =
                assistant_turns(messages, &rendered.text, (template.source(), &special), beginning).map_err(
                    |reason| {
                        let (place, name) = (row.place.clone(), template.name().to_owned());
                        DataError::NoAssistantTurns { place, name, reason }
                    },
                )?;
        }
        let encoding = self.tokenizer.encode_offsets(&rendered.text, false).map_err(tokenise)?;
        let mut assistant = vec![false; encoding.len()];
        for span in &rendered.generated {
            let Some(start) = encoding.char_to_token(span.start, 0) else { break };
            let end = span.end.checked_sub(1).and_then(|last| encoding.char_to_token(last, 0));
            // As Transformers: an end that is no token's, or token 0, means the rest of the text.
            let end = end.filter(|&e| e != 0).map_or(assistant.len(), |e| e + 1);
            for said in assistant.iter_mut().take(end).skip(start) {
                *said = true;
            }
        }
        Ok((encoding.get_ids().to_vec(), Some(assistant)))
    }

    /// A conversation as its template writes it with the row's tools and variables.
    pub(crate) fn rendered(
        &self,
        row: &Row,
        messages: &[Message],
        with: Render<'_>,
    ) -> Result<(Rendered, &Template), DataError> {
        if let Some(key) = row.template_kwargs.keys().find(|k| RESERVED.contains(&k.as_str())) {
            return Err(DataError::TemplateArgument { place: row.place.clone(), key: key.clone() });
        }
        let mut variables = row.template_kwargs.clone();
        let (tools, documents) = (variables.remove("tools"), variables.remove("documents"));
        let tools = tools.as_ref().or(row.tools.as_ref());
        let with = Render { tools, documents: documents.as_ref(), variables: Some(&variables), ..with };
        let template = self.templates(row)?.pick(tools.is_some())?;
        Ok((template.render(messages, with, &row.place)?, template))
    }

    fn templates(&self, row: &Row) -> Result<&Templates, DataError> {
        self.templates.ok_or_else(|| DataError::NoTemplate { place: row.place.clone() })
    }

    /// Tokens of a text, which the model has to have.
    fn known(&self, row: &Row, ids: Vec<u32>) -> Result<Vec<u32>, DataError> {
        let vocab = self.options.vocab_size.unwrap_or(i32::MAX as usize);
        match ids.iter().find(|&&id| id as usize >= vocab) {
            None => Ok(ids),
            Some(&id) => Err(DataError::TokenBeyond { place: row.place.clone(), id, vocab }),
        }
    }

    fn check_range(&self, row: &Row, ids: &[u32]) -> Result<(), DataError> {
        let vocab = self.options.vocab_size.unwrap_or(i32::MAX as usize);
        match ids.iter().position(|&id| id as usize >= vocab) {
            None => Ok(()),
            Some(index) => {
                let id = u64::from(ids[index]);
                Err(DataError::TokenRange { place: row.place.clone(), index, id, vocab })
            }
        }
    }

    /// A token is learned where every mask that applies says so; given labels are taken as they are.
    fn labelled(&self, tokens: Tokens, completion_only: bool) -> Example {
        let Tokens { input_ids, labels, completion, assistant, .. } = tokens;
        let labels = labels.unwrap_or_else(|| {
            let completion = completion.filter(|_| completion_only);
            let masks: Vec<&Vec<bool>> = completion.iter().chain(&assistant).collect();
            let learned = |i: usize| masks.iter().all(|m| m.get(i).copied().unwrap_or(false));
            input_ids
                .iter()
                .enumerate()
                .map(|(i, &id)| if learned(i) { label(id) } else { IGNORED })
                .collect()
        });
        Example::new(input_ids, labels)
    }

    /// Cuts to `max_length` and drops rows without a learned token; with packing, packing cuts.
    fn truncated(&self, mut example: Example, statistics: &mut Statistics) -> Option<Example> {
        statistics.longest = statistics.longest.max(example.len());
        let Some(max_length) = self.options.max_length else { return Some(example) };
        let lost = example.len().saturating_sub(max_length);
        let cuts = self.options.packing.is_none_or(|s| s == Strategy::Bfd);
        if lost > 0 && cuts {
            statistics.truncated += 1;
            statistics.tokens_lost += lost;
        }
        if self.options.packing.is_some() {
            return Some(example);
        }
        match self.options.truncation {
            Truncation::KeepStart => {
                example.input_ids.truncate(max_length);
                example.labels.truncate(max_length);
            }
            Truncation::KeepEnd => {
                example.input_ids.drain(..lost);
                example.labels.drain(..lost);
            }
        }
        if example.trained() == 0 {
            statistics.dropped += 1;
            return None;
        }
        Some(example)
    }

    fn finish(&self, examples: &[Example], statistics: &mut Statistics) -> Result<(), DataError> {
        for example in examples {
            statistics.tokens += example.len();
            statistics.trained += example.trained();
        }
        statistics.examples = examples.len();
        if statistics.trained > 0 {
            return Ok(());
        }
        let rows = statistics.rows;
        Err(match self.options.max_length {
            Some(max_length) if statistics.truncated > 0 => DataError::AllDropped { rows, max_length },
            _ => DataError::NothingTrained { rows },
        })
    }
}

#[cfg(test)]
mod tests;
