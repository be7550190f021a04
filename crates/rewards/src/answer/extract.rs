//! Extraction of the final answer of a text.
//!
//! Candidates come in classes; in the first class that has any, the one that ends last is taken, of those the one that starts
//! first.

use super::Answer;
use super::boxed::{self, Boxes};
use super::normal::{Normal, normal};
use super::plain;
use super::value::Value;

/// A place that may hold the answer.
struct Candidate {
    start: usize,
    end: usize,
    found: Found,
}

enum Found {
    /// Formulas that stand together: "$1$ and $2$".
    Formulas(Vec<Formula>),
    /// From the first box to the last closing brace.
    Box(String),
    /// A number or a sum outside formulas.
    Plain(plain::Plain),
}

#[derive(Clone)]
struct Formula {
    latex: String,
    percent: bool,
}

/// Boxes first, then formulas after words that announce the answer; only the first candidate counts.
pub(super) fn of_completion(text: &str) -> Option<Answer> {
    let scan = Scan::new(text);
    for class in [
        [scan.i_hope(), scan.boxes()].concat_candidates(),
        scan.final_answer_is(),
        scan.after_answer(true),
        scan.after_answer(false),
    ] {
        if let Some(first) = sorted(class).into_iter().next() {
            let (value, text) = first.read(Normal { lenient: false });
            return Some(Answer { value, text });
        }
    }
    None
}

/// Formulas after words that announce the answer, boxes, then the last formula or number; the first that can be read counts.
pub(super) fn of_solution(text: &str) -> Option<Answer> {
    let scan = Scan::new(text);
    let mut first_text = None;
    for class in [
        scan.i_hope(),
        [scan.final_answer_is(), scan.boxes(), plain::final_answer_is(text).into_candidates()]
            .concat_candidates(),
        [scan.after_answer(true), plain::after_answer(text, true).into_candidates()].concat_candidates(),
        [scan.after_answer(false), plain::after_answer(text, false).into_candidates()].concat_candidates(),
        [scan.formulas(), plain::anywhere(text).into_candidates()].concat_candidates(),
    ] {
        for candidate in sorted(class) {
            let (value, text) = candidate.read(Normal { lenient: true });
            if first_text.is_none() && !text.is_empty() {
                first_text = Some(text);
            }
            if value.is_some() {
                return Some(Answer { value, text: first_text.unwrap_or_default() });
            }
        }
    }
    first_text.map(|text| Answer { value: None, text })
}

trait Candidates {
    fn concat_candidates(self) -> Vec<Candidate>;
}

impl<const N: usize> Candidates for [Vec<Candidate>; N] {
    fn concat_candidates(self) -> Vec<Candidate> {
        self.into_iter().flatten().collect()
    }
}

trait IntoCandidates {
    fn into_candidates(self) -> Vec<Candidate>;
}

impl IntoCandidates for Vec<plain::Place> {
    fn into_candidates(self) -> Vec<Candidate> {
        self.into_iter()
            .map(|place| Candidate { start: place.start, end: place.end, found: Found::Plain(place.plain) })
            .collect()
    }
}

fn sorted(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    candidates.sort_by_key(|candidate| (std::cmp::Reverse(candidate.end), candidate.start));
    candidates
}

impl Candidate {
    fn read(self, how: Normal) -> (Option<Value>, String) {
        match self.found {
            Found::Plain(plain) => plain.read(),
            Found::Box(text) => {
                let text = normal(&boxed::content(&text, Boxes::Last), how);
                (Value::read(&text, how), text)
            }
            Found::Formulas(formulas) => {
                let texts: Vec<String> = formulas
                    .iter()
                    .map(|formula| normal(&boxed::content(&formula.latex, Boxes::All), how))
                    .collect();
                let values: Vec<Option<Value>> = formulas
                    .iter()
                    .zip(&texts)
                    .map(|(formula, text)| {
                        let value = Value::read(text, how)?;
                        Some(if formula.percent { value.percent() } else { value })
                    })
                    .collect();
                if texts.len() > 1 && values.iter().all(Option::is_some) {
                    return (Some(Value::list(values.into_iter().flatten().collect())), texts.join(" and "));
                }
                (values.into_iter().next().flatten(), texts.into_iter().next().unwrap_or_default())
            }
        }
    }
}

/// The formulas of a text.
struct Scan<'a> {
    text: &'a str,
}

impl<'a> Scan<'a> {
    fn new(text: &'a str) -> Self {
        Self { text }
    }

    /// "final answer is FORMULA. I hope".
    fn i_hope(&self) -> Vec<Candidate> {
        self.each(|at| {
            let after = skip_word(self.text, at, "final answer is")?;
            let after = after + usize::from(self.text[after..].starts_with(':'));
            let (formulas, end) = self.formulas_at(skip_space(self.text, after), false)?;
            let rest = self.text[end..].trim_start().trim_start_matches('.').trim_start();
            rest.starts_with("I hope").then_some((formulas, end))
        })
    }

    /// "final answer", at most 100 characters, "is FORMULA".
    fn final_answer_is(&self) -> Vec<Candidate> {
        self.each(|at| {
            let after = skip_word(self.text, at, "final answer")?;
            steps(self.text, after, 100).find_map(|from| {
                let word = skip_space(self.text, from);
                let is = (word > from && self.text[word..].starts_with("is")).then_some(word + 2)?;
                let is = is + usize::from(self.text[is..].starts_with(':'));
                self.formulas_at(skip_space(self.text, is), false)
            })
        })
    }

    /// "answer", a colon perhaps, at most 50 characters, FORMULA.
    fn after_answer(&self, colon: bool) -> Vec<Candidate> {
        self.each(|at| {
            let after = skip_word(self.text, at, if colon { "answer:" } else { "answer" })?;
            steps(self.text, after, 50).find_map(|from| self.formulas_at(from, false))
        })
    }

    fn formulas(&self) -> Vec<Candidate> {
        self.each(|at| self.formulas_at(at, false))
    }

    fn boxes(&self) -> Vec<Candidate> {
        let mut boxes = self.each(|at| self.formulas_at(at, true));
        if let (Some(start), Some(end)) = (self.text.find("\\boxed{"), self.text.rfind('}'))
            && end > start + "\\boxed{".len()
        {
            let found = Found::Box(self.text[start..=end].to_owned());
            boxes.push(Candidate { start, end: end + 1, found });
        }
        boxes
    }

    /// Every place where something matches, from left to right without overlaps.
    fn each(&self, matches: impl Fn(usize) -> Option<(Vec<Formula>, usize)>) -> Vec<Candidate> {
        let mut found = Vec::new();
        let mut free = 0;
        for (at, _) in self.text.char_indices() {
            if at < free {
                continue;
            }
            if let Some((formulas, end)) = matches(at) {
                found.push(Candidate { start: at, end, found: Found::Formulas(formulas) });
                free = end.max(at + 1);
            }
        }
        found
    }

    /// Up to six formulas that begin here, joined by commas, "and" or "or", and where they end.
    fn formulas_at(&self, at: usize, boxed: bool) -> Option<(Vec<Formula>, usize)> {
        let (first, mut end) = self.formula_at(at, boxed)?;
        let mut formulas = vec![first];
        while formulas.len() < 6 {
            let Some(next) = skip_separator(self.text, end) else { break };
            let Some((formula, after)) = self.formula_at(next, boxed) else { break };
            formulas.push(formula);
            end = after;
        }
        Some((formulas, end))
    }

    fn formula_at(&self, at: usize, boxed: bool) -> Option<(Formula, usize)> {
        let text = self.text;
        let before = text[..at].chars().next_back();
        let rest = &text[at..];
        let (latex, after) = if rest.starts_with("$$") && before != Some('\\') {
            enclosed(text, at, "$$", "$$", |_| true)?
        } else if rest.starts_with("\\[") && before != Some('\\') {
            enclosed(text, at, "\\[", "\\]", |_| true)?
        } else if rest.starts_with('$') && before.is_none_or(|c| c != '\\' && !c.is_ascii_digit()) {
            enclosed(text, at, "$", "$", |inside| !inside.contains('\n'))?
        } else if rest.starts_with("\\(") && before != Some('\\') {
            enclosed(text, at, "\\(", "\\)", |inside| !inside.contains('\n'))?
        } else if rest.starts_with("\\frac") || rest.starts_with("-\\frac") {
            let end = plain::fraction(rest)?;
            (&rest[..end], at + end)
        } else {
            let space = rest.chars().next().filter(|c| c.is_whitespace())?;
            let open = at + space.len_utf8();
            let (inside, after) = text[open..]
                .starts_with('[')
                .then(|| enclosed(text, open, "[", "]", |inside| !inside.contains(['\n', '['])))??;
            let closing = text[after..].chars().next().filter(|c| c.is_whitespace())?;
            (inside, after + closing.len_utf8())
        };
        if boxed && !holds_a_box(latex) {
            return None;
        }
        let mut end = skip_space(text, after);
        let percent = ["\\%", "%", "percentage", "Percentage", "percent", "Percent", "pct", "Pct"]
            .into_iter()
            .find(|word| text[end..].starts_with(word));
        end += percent.map_or(0, str::len);
        Some((Formula { latex: latex.to_owned(), percent: percent.is_some() }, end))
    }
}

fn holds_a_box(latex: &str) -> bool {
    latex.split_once("\\boxed{").is_some_and(|(_, inside)| inside.chars().skip(1).any(|c| c == '}'))
}

/// What stands between two marks that begin here, and where the second one ends.
fn enclosed<'a>(
    text: &'a str,
    at: usize,
    open: &str,
    close: &str,
    allowed: impl Fn(&str) -> bool,
) -> Option<(&'a str, usize)> {
    let start = at + open.len();
    let mut from = start + text[start..].chars().next()?.len_utf8();
    loop {
        let end = from + text.get(from..)?.find(close)?;
        let inside = &text[start..end];
        if !allowed(inside) {
            return None;
        }
        if !inside.ends_with('\\') {
            return Some((inside, end + close.len()));
        }
        from = end + 1;
    }
}

/// Behind a word, whatever its case.
pub(super) fn skip_word(text: &str, at: usize, word: &str) -> Option<usize> {
    let end = at + word.len();
    text.get(at..end).filter(|found| found.eq_ignore_ascii_case(word)).map(|_| end)
}

pub(super) fn skip_space(text: &str, at: usize) -> usize {
    at + (text[at..].len() - text[at..].trim_start().len())
}

fn skip_separator(text: &str, at: usize) -> Option<usize> {
    let from = skip_space(text, at);
    let word = [",and", "and", ",or", "or", ","].into_iter().find(|word| text[from..].starts_with(word))?;
    Some(skip_space(text, from + word.len()))
}

/// The places 0 to `most` characters behind one.
pub(super) fn steps(text: &str, from: usize, most: usize) -> impl Iterator<Item = usize> {
    text[from..].char_indices().map(move |(at, _)| from + at).chain([text.len()]).take(most + 1)
}
