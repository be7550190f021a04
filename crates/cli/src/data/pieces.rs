//! `Piece`: the text of a token, and what becomes of it.

use burnish_data::{DataError, TextStream, TextView, Tokenizer};

/// What becomes of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is a target.
    Learned,
    /// It is read and no target.
    Read,
    /// `max_length` cuts it off.
    Cut,
}

/// The text of a token; empty while a character is not whole, which the token has that completes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) fate: Fate,
}

/// A text token by token, special ones included.
pub(super) fn pieces(tokenizer: &Tokenizer, view: &TextView) -> Result<Vec<Piece>, DataError> {
    let mut stream = TextStream::new(false);
    let mut pieces = Vec::with_capacity(view.ids.len());
    for (at, (&id, &learned)) in view.ids.iter().zip(&view.learned).enumerate() {
        let fate = match (view.kept.contains(&at), learned) {
            (false, _) => Fate::Cut,
            (true, true) => Fate::Learned,
            (true, false) => Fate::Read,
        };
        pieces.push(Piece { text: stream.push(tokenizer, id)?, fate });
    }
    let rest = stream.finish(tokenizer)?;
    if let Some(last) = pieces.last_mut() {
        last.text.push_str(&rest);
    }
    Ok(pieces)
}
