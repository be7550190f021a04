//! Tokens to statements, by jinja2's grammar with `generation` blocks and loop controls.

use std::sync::Arc;

use super::ast::{
    Arguments, Comparison, Constant, Expr, ExprKind, For, Frame, Macro, Name, Operator, Program, Slot, Stmt,
    StmtKind, Target,
};
use super::fault::{Fault, Outcome};
use super::lexer::{Kind, Token, tokens};
use super::{filters, predicates, scopes};
use crate::template::bounds::Bounds;

/// Longest name of a missing field in a message.
const LONGEST_PATH: usize = 120;

/// Names that a macro's body gets when it reads them.
#[derive(Clone, Copy, Debug, Default)]
struct Special {
    caller: bool,
    kwargs: bool,
    varargs: bool,
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
    nesting: usize,
    limit: usize,
    /// Of each macro that is open, what its body reads.
    macros: Vec<Special>,
    /// Open `if` blocks and conditional expressions, where an unknown filter is an error only when it is reached.
    soft: usize,
    loops: usize,
    /// Blocks open whose text is captured.
    captures: usize,
    marked: bool,
    marked_inside: bool,
}

/// Parses a template and finds its variables.
pub(crate) fn parse(source: &str, bounds: &Bounds) -> Outcome<Program> {
    if source.len() > bounds.source_bytes {
        let message = format!("it has {} bytes, more than {}", source.len(), bounds.source_bytes);
        return Err(Fault::syntax(message, 0));
    }
    let mut parser = Parser {
        tokens: tokens(source)?,
        at: 0,
        nesting: 0,
        limit: bounds.nesting,
        macros: Vec::new(),
        soft: 0,
        loops: 0,
        captures: 0,
        marked: false,
        marked_inside: false,
    };
    let body = parser.body(&[])?;
    if parser.captures > 0 || !matches!(parser.current().kind, Kind::End) {
        return parser.fail("unexpected end of a block");
    }
    let mut program =
        Program { body, frame: Frame::default(), marked: parser.marked, marked_inside: parser.marked_inside };
    scopes::resolve(&mut program)?;
    Ok(program)
}

impl Parser {
    fn current(&self) -> &Token {
        &self.tokens[self.at]
    }

    fn look(&self) -> &Kind {
        let next = (self.at + 1).min(self.tokens.len() - 1);
        &self.tokens[next].kind
    }

    fn line(&self) -> u32 {
        self.current().line
    }

    fn next(&mut self) -> Token {
        let token = self.current().clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        token
    }

    fn fail<T>(&self, message: impl Into<String>) -> Outcome<T> {
        Err(Fault::syntax(message, self.line()))
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(&self.current().kind, Kind::Name(name) if &**name == word)
    }

    fn is_operator(&self, operator: &str) -> bool {
        matches!(self.current().kind, Kind::Operator(op) if op == operator)
    }

    fn skip_word(&mut self, word: &str) -> bool {
        let found = self.is_word(word);
        if found {
            self.next();
        }
        found
    }

    fn skip_operator(&mut self, operator: &str) -> bool {
        let found = self.is_operator(operator);
        if found {
            self.next();
        }
        found
    }

    fn expect_word(&mut self, word: &str) -> Outcome<()> {
        if self.skip_word(word) {
            return Ok(());
        }
        self.fail(format!("expected '{word}', got '{}'", self.current().describe()))
    }

    fn expect_operator(&mut self, operator: &str) -> Outcome<()> {
        if self.skip_operator(operator) {
            return Ok(());
        }
        self.fail(format!("expected '{operator}', got '{}'", self.current().describe()))
    }

    fn expect_block_end(&mut self) -> Outcome<()> {
        if matches!(self.current().kind, Kind::BlockEnd) {
            self.next();
            return Ok(());
        }
        self.fail(format!("expected the end of the statement block, got '{}'", self.current().describe()))
    }

    fn name(&mut self) -> Outcome<Arc<str>> {
        match &self.current().kind {
            Kind::Name(name) => {
                let name = name.clone();
                self.next();
                Ok(name)
            }
            _ => self.fail(format!("expected a name, got '{}'", self.current().describe())),
        }
    }

    /// Parses something inside brackets or a block.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        if self.nesting >= self.limit {
            return self.fail(format!("nested more than {} deep", self.limit));
        }
        self.nesting += 1;
        let out = parse(self);
        self.nesting -= 1;
        out
    }

    /// Refuses an expression that nests too deeply to be evaluated.
    fn shallow(&self, expr: Expr) -> Outcome<Expr> {
        if expr.depth > 4 * self.limit {
            return self.fail(format!("an expression of more than {} terms", 4 * self.limit));
        }
        Ok(expr)
    }

    /// Statements up to one of the end words, whose token is then the current one.
    fn body(&mut self, ends: &[&str]) -> Outcome<Vec<Stmt>> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            match self.current().kind.clone() {
                Kind::Data(text) => {
                    self.next();
                    body.push(Stmt { line, kind: StmtKind::Text(text) });
                }
                Kind::VariableBegin => {
                    self.next();
                    let value = self.tuple(true, false)?;
                    if !matches!(self.current().kind, Kind::VariableEnd) {
                        return self.fail(format!(
                            "expected the end of the print statement, got '{}'",
                            self.current().describe()
                        ));
                    }
                    self.next();
                    body.push(Stmt { line, kind: StmtKind::Print(value) });
                }
                Kind::BlockBegin => {
                    self.next();
                    if ends.iter().any(|end| self.is_word(end)) {
                        return Ok(body);
                    }
                    let line = self.line();
                    let statements = self.nested(Self::statement)?;
                    body.extend(statements.into_iter().map(|kind| Stmt { line, kind }));
                    self.expect_block_end()?;
                }
                Kind::End if ends.is_empty() => return Ok(body),
                Kind::End => {
                    return self
                        .fail(format!("unexpected end of template, looking for '{}'", ends.join("' or '")));
                }
                _ => return self.fail("a token outside of a tag"),
            }
        }
    }

    /// The rest of an opening tag, then statements up to an end word.
    fn block(&mut self, ends: &[&str]) -> Outcome<Vec<Stmt>> {
        self.skip_operator(":");
        self.expect_block_end()?;
        self.body(ends)
    }

    /// As [`block`](Self::block), past the end word.
    fn whole_block(&mut self, end: &str) -> Outcome<Vec<Stmt>> {
        let body = self.block(&[end])?;
        self.next();
        Ok(body)
    }

    fn captured(&mut self, parse: impl FnOnce(&mut Self) -> Outcome<Vec<Stmt>>) -> Outcome<Vec<Stmt>> {
        self.captures += 1;
        let body = parse(self);
        self.captures -= 1;
        body
    }

    fn statement(&mut self) -> Outcome<Vec<StmtKind>> {
        let word = match &self.current().kind {
            Kind::Name(name) => name.clone(),
            _ => return self.fail("tag name expected"),
        };
        let line = self.line();
        let kind = match &*word {
            "for" => self.for_loop()?,
            "if" => self.conditional()?,
            "set" => self.set()?,
            "with" => self.with()?,
            "macro" => self.macro_definition()?,
            "call" => self.call_block()?,
            "filter" => self.filter_block()?,
            "generation" => self.generation()?,
            "block" => self.named_block()?,
            "autoescape" => self.autoescape()?,
            "print" => {
                self.next();
                let mut printed = Vec::new();
                while !matches!(self.current().kind, Kind::BlockEnd) {
                    if !printed.is_empty() {
                        self.expect_operator(",")?;
                    }
                    printed.push(StmtKind::Print(self.expression()?));
                }
                return Ok(printed);
            }
            "break" | "continue" => {
                self.next();
                if self.loops == 0 {
                    return self.fail(format!("'{word}' outside of a loop"));
                }
                if &*word == "break" { StmtKind::Break } else { StmtKind::Continue }
            }
            "include" | "import" | "from" | "extends" => {
                let name = match &*word {
                    "include" => "include",
                    "import" => "import",
                    "from" => "from",
                    _ => "extends",
                };
                while !matches!(self.current().kind, Kind::BlockEnd | Kind::End) {
                    self.next();
                }
                StmtKind::Unsupported(name)
            }
            other => {
                return Err(Fault::syntax(format!("encountered unknown tag '{other}'"), line));
            }
        };
        Ok(vec![kind])
    }

    fn for_loop(&mut self) -> Outcome<StmtKind> {
        self.next();
        let target = self.target(&["in"], false)?;
        self.expect_word("in")?;
        let items = self.tuple_until(false, false, &["recursive"])?;
        let test = if self.skip_word("if") { Some(self.expression()?) } else { None };
        let recursive = self.skip_word("recursive");
        self.loops += 1;
        self.captures += usize::from(recursive);
        let body = self.block(&["endfor", "else"]);
        self.captures -= usize::from(recursive);
        self.loops -= 1;
        let body = body?;
        let otherwise = if self.skip_word("endfor") {
            Vec::new()
        } else {
            self.next();
            self.whole_block("endfor")?
        };
        if writes_loop(&target) || body.iter().chain(&otherwise).any(stores_loop) {
            return self.fail("can't assign to the special variable 'loop' in a for loop");
        }
        Ok(StmtKind::For(Arc::new(For {
            target,
            items,
            test,
            test_frame: Frame::default(),
            recursive,
            body,
            frame: Frame::default(),
            otherwise,
            otherwise_frame: Frame::default(),
        })))
    }

    fn conditional(&mut self) -> Outcome<StmtKind> {
        self.next();
        self.soft += 1;
        let mut branches = Vec::new();
        let mut otherwise = Vec::new();
        loop {
            let test = self.tuple(false, false)?;
            let body = self.block(&["elif", "else", "endif"])?;
            branches.push((test, body));
            if self.skip_word("elif") {
                continue;
            }
            if self.skip_word("else") {
                otherwise = self.whole_block("endif")?;
            } else {
                self.next();
            }
            break;
        }
        self.soft -= 1;
        Ok(StmtKind::If { branches, otherwise })
    }

    fn set(&mut self) -> Outcome<StmtKind> {
        self.next();
        let target = self.target(&[], true)?;
        if self.skip_operator("=") {
            let value = self.tuple(true, false)?;
            return Ok(StmtKind::Set { target, value });
        }
        let filter = if self.is_operator("|") { Some(self.filters(None, false)?) } else { None };
        let body = self.captured(|p| p.whole_block("endset"))?;
        Ok(StmtKind::SetBlock { target, filter, body, frame: Frame::default() })
    }

    fn with(&mut self) -> Outcome<StmtKind> {
        self.next();
        let mut targets = Vec::new();
        while !matches!(self.current().kind, Kind::BlockEnd) {
            if !targets.is_empty() {
                self.expect_operator(",")?;
            }
            let target = self.target(&[], false)?;
            self.expect_operator("=")?;
            targets.push((target, self.expression()?));
        }
        let body = self.whole_block("endwith")?;
        Ok(StmtKind::With { targets, body, frame: Frame::default() })
    }

    fn autoescape(&mut self) -> Outcome<StmtKind> {
        self.next();
        let escape = self.expression()?;
        let off = matches!(escape.kind, ExprKind::Constant(Constant::Bool(false) | Constant::None));
        let body = self.whole_block("endautoescape")?;
        Ok(if off {
            StmtKind::Scope { body, frame: Frame::default() }
        } else {
            StmtKind::Unsupported("autoescape")
        })
    }

    fn named_block(&mut self) -> Outcome<StmtKind> {
        self.next();
        let name = self.name()?;
        self.skip_word("scoped");
        self.skip_word("required");
        let loops = std::mem::take(&mut self.loops);
        let body = self.whole_block("endblock");
        self.loops = loops;
        let body = body?;
        self.skip_word(&name);
        Ok(StmtKind::Block { body, frame: Frame::default() })
    }

    fn signature(&mut self) -> Outcome<(Vec<Name>, Vec<Expr>)> {
        let (mut parameters, mut defaults) = (Vec::new(), Vec::new());
        self.expect_operator("(")?;
        while !self.is_operator(")") {
            if !parameters.is_empty() {
                self.expect_operator(",")?;
            }
            let name = self.assignable_name()?;
            if self.skip_operator("=") {
                defaults.push(self.expression()?);
            } else if !defaults.is_empty() {
                return self.fail("non-default argument follows default argument");
            }
            parameters.push(Name { name, slot: Slot::default() });
        }
        self.expect_operator(")")?;
        Ok((parameters, defaults))
    }

    /// The body of a macro or call block, with what it reads of its call.
    fn macro_body(&mut self, parameters: &[Name], end: &str) -> Outcome<(Vec<Stmt>, Special)> {
        self.macros.push(Special::default());
        let loops = std::mem::take(&mut self.loops);
        let body = self.captured(|p| p.whole_block(end));
        self.loops = loops;
        let mut special = self.macros.pop().unwrap_or_default();
        let body = body?;
        let takes = |name: &str| parameters.iter().any(|p| &*p.name == name);
        special.caller &= !takes("caller");
        special.kwargs &= !takes("kwargs");
        special.varargs &= !takes("varargs");
        Ok((body, special))
    }

    fn macro_definition(&mut self) -> Outcome<StmtKind> {
        self.next();
        let name = self.assignable_name()?;
        let (parameters, defaults) = self.signature()?;
        let (body, special) = self.macro_body(&parameters, "endmacro")?;
        let macro_ = Arc::new(macro_of(Some(name.clone()), parameters, defaults, special, body));
        let target = Target::Name { name: Name { name, slot: Slot::default() }, exported: false };
        Ok(StmtKind::Macro { target, macro_ })
    }

    fn call_block(&mut self) -> Outcome<StmtKind> {
        self.next();
        let (parameters, defaults) =
            if self.is_operator("(") { self.signature()? } else { (Vec::new(), Vec::new()) };
        let call = self.expression()?;
        if !matches!(call.kind, ExprKind::Call { .. }) {
            return self.fail("expected call");
        }
        let (body, special) = self.macro_body(&parameters, "endcall")?;
        let macro_ = Arc::new(macro_of(None, parameters, defaults, special, body));
        Ok(StmtKind::CallBlock { call, macro_ })
    }

    fn generation(&mut self) -> Outcome<StmtKind> {
        self.next();
        self.marked = true;
        self.marked_inside |= self.captures > 0;
        let loops = std::mem::take(&mut self.loops);
        let body = self.captured(|p| p.whole_block("endgeneration"));
        self.loops = loops;
        Ok(StmtKind::Generation { body: body?, frame: Frame::default() })
    }

    fn filter_block(&mut self) -> Outcome<StmtKind> {
        self.next();
        let filter = self.filters(None, true)?;
        let body = self.captured(|p| p.whole_block("endfilter"))?;
        Ok(StmtKind::FilterBlock { filter, body, frame: Frame::default() })
    }

    fn assignable_name(&mut self) -> Outcome<Arc<str>> {
        let name = self.name()?;
        if matches!(&*name, "true" | "false" | "none" | "True" | "False" | "None") {
            return self.fail(format!("can't assign to '{name}'"));
        }
        Ok(name)
    }

    /// What is assigned to: a name, names separated by commas, or with `namespace` an attribute.
    fn target(&mut self, ends: &[&str], namespace: bool) -> Outcome<Target> {
        let mut targets = Vec::new();
        let mut is_tuple = false;
        loop {
            if !targets.is_empty() {
                self.expect_operator(",")?;
            }
            if self.is_tuple_end(ends) {
                break;
            }
            targets.push(self.single_target(namespace)?);
            if !self.is_operator(",") {
                break;
            }
            is_tuple = true;
        }
        match targets.pop() {
            Some(target) if !is_tuple => Ok(target),
            Some(target) => {
                targets.push(target);
                Ok(Target::Tuple(targets))
            }
            None => self.fail(format!("expected a name to assign to, got '{}'", self.current().describe())),
        }
    }

    fn single_target(&mut self, namespace: bool) -> Outcome<Target> {
        if self.skip_operator("(") {
            let inner = self.nested(|p| p.target(&[], false))?;
            self.expect_operator(")")?;
            return Ok(inner);
        }
        let name = Name { name: self.assignable_name()?, slot: Slot::default() };
        if namespace && self.skip_operator(".") {
            return Ok(Target::Attribute { of: name, attribute: self.name()? });
        }
        Ok(Target::Name { name, exported: false })
    }

    fn is_tuple_end(&self, words: &[&str]) -> bool {
        matches!(self.current().kind, Kind::VariableEnd | Kind::BlockEnd)
            || self.is_operator(")")
            || words.iter().any(|word| self.is_word(word))
    }

    fn tuple(&mut self, conditional: bool, explicit: bool) -> Outcome<Expr> {
        self.tuple_until(conditional, explicit, &[])
    }

    /// An expression, or several separated by commas; `explicit` inside parentheses, where it may be empty.
    fn tuple_until(&mut self, conditional: bool, explicit: bool, ends: &[&str]) -> Outcome<Expr> {
        let line = self.line();
        let mut items = Vec::new();
        let mut is_tuple = false;
        loop {
            if !items.is_empty() {
                self.expect_operator(",")?;
            }
            if self.is_tuple_end(ends) {
                break;
            }
            items.push(if conditional { self.expression()? } else { self.or()? });
            if !self.is_operator(",") {
                break;
            }
            is_tuple = true;
        }
        if !is_tuple {
            if let Some(only) = items.pop() {
                return Ok(only);
            }
            if !explicit {
                return self.fail(format!("expected an expression, got '{}'", self.current().describe()));
            }
        }
        Ok(Expr::new(line, ExprKind::Tuple(items)))
    }

    fn expression(&mut self) -> Outcome<Expr> {
        let line = self.line();
        let mut value = self.or()?;
        while self.is_word("if") {
            self.next();
            self.soft += 1;
            let test = self.or()?;
            let otherwise =
                if self.skip_word("else") { Some(Box::new(self.nested(Self::expression)?)) } else { None };
            self.soft -= 1;
            value = self.shallow(Expr::new(
                line,
                ExprKind::Conditional { test: Box::new(test), then: Box::new(value), otherwise },
            ))?;
        }
        Ok(value)
    }

    fn or(&mut self) -> Outcome<Expr> {
        let line = self.line();
        let mut left = self.and()?;
        while self.skip_word("or") {
            let right = self.and()?;
            left = self.shallow(Expr::new(line, ExprKind::Or(Box::new(left), Box::new(right))))?;
        }
        Ok(left)
    }

    fn and(&mut self) -> Outcome<Expr> {
        let line = self.line();
        let mut left = self.not()?;
        while self.skip_word("and") {
            let right = self.not()?;
            left = self.shallow(Expr::new(line, ExprKind::And(Box::new(left), Box::new(right))))?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Outcome<Expr> {
        let line = self.line();
        if self.skip_word("not") {
            let inner = self.nested(Self::not)?;
            return Ok(Expr::new(line, ExprKind::Not(Box::new(inner))));
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Outcome<Expr> {
        let line = self.line();
        let first = self.sum()?;
        let mut rest = Vec::new();
        loop {
            let comparison = match &self.current().kind {
                Kind::Operator("==") => Comparison::Eq,
                Kind::Operator("!=") => Comparison::Ne,
                Kind::Operator("<") => Comparison::Lt,
                Kind::Operator("<=") => Comparison::Le,
                Kind::Operator(">") => Comparison::Gt,
                Kind::Operator(">=") => Comparison::Ge,
                Kind::Name(word) if &**word == "in" => Comparison::In,
                Kind::Name(word)
                    if &**word == "not" && matches!(self.look(), Kind::Name(next) if &**next == "in") =>
                {
                    self.next();
                    Comparison::NotIn
                }
                _ => break,
            };
            self.next();
            rest.push((comparison, self.sum()?));
        }
        if rest.is_empty() {
            return Ok(first);
        }
        Ok(Expr::new(line, ExprKind::Compare(Box::new(first), rest)))
    }

    fn binary(
        &mut self,
        operators: &[(&str, Operator)],
        operand: impl Fn(&mut Self) -> Outcome<Expr>,
    ) -> Outcome<Expr> {
        let line = self.line();
        let mut left = operand(self)?;
        while let Some(&(_, operator)) = operators.iter().find(|(symbol, _)| self.is_operator(symbol)) {
            self.next();
            let right = operand(self)?;
            left =
                self.shallow(Expr::new(line, ExprKind::Binary(operator, Box::new(left), Box::new(right))))?;
        }
        Ok(left)
    }

    fn sum(&mut self) -> Outcome<Expr> {
        self.binary(&[("+", Operator::Add), ("-", Operator::Sub)], Self::concat)
    }

    fn concat(&mut self) -> Outcome<Expr> {
        let line = self.line();
        let first = self.product()?;
        if !self.is_operator("~") {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.skip_operator("~") {
            parts.push(self.product()?);
        }
        Ok(Expr::new(line, ExprKind::Concat(parts)))
    }

    fn product(&mut self) -> Outcome<Expr> {
        let operators =
            [("*", Operator::Mul), ("/", Operator::Div), ("//", Operator::FloorDiv), ("%", Operator::Mod)];
        self.binary(&operators, Self::power)
    }

    fn power(&mut self) -> Outcome<Expr> {
        self.binary(&[("**", Operator::Pow)], |p| p.unary(true))
    }

    fn unary(&mut self, with_filter: bool) -> Outcome<Expr> {
        let line = self.line();
        let mut value = if self.skip_operator("-") {
            let inner = self.nested(|p| p.unary(false))?;
            Expr::new(line, ExprKind::Negative(Box::new(inner)))
        } else if self.skip_operator("+") {
            let inner = self.nested(|p| p.unary(false))?;
            Expr::new(line, ExprKind::Positive(Box::new(inner)))
        } else {
            self.primary()?
        };
        value = self.postfix(value)?;
        if with_filter { self.filtered(value) } else { Ok(value) }
    }

    fn primary(&mut self) -> Outcome<Expr> {
        let token = self.current().clone();
        let line = token.line;
        let constant = |value| Expr::new(line, ExprKind::Constant(value));
        match token.kind {
            Kind::Name(name) => {
                self.next();
                Ok(match &*name {
                    "true" | "True" => constant(Constant::Bool(true)),
                    "false" | "False" => constant(Constant::Bool(false)),
                    "none" | "None" => constant(Constant::None),
                    _ => {
                        for open in &mut self.macros {
                            open.caller |= &*name == "caller";
                            open.kwargs |= &*name == "kwargs";
                            open.varargs |= &*name == "varargs";
                        }
                        Expr::new(line, ExprKind::Name(Name { name, slot: Slot::default() }))
                    }
                })
            }
            Kind::Text(first) => {
                self.next();
                let mut text = first.to_string();
                while let Kind::Text(more) = &self.current().kind {
                    text.push_str(more);
                    self.next();
                }
                Ok(constant(Constant::Text(Arc::from(text))))
            }
            Kind::Integer(n) => {
                self.next();
                Ok(constant(Constant::Integer(n)))
            }
            Kind::Float(f) => {
                self.next();
                Ok(constant(Constant::Float(f)))
            }
            Kind::Operator("(") => {
                self.next();
                let inner = self.nested(|p| p.tuple(true, true))?;
                self.expect_operator(")")?;
                Ok(inner)
            }
            Kind::Operator("[") => self.nested(Self::list),
            Kind::Operator("{") => self.nested(Self::dict),
            _ => self.fail(format!("unexpected '{}'", token.describe())),
        }
    }

    fn list(&mut self) -> Outcome<Expr> {
        let line = self.line();
        self.next();
        let mut items = Vec::new();
        while !self.is_operator("]") {
            if !items.is_empty() {
                self.expect_operator(",")?;
                if self.is_operator("]") {
                    break;
                }
            }
            items.push(self.expression()?);
        }
        self.expect_operator("]")?;
        Ok(Expr::new(line, ExprKind::List(items)))
    }

    fn dict(&mut self) -> Outcome<Expr> {
        let line = self.line();
        self.next();
        let mut items = Vec::new();
        while !self.is_operator("}") {
            if !items.is_empty() {
                self.expect_operator(",")?;
                if self.is_operator("}") {
                    break;
                }
            }
            let key = self.expression()?;
            self.expect_operator(":")?;
            items.push((key, self.expression()?));
        }
        self.expect_operator("}")?;
        Ok(Expr::new(line, ExprKind::Dict(items)))
    }

    fn postfix(&mut self, mut value: Expr) -> Outcome<Expr> {
        loop {
            value = if self.is_operator(".") || self.is_operator("[") {
                self.nested(|p| p.subscript(value))?
            } else if self.is_operator("(") {
                self.nested(|p| p.call(value))?
            } else {
                return Ok(value);
            };
            value = self.shallow(value)?;
        }
    }

    fn filtered(&mut self, mut value: Expr) -> Outcome<Expr> {
        loop {
            value = if self.is_operator("|") {
                self.filters(Some(value), false)?
            } else if self.is_word("is") {
                self.test(value)?
            } else if self.is_operator("(") {
                self.nested(|p| p.call(value))?
            } else {
                return Ok(value);
            };
            value = self.shallow(value)?;
        }
    }

    fn call(&mut self, callee: Expr) -> Outcome<Expr> {
        let line = self.line();
        let arguments = self.arguments()?;
        Ok(Expr::new(line, ExprKind::Call { callee: Box::new(callee), arguments }))
    }

    fn subscript(&mut self, of: Expr) -> Outcome<Expr> {
        let line = self.line();
        if self.skip_operator(".") {
            let token = self.next();
            return match token.kind {
                Kind::Name(name) => {
                    let path = path_of(&of, &format!(".{name}"));
                    Ok(Expr::new(line, ExprKind::Attribute { of: Box::new(of), name, path }))
                }
                Kind::Integer(n) => {
                    let path = path_of(&of, &format!(".{n}"));
                    let index = Expr::new(line, ExprKind::Constant(Constant::Integer(n)));
                    Ok(Expr::new(line, ExprKind::Item { of: Box::new(of), index: Box::new(index), path }))
                }
                _ => Err(Fault::syntax("expected name or number", token.line)),
            };
        }
        self.next();
        if let Some(bounds) = self.slice_or_index()? {
            match bounds {
                Subscript::Slice(bounds) => {
                    self.expect_operator("]")?;
                    return Ok(Expr::new(line, ExprKind::Slice { of: Box::new(of), bounds }));
                }
                Subscript::Index(first) => {
                    let mut index = first;
                    if self.is_operator(",") {
                        let mut items = vec![index];
                        while self.skip_operator(",") {
                            items.push(self.expression()?);
                        }
                        index = Expr::new(line, ExprKind::Tuple(items));
                    }
                    self.expect_operator("]")?;
                    let inner = index.path().unwrap_or_else(|| "…".to_owned());
                    let path = path_of(&of, &format!("[{inner}]"));
                    return Ok(Expr::new(
                        line,
                        ExprKind::Item { of: Box::new(of), index: Box::new(index), path },
                    ));
                }
            }
        }
        self.fail("expected an index")
    }

    fn slice_or_index(&mut self) -> Outcome<Option<Subscript>> {
        if self.is_operator("]") {
            return Ok(None);
        }
        let start = if self.skip_operator(":") {
            None
        } else {
            let first = self.expression()?;
            if !self.skip_operator(":") {
                return Ok(Some(Subscript::Index(first)));
            }
            Some(Box::new(first))
        };
        let ends = |p: &Self| p.is_operator("]") || p.is_operator(",");
        let stop =
            if self.is_operator(":") || ends(self) { None } else { Some(Box::new(self.expression()?)) };
        let step =
            if self.skip_operator(":") && !ends(self) { Some(Box::new(self.expression()?)) } else { None };
        Ok(Some(Subscript::Slice([start, stop, step])))
    }

    fn arguments(&mut self) -> Outcome<Arguments> {
        self.expect_operator("(")?;
        let mut arguments = Arguments::default();
        let mut comma = false;
        let invalid = "invalid syntax for function call expression";
        while !self.is_operator(")") {
            if comma {
                self.expect_operator(",")?;
                if self.is_operator(")") {
                    break;
                }
            }
            if self.is_operator("*") {
                if arguments.list.is_some() || arguments.dict.is_some() {
                    return self.fail(invalid);
                }
                self.next();
                arguments.list = Some(Box::new(self.expression()?));
            } else if self.is_operator("**") {
                if arguments.dict.is_some() {
                    return self.fail(invalid);
                }
                self.next();
                arguments.dict = Some(Box::new(self.expression()?));
            } else if matches!(self.current().kind, Kind::Name(_))
                && matches!(self.look(), Kind::Operator("="))
            {
                if arguments.dict.is_some() {
                    return self.fail(invalid);
                }
                let name = self.name()?;
                self.next();
                if arguments.named.iter().any(|(n, _)| *n == name) {
                    return self.fail(format!("keyword argument repeated: {name}"));
                }
                arguments.named.push((name, self.expression()?));
            } else {
                if arguments.list.is_some() || arguments.dict.is_some() || !arguments.named.is_empty() {
                    return self.fail(invalid);
                }
                arguments.positional.push(self.expression()?);
            }
            comma = true;
        }
        self.expect_operator(")")?;
        Ok(arguments)
    }

    /// Filters behind a value (or, in filter and set blocks, behind the block's text).
    fn filters(&mut self, mut value: Option<Expr>, mut inline: bool) -> Outcome<Expr> {
        while self.is_operator("|") || inline {
            if !inline {
                self.next();
            }
            inline = false;
            let line = self.line();
            let name = self.dotted_name()?;
            if !filters::exists(&name) && self.soft == 0 {
                return Err(Fault::syntax(format!("no filter named '{name}'"), line));
            }
            let arguments =
                if self.is_operator("(") { self.nested(Self::arguments)? } else { Arguments::default() };
            value = Some(
                self.shallow(Expr::new(line, ExprKind::Filter { name, of: value.map(Box::new), arguments }))?,
            );
        }
        match value {
            Some(value) => Ok(value),
            None => self.fail("expected a filter"),
        }
    }

    fn dotted_name(&mut self) -> Outcome<Arc<str>> {
        let mut name = self.name()?;
        while self.skip_operator(".") {
            name = Arc::from(format!("{name}.{}", self.name()?));
        }
        Ok(name)
    }

    fn test(&mut self, of: Expr) -> Outcome<Expr> {
        let line = self.line();
        self.next();
        let negated = self.skip_word("not");
        let name = self.dotted_name()?;
        if !predicates::exists(&name) && self.soft == 0 {
            return Err(Fault::syntax(format!("no test named '{name}'"), line));
        }
        let ends = ["else", "or", "and"].iter().any(|word| self.is_word(word));
        let arguments = match &self.current().kind {
            Kind::Operator("(") => self.nested(Self::arguments)?,
            Kind::Name(_) | Kind::Text(_) | Kind::Integer(_) | Kind::Float(_) | Kind::Operator("[" | "{")
                if !ends =>
            {
                if self.is_word("is") {
                    return self.fail("you cannot chain multiple tests with is");
                }
                let argument = self.primary()?;
                let argument = self.postfix(argument)?;
                Arguments { positional: vec![argument], ..Arguments::default() }
            }
            _ => Arguments::default(),
        };
        let test = Expr::new(line, ExprKind::Test { name, of: Box::new(of), arguments });
        Ok(if negated { Expr::new(line, ExprKind::Not(Box::new(test))) } else { test })
    }
}

enum Subscript {
    Index(Expr),
    Slice([Option<Box<Expr>>; 3]),
}

fn macro_of(
    name: Option<Arc<str>>,
    parameters: Vec<Name>,
    defaults: Vec<Expr>,
    special: Special,
    body: Vec<Stmt>,
) -> Macro {
    let Special { caller, kwargs, varargs } = special;
    Macro { name, parameters, defaults, caller, kwargs, varargs, body, frame: Frame::default() }
}

/// How a message names a field of a value.
fn path_of(of: &Expr, field: &str) -> Arc<str> {
    let of = of.path().unwrap_or_else(|| "…".to_owned());
    if of.len() + field.len() > LONGEST_PATH {
        return Arc::from(format!("…{}", field.chars().take(LONGEST_PATH).collect::<String>()));
    }
    Arc::from(of + field)
}

fn writes_loop(target: &Target) -> bool {
    match target {
        Target::Name { name, .. } => &*name.name == "loop",
        Target::Attribute { .. } => false,
        Target::Tuple(targets) => targets.iter().any(writes_loop),
    }
}

/// Whether a statement of a loop's body assigns to `loop`.
fn stores_loop(statement: &Stmt) -> bool {
    match &statement.kind {
        StmtKind::Set { target, .. } => writes_loop(target),
        StmtKind::SetBlock { target, body, .. } => writes_loop(target) || body.iter().any(stores_loop),
        StmtKind::If { branches, otherwise } => {
            branches.iter().any(|(_, body)| body.iter().any(stores_loop)) || otherwise.iter().any(stores_loop)
        }
        _ => false,
    }
}
