//! Preflight checks of a data set: findings with their mends, before a run is spent on it.

use crate::preference::Prepared;
use crate::prepare::{Dataset, Options};
use crate::row::Message;
use crate::row_origin::RowOrigin;
use crate::statistics::Statistics;
use crate::template::{Render, Template, Templates};
use crate::token_checks::{Texts, TokenChecks};
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
    /// Columns that are Alpaca's.
    AlpacaColumns,
    /// Rows longer than the model was made for.
    BeyondModelLength,
    /// Pairs whose answers are the same.
    IdenticalAnswers,
    /// Answers of no text.
    BlankAnswers,
    /// Answers that begin with their prompt once more.
    PromptRepeated,
    /// All answers are desirable, or none is.
    OneSided,
    /// The weights of desirable and undesirable answers do not balance their numbers.
    Unbalanced,
    /// Rows that begin with the token of the beginning twice.
    DoubledBos,
    /// Rows that begin without the token that the tokenizer puts before plain text.
    NoBos,
    /// Rows of which what is learned ends without a token that ends generation.
    EndNotLearned,
    /// Rows that came before.
    Repeated,
    /// Rows to evaluate on that are trained on.
    EvaluatedRowsTrained,
    /// Rows without the tokens that an adapter waits for.
    NotInvoked,
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
    let s = &dataset.statistics;
    let mut findings = Findings::default();
    findings.conversations(s, tokenizer, templates, options.assistant_only_loss);
    findings.prompts(s);
    if s.masked_share() > 0.95 {
        findings.add(
            Concern::MostlyMasked,
            format!(
                "{:.1} % of the tokens are masked, only {} are learned",
                100.0 * s.masked_share(),
                s.trained
            ),
            "check `completion_only_loss`, `assistant_only_loss` and whether prompts are much longer than answers",
        );
    }
    findings.lengths(s, tokenizer, options, s.rows, "none of their first `max_length` tokens is learned");
    if options.packing.is_none() {
        findings.tokens(&TokenChecks::of_examples(tokenizer, &dataset.examples, options.max_length));
    }
    findings.0
}

/// Looks over a data set of pairs, unpaired answers or prompts.
#[must_use]
pub fn preflight_prepared<T: Texts>(
    data: &Prepared<T>,
    tokenizer: &Tokenizer,
    templates: Option<&Templates>,
    options: &Options,
) -> Vec<Finding> {
    let s = &data.statistics;
    let mut findings = Findings::default();
    findings.conversations(s, tokenizer, templates, false);
    findings.prompts(s);
    let first = |place: &Option<RowOrigin>| place.as_ref().map(RowOrigin::to_string).unwrap_or_default();
    if s.identical > 0 {
        findings.add(
            Concern::IdenticalAnswers,
            format!(
                "in {} of {} pairs `chosen` and `rejected` are the same tokens (first: {})",
                s.identical,
                s.rows,
                first(&s.identical_at)
            ),
            "drop them: they only teach by chance",
        );
    }
    if s.blank > 0 {
        findings.add(
            Concern::BlankAnswers,
            format!(
                "{} of {} rows have an answer of no text (first: {})",
                s.blank,
                s.rows,
                first(&s.blank_at)
            ),
            "drop them, unless the model is to learn to say nothing",
        );
    }
    if s.repeated > 0 {
        findings.add(
            Concern::PromptRepeated,
            format!(
                "in {} of {} rows `chosen` and `rejected` begin with the whole `prompt`, which then comes twice \
                 (first: {})",
                s.repeated,
                s.rows,
                first(&s.repeated_at)
            ),
            "remove the `prompt` column, or the prompt from the answers",
        );
    }
    findings.lengths(
        s,
        tokenizer,
        options,
        s.examples + s.dropped,
        "their prompt (of a reward model: one of their texts) alone fills `max_length`",
    );
    findings.tokens(&TokenChecks::of_texts(tokenizer, &data.examples));
    findings.0
}

/// Whether the weights of desirable and undesirable answers balance their numbers: the ratio of the weighted numbers
/// is to be between 1 and 4/3 (Ethayarajh et al., KTO, equation 8). `None` when it is, or when the numbers are equal.
#[must_use]
pub fn preflight_weights(
    statistics: &Statistics,
    desirable_weight: f64,
    undesirable_weight: f64,
) -> Option<Finding> {
    let (desirable, all) = (statistics.desirable, statistics.examples);
    let undesirable = all.saturating_sub(desirable);
    if desirable == 0 || undesirable == 0 {
        return Some(Finding {
            concern: Concern::OneSided,
            message: format!("{desirable} of {all} answers are desirable"),
            mend: "give answers of both kinds: `label` true and false".to_owned(),
        });
    }
    if desirable == undesirable {
        return None;
    }
    let round = |x: f64| (x * 100.0).round() / 100.0;
    let ratio = undesirable as f64 / desirable as f64;
    let (low, high) = (round(ratio * undesirable_weight), round(ratio * undesirable_weight * 1.33));
    let (least, most) = (round(desirable_weight / ratio / 1.33), round(desirable_weight / ratio));
    let balanced = (low..=high).contains(&desirable_weight) || (least..=most).contains(&undesirable_weight);
    (!balanced).then(|| Finding {
        concern: Concern::Unbalanced,
        message: format!(
            "{desirable} answers are desirable (weight {desirable_weight}) and {undesirable} are not (weight \
             {undesirable_weight})"
        ),
        mend: format!(
            "set `desirable_weight` between {low} and {high} or `undesirable_weight` between {least} and {most}, not both"
        ),
    })
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, concern: Concern, message: String, mend: &str) {
        self.0.push(Finding { concern, message, mend: mend.to_owned() });
    }

    /// What the tokens of all rows show, unless the template has been found to be the cause.
    fn tokens(&mut self, checks: &TokenChecks<'_>) {
        let template = [Concern::NoStopToken, Concern::StopTokenNotTrained];
        let never_ends = self.0.iter().any(|finding| template.contains(&finding.concern));
        let known = |finding: &Finding| never_ends && finding.concern == Concern::EndNotLearned;
        self.0.extend(checks.findings().into_iter().filter(|finding| !known(finding)));
    }

    /// What concerns the chat template.
    fn conversations(
        &mut self,
        s: &Statistics,
        tokenizer: &Tokenizer,
        templates: Option<&Templates>,
        assistant_only: bool,
    ) {
        if s.roles.is_empty() {
            return;
        }
        let Some(template) = templates.and_then(|t| t.pick(false).ok()) else { return };
        if assistant_only {
            if stop_token_masked(template, tokenizer) == Some(false) {
                self.add(
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
            self.add(
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
            self.add(
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
            self.add(
                Concern::ForeignRoles,
                format!("roles {} are passed to the chat template as they are", foreign.join(", ")),
                "rename them to `user` and `assistant` unless the template knows them",
            );
        }
    }

    /// What concerns the boundary between prompts and completions.
    fn prompts(&mut self, s: &Statistics) {
        if s.alpaca > 0 {
            self.add(
                Concern::AlpacaColumns,
                "columns `instruction`, `input` and `output` are read as the user's turn and the assistant's"
                    .to_owned(),
                "write `prompt` and `completion` if another text is meant",
            );
        }
        if s.diverging > 0 {
            self.add(
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
    }

    /// What concerns `max_length`; `all` is what the dropped are counted among, `why` why they are.
    fn lengths(&mut self, s: &Statistics, tokenizer: &Tokenizer, options: &Options, all: usize, why: &str) {
        if s.lost_share() > 0.01 {
            let max_length = options.max_length.unwrap_or(0);
            self.add(
                Concern::Truncated,
                format!(
                    "{} of {all} rows are longer than `max_length` {max_length}: {:.1} % of the tokens are cut off \
                     (longest row: {})",
                    s.truncated,
                    100.0 * s.lost_share(),
                    s.longest
                ),
                "raise `max_length`; a row that is cut does not teach where to stop",
            );
        }
        if s.dropped > 0 {
            self.add(
                Concern::Dropped,
                format!("{} of {all} rows are dropped: {why}", s.dropped),
                "raise `max_length` or shorten the prompts",
            );
        }
        let used = options.max_length.map_or(s.longest, |m| m.min(s.longest));
        if let Some(limit) = tokenizer.model_max_length().filter(|&limit| used > limit) {
            self.add(
                Concern::BeyondModelLength,
                format!("rows of {used} tokens are longer than the tokenizer's `model_max_length` {limit}"),
                "lower `max_length`",
            );
        }
    }
}

/// Whether the tokens of an assistant's turn contain one that ends generation; `None` when the template refuses the
/// probe.
#[must_use]
pub fn writes_stop_token(template: &Template, tokenizer: &Tokenizer) -> Option<bool> {
    let [user, assistant, _] = probe();
    let header = Render { add_generation_prompt: true, ..Render::default() };
    let place = RowOrigin::given("probe");
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
    let rendered = template.render(&probe(), Render::default(), &RowOrigin::given("probe")).ok()?;
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
    let place = RowOrigin::given("probe");
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
