//! `{% generation %}` blocks: which part of a rendered conversation the assistant said.
//!
//! The engine has no such block, so it is rewritten to a filter block of the same extent (whitespace control is
//! lexical and stays as written). The filter puts a mark before and after its text, and the marks are taken out of
//! the result, which gives the spans wherever the block stands, in loops and in macros.

use std::fmt::Write;
use std::ops::Range;

use serde_json::Value;

use super::Rendered;

/// The filter's name, which no template uses.
pub(super) const FILTER: &str = "__generation__";
/// The variable that carries the two marks of a rendering.
pub(super) const MARKS: &str = "__generation_marks__";

/// Rewrites the blocks; the flag says whether there was one.
pub(super) fn rewrite(source: &str) -> (String, bool) {
    // As jinja2, line ends are normalised first.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len() + 64);
    let mut rest = source.as_str();
    let (mut found, mut raw) = (false, false);
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(comment) = rest.strip_prefix("{#").filter(|_| !raw) {
            let end = comment.find("#}").map_or(rest.len(), |e| e + 4);
            out.push_str(&rest[..end]);
            rest = &rest[end..];
            continue;
        }
        let Some((length, open, word, close)) = tag(rest) else {
            out.push('{');
            rest = &rest[1..];
            continue;
        };
        match word {
            "generation" if !raw => {
                found = true;
                let _ = write!(out, "{open} filter {FILTER} {close}");
            }
            "endgeneration" if !raw => {
                let _ = write!(out, "{open} endfilter {close}");
            }
            _ => {
                raw = (raw || word == "raw") && word != "endraw";
                out.push_str(&rest[..length]);
            }
        }
        rest = &rest[length..];
    }
    out.push_str(rest);
    (out, found)
}

/// A block tag of a single word at the start of `text`: its length, opening, word, closing.
fn tag(text: &str) -> Option<(usize, &str, &str, &str)> {
    let inner = text.strip_prefix("{%")?;
    let open = if inner.starts_with(['-', '+']) { &text[..3] } else { &text[..2] };
    let body = &text[open.len()..];
    let word_at = body.find(|c: char| !c.is_whitespace())?;
    let word = &body[word_at..];
    let word = &word[..word.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(word.len())];
    let after = &body[word_at + word.len()..];
    let close_at = after.find(|c: char| !c.is_whitespace())?;
    let close = &after[close_at..];
    let close = if close.starts_with("%}") {
        &close[..2]
    } else if close.starts_with("-%}") || close.starts_with("+%}") {
        &close[..3]
    } else {
        return None;
    };
    Some((open.len() + word_at + word.len() + close_at + close.len(), open, word, close))
}

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
    fn only_block_tags_outside_comments_and_raw_are_rewritten() {
        let (text, found) = rewrite("a{%- generation -%}b{% endgeneration %}c");
        assert!(found);
        assert_eq!(text, format!("a{{%- filter {FILTER} -%}}b{{% endfilter %}}c"));
        for same in [
            "{# {% generation %} #}",
            "{% raw %}{% generation %}{% endraw %}",
            "{% if generation %}{% endif %}",
        ] {
            assert_eq!(rewrite(same), (same.to_owned(), false));
        }
    }

    #[test]
    fn spans_are_counted_in_characters() {
        let r = spans("é\u{fdd0}ß\u{fdd1}x\u{fdd0}\u{fdd1}", '\u{fdd0}', '\u{fdd1}');
        assert_eq!((r.text.as_str(), r.generated), ("éßx", vec![1..2, 3..3]));
    }
}
