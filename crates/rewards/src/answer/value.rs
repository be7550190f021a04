//! `Value`: a parsed answer: number, interval, set, tuple, relation or expression.

use std::collections::HashSet;

use super::formula::{Formula, Function};
use super::normal::Normal;
use super::tokens::{Token, tokens};

/// What an answer says.
#[derive(Clone, Debug)]
pub(super) enum Value {
    /// A number, a word, a formula.
    Formula(Formula),
    /// Sides with the relations between them: `1 < x < 2`.
    Relation(Vec<Value>, Vec<Relation>),
    /// Several values in any order.
    Set(Vec<Value>),
    /// Several values in their order.
    Tuple(Vec<Value>),
    /// Two bounds, and whether each belongs to it.
    Interval(Box<[Value; 2]>, [bool; 2]),
    /// Sets taken together.
    Union(Vec<Value>),
}

/// How two sides relate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Relation {
    /// The same with its sides exchanged.
    pub(super) fn turned(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
            same => same,
        }
    }

    fn of(token: &Token) -> Option<Self> {
        Some(match token {
            Token::Mark('=') => Self::Equal,
            Token::Mark('<') => Self::Less,
            Token::Mark('>') => Self::Greater,
            Token::Mark('≤') => Self::LessOrEqual,
            Token::Mark('≥') => Self::GreaterOrEqual,
            Token::Command(name) => match name.as_str() {
                "in" | "equiv" => Self::Equal,
                "neq" | "ne" => Self::Unequal,
                "lt" => Self::Less,
                "gt" => Self::Greater,
                "le" | "leq" | "leqslant" => Self::LessOrEqual,
                "ge" | "geq" | "geqslant" => Self::GreaterOrEqual,
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// Longer formulas are compared as text: reading them nests as deep as they are long.
const MOST_TOKENS: usize = 400;

impl Value {
    /// What LaTeX says; `None` if that is beyond this reader.
    pub(super) fn read(latex: &str, how: Normal) -> Option<Self> {
        let tokens = tokens(latex).filter(|tokens| tokens.len() <= MOST_TOKENS)?;
        let sign = |token: &Token| matches!(token, Token::Command(name) if name == "pm" || name == "mp");
        if tokens.iter().any(sign) {
            let with = |upper: bool| {
                let tokens: Vec<Token> = tokens
                    .iter()
                    .map(|token| match token {
                        Token::Command(name) if name == "pm" => Token::Mark(if upper { '+' } else { '-' }),
                        Token::Command(name) if name == "mp" => Token::Mark(if upper { '-' } else { '+' }),
                        other => other.clone(),
                    })
                    .collect();
                list(&tokens, how)
            };
            return Some(Self::Set(vec![with(true)?, with(false)?]));
        }
        list(&tokens, how)
    }

    /// Several values, those of sets taken out of them.
    pub(super) fn list(values: Vec<Self>) -> Self {
        let parts = values.into_iter().flat_map(|value| match value {
            Self::Set(parts) => parts,
            other => vec![other],
        });
        Self::Set(parts.collect())
    }

    pub(super) fn percent(self) -> Self {
        match self {
            Self::Formula(formula) => Self::Formula(formula.percent()),
            other => other,
        }
    }
}

/// Parts between marks outside of all brackets.
fn split(tokens: &[Token], at: impl Fn(&Token) -> bool) -> Option<Vec<&[Token]>> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0_usize, 0);
    for (i, token) in tokens.iter().enumerate() {
        match token {
            Token::Mark('(' | '[' | '{' | '⟨') => depth += 1,
            Token::Mark(')' | ']' | '}' | '⟩') => depth = depth.checked_sub(1)?,
            token if depth == 0 && at(token) => {
                parts.push(&tokens[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&tokens[start..]);
    (depth == 0).then_some(parts)
}

fn comma(token: &Token) -> bool {
    matches!(token, Token::Mark(',' | ';'))
}

fn list(tokens: &[Token], how: Normal) -> Option<Value> {
    let parts = split(tokens, comma)?;
    if parts.len() == 1 {
        return relation(parts[0], how);
    }
    let values = parts.into_iter().map(|part| relation(part, how)).collect::<Option<Vec<_>>>()?;
    Some(Value::list(values))
}

fn relation(tokens: &[Token], how: Normal) -> Option<Value> {
    let parts = split(tokens, |token| Relation::of(token).is_some())?;
    if parts.len() == 1 {
        return union(tokens, how);
    }
    let mut relations = Vec::new();
    let mut end = 0;
    for part in &parts[..parts.len() - 1] {
        end += part.len();
        relations.push(Relation::of(&tokens[end])?);
        end += 1;
    }
    let sides = parts.into_iter().map(|part| union(part, how)).collect::<Option<Vec<_>>>()?;
    Some(Value::Relation(sides, relations))
}

fn union(tokens: &[Token], how: Normal) -> Option<Value> {
    let cup =
        |token: &Token| matches!(token, Token::Command(name) if name == "cup") || *token == Token::Mark('∪');
    let parts = split(tokens, cup)?;
    if parts.len() == 1 {
        return bracketed(tokens, how);
    }
    parts.into_iter().map(|part| bracketed(part, how)).collect::<Option<Vec<_>>>().map(Value::Union)
}

/// A list in brackets, or a formula.
fn bracketed(tokens: &[Token], how: Normal) -> Option<Value> {
    if let [Token::Mark(open @ ('(' | '[' | '⟨')), inside @ .., Token::Mark(close @ (')' | ']' | '⟩'))] =
        tokens
        && let Some(parts) = split(inside, comma)
        && (parts.len() > 1 || *open == '⟨')
    {
        let values = parts.into_iter().map(|part| relation(part, how)).collect::<Option<Vec<_>>>()?;
        return match (open, close, <[Value; 2]>::try_from(values)) {
            ('⟨', '⟩', Ok(values)) => Some(Value::Set(values.into())),
            ('⟨', '⟩', Err(values)) => Some(Value::Set(values)),
            ('⟨', ..) | (_, '⟩', _) => None,
            (open, close, Ok(bounds)) => {
                Some(Value::Interval(Box::new(bounds), [*open == '[', *close == ']']))
            }
            (_, _, Err(values)) => Some(Value::Tuple(values)),
        };
    }
    if let [Token::Command(name)] = tokens
        && name == "emptyset"
    {
        return Some(Value::Set(Vec::new()));
    }
    let mut reader = Reader { tokens, at: 0, how };
    let formula = reader.sum()?;
    (reader.at == tokens.len()).then_some(Value::Formula(formula))
}

/// Reads one formula.
struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    how: Normal,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.at)
    }

    fn take(&mut self, mark: char) -> bool {
        let there = self.peek() == Some(&Token::Mark(mark));
        self.at += usize::from(there);
        there
    }

    fn sum(&mut self) -> Option<Formula> {
        let mut parts = vec![self.signed()?];
        loop {
            if self.take('+') {
                parts.push(self.signed()?);
            } else if self.take('-') || self.take('−') {
                parts.push(self.signed()?.negated());
            } else {
                return Some(if parts.len() == 1 { parts.remove(0) } else { Formula::Sum(parts) });
            }
        }
    }

    fn signed(&mut self) -> Option<Formula> {
        if self.take('-') || self.take('−') {
            return Some(self.signed()?.negated());
        }
        if self.take('+') {
            return self.signed();
        }
        self.product()
    }

    fn product(&mut self) -> Option<Formula> {
        let mut parts = vec![self.power()?];
        loop {
            if self.take('*') || self.take('×') || self.take('·') {
                parts.push(self.factor()?);
            } else if self.take('/') || self.take('÷') || self.take(':') {
                parts.push(Formula::Inverse(Box::new(self.factor()?)));
            } else if self.begins_a_factor() {
                // "1 000" says neither 1000 nor 1 times 0.
                let number = |token: Option<&Token>| matches!(token, Some(Token::Number(_)));
                if number(self.peek()) && number(self.tokens.get(self.at - 1)) {
                    return None;
                }
                self.beside(&mut parts)?;
            } else {
                return Some(if parts.len() == 1 { parts.remove(0) } else { Formula::Product(parts) });
            }
        }
    }

    /// A factor without a sign of multiplication; a fraction of whole numbers behind a whole number is added: 2½.
    fn beside(&mut self, parts: &mut Vec<Formula>) -> Option<()> {
        let fraction = matches!(self.peek(), Some(Token::Command(name)) if name == "frac");
        let factor = self.power()?;
        if let (true, Some(Formula::Whole(whole)), Formula::Product(of)) = (fraction, parts.last(), &factor)
            && let [Formula::Whole(_), Formula::Inverse(under)] = of.as_slice()
            && matches!(**under, Formula::Whole(_))
        {
            let mixed = Formula::Sum(vec![Formula::Whole(*whole), factor]);
            parts.pop();
            parts.push(mixed);
        } else {
            parts.push(factor);
        }
        Some(())
    }

    fn factor(&mut self) -> Option<Formula> {
        if self.take('-') || self.take('−') {
            return Some(self.factor()?.negated());
        }
        self.power()
    }

    fn begins_a_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Number(_) | Token::Letter(_) | Token::Text(_) | Token::Mark('(' | '[' | '{')) => true,
            Some(Token::Command(name)) => !["rfloor", "rceil"].contains(&name.as_str()),
            _ => false,
        }
    }

    fn power(&mut self) -> Option<Formula> {
        let mut base = self.primary()?;
        loop {
            if self.take('!') {
                base = Formula::Function(Function::Factorial, Box::new(base));
            } else if self.take('%') {
                base = base.percent();
            } else if self.take('^') {
                if let Some(exponent) = self.exponent()? {
                    base = Formula::Power(Box::new(base), Box::new(exponent));
                }
            } else {
                return Some(base);
            }
        }
    }

    /// One token or a group; `None` inside for degrees, which say nothing about the number.
    fn exponent(&mut self) -> Option<Option<Formula>> {
        if let Some(Token::Command(name)) = self.peek()
            && name == "circ"
        {
            self.at += 1;
            return Some(None);
        }
        if self.tokens[self.at..].starts_with(&[
            Token::Mark('{'),
            Token::Command("circ".to_owned()),
            Token::Mark('}'),
        ]) {
            self.at += 3;
            return Some(None);
        }
        if self.how.lenient && self.take('(') {
            let inner = self.sum()?;
            return self.take(')').then_some(Some(inner));
        }
        self.one().map(Some)
    }

    /// What a command takes without braces: one digit, one letter, one command; or a group.
    fn one(&mut self) -> Option<Formula> {
        match self.peek()? {
            Token::Mark('{') => self.group('{', '}'),
            Token::Number(digits) if digits.len() > 1 && self.how.lenient => {
                // Braces are missing: `2^10` is meant as it looks.
                self.at += 1;
                Some(Formula::number(digits))
            }
            Token::Number(_) | Token::Letter(_) | Token::Command(_) => self.primary(),
            _ => None,
        }
    }

    fn group(&mut self, open: char, close: char) -> Option<Formula> {
        if !self.take(open) {
            return None;
        }
        let inner = self.sum()?;
        self.take(close).then_some(inner)
    }

    fn primary(&mut self) -> Option<Formula> {
        let token = self.peek()?;
        match token {
            Token::Mark('{') => return self.group('{', '}'),
            Token::Mark('(') => return self.group('(', ')'),
            Token::Mark('[') => return self.group('[', ']'),
            Token::Mark('|') => {
                self.at += 1;
                let inner = self.sum()?;
                return self.take('|').then(|| Formula::Function(Function::Absolute, Box::new(inner)));
            }
            _ => {}
        }
        self.at += 1;
        match token {
            Token::Number(digits) => {
                let number = Formula::number(digits);
                self.subscript().map(|base| {
                    if base.is_empty() { number.clone() } else { Formula::Name(format!("{digits}_{base}")) }
                })
            }
            Token::Letter(letter) => self.letter(*letter),
            Token::Mark('π') => Some(Formula::Constant(std::f64::consts::PI)),
            Token::Mark('∞') => Some(Formula::Constant(f64::INFINITY)),
            Token::Mark('√') => Some(root(self.one()?, Formula::Whole(2))),
            Token::Mark(_) => None,
            Token::Text(text) => {
                let word: String =
                    text.chars().filter(|c| !c.is_whitespace() && !"()".contains(*c)).collect();
                let digits = !word.is_empty() && word.bytes().all(|c| c.is_ascii_digit());
                (!word.is_empty())
                    .then(|| if digits { Formula::number(&word) } else { Formula::Name(word.to_lowercase()) })
            }
            Token::Command(name) => self.command(name),
        }
    }

    fn letter(&mut self, letter: char) -> Option<Formula> {
        let subscript = self.subscript()?;
        let letter: String = letter.to_lowercase().collect();
        Some(match (letter.as_str(), subscript.as_str()) {
            ("e", "") => Formula::Constant(std::f64::consts::E),
            ("π", "") => Formula::Constant(std::f64::consts::PI),
            (_, "") => Formula::Name(letter),
            (_, subscript) => Formula::Name(format!("{letter}_{subscript}")),
        })
    }

    /// What follows `_`, as text; empty without it.
    fn subscript(&mut self) -> Option<String> {
        if !self.take('_') {
            return Some(String::new());
        }
        let mut text = String::new();
        let braced = self.take('{');
        while let Some(token) = self.peek() {
            if braced && *token == Token::Mark('}') {
                break;
            }
            match token {
                Token::Number(part) | Token::Command(part) | Token::Text(part) => text.push_str(part),
                Token::Letter(c) | Token::Mark(c) => text.push(*c),
            }
            self.at += 1;
            if !braced {
                break;
            }
        }
        ((!braced || self.take('}')) && !text.is_empty()).then_some(text)
    }

    fn command(&mut self, name: &str) -> Option<Formula> {
        let real = |function: fn(f64) -> f64| Some(Function::Real(function));
        let function = match name {
            "frac" => {
                let (over, under) = (self.braced()?, self.braced()?);
                return Some(Formula::Product(vec![over, Formula::Inverse(Box::new(under))]));
            }
            "sqrt" => {
                let index = if self.peek() == Some(&Token::Mark('[')) {
                    self.group('[', ']')?
                } else {
                    Formula::Whole(2)
                };
                return Some(root(self.braced()?, index));
            }
            "binom" => {
                let (from, take) = (self.braced()?.exact()?, self.braced()?.exact()?);
                return binomial(from, take);
            }
            "pi" => return Some(Formula::Constant(std::f64::consts::PI)),
            "infty" => return Some(Formula::Constant(f64::INFINITY)),
            "lfloor" | "lceil" => {
                let (function, close) =
                    if name == "lfloor" { (Function::Floor, "rfloor") } else { (Function::Ceiling, "rceil") };
                let inner = self.sum()?;
                let closed = self.peek() == Some(&Token::Command(close.to_owned()));
                self.at += 1;
                return closed.then(|| Formula::Function(function, Box::new(inner)));
            }
            "sin" => real(f64::sin),
            "cos" => real(f64::cos),
            "tan" => real(f64::tan),
            "arcsin" => real(f64::asin),
            "arccos" => real(f64::acos),
            "arctan" => real(f64::atan),
            "sinh" => real(f64::sinh),
            "cosh" => real(f64::cosh),
            "tanh" => real(f64::tanh),
            "exp" => real(f64::exp),
            "ln" => real(f64::ln),
            "log" => {
                let base = if self.take('_') { self.one()? } else { Formula::Whole(10) };
                let ln = |formula| Formula::Function(Function::Real(f64::ln), Box::new(formula));
                let argument = self.argument()?;
                return Some(Formula::Product(vec![ln(argument), Formula::Inverse(Box::new(ln(base)))]));
            }
            "overline" | "bar" => {
                let inner = self.braced()?.word()?;
                return Some(Formula::Name(format!("bar {inner}")));
            }
            name if GREEK.contains(name) => {
                let subscript = self.subscript()?;
                let name = if subscript.is_empty() { name.to_owned() } else { format!("{name}_{subscript}") };
                return Some(Formula::Name(name));
            }
            _ => None,
        }?;
        let power = if self.take('^') { Some(self.one()?) } else { None };
        let value = Formula::Function(function, Box::new(self.argument()?));
        Some(match power {
            Some(power) => Formula::Power(Box::new(value), Box::new(power)),
            None => value,
        })
    }

    /// A group; of solutions also one digit or letter.
    fn braced(&mut self) -> Option<Formula> {
        if self.peek() == Some(&Token::Mark('{')) {
            return self.group('{', '}');
        }
        if !self.how.lenient {
            return None;
        }
        match self.peek()? {
            Token::Letter(_) | Token::Command(_) => self.primary(),
            Token::Number(_) => self.primary(),
            _ => None,
        }
    }

    /// What a function is applied to: a group, or the factors up to the next sign.
    fn argument(&mut self) -> Option<Formula> {
        if matches!(self.peek(), Some(Token::Mark('(' | '{' | '['))) {
            return self.power();
        }
        let mut parts = vec![self.power()?];
        while matches!(self.peek(), Some(Token::Number(_) | Token::Letter(_))) {
            parts.push(self.power()?);
        }
        Some(if parts.len() == 1 { parts.remove(0) } else { Formula::Product(parts) })
    }
}

fn root(of: Formula, index: Formula) -> Formula {
    Formula::Power(Box::new(of), Box::new(Formula::Inverse(Box::new(index))))
}

fn binomial(from: super::formula::Ratio, take: super::formula::Ratio) -> Option<Formula> {
    let (from, take) = (from.whole()?, take.whole()?);
    if !(0..=64).contains(&from) || !(0..=from).contains(&take) {
        return None;
    }
    Some(Formula::Whole((0..take).fold(1, |product, i| product * (from - i) / (i + 1))))
}

static GREEK: std::sync::LazyLock<HashSet<&str>> = std::sync::LazyLock::new(|| {
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho sigma tau upsilon phi \
     varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Phi Psi Omega ell varnothing"
        .split_whitespace()
        .collect()
});
