//! Arithmetic on values, by Python's rules for each pair of types.

use std::sync::Arc;

use super::ast::Operator;
use super::fault::{Outcome, wrong};
use super::machine::Machine;
use super::text::{escaped, repeated};
use super::value::Value;
use super::{formatting, numbers};

pub(super) fn negative(value: &Value) -> Outcome<Value> {
    match value {
        Value::Undefined(absent) => Err(absent.fault()),
        Value::Float(f) => Ok(Value::Float(-f)),
        other => match other.as_integer().and_then(i128::checked_neg) {
            Some(n) => Ok(Value::Integer(n)),
            None => wrong(format!("bad operand type for unary -: '{}'", other.type_name())),
        },
    }
}

pub(super) fn positive(value: &Value) -> Outcome<Value> {
    match value {
        Value::Undefined(absent) => Err(absent.fault()),
        Value::Float(f) => Ok(Value::Float(*f)),
        other => match other.as_integer() {
            Some(n) => Ok(Value::Integer(n)),
            None => wrong(format!("bad operand type for unary +: '{}'", other.type_name())),
        },
    }
}

pub(super) fn binary(machine: &Machine<'_>, operator: Operator, a: &Value, b: &Value) -> Outcome<Value> {
    // A format takes what it is given, undefined values too.
    if let (Operator::Mod, Value::Text(format, safe)) = (operator, a) {
        return formatting::percent(machine, format, *safe, b);
    }
    if let (Value::Undefined(absent), _) | (_, Value::Undefined(absent)) = (a, b) {
        return Err(absent.fault());
    }
    if let (Some(a), Some(b)) = (a.as_integer(), b.as_integer()) {
        return numbers::integers(operator, a, b);
    }
    if let (Some(a), Some(b)) = (a.as_float(), b.as_float()) {
        return numbers::floats(operator, a, b);
    }
    match (operator, a, b) {
        (Operator::Add, Value::Text(a, safe_a), Value::Text(b, safe_b)) => {
            machine.meter.text(a.len() + b.len())?;
            // What is safe makes the other safe.
            let text = match (safe_a, safe_b) {
                (true, false) => format!("{a}{}", escaped(b)),
                (false, true) => format!("{}{b}", escaped(a)),
                _ => format!("{a}{b}"),
            };
            Ok(Value::Text(Arc::from(text), *safe_a || *safe_b))
        }
        (Operator::Add, Value::List(a), Value::List(b)) => {
            machine.meter.elements(a.len() + b.len())?;
            Ok(Value::list(a.iter().chain(b.iter()).cloned().collect()))
        }
        (Operator::Add, Value::Tuple(a) | Value::Group(a), Value::Tuple(b) | Value::Group(b)) => {
            machine.meter.elements(a.len() + b.len())?;
            Ok(Value::tuple(a.iter().chain(b.iter()).cloned().collect()))
        }
        (Operator::Mul, items, times) | (Operator::Mul, times, items)
            if times.as_integer().is_some()
                && matches!(items, Value::Text(..) | Value::List(_) | Value::Tuple(_) | Value::Group(_)) =>
        {
            multiplied(machine, items, times.as_integer().unwrap_or_default())
        }
        (operator, a, b) => wrong(format!(
            "unsupported operand type(s) for {}: '{}' and '{}'",
            operator.symbol(),
            a.type_name(),
            b.type_name()
        )),
    }
}

fn multiplied(machine: &Machine<'_>, items: &Value, times: i128) -> Outcome<Value> {
    let (Value::List(elements) | Value::Tuple(elements) | Value::Group(elements)) = items else {
        let Value::Text(text, safe) = items else { return wrong("only sequences can be repeated") };
        return repeated(&machine.meter, text, *safe, times);
    };
    let times = if elements.is_empty() { 0 } else { usize::try_from(times.max(0)).unwrap_or(usize::MAX) };
    machine.meter.elements(elements.len().saturating_mul(times))?;
    let out = std::iter::repeat_n(elements.iter(), times).flatten().cloned().collect();
    Ok(if matches!(items, Value::List(_)) { Value::list(out) } else { Value::tuple(out) })
}
