//! `TextPlan`: which texts are walked when, and their chunks.

use std::ops::Range;

/// Words that a text has. The first two are its rows.
pub(crate) const TEXT_WORDS: usize = 8;
/// Its first chunk.
pub(crate) const FIRST_CHUNK: usize = 2;
/// The state that it goes on from.
pub(crate) const BEFORE: usize = 3;
/// The state that it leaves, if it does.
pub(crate) const BEHIND: usize = 4;
/// Which of the texts that continue others are its own: from here, to the next word.
pub(crate) const CHILDREN: usize = 5;
/// Its number.
pub(crate) const NUMBER: usize = 7;
/// No text.
pub(crate) const NO_TEXT: u32 = u32::MAX;

/// Texts of a row, by chunks: what kernels that walk texts are told of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextPlan {
    words: Vec<u32>,
    pub(crate) chunk: usize,
    pub(crate) chunks: usize,
    pub(crate) texts: usize,
    /// Where the words of texts that nothing comes before are, then of those that continue them, and so on, and how many.
    levels: Vec<Range<usize>>,
    pub(crate) of_children: usize,
    pub(crate) of_chunks: usize,
    /// Whether each text goes on from a state that is given, and leaves it there.
    pub(crate) held: bool,
    /// Whether every row is of a text.
    pub(crate) whole: bool,
}

/// Texts that are walked together.
pub(crate) struct Level {
    /// Where their words are.
    pub(crate) texts: Range<usize>,
    /// Whether they go on from a state.
    pub(crate) begins: bool,
    /// Whether they may leave one.
    pub(crate) leaves: bool,
}

impl TextPlan {
    /// The levels that have texts, first those that nothing comes before.
    pub(crate) fn walks(&self) -> impl DoubleEndedIterator<Item = Level> {
        let level = |(depth, texts): (usize, &Range<usize>)| Level {
            texts: texts.clone(),
            begins: self.held || depth > 0,
            leaves: self.held || depth + 1 < self.levels.len(),
        };
        self.levels.iter().enumerate().filter(|(_, texts)| !texts.is_empty()).map(level)
    }

    /// Texts as ranges of `tokens` rows in chunks of `chunk`, each from nothing or from what the one that it continues left
    /// (`parents`, which come before; a text beyond their end has none).
    #[must_use]
    pub fn new(texts: &[Range<usize>], parents: &[Option<usize>], tokens: usize, chunk: usize) -> Self {
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

    /// Of texts that go on from states that are held, one for each, and leave them there.
    #[must_use]
    pub fn held(mut self) -> Self {
        for text in 0..self.texts {
            self.words[text * TEXT_WORDS + BEFORE] = text as u32;
            self.words[text * TEXT_WORDS + BEHIND] = text as u32;
        }
        self.held = true;
        self
    }

    /// States that texts leave for those that continue them: one for each text, or none where none is continued.
    pub(crate) fn left(&self) -> usize {
        if self.levels.len() > 1 { self.texts } else { 0 }
    }

    /// Its words, for the device.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }
}
