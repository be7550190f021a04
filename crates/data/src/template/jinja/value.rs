//! Values of a template: Python's, as far as templates meet them.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::fault::{Fault, Kind, Outcome, wrong};
use super::functions::Function;
use super::iterators::Iter;
use super::loops::Loop;
use super::machine::MacroValue;
use super::numbers;

#[derive(Clone)]
pub(crate) enum Value {
    Undefined(Rc<Absent>),
    None,
    Bool(bool),
    Integer(i128),
    Float(f64),
    /// A `str`, or with the flag a `Markup`.
    Text(Arc<str>, bool),
    List(Rc<Vec<Value>>),
    Tuple(Rc<Vec<Value>>),
    /// What `groupby` makes: a pair whose parts are `grouper` and `list`.
    Group(Rc<Vec<Value>>),
    Dict(Rc<Dict>),
    /// `keys()`, `values()` and `items()` of a dict.
    View(Rc<Dict>, View),
    Range(Range),
    /// A generator or iterator: it runs once.
    Iter(Rc<RefCell<Iter>>),
    Namespace(Rc<RefCell<Dict>>),
    Macro(Rc<MacroValue>),
    Loop(Rc<RefCell<Loop>>),
    Cycler(Rc<Cycler>),
    Joiner(Rc<Joiner>),
    Function(Function),
    /// A method of a value.
    Method(Rc<Value>, &'static str),
}

/// Why a value is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// A variable that nobody set.
    Name(Arc<str>),
    /// A field that a value lacks: how the template reads it, and the value's type.
    Field { path: Arc<str>, of: &'static str },
    /// Anything else.
    Hint(String),
    /// A method that would change a value.
    Unsafe { name: Arc<str>, of: &'static str },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    Keys,
    Values,
    Items,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(super) start: i128,
    pub(super) stop: i128,
    pub(super) step: i128,
}

pub(crate) struct Cycler {
    pub(super) items: Vec<Value>,
    pub(super) position: RefCell<usize>,
}

pub(crate) struct Joiner {
    pub(super) separator: Value,
    pub(super) used: RefCell<bool>,
}

impl Absent {
    pub(super) fn fault(&self) -> Fault {
        let message = match self {
            Self::Name(name) => format!("`{name}` is undefined"),
            Self::Field { path, of } => format!("`{path}` is undefined: the {of} has no such field"),
            Self::Hint(hint) => hint.clone(),
            Self::Unsafe { name, of } => format!("`{name}` would change a {of}, which templates may not"),
        };
        Fault::new(Kind::Undefined, message)
    }
}

impl Range {
    pub(super) fn len(&self) -> usize {
        let span = if self.step > 0 { self.stop - self.start } else { self.start - self.stop };
        let step = self.step.unsigned_abs();
        if span <= 0 { 0 } else { usize::try_from(span.unsigned_abs().div_ceil(step)).unwrap_or(usize::MAX) }
    }

    pub(super) fn get(&self, index: usize) -> Value {
        Value::Integer(self.start + self.step * index as i128)
    }
}

/// A key of a dict, equal where Python's keys are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    Undefined,
    None,
    Integer(i128),
    Float(u64),
    Text(Arc<str>),
    Tuple(Vec<Key>),
    Address(usize),
}

/// Entries beyond which a dict has an index.
const SMALL: usize = 8;

/// A dict; it keeps the order in which keys came.
#[derive(Clone, Default)]
pub(crate) struct Dict {
    entries: Vec<(Value, Value)>,
    index: HashMap<Key, usize>,
}

impl Dict {
    pub(super) fn entries(&self) -> &[(Value, Value)] {
        &self.entries
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Sets a key; the first place of an equal key stays.
    pub(super) fn insert(&mut self, key: Value, value: Value) -> Outcome<()> {
        let hashed = key.key()?;
        if let Some(at) = self.find(&key, &hashed) {
            self.entries[at].1 = value;
            return Ok(());
        }
        self.entries.push((key, value));
        if self.entries.len() > SMALL {
            if self.index.is_empty() {
                for (at, (key, _)) in self.entries.iter().enumerate() {
                    self.index.insert(key.key()?, at);
                }
            } else {
                self.index.insert(hashed, self.entries.len() - 1);
            }
        }
        Ok(())
    }

    pub(super) fn set(&mut self, key: &str, value: Value) {
        let set = self.insert(Value::Text(Arc::from(key), false), value);
        debug_assert!(set.is_ok(), "text is hashable");
    }

    fn find(&self, key: &Value, hashed: &Key) -> Option<usize> {
        if !self.index.is_empty() {
            return self.index.get(hashed).copied();
        }
        self.entries.iter().position(|(k, _)| match (k, key) {
            (Value::Text(a, _), Value::Text(b, _)) => a == b,
            (Value::Text(..), _) | (_, Value::Text(..)) => false,
            (other, _) => other.key().is_ok_and(|k| k == *hashed),
        })
    }

    pub(super) fn get(&self, key: &Value) -> Outcome<Option<&Value>> {
        if let Value::Text(text, _) = key {
            return Ok(self.get_text(text));
        }
        let hashed = key.key()?;
        Ok(self.find(key, &hashed).map(|at| &self.entries[at].1))
    }

    pub(super) fn get_text(&self, key: &str) -> Option<&Value> {
        if !self.index.is_empty() {
            return self.index.get(&Key::Text(Arc::from(key))).map(|&at| &self.entries[at].1);
        }
        self.entries.iter().find(|(k, _)| matches!(k, Value::Text(k, _) if **k == *key)).map(|(_, v)| v)
    }
}

impl Value {
    pub(super) fn text(text: impl AsRef<str>) -> Self {
        Self::Text(Arc::from(text.as_ref()), false)
    }

    pub(super) fn list(items: Vec<Self>) -> Self {
        Self::List(Rc::new(items))
    }

    pub(super) fn tuple(items: Vec<Self>) -> Self {
        Self::Tuple(Rc::new(items))
    }

    pub(super) fn count(count: usize) -> Self {
        Self::Integer(count as i128)
    }

    pub(super) fn undefined(hint: impl Into<String>) -> Self {
        Self::Undefined(Rc::new(Absent::Hint(hint.into())))
    }

    pub(super) const fn is_undefined(&self) -> bool {
        matches!(self, Self::Undefined(_))
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text, _) => Some(text),
            _ => None,
        }
    }

    /// An integer or a bool as an integer.
    pub(super) fn as_integer(&self) -> Option<i128> {
        match self {
            Self::Integer(n) => Some(*n),
            Self::Bool(b) => Some(i128::from(*b)),
            _ => None,
        }
    }

    /// A number as a float.
    #[allow(clippy::cast_precision_loss, reason = "Python rounds integers alike")]
    pub(super) fn as_float(&self) -> Option<f64> {
        match self {
            Self::Float(f) => Some(*f),
            other => other.as_integer().map(|n| n as f64),
        }
    }

    /// Python's name of the type.
    pub(super) const fn type_name(&self) -> &'static str {
        match self {
            Self::Undefined(_) => "Undefined",
            Self::None => "NoneType",
            Self::Bool(_) => "bool",
            Self::Integer(_) => "int",
            Self::Float(_) => "float",
            Self::Text(_, false) => "str",
            Self::Text(_, true) => "Markup",
            Self::List(_) => "list",
            Self::Tuple(_) => "tuple",
            Self::Group(_) => "_GroupTuple",
            Self::Dict(_) => "dict",
            Self::View(_, View::Keys) => "dict_keys",
            Self::View(_, View::Values) => "dict_values",
            Self::View(_, View::Items) => "dict_items",
            Self::Range(_) => "range",
            Self::Iter(_) => "generator",
            Self::Namespace(_) => "Namespace",
            Self::Macro(_) => "Macro",
            Self::Loop(_) => "LoopContext",
            Self::Cycler(_) => "Cycler",
            Self::Joiner(_) => "Joiner",
            Self::Function(_) => "function",
            Self::Method(..) => "builtin_function_or_method",
        }
    }

    /// Python's truth.
    pub(super) fn truth(&self) -> bool {
        match self {
            Self::Undefined(_) | Self::None => false,
            Self::Bool(b) => *b,
            Self::Integer(n) => *n != 0,
            Self::Float(f) => *f != 0.0,
            Self::Text(text, _) => !text.is_empty(),
            Self::List(items) | Self::Tuple(items) | Self::Group(items) => !items.is_empty(),
            Self::Dict(dict) | Self::View(dict, _) => dict.len() > 0,
            Self::Range(range) => range.len() > 0,
            _ => true,
        }
    }

    /// The length of what has one without being run.
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Self::Undefined(_) => Some(0),
            Self::Text(text, _) => Some(if text.is_ascii() { text.len() } else { text.chars().count() }),
            Self::List(items) | Self::Tuple(items) | Self::Group(items) => Some(items.len()),
            Self::Dict(dict) | Self::View(dict, _) => Some(dict.len()),
            Self::Range(range) => Some(range.len()),
            _ => None,
        }
    }

    /// The value as a key of a dict.
    pub(super) fn key(&self) -> Outcome<Key> {
        Ok(match self {
            Self::Undefined(_) => Key::Undefined,
            Self::None => Key::None,
            Self::Bool(_) | Self::Integer(_) => Key::Integer(self.as_integer().unwrap_or_default()),
            Self::Float(f) => match numbers::whole(*f) {
                Some(n) => Key::Integer(n),
                None => Key::Float(f.to_bits()),
            },
            Self::Text(text, _) => Key::Text(text.clone()),
            Self::Tuple(items) | Self::Group(items) => {
                Key::Tuple(items.iter().map(Self::key).collect::<Outcome<_>>()?)
            }
            Self::Range(range) => Key::Tuple(vec![
                Key::Integer(range.start),
                Key::Integer(range.stop),
                Key::Integer(range.step),
                Key::None,
            ]),
            Self::List(_) | Self::Dict(_) | Self::View(..) => {
                return wrong(format!("unhashable type: '{}'", self.type_name()));
            }
            other => Key::Address(other.address()),
        })
    }

    /// Where a shared value lies; 0 for others.
    fn address(&self) -> usize {
        match self {
            Self::List(p) | Self::Tuple(p) | Self::Group(p) => Rc::as_ptr(p).addr(),
            Self::Dict(p) | Self::View(p, _) => Rc::as_ptr(p).addr(),
            Self::Iter(p) => Rc::as_ptr(p).addr(),
            Self::Namespace(p) => Rc::as_ptr(p).addr(),
            Self::Macro(p) => Rc::as_ptr(p).addr(),
            Self::Loop(p) => Rc::as_ptr(p).addr(),
            Self::Cycler(p) => Rc::as_ptr(p).addr(),
            Self::Joiner(p) => Rc::as_ptr(p).addr(),
            Self::Text(p, _) => Arc::as_ptr(p).addr(),
            _ => 0,
        }
    }

    /// Python's `is`.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::None, Self::None) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Integer(a), Self::Integer(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a.to_bits() == b.to_bits(),
            (Self::Text(a, x), Self::Text(b, y)) => a == b && x == y,
            (Self::Function(a), Self::Function(b)) => a == b,
            (Self::Tuple(a), Self::Tuple(b)) if a.is_empty() && b.is_empty() => true,
            (a, b) => a.type_name() == b.type_name() && a.address() != 0 && a.address() == b.address(),
        }
    }

    /// Python's `==`.
    pub(super) fn equals(&self, other: &Self) -> bool {
        let all = |a: &[Self], b: &[Self]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.is_same(b) || a.equals(b))
        };
        match (self, other) {
            (Self::Undefined(_), Self::Undefined(_)) | (Self::None, Self::None) => true,
            (Self::Text(a, _), Self::Text(b, _)) => a == b,
            (Self::List(a), Self::List(b)) => all(a, b),
            (Self::Tuple(a) | Self::Group(a), Self::Tuple(b) | Self::Group(b)) => all(a, b),
            (Self::Dict(a), Self::Dict(b)) => {
                a.len() == b.len()
                    && a.entries()
                        .iter()
                        .all(|(k, v)| b.get(k).ok().flatten().is_some_and(|w| v.is_same(w) || v.equals(w)))
            }
            (Self::Range(a), Self::Range(b)) => {
                a.len() == b.len()
                    && (a.len() == 0 || a.start == b.start && (a.len() == 1 || a.step == b.step))
            }
            (Self::Float(a), Self::Float(b)) => a == b,
            (Self::Float(f), n) | (n, Self::Float(f)) if n.as_integer().is_some() => {
                numbers::whole(*f).is_some_and(|w| Some(w) == n.as_integer())
            }
            (a, b) => match (a.as_integer(), b.as_integer()) {
                (Some(a), Some(b)) => a == b,
                _ => a.is_same(b),
            },
        }
    }

    /// Python's `<` and its kin; values of unlike types have no order.
    pub(super) fn order(&self, other: &Self, symbol: &str) -> Outcome<Option<Ordering>> {
        match (self, other) {
            (Self::Undefined(absent), _) | (_, Self::Undefined(absent)) => Err(absent.fault()),
            (Self::Text(a, _), Self::Text(b, _)) => Ok(Some(a.chars().cmp(b.chars()))),
            (Self::List(a), Self::List(b)) => order_all(a, b, symbol),
            (Self::Tuple(a) | Self::Group(a), Self::Tuple(b) | Self::Group(b)) => order_all(a, b, symbol),
            (a, b) => {
                if let (Some(a), Some(b)) = (a.as_integer(), b.as_integer()) {
                    return Ok(Some(a.cmp(&b)));
                }
                if let (Some(a), Some(b)) = (a.as_float(), b.as_float()) {
                    return Ok(a.partial_cmp(&b));
                }
                wrong(format!(
                    "'{symbol}' not supported between instances of '{}' and '{}'",
                    a.type_name(),
                    b.type_name()
                ))
            }
        }
    }
}

fn order_all(a: &[Value], b: &[Value], symbol: &str) -> Outcome<Option<Ordering>> {
    for (a, b) in a.iter().zip(b) {
        if !a.is_same(b) && !a.equals(b) {
            return a.order(b, symbol);
        }
    }
    Ok(Some(a.len().cmp(&b.len())))
}
