//! A walk through a module's text, statement by statement.

use crate::fault::ParseError;

pub(super) struct Scanner<'a> {
    text: &'a str,
    at: usize,
    line: usize,
}

/// A piece of a kernel's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Statement<'a> {
    Open,
    Close,
    Label(&'a str),
    /// `.reg` and what follows.
    Directive(&'a str, &'a str),
    Instruction(&'a str),
}

impl<'a> Scanner<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        // The driver's interface takes text that ends with a zero.
        Self { text: text.trim_end_matches('\0'), at: 0, line: 1 }
    }

    pub(super) fn line(&self) -> usize {
        self.line
    }

    /// The line of what comes next.
    pub(super) fn line_of_next(&mut self) -> usize {
        self.blank();
        self.line
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn advance(&mut self, bytes: usize) -> &'a str {
        let taken = &self.text[self.at..self.at + bytes];
        self.line += taken.bytes().filter(|&b| b == b'\n').count();
        self.at += bytes;
        taken
    }

    /// Leaves white space and comments behind.
    fn blank(&mut self) {
        loop {
            let rest = self.rest();
            let bytes = if rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                rest.find("*/").map_or(rest.len(), |end| end + 2)
            } else {
                rest.len() - rest.trim_start().len()
            };
            if bytes == 0 {
                return;
            }
            self.advance(bytes);
        }
    }

    /// What comes up to white space.
    pub(super) fn word(&mut self) -> Option<&'a str> {
        self.blank();
        let rest = self.rest();
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        (end > 0).then(|| self.advance(end))
    }

    pub(super) fn skip_line(&mut self) {
        let rest = self.rest();
        self.advance(rest.find('\n').unwrap_or(rest.len()));
    }

    /// What comes before `end`, which is left behind as well.
    pub(super) fn until(&mut self, end: char) -> Result<&'a str, ParseError> {
        let rest = self.rest();
        let Some(bytes) = rest.find(end) else {
            return Err(ParseError { line: self.line, what: format!("`{end}` is missing") });
        };
        let taken = self.advance(bytes);
        self.advance(end.len_utf8());
        Ok(taken)
    }

    /// Leaves everything up to the end of the next pair of braces behind, or up to a `;` that comes before one.
    pub(super) fn skip_braces(&mut self) -> Result<(), ParseError> {
        let rest = self.rest();
        let (open, end) = (rest.find('{'), rest.find(';'));
        if end.is_some_and(|end| open.is_none_or(|open| end < open)) {
            return self.until(';').map(drop);
        }
        self.until('{')?;
        let mut depth = 1;
        while depth > 0 {
            let rest = self.rest();
            let Some(bytes) = rest.find(['{', '}']) else {
                return Err(ParseError { line: self.line, what: "`}` is missing".to_owned() });
            };
            depth += if rest.as_bytes()[bytes] == b'{' { 1 } else { -1 };
            self.advance(bytes + 1);
        }
        Ok(())
    }

    /// The next statement of a body.
    pub(super) fn statement(&mut self) -> Result<Statement<'a>, ParseError> {
        loop {
            self.blank();
            let rest = self.rest();
            match rest.as_bytes().first() {
                None => return Err(ParseError { line: self.line, what: "`}` is missing".to_owned() }),
                Some(b'{') => {
                    self.advance(1);
                    return Ok(Statement::Open);
                }
                Some(b'}') => {
                    self.advance(1);
                    return Ok(Statement::Close);
                }
                Some(b';') => {
                    self.advance(1);
                }
                Some(b'.') => {
                    let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
                    let word = &rest[..end];
                    if matches!(word, ".loc" | ".file") {
                        self.skip_line();
                        continue;
                    }
                    self.advance(end);
                    return Ok(Statement::Directive(word, self.until(';')?));
                }
                Some(_) => {
                    let name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '$' | '%');
                    let end = rest.find(|c: char| !name(c)).unwrap_or(rest.len());
                    if end > 0 && rest[end..].trim_start().starts_with(':') {
                        let label = self.advance(end);
                        self.until(':')?;
                        return Ok(Statement::Label(label));
                    }
                    return Ok(Statement::Instruction(self.until(';')?));
                }
            }
        }
    }

    /// The labels of `.branchtargets`, if they come next.
    pub(super) fn table(&mut self) -> Result<Option<&'a str>, ParseError> {
        self.blank();
        if !self.rest().starts_with(".branchtargets") {
            return Ok(None);
        }
        self.advance(".branchtargets".len());
        self.until(';').map(Some)
    }
}
