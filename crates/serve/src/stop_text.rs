//! Texts that end a completion (`stop`).

/// Text as it comes, held back where it may be the beginning of a stop text.
#[derive(Clone, Debug, Default)]
pub(crate) struct StopText {
    stops: Vec<String>,
    held: String,
}

impl StopText {
    pub(crate) fn new(stops: Vec<String>) -> Self {
        Self { stops, held: String::new() }
    }

    /// More text: what of it is certain, and whether a stop text was met, which is left out with what follows it.
    pub(crate) fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let met = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = met {
            let mut said = std::mem::take(&mut self.held);
            said.truncate(at);
            return (said, true);
        }
        // The longest end that a stop text begins with.
        let may_begin = |at: &usize| {
            let end = &self.held[*at..];
            self.stops.iter().any(|stop| stop.starts_with(end))
        };
        let kept = self.held.char_indices().map(|(at, _)| at).find(may_begin).unwrap_or(self.held.len());
        let rest = self.held.split_off(kept);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back, when no more comes.
    pub(crate) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(stops: &[&str], parts: &[&str]) -> (String, bool) {
        let mut text = StopText::new(stops.iter().map(|&s| s.to_owned()).collect());
        let mut all = String::new();
        for part in parts {
            let (more, met) = text.push(part);
            all.push_str(&more);
            if met {
                return (all, true);
            }
        }
        (all + &text.finish(), false)
    }

    #[test]
    fn a_stop_text_ends_over_tokens_and_its_beginnings_are_held_back() {
        assert_eq!(said(&["END"], &["a E", "N", "D b"]), ("a ".into(), true));
        assert_eq!(said(&["END"], &["a E", "N", "E b"]), ("a ENE b".into(), false));
        assert_eq!(said(&["aab"], &["aaa", "ab"]), ("aa".into(), true));
        assert_eq!(said(&["\n\n", "."], &["one", "\n", "two.", "three"]), ("one\ntwo".into(), true));
        assert_eq!(said(&["ñé"], &["señ", "or"]), ("señor".into(), false));
        assert_eq!(said(&[], &["all"]), ("all".into(), false));
        let mut text = StopText::new(vec!["END".into()]);
        assert_eq!(text.push("xEN"), ("x".into(), false));
        assert_eq!(text.finish(), "EN");
    }
}
