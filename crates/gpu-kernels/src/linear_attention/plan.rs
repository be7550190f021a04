//! `LinearAttentionPlan`: which texts are walked when, and their chunks.

use std::ops::Range;

/// Words that a text has. The first two are its rows.
pub(super) const TEXT_WORDS: usize = 8;
/// Its first chunk.
pub(super) const FIRST_CHUNK: usize = 2;
/// The state that it goes on from.
pub(super) const BEFORE: usize = 3;
/// The state that it leaves, if it does.
pub(super) const BEHIND: usize = 4;
/// Which of the texts that continue others are its own: from here, to the next word.
pub(super) const CHILDREN: usize = 5;
/// Its number.
pub(super) const NUMBER: usize = 7;
/// No text.
pub(super) const NO_TEXT: u32 = u32::MAX;

/// Texts of a row, by chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearAttentionPlan {
    words: Vec<u32>,
    pub(super) chunk: usize,
    pub(super) chunks: usize,
    pub(super) texts: usize,
    /// Where the words of texts that nothing comes before are, then of those that continue them, and so on, and how many.
    pub(super) levels: Vec<Range<usize>>,
    pub(super) of_children: usize,
    pub(super) of_chunks: usize,
    /// Whether each text goes on from a state that is given, and leaves it there.
    pub(super) held: bool,
    /// Whether every row is of a text.
    pub(super) whole: bool,
}

impl LinearAttentionPlan {
    pub(super) fn new(
        texts: &[Range<usize>],
        parents: &[Option<usize>],
        tokens: usize,
        chunk: usize,
    ) -> Self {
        let parent = |text: usize| parents.get(text).copied().flatten();
        let mut levels: Vec<Vec<u32>> = Vec::new();
        let (mut depth, mut children) = (vec![0; texts.len()], vec![Vec::new(); texts.len()]);
        for text in 0..texts.len() {
            if let Some(before) = parent(text) {
                depth[text] = depth[before] + 1;
                children[before].push(text as u32);
            }
            levels.resize(levels.len().max(depth[text] + 1), Vec::new());
            levels[depth[text]].push(text as u32);
        }
        let (mut words, mut chunks, mut given) = (Vec::new(), Vec::new(), Vec::<u32>::new());
        for (text, rows) in texts.iter().enumerate() {
            let first = given.len();
            given.extend(&children[text]);
            let out = if given.len() > first { text as u32 } else { NO_TEXT };
            let before = parent(text).map_or(NO_TEXT, |before| before as u32);
            words.extend([rows.start, rows.end, chunks.len() / 2].map(|n| n as u32));
            words.extend([before, out, first as u32, given.len() as u32, text as u32]);
            for start in rows.clone().step_by(chunk) {
                chunks.extend([start as u32, (rows.end - start).min(chunk) as u32]);
            }
        }
        let levels = levels.into_iter().map(|level| {
            let first = words.len();
            words.extend(level);
            first..words.len()
        });
        let levels = levels.collect();
        let of_children = words.len();
        words.extend(given);
        let of_chunks = words.len();
        let count = chunks.len() / 2;
        words.extend(chunks);
        Self {
            words,
            chunk,
            chunks: count,
            texts: texts.len(),
            levels,
            of_children,
            of_chunks,
            held: false,
            whole: texts.iter().map(Range::len).sum::<usize>() == tokens,
        }
    }

    /// Of texts that go on from states that are held, one for each.
    pub(super) fn held(mut self) -> Self {
        for text in 0..self.texts {
            self.words[text * TEXT_WORDS + BEFORE] = text as u32;
            self.words[text * TEXT_WORDS + BEHIND] = text as u32;
        }
        self.held = true;
        self
    }

    /// States that texts leave for those that continue them: one for each text, or none where none is continued.
    pub(super) fn left(&self) -> usize {
        if self.levels.len() > 1 { self.texts } else { 0 }
    }

    /// Its words, for the device.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }
}
