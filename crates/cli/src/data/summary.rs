//! Figures of a data set as both views show them.

use burnish_data::{RowUse, TextView};
use burnish_report::count;
use burnish_trainers::{DataView, RowsView};

/// A name and what there is to say.
pub(super) type Line = (&'static str, String);

/// What `train` (or `eval`) rows are, in lines of a name and a text.
pub(super) fn lines(view: &DataView) -> Vec<Line> {
    let s = &view.statistics;
    let mut lines = vec![("rows", format!("{}, {}", view.train.rows, view.kind))];
    lines.extend(lengths(&view.train).map(|text| ("tokens", text)));
    if let Some(refusal) = &view.refusal {
        lines.push(("no run", refusal.to_string()));
        return lines;
    }
    if let Some(max_length) = view.prepared.rules.max_length.filter(|_| view.row_use != RowUse::Prompt) {
        let mut text = format!("{max_length}");
        if s.truncated > 0 {
            text += &format!(
                ": {} rows are longer, {} tokens ({:.1} %) are cut off",
                s.truncated,
                count(s.tokens_lost as u64),
                100.0 * s.lost_share()
            );
        }
        lines.push(("max_length", text));
    }
    let tokens = count(s.tokens as u64);
    lines.push(match view.row_use {
        RowUse::Prompt => ("learned", format!("what is sampled after {tokens} tokens of prompts")),
        RowUse::RewardPair => ("scored", format!("{tokens} tokens, each text at its last one")),
        _ => {
            let share = 100.0 * (1.0 - s.masked_share());
            ("learned", format!("{} of {tokens} tokens ({share:.1} %)", count(s.trained as u64)))
        }
    });
    if let Some(packing) = view.packing {
        let filled = 100.0 * packing.filled;
        lines.push(("packing", format!("{} rows, {filled:.1} % of their room filled", packing.rows)));
    }
    let train = &view.train;
    if let Some(place) = &train.dropped_at {
        lines.push(("dropped", format!("{} rows (first: {place})", train.dropped)));
    }
    for (name, rows) in [("repeated", train.repeated), ("no answer", train.blank)] {
        if rows > 0 {
            lines.push((name, format!("{rows} rows")));
        }
    }
    if let Some(eval) = &view.eval {
        let text = lengths(eval).map_or(String::new(), |text| format!("; {text}"));
        lines.push(("evaluation", format!("{} rows of {}{text}", eval.rows, eval.name)));
    }
    lines
}

/// Least, middle and greatest lengths; `None` without a text.
fn lengths(rows: &RowsView) -> Option<String> {
    let mut sorted = rows.lengths.clone();
    sorted.sort_unstable();
    let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share).round() as usize];
    let mean = sorted.iter().sum::<usize>() as f64 / sorted.len().max(1) as f64;
    (!sorted.is_empty()).then(|| {
        format!(
            "{} to {} (median {}, mean {mean:.1}, 95 % at most {})",
            sorted[0],
            at(1.0),
            at(0.5),
            at(0.95)
        )
    })
}

/// How many texts have how many tokens.
pub(super) struct Histogram {
    /// Tokens of a bin.
    pub(super) width: usize,
    /// The first bin that holds a text.
    first: usize,
    /// Texts in each bin, from that one on.
    pub(super) bins: Vec<usize>,
}

impl Histogram {
    /// At most 16 bins of a round width; none without a text.
    pub(super) fn of(lengths: &[usize]) -> Self {
        const MOST: usize = 16;
        let (Some(&shortest), Some(&longest)) = (lengths.iter().min(), lengths.iter().max()) else {
            return Self { width: 1, first: 0, bins: Vec::new() };
        };
        let mut width = 1;
        while longest / width - shortest / width >= MOST {
            // 1, 2, 5, 10, 20, ...
            width = if width.to_string().starts_with('2') { width / 2 * 5 } else { width * 2 };
        }
        let first = shortest / width;
        let mut bins = vec![0; longest / width - first + 1];
        lengths.iter().for_each(|length| bins[length / width - first] += 1);
        Self { width, first, bins }
    }

    /// The share of the fullest bin that each fills, 0 to 1, with its first and last number of tokens and its texts.
    pub(super) fn bars(&self) -> impl Iterator<Item = (usize, usize, usize, f64)> {
        let most = self.bins.iter().copied().max().unwrap_or(0).max(1);
        let bars = self.bins.iter().enumerate();
        bars.map(move |(bin, &texts)| {
            let first = (self.first + bin) * self.width;
            (first, first + self.width - 1, texts, texts as f64 / most as f64)
        })
    }
}

/// What a text of a row is, for its heading: nothing of a row that is one text.
pub(super) fn heading(view: &TextView, row_use: RowUse) -> String {
    let (kept, all) = (view.kept.len(), view.ids.len());
    let learned = view.learned[view.kept.clone()].iter().filter(|learned| **learned).count();
    let mut text = format!("{}: {all} tokens", view.name);
    match row_use {
        RowUse::Prompt | RowUse::RewardPair => {}
        _ => text += &format!(", {learned} learned"),
    }
    match kept {
        0 => text += ", dropped",
        _ if kept < all => text += &format!(", {} cut off", all - kept),
        _ => {}
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_hold_every_text_and_have_round_widths() {
        for longest in [0, 1, 15, 16, 31, 32, 79, 80, 1000, 12_345] {
            let lengths: Vec<usize> = (0..=longest).collect();
            let histogram = Histogram::of(&lengths);
            assert_eq!(histogram.bins.iter().sum::<usize>(), longest + 1);
            let narrow = Histogram::of(&lengths[longest.saturating_sub(3)..]);
            assert_eq!((narrow.width, narrow.bins.len()), (1, (longest + 1).min(4)));
            assert_eq!(narrow.bars().last().map(|(_, last, ..)| last), Some(longest));
            assert!(histogram.bins.len() <= 16 && *histogram.bins.last().unwrap_or(&0) > 0, "{longest}");
            let digits = histogram.width.to_string();
            assert!(["1", "2", "5"].contains(&digits.trim_end_matches('0')), "{digits}");
        }
        assert_eq!(Histogram::of(&[]).bars().count(), 0);
    }
}
