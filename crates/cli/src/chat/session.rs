//! A conversation with one of several models, and what is shown of it.

use std::io::{IsTerminal as _, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Context;
use burnish_data::{Content, Message, Record, Row, RowOrigin, Source, Text, TextStream};
use burnish_models::{Conversation, Decoder, Generation};
use burnish_report::harmless;
use burnish_trainers::{Prepared, TrainError};
use serde_json::{Map, Value, json};

use super::BASE;
use super::command::{Command, HELP};

use crate::refusal::{refusal, refuse};

/// The space between two answers.
const BETWEEN: usize = 3;

/// A model and what it has read.
struct Side<'a> {
    name: &'a str,
    conversation: Conversation<'a>,
}

/// A conversation in progress.
pub(super) struct Session<'a> {
    rows: &'a Prepared,
    sides: Vec<Side<'a>>,
    /// Which of them answers.
    active: usize,
    /// Whether the base answers too.
    compared: bool,
    settings: Generation,
    skip_special_tokens: bool,
    pub(super) system: Option<String>,
    pub(super) tools: Option<Value>,
    /// The turns, without the system's.
    messages: Vec<Message>,
    stop: &'a AtomicBool,
}

impl<'a> Session<'a> {
    /// With the last of `models`, which begin with the base.
    pub(super) fn new(
        models: &'a [(String, Decoder)],
        rows: &'a Prepared,
        settings: Generation,
        skip_special_tokens: bool,
        stop: &'a AtomicBool,
    ) -> Self {
        let side =
            |(name, decoder): &'a (String, Decoder)| Side { name, conversation: Conversation::new(decoder) };
        Self {
            rows,
            sides: models.iter().map(side).collect(),
            active: models.len().saturating_sub(1),
            compared: false,
            settings,
            skip_special_tokens,
            system: None,
            tools: None,
            messages: Vec::new(),
            stop,
        }
    }

    /// What is said first.
    pub(super) fn greeting(&self, model: &str) -> String {
        let with = match self.sides[self.active].name {
            BASE => String::new(),
            adapter => format!(" with {adapter}"),
        };
        let how = match &self.rows.templates {
            Some(_) => "",
            None => "\nit has no chat template: what you write is continued as it stands",
        };
        format!("{model}{with}; /help says what there is, Ctrl-C stops an answer, Ctrl-D leaves{how}")
    }

    /// The user's turn, and the answer.
    pub(super) fn say(&mut self, text: &str) -> anyhow::Result<()> {
        // Two slashes are one that is said.
        let text = text.strip_prefix('/').filter(|rest| rest.starts_with('/')).unwrap_or(text);
        self.messages.push(message("user", text));
        let answered = self.answer();
        if answered.is_err() {
            self.messages.pop();
        }
        answered
    }

    pub(super) fn command(&mut self, command: Command) -> anyhow::Result<()> {
        match command {
            Command::Help => crate::voice::say(HELP),
            Command::Exit => {}
            Command::Reset => self.messages.clear(),
            Command::Undo => self.undo(),
            Command::Retry => {
                while self.messages.last().is_some_and(|m| m["role"] != "user") {
                    self.messages.pop();
                }
                if self.messages.is_empty() {
                    refuse!(EmptyText, "nothing has been asked yet");
                }
                // The same draws would give the same answer.
                self.settings.sampling.seed = self.settings.sampling.seed.wrapping_add(1);
                self.answer()?;
            }
            Command::System(text) => self.system = text,
            Command::Adapter(None) => crate::voice::say(self.names()),
            Command::Adapter(Some(name)) => {
                let place = self.sides.iter().position(|side| side.name == name);
                self.active = place
                    .ok_or_else(|| refusal!(BadValue, "there is no `{name}`; there is {}", self.names()))?;
            }
            Command::Compare(on) => {
                if on && self.sides.len() == 1 {
                    refuse!(
                        MissingOption,
                        "there is no adapter to compare: start with --adapter_name_or_path or --lora_modules"
                    );
                }
                self.compared = on;
            }
            Command::Set(None) => crate::voice::say(self.told_settings()),
            Command::Set(Some((name, value))) => set(&mut self.settings, &name, &value)?,
            Command::Prompt => {
                let ids = self.prompt()?;
                crate::voice::result(self.rows.tokenizer.decode(&ids, false)?)?;
                crate::voice::say(format_args!("{} tokens: {ids:?}", ids.len()));
            }
            Command::Save(path) => self.save(&path)?,
            Command::Load(path) => self.load(&path)?,
        }
        Ok(())
    }

    fn undo(&mut self) {
        while self.messages.pop().is_some_and(|m| m["role"] != "user") {}
    }

    fn names(&self) -> String {
        let names = self.sides.iter().enumerate().map(|(i, side)| {
            if i == self.active { format!("{} (active)", side.name) } else { side.name.to_owned() }
        });
        names.collect::<Vec<_>>().join(", ")
    }

    fn told_settings(&self) -> String {
        let Generation { max_new_tokens, sampling: s, .. } = &self.settings;
        format!(
            "do_sample {}, temperature {}, top_k {}, top_p {}, min_p {}, repetition_penalty {}, max_new_tokens {max_new_tokens}, seed {}",
            s.do_sample,
            s.temperature,
            s.top_k,
            s.top_p,
            s.min_p.unwrap_or(0.0),
            s.repetition_penalty,
            s.seed
        )
    }

    /// The conversation as a row has it.
    fn turns(&self) -> Vec<Message> {
        let system = self.system.iter().map(|text| message("system", text));
        system.chain(self.messages.iter().cloned()).collect()
    }

    /// The tokens that the next answer starts from.
    fn prompt(&self) -> anyhow::Result<Vec<u32>> {
        let prompt = match &self.rows.templates {
            Some(_) => Value::from(self.turns().into_iter().map(Value::Object).collect::<Vec<_>>()),
            None => {
                let text = |m: &Message| m["content"].as_str().unwrap_or_default().to_owned();
                Value::from(self.messages.iter().map(text).collect::<String>())
            }
        };
        let mut fields = Map::from_iter([("prompt".to_owned(), prompt)]);
        if let Some(tools) = &self.tools {
            fields.insert("tools".to_owned(), tools.clone());
        }
        let row = Row::parse(Record { place: RowOrigin::given("the conversation"), fields }, "text")?;
        Ok(self.rows.preparer().prompt(&row)?)
    }

    fn answer(&mut self) -> anyhow::Result<()> {
        let prompt = self.prompt()?;
        if !self.compared || self.active == 0 {
            let text = self.reply(self.active, &prompt, true)?;
            self.messages.push(message("assistant", &text));
            return Ok(());
        }
        let (base, own) = (self.reply(0, &prompt, false)?, self.reply(self.active, &prompt, false)?);
        let width = usize::from(console::Term::stdout().size().1);
        crate::voice::result(beside((BASE, &base), (self.sides[self.active].name, &own), width))?;
        self.messages.push(message("assistant", &own));
        Ok(())
    }

    /// One model's answer, shown as it comes if `shown`.
    fn reply(&mut self, side: usize, prompt: &[u32], shown: bool) -> anyhow::Result<String> {
        let (rows, stop, skip) = (self.rows, self.stop, self.skip_special_tokens);
        let began = Instant::now();
        let terminal = std::io::stdout().is_terminal();
        let show = |text: &str| {
            if !shown {
                return Ok(());
            }
            let mut out = std::io::stdout().lock();
            let text = if terminal { harmless(text) } else { text.into() };
            let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
            written.map_err(|source| TrainError::Lines { to: "standard output".to_owned(), source })
        };
        let (mut text, mut fault) = (String::new(), None);
        let mut stream = TextStream::new(skip);
        let conversation = &mut self.sides[side].conversation;
        let known = conversation.known().len();
        let known = if prompt.starts_with(conversation.known()) { known } else { 0 };
        let mut first = None;
        let completion = conversation.reply(prompt, &self.settings, &mut |token| {
            first.get_or_insert_with(Instant::now);
            let more = stream.push(&rows.tokenizer, token).map_err(TrainError::from);
            fault = more
                .and_then(|more| {
                    text.push_str(&more);
                    show(&more)
                })
                .err();
            fault.is_none() && !stop.load(Ordering::SeqCst)
        })?;
        if let Some(fault) = fault {
            return Err(fault.into());
        }
        let rest = stream.finish(&rows.tokenizer)?;
        show(&format!("{rest}\n"))?;
        text.push_str(&rest);
        if terminal && shown {
            let first = first.unwrap_or(began);
            let (tokens, seconds) = (completion.token_ids.len(), first.elapsed().as_secs_f64());
            let rate = if seconds > 0.0 { (tokens.saturating_sub(1)) as f64 / seconds } else { 0.0 };
            let stopped = if stop.load(Ordering::SeqCst) { ", stopped" } else { "" };
            let said = format!(
                "[{tokens} tokens, {rate:.0} a second, after {} of prompt in {:.2} s{stopped}]",
                prompt.len() - known,
                first.duration_since(began).as_secs_f64()
            );
            crate::voice::say_painted(console::style(said).for_stderr().dim());
        }
        Ok(text)
    }

    fn save(&self, path: &Path) -> anyhow::Result<()> {
        let mut row = json!({"messages": self.turns()});
        if let Some(tools) = &self.tools {
            row["tools"] = tools.clone();
        }
        let wrote = std::fs::File::options().create(true).append(true).open(path);
        let wrote = wrote.and_then(|mut file| file.write_all(format!("{row}\n").as_bytes()));
        wrote.with_context(|| format!("cannot write {}", path.display()))?;
        crate::voice::say(format_args!("added to {}", path.display()));
        Ok(())
    }

    /// The last row of a file.
    fn load(&mut self, path: &Path) -> anyhow::Result<()> {
        let name = path
            .to_str()
            .ok_or_else(|| refusal!(BadEnvironment, "{}: the file's name is not UTF-8", path.display()))?;
        let source = Source::train(name, "train")?;
        let Some(last) = source.records().last() else { refuse!(NoRows, "{name}: no rows") };
        let row = Row::parse(last?, "text")?;
        let Content::Language(Text::Chat(mut messages)) = row.content else {
            refuse!(WrongRows, "{name}: the last row has no `messages`")
        };
        let system = messages.first().filter(|m| m["role"] == "system").cloned();
        if system.is_some() {
            messages.remove(0);
        }
        self.system = system.and_then(|m| m["content"].as_str().map(str::to_owned));
        self.messages = messages;
        crate::voice::say(format_args!("{} turns", self.messages.len()));
        Ok(())
    }
}

fn message(role: &str, content: &str) -> Message {
    Map::from_iter([("role".to_owned(), role.into()), ("content".to_owned(), content.into())])
}

/// Changes one setting.
fn set(settings: &mut Generation, name: &str, value: &str) -> anyhow::Result<()> {
    let number = |fits: fn(f64) -> bool, expected: &str| match value.parse::<f64>() {
        Ok(number) if fits(number) => Ok(number as f32),
        _ => refuse!(BadValue, "{name} is {value}; it has to be {expected}"),
    };
    let whole = || {
        value.parse::<u64>().map_err(|_| refusal!(BadValue, "{name} is {value}; it has to be a whole number"))
    };
    let sampling = &mut settings.sampling;
    match name {
        "temperature" => {
            let temperature =
                number(|t| (0.0..=100.0).contains(&t), "a number from 0 to 100; 0 takes the likeliest")?;
            sampling.do_sample = temperature > 0.0;
            sampling.temperature = if temperature > 0.0 { temperature } else { 1.0 };
        }
        "top_p" => sampling.top_p = number(|p| p > 0.0 && p <= 1.0, "a number above 0 and at most 1")?,
        "min_p" => sampling.min_p = Some(number(|p| (0.0..=1.0).contains(&p), "a number from 0 to 1")?),
        "repetition_penalty" => {
            sampling.repetition_penalty = number(|p| p > 0.0 && p <= 100.0, "a number above 0")?
        }
        "top_k" => sampling.top_k = usize::try_from(whole()?).unwrap_or(0),
        "seed" => sampling.seed = whole()?,
        "max_new_tokens" => {
            let most = usize::try_from(whole()?).unwrap_or(usize::MAX);
            settings.max_new_tokens = most.max(1);
            settings.min_new_tokens = settings.min_new_tokens.min(most);
        }
        "do_sample" => {
            sampling.do_sample = value
                .parse()
                .map_err(|_| refusal!(BadValue, "do_sample is {value}; it has to be true or false"))?;
        }
        other => refuse!(UnknownOption, "there is no setting `{other}`; /help says what there is"),
    }
    Ok(())
}

/// Two texts in columns, each under its name.
fn beside((left, a): (&str, &str), (right, b): (&str, &str), width: usize) -> String {
    let column = width.saturating_sub(BETWEEN).max(20) / 2;
    let lines = |name: &str, text: &str| {
        let mut lines = vec![name.to_owned(), "-".repeat(console::measure_text_width(name))];
        lines.extend(text.lines().flat_map(|line| wrapped(line, column)));
        lines
    };
    let (a, b) = (lines(left, a), lines(right, b));
    let empty = String::new();
    let line = |i: usize| {
        let (a, b) = (a.get(i).unwrap_or(&empty), b.get(i).unwrap_or(&empty));
        let room = column + BETWEEN - console::measure_text_width(a).min(column);
        format!("{a}{}{b}", " ".repeat(room)).trim_end().to_owned()
    };
    (0..a.len().max(b.len())).map(line).collect::<Vec<_>>().join("\n")
}

/// A line in pieces of at most `width` columns, cut between words where there are any.
fn wrapped(line: &str, width: usize) -> Vec<String> {
    let (mut lines, mut current) = (Vec::new(), String::new());
    for word in harmless(line).split_inclusive(' ') {
        for piece in broken(word, width) {
            let wide = console::measure_text_width(&current) + console::measure_text_width(piece.trim_end());
            if wide > width && !current.is_empty() {
                lines.push(std::mem::take(&mut current).trim_end().to_owned());
            }
            current.push_str(&piece);
        }
    }
    lines.push(current.trim_end().to_owned());
    lines
}

/// A word in pieces that fit.
fn broken(word: &str, width: usize) -> Vec<String> {
    let (mut pieces, mut piece) = (Vec::new(), String::new());
    for character in word.chars() {
        let mut longer = piece.clone();
        longer.push(character);
        if console::measure_text_width(longer.trim_end()) > width && !piece.is_empty() {
            pieces.push(std::mem::replace(&mut piece, character.to_string()));
        } else {
            piece = longer;
        }
    }
    pieces.push(piece);
    pieces
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn two_answers_stand_beside_each_other() {
        let text = beside(("base", "one two three four"), ("pirate", "arr\nmatey"), 27);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            ["base           pirate", "----           ------", "one two        arr", "three four     matey"]
        );
        assert_eq!(wrapped("abcdefghij", 4), ["abcd", "efgh", "ij"]);
        assert_eq!(wrapped("", 4), [""]);
        assert_eq!(wrapped("東京東京", 4), ["東京", "東京"]);
    }

    #[test]
    fn settings_are_checked() {
        let mut settings = Generation::default();
        set(&mut settings, "temperature", "0.5").unwrap();
        assert!(settings.sampling.do_sample && settings.sampling.temperature == 0.5);
        set(&mut settings, "temperature", "0").unwrap();
        assert!(!settings.sampling.do_sample);
        for (name, value) in
            [("temperature", "-1"), ("top_p", "nan"), ("top_k", "x"), ("warmth", "1"), ("do_sample", "1")]
        {
            assert!(set(&mut settings, name, value).is_err(), "{name} {value}");
        }
    }
}
