//! Attributes and methods of values, with those of Python's that change a value left out.

use std::rc::Rc;
use std::sync::Arc;

use super::call::Given;
use super::fault::{Outcome, wrong};
use super::machine::{Machine, busy};
use super::strings;
use super::value::{Absent, Dict, Value, View};

const DICT: [&str; 6] = ["keys", "values", "items", "get", "copy", "fromkeys"];
const DICT_CHANGES: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
const LIST: [&str; 3] = ["index", "count", "copy"];
const LIST_CHANGES: [&str; 8] = ["append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"];
const TUPLE: [&str; 2] = ["index", "count"];
const INTEGER: [&str; 4] = ["bit_length", "bit_count", "conjugate", "is_integer"];
const FLOAT: [&str; 3] = ["is_integer", "conjugate", "hex"];
const LOOP: [&str; 2] = ["cycle", "changed"];
const CYCLER: [&str; 2] = ["next", "reset"];

/// The attribute of a value, as Python's `getattr` finds it; entries of dicts are none.
pub(super) fn find(machine: &Machine<'_>, of: &Value, name: &str) -> Outcome<Option<Value>> {
    let method = |names: &[&'static str]| {
        let name = *names.iter().find(|n| **n == name)?;
        Some(Value::Method(Rc::new(of.clone()), name))
    };
    let refused = || Value::Undefined(Rc::new(Absent::Unsafe { name: Arc::from(name), of: of.type_name() }));
    if name.starts_with("__") && name.ends_with("__") && name.len() > 4 {
        return Ok(Some(refused()));
    }
    Ok(match of {
        Value::Dict(_) if DICT_CHANGES.contains(&name) => Some(refused()),
        Value::Dict(_) => method(&DICT),
        Value::List(_) if LIST_CHANGES.contains(&name) => Some(refused()),
        Value::List(_) => method(&LIST),
        Value::Group(pair) => match name {
            "grouper" => pair.first().cloned(),
            "list" => pair.get(1).cloned(),
            _ => method(&TUPLE),
        },
        Value::Tuple(_) => method(&TUPLE),
        Value::Text(_, safe) => {
            strings::name(name, *safe).map(|name| Value::Method(Rc::new(of.clone()), name))
        }
        Value::Integer(_) | Value::Bool(_) => match name {
            "real" | "numerator" => of.as_integer().map(Value::Integer),
            "imag" => Some(Value::Integer(0)),
            "denominator" => Some(Value::Integer(1)),
            _ => method(&INTEGER),
        },
        Value::Float(_) => match name {
            "real" => Some(of.clone()),
            "imag" => Some(Value::Float(0.0)),
            _ => method(&FLOAT),
        },
        Value::Range(range) => match name {
            "start" => Some(Value::Integer(range.start)),
            "stop" => Some(Value::Integer(range.stop)),
            "step" => Some(Value::Integer(range.step)),
            _ => method(&TUPLE),
        },
        Value::Namespace(attributes) => attributes.try_borrow().map_err(|_| busy())?.get_text(name).cloned(),
        Value::Loop(loop_) => match method(&LOOP) {
            Some(found) => Some(found),
            None => loop_.try_borrow_mut().map_err(|_| busy())?.attribute(machine, name)?,
        },
        Value::Macro(macro_) => {
            let definition = &macro_.definition;
            match name {
                "name" => Some(definition.name.clone().map_or(Value::None, |name| Value::Text(name, false))),
                "arguments" => {
                    let names = definition.parameters.iter().map(|p| Value::Text(p.name.clone(), false));
                    Some(Value::tuple(names.collect()))
                }
                "catch_kwargs" => Some(Value::Bool(definition.kwargs)),
                "catch_varargs" => Some(Value::Bool(definition.varargs)),
                "caller" => Some(Value::Bool(definition.caller)),
                _ => None,
            }
        }
        Value::Cycler(cycler) => match name {
            "current" => cycler.items.get(*cycler.position.borrow()).cloned(),
            "pos" => Some(Value::count(*cycler.position.borrow())),
            "items" => Some(Value::tuple(cycler.items.clone())),
            _ => method(&CYCLER),
        },
        Value::Joiner(joiner) => match name {
            "sep" => Some(joiner.separator.clone()),
            "used" => Some(Value::Bool(*joiner.used.borrow())),
            _ => None,
        },
        Value::Function(function) => {
            function.method(name).map(|name| Value::Method(Rc::new(of.clone()), name))
        }
        _ => None,
    })
}

/// Calls a method that [`find`] found.
pub(super) fn call(machine: &Machine<'_>, of: &Value, name: &'static str, given: Given) -> Outcome<Value> {
    match of {
        Value::Text(text, safe) => strings::call(machine, text, *safe, name, given),
        Value::Dict(dict) => dict_method(machine, dict, name, given),
        Value::List(items) if name == "copy" => {
            given.plain::<0>(name, 0)?;
            machine.meter.elements(items.len())?;
            Ok(Value::list(items.to_vec()))
        }
        Value::List(_) | Value::Tuple(_) | Value::Group(_) | Value::Range(_) => {
            sequence_method(machine, of, name, given)
        }
        Value::Integer(_) | Value::Bool(_) | Value::Float(_) => {
            given.plain::<0>(name, 0)?;
            let integer = of.as_integer();
            Ok(match (name, integer) {
                ("bit_length", Some(n)) => Value::count((128 - n.unsigned_abs().leading_zeros()) as usize),
                ("bit_count", Some(n)) => Value::count(n.unsigned_abs().count_ones() as usize),
                ("is_integer", Some(_)) => Value::Bool(true),
                ("is_integer", None) => {
                    Value::Bool(of.as_float().is_some_and(|f| f.is_finite() && f.fract() == 0.0))
                }
                ("conjugate", Some(n)) => Value::Integer(n),
                ("conjugate", None) => of.clone(),
                _ => return wrong(format!("`{name}` of a number is not supported")),
            })
        }
        Value::Loop(loop_) => match name {
            "cycle" => {
                let turns = loop_.try_borrow().map_err(|_| busy())?.turns;
                let count = given.positional.len();
                if count == 0 || !given.named.is_empty() {
                    return wrong("no items for cycling given");
                }
                Ok(given.positional[turns.saturating_sub(1) % count].clone())
            }
            _ => {
                let now = Value::tuple(given.positional);
                let mut inner = loop_.try_borrow_mut().map_err(|_| busy())?;
                let changed = inner.changed.as_ref().is_none_or(|before| !before.equals(&now));
                if changed {
                    inner.changed = Some(now);
                }
                Ok(Value::Bool(changed))
            }
        },
        Value::Cycler(cycler) => {
            given.plain::<0>(name, 0)?;
            let mut position = cycler.position.borrow_mut();
            if name == "reset" {
                *position = 0;
                return Ok(Value::None);
            }
            let item = cycler.items.get(*position).cloned().unwrap_or(Value::None);
            *position = (*position + 1) % cycler.items.len().max(1);
            Ok(item)
        }
        Value::Function(_) => {
            let [keys, value] = given.plain(name, 1)?;
            from_keys(machine, &keys.unwrap_or(Value::None), value)
        }
        other => wrong(format!("'{}' object has no method `{name}`", other.type_name())),
    }
}

fn from_keys(machine: &Machine<'_>, keys: &Value, value: Option<Value>) -> Outcome<Value> {
    let mut dict = Dict::default();
    for key in machine.items(keys)? {
        dict.insert(key, value.clone().unwrap_or(Value::None))?;
    }
    Ok(Value::Dict(Rc::new(dict)))
}

fn dict_method(machine: &Machine<'_>, dict: &Rc<Dict>, name: &str, given: Given) -> Outcome<Value> {
    match name {
        "get" => {
            let [key, default] = given.plain(name, 1)?;
            let found = dict.get(&key.unwrap_or(Value::None))?;
            Ok(found.cloned().or(default).unwrap_or(Value::None))
        }
        "copy" => {
            given.plain::<0>(name, 0)?;
            machine.meter.elements(dict.len())?;
            Ok(Value::Dict(Rc::new((**dict).clone())))
        }
        "fromkeys" => {
            let [keys, value] = given.plain(name, 1)?;
            from_keys(machine, &keys.unwrap_or(Value::None), value)
        }
        _ => {
            given.plain::<0>(name, 0)?;
            let view = match name {
                "keys" => View::Keys,
                "values" => View::Values,
                _ => View::Items,
            };
            Ok(Value::View(dict.clone(), view))
        }
    }
}

fn sequence_method(machine: &Machine<'_>, of: &Value, name: &str, given: Given) -> Outcome<Value> {
    let items = machine.items(of)?;
    if name == "count" {
        let [wanted] = given.plain::<1>(name, 1)?;
        let wanted = wanted.unwrap_or(Value::None);
        return Ok(Value::count(items.iter().filter(|i| i.is_same(&wanted) || i.equals(&wanted)).count()));
    }
    let [wanted, start, stop] = given.plain(name, 1)?;
    let wanted = wanted.unwrap_or(Value::None);
    let length = items.len() as i128;
    let bound = |value: Option<Value>, default: i128| match value {
        None => Ok(default),
        Some(value) => {
            super::call::integer(name, &value).map(|n| if n < 0 { (n + length).max(0) } else { n })
        }
    };
    let (start, stop) = (bound(start, 0)?, bound(stop, length)?);
    let found = items.iter().enumerate().position(|(at, item)| {
        (start..stop).contains(&(at as i128)) && (item.is_same(&wanted) || item.equals(&wanted))
    });
    match found {
        Some(at) => Ok(Value::count(at)),
        None => wrong("the value is not in the list"),
    }
}
