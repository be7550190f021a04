//! The arguments of a call, bound to the names of parameters as Python binds them.

use std::sync::Arc;

use super::fault::{Outcome, wrong};
use super::value::Value;

/// The arguments that a filter, test, function or method is given.
#[derive(Clone, Default)]
pub(crate) struct Given {
    pub(super) positional: Vec<Value>,
    pub(super) named: Vec<(Arc<str>, Value)>,
}

impl Given {
    pub(super) const fn new(positional: Vec<Value>) -> Self {
        Self { positional, named: Vec::new() }
    }

    /// The arguments by the names of parameters; the first `required` must be there.
    pub(super) fn bind<const N: usize>(
        self,
        what: &str,
        names: [&str; N],
        required: usize,
    ) -> Outcome<[Option<Value>; N]> {
        if self.positional.len() > N {
            return wrong(format!(
                "{what}() takes at most {N} arguments, {} were given",
                self.positional.len()
            ));
        }
        let mut bound = [const { None }; N];
        for (at, value) in self.positional.into_iter().enumerate() {
            bound[at] = Some(value);
        }
        for (name, value) in self.named {
            match names.iter().position(|n| **n == *name) {
                Some(at) if bound[at].is_none() => bound[at] = Some(value),
                Some(_) => return wrong(format!("{what}() got multiple values for argument '{name}'")),
                None => return wrong(format!("{what}() got an unexpected keyword argument '{name}'")),
            }
        }
        match (0..required).find(|at| bound[*at].is_none()) {
            Some(at) => wrong(format!("{what}() is missing its argument '{}'", names[at])),
            None => Ok(bound),
        }
    }

    /// Arguments that may not be named.
    pub(super) fn plain<const N: usize>(self, what: &str, required: usize) -> Outcome<[Option<Value>; N]> {
        if !self.named.is_empty() {
            return wrong(format!("{what}() takes no keyword arguments"));
        }
        if self.positional.len() > N || self.positional.len() < required {
            let given = self.positional.len();
            return wrong(format!("{what}() takes {required} to {N} arguments, {given} were given"));
        }
        let mut bound = [const { None }; N];
        for (at, value) in self.positional.into_iter().enumerate() {
            bound[at] = Some(value);
        }
        Ok(bound)
    }
}

/// An integer argument.
pub(super) fn integer(what: &str, value: &Value) -> Outcome<i128> {
    match value.as_integer() {
        Some(n) => Ok(n),
        None => not_integer(what, value),
    }
}

fn not_integer<T>(what: &str, value: &Value) -> Outcome<T> {
    if let Value::Undefined(absent) = value {
        return Err(absent.fault());
    }
    wrong(format!("{what}: '{}' object cannot be interpreted as an integer", value.type_name()))
}

/// A text argument.
pub(super) fn string(what: &str, value: &Value) -> Outcome<Arc<str>> {
    match value {
        Value::Text(text, _) => Ok(text.clone()),
        Value::Undefined(absent) => Err(absent.fault()),
        other => wrong(format!("{what}: expected a text, got {}", other.type_name())),
    }
}
