//! The memory of a step of decoding that is recorded: what changes from token to token lies where the recording reads it.

use std::sync::Arc;

use burnish_gpu_kernels::{Buffer, NotRecorded, Rehearsal, copy};

use crate::cube::{self, On};
use crate::gpu::{Angles, PlacedRows, StepRows};
use crate::{AnyTensor, Rotary};

/// Words of which a multiple stands before each piece.
const ALIGNED: usize = 64;

/// A step's stream, where its rows go and what they see, and their rotations.
pub struct StepMemory {
    on: On,
    x: AnyTensor,
    words: Buffer,
    rows: Vec<PlacedRows>,
    turns: Vec<Rotary>,
}

/// The words of all pieces, and where each piece begins.
fn words_of(rows: &[StepRows], turns: &[Rotary]) -> (Vec<u32>, Vec<usize>) {
    let (mut words, mut begins) = (Vec::new(), Vec::new());
    let mut begin = |words: &mut Vec<u32>| {
        words.resize(words.len().next_multiple_of(ALIGNED), 0);
        begins.push(words.len());
    };
    for piece in rows.iter().flat_map(StepRows::words) {
        begin(&mut words);
        words.extend_from_slice(piece);
    }
    for half in turns.iter().flat_map(Rotary::halves) {
        begin(&mut words);
        words.extend(half.into_iter().map(f32::to_bits));
    }
    // Memory has at least a word.
    words.resize(words.len().max(1), 0);
    (words, begins)
}

impl StepMemory {
    /// Of a step that begins with `x` and has these rows and rotations, for which layers ask by number; it holds them. `None`
    /// where no device of CubeCL's has `x`.
    ///
    /// # Shapes
    /// - x: `[rows, hidden]`
    #[must_use]
    pub fn new(x: &AnyTensor, rows: &[StepRows], turns: &[Rotary]) -> Option<Self> {
        // Burn may leave rows apart; what is written here later lies row behind row.
        let x = cube::tensor(cube::memory(x)?);
        let on = On::device_of(&x)?;
        cube::buffer(&x)?;
        let (words, begins) = words_of(rows, turns);
        let words = Buffer::of_words(on.client(), words);
        let mut begins = begins.into_iter();
        let mut piece = |len| words.piece(begins.next().expect("invariant: a beginning for each piece"), len);
        let place = |rows: &StepRows| {
            let pieces = rows.words().map(|words| piece(words.len()));
            rows.placed(pieces.map(|piece| on.integers(piece)))
        };
        let placed = rows.iter().map(place).collect();
        let turn = |turn: &Rotary| {
            let (tokens, half) = (turn.positions.len(), turn.rotary_dim / 2);
            let halves = [(); 2].map(|()| on.floats(piece(tokens * half), &[tokens, 1, half]));
            // The device alone has the table.
            Rotary { table: Arc::default(), angles: Angles::resting(&halves), ..turn.clone() }
        };
        let turns = turns.iter().map(turn).collect();
        Some(Self { x, words, rows: placed, turns, on })
    }

    /// Whether a step of these rows may be written here.
    #[must_use]
    pub fn fits(&self, rows: &[StepRows]) -> bool {
        rows.len() == self.rows.len() && rows.iter().zip(&self.rows).all(|(rows, placed)| rows.fit(placed))
    }

    /// Writes another step, which [fits](Self::fits) and has as many rows and rotations.
    ///
    /// # Panics
    /// If `x` has another shape or is on another device.
    pub fn write(&self, x: &AnyTensor, rows: &[StepRows], turns: &[Rotary]) {
        let client = self.on.client();
        self.words.overwrite(client, words_of(rows, turns).0);
        let [from, to] = [&x.plain(), &self.x]
            .map(|x| cube::buffer(x).expect("invariant: as the first step's, of floats on that device"));
        copy(client, &from, &to);
    }

    /// What the step begins with.
    #[must_use]
    pub fn x(&self) -> &AnyTensor {
        &self.x
    }

    /// The rows of a kind of caches, by its number.
    #[must_use]
    pub fn rows(&self, at: usize) -> &PlacedRows {
        &self.rows[at]
    }

    /// The rotations.
    #[must_use]
    pub fn turns(&self) -> &[Rotary] {
        &self.turns
    }

    /// Begins a recording.
    ///
    /// # Errors
    /// If the device records nothing.
    pub fn rehearse(&self) -> Result<Rehearsal, NotRecorded> {
        Rehearsal::new(self.on.client())
    }
}
