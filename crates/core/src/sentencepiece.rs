//! `SentencePiece`: what SentencePiece's file (`tokenizer.model`) says.

/// What a piece is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceKind {
    /// A piece of text.
    Normal,
    /// What stands for text that no piece is of.
    Unknown,
    /// A token that no text has (`<s>`).
    Control,
    /// A piece that is taken whole wherever it stands.
    UserDefined,
    /// None.
    Unused,
    /// A byte that no other piece is of (`<0x0A>`).
    Byte,
}

/// A piece; its id is its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// The text, spaces written as U+2581.
    pub text: String,
    /// The score, the higher the earlier it is merged.
    pub score: f32,
    /// What it is for.
    pub kind: PieceKind,
}

/// A model of SentencePiece.
///
/// ```
/// use burnish_core::SentencePiece;
///
/// // One piece of text `a`, in a model of BPE.
/// let file = [10, 3, 10, 1, b'a', 18, 2, 24, 2];
/// let model = SentencePiece::parse(&file).unwrap();
/// assert!(model.is_bpe && model.pieces[0].text == "a");
/// assert!(SentencePiece::parse(b"{}").is_none());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SentencePiece {
    /// The pieces.
    pub pieces: Vec<Piece>,
    /// Whether pieces are merged (BPE), and not chosen by their scores (unigram) or otherwise.
    pub is_bpe: bool,
    /// Whether text that no piece is of is made of bytes.
    pub byte_fallback: bool,
    /// Texts of what begins and ends a sequence, where there are such pieces.
    pub bos_eos: [Option<String>; 2],
    /// The text of what stands for unknown text.
    pub unknown: String,
    /// The table of its normalizer; empty for none.
    pub charsmap: Vec<u8>,
    /// Whether a space is put before a text.
    pub add_dummy_prefix: bool,
    /// Whether spaces around a text are left out, and all but one of several.
    pub remove_extra_whitespaces: bool,
    /// Whether spaces are written as U+2581.
    pub escape_whitespaces: bool,
}

impl SentencePiece {
    /// Reads the file; `None` if it is no such model.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let mut model = Self {
            pieces: Vec::new(),
            is_bpe: false,
            byte_fallback: false,
            bos_eos: [None, None],
            unknown: "<unk>".to_owned(),
            charsmap: Vec::new(),
            add_dummy_prefix: true,
            remove_extra_whitespaces: true,
            escape_whitespaces: true,
        };
        let mut texts = ["<s>".to_owned(), "</s>".to_owned()];
        let mut ids = [1, 2];
        for field in Fields(bytes) {
            match field? {
                (1, Field::Bytes(bytes)) => model.pieces.push(piece(bytes)?),
                (2, Field::Bytes(trainer)) => {
                    for field in Fields(trainer) {
                        match field? {
                            (3, Field::Number(own)) => model.is_bpe = own == 2,
                            (35, Field::Number(own)) => model.byte_fallback = own != 0,
                            // Of 64 bits, and negative for none.
                            (at @ (41 | 42), Field::Number(own)) => ids[at as usize - 41] = own as i64,
                            (45, Field::Bytes(own)) => model.unknown = text(own)?,
                            (at @ (46 | 47), Field::Bytes(own)) => texts[at as usize - 46] = text(own)?,
                            _ => {}
                        }
                    }
                }
                (3, Field::Bytes(normalizer)) => {
                    for field in Fields(normalizer) {
                        match field? {
                            (2, Field::Bytes(own)) => model.charsmap = own.to_vec(),
                            (3, Field::Number(own)) => model.add_dummy_prefix = own != 0,
                            (4, Field::Number(own)) => model.remove_extra_whitespaces = own != 0,
                            (5, Field::Number(own)) => model.escape_whitespaces = own != 0,
                            _ => {}
                        }
                    }
                }
                _ => {}
            }
        }
        for ((own, text), id) in model.bos_eos.iter_mut().zip(texts).zip(ids) {
            *own = (id >= 0).then_some(text);
        }
        (!model.pieces.is_empty()).then_some(model)
    }
}

fn text(bytes: &[u8]) -> Option<String> {
    String::from_utf8(bytes.to_vec()).ok()
}

fn piece(bytes: &[u8]) -> Option<Piece> {
    let mut piece = Piece { text: String::new(), score: 0.0, kind: PieceKind::Normal };
    for field in Fields(bytes) {
        match field? {
            (1, Field::Bytes(own)) => piece.text = text(own)?,
            (2, Field::Four(own)) => piece.score = f32::from_le_bytes(own),
            (3, Field::Number(own)) => {
                piece.kind = match own {
                    2 => PieceKind::Unknown,
                    3 => PieceKind::Control,
                    4 => PieceKind::UserDefined,
                    5 => PieceKind::Unused,
                    6 => PieceKind::Byte,
                    _ => PieceKind::Normal,
                }
            }
            _ => {}
        }
    }
    Some(piece)
}

/// A field of a protocol buffer.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Four([u8; 4]),
    Eight,
}

/// The fields of a protocol buffer with their numbers; `None` where bytes are none.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for (at, &byte) in self.0.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f).checked_shl(7 * at as u32)?;
            if byte < 0x80 {
                self.0 = &self.0[at + 1..];
                return Some(value);
            }
        }
        None
    }

    fn bytes(&mut self, length: u64) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let key = self.number()?;
        let field = match key & 7 {
            0 => Field::Number(self.number()?),
            1 => self.bytes(8).map(|_| Field::Eight)?,
            2 => {
                let length = self.number()?;
                Field::Bytes(self.bytes(length)?)
            }
            5 => Field::Four(self.bytes(4)?.try_into().ok()?),
            _ => return None,
        };
        Some((key >> 3, field))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Option<(u64, Field<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field)
    }
}
