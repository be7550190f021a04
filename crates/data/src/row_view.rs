//! `RowView`: the tokens of a row as a trainer sees them, with what is learned of them and what is cut off.

use std::ops::Range;
use std::sync::OnceLock;

use crate::error::DataError;
use crate::example::{Example, IGNORED};
use crate::pack::Strategy;
use crate::prepare::{Preparer, Truncation};
use crate::row::{Row, RowKind, Text};
use crate::row_origin::RowOrigin;
use crate::source::Record;
use crate::tokenize;
use crate::unpaired::UnpairedExample;

/// What a trainer makes of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RowUse {
    /// One text, of which some tokens are learned.
    Supervised,
    /// A prompt with a better and a worse answer.
    Preference {
        /// Whether the prompt of the better answer is learned too (ORPO).
        prompts: bool,
    },
    /// Two whole texts that are scored.
    RewardPair,
    /// A prompt with an answer that is desirable or not.
    Unpaired {
        /// The weight of desirable answers.
        desirable_weight: f64,
        /// The weight of the others.
        undesirable_weight: f64,
    },
    /// A prompt that completions are sampled for.
    Prompt,
}

/// One text of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextView {
    /// What it is: `text`, `chosen`, `rejected`, `desirable`, `undesirable` or `prompt`.
    pub name: &'static str,
    /// Token ids, before truncation.
    pub ids: Vec<u32>,
    /// Which of them are learned (of a reward model: scored).
    pub learned: Vec<bool>,
    /// Those that `max_length` leaves; empty where the row is dropped.
    pub kept: Range<usize>,
}

impl TextView {
    fn whole(name: &'static str, ids: Vec<u32>, learned: bool) -> Self {
        Self { name, learned: vec![learned; ids.len()], kept: 0..ids.len(), ids }
    }

    fn answer(name: &'static str, prompt: &[u32], answer: &[u32], prompt_too: bool) -> Self {
        let ids: Vec<u32> = prompt.iter().chain(answer).copied().collect();
        let learned = (0..ids.len()).map(|at| prompt_too || at >= prompt.len()).collect();
        Self { name, kept: 0..ids.len(), ids, learned }
    }

    /// Whether a token that is kept is learned.
    #[must_use]
    pub fn is_learned(&self) -> bool {
        self.learned[self.kept.clone()].contains(&true)
    }
}

/// A row as a trainer sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowView {
    /// File and line.
    pub place: RowOrigin,
    /// Its texts, one or two.
    pub texts: Vec<TextView>,
    /// Whether an answer says nothing.
    pub blank: bool,
}

impl RowView {
    /// Whether nothing of it trains, by `max_length` or because it has nothing to learn.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        self.texts.iter().all(|text| text.kept.is_empty())
    }
}

impl Preparer<'_> {
    /// Reads rows as a trainer would, but neither packs nor shuffles them; `see` has each in order, the dropped ones too.
    ///
    /// # Errors
    /// The first fault in row order, each with file and line; no row at all.
    pub fn views(
        &self,
        row_use: RowUse,
        name: &str,
        records: impl Iterator<Item = Result<Record, DataError>>,
        mut see: impl FnMut(RowView),
    ) -> Result<RowKind, DataError> {
        self.options.check()?;
        // The first row decides for all.
        let completion_only = OnceLock::new();
        let parse = |record| match row_use {
            RowUse::Prompt => Row::parse_prompt(record),
            _ => Row::parse(record, &self.options.text_field),
        };
        let begin = |row: &Row| {
            let only = self.options.completion_only_loss.unwrap_or(row.has_prompt_and_completion);
            completion_only.get_or_init(|| only);
            if row_use == RowUse::Supervised { self.check_first(row) } else { Ok(()) }
        };
        let make = |row: &Row| {
            let mut texts = self.texts(row_use, row, *completion_only.get_or_init(|| false))?;
            self.cut(row_use, &mut texts);
            Ok(texts)
        };
        let keep = |row: Row, texts| {
            let blank = row.content.answers().any(Text::says_nothing);
            see(RowView { place: row.place, texts, blank });
            Ok(())
        };
        tokenize::tokenised(name, records, parse, begin, make, keep)
    }

    fn texts(&self, row_use: RowUse, row: &Row, completion_only: bool) -> Result<Vec<TextView>, DataError> {
        Ok(match row_use {
            RowUse::Supervised => {
                let Example { input_ids, labels, .. } = self.example(row, completion_only)?;
                let learned = labels.iter().map(|&label| label != IGNORED).collect();
                vec![TextView { name: "text", kept: 0..input_ids.len(), ids: input_ids, learned }]
            }
            RowUse::Preference { prompts } => {
                let pair = self.preference(row)?;
                vec![
                    TextView::answer("chosen", &pair.prompt, &pair.chosen, prompts),
                    TextView::answer("rejected", &pair.prompt, &pair.rejected, false),
                ]
            }
            RowUse::RewardPair => {
                let pair = self.reward_pair(row)?;
                vec![
                    TextView::whole("chosen", pair.chosen, true),
                    TextView::whole("rejected", pair.rejected, true),
                ]
            }
            RowUse::Unpaired { .. } => {
                let name = |desirable| if desirable { "desirable" } else { "undesirable" };
                let text = |example: &UnpairedExample| {
                    TextView::answer(name(example.desirable), &example.prompt, &example.completion, false)
                };
                self.unpaired_examples(row)?.iter().map(text).collect()
            }
            RowUse::Prompt => vec![TextView::whole("prompt", self.prompt(row)?, false)],
        })
    }

    /// What `max_length` leaves of the texts of a row, as the trainer's collator cuts them.
    fn cut(&self, row_use: RowUse, texts: &mut [TextView]) {
        let max_length = self.options.max_length.unwrap_or(usize::MAX);
        let packs = row_use == RowUse::Supervised && self.options.packing.is_some();
        for text in &mut *texts {
            let lost = text.ids.len().saturating_sub(max_length);
            text.kept = match (row_use, self.options.truncation) {
                (RowUse::Prompt | RowUse::RewardPair, _) => continue,
                // Packing cuts the start off for the next row, or nothing.
                _ if packs && self.options.packing != Some(Strategy::Bfd) => continue,
                (_, Truncation::KeepEnd) if !packs => lost..text.ids.len(),
                _ => 0..text.ids.len() - lost,
            };
        }
        let too_long = |text: &TextView| text.ids.len() > max_length;
        let drops = match row_use {
            RowUse::Prompt => false,
            RowUse::RewardPair => texts.iter().any(too_long),
            RowUse::Supervised => !packs && !texts.iter().any(TextView::is_learned),
            RowUse::Preference { .. } | RowUse::Unpaired { .. } => {
                let prompt = texts.first().map_or(0, |text| text.learned.iter().take_while(|l| !**l).count());
                self.options.truncation == Truncation::KeepStart && prompt >= max_length
            }
        };
        if drops {
            texts.iter_mut().for_each(|text| text.kept = 0..0);
        }
    }
}
