//! Tokens drawn from logits that stay on a device: of each row its blocks' sums come to the host, and one block.

use burnish_ops::{LogitBlock, RestingLogits};

use crate::generation::continuous_batch::Token;
use crate::generation::exponentials::place_of;
use crate::generation::generate::Generation;

/// A sequence whose next token is drawn.
pub(super) struct Drawing<'a> {
    pub(super) settings: &'a Generation,
    /// Prompt and completion.
    pub(super) tokens: &'a [u32],
    /// Where the completion begins.
    pub(super) start: usize,
}

/// What a row's blocks sum up to.
struct Sums<'b> {
    blocks: &'b [LogitBlock],
    /// The largest of `logit / temperature`.
    max: f32,
    /// The sum of `exp(logit / temperature - max)`.
    total: f64,
}

impl<'b> Sums<'b> {
    /// None where a logit is not finite.
    fn new(blocks: &'b [LogitBlock]) -> Option<Self> {
        let max = blocks.iter().fold(f32::NEG_INFINITY, |max, block| max.max(block.max));
        let mut own = Self { blocks, max, total: 0.0 };
        own.total = blocks.iter().map(|block| own.of(block)).sum();
        (max.is_finite() && own.total.is_finite()).then_some(own)
    }

    fn of(&self, block: &LogitBlock) -> f64 {
        f64::from(block.sum) * f64::from(block.max - self.max).exp()
    }

    /// The first of the largest.
    fn first(&self) -> usize {
        self.blocks.iter().find(|block| block.max == self.max).map_or(0, |block| block.first)
    }

    /// The block in which this share of the sum is passed, and what of it is left there.
    fn at(&self, share: f64) -> (usize, f64) {
        place_of(self.blocks.iter().map(|block| self.of(block)), share * self.total)
    }
}

/// The next token of each row, as [`Generation::next`] chooses it of the same logits but for rounding; none where one asks for
/// more than blocks, or a logit is not finite.
pub(super) fn drawn(logits: &RestingLogits, rows: &[Drawing<'_>]) -> Option<Vec<Token>> {
    if !rows.iter().all(|row| row.settings.draws_of_all(row.tokens.len() - row.start, logits.vocab())) {
        return None;
    }
    let temperatures: Vec<f32> = rows.iter().map(|row| row.settings.sampling.divisor()).collect();
    let blocks = logits.blocks(&temperatures);
    let sums: Vec<Sums<'_>> = blocks.iter().map(|blocks| Sums::new(blocks)).collect::<Option<_>>()?;
    let at = |(row, sums): (&Drawing<'_>, &Sums<'_>)| {
        let sampling = &row.settings.sampling;
        let draw = || sampling.uniform(row.settings.first_row, row.tokens.len() as u64);
        sampling.do_sample.then(|| sums.at(draw()))
    };
    let places: Vec<Option<(usize, f64)>> = rows.iter().zip(&sums).map(at).collect();
    let wanted: Vec<usize> = places.iter().map(|place| place.map_or(0, |(block, _)| block)).collect();
    let any = places.iter().any(Option::is_some);
    let own = if any { logits.of_blocks(&wanted) } else { vec![Vec::new(); rows.len()] };
    let token = |at: usize| {
        let (settings, sums) = (rows[at].settings, &sums[at]);
        let by = settings.sampling.divisor();
        let (id, scaled) = match places[at] {
            None => (sums.first(), sums.max),
            Some((block, left)) => {
                let weight = |logit: f32| (f64::from(logit / by) - f64::from(sums.max)).exp();
                let (of_block, _) = place_of(own[at].iter().copied().map(weight), left);
                (logits.block(block).start + of_block, own[at][of_block] / by)
            }
        };
        let log_prob = f64::from(scaled) - f64::from(sums.max) - sums.total.ln();
        let log_prob = settings.log_probs.then_some(log_prob as f32);
        Token { id: id as u32, log_prob, top: Vec::new() }
    };
    Some((0..rows.len()).map(token).collect())
}
