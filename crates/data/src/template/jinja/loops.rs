//! The variable `loop`.

use std::rc::Rc;
use std::sync::Arc;

use super::ast::For;
use super::fault::Outcome;
use super::iterators::Iter;
use super::machine::{Machine, Scope};
use super::value::Value;

/// A loop that runs, and what it knows of itself.
pub(crate) struct Loop {
    iter: Iter,
    /// The length of what is iterated over, where it has one.
    length: Option<usize>,
    /// Turns begun.
    pub(super) turns: usize,
    after: Option<Value>,
    current: Option<Value>,
    before: Option<Value>,
    pub(super) changed: Option<Value>,
    pub(super) depth: usize,
    /// What a recursive loop runs again.
    pub(super) recursive: Option<(Arc<For>, Rc<Scope>)>,
}

impl Loop {
    pub(super) const fn new(
        iter: Iter,
        length: Option<usize>,
        depth: usize,
        recursive: Option<(Arc<For>, Rc<Scope>)>,
    ) -> Self {
        Self {
            iter,
            length,
            turns: 0,
            after: None,
            current: None,
            before: None,
            changed: None,
            depth,
            recursive,
        }
    }

    /// The next turn's value.
    pub(super) fn next(&mut self, machine: &Machine<'_>) -> Outcome<Option<Value>> {
        let Some(item) = self.peek(machine)? else { return Ok(None) };
        self.after = None;
        self.turns += 1;
        self.before = self.current.replace(item.clone());
        Ok(Some(item))
    }

    fn peek(&mut self, machine: &Machine<'_>) -> Outcome<Option<Value>> {
        if self.after.is_none() {
            self.after = self.iter.next(machine)?;
        }
        Ok(self.after.clone())
    }

    /// The number of turns in all.
    pub(super) fn length(&mut self, machine: &Machine<'_>) -> Outcome<usize> {
        if let Some(length) = self.length {
            return Ok(length);
        }
        let rest = std::mem::replace(&mut self.iter, Iter::Done).collect(machine)?;
        let length = rest.len() + self.turns + usize::from(self.after.is_some());
        self.iter = Iter::Owned(rest.into_iter());
        self.length = Some(length);
        Ok(length)
    }

    /// An attribute, if there is one of that name.
    pub(super) fn attribute(&mut self, machine: &Machine<'_>, name: &str) -> Outcome<Option<Value>> {
        let turns = self.turns as i128;
        Ok(Some(match name {
            "index" => Value::Integer(turns),
            "index0" => Value::Integer(turns - 1),
            "first" => Value::Bool(turns == 1),
            "last" => Value::Bool(self.peek(machine)?.is_none()),
            "length" => Value::count(self.length(machine)?),
            "revindex" => Value::Integer(self.length(machine)? as i128 - turns + 1),
            "revindex0" => Value::Integer(self.length(machine)? as i128 - turns),
            "depth" => Value::count(self.depth + 1),
            "depth0" => Value::count(self.depth),
            "previtem" => {
                self.before.clone().unwrap_or_else(|| Value::undefined("there is no previous item"))
            }
            "nextitem" => self.peek(machine)?.unwrap_or_else(|| Value::undefined("there is no next item")),
            _ => return Ok(None),
        }))
    }
}
