//! Characters and texts as Python sees them: white space, digits, case, escapes, slices.

use std::fmt::Write;
use std::sync::Arc;

use super::fault::Outcome;
use super::value::Value;
use crate::template::bounds::Meter;

/// Python's `str.isspace`.
pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// The zeros of the decimal digits that are not ASCII.
const ZEROS: [u32; 38] = [
    0x660, 0x6f0, 0x7c0, 0x966, 0x9e6, 0xa66, 0xae6, 0xb66, 0xbe6, 0xc66, 0xce6, 0xd66, 0xde6, 0xe50, 0xed0,
    0xf20, 0x1040, 0x1090, 0x17e0, 0x1810, 0x1946, 0x19d0, 0x1a80, 0x1a90, 0x1b50, 0x1bb0, 0x1c40, 0x1c50,
    0xa620, 0xa8d0, 0xa900, 0xa9d0, 0xa9f0, 0xaa50, 0xabf0, 0xff10, 0x104a0, 0x11066,
];

/// The value of a decimal digit of any script.
pub(super) fn decimal(c: char) -> Option<u32> {
    c.to_digit(10).or_else(|| {
        let code = u32::from(c);
        ZEROS.iter().find(|zero| (**zero..**zero + 10).contains(&code)).map(|zero| code - zero)
    })
}

/// Python's `str.isdigit` of a character: decimals, and digits in superscript, subscript and circles.
pub(super) fn is_digit(c: char) -> bool {
    decimal(c).is_some()
        || matches!(c, '²' | '³' | '¹' | '\u{2070}' | '\u{2074}'..='\u{2079}' | '\u{2080}'..='\u{2089}'
            | '\u{1369}'..='\u{1371}' | '\u{2460}'..='\u{2468}' | '\u{2474}'..='\u{247c}' | '\u{2488}'..='\u{2490}'
            | '\u{24ea}' | '\u{24f5}'..='\u{24fd}' | '\u{24ff}' | '\u{2776}'..='\u{277e}'
            | '\u{2780}'..='\u{2788}' | '\u{278a}'..='\u{2792}')
}

/// A character with its case, as Python's `title` and `capitalize` begin words.
pub(super) fn push_title(out: &mut String, c: char) {
    match c {
        'Ǆ' | 'ǅ' | 'ǆ' => out.push('ǅ'),
        'Ǉ' | 'ǈ' | 'ǉ' => out.push('ǈ'),
        'Ǌ' | 'ǋ' | 'ǌ' => out.push('ǋ'),
        'Ǳ' | 'ǲ' | 'ǳ' => out.push('ǲ'),
        _ => {
            let mut upper = c.to_uppercase();
            out.extend(upper.next());
            upper.for_each(|more| out.extend(more.to_lowercase()));
        }
    }
}

/// Whether a character has case.
pub(super) fn is_cased(c: char) -> bool {
    c.is_uppercase() || c.is_lowercase() || matches!(c, 'ǅ' | 'ǈ' | 'ǋ' | 'ǲ')
}

pub(super) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let mut out = String::with_capacity(text.len());
    if let Some(first) = chars.next() {
        push_title(&mut out, first);
        out += &lower_after(text, first.len_utf8());
    }
    out
}

/// The lower case of the rest of a text, seen in its whole (a final sigma depends on what is before it).
fn lower_after(text: &str, from: usize) -> String {
    let lower = text.to_lowercase();
    let first = text[..from].to_lowercase();
    lower.get(first.len()..).map_or_else(|| text[from..].to_lowercase(), str::to_owned)
}

/// Python's `str.title`: every run of letters with case begins upper and goes on lower.
pub(super) fn title(text: &str) -> String {
    let lower: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    for c in lower {
        if inside {
            out.extend(c.to_lowercase());
        } else {
            push_title(&mut out, c);
        }
        inside = is_cased(c);
    }
    out
}

/// Whether Python prints a character as it is in a `repr`.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    // Behind a letter the standard library escapes exactly what cannot be printed.
    let mut text = String::from("a");
    text.push(c);
    format!("{text:?}").len() == text.len() + 2
}

/// Python's `repr` of a text.
pub(super) fn repr(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        let code = u32::from(c);
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            _ => {
                let _ = match code {
                    0..=0xff => write!(out, "\\x{code:02x}"),
                    0x100..=0xffff => write!(out, "\\u{code:04x}"),
                    _ => write!(out, "\\U{code:08x}"),
                };
            }
        }
    }
    out.push(quote);
}

/// Text made safe for HTML, as markupsafe does.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// Lines as Python's `splitlines` finds them, with their ends if asked for.
pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut out = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let ends = matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        );
        if !ends {
            continue;
        }
        let mut next = at + c.len_utf8();
        if c == '\r' && chars.peek().is_some_and(|(_, c)| *c == '\n') {
            chars.next();
            next += 1;
        }
        out.push(&text[start..if keep_ends { next } else { at }]);
        start = next;
    }
    if start < text.len() {
        out.push(&text[start..]);
    }
    out
}

/// The byte of a character's place; the length for places past the end.
pub(super) fn byte_of(text: &str, chars: usize) -> usize {
    if text.is_ascii() {
        return chars.min(text.len());
    }
    text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at)
}

/// A text repeated.
pub(super) fn repeated(meter: &Meter, text: &str, safe: bool, times: i128) -> Outcome<Value> {
    let times = usize::try_from(times.max(0)).unwrap_or(usize::MAX);
    meter.text(text.len().saturating_mul(times))?;
    Ok(Value::Text(Arc::from(if text.is_empty() { String::new() } else { text.repeat(times) }), safe))
}

/// Python's indices of a slice of so many elements.
pub(super) fn slice_indices(bounds: [Option<i128>; 3], length: usize) -> Option<(i128, i128, i128)> {
    let length = length as i128;
    let step = bounds[2].unwrap_or(1);
    if step == 0 {
        return None;
    }
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let place = |bound: Option<i128>, default: i128| match bound {
        None => default,
        Some(b) if b < 0 => b.saturating_add(length).max(low),
        Some(b) => b.min(high),
    };
    let (first, last) = if step > 0 { (low, high) } else { (high, low) };
    Some((place(bounds[0], first), place(bounds[1], last), step))
}

/// The places that a slice takes, in order.
pub(super) fn slice_places((start, stop, step): (i128, i128, i128)) -> impl Iterator<Item = usize> {
    let mut at = start;
    std::iter::from_fn(move || {
        if (step > 0 && at >= stop) || (step < 0 && at <= stop) {
            return None;
        }
        let here = usize::try_from(at).ok()?;
        at = at.saturating_add(step);
        Some(here)
    })
}
