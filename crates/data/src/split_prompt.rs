//! The boundary between prompt and completion in tokens, as TRL 1.16's `DPOTrainer` and `KTOTrainer` split them.

use crate::error::DataError;
use crate::prepare::Preparer;
use crate::row::{Message, Row, Text};
use crate::template::Render;

/// Characters of context on each side of a divergence in a message.
const CONTEXT: usize = 40;

/// A prompt with the completions that may follow it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Split {
    /// What the tokens of the prompt alone and of prompt and completion have in common, over all completions.
    pub(crate) prompt: Vec<u32>,
    /// The rest of prompt and completion.
    pub(crate) completions: Vec<Vec<u32>>,
    /// The end of the prompt alone that is in none of the above, as text.
    pub(crate) diverges: Option<String>,
}

impl Preparer<'_> {
    /// Tokenises a prompt alone and with each of its completions (with their columns' names) and splits where they
    /// part. Plain completions end with the eos text; a conversation's prompt ends with the header of an assistant
    /// turn.
    pub(crate) fn split(
        &self,
        row: &Row,
        prompt: &Text,
        completions: &[(&'static str, &Text)],
    ) -> Result<Split, DataError> {
        let mut wholes = Vec::with_capacity(completions.len());
        let prompt_ids = match prompt {
            Text::Plain(prompt) => {
                for (_, completion) in completions {
                    let Text::Plain(completion) = completion else { unreachable!("{MIXED}") };
                    let whole = format!("{prompt}{}", self.with_eos(completion)?);
                    wholes.push(self.encode(row, &whole)?);
                }
                self.encode(row, prompt)?
            }
            Text::Chat(prompt) => {
                let header = Render { add_generation_prompt: true, ..Render::default() };
                let alone = self.rendered(row, prompt, header)?.0.text;
                for (column, completion) in completions {
                    let Text::Chat(completion) = completion else { unreachable!("{MIXED}") };
                    let whole: Vec<Message> = prompt.iter().chain(completion.iter()).cloned().collect();
                    let together = self.rendered(row, &whole, Render::default())?.0.text;
                    if !self.options.allow_diverging_prompts {
                        // The header is the prompt's only where the assistant is next to speak.
                        let next = completion.first().and_then(|m| m.get("role"));
                        if next.is_some_and(|role| role == "assistant") {
                            starts(row, column, &alone, &together)?;
                        } else {
                            let bare = self.rendered(row, prompt, Render::default())?.0.text;
                            starts(row, column, &bare, &together)?;
                        }
                    }
                    wholes.push(self.encode_rendered(row, &together)?);
                }
                self.encode_rendered(row, &alone)?
            }
        };
        let shared = wholes.iter().map(|whole| common(&prompt_ids, whole)).min().unwrap_or(prompt_ids.len());
        let diverges = match &prompt_ids[shared..] {
            [] => None,
            rest => Some(self.tokenizer.decode(rest, false)?),
        };
        for ((column, _), whole) in completions.iter().zip(&wholes) {
            if whole.len() <= shared {
                return Err(DataError::EmptyCompletion { place: row.place.clone(), column });
            }
        }
        let completions = wholes.into_iter().map(|mut whole| whole.split_off(shared)).collect();
        Ok(Split { prompt: prompt_ids[..shared].to_vec(), completions, diverges })
    }

    /// A rendered conversation as ids: the template writes the special tokens.
    pub(crate) fn encode_rendered(&self, row: &Row, text: &str) -> Result<Vec<u32>, DataError> {
        let tokenise = |reason| DataError::Tokenise { place: row.place.clone(), reason };
        self.tokenizer.encode(text, false).map_err(tokenise)
    }
}

const MIXED: &str = "`Row::parse` refuses rows that mix text and messages";

fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Fails unless `together` starts with `alone`, showing where they part.
fn starts(row: &Row, column: &'static str, alone: &str, together: &str) -> Result<(), DataError> {
    if together.starts_with(alone) {
        return Ok(());
    }
    let shared: Vec<char> =
        alone.chars().zip(together.chars()).take_while(|(a, b)| a == b).map(|c| c.0).collect();
    let ahead = |text: &str| text.chars().skip(shared.len()).take(CONTEXT).collect();
    Err(DataError::PromptDiverges {
        place: row.place.clone(),
        column,
        alone: ahead(alone),
        together: ahead(together),
        shared: shared[shared.len().saturating_sub(CONTEXT)..].iter().collect(),
    })
}
