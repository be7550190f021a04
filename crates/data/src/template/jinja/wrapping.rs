//! The filter `wordwrap`: lines of a width, broken between words and behind hyphens as Python's `textwrap` breaks them.

use super::call::{Given, integer, string};
use super::fault::{Outcome, wrong};
use super::machine::Machine;
use super::text::lines;
use super::value::Value;

pub(super) fn wordwrap(machine: &Machine<'_>, given: Given) -> Outcome<Value> {
    let names = ["s", "width", "break_long_words", "wrapstring", "break_on_hyphens"];
    let [value, width, long, end, hyphens] = given.bind("wordwrap", names, 1)?;
    let text = string("wordwrap", &value.unwrap_or(Value::None))?;
    let width = width.map_or(Ok(79), |w| integer("wordwrap", &w))?;
    let Some(width) = usize::try_from(width).ok().filter(|w| *w > 0) else {
        return wrong(format!("wordwrap: invalid width {width} (must be > 0)"));
    };
    let end = match end {
        None | Some(Value::None) => "\n".into(),
        Some(end) => string("wordwrap", &end)?,
    };
    let long = long.is_none_or(|l| l.truth());
    let hyphens = hyphens.is_none_or(|h| h.truth());
    machine.meter.text(text.len().saturating_mul(1 + end.len()))?;
    let wrapped = lines(&text, false).into_iter().map(|line| wrap(line, width, long, hyphens).join(&*end));
    Ok(Value::text(wrapped.collect::<Vec<_>>().join(&*end)))
}

/// Words, and the spaces between them.
fn chunks(line: &str, hyphens: bool) -> Vec<Vec<char>> {
    let mut out: Vec<Vec<char>> = Vec::new();
    let mut current: Vec<char> = Vec::new();
    let chars: Vec<char> = line.chars().collect();
    for (at, &c) in chars.iter().enumerate() {
        let space = matches!(c, ' ' | '\t' | '\u{b}' | '\u{c}');
        let was_space = current.last().is_some_and(|c| matches!(c, ' ' | '\t' | '\u{b}' | '\u{c}'));
        if !current.is_empty() && space != was_space {
            out.push(std::mem::take(&mut current));
        }
        current.push(c);
        let letters = |range: std::ops::Range<usize>| {
            range.len() == 2 && chars.get(range).is_some_and(|c| c.iter().all(|c| c.is_alphabetic()))
        };
        if hyphens && c == '-' && at >= 2 && letters(at - 2..at) && letters(at + 1..at + 3) {
            out.push(std::mem::take(&mut current));
        }
    }
    if !current.is_empty() {
        out.push(current);
    }
    out
}

fn wrap(line: &str, width: usize, long: bool, hyphens: bool) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut rest = chunks(line, hyphens);
    rest.reverse();
    let blank = |chunk: &[char]| chunk.iter().all(|c| c.is_whitespace());
    while !rest.is_empty() {
        let mut current: Vec<Vec<char>> = Vec::new();
        let mut used = 0;
        if !out.is_empty() && rest.last().is_some_and(|chunk| blank(chunk)) {
            rest.pop();
        }
        while let Some(chunk) = rest.pop_if(|chunk| used + chunk.len() <= width) {
            used += chunk.len();
            current.push(chunk);
        }
        if let Some(chunk) = rest.last_mut().filter(|chunk| chunk.len() > width) {
            if long {
                let room = width.saturating_sub(used).max(1);
                let tail = chunk.split_off(room);
                current.push(std::mem::replace(chunk, tail));
            } else if current.is_empty() {
                current.extend(rest.pop());
            }
        }
        if current.last().is_some_and(|chunk| blank(chunk)) {
            current.pop();
        }
        if !current.is_empty() {
            out.push(current.concat().into_iter().collect());
        }
    }
    out
}
