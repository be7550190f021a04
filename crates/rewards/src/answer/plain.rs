//! Parsing of numbers and sums outside formulas, as in the solution column of GSM8K.

use super::extract::{skip_space, skip_word, steps};
use super::formula::Formula;
use super::normal::Normal;
use super::value::Value;

/// A number or a sum.
pub(super) enum Plain {
    /// Digits, with a point; and whether a percent sign follows.
    Number { digits: String, percent: bool },
    /// Arithmetic such as `1/2 + 3`.
    Sum(String),
}

/// Where one stands.
pub(super) struct Place {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) plain: Plain,
}

impl Plain {
    pub(super) fn read(self) -> (Option<Value>, String) {
        match self {
            Self::Number { digits, percent } => {
                let number = Formula::number(&digits);
                let value = Value::Formula(if percent { number.percent() } else { number });
                (Some(value), digits)
            }
            Self::Sum(text) => {
                let latex = text.replace("**", "^").replace('\n', " ");
                let value = Value::read(&latex, Normal { lenient: true });
                let text = if value.is_some() || !text.is_empty() { text } else { String::new() };
                (value, text)
            }
        }
    }
}

/// "final answer", at most 100 characters, "is NUMBER".
pub(super) fn final_answer_is(text: &str) -> Vec<Place> {
    each(text, |at| {
        let after = skip_word(text, at, "final answer")?;
        line_steps(text, after, 100).find_map(|from| {
            let word = skip_space(text, from);
            let is = (word > from && text[word..].starts_with("is")).then_some(word + 2)?;
            let is = is + usize::from(text[is..].starts_with(':'));
            place_at(text, is)
        })
    })
}

/// "answer", a colon perhaps, at most 50 characters (or 100 up to an equals sign), NUMBER that no equals sign follows.
pub(super) fn after_answer(text: &str, colon: bool) -> Vec<Place> {
    each(text, |at| {
        let after = skip_word(text, at, if colon { "answer:" } else { "answer" })?;
        let final_place = |from: usize| {
            place_at(text, from).filter(|(_, end)| !text[skip_space(text, *end)..].starts_with('='))
        };
        let behind_equals = line_steps(text, after, 100)
            .filter(|&from| text[from..].starts_with('='))
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
            .find_map(|from| {
                (from..=skip_space(text, from + 1))
                    .rev()
                    .find_map(|from| text.is_char_boundary(from).then(|| final_place(from)).flatten())
            });
        behind_equals.or_else(|| line_steps(text, after, 50).find_map(final_place))
    })
}

/// Every number and sum.
pub(super) fn anywhere(text: &str) -> Vec<Place> {
    let mut places = each(text, |at| sum_at(text, at));
    places.extend(each(text, |at| number_at(text, at)));
    places
}

fn each(text: &str, matches: impl Fn(usize) -> Option<(Plain, usize)>) -> Vec<Place> {
    let mut found = Vec::new();
    let mut free = 0;
    for (at, _) in text.char_indices() {
        if at < free {
            continue;
        }
        if let Some((plain, end)) = matches(at) {
            found.push(Place { start: at, end, plain });
            free = end.max(at + 1);
        }
    }
    found
}

/// As [`steps`], within the line.
fn line_steps(text: &str, from: usize, most: usize) -> impl Iterator<Item = usize> {
    let end = from + text[from..].find('\n').unwrap_or(text.len() - from);
    steps(text, from, most).take_while(move |&at| at <= end)
}

fn place_at(text: &str, at: usize) -> Option<(Plain, usize)> {
    sum_at(text, at).or_else(|| number_at(text, at))
}

/// Where a word may begin at this place: behind white space or `=`, or at the start; `**` is passed over.
fn beginnings(text: &str, at: usize) -> impl Iterator<Item = usize> {
    let mut starts = Vec::new();
    if let Some(c) = text[at..].chars().next().filter(|&c| c.is_whitespace() || c == '=') {
        starts.push(at + c.len_utf8());
    }
    if at == 0 {
        starts.push(0);
    }
    starts.into_iter().flat_map(move |start| {
        let bold = text[start..].starts_with("**").then_some(start + 2);
        bold.into_iter().chain([start])
    })
}

const CURRENCIES: &str = "$€£¥₹₽₪₩₫฿₡₢₣₤₥₦₧₨₭₮₯₰₱₲₳₴₵₶₷₸₺₻₼₾₿";

fn number_at(text: &str, at: usize) -> Option<(Plain, usize)> {
    beginnings(text, at).find_map(|start| {
        let currency =
            text[start..].chars().next().filter(|&c| CURRENCIES.contains(c)).map_or(0, char::len_utf8);
        let (digits, length) = number(&text[start + currency..])?;
        let end = start + currency + length;
        let sign = skip_space(text, end);
        let percent = ["%", "percentage", "Percentage", "percent", "Percent", "pct", "Pct"]
            .into_iter()
            .find(|word| text[sign..].starts_with(word));
        let end = percent.map_or(end, |word| sign + word.len());
        Some((Plain::Number { digits, percent: percent.is_some() }, end))
    })
}

/// Digits with a point and without leading zeros, and the length of what they were read from.
fn number(text: &str) -> Option<(String, usize)> {
    let minus = usize::from(text.starts_with('-'));
    let count = |from: usize| text[from..].bytes().take_while(u8::is_ascii_digit).count();
    let first = count(minus);
    let decimal = |at: usize, marks: &[char]| {
        text[at..].starts_with(marks).then(|| count(at + 1)).filter(|&digits| digits > 0)
    };
    let whole = |digits: String| {
        let trimmed = if minus == 1 { digits } else { digits.trim_start_matches('0').to_owned() };
        if trimmed.is_empty() { "0".to_owned() } else { trimmed }
    };
    if (1..=3).contains(&first) && !text[minus..].starts_with('0') {
        let mut end = minus + first;
        while text[end..].starts_with([',', ' ']) && count(end + 1) >= 3 {
            end += 4;
        }
        if end > minus + first {
            let point = decimal(end, &['.']).map_or(0, |digits| digits + 1);
            let digits: String = text[..end].chars().filter(|c| !", ".contains(*c)).collect();
            return Some((whole(digits) + &text[end..end + point], end + point));
        }
    }
    if first > 0 {
        let end = minus + first;
        let point = decimal(end, &['.', ',']).map_or(0, |digits| digits + 1);
        let fraction = text[end..end + point].replace(',', ".");
        return Some((whole(text[..end].to_owned()) + &fraction, end + point));
    }
    let digits = decimal(0, &['.'])?;
    Some((format!("0{}", &text[..=digits]), digits + 1))
}

fn sum_at(text: &str, at: usize) -> Option<(Plain, usize)> {
    beginnings(text, at).find_map(|start| {
        let rest = &text[start..];
        let inner = rest.strip_prefix('-').unwrap_or(rest);
        let inner = inner.strip_prefix('(').unwrap_or(inner);
        let inner = inner.strip_prefix('-').unwrap_or(inner);
        if !inner.starts_with(|c: char| c.is_ascii_digit()) {
            return None;
        }
        let head = rest.len() - inner.len() + 1;
        let body: usize = rest[head..]
            .chars()
            .take_while(|&c| c.is_ascii_digit() || c == '.' || c.is_whitespace() || OPERATORS.contains(c))
            .map(char::len_utf8)
            .sum();
        // As long as can be: at least one operator with something behind it, and the end of a word.
        (head..=head + body).rev().filter(|&end| rest.is_char_boundary(end)).find_map(|end| {
            let inside = &rest[head..end];
            let last = inside.chars().next_back().map_or(0, char::len_utf8);
            let operator = inside[..inside.len() - last].contains(|c| OPERATORS.contains(c));
            let after = rest[end..].strip_prefix("**").unwrap_or(&rest[end..]);
            let ends = after.chars().next().is_none_or(|c| c.is_whitespace() || ".,:)$".contains(c));
            if !(operator && ends) {
                return None;
            }
            let closing = after.chars().next().map_or(0, char::len_utf8);
            Some((Plain::Sum(rest[..end].to_owned()), text.len() - after.len() + closing))
        })
    })
}

const OPERATORS: &str = "+-*×/^()÷";

/// The length of `\frac{a}{b}` or `-\frac{a}{b}` of two numbers.
pub(super) fn fraction(text: &str) -> Option<usize> {
    let braced = |at: usize| {
        let inside = text[at..].strip_prefix('{')?;
        let length = inside.find('}')?;
        let digits = inside[..length].strip_prefix('-').unwrap_or(&inside[..length]);
        let (whole, decimal) = digits.split_once(['.', ',']).unwrap_or((digits, "0"));
        let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit());
        (all_digits(whole) && all_digits(decimal)).then_some(at + length + 2)
    };
    let start = usize::from(text.starts_with('-')) + "\\frac".len();
    braced(start).and_then(braced)
}
