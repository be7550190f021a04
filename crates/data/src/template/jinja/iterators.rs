//! Iteration: lists, texts and dicts from their beginning, generators once and as late as Python runs them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::For;
use super::call::Given;
use super::fault::{Outcome, wrong};
use super::machine::{Machine, Scope};
use super::value::{Dict, Range, Value, View};

/// Makes the values of a generator.
type Make = dyn FnOnce(&Machine<'_>) -> Outcome<Vec<Value>>;

/// Something that gives values one after another.
pub(crate) enum Iter {
    Items(Rc<Vec<Value>>, usize),
    Reversed(Rc<Vec<Value>>, usize),
    Owned(std::vec::IntoIter<Value>),
    Chars(Arc<str>, usize),
    Dict(Rc<Dict>, View, usize),
    Range(Range, usize),
    /// A generator that other values share.
    Shared(Rc<RefCell<Iter>>),
    /// Made when the first value is asked for.
    Late(Box<Make>),
    Map {
        from: Box<Source>,
        with: Rc<Mapping>,
    },
    Select {
        from: Box<Source>,
        with: Rc<Selection>,
    },
    /// The items of a loop that its condition lets through.
    Condition {
        from: Box<Iter>,
        for_: Arc<For>,
        scope: Rc<Scope>,
    },
    /// Runs at the moment, or failed.
    Done,
}

/// What a generator runs over, asked when it begins.
pub(crate) enum Source {
    Value(Value),
    Begun(Iter),
}

/// What `map` does to each value.
pub(crate) enum Mapping {
    Attribute { path: Vec<Value>, default: Option<Value> },
    Filter { name: Arc<str>, given: Given },
}

/// What `select` and its kin keep.
pub(crate) struct Selection {
    pub(super) attribute: Option<Vec<Value>>,
    pub(super) test: Option<(Arc<str>, Given)>,
    pub(super) keep: bool,
}

impl Iter {
    pub(super) fn shared(self) -> Value {
        Value::Iter(Rc::new(RefCell::new(self)))
    }

    /// The next value.
    pub(super) fn next(&mut self, machine: &Machine<'_>) -> Outcome<Option<Value>> {
        machine.meter.spend(1)?;
        match self {
            Self::Items(items, at) => {
                let item = items.get(*at).cloned();
                *at += 1;
                Ok(item)
            }
            Self::Reversed(items, left) => {
                *left = left.saturating_sub(1);
                let item = items.get(*left).cloned();
                if *left == 0 {
                    *self = Self::Done;
                }
                Ok(item)
            }
            Self::Owned(items) => Ok(items.next()),
            Self::Chars(text, at) => {
                let next = text[*at..].chars().next();
                *at += next.map_or(0, char::len_utf8);
                Ok(next.map(|c| Value::text(c.encode_utf8(&mut [0; 4]))))
            }
            Self::Dict(dict, view, at) => {
                let item = dict.entries().get(*at).map(|(key, value)| match view {
                    View::Keys => key.clone(),
                    View::Values => value.clone(),
                    View::Items => Value::tuple(vec![key.clone(), value.clone()]),
                });
                *at += 1;
                Ok(item)
            }
            Self::Range(range, at) => {
                let item = (*at < range.len()).then(|| range.get(*at));
                *at += 1;
                Ok(item)
            }
            Self::Shared(iter) => {
                let iter = iter.clone();
                let Ok(mut inner) = iter.try_borrow_mut() else {
                    return wrong("generator already executing");
                };
                inner.next(machine)
            }
            Self::Done => Ok(None),
            Self::Late(_) => {
                let Self::Late(make) = std::mem::replace(self, Self::Done) else { return Ok(None) };
                *self = Self::Owned(make(machine)?.into_iter());
                self.next(machine)
            }
            Self::Map { .. } => {
                let Self::Map { mut from, with } = std::mem::replace(self, Self::Done) else {
                    return Ok(None);
                };
                let Some(item) = from.next(machine)? else { return Ok(None) };
                let item = match &*with {
                    Mapping::Attribute { path, default } => {
                        machine.read_path(&item, path, default.as_ref())?
                    }
                    Mapping::Filter { name, given } => {
                        let mut given = given.clone();
                        given.positional.insert(0, item);
                        machine.filter(name, given)?
                    }
                };
                *self = Self::Map { from, with };
                Ok(Some(item))
            }
            Self::Select { .. } => {
                let Self::Select { mut from, with } = std::mem::replace(self, Self::Done) else {
                    return Ok(None);
                };
                while let Some(item) = from.next(machine)? {
                    let seen = match &with.attribute {
                        Some(path) => machine.read_path(&item, path, None)?,
                        None => item.clone(),
                    };
                    let found = match &with.test {
                        Some((name, given)) => {
                            let mut given = given.clone();
                            given.positional.insert(0, seen);
                            machine.test(name, given)?
                        }
                        None => seen.truth(),
                    };
                    if found == with.keep {
                        *self = Self::Select { from, with };
                        return Ok(Some(item));
                    }
                }
                Ok(None)
            }
            Self::Condition { .. } => {
                let Self::Condition { mut from, for_, scope } = std::mem::replace(self, Self::Done) else {
                    return Ok(None);
                };
                while let Some(item) = from.next(machine)? {
                    if machine.passes(&for_, &scope, &item)? {
                        *self = Self::Condition { from, for_, scope };
                        return Ok(Some(item));
                    }
                }
                Ok(None)
            }
        }
    }

    /// All values that are left.
    pub(super) fn collect(mut self, machine: &Machine<'_>) -> Outcome<Vec<Value>> {
        let mut out = Vec::new();
        while let Some(item) = self.next(machine)? {
            out.push(item);
        }
        Ok(out)
    }
}

impl Source {
    fn next(&mut self, machine: &Machine<'_>) -> Outcome<Option<Value>> {
        if let Self::Value(value) = self {
            // As jinja2: what is false gives nothing, even if it cannot be iterated over.
            *self = Self::Begun(if value.truth() { machine.iterate(value)? } else { Iter::Done });
        }
        match self {
            Self::Begun(iter) => iter.next(machine),
            Self::Value(_) => Ok(None),
        }
    }
}
