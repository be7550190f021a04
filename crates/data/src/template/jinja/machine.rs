//! A template that runs: scopes, output, statements and expressions.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{
    Arguments, Comparison, Constant, Expr, ExprKind, For, Frame, Load, Macro, Name, Program, Slot, Stmt,
    StmtKind, Target,
};
use super::call::{Given, integer};
use super::fault::{Fault, Kind, Outcome, wrong};
use super::functions::Function;
use super::iterators::Iter;
use super::loops::Loop;
use super::text::{byte_of, slice_indices, slice_places};
use super::value::{Absent, Dict, Value, View};
use super::{attributes, filters, functions, operators, predicates, printing};
use crate::template::bounds::Meter;
use crate::template::clock::Clock;

/// Steps that a scope costs: it takes as long as about so many small expressions.
const SCOPE: u64 = 8;

/// The variables of a scope that runs.
pub(crate) struct Scope {
    slots: RefCell<Vec<Option<Value>>>,
    parent: Option<Rc<Scope>>,
}

impl Scope {
    fn get(&self, slot: Slot) -> Option<Value> {
        let mut scope = self;
        for _ in 0..slot.up {
            scope = scope.parent.as_deref()?;
        }
        scope.slots.borrow().get(slot.index as usize)?.clone()
    }

    fn set(&self, slot: Slot, value: Value) {
        let mut scope = self;
        for _ in 0..slot.up {
            let Some(parent) = scope.parent.as_deref() else { return };
            scope = parent;
        }
        scope.put(slot.index as usize, value);
    }

    fn put(&self, index: usize, value: Value) {
        if let Some(place) = self.slots.borrow_mut().get_mut(index) {
            *place = Some(value);
        }
    }
}

/// A macro with the scope it was defined in.
pub(crate) struct MacroValue {
    pub(super) definition: Arc<Macro>,
    scope: Rc<Scope>,
}

/// Where execution goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    Next,
    Break,
    Continue,
}

/// One rendering.
pub(crate) struct Machine<'p> {
    program: &'p Program,
    pub(super) meter: Meter,
    pub(super) clock: Clock,
    /// What the caller gives.
    given: HashMap<Arc<str>, Value>,
    /// What the template sets outermost.
    exported: RefCell<HashMap<Arc<str>, Value>>,
    output: RefCell<Vec<String>>,
    /// Texts of filter blocks whose filter is being applied.
    blocks: RefCell<Vec<Value>>,
    /// Written around generation blocks.
    marks: Option<(char, char)>,
}

impl<'p> Machine<'p> {
    pub(crate) fn new(
        program: &'p Program,
        given: HashMap<Arc<str>, Value>,
        meter: Meter,
        clock: Clock,
        marks: Option<(char, char)>,
    ) -> Self {
        Self {
            program,
            meter,
            clock,
            given,
            exported: RefCell::default(),
            output: RefCell::default(),
            blocks: RefCell::default(),
            marks,
        }
    }

    /// Renders the template.
    pub(crate) fn render(&self) -> Outcome<String> {
        let (text, _) = self.capture(|| {
            let scope = self.enter(&self.program.frame, None);
            self.run(&self.program.body, &scope)
        })?;
        Ok(text)
    }

    fn resolve(&self, name: &str) -> Option<Value> {
        if let Some(value) = self.exported.borrow().get(name) {
            return Some(value.clone());
        }
        self.given.get(name).cloned().or_else(|| Function::named(name).map(Value::Function))
    }

    fn enter(&self, frame: &Frame, parent: Option<&Rc<Scope>>) -> Rc<Scope> {
        let slots = frame.names.iter().map(|(name, load)| match load {
            Load::Parameter | Load::Missing => None,
            Load::Context => self.resolve(name),
            Load::Outer(slot) => {
                parent.and_then(|p| p.get(Slot { up: slot.up.saturating_sub(1), index: slot.index }))
            }
        });
        Rc::new(Scope { slots: RefCell::new(slots.collect()), parent: parent.cloned() })
    }

    /// Runs something whose output becomes a text.
    fn capture<T>(&self, inside: impl FnOnce() -> Outcome<T>) -> Outcome<(String, T)> {
        self.output.borrow_mut().push(String::new());
        let out = inside();
        let text = self.output.borrow_mut().pop().unwrap_or_default();
        Ok((text, out?))
    }

    fn write(&self, text: &str) -> Outcome<()> {
        let mut output = self.output.borrow_mut();
        let Some(out) = output.last_mut() else { return Ok(()) };
        self.meter.grow(out.len(), text.len())?;
        out.push_str(text);
        Ok(())
    }

    fn run(&self, body: &[Stmt], scope: &Rc<Scope>) -> Outcome<Flow> {
        for statement in body {
            let flow = self.statement(statement, scope).map_err(|fault| fault.at(statement.line))?;
            if flow != Flow::Next {
                return Ok(flow);
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&self, statement: &Stmt, scope: &Rc<Scope>) -> Outcome<Flow> {
        self.meter.deeper()?;
        match &statement.kind {
            StmtKind::Text(text) => self.write(text)?,
            StmtKind::Print(value) => {
                let value = self.eval(value, scope)?;
                match &value {
                    Value::Text(text, _) => self.write(text)?,
                    Value::Undefined(_) => {}
                    other => self.write(&printing::text(&self.meter, other)?)?,
                }
            }
            StmtKind::If { branches, otherwise } => {
                for (test, body) in branches {
                    if self.truth(&self.eval(test, scope)?)? {
                        return self.run(body, scope);
                    }
                }
                return self.run(otherwise, scope);
            }
            StmtKind::For(for_) => {
                if !for_.recursive {
                    let items = self.eval(&for_.items, scope)?;
                    self.run_loop(for_, scope, &items, 0)?;
                } else {
                    let items = self.eval(&for_.items, scope)?;
                    let (text, ()) = self.capture(|| self.run_loop(for_, scope, &items, 0))?;
                    self.write(&text)?;
                }
            }
            StmtKind::Set { target, value } => {
                self.check_namespace(target, scope)?;
                let value = self.eval(value, scope)?;
                self.assign(target, value, scope)?;
            }
            StmtKind::SetBlock { target, filter, body, frame } => {
                let inner = self.enter(frame, Some(scope));
                let (text, flow) = self.capture(|| self.run(body, &inner))?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
                let mut value = Value::text(text);
                if let Some(filter) = filter {
                    value = self.filter_block(filter, value, &inner)?;
                }
                self.check_namespace(target, scope)?;
                self.assign(target, value, scope)?;
            }
            StmtKind::With { targets, body, frame } => {
                let inner = self.enter(frame, Some(scope));
                for (target, value) in targets {
                    let value = self.eval(value, scope)?;
                    self.assign(target, value, &inner)?;
                }
                return self.run(body, &inner);
            }
            StmtKind::Macro { target, macro_ } => {
                let value = MacroValue { definition: macro_.clone(), scope: scope.clone() };
                self.assign(target, Value::Macro(Rc::new(value)), scope)?;
            }
            StmtKind::CallBlock { call, macro_ } => {
                let caller = MacroValue { definition: macro_.clone(), scope: scope.clone() };
                let ExprKind::Call { callee, arguments } = &call.kind else {
                    return wrong("a call block without a call");
                };
                let callee = self.eval(callee, scope)?;
                let mut given = self.arguments(arguments, scope)?;
                given.named.push((Arc::from("caller"), Value::Macro(Rc::new(caller))));
                let value = self.call(&callee, given)?;
                self.write(&printing::text(&self.meter, &value)?)?;
            }
            StmtKind::FilterBlock { filter, body, frame } => {
                let inner = self.enter(frame, Some(scope));
                let (text, flow) = self.capture(|| self.run(body, &inner))?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
                let value = self.filter_block(filter, Value::text(text), &inner)?;
                self.write(&printing::text(&self.meter, &value)?)?;
            }
            StmtKind::Generation { body, frame } => {
                let inner = self.enter(frame, Some(scope));
                let (text, _) = self.capture(|| self.run(body, &inner))?;
                match self.marks {
                    Some((start, end)) => {
                        let mut mark = [0; 4];
                        self.write(start.encode_utf8(&mut mark))?;
                        self.write(&text)?;
                        self.write(end.encode_utf8(&mut mark))?;
                    }
                    None => self.write(&text)?,
                }
            }
            StmtKind::Block { body, frame } => {
                let inner = self.enter(frame, None);
                self.run(body, &inner)?;
            }
            StmtKind::Scope { body, frame } => {
                let inner = self.enter(frame, Some(scope));
                return self.run(body, &inner);
            }
            StmtKind::Break => return Ok(Flow::Break),
            StmtKind::Continue => return Ok(Flow::Continue),
            StmtKind::Unsupported("autoescape") => {
                return wrong("`autoescape` is not supported in chat templates");
            }
            StmtKind::Unsupported(tag) => {
                return wrong(format!("`{tag}` needs another template, and a chat template stands alone"));
            }
        }
        Ok(Flow::Next)
    }

    fn filter_block(&self, filter: &Expr, text: Value, scope: &Rc<Scope>) -> Outcome<Value> {
        self.blocks.borrow_mut().push(text);
        let value = self.eval(filter, scope);
        self.blocks.borrow_mut().pop();
        value
    }

    fn run_loop(&self, for_: &Arc<For>, scope: &Rc<Scope>, items: &Value, depth: usize) -> Outcome<()> {
        let mut iter = self.iterate(items)?;
        let mut length = items.len();
        if for_.test.is_some() {
            let test_scope = self.enter(&for_.test_frame, Some(scope));
            iter = Iter::Condition { from: Box::new(iter), for_: for_.clone(), scope: test_scope };
            length = None;
        }
        let recursive = for_.recursive.then(|| (for_.clone(), scope.clone()));
        let loop_ = Rc::new(RefCell::new(Loop::new(iter, length, depth, recursive)));
        let place = for_.frame.names.iter().position(|(name, _)| &**name == "loop");
        // As in Python, only a turn that reaches its end counts against `else`.
        let mut finished = false;
        loop {
            let item = loop_.try_borrow_mut().map_err(|_| busy())?.next(self)?;
            let Some(item) = item else { break };
            self.meter.spend(SCOPE)?;
            let inner = self.enter(&for_.frame, Some(scope));
            self.assign(&for_.target, item, &inner)?;
            if let Some(place) = place {
                inner.put(place, Value::Loop(loop_.clone()));
            }
            match self.run(&for_.body, &inner)? {
                Flow::Next => finished = true,
                Flow::Continue => {}
                Flow::Break => break,
            }
        }
        if !finished && !for_.otherwise.is_empty() {
            let inner = self.enter(&for_.otherwise_frame, Some(scope));
            self.run(&for_.otherwise, &inner)?;
        }
        Ok(())
    }

    /// Whether the condition of a loop lets an item through.
    pub(super) fn passes(&self, for_: &For, scope: &Rc<Scope>, item: &Value) -> Outcome<bool> {
        let Some(test) = &for_.test else { return Ok(true) };
        self.assign(&for_.target, item.clone(), scope)?;
        self.truth(&self.eval(test, scope)?)
    }

    fn check_namespace(&self, target: &Target, scope: &Rc<Scope>) -> Outcome<()> {
        match target {
            Target::Name { .. } => Ok(()),
            Target::Attribute { of, .. } => match scope.get(of.slot) {
                Some(Value::Namespace(_)) => Ok(()),
                _ => wrong(format!("cannot assign an attribute of `{}`, which is no namespace", of.name)),
            },
            Target::Tuple(targets) => targets.iter().try_for_each(|t| self.check_namespace(t, scope)),
        }
    }

    fn assign(&self, target: &Target, value: Value, scope: &Rc<Scope>) -> Outcome<()> {
        match target {
            Target::Name { name, exported } => {
                if *exported {
                    self.exported.borrow_mut().insert(name.name.clone(), value.clone());
                }
                scope.set(name.slot, value);
            }
            Target::Attribute { of, attribute } => {
                let Some(Value::Namespace(namespace)) = scope.get(of.slot) else {
                    return wrong(format!("`{}` is no namespace", of.name));
                };
                functions::check_attribute(attribute)?;
                namespace.try_borrow_mut().map_err(|_| busy())?.set(attribute, value);
            }
            Target::Tuple(targets) => {
                let mut iter = self.iterate(&value)?;
                let mut items = Vec::with_capacity(targets.len());
                while let Some(item) = iter.next(self)? {
                    items.push(item);
                    if items.len() > targets.len() {
                        return wrong(format!("too many values to unpack (expected {})", targets.len()));
                    }
                }
                if items.len() < targets.len() {
                    let (want, got) = (targets.len(), items.len());
                    return wrong(format!("not enough values to unpack (expected {want}, got {got})"));
                }
                for (target, item) in targets.iter().zip(items) {
                    self.assign(target, item, scope)?;
                }
            }
        }
        Ok(())
    }

    /// Python's truth; a loop's is that it has turns.
    pub(super) fn truth(&self, value: &Value) -> Outcome<bool> {
        match value {
            Value::Loop(loop_) => Ok(loop_.try_borrow_mut().map_err(|_| busy())?.length(self)? > 0),
            other => Ok(other.truth()),
        }
    }

    /// Iterates over a value from its beginning.
    pub(super) fn iterate(&self, value: &Value) -> Outcome<Iter> {
        Ok(match value {
            Value::Undefined(_) => Iter::Done,
            Value::Text(text, _) => Iter::Chars(text.clone(), 0),
            Value::List(items) | Value::Tuple(items) | Value::Group(items) => Iter::Items(items.clone(), 0),
            Value::Dict(dict) => Iter::Dict(dict.clone(), View::Keys, 0),
            Value::View(dict, view) => Iter::Dict(dict.clone(), *view, 0),
            Value::Range(range) => Iter::Range(*range, 0),
            Value::Iter(iter) => Iter::Shared(iter.clone()),
            other => return wrong(format!("'{}' object is not iterable", other.type_name())),
        })
    }

    /// All that a value gives when it is iterated over.
    pub(super) fn items(&self, value: &Value) -> Outcome<Vec<Value>> {
        if let Value::List(items) | Value::Tuple(items) | Value::Group(items) = value {
            self.meter.elements(items.len())?;
            return Ok(items.to_vec());
        }
        self.iterate(value)?.collect(self)
    }

    pub(super) fn eval(&self, expr: &Expr, scope: &Rc<Scope>) -> Outcome<Value> {
        self.meter.deeper()?;
        self.value(expr, scope).map_err(|fault| fault.at(expr.line))
    }

    fn value(&self, expr: &Expr, scope: &Rc<Scope>) -> Outcome<Value> {
        match &expr.kind {
            ExprKind::Constant(constant) => Ok(match constant {
                Constant::None => Value::None,
                Constant::Bool(b) => Value::Bool(*b),
                Constant::Integer(n) => Value::Integer(*n),
                Constant::Float(f) => Value::Float(*f),
                Constant::Text(text) => Value::Text(text.clone(), false),
            }),
            ExprKind::Name(name) => Ok(self.name(name, scope)),
            ExprKind::Attribute { of, name, path } => {
                let of = self.eval(of, scope)?;
                self.attribute(&of, name, path)
            }
            ExprKind::Item { of, index, path } => {
                let of = self.eval(of, scope)?;
                let index = self.eval(index, scope)?;
                self.item(&of, &index, path)
            }
            ExprKind::Slice { of, bounds } => self.slice(of, bounds, scope),
            ExprKind::Call { callee, arguments } => {
                let callee = self.eval(callee, scope)?;
                let given = self.arguments(arguments, scope)?;
                self.call(&callee, given)
            }
            ExprKind::Filter { name, of, arguments } => {
                let of = match of {
                    Some(of) => self.eval(of, scope)?,
                    None => self.blocks.borrow().last().cloned().unwrap_or(Value::None),
                };
                let mut given = self.arguments(arguments, scope)?;
                given.positional.insert(0, of);
                self.filter(name, given)
            }
            ExprKind::Test { name, of, arguments } => {
                let of = self.eval(of, scope)?;
                let mut given = self.arguments(arguments, scope)?;
                given.positional.insert(0, of);
                Ok(Value::Bool(self.test(name, given)?))
            }
            ExprKind::List(items) => Ok(Value::list(self.all(items, scope)?)),
            ExprKind::Tuple(items) => Ok(Value::tuple(self.all(items, scope)?)),
            ExprKind::Dict(items) => {
                let mut dict = Dict::default();
                for (key, value) in items {
                    let key = self.eval(key, scope)?;
                    dict.insert(key, self.eval(value, scope)?)?;
                }
                Ok(Value::Dict(Rc::new(dict)))
            }
            ExprKind::Not(of) => Ok(Value::Bool(!self.truth(&self.eval(of, scope)?)?)),
            ExprKind::Negative(of) => operators::negative(&self.eval(of, scope)?),
            ExprKind::Positive(of) => operators::positive(&self.eval(of, scope)?),
            ExprKind::Binary(operator, left, right) => {
                let left = self.eval(left, scope)?;
                let right = self.eval(right, scope)?;
                operators::binary(self, *operator, &left, &right)
            }
            ExprKind::Concat(parts) => {
                let mut out = String::new();
                for part in parts {
                    let text = printing::text(&self.meter, &self.eval(part, scope)?)?;
                    self.meter.grow(out.len(), text.len())?;
                    out.push_str(&text);
                }
                Ok(Value::text(out))
            }
            ExprKind::Compare(first, rest) => {
                let mut left = self.eval(first, scope)?;
                let mut value = true;
                for (comparison, right) in rest {
                    let right = self.eval(right, scope)?;
                    value = self.compare(*comparison, &left, &right)?;
                    if !value {
                        break;
                    }
                    left = right;
                }
                Ok(Value::Bool(value))
            }
            ExprKind::And(left, right) => {
                let left = self.eval(left, scope)?;
                if self.truth(&left)? { self.eval(right, scope) } else { Ok(left) }
            }
            ExprKind::Or(left, right) => {
                let left = self.eval(left, scope)?;
                if self.truth(&left)? { Ok(left) } else { self.eval(right, scope) }
            }
            ExprKind::Conditional { test, then, otherwise } => {
                if self.truth(&self.eval(test, scope)?)? {
                    self.eval(then, scope)
                } else if let Some(otherwise) = otherwise {
                    self.eval(otherwise, scope)
                } else {
                    Ok(Value::undefined("an inline `if` without `else` was false"))
                }
            }
        }
    }

    fn name(&self, name: &Name, scope: &Rc<Scope>) -> Value {
        scope.get(name.slot).unwrap_or_else(|| Value::Undefined(Rc::new(Absent::Name(name.name.clone()))))
    }

    fn all(&self, items: &[Expr], scope: &Rc<Scope>) -> Outcome<Vec<Value>> {
        items.iter().map(|item| self.eval(item, scope)).collect()
    }

    fn arguments(&self, arguments: &Arguments, scope: &Rc<Scope>) -> Outcome<Given> {
        let mut given = Given::new(self.all(&arguments.positional, scope)?);
        for (name, value) in &arguments.named {
            given.named.push((name.clone(), self.eval(value, scope)?));
        }
        if let Some(list) = &arguments.list {
            let list = self.eval(list, scope)?;
            given.positional.extend(self.items(&list)?);
        }
        if let Some(dict) = &arguments.dict {
            let Value::Dict(dict) = self.eval(dict, scope)? else {
                return wrong("argument after ** must be a mapping");
            };
            for (key, value) in dict.entries() {
                let Value::Text(name, _) = key else { return wrong("keywords must be strings") };
                if given.named.iter().any(|(n, _)| n == name) {
                    return wrong(format!("got multiple values for keyword argument '{name}'"));
                }
                given.named.push((name.clone(), value.clone()));
            }
        }
        Ok(given)
    }

    /// `of.name`: an attribute of the value, else its entry.
    fn attribute(&self, of: &Value, name: &Arc<str>, path: &Arc<str>) -> Outcome<Value> {
        if let Value::Undefined(absent) = of {
            return Err(absent.fault());
        }
        if let Some(found) = attributes::find(self, of, name)? {
            return Ok(found);
        }
        if let Value::Dict(dict) = of
            && let Some(value) = dict.get_text(name)
        {
            return Ok(value.clone());
        }
        Ok(absent(of, path))
    }

    /// `of[index]`: an entry of the value, else its attribute.
    pub(super) fn item(&self, of: &Value, index: &Value, path: &Arc<str>) -> Outcome<Value> {
        if let Value::Undefined(absent) = of {
            return Err(absent.fault());
        }
        let found = match of {
            Value::Dict(dict) => dict.get(index).ok().flatten().cloned(),
            Value::List(items) | Value::Tuple(items) | Value::Group(items) => {
                place(index, items.len()).map(|at| items[at].clone())
            }
            Value::Text(text, safe) => {
                let at = index.as_integer().and_then(|_| place(index, of.len().unwrap_or(0)));
                at.map(|at| {
                    let start = byte_of(text, at);
                    let c = text[start..].chars().next();
                    Value::Text(Arc::from(c.map(String::from).unwrap_or_default()), *safe)
                })
            }
            Value::Range(range) => place(index, range.len()).map(|at| range.get(at)),
            _ => None,
        };
        if let Some(found) = found {
            return Ok(found);
        }
        if let Value::Text(name, _) = index
            && let Some(found) = attributes::find(self, of, name)?
        {
            return Ok(found);
        }
        Ok(absent(of, path))
    }

    /// What `map` and its kin read: names separated by dots, looked up as items.
    pub(super) fn read_path(&self, item: &Value, path: &[Value], default: Option<&Value>) -> Outcome<Value> {
        let mut item = item.clone();
        for part in path {
            let name: Arc<str> = Arc::from(format!("….{}", printing::text(&self.meter, part)?));
            item = self.item(&item, part, &name)?;
            if item.is_undefined()
                && let Some(default) = default
            {
                item = default.clone();
            }
        }
        Ok(item)
    }

    fn slice(&self, of: &Expr, bounds: &[Option<Box<Expr>>; 3], scope: &Rc<Scope>) -> Outcome<Value> {
        let of = self.eval(of, scope)?;
        let mut values = [None; 3];
        for (value, bound) in values.iter_mut().zip(bounds) {
            if let Some(bound) = bound {
                match self.eval(bound, scope)? {
                    Value::None => {}
                    other => *value = Some(integer("a slice", &other)?),
                }
            }
        }
        self.sliced(&of, values)
    }

    /// Part of a sequence.
    pub(super) fn sliced(&self, of: &Value, bounds: [Option<i128>; 3]) -> Outcome<Value> {
        let length = match of {
            Value::Undefined(absent) => return Err(absent.fault()),
            Value::Text(..) | Value::List(_) | Value::Tuple(_) | Value::Group(_) | Value::Range(_) => {
                of.len().unwrap_or(0)
            }
            Value::Dict(_) => return wrong("unhashable type: 'slice'"),
            other => return wrong(format!("'{}' object is not subscriptable", other.type_name())),
        };
        let Some(places) = slice_indices(bounds, length) else { return wrong("slice step cannot be zero") };
        if let Value::Text(text, safe) = of {
            self.meter.text(text.len())?;
            let part = if places.2 == 1 {
                let start = byte_of(text, usize::try_from(places.0).unwrap_or(0));
                let stop = byte_of(text, usize::try_from(places.1).unwrap_or(0));
                text.get(start..stop).unwrap_or("").to_owned()
            } else {
                let chars: Vec<char> = text.chars().collect();
                slice_places(places).filter_map(|at| chars.get(at)).collect()
            };
            return Ok(Value::Text(Arc::from(part), *safe));
        }
        let mut out = Vec::new();
        for at in slice_places(places) {
            self.meter.spend(1)?;
            match of {
                Value::Range(range) => out.push(range.get(at)),
                Value::List(items) | Value::Tuple(items) | Value::Group(items) => {
                    out.extend(items.get(at).cloned());
                }
                _ => {}
            }
        }
        Ok(if matches!(of, Value::Tuple(_) | Value::Group(_)) { Value::tuple(out) } else { Value::list(out) })
    }

    pub(super) fn compare(&self, comparison: Comparison, left: &Value, right: &Value) -> Outcome<bool> {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let order = |symbol| left.order(right, symbol);
        Ok(match comparison {
            Comparison::Eq => left.equals(right),
            Comparison::Ne => !left.equals(right),
            Comparison::Lt => order("<")? == Some(Less),
            Comparison::Le => matches!(order("<=")?, Some(Less | Equal)),
            Comparison::Gt => order(">")? == Some(Greater),
            Comparison::Ge => matches!(order(">=")?, Some(Greater | Equal)),
            Comparison::In => self.contains(right, left)?,
            Comparison::NotIn => !self.contains(right, left)?,
        })
    }

    /// Python's `item in container`.
    pub(super) fn contains(&self, container: &Value, item: &Value) -> Outcome<bool> {
        match container {
            Value::Text(text, _) => match item {
                Value::Text(part, _) => {
                    self.meter.spend(text.len() as u64 / 32)?;
                    Ok(text.contains(&**part))
                }
                other => {
                    wrong(format!("'in <string>' requires string as left operand, not {}", other.type_name()))
                }
            },
            Value::Dict(dict) | Value::View(dict, View::Keys) => Ok(dict.get(item)?.is_some()),
            other => {
                let mut iter = match other {
                    Value::Namespace(_) | Value::Macro(_) | Value::Function(_) | Value::Method(..) => {
                        return wrong(format!("argument of type '{}' is not iterable", other.type_name()));
                    }
                    other => self.iterate(other)?,
                };
                while let Some(found) = iter.next(self)? {
                    if found.is_same(item) || found.equals(item) {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }

    pub(super) fn filter(&self, name: &str, given: Given) -> Outcome<Value> {
        filters::call(self, name, given)
    }

    pub(super) fn test(&self, name: &str, given: Given) -> Outcome<bool> {
        predicates::call(self, name, given)
    }

    /// Calls a value.
    pub(super) fn call(&self, callee: &Value, given: Given) -> Outcome<Value> {
        match callee {
            Value::Undefined(absent) => Err(absent.fault()),
            Value::Macro(macro_) => self.call_macro(macro_, given),
            Value::Method(of, name) => attributes::call(self, of, name, given),
            Value::Function(function) => functions::call(self, *function, given),
            Value::Joiner(joiner) => {
                given.plain::<0>("joiner", 0)?;
                Ok(if joiner.used.replace(true) { joiner.separator.clone() } else { Value::text("") })
            }
            Value::Loop(loop_) => {
                let [items] = given.bind("loop", ["iterable"], 1)?;
                let (recursive, depth) = {
                    let inner = loop_.try_borrow().map_err(|_| busy())?;
                    (inner.recursive.clone(), inner.depth + 1)
                };
                let Some((for_, scope)) = recursive else {
                    return wrong("the loop must have the 'recursive' marker to be called recursively");
                };
                let items = items.unwrap_or(Value::None);
                let (text, ()) =
                    self.meter.call(|| self.capture(|| self.run_loop(&for_, &scope, &items, depth)))?;
                Ok(Value::text(text))
            }
            other => wrong(format!("'{}' object is not callable", other.type_name())),
        }
    }

    fn call_macro(&self, macro_: &MacroValue, given: Given) -> Outcome<Value> {
        let definition = &*macro_.definition;
        let (name, parameters) = (definition.name.as_deref().unwrap_or("caller"), &definition.parameters);
        let Given { mut positional, mut named } = given;
        let extra = positional.split_off(positional.len().min(parameters.len()));
        let scope = self.enter(&definition.frame, Some(&macro_.scope));
        let mut take = |wanted: &str| {
            let at = named.iter().position(|(n, _)| &**n == wanted)?;
            Some(named.remove(at).1)
        };
        let mut missing = Vec::new();
        let mut values = positional.into_iter();
        for (at, parameter) in parameters.iter().enumerate() {
            match values.next().or_else(|| take(&parameter.name)) {
                Some(value) => scope.set(parameter.slot, value),
                None => missing.push(at),
            }
        }
        let special = |name: &str| definition.frame.names.iter().position(|(n, _)| &**n == name);
        if definition.caller
            && let Some(place) = special("caller")
        {
            let none = || Value::undefined("no caller defined");
            scope.put(place, take("caller").filter(|c| !matches!(c, Value::None)).unwrap_or_else(none));
        }
        if definition.kwargs {
            let mut dict = Dict::default();
            for (key, value) in named {
                dict.set(&key, value);
            }
            if let Some(place) = special("kwargs") {
                scope.put(place, Value::Dict(Rc::new(dict)));
            }
        } else if let Some((unknown, _)) = named.first() {
            return wrong(format!("macro '{name}' takes no keyword argument '{unknown}'"));
        }
        if definition.varargs {
            if let Some(place) = special("varargs") {
                scope.put(place, Value::tuple(extra));
            }
        } else if !extra.is_empty() {
            return wrong(format!("macro '{name}' takes not more than {} arguments", parameters.len()));
        }
        self.meter.spend(SCOPE)?;
        self.meter.call(|| {
            let undefaulted = parameters.len() - definition.defaults.len();
            for at in missing {
                let parameter = &parameters[at];
                let value = match at.checked_sub(undefaulted).and_then(|d| definition.defaults.get(d)) {
                    Some(default) => self.eval(default, &scope)?,
                    None => Value::undefined(format!("parameter '{}' was not provided", parameter.name)),
                };
                scope.set(parameter.slot, value);
            }
            let (text, _) = self.capture(|| self.run(&definition.body, &scope))?;
            Ok(Value::text(text))
        })
    }
}

/// An undefined field of a value.
fn absent(of: &Value, path: &Arc<str>) -> Value {
    Value::Undefined(Rc::new(Absent::Field { path: path.clone(), of: of.type_name() }))
}

/// The place that an index names in so many elements.
fn place(index: &Value, length: usize) -> Option<usize> {
    let index = index.as_integer()?;
    let at = if index < 0 { index + length as i128 } else { index };
    usize::try_from(at).ok().filter(|at| *at < length)
}

/// A generator or namespace that is used while it is being changed.
pub(super) fn busy() -> Fault {
    Fault::new(Kind::Type, "a value is used while it is being computed")
}
