//! Contents of LaTeX's `\boxed{}`.

/// How the boxes of a text are taken together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Boxes {
    /// All of them, as a list.
    All,
    /// The last, with those before it that belong to it: fewer than 10 bytes apart, or fewer than 70 with a comma, `;`, "and"
    /// or "or" between them and other content.
    Last,
}

/// The content of the boxes of a text, joined by commas; the text itself if it has none.
pub(super) fn content(text: &str, boxes: Boxes) -> String {
    let mut found: Vec<&str> = Vec::new();
    let mut rest = text.len();
    let mut next_start = None;
    while let Some((start, command)) = last_command(&text[..rest]) {
        let opening = start + command.len();
        let opening = opening + (text[opening..rest].len() - text[opening..rest].trim_start().len());
        let Some(inner) = text[opening..rest].strip_prefix('{') else {
            if found.is_empty() && opening < rest {
                found.push(&text[opening..rest]);
            }
            break;
        };
        let Some(length) = closing(inner) else {
            if found.is_empty() {
                found.push(&text[opening..rest]);
            }
            break;
        };
        let inside = inner[..length].trim();
        if let (Boxes::Last, Some(next)) = (boxes, next_start) {
            let between = &text[opening + 1 + length + 1..next];
            if !belongs(inside, found.last().copied().unwrap_or_default(), between) {
                break;
            }
        }
        if found.last() != Some(&inside) {
            found.push(inside);
        }
        next_start = Some(start);
        rest = start;
    }
    if found.is_empty() {
        return text.to_owned();
    }
    found.reverse();
    found.join(",")
}

fn belongs(inside: &str, next: &str, between: &str) -> bool {
    let separated = || {
        between.contains([',', ';'])
            || between
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|word| word == "and" || word == "or")
    };
    let characters = between.chars().count();
    characters < 10 || (next != inside && characters < 70 && separated())
}

fn last_command(text: &str) -> Option<(usize, &'static str)> {
    ["\\boxed", "\\fbox"].into_iter().filter_map(|command| Some((text.rfind(command)?, command))).max()
}

/// Length of what an opened brace encloses.
pub(super) fn closing(text: &str) -> Option<usize> {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at);
        }
    }
    None
}
