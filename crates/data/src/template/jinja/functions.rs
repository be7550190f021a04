//! The functions that templates find without being given them.

use std::cell::RefCell;
use std::rc::Rc;

use super::call::{Given, integer, string};
use super::fault::{Fault, Kind, Outcome, wrong};
use super::machine::Machine;
use super::printing;
use super::value::{Cycler, Dict, Joiner, Range, Value};
use crate::template::clock::strftime;

/// Elements of the longest range.
const LONGEST_RANGE: usize = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Range,
    Dict,
    Lipsum,
    Cycler,
    Joiner,
    Namespace,
    RaiseException,
    StrftimeNow,
}

impl Function {
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "range" => Self::Range,
            "dict" => Self::Dict,
            "lipsum" => Self::Lipsum,
            "cycler" => Self::Cycler,
            "joiner" => Self::Joiner,
            "namespace" => Self::Namespace,
            "raise_exception" => Self::RaiseException,
            "strftime_now" => Self::StrftimeNow,
            _ => return None,
        })
    }

    pub(super) fn method(self, name: &str) -> Option<&'static str> {
        (self == Self::Dict && name == "fromkeys").then_some("fromkeys")
    }
}

pub(super) fn call(machine: &Machine<'_>, function: Function, given: Given) -> Outcome<Value> {
    match function {
        Function::Range => {
            let [first, second, step] = given.plain("range", 1)?;
            let number = |value: Option<Value>| value.map(|v| integer("range", &v)).transpose();
            let (first, second, step) = (number(first)?.unwrap_or(0), number(second)?, number(step)?);
            let (start, stop) = second.map_or((0, first), |second| (first, second));
            let step = step.unwrap_or(1);
            if step == 0 {
                return wrong("range() arg 3 must not be zero");
            }
            let within = |n: i128| n.unsigned_abs() < 1 << 100;
            let range = Range { start, stop, step };
            if !within(start) || !within(stop) || !within(step) || range.len() > LONGEST_RANGE {
                return wrong(format!("a range of more than {LONGEST_RANGE} elements"));
            }
            Ok(Value::Range(range))
        }
        Function::Dict => Ok(Value::Dict(Rc::new(dict(machine, "dict", given)?))),
        Function::Namespace => {
            let attributes = dict(machine, "namespace", given)?;
            for (name, _) in attributes.entries() {
                if let Value::Text(name, _) = name {
                    check_attribute(name)?;
                }
            }
            Ok(Value::Namespace(Rc::new(RefCell::new(attributes))))
        }
        Function::Cycler => {
            if given.positional.is_empty() || !given.named.is_empty() {
                return wrong("cycler() needs at least one item");
            }
            Ok(Value::Cycler(Rc::new(Cycler { items: given.positional, position: RefCell::new(0) })))
        }
        Function::Joiner => {
            let [separator] = given.bind("joiner", ["sep"], 0)?;
            let separator = separator.unwrap_or_else(|| Value::text(", "));
            Ok(Value::Joiner(Rc::new(Joiner { separator, used: RefCell::new(false) })))
        }
        Function::RaiseException => {
            let [message] = given.bind("raise_exception", ["message"], 1)?;
            let message = printing::text(&machine.meter, &message.unwrap_or(Value::None))?;
            Err(Fault::new(Kind::Raised, &*message))
        }
        Function::StrftimeNow => {
            let [format] = given.bind("strftime_now", ["format"], 1)?;
            let format = string("strftime_now", &format.unwrap_or(Value::None))?;
            machine.meter.text(format.len().saturating_mul(16))?;
            match strftime(&format, machine.clock.seconds()) {
                Ok(text) => Ok(Value::text(text)),
                Err(directive) => wrong(format!("strftime_now does not know %{directive}")),
            }
        }
        Function::Lipsum => wrong("`lipsum` makes random text and is not supported"),
    }
}

/// Refuses a name that a namespace may not have.
pub(super) fn check_attribute(name: &str) -> Outcome<()> {
    if name.starts_with('_') {
        return wrong(format!("a namespace cannot have the underscore-prefixed attribute '{name}'"));
    }
    Ok(())
}

/// A dict from a mapping or pairs, and from named arguments.
fn dict(machine: &Machine<'_>, what: &str, given: Given) -> Outcome<Dict> {
    let mut out = Dict::default();
    let mut positional = given.positional.into_iter();
    match positional.next() {
        None => {}
        Some(Value::Dict(from)) => {
            machine.meter.elements(from.len())?;
            out = (*from).clone();
        }
        Some(pairs) => {
            for pair in machine.items(&pairs)? {
                let pair = machine.items(&pair)?;
                let [key, value] = &pair[..] else {
                    return wrong(format!("{what}(): an element is no pair"));
                };
                out.insert(key.clone(), value.clone())?;
            }
        }
    }
    if positional.next().is_some() {
        return wrong(format!("{what}() takes at most 1 argument"));
    }
    for (name, value) in given.named {
        out.set(&name, value);
    }
    Ok(out)
}
