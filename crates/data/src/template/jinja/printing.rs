//! Values as text: Python's `str` and `repr`.

use std::fmt::Write;
use std::sync::Arc;

use super::fault::Outcome;
use super::numbers::float_text;
use super::text::repr;
use super::value::{Dict, Value, View};
use crate::template::bounds::Meter;

/// Python's `str` of a value.
pub(super) fn text(meter: &Meter, value: &Value) -> Outcome<Arc<str>> {
    Ok(match value {
        Value::Text(text, _) => text.clone(),
        Value::Undefined(_) => Arc::from(""),
        other => {
            let mut out = String::new();
            write_repr(meter, &mut out, other)?;
            Arc::from(out)
        }
    })
}

/// Python's `repr` of a value.
pub(super) fn write_repr(meter: &Meter, out: &mut String, value: &Value) -> Outcome<()> {
    meter.deeper()?;
    let before = out.len();
    match value {
        Value::Undefined(_) => out.push_str("Undefined"),
        Value::None => out.push_str("None"),
        Value::Bool(true) => out.push_str("True"),
        Value::Bool(false) => out.push_str("False"),
        Value::Integer(n) => {
            let _ = write!(out, "{n}");
        }
        Value::Float(f) => out.push_str(&float_text(*f)),
        Value::Text(text, false) => repr(out, text),
        Value::Text(text, true) => {
            out.push_str("Markup(");
            repr(out, text);
            out.push(')');
        }
        Value::List(items) => write_all(meter, out, ('[', ']'), items)?,
        Value::Tuple(items) | Value::Group(items) => {
            write_all(meter, out, ('(', ')'), items)?;
            if items.len() == 1 {
                out.insert(out.len() - 1, ',');
            }
        }
        Value::Dict(dict) => write_dict(meter, out, dict)?,
        Value::View(dict, View::Keys) => {
            let keys: Vec<Value> = dict.entries().iter().map(|(k, _)| k.clone()).collect();
            out.push_str("dict_keys(");
            write_all(meter, out, ('[', ']'), &keys)?;
            out.push(')');
        }
        Value::View(dict, View::Values) => {
            let values: Vec<Value> = dict.entries().iter().map(|(_, v)| v.clone()).collect();
            out.push_str("dict_values(");
            write_all(meter, out, ('[', ']'), &values)?;
            out.push(')');
        }
        Value::View(dict, View::Items) => {
            let pair = |(k, v): &(Value, Value)| Value::tuple(vec![k.clone(), v.clone()]);
            let items: Vec<Value> = dict.entries().iter().map(pair).collect();
            out.push_str("dict_items(");
            write_all(meter, out, ('[', ']'), &items)?;
            out.push(')');
        }
        Value::Range(range) => {
            let _ = write!(out, "range({}, {}", range.start, range.stop);
            if range.step != 1 {
                let _ = write!(out, ", {}", range.step);
            }
            out.push(')');
        }
        Value::Namespace(attributes) => {
            out.push_str("<Namespace ");
            match attributes.try_borrow() {
                Ok(attributes) => write_dict(meter, out, &attributes)?,
                Err(_) => out.push_str("{...}"),
            }
            out.push('>');
        }
        Value::Macro(macro_) => {
            out.push_str("<Macro ");
            match &macro_.definition.name {
                Some(name) => repr(out, name),
                None => out.push_str("anonymous"),
            }
            out.push('>');
        }
        Value::Method(of, name) => {
            let _ = write!(out, "<built-in method {name} of {} object>", of.type_name());
        }
        other => {
            let _ = write!(out, "<{} object>", other.type_name());
        }
    }
    meter.text(out.len() - before)
}

fn write_all(meter: &Meter, out: &mut String, (open, close): (char, char), items: &[Value]) -> Outcome<()> {
    out.push(open);
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        write_repr(meter, out, item)?;
    }
    out.push(close);
    Ok(())
}

fn write_dict(meter: &Meter, out: &mut String, dict: &Dict) -> Outcome<()> {
    out.push('{');
    for (at, (key, value)) in dict.entries().iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        write_repr(meter, out, key)?;
        out.push_str(": ");
        write_repr(meter, out, value)?;
    }
    out.push('}');
    Ok(())
}
