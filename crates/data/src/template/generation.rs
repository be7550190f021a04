//! `{% generation %}` blocks: which part of a rendered conversation the assistant said.
//!
//! A block's text is written between two marks, which are taken out of the result; that gives the spans wherever the
//! block stands, in loops and in macros.

use std::ops::Range;

use serde_json::Value;

use super::Rendered;

/// Takes the marks out. Spans are in characters of the text without marks.
pub(super) fn spans(marked: &str, start: char, end: char) -> Rendered {
    let mut text = String::with_capacity(marked.len());
    let mut generated: Vec<Range<usize>> = Vec::new();
    let mut open: Vec<usize> = Vec::new();
    let mut position = 0;
    for c in marked.chars() {
        if c == start {
            open.push(position);
        } else if c == end {
            generated.extend(open.pop().map(|from| from..position));
        } else {
            text.push(c);
            position += 1;
        }
    }
    generated.sort_by_key(|s| (s.start, s.end));
    Rendered { text, generated }
}

/// Collects the mark candidates that occur in a value.
pub(super) fn used(value: &Value, found: &mut Vec<char>) {
    let mut text = |t: &str| found.extend(t.chars().filter(|c| ('\u{fdd0}'..='\u{fdef}').contains(c)));
    match value {
        Value::String(t) => text(t),
        Value::Array(values) => values.iter().for_each(|v| used(v, found)),
        Value::Object(map) => {
            map.keys().for_each(|k| text(k));
            map.values().for_each(|v| used(v, found));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_counted_in_characters() {
        let r = spans("é\u{fdd0}ß\u{fdd1}x\u{fdd0}\u{fdd1}", '\u{fdd0}', '\u{fdd1}');
        assert_eq!((r.text.as_str(), r.generated), ("éßx", vec![1..2, 3..3]));
    }
}
