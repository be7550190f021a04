//! Tokens of LaTeX.

/// A token of a formula.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// Digits, with a point perhaps, without thousands separators.
    Number(String),
    /// A letter.
    Letter(char),
    /// A command without its backslash.
    Command(String),
    /// The content of `\text{..}`.
    Text(String),
    /// Anything else; `\{` and `\}` are `⟨` and `⟩`, to tell them from braces.
    Mark(char),
}

/// The tokens of a formula, spaces dropped; `None` if a number is malformed.
pub(super) fn tokens(latex: &str) -> Option<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = latex;
    while let Some(c) = rest.chars().next() {
        let length = if c.is_whitespace() || c == '~' {
            c.len_utf8()
        } else if c.is_ascii_digit() || (c == '.' && digits(&rest[1..]) > 0) {
            let (number, length) = number(rest)?;
            tokens.push(Token::Number(number));
            length
        } else if c == '\\' {
            command(rest, &mut tokens)?
        } else {
            tokens.push(if c.is_alphabetic() { Token::Letter(c) } else { Token::Mark(c) });
            c.len_utf8()
        };
        rest = &rest[length..];
    }
    Some(tokens)
}

fn digits(text: &str) -> usize {
    text.bytes().take_while(u8::is_ascii_digit).count()
}

fn number(text: &str) -> Option<(String, usize)> {
    let mut end = digits(text);
    if (1..=3).contains(&end) {
        while text[end..].starts_with(',') && digits(&text[end + 1..]) == 3 {
            end += 4;
        }
    }
    if text[end..].starts_with('.') {
        let fraction = digits(&text[end + 1..]);
        if fraction == 0 {
            return None;
        }
        end += 1 + fraction;
    }
    Some((text[..end].replace(',', ""), end))
}

/// Length of the command; pushes what it stands for.
fn command(text: &str, tokens: &mut Vec<Token>) -> Option<usize> {
    let name: String = text[1..].chars().take_while(char::is_ascii_alphabetic).collect();
    let end = 1 + name.len();
    match name.as_str() {
        "" => {
            let c = text[1..].chars().next()?;
            match c {
                '{' => tokens.push(Token::Mark('⟨')),
                '}' => tokens.push(Token::Mark('⟩')),
                '|' | '%' => tokens.push(Token::Mark(c)),
                // Spacing.
                ',' | ';' | ':' | '!' | ' ' => {}
                _ => return None,
            }
            return Some(1 + c.len_utf8());
        }
        "text" | "mbox" => {
            let open = end + (text[end..].len() - text[end..].trim_start().len());
            let inside = text[open..].strip_prefix('{')?;
            let length = super::boxed::closing(inside)?;
            tokens.push(Token::Text(inside[..length].to_owned()));
            return Some(open + length + 2);
        }
        "quad" | "qquad" => {}
        "lbrace" => tokens.push(Token::Mark('⟨')),
        "rbrace" => tokens.push(Token::Mark('⟩')),
        "lbrack" => tokens.push(Token::Mark('[')),
        "rbrack" => tokens.push(Token::Mark(']')),
        "vert" | "lvert" | "rvert" => tokens.push(Token::Mark('|')),
        "cdot" | "times" | "ast" => tokens.push(Token::Mark('*')),
        "div" => tokens.push(Token::Mark('/')),
        _ => tokens.push(Token::Command(name)),
    }
    Some(end)
}
