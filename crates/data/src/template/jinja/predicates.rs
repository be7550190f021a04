//! The tests of `is`.

use super::ast::Comparison;
use super::call::Given;
use super::fault::{Outcome, wrong};
use super::machine::Machine;
use super::operators;
use super::text::is_cased;
use super::value::Value;
use super::{ast::Operator, filters, printing};

const NAMES: [&str; 39] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "callable",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "escaped",
    "even",
    "false",
    "filter",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "test",
    "true",
    "undefined",
    "upper",
];

/// Whether there is a test of that name.
pub(super) fn exists(name: &str) -> bool {
    NAMES.contains(&name)
}

pub(super) fn call(machine: &Machine<'_>, name: &str, given: Given) -> Outcome<bool> {
    let comparison = match name {
        "==" | "eq" | "equalto" => Some(Comparison::Eq),
        "!=" | "ne" => Some(Comparison::Ne),
        "<" | "lt" | "lessthan" => Some(Comparison::Lt),
        "<=" | "le" => Some(Comparison::Le),
        ">" | "gt" | "greaterthan" => Some(Comparison::Gt),
        ">=" | "ge" => Some(Comparison::Ge),
        "in" => Some(Comparison::In),
        _ => None,
    };
    if let Some(comparison) = comparison {
        let [value, other] = given.bind(name, ["value", "seq"], 2)?;
        return machine.compare(comparison, &value.unwrap_or(Value::None), &other.unwrap_or(Value::None));
    }
    if matches!(name, "divisibleby" | "sameas") {
        let [value, other] =
            given.bind(name, ["value", if name == "sameas" { "other" } else { "num" }], 2)?;
        let (value, other) = (value.unwrap_or(Value::None), other.unwrap_or(Value::None));
        if name == "sameas" {
            return Ok(value.is_same(&other));
        }
        return Ok(operators::binary(machine, Operator::Mod, &value, &other)?.equals(&Value::Integer(0)));
    }
    let [value] = given.bind(name, ["value"], 1)?;
    let value = value.unwrap_or(Value::None);
    let rest = |of: &Value| operators::binary(machine, Operator::Mod, of, &Value::Integer(2));
    Ok(match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Integer(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => matches!(value, Value::Integer(_) | Value::Float(_) | Value::Bool(_)),
        "string" => matches!(value, Value::Text(..)),
        "mapping" => matches!(value, Value::Dict(_)),
        "sequence" => matches!(
            value,
            Value::Text(..)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Group(_)
                | Value::Dict(_)
                | Value::Range(_)
                | Value::Undefined(_)
        ),
        "iterable" => matches!(value, Value::Loop(_)) || machine.iterate(&value).is_ok(),
        "callable" => matches!(
            value,
            Value::Macro(_)
                | Value::Function(_)
                | Value::Method(..)
                | Value::Joiner(_)
                | Value::Loop(_)
                | Value::Undefined(_)
        ),
        "escaped" => matches!(value, Value::Text(_, true)),
        "odd" => rest(&value)?.equals(&Value::Integer(1)),
        "even" => rest(&value)?.equals(&Value::Integer(0)),
        "lower" | "upper" => {
            let text = printing::text(&machine.meter, &value)?;
            let right = |c: char| if name == "lower" { c.is_lowercase() } else { c.is_uppercase() };
            text.chars().any(is_cased) && text.chars().all(|c| right(c) || !is_cased(c))
        }
        "filter" => value.as_str().is_some_and(filters::exists),
        "test" => value.as_str().is_some_and(exists),
        other => return wrong(format!("no test named '{other}'")),
    })
}
