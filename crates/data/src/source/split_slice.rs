//! `SplitSlice`: a split, or a part of its rows, as `datasets` writes it: `train[:10%]+test[-100:]`.

use std::ops::Range;

use crate::error::DataError;

/// A split and the rows of it that are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SplitSlice {
    /// The split's name.
    pub(crate) split: String,
    from: Option<Bound>,
    to: Option<Bound>,
    /// Whether percentages are rounded down to whole groups of a hundredth (`(pct1_dropremainder)`).
    drops_remainder: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    Rows(i64),
    Percent(i64),
}

impl SplitSlice {
    /// Reads `split`, `split[from:to]` and sums of them.
    ///
    /// # Errors
    /// When it is none.
    pub(crate) fn read(text: &str) -> Result<Vec<Self>, DataError> {
        let bad = || DataError::BadSlice { slice: text.to_owned() };
        text.split('+').map(|part| Self::one(part.trim()).ok_or_else(bad)).collect()
    }

    fn one(text: &str) -> Option<Self> {
        let (text, drops_remainder) = match text.strip_suffix(')').and_then(|t| t.rsplit_once('(')) {
            None => (text, false),
            Some((text, "closest")) => (text, false),
            Some((text, "pct1_dropremainder")) => (text, true),
            Some(_) => return None,
        };
        let (split, from, to) = match text.strip_suffix(']').and_then(|t| t.split_once('[')) {
            None => (text, None, None),
            Some((split, range)) => {
                let (from, to) = range.split_once(':')?;
                (split, bound(from)?, bound(to)?)
            }
        };
        // Names are looser than `datasets`', which refuses dashes: a file or a split of another tool may have one.
        let named = !split.is_empty() && !split.contains(['[', ']', ':', '(', ')', '/', '%']);
        named.then(|| Self { split: split.to_owned(), from, to, drops_remainder })
    }

    /// Whether all rows are meant, so that they need not be counted.
    pub(crate) fn is_whole(&self) -> bool {
        self.from.is_none() && self.to.is_none()
    }

    /// The rows that are meant of `rows`.
    ///
    /// # Errors
    /// When a percentage is out of range.
    pub(crate) fn range(&self, rows: usize) -> Result<Range<usize>, DataError> {
        let bad = || DataError::BadSlice { slice: self.to_string() };
        let at = |bound: Bound| {
            let total = rows as i64;
            let at = match bound {
                Bound::Rows(at) => at,
                Bound::Percent(percent) if percent.abs() > 100 => return Err(bad()),
                Bound::Percent(percent) if self.drops_remainder => {
                    if rows < 100 {
                        return Err(bad());
                    }
                    percent * (total / 100)
                }
                // As Python rounds: halves to the even number.
                Bound::Percent(percent) => (percent as f64 * total as f64 / 100.0).round_ties_even() as i64,
            };
            let at = if at < 0 { (total + at).max(0) } else { at };
            Ok(usize::try_from(at).unwrap_or(0).min(rows))
        };
        let from = self.from.map_or(Ok(0), at)?;
        let to = self.to.map_or(Ok(rows), at)?;
        Ok(from..to.max(from))
    }
}

impl std::fmt::Display for SplitSlice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let say = |bound: Option<Bound>| match bound {
            None => String::new(),
            Some(Bound::Rows(at)) => at.to_string(),
            Some(Bound::Percent(at)) => format!("{at}%"),
        };
        write!(f, "{}", self.split)?;
        if self.is_whole() { Ok(()) } else { write!(f, "[{}:{}]", say(self.from), say(self.to)) }
    }
}

/// A bound, or `Some(None)` for none; `None` is a fault.
#[expect(clippy::option_option, reason = "absent and faulty are two things")]
fn bound(text: &str) -> Option<Option<Bound>> {
    let text = text.trim().replace('_', "");
    if text.is_empty() {
        return Some(None);
    }
    Some(Some(match text.strip_suffix('%') {
        Some(percent) => Bound::Percent(percent.parse().ok()?),
        None => Bound::Rows(text.parse().ok()?),
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn rows_of_a_slice() {
        for (text, rows, expected) in [
            ("train", 7, 0..7),
            ("train[:10%]", 100, 0..10),
            ("train[:10%]", 5, 0..0),
            ("train[:50%]", 5, 0..2),
            ("train[50%:]", 7, 4..7),
            ("train[10:20]", 15, 10..15),
            ("train[-3:]", 10, 7..10),
            ("train[-20:2]", 10, 0..2),
            ("train[8:2]", 10, 8..8),
            ("train[1_000:]", 1001, 1000..1001),
            ("train[-10%:]", 100, 90..100),
            ("train[:33%](pct1_dropremainder)", 199, 0..33),
            ("train[:33%](closest)", 199, 0..66),
        ] {
            let slices = SplitSlice::read(text).unwrap();
            assert_eq!(slices[0].range(rows).unwrap(), expected, "{text} of {rows}");
            assert_eq!(slices[0].split, "train");
        }
        let two = SplitSlice::read("train[:2] + test").unwrap();
        assert_eq!((two.len(), two[1].split.as_str(), two[1].is_whole()), (2, "test", true));
    }

    #[test]
    fn faults_are_named() {
        for text in ["", "train[", "train[2]", "train[a:]", "[1:2]", "train[:1](up)", "train+"] {
            let e = SplitSlice::read(text).unwrap_err().to_string();
            assert!(e.contains("slice") && e.contains(text), "{e}");
        }
        assert!(SplitSlice::read("train[:101%]").unwrap()[0].range(10).is_err());
    }
}
