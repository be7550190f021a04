//! `Lost`: a distance between the outputs of two models on a sample.

use burnish_core::random::Stream;
use burnish_models::{Decoder, Mode, Output, Tokens};

/// Texts of the sample that logits are compared on, and their tokens.
const SAMPLE: (usize, usize) = (4, 32);

/// What a model says of a sample: logits of every position, or the scores of its texts.
pub(crate) fn outputs(decoder: &Decoder) -> anyhow::Result<Vec<f32>> {
    let (texts, length) = SAMPLE;
    let (stream, vocab) = (Stream::new(0, "burnish merge"), decoder.spec().vocab as u32);
    let token = |at: usize| stream.word(at as u64) % vocab;
    let texts: Vec<Vec<u32>> =
        (0..texts).map(|text| (0..length).map(|at| token(text * length + at)).collect()).collect();
    let (tokens, pass) = (Tokens::from_sequences(&texts), decoder.pass(Mode::Score));
    if decoder.spec().output == Output::Score {
        return Ok(decoder.rewards(&tokens, &pass)?.to_f32());
    }
    let hidden = decoder.final_norm(&decoder.hidden(&tokens, &pass)?, &pass)?;
    let head = decoder.head(&pass, &tokens.rows)?;
    Ok(burnish_ops::head_logits(&hidden, &head, decoder.head_options(1.0))?)
}

/// How far outputs lie apart.
pub(crate) struct Lost {
    most: f32,
    mean: f64,
    reach: f32,
    /// The root of the squared differences' sum over that of the outputs' distances from their mean: 0 of equal outputs, about
    /// 1.4 of unrelated ones.
    pub(crate) relative: f64,
    /// Positions, and those whose most likely token is another; none of scores.
    tokens: Option<(usize, usize)>,
}

impl Lost {
    pub(crate) fn between(before: &[f32], after: &[f32], vocab: usize) -> Self {
        let apart = || before.iter().zip(after).map(|(a, b)| (a - b).abs());
        let largest = |row: &[f32]| (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]));
        let rows = || before.chunks(vocab).zip(after.chunks(vocab));
        let of_logits = before.len() >= vocab;
        let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
        let centre = before.iter().map(|value| f64::from(*value)).sum::<f64>() / before.len().max(1) as f64;
        let spread = squares(&mut before.iter().map(|value| f64::from(*value) - centre));
        let distance = squares(&mut apart().map(f64::from));
        Self {
            most: apart().fold(0.0, f32::max),
            mean: apart().map(f64::from).sum::<f64>() / before.len().max(1) as f64,
            reach: before.iter().fold(0.0, |most, value| most.max(value.abs())),
            relative: if distance == 0.0 { 0.0 } else { (distance / spread).sqrt() },
            tokens: of_logits
                .then(|| (rows().count(), rows().filter(|(a, b)| largest(a) != largest(b)).count())),
        }
    }
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = if self.tokens.is_some() { "logits" } else { "scores" };
        let (most, mean, reach) = (self.most, self.mean, self.reach);
        write!(
            f,
            "on a sample its {what} differ by {most:.2e} at most and {mean:.2e} on average (they reach {reach:.1})"
        )?;
        match self.tokens {
            Some((all, other)) => write!(f, ", {other} of {all} most likely tokens are others"),
            None => Ok(()),
        }
    }
}
