//! A template's source as tokens, by the rules of jinja2's lexer with `trim_blocks` and `lstrip_blocks`.

use std::sync::Arc;

use super::fault::{Fault, Outcome};
use super::text::is_space;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    Data(Arc<str>),
    VariableBegin,
    VariableEnd,
    BlockBegin,
    BlockEnd,
    Name(Arc<str>),
    Text(Arc<str>),
    Integer(i128),
    Float(f64),
    Operator(&'static str),
    End,
}

#[derive(Clone, Debug)]
pub(super) struct Token {
    pub(super) line: u32,
    pub(super) kind: Kind,
}

impl Token {
    /// What the token is, for messages.
    pub(super) fn describe(&self) -> String {
        match &self.kind {
            Kind::Data(_) => "template text".to_owned(),
            Kind::VariableBegin => "begin of print statement".to_owned(),
            Kind::VariableEnd => "end of print statement".to_owned(),
            Kind::BlockBegin => "begin of statement block".to_owned(),
            Kind::BlockEnd => "end of statement block".to_owned(),
            Kind::Name(name) => name.to_string(),
            Kind::Text(text) => format!("{:?}", &**text),
            Kind::Integer(n) => n.to_string(),
            Kind::Float(f) => f.to_string(),
            Kind::Operator(op) => (*op).to_owned(),
            Kind::End => "end of template".to_owned(),
        }
    }
}

/// Longest first, so that the first match is the right one.
const OPERATORS: [&str; 25] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
    "=", ".", ":", "|", ",",
];

struct Lexer<'s> {
    source: &'s str,
    position: usize,
    /// Lines before `counted`.
    line: u32,
    counted: usize,
    tokens: Vec<Token>,
    /// Whether the last match ended a line.
    line_starting: bool,
}

/// Splits a source into tokens; the last is [`Kind::End`].
pub(super) fn tokens(source: &str) -> Outcome<Vec<Token>> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer =
        Lexer { source, position: 0, line: 1, counted: 0, tokens: Vec::new(), line_starting: true };
    lexer.root()?;
    lexer.push(Kind::End);
    Ok(lexer.tokens)
}

impl<'s> Lexer<'s> {
    fn rest(&self) -> &'s str {
        &self.source[self.position..]
    }

    fn push(&mut self, kind: Kind) {
        let line = self.line_here();
        self.tokens.push(Token { line, kind });
    }

    /// The line of the position.
    fn line_here(&mut self) -> u32 {
        if self.position > self.counted {
            let lines = self.source[self.counted..self.position].matches('\n').count();
            self.line = self.line.saturating_add(u32::try_from(lines).unwrap_or(u32::MAX));
            self.counted = self.position;
        }
        self.line
    }

    fn fail<T>(&mut self, message: impl Into<String>) -> Outcome<T> {
        Err(Fault::syntax(message, self.line_here()))
    }

    /// Goes on by some bytes and remembers whether they end a line.
    fn advance(&mut self, bytes: usize) {
        if bytes > 0 {
            self.line_starting = self.source[..self.position + bytes].ends_with('\n');
        }
        self.position += bytes;
    }

    fn data(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Kind::Data(Arc::from(text)));
        }
    }

    fn root(&mut self) -> Outcome<()> {
        loop {
            let rest = self.rest();
            let Some(at) = next_tag(rest) else {
                self.data(rest);
                self.advance(rest.len());
                return Ok(());
            };
            let (text, tag) = rest.split_at(at);
            let sign = tag[2..].chars().next().filter(|c| matches!(c, '-' | '+'));
            self.data(stripped(text, sign, !tag.starts_with("{{"), self.line_starting));
            if let Some(length) = raw_begin(tag) {
                self.advance(at + length);
                self.raw()?;
                continue;
            }
            let begin = 2 + usize::from(sign.is_some());
            self.position += at;
            if tag.starts_with("{#") {
                self.advance(begin);
                self.comment()?;
                continue;
            }
            let block = tag.starts_with("{%");
            self.push(if block { Kind::BlockBegin } else { Kind::VariableBegin });
            self.advance(begin);
            self.expression(block)?;
        }
    }

    fn comment(&mut self) -> Outcome<()> {
        let rest = self.rest();
        let Some(end) = rest.find("#}") else { return self.fail("Missing end of comment tag") };
        let after = &rest[end + 2..];
        let before = rest[..end].chars().next_back();
        // The sign belongs to the end unless it is the start's own.
        let trimmed = match before {
            Some('-') => spaces(after),
            Some('+') => 0,
            _ => usize::from(after.starts_with('\n')),
        };
        self.advance(end + 2 + trimmed);
        Ok(())
    }

    fn raw(&mut self) -> Outcome<()> {
        let rest = self.rest();
        let mut from = 0;
        while let Some(at) = rest[from..].find("{%").map(|at| at + from) {
            let tag = &rest[at + 2..];
            let sign = tag.chars().next().filter(|c| matches!(c, '-' | '+'));
            let word = &tag[usize::from(sign.is_some())..];
            let word = &word[spaces(word)..];
            if let Some(close) = word.strip_prefix("endraw") {
                let close = &close[spaces(close)..];
                if let Some(length) = block_end(close) {
                    self.data(stripped(&rest[..at], sign, true, self.line_starting));
                    let end = rest.len() - close.len() + length;
                    self.advance(end);
                    return Ok(());
                }
            }
            from = at + 2;
        }
        self.fail("Missing end of raw directive")
    }

    /// Tokens up to the end of a block or variable tag.
    fn expression(&mut self, block: bool) -> Outcome<()> {
        let mut open: Vec<char> = Vec::new();
        loop {
            let rest = self.rest();
            let Some(first) = rest.chars().next() else { return Ok(()) };
            if open.is_empty() {
                let end = if block { block_end(rest) } else { variable_end(rest) };
                if let Some(length) = end {
                    self.push(if block { Kind::BlockEnd } else { Kind::VariableEnd });
                    self.advance(length);
                    return Ok(());
                }
            }
            if is_space(first) {
                self.advance(spaces(rest));
                continue;
            }
            if first.is_ascii_digit() {
                self.number()?;
                continue;
            }
            if first.is_alphanumeric() || first == '_' {
                let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                self.push(Kind::Name(Arc::from(&rest[..length])));
                self.advance(length);
                continue;
            }
            if matches!(first, '\'' | '"')
                && let Some(length) = string_end(rest, first)
            {
                let Some(text) = unescaped(&rest[1..length - 1]) else {
                    return self.fail("an escape of a string that cannot be decoded");
                };
                self.push(Kind::Text(Arc::from(text)));
                self.advance(length);
                continue;
            }
            let Some(operator) = OPERATORS.iter().find(|op| rest.starts_with(**op)) else {
                return self.fail(format!("unexpected char {first:?}"));
            };
            match *operator {
                "{" => open.push('}'),
                "(" => open.push(')'),
                "[" => open.push(']'),
                "}" | ")" | "]" => match open.pop() {
                    None => return self.fail(format!("unexpected '{operator}'")),
                    Some(expected) if !operator.starts_with(expected) => {
                        return self.fail(format!("unexpected '{operator}', expected '{expected}'"));
                    }
                    Some(_) => {}
                },
                _ => {}
            }
            self.push(Kind::Operator(operator));
            self.advance(operator.len());
        }
    }

    fn number(&mut self) -> Outcome<()> {
        let rest = self.rest();
        let after_dot = self.source[..self.position].ends_with('.');
        if let Some(length) = float_length(rest).filter(|_| !after_dot) {
            let text = rest[..length].replace('_', "");
            let Ok(value) = text.parse() else { return self.fail("a number that cannot be read") };
            self.push(Kind::Float(value));
            self.advance(length);
            return Ok(());
        }
        let (radix, prefix) = match rest.get(..2).map(str::to_ascii_lowercase).as_deref() {
            Some("0b") => (2, 2),
            Some("0o") => (8, 2),
            Some("0x") => (16, 2),
            _ => (10, 0),
        };
        let mut length = prefix + digits(&rest[prefix..], radix, prefix > 0);
        let (mut radix, mut prefix) = (radix, prefix);
        if length == prefix && prefix > 0 {
            (radix, prefix, length) = (10, 0, 1);
        }
        if prefix == 0 && rest.starts_with('0') {
            // A decimal with a leading zero is zeros only.
            length = 1 + rest[1..].find(|c| !matches!(c, '0' | '_')).unwrap_or(rest.len() - 1);
            length = rest[..length].trim_end_matches('_').len();
        }
        let text = rest[prefix..length].replace('_', "");
        let Ok(value) = i128::from_str_radix(&text, radix) else {
            return self.fail(format!("the integer {text} is out of range"));
        };
        self.push(Kind::Integer(value));
        self.advance(length);
        Ok(())
    }
}

/// The next `{{`, `{%` or `{#`.
fn next_tag(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    (0..bytes.len().saturating_sub(1))
        .find(|&i| bytes[i] == b'{' && matches!(bytes[i + 1], b'{' | b'%' | b'#'))
}

/// The text before a tag, with what the tag's sign or `lstrip_blocks` takes from it.
fn stripped(text: &str, sign: Option<char>, block: bool, line_starting: bool) -> &str {
    match sign {
        Some('-') => text.trim_end_matches(is_space),
        Some(_) => text,
        None if block => {
            let line = text.rfind('\n').map_or(0, |at| at + 1);
            let blank = !text[line..].is_empty() && text[line..].chars().all(is_space);
            if blank && (line > 0 || line_starting) { &text[..line] } else { text }
        }
        None => text,
    }
}

/// The length of a `{% raw %}` tag; a newline after it stays.
fn raw_begin(tag: &str) -> Option<usize> {
    let body = tag.strip_prefix("{%")?;
    let body = body.strip_prefix(['-', '+']).unwrap_or(body);
    let body = body[spaces(body)..].strip_prefix("raw")?;
    let close = &body[spaces(body)..];
    let length = match close.strip_prefix("-%}") {
        Some(after) => 3 + spaces(after),
        None => close.starts_with("%}").then_some(2)?,
    };
    Some(tag.len() - close.len() + length)
}

fn block_end(text: &str) -> Option<usize> {
    if text.starts_with("+%}") {
        Some(3)
    } else if let Some(after) = text.strip_prefix("-%}") {
        Some(3 + spaces(after))
    } else {
        let after = text.strip_prefix("%}")?;
        Some(2 + usize::from(after.starts_with('\n')))
    }
}

fn variable_end(text: &str) -> Option<usize> {
    match text.strip_prefix("-}}") {
        Some(after) => Some(3 + spaces(after)),
        None => text.starts_with("}}").then_some(2),
    }
}

/// Bytes of white space at the start.
fn spaces(text: &str) -> usize {
    text.find(|c| !is_space(c)).unwrap_or(text.len())
}

/// Bytes of digits that underscores may separate; `separated` allows one in front.
fn digits(text: &str, radix: u32, separated: bool) -> usize {
    let (mut length, mut underscore) = (0, !separated);
    for (at, c) in text.char_indices() {
        if c.is_digit(radix) {
            (length, underscore) = (at + 1, false);
        } else if c == '_' && !underscore {
            underscore = true;
        } else {
            break;
        }
    }
    length
}

/// The length of a float at the start, if there is one.
fn float_length(text: &str) -> Option<usize> {
    let whole = digits(text, 10, false);
    if whole == 0 {
        return None;
    }
    let fraction =
        text[whole..].strip_prefix('.').map(|f| digits(f, 10, false)).filter(|&d| d > 0).map(|d| d + 1);
    let mantissa = whole + fraction.unwrap_or(0);
    let exponent = text[mantissa..].strip_prefix(['e', 'E']).and_then(|e| {
        let signed = e.strip_prefix(['+', '-']).unwrap_or(e);
        let count = digits(signed, 10, false);
        (count > 0).then_some(1 + e.len() - signed.len() + count)
    });
    match (fraction, exponent) {
        (_, Some(exponent)) => Some(mantissa + exponent),
        (Some(_), None) => Some(mantissa),
        (None, None) => None,
    }
}

/// The length of a string with its quotes.
fn string_end(text: &str, quote: char) -> Option<usize> {
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        if c == '\\' {
            chars.next()?;
        } else if c == quote {
            return Some(at + 1);
        }
    }
    None
}

/// Python's escapes; one that it does not know stays as it is.
fn unescaped(text: &str) -> Option<String> {
    if !text.contains('\\') {
        return Some(text.to_owned());
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let c = rest.chars().next()?;
        rest = &rest[c.len_utf8()..];
        let code = |length: usize, rest: &mut &str| {
            let digits = rest.get(..length)?;
            let code = u32::from_str_radix(digits, 16).ok()?;
            *rest = &rest[length..];
            Some(code)
        };
        match c {
            '\n' => {}
            '\\' | '\'' | '"' => out.push(c),
            'a' => out.push('\u{7}'),
            'b' => out.push('\u{8}'),
            'f' => out.push('\u{c}'),
            'n' => out.push('\n'),
            'r' => out.push('\r'),
            't' => out.push('\t'),
            'v' => out.push('\u{b}'),
            'x' => out.push(char::from_u32(code(2, &mut rest)?)?),
            'u' => out.push(char::from_u32(code(4, &mut rest)?).unwrap_or('\u{fffd}')),
            'U' => out.push(char::from_u32(code(8, &mut rest)?)?),
            'N' => return None,
            '0'..='7' => {
                let more = rest.bytes().take(2).take_while(|b| (b'0'..=b'7').contains(b)).count();
                let octal = format!("{c}{}", &rest[..more]);
                rest = &rest[more..];
                out.push(char::from_u32(u32::from_str_radix(&octal, 8).ok()?)?);
            }
            other => {
                out.push('\\');
                out.push(other);
            }
        }
    }
    out.push_str(rest);
    Some(out)
}
