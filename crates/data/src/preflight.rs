//! What is likely wrong with a data set before a run is spent on it, as findings with their mends.

use crate::place::Place;
use crate::prepare::{Dataset, Options};
use crate::row::Message;
use crate::template::{Render, Template, Templates};
use crate::tokenizer::Tokenizer;

/// The kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Concern {
    /// The template never writes a token that ends generation after the assistant's turn.
    NoStopToken,
    /// The token that ends the assistant's turn lies outside the learned spans.
    StopTokenNotTrained,
    /// The prompt alone does not tokenise as the start of prompt and completion.
    PromptDiverges,
    /// Earlier turns render differently once later ones follow.
    NotPrefixPreserving,
    /// Almost nothing is learned.
    MostlyMasked,
    /// Many tokens are cut off.
    Truncated,
    /// Rows were dropped.
    Dropped,
    /// Roles that the chat template does not know by that name.
    ForeignRoles,
    /// Rows longer than the model was made for.
    BeyondModelLength,
}

/// A finding: what was seen and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its kind.
    pub concern: Concern,
    /// What was seen.
    pub message: String,
    /// What to do.
    pub mend: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.message, self.mend)
    }
}

/// Looks a prepared data set over.
#[must_use]
pub fn preflight(
    dataset: &Dataset,
    tokenizer: &Tokenizer,
    templates: Option<&Templates>,
    options: &Options,
) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut found = |concern, message: String, mend: &str| {
        findings.push(Finding { concern, message, mend: mend.to_owned() });
    };
    let s = &dataset.statistics;
    let chat = !s.roles.is_empty();
    if chat && let Some(template) = templates.and_then(|t| t.pick(false).ok()) {
        if options.assistant_only_loss {
            if stop_token_masked(template, tokenizer) == Some(false) {
                found(
                    Concern::StopTokenNotTrained,
                    format!(
                        "the end-of-turn token lies outside {{% generation %}} in `{}`: the model does not learn to stop",
                        template.name()
                    ),
                    "move {% endgeneration %} behind the end-of-turn token",
                );
            }
        } else if writes_stop_token(template, tokenizer) == Some(false) {
            let stops: Vec<String> =
                tokenizer.stop_ids().iter().filter_map(|&id| tokenizer.token(id)).collect();
            found(
                Concern::NoStopToken,
                format!(
                    "chat template `{}` writes none of the stop tokens ({}) after the assistant's turn: the model does \
                     not learn to stop",
                    template.name(),
                    if stops.is_empty() { "none is set".to_owned() } else { stops.join(", ") }
                ),
                "set `eos_token` to the template's end-of-turn token, or have the template write the eos token",
            );
        }
        if prefix_preserving(template) == Some(false) {
            found(
                Concern::NotPrefixPreserving,
                format!(
                    "chat template `{}` renders earlier turns differently once later ones follow",
                    template.name()
                ),
                "the model sees another context when it is used turn by turn; use a template that does not",
            );
        }
        let foreign: Vec<&str> = s
            .roles
            .keys()
            .map(String::as_str)
            .filter(|r| ["human", "gpt", "bing", "chatgpt"].contains(r))
            .collect();
        if !foreign.is_empty() {
            found(
                Concern::ForeignRoles,
                format!("roles {} are passed to the chat template as they are", foreign.join(", ")),
                "rename them to `user` and `assistant` unless the template knows them",
            );
        }
    }
    if s.diverging > 0 {
        found(
            Concern::PromptDiverges,
            format!(
                "in {} of {} rows the prompt alone does not tokenise as the start of prompt and completion (first: {:?})",
                s.diverging,
                s.rows,
                s.diverging_text.as_deref().unwrap_or_default()
            ),
            "end prompts on a token boundary (a newline rather than a space) or use a template that renders both alike",
        );
    }
    if s.masked_share() > 0.95 {
        found(
            Concern::MostlyMasked,
            format!(
                "{:.1} % of the tokens are masked, only {} are learned",
                100.0 * s.masked_share(),
                s.trained
            ),
            "check `completion_only_loss`, `assistant_only_loss` and whether prompts are much longer than answers",
        );
    }
    if s.lost_share() > 0.01 {
        let max_length = options.max_length.unwrap_or(0);
        found(
            Concern::Truncated,
            format!(
                "{} of {} rows are longer than `max_length` {max_length}: {:.1} % of the tokens are cut off (longest row: {})",
                s.truncated,
                s.rows,
                100.0 * s.lost_share(),
                s.longest
            ),
            "raise `max_length`; a row that is cut does not teach where to stop",
        );
    }
    if s.dropped > 0 {
        found(
            Concern::Dropped,
            format!(
                "{} of {} rows are dropped: none of their first `max_length` tokens is learned",
                s.dropped, s.rows
            ),
            "raise `max_length` or shorten the prompts",
        );
    }
    let used = options.max_length.map_or(s.longest, |m| m.min(s.longest));
    if let Some(limit) = tokenizer.model_max_length().filter(|&limit| used > limit) {
        found(
            Concern::BeyondModelLength,
            format!("rows of {used} tokens are longer than the tokenizer's `model_max_length` {limit}"),
            "lower `max_length`",
        );
    }
    findings
}

/// Whether the tokens of an assistant's turn contain one that ends generation; `None` when the template refuses the
/// probe.
#[must_use]
pub fn writes_stop_token(template: &Template, tokenizer: &Tokenizer) -> Option<bool> {
    let [user, assistant, _] = probe();
    let header = Render { add_generation_prompt: true, ..Render::default() };
    let place = Place::given("probe");
    let prompt = template.render(std::slice::from_ref(&user), header, &place).ok()?.text;
    let whole = template.render(&[user, assistant], Render::default(), &place).ok()?.text;
    let (prompt, whole) = (tokenizer.encode(&prompt, false).ok()?, tokenizer.encode(&whole, false).ok()?);
    let common = prompt.iter().zip(&whole).take_while(|(a, b)| a == b).count();
    Some(whole[common..].iter().any(|id| tokenizer.stop_ids().contains(id)))
}

/// Whether the learned span of an assistant's turn ends on an added token rather than on content, ignoring white
/// space; `None` when the template refuses the probe.
#[must_use]
pub fn stop_token_masked(template: &Template, tokenizer: &Tokenizer) -> Option<bool> {
    let rendered = template.render(&probe(), Render::default(), &Place::given("probe")).ok()?;
    let encoding = tokenizer.encode_offsets(&rendered.text, false).ok()?;
    let learned = |at: (usize, usize)| rendered.generated.iter().any(|s| at.0 < s.end && at.1 > s.start);
    let ids = encoding.get_ids().iter().zip(encoding.get_offsets()).filter(|(_, o)| learned(**o));
    let last = ids
        .map(|(id, _)| *id)
        .rfind(|&id| tokenizer.decode(&[id], false).is_ok_and(|t| !t.trim().is_empty()));
    Some(last.is_some_and(|id| tokenizer.is_added(id)))
}

/// Whether a conversation renders as the start of the same conversation continued; `None` when the template refuses
/// the probe.
#[must_use]
pub fn prefix_preserving(template: &Template) -> Option<bool> {
    let [user, assistant, again] = probe();
    let place = Place::given("probe");
    let short = template.render(&[user.clone(), assistant.clone()], Render::default(), &place).ok()?.text;
    let messages = [user, assistant.clone(), again, assistant];
    let long = template.render(&messages, Render::default(), &place).ok()?.text;
    Some(long.starts_with(&short))
}

fn probe() -> [Message; 3] {
    let message = |role: &str| {
        let mut message = Message::new();
        message.insert("role".to_owned(), role.into());
        message.insert("content".to_owned(), "dummy".into());
        message
    };
    [message("user"), message("assistant"), message("user")]
}

#[cfg(test)]
mod tests;
