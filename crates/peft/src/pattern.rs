//! Python regular expressions on module names.

use fancy_regex::Regex;

use crate::PeftError;

/// `re.fullmatch(pattern, name)`.
pub(crate) fn whole(key: &'static str, pattern: &str) -> Result<Matcher, PeftError> {
    compile(key, pattern, &format!(r"\A(?:{})\z", python(pattern)))
}

/// `re.match(rf"(.*\.)?({pattern})$", name)`.
pub(crate) fn suffix(key: &'static str, pattern: &str) -> Result<Matcher, PeftError> {
    compile(key, pattern, &format!(r"\A(?:(.*\.)?({})$)", python(pattern)))
}

/// `re.match(rf".*\.{pattern}$", name)`: a module inside another.
pub(crate) fn behind_dot(key: &'static str, pattern: &str) -> Result<Matcher, PeftError> {
    compile(key, pattern, &format!(r"\A(?:.*\.{}$)", python(pattern)))
}

/// `re.match(rf"(^|.*\.){pattern}($|\..*)", name)`: a module or anything inside it.
pub(crate) fn inside(key: &'static str, pattern: &str) -> Result<Matcher, PeftError> {
    compile(key, pattern, &format!(r"\A(?:(^|.*\.){}($|\..*))", python(pattern)))
}

/// `re.match(rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\.", name)`: the layer's number after its list's name.
pub(crate) fn layer_index(pattern: &str) -> Result<Matcher, PeftError> {
    compile("layers_pattern", pattern, &format!(r"\A(?:(?:^|.*?\.){}\.(?P<idx>\d+)\.)", python(pattern)))
}

/// The layer's number as the first number in a path that follows a name.
pub(crate) fn first_number() -> Result<Matcher, PeftError> {
    compile("layers_to_transform", "", r"\A(?:.*?\.[^.]*\.(?P<idx>\d+)\.)")
}

/// A compiled pattern that remembers what it was compiled for.
pub(crate) struct Matcher {
    key: &'static str,
    pattern: String,
    regex: Regex,
}

fn compile(key: &'static str, pattern: &str, wrapped: &str) -> Result<Matcher, PeftError> {
    match Regex::new(wrapped) {
        Ok(regex) => Ok(Matcher { key, pattern: pattern.to_owned(), regex }),
        Err(e) => Err(PeftError::BadPattern { key, pattern: pattern.to_owned(), reason: e.to_string() }),
    }
}

/// Spells what Python writes differently: `{,n}` is `{0,n}`, `\Z` is the very end.
fn python(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('Z') => out.push_str(r"\z"),
                Some(escaped) => out.extend(['\\', escaped]),
                None => out.push('\\'),
            },
            '{' if chars.peek() == Some(&',') => out.push_str("{0"),
            c => out.push(c),
        }
    }
    out
}

impl Matcher {
    /// Whether the name matches.
    pub(crate) fn matches(&self, name: &str) -> Result<bool, PeftError> {
        self.regex.is_match(name).map_err(|e| self.failed(&e))
    }

    /// The number captured as `idx`.
    pub(crate) fn index(&self, name: &str) -> Result<Option<i64>, PeftError> {
        let captures = self.regex.captures(name).map_err(|e| self.failed(&e))?;
        Ok(captures.and_then(|c| c.name("idx")?.as_str().parse().ok()))
    }

    fn failed(&self, error: &fancy_regex::Error) -> PeftError {
        PeftError::BadPattern { key: self.key, pattern: self.pattern.clone(), reason: error.to_string() }
    }
}
